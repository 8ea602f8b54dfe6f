/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/position_bias.h"

#include "base/mem.h"
#include "engine/run/operations.h"

#include <math.h>

/* Of head i of n: a geometric series; where n is no power of two, the rest takes every other slope of the
 * series for twice as many (Press et al., 2022, and the code that its models were trained with). */
static double slope(int32_t i, int32_t n, double max)
{
    int32_t p = 1;
    while (2 * p <= n) {
        p *= 2;
    }
    return i < p ? exp2(-max * (i + 1) / p) : exp2(-max * (2 * (i - p) + 1) / (2.0 * p));
}

static nrd_error *init_slopes(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const int32_t all = r->model->n_heads, first = r->cfg.rank.rank % m->tp_size * m->n_heads;
    nrd_error *err = NULL;
    float *host = NULL;
    void *p = NULL;

    if (!m->alibi) {
        return NULL;
    }
    NRD_NEW_GOTO(host, m->n_heads, err, done);
    for (int32_t i = 0; i < m->n_heads; i++) {
        host[i] = (float)slope(first + i, all, (double)m->alibi_max) * (m->alibi_scaled ? m->attn_scale : 1.0f);
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, (size_t)m->n_heads, sizeof *host, "rope"), err, done);
    r->bias.alibi = p;
    err = nrd_run_upload(r, p, host, (size_t)m->n_heads * sizeof *host);
done:
    free(host);
    return err;
}

/* The bucket of a distance from the query to the key (below 0: behind it): single distances first, then ranges that grow
 * geometrically up to rel_distance; an encoder has half of the buckets for keys ahead (Raffel et al., 2020). */
static int32_t bucket_of(const nrd_model_spec *m, int32_t distance)
{
    int32_t n = m->rel_buckets, first = 0, far = -distance;
    if (m->encoder) {
        n /= 2;
        first = distance > 0 ? n : 0;
        far = distance > 0 ? distance : -distance;
    }
    const int32_t single = n / 2;
    far = far < 0 ? 0 : far;
    if (far < single) {
        return first + far;
    }
    const float range = (float)log((double)m->rel_distance / single);
    const int32_t at = single + (int32_t)(logf((float)far / (float)single) / range * (float)(n - single));
    return first + (at < n - 1 ? at : n - 1);
}

static nrd_error *init_table(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_error *err = NULL;
    float *host = NULL, *row = NULL;
    void *p = NULL;

    if (m->rel_buckets == 0) {
        return NULL;
    }
    r->bias.back = m->rel_distance;
    r->bias.ahead = m->encoder ? m->rel_distance : 0;
    const int32_t n = r->bias.back + r->bias.ahead + 1;
    const nrd_weight *w = nrd_engine_weight(r->engine, "transformer.rel_attn_table.weight"); /* its shape was checked */
    NRD_NEW_GOTO(host, (size_t)m->n_heads * (size_t)n, err, done);
    NRD_NEW_GOTO(row, m->n_heads, err, done);
    NRD_TRY_GOTO(nrd_weight_check(w, "transformer.rel_attn_table.weight"), err, done);
    for (int32_t i = 0; i < n; i++) {
        nrd_weight_row(w, bucket_of(m, i - r->bias.back), row);
        for (int32_t h = 0; h < m->n_heads; h++) {
            host[(size_t)h * (size_t)n + (size_t)i] = row[h];
        }
    }
    const size_t bytes = (size_t)m->n_heads * (size_t)n * sizeof *host;
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, bytes, 1, "rope"), err, done);
    r->bias.rel = p;
    err = nrd_run_upload(r, p, host, bytes);
done:
    free(host);
    free(row);
    return err;
}

nrd_error *nrd_run_init_position_bias(nrd_runner *r)
{
    NRD_TRY(init_slopes(r));
    return init_table(r);
}

void nrd_run_free_position_bias(nrd_runner *r)
{
    nrd_run_free(r, r->bias.alibi);
    nrd_run_free(r, r->bias.rel);
}
