/* SPDX-License-Identifier: Apache-2.0
 * A batch beside the states of its sequences' encoders or pictures: the view that cross attention reads. */
#include "engine/run/batch_internal.h"

#include "base/limits.h"

int32_t nrd_batch_most_cross(const nrd_batch_limits *lim)
{
    const int64_t n = (int64_t)lim->max_entries * NRD_LIMIT_IMAGES;
    return !lim->pictures ? lim->max_entries : n < lim->max_tokens ? (int32_t)n : lim->max_tokens;
}

/* The picture that a prompt token sees last; of tokens before all pictures, which see none, the first one. */
static const nrd_seq_picture *last_seen(const nrd_seq_request *q, int32_t token)
{
    int32_t i = q->n_pictures - 1;
    while (i > 0 && q->pictures[i].seen > token) {
        i--;
    }
    return &q->pictures[i];
}

/* One more sequence of the view of states: the tokens from `at` on, and n_blocks of the entry's blocks from number `block` on. */
static void add_states(nrd_batch *b, const nrd_batch_layout *l, int32_t at, const nrd_plan_entry *e, int32_t block, int32_t n_blocks)
{
    const int32_t stride = b->cross.block_table_stride, i = b->cross.n_seqs++;
    int32_t *table = (int32_t *)(void *)(b->host + l->cross_table) + (size_t)i * (size_t)stride;

    ((int32_t *)(void *)(b->host + l->cross_start))[i] = at;
    ((int32_t *)(void *)(b->host + l->cross_ctx))[i] = 1;
    for (int32_t k = 0; k < stride; k++) {
        table[k] = k < n_blocks ? e->seq->sched.tables[e->beam].blocks[block + k] : -1;
    }
}

/* A token sees the first n states of the last such sequence: all of them, as one does that stands at the last one's place. */
static void see_states(nrd_batch *b, const nrd_batch_layout *l, int32_t at, int32_t n, bool seen)
{
    const int32_t i = b->cross.n_seqs - 1;
    int32_t *ctx = (int32_t *)(void *)(b->host + l->cross_ctx) + i;

    ((int32_t *)(void *)(b->host + l->cross_positions))[at] = n - 1;
    ((int32_t *)(void *)(b->host + l->cross_seq))[at] = i;
    ((int32_t *)(void *)(b->host + l->cross_place))[at] = seen ? at : -1;
    *ctx = n > *ctx ? n : *ctx;
}

/* Tokens of an entry that see pictures: those that see them from different ones on are sequences of their own. */
static void fill_seen(nrd_batch *b, const nrd_batch_layout *l, const nrd_plan_entry *e, int32_t at, int32_t n)
{
    const nrd_seq_request *q = &e->seq->req;
    const int32_t first = e->start + e->n - n, bt = b->lim.block_tokens;
    int32_t from = -1;

    for (int32_t k = 0; k < n; k++) {
        const nrd_seq_picture *x = last_seen(q, first + k);
        if (x->from != from) {
            from = x->from;
            add_states(b, l, at + k, e, from / bt, (q->n_cross - from) / bt);
        }
        see_states(b, l, at + k, x->place + x->n - from, first + k >= q->pictures[0].seen);
    }
}

/* How many states of its encoder the token at this position of the decoder sees. */
static int32_t n_seen(const nrd_seq_request *q, int32_t position)
{
    return !q->cross_seen ? q->n_encoder : q->cross_seen[position < q->n_cross_seen ? position : q->n_cross_seen - 1];
}

/* The tokens of an entry, or of padding, beside the states of its encoder or pictures. A sequence without a picture sees its own
 * first block, which changes nothing. */
static void fill_cross_of(nrd_batch *b, const nrd_batch_layout *l, int32_t at, const nrd_plan_entry *e, int32_t n)
{
    const bool has_states = e && e->seq->req.n_cross > 0;

    if (has_states && e->seq->req.n_pictures > 0) {
        fill_seen(b, l, e, at, n);
        return;
    }
    add_states(b, l, at, e, 0, has_states ? e->seq->req.n_cross / b->lim.block_tokens : e ? 1 : 0);
    for (int32_t k = 0; k < n; k++) {
        see_states(b, l, at + k, has_states ? n_seen(&e->seq->req, e->start + e->n - n - e->seq->req.n_cross + k) : 1, false);
    }
}

