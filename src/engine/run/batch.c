/* SPDX-License-Identifier: Apache-2.0
 * Fills the arrays of one step from its plan: ids, positions, block tables, sampling rows; places come
 * from the plan's counts, so that everything goes to the device in one copy. */
#include "engine/run/batch_internal.h"

#include "base/mem.h"
#include "engine/decode/beam.h"
#include "engine/decode/decode.h"

#include <string.h>

enum { ALIGN = 64, BANNED_START = 4096 };
/* Steps with trees have no prompts: the longest entry is a tree, or text that a guide asked for. */
enum { MAX_TREE_WORDS = (NRD_MAX_TREE + 1 > NRD_MAX_JUMP + 1 ? NRD_MAX_TREE + 1 : NRD_MAX_JUMP + 1) / 32 + 1 };

static size_t take(size_t *at, size_t n, size_t elem)
{
    size_t start = *at;
    *at = (start + n * elem + ALIGN - 1) / ALIGN * ALIGN;
    return start;
}

/* n_prompts: n_tokens with prompt tables, else 0; n_adapters with adapters; n_types with token types; n_axes with axes.
 * n_cross: sequences of the view of states, of whose table cross_stride is; 0: there are none. */
static nrd_batch_layout lay_out(size_t n_tokens, size_t n_entries, size_t n_rows, size_t stride, size_t n_cross, size_t cross_stride,
                                size_t n_prompts, size_t n_adapters, size_t n_types, size_t n_axes, size_t tree_words)
{
    nrd_batch_layout l;
    size_t at = 0;
    l.ids = take(&at, n_tokens, sizeof(int32_t));
    l.positions = take(&at, n_tokens, sizeof(int32_t));
    l.axes = take(&at, n_axes, NRD_ROPE_AXES * sizeof(int32_t));
    l.token_seq = take(&at, n_tokens, sizeof(int32_t));
    l.token_slot = take(&at, n_adapters, sizeof(int32_t));
    l.types = take(&at, n_types, sizeof(int32_t));
    l.tree = take(&at, n_tokens * tree_words, sizeof(uint32_t));
    l.q_start = take(&at, n_entries + 1, sizeof(int32_t));
    l.ctx_len = take(&at, n_entries, sizeof(int32_t));
    l.state_slot = take(&at, n_entries, sizeof(int32_t));
    l.row_ids = take(&at, n_rows, sizeof(int32_t));
    l.rows = take(&at, n_rows, sizeof(nrd_sample_row));
    l.table = take(&at, n_entries * stride, sizeof(int32_t));
    l.cross_positions = take(&at, n_cross ? n_tokens : 0, sizeof(int32_t));
    l.cross_seq = take(&at, n_cross ? n_tokens : 0, sizeof(int32_t));
    l.cross_start = take(&at, n_cross ? n_cross + 1 : 0, sizeof(int32_t));
    l.cross_ctx = take(&at, n_cross, sizeof(int32_t));
    l.cross_table = take(&at, n_cross * cross_stride, sizeof(int32_t));
    l.cross_place = take(&at, n_cross ? n_tokens : 0, sizeof(int32_t));
    l.prompts = take(&at, n_prompts, sizeof(void *)); /* last: other ranks do not get it */
    l.end = at;
    return l;
}

static nrd_error *alloc_banned(nrd_batch *b, int32_t cap)
{
    const nrd_device_ops *ops = b->dev->ops;
    size_t bytes = (size_t)cap * sizeof(int32_t);
    ops->free(b->dev, NRD_MEM_HOST, b->banned);
    if (!b->shared) {
        ops->free(b->dev, NRD_MEM_DEVICE, b->banned_mem);
    }
    b->banned = b->banned_mem = NULL;
    b->cap_banned = 0;
    void *p = NULL;
    NRD_TRY(ops->alloc(b->dev, &p, NRD_MEM_HOST, bytes, "batch"));
    b->banned = p;
    if (!b->shared) {
        NRD_TRY(ops->alloc(b->dev, &p, NRD_MEM_DEVICE, bytes, "batch"));
    }
    b->banned_mem = p;
    b->cap_banned = cap;
    return NULL;
}

