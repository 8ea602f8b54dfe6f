/* SPDX-License-Identifier: Apache-2.0
 * Tokens chosen from logits, and their way to the host.
 *
 * All that a step chose lies in one block of memory (nrd_outputs), so that it comes back in one
 * copy: ids and log probabilities first, the candidates behind them, which are copied only when a
 * sequence wants some. */
#include "engine/run/head.h"
#include "engine/run/operations.h"

#include "base/mem.h"

#include <stddef.h>

static size_t take(size_t *at, size_t n, size_t elem)
{
    size_t start = *at;
    *at = (start + n * elem + 63) / 64 * 64;
    return start;
}

nrd_error *nrd_run_outputs_init(nrd_runner *r, nrd_outputs *o)
{
    size_t n = (size_t)nrd_run_max_rows(r), top = (size_t)r->cfg.max_top, at = 0;
    nrd_error *err = NULL;
    void *p = NULL;

    take(&at, n, sizeof(int32_t));
    o->off_log_probs = take(&at, n, sizeof(float));
    o->off_norm = take(&at, n, sizeof(float));
    o->off_top_ids = take(&at, n * top, sizeof(int32_t));
    o->off_top_log_probs = take(&at, n * top, sizeof(float));
    o->bytes = at;
    NRD_NEW_GOTO(o->kept, n, err, done);
    NRD_TRY_GOTO(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, o->bytes, "outputs"), err, done);
    o->host = p;
    if (!r->shared) {
        NRD_TRY_GOTO(nrd_run_alloc(r, &p, o->bytes, 1, "outputs"), err, done);
    }
    o->mem = p;
    if (r->cfg.keep_choice_logits) {
        NRD_TRY_GOTO(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST,
                                        n * r->logit_cols * sizeof(float), "outputs"),
                     err, done);
        o->logits = p;
    }
    err = r->dev->ops->event_new(r->dev, &o->done);
done:
    return err;
}

void nrd_run_outputs_fini(nrd_runner *r, nrd_outputs *o)
{
    nrd_run_free_host(r, o->host);
    nrd_run_free_host(r, o->logits);
    if (!r->shared) {
        nrd_run_free(r, o->mem);
    }
    if (o->done) {
        r->dev->ops->event_free(o->done);
    }
    free(o->kept);
    nrd_run_pooled_fini(r, &o->pooled);
}

static nrd_sample_args choice_args(const nrd_runner *r, const nrd_batch *b, const nrd_outputs *o)
{
    return (nrd_sample_args){
        .n_rows = b->n_rows,
        .vocab = r->spec->vocab,
        .logits = r->logits,
        .logits_stride = (int64_t)r->logit_cols,
        .rows = b->rows,
        .banned_ids = b->banned_mem,
        .counts = r->counts.rows,
        .slot_tokens = r->slot_tokens,
        .out_ids = (int32_t *)(void *)o->mem,
        .out_logprob = (float *)(void *)(o->mem + o->off_log_probs),
        .out_logprob_norm = (float *)(void *)(o->mem + o->off_norm),
        .n_top = b->n_top,
        .out_top_ids = (int32_t *)(void *)(o->mem + o->off_top_ids),
        .out_top_logprobs = (float *)(void *)(o->mem + o->off_top_log_probs),
    };
}

nrd_error *nrd_run_choose(nrd_runner *r, const nrd_batch *b, const nrd_outputs *o)
{
    nrd_sample_args a = choice_args(r, b, o);
    NRD_TRY(r->dev->ops->sample(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_SAMPLE, b->n_rows, (double)r->spec->vocab * sizeof(float),
                        0);
}

bool nrd_run_only_chosen(const nrd_runner *r, const nrd_plan *p, const nrd_batch *b)
{
    const nrd_device_ops *ops = r->dev->ops;
    if (!ops->linear_sample || r->comm || b->masks.pending || !(r->shared || nrd_run_takes_two_steps(r, b))) {
        return false;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].row >= 0 && p->entries[i].seq->run.want_logit_rows) {
            return false;
        }
    }
    return true;
}

nrd_error *nrd_run_head_choose(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_batch *b,
                               const nrd_outputs *o)
{
    NRD_TRY(nrd_run_final_norm(r, n_tokens, has_delta, b->row_ids, b->n_rows));
    nrd_linear_args l = nrd_run_product_args(r, &r->w.lm_head, r->normed, b->n_rows, r->logits,
                                             NRD_DTYPE_F32, r->spec->logits_softcap);
    nrd_sample_args a = choice_args(r, b, o);
    const nrd_rough_weight rough = {&r->rough.w, r->rough.error, r->rough.length};
    NRD_TRY(r->dev->ops->linear_sample(r->stream, &l, b->two_steps ? &rough : NULL, &a));
    nrd_product least = r->w.lm_head; /* what must be read */
    least.w[0] = b->two_steps ? rough.w : least.w[0];
    return nrd_run_mark_product(r, NRD_PROFILE_HEAD_SAMPLE, &least, b->n_rows, NRD_DTYPE_NONE);
}

nrd_error *nrd_run_download(nrd_runner *r, const nrd_batch *b, nrd_outputs *o, const uint8_t *mem)
{
    o->n_rows = b->n_rows;
    o->n_top = b->n_top;
    if (r->shared) {
        return NULL;
    }
    size_t bytes = b->n_top > 0 ? o->bytes : o->off_top_ids;
    NRD_TRY(r->dev->ops->copy(r->stream, o->host, mem, bytes));
    return nrd_run_mark(r, NRD_PROFILE_DOWNLOAD, 1, (double)bytes, 0);
}

nrd_error *nrd_run_keep_choices(nrd_runner *r, const nrd_plan *p, nrd_outputs *o)
{
    size_t row_bytes = r->logit_cols * sizeof(float);
    o->n_kept = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->row < 0 || !e->seq->run.want_logit_rows) {
            continue;
        }
        NRD_ASSERT(o->logits, "keep_choice_logits was set");
        NRD_TRY(r->dev->ops->copy(r->stream, o->logits + (size_t)e->row * r->logit_cols,
                                  r->logits + (size_t)e->row * r->logit_cols,
                                  row_bytes * (size_t)(1 + e->n_draft)));
        for (int32_t k = 0; k <= e->n_draft; k++) {
            const bool in_tree = e->tree && k > 0;
            o->kept[o->n_kept++] = (nrd_kept_choice){e->seq, e->beam, e->n_generated + (in_tree ? e->tree->depth[k - 1] : k),
                                                     e->row + k, e->tree, e->row};
        }
    }
    return NULL;
}