void nrd_batch_point_to_cross(nrd_batch *b, const nrd_batch_layout *l, int32_t stride, uint8_t *mem)
{
    b->cross = b->view;
    b->cross.tree_mask = NULL;
    b->cross.tree_mask_words = 0;
    b->cross_place = b->lim.pictures ? (const int32_t *)(const void *)(mem + l->cross_place) : NULL;
    b->cross.positions = (const int32_t *)(const void *)(mem + l->cross_positions);
    b->cross.token_seq = (const int32_t *)(const void *)(mem + l->cross_seq);
    b->cross.q_start = (const int32_t *)(const void *)(mem + l->cross_start);
    b->cross.ctx_len = (const int32_t *)(const void *)(mem + l->cross_ctx);
    b->cross.block_table = (const int32_t *)(const void *)(mem + l->cross_table);
    b->cross.block_table_stride = stride;
}

void nrd_batch_fill_cross(nrd_batch *b, const nrd_plan *p, const nrd_batch_layout *l, const nrd_batch_pad *pad, uint8_t *mem)
{
    int32_t *start = (int32_t *)(void *)(b->host + l->cross_start);
    const int32_t *ctx = (const int32_t *)(const void *)(b->host + l->cross_ctx);
    int32_t at = 0;

    nrd_batch_point_to_cross(b, l, b->lim.max_cross_blocks, mem);
    b->cross.n_seqs = 0;
    b->cross.max_ctx_len = 1;
    b->cross.single_ctx = b->cross.prompt_pairs = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const int32_t n = nrd_entry_n_decoder(&p->entries[i]);
        fill_cross_of(b, l, at, &p->entries[i], n);
        at += n;
    }
    for (int32_t i = p->n_entries; pad && i < pad->shape.rows; i++) {
        const int32_t n = nrd_batch_pad_tokens(pad, at);
        fill_cross_of(b, l, at, NULL, n);
        at += n;
    }
    start[b->cross.n_seqs] = at;
    for (int32_t i = 0; i < b->cross.n_seqs; i++) {
        b->cross.max_ctx_len = ctx[i] > b->cross.max_ctx_len ? ctx[i] : b->cross.max_ctx_len;
        b->cross.single_ctx += i < b->view.n_single ? ctx[i] : 0;
        b->cross.prompt_pairs += i < b->view.n_single ? 0 : (int64_t)(start[i + 1] - start[i]) * ctx[i];
    }
    if (pad) { /* a recorded step: any length may come */
        b->cross.max_ctx_len = b->lim.max_cross_blocks * b->lim.block_tokens;
    }
    if (!b->lim.overlap) {
        b->cross.single_ctx = b->cross.prompt_pairs = 0;
    }
}

/* Sequences of the view of states that an entry's n tokens are. */
static int32_t n_cross_of(const nrd_plan_entry *e, int32_t n)
{
    const nrd_seq_request *q = &e->seq->req;
    const int32_t end = e->start + e->n;
    int32_t n_seqs = 1;

    if (q->n_pictures > 1) {
        const nrd_seq_picture *last = last_seen(q, end - 1);
        for (const nrd_seq_picture *x = last_seen(q, end - n); x < last; x++) {
            n_seqs += x[1].from != x->from;
        }
    }
    return n_seqs;
}

int32_t nrd_batch_count_cross(const nrd_batch *b, const nrd_plan *p)
{
    int32_t n = 0;
    bool any = !b->lim.pictures && b->lim.max_cross_blocks > 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        any = any || e->seq->req.n_cross > 0;
        n += n_cross_of(e, nrd_entry_n_decoder(e));
    }
    return any ? n : 0;
}
