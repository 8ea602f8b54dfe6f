/* SPDX-License-Identifier: Apache-2.0
 * add_rows: out[t,:] += rows[t][skip:], where there is such a row
 * Shapes    out [tokens, hidden] of an activation type, rows of the same.
 * Work      a block a token; those without a row end at once.
 * Bound     memory.
 */
#include "device/ops/common.cuh"

struct add_rows_params {
    const void *const *rows;
    void *out;
    int64_t skip;
    int hidden;
};

template <typename T> static __global__ void add_rows_kernel(add_rows_params a)
{
    const int64_t t = blockIdx.x;

    pdl_wait();
    pdl_go();
    const T *row = (const T *)a.rows[t];
    T *out = (T *)a.out + t * a.hidden;
    for (int i = threadIdx.x; row && i < a.hidden; i += blockDim.x) {
        out[i] = from_f<T>(to_f(out[i]) + to_f(row[a.skip + i]));
    }
}

nrd_error *nrd_cuda_add_rows(nrd_stream *s, const nrd_add_rows_args *a)
{
    if (!is_act_dtype(a->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: add_rows of dtype %d", (int)a->dtype);
    }
    if (a->n_tokens <= 0) {
        return NULL;
    }
    const add_rows_params p = {a->rows, a->out, a->skip, a->hidden};
    ACT_TYPE(a->dtype, return launch(s, add_rows_kernel<T>, dim3((unsigned)a->n_tokens), dim3(256), 0, p));
}
