/* SPDX-License-Identifier: Apache-2.0
 * One decoder layer beside the model's: EAGLE's by the operations below, that of an MTP module by a runner of its own, which is given
 * what goes into its layer. Rows are gathered by embed(), whose table may be any matrix: states by their places,
 * and the two halves of what goes into a product from one array with the first halves in front. */
#include "engine/run/eagle_net.h"

#include "base/mem.h"
#include "engine/run/whole_head.h"

#include <string.h>

#define POOL "EAGLE heads"

struct nrd_eagle_net {
    nrd_runner *r;
    const nrd_eagle_heads *from; /* NULL: an MTP layer */
    nrd_runner *mtp;             /* its runner; or NULL */
    const nrd_engine *mtp_engine;
    const nrd_model_spec *spec; /* of the layer */
    nrd_eagle_net_config cfg;
    bool is_3;

    nrd_extra_product own_fc, qkv, dense, up, down, own_head;
    nrd_extra_weight own_embed_norm, own_state_norm, mlp_norm, own_final_norm, own_embed;
    nrd_whole_head whole;
    const nrd_product *fc, *head;
    const nrd_weight *embed, *embed_norm, *state_norm, *final_norm; /* norms: NULL in EAGLE-1 */
    float embed_scale;
    float *inv_freq, rope_scale;

    nrd_kv_layer kv;
    int32_t n_blocks;
    void *states;              /* [n_blocks * block_tokens + n_outputs, hidden], what its places and the outputs have */
    nrd_weight states_table, pairs_table, taps_table, x_table; /* as tables of rows */
    int32_t *pair_ids, *tap_ids; /* [max_tokens, 2], [max_tokens, 3]: rows that lie beside each other in a product's input */
    void *x; /* [max_tokens, hidden]; the MTP runner's, where there is one */
    void *pairs, *joined, *y, *qkv_out, *att, *up_out, *mid; /* [max_tokens, ...] */
    nrd_extra_input in;
    nrd_batch batch;
    int32_t *rows, *rows_host;     /* [max_rows] */
    int32_t *places, *places_host; /* [max_tokens] */
    float *logits;                 /* [max_rows, the head's rows] */
    nrd_sample_row *sample_rows, *sample_rows_host; /* [max_rows] of choices that nobody remembers */
    uint8_t *out, *out_host;       /* [max_rows] chosen, [max_rows] its log probability, [max_rows, n_best] of each */
    int32_t *ids;                  /* [max_rows, n_best] the model's tokens */
};

static size_t hidden_of(const nrd_eagle_net *e)
{
    return (size_t)e->spec->hidden;
}

static nrd_weight table(const nrd_eagle_net *e, void *data, size_t rows)
{
    return (nrd_weight){.dtype = e->r->act,
                        .layout = NRD_LAYOUT_ROWS,
                        .rows = (int64_t)rows,
                        .cols = e->spec->hidden,
                        .data = data,
                        .scale = 1,
                        .data_bytes = rows * hidden_of(e) * e->r->act_bytes};
}

/* Row i of an array of `cols` numbers a row. */
static void *row_at(const nrd_eagle_net *e, void *base, size_t i, size_t cols)
{
    return (uint8_t *)base + i * cols * e->r->act_bytes;
}

/* ---- operations ---- */

static nrd_error *gather(nrd_eagle_net *e, const nrd_weight *from, float scale, const int32_t *ids, int32_t n, void *out)
{
    const nrd_embed_args a = {.n_tokens = n,
                              .hidden = e->spec->hidden,
                              .ids = ids,
                              .slot_tokens = e->r->slot_tokens,
                              .table = from,
                              .scale = scale,
                              .out = out,
                              .out_dtype = e->r->act};
    return e->r->dev->ops->embed(e->r->stream, &a);
}

/* x += delta where there is one; out = norm(x) of all rows, or of some. */
static nrd_error *norm(nrd_eagle_net *e, int32_t n, void *delta, void *x, const nrd_weight *weight, const int32_t *rows,
                       int32_t n_rows, void *out)
{
    const nrd_norm_args a = {.kind = NRD_NORM_RMS,
                             .eps = e->spec->norm_eps,
                             .n_tokens = n,
                             .hidden = e->spec->hidden,
                             .delta = delta,
                             .residual = x,
                             .weight = weight,
                             .row_ids = rows,
                             .n_rows = n_rows,
                             .out = out,
                             .out_dtype = e->r->act,
                             .act_dtype = e->r->act};
    return e->r->dev->ops->norm(e->r->stream, &a);
}

