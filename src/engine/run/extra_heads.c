/* SPDX-License-Identifier: Apache-2.0
 * The last layer's states go through the final norm once more, and through each head's layers: y = x + silu(W x + b). Its
 * logits are where the step's were, and a choice that nobody remembers finds the best of them. */
#include "engine/run/extra_heads.h"
#include "engine/run/operations.h"

#include "base/mem.h"
#include "engine/run/whole_head.h"

#include <string.h>

struct nrd_extra_heads {
    nrd_runner *r;
    const nrd_medusa_heads *from;
    int32_t n, n_layers, n_best, max_rows;
    uint64_t bytes;
    nrd_dtype quantize; /* of matrices that come in more bits; NONE */
    nrd_extra_product *layers;   /* [n, n_layers] */
    nrd_extra_product *lm_heads; /* [n] of those that are not shared with a head before */
    nrd_whole_head whole;
    const nrd_product **heads;   /* [n] of each head */
    void *states, *x, *y;        /* [max_rows, hidden] */
    nrd_extra_input in;
    nrd_sample_row *rows, *rows_host; /* [max_rows] of choices that nobody remembers */
    int32_t *ids, *ids_host;   /* [n, max_rows, 1 + n_best] chosen ids, then the best; ids_host: the same */
    float *log_probs;          /* [max_rows, 1 + n_best], which nobody reads */
    int32_t *sorted;           /* [max_rows, n, n_best] */
    nrd_graphs graphs;
};

enum { MAX_GRAPHS = 32 };

/* ---- passes ---- */

/* x += silu(W x + b) */
static nrd_error *run_layer(nrd_extra_heads *h, const nrd_extra_product *s, int32_t n)
{
    NRD_TRY(nrd_extra_multiply(h->r, &s->product, &h->in, h->x, n, h->y, h->r->act, 0));
    return nrd_extra_add_silu(h->r, h->x, h->y, n, h->r->spec->hidden);
}

/* A head's outputs among those of all. */
static int32_t *ids_of(const nrd_extra_heads *h, int32_t *ids, int32_t head)
{
    return ids + (size_t)head * (size_t)h->max_rows * (size_t)(1 + h->n_best);
}

static nrd_error *run_head(nrd_extra_heads *h, int32_t head, int32_t n)
{
    nrd_runner *r = h->r;
    int32_t *ids = ids_of(h, h->ids, head);
    const int32_t vocab = nrd_medusa_heads_rows(h->from);
    const nrd_sample_args best = {
        .n_rows = n,
        .vocab = vocab,
        .logits = r->logits,
        .logits_stride = h->heads[head]->rows,
        .rows = h->rows,
        .slot_tokens = r->slot_tokens,
        .out_ids = ids,
        .out_logprob = h->log_probs,
        .n_top = h->n_best,
        .out_top_ids = ids + h->max_rows,
        .out_top_logprobs = h->log_probs + h->max_rows,
    };
    NRD_TRY(r->dev->ops->copy(r->stream, h->x, h->states, (size_t)n * (size_t)r->spec->hidden * r->act_bytes));
    for (int32_t l = 0; l < h->n_layers; l++) {
        NRD_TRY(run_layer(h, &h->layers[head * h->n_layers + l], n));
    }
    NRD_TRY(nrd_extra_multiply(r, h->heads[head], &h->in, h->x, n, r->logits, NRD_DTYPE_F32,
                               r->spec->logits_softcap));
    return r->dev->ops->sample(r->stream, &best);
}

/* All heads of so many rows. */
typedef struct pass_of {
    nrd_extra_heads *h;
    int32_t n;
} pass_of;

static nrd_error *run_heads(void *user)
{
    nrd_extra_heads *h = ((pass_of *)user)->h;
    const size_t bytes = (size_t)h->n * (size_t)h->max_rows * (size_t)(1 + h->n_best) * sizeof *h->ids;

    for (int32_t i = 0; i < h->n; i++) {
        NRD_TRY(run_head(h, i, ((pass_of *)user)->n));
    }
    return h->r->shared ? NULL : h->r->dev->ops->copy(h->r->stream, h->ids_host, h->ids, bytes);
}

