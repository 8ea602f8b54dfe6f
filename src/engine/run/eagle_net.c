/* SPDX-License-Identifier: Apache-2.0
 * One decoder layer beside the model's: EAGLE's by the operations below, that of an MTP module by a runner of its own, which is given
 * what goes into its layer. Rows are gathered by embed(), whose table may be any matrix: states by their places,
 * and the two halves of what goes into a product from one array with the first halves in front. */
#include "engine/run/eagle_net_internal.h"
#include "engine/run/network.h"

#include <string.h>

enum { GRAPH_TOKENS = 256 }; /* longer passes are bound by the device, and not recorded */

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
static nrd_error *norm_into(nrd_eagle_net *e, int32_t n, void *delta, void *x, const nrd_weight *weight, const int32_t *rows,
                            int32_t n_rows, const nrd_extra_rows *out)
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
                             .out = out->data,
                             .out_dtype = out->dtype,
                             .out_row_scale = out->scale,
                             .act_dtype = e->r->act};
    return e->r->dev->ops->norm(e->r->stream, &a);
}

static nrd_error *norm(nrd_eagle_net *e, int32_t n, void *delta, void *x, const nrd_weight *weight, void *out)
{
    return norm_into(e, n, delta, x, weight, NULL, 0, &(nrd_extra_rows){.data = out, .dtype = e->r->act});
}

static nrd_error *multiply(nrd_eagle_net *e, const nrd_product *p, const void *x, int32_t n, void *y)
{
    return nrd_extra_multiply(e->r, p, &e->in, x, n, y, e->r->act, 0);
}

static nrd_error *multiply_rows(nrd_eagle_net *e, const nrd_product *p, const nrd_extra_rows *x, int32_t n, void *y)
{
    return nrd_extra_multiply_rows(e->r, p, x, n, y, e->r->act, 0);
}

static nrd_error *copy(nrd_eagle_net *e, void *to, const void *from, size_t rows)
{
    return e->r->dev->ops->copy(e->r->stream, to, from, rows * nrd_eagle_hidden(e) * e->r->act_bytes);
}

/* ---- a pass ---- */

/* x and what goes into q, k and v: of the tokens' embeddings and the states before them. */
static nrd_error *enter(nrd_eagle_net *e, int32_t n, const void **qkv_in)
{
    void *second = row_at(e, e->pairs, (size_t)e->cfg.max_tokens, nrd_eagle_hidden(e));

    if (!e->embed_norm) {
        NRD_TRY(gather(e, e->embed, e->embed_scale, e->batch.ids, n, e->pairs));
        NRD_TRY(gather(e, &e->states_table, 1, e->places, n, second));
        NRD_TRY(gather(e, &e->pairs_table, 1, e->pair_ids, 2 * n, e->joined));
        *qkv_in = e->x;
        return multiply(e, e->fc, e->joined, n, e->x);
    }
    NRD_TRY(gather(e, e->embed, e->embed_scale, e->batch.ids, n, e->y));
    NRD_TRY(norm(e, n, NULL, e->y, e->embed_norm, e->pairs));
    NRD_TRY(gather(e, &e->states_table, 1, e->places, n, e->x));
    NRD_TRY(norm(e, n, NULL, e->x, e->state_norm, second));
    NRD_TRY(gather(e, &e->pairs_table, 1, e->pair_ids, 2 * n, e->joined));
    *qkv_in = e->joined;
    return e->mtp ? multiply(e, e->fc, e->joined, n, e->x) : NULL;
}

static nrd_error *attention(nrd_eagle_net *e, const nrd_extra_rows *out)
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
                                .inv_freq = e->rope.inv_freq,
                                .rope_scale = e->rope.scale,
                                .kv = e->kv};
    const nrd_attention_args a = {.batch = &e->batch.view,
                                  .q = e->qkv_out,
                                  .q_stride = (int64_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
                                  .out = out->data,
                                  .act_dtype = r->act,
                                  .out_dtype = out->dtype,
                                  .out_row_scale = out->scale,
                                  .n_heads = m->n_heads,
                                  .scale = m->attn_scale,
                                  .kv = e->kv,
                                  .deterministic = r->cfg.deterministic};
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}