static nrd_error *multiply(nrd_eagle_net *e, const nrd_product *p, const void *x, int32_t n, void *y)
{
    return nrd_extra_multiply(e->r, p, &e->in, x, n, y, e->r->act, 0);
}

static nrd_error *copy(nrd_eagle_net *e, void *to, const void *from, size_t rows)
{
    return e->r->dev->ops->copy(e->r->stream, to, from, rows * hidden_of(e) * e->r->act_bytes);
}

/* ---- a pass ---- */

/* x and what goes into q, k and v: of the tokens' embeddings and the states before them. */
static nrd_error *enter(nrd_eagle_net *e, int32_t n, const void **qkv_in)
{
    void *second = row_at(e, e->pairs, (size_t)e->cfg.max_tokens, hidden_of(e));

    if (!e->embed_norm) {
        NRD_TRY(gather(e, e->embed, e->embed_scale, e->batch.ids, n, e->pairs));
        NRD_TRY(gather(e, &e->states_table, 1, e->places, n, second));
        NRD_TRY(gather(e, &e->pairs_table, 1, e->pair_ids, 2 * n, e->joined));
        *qkv_in = e->x;
        return multiply(e, e->fc, e->joined, n, e->x);
    }
    NRD_TRY(gather(e, e->embed, e->embed_scale, e->batch.ids, n, e->y));
    NRD_TRY(norm(e, n, NULL, e->y, e->embed_norm, NULL, 0, e->pairs));
    NRD_TRY(gather(e, &e->states_table, 1, e->places, n, e->x));
    NRD_TRY(norm(e, n, NULL, e->x, e->state_norm, NULL, 0, second));
    NRD_TRY(gather(e, &e->pairs_table, 1, e->pair_ids, 2 * n, e->joined));
    *qkv_in = e->joined;
    return e->mtp ? multiply(e, e->fc, e->joined, n, e->x) : NULL;
}

