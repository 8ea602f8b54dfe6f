/* engine/sequence.h - one sequence on its way through the engine.
 *
 * Purpose   What scheduler, decoder and runner know about a sequence: its tokens, how far its KV
 *           cache has come, how its tokens are chosen. One request makes num_return_sequences of
 *           them; a beam-search request is one sequence with `width` beams.
 * Owner     Made by the executor (owns the memory), then handed to the scheduler, and used by the
 *           loop thread only, until nrd_sched_take_idle gives it back.
 * Units     Tokens. n_known <= prompt + generated tokens that the host has seen; n_planned tokens
 *           whose KV steps enqueued so far will have written; n_computed tokens whose KV is written
 *           by steps that are over. n_computed <= n_planned <= n_known + n_pending.
 * Life      waiting -> running -> done; running -> waiting when paused (recompute later).
 */
#ifndef NRD_ENGINE_SEQUENCE_H
#define NRD_ENGINE_SEQUENCE_H

#include "engine/kv_cache.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_MAX_JUMP = 64, NRD_MAX_BEAM_WIDTH = 64, NRD_MAX_TOP_LOGPROBS = 20 };

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
    bool greedy, counts; /* counts: a penalty is on */
} nrd_sampling;

/* Phrase i = ids[i ? ends[i-1] : 0 .. ends[i]). */
typedef struct nrd_phrase_list {
    const int32_t *ids, *ends;
    int32_t n;
} nrd_phrase_list;

typedef enum {
    NRD_SEQ_NEW = 0,
    NRD_SEQ_WAITING = 1,
    NRD_SEQ_RUNNING = 2,
    NRD_SEQ_DONE = 3,
} nrd_seq_state;

/* Numerically equal to nrd_finish_reason of door 3. */
typedef enum {
    NRD_SEQ_FINISH_NONE = 0,
    NRD_SEQ_FINISH_END_ID = 1,
    NRD_SEQ_FINISH_STOP_WORDS = 2,
    NRD_SEQ_FINISH_LENGTH = 3,
    NRD_SEQ_FINISH_CANCELLED = 4,
    NRD_SEQ_FINISH_ERROR = 5,
} nrd_seq_finish;

typedef struct nrd_seq nrd_seq;
typedef struct nrd_beams nrd_beams;

struct nrd_seq {
    /* ---- set by the maker ---- */
    uint64_t id;   /* of the request */
    int32_t index; /* which of the request's sequences */
    void *owner;   /* the maker's own */
    float priority;
    int32_t width; /* beams */
    int32_t n_prompt;
    int32_t max_total; /* prompt + generated tokens */
    int32_t end_id;    /* -1: none */
    nrd_sampling sampling;
    nrd_phrase_list stop, bad;
    bool needs_host; /* the next choice depends on the last one on the host: never ahead */
    bool no_reuse;   /* every prompt token must be computed (its logits are wanted) */
    bool no_sample;  /* ends after the prompt (scoring) */
    bool want_log_probs;
    bool want_context_rows; /* every prompt position goes through the LM head */
    bool want_states;       /* the last layer's normed states of every prompt position are kept … */
    bool want_last_state;   /* … of the last one only */
    bool want_logit_rows;   /* logits of every choice are kept */
    int32_t n_top;          /* candidates reported with each token */
    const float *bias;      /* [vocab] device memory or NULL */
    struct nrd_guide_state *guide; /* what may come next (guided/guided.h); NULL: anything */
    bool may_jump; /* tokens that must come next may be put behind the chosen ones: nrd_sched_append */
    nrd_seq *leader;        /* same prompt, wait for it and take its blocks; NULL: none */
    nrd_kv_content content; /* content.tokens = tokens */

    int32_t *tokens;  /* [max_total]; the prompt is filled in */
    float *log_probs; /* [max_total - n_prompt] or NULL */
    int32_t *top_ids; /* [max_total - n_prompt, n_top] or NULL */
    float *top_log_probs;
    nrd_kv_table *tables; /* [width], initialised */
    int32_t *slots;       /* [width] */
    nrd_beams *beams;     /* width > 1 */

    /* ---- kept by the scheduler ---- */
    nrd_seq_state state;
    nrd_seq_finish finish;
    uint64_t arrival;
    uint64_t start_step; /* plan in which it last started */
    uint32_t epoch;      /* changes when the KV cache is given up */
    int32_t n_known, n_planned, n_computed;
    int32_t n_pending;  /* choices in flight */
    int32_t n_inflight; /* plan entries in flight */
    int32_t n_reserved; /* blocks promised, not taken yet */
    int32_t n_jump;     /* known tokens behind the prompt that the plan being made takes */
    int32_t n_skipped;  /* plans in which its prompt did not fit */
    bool has_counts;    /* its slot's row of counts is filled */
    bool beams_forked;  /* every beam has its own table */
    double cum_log_prob;
    float top_p_now; /* decayed top-p */
    int32_t n_new_blocks, n_reused_blocks, n_paused;
    nrd_seq *run_prev, *run_next;   /* running, by priority then arrival; or idle list */
    nrd_seq *wait_prev, *wait_next; /* waiting, by priority then arrival */
    nrd_seq *age_prev, *age_next;   /* waiting, by arrival */
};

static inline int32_t nrd_seq_n_generated(const nrd_seq *q)
{
    return q->n_known - q->n_prompt;
}

#endif