static nrd_error *layer(nrd_eagle_net *e, int32_t n)
{
    const nrd_product *dense = &e->dense.product, *up = &e->up.product, *down = &e->down.product;
    const nrd_extra_rows att = nrd_extra_rows_for(e->r, dense, &e->in, e->att), normed = nrd_extra_rows_for(e->r, up, &e->in, e->pairs),
                         mid = nrd_extra_rows_for(e->r, down, &e->in, e->mid);
    const nrd_act_args act = {.kind = e->spec->act,
                              .gated = true,
                              .n_tokens = n,
                              .inter = e->spec->inter,
                              .x = e->up_out,
                              .act_dtype = e->r->act,
                              .out = mid.data,
                              .out_dtype = mid.dtype,
                              .out_row_scale = mid.scale};
    const void *qkv_in = NULL;

    NRD_TRY(enter(e, n, &qkv_in));
    if (e->mtp) {
        NRD_TRY(nrd_run_layers(e->mtp, &e->batch));
        return norm(e, n, e->mtp->delta, e->x, NULL, NULL);
    }
    NRD_TRY(multiply(e, &e->qkv.product, qkv_in, n, e->qkv_out));
    NRD_TRY(attention(e, &att));
    NRD_TRY(multiply_rows(e, dense, &att, n, e->y));
    NRD_TRY(norm_into(e, n, e->y, e->x, &e->mlp_norm.w, NULL, 0, &normed));
    NRD_TRY(multiply_rows(e, up, &normed, n, e->up_out));
    NRD_TRY(e->r->dev->ops->act(e->r->stream, &act));
    NRD_TRY(multiply_rows(e, down, &mid, n, e->y));
    return norm(e, n, e->y, e->x, NULL, NULL);
}

/* Outputs become states, logits and the best tokens. */
static nrd_error *leave(nrd_eagle_net *e, int32_t n, int32_t n_rows, int32_t first_output)
{
    nrd_runner *r = e->r;
    int32_t *ids = (int32_t *)(void *)e->out;
    float *log_probs = (float *)(void *)e->out;
    const size_t rows = (size_t)e->cfg.max_rows, best = nrd_eagle_best_at(e);
    void *outputs = row_at(e, e->states, (size_t)nrd_eagle_net_output(e, first_output), nrd_eagle_hidden(e));
    const float softcap = e->head == &e->own_head.product ? 0 : r->spec->logits_softcap;
    const nrd_extra_rows normed = nrd_extra_rows_for(r, e->head, &e->in, e->pairs);
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
        NRD_TRY(norm_into(e, n, NULL, e->x, e->final_norm, e->rows, n_rows, &normed));
        NRD_TRY(nrd_extra_multiply_rows(r, e->head, &normed, n_rows, e->logits, NRD_DTYPE_F32, softcap));
    } else {
        NRD_TRY(nrd_extra_multiply(r, e->head, &e->in, outputs, n_rows, e->logits, NRD_DTYPE_F32, softcap));
    }
    NRD_TRY(r->dev->ops->sample(r->stream, &a));
    return r->shared ? NULL : r->dev->ops->copy(r->stream, e->out_host, e->out, nrd_eagle_out_words(e) * sizeof *ids);
}

/* The row's, whose number is 0 where logits are no numbers. */
static int32_t mtp_token(const nrd_eagle_net *e, int32_t row)
{
    return row >= 0 && row < e->spec->vocab ? row : 0;
}

/* A pass as it is enqueued: filled up, or not. */
typedef struct pass_of {
    nrd_eagle_net *e;
    int32_t n_tokens, n_rows, first_output;
} pass_of;

static nrd_error *enqueue(void *user)
{
    const pass_of *p = user;
    NRD_TRY(layer(p->e, p->n_tokens));
    return p->n_rows > 0 ? leave(p->e, p->n_tokens, p->n_rows, p->first_output) : NULL;
}

