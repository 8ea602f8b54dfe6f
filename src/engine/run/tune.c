/* SPDX-License-Identifier: Apache-2.0
 * Lets the device choose its kernels for every shape of product. */
#include "engine/run/network.h"
#include "engine/run/operations.h"

#include "base/clock.h"

/* At most. On an H200 all products of an 8B model take about two seconds the first time, none afterwards (the device keeps
 * its choices). */
static const double tune_seconds = 6;
enum { MAX_PRODUCTS = 32 };

static double seconds_since(uint64_t start_ns)
{
    return (double)(nrd_now_ns() - start_ns) / 1e9;
}

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
        nrd_pending_scales pending;
        a.pending = r->delta_waits && k->y == r->delta ? &pending : NULL;
        NRD_TRY(ops->linear_tune(r->stream, &a, r->normed, left > 0 ? left / (n - i) : 0));
    }
    r->tune_seconds = seconds_since(start_ns);
    return NULL;
}
