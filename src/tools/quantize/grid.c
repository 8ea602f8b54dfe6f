/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/grid.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

#define F8_MAX 448.0f
#define SHRINK_STEPS 12
#define SHRINK_STEP 0.04f /* the smallest range that is tried is about half of all */

nrd_error *nrd_qrows_init(nrd_qrows *q, const nrd_qgrid *g, int64_t rows, int64_t cols)
{
    nrd_error *err = NULL;
    const int64_t group = g->group > 0 ? g->group : cols;

    *q = (nrd_qrows){.rows = rows, .cols = cols, .n_groups = (cols + group - 1) / group};
    NRD_NEW_GOTO(q->codes, rows * cols, err, fail);
    NRD_NEW_GOTO(q->scales, rows * q->n_groups, err, fail);
    NRD_NEW_GOTO(q->zeros, rows * q->n_groups, err, fail);
    return NULL;

fail:
    nrd_qrows_fini(q);
    return err;
}

void nrd_qrows_fini(nrd_qrows *q)
{
    free(q->codes);
    free(q->scales);
    free(q->zeros);
    *q = (nrd_qrows){0};
}

float nrd_qgrid_scale(const nrd_qgrid *g, float scale)
{
    const nrd_dtype t = g->scale_dtype;
    float s = scale;
    if (t == NRD_DTYPE_BF16) {
        s = nrd_bf16_to_f32(nrd_f32_to_bf16(scale));
    } else { /* who reads a file of float32 may keep scales in half precision */
        s = nrd_f16_to_f32(nrd_f32_to_f16(scale));
        s = s > 65504.0f ? 65504.0f : s;
    }
    return s > 0 ? s : t == NRD_DTYPE_BF16 ? 1e-30f : 5.9604645e-8f;
}

static int top_code(const nrd_qgrid *g)
{
    return (1 << g->bits) - 1;
}

uint8_t nrd_qgrid_code(const nrd_qgrid *g, float x, float scale, uint8_t zero)
{
    if (g->is_float) {
        return nrd_f32_to_f8e4m3(x / scale);
    }
    const float at = rintf(x / scale) + (float)zero;
    const float top = (float)top_code(g);
    return (uint8_t)(at > top ? top : at > 0 ? at : 0);
}

float nrd_qgrid_number(const nrd_qgrid *g, uint8_t code, float scale, uint8_t zero)
{
    return g->is_float ? nrd_f8e4m3_to_f32(code) * scale : (float)((int)code - (int)zero) * scale;
}

/* The grid over [low, high], which holds 0. */
static void over(const nrd_qgrid *g, float low, float high, float *scale, uint8_t *zero)
{
    const int top = top_code(g);
    if (g->symmetric) {
        const float most = -low > high ? -low : high;
        *scale = nrd_qgrid_scale(g, g->is_float ? most / F8_MAX : most * 2 / (float)top);
        *zero = (uint8_t)(g->is_float ? 0 : 1 << (g->bits - 1));
        return;
    }
    *scale = nrd_qgrid_scale(g, (high - low) / (float)top);
    const float z = rintf(-low / *scale);
    *zero = (uint8_t)(z > (float)top ? (float)top : z > 0 ? z : 0);
}

static double error_of(const nrd_qgrid *g, const float *x, int64_t n, const float *importance, float scale, uint8_t zero)
{
    double sum = 0;
    const float inverse = 1 / scale, top = (float)top_code(g), z = (float)zero;
    for (int64_t i = 0; i < n; i++) {
        float at = rintf(x[i] * inverse) + z;
        at = at > top ? top : at > 0 ? at : 0;
        const float d = (at - z) * scale - x[i];
        sum += (double)(d * d * importance[i]);
    }
    return sum;
}

void nrd_qgrid_fit(const nrd_qgrid *g, const float *x, int64_t n, const float *importance, float *out_scale,
                   uint8_t *out_zero)
{
    float low = 0, high = 0;
    double least = INFINITY;

    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    over(g, low, high, out_scale, out_zero);
    for (int k = 0; importance && !g->is_float && k <= SHRINK_STEPS; k++) {
        const float part = 1 - (float)k * SHRINK_STEP;
        float scale;
        uint8_t zero;
        over(g, low * part, high * part, &scale, &zero);
        const double e = error_of(g, x, n, importance, scale, zero);
        if (e < least) {
            least = e;
            *out_scale = scale;
            *out_zero = zero;
        }
    }
}

void nrd_qgrid_round_row(const nrd_qgrid *g, const float *x, const float *importance, int64_t row, nrd_qrows *q)
{
    const int64_t group = g->group > 0 ? g->group : q->cols;
    uint8_t *codes = q->codes + row * q->cols;

    for (int64_t k = 0; k < q->n_groups; k++) {
        const int64_t from = k * group, n = q->cols - from < group ? q->cols - from : group;
        float *scale = &q->scales[row * q->n_groups + k];
        uint8_t *zero = &q->zeros[row * q->n_groups + k];
        nrd_qgrid_fit(g, x + from, n, importance ? importance + from : NULL, scale, zero);
        for (int64_t c = from; c < from + n; c++) {
            codes[c] = nrd_qgrid_code(g, x[c], *scale, *zero);
        }
    }
}

void nrd_qgrid_row(const nrd_qgrid *g, const nrd_qrows *q, int64_t row, float *out)
{
    const int64_t group = g->group > 0 ? g->group : q->cols;
    const uint8_t *codes = q->codes + row * q->cols;

    for (int64_t c = 0; c < q->cols; c++) {
        const int64_t at = row * q->n_groups + c / group;
        out[c] = nrd_qgrid_number(g, codes[c], q->scales[at], q->zeros[at]);
    }
}