/* The shape that a pass is filled up to, with outputs that nobody reads; false: it runs as it is. */
static bool fit(const nrd_eagle_net *e, const nrd_eagle_pass *p, nrd_batch_pad *pad, pass_of *to)
{
    const nrd_plan *plan = p->plan;
    const int32_t most = e->cfg.max_tokens < GRAPH_TOKENS ? e->cfg.max_tokens : GRAPH_TOKENS,
                  left = e->cfg.n_outputs - p->first_output;
    int32_t longest = 1, ctx = 1;

    if (e->graphs.cap == 0 || p->n_rows == 0) {
        return false;
    }
    for (int32_t i = 0; i < plan->n_entries; i++) {
        const nrd_plan_entry *x = &plan->entries[i];
        longest = x->n > longest ? x->n : longest;
        ctx = x->start + x->n > ctx ? x->start + x->n : ctx;
    }
    pad->shape = nrd_graphs_shape(plan->n_entries, plan->n_tokens, longest, e->cfg.max_entries, most);
    pad->tree_words = nrd_batch_tree_words(plan);
    pad->ctx = nrd_graphs_ctx(ctx, e->r->cfg.max_context);
    pad->stride = (pad->ctx + e->r->cfg.block_tokens - 1) / e->r->cfg.block_tokens;
    pad->mem = e->batch.mem;
    to->n_tokens = pad->shape.tokens;
    to->n_rows = nrd_graphs_rows(p->n_rows, e->cfg.max_rows < left ? e->cfg.max_rows : left);
    return pad->shape.rows > 0 && to->n_rows > 0 && pad->stride <= e->r->max_blocks;
}

/* Places and rows; those that fill up read anything. */
static nrd_error *upload(nrd_eagle_net *e, const nrd_eagle_pass *p, const pass_of *to)
{
    const size_t n = (size_t)p->plan->n_tokens, rows = (size_t)p->n_rows, size = sizeof *e->places;

    memcpy(e->places_host, p->states, n * size);
    memset(e->places_host + n, 0, ((size_t)to->n_tokens - n) * size);
    memcpy(e->rows_host, p->rows, rows * size);
    memset(e->rows_host + rows, 0, ((size_t)to->n_rows - rows) * size);
    return e->r->shared ? NULL
                        : e->r->dev->ops->copy(e->r->stream, e->places, e->places_host,
                                               ((size_t)e->cfg.max_tokens + (size_t)to->n_rows) * size);
}

nrd_error *nrd_eagle_net_run(nrd_eagle_net *e, const nrd_eagle_pass *p, nrd_eagle_found *out)
{
    nrd_runner *r = e->r;
    const size_t n_best = (size_t)p->n_rows * (size_t)e->cfg.n_best;
    pass_of to = {e, p->plan->n_tokens, p->n_rows, p->first_output};
    nrd_batch_pad pad;

    NRD_ASSERT(p->plan->n_tokens <= e->cfg.max_tokens && p->n_rows <= e->cfg.max_rows &&
                   p->first_output + p->n_rows <= e->cfg.n_outputs, "passes stay within their limits");
    out->was_recorded = false;
    const bool fits = fit(e, p, &pad, &to);
    if (!fits) {
        to = (pass_of){e, p->plan->n_tokens, p->n_rows, p->first_output};
    }
    NRD_TRY(nrd_batch_fill(&e->batch, r->stream, p->plan, fits ? &pad : NULL, r->mask_worker));
    NRD_TRY(upload(e, p, &to));
    if (fits) {
        const nrd_graph_key key = {.shape = pad.shape,
                                   .tree_words = pad.tree_words,
                                   .ctx = pad.ctx,
                                   .n_outputs = to.n_rows,
                                   .outputs = row_at(e, e->states, (size_t)nrd_eagle_net_output(e, p->first_output), nrd_eagle_hidden(e))};
        NRD_TRY(nrd_graphs_run(&e->graphs, &key, NRD_GRAPHS_IF_AGAIN, enqueue, &to, &out->was_recorded));
    } else {
        NRD_TRY(enqueue(&to));
    }
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    const int32_t *best = (const int32_t *)(const void *)e->out_host + nrd_eagle_best_at(e);
    for (size_t i = 0; i < n_best; i++) {
        e->ids[i] = e->from ? nrd_eagle_heads_token(e->from, best[i]) : mtp_token(e, best[i]);
    }
    out->ids = e->ids;
    out->log_probs = (const float *)(const void *)e->out_host + nrd_eagle_best_at(e) + (size_t)e->cfg.max_rows * (size_t)e->cfg.n_best;
    return NULL;
}

