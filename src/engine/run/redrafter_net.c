/* SPDX-License-Identifier: Apache-2.0
 * Contexts and states are rows of one table, so that embed() can gather what goes into a product: first those that the model had, then
 * states of two passes by turns, at last a row of zeros, which the first pass goes on from. */
#include "engine/run/redrafter_net.h"

#include "base/mem.h"
#include "engine/run/extra_product.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"

#include <string.h>

#define POOL "ReDrafter"

struct nrd_redrafter_net {
    nrd_runner *r;
    const nrd_redrafter_heads *from;
    nrd_redrafter_sizes n;
    int32_t max_rows, n_best;
    int32_t turn; /* which half of the states the next pass writes */
    uint64_t bytes;
    nrd_dtype quantize; /* of matrices that come in more bits; NONE */
    nrd_extra_product proj, rnn_u, rnn_w, linear[NRD_REDRAFTER_MAX_LAYERS], lm_head;
    void *states; /* [max_entries + 2 max_rows + 1, hidden] */
    nrd_weight table; /* the same, as one */
    void *embedded, *before; /* [max_rows, hidden] */
    void *joined;            /* [max_rows, 2 hidden] */
    void *x, *y;             /* [max_rows, exit]; x NULL: joined */
    nrd_extra_input in;
    int32_t *ids, *ids_host; /* [4 max_rows]: tokens, rows of the table before, and a pair of rows each */
    nrd_sample_row *sample_rows, *sample_rows_host; /* [max_rows] of choices that nobody remembers */
    uint8_t *out, *out_host; /* [max_rows] chosen, [max_rows] its log probability, then n_best of each */
    nrd_graphs graphs;
};

enum { MAX_GRAPHS = 64 };

/* ---- passes ---- */

static void *state_at(const nrd_redrafter_net *e, int32_t row)
{
    return (uint8_t *)e->states + (size_t)row * (size_t)e->r->spec->hidden * e->r->act_bytes;
}

/* The table's row of row i of a pass. */
static int32_t state_row(const nrd_redrafter_net *e, int32_t turn, int32_t i)
{
    return e->r->cfg.max_entries + turn * e->max_rows + i;
}

static int32_t zero_row(const nrd_redrafter_net *e)
{
    return e->r->cfg.max_entries + 2 * e->max_rows;
}

static nrd_error *gather(nrd_redrafter_net *e, const nrd_weight *table, float scale, const int32_t *ids, int32_t n, void *out)
{
    const nrd_embed_args a = {.n_tokens = n,
                              .hidden = e->r->spec->hidden,
                              .ids = ids,
                              .slot_tokens = e->r->slot_tokens,
                              .table = table,
                              .scale = scale,
                              .out = out,
                              .out_dtype = e->r->act};
    return e->r->dev->ops->embed(e->r->stream, &a);
}

static nrd_error *multiply(nrd_redrafter_net *e, const nrd_extra_product *p, const void *x, int32_t n, void *y)
{
    return nrd_extra_multiply(e->r, &p->product, &e->in, x, n, y, e->r->act, 0);
}

static nrd_error *upload(nrd_redrafter_net *e, const nrd_redrafter_row *rows, int32_t n)
{
    const size_t cap = (size_t)e->max_rows;
    int32_t *tokens = e->ids_host, *before = tokens + cap, *pairs = before + cap;

    for (int32_t i = 0; i < n; i++) {
        tokens[i] = rows[i].token;
        before[i] = rows[i].parent < 0 ? zero_row(e) : state_row(e, 1 - e->turn, rows[i].parent);
        pairs[2 * i] = rows[i].sequence;
        pairs[2 * i + 1] = state_row(e, e->turn, i);
    }
    return e->r->shared ? NULL : e->r->dev->ops->copy(e->r->stream, e->ids, e->ids_host, 4 * cap * sizeof *e->ids);
}

