/* SPDX-License-Identifier: Apache-2.0
 * Queries that read a tower's states (BLIP-2's Q-Former; Li et al., 2023): learned rows, layers as BERT's in which they see each other,
 * and, in every few of them, the states. A norm is behind each sum. Keys and values of one layer lie in one cache, in turn. */
#include "base/mem.h"
#include "engine/run/operations.h"
#include "engine/run/tower_queries.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- weights ---- */

static nrd_error *load_attention(nrd_tower *t, const char *at, bool of_states, nrd_query_attention *y)
{
    static const char *const names[] = {"attention.query", "attention.key", "attention.value", "output.dense"};
    nrd_extra_product *const to[] = {&y->q, of_states ? &y->kv : &y->q, of_states ? &y->kv : &y->q, &y->dense};
    char stem[96];

    for (int k = 0; k < 4; k++) {
        snprintf(stem, sizeof stem, "%s.%s", at, names[k]);
        NRD_TRY(nrd_tower_load_product(t, stem, to[k]));
    }
    snprintf(stem, sizeof stem, "%s.output.LayerNorm", at);
    return nrd_tower_load_norm(t, stem, &y->norm, &y->norm_bias);
}

static nrd_error *load_layer(nrd_tower *t, int32_t i, nrd_query_layer *y)
{
    char at[64];

    snprintf(at, sizeof at, "qformer.encoder.layer.%d.attention", i);
    NRD_TRY(load_attention(t, at, false, &y->self));
    snprintf(at, sizeof at, "qformer.encoder.layer.%d.crossattention", i);
    NRD_TRY(i % t->s.queries.every ? NULL : load_attention(t, at, true, &y->states));
    snprintf(at, sizeof at, "qformer.encoder.layer.%d.intermediate_query.dense", i);
    NRD_TRY(nrd_tower_load_product(t, at, &y->up));
    snprintf(at, sizeof at, "qformer.encoder.layer.%d.output_query.dense", i);
    NRD_TRY(nrd_tower_load_product(t, at, &y->down));
    snprintf(at, sizeof at, "qformer.encoder.layer.%d.output_query.LayerNorm", i);
    return nrd_tower_load_norm(t, at, &y->norm, &y->norm_bias);
}

nrd_error *nrd_tower_queries_load(nrd_tower *t)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->queries, 1, err, fail);
    NRD_NEW_GOTO(t->queries->layers, t->s.queries.n_layers, err, fail);
    NRD_TRY(nrd_tower_load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
    NRD_TRY(nrd_tower_load_norm(t, "qformer.layernorm", &t->queries->norm, &t->queries->norm_bias));
    for (int32_t i = 0; i < t->s.queries.n_layers; i++) {
        NRD_TRY(load_layer(t, i, &t->queries->layers[i]));
    }
    return nrd_tower_load_product(t, "language_projection", &t->project1);
fail:
    return err;
}

/* ---- memory ---- */

static size_t widest_input(const nrd_tower *t)
{
    size_t bytes = t->project1.product.in_row_bytes;

    for (int32_t i = 0; i < t->s.queries.n_layers; i++) {
        const nrd_query_layer *y = &t->queries->layers[i];
        const nrd_extra_product *const all[] = {&y->self.q, &y->self.dense, &y->states.q, &y->states.kv, &y->states.dense, &y->up, &y->down};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
            bytes = nrd_tower_more(bytes, all[k]->product.in_row_bytes);
        }
    }
    return bytes;
}

static nrd_error *alloc_rows(nrd_tower *t, size_t in_bytes)
{
    const nrd_vision_queries *s = &t->s.queries;
    const size_t n = (size_t)s->n, hidden = (size_t)s->hidden, act = t->r->act_bytes;
    nrd_tower_queries *x = t->queries;
    const size_t n_seen = (size_t)x->n_seen, most = nrd_tower_more(n, n_seen);
    const struct {
        void **to;
        size_t count, bytes;
    } rows[] = {{&x->start, n * hidden, act},   {&x->x, n * hidden, act},   {&x->delta, n * hidden, act},
                {&x->out, n * hidden, act},     {&x->qkv, n * hidden * 3, act}, {&x->kv, n_seen * hidden * 2, act},
                {&x->up, n * (size_t)s->inter, act}, {&x->mid, n * (size_t)s->inter, act}, {&x->in.rows, most, in_bytes}};
    void *p = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(nrd_run_alloc(t->r, rows[i].to, rows[i].count, rows[i].bytes, NRD_TOWER_POOL));
    }
    NRD_TRY(nrd_run_alloc(t->r, &p, most, sizeof *x->in.row_scale, NRD_TOWER_POOL));
    x->in.row_scale = p;
    return NULL;
}

static nrd_error *fill_start(nrd_tower *t)
{
    return nrd_tower_upload_rows(t, nrd_vision_weight(t->from, "query_tokens"), t->s.queries.n, t->s.queries.hidden, t->queries->start);
}

