/* SPDX-License-Identifier: Apache-2.0
 * engine/run/runner_internal.h - the runner from the inside, for the files that make it up.
 *
 *   runner.c    creation, submit and wait
 *   network.c   what layers need of it: device, ranks, weights, memory between operations
 *   memory.c, activations.c  memory of the device, and what operations write
 *   rope.c      tables of rotary positions
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
#include "engine/run/parcel_place.h"
#include "engine/run/runner.h"
#include "engine/run/rough_head.h"
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
typedef struct nrd_run_pictures nrd_run_pictures;

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
    float *part_logits; /* [logit_rows, lm_head.rows] of this rank; NULL: alone */
    size_t logit_cols; /* of a row of logits, of all ranks; 0: this stage never sees one */
    nrd_stream *stream;
    nrd_weights w;
    nrd_rough_head rough; /* error NULL: there is none */
    nrd_dtype act, kv_dtype;
    size_t act_bytes;
    bool shared; /* host memory is device memory */
    int32_t common_window;
    int32_t *layer_window; /* [n_layers] */

    float *inv_freq, *inv_freq_local;
    uint8_t *pair_axis; /* [rotary_dim / 2], or NULL: positions have one axis */
    int32_t n_deep;     /* first layers behind which rows of prompt tables add something: of a row, what is behind the embedding */
    float *alibi; /* [n_heads] of this rank, or NULL */
    float *rel_bias; /* [n_heads, rel_back + rel_ahead + 1], or NULL */
    int32_t rel_back, rel_ahead;
    nrd_run_encoder *encoder; /* NULL: the model has none */
    nrd_run_pictures *pictures; /* NULL: no layer reads any */
    nrd_stretch *stretches;     /* [max_tokens] of the step that is being enqueued; NULL: pictures take no weights of their own */
    int32_t n_stretches;        /* 0: it has no picture */
    nrd_run_convolve *convolve; /* of an encoder that hears; else NULL */
    float rope_scale, rope_scale_local;

    void **kv_base, **kv_host_base; /* [n_kv_layers] */
    int32_t n_kv_blocks;
    nrd_kv_layer *kv_layers, *kv_host_layers; /* [n_kv_layers] */
    int32_t n_kv_layers; /* layers with attention */
    float **conv_states, **states; /* [n_layers]: of max_entries sequences; NULL in layers without; NULL: none has */
    void *conv_out, *scan_out;     /* [max_tokens] rows of a layer with a state */
    nrd_kv_layer *state_layers;    /* [n_state_layers] the states of both kinds as blocks of one row, for copies */
    int32_t n_state_layers;
    void *dt_bc, *time_steps;      /* of Mamba: what time steps are made of, b and c; the time steps */
    void *attn_gates, *attn_out;   /* [max_tokens, all heads]: gates, and what attention gives before them or before a norm; or NULL */

    void *x, *normed, *qkv, *att, *delta, *up, *mid;
    void *made;      /* [max_tokens] rows: what a product reads that makes its input; NULL: none does */
    int32_t *orders; /* w.orders and w.scales on the device, or NULL */
    float *scales;
    void *taps; /* [cfg.taps.n, max_tokens, hidden], or NULL */
    float sum_scale;    /* what the sum of x and the delta that waits is multiplied by, as the layer that left it has it; 0: 1 */
    bool wants_whole_x; /* of the next norm that adds up the ranks' parts */
    void *token_states; /* [NRD_SPEC_ALTUP_STATES + 1, max_tokens, hidden] where tokens have several; the last is room; or NULL */
    void *per_layer, *per_layer_room; /* [max_tokens, layers, numbers of each] of the second embedding; or NULL */
    void *beside;    /* [max_tokens, hidden] what is added beside attention, with states; what an MLP gives that experts stand beside */
    void *narrow;    /* [max_tokens, the most numbers between two products beside MLP and attention], with either */
    void *latent_q, *latent_kv; /* [max_tokens, q_rank], [max_tokens, a row of the cache], where attention is latent */
    nrd_moe_pairs pairs; /* of the layer that is being enqueued; n_experts 0: no layer has experts */
    float *router;       /* [max_tokens, experts and the shared ones' gate] */
    void *expert_out;    /* [max_tokens * top_k, hidden] */
    void *sum_biases;    /* [n_layers, hidden] of what their experts give together, or NULL */
    const void **sum_bias_rows; /* [max_tokens] the first of them, over and over */
    float *pair_scale;   /* [max_tokens * top_k] of rows between experts' products, in F8 */
    float *row_scale, *logits;
    nrd_lora_bank bank;   /* pairs NULL: no adapters yet */
    float *adapter_hidden; /* [max_tokens, NRD_LORA_MAX_PARTS, adapter_rank] or NULL */
    int32_t adapter_rank;
    int32_t logit_rows; /* capacity of logits */
    int32_t *slot_tokens;
    uint16_t *counts; /* allocated when first needed: [nrd_run_max_rows, vocab] */
    int32_t *count_ids, *count_ids_host;
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

