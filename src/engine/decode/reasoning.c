/* SPDX-License-Identifier: Apache-2.0
 * How long a text may reason. A model that was trained to reason writes its thoughts between two marks; when the budget
 * is used up the closing one is put behind what it has said (nrd_sched_append), and it goes on with its answer, as
 * "budget forcing" does (Muennighoff et al., s1: Simple test-time scaling, 2025, section 3.1). */
#include "engine/decode/decode.h"

#include <string.h>

static bool ends_with(const nrd_seq *q, const int32_t *ids, int32_t n)
{
    return n > 0 && n <= nrd_seq_n_generated(q) &&
           memcmp(q->dec.tokens + q->dec.n_known - n, ids, (size_t)n * sizeof *ids) == 0;
}

void nrd_decode_note_reasoning(nrd_seq *q)
{
    const nrd_reasoning *r = q->req.reasoning;
    if (!r) {
        return;
    }
    if (!q->dec.is_reasoning) {
        q->dec.is_reasoning = ends_with(q, r->begin, r->n_begin);
    } else if (ends_with(q, r->end, r->n_end)) {
        q->dec.is_reasoning = false;
    } else {
        q->dec.n_reasoned++;
    }
}

int32_t nrd_decode_reasoning_close(const nrd_seq *q, const int32_t **out_ids)
{
    const nrd_reasoning *r = q->req.reasoning;
    if (!r || !q->dec.is_reasoning || q->dec.n_reasoned < r->budget) {
        return 0;
    }
    *out_ids = r->close;
    return r->n_close;
}
