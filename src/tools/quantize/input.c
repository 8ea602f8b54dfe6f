/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/input.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 512 };

static nrd_error *begin(nrd_qinput *in, int64_t cols)
{
    nrd_error *err = NULL;
    in->cols = cols;
    NRD_NEW_GOTO(in->gram, cols * cols, err, fail);
    NRD_NEW_GOTO(in->sum_abs, cols, err, fail);
    NRD_NEW_GOTO(in->max_abs, cols, err, fail);
fail:
    return err;
}

nrd_error *nrd_qinput_add(nrd_qinput *in, nrd_qmath *m, const float *x, int64_t n, int64_t cols)
{
    nrd_error *err = NULL;
    float *turned = NULL, *part = NULL;

    if (!in->gram) {
        NRD_TRY(begin(in, cols));
    }
    NRD_NEW_GOTO(turned, cols * n, err, done);
    NRD_NEW_GOTO(part, CHUNK * cols, err, done);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t c = 0; c < cols; c++) {
            const float v = x[t * cols + c], a = fabsf(v);
            turned[c * n + t] = v;
            in->sum_abs[c] += a;
            in->max_abs[c] = a > in->max_abs[c] ? a : in->max_abs[c];
        }
    }
    for (int64_t at = 0; at < cols && !err; at += CHUNK) {
        const int64_t rows = cols - at < CHUNK ? cols - at : CHUNK;
        err = nrd_qmath_product(m, turned + at * n, rows, turned, cols, n, part);
        for (int64_t i = 0; i < rows * cols && !err; i++) {
            in->gram[at * cols + i] += part[i];
        }
    }
    in->n_tokens += n;
done:
    free(turned);
    free(part);
    return err;
}

void nrd_qinput_divide(nrd_qinput *in, const float *s)
{
    for (int64_t i = 0; i < in->cols && in->gram; i++) {
        for (int64_t k = 0; k < in->cols; k++) {
            in->gram[i * in->cols + k] /= s[i] * s[k];
        }
        in->sum_abs[i] /= s[i];
        in->max_abs[i] /= s[i];
    }
}

void nrd_qinput_fini(nrd_qinput *in)
{
    free(in->gram);
    free(in->sum_abs);
    free(in->max_abs);
    *in = (nrd_qinput){0};
}
