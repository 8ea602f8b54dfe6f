/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/grid.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

#define E4M3_MAX 448.0f
#define E4M3_CUT 464.0f /* what is below rounds to the largest as if there were a next one, 480 */
#define E2M1_MAX 6.0f
#define E2M1_CUT 7.0f
#define E4M3_LEAST 0x1p-9f
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

static float power_of_two(const nrd_qgrid *g, float scale)
{
    const float cut = g->bits == 4 ? E2M1_MAX / E2M1_CUT : E4M3_MAX / E4M3_CUT;
    const float at = scale > 0 ? ceilf(log2f(scale * cut)) : -126;
    return ldexpf(1, (int)(at < -126 ? -126 : at > 127 ? 127 : at));
}

float nrd_qgrid_scale(const nrd_qgrid *g, float scale)
{
    const nrd_dtype t = g->scale_dtype;
    float s = scale;
    if (t == NRD_DTYPE_U8) {
        return power_of_two(g, scale);
    }
    if (t == NRD_DTYPE_F8_E4M3) {
        s = nrd_f8e4m3_to_f32(nrd_f32_to_f8e4m3(scale / g->scale_unit));
        return (s > 0 ? s : E4M3_LEAST) * g->scale_unit;
    }
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

/* Magnitudes of E2M1; code 8 and above are negative. */
static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static uint8_t to_e2m1(float x)
{
    uint8_t code = 0;
    while (code < 7 && fabsf(x) > (e2m1[code] + e2m1[code + 1]) / 2) {
        code++;
    }
    return (uint8_t)(x < 0 && code ? code | 8 : code);
}

uint8_t nrd_qgrid_code(const nrd_qgrid *g, float x, float scale, uint8_t zero)
{
    if (g->is_float) {
        return g->bits == 4 ? to_e2m1(x / scale) : nrd_f32_to_f8e4m3(x / scale);
    }
    const float at = rintf(x / scale) + (float)zero;
    const float top = (float)top_code(g);
    return (uint8_t)(at > top ? top : at > 0 ? at : 0);
}

float nrd_qgrid_number(const nrd_qgrid *g, uint8_t code, float scale, uint8_t zero)
{
    if (g->is_float && g->bits == 4) {
        return (code & 8 ? -e2m1[code & 7] : e2m1[code & 7]) * scale;
    }
    return g->is_float ? nrd_f8e4m3_to_f32(code) * scale : (float)((int)code - (int)zero) * scale;
}

/* The grid over [low, high], which holds 0. */
static void over(const nrd_qgrid *g, float low, float high, float *scale, uint8_t *zero)
{
    const int top = top_code(g);
    if (g->symmetric) {
        const float most = -low > high ? -low : high;
        const float parts = !g->is_float ? (float)top / 2 : g->bits == 4 ? E2M1_MAX : E4M3_MAX;
        *scale = nrd_qgrid_scale(g, most / parts);
        *zero = (uint8_t)(g->is_float ? 0 : 1 << (g->bits - 1));
        return;
    }
    *scale = nrd_qgrid_scale(g, (high - low) / (float)top);
    const float z = rintf(-low / *scale);
    *zero = (uint8_t)(z > (float)top ? (float)top : z > (float)g->least_zero ? z : (float)g->least_zero);
}

static double error_of(const nrd_qgrid *g, const float *x, int64_t n, const float *importance, float scale, uint8_t zero)
{
    double sum = 0;
    const float inverse = 1 / scale, top = (float)top_code(g), z = (float)zero;
    for (int64_t i = 0; g->is_float && i < n; i++) {
        const float d = nrd_qgrid_number(g, nrd_qgrid_code(g, x[i], scale, zero), scale, zero) - x[i];
        sum += (double)(d * d * importance[i]);
    }
    if (g->is_float) {
        return sum;
    }
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
    const bool is_e4m3 = g->is_float && g->bits == 8; /* a smaller range makes its numbers no finer */
    for (int k = 0; importance && !is_e4m3 && k <= SHRINK_STEPS; k++) {
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

int64_t nrd_qgrid_row_group(const nrd_qgrid *g, const nrd_qrows *q)
{
    return g->row_group == 0 ? 1 : g->row_group == NRD_QGRID_ALL ? q->rows : g->row_group;
}

int64_t nrd_qgrid_n_row_groups(const nrd_qgrid *g, const nrd_qrows *q)
{
    const int64_t n = nrd_qgrid_row_group(g, q);
    return (q->rows + n - 1) / n;
}

void nrd_qgrid_round_blocks(const nrd_qgrid *g, const float *w, int64_t from, int64_t to, nrd_qrows *q)
{
    const int64_t height = nrd_qgrid_row_group(g, q), group = g->group > 0 ? g->group : q->cols;

    for (int64_t b = from * q->n_groups; b < to * q->n_groups; b++) {
        const int64_t k = b % q->n_groups, row0 = b / q->n_groups * height, col0 = k * group;
        const int64_t row1 = q->rows - row0 < height ? q->rows : row0 + height;
        const int64_t col1 = q->cols - col0 < group ? q->cols : col0 + group;
        float most = 0, scale;
        uint8_t zero;
        for (int64_t r = row0; r < row1; r++) {
            for (int64_t c = col0; c < col1; c++) {
                const float a = fabsf(w[r * q->cols + c]);
                most = a > most ? a : most;
            }
        }
        over(g, -most, most, &scale, &zero);
        for (int64_t r = row0; r < row1; r++) {
            q->scales[r * q->n_groups + k] = scale;
            q->zeros[r * q->n_groups + k] = zero;
            for (int64_t c = col0; c < col1; c++) {
                q->codes[r * q->cols + c] = nrd_qgrid_code(g, w[r * q->cols + c], scale, zero);
            }
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
