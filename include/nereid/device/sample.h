/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/sample.h - the choice of tokens.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_SAMPLE_H
#define NEREID_DEVICE_SAMPLE_H

#include "nereid/device/core.h"

/* Choice of tokens. One row = one sampled position. Array in device memory. */
enum {
    NRD_SAMPLE_LOGPROB = 1u,    /* fill out_logprob */
    NRD_SAMPLE_COUNTS = 2u,     /* penalties apply: read and update this slot's row of counts */
    NRD_SAMPLE_NORMALIZE = 4u,  /* out_logprob_norm: relative to the candidate set */
    NRD_SAMPLE_NO_UPDATE = 8u,  /* do not write slot_tokens (scoring) */
    NRD_SAMPLE_UNMASKED = 16u,  /* log probabilities are relative to all logits as they came: what may not be chosen has its share */
    NRD_SAMPLE_TELLS = 32u,     /* a row none of whose logits is a number above minus infinity as it comes (NaN) gets the id
                                 * NRD_SAMPLE_NO_NUMBERS; the slot's token is 0 then */
};
enum { NRD_SAMPLE_NO_NUMBERS = -1 };
/* Tokens that tell times (Whisper), ids from `first` on. Of the others those of [text_from, text_end) may be chosen, of these those of
 * [time_from, time_end); and none of the others where all times together are more probable than the best of the others. */
typedef struct nrd_sample_times {
    int32_t first;              /* 0: no rule */
    int32_t text_from, text_end;
    int32_t time_from, time_end;
} nrd_sample_times;

typedef struct nrd_sample_row {
    int32_t slot;               /* index into slot_tokens and counts */
    int32_t top_k;              /* <= 0: all; 1: greedy */
    float top_p;                /* <= 0 or >= 1: all */
    float min_p;                /* <= 0: off */
    float temperature;          /* <= 0: greedy */
    float repetition_penalty;   /* 1: off. logit > 0 ? /p : *p for seen tokens */
    float presence_penalty;     /* 0: off */
    float frequency_penalty;    /* 0: off */
    uint64_t seed;
    uint64_t draw;              /* counter of draws of this request: same (seed, draw), same number */
    uint32_t flags;
    int32_t banned_start, n_banned; /* into banned_ids */
    int32_t n_suppress_end;     /* 1: end_id may not be chosen (min_length) */
    int32_t end_id;             /* -1: none */
    const float *bias;          /* device memory or NULL; [vocab], or [n_bias] with bias_ids */
    const int32_t *bias_ids;    /* [n_bias] rising ids, device memory; NULL: every token has a bias */
    int32_t n_bias;
    const uint32_t *mask;       /* [(vocab+31)/32] bit set = allowed, device memory, or NULL */
    nrd_sample_times times;
} nrd_sample_row;

/* Order: bias, penalties, min length, banned, mask, times, temperature, top-k, top-p, min-p, draw.
 * Uniform draw: nrd_sample_uniform(seed, draw), the same on every device. Ties: lowest id. The draw
 * walks the kept ids in ascending order; the first whose cumulated probability exceeds it wins. */
typedef struct nrd_sample_args {
    int32_t n_rows, vocab;
    const float *logits;         /* [n_rows, logits_stride] */
    int64_t logits_stride;
    const nrd_sample_row *rows;  /* [n_rows] */
    const int32_t *banned_ids;
    uint16_t *counts;            /* [n_slots, vocab] occurrences so far (prompt included), or NULL */
    int32_t *slot_tokens;        /* [n_slots] */
    int32_t *out_ids;            /* [n_rows] */
    float *out_logprob;          /* [n_rows] log p of the choice under the unfiltered distribution */
    float *out_logprob_norm;     /* [n_rows] or NULL */
    int32_t n_top;               /* > 0: also the best n_top candidates, best first */
    int32_t *out_top_ids;        /* [n_rows, n_top] */
    float *out_top_logprobs;     /* [n_rows, n_top] unfiltered log-softmax (after penalties) */
} nrd_sample_args;

/* A matrix in 8 bits that stands for another one of the same rows, and how far their products may be apart: what linear_sample finds
 * the tokens with that can be chosen. For every x, and x' as linear() reads it with this type, x' = x or blocks of 8 bits, the
 * computed products of row r differ by at most error[r] * |x| + length[r] * |x - x'| (Cauchy and Schwarz; |.| is the Euclidean
 * length). What is rounded in both sums is in error[r]. */
typedef struct nrd_rough_weight {
    const nrd_weight *w; /* [rows, cols] in NRD_DTYPE_Q8_0, as weight_load gave it */
    const float *error;  /* [rows], device memory */
    const float *length; /* [rows], device memory */
} nrd_rough_weight;

/* A device whose memory is not the host's looks for candidates of rows with a top_k up to this and without anything that changes
 * their logits (bias, penalties, bans, masks) or that needs all of them (log probabilities): of others it computes every token exactly, which
 * takes longer than without a rough weight. */
enum { NRD_ROUGH_MOST_K = 64 };
#ifdef __CUDACC__
__host__ __device__
#endif
static inline bool nrd_rough_is_plain(const nrd_sample_row *row)
{
    const int32_t k = row->temperature <= 0 || row->top_k == 1 ? 1 : row->top_k;
    return k > 0 && k <= NRD_ROUGH_MOST_K && !row->bias && !row->mask && row->n_banned <= 0 &&
           (row->n_suppress_end <= 0 || row->end_id < 0) && row->times.first <= 0 &&
           !(row->flags & (NRD_SAMPLE_LOGPROB | NRD_SAMPLE_COUNTS | NRD_SAMPLE_NORMALIZE));
}

/* Whether there is such a matrix for `w`: 16-bit or float32 numbers, whole blocks of columns, no stack. */
bool nrd_rough_is_for(const nrd_weight *w);
/* Makes the one of `w`, a checked weight in host memory in rows or packed for the CPU: `rows` gets its data in layout ROWS, of
 * nrd_rough_bytes(w), error and length [w->rows] numbers each. Host memory, the caller's. A row that has numbers which are not finite
 * gets an error of infinity. Any thread; the work is shared by n_threads, 16 at most. */
uint64_t nrd_rough_bytes(const nrd_weight *w);
nrd_error *nrd_rough_make(const nrd_weight *w, int32_t n_threads, void *rows, float *error, float *length);

/* Starts a slot's row of counts: zero it, then count ids[0..n). */
typedef struct nrd_counts_args {
    int32_t slot, vocab, n;
    const int32_t *ids;
    uint16_t *counts;
} nrd_counts_args;

/* Uniform number in [0, 1) of draw `draw` under `seed`: Philox4x32-10 (Salmon et al., SC 2011) with
 * key = seed and counter = draw; the top 24 bits of the first output word. Pure integer arithmetic,
 * so that every device draws the same. */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline float nrd_sample_uniform(uint64_t seed, uint64_t draw)
{
    uint32_t c0 = (uint32_t)draw, c1 = (uint32_t)(draw >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c0 >> 8) * (1.0f / 16777216.0f);
}

#endif