nrd_error *nrd_batch_init(nrd_batch *b, nrd_device *dev, const nrd_batch_limits *lim)
{
    nrd_device_info info;
    void *p = NULL;

    *b = (nrd_batch){.dev = dev, .lim = *lim};
    dev->ops->get_info(dev, &info);
    b->shared = info.host_is_device;
    b->cap_bytes = lay_out((size_t)lim->max_tokens, (size_t)lim->max_entries + (size_t)lim->max_fill, (size_t)lim->max_rows,
                           (size_t)lim->max_blocks, lim->max_cross_blocks ? (size_t)nrd_batch_most_cross(lim) + (size_t)lim->max_fill : 0,
                           (size_t)lim->max_cross_blocks, (size_t)lim->max_tokens,
                           (size_t)lim->max_tokens, (size_t)lim->max_tokens, lim->axes ? (size_t)lim->max_tokens : 0,
                           lim->max_rows > lim->max_entries ? MAX_TREE_WORDS : 0)
                       .end;
    NRD_TRY(dev->ops->alloc(dev, &p, NRD_MEM_HOST, b->cap_bytes, "batch"));
    b->host = p;
    if (!b->shared) {
        NRD_TRY(dev->ops->alloc(dev, &p, NRD_MEM_DEVICE, b->cap_bytes, "batch"));
    }
    b->mem = p;
    NRD_TRY(nrd_masks_init(&b->masks, dev, b->shared, lim->vocab, lim->max_rows));
    return alloc_banned(b, BANNED_START);
}

void nrd_batch_fini(nrd_batch *b)
{
    if (!b->dev) {
        return;
    }
    nrd_masks_fini(&b->masks);
    nrd_batch_free_sight(b);
    b->dev->ops->free(b->dev, NRD_MEM_HOST, b->host);
    b->dev->ops->free(b->dev, NRD_MEM_HOST, b->banned);
    if (!b->shared) {
        b->dev->ops->free(b->dev, NRD_MEM_DEVICE, b->mem);
        b->dev->ops->free(b->dev, NRD_MEM_DEVICE, b->banned_mem);
    }
    *b = (nrd_batch){0};
}

/* Tokens [e->start, e->start + e->n) of the entry's sequence or beam. */
static const int32_t *entry_tokens(const nrd_plan_entry *e)
{
    const nrd_seq *q = e->seq;
    if (q->req.width > 1 && e->start >= q->req.n_prompt) {
        int32_t n;
        return nrd_beams_tokens(q->dec.beams, e->beam, &n) + e->start;
    }
    return q->dec.tokens + e->start;
}

/* The choice behind token i of the entry's draft; 0: behind the last known one. `depth` tokens of the draft lie before it:
 * behind the known ones. */
