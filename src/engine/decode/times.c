/* SPDX-License-Identifier: Apache-2.0
 * Which times Whisper may tell next: a text begins with one; they come in pairs, the end of one segment and the beginning of the
 * next, and do not go back (Radford et al. 2022, section 4.5; transformers' WhisperTimeStampLogitsProcessor). That times are
 * told at all is weighed where logits are (nrd_sample_times). */
#include "engine/decode/decode.h"

/* The newest time; -1: none was told. */
static int32_t last_time(const int32_t *ids, int32_t n, int32_t first)
{
    while (n > 0 && ids[n - 1] < first) {
        n--;
    }
    return n > 0 ? ids[n - 1] : -1;
}

nrd_sample_times nrd_decode_times(const nrd_seq *q, const int32_t *generated, int32_t n, int32_t vocab)
{
    const int32_t first = q->req.first_time, end = q->req.end_id;
    /* The id before the first time says that no times are told. */
    nrd_sample_times t = {.first = first, .text_end = first - 1, .time_from = first, .time_end = vocab};

    if (n == 0) {
        t.text_from = first;
        t.time_end = q->req.max_first_time >= 0 && q->req.max_first_time < vocab - first ? first + q->req.max_first_time + 1 : vocab;
        return t;
    }
    const bool was_time = generated[n - 1] >= first, pair = was_time && (n < 2 || generated[n - 2] >= first);
    const int32_t last = last_time(generated, n, first);
    if (last >= 0) {
        t.time_from = was_time && !pair ? last : last + 1;
    }
    if (pair) { /* text, or the end */
        t.time_end = t.time_from;
    } else if (was_time) { /* its pair, or the end */
        t.text_from = end >= 0 && end < first ? end : first;
    }
    return t;
}
