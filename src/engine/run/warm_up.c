/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/runner_internal.h"

#include "base/clock.h"

/* At most, each. On an H200 all products of an 8B model take about two seconds the first time, none
 * afterwards (the device keeps its choices); a hundred recorded steps less than half a second. */
static const double tune_seconds = 6, record_seconds = 1;
/* Contexts beyond these, and drafts of more sequences, are recorded when they come. */
enum { RECORD_CTX = 1024, RECORD_DRAFTS_CTX = 512, RECORD_DRAFTS_OF = 32, MAX_PRODUCTS = 32 };

static double seconds_since(uint64_t start_ns)
{
    return (double)(nrd_now_ns() - start_ns) / 1e9;
}

/* ---- which kernels products take ---- */

/* One shape of product, with a stand-in for its input and its result's place. */
typedef struct tuned {
    const nrd_product *p;
    void *y;
    nrd_dtype y_dtype;
    int32_t max_rows;
} tuned;

static bool same_shape(const nrd_product *a, const nrd_product *b)
{
    if (a->n != b->n || a->cols != b->cols || a->in_dtype != b->in_dtype) {
        return false;
    }
    for (int32_t i = 0; i < a->n; i++) {
        if (a->w[i]->rows != b->w[i]->rows || a->w[i]->dtype != b->w[i]->dtype ||
            a->w[i]->layout != b->w[i]->layout) {
            return false;
        }
    }
    return true;
}

static int32_t add_shape(tuned *list, int32_t n, tuned t)
{
    for (int32_t i = 0; i < n; i++) {
        if (list[i].y_dtype == t.y_dtype && same_shape(list[i].p, t.p)) {
            return n;
        }
    }
    if (n < MAX_PRODUCTS) {
        list[n++] = t;
    }
    return n;
}

nrd_error *nrd_run_tune(nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const uint64_t start_ns = nrd_now_ns();
    const int32_t t = r->cfg.max_tokens;
    tuned list[MAX_PRODUCTS];
    int32_t n = 0;

    if (!ops->linear_tune || r->cfg.deterministic) {
        return NULL;
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const nrd_layer *y = &r->w.layers[i];
        if (y->qkv.n > 0) {
            n = add_shape(list, n, (tuned){&y->qkv, r->qkv, r->act, t});
            n = add_shape(list, n, (tuned){&y->dense, r->delta, r->act, t});
        }
        if (y->recurrent.in.n > 0) {
            n = add_shape(list, n, (tuned){&y->recurrent.in, r->qkv, r->act, t});
            n = add_shape(list, n, (tuned){&y->recurrent.out, r->delta, r->act, t});
        }
        if (y->cross_q.n > 0) {
            n = add_shape(list, n, (tuned){&y->cross_q, r->qkv, r->act, t});
            n = add_shape(list, n, (tuned){&y->cross_kv, r->qkv, r->act, t});
            n = add_shape(list, n, (tuned){&y->cross_dense, r->delta, r->act, t});
        }
        if (y->up.n > 0) {
            n = add_shape(list, n, (tuned){&y->up, r->up, r->act, t});
            n = add_shape(list, n, (tuned){&y->down, r->delta, r->act, t});
        }
    }
    if (r->is_last && r->w.lm_head.n > 0) {
        n = add_shape(list, n, (tuned){&r->w.lm_head, r->logits, NRD_DTYPE_F32, r->logit_rows});
    }
    for (int32_t i = 0; i < n; i++) {
        const tuned *k = &list[i];
        const double left = tune_seconds - seconds_since(start_ns);
        nrd_linear_args a =
            nrd_run_product_args(r, k->p, r->normed, k->max_rows, k->y, k->y_dtype, 0);
        NRD_TRY(ops->linear_tune(r->stream, &a, r->normed, left > 0 ? left / (n - i) : 0));
    }
    r->tune_seconds = seconds_since(start_ns);
    return NULL;
}

/* ---- steps recorded ahead ---- */

static nrd_error *record(nrd_runner *r, const nrd_batch_pad *pad)
{
    const nrd_plan nobody = {0};

    /* the block of the step before is uploaded from memory that this one fills */
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    NRD_TRY(nrd_batch_fill(&r->batch[0], r->stream, &nobody, pad, r->mask_worker));
    r->batch[0].two_steps = nrd_run_takes_two_steps(r, &r->batch[0]); /* greedy choices */
    NRD_TRY(nrd_run_share(r, &nobody, &r->batch[0], pad, true));
    return nrd_run_padded(r, &r->batch[0], pad, true, NULL);
}

static bool is_time_left(uint64_t start_ns)
{
    return seconds_since(start_ns) < record_seconds;
}

/* The context that is recorded behind this one, at most `most`; 0: none. */
static int32_t next_ctx(const nrd_runner *r, int32_t ctx, int32_t most)
{
    const int32_t next = ctx < r->cfg.max_context ? nrd_graphs_ctx(ctx + 1, r->cfg.max_context) : 0;
    return next <= most ? next : 0;
}

/* Steps in which n sequences have chains of drafted tokens, one of them as many as there can be. */
static nrd_error *record_drafts(nrd_runner *r, int32_t n, int32_t ctx, uint64_t start_ns)
{
    const int32_t longest = 1 + r->cfg.max_chain, all = n * longest;
    nrd_batch_pad pad = {0};

    for (int32_t each = 2; n == 1 && each < longest && nrd_run_pad(r, 1, each, each, ctx, &pad) && is_time_left(start_ns); each++) {
        NRD_TRY(record(r, &pad));
    }
    for (int32_t tokens = n + longest - 1; tokens < all && nrd_run_pad(r, n, tokens, longest, ctx, &pad) && is_time_left(start_ns);
         tokens = pad.shape.tokens + 1) {
        NRD_TRY(record(r, &pad));
    }
    return nrd_run_pad(r, n, all, longest, ctx, &pad) && is_time_left(start_ns) ? record(r, &pad) : NULL;
}

nrd_error *nrd_runner_record_ahead(nrd_runner *r)
{
    const uint64_t start_ns = nrd_now_ns();
    const int32_t first = next_ctx(r, 0, RECORD_CTX), most = r->cfg.max_chain > 0 ? RECORD_DRAFTS_OF : 0;
    nrd_batch_pad pad = {0};

    if (r->spec->encoder) { /* nothing is chosen there, and ALBERT has no head */
        return NULL;
    }
    for (int32_t ctx = first; ctx > 0; ctx = next_ctx(r, ctx, RECORD_CTX)) {
        for (int32_t rows = 1; nrd_run_pad(r, rows, rows, 1, ctx, &pad) && is_time_left(start_ns); rows = pad.shape.rows + 1) {
            NRD_TRY(record(r, &pad));
        }
    }
    for (int32_t ctx = first; ctx > 0; ctx = next_ctx(r, ctx, RECORD_DRAFTS_CTX)) {
        for (int32_t n = 1; n <= most && n <= r->cfg.max_entries; n++) {
            NRD_TRY(record_drafts(r, n, ctx, start_ns));
        }
    }
    return r->dev->ops->stream_sync(r->stream);
}
