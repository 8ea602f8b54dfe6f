/* SPDX-License-Identifier: Apache-2.0
 * gpu_check.h - what the files of gpu_check share: verdicts, tolerances, results brought back as floats. */
#ifndef NRD_TESTS_GPU_CHECK_H
#define NRD_TESTS_GPU_CHECK_H

#include "gpu.h"

extern int failures, cases;
extern bool small_only;

/* Counts a case; one whose error is above the limit, or no number, fails. */
void verdict(const char *name, double err, double limit);

static inline double out_eps(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16 ? 4e-3 : t == NRD_DTYPE_F16 ? 1e-3 : t == NRD_DTYPE_F8_E4M3 ? 4e-2 : 2e-5;
}

/* ||got - want|| / ||want|| */
static inline double distance(const float *got, const double *want, size_t n)
{
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) {
            return NAN;
        }
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(d / (w > 0 ? w : 1));
}

static inline void *poisoned(size_t bytes)
{
    void *p = dev_new(bytes);
    OK(dev->ops->fill(st, p, 0xff, bytes));
    return p;
}

/* Rows of an output type (F8 with scales) as floats. */
static inline float *fetch(nrd_dtype t, void *d, const float *d_scale, size_t rows, size_t cols)
{
    void *raw = malloc(rows * cols * elem(t));
    float *scale = malloc(rows * 4), *out = malloc(rows * cols * 4);

    dev_get(raw, d, rows * cols * elem(t));
    if (t == NRD_DTYPE_F8_E4M3) {
        dev_get(scale, d_scale, rows * 4);
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            out[r * cols + c] = get(t, raw, r * cols + c) * (t == NRD_DTYPE_F8_E4M3 ? scale[r] : 1.0f);
        }
    }
    free(raw);
    free(scale);
    return out;
}

/* ---- sections ---- */

void all_linear(void);
void all_quantized(void);
void check_deterministic(nrd_dtype t);
void all_norm(void);
void all_act(void);
void check_embed(nrd_dtype t, nrd_dtype out_t, int n, int vocab, int hidden, bool pos);
void check_formats(void);
void all_attention(void);
void long_prompts(void);
void ring(void);
void few_tokens(void);
void many_pairs(void);
void check_sample(int n_rows, int vocab, int kind);
void check_copy_blocks(void);
void check_graph(void);
void all_lora(void);

#endif
