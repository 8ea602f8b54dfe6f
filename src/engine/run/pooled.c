/* SPDX-License-Identifier: Apache-2.0
 * States of prompts, for vectors of texts: the final norm of the rows that are wanted, and the sum of each sequence's, so that
 * little comes back from a device. Nothing is waited for; nrd_runner_wait tells the sums. */
#include "engine/run/head.h"
#include "engine/run/operations.h"

#include "base/mem.h"

bool nrd_run_state_range(const nrd_plan_entry *e, int32_t *first, int32_t *end)
{
    const nrd_seq_run *run = &e->seq->run;
    const int32_t last = e->seq->req.n_prompt - 1;

    *first = e->start;
    *end = nrd_run_prompt_end(e);
    if (!run->want_states && run->want_last_state) {
        *first = last > *first ? last : *first;
    } else if (!run->want_states && run->want_first_state) {
        *end = e->start == 0 && *end > 0 ? 1 : e->start;
    } else if (!run->want_states) {
        return false;
    }
    return *first < *end;
}

static bool wants_some(const nrd_plan *p)
{
    int32_t first, end;
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (nrd_run_state_range(&p->entries[i], &first, &end)) {
            return true;
        }
    }
    return false;
}

/* Memory for the first step with such sequences. */
static nrd_error *make_room(nrd_runner *r, nrd_pooled *o)
{
    const size_t n = (size_t)r->cfg.max_entries, n_rows = n + 1 + (size_t)r->cfg.max_tokens, sums = n * (size_t)r->spec->hidden;
    nrd_error *err = NULL;
    void *p = NULL;

    if (!o->seqs) {
        NRD_NEW_GOTO(o->seqs, n, err, done);
    }
    if (!o->rows) {
        NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, n_rows * sizeof *o->rows, "outputs"));
        o->rows = p;
    }
    if (!o->sums) {
        NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, sums * sizeof *o->sums, "outputs"));
        o->sums = p;
    }
    if (!r->shared && !r->pool_rows) {
        NRD_TRY(nrd_run_alloc(r, &p, n_rows, sizeof *r->pool_rows, "outputs"));
        r->pool_rows = p;
    }
    if (!r->shared && !r->pool_sums) {
        NRD_TRY(nrd_run_alloc(r, &p, sums, sizeof *r->pool_sums, "outputs"));
        r->pool_sums = p;
    }
done:
    return err;
}

/* Whose states, and which rows of x these are, one sequence's behind the other's. Returns how many rows. */
static int32_t put_rows(nrd_pooled *o, const nrd_plan *p, int32_t *starts, int32_t *rows)
{
    int32_t n = 0;
    for (int32_t i = 0, at = 0; i < p->n_entries; at += nrd_entry_n_decoder(&p->entries[i]), i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (!nrd_run_state_range(e, &first, &end)) {
            continue;
        }
        o->seqs[o->n] = (nrd_pooled_seq){e->seq, first, end - first};
        starts[o->n++] = n;
        for (int32_t k = first; k < end; k++) {
            rows[n++] = at + k - e->start;
        }
    }
    starts[o->n] = n;
    return n;
}

nrd_error *nrd_run_pool(nrd_runner *r, const nrd_plan *p, nrd_pooled *o, bool *has_delta)
{
    const nrd_device_ops *ops = r->dev->ops;
    const size_t hidden = (size_t)r->spec->hidden, n_starts = (size_t)r->cfg.max_entries + 1;

    o->n = 0;
    if (!wants_some(p)) {
        return NULL;
    }
    NRD_TRY(make_room(r, o));
    const int32_t n = put_rows(o, p, o->rows, o->rows + n_starts);
    const int32_t *rows = r->shared ? o->rows : r->pool_rows;
    double *sums = r->shared ? o->sums : r->pool_sums;
    const size_t fit = (size_t)r->logit_rows * r->logit_cols / hidden;
    const int32_t most = nrd_run_is_staged(r) ? nrd_run_group_rows(r, true) : fit < (size_t)n ? (int32_t)fit : n;
    NRD_ASSERT(most > 0, "a row of states fits where many rows of logits do");
    if (!r->shared) {
        NRD_TRY(ops->copy(r->stream, r->pool_rows, o->rows, (n_starts + (size_t)n) * sizeof *rows));
    }
    for (int32_t first = 0, k, s = 0; first < n; first += k) {
        while (o->rows[s + 1] <= first) {
            s++;
        }
        const int32_t end = nrd_run_is_staged(r) ? o->rows[s + 1] : n; /* the last stage sends each sequence's alone */
        k = end - first < most ? end - first : most;
        NRD_TRY(nrd_run_states(r, p->n_tokens, *has_delta, rows + n_starts + first, k));
        *has_delta = false;
        const nrd_sum_spans_args a = {
            .x = r->logits, .starts = rows, .n_spans = o->n, .first = first, .n_rows = k, .hidden = (int32_t)hidden, .out = sums};
        NRD_TRY(ops->sum_spans(r->stream, &a));
    }
    return r->shared ? NULL : ops->copy(r->stream, o->sums, sums, (size_t)o->n * hidden * sizeof *sums);
}

void nrd_run_tell_pooled(const nrd_runner *r, const nrd_pooled *o)
{
    for (int32_t i = 0; i < o->n; i++) {
        const nrd_pooled_seq *q = &o->seqs[i];
        r->cfg.on_state_sum(r->cfg.user, q->seq, q->first, q->n, o->sums + (size_t)i * (size_t)r->spec->hidden);
    }
}

void nrd_run_pooled_fini(nrd_runner *r, nrd_pooled *o)
{
    nrd_run_free_host(r, o->rows);
    nrd_run_free_host(r, o->sums);
    free(o->seqs);
}
