/* SPDX-License-Identifier: Apache-2.0
 * Values and their percentiles: see samples.h. */
#include "tools/load/samples.h"

#include "base/mem.h"

#include <math.h>

void nrd_samples_add(nrd_samples *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->v = nrd_xrealloc(s->v, s->cap * sizeof *s->v);
    }
    s->v[s->n++] = (float)v;
    s->is_sorted = false;
}

void nrd_samples_fini(nrd_samples *s)
{
    free(s->v);
    *s = (nrd_samples){0};
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double nrd_samples_at(nrd_samples *s, double percent)
{
    if (s->n == 0) {
        return 0;
    }
    if (!s->is_sorted) {
        qsort(s->v, s->n, sizeof *s->v, by_value);
        s->is_sorted = true;
    }
    const double rank = ceil(percent / 100 * (double)s->n);
    const size_t i = rank < 1 ? 0 : rank > (double)s->n ? s->n - 1 : (size_t)rank - 1;
    return (double)s->v[i];
}

double nrd_samples_mean(const nrd_samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += (double)s->v[i];
    }
    return s->n > 0 ? sum / (double)s->n : 0;
}

double nrd_samples_deviation(const nrd_samples *s)
{
    const double mean = nrd_samples_mean(s);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += ((double)s->v[i] - mean) * ((double)s->v[i] - mean);
    }
    return s->n > 0 ? sqrt(sum / (double)s->n) : 0;
}