nrd_error *nrd_extra_heads_run(nrd_extra_heads *h, const int32_t *tokens, int32_t n, const int32_t **out_ids, bool *was_recorded)
{
    nrd_runner *r = h->r;
    const size_t best = (size_t)h->n_best;
    pass_of pass = {h, n};

    NRD_ASSERT(n <= h->max_rows, "a step has so many sequences at most");
    *was_recorded = false;
    NRD_TRY(nrd_extra_states(h->r, tokens, n, h->states));
    if (h->graphs.cap > 0) { /* rows that fill up are states of steps before */
        pass.n = nrd_graphs_rows(n, h->max_rows);
        const nrd_graph_key key = {.n_outputs = pass.n};
        NRD_TRY(nrd_graphs_run(&h->graphs, &key, NRD_GRAPHS_IF_AGAIN, run_heads, &pass, was_recorded));
    } else {
        NRD_TRY(run_heads(&pass));
    }
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    for (int32_t k = 0; k < n; k++) {
        for (int32_t i = 0; i < h->n; i++) {
            const int32_t *rows = ids_of(h, h->ids_host, i) + h->max_rows + (size_t)k * best;
            int32_t *to = h->sorted + ((size_t)k * (size_t)h->n + (size_t)i) * best;
            for (size_t b = 0; b < best; b++) {
                to[b] = nrd_medusa_heads_token(h->from, rows[b]);
            }
        }
    }
    *out_ids = h->sorted;
    return NULL;
}

/* ---- creation ---- */

static nrd_error *alloc_all(nrd_extra_heads *h, size_t in_row_bytes)
{
    nrd_runner *r = h->r;
    const size_t rows = (size_t)h->max_rows, hidden = (size_t)r->spec->hidden, outputs = rows * (size_t)(1 + h->n_best);
    void *p = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_run_alloc(r, &h->states, rows * hidden, r->act_bytes, "Medusa heads"));
    NRD_TRY(r->dev->ops->fill(r->stream, h->states, 0, rows * hidden * r->act_bytes));
    NRD_TRY(nrd_run_alloc(r, &h->x, rows * hidden, r->act_bytes, "Medusa heads"));
    NRD_TRY(nrd_run_alloc(r, &h->y, rows * hidden, r->act_bytes, "Medusa heads"));
    NRD_TRY(nrd_run_alloc(r, &h->in.rows, rows, in_row_bytes, "Medusa heads"));
    NRD_TRY(nrd_run_alloc(r, &p, rows, sizeof *h->in.row_scale, "Medusa heads"));
    h->in.row_scale = p;
    NRD_TRY(nrd_run_alloc(r, &p, outputs, sizeof *h->log_probs, "Medusa heads"));
    h->log_probs = p;
    NRD_TRY(nrd_run_alloc(r, &p, (size_t)h->n * outputs, sizeof *h->ids, "Medusa heads"));
    h->ids = p;
    NRD_TRY(nrd_run_alloc(r, &p, rows, sizeof *h->rows, "Medusa heads"));
    h->rows = p;
    if (!r->shared) {
        NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, (size_t)h->n * outputs * sizeof *h->ids, "Medusa heads"));
    }
    h->ids_host = r->shared ? h->ids : p;
    NRD_NEW_GOTO(h->sorted, rows * (size_t)h->n * (size_t)h->n_best, err, fail);
    NRD_NEW_GOTO(h->rows_host, rows, err, fail);
    for (size_t i = 0; i < rows; i++) {
        h->rows_host[i] =
            (nrd_sample_row){.top_k = 1, .repetition_penalty = 1, .flags = NRD_SAMPLE_NO_UPDATE, .end_id = -1};
    }
    return nrd_run_upload(r, h->rows, h->rows_host, rows * sizeof *h->rows);
fail:
    return err;
}

/* Its own, that of the head before, or the model's. */
static nrd_error *take_lm_head(nrd_extra_heads *h, int32_t i)
{
    const nrd_weight *w = nrd_medusa_heads_lm_head(h->from, i);

    if (!w && i > 0) { /* none has one of its own */
        h->heads[i] = h->heads[0];
    } else if (!w) {
        NRD_TRY(nrd_whole_head_open(&h->whole, h->r, &h->heads[i]));
        h->bytes += nrd_whole_head_bytes(&h->whole);
    } else if (i > 0 && w == nrd_medusa_heads_lm_head(h->from, i - 1)) {
        h->heads[i] = h->heads[i - 1];
    } else {
        h->lm_heads[i].quantize = h->quantize;
        NRD_TRY(nrd_extra_product_add(h->r, w, NULL, "Medusa heads", &h->lm_heads[i]));
        h->bytes += nrd_extra_product_bytes(&h->lm_heads[i]);
        h->heads[i] = &h->lm_heads[i].product;
    }
    return NULL;
}

