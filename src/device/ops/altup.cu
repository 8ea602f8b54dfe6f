/* SPDX-License-Identifier: Apache-2.0
 * altup_predict, altup_correct, altup_match: several states of a token (Baykal et al., Alternating Updates, 2023).
 * Shapes    states [n_states, tokens, hidden] of an activation type; router, coefficients, norms and scale float32.
 * Work      a block a token: a pass for the sums that say how much goes where, another that moves it.
 * Bound     memory; up to some hundred tokens the launch.
 */
#include "device/ops/common.cuh"

enum { ALTUP_THREADS = 256, ALTUP_MAX = NRD_ALTUP_MAX_STATES };

struct altup_params {
    void *states;
    const void *x, *delta;
    const float *delta_weight, *norm, *router, *coefs, *scale;
    void *out;
    float x_scale, eps;
    int hidden, n;
    int64_t step; /* from state to state */
};

/* m of a row of which a thread has the sum of squares and of the products with the router; in shared memory for all. */
static __device__ __forceinline__ void altup_route(const altup_params &a, float square, const float *dots, float *red, float *m)
{
    const float inv = rsqrtf(block_reduce<op_sum>(square, red) / (float)a.hidden + a.eps) / (float)a.hidden;

    for (int k = 0; k < a.n; k++) {
        const float dot = block_reduce<op_sum>(dots[k], red);
        if (threadIdx.x == 0) {
            m[k] = tanhf(dot * inv);
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ void altup_gather(const altup_params &a, float v, int i, float *square, float *dots)
{
    const float w = v * a.norm[i];

    *square += v * v;
#pragma unroll
    for (int k = 0; k < ALTUP_MAX; k++) {
        if (k < a.n) {
            dots[k] += w * a.router[(int64_t)k * a.hidden + i];
        }
    }
}

static __device__ __forceinline__ float altup_times(const float *coefs, const float *m, int n)
{
    float sum = 0.0f;
    for (int k = 0; k < n; k++) {
        sum += coefs[k] * m[k];
    }
    return sum;
}

template <typename T> static __global__ void __launch_bounds__(ALTUP_THREADS) altup_predict_kernel(altup_params a)
{
    __shared__ float red[32], m[ALTUP_MAX], by[ALTUP_MAX * ALTUP_MAX];
    const int64_t row = (int64_t)blockIdx.x * a.hidden;
    float dots[ALTUP_MAX] = {}, square = 0.0f;

    pdl_wait();
    pdl_go();
    T *states = (T *)a.states + row;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        altup_gather(a, to_f(states[i]), i, &square, dots);
    }
    altup_route(a, square, dots, red, m);
    if ((int)threadIdx.x < a.n * a.n) {
        by[threadIdx.x] = altup_times(a.coefs + threadIdx.x * a.n, m, a.n);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        float v[ALTUP_MAX];
#pragma unroll
        for (int p = 0; p < ALTUP_MAX; p++) {
            v[p] = p < a.n ? to_f(states[p * a.step + i]) : 0.0f;
        }
#pragma unroll
        for (int q = 0; q < ALTUP_MAX; q++) {
            if (q < a.n) {
                float sum = v[q];
#pragma unroll
                for (int p = 0; p < ALTUP_MAX; p++) {
                    sum += p < a.n ? by[q * a.n + p] * v[p] : 0.0f;
                }
                states[q * a.step + i] = from_f<T>(sum);
                if (q == 0) {
                    ((T *)a.out)[row + i] = from_f<T>(sum);
                }
            }
        }
    }
}

template <typename T> static __global__ void __launch_bounds__(ALTUP_THREADS) altup_correct_kernel(altup_params a)
{
    __shared__ float red[32], m[ALTUP_MAX];
    const int64_t row = (int64_t)blockIdx.x * a.hidden;
    float dots[ALTUP_MAX] = {}, square = 0.0f, share[ALTUP_MAX];

    pdl_wait();
    pdl_go();
    const T *x = (const T *)a.x + row, *delta = (const T *)a.delta + row;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        square += to_f(delta[i]) * to_f(delta[i]);
    }
    const float inv = rsqrtf(block_reduce<op_sum>(square, red) / (float)a.hidden + a.eps);
    square = 0.0f;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        altup_gather(a, to_f(x[i]) * a.x_scale + to_f(delta[i]) * inv * a.delta_weight[i], i, &square, dots);
    }
    altup_route(a, square, dots, red, m);
#pragma unroll
    for (int q = 0; q < ALTUP_MAX; q++) {
        share[q] = q < a.n ? 1.0f + altup_times(a.coefs + q * a.n, m, a.n) : 0.0f;
    }
    T *states = (T *)a.states + row, *out = (T *)a.out + row;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        const float made = to_f(x[i]) * a.x_scale + to_f(delta[i]) * inv * a.delta_weight[i];
        const float fresh = made - to_f(states[i]);
#pragma unroll
        for (int q = 0; q < ALTUP_MAX; q++) {
            if (q < a.n) {
                const float v = to_f(states[q * a.step + i]) + share[q] * fresh;
                states[q * a.step + i] = from_f<T>(v);
                if (q == 0) { /* each thread writes where only it has read */
                    out[i] = from_f<T>(v * a.scale[i]);
                }
            }
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(ALTUP_THREADS)
    altup_match_kernel(const T *like, T *x, T *mean, int hidden, int n, int64_t step, float floor)
{
    __shared__ float red[32];
    const int64_t row = (int64_t)blockIdx.x * hidden;
    float square = 0.0f, scale[ALTUP_MAX];

    pdl_wait();
    pdl_go();
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        square += to_f(like[row + i]) * to_f(like[row + i]);
    }
    const float size = sqrtf(block_reduce<op_sum>(square, red) / (float)hidden);
#pragma unroll
    for (int j = 0; j < ALTUP_MAX; j++) {
        square = 0.0f;
        for (int i = threadIdx.x; i < hidden && j < n; i += blockDim.x) {
            square += to_f(x[j * step + row + i]) * to_f(x[j * step + row + i]);
        }
        scale[j] = j < n ? size * rsqrtf(fmaxf(block_reduce<op_sum>(square, red) / (float)hidden, floor)) : 0.0f;
    }
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = to_f(like[row + i]);
#pragma unroll
        for (int j = 0; j < ALTUP_MAX; j++) {
            if (j < n) {
                const float v = to_f(x[j * step + row + i]) * scale[j];
                x[j * step + row + i] = from_f<T>(v);
                sum += v;
            }
        }
        if (mean) {
            mean[row + i] = from_f<T>(sum / (float)(n + 1));
        }
    }
}

