/* SPDX-License-Identifier: Apache-2.0
 * Memory and weights of EAGLE heads, or of an MTP layer. */
#include "engine/run/eagle_net_internal.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"

#include "base/mem.h"

#include <string.h>

#define POOL "EAGLE heads"

enum { MAX_GRAPHS = 96 };

/* Of keys and values. */
static size_t kv_block_bytes(const nrd_eagle_net *e)
{
    const nrd_runner *r = e->r;
    return e->mtp ? nrd_runner_kv_block_bytes(e->mtp)
                  : r->dev->ops->kv_block_bytes(r->dev, e->kv.dtype, r->cfg.block_tokens, e->spec->n_kv_heads, e->spec->head_dim);
}

size_t nrd_eagle_net_block_bytes(const nrd_eagle_net *e)
{
    return kv_block_bytes(e) + (size_t)e->r->cfg.block_tokens * nrd_eagle_hidden(e) * e->r->act_bytes;
}

nrd_error *nrd_eagle_net_alloc(nrd_eagle_net *e, int32_t n_blocks)
{
    nrd_runner *r = e->r;
    const size_t places = (size_t)n_blocks * (size_t)r->cfg.block_tokens + (size_t)e->cfg.n_outputs;

    if (places > INT32_MAX) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "EAGLE heads keep at most %d tokens; set max_tokens_in_paged_kv_cache", INT32_MAX);
    }
    e->n_blocks = e->kv.n_blocks = n_blocks;
    NRD_TRY(e->mtp ? nrd_runner_alloc_kv(e->mtp, n_blocks, 0)
                   : nrd_run_alloc(r, &e->kv.base, (size_t)n_blocks, kv_block_bytes(e), "kv cache"));
    NRD_TRY(nrd_run_alloc(r, &e->states, places, nrd_eagle_hidden(e) * r->act_bytes, "kv cache"));
    e->states_table = nrd_eagle_table(e, e->states, places);
    return NULL;
}

/* ---- creation ---- */

nrd_runner_taps nrd_eagle_net_taps(const nrd_eagle_heads *from, const nrd_model_spec *model)
{
    nrd_runner_taps t = {.n = 1, .layer = {model->n_layers}};
    if (from && nrd_eagle_heads_is_3(from)) {
        t.n = NRD_EAGLE_STATES;
        memcpy(t.layer, nrd_eagle_heads_layers(from), NRD_EAGLE_STATES * sizeof *t.layer);
    }
    return t;
}

static nrd_error *add(nrd_eagle_net *e, nrd_extra_product *p, const nrd_weight *weight, const nrd_weight *bias)
{
    p->quantize = e->cfg.quantize;
    return nrd_extra_product_add(e->r, weight, bias && bias->data ? bias : NULL, POOL, p);
}

static nrd_error *load_norm(nrd_eagle_net *e, const nrd_weight *from, nrd_extra_weight *own, const nrd_weight **out)
{
    if (!from->data) {
        return NULL;
    }
    NRD_TRY(nrd_extra_weight_load(e->r, from, POOL, own));
    *out = &own->w;
    return NULL;
}

/* A runner of the layer, with what it keeps of its own but for the stream. */
static nrd_error *open_mtp(nrd_eagle_net *e)
{
    const nrd_runner *r = e->r;
    const nrd_runner_config rc = {
        .kv_dtype = r->kv_dtype == NRD_DTYPE_I8 ? r->act : r->kv_dtype, /* no scale was calibrated */
        .compute_f32 = r->cfg.compute_f32,
        .deterministic = r->cfg.deterministic,
        .max_tokens = e->cfg.max_tokens,
        .max_entries = e->cfg.max_entries,
        .max_top = 1,
        .max_context = r->cfg.max_context,
        .block_tokens = r->cfg.block_tokens,
        .stream = r->stream,
        .no_graphs = true,
        .no_overlap = r->cfg.no_overlap,
    };
    NRD_TRY(nrd_runner_new(&e->mtp, r->dev, e->mtp_engine, &rc));
    NRD_ASSERT(e->mtp->act == r->act, "activations of both are of one type");
    e->x = e->mtp->x;
    e->fc = &e->mtp->w.mtp_fc;
    e->embed_norm = e->mtp->w.mtp_embed_norm;
    e->state_norm = e->mtp->w.mtp_state_norm;
    e->final_norm = e->mtp->w.final_norm;
    return nrd_whole_head_open(&e->whole, e->r, &e->head);
}

