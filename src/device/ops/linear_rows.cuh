/* SPDX-License-Identifier: Apache-2.0
 * linear_rows.cuh - what products of several parts know about a row of W, wherever its part begins. */
#ifndef NRD_OPS_LINEAR_ROWS_CUH
#define NRD_OPS_LINEAR_ROWS_CUH

#include "device/ops/common.cuh"

/* What belongs to a row of W: asked for long before the sums are there. */
struct row_consts {
    float scale, bias;
};

/* P: parameters with rows, y_off and row_scale of each part, bias and bias_end of the caller's parts by column
 * of y. base: in front of this expert's rows. */
template <typename P>
static __device__ __forceinline__ row_consts load_consts(const P &a, int part, int row, int64_t base = 0)
{
    row_consts r = {1.0f, 0.0f};
    if (row < a.rows[part]) {
        const int col = a.y_off[part] + row;
        int b = 0;
        while (col >= a.bias_end[b]) {
            b++;
        }
        if (a.row_scale[part]) {
            r.scale = a.row_scale[part][base + row];
        }
        if (a.bias[b]) {
            r.bias = a.bias[b][base + col - (b ? a.bias_end[b - 1] : 0)];
        }
    }
    return r;
}

#endif