static void fill_choice(nrd_batch *b, const nrd_plan_entry *e, int32_t i, nrd_sample_row *row)
{
    const nrd_seq *q = e->seq;
    const int32_t depth = e->tree && i > 0 ? e->tree->depth[i - 1] : i;
    if (e->tree && i > 0) {
        nrd_tree_path(e->tree, i - 1, q->dec.tokens + q->dec.n_known);
    }
    nrd_decode_row(q, e->slot, e->n_generated + depth, b->lim.normalize_log_probs, row);
    if (e->n_draft > 0) {
        row->flags |= NRD_SAMPLE_NO_UPDATE; /* which of them is the slot's, the host will know */
    }
    if (i > 0) {
        row->slot = b->lim.max_entries + e->first_draft + i - 1; /* of the counts with the draft's tokens */
        row->top_p = q->dec.greedy ? 0 : nrd_decode_top_p_behind(q, q->dec.tokens + q->dec.n_known, depth);
    }
    row->bias = q->run.bias.values;
    row->bias_ids = q->run.bias.ids;
    row->n_bias = q->run.bias.n;
    const int32_t *tokens = q->dec.tokens;
    int32_t n = q->dec.n_known + depth;
    if (q->req.width > 1 && e->start >= q->req.n_prompt) {
        tokens = nrd_beams_tokens(q->dec.beams, e->beam, &n);
    }
    if (nrd_decode_max_banned(q) > 0) {
        row->banned_start = b->n_banned;
        row->n_banned = nrd_decode_banned(q, tokens + q->req.n_cross, n - q->req.n_cross, b->lim.vocab, b->banned + b->n_banned);
        b->n_banned += row->n_banned;
    }
    if (q->req.first_time > 0) {
        row->times = nrd_decode_times(q, tokens + q->req.n_prompt, n - q->req.n_prompt, b->lim.vocab);
    }
    if (q->dec.guide) {
        row->mask = nrd_masks_add(&b->masks, q, e->row + i, depth);
    }
    int32_t n_top = q->req.width > 1 ? nrd_beams_n_candidates(q->req.width) : q->req.n_top;
    n_top = n_top < b->lim.vocab ? n_top : b->lim.vocab;
    b->n_top = n_top > b->n_top ? n_top : b->n_top;
}

bool nrd_batch_has_prompts(const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->seq->run.prompt_table && e->start < e->seq->req.n_prompt) {
            return true;
        }
    }
    return false;
}

/* Where the embedding of each token is that is a row of a prompt table. */
static void fill_prompts(const nrd_batch *b, const nrd_plan *p, const void **prompts)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const nrd_seq_run *run = &e->seq->run;
        for (int32_t k = e->n - nrd_entry_n_decoder(e); k < e->n; k++) {
            const bool is_prompt = run->prompt_table && e->start + k < e->seq->req.n_prompt;
            int32_t row = is_prompt ? e->seq->dec.tokens[e->start + k] - b->lim.vocab : -1;
            *prompts++ = row >= 0 && row < run->n_prompt_rows
                             ? run->prompt_table + (size_t)row * b->lim.row_bytes
                             : NULL;
        }
    }
}

/* Which adapter each of the n tokens has, whose ids are there: those behind the plan's are padding. Adapters are of a text's weights. */
static void fill_adapters(nrd_batch *b, const nrd_plan *p, const nrd_batch_layout *l, int32_t n)
{
    int32_t *slots = (int32_t *)(void *)(b->host + l->token_slot), at = 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        for (int32_t k = 0; k < nrd_entry_n_decoder(&p->entries[i]); k++) {
            slots[at] = nrd_batch_is_of_picture(b, nrd_batch_host_ids(b)[at]) ? -1 : p->entries[i].seq->run.adapter - 1;
            at++;
        }
    }
    for (; at < n; at++) {
        slots[at] = -1;
    }
}

static bool any_adapter(const nrd_plan *p)
{
    bool any = false;
    for (int32_t i = 0; i < p->n_entries && !any; i++) {
        any = p->entries[i].seq->run.adapter > 0;
    }
    return any;
}

/* An entry's ids and positions: those of a tree's nodes are by their depth. */
static void fill_tokens(const nrd_plan_entry *e, int32_t *ids, int32_t *positions)
{
    const int32_t n_new = nrd_entry_n_decoder(e), n_known = e->tree ? n_new - e->n_draft : n_new, skip = e->n - n_new;
    if (e->from_slot) {
        ids[0] = -1 - e->slot;
    } else {
        memcpy(ids, entry_tokens(e) + skip, (size_t)n_known * sizeof *ids);
    }
    for (int32_t k = 0; k < n_known; k++) {
        positions[k] = e->start + skip - e->seq->req.n_cross + k;
    }
    for (int32_t k = n_known; k < n_new; k++) {
        ids[k] = e->tree->ids[k - n_known];
        positions[k] = e->start + n_known - 1 + e->tree->depth[k - n_known];
    }
}