static nrd_error *attention(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const nrd_model_spec *m = e->spec;
    const nrd_rope_kv_args k = {.batch = &e->batch.view,
                                .qkv = e->qkv_out,
                                .act_dtype = r->act,
                                .n_heads = m->n_heads,
                                .norm_eps = m->norm_eps,
                                .rope = m->rope.kind,
                                .rotary_dim = m->rope.rotary_dim,
                                .inv_freq = e->inv_freq,
                                .rope_scale = e->inv_freq ? e->rope_scale : 1,
                                .kv = e->kv};
    const nrd_attention_args a = {.batch = &e->batch.view,
                                  .q = e->qkv_out,
                                  .q_stride = (int64_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
                                  .out = e->att,
                                  .act_dtype = r->act,
                                  .out_dtype = r->act,
                                  .n_heads = m->n_heads,
                                  .scale = m->attn_scale,
                                  .kv = e->kv,
                                  .deterministic = r->cfg.deterministic};
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}

static nrd_error *layer(nrd_eagle_net *e, int32_t n)
{
    const nrd_act_args act = {.kind = e->spec->act,
                              .gated = true,
                              .n_tokens = n,
                              .inter = e->spec->inter,
                              .x = e->up_out,
                              .act_dtype = e->r->act,
                              .out = e->mid,
                              .out_dtype = e->r->act};
    const void *qkv_in = NULL;

    NRD_TRY(enter(e, n, &qkv_in));
    if (e->mtp) {
        NRD_TRY(nrd_run_layers(e->mtp, &e->batch));
        return norm(e, n, e->mtp->delta, e->x, NULL, NULL, 0, NULL);
    }
    NRD_TRY(multiply(e, &e->qkv.product, qkv_in, n, e->qkv_out));
    NRD_TRY(attention(e));
    NRD_TRY(multiply(e, &e->dense.product, e->att, n, e->y));
    NRD_TRY(norm(e, n, e->y, e->x, &e->mlp_norm.w, NULL, 0, e->pairs));
    NRD_TRY(multiply(e, &e->up.product, e->pairs, n, e->up_out));
    NRD_TRY(e->r->dev->ops->act(e->r->stream, &act));
    NRD_TRY(multiply(e, &e->down.product, e->mid, n, e->y));
    return norm(e, n, e->y, e->x, NULL, NULL, 0, NULL);
}

/* Where the best tokens of the outputs lie in `out`. */
static size_t best_at(const nrd_eagle_net *e)
{
    return 2 * (size_t)e->cfg.max_rows;
}

static size_t n_out(const nrd_eagle_net *e)
{
    return 2 * (size_t)e->cfg.max_rows * (size_t)(1 + e->cfg.n_best);
}

/* Outputs become states, logits and the best tokens. */
static nrd_error *leave(nrd_eagle_net *e, int32_t n, int32_t n_rows, int32_t first_output)
{
    nrd_runner *r = e->r;
    int32_t *ids = (int32_t *)(void *)e->out;
    float *log_probs = (float *)(void *)e->out;
    const size_t rows = (size_t)e->cfg.max_rows, best = best_at(e);
    void *outputs = row_at(e, e->states, (size_t)nrd_eagle_net_output(e, first_output), hidden_of(e));
    const void *normed = outputs;
    const nrd_sample_args a = {.n_rows = n_rows,
                               .vocab = e->spec->vocab,
                               .logits = e->logits,
                               .logits_stride = e->head->rows,
                               .rows = e->sample_rows,
                               .slot_tokens = r->slot_tokens,
                               .out_ids = ids,
                               .out_logprob = log_probs + rows,
                               .n_top = e->cfg.n_best,
                               .out_top_ids = ids + best,
                               .out_top_logprobs = log_probs + best + rows * (size_t)e->cfg.n_best};

    NRD_TRY(gather(e, &e->x_table, 1, e->rows, n_rows, outputs));
    if (e->final_norm) {
        NRD_TRY(norm(e, n, NULL, e->x, e->final_norm, e->rows, n_rows, e->pairs));
        normed = e->pairs;
    }
    NRD_TRY(nrd_extra_multiply(r, e->head, &e->in, normed, n_rows, e->logits, NRD_DTYPE_F32,
                               e->head == &e->own_head.product ? 0 : r->spec->logits_softcap));
    NRD_TRY(r->dev->ops->sample(r->stream, &a));
    return r->shared ? NULL : r->dev->ops->copy(r->stream, e->out_host, e->out, n_out(e) * sizeof *ids);
}

/* The row's, whose number is 0 where logits are no numbers. */
static int32_t mtp_token(const nrd_eagle_net *e, int32_t row)
{
    return row >= 0 && row < e->spec->vocab ? row : 0;
}

static nrd_error *upload(nrd_eagle_net *e, const nrd_eagle_pass *p)
{
    const size_t n = (size_t)p->plan->n_tokens * sizeof *e->places, rows = (size_t)p->n_rows * sizeof *e->rows;

    memcpy(e->places_host, p->states, n);
    memcpy(e->rows_host, p->rows, rows);
    if (e->r->shared) {
        return NULL;
    }
    NRD_TRY(e->r->dev->ops->copy(e->r->stream, e->places, e->places_host, n));
    return rows > 0 ? e->r->dev->ops->copy(e->r->stream, e->rows, e->rows_host, rows) : NULL;
}

nrd_error *nrd_eagle_net_run(nrd_eagle_net *e, const nrd_eagle_pass *p, const int32_t **out_ids, const float **out_log_probs)
{
    nrd_runner *r = e->r;
    const size_t n_best = (size_t)p->n_rows * (size_t)e->cfg.n_best;

    NRD_ASSERT(p->plan->n_tokens <= e->cfg.max_tokens && p->n_rows <= e->cfg.max_rows &&
                   p->first_output + p->n_rows <= e->cfg.n_outputs, "passes stay within their limits");
    NRD_TRY(nrd_batch_fill(&e->batch, r->stream, p->plan, NULL, r->mask_worker));
    NRD_TRY(upload(e, p));
    NRD_TRY(layer(e, p->plan->n_tokens));
    if (p->n_rows > 0) {
        NRD_TRY(leave(e, p->plan->n_tokens, p->n_rows, p->first_output));
    }
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    const int32_t *best = (const int32_t *)(const void *)e->out_host + best_at(e);
    for (size_t i = 0; i < n_best; i++) {
        e->ids[i] = e->from ? nrd_eagle_heads_token(e->from, best[i]) : mtp_token(e, best[i]);
    }
    *out_ids = e->ids;
    *out_log_probs = (const float *)(const void *)e->out_host + best_at(e) + (size_t)e->cfg.max_rows * (size_t)e->cfg.n_best;
    return NULL;
}

/* ---- states ---- */

int32_t nrd_eagle_net_output(const nrd_eagle_net *e, int32_t output)
{
    return e->n_blocks * e->r->cfg.block_tokens + output;
}

/* The states of n packed tokens from `first` on, in x where they have to be fused. */
static nrd_error *step_states(nrd_eagle_net *e, int32_t first, int32_t n, void **out)
{
    *out = row_at(e, e->r->taps, (size_t)first, hidden_of(e));
    if (!e->is_3) {
        return NULL;
    }
    e->taps_table = table(e, *out, (size_t)NRD_EAGLE_STATES * (size_t)e->r->cfg.max_tokens - (size_t)first);
    NRD_TRY(gather(e, &e->taps_table, 1, e->tap_ids, NRD_EAGLE_STATES * n, e->joined));
    *out = e->x;
    return multiply(e, e->fc, e->joined, n, e->x);
}

nrd_error *nrd_eagle_net_keep(nrd_eagle_net *e, int32_t n_tokens, const nrd_eagle_span *spans, int32_t n_spans)
{
    const int32_t most = e->is_3 ? e->cfg.max_tokens : n_tokens;

    for (int32_t first = 0, n; first < n_tokens && n_spans > 0; first += n) {
        void *from = NULL;
        n = n_tokens - first < most ? n_tokens - first : most;
        NRD_TRY(step_states(e, first, n, &from));
        for (int32_t i = 0; i < n_spans; i++) {
            const nrd_eagle_span *s = &spans[i];
            const int32_t start = s->row > first ? s->row : first,
                          end = s->row + s->n < first + n ? s->row + s->n : first + n;
            if (start < end) {
                NRD_TRY(copy(e, row_at(e, e->states, (size_t)(s->place + start - s->row), hidden_of(e)),
                             row_at(e, from, (size_t)(start - first), hidden_of(e)), (size_t)(end - start)));
            }
        }
        if (e->r->shared) { /* such a device reads arguments when it is waited for */
            NRD_TRY(e->r->dev->ops->stream_sync(e->r->stream));
        }
    }
    return NULL;
}

nrd_error *nrd_eagle_net_copy_block(nrd_eagle_net *e, int32_t from, int32_t to)
{
    const size_t n = (size_t)e->r->cfg.block_tokens;
    return copy(e, row_at(e, e->states, (size_t)to * n, hidden_of(e)), row_at(e, e->states, (size_t)from * n, hidden_of(e)), n);
}

/* Of keys and values. */
static size_t kv_block_bytes(const nrd_eagle_net *e)
{
    const nrd_runner *r = e->r;
    return e->mtp ? nrd_runner_kv_block_bytes(e->mtp)
                  : r->dev->ops->kv_block_bytes(r->dev, e->kv.dtype, r->cfg.block_tokens, e->spec->n_kv_heads, e->spec->head_dim);
}

size_t nrd_eagle_net_block_bytes(const nrd_eagle_net *e)
{
    return kv_block_bytes(e) + (size_t)e->r->cfg.block_tokens * hidden_of(e) * e->r->act_bytes;
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
    NRD_TRY(nrd_run_alloc(r, &e->states, places, hidden_of(e) * r->act_bytes, "kv cache"));
    e->states_table = table(e, e->states, places);
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
    return nrd_extra_product_add(e->r, weight, bias && bias->data ? bias : NULL, POOL, p);
}

static nrd_error *load_norm(nrd_eagle_net *e, const nrd_weight *from, nrd_extra_weight *own, const nrd_weight **out)
{
    if (!from->data) {
        return NULL;
    }
    NRD_TRY(nrd_extra_weight_load(e->r, from, false, POOL, own));
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
        NRD_TRY(nrd_extra_weight_load(e->r, &w->embed, false, POOL, &e->own_embed));
        e->embed = &e->own_embed.w;
    }
    if (w->lm_head.data) {
        NRD_TRY(add(e, &e->own_head, &w->lm_head, NULL));
        e->head = &e->own_head.product;
        return NULL;
    }
    return nrd_whole_head_open(&e->whole, e->r, &e->head);
}