static nrd_error *init(nrd_extra_heads *h, const nrd_medusa_heads *from)
{
    nrd_error *err = NULL;
    size_t in = 0;

    if (nrd_run_is_staged(h->r)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "Medusa heads need the last layer's states on rank 0: pp_size is %d; use tp_size",
                          h->r->model->pp_size);
    }
    NRD_NEW_GOTO(h->layers, (size_t)h->n * (size_t)h->n_layers, err, fail);
    NRD_NEW_GOTO(h->lm_heads, h->n, err, fail);
    NRD_NEW_GOTO(h->heads, h->n, err, fail);
    for (int32_t i = 0; i < h->n; i++) {
        for (int32_t l = 0; l < h->n_layers; l++) {
            nrd_extra_product *s = &h->layers[i * h->n_layers + l];
            s->quantize = h->quantize;
            NRD_TRY(nrd_extra_product_add(h->r, nrd_medusa_heads_linear(from, i, l), nrd_medusa_heads_bias(from, i, l),
                                          "Medusa heads", s));
            h->bytes += nrd_extra_product_bytes(s);
            in = s->product.in_row_bytes > in ? s->product.in_row_bytes : in;
        }
        NRD_TRY(take_lm_head(h, i));
        in = h->heads[i]->in_row_bytes > in ? h->heads[i]->in_row_bytes : in;
    }
    return alloc_all(h, in);
fail:
    return err;
}

nrd_error *nrd_extra_heads_new(nrd_extra_heads **out, nrd_runner *runner, const nrd_medusa_heads *from, int32_t n_best,
                               nrd_dtype quantize)
{
    nrd_error *err = NULL;
    nrd_extra_heads *h = NULL;

    *out = NULL;
    NRD_NEW_GOTO(h, 1, err, fail);
    h->r = runner;
    h->from = from;
    h->quantize = quantize;
    h->n = nrd_medusa_heads_n(from);
    h->n_layers = nrd_medusa_heads_n_layers(from);
    h->n_best = n_best < nrd_medusa_heads_rows(from) ? n_best : nrd_medusa_heads_rows(from);
    h->max_rows = runner->cfg.max_entries;
    NRD_TRY_GOTO(init(h, from), err, fail);
    NRD_TRY_GOTO(nrd_run_init_graphs(runner, &h->graphs, MAX_GRAPHS), err, fail);
    *out = h;
    return NULL;

fail:
    nrd_extra_heads_free(h);
    return err;
}

void nrd_extra_heads_free(nrd_extra_heads *h)
{
    if (!h) {
        return;
    }
    nrd_graphs_fini(&h->graphs);
    for (int32_t i = 0; i < h->n * h->n_layers && h->layers; i++) {
        nrd_extra_product_unload(h->r, &h->layers[i]);
    }
    for (int32_t i = 0; i < h->n && h->lm_heads; i++) {
        nrd_extra_product_unload(h->r, &h->lm_heads[i]);
    }
    nrd_whole_head_close(&h->whole, h->r);
    void *mem[] = {h->states, h->x, h->y, h->in.rows, h->in.row_scale, h->log_probs, h->ids, h->rows};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(h->r, mem[i]);
    }
    if (!h->r->shared) {
        nrd_run_free_host(h->r, h->ids_host);
    }
    free(h->layers);
    free(h->lm_heads);
    free((void *)h->heads);
    free(h->sorted);
    free(h->rows_host);
    free(h);
}

int32_t nrd_extra_heads_n(const nrd_extra_heads *h)
{
    return h->n;
}

int32_t nrd_extra_heads_n_best(const nrd_extra_heads *h)
{
    return h->n_best;
}

uint64_t nrd_extra_heads_bytes(const nrd_extra_heads *h)
{
    return h->bytes;
}