/* Where an entry's n tokens are on each axis: a prompt with pictures says it, and what follows stands at one place on all. */
static void fill_axes(const nrd_plan_entry *e, const int32_t *positions, int32_t n, int32_t *axes)
{
    const nrd_seq_run *run = &e->seq->run;
    for (int32_t k = 0; k < n; k++, axes += NRD_ROPE_AXES) {
        const bool listed = run->axes && positions[k] < e->seq->req.n_prompt;
        for (int32_t a = 0; a < NRD_ROPE_AXES; a++) {
            axes[a] = listed ? run->axes[(size_t)positions[k] * NRD_ROPE_AXES + (size_t)a] : positions[k] + run->axes_shift;
        }
    }
}

/* What each of an entry's tokens sees of them. */
static void fill_tree(const nrd_plan_entry *e, int32_t words, uint32_t *mask)
{
    const int32_t n_known = e->tree ? e->n - e->n_draft : e->n;
    memset(mask, 0, (size_t)e->n * (size_t)words * sizeof *mask);
    for (int32_t k = 0; k < e->n; k++, mask += words) {
        nrd_tree_see(e->tree, k < n_known ? -1 : k - n_known, k < n_known ? k + 1 : n_known, mask);
    }
}

int32_t nrd_batch_tree_words(const nrd_plan *p)
{
    int32_t longest = 0;
    for (int32_t i = 0; p->has_trees && i < p->n_entries; i++) {
        longest = p->entries[i].n > longest ? p->entries[i].n : longest;
    }
    return (longest + 31) / 32;
}

static bool any_second(const nrd_plan *p)
{
    bool any = false;
    for (int32_t i = 0; p->n_context_tokens > 0 && i < p->n_entries && !any; i++) { /* of prompts only */
        any = p->entries[i].seq->req.second_from > 0;
    }
    return any;
}

/* Type 0, and 1 in the second text of a pair; padding is of type 0. */
static void fill_types(const nrd_plan *p, int32_t *types, int32_t n)
{
    int32_t at = 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const int32_t from = e->seq->req.second_from;
        for (int32_t k = 0; k < e->n; k++) {
            types[at++] = from > 0 && e->start + k >= from;
        }
    }
    for (; at < n; at++) {
        types[at] = 0;
    }
}

/* The arrays of a batch where the host fills them. */
typedef struct host_arrays {
    int32_t *ids, *positions, *token_seq, *q_start, *ctx_len, *state_slot, *row_ids, *table;
    nrd_sample_row *rows;
} host_arrays;

static int32_t *numbers_at(const nrd_batch *b, size_t offset)
{
    return (int32_t *)(void *)(b->host + offset);
}

static host_arrays arrays_of(const nrd_batch *b, const nrd_batch_layout *l)
{
    return (host_arrays){
        .ids = numbers_at(b, l->ids),
        .positions = numbers_at(b, l->positions),
        .token_seq = numbers_at(b, l->token_seq),
        .q_start = numbers_at(b, l->q_start),
        .ctx_len = numbers_at(b, l->ctx_len),
        .state_slot = numbers_at(b, l->state_slot),
        .row_ids = numbers_at(b, l->row_ids),
        .table = numbers_at(b, l->table),
        .rows = (nrd_sample_row *)(void *)(b->host + l->rows),
    };
}

