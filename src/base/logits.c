/* SPDX-License-Identifier: Apache-2.0 */
#include "base/logits.h"

#include <math.h>
#include <string.h>

enum { LANES = 4, BLOCK = 64 * LANES }; /* BLOCK: numbers whose sum is made in float */

/* Four numbers at a time: the loops do this for each token of the vocabulary behind each token of a prompt. */
typedef float four __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

static four chosen(four_ints which, four a, four b)
{
    return (four)((which & (four_ints)a) | (~which & (four_ints)b));
}

/* e^x for x <= 0: 2^f by its series on [-1/2, 1/2], times 2^i in the bits of the exponent. */
static four exp_of(four x)
{
    const four magic = {12582912, 12582912, 12582912, 12582912}; /* 1.5 * 2^23: what is added to it is rounded to a whole number */
    const four least = {-126, -126, -126, -126}, scaled = x * 1.44269504f, t = chosen(scaled > least, scaled, least);
    const four r = t + magic, f = t - (r - magic);
    four p = f * 1.54035304e-4f + 1.33335581e-3f;

    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    return (four)((four_ints)p + (((four_ints)r - (four_ints)magic) << 23));
}

/* The numbers from i on; -INFINITY behind the last one. */
static four load(const float *x, int32_t i, int32_t n)
{
    four v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (n - i >= LANES) {
        memcpy(&v, x + i, sizeof v);
    } else {
        memcpy(&v, x + i, (size_t)(n - i) * sizeof *x);
    }
    return v;
}

static float peak_of(const float *x, int32_t n)
{
    four most = load(x, 0, n);
    for (int32_t i = LANES; i < n; i += LANES) {
        const four v = load(x, i, n);
        most = chosen(v > most, v, most);
    }
    for (int k = 1; k < LANES; k++) {
        most[0] = most[k] > most[0] ? most[k] : most[0];
    }
    return most[0];
}

double nrd_log_sum_exp(const float *logits, int32_t n)
{
    const float peak = peak_of(logits, n);
    double sum = 0;

    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t end = n - i < BLOCK ? n : i + BLOCK;
        four part = {0};
        for (int32_t k = i; k < end; k += LANES) {
            part += exp_of(load(logits, k, n) - peak);
        }
        sum += (double)part[0] + (double)part[1] + (double)part[2] + (double)part[3];
    }
    return (double)peak + log(sum);
}

void nrd_best_of(const float *x, int32_t n, int32_t k, int32_t *ids)
{
    int32_t have = 0;

    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t end = n - i < BLOCK ? n : i + BLOCK;
        if (have == k && peak_of(x + i, end - i) <= x[ids[k - 1]]) {
            continue;
        }
        for (int32_t j = i; j < end; j++) {
            if (have == k && !(x[j] > x[ids[k - 1]])) {
                continue;
            }
            int32_t at = have < k ? have++ : k - 1;
            for (; at > 0 && x[j] > x[ids[at - 1]]; at--) {
                ids[at] = ids[at - 1];
            }
            ids[at] = j;
        }
    }
}
