/* SPDX-License-Identifier: Apache-2.0
 * engine/run/runner.h - a plan becomes tokens.
 *
 * Purpose   Owns what is on the device for one engine: weights, KV memory, activations; packs a
 *           plan into batch arrays (one upload), enqueues the network and the choice of tokens.
 * Owner     The engine loop thread; one runner has one stream.
 * Order     submit(plan, i), then wait(i). Two plans may be in flight, in buffers 0 and 1; over pipeline stages
 *           as many as nrd_runner_n_buffers says, waited for in their order.
 *           Nothing allocates between steps unless a step has more forbidden tokens than any
 *           before. Where the device has graphs, steps of one token a sequence are recorded when
 *           their shape comes a second time, or ahead, and replayed from then on.
 * Ranks     Several runners, each with its rank's engine, compute a step together. Rank 0's gets plans
 *           and gives each step to its sink as plain bytes; the others follow. With several pipeline stages
 *           submit computes the first one's layers, and wait gets the logits from the last one and chooses.
 * Errors    UNSUPPORTED, INVALID_ARG, UNAVAILABLE at creation; an error of submit or wait means
 *           that the device is lost.
 *           The device chooses its kernels inside new, so that no step has to.
 * Lifetime  new -> alloc_kv -> record_ahead (may be left out) -> submit/wait … -> free. Borrows engine and device until free.
 */
#ifndef NRD_ENGINE_RUN_RUNNER_H
#define NRD_ENGINE_RUN_RUNNER_H

#include "engine/lora.h"
#include "engine/run/profile.h"
#include "engine/scheduler.h"
#include "model/engine.h"
#include "nereid/device.h"

typedef struct nrd_runner nrd_runner;

/* Where rank 0 leaves its steps for the other ranks. */
typedef struct nrd_step_sink {
    /* Memory for a step of max_bytes; waits until the ranks have read what was there. */
    nrd_error *(*begin)(void *user, void **out);
    void (*end)(void *user, size_t bytes); /* the step is there */
    void *user;
    size_t max_bytes;
} nrd_step_sink;

/* States of a step's tokens that are kept until the next step, for networks that guess from them. */
enum { NRD_RUNNER_MAX_TAPS = 4 };
typedef struct nrd_runner_taps {
    int32_t n; /* 0: none */
    int32_t layer[NRD_RUNNER_MAX_TAPS]; /* the residual that goes into this layer; the number of layers: the final norm's output */
} nrd_runner_taps;

/* One of several ranks; size 0 or 1: alone. */
typedef struct nrd_runner_rank {
    int32_t rank, size;
    void *shared;       /* nrd_comm_config.shared; outlives the runner */
    nrd_comm_far far;   /* nrd_comm_config.far */
    nrd_step_sink sink; /* rank 0 only */
} nrd_runner_rank;

typedef struct nrd_runner_config {
    nrd_dtype kv_dtype; /* NONE: the engine's, else the device's */
    bool compute_f32;   /* dequantize the weights and compute in float32 */
    double streamed_share; /* of the weights' bytes, 0 to 1, that must not be on the device (weight_stream.h) */
    bool two_step_head; /* the LM head finds candidates in 8 bits (rough_head.h) */
    bool deterministic;
    bool normalize_log_probs;
    bool keep_choice_logits; /* want_logit_rows of a sequence may be set */
    int32_t max_tokens;      /* of a step */
    int32_t max_entries;     /* plan entries = slots */
    uint64_t state_cache_bytes; /* for snapshots of recurrent states */
    int32_t max_draft_rows;  /* choices of a step behind draft tokens */
    int32_t max_chain;       /* tokens of a draft, where drafts are no trees; else 0 */
    int32_t max_top;         /* largest n_top of a sequence */
    int32_t max_context;     /* tokens of a sequence */
    int32_t block_tokens;
    nrd_runner_rank rank;
    nrd_runner_taps taps; /* rank 0 keeps them, the others are told of them too; not with pipeline stages */
    nrd_stream *stream; /* of another runner, which outlives this one and whose steps are never under way beside this one's; NULL: its own */
    const nrd_engine *encoder; /* of a model with cross_attention, borrowed as the engine is; else NULL */
    int32_t max_encoder_input; /* the longest input of an encoder; at most max_tokens */
    int32_t max_picture_states; /* that layers read, of a sequence's pictures; 0: none do, or requests bring no pictures */
    const int32_t *windows; /* attention window per layer, cyclic; borrows during new; or NULL */
    int32_t n_windows;
    int32_t n_sink;
    bool no_graphs;
    bool no_overlap; /* operations never run side by side */
    int32_t max_graphs; /* kept; 0: a good number */
    int32_t profile_every; /* > 0: times are kept, every so many steps operation by operation */
    int32_t profile_spans; /* and so many spans of time */
    /* Logits of prompt positions [first, first + n) of a sequence with want_context_rows or context_row; called
     * inside submit, with pipeline stages inside wait. */
    void (*on_context_rows)(void *user, nrd_seq *q, int32_t first, int32_t n, const float *logits,
                            int64_t stride);
    /* Normed states of the last layer, summed over prompt positions [first, first + n) of a sequence with want_states,
     * want_last_state or want_first_state: [hidden]; called inside wait. */
    void (*on_state_sum)(void *user, nrd_seq *q, int32_t first, int32_t n, const double *sum);
    /* Logits from which choice number `n_generated` of a sequence with want_logit_rows was made;
     * called inside wait. */
    void (*on_choice_row)(void *user, nrd_seq *q, int32_t beam, int32_t n_generated,
                          const float *logits);
    /* A guide is ready whose mask took longer than its step waited: sequences may go on. Any thread,
     * also after the step. May be NULL. */
    void (*on_mask_ready)(void *user);
    /* Told why recording of graphs was given up. May be NULL. */
    void (*on_warning)(void *user, const char *message);
    /* What goes into a product of a layer, [n_tokens, cols] of dtype, in the device's memory; position: NRD_LORA_AT_*; expert: whose product it is, -1: of
     * none. Called inside submit. Alone. May be NULL. */
    void (*on_input)(void *user, int32_t layer, int32_t expert, int32_t position, int32_t n_tokens, int64_t cols,
                     const void *x, nrd_dtype dtype);
    /* What attention_of_heads puts into the cache of a layer, keys behind their norm and rotation: of n_tokens, `stride`
     * numbers from one to the next, in the host's memory. Called as on_input is. May be NULL. */
    void (*on_cache)(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values);
    void *user;
} nrd_runner_config;

