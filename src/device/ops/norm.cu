/* norm: residual[t,:] += delta (or its norm); out[r,:] = norm(residual[row,:]) * w (+ b), RMS
 * (Zhang & Sennrich 2019) or layer norm, optionally quantized to F8 with one scale a row.
 * Shapes    all [rows, hidden] in act dtype; weights f32 [hidden]; out act dtype, other act dtype,
 *           or F8. The residual is rounded to act dtype before it is normed: what is stored is what
 *           is normed. f32 accumulation.
 * Work      one block a row, the row in registers (8 elements x VPT a thread, 16-byte loads), so
 *           every byte moves once; odd sizes take a loop over memory.
 * Bound     memory: (delta + 2 residual + out) bytes; below 500 rows the launch (2-3 us).
 * Measured  NVIDIA H200, 2048 x 4096 bf16: 3.25 TB/s (74 %), to F8 2.95 (67 %); 1..64 rows 2.1-2.7 us
 *           (2026-11-21, make gpu-bench).
 */
#include "device/ops/common.cuh"

struct norm_params {
    const void *delta;
    void *residual;
    const float *delta_weight, *weight, *bias;
    const int32_t *row_ids;
    void *out;
    float *out_scale;
    float eps;
    int hidden, kind;
};

/* mean and 1/deviation of a row of n elements of which this thread holds v[0..m) */
template <int M>
static __device__ __forceinline__ void moments(const float *v, bool have, int n, int kind, float eps,
                                               float *red, float *mean, float *inv)
{
    float s = 0.0f;
    *mean = 0.0f;
    if (kind == NRD_NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < M; i++) {
            s += v[i];
        }
        *mean = block_reduce<op_sum>(s, red) / (float)n;
        s = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
        /* lanes beyond the row hold zeros, whose distance to the mean is not zero */
        const float d = v[i] - *mean;
        s += d * d;
    }
    (void)have;
    *inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)n + eps);
}

template <typename T, typename O, int VPT>
static __global__ void __launch_bounds__(1024) norm_kernel(norm_params a)
{
    __shared__ float red[32];
    const int row = blockIdx.x, hidden = a.hidden, step = blockDim.x * 8;
    float v[VPT * 8];

    pdl_wait();
    pdl_go();
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    T *res = (T *)a.residual + in_row * hidden;
    const T *delta = (const T *)a.delta;

    if (delta) {
        delta += in_row * hidden;
        float mean = 0.0f, inv = 1.0f;
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            if (i < hidden) {
                load8(delta + i, v + j * 8);
            } else {
                for (int k = 0; k < 8; k++) {
                    v[j * 8 + k] = 0.0f;
                }
            }
        }
        if (a.delta_weight) {
            /* the post-norm is RMS in every model that has one; layer norm takes the odd path */
            moments<VPT * 8>(v, true, hidden, NRD_NORM_RMS, a.eps, red, &mean, &inv);
        }
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            if (i < hidden) {
                float r[8];
                load8(res + i, r);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    float d = v[j * 8 + k];
                    if (a.delta_weight) {
                        d = d * inv * a.delta_weight[i + k];
                    }
                    v[j * 8 + k] = to_f(from_f<T>(r[k] + d));
                }
                store8(res + i, v + j * 8);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            if (i < hidden) {
                load8(res + i, v + j * 8);
            } else {
                for (int k = 0; k < 8; k++) {
                    v[j * 8 + k] = 0.0f;
                }
            }
        }
    }
    if (!a.weight) {
        return;
    }
    float mean = 0.0f, inv, amax = 0.0f;
    if (a.kind == NRD_NORM_LAYER) {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < VPT * 8; i++) {
            s += v[i];
        }
        mean = block_reduce<op_sum>(s, red) / (float)hidden;
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            if ((int)threadIdx.x * 8 + j * step < hidden) {
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[j * 8 + k] -= mean;
                }
            }
        }
    }
    float zero = 0.0f;
    moments<VPT * 8>(v, true, hidden, NRD_NORM_RMS, a.eps, red, &zero, &inv);
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < hidden) {
            float w[8], b[8];
            load8(a.weight + i, w);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[j * 8 + k] *= inv * w[k];
            }
            if (a.bias) {
                load8(a.bias + i, b);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[j * 8 + k] += b[k];
                }
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                amax = fmaxf(amax, fabsf(v[j * 8 + k]));
            }
        }
    }
    float q = 1.0f;
    if constexpr (sizeof(O) == 1) {
        const float scale = f8_scale(block_reduce<op_max>(amax, red));
        q = 1.0f / scale;
        if (threadIdx.x == 0) {
            a.out_scale[row] = scale;
        }
    }
    O *out = (O *)a.out + (int64_t)row * hidden;
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < hidden) {
            if constexpr (sizeof(O) == 1) {
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[j * 8 + k] *= q;
                }
            }
            store8(out + i, v + j * 8);
        }
    }
}

