/* SPDX-License-Identifier: Apache-2.0
 * engine/run/runner_internal.h - the runner from the inside, for the files that make it up. What they do for each other is in
 * operations.h, blocks.h, network.h, head.h and steps.h, each above the one before.
 *
 *   runner.c    creation, submit and wait
 *   network.c   what layers need of it: device, ranks, weights, memory between operations
 *   memory.c, activations.c  memory of the device, and what operations write
 *   rope.c, position_bias.c  what positions do to queries and keys
 *   request_tables.c  biases of tokens and prompt tables, which requests bring along
 *   kv_pools.c  the cache's memory and copies of its blocks
 *   parcel.c, parcel_place.c  blocks that go to another engine, or come from one
 *   forward.c   the network up to the last layer
 *   attention.c, mlp.c  the two blocks of most layers
 *   product.c, residual.c  what blocks are made of: products and activations, the residual and its norms
 *   encoder.c   an encoder's pass, and its states as keys and values of the decoder
 *   picture_layers.c  layers that read pictures
 *   picture_weights.c products with other weights for a picture's embeddings
 *   convolve.c  features of sound as what an encoder's first layer reads
 *   inputs.c    what goes into products, for who calibrates
 *   taps.c      states that are kept for networks that guess
 *   adapters.c  what LoRA adapters add to products
 *   head.c      final norm, logits, rows that requests ask for
 *   pooled.c    states of prompts, for vectors of texts
 *   choices.c   tokens chosen from logits, and their way to the host
 *   token_counts.c  how often a sequence has said each token
 *   steps.c     one step; recording and replaying it
 *   stages.c    what pipeline stages tell each other
 *   share.c, follow.c  a step as bytes for other ranks, and what they do with it
 *   tune.c, warm_up.c  what would otherwise make the first steps slow: choosing kernels, recording
 *   altup.c     layers of tokens that have several states
 *   experts_beside.c  experts and an MLP side by side
 *   layer_inputs.c  what a second embedding has for each layer
 *   recurrent.c layers with a state instead of attention
 *   marks.c     what the operations of a timed step had to move and compute
 *
 * All of it belongs to the engine loop thread. Operations are enqueued in the order of the calls on
 * the runner's one stream; an error means that the device is lost.
 */
#ifndef NRD_ENGINE_RUN_RUNNER_INTERNAL_H
#define NRD_ENGINE_RUN_RUNNER_INTERNAL_H

#include "engine/run/batch.h"
#include "engine/run/graphs.h"
#include "engine/run/kv_pools.h"
#include "engine/run/parcel_place.h"
#include "engine/run/position_bias.h"
#include "engine/run/rope.h"
#include "engine/run/runner.h"
#include "engine/run/rough_head.h"
#include "engine/run/token_counts.h"
#include "engine/run/weights.h"

/* A choice whose logits are kept. */
typedef struct nrd_kept_choice {
    nrd_seq *seq;
    int32_t beam, n_generated, row;
    const nrd_token_tree *tree; /* with whose root in row `root` this is a node's, told only where it holds; or NULL */
    int32_t root;
} nrd_kept_choice;

/* Sums of states of a step (pooled.c). */
typedef struct nrd_pooled_seq {
    nrd_seq *seq;
    int32_t first, n; /* positions [first, first + n) of its prompt */
} nrd_pooled_seq;

typedef struct nrd_pooled {
    nrd_pooled_seq *seqs; /* [max_entries]; this and the others: NULL before the first step that has some */
    int32_t n;
    int32_t *rows; /* host: [max_entries + 1] where each sequence's begin in the list behind them; [max_tokens] rows of x */
    double *sums;  /* host: [max_entries, hidden] */
} nrd_pooled;

/* Where a step's choices come back. One download. */
typedef struct nrd_outputs {
    uint8_t *mem, *host;
    size_t off_log_probs, off_norm, off_top_ids, off_top_log_probs, bytes;
    float *logits; /* [max_rows, vocab] host, for kept choices; or NULL */
    nrd_event *done;
    int32_t n_rows, n_top;
    nrd_kept_choice *kept; /* [max_rows] */
    int32_t n_kept;
    nrd_pooled pooled;
    bool is_recording; /* nrd_step_result.was_recorded of the step under way */
} nrd_outputs;

typedef struct nrd_run_encoder nrd_run_encoder;
typedef struct nrd_run_convolve nrd_run_convolve;
typedef struct nrd_run_state_memory nrd_run_state_memory;   /* recurrent.c */
typedef struct nrd_run_expert_memory nrd_run_expert_memory; /* experts.c */
typedef struct nrd_run_pictures nrd_run_pictures;

/* Of products that make their input: x with its columns in another order, or times a number each (product.c). */
typedef struct nrd_made_input {
    void *rows;      /* [max_tokens] as long as the longest; NULL: no product does */
    int32_t *orders; /* nrd_weights.orders and scales on the device, or NULL */
    float *scales;
} nrd_made_input;

/* Tokens of a step, side by side, that take the same weights. */
typedef struct nrd_stretch {
    int32_t first, n;
    bool of_picture;
} nrd_stretch;

