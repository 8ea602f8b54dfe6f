/* SPDX-License-Identifier: Apache-2.0
 * A step as plain bytes. Rank 0 has the plan; the other ranks need only what decides the shapes of the
 * operations and the arrays that they read: the packed batch, copies of blocks, and which rows go through the
 * head. They choose no tokens. Both sides are programs of one build, so the bytes are structures as they lie. */
#include "base/mem.h"
#include "engine/run/runner_internal.h"

#include <string.h>

enum { SHARE_ALIGN = 64 };

/* Rows [at, at + n) of the step whose logits rank 0 reads beside the choices'. */
typedef struct row_range {
    int32_t at, n;
} row_range;

typedef struct step_head {
    int32_t n_tokens, n_seqs, n_rows, stride;
    int32_t max_q_len, max_ctx_len, n_single, n_copies, n_ranges;
    int64_t single_ctx, prompt_pairs;
} step_head;

/* Where the parts behind the head begin. */
typedef struct step_layout {
    size_t batch, copies, ranges, end;
} step_layout;

static step_layout lay_out(size_t batch_bytes, size_t n_copies, size_t n_ranges)
{
    step_layout l = {.batch = (sizeof(step_head) + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN};
    l.copies = l.batch + batch_bytes;
    l.ranges = l.copies + n_copies * sizeof(int32_t[2]);
    l.end = l.ranges + n_ranges * sizeof(row_range);
    return l;
}

size_t nrd_runner_step_bytes(const nrd_runner *r, const nrd_plan *p)
{
    return lay_out(r->batch[0].cap_bytes, (size_t)p->cap_copies, (size_t)p->cap_entries).end;
}

static int32_t put_ranges(const nrd_plan *p, row_range *out)
{
    int32_t at = 0, n = 0;
    for (int32_t i = 0; i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t rows = nrd_run_prompt_end(e) - e->start;
        if (e->seq->run.want_context_rows && rows > 0) {
            out[n++] = (row_range){at, rows};
        }
    }
    return n;
}

nrd_error *nrd_run_share(nrd_runner *r, const nrd_plan *p, const nrd_batch *b)
{
    const nrd_step_sink *sink = &r->cfg.rank.sink;
    const nrd_batch_view *v = &b->view;
    void *mem = NULL;

    if (!r->comm) {
        return NULL;
    }
    NRD_TRY(sink->begin(sink->user, &mem));
    step_layout l = lay_out(b->n_bytes, (size_t)p->n_copies, (size_t)p->n_entries);
    uint8_t *out = mem;
    step_head h = {
        .n_tokens = v->n_tokens,
        .n_seqs = v->n_seqs,
        .n_rows = b->n_rows,
        .stride = v->block_table_stride,
        .max_q_len = v->max_q_len,
        .max_ctx_len = v->max_ctx_len,
        .n_single = v->n_single,
        .n_copies = p->n_copies,
        .n_ranges = put_ranges(p, (row_range *)(void *)(out + l.ranges)),
        .single_ctx = v->single_ctx,
        .prompt_pairs = v->prompt_pairs,
    };
    memcpy(out, &h, sizeof h);
    memcpy(out + l.batch, b->host, b->n_bytes);
    memcpy(out + l.copies, p->copies, (size_t)p->n_copies * sizeof *p->copies);
    sink->end(sink->user, l.end);
    return NULL;
}

/* The batch's arrays as rank 0 packed them. */
static nrd_error *take_batch(nrd_runner *r, nrd_batch *b, const step_head *h, const uint8_t *arrays)
{
    nrd_batch_lay_out(b, h->n_tokens, h->n_seqs, h->n_rows, h->stride);
    b->view.max_q_len = h->max_q_len;
    b->view.max_ctx_len = h->max_ctx_len;
    b->view.n_single = h->n_single;
    b->view.single_ctx = h->single_ctx;
    b->view.prompt_pairs = h->prompt_pairs;
    memcpy(b->host, arrays, b->n_bytes);
    return r->shared ? NULL : r->dev->ops->copy(r->stream, b->mem, b->host, b->n_bytes);
}

static nrd_error *follow(nrd_runner *r, const step_head *h, const uint8_t *step, const step_layout *l)
{
    nrd_batch *b = &r->batch[0];
    nrd_plan copies = {.copies = (int32_t(*)[2])(uintptr_t)(step + l->copies), .n_copies = h->n_copies};
    bool has_delta = true;

    NRD_TRY(take_batch(r, b, h, step + l->batch));
    NRD_TRY(nrd_run_copy_blocks(r, &copies));
    NRD_TRY(nrd_run_layers(r, b));
    for (int32_t i = 0; i < h->n_ranges; i++) {
        row_range range;
        memcpy(&range, step + l->ranges + (size_t)i * sizeof range, sizeof range);
        NRD_TRY(nrd_run_head_rows(r, h->n_tokens, range.at, range.n, &has_delta));
    }
    if (h->n_rows > 0) {
        NRD_TRY(nrd_run_head(r, h->n_tokens, has_delta, b->row_ids, h->n_rows));
    }
    return r->dev->ops->stream_sync(r->stream);
}

nrd_error *nrd_runner_follow(nrd_runner *r, const void *step, size_t bytes)
{
    step_head h;

    if (bytes < sizeof h) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes", bytes);
    }
    memcpy(&h, step, sizeof h);
    size_t batch = nrd_batch_layout_bytes(h.n_tokens, h.n_seqs, h.n_rows, h.stride);
    step_layout l = lay_out(batch, (size_t)h.n_copies, (size_t)h.n_ranges);
    if (l.end > bytes || batch > r->batch[0].cap_bytes) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes says that it has %zu", bytes, l.end);
    }
    return follow(r, &h, step, &l);
}