static void fill_entries(nrd_batch *b, const nrd_plan *p, const nrd_batch_layout *l, int32_t stride)
{
    const host_arrays h = arrays_of(b, l);
    int64_t single_ctx = 0, prompt_pairs = 0;
    int32_t at = 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const nrd_kv_table *t = &e->seq->sched.tables[e->beam];
        const int32_t n_cross = e->seq->req.n_cross, n_new = nrd_entry_n_decoder(e), start = e->start + e->n - n_new - n_cross;
        h.q_start[i] = at;
        h.ctx_len[i] = start + n_new;
        h.state_slot[i] = e->slot;
        fill_tokens(e, h.ids + at, h.positions + at);
        if (b->lim.axes) {
            fill_axes(e, h.positions + at, n_new, (int32_t *)(void *)(b->host + l->axes) + (size_t)at * NRD_ROPE_AXES);
        }
        for (int32_t k = 0; k < n_new; k++) {
            h.token_seq[at + k] = i;
        }
        if (p->has_trees) {
            const int32_t words = b->view.tree_mask_words;
            fill_tree(e, words, (uint32_t *)(void *)(b->host + l->tree) + (size_t)at * (size_t)words);
        }
        const int32_t skip = n_cross / b->lim.block_tokens;
        int32_t n = t->n_blocks - skip < stride ? t->n_blocks - skip : stride;
        memcpy(h.table + (size_t)i * (size_t)stride, t->blocks + skip, (size_t)n * sizeof *h.table);
        for (int32_t k = n; k < stride; k++) {
            h.table[(size_t)i * (size_t)stride + (size_t)k] = -1;
        }
        at += n_new;
        if (n_new == 1 && b->view.n_single == i) {
            b->view.n_single = i + 1;
            single_ctx += h.ctx_len[i];
        } else {
            prompt_pairs += (int64_t)n_new * start + (int64_t)n_new * (n_new + 1) / 2;
        }
        if (n_new > b->view.max_q_len) {
            b->view.max_q_len = n_new;
        }
        if (h.ctx_len[i] > b->view.max_ctx_len) {
            b->view.max_ctx_len = h.ctx_len[i];
        }
        if (e->row >= 0) {
            for (int32_t k = 0; k <= e->n_draft; k++) {
                h.row_ids[e->row + k] = at - 1 - e->n_draft + k;
                fill_choice(b, e, k, &h.rows[e->row + k]);
            }
        }
    }
    h.q_start[p->n_entries] = at;
    if (b->lim.overlap) {
        b->view.single_ctx = single_ctx;
        b->view.prompt_pairs = prompt_pairs;
    }
}

/* Sequences without memory, from `first` on, their tokens from `at` on: nothing is written for a dropped block, and choices
 * are not remembered. */
static void fill_padding(nrd_batch *b, int32_t first, int32_t at, const nrd_batch_layout *l, const nrd_batch_pad *pad)
{
    const host_arrays h = arrays_of(b, l);
    uint32_t *tree = (uint32_t *)(void *)(b->host + l->tree);

    memset(tree + (size_t)at * (size_t)pad->tree_words, 0,
           (size_t)(pad->shape.tokens - at) * (size_t)pad->tree_words * sizeof *tree);
    for (int32_t i = first; i < pad->shape.rows; i++) {
        const int32_t n = nrd_batch_pad_tokens(pad, at);
        h.q_start[i] = at;
        h.ctx_len[i] = n;
        h.state_slot[i] = -1;
        for (int32_t k = 0; k < pad->stride; k++) {
            h.table[(size_t)i * (size_t)pad->stride + (size_t)k] = -1;
        }
        for (int32_t k = 0; k < n; k++, at++) {
            h.ids[at] = 0;
            h.positions[at] = k;
            for (int32_t a = 0; b->lim.axes && a < NRD_ROPE_AXES; a++) {
                ((int32_t *)(void *)(b->host + l->axes))[at * NRD_ROPE_AXES + a] = 0;
            }
            h.token_seq[at] = i;
            if (b->n_rows > 0) {
                h.row_ids[at] = at;
                h.rows[at] =
                    (nrd_sample_row){.top_k = 1, .repetition_penalty = 1, .flags = NRD_SAMPLE_NO_UPDATE, .end_id = -1};
            }
        }
    }
    h.q_start[pad->shape.rows] = at;
    NRD_ASSERT(at == pad->shape.tokens, "sequences that fill up have room for all tokens that do");
}

