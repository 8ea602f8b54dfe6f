/* SPDX-License-Identifier: Apache-2.0
 * sum_spans: out[s] = the sum of the rows of span s, as far as they are there.
 * Shapes    x [rows, hidden] float32, out [spans, hidden] double.
 * Work      a thread a column of a span, its rows one after the other, eight loads under way.
 * Bound     memory: x is read once.
 */
#include "device/ops/common.cuh"

enum { COLUMNS = 128 };

static __global__ void __launch_bounds__(COLUMNS) sum_spans_kernel(nrd_sum_spans_args a)
{
    const int s = (int)blockIdx.x, k = (int)(blockIdx.y * COLUMNS + threadIdx.x);

    pdl_wait();
    pdl_go();
    const int start = a.starts[s], from = max(start, a.first), to = min(a.starts[s + 1], a.first + a.n_rows);
    if (k >= a.hidden || from >= to) {
        return;
    }
    double *out = a.out + (int64_t)s * a.hidden + k;
    const float *x = a.x + (int64_t)(from - a.first) * a.hidden + k;
    double sum = start < a.first ? *out : 0.0;
#pragma unroll 8
    for (int i = from; i < to; i++, x += a.hidden) {
        sum += (double)*x;
    }
    *out = sum;
}

nrd_error *nrd_cuda_sum_spans(nrd_stream *s, const nrd_sum_spans_args *a)
{
    if (a->n_spans <= 0) {
        return NULL;
    }
    const dim3 grid((unsigned)a->n_spans, (unsigned)((a->hidden + COLUMNS - 1) / COLUMNS));
    return launch(s, sum_spans_kernel, grid, dim3(COLUMNS), 0, *a);
}
