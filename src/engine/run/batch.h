/* engine/run/batch.h - a plan packed into the arrays that the device reads.
 *
 * Purpose   One host block (pinned where that helps) and its twin on the device, filled tightly so
 *           that a step costs one upload.
 * Owner     The runner. A batch may be refilled when the step that reads it is over.
 * Units     Sequences of the view are plan entries (a beam is one of its own).
 */
#ifndef NRD_ENGINE_RUN_BATCH_H
#define NRD_ENGINE_RUN_BATCH_H

#include "engine/scheduler.h"
#include "nereid/device.h"

typedef struct nrd_batch_limits {
    int32_t max_tokens, max_entries, max_blocks; /* max_blocks: of one sequence */
    int32_t vocab;
    bool normalize_log_probs;
} nrd_batch_limits;

typedef struct nrd_batch {
    nrd_device *dev;
    nrd_batch_limits lim;
    uint8_t *host, *mem; /* the same block twice; equal when the host is the device */
    size_t cap_bytes, n_bytes;
    int32_t *banned, *banned_mem;
    int32_t cap_banned, n_banned;
    uint32_t *masks, *masks_mem; /* [cap_masks] words: one row of the vocabulary for each guided choice */
    size_t cap_masks, n_masks;
    bool shared; /* host == mem */

    /* of the current plan; device addresses */
    nrd_batch_view view;
    const int32_t *ids;
    const int32_t *row_ids; /* [n_rows] packed token of each choice */
    const nrd_sample_row *rows;
    int32_t n_rows, n_top;
} nrd_batch;

nrd_error *nrd_batch_init(nrd_batch *b, nrd_device *dev, const nrd_batch_limits *lim) NRD_MUST_USE;
void nrd_batch_fini(nrd_batch *b);
/* Packs and enqueues the upload. */
nrd_error *nrd_batch_fill(nrd_batch *b, nrd_stream *s, const nrd_plan *p) NRD_MUST_USE;

#endif