/* ---- memory.c ---- */

/* Adds what to change where memory does not suffice. Takes `err`. */
nrd_error *nrd_run_advised(nrd_error *err, const char *pool) NRD_MUST_USE;
nrd_error *nrd_run_alloc(nrd_runner *r, void **out, size_t n, size_t elem,
                         const char *pool) NRD_MUST_USE;
void nrd_run_free(nrd_runner *r, void *p); /* NULL is fine */
/* Memory that collective operations use; it goes with the comm. */
nrd_error *nrd_run_alloc_common(nrd_runner *r, void **out, size_t n, size_t elem,
                                const char *pool) NRD_MUST_USE;
void nrd_run_free_common(nrd_runner *r, void *p); /* nothing where the comm has it */
void nrd_run_free_host(nrd_runner *r, void *p);
nrd_error *nrd_run_upload(nrd_runner *r, void *dst, const void *src,
                          size_t bytes) NRD_MUST_USE; /* waits */

/* ---- rope.c ---- */

/* Needs the weights: some models keep their factors there. */
nrd_error *nrd_run_init_rope(nrd_runner *r, const nrd_rope_spec *rope, float **out,
                             float *scale) NRD_MUST_USE;
nrd_error *nrd_run_init_pair_axis(nrd_runner *r) NRD_MUST_USE;

/* ---- request_tables.c ---- */

/* Rows of prompt tables are n embeddings longer from now on: they add them behind the first n layers. UNSUPPORTED: not here. */
nrd_error *nrd_run_take_deep_rows(nrd_runner *r, int32_t n) NRD_MUST_USE;

/* ---- activations.c ---- */

