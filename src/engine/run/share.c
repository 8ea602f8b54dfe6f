/* SPDX-License-Identifier: Apache-2.0
 * What rank 0 tells the other ranks of a step. */
#include "engine/run/step_bytes.h"
#include "engine/run/head.h"
#include "engine/run/steps.h"

#include <string.h>

enum { SHARE_ALIGN = 64 };

nrd_step_layout nrd_step_lay_out(size_t batch_bytes, size_t n_moves, size_t n_copies, size_t n_ranges, size_t n_sight, size_t n_places,
                                 size_t n_takes)
{
    nrd_step_layout l = {.batch = (sizeof(nrd_step_head) + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN};
    l.moves = l.batch + batch_bytes;
    l.copies = l.moves + n_moves * sizeof(int32_t[2]);
    l.sight = l.copies + n_copies * sizeof(int32_t[2]);
    l.places = l.sight + n_sight * sizeof(uint32_t);
    l.takes = l.places + n_places * sizeof(int32_t);
    l.ranges = l.takes + n_takes * sizeof(nrd_kv_take);
    l.end = l.ranges + n_ranges * sizeof(nrd_row_range);
    return l;
}

size_t nrd_runner_step_bytes(const nrd_runner *r, const nrd_plan *p)
{
    const size_t n_places = r->pictures ? (size_t)NRD_RUN_PLACES * (size_t)r->cfg.max_tokens : 0;
    return nrd_step_lay_out(r->batch[0].cap_bytes, (size_t)p->cap_moves, (size_t)p->cap_copies, 2 * (size_t)p->cap_entries, 0,
                            n_places, (size_t)p->cap_entries)
        .end;
}

/* In the order in which rank 0 reads them. */
static int32_t put_ranges(const nrd_runner *r, const nrd_plan *p, nrd_row_range *out)
{
    int32_t at = 0, n = 0;
    for (int32_t i = 0; i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (nrd_run_context_range(e, &first, &end)) {
            out[n++] = (nrd_row_range){at + first - e->start, end - first, false};
        }
    }
    at = 0;
    for (int32_t i = 0; nrd_run_is_staged(r) && i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t first, end;
        if (nrd_run_state_range(e, &first, &end)) {
            out[n++] = (nrd_row_range){at + first - e->start, end - first, true};
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
    const nrd_batch_sizes sizes = {v->n_tokens, v->n_seqs, b->n_rows, v->block_table_stride,
                                   v->tree_mask && b->n_sight == 0 ? v->tree_mask_words : 0, b->token_slot != NULL, b->types != NULL, v->axes != NULL,
                                   b->cross_place ? b->cross.n_seqs : 0, b->cross_place ? b->cross.block_table_stride : 0};
    const size_t bytes = nrd_batch_layout_bytes(&sizes), n_places = nrd_run_pictures_list(r, p, NULL);
    const int32_t n_takes = nrd_run_list_takes(p, NULL);
    nrd_step_layout l = nrd_step_lay_out(bytes, (size_t)p->n_moves, (size_t)p->n_copies,
                            2 * (size_t)p->n_entries, b->n_sight, n_places, (size_t)n_takes);
    if (l.end > sink->max_bytes) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a step of %zu bytes for the other ranks, at most %zu", l.end, sink->max_bytes);
    }
    NRD_TRY(sink->begin(sink->user, &mem));
    uint8_t *out = mem;
    nrd_step_head h = {
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
        .n_ranges = put_ranges(r, p, (nrd_row_range *)(void *)(out + l.ranges)),
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