static nrd_error *load(nrd_eagle_net *e)
{
    const nrd_eagle_weights *from = e->from ? nrd_eagle_heads_weights(e->from) : NULL;
    if (!(from && from->embed.data)) {
        NRD_TRY(nrd_run_check_whole_embedding(e->r));
    }
    e->embed = e->r->w.embed;
    e->embed_scale = e->r->spec->embed_scale == 0 ? 1 : e->r->spec->embed_scale;
    if (!e->from) {
        return open_mtp(e);
    }
    const nrd_eagle_weights *w = nrd_eagle_heads_weights(e->from);
    const nrd_weight *mlp_norm = NULL;
    NRD_TRY(add(e, &e->own_fc, &w->fc, &w->fc_bias));
    e->fc = &e->own_fc.product;
    NRD_TRY(add(e, &e->qkv, &w->q, &w->q_bias));
    NRD_TRY(add(e, &e->qkv, &w->k, &w->k_bias));
    NRD_TRY(add(e, &e->qkv, &w->v, &w->v_bias));
    NRD_TRY(add(e, &e->dense, &w->o, &w->o_bias));
    NRD_TRY(add(e, &e->up, &w->gate, NULL));
    NRD_TRY(add(e, &e->up, &w->up, NULL));
    NRD_TRY(add(e, &e->down, &w->down, NULL));
    NRD_TRY(load_norm(e, &w->embed_norm, &e->own_embed_norm, &e->embed_norm));
    NRD_TRY(load_norm(e, &w->state_norm, &e->own_state_norm, &e->state_norm));
    NRD_TRY(load_norm(e, &w->mlp_norm, &e->mlp_norm, &mlp_norm));
    NRD_TRY(load_norm(e, &w->final_norm, &e->own_final_norm, &e->final_norm));
    if (w->embed.data) {
        NRD_TRY(nrd_extra_weight_load(e->r, &w->embed, POOL, &e->own_embed));
        e->embed = &e->own_embed.w;
    }
    if (w->lm_head.data) {
        NRD_TRY(add(e, &e->own_head, &w->lm_head, NULL));
        e->head = &e->own_head.product;
        return NULL;
    }
    return nrd_whole_head_open(&e->whole, e->r, &e->head);
}

/* Places, rows, and what is kept, one behind the other. */
static nrd_error *alloc_numbers(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const size_t t = (size_t)e->cfg.max_tokens, rows = (size_t)e->cfg.max_rows, n = t + rows + 4 * (size_t)r->cfg.max_tokens;
    void *p = NULL;

    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, n * sizeof *e->places, POOL));
    e->places_host = p;
    if (!r->shared) {
        NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *e->places, POOL));
    }
    e->places = p;
    e->rows = e->places + t;
    e->rows_host = e->places_host + t;
    e->kept = e->rows + rows;
    e->kept_host = e->rows_host + rows;
    return NULL;
}

static nrd_error *alloc_indices(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const size_t t = (size_t)e->cfg.max_tokens, step = (size_t)r->cfg.max_tokens;
    nrd_error *err = NULL;
    int32_t *ids = NULL;
    void *p = NULL;

    NRD_NEW_GOTO(ids, NRD_EAGLE_STATES * t, err, done);
    for (size_t i = 0; i < t; i++) {
        ids[2 * i] = (int32_t)i;
        ids[2 * i + 1] = (int32_t)(t + i);
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, 2 * t, sizeof *ids, POOL), err, done);
    e->pair_ids = p;
    NRD_TRY_GOTO(nrd_run_upload(r, p, ids, 2 * t * sizeof *ids), err, done);
    for (size_t i = 0; i < t; i++) {
        for (size_t k = 0; k < NRD_EAGLE_STATES; k++) {
            ids[NRD_EAGLE_STATES * i + k] = (int32_t)(k * step + i);
        }
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, NRD_EAGLE_STATES * t, sizeof *ids, POOL), err, done);
    e->tap_ids = p;
    NRD_TRY_GOTO(nrd_run_upload(r, p, ids, NRD_EAGLE_STATES * t * sizeof *ids), err, done);
    NRD_TRY_GOTO(alloc_numbers(e), err, done);