nrd_error *nrd_run_init_activations(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_activations(nrd_runner *r);

/* ---- features.c ---- */

/* UNSUPPORTED names what the network needs and the device has not. */
nrd_error *nrd_run_check_features(const nrd_runner *r) NRD_MUST_USE;
/* For networks that guess with the model's embedding in rank 0 alone. */
nrd_error *nrd_run_check_whole_embedding(const nrd_runner *r) NRD_MUST_USE;
nrd_error *nrd_run_init_alibi(nrd_runner *r) NRD_MUST_USE;
nrd_error *nrd_run_init_rel_bias(nrd_runner *r) NRD_MUST_USE;

/* ---- encoder.c ---- */

/* Opens cfg.encoder beside the runner. INVALID_ARG where the two do not belong together. */
nrd_error *nrd_run_encoder_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_encoder_fini(nrd_runner *r);
/* Runs the encoder for the plan's entries that need it, and fills their places in the cache. Waits. */
nrd_error *nrd_run_encode(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;

/* ---- picture_layers.c ---- */

nrd_error *nrd_run_pictures_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_pictures_fini(nrd_runner *r);
/* Fills the places that the plan's entries have for their pictures. Waits where there are any. */
nrd_error *nrd_run_pictures_fill(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;
/* Which places these are, for other ranks: so many numbers, at most NRD_RUN_PLACES a token of the step. out NULL: counts them. */
enum { NRD_RUN_PLACES = 5 };
size_t nrd_run_pictures_list(const nrd_runner *r, const nrd_plan *p, int32_t *out);
/* The same in a rank that has no states of its own. INTERNAL: the list is none. */
nrd_error *nrd_run_pictures_follow(nrd_runner *r, const int32_t *list, size_t n) NRD_MUST_USE;
/* The layer in front of this one: x += delta, and delta = what it adds behind that. */
nrd_error *nrd_run_picture_layer(nrd_runner *r, const nrd_batch *b, int32_t layer) NRD_MUST_USE;

/* ---- picture_weights.c ---- */

nrd_error *nrd_run_init_stretches(nrd_runner *r) NRD_MUST_USE;
void nrd_run_find_pictures(nrd_runner *r, const nrd_batch *b); /* in the step that is enqueued next */
/* y [n_tokens, rows] = p of x in its input's type; of a picture's embeddings the other product, which reads the same and is as large. */
nrd_error *nrd_run_split_product(nrd_runner *r, const nrd_product *p, const nrd_product *of_picture, const void *x, int32_t n_tokens,
                                 void *y) NRD_MUST_USE;

/* ---- convolve.c ---- */

/* For a runner of an encoder that hears, with inputs of up to cfg.max_tokens states. */
nrd_error *nrd_run_convolve_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_convolve_fini(nrd_runner *r);
/* The states of features[n_frames, n_mels] before the first layer, into x from row `first` on: half as many as frames,
 * rounded up. Waits. */
nrd_error *nrd_run_convolve_frames(nrd_runner *r, const float *features, int32_t n_frames, int32_t first) NRD_MUST_USE;

/* ---- kv_pools.c ---- */

nrd_error *nrd_run_copy_blocks(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;
/* Instead of nrd_runner_alloc_kv: one memory for all layers, whose keys are of no use behind their layer. */
nrd_error *nrd_run_alloc_shared_kv(nrd_runner *r, int32_t n_blocks) NRD_MUST_USE;
void nrd_run_free_kv(nrd_runner *r);

/* ---- parcel.c ---- */

/* Behind nrd_run_copy_blocks, which saves what was in the blocks before. */
nrd_error *nrd_run_take_blocks(nrd_runner *r, const nrd_plan *p) NRD_MUST_USE;
/* The same for other ranks: blocks [first, n_blocks) of a packed sequence come from the place. */
typedef struct nrd_kv_take {
    int32_t entry, first, n_blocks;
    nrd_parcel_place place;
} nrd_kv_take;
int32_t nrd_run_list_takes(const nrd_plan *p,
                           nrd_kv_take *out); /* so many; out NULL: counts them */
/* blocks: [n_blocks] of that sequence's table. An error means that this rank is lost. Waits. */
nrd_error *nrd_run_take_share(nrd_runner *r, const nrd_kv_take *take,
                              const int32_t *blocks) NRD_MUST_USE;

/* ---- marks.c: these have no effect in steps that are not timed by operation ---- */

double nrd_run_bytes(double n, nrd_dtype t); /* of n elements */
/* The operation enqueued last moved so many bytes a row. */
nrd_error *nrd_run_mark(nrd_runner *r, nrd_profile_op op, double rows, double bytes_a_row,
                        double flops) NRD_MUST_USE;
/* y: type of the result; NONE where it is not stored. */
nrd_error *nrd_run_mark_product(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n,
                                nrd_dtype y) NRD_MUST_USE;
/* A product of `experts` weights, of which `pairs` of n tokens take some: counts those that chance would take. */
nrd_error *nrd_run_mark_experts(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n) NRD_MUST_USE;
nrd_error *nrd_run_mark_attention(nrd_runner *r, int32_t layer,
                                  const nrd_product *next) NRD_MUST_USE;

/* ---- product.c ---- */

nrd_linear_args nrd_run_product_args(const nrd_runner *r, const nrd_product *p, const void *x,
                                     int32_t n_tokens, void *y, nrd_dtype y_dtype, float softcap);
nrd_error *nrd_run_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                           void *y, nrd_dtype y_dtype, float softcap) NRD_MUST_USE;
/* y = the product of x, which is activations. */
nrd_error *nrd_run_plain_product(nrd_runner *r, int32_t n_tokens, const nrd_product *p, const void *x, void *y) NRD_MUST_USE;
/* x, rows as long as the product `next` reads, as it wants them where no norm stands between: itself, or converted into
 * `room`. */
nrd_error *nrd_run_plain_input(nrd_runner *r, int32_t n_tokens, const nrd_product *next, const void *x, void *room,
                               const void **out) NRD_MUST_USE;
/* act() of what a first product left, `inter` numbers or twice as many a row, as `down` wants them; row_scale: of F8. */
nrd_act_args nrd_run_act_args(const nrd_runner *r, int32_t n_rows, int32_t inter, const nrd_product *down, float *row_scale);
nrd_error *nrd_run_act(nrd_runner *r, const nrd_act_args *a, const nrd_product *down) NRD_MUST_USE;

/* ---- gated.c ---- */

/* A product `up` of x and act() of what it gives in one; *done false: the device has that not for this shape, and nothing was done.
 * experts: what moe_linear() would get. */
nrd_error *nrd_run_gated_product(nrd_runner *r, const nrd_product *up, const nrd_act_args *act, const void *x, const nrd_product *down,
                                 bool *done) NRD_MUST_USE;
nrd_error *nrd_run_gated_experts(nrd_runner *r, const nrd_product *up, const nrd_moe_linear_args *experts, const nrd_act_args *act,
                                 const nrd_product *down, bool *done) NRD_MUST_USE;

/* ---- residual.c ---- */

/* Whether layers leave what they add in delta, for the next norm. False: the norm that adds up the ranks' parts may leave each
 * rank with its own rows of x only. */
bool nrd_run_leaves_delta(const nrd_runner *r);
/* Adds what the sublayer before left in delta (through its post norm) and norms for the next.
 * row_ids: NULL, or the n_rows rows that are wanted; then n_rows counts. */
nrd_error *nrd_run_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                        const nrd_weight *delta_weight, const nrd_weight *weight,
                        const nrd_weight *bias, const nrd_product *next, const int32_t *row_ids,
                        int32_t n_rows) NRD_MUST_USE;
/* The same of all rows, for layers that need not have a norm: *out is x as `next` reads it, behind the norm, or as it is
 * where weight is NULL. */
nrd_error *nrd_run_input(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_weight *delta_weight, const nrd_weight *weight,
                         const nrd_weight *bias, const nrd_product *next, const void **out) NRD_MUST_USE;
/* What is between attention or an activation and the product behind it: the norm of `from`, [n_tokens, width], as `next` reads
 * it. */
nrd_error *nrd_run_inner_norm(nrd_runner *r, int32_t n_tokens, int32_t width, const nrd_weight *weight, const nrd_weight *bias,
                              void *from, const nrd_product *next, void *to) NRD_MUST_USE;
/* x += delta, through its post norm. */
nrd_error *nrd_run_add_delta(nrd_runner *r, int32_t n_tokens, const nrd_weight *delta_weight) NRD_MUST_USE;
/* The sum of the ranks' rows of x [n_tokens, hidden], in each of them. */
nrd_error *nrd_run_all_reduce(nrd_runner *r, void *x, int32_t n_tokens) NRD_MUST_USE;
/* Where ranks each have a part of the delta: all of it, unless the norm behind it sees to that. */
nrd_error *nrd_run_sum_delta(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* The last layer's delta into the residual, whole in every rank; where no delta is left behind, or another stage goes on. */
nrd_error *nrd_run_finish_delta(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* The norm of the delta that a layer leaves. */
static inline const nrd_weight *nrd_run_last_norm(const nrd_layer *y)
{
    return y->input.gate.n > 0 ? y->input.norm : y->post_mlp_norm;
}

/* ---- attention.c ---- */

/* x of one layer, behind its norm: delta = what attention makes of it. */
nrd_error *nrd_run_attend(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;
/* What a layer adds from the encoder's states: from x behind its norm to delta. */
nrd_error *nrd_run_cross_attention(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- mlp.c ---- */

/* x of one layer, behind its norm: delta = what the MLP makes of it, or the experts in its place. */
nrd_error *nrd_run_mlp(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- forward.c ---- */

/* Everything up to the last layer's delta, which is left for the final norm or not. */
nrd_error *nrd_run_layers(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;

/* ---- layer_inputs.c: nothing where no layer has an input of its own ---- */

nrd_error *nrd_run_init_layer_inputs(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_layer_inputs(nrd_runner *r);
/* The inputs of all layers, from the tokens and their embeddings, which are in x. */
nrd_error *nrd_run_embed_layer_inputs(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;
/* delta = what the layer makes of its input, gated by the state x, before its norm. */
nrd_error *nrd_run_layer_input(nrd_runner *r, int32_t n_tokens, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- altup.c ---- */

nrd_error *nrd_run_init_altup(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_altup(nrd_runner *r);
/* All layers of tokens that have several states, whose embeddings are in x; x becomes what the final norm reads, and no delta is
 * left. */
nrd_error *nrd_run_altup_layers(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;

/* ---- experts.c ---- */

nrd_error *nrd_run_init_experts(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_experts(nrd_runner *r);
/* The two parts of nrd_run_experts: the choice, from x as the router wants it; delta = what the chosen experts make of x, as their
 * first product wants it. */
nrd_error *nrd_run_route(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;
nrd_error *nrd_run_routed(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;
/* delta, which the MLP left, = the sum of it and of what the experts beside it make of x, each normed (experts_beside.c). */
nrd_error *nrd_run_experts_beside(nrd_runner *r, int32_t layer, int32_t n_tokens) NRD_MUST_USE;
/* Experts that read what attention reads, before it: the last layer's delta goes into x, and what they make of x waits in `beside`, each
 * rank's own part, until it is added to the delta that the MLP left (experts_beside.c). Both use delta, normed and what MLPs use. */
nrd_error *nrd_run_experts_before(nrd_runner *r, int32_t layer, int32_t n_tokens, bool has_delta,
                                  const nrd_weight *delta_weight) NRD_MUST_USE;
/* Nothing where the model has no such experts. */
nrd_error *nrd_run_add_experts_before(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* delta = what the layer's experts make of x, as their router wants it. */
nrd_error *nrd_run_experts(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x) NRD_MUST_USE;

/* ---- latent.c ---- */

nrd_error *nrd_run_init_latent(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_latent(nrd_runner *r);
/* att = attention of x, which is behind its norm, as the product `dense` wants it. */
nrd_error *nrd_run_latent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- recurrent.c ---- */

nrd_error *nrd_run_init_recurrent(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_recurrent(nrd_runner *r);
/* Snapshots into the slots of sequences that start from them, before a step; or the slots' states into snapshots, behind
 * it. */
nrd_error *nrd_run_copy_states(nrd_runner *r, const nrd_plan *p, bool load) NRD_MUST_USE;
/* delta = what a layer with a state makes of x, behind its norm. */
nrd_error *nrd_run_recurrent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x) NRD_MUST_USE;

/* ---- adapters.c ---- */

/* Adds to y = product p of x in this layer; position: NRD_LORA_AT_*. Nothing where no sequence of the step
 * has an adapter. */
nrd_error *nrd_run_adapters(nrd_runner *r, const nrd_batch *b, int32_t layer, int32_t position,
                            const nrd_product *p, const void *x, void *y) NRD_MUST_USE;

/* ---- inputs.c ---- */

nrd_error *nrd_run_check_inputs(const nrd_runner *r) NRD_MUST_USE;
/* Tells cfg.on_input what goes into product p: once it has been computed, so this waits. Nothing without on_input. */
nrd_error *nrd_run_tell_input(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                              int32_t n_tokens) NRD_MUST_USE;
/* The same of the chosen experts' product, expert by expert, behind the choice. x [n_tokens, cols], or with x_sorted one row
 * for each sorted pair. */
nrd_error *nrd_run_tell_experts(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                                bool x_sorted) NRD_MUST_USE;
/* Tells cfg.on_cache what rope_kv has put into the cache: r->qkv has it, too. Nothing without on_cache. */
nrd_error *nrd_run_tell_cache(nrd_runner *r, int32_t layer, int32_t n_tokens) NRD_MUST_USE;

/* ---- taps.c ---- */

nrd_error *nrd_run_init_taps(nrd_runner *r) NRD_MUST_USE;
/* Whether rank 0 keeps what goes into `layer`. */
bool nrd_run_is_tapped(const nrd_runner *r, int32_t layer);
/* x is what goes into `layer`. Nothing where this is not asked for. */
nrd_error *nrd_run_tap(nrd_runner *r, int32_t layer, int32_t n_tokens) NRD_MUST_USE;
/* Behind the last layer, whose delta is added already where none is left. */
nrd_error *nrd_run_tap_final(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* Whether a step's layers leave a delta that its first final norm has to add. */
bool nrd_run_head_adds_delta(const nrd_runner *r);

/* ---- head.c: the first call of a step has has_delta, which adds the last delta to all rows ----
 */

/* The final norm of some rows of x, as the head wants them. */
nrd_error *nrd_run_final_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                              const int32_t *row_ids, int32_t n_rows) NRD_MUST_USE;
/* Logits of some rows of x. */
nrd_error *nrd_run_head(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids,
                        int32_t n_rows) NRD_MUST_USE;
/* Prompt positions whose logits or states are wanted, told through the configuration's callbacks;
 * waits for each group. *has_delta becomes false where any were. */
nrd_error *nrd_run_context_rows(nrd_runner *r, const nrd_plan *p, bool *has_delta) NRD_MUST_USE;
/* The same for context_row of sequences, from a packed batch. */
nrd_error *nrd_run_context_row(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, bool *has_delta) NRD_MUST_USE;
/* The final norm of some rows of x as float32, into the memory of the logits. */
nrd_error *nrd_run_states(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids, int32_t n_rows) NRD_MUST_USE;
/* How many rows that memory takes at a time: the same number in all ranks. */
int32_t nrd_run_group_rows(const nrd_runner *r, bool of_states);
/* Sums of the states that a step's sequences want, on their way to the host; *has_delta as above. */
nrd_error *nrd_run_pool(nrd_runner *r, const nrd_plan *p, nrd_pooled *o, bool *has_delta) NRD_MUST_USE;
void nrd_run_tell_pooled(const nrd_runner *r, const nrd_pooled *o); /* the step has ended */
void nrd_run_pooled_fini(nrd_runner *r, nrd_pooled *o);
/* Rows [at, at + n) of x through the head, or only through the final norm, in the groups of
 * nrd_run_context_rows and nrd_run_pool, for the ranks that do not see what comes out. */
nrd_error *nrd_run_head_rows(nrd_runner *r, int32_t n_tokens, bool of_states, int32_t at, int32_t n,
                             bool *has_delta) NRD_MUST_USE;
/* The entry's positions [*first, *end) whose states are wanted; false: none are. */
bool nrd_run_state_range(const nrd_plan_entry *e, int32_t *first, int32_t *end);
/* The end of an entry's positions that belong to the prompt. */
int32_t nrd_run_prompt_end(const nrd_plan_entry *e);
/* Positions [first, end) of those of this step whose logits are wanted (want_context_rows); false: none. */
bool nrd_run_context_range(const nrd_plan_entry *e, int32_t *first, int32_t *end);

/* ---- choices.c ---- */

nrd_error *nrd_run_outputs_init(nrd_runner *r, nrd_outputs *o) NRD_MUST_USE;
void nrd_run_outputs_fini(nrd_runner *r, nrd_outputs *o);
/* Fills a slot's occurrences, and those behind each token of the entry's draft. Seldom without drafts (once for each
 * sequence with a penalty), so it may wait. */
nrd_error *nrd_run_init_counts(nrd_runner *r, const nrd_plan_entry *e) NRD_MUST_USE;
nrd_error *nrd_run_choose(nrd_runner *r, const nrd_batch *b, const nrd_outputs *o) NRD_MUST_USE;
/* Whether only the choice of tokens reads the logits, and all its arguments are known before they
 * are computed: then head and choice can be one operation. */
bool nrd_run_only_chosen(const nrd_runner *r, const nrd_plan *p, const nrd_batch *b);
/* Head and choice, by a device that need not store the logits. */
nrd_error *nrd_run_head_choose(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_batch *b,
                               const nrd_outputs *o) NRD_MUST_USE;
/* Keeps the logits of choices that asked for them. */
nrd_error *nrd_run_keep_choices(nrd_runner *r, const nrd_plan *p, nrd_outputs *o) NRD_MUST_USE;
/* From `mem` of this or the other buffer's outputs (same layout) to this one's host memory. */
nrd_error *nrd_run_download(nrd_runner *r, const nrd_batch *b, nrd_outputs *o,
                            const uint8_t *mem) NRD_MUST_USE;

/* ---- steps.c ---- */

/* The shape that a recorded step of n sequences with n_tokens, the longest with so many, and contexts up to `ctx` is filled up
 * to; false: such steps are not recorded. */
bool nrd_run_pad(const nrd_runner *r, int32_t n, int32_t n_tokens, int32_t longest, int32_t ctx, nrd_batch_pad *pad);
/* The padded step packed in b, recorded where its shape comes again, or at once. is_recording: as nrd_graphs_run has it. */
nrd_error *nrd_run_padded(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad, bool at_once, bool *is_recording) NRD_MUST_USE;
/* What rank 0 chose, to the other ranks, where steps are enqueued before the host knows it. */
nrd_error *nrd_run_tell_choices(nrd_runner *r) NRD_MUST_USE;

nrd_error *nrd_run_enqueue(nrd_runner *r, const nrd_plan *p, int32_t buffer) NRD_MUST_USE;

/* The rest of a staged step: rank 0 gets logits and chooses. */
nrd_error *nrd_run_conclude(nrd_runner *r, int32_t buffer) NRD_MUST_USE;

/* ---- stages.c ---- */

static inline bool nrd_run_is_staged(const nrd_runner *r)
{
    return r->model->pp_size > 1;
}

/* Where rank 0 is not on the last stage: rows of `width` floats from there, into the memory of the logits. */
nrd_error *nrd_run_hear_rows(nrd_runner *r, int32_t n_rows, size_t width) NRD_MUST_USE;
/* The other side: rows of the memory of logits, `stride` floats apart. Nothing where rank 0 is on the last stage. */
nrd_error *nrd_run_tell_rows(nrd_runner *r, int32_t n_rows, size_t width, size_t stride) NRD_MUST_USE;
/* The residual of a step's tokens, from the stage before and to the one behind. */
nrd_error *nrd_run_take_over(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
nrd_error *nrd_run_hand_over(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;

/* ---- share.c ---- */

/* Gives the step that is packed in b to the other ranks. Nothing where this one is alone. pad: the shape it
 * is filled up to, or NULL; ahead: it is recorded now. */
nrd_error *nrd_run_share(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, const nrd_batch_pad *pad,
                         bool ahead) NRD_MUST_USE;

/* ---- tune.c ---- */

/* Lets the device choose its kernels for every product and number of rows, within some seconds.
 * Needs the weights and activations; overwrites the latter. */
nrd_error *nrd_run_tune(nrd_runner *r) NRD_MUST_USE;

/* ---- network.c ---- */

/* A runner that only runs layers (nrd_run_layers), as an encoder's: without batches, choices and an encoder of its own.
 * cfg: as nrd_runner_new has it. */
nrd_error *nrd_run_open(nrd_runner **out, nrd_device *dev, const nrd_engine *engine, const nrd_runner_config *cfg) NRD_MUST_USE;
/* Waits. NULL is fine. */
void nrd_run_close(nrd_runner *r);

#endif
