/* SPDX-License-Identifier: Apache-2.0
 * engine/run/batch.h - a plan packed into the arrays that the device reads.
 *
 * Purpose   One host block (pinned where that helps) and its twin on the device, filled tightly so
 *           that a step costs one upload.
 * Owner     The runner. A batch may be refilled when the step that reads it is over.
 * Units     Sequences of the view are plan entries (a beam is one of its own).
 */
#ifndef NRD_ENGINE_RUN_BATCH_H
#define NRD_ENGINE_RUN_BATCH_H

#include "engine/run/graphs.h"
#include "engine/run/masks.h"
#include "engine/scheduler.h"
#include "nereid/device.h"

typedef struct nrd_batch_limits {
    int32_t max_tokens, max_entries, max_blocks; /* max_blocks: of one sequence */
    int32_t max_fill;                            /* sequences more than max_entries that fill up a step */
    int32_t max_rows;                            /* choices: of every entry, and behind drafts */
    int32_t block_tokens;
    int32_t max_cross_blocks;                    /* of one encoder's states, or a sequence's pictures'; 0: the model reads neither */
    bool pictures;                               /* it reads pictures: sequences may have none */
    int32_t vocab;
    size_t row_bytes; /* of an embedding */
    bool normalize_log_probs;
    int32_t picture_rows; /* nrd_model_spec.picture_rows */
    bool axes;    /* the view has places on axes (M-RoPE) */
    bool overlap; /* the view says how much work there is */
} nrd_batch_limits;

typedef struct nrd_batch {
    nrd_device *dev;
    nrd_batch_limits lim;
    uint8_t *host, *mem; /* the same block twice; equal when the host is the device */
    size_t cap_bytes, n_bytes;
    int32_t *banned, *banned_mem;
    int32_t cap_banned, n_banned;
    uint32_t *sight, *sight_mem; /* what tokens see in steps with pictures, the view's tree_mask; NULL: there was none yet */
    size_t cap_sight, n_sight; /* words */
    nrd_masks masks;
    bool shared; /* host == mem */

    /* of the current plan; device addresses */
    nrd_batch_view view;
    nrd_batch_view cross; /* the same tokens, in the states of their encoders or pictures, where those of one entry may be several
                           * sequences; with max_cross_blocks */
    const int32_t *cross_place; /* [n_tokens] each token's number where it sees a picture, else -1; NULL: no sequence has one */
    const int32_t *ids;
    const void *const *prompts; /* [n_tokens] rows of prompt tables or NULL; NULL: the plan has none */
    bool from_tables; /* some tokens are rows of prompt tables, which only the first rank has */
    const int32_t *types;      /* [n_tokens] each token's type; NULL: all are of type 0 */
    const int32_t *token_slot; /* [n_tokens] each token's adapter, -1: none; NULL: nobody has one */
    const int32_t *row_ids; /* [n_rows] packed token of each choice */
    const nrd_sample_row *rows, *rows_host; /* the same ones */
    int32_t n_rows, n_top;
    bool two_steps; /* the head and the choices are one operation, with the rough head */
} nrd_batch;

/* Host memory, [n_tokens]: the first of the arrays. */
static inline const int32_t *nrd_batch_host_ids(const nrd_batch *b)
{
    return (const int32_t *)(const void *)b->host;
}

/* Ids behind the vocabulary are rows of pictures, one picture behind the other; the last one of each ends it, and takes a text's weights. */
static inline bool nrd_batch_is_of_picture(const nrd_batch *b, int32_t id)
{
    const int32_t row = id - b->lim.vocab, n = b->lim.picture_rows;
    return n > 0 && row >= 0 && row % n < n - 1;
}

/* A step that is filled up with sequences that write and keep nothing, so that its shape and addresses are those of other steps
 * (a recorded graph can run it). Of those that fill up the last may have no token. */
typedef struct nrd_batch_pad {
    nrd_graph_shape shape;
    int32_t tree_words; /* of the mask of drafts that are trees; 0: none is */
    int32_t ctx;        /* declared longest context */
    int32_t stride;     /* of the block table */
    uint8_t *mem;       /* where the block goes on the device; the stream orders its users */
} nrd_batch_pad;

/* Tokens of a sequence that fills up, the first of them being the step's token number `at`. */
static inline int32_t nrd_batch_pad_tokens(const nrd_batch_pad *pad, int32_t at)
{
    const nrd_graph_shape *s = &pad->shape;
    return s->tokens - at < s->each ? s->tokens - at : s->each;
}

/* Tokens of an entry that the layers compute: those but the places of an encoder's states. */
static inline int32_t nrd_entry_n_decoder(const nrd_plan_entry *e)
{
    const int32_t left = e->seq->req.n_cross - e->start;
    return e->n - (left > 0 ? left : 0);
}

/* Whether the step must run the entry's encoder first. */
static inline bool nrd_entry_has_encoder(const nrd_plan_entry *e)
{
    return e->start < e->seq->req.n_cross;
}

/* Whether an entry computes prompt tokens of a sequence with a prompt table. */
bool nrd_batch_has_prompts(const nrd_plan *p);

/* Words of a row of the mask of a plan's token trees; 0: it has none. */
int32_t nrd_batch_tree_words(const nrd_plan *p);

nrd_error *nrd_batch_init(nrd_batch *b, nrd_device *dev, const nrd_batch_limits *lim) NRD_MUST_USE;
void nrd_batch_fini(nrd_batch *b);
/* Packs and enqueues the upload. pad: NULL or the shape of a step that has a choice behind every token, or none at all (of no
 * entries: a step of nothing but padding); not where host and device memory are one.
 * Guide states without a mask go to the worker; then, and only then, masks.pending is set: before the
 * choices are made, and before anybody uses those guides, nrd_masks_finish must have been called. */
nrd_error *nrd_batch_fill(nrd_batch *b, nrd_stream *s, const nrd_plan *p, const nrd_batch_pad *pad,
                          nrd_mask_worker *worker) NRD_MUST_USE;
/* Makes the batch one of so many tokens, sequences and choices without filling it: its arrays, of which
 * nrd_batch_layout_bytes are at `host`, are somebody else's (another rank packed them). The caller fills the
 * numbers of the view and enqueues the upload to `mem`. */
typedef struct nrd_batch_sizes {
    int32_t n_tokens, n_entries, n_rows, stride;
    int32_t tree_words; /* of a row of the token trees' mask; 0: the step has no trees */
    bool adapters; /* some token has one */
    bool types;    /* some token is not of type 0 */
    bool axes;     /* nrd_batch_limits.axes */
    int32_t n_cross, cross_stride; /* sequences of `cross`, and of its table; 0: nobody reads states */
} nrd_batch_sizes;
size_t nrd_batch_layout_bytes(const nrd_batch_sizes *n);
void nrd_batch_lay_out(nrd_batch *b, const nrd_batch_sizes *n, uint8_t *mem);
/* The mask of such a step with pictures: [n_tokens, words], copied and uploaded. words 0: there is none. */
nrd_error *nrd_batch_take_sight(nrd_batch *b, nrd_stream *s, const uint32_t *mask, int32_t words) NRD_MUST_USE;

#endif