/* states of this turn: s = silu(W E + U s + b), or s = E + s. */
static nrd_error *recur(nrd_redrafter_net *e, int32_t n)
{
    nrd_runner *r = e->r;
    void *s = state_at(e, state_row(e, e->turn, 0));
    const float scale = r->spec->embed_scale == 0 ? 1 : r->spec->embed_scale;
    const nrd_act_args silu = {.kind = NRD_ACT_SILU,
                               .n_tokens = n,
                               .inter = r->spec->hidden,
                               .x = s,
                               .act_dtype = r->act,
                               .out = s,
                               .out_dtype = r->act};

    NRD_TRY(gather(e, r->w.embed, scale, e->ids, n, e->embedded));
    NRD_TRY(gather(e, &e->table, 1, e->ids + e->max_rows, n, e->before));
    if (!e->n.rnn) {
        NRD_TRY(gather(e, &e->table, 1, e->ids + e->max_rows, n, s));
        return nrd_extra_add(r, s, e->embedded, n, r->spec->hidden);
    }
    NRD_TRY(multiply(e, &e->rnn_w, e->embedded, n, s));
    NRD_TRY(multiply(e, &e->rnn_u, e->before, n, e->embedded));
    NRD_TRY(nrd_extra_add(r, s, e->embedded, n, r->spec->hidden));
    return r->dev->ops->act(r->stream, &silu);
}

static size_t n_out(const nrd_redrafter_net *e)
{
    return 2 * (size_t)e->max_rows * (size_t)(1 + e->n_best);
}

/* The best tokens of x. */
static nrd_error *choose(nrd_redrafter_net *e, const void *x, int32_t n)
{
    nrd_runner *r = e->r;
    int32_t *ids = (int32_t *)(void *)e->out;
    float *log_probs = (float *)(void *)e->out;
    const size_t rows = (size_t)e->max_rows;
    const nrd_sample_args a = {.n_rows = n,
                               .vocab = r->spec->vocab,
                               .logits = r->logits,
                               .logits_stride = r->spec->vocab,
                               .rows = e->sample_rows,
                               .slot_tokens = r->slot_tokens,
                               .out_ids = ids,
                               .out_logprob = log_probs + rows,
                               .n_top = e->n_best,
                               .out_top_ids = ids + 2 * rows,
                               .out_top_logprobs = log_probs + (2 + (size_t)e->n_best) * rows};

    NRD_TRY(nrd_extra_multiply(r, &e->lm_head.product, &e->in, x, n, r->logits, NRD_DTYPE_F32, 0));
    NRD_TRY(r->dev->ops->sample(r->stream, &a));
    return r->shared ? NULL : r->dev->ops->copy(r->stream, e->out_host, e->out, n_out(e) * sizeof *ids);
}

nrd_error *nrd_redrafter_net_begin(nrd_redrafter_net *e, const int32_t *tokens, int32_t n)
{
    NRD_ASSERT(n <= e->r->cfg.max_entries, "a step has so many sequences at most");
    e->turn = 0;
    return nrd_extra_states(e->r, tokens, n, e->states);
}

/* A pass of so many rows. */
typedef struct pass_of {
    nrd_redrafter_net *e;
    int32_t n;
} pass_of;

static nrd_error *enqueue(void *user)
{
    nrd_redrafter_net *e = ((pass_of *)user)->e;
    const int32_t n = ((pass_of *)user)->n;
    const size_t cap = (size_t)e->max_rows;
    void *x = e->x ? e->x : e->joined;

    NRD_TRY(recur(e, n));
    NRD_TRY(gather(e, &e->table, 1, e->ids + 2 * cap, 2 * n, e->joined));
    NRD_TRY(e->x ? multiply(e, &e->proj, e->joined, n, e->x) : NULL);
    for (int32_t l = 0; l < e->n.n_layers; l++) {
        NRD_TRY(multiply(e, &e->linear[l], x, n, e->y));
        NRD_TRY(nrd_extra_add_silu(e->r, x, e->y, n, e->n.exit));
    }
    return choose(e, x, n);
}

