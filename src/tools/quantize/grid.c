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

bool nrd_qgrid_better_scale(const nrd_qgrid *g, float *scale, double slope, double bend, float *change)
{
    if (!(bend > 0)) {
        return false; /* all of the group is 0 */
    }
    const double want = (double)*scale + slope / bend;
    const float to = want > 0 ? nrd_qgrid_scale(g, (float)want) : *scale;
    const double by = (double)to - (double)*scale;
    if (!(by * (by * bend - 2 * slope) < 0)) {
        return false; /* what the file can hold is no nearer */
    }
    *scale = to;
    *change = (float)by;
    return true;
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

void nrd_qgrid_over(const nrd_qgrid *g, float low, float high, float *scale, uint8_t *zero)
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
        nrd_qgrid_over(g, -most, most, &scale, &zero);
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
