/* SPDX-License-Identifier: Apache-2.0
 * The mask of steps with pictures in prompts: what each token sees, where a picture's tokens see the whole picture. */
#include "engine/run/batch_internal.h"

#include <string.h>

void nrd_batch_free_sight(nrd_batch *b)
{
    b->dev->ops->free(b->dev, NRD_MEM_HOST, b->sight);
    if (!b->shared) {
        b->dev->ops->free(b->dev, NRD_MEM_DEVICE, b->sight_mem);
    }
    b->sight = b->sight_mem = NULL;
    b->cap_sight = 0;
}

static nrd_error *alloc_sight(nrd_batch *b, size_t words)
{
    const nrd_device_ops *ops = b->dev->ops;
    void *p = NULL;

    nrd_batch_free_sight(b);
    NRD_TRY(ops->alloc(b->dev, &p, NRD_MEM_HOST, words * sizeof *b->sight, "batch"));
    b->sight = b->sight_mem = p;
    if (!b->shared) {
        b->sight_mem = NULL;
        NRD_TRY(ops->alloc(b->dev, &p, NRD_MEM_DEVICE, words * sizeof *b->sight, "batch"));
        b->sight_mem = p;
    }
    b->cap_sight = words;
    return NULL;
}

/* Words of a row of the mask that steps with pictures in prompts have; 0: none is needed. */
static int32_t sight_words(const nrd_plan *p)
{
    int32_t longest = 0;
    bool any = false;
    for (int32_t i = 0; p->n_context_tokens > 0 && i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        any = any || (e->seq->req.picture_rows > 0 && e->start < e->seq->req.n_prompt);
        longest = e->n > longest ? e->n : longest;
    }
    return any ? (longest + 31) / 32 : 0;
}

/* The end of the picture that token k of the entry, a row, is of: each has `rows`, or its rows stand together. */
static int32_t end_of_picture(const nrd_batch *b, const nrd_plan_entry *e, int32_t k)
{
    const int32_t rows = e->seq->req.picture_rows, *tokens = e->seq->dec.tokens + e->start;
    const int32_t n = e->seq->req.n_prompt - e->start < e->n ? e->seq->req.n_prompt - e->start : e->n;
    int32_t end = k + 1;

    if (rows != NRD_PICTURE_ROWS_VARY) {
        return k + rows - (tokens[k] - b->lim.vocab) % rows;
    }
    while (end < n && tokens[end] >= b->lim.vocab) {
        end++;
    }
    return end;
}

/* Each token sees those before it; one of a picture the rest of the picture as well, or one of such a prompt the rest of that. */
static void fill_sight(const nrd_batch *b, const nrd_plan *p, int32_t words)
{
    uint32_t *row = b->sight;

    memset(row, 0, b->n_sight * sizeof *row);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t picture = 0; /* the end of the last one */
        for (int32_t k = 0; k < e->n; k++, row += words) {
            const bool is_prompt = e->seq->req.picture_rows > 0 && e->start + k < e->seq->req.n_prompt;
            const bool is_row = is_prompt && e->seq->dec.tokens[e->start + k] >= b->lim.vocab;
            picture = is_row && k >= picture ? end_of_picture(b, e, k) : picture;
            const bool sees_prompt = is_prompt && e->seq->req.picture_rows == NRD_PICTURE_ROWS_PROMPT;
            int32_t end = sees_prompt ? e->seq->req.n_prompt - e->start : is_row ? picture : k + 1;
            end = end < e->n ? end : e->n;
            for (int32_t j = 0; j < end; j += 32) {
                row[j / 32] = end - j >= 32 ? UINT32_MAX : (1u << (end - j)) - 1;
            }
        }
    }
}

/* Room for the view's mask, of a step without trees. */
static nrd_error *size_sight(nrd_batch *b, nrd_stream *s, int32_t words)
{
    b->n_sight = (size_t)b->view.n_tokens * (size_t)words;
    if (b->n_sight > b->cap_sight) {
        NRD_TRY(b->dev->ops->stream_sync(s)); /* the step before may still read the old array */
        NRD_TRY(alloc_sight(b, b->n_sight));
    }
    return NULL;
}

static nrd_error *upload_sight(nrd_batch *b, nrd_stream *s, int32_t words)
{
    b->view.tree_mask = b->sight_mem;
    b->view.tree_mask_words = words;
    return b->shared ? NULL : b->dev->ops->copy(s, b->sight_mem, b->sight, b->n_sight * sizeof *b->sight);
}

nrd_error *nrd_batch_make_sight(nrd_batch *b, nrd_stream *s, const nrd_plan *p)
{
    const int32_t words = sight_words(p);

    NRD_TRY(size_sight(b, s, words));
    if (words == 0) {
        return NULL;
    }
    NRD_ASSERT(!p->has_trees, "steps with trees have no prompts");
    fill_sight(b, p, words);
    return upload_sight(b, s, words);
}

nrd_error *nrd_batch_take_sight(nrd_batch *b, nrd_stream *s, const uint32_t *mask, int32_t words)
{
    NRD_TRY(size_sight(b, s, words));
    if (words == 0) {
        return NULL;
    }
    memcpy(b->sight, mask, b->n_sight * sizeof *mask);
    return upload_sight(b, s, words);
}