/* Two views of the queries as one sequence, and the blocks of one layer. */
static nrd_error *make_views(nrd_tower *t)
{
    nrd_tower_queries *x = t->queries;
    nrd_runner *r = t->r;
    const int32_t n = t->s.queries.n, bt = r->cfg.block_tokens, n_seen = x->n_seen, most = n > n_seen ? n : n_seen, n_blocks = (most + bt - 1) / bt;
    const size_t at_states = 2 * (size_t)n, at_seen = 3 * (size_t)n, at_ends = at_seen + 2 * (size_t)n_seen, at_table = at_ends + 6, count = at_table + (size_t)n_blocks;
    nrd_error *err = NULL;
    int32_t *host = NULL;
    void *p = NULL;

    NRD_NEW_GOTO(host, count, err, done);
    for (int32_t i = 0; i < n; i++) { /* positions; the sequence, 0; positions at the states */
        host[i] = i;
        host[at_states + (size_t)i] = n_seen - 1;
    }
    for (int32_t i = 0; i < n_seen; i++) {
        host[at_seen + (size_t)i] = i;
    }
    host[at_ends + 1] = n; /* q_start: 0, n */
    host[at_ends + 2] = n;
    host[at_ends + 3] = n_seen;
    host[at_ends + 5] = n_seen; /* q_start of what is read: 0, n_seen */
    for (int32_t i = 0; i < n_blocks; i++) {
        host[at_table + (size_t)i] = i;
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, count, sizeof *host, NRD_TOWER_POOL), err, done);
    x->arrays = p;
    NRD_TRY_GOTO(nrd_run_upload(r, x->arrays, host, count * sizeof *host), err, done);
    x->self = (nrd_batch_view){.n_tokens = n, .n_seqs = 1, .max_q_len = n, .max_ctx_len = n, .positions = x->arrays, .token_seq = x->arrays + n,
                               .q_start = x->arrays + at_ends, .ctx_len = x->arrays + at_ends + 2, .block_table = x->arrays + at_table,
                               .block_table_stride = n_blocks};
    x->states = x->self;
    x->states.max_ctx_len = n_seen;
    x->states.positions = x->arrays + at_states;
    x->states.ctx_len = x->arrays + at_ends + 3;
    x->seen = (nrd_batch_view){.n_tokens = n_seen, .n_seqs = 1, .max_q_len = n_seen, .max_ctx_len = n_seen, .positions = x->arrays + at_seen,
                               .token_seq = x->arrays + at_seen + (size_t)n_seen, .q_start = x->arrays + at_ends + 4,
                               .ctx_len = x->arrays + at_ends + 3, .block_table = x->arrays + at_table, .block_table_stride = n_blocks};
    x->cache = (nrd_kv_layer){.dtype = r->act, .n_blocks = n_blocks, .block_tokens = bt, .n_kv_heads = t->s.queries.n_heads,
                              .head_dim = t->s.queries.hidden / t->s.queries.n_heads};
    err = nrd_run_alloc(r, &x->cache.base, (size_t)n_blocks,
                        r->dev->ops->kv_block_bytes(r->dev, r->act, bt, x->cache.n_kv_heads, x->cache.head_dim), NRD_TOWER_POOL);
done:
    free(host);
    return err;
}

nrd_error *nrd_queries_alloc(nrd_tower *t, int32_t n_seen, size_t in_bytes)
{
    t->queries->n_seen = n_seen;
    NRD_TRY(alloc_rows(t, in_bytes));
    return make_views(t);
}

nrd_error *nrd_tower_queries_init(nrd_tower *t)
{
    NRD_TRY(nrd_queries_alloc(t, t->n, widest_input(t)));
    return fill_start(t);
}

static void unload_attention(nrd_tower *t, nrd_query_attention *y)
{
    nrd_extra_product_unload(t->r, &y->q);
    nrd_extra_product_unload(t->r, &y->kv);
    nrd_extra_product_unload(t->r, &y->dense);
    nrd_extra_weight_unload(t->r, &y->norm);
    nrd_extra_weight_unload(t->r, &y->norm_bias);
}

void nrd_tower_queries_free(nrd_tower *t)
{
    nrd_tower_queries *x = t->queries;

    if (!x) {
        return;
    }
    for (int32_t i = 0; x->layers && i < t->s.queries.n_layers; i++) {
        nrd_query_layer *y = &x->layers[i];
        unload_attention(t, &y->self);
        unload_attention(t, &y->states);
        nrd_extra_product_unload(t->r, &y->up);
        nrd_extra_product_unload(t->r, &y->down);
        nrd_extra_weight_unload(t->r, &y->norm);
        nrd_extra_weight_unload(t->r, &y->norm_bias);
    }
    nrd_extra_weight_unload(t->r, &x->norm);
    nrd_extra_weight_unload(t->r, &x->norm_bias);
    void *mem[] = {x->start, x->x, x->delta, x->out, x->qkv, x->kv, x->up, x->mid, x->in.rows, x->in.row_scale, x->arrays, x->cache.base};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(t->r, mem[i]);
    }
    free(x->layers);
    free(x);
    t->queries = NULL;
}

