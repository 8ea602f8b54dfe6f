/* SPDX-License-Identifier: Apache-2.0
 * clamp: out[t,:] = x[t,:], but at least low and at most high
 * Shapes    x [tokens, width] of an activation type, rows of out out_stride numbers apart; or out is x.
 * Work      a block a token.
 * Bound     memory.
 */
#include "device/ops/common.cuh"

struct clamp_params {
    const void *x;
    void *out;
    int64_t out_stride;
    int width;
    float low, high;
};

template <typename T> static __global__ void clamp_kernel(clamp_params a)
{
    const int64_t t = blockIdx.x;

    pdl_wait();
    pdl_go();
    const T *x = (const T *)a.x + t * a.width;
    T *out = (T *)a.out + t * a.out_stride;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) {
        out[i] = from_f<T>(fminf(fmaxf(to_f(x[i]), a.low), a.high));
    }
}

nrd_error *nrd_cuda_clamp(nrd_stream *s, const nrd_clamp_args *a)
{
    if (!is_act_dtype(a->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: clamp of dtype %d", (int)a->dtype);
    }
    if (a->n_tokens <= 0) {
        return NULL;
    }
    const clamp_params p = {a->x, a->out, a->out_stride, a->width, a->low, a->high};
    ACT_TYPE(a->dtype, return launch(s, clamp_kernel<T>, dim3((unsigned)a->n_tokens), dim3(256), 0, p));
}