/* Room for the forbidden tokens of this plan. */
static nrd_error *make_room(nrd_batch *b, nrd_stream *s, const nrd_plan *p)
{
    int64_t need = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].row >= 0) {
            need += (int64_t)nrd_decode_max_banned(p->entries[i].seq) * (1 + p->entries[i].n_draft);
        }
    }
    NRD_TRY(nrd_masks_reserve(&b->masks, s, p));
    if (need <= b->cap_banned) {
        return NULL;
    }
    if (need > INT32_MAX / 8) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "too many forbidden tokens in one step (%lld)",
                          (long long)need);
    }
    NRD_TRY(b->dev->ops->stream_sync(s)); /* the step before may still read the old array */
    return alloc_banned(b, (int32_t)need * 2);
}

/* An empty batch of these sizes, with its arrays at `mem` on the device. */
static void point_to(nrd_batch *b, const nrd_batch_layout *l, int32_t n_tokens, int32_t n_entries, int32_t n_rows,
                     int32_t stride, int32_t tree_words, uint8_t *mem)
{
    NRD_ASSERT(l->end <= b->cap_bytes, "plans stay within the limits");
    b->n_bytes = l->end;
    b->n_banned = 0;
    b->n_top = 0;
    b->two_steps = false;
    b->n_rows = n_rows;
    b->prompts = NULL;
    b->from_tables = false;
    b->cross_place = NULL;
    b->token_slot = b->types = NULL;
    b->ids = (const int32_t *)(const void *)(mem + l->ids);
    b->row_ids = (const int32_t *)(const void *)(mem + l->row_ids);
    b->rows = (const nrd_sample_row *)(const void *)(mem + l->rows);
    b->rows_host = (const nrd_sample_row *)(const void *)(b->host + l->rows);
    b->view = (nrd_batch_view){
        .n_tokens = n_tokens,
        .n_seqs = n_entries,
        .positions = (const int32_t *)(const void *)(mem + l->positions),
        .axes = b->lim.axes ? (const int32_t *)(const void *)(mem + l->axes) : NULL,
        .token_seq = (const int32_t *)(const void *)(mem + l->token_seq),
        .q_start = (const int32_t *)(const void *)(mem + l->q_start),
        .ctx_len = (const int32_t *)(const void *)(mem + l->ctx_len),
        .state_slot = (const int32_t *)(const void *)(mem + l->state_slot),
        .block_table = (const int32_t *)(const void *)(mem + l->table),
        .block_table_stride = stride,
        .tree_mask = tree_words > 0 ? (const uint32_t *)(const void *)(mem + l->tree) : NULL,
        .tree_mask_words = tree_words,
    };
}

static nrd_batch_layout lay_out_shared(const nrd_batch_sizes *n)
{
    return lay_out((size_t)n->n_tokens, (size_t)n->n_entries, (size_t)n->n_rows, (size_t)n->stride, (size_t)n->n_cross,
                   (size_t)n->cross_stride, 0,
                   n->adapters ? (size_t)n->n_tokens : 0, n->types ? (size_t)n->n_tokens : 0,
                   n->axes ? (size_t)n->n_tokens : 0, (size_t)n->tree_words);
}

size_t nrd_batch_layout_bytes(const nrd_batch_sizes *n)
{
    return lay_out_shared(n).end;
}

void nrd_batch_lay_out(nrd_batch *b, const nrd_batch_sizes *n, uint8_t *mem)
{
    nrd_batch_layout l = lay_out_shared(n);
    point_to(b, &l, n->n_tokens, n->n_entries, n->n_rows, n->stride, n->tree_words, mem);
    b->token_slot = n->adapters ? (const int32_t *)(const void *)(mem + l.token_slot) : NULL;
    b->types = n->types ? (const int32_t *)(const void *)(mem + l.types) : NULL;
    if (n->n_cross > 0) {
        nrd_batch_point_to_cross(b, &l, n->cross_stride, mem);
        b->cross.n_seqs = n->n_cross;
    }
}

