/* SPDX-License-Identifier: Apache-2.0
 * From the last layer to logits: the final norm and the LM head, of the rows that are wanted only.
 *
 * Beside the choices, a request may ask for logits of its prompt's positions. They go through in
 * groups, are waited for, and are told to the runner's owner at once: a step that has them is
 * slower. (States: pooled.c.) The first final norm of a step adds the last delta; later ones must not
 * (`has_delta`). */
#include "engine/run/head.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

#include "base/mem.h"

nrd_error *nrd_run_final_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                              const int32_t *row_ids, int32_t n_rows)
{
    const nrd_layer *last = &r->w.layers[r->spec->n_layers - 1];
    return nrd_run_norm(r, n_tokens, has_delta, nrd_run_last_norm(last), r->w.final_norm,
                        r->w.final_norm_bias, &r->w.lm_head, row_ids, n_rows);
}

nrd_error *nrd_run_head(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids,
                        int32_t n_rows)
{
    if (!r->is_last) {
        return nrd_run_hear_rows(r, n_rows, r->logit_cols);
    }
    NRD_TRY(nrd_run_final_norm(r, n_tokens, has_delta, row_ids, n_rows));
    NRD_TRY(nrd_run_product(r, &r->w.lm_head, r->normed, n_rows, r->comm ? r->part_logits : r->logits,
                            NRD_DTYPE_F32, r->spec->logits_softcap));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_HEAD, &r->w.lm_head, n_rows, NRD_DTYPE_F32));
    nrd_gather_args a = {
        .comm = r->comm,
        .x = r->part_logits,
        .out = r->logits,
        .n_rows = n_rows,
        .cols = (int32_t)r->w.lm_head.rows,
    };
    NRD_TRY(r->comm ? r->dev->ops->gather(r->stream, &a) : NULL);
    return nrd_run_tell_rows(r, n_rows, (size_t)r->model->vocab, r->logit_cols);
}

nrd_error *nrd_run_states(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids, int32_t n_rows)
{
    const nrd_layer *last = &r->w.layers[r->spec->n_layers - 1];
    const size_t hidden = (size_t)r->spec->hidden;
    nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = has_delta ? r->delta : NULL,
        .delta_weight = has_delta ? nrd_run_last_norm(last) : NULL,
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .weight = r->w.final_norm,
        .bias = r->w.final_norm_bias,
        .row_ids = row_ids,
        .n_rows = n_rows,
        .out = r->logits,
        .out_dtype = NRD_DTYPE_F32,
        .act_dtype = r->act,
    };
    if (!r->is_last) {
        return nrd_run_hear_rows(r, n_rows, hidden);
    }
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_tell_rows(r, n_rows, hidden, hidden);
}

int32_t nrd_run_group_rows(const nrd_runner *r, bool of_states)
{
    size_t n = (size_t)r->logit_rows * (size_t)r->model->vocab / (size_t)r->model->hidden;
    return of_states && n < (size_t)r->logit_rows ? (int32_t)n : r->logit_rows;
}

static nrd_error *set_row_ids(nrd_runner *r, int32_t at, int32_t n)
{
    for (int32_t k = 0; k < n; k++) {
        r->row_ids_host[k] = at + k;
    }
    return r->shared ? NULL
                     : r->dev->ops->copy(r->stream, r->row_ids, r->row_ids_host,
                                         (size_t)n * sizeof *r->row_ids);
}

nrd_error *nrd_run_head_rows(nrd_runner *r, int32_t n_tokens, bool of_states, int32_t at, int32_t n,
                             bool *has_delta)
{
    for (int32_t k, group = nrd_run_group_rows(r, of_states); n > 0; n -= k, at += k) {
        k = n < group ? n : group;
        NRD_TRY(set_row_ids(r, at, k));
        NRD_TRY(of_states ? nrd_run_states(r, n_tokens, *has_delta, r->row_ids, k)
                          : nrd_run_head(r, n_tokens, *has_delta, r->row_ids, k));
        *has_delta = false;
        NRD_TRY(r->dev->ops->stream_sync(r->stream)); /* row_ids are filled again */
    }
    return NULL;
}

/* Positions [first, end) of a prompt whose position `first` is packed token `at`: their logits in groups, each read back at
 * once and told. */
static nrd_error *read_back(nrd_runner *r, int32_t n_tokens, nrd_seq *q, int32_t at, int32_t first, int32_t end, bool *has_delta)
{
    const nrd_device_ops *ops = r->dev->ops;
    const size_t row = r->logit_cols, room = (size_t)r->logit_rows * row;
    const int32_t group = nrd_run_group_rows(r, false);
    void *mem = NULL;

    if (first >= end) {
        return NULL;
    }
    if (!r->shared && !r->rows_host) {
        NRD_TRY(ops->alloc(r->dev, &mem, NRD_MEM_HOST, room * sizeof(float), "outputs"));
        r->rows_host = mem;
    }
    for (int32_t n; first < end; first += n, at += n) {
        n = end - first < group ? end - first : group;
        NRD_TRY(set_row_ids(r, at, n));
        NRD_TRY(nrd_run_head(r, n_tokens, *has_delta, r->row_ids, n));
        *has_delta = false;
        const float *rows = r->logits;
        if (!r->shared) {
            NRD_TRY(ops->copy(r->stream, r->rows_host, r->logits, (size_t)n * row * sizeof(float)));
            rows = r->rows_host;
        }
        NRD_TRY(ops->stream_sync(r->stream));
        r->cfg.on_context_rows(r->cfg.user, q, first, n, rows, (int64_t)row);
    }
    return NULL;
}

int32_t nrd_run_prompt_end(const nrd_plan_entry *e)
{
    return e->start + e->n < e->seq->req.n_prompt ? e->start + e->n : e->seq->req.n_prompt;
}

bool nrd_run_context_range(const nrd_plan_entry *e, int32_t *first, int32_t *end)
{
    const nrd_seq_run *run = &e->seq->run;

    *first = e->start > run->context_from ? e->start : run->context_from;
    *end = nrd_run_prompt_end(e);
    return run->want_context_rows && *first < *end;
}

nrd_error *nrd_run_context_rows(nrd_runner *r, const nrd_plan *p, bool *has_delta)
{
    int32_t at = 0;
    for (int32_t i = 0; i < p->n_entries; at += nrd_entry_n_decoder(&p->entries[i]), i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (nrd_run_context_range(e, &first, &end)) {
            NRD_TRY(read_back(r, p->n_tokens, e->seq, at + first - e->start, first, end, has_delta));
        }
    }
    return NULL;
}

nrd_error *nrd_run_context_row(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, bool *has_delta)
{
    int32_t at = 0;
    for (int32_t i = 0; i < p->n_entries; at += nrd_entry_n_decoder(&p->entries[i]), i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const int32_t row = e->seq->run.context_row, n = nrd_entry_n_decoder(e), first = e->start + e->n - n;
        if (row > 0 && row >= first && row < first + n) {
            NRD_TRY(read_back(r, b->view.n_tokens, e->seq, at + row - first, row, row + 1, has_delta));
        }
    }
    return NULL;
}