static nrd_error *alloc_indices(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const nrd_device_ops *ops = r->dev->ops;
    const size_t t = (size_t)e->cfg.max_tokens, rows = (size_t)e->cfg.max_rows, step = (size_t)r->cfg.max_tokens;
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
    NRD_TRY_GOTO(ops->alloc(r->dev, &p, NRD_MEM_HOST, t * sizeof *ids, POOL), err, done);
    e->places_host = e->places = p;
    NRD_TRY_GOTO(ops->alloc(r->dev, &p, NRD_MEM_HOST, rows * sizeof *ids, POOL), err, done);
    e->rows_host = e->rows = p;
    if (!r->shared) {
        e->places = e->rows = NULL;
        NRD_TRY_GOTO(nrd_run_alloc(r, &p, t, sizeof *ids, POOL), err, done);
        e->places = p;
        NRD_TRY_GOTO(nrd_run_alloc(r, &p, rows, sizeof *ids, POOL), err, done);
        e->rows = p;
    }
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
    const size_t rows = (size_t)e->cfg.max_rows, bytes = n_out(e) * sizeof(int32_t);
    nrd_error *err = NULL;
    void *p = NULL;

    NRD_TRY(nrd_run_alloc(r, &p, rows * (size_t)e->head->rows, sizeof *e->logits, POOL));
    e->logits = p;
    NRD_TRY(nrd_run_alloc(r, &p, rows, sizeof *e->sample_rows, POOL));
    e->sample_rows = p;
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, bytes, POOL));
    e->out_host = e->out = p;
    if (!r->shared) {
        e->out = NULL;
        NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, POOL));
        e->out = p;
    }
    NRD_NEW_GOTO(e->ids, rows * (size_t)e->cfg.n_best, err, fail);
    NRD_NEW_GOTO(e->sample_rows_host, rows, err, fail);
    for (size_t i = 0; i < rows; i++) {
        e->sample_rows_host[i] =
            (nrd_sample_row){.top_k = 1, .repetition_penalty = 1, .flags = NRD_SAMPLE_NO_UPDATE, .end_id = -1};
    }
    return nrd_run_upload(r, e->sample_rows, e->sample_rows_host, rows * sizeof *e->sample_rows);