nrd_error *nrd_batch_fill(nrd_batch *b, nrd_stream *s, const nrd_plan *p, const nrd_batch_pad *pad,
                          nrd_mask_worker *worker)
{
    int32_t stride = 1, n_tokens = 0, n_real = 0, n_entries = p->n_entries, n_rows = p->n_rows;
    int32_t n_cross = nrd_batch_count_cross(b, p);
    uint8_t *mem = b->mem;
    NRD_TRY(make_room(b, s, p));
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t n = e->seq->sched.tables[e->beam].n_blocks - e->seq->req.n_cross / b->lim.block_tokens;
        stride = n > stride ? n : stride;
        n_tokens += nrd_entry_n_decoder(e);
    }
    if (pad) {
        NRD_ASSERT(!b->shared && (n_rows == n_tokens || n_rows == 0) && n_entries <= pad->shape.rows && n_tokens <= pad->shape.tokens,
                   "padded steps have a choice behind every token, or none");
        n_real = n_tokens;
        n_entries = pad->shape.rows;
        /* also where no sequence is there yet: all steps of a model with an encoder read its states */
        n_cross = b->lim.max_cross_blocks > 0 && !b->lim.pictures ? pad->shape.rows : 0;
        n_tokens = pad->shape.tokens;
        n_rows = n_rows > 0 || n_real == 0 ? n_tokens : 0;
        stride = pad->stride;
        mem = pad->mem;
    }
    const int32_t words = nrd_batch_tree_words(p);
    const bool has_prompts = nrd_batch_has_prompts(p), adapters = any_adapter(p), types = any_second(p);
    nrd_batch_layout l = lay_out((size_t)n_tokens, (size_t)n_entries, (size_t)n_rows, (size_t)stride, (size_t)n_cross, (size_t)b->lim.max_cross_blocks,
                       has_prompts ? (size_t)n_tokens : 0, adapters ? (size_t)n_tokens : 0,
                       types ? (size_t)n_tokens : 0, b->lim.axes ? (size_t)n_tokens : 0, (size_t)words);
    point_to(b, &l, n_tokens, n_entries, n_rows, stride, words, mem);
    b->from_tables = has_prompts;
    b->prompts = has_prompts ? (const void *const *)(const void *)(mem + l.prompts) : NULL;
    b->token_slot = adapters ? (const int32_t *)(const void *)(mem + l.token_slot) : NULL;
    b->types = types ? (const int32_t *)(const void *)(mem + l.types) : NULL;
    fill_entries(b, p, &l, stride);
    if (has_prompts) {
        NRD_ASSERT(!pad, "steps with prompt tables are not padded");
        fill_prompts(b, p, (const void **)(void *)(b->host + l.prompts));
    }
    if (adapters) {
        fill_adapters(b, p, &l, n_tokens);
    }
    if (types) {
        fill_types(p, (int32_t *)(void *)(b->host + l.types), n_tokens);
    }
    if (pad) {
        NRD_ASSERT(b->view.max_q_len <= pad->shape.each && b->view.max_ctx_len <= pad->ctx, "as declared");
        fill_padding(b, p->n_entries, n_real, &l, pad);
        b->view.max_q_len = pad->shape.each;
        b->view.max_ctx_len = pad->ctx;
        b->view.n_single = pad->shape.each == 1 ? pad->shape.rows : 0;
    }
    if (n_cross > 0) {
        nrd_batch_fill_cross(b, p, &l, pad, mem);
    }
    NRD_TRY(nrd_batch_make_sight(b, s, p));

    if (!b->shared) {
        NRD_TRY(b->dev->ops->copy(s, mem, b->host, b->n_bytes));
        if (b->n_banned > 0) {
            NRD_TRY(b->dev->ops->copy(s, b->banned_mem, b->banned,
                                      (size_t)b->n_banned * sizeof *b->banned));
        }
    }
    return nrd_masks_begin(&b->masks, s, worker);
}