/* ---- a picture ---- */

/* x = the norm of x, or of x + delta. */
static nrd_error *norm_sum(nrd_tower *t, bool has_delta, const nrd_extra_weight *weight, const nrd_extra_weight *bias)
{
    nrd_tower_queries *x = t->queries;
    const nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = t->s.queries.norm_eps,
        .n_tokens = t->s.queries.n,
        .hidden = t->s.queries.hidden,
        .delta = has_delta ? x->delta : NULL,
        .residual = x->x,
        .weight = &weight->w,
        .bias = &bias->w,
        .to_residual = true,
        .out = x->out,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

nrd_error *nrd_queries_multiply(nrd_tower *t, const nrd_extra_product *p, const void *from, int32_t n, void *to)
{
    return nrd_extra_multiply(t->r, &p->product, &t->queries->in, from, n, to, t->r->act, 0);
}

/* From qkv, and kv with of_states, to what the queries see, in out. */
static nrd_error *see(nrd_tower *t, bool of_states)
{
    nrd_tower_queries *x = t->queries;
    nrd_runner *r = t->r;
    const nrd_vision_queries *s = &t->s.queries;
    const nrd_rope_kv_args k = {
        .batch = of_states ? &x->seen : &x->self,
        .qkv = of_states ? x->kv : x->qkv,
        .act_dtype = r->act,
        .n_heads = of_states ? 0 : s->n_heads,
        .rope = NRD_ROPE_NONE,
        .rope_scale = 1,
        .kv = x->cache,
    };
    const nrd_attention_args a = {
        .batch = of_states ? &x->states : &x->self,
        .q = x->qkv,
        .q_stride = (of_states ? 1 : 3) * (int64_t)s->hidden,
        .out = x->out,
        .act_dtype = r->act,
        .out_dtype = r->act,
        .n_heads = s->n_heads,
        .scale = (float)(1 / sqrt((double)(s->hidden / s->n_heads))),
        .ahead = of_states ? 0 : s->n,
        .kv = x->cache,
        .deterministic = r->cfg.deterministic,
    };

    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}

nrd_error *nrd_queries_read_states(nrd_tower *t)
{
    return see(t, true);
}

/* x = the norm of x + what its rows see: of the states, which are in t->normed, or of each other. */
static nrd_error *attend(nrd_tower *t, const nrd_query_attention *y, bool of_states)
{
    nrd_tower_queries *x = t->queries;
    const int32_t n = t->s.queries.n;

    NRD_TRY(nrd_queries_multiply(t, &y->q, x->x, n, x->qkv));
    NRD_TRY(of_states ? nrd_queries_multiply(t, &y->kv, t->normed, t->n, x->kv) : NULL);
    NRD_TRY(see(t, of_states));
    NRD_TRY(nrd_queries_multiply(t, &y->dense, x->out, n, x->delta));
    return norm_sum(t, true, &y->norm, &y->norm_bias);
}

static nrd_error *run_layer(nrd_tower *t, const nrd_query_layer *y)
{
    nrd_tower_queries *x = t->queries;
    const nrd_act_args act = {.kind = t->s.queries.act, .n_tokens = t->s.queries.n, .inter = t->s.queries.inter, .x = x->up,
                              .act_dtype = t->r->act, .out = x->mid, .out_dtype = t->r->act};

    NRD_TRY(attend(t, &y->self, false));
    NRD_TRY(y->states.q.product.n > 0 ? attend(t, &y->states, true) : NULL);
    NRD_TRY(nrd_queries_multiply(t, &y->up, x->x, t->s.queries.n, x->up));
    NRD_TRY(t->r->dev->ops->act(t->r->stream, &act));
    NRD_TRY(nrd_queries_multiply(t, &y->down, x->mid, t->s.queries.n, x->delta));
    return norm_sum(t, true, &y->norm, &y->norm_bias);
}

nrd_error *nrd_tower_queries_run(nrd_tower *t)
{
    nrd_tower_queries *x = t->queries;
    const size_t bytes = (size_t)t->s.queries.n * (size_t)t->s.queries.hidden * t->r->act_bytes;

    NRD_TRY(nrd_tower_norm(t, true, &t->post_norm, &t->post_norm_bias, false, NULL));
    NRD_TRY(t->r->dev->ops->copy(t->r->stream, x->x, x->start, bytes));
    NRD_TRY(norm_sum(t, false, &x->norm, &x->norm_bias));
    for (int32_t i = 0; i < t->s.queries.n_layers; i++) {
        NRD_TRY(run_layer(t, &x->layers[i]));
    }
    return nrd_queries_multiply(t, &t->project1, x->x, t->s.queries.n, t->delta);
}