struct nrd_runner {
    nrd_device *dev;
    const nrd_engine *engine;
    const nrd_model_spec *spec; /* of this rank: `own` */
    nrd_model_spec own;
    nrd_runner_config cfg;
    const nrd_model_spec *model; /* of all ranks */
    bool is_first, is_last; /* this rank's pipeline stage */
    nrd_comm *comm; /* NULL: alone */
    float *head_squares; /* [max_tokens, 2] of norms over all heads, which ranks share; NULL: of none */
    float *kv_rows, *kv_rows_host; /* [max_tokens, 2 n_kv_heads * head_dim] for cfg.on_cache; NULL: qkv has them */
    float *part_logits; /* [logit_rows, lm_head.rows] of this rank; NULL: alone */
    size_t logit_cols; /* of a row of logits, of all ranks; 0: this stage never sees one */
    nrd_stream *stream;
    nrd_weights w;
    nrd_rough_head rough; /* error NULL: there is none */
    nrd_dtype act, kv_dtype;
    size_t act_bytes;
    bool shared; /* host memory is device memory */
    int32_t plain_from; /* rows of a step from which on layers' products read float32 instead of 8 bits; 0: never */
    int32_t common_window;
    int32_t *layer_window; /* [n_layers] */

    nrd_ropes ropes;
    nrd_position_bias bias;
    int32_t n_deep;     /* first layers behind which rows of prompt tables add something: of a row, what is behind the embedding */
    nrd_run_encoder *encoder; /* NULL: the model has none */
    nrd_run_pictures *pictures; /* NULL: no layer reads any */
    nrd_stretch *stretches;     /* [max_tokens] of the step that is being enqueued; NULL: pictures take no weights of their own */
    int32_t n_stretches;        /* 0: it has no picture */
    nrd_run_convolve *convolve; /* of an encoder that hears; else NULL */
    nrd_kv_pools kv;
    nrd_run_state_memory *recurrent; /* NULL: no layer has a state */
    void *attn_gates, *attn_out;   /* [max_tokens, all heads]: gates, and what attention gives before them or before a norm; or NULL */

    void *x, *normed, *qkv, *att, *delta, *up, *mid;
    nrd_made_input made;
    void *taps; /* [cfg.taps.n, max_tokens, hidden], or NULL */
    float sum_scale;    /* what the sum of x and the delta that waits is multiplied by, as the layer that left it has it; 0: 1 */
    bool joins;         /* a step of one token has its layers in joined products (joined.c) */
    bool left_no_delta; /* as the layers that were enqueued last had: x has all they add */
    bool wants_whole_x; /* of the next norm that adds up the ranks' parts */
    void *token_states; /* [NRD_SPEC_ALTUP_STATES + 1, max_tokens, hidden] where tokens have several; the last is room; or NULL */
    void *per_layer, *per_layer_room; /* [max_tokens, layers, numbers of each] of the second embedding; or NULL */
    void *beside;    /* [max_tokens, hidden] what is added beside attention, with states; what an MLP gives that experts stand beside */
    void *narrow;    /* [max_tokens, the most numbers between two products beside MLP and attention], with either */
    void *latent_q, *latent_kv; /* [max_tokens, q_rank], [max_tokens, a row of the cache], where attention is latent */
    nrd_moe_pairs pairs; /* of the layer that is being enqueued; n_experts 0: no layer has experts */
    nrd_run_expert_memory *experts; /* NULL: no layer has experts */
    float *row_scale, *logits;
    bool delta_waits; /* for scales, which the norm behind applies (residual.c) */
    nrd_pending_scales delta_pending;
    nrd_lora_bank bank;   /* pairs NULL: no adapters yet */
    float *adapter_hidden; /* [max_tokens, NRD_LORA_MAX_PARTS, adapter_rank] or NULL */
    int32_t adapter_rank;
    int32_t logit_rows; /* capacity of logits */
    int32_t *slot_tokens;
    nrd_token_counts counts;
    int32_t *row_ids, *row_ids_host; /* for rows beside the choices */
    float *rows_host;
    int32_t *pool_rows; /* the device's copies of nrd_pooled's; NULL: shared, or not needed yet */
    double *pool_sums;
    int32_t n_buffers;
    nrd_batch batch[NRD_SCHED_MAX_MICRO]; /* [n_buffers], as out and submitted */
    nrd_mask_worker *mask_worker;
    nrd_outputs out[NRD_SCHED_MAX_MICRO];
    const nrd_plan *submitted[NRD_SCHED_MAX_MICRO]; /* with pipeline stages: what is waited for */
    nrd_graphs graphs;
    int32_t max_blocks; /* of a sequence: the widest block table */
    nrd_profile *profile;
    uint32_t n_followed; /* steps of rank 0 that this rank took */
    double tune_seconds; /* what choosing kernels took */
    const nrd_plan *marked; /* the step being enqueued is timed by operation; or NULL */
};

/* Choices of a step: one for each entry, and those behind drafts. */
static inline int32_t nrd_run_max_rows(const nrd_runner *r)
{
    return r->cfg.max_entries + r->cfg.max_draft_rows;
}

/* Graphs of passes beside the runner's steps, on its stream; off where it records none. */
static inline nrd_error *nrd_run_init_graphs(const nrd_runner *r, nrd_graphs *g, int32_t cap)
{
    return r->graphs.cap > 0 ? nrd_graphs_init(g, r->dev, r->stream, cap, r->cfg.on_warning, r->cfg.user) : NULL;
}

static inline bool nrd_run_is_staged(const nrd_runner *r)
{
    return r->model->pp_size > 1;
}

#endif
