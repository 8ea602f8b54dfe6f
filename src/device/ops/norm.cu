/* SPDX-License-Identifier: Apache-2.0
 * norm: residual[t,:] += delta (or its norm), times sum_scale; out[r,:] = norm(residual[row,:]) * w (+ b), RMS
 * (Zhang & Sennrich 2019) or layer norm, optionally quantized to F8 with one scale a row.
 * Shapes    all [rows, hidden] in act dtype; weights f32 [hidden]; out act dtype, other act dtype,
 *           or F8. The residual is rounded to act dtype before it is normed: what is stored is what
 *           is normed. f32 accumulation.
 * Work      one block a row, the row in registers (8 elements x VPT a thread, 16-byte loads), so
 *           every byte moves once; odd sizes take a loop over memory. Sum of squares and, for F8, the
 *           largest |x w| are found in one round: the scale is that over the deviation. Up to 64 rows:
 *           weights are loaded before the wait, wide rows are spread over a cluster.
 * Bound     memory: (delta + 2 residual + out) bytes; below 500 rows the launch (2-3 us).
 * Measured  NVIDIA H200, 2048 x 4096 bf16: 3.72 TB/s (82 %), to F8 3.66 (80 %; 2026-11-30); one row 1.39, to
 *           F8 1.34 us, where one kernel for any number of rows took 2.1 and 2.5 (2026-11-22, make
 *           gpu-bench).
 * Tried     one row of 4096 over 2 blocks (and row_quant's over 8): a token of Llama-3.1-8B F8 takes 2.58 ms
 *           instead of 2.55; over 4 (and over 2): 2.55.
 */
#include "device/ops/norm.cuh"

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
        const float pending = delta_row(a, in_row);
        float inv = 1.0f;
        if (a.delta_weight) {
            float s = 0.0f;
            for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
                const float d = to_f(delta[i]) * delta_scale(a, pending, i);
                s += d * d;
            }
            inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)hidden + a.eps);
        }
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            float d = to_f(delta[i]) * delta_scale(a, pending, i);
            if (a.delta_weight) {
                d *= inv * a.delta_weight[i];
            }
            res[i] = from_f<T>((to_f(res[i]) + d) * a.sum_scale);
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
        if (a.to_residual) {
            res[i] = from_f<T>(v);
        }
    }
}

template <typename T, typename O>
static nrd_error *norm_launch(nrd_stream *s, const norm_params &p, int rows, bool vector)
{
    if (rows <= 0) {
        return NULL;
    }
    if (!vector || p.hidden / 8 > 4096) {
        return launch(s, norm_any_kernel<T, O>, dim3((unsigned)rows), dim3(512), 0, p);
    }
    if (p.kind == NRD_NORM_LAYER) {
        return norm_vector<T, O, true, false>(s, p, one_rank(), rows);
    }
    if (sizeof(O) == 1 && !p.bias && !p.to_residual) {
        return norm_vector<T, O, false, sizeof(O) == 1>(s, p, one_rank(), rows);
    }
    return norm_vector<T, O, false, false>(s, p, one_rank(), rows);
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

nrd_error *nrd_cuda_norm_params(const nrd_norm_args *a, norm_params *p)
{
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
    p->delta = a->delta;
    p->delta_rows = a->pending.rows;
    p->delta_columns = a->pending.columns;
    p->residual = a->residual;
    p->delta_weight = a->delta_weight ? (const float *)a->delta_weight->data : NULL;
    p->weight = a->weight ? (const float *)a->weight->data : NULL;
    p->bias = a->bias ? (const float *)a->bias->data : NULL;
    p->out = a->out;
    p->out_scale = a->out_row_scale;
    p->eps = a->eps;
    p->per = 1.0f / (float)a->hidden;
    p->sum_scale = nrd_norm_sum_scale(a);
    p->hidden = a->hidden;
    p->kind = a->kind;
    p->to_residual = a->to_residual;
    return NULL;
}

nrd_error *nrd_cuda_norm(nrd_stream *s, const nrd_norm_args *a)
{
    norm_params p = {};

    NRD_TRY(nrd_cuda_norm_params(a, &p));
    const nrd_dtype out = a->weight ? a->out_dtype : a->act_dtype;
    const bool vector = a->hidden % 8 == 0 && aligned16(a->delta) && aligned16(p.delta_columns) && aligned16(a->residual) &&
                        aligned_store8(a->out, out);
    if (a->row_ids && (a->n_tokens != 1 || a->n_rows != 1)) { /* of one row the ids say nothing */
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
    const int rows = p.row_ids ? a->n_rows : a->n_tokens;
    ACT_TYPE(a->act_dtype, return norm_out<T>(s, out, p, rows, vector));
}