nrd_error *nrd_redrafter_net_run(nrd_redrafter_net *e, const nrd_redrafter_row *rows, int32_t n, const int32_t **out_ids,
                                 const float **out_log_probs, bool *was_recorded)
{
    const size_t cap = (size_t)e->max_rows;
    pass_of pass = {e, n};

    NRD_ASSERT(n > 0 && n <= e->max_rows, "a pass has so many rows at most");
    *was_recorded = false;
    NRD_TRY(upload(e, rows, n));
    if (e->graphs.cap > 0) { /* rows that fill up are those of a pass before */
        pass.n = nrd_graphs_rows(n, e->max_rows);
        const nrd_graph_key key = {.n_outputs = pass.n, .outputs = state_at(e, state_row(e, e->turn, 0))};
        NRD_TRY(nrd_graphs_run(&e->graphs, &key, NRD_GRAPHS_IF_AGAIN, enqueue, &pass, was_recorded));
    } else {
        NRD_TRY(enqueue(&pass));
    }
    NRD_TRY(e->r->dev->ops->stream_sync(e->r->stream));
    e->turn = 1 - e->turn;
    *out_ids = (const int32_t *)(const void *)e->out_host + 2 * cap;
    *out_log_probs = (const float *)(const void *)e->out_host + (2 + (size_t)e->n_best) * cap;
    return NULL;
}

/* ---- creation ---- */

static nrd_error *add(nrd_redrafter_net *e, nrd_extra_product *p, const nrd_weight *weight, const nrd_weight *bias)
{
    if (!weight->data) {
        return NULL;
    }
    p->quantize = e->quantize;
    NRD_TRY(nrd_extra_product_add(e->r, weight, bias && bias->data ? bias : NULL, POOL, p));
    e->bytes += nrd_extra_product_bytes(p);
    return NULL;
}

static nrd_error *load(nrd_redrafter_net *e)
{
    NRD_TRY(nrd_run_check_whole_embedding(e->r));
    const nrd_redrafter_weights *w = nrd_redrafter_heads_weights(e->from);

    NRD_TRY(add(e, &e->proj, &w->proj, &w->proj_bias));
    NRD_TRY(add(e, &e->rnn_u, &w->rnn_u, &w->rnn_u_bias));
    NRD_TRY(add(e, &e->rnn_w, &w->rnn_w, NULL));
    for (int32_t l = 0; l < e->n.n_layers; l++) {
        NRD_TRY(add(e, &e->linear[l], &w->linear[l], &w->bias[l]));
    }
    return add(e, &e->lm_head, &w->lm_head, NULL);
}

static size_t widest_input(const nrd_redrafter_net *e)
{
    const nrd_extra_product *const all[] = {&e->proj, &e->rnn_u, &e->rnn_w, &e->linear[0], &e->lm_head};
    size_t most = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        most = all[i]->product.in_row_bytes > most ? all[i]->product.in_row_bytes : most;
    }
    return most;
}

static nrd_error *alloc_rows(nrd_redrafter_net *e)
{
    nrd_runner *r = e->r;
    const size_t rows = (size_t)e->max_rows, h = (size_t)r->spec->hidden, exit = (size_t)e->n.exit, n_states = (size_t)zero_row(e) + 1;
    const struct {
        void **to;
        size_t cols;
    } all[] = {{&e->embedded, h}, {&e->before, h}, {&e->joined, 2 * h}, {&e->x, e->proj.product.n > 0 ? exit : 0}, {&e->y, exit}};
    const size_t widest = exit > 2 * h ? exit : 2 * h;
    nrd_error *err = NULL;
    uint8_t *zeros = NULL;
    void *p = NULL;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        NRD_TRY(all[i].cols == 0 ? NULL : nrd_run_alloc(r, all[i].to, rows, all[i].cols * r->act_bytes, POOL));
    }
    NRD_TRY(nrd_run_alloc(r, &e->states, n_states, h * r->act_bytes, POOL));
    e->table = (nrd_weight){.dtype = r->act,
                            .layout = NRD_LAYOUT_ROWS,
                            .rows = (int64_t)n_states,
                            .cols = (int64_t)h,
                            .data = e->states,
                            .scale = 1,
                            .data_bytes = n_states * h * r->act_bytes};
    NRD_NEW_GOTO(zeros, h * r->act_bytes, err, done);
    NRD_TRY_GOTO(nrd_run_upload(r, state_at(e, zero_row(e)), zeros, h * r->act_bytes), err, done);
    NRD_TRY_GOTO(nrd_run_alloc(r, &e->in.rows, rows, widest_input(e), POOL), err, done);
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, rows, sizeof *e->in.row_scale, POOL), err, done);
    e->in.row_scale = p;
    err = nrd_run_advised(r->dev->ops->reserve(r->stream, r->cfg.max_tokens, nrd_run_max_rows(r), (int32_t)widest, r->cfg.max_context,
                                               r->spec->vocab), "workspace");