done:
    free(ids);
    return err;
}

static size_t widest_input(const nrd_eagle_net *e)
{
    const nrd_product *const all[] = {e->fc, &e->qkv.product, &e->dense.product, &e->up.product, &e->down.product, e->head};
    size_t most = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        most = all[i]->in_row_bytes > most ? all[i]->in_row_bytes : most;
    }
    return most;
}

static nrd_error *alloc_outputs(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const size_t rows = (size_t)e->cfg.max_rows, bytes = nrd_eagle_out_words(e) * sizeof(int32_t);
    nrd_error *err = NULL;
    void *p = NULL;

    NRD_TRY(nrd_run_alloc(r, &p, rows * (size_t)e->head->rows, sizeof *e->logits, POOL));
    e->logits = p;
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, bytes, POOL));
    e->out_host = e->out = p;
    if (!r->shared) {
        e->out = NULL;
        NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, POOL));
        e->out = p;
    }
    NRD_NEW_GOTO(e->ids, rows * (size_t)e->cfg.n_best, err, fail);
    return nrd_extra_sample_rows(r, rows, POOL, &e->sample_rows, &e->sample_rows_host);
fail:
    return err;
}

static nrd_error *alloc_rows(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const nrd_model_spec *m = e->spec;
    const size_t t = (size_t)e->cfg.max_tokens, h = nrd_eagle_hidden(e), q = (size_t)m->n_heads * (size_t)m->head_dim,
                 kv = (size_t)m->n_kv_heads * (size_t)m->head_dim, inter = (size_t)m->inter;
    const size_t of_eagle = e->mtp ? 0 : 1; /* the MTP runner has the others */
    const size_t widest = 2 * inter > NRD_EAGLE_STATES * h ? 2 * inter : NRD_EAGLE_STATES * h;
    const struct {
        void **to;
        size_t cols;
    } rows[] = {{&e->pairs, 2 * h}, {&e->joined, NRD_EAGLE_STATES * h}, {&e->y, h}, {&e->x, of_eagle * h},
                {&e->qkv_out, of_eagle * (q + 2 * kv)}, {&e->att, of_eagle * q}, {&e->up_out, of_eagle * 2 * inter},
                {&e->mid, of_eagle * inter}};
    void *p = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(rows[i].cols == 0 ? NULL : nrd_run_alloc(r, rows[i].to, t, rows[i].cols * r->act_bytes, POOL));
    }
    e->pairs_table = nrd_eagle_table(e, e->pairs, 2 * t);
    e->x_table = nrd_eagle_table(e, e->x, t);
    NRD_TRY(nrd_run_alloc(r, &e->in.rows, t, widest_input(e), POOL));
    NRD_TRY(nrd_run_alloc(r, &p, t, sizeof *e->in.row_scale, POOL));
    e->in.row_scale = p;
    return nrd_run_advised(r->dev->ops->reserve(r->stream, r->cfg.max_tokens, nrd_run_max_rows(r), (int32_t)widest,
                                                r->cfg.max_context, m->vocab), "workspace");
}

