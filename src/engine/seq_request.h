/* SPDX-License-Identifier: Apache-2.0
 * engine/seq_request.h - what a sequence was asked to be.
 *
 * Purpose   The part of nrd_seq (engine/sequence.h) that its maker fills in: prompt and limits, how
 *           tokens are chosen, what ends it, what is reported.
 * Owner     Written by the maker before nrd_sched_add, constant afterwards (but for `id`, which is
 *           known when the request is taken in); everybody reads it.
 * Units     Tokens.
 * Lifetime  Borrows what its pointers name: the maker keeps it until the sequence is idle.
 */
#ifndef NRD_ENGINE_SEQ_REQUEST_H
#define NRD_ENGINE_SEQ_REQUEST_H

#include "engine/kv_cache.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_PICTURE_ROWS_VARY = INT32_MAX, NRD_PICTURE_ROWS_PROMPT = INT32_MAX - 1 };

/* Whether another engine computed the prompt (disaggregated serving). */
typedef enum {
    NRD_NOT_HANDED = 0,
    NRD_HANDED_TOKEN = 1,  /* it chose the first token: nrd_sched_append brings it */
    NRD_HANDED_BLOCKS = 2, /* the prompt's keys and values come from there too (nrd_seq_run.parcel) */
} nrd_seq_handed;

/* How tokens are chosen. Meanings and defaults: nrd_sampling_config in nereid/executor.h. */
typedef struct nrd_sampling {
    int32_t top_k;
    float top_p, top_p_min, top_p_decay;
    int32_t top_p_reset_id;
    float min_p, temperature;
    uint64_t seed;
    int32_t min_length;
    float repetition_penalty, presence_penalty, frequency_penalty;
    float length_penalty, diversity_rate;
    int32_t early_stopping, no_repeat_ngram_size;
} nrd_sampling;

/* Phrase i = ids[i ? ends[i-1] : 0 .. ends[i]). */
typedef struct nrd_phrase_list {
    const int32_t *ids, *ends;
    int32_t n;
} nrd_phrase_list;

/* How long the text may reason: nrd_exec_request.reasoning_budget (engine/decode/reasoning.c). */
enum { NRD_MAX_REASONING_MARK = 16, NRD_MAX_REASONING_CLOSE = 64 };
typedef struct nrd_reasoning {
    int32_t budget; /* tokens */
    bool open;      /* the prompt ends in it */
    int32_t begin[NRD_MAX_REASONING_MARK], end[NRD_MAX_REASONING_MARK], close[NRD_MAX_REASONING_CLOSE];
    int32_t n_begin, n_end, n_close;
} nrd_reasoning;

/* A picture whose states layers of the decoder read. */
typedef struct nrd_seq_picture {
    int32_t row;      /* of the prompt table: its first state */
    int32_t place, n; /* its states are at the places [place, place + n) of the prompt */
    int32_t seen;     /* it is the one that prompt tokens from number `seen` on see last, up to the next one's */
    int32_t from;     /* a block's first place: those tokens see what is there up to this picture's end. Pictures that stand side by
                       * side in the text are seen together, one alone hides those before it */
} nrd_seq_picture;

typedef struct nrd_seq nrd_seq;

typedef struct nrd_seq_request {
    uint64_t id;   /* of the request */
    int32_t index; /* which of the request's sequences */
    uint64_t group; /* choices of one request of a client: nrd_sched_limits.choices_at_once; 0: none */
    uint64_t flow;  /* whose it is, where several share the engine; 0: nobody's in particular (scheduler.h) */
    void *owner;   /* the maker's own */
    float priority;
    int32_t width; /* beams */
    int32_t n_prompt;
    /* Of a decoder that reads an encoder's states: the first n_cross places of the prompt, whole blocks of the cache, hold
     * keys and values of the encoder's states; its input are the first n_encoder of these tokens, the rest fills up.
     * The decoder's own prompt follows, and its positions begin there. 0: no encoder. */
    int32_t n_cross, n_encoder;
    /* The same of pictures' states, which are rows of the sequence's prompt table. */
    const nrd_seq_picture *pictures; /* by their places */
    int32_t n_pictures;
    /* With an encoder: [n_encoder] where each of its states lies among them in the cache, and [n_cross_seen] how many of them, from the first
     * on, each position of the decoder sees, which never fall; positions behind the last are as it. NULL: all of them, as they come. */
    const int32_t *cross_order, *cross_seen;
    int32_t n_cross_seen;
    /* With an encoder that hears: [n_frames, its features of a frame] instead of those tokens; half as many states. */
    const float *features;
    int32_t n_frames;
    int32_t second_from; /* prompt tokens from here on are of token type 1; 0: none are */
    int32_t picture_rows; /* > 0: the prompt has pictures of so many tokens, ids past the vocabulary, each of which sees all of
                           * its picture; the prompt is computed in one step. NRD_PICTURE_ROWS_VARY: rows that stand together are one;
                           * NRD_PICTURE_ROWS_PROMPT: all tokens of the prompt see each other */
    int32_t max_total; /* prompt + generated tokens */
    int32_t end_id;    /* -1: none */
    /* As generate() of transformers scores beams: forbidden tokens have their share of the probability, and so many of the
     * prompt's last tokens count in a beam's length. */
    bool unmasked_scores;
    int32_t n_counted;
    bool forced_end;   /* behind max_total tokens nothing but end_id comes: the text is whole there, and a token longer */
    bool ends_behind_draft; /* with the step that verifies the draft that came with the request */
    nrd_sampling sampling;
    nrd_phrase_list stop, bad;
    int32_t first_time;     /* ids from here on tell times, as Whisper's do; 0: none (engine/decode/times.c) */
    int32_t max_first_time; /* so many places behind it at most is the text's first one; -1: anywhere */
    const nrd_reasoning *reasoning; /* NULL: as long as the model likes */
    bool no_reuse;  /* every prompt token must be computed (its logits are wanted) */
    bool no_sample; /* ends after the prompt (scoring) */
    nrd_seq_handed handed;
    /* Tokens that must come next may be put behind the chosen ones: nrd_sched_append. */
    bool may_jump;
    bool want_log_probs;
    int32_t n_top;          /* candidates reported with each token */
    nrd_seq *leader;        /* same prompt, wait for it and take its blocks; NULL: none */
    nrd_kv_content content; /* content.tokens = the decoder's */
} nrd_seq_request;

#endif
