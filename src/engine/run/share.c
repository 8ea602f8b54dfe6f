/* SPDX-License-Identifier: Apache-2.0
 * A step as plain bytes. Rank 0 has the plan; the other ranks need only what decides the shapes of the
 * operations and the arrays that they read: the packed batch, copies of blocks, and which rows go through the
 * head. They choose no tokens. Both sides are programs of one build, so the bytes are structures as they lie. */
#include "base/mem.h"
#include "engine/run/runner_internal.h"

#include <string.h>

enum { SHARE_ALIGN = 64 };

/* Rows [at, at + n) of the step whose logits, or states, rank 0 reads beside the choices'. */
typedef struct row_range {
    int32_t at, n;
    bool of_states; /* only with pipeline stages: else rank 0 has them */
} row_range;

typedef struct step_head {
    nrd_graph_shape pad; /* rows 0: the step is not padded; else its stride is the shape's */
    int32_t pad_ctx;
    bool ahead;                /* it is recorded now */
    bool from_tables;          /* nrd_batch.from_tables */
    nrd_batch_sizes sizes;
    int32_t max_q_len, max_ctx_len, n_single, n_moves, n_copies, n_ranges;
    int32_t sight_words; /* of a row of the mask that pictures in prompts have; 0: there is none */
    int32_t n_places; /* numbers of what nrd_run_pictures_follow takes */
    int32_t n_takes;
    int32_t cross_max_ctx;
    int64_t single_ctx, prompt_pairs, cross_single_ctx, cross_prompt_pairs;
} step_head;

/* Where the parts behind the head begin. */
typedef struct step_layout {
    size_t batch, moves, copies, sight, places, takes, ranges, end;
} step_layout;