done:
    free(zeros);
    return err;
}

static nrd_error *alloc_numbers(nrd_redrafter_net *e)
{
    nrd_runner *r = e->r;
    const nrd_device_ops *ops = r->dev->ops;
    const size_t rows = (size_t)e->max_rows, out_bytes = n_out(e) * sizeof(int32_t);
    void *p = NULL;

    NRD_TRY(ops->alloc(r->dev, &p, NRD_MEM_HOST, 4 * rows * sizeof *e->ids, POOL));
    e->ids_host = e->ids = p;
    memset(p, 0, 4 * rows * sizeof *e->ids); /* copied whole */
    NRD_TRY(ops->alloc(r->dev, &p, NRD_MEM_HOST, out_bytes, POOL));
    e->out_host = e->out = p;
    if (!r->shared) {
        e->ids = NULL;
        e->out = NULL;
        NRD_TRY(nrd_run_alloc(r, &p, 4 * rows, sizeof *e->ids, POOL));
        e->ids = p;
        NRD_TRY(nrd_run_alloc(r, &p, out_bytes, 1, POOL));
        e->out = p;
    }
    return nrd_extra_sample_rows(r, rows, POOL, &e->sample_rows, &e->sample_rows_host);
}

nrd_error *nrd_redrafter_net_new(nrd_redrafter_net **out, nrd_runner *runner, const nrd_redrafter_heads *from, int32_t max_rows,
                                 int32_t n_best, nrd_dtype quantize)
{
    nrd_error *err = NULL;
    nrd_redrafter_net *e = NULL;

    *out = NULL;
    if (nrd_run_is_staged(runner)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a ReDrafter needs the last layer's states on rank 0: pp_size is %d; use tp_size",
                          runner->model->pp_size);
    }
    NRD_ASSERT(max_rows <= runner->logit_rows, "a pass's logits lie where the step's were");
    NRD_NEW_GOTO(e, 1, err, fail);
    e->r = runner;
    e->from = from;
    e->n = *nrd_redrafter_heads_sizes(from);
    e->max_rows = max_rows;
    e->n_best = n_best;
    e->quantize = quantize;
    NRD_TRY_GOTO(load(e), err, fail);
    NRD_TRY_GOTO(alloc_rows(e), err, fail);
    NRD_TRY_GOTO(alloc_numbers(e), err, fail);
    NRD_TRY_GOTO(nrd_run_init_graphs(runner, &e->graphs, MAX_GRAPHS), err, fail);
    *out = e;
    return NULL;

fail:
    nrd_redrafter_net_free(e);
    return err;
}

void nrd_redrafter_net_free(nrd_redrafter_net *e)
{
    if (!e) {
        return;
    }
    nrd_runner *r = e->r;
    void *mem[] = {e->states, e->embedded, e->before, e->joined, e->x, e->y, e->in.rows, e->in.row_scale, e->sample_rows};

    nrd_error_free(r->dev->ops->stream_sync(r->stream));
    nrd_graphs_fini(&e->graphs);
    nrd_extra_product_unload(r, &e->proj);
    nrd_extra_product_unload(r, &e->rnn_u);
    nrd_extra_product_unload(r, &e->rnn_w);
    for (int32_t l = 0; l < e->n.n_layers; l++) {
        nrd_extra_product_unload(r, &e->linear[l]);
    }
    nrd_extra_product_unload(r, &e->lm_head);
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(r, mem[i]);
    }
    nrd_run_free_host(r, e->ids_host);
    nrd_run_free_host(r, e->out_host);
    if (!r->shared) {
        nrd_run_free(r, e->ids);
        nrd_run_free(r, e->out);
    }
    free(e->sample_rows_host);
    free(e);
}

uint64_t nrd_redrafter_net_bytes(const nrd_redrafter_net *e)
{
    return e->bytes;
}
