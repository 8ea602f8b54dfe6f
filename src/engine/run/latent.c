/* SPDX-License-Identifier: Apache-2.0
 * Latent attention of a layer: queries, the row that is cached of each token, and attention over such rows. Keys and
 * values of heads are never made: their matrices are applied to the queries and to the sums (nereid/device.h).
 *
 * Queries that are made of a normed row of their own wait for it in the memory that attention's result takes later. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

nrd_error *nrd_run_init_latent(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const size_t t = (size_t)r->cfg.max_tokens;

    if (!nrd_spec_is_latent(m)) {
        return NULL;
    }
    if (m->latent.q_rank > 0) {
        NRD_TRY(nrd_run_alloc(r, &r->latent_q, t * (size_t)m->latent.q_rank, r->act_bytes, "activations"));
    }
    return nrd_run_alloc(r, &r->latent_kv, t * (size_t)nrd_spec_kv_dim(m, 0), r->act_bytes, "activations");
}

void nrd_run_free_latent(nrd_runner *r)
{
    nrd_run_free(r, r->latent_q);
    nrd_run_free(r, r->latent_kv);
}

static nrd_error *product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n, void *y)
{
    NRD_TRY(nrd_run_product(r, p, x, n, y, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_QKV, p, n, r->act);
}

/* Queries of the rows in latent_q. */
static nrd_error *queries(nrd_runner *r, const nrd_latent_layer *y, int32_t n)
{
    const nrd_latent_spec *l = &r->spec->latent;
    const nrd_norm_args a = nrd_run_norm_args(r, NRD_NORM_RMS, l->norm_eps, n, l->q_rank, r->latent_q, y->q_norm, &y->q_b, r->att);
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_NORM, n, l->q_rank * (double)r->act_bytes + (double)y->q_b.in_row_bytes, 0));
    return product(r, &y->q_b, r->att, n, r->qkv);
}

static nrd_error *to_cache(nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    nrd_latent_kv_args a = {
        .batch = v,
        .q = r->qkv,
        .latent = r->latent_kv,
        .act_dtype = r->act,
        .n_heads = m->n_heads,
        .nope_dim = m->latent.nope_dim,
        .rope_dim = m->latent.rope_dim,
        .norm = r->w.layers[layer].latent.kv_norm,
        .norm_eps = m->latent.norm_eps,
        .rope = m->rope.kind,
        .inv_freq = r->ropes.all.inv_freq,
        .rope_scale = r->ropes.all.scale,
        .kv = r->kv.layers[r->w.layers[layer].kv_layer],
    };
    NRD_TRY(r->dev->ops->latent_kv(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ROPE_KV, v->n_tokens,
                        (double)(2 * m->n_heads * m->latent.rope_dim + a.kv.head_dim) * (double)r->act_bytes +
                            nrd_run_bytes((double)a.kv.head_dim, r->kv_dtype),
                        0);
}

nrd_error *nrd_run_latent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    const bool has_rank = m->latent.q_rank > 0;
    nrd_latent_attention_args a = {
        .batch = v,
        .q = r->qkv,
        .out = r->att,
        .act_dtype = r->act,
        .out_dtype = y->dense.in_dtype,
        .out_row_scale = y->dense.in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .nope_dim = m->latent.nope_dim,
        .rope_dim = m->latent.rope_dim,
        .v_dim = m->latent.v_dim,
        .scale = m->attn_scale,
        .k_b = y->latent.k_b,
        .v_b = y->latent.v_b,
        .window = r->layer_window[layer],
        .n_sink = r->cfg.n_sink,
        .kv = r->kv.layers[r->w.layers[layer].kv_layer],
        .deterministic = r->cfg.deterministic,
    };

    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_QKV, &y->latent.kv_a, x, v->n_tokens));
    NRD_TRY(product(r, &y->qkv, x, v->n_tokens, has_rank ? r->latent_q : r->qkv));
    NRD_TRY(product(r, &y->latent.kv_a, x, v->n_tokens, r->latent_kv)); /* before the scales of x's rows give way */
    if (has_rank) {
        NRD_TRY(queries(r, &y->latent, v->n_tokens));
    }
    NRD_TRY(to_cache(r, v, layer));
    NRD_TRY(r->dev->ops->latent_attention(r->stream, &a));
    return nrd_run_mark_attention(r, layer, &y->dense);
}