/* n_sight: words of that mask. */
static step_layout lay_out(size_t batch_bytes, size_t n_moves, size_t n_copies, size_t n_ranges,
                           size_t n_sight, size_t n_places, size_t n_takes)
{
    step_layout l = {.batch = (sizeof(step_head) + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN};
    l.moves = l.batch + batch_bytes;
    l.copies = l.moves + n_moves * sizeof(int32_t[2]);
    l.sight = l.copies + n_copies * sizeof(int32_t[2]);
    l.places = l.sight + n_sight * sizeof(uint32_t);
    l.takes = l.places + n_places * sizeof(int32_t);
    l.ranges = l.takes + n_takes * sizeof(nrd_kv_take);
    l.end = l.ranges + n_ranges * sizeof(row_range);
    return l;
}

size_t nrd_runner_step_bytes(const nrd_runner *r, const nrd_plan *p)
{
    const size_t n_places = r->pictures ? (size_t)NRD_RUN_PLACES * (size_t)r->cfg.max_tokens : 0;
    return lay_out(r->batch[0].cap_bytes, (size_t)p->cap_moves, (size_t)p->cap_copies,
                   2 * (size_t)p->cap_entries, 0, n_places, (size_t)p->cap_entries)
        .end;
}

/* In the order in which rank 0 reads them. */
static int32_t put_ranges(const nrd_runner *r, const nrd_plan *p, row_range *out)
{
    int32_t at = 0, n = 0;
    for (int32_t i = 0; i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (nrd_run_context_range(e, &first, &end)) {
            out[n++] = (row_range){at + first - e->start, end - first, false};
        }
    }
    at = 0;
    for (int32_t i = 0; nrd_run_is_staged(r) && i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (nrd_run_state_range(e, &first, &end)) {
            out[n++] = (row_range){at + first - e->start, end - first, true};
        }
    }
    return n;
}

nrd_error *nrd_run_share(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, const nrd_batch_pad *pad,
                         bool ahead)
{
    const nrd_step_sink *sink = &r->cfg.rank.sink;
    const nrd_batch_view *v = &b->view;
    void *mem = NULL;

    if (!r->comm) {
        return NULL;
    }
    NRD_TRY(sink->begin(sink->user, &mem));
    const nrd_batch_sizes sizes = {v->n_tokens, v->n_seqs, b->n_rows, v->block_table_stride,
                                   v->tree_mask && b->n_sight == 0 ? v->tree_mask_words : 0, b->token_slot != NULL, b->types != NULL, v->axes != NULL,
                                   b->cross_place ? b->cross.n_seqs : 0, b->cross_place ? b->cross.block_table_stride : 0};
    const size_t bytes = nrd_batch_layout_bytes(&sizes), n_places = nrd_run_pictures_list(r, p, NULL);
    const int32_t n_takes = nrd_run_list_takes(p, NULL);
    step_layout l = lay_out(bytes, (size_t)p->n_moves, (size_t)p->n_copies,
                            2 * (size_t)p->n_entries, b->n_sight, n_places, (size_t)n_takes);
    uint8_t *out = mem;
    step_head h = {
        .pad = pad ? pad->shape : (nrd_graph_shape){0},
        .pad_ctx = pad ? pad->ctx : 0,
        .ahead = ahead,
        .from_tables = b->from_tables,
        .sizes = sizes,
        .max_q_len = v->max_q_len,
        .max_ctx_len = v->max_ctx_len,
        .n_single = v->n_single,
        .n_moves = p->n_moves,
        .n_copies = p->n_copies,
        .n_ranges = put_ranges(r, p, (row_range *)(void *)(out + l.ranges)),
        .sight_words = b->n_sight > 0 ? v->tree_mask_words : 0,
        .single_ctx = v->single_ctx,
        .prompt_pairs = v->prompt_pairs,
        .n_places = (int32_t)nrd_run_pictures_list(r, p, (int32_t *)(void *)(out + l.places)),
        .n_takes = nrd_run_list_takes(p, (nrd_kv_take *)(void *)(out + l.takes)),
        .cross_max_ctx = b->cross.max_ctx_len,
        .cross_single_ctx = b->cross.single_ctx,
        .cross_prompt_pairs = b->cross.prompt_pairs,
    };
    memcpy(out, &h, sizeof h);
    memcpy(out + l.batch, b->host, bytes);
    if (p->n_moves > 0) {
        memcpy(out + l.moves, p->moves, (size_t)p->n_moves * sizeof *p->moves);
    }
    if (p->n_copies > 0) {
        memcpy(out + l.copies, p->copies, (size_t)p->n_copies * sizeof *p->copies);
    }
    if (b->n_sight > 0) {
        memcpy(out + l.sight, b->sight, b->n_sight * sizeof *b->sight);
    }
    sink->end(sink->user, l.end);
    return NULL;
}

/* The batch's arrays as rank 0 packed them, to `mem` on the device. */
static nrd_error *take_batch(nrd_runner *r, nrd_batch *b, const step_head *h, const uint8_t *arrays, uint8_t *mem)
{
    nrd_batch_lay_out(b, &h->sizes, mem);
    b->view.max_q_len = h->max_q_len;
    b->view.max_ctx_len = h->max_ctx_len;
    b->view.n_single = h->n_single;
    b->view.single_ctx = h->single_ctx;
    b->view.prompt_pairs = h->prompt_pairs;
    b->from_tables = h->from_tables;
    b->cross.max_q_len = h->max_q_len;
    b->cross.n_single = h->n_single;
    b->cross.max_ctx_len = h->cross_max_ctx;
    b->cross.single_ctx = h->cross_single_ctx;
    b->cross.prompt_pairs = h->cross_prompt_pairs;
    memcpy(b->host, arrays, b->n_bytes);
    return r->shared ? NULL : r->dev->ops->copy(r->stream, mem, b->host, b->n_bytes);
}

/* Prompts' blocks that another engine computed, into those that the packed batch names; mem: where it goes on the device. */
static nrd_error *take_shares(nrd_runner *r, const nrd_batch *b, const step_head *h,
                              const uint8_t *mem, const uint8_t *takes)
{
    const int32_t *table =
        (const int32_t *)(const void *)(b->host + ((const uint8_t *)b->view.block_table - mem));

    for (int32_t i = 0; i < h->n_takes; i++) {
        nrd_kv_take take;
        memcpy(&take, takes + (size_t)i * sizeof take, sizeof take);
        if (take.entry < 0 || take.entry >= h->sizes.n_entries || take.first < 0 ||
            take.n_blocks > h->sizes.stride) {
            return nrd_errorf(NRD_ERR_INTERNAL, "a step takes %d blocks for sequence %d",
                              take.n_blocks, take.entry);
        }
        NRD_TRY(nrd_run_take_share(r, &take, table + (size_t)take.entry * (size_t)h->sizes.stride));
    }
    return NULL;
}

/* Layers and head, as rank 0 runs them, but for the choices. Head and states are the last stage's. */
static nrd_error *compute(nrd_runner *r, nrd_batch *b, const step_head *h, const uint8_t *ranges)
{
    bool has_delta = nrd_run_head_adds_delta(r);

    NRD_TRY(nrd_run_layers(r, b));
    if (!r->is_last) {
        return NULL;
    }
    for (int32_t i = 0; i < h->n_ranges; i++) {
        row_range range;
        memcpy(&range, ranges + (size_t)i * sizeof range, sizeof range);
        NRD_TRY(nrd_run_head_rows(r, h->sizes.n_tokens, range.of_states, range.at, range.n, &has_delta));
    }
    if (h->sizes.n_rows == 0) {
        return NULL;
    }
    NRD_TRY(nrd_run_head(r, h->sizes.n_tokens, has_delta, b->row_ids, h->sizes.n_rows));
    return nrd_run_tell_choices(r);
}

/* Several steps may be under way, as in rank 0. */
static nrd_error *follow(nrd_runner *r, const step_head *h, const uint8_t *step, const step_layout *l)
{
    const nrd_device_ops *ops = r->dev->ops;
    const uint32_t buffer = r->n_followed++ % (uint32_t)r->n_buffers;
    nrd_batch *b = &r->batch[buffer];
    nrd_plan copies = {.moves = (int32_t(*)[2])(uintptr_t)(step + l->moves),
                       .n_moves = h->n_moves,
                       .copies = (int32_t(*)[2])(uintptr_t)(step + l->copies),
                       .n_copies = h->n_copies};
    nrd_batch_pad pad = {.shape = h->pad,
                         .tree_words = h->sizes.tree_words,
                         .ctx = h->pad_ctx,
                         .stride = h->sizes.stride,
                         .mem = r->batch[0].mem};

    if (r->n_followed > (uint32_t)r->n_buffers) {
        NRD_TRY(ops->event_wait(r->out[buffer].done)); /* its arrays are read until then */
    }
    uint8_t *mem = h->pad.rows > 0 ? pad.mem : b->mem;
    NRD_TRY(take_batch(r, b, h, step + l->batch, mem));
    NRD_TRY(nrd_batch_take_sight(b, r->stream, (const uint32_t *)(const void *)(step + l->sight), h->sight_words));
    NRD_TRY(nrd_run_copy_blocks(r, &copies));
    NRD_TRY(take_shares(r, b, h, mem, step + l->takes));
    NRD_TRY(nrd_run_pictures_follow(r, (const int32_t *)(const void *)(step + l->places), (size_t)h->n_places));
    if (h->pad.rows > 0 && r->graphs.cap > 0) {
        NRD_TRY(nrd_run_padded(r, b, &pad, h->ahead, NULL));
    } else {
        NRD_TRY(compute(r, b, h, step + l->ranges));
    }
    NRD_TRY(ops->event_record(r->stream, r->out[buffer].done));
    return r->shared ? ops->stream_sync(r->stream) : NULL; /* where nothing runs before it is waited for */
}

nrd_error *nrd_runner_follow(nrd_runner *r, const void *step, size_t bytes)
{
    step_head h;

    if (bytes < sizeof h) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes", bytes);
    }
    memcpy(&h, step, sizeof h);
    size_t batch = nrd_batch_layout_bytes(&h.sizes);
    step_layout l = lay_out(batch, (size_t)h.n_moves, (size_t)h.n_copies, (size_t)h.n_ranges,
                            (size_t)h.sizes.n_tokens * (size_t)h.sight_words, (size_t)h.n_places,
                            (size_t)h.n_takes);
    if (l.end > bytes || batch > r->batch[0].cap_bytes) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes says that it has %zu", bytes, l.end);
    }
    return follow(r, &h, step, &l);
}
