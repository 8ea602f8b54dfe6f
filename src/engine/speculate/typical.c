/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/typical.h"

#include <math.h>

typedef struct row {
    double peak, log_total, entropy;
} row;

/* Logits that are no numbers are as unlikely as can be. */
static double at(const float *logits, int32_t i, double inv_t)
{
    const double v = (double)logits[i] * inv_t;
    return v == v ? v : -INFINITY;
}

static row read_row(const float *logits, int32_t vocab, float temperature)
{
    const double inv_t = 1.0 / (double)temperature;
    double peak = -INFINITY, total = 0, sum = 0;

    for (int32_t i = 0; i < vocab; i++) {
        peak = at(logits, i, inv_t) > peak ? at(logits, i, inv_t) : peak;
    }
    for (int32_t i = 0; i < vocab; i++) {
        const double v = at(logits, i, inv_t) - peak, p = exp(v);
        total += p;
        sum += p > 0 ? p * v : 0;
    }
    return (row){peak, log(total), log(total) - sum / total};
}

static int32_t parent_of(const int16_t *parent, int32_t i)
{
    return parent ? parent[i] : i - 1;
}

void nrd_typical_lengths(const nrd_typical *t, const float *logits, size_t stride, int32_t vocab, const int32_t *ids, const int16_t *parent,
                         int32_t n, int32_t *out_lengths)
{
    int32_t last = -2; /* whose row was read */
    row r = {0};

    for (int32_t i = 0; i < n; i++) {
        const int32_t above = parent_of(parent, i);
        const float *own = logits + (size_t)(1 + above) * stride;
        out_lengths[i] = 0;
        if (above >= 0 && out_lengths[above] == 0) {
            continue;
        }
        if (above != last) {
            r = read_row(own, vocab, t->temperature);
            last = above;
        }
        const double p = exp(at(own, ids[i], 1.0 / (double)t->temperature) - r.peak - r.log_total);
        const double least = fmin((double)t->threshold, (double)t->alpha * exp(-r.entropy));
        out_lengths[i] = p > 0 && p >= least;
    }
    for (int32_t i = n - 1; i >= 0; i--) { /* children have higher numbers */
        const int32_t above = parent_of(parent, i);
        if (above >= 0 && out_lengths[i] > 0 && out_lengths[above] < out_lengths[i] + 1) {
            out_lengths[above] = out_lengths[i] + 1;
        }
    }
}

int32_t nrd_typical_next(const int32_t *lengths, const int16_t *parent, int32_t n, int32_t node)
{
    int32_t best = -1;
    for (int32_t i = node + 1; i < n; i++) {
        if (parent_of(parent, i) == node && lengths[i] > (best < 0 ? 0 : lengths[best])) {
            best = i;
        }
    }
    return best;
}

float nrd_typical_log_prob(const float *logits, int32_t vocab, float temperature, int32_t token)
{
    const row r = read_row(logits, vocab, temperature);
    return (float)(at(logits, token, 1.0 / (double)temperature) - r.peak - r.log_total);
}