fail:
    return err;
}

static nrd_error *alloc_rows(nrd_eagle_net *e)
{
    nrd_runner *r = e->r;
    const nrd_model_spec *m = e->spec;
    const size_t t = (size_t)e->cfg.max_tokens, h = hidden_of(e), q = (size_t)m->n_heads * (size_t)m->head_dim,
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
    e->pairs_table = table(e, e->pairs, 2 * t);
    e->x_table = table(e, e->x, t);
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
        .max_rows = e->cfg.max_rows > e->cfg.max_entries ? e->cfg.max_rows : e->cfg.max_entries + 1, /* trees have a mask */
        .max_blocks = r->max_blocks,
        .block_tokens = r->cfg.block_tokens,
        .vocab = r->spec->vocab,
        .row_bytes = hidden_of(e) * r->act_bytes,
        .overlap = !r->cfg.no_overlap && !r->cfg.deterministic,
    };

    NRD_TRY(load(e));
    if (e->from) {
        NRD_TRY(nrd_run_init_rope(r, &e->spec->rope, &e->inv_freq, &e->rope_scale));
    }
    e->kv = (nrd_kv_layer){.dtype = r->kv_dtype == NRD_DTYPE_I8 ? r->act : r->kv_dtype, /* no scale was calibrated */
                           .block_tokens = r->cfg.block_tokens,
                           .n_kv_heads = e->spec->n_kv_heads,
                           .head_dim = e->spec->head_dim,
                           .k_scale = 1,
                           .v_scale = 1};
    NRD_TRY(alloc_rows(e));
    NRD_TRY(alloc_indices(e));
    NRD_TRY(alloc_outputs(e));
    return nrd_batch_init(&e->batch, r->dev, &lim);
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
    void *mem[] = {e->inv_freq, e->kv.base, e->states, e->pair_ids, e->tap_ids, e->pairs,  e->joined,       e->mtp ? NULL : e->x, e->y,
                   e->qkv_out,  e->att,     e->up_out, e->mid,      e->in.rows, e->in.row_scale, e->logits, e->sample_rows};

    nrd_error_free(r->dev->ops->stream_sync(r->stream));
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
    nrd_run_free_host(r, e->rows_host);
    nrd_run_free_host(r, e->out_host);
    if (!r->shared) {
        nrd_run_free(r, e->places);
        nrd_run_free(r, e->rows);
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
