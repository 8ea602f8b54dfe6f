/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/rough_head.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/operations.h"

#include <unistd.h>

#define POOL "rough LM head"

static nrd_error *check(const nrd_runner *r, const nrd_weight *w)
{
    const char *why = NULL;

    if (r->model->tp_size > 1 || r->model->pp_size > 1) {
        why = "the engine is for several ranks";
    } else if (!r->dev->ops->linear_sample) {
        why = "the device has none";
    } else if (r->cfg.compute_f32) {
        why = "compute_dtype is float32";
    } else if (r->w.lm_head.n != 1 || !w) {
        why = "the model has no LM head";
    } else if (r->w.lm_head.bias[0]) {
        why = "its LM head has a bias";
    } else if (!nrd_rough_is_for(w)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "two_step_head needs an LM head of 16-bit or float32 numbers in rows of a multiple of 32, got %s "
                                               "in rows of %lld; leave it out",
                          nrd_dtype_name(w->dtype), (long long)w->cols);
    }
    return why ? nrd_errorf(NRD_ERR_UNSUPPORTED, "two_step_head: not with this engine: %s; leave it out", why) : NULL;
}

static nrd_error *make(nrd_runner *r, const nrd_weight *from, float *error, float *length)
{
    nrd_rough_head *h = &r->rough;
    const size_t n = (size_t)from->rows;
    nrd_weight rows = {.dtype = NRD_DTYPE_Q8_0, .rows = from->rows, .cols = from->cols, .scale = 1, .data = h->host};
    void *p = NULL;

    rows.data_bytes = nrd_rough_bytes(from);
    NRD_TRY(nrd_rough_make(from, (int32_t)sysconf(_SC_NPROCESSORS_ONLN), h->host, error, length));
    NRD_TRY(r->dev->ops->weight_load(r->stream, &rows, true, &h->w, &h->owned));
    if (h->w.data_bytes >= from->data_bytes) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "two_step_head: this device keeps 8-bit weights in %llu bytes, the head in %llu; leave it out",
                          (unsigned long long)h->w.data_bytes, (unsigned long long)from->data_bytes);
    }
    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *h->error, POOL));
    h->error = p;
    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *h->length, POOL));
    h->length = p;
    NRD_TRY(nrd_run_upload(r, h->error, error, n * sizeof *error));
    NRD_TRY(nrd_run_upload(r, h->length, length, n * sizeof *length));
    return r->dev->ops->stream_sync(r->stream);
}

nrd_error *nrd_run_init_rough_head(nrd_runner *r)
{
    const nrd_weight *w = nrd_engine_weight(r->engine, "lm_head.weight");
    float *bounds = NULL;
    nrd_error *err = NULL;

    if (!r->cfg.two_step_head) {
        return NULL;
    }
    w = w ? w : nrd_engine_weight(r->engine, "transformer.vocab_embedding.weight");
    NRD_TRY(check(r, w));
    r->rough.host = nrd_aligned_zalloc(64, (size_t)nrd_rough_bytes(w));
    if (!r->rough.host) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(bounds, 2 * (size_t)w->rows, err, done);
    err = make(r, w, bounds, bounds + w->rows);
done:
    free(bounds);
    if (r->rough.owned) {
        free(r->rough.host);
        r->rough.host = NULL;
    }
    return err;
}

void nrd_run_fini_rough_head(nrd_runner *r)
{
    nrd_rough_head *h = &r->rough;

    if (h->owned) {
        r->dev->ops->weight_unload(r->dev, &h->w);
    }
    nrd_run_free(r, h->error);
    nrd_run_free(r, h->length);
    free(h->host);
    *h = (nrd_rough_head){0};
}

bool nrd_run_takes_two_steps(const nrd_runner *r, const nrd_batch *b)
{
    if (!r->rough.error) {
        return false;
    }
    for (int32_t i = 0; !r->shared && i < b->n_rows; i++) {
        if (!nrd_rough_is_plain(&b->rows_host[i])) {
            return false;
        }
    }
    return r->shared || b->n_top == 0;
}