/* How many plans may be in flight. */
int32_t nrd_runner_n_buffers(const nrd_model_spec *model);
/* What the ranks of a model share, but for rank and memory. */
nrd_comm_config nrd_runner_comm_config(const nrd_model_spec *model, const nrd_runner_config *cfg);
/* UNSUPPORTED, with what to do, where the device cannot run this model's ranks. */
nrd_error *nrd_runner_check_ranks(const nrd_device *dev, const nrd_model_spec *model) NRD_MUST_USE;
nrd_error *nrd_runner_new(nrd_runner **out, nrd_device *dev, const nrd_engine *engine,
                          const nrd_runner_config *cfg) NRD_MUST_USE;
/* Without an engine: the device's stream and types alone, for a vision tower whose decoder is elsewhere. It takes no plans;
 * free is the only other function for it. */
typedef struct nrd_runner_bare {
    int32_t hidden;    /* of the decoder whose rows are made */
    float embed_scale; /* of that decoder; 0: none */
    nrd_dtype dtype;   /* of activations, on a device with memory of its own */
} nrd_runner_bare;
nrd_error *nrd_runner_new_bare(nrd_runner **out, nrd_device *dev, const nrd_runner_bare *bare) NRD_MUST_USE;
void nrd_runner_free(nrd_runner *r);

size_t nrd_runner_kv_block_bytes(const nrd_runner *r); /* all layers */
enum { NRD_MAX_KEPT_STATES = 1 << 16 };
/* States of recurrent layers: of all sequences, and of snapshots; taken by new. */
size_t nrd_runner_state_bytes(const nrd_runner *r);
size_t nrd_runner_states_kept_bytes(const nrd_runner *r); /* of the snapshots alone */
int32_t nrd_runner_n_states(const nrd_runner *r); /* snapshots that can be kept */
/* n_host: further blocks in host memory, numbered after those of the device; plans copy from and
 * to them, steps read and write the device's only. */
nrd_error *nrd_runner_alloc_kv(nrd_runner *r, int32_t n_blocks, int32_t n_host) NRD_MUST_USE;
/* Records steps of the likely shapes, for a second at most, so that the first ones need not be. */
nrd_error *nrd_runner_record_ahead(nrd_runner *r) NRD_MUST_USE;
double nrd_runner_tune_seconds(const nrd_runner *r); /* that new took to choose kernels */
nrd_dtype nrd_runner_kv_dtype(const nrd_runner *r);
/* The tokens that a step with a choice behind each goes up to, which is what it costs; NULL: such steps are not filled up. */
int32_t (*nrd_runner_filled_up(const nrd_runner *r))(int32_t n_tokens);
/* The smallest window of any length that every layer keeps; 0: some layer sees all. */
int32_t nrd_runner_common_window(const nrd_runner *r);

/* Where adapters are, before the first step with one, and again when ranks above bank.max_rank came. The
 * slots of sequences point into it. */
nrd_error *nrd_runner_set_bank(nrd_runner *r, const nrd_lora_bank *bank) NRD_MUST_USE;

/* What was timed so far (profile_every), from any thread. */
void nrd_runner_profile(nrd_runner *r, nrd_profile_sums *out, bool reset);
int32_t nrd_runner_spans(nrd_runner *r, nrd_profile_span *out, int32_t first, int32_t max);

/* A copy of a bias on the device, which any number of sequences may use. */
nrd_error *nrd_runner_bias_new(nrd_runner *r, const nrd_token_bias *from,
                               nrd_token_bias *out) NRD_MUST_USE;
void nrd_runner_bias_free(nrd_runner *r, nrd_token_bias *bias); /* an empty one is fine */

/* The type of a row of embeddings, and a table of them on the device for a sequence's prompt_table. */
nrd_dtype nrd_runner_embedding_dtype(const nrd_runner *r);
nrd_error *nrd_runner_table_new(nrd_runner *r, const void *rows, size_t bytes,
                                const uint8_t **out) NRD_MUST_USE;
void nrd_runner_table_free(nrd_runner *r, const uint8_t *table);

/* At most so long is a step as bytes, of plans like this one, but for the mask of prompts whose pictures see both ways. */
size_t nrd_runner_step_bytes(const nrd_runner *r, const nrd_plan *p);
/* A rank above 0: computes its share of a step that rank 0's sink was given; returns when it is over. */
nrd_error *nrd_runner_follow(nrd_runner *r, const void *step, size_t bytes) NRD_MUST_USE;

nrd_error *nrd_runner_submit(nrd_runner *r, const nrd_plan *p, int32_t buffer) NRD_MUST_USE;
/* The result borrows until the buffer's next submit. */
nrd_error *nrd_runner_wait(nrd_runner *r, int32_t buffer, nrd_step_result *out) NRD_MUST_USE;

#endif