static nrd_error *init(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const nrd_batch_limits lim = {
        .max_tokens = e->cfg.max_tokens,
        .max_entries = e->cfg.max_entries,
        .max_fill = NRD_GRAPHS_FILL,
        .max_rows = e->cfg.max_rows > e->cfg.max_entries ? e->cfg.max_rows : e->cfg.max_entries + 1, /* trees have a mask */
        .max_blocks = r->max_blocks,
        .block_tokens = r->cfg.block_tokens,
        .vocab = r->spec->vocab,
        .row_bytes = nrd_eagle_hidden(e) * r->act_bytes,
        .overlap = !r->cfg.no_overlap && !r->cfg.deterministic,
    };

    NRD_TRY(load(e));
    if (e->from) {
        NRD_TRY(nrd_run_init_rope(r, &e->spec->rope, &e->rope));
    }
    e->kv = (nrd_kv_layer){.dtype = r->kv_dtype == NRD_DTYPE_I8 ? r->act : r->kv_dtype, /* no scale was calibrated */
                           .block_tokens = r->cfg.block_tokens,
                           .n_kv_heads = e->spec->n_kv_heads,
                           .head_dim = e->spec->head_dim};
    NRD_TRY(alloc_rows(e));
    NRD_TRY(alloc_indices(e));
    NRD_TRY(alloc_outputs(e));
    NRD_TRY(nrd_batch_init(&e->batch, r->dev, &lim));
    return nrd_run_init_graphs(r, &e->graphs, MAX_GRAPHS);
}

nrd_error *nrd_eagle_net_new(nrd_eagle_net **out, nrd_runner *runner, const nrd_eagle_heads *from, const nrd_engine *mtp,
                             const nrd_eagle_net_config *cfg)
{
    nrd_error *err = NULL;
    nrd_eagle_net *e = NULL;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    e->r = runner;
    e->from = from;
    e->mtp_engine = mtp;
    e->spec = from ? nrd_eagle_heads_spec(from) : nrd_engine_spec(mtp);
    e->cfg = *cfg;
    e->is_3 = from && nrd_eagle_heads_is_3(from);
    NRD_TRY_GOTO(init(e), err, fail);
    *out = e;
    return NULL;

fail:
    nrd_eagle_net_free(e);
    return err;
}

void nrd_eagle_net_free(nrd_eagle_net *e)
{
    if (!e) {
        return;
    }
    nrd_runner *r = e->r;
    nrd_extra_product *const products[] = {&e->own_fc, &e->qkv, &e->dense, &e->up, &e->down, &e->own_head};
    nrd_extra_weight *const weights[] = {&e->own_embed_norm, &e->own_state_norm, &e->mlp_norm, &e->own_final_norm, &e->own_embed};
    void *mem[] = {e->rope.inv_freq, e->kv.base, e->states, e->pair_ids, e->tap_ids, e->pairs,  e->joined,       e->mtp ? NULL : e->x, e->y,
                   e->qkv_out,  e->att,     e->up_out, e->mid,      e->in.rows, e->in.row_scale, e->logits, e->sample_rows};

    nrd_error_free(r->dev->ops->stream_sync(r->stream));
    nrd_graphs_fini(&e->graphs);
    nrd_runner_free(e->mtp);
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        nrd_extra_product_unload(r, products[i]);
    }
    nrd_whole_head_close(&e->whole, r);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        nrd_extra_weight_unload(r, weights[i]);
    }
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(r, mem[i]);
    }
    nrd_run_free_host(r, e->places_host);
    nrd_run_free_host(r, e->out_host);
    if (!r->shared) {
        nrd_run_free(r, e->places);
        nrd_run_free(r, e->out);
    }
    nrd_batch_fini(&e->batch);
    free(e->ids);
    free(e->sample_rows_host);
    free(e);
}

uint64_t nrd_eagle_net_weight_bytes(const nrd_eagle_net *e)
{
    const nrd_extra_product *const products[] = {&e->own_fc, &e->qkv, &e->dense, &e->up, &e->down, &e->own_head};
    const nrd_extra_weight *const weights[] = {&e->own_embed_norm, &e->own_state_norm, &e->mlp_norm, &e->own_final_norm, &e->own_embed};
    uint64_t sum = nrd_whole_head_bytes(&e->whole) + (e->mtp_engine ? nrd_engine_weight_bytes(e->mtp_engine) : 0);

    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        sum += nrd_extra_product_bytes(products[i]);
    }
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        sum += weights[i]->bytes;
    }
    return sum;
}