static nrd_error *altup_fits(const char *op, nrd_dtype act, int n_tokens, int hidden, int n)
{
    if (!is_act_dtype(act) || n_tokens < 0 || hidden < 1 || n < 1 || n > ALTUP_MAX) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s of dtype %d, %d states of %d", op, (int)act, n, hidden);
    }
    return NULL;
}

nrd_error *nrd_cuda_altup_predict(nrd_stream *s, const nrd_altup_predict_args *a)
{
    altup_params p = {};

    NRD_TRY(altup_fits("altup_predict", a->act_dtype, a->n_tokens, a->hidden, a->n_states));
    if (a->n_tokens == 0) {
        return NULL;
    }
    p.states = a->states;
    p.norm = a->router.norm;
    p.router = a->router.router;
    p.eps = a->router.eps;
    p.coefs = a->coefs;
    p.out = a->active;
    p.hidden = a->hidden;
    p.n = a->n_states;
    p.step = (int64_t)a->n_tokens * a->hidden;
    ACT_TYPE(a->act_dtype, return launch(s, altup_predict_kernel<T>, dim3((unsigned)a->n_tokens), dim3(ALTUP_THREADS), 0, p));
}

nrd_error *nrd_cuda_altup_correct(nrd_stream *s, const nrd_altup_correct_args *a)
{
    altup_params p = {};

    NRD_TRY(altup_fits("altup_correct", a->act_dtype, a->n_tokens, a->hidden, a->n_states));
    if (a->n_tokens == 0) {
        return NULL;
    }
    p.states = a->states;
    p.x = a->x;
    p.delta = a->delta;
    p.delta_weight = a->delta_weight;
    p.norm = a->router.norm;
    p.router = a->router.router;
    p.eps = a->router.eps;
    p.coefs = a->coefs;
    p.scale = a->scale;
    p.out = a->out;
    p.x_scale = a->x_scale;
    p.hidden = a->hidden;
    p.n = a->n_states;
    p.step = (int64_t)a->n_tokens * a->hidden;
    ACT_TYPE(a->act_dtype, return launch(s, altup_correct_kernel<T>, dim3((unsigned)a->n_tokens), dim3(ALTUP_THREADS), 0, p));
}

nrd_error *nrd_cuda_altup_match(nrd_stream *s, const nrd_altup_match_args *a)
{
    NRD_TRY(altup_fits("altup_match", a->act_dtype, a->n_tokens, a->hidden, a->n));
    if (a->n_tokens == 0) {
        return NULL;
    }
    ACT_TYPE(a->act_dtype, return launch(s, altup_match_kernel<T>, dim3((unsigned)a->n_tokens), dim3(ALTUP_THREADS), 0,
                                         (const T *)a->like, (T *)a->x, (T *)a->mean, a->hidden, a->n,
                                         (int64_t)a->n_tokens * a->hidden, a->floor));
}