/* Any hidden, any alignment: loops over memory. */
template <typename T, typename O> static __global__ void norm_any_kernel(norm_params a)
{
    __shared__ float red[32];
    const int row = blockIdx.x, hidden = a.hidden;

    pdl_wait();
    pdl_go();
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    T *res = (T *)a.residual + in_row * hidden;

    if (a.delta) {
        const T *delta = (const T *)a.delta + in_row * hidden;
        float inv = 1.0f;
        if (a.delta_weight) {
            float s = 0.0f;
            for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
                s += to_f(delta[i]) * to_f(delta[i]);
            }
            inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)hidden + a.eps);
        }
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            float d = to_f(delta[i]);
            if (a.delta_weight) {
                d *= inv * a.delta_weight[i];
            }
            res[i] = from_f<T>(to_f(res[i]) + d);
        }
    }
    if (!a.weight) {
        return;
    }
    float mean = 0.0f, s = 0.0f, amax = 0.0f;
    if (a.kind == NRD_NORM_LAYER) { /* each thread reads back only what it wrote itself */
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            s += to_f(res[i]);
        }
        mean = block_reduce<op_sum>(s, red) / (float)hidden;
        s = 0.0f;
    }
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float d = to_f(res[i]) - mean;
        s += d * d;
    }
    const float inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)hidden + a.eps);
    float q = 1.0f;
    if constexpr (sizeof(O) == 1) {
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            amax = fmaxf(amax, fabsf((to_f(res[i]) - mean) * inv * a.weight[i] +
                                     (a.bias ? a.bias[i] : 0.0f)));
        }
        const float scale = f8_scale(block_reduce<op_max>(amax, red));
        q = 1.0f / scale;
        if (threadIdx.x == 0) {
            a.out_scale[row] = scale;
        }
    }
    O *out = (O *)a.out + (int64_t)row * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float v =
            (to_f(res[i]) - mean) * inv * a.weight[i] + (a.bias ? a.bias[i] : 0.0f);
        out[i] = from_f<O>(v * q);
    }
}

template <typename T, typename O>
static nrd_error *norm_launch(nrd_stream *s, const norm_params &p, int rows, bool vector)
{
    const dim3 grid((unsigned)rows);
    const int vecs = p.hidden / 8;

    if (rows <= 0) {
        return NULL;
    }
    if (vector && vecs <= 256) {
        return launch(s, norm_kernel<T, O, 1>, grid, dim3((unsigned)(vecs + 31) & ~31u), 0, p);
    }
    if (vector && vecs <= 1024) {
        return launch(s, norm_kernel<T, O, 2>, grid, dim3((unsigned)((vecs + 1) / 2 + 31) & ~31u), 0, p);
    }
    if (vector && vecs <= 4096) {
        return launch(s, norm_kernel<T, O, 4>, grid, dim3((unsigned)((vecs + 3) / 4 + 31) & ~31u), 0,
                      p);
    }
    return launch(s, norm_any_kernel<T, O>, grid, dim3(512), 0, p);
}

template <typename T>
static nrd_error *norm_out(nrd_stream *s, nrd_dtype out, const norm_params &p, int rows, bool vector)
{
    switch (out) {
    case NRD_DTYPE_BF16:
        return norm_launch<T, bf16>(s, p, rows, vector);
    case NRD_DTYPE_F16:
        return norm_launch<T, f16>(s, p, rows, vector);
    case NRD_DTYPE_F32:
        return norm_launch<T, float>(s, p, rows, vector);
    default:
        return norm_launch<T, f8>(s, p, rows, vector);
    }
}

static bool f32_vector(const nrd_weight *w, int n)
{
    return !w || (w->dtype == NRD_DTYPE_F32 && w->rows * w->cols == n);
}

nrd_error *op_norm(nrd_stream *s, const nrd_norm_args *a)
{
    norm_params p = {};

    if (!f32_vector(a->weight, a->hidden) || !f32_vector(a->bias, a->hidden) ||
        !f32_vector(a->delta_weight, a->hidden)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "cuda: norm: weights must be vectors of %d loaded by weight_load", a->hidden);
    }
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;
    if (!is_act_dtype(a->act_dtype) ||
        (a->weight && !is_act_dtype(a->out_dtype) && !(quant && a->out_row_scale))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: norm of dtype %d to dtype %d",
                          (int)a->act_dtype, (int)a->out_dtype);
    }
    if (a->delta_weight && a->kind != NRD_NORM_RMS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: norm: a post-norm that is not RMS");
    }
    p.delta = a->delta;
    p.residual = a->residual;
    p.delta_weight = a->delta_weight ? (const float *)a->delta_weight->data : NULL;
    p.weight = a->weight ? (const float *)a->weight->data : NULL;
    p.bias = a->bias ? (const float *)a->bias->data : NULL;
    p.out = a->out;
    p.out_scale = a->out_row_scale;
    p.eps = a->eps;
    p.hidden = a->hidden;
    p.kind = a->kind;
    const bool vector = a->hidden % 8 == 0 && aligned16(a->delta) && aligned16(a->residual) &&
                        aligned16(a->out);
    const nrd_dtype out = a->weight ? a->out_dtype : a->act_dtype;
    if (a->row_ids) {
        if (a->delta) {
            norm_params add = p;
            add.weight = NULL;
            ACT_TYPE(a->act_dtype,
                     NRD_TRY((norm_launch<T, T>(s, add, a->n_tokens, vector))));
            p.delta = NULL;
        }
        p.row_ids = a->row_ids;
    }
    if (!a->weight && !p.delta) {
        return NULL;
    }
    const int rows = a->row_ids ? a->n_rows : a->n_tokens;
    ACT_TYPE(a->act_dtype, return norm_out<T>(s, out, p, rows, vector));
}