/* ---- states ---- */

int32_t nrd_eagle_net_output(const nrd_eagle_net *e, int32_t output)
{
    return e->n_blocks * e->r->cfg.block_tokens + output;
}

/* The states of n packed tokens from `first` on as a table, in x where they have to be fused. */
static nrd_error *step_states(nrd_eagle_net *e, int32_t first, int32_t n)
{
    void *states = row_at(e, e->r->taps, (size_t)first, nrd_eagle_hidden(e));

    e->kept_table = nrd_eagle_table(e, states, (size_t)n);
    if (!e->is_3) {
        return NULL;
    }
    e->taps_table = nrd_eagle_table(e, states, (size_t)NRD_EAGLE_STATES * (size_t)e->r->cfg.max_tokens - (size_t)first);
    NRD_TRY(gather(e, &e->taps_table, 1, e->tap_ids, NRD_EAGLE_STATES * n, e->joined));
    e->kept_table = e->x_table;
    return multiply(e, e->fc, e->joined, n, e->x);
}

/* Those of the tokens [first, first + n) that have a place: their rows, and behind these their places. Returns how many. */
static int32_t list_kept(const nrd_eagle_span *spans, int32_t n_spans, int32_t first, int32_t n, int32_t *out)
{
    int32_t at = 0;
    for (int places = 0; places < 2; places++) {
        for (int32_t i = 0; i < n_spans; i++) {
            const nrd_eagle_span *s = &spans[i];
            const int32_t end = s->row + s->n < first + n ? s->row + s->n : first + n;
            for (int32_t row = s->row > first ? s->row : first; row < end; row++) {
                out[at++] = places ? s->place + row - s->row : row - first;
            }
        }
    }
    return at / 2;
}

nrd_error *nrd_eagle_net_keep(nrd_eagle_net *e, int32_t n_tokens, const nrd_eagle_span *spans, int32_t n_spans)
{
    const int32_t most = e->is_3 ? e->cfg.max_tokens : n_tokens;
    const nrd_device_ops *ops = e->r->dev->ops;
    int32_t *at = e->kept_host + (size_t)e->turn * 2 * (size_t)e->r->cfg.max_tokens;

    for (int32_t first = 0, n; first < n_tokens && n_spans > 0; first += n) {
        n = n_tokens - first < most ? n_tokens - first : most;
        const int32_t kept = list_kept(spans, n_spans, first, n, at), *mem = e->kept + (at - e->kept_host);
        const nrd_embed_args a = {.n_tokens = kept,
                                  .hidden = e->spec->hidden,
                                  .ids = mem,
                                  .table = &e->kept_table,
                                  .scale = 1,
                                  .out_rows = mem + kept,
                                  .out = e->states,
                                  .out_dtype = e->r->act};
        NRD_TRY(step_states(e, first, n));
        if (kept > 0 && !e->r->shared) {
            NRD_TRY(ops->copy(e->r->stream, e->kept + (at - e->kept_host), at, 2 * (size_t)kept * sizeof *at));
        }
        NRD_TRY(kept > 0 ? ops->embed(e->r->stream, &a) : NULL);
        if (e->r->shared) { /* such a device reads arguments when it is waited for */
            NRD_TRY(ops->stream_sync(e->r->stream));
        }
        at += 2 * kept;
    }
    e->turn = 1 - e->turn; /* the last step's may be on their way while the next one is planned ahead */
    return NULL;
}

nrd_error *nrd_eagle_net_copy_block(nrd_eagle_net *e, int32_t from, int32_t to)
{
    const size_t n = (size_t)e->r->cfg.block_tokens;
    return copy(e, row_at(e, e->states, (size_t)to * n, nrd_eagle_hidden(e)), row_at(e, e->states, (size_t)from * n, nrd_eagle_hidden(e)), n);
}
