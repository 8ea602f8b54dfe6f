/* SPDX-License-Identifier: Apache-2.0
 * Learned queries that read a tower's states and themselves in one attention (Kosmos-2; Peng et al., 2023). A norm is behind the layers; each
 * state is divided by its length, which a norm without a mean does with weights of one over the root of its width. */
#include "base/mem.h"
#include "engine/run/operations.h"
#include "engine/run/tower_queries.h"

#include <math.h>
#include <stdlib.h>

#define AT "image_to_text_projection."

struct nrd_tower_latent {
    nrd_extra_product widen, q, kv;
    void *seen; /* [states, then queries; hidden of these] */
};

nrd_error *nrd_tower_latent_load(nrd_tower *t)
{
    nrd_tower_latent *p = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->queries, 1, err, fail);
    NRD_NEW_GOTO(t->latent, 1, err, fail);
    NRD_NEW_GOTO(t->pool_weight, t->s.hidden, err, fail);
    p = t->latent;
    for (int32_t i = 0; i < t->s.hidden; i++) {
        t->pool_weight[i] = (float)(1 / sqrt((double)t->s.hidden));
    }
    const nrd_weight even = {.dtype = NRD_DTYPE_F32, .layout = NRD_LAYOUT_ROWS, .rows = 1, .cols = t->s.hidden, .data = t->pool_weight, .scale = 1,
                             .data_bytes = (size_t)t->s.hidden * sizeof *t->pool_weight};
    NRD_TRY(nrd_extra_weight_load(t->r, &even, NRD_TOWER_POOL, &t->pool_norm));
    NRD_TRY(nrd_tower_load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
    NRD_TRY(nrd_tower_load_product(t, AT "dense", &p->widen));
    NRD_TRY(nrd_tower_load_product(t, AT "x_attn.q_proj", &p->q));
    NRD_TRY(nrd_tower_load_product(t, AT "x_attn.k_proj", &p->kv));
    NRD_TRY(nrd_tower_load_product(t, AT "x_attn.v_proj", &p->kv));
    err = nrd_tower_load_product(t, AT "x_attn.out_proj", &t->project1);
fail:
    return err;
}

/* The queries behind the states: no picture writes there. */
static nrd_error *put_queries(nrd_tower *t)
{
    const size_t row = (size_t)t->s.queries.hidden * t->r->act_bytes;
    return nrd_tower_upload_rows(t, nrd_vision_weight(t->from, AT "latent_query"), t->s.queries.n, t->s.queries.hidden,
                                 (uint8_t *)t->latent->seen + (size_t)t->n * row);
}

nrd_error *nrd_tower_latent_init(nrd_tower *t)
{
    nrd_tower_latent *p = t->latent;
    const nrd_extra_product *const all[] = {&p->widen, &p->q, &p->kv, &t->project1};
    const int32_t n_seen = t->n + t->s.queries.n;
    size_t in_bytes = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        in_bytes = nrd_tower_more(in_bytes, all[i]->product.in_row_bytes);
    }
    NRD_TRY(nrd_queries_alloc(t, n_seen, in_bytes));
    NRD_TRY(nrd_run_alloc(t->r, &p->seen, (size_t)n_seen * (size_t)t->s.queries.hidden, t->r->act_bytes, NRD_TOWER_POOL));
    return put_queries(t);
}

void nrd_tower_latent_free(nrd_tower *t)
{
    nrd_tower_latent *p = t->latent;

    if (!p) {
        return;
    }
    nrd_extra_product_unload(t->r, &p->widen);
    nrd_extra_product_unload(t->r, &p->q);
    nrd_extra_product_unload(t->r, &p->kv);
    nrd_run_free(t->r, p->seen);
    free(p);
    t->latent = NULL;
}

nrd_error *nrd_tower_latent_run(nrd_tower *t)
{
    nrd_tower_latent *p = t->latent;
    nrd_tower_queries *x = t->queries;
    const int32_t n = t->s.queries.n;
    const void *queries = (uint8_t *)p->seen + (size_t)t->n * (size_t)t->s.queries.hidden * t->r->act_bytes;
    const nrd_norm_args length = {.kind = NRD_NORM_RMS, .eps = 1e-30f, .n_tokens = t->n, .hidden = t->s.hidden, .residual = t->normed,
                                  .weight = &t->pool_norm.w, .out = t->att, .out_dtype = t->r->act, .act_dtype = t->r->act};

    NRD_TRY(nrd_tower_norm(t, true, &t->post_norm, &t->post_norm_bias, false, NULL));
    NRD_TRY(t->r->dev->ops->norm(t->r->stream, &length));
    NRD_TRY(nrd_queries_multiply(t, &p->widen, t->att, t->n, p->seen));
    NRD_TRY(nrd_queries_multiply(t, &p->kv, p->seen, t->n + n, x->kv));
    NRD_TRY(nrd_queries_multiply(t, &p->q, queries, n, x->qkv));
    NRD_TRY(nrd_queries_read_states(t));
    return nrd_queries_multiply(t, &t->project1, x->out, n, t->delta);
}
