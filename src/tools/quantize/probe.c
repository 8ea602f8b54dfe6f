/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/probe.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

float nrd_qprobe_number(nrd_qround how, float x, float step)
{
    return step * (how == NRD_QROUND_E4M3 ? nrd_f8e4m3_to_f32(nrd_f32_to_f8e4m3(x / step)) : rintf(x / step));
}

float nrd_qprobe_step(nrd_qround how, float most)
{
    return most / (how == NRD_QROUND_E4M3 ? 448.0f : 127.0f);
}

static void round_row(const nrd_qprobe *p, float *x, int64_t cols)
{
    float most = p->most;

    for (int64_t c = 0; c < cols; c++) {
        x[c] /= p->scales[c];
        most = p->most > 0 ? most : fmaxf(most, fabsf(x[c]));
    }
    const float step = nrd_qprobe_step(p->how, most);
    for (int64_t c = 0; c < cols; c++) {
        const float by = step > 0 ? nrd_qprobe_number(p->how, x[c], step) - x[c] : 0;
        x[c] = (x[c] + NRD_QPROBE_BY * by) * p->scales[c];
    }
}

nrd_error *nrd_qprobe_round(const nrd_qprobe *p, nrd_qmath *m, void *x, nrd_dtype dtype, int64_t n, int64_t cols)
{
    nrd_error *err = NULL;
    const size_t row_bytes = (size_t)cols * (dtype == NRD_DTYPE_F32 ? 4 : 2);
    void *here = NULL;
    float *row = NULL;

    NRD_NEW_GOTO(row, cols, err, done);
    NRD_TRY_GOTO(nrd_qmath_take(m, x, (size_t)n * row_bytes, &here), err, done);
    for (int64_t t = 0; t < n; t++) {
        uint8_t *at = (uint8_t *)here + (size_t)t * row_bytes;
        NRD_ASSERT(nrd_dequantize_row(dtype, at, row, cols), "inputs are of a float type");
        round_row(p, row, cols);
        NRD_ASSERT(nrd_quantize_row(dtype, row, at, cols), "inputs are of a float type");
    }
    err = nrd_qmath_return(m, x, (size_t)n * row_bytes, here);
done:
    free(row);
    return err;
}
