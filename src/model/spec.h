/* SPDX-License-Identifier: Apache-2.0
 * model/spec.h - what a network is: sizes and the recipe of its block.
 *
 * Purpose   One struct describes every family; src/model/arch.c holds the table of families (a row
 *           = how config.json or GGUF metadata become this struct, and a weight map). The runner
 *           knows only this struct, never a family's name.
 * Owner     A plain value, immutable once made.
 * Units     Sizes of the whole model; a rank's share follows from tp/pp (heads, inter, also of experts, and vocab
 *           are divided by tp, layers by pp).
 */
#ifndef NRD_MODEL_SPEC_H
#define NRD_MODEL_SPEC_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "nereid/device.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    NRD_SPEC_MAX_LAYERS = 512,
    NRD_SPEC_MAX_ROTARY = 512,
    NRD_SPEC_MAX_STOP_IDS = 16,
    NRD_SPEC_MAX_BANNED_IDS = 16,
    NRD_SPEC_MAX_LABELS = 1024,
    NRD_SPEC_LABEL_BYTES = 16384,
    NRD_SPEC_MAX_REL_BUCKETS = 4096,
};

typedef enum {
    NRD_ROPE_SCALING_NONE = 0,
    NRD_ROPE_SCALING_LINEAR = 1,
    NRD_ROPE_SCALING_LLAMA3 = 2,
    NRD_ROPE_SCALING_YARN = 3,
    NRD_ROPE_SCALING_DYNAMIC = 5, /* NTK: the base grows with the length of the sequence */
    NRD_ROPE_SCALING_FACTORS = 4, /* per-frequency factors given in a tensor (GGUF) */
    NRD_ROPE_SCALING_LONGROPE = 6, /* factors for short and for long sequences (Phi-3) */
    NRD_ROPE_SCALING_PROPORTIONAL = 7, /* the share `factor` of the pairs turns, the others stay (Gemma 4) */
} nrd_rope_scaling;

typedef enum { NRD_SPEC_POOL_FIRST, NRD_SPEC_POOL_MEAN, NRD_SPEC_POOL_LAST } nrd_spec_pooling;

/* What becomes of the numbers that a classifier gives its labels. */
typedef enum { NRD_LABELS_SOFTMAX, NRD_LABELS_SIGMOID, NRD_LABELS_PLAIN } nrd_label_function;

/* A head for labels: of one state of a text [hidden], a number for each label. In this order, each if it is there:
 * a product with a square matrix, its activation, a norm, a product with a row for each label. */
typedef struct nrd_classifier_spec {
    int32_t n_labels;            /* 0: there is no such head */
    nrd_spec_pooling pooling;    /* the state that it reads */
    bool dense, dense_bias;
    char act[16];                /* behind `dense`: "tanh", "gelu", "gelu_tanh", "relu", "silu" */
    bool norm, norm_bias;        /* layer norm with the model's epsilon */
    bool bias;                   /* of the labels' rows */
    bool difference;             /* two rows, and one label: the second's number less the first's */
    bool from_tokens;            /* its rows are those of tokens in the LM head: the model makes text, too */
    int32_t token_ids[2];        /* which; for the build only */
    char prompt[16];             /* how a query and a document are put to it: "", "qwen3" (Qwen3-Reranker's own), "chat" (its template) */
    nrd_label_function function; /* of a text's labels, as transformers' pipelines choose */
    nrd_label_function pair_function; /* of the score of a pair, as sentence-transformers' CrossEncoder chooses */
    char labels[NRD_SPEC_LABEL_BYTES]; /* n_labels names behind each other, each with its NUL */
} nrd_classifier_spec;

/* Products that make a text's vector of its state, one behind the other (sentence-transformers' Dense). */
enum { NRD_SPEC_MAX_PROJECTIONS = 2 };
typedef struct nrd_projection_spec {
    int32_t size; /* numbers that it gives */
    bool bias;
    char act[16]; /* behind it: "none", or one of the names of nrd_classifier_spec.act */
} nrd_projection_spec;

typedef struct nrd_rope_spec {
    nrd_rope_kind kind;
    int32_t rotary_dim;
    double base;
    double base_scale; /* set by a hook before `base` is read, which it multiplies; 0: 1 */
    nrd_rope_scaling scaling;
    double factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow;
    double attention_factor; /* on cos and sin; 0 = what the scaling says */
    bool keep_fractions;     /* YARN: the ends of the blend are not rounded to whole dimensions */
    int32_t original_max_positions;
    int32_t sections[NRD_ROPE_AXES]; /* M-RoPE: how many pairs turn by each axis, one axis behind the other; all 0: by the position */
    bool sections_by_turns;          /* … or the axes by turns, as long as height and width have any left (Qwen3-VL) */
    float short_factors[NRD_SPEC_MAX_ROTARY / 2], long_factors[NRD_SPEC_MAX_ROTARY / 2]; /* LONGROPE */
} nrd_rope_spec;

/* Layers with experts: a router gives every token to top_k of n_experts MLPs; shared experts see all tokens. */
typedef struct nrd_moe_spec {
    int32_t n_experts, top_k;
    int32_t inter;         /* of one expert */
    int32_t shared_inter;  /* of all shared experts together; 0: none */
    bool shared_gate;      /* what they add is multiplied by a sigmoid of a product with the token */
    nrd_moe_score score;
    bool score_bias;       /* experts are ranked by score + bias (DeepSeek-V3) */
    int32_t n_groups, top_groups; /* 1, 1: no groups */
    bool group_max;        /* a group's score is that of its best expert (DeepSeek-V2), else of its best two */
    bool normalize;        /* the chosen scores are divided by their sum */
    float scale;
    float jitter;          /* of NRD_MOE_SPARSEMIXER */
    bool bias;             /* router and experts have biases */
    bool sum_bias;         /* what a layer's experts give together has one (Nomic Embed v2) */
    int32_t ep_size;       /* of tp_size ranks: so many share the list of experts, tp_size / ep_size each of these; 1 */
    /* An MLP stands beside them: both read the state behind a norm of their own, what each gives is normed before the sum; the router's
     * input is normed and scaled, and each expert has a factor (Gemma 4). */
    bool beside_mlp;
    bool before_attention; /* beside that: they read what attention reads, behind the norm of their own, and no sum is normed (Arctic) */
    bool scale_input;      /* what an expert reads is multiplied by its weight, what it gives is not (Llama 4); top_k 1 */
} nrd_moe_spec;

/* Latent attention (DeepSeek-V2, 2024): what is cached of a token is one row that all heads share. Its first kv_rank
 * numbers, normed, become every head's key and value by a product with the head's own matrix; the other rope_dim are
 * the part of the key that has a position, the same for all heads. */
typedef struct nrd_latent_spec {
    int32_t kv_rank;  /* 0: no latent attention */
    int32_t q_rank;   /* queries go through a normed row of this width, too; 0: they come from the state */
    int32_t nope_dim; /* of a head's query and key: without a position; head_dim is the sum of both */
    int32_t rope_dim; /* … with one */
    int32_t v_dim;    /* of a head's value */
    float norm_eps;   /* of the two norms */
} nrd_latent_spec;

typedef enum {
    NRD_RECURRENT_NONE = 0,
    NRD_RECURRENT_SHORT_CONV = 1, /* a gated convolution over a few tokens (LFM2) */
    NRD_RECURRENT_MAMBA2 = 2,     /* convolution, selective scan, gated norm */
    NRD_RECURRENT_DELTA = 3,      /* convolution, gated delta rule, gated norm (Qwen3-Next) */
    NRD_RECURRENT_MAMBA = 4,      /* convolution, scan of channels that decay each in its way, gate (Mamba) */
    NRD_RECURRENT_RG_LRU = 5,     /* convolution, gated linear unit whose gates are products of each head's own, gate (RecurrentGemma) */
} nrd_recurrent_kind;

/* Layers that remember a sequence in a state of fixed size, instead of keys and values of its tokens. */
typedef struct nrd_recurrent_spec {
    nrd_recurrent_kind kind;
    int32_t kernel;            /* tokens that the convolution sees */
    bool conv_bias, proj_bias; /* of the convolution; of the layer's products */
    int32_t n_heads, head_dim; /* of values */
    int32_t n_groups;          /* heads of keys: of b and c, of q and k */
    bool keys_by_turns;        /* of DELTA: heads of values take those of keys by turns, not several neighbours the same (GGUF files) */
    bool beta_twice;           /* of DELTA: nrd_delta_rule_args.twice */
    int32_t n_state;           /* numbers that are kept for each of a head's values: the length of a key */
    int32_t norm_groups;       /* parts of a row that are normed by themselves */
    float norm_eps;            /* of the gated norm, or of dt_bc_norms */
    float dt_min, dt_max;      /* the time step is kept between them */
    int32_t dt_rank;           /* of MAMBA: numbers of a token that its channels' time steps are made of */
    bool dt_bc_norms;          /* of MAMBA: RMS norms of those numbers, of b and of c (Falcon-Mamba) */
    bool c_norm;               /* beside it: that of c has weights of its own (Jamba) */
    bool no_norm;              /* of MAMBA2: what the scan gives is multiplied by silu(gate) and not normed (Falcon-H1) */
    bool norm_first;           /* of MAMBA2: normed before the gate multiplies it, not behind */
    bool beside_attention;     /* layers with a state have attention too: both read the same, and both are added (Falcon-H1) */
} nrd_recurrent_spec;

/* What layers have beside attention and MLP in Gemma 3n. */
typedef struct nrd_altup_spec {
    int32_t n_states;        /* of a token, of which layers read and write the first (Baykal et al., 2023); 0: one */
    int32_t laurel_rank;     /* of a product through few numbers that is added beside attention */
    int32_t per_layer;       /* numbers that a token's second embedding has for each layer; 0: there is none */
    int32_t per_layer_vocab; /* tokens that have one; others have token 0's */
} nrd_altup_spec;

enum { NRD_SPEC_ALTUP_STATES = 4 }; /* as all published models have */

/* Numbers that products' results are multiplied by (maximal update parametrization: Yang et al., 2022), in layers of Falcon-H1 and
 * Command A+. The build multiplies the weights by them, so nothing is left of them in a checkpoint or an engine. */
typedef struct nrd_multipliers_spec {
    bool any;
    float state_in[5]; /* of the rows of gate, x, b, c and time steps */
    float state_out, attn_out, mlp_gate, mlp_down, shared_down;
} nrd_multipliers_spec;

#define NRD_ALGO_W8A8 "W8A8" /* int8 weights that were made for inputs in int8, a scale for each token */

typedef struct nrd_model_spec {
    char architecture[64]; /* "LlamaForCausalLM", as config.json of the checkpoint says */
    char model_type[32];   /* the family's row in the table: "llama", "gemma3_text", … */
    nrd_dtype dtype;       /* of norms, biases and unquantized weights */
    nrd_dtype logits_dtype;
    char quant_algo[48];   /* "" none; "W8A16", NRD_ALGO_W8A8, "W4A16", "FP8", "GGUF" (mixed block formats) */

    int32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, inter, vocab;
    int32_t max_positions;

    nrd_norm_kind norm;
    float norm_eps;
    bool norm_bias;        /* norms have a bias */
    bool pre_norms;        /* norms before attention and MLP; false: only behind (OLMo 2) */
    bool post_norms;       /* norms behind attention and MLP, before the residual add (Gemma) */
    bool norms_by_kind;    /* with both: layers with a state have norms in front only, those with attention behind only (OLMo Hybrid) */
    bool parallel;         /* attention and MLP read the same state, both are added to it (GPT-J) */
    bool shared_norm;      /* with parallel: one norm for both */
    bool sum_norms;        /* with pre_norms: behind attention and MLP the sum is normed, and is the state then (BERT) */
    bool embed_norm;       /* a norm of the embeddings (BLOOM) */
    bool qk_norm;          /* of each head of q and k, with one weight for all heads */
    bool qk_norm_wide;     /* with qk_norm: of all heads together, each number with its own weight */
    bool qk_norm_apart;    /* with qk_norm: of each head, with weights of its own (Command R+) */
    bool qk_norm_center;   /* with qk_norm: layer norms */
    bool qk_norm_bias;     /* with qk_norm_center: a bias behind them (Persimmon) */
    bool qk_norm_late;     /* with qk_norm: behind the rotation (Hunyuan) */
    bool qk_norm_turned;   /* with qk_norm: not in layers without positions (Llama 4) */
    float clip_qkv;        /* > 0: q, k and v stay within it (DBRX) */
    /* > 0: queries grow with the logarithm of their position, by steps of q_scale_length (nrd_rope_kv_args) */
    float q_scale_beta;
    int32_t q_scale_length, q_scale_offset;
    bool q_scale_nope;     /* only in layers without positions */

    nrd_act_kind act;
    bool gated_mlp;
    /* > 0: of the numbers that the activation is applied to only what lies so many standard deviations above their mean stays
     * (nrd_act_args.cutoff) */
    float layer_cutoff[NRD_SPEC_MAX_LAYERS];
    nrd_altup_spec altup;
    /* So many of the last layers have no keys and values of their own: they read those of the last layer before them that slides as
     * they do, or does not. */
    int32_t n_shared_kv;
    bool v_norm;           /* values are divided by their root mean square */
    /* Of layers that do not slide, where the others differ: width of a head, and heads of keys and values. 0, 0: they do not.
     * inter of layers that share keys and values; 0: as of the others (Gemma 4). nrd_spec_of_layer settles all three. */
    int32_t full_head_dim, full_kv_heads, shared_kv_inter;
    bool values_are_keys;  /* in layers that do not slide: the values are the keys before their norm, weights are there twice */
    bool layer_scale;      /* the state behind a layer is multiplied by a number of the layer's own (Gemma 4) */
    bool has_experts;      /* instead of the MLP, but in layers where layer_is_dense says otherwise */
    nrd_moe_spec moe;      /* with has_experts */
    uint8_t layer_is_dense[NRD_SPEC_MAX_LAYERS];
    nrd_recurrent_spec recurrent; /* instead of attention in layers where layer_is_recurrent says so */
    uint8_t layer_is_recurrent[NRD_SPEC_MAX_LAYERS];
    /* Layers of one sublayer: an MLP (or experts) alone, and attention or a state alone (Nemotron-H, Mamba). */
    uint8_t layer_has_no_mixer[NRD_SPEC_MAX_LAYERS], layer_has_no_mlp[NRD_SPEC_MAX_LAYERS];
    bool qkv_bias, dense_bias, mlp_bias, lm_head_bias;
    nrd_latent_spec latent;

    bool encoder;             /* tokens see those behind them, too; it makes embeddings, no text */
    int32_t n_token_types;    /* rows of an embedding of the token's kind: 0, of a second text 1 (BERT). 0: none */
    nrd_spec_pooling pooling; /* how states become one vector */
    nrd_classifier_spec classifier;
    int32_t n_projections;
    nrd_projection_spec projections[NRD_SPEC_MAX_PROJECTIONS];
    /* Of an encoder-decoder model its two networks are engines of their own. */
    bool for_decoder;         /* beside encoder: its states go to a decoder */
    int32_t n_mels;           /* with for_decoder: it reads frames of so many features through two convolutions (Whisper),
                               * of two frames one state; 0: tokens */
    bool cross_attention;     /* layers also read the states of an encoder */
    int32_t start_id;         /* with cross_attention: the token that a text begins with where none are given; -1: none */
    int32_t first_id;         /* the token behind that one (BART's forced_bos_token_id); -1: any */
    int32_t banned_ids[NRD_SPEC_MAX_BANNED_IDS], n_banned_ids; /* with cross_attention: tokens that no text of its has (Marian's
                               * padding, whose logit means nothing) */
    bool mtp;                 /* one layer that guesses: it reads the states of another model and the tokens behind them, through a
                               * product of both, and has that model's embedding and LM head (DeepSeek-V3's MTP module) */
    int32_t rel_buckets;      /* biases of attention by distance, in so many buckets for each head (T5); 0: none */
    int32_t rel_distance;     /* from here on all distances are in one bucket */
    int32_t embed_width;      /* of embeddings that a product makes as wide as the state, behind their norm (ALBERT); 0: they are */
    bool no_first_norm;       /* attention of the first layer reads the normed embeddings as they are (ModernBERT) */
    bool learned_positions;
    bool alibi;               /* a bias that falls with the distance, instead of positions (BLOOM) */
    bool attn_gate;           /* what attention gives is multiplied by a sigmoid of a product with its input (Qwen3-Next) */
    bool inner_norms;         /* norms of what attention gives, and of what the MLP's activation gives, in front of the last products
                               * (Kosmos-2, BitNet); one tensor-parallel rank */
    bool sink_logits;         /* a number for each head in the softmax's denominator (GPT-OSS) */
    bool alibi_scaled;        /* attn_scale multiplies the biases, too (Falcon) */
    float alibi_max;          /* the slopes are 2^(-alibi_max * i / heads); 8 */
    nrd_rope_spec rope;       /* global layers */
    nrd_rope_spec rope_local; /* sliding layers, where they differ (Gemma 3); kind NONE: same */
    int32_t sliding_window;   /* 0: none */
    bool window_chunks;       /* layers that slide see the chunk of sliding_window positions that they are in (Llama 4) */
    uint8_t layer_is_sliding[NRD_SPEC_MAX_LAYERS];
    uint8_t layer_has_no_rope[NRD_SPEC_MAX_LAYERS]; /* no positions at all there (SmolLM3) */
    /* In the published model there is a layer in front of this one that is not counted here: it reads pictures, and a text
     * without any passes it by (Llama 3.2 Vision). Names of tensors and of adapters count it. */
    uint8_t layer_is_behind_gap[NRD_SPEC_MAX_LAYERS];
    int32_t picture_rows;     /* > 0: embeddings of a picture, all of which but the last take weights of their own in each layer: products of
                               * q, k and v, behind attention, and of the MLP (CogVLM) */
    bool reads_pictures;      /* those layers are there (nrd_spec_reads_pictures) */

    float embed_scale;        /* 1, or sqrt(hidden) rounded to dtype (Gemma) */
    float attn_scale;         /* on q·k */
    float attn_softcap, logits_softcap; /* 0: none */
    float logits_scale;       /* 1 */
    bool tied_embeddings;
    bool
        parallel_embedding; /* each tensor-parallel rank has its share of the embedding's rows, those of its share of the LM head, */
    bool
        embedding_by_columns; /* or with this of its columns; then the LM head is never the embedding */
    nrd_multipliers_spec multipliers; /* for the build only */
    bool unit_head;           /* rows of the LM head are divided by their length; for the build only */

    int32_t bos_id, eos_id, pad_id; /* -1: none */
    int32_t stop_ids[NRD_SPEC_MAX_STOP_IDS];
    int32_t n_stop_ids;

    int32_t tp_size, pp_size;
} nrd_model_spec;

/* The checkpoint's config.json, or the engine's pretrained_config (TensorRT-LLM names where it has them; ours under
 * "nereid"). Who reads one as a whole: nrd_arch_from_checkpoint. */
void nrd_model_spec_to_json(const nrd_model_spec *spec, nrd_str *out);

static inline bool nrd_spec_is_latent(const nrd_model_spec *spec)
{
    return spec->latent.kv_rank > 0;
}

/* Whether layers differ in the width of their heads or of their MLP. */
static inline bool nrd_spec_is_mixed(const nrd_model_spec *spec)
{
    return spec->full_head_dim > 0 || spec->shared_kv_inter > 0;
}

static inline int32_t nrd_spec_head_dim(const nrd_model_spec *spec, int32_t layer)
{
    return spec->full_head_dim > 0 && !spec->layer_is_sliding[layer] ? spec->full_head_dim : spec->head_dim;
}

static inline int32_t nrd_spec_own_kv_heads(const nrd_model_spec *spec, int32_t layer)
{
    return spec->full_head_dim > 0 && !spec->layer_is_sliding[layer] ? spec->full_kv_heads : spec->n_kv_heads;
}

static inline int32_t nrd_spec_inter(const nrd_model_spec *spec, int32_t layer)
{
    return spec->shared_kv_inter > 0 && layer >= spec->n_layers - spec->n_shared_kv ? spec->shared_kv_inter : spec->inter;
}

static inline bool nrd_spec_values_are_keys(const nrd_model_spec *spec, int32_t layer)
{
    return spec->values_are_keys && !spec->layer_is_sliding[layer];
}

/* The cache's geometry, as nrd_kv_layer has it: no heads where rows are latent. */
static inline int32_t nrd_spec_kv_heads(const nrd_model_spec *spec, int32_t layer)
{
    return nrd_spec_is_latent(spec) ? 0 : nrd_spec_own_kv_heads(spec, layer);
}

static inline int32_t nrd_spec_kv_dim(const nrd_model_spec *spec, int32_t layer)
{
    return nrd_spec_is_latent(spec) ? spec->latent.kv_rank + spec->latent.rope_dim : nrd_spec_head_dim(spec, layer);
}

/* Numbers that a layer keeps of a token. */
static inline int64_t nrd_spec_kv_numbers(const nrd_model_spec *spec, int32_t layer)
{
    return nrd_spec_kv_dim(spec, layer) * (nrd_spec_is_latent(spec) ? 1 : 2 * (int64_t)nrd_spec_own_kv_heads(spec, layer));
}

/* Of a head, what attention gives. */
static inline int32_t nrd_spec_value_dim(const nrd_model_spec *spec)
{
    return nrd_spec_is_latent(spec) ? spec->latent.v_dim : spec->head_dim;
}

/* Whether this layer of the network has experts. */
static inline bool nrd_spec_layer_has_experts(const nrd_model_spec *spec, int32_t layer)
{
    return spec->has_experts && !spec->layer_is_dense[layer];
}

/* The number that a layer has in the published model. */
static inline int32_t nrd_spec_source_layer(const nrd_model_spec *spec, int32_t layer)
{
    int32_t source = layer;
    for (int32_t i = 0; i <= layer && i < spec->n_layers; i++) {
        source += spec->layer_is_behind_gap[i];
    }
    return source;
}

/* The layer that has this number in the published model; -1: one that is not computed. Numbers behind the last go on. */
static inline int32_t nrd_spec_layer_of_source(const nrd_model_spec *spec, int32_t source)
{
    int32_t at = -1;
    for (int32_t i = 0; i < spec->n_layers; i++) {
        at += 1 + spec->layer_is_behind_gap[i];
        if (at >= source) {
            return at == source ? i : -1;
        }
    }
    return spec->n_layers + (source - at - 1);
}

/* Whether layers read pictures: pipeline stages take text alone. */
static inline bool nrd_spec_reads_pictures(const nrd_model_spec *spec)
{
    return spec->reads_pictures && spec->pp_size == 1;
}

/* Whether the published model has layers that are not counted. */
static inline bool nrd_spec_has_gaps(const nrd_model_spec *spec)
{
    return spec->n_layers > 0 && nrd_spec_source_layer(spec, spec->n_layers - 1) != spec->n_layers - 1;
}

/* Whether some layer keeps a state of each sequence. */
static inline bool nrd_spec_is_recurrent(const nrd_model_spec *spec)
{
    return spec->recurrent.kind != NRD_RECURRENT_NONE;
}

static inline bool nrd_spec_layer_has_attention(const nrd_model_spec *spec, int32_t layer)
{
    return (!spec->layer_is_recurrent[layer] || spec->recurrent.beside_attention) && !spec->layer_has_no_mixer[layer];
}

/* The layer whose keys and values a layer with attention reads: itself, or where it has none, one before; -1: there is no such one. */
static inline int32_t nrd_spec_kv_source(const nrd_model_spec *spec, int32_t layer)
{
    const int32_t own = spec->n_layers - spec->n_shared_kv;
    int32_t i = layer < own ? layer : own - 1;
    while (i >= 0 && i != layer && spec->layer_is_sliding[i] != spec->layer_is_sliding[layer]) {
        i--;
    }
    return i;
}

static inline bool nrd_spec_layer_has_cache(const nrd_model_spec *spec, int32_t layer)
{
    return nrd_spec_layer_has_attention(spec, layer) && layer < spec->n_layers - spec->n_shared_kv;
}

/* Layers that have a KV cache; there may be none. */
static inline int32_t nrd_spec_kv_layers(const nrd_model_spec *spec)
{
    int32_t n = 0;
    for (int32_t i = 0; i < spec->n_layers; i++) {
        n += nrd_spec_layer_has_cache(spec, i);
    }
    return n;
}

/* Numbers that all of them together keep of a token. */
static inline int64_t nrd_spec_all_kv_numbers(const nrd_model_spec *spec)
{
    int64_t n = 0;
    for (int32_t i = 0; i < spec->n_layers; i++) {
        n += nrd_spec_layer_has_cache(spec, i) ? nrd_spec_kv_numbers(spec, i) : 0;
    }
    return n;
}

/* Whether a second embedding has something for each layer. */
static inline bool nrd_spec_has_layer_inputs(const nrd_model_spec *spec)
{
    return spec->altup.per_layer > 0;
}

/* Of models whose tokens of a picture see all of it: whether they do in layers with a window only. */
static inline bool nrd_spec_sees_pictures_in_windows(const nrd_model_spec *spec)
{
    return !strcmp(spec->model_type, "gemma4_text");
}

static inline bool nrd_spec_has_altup(const nrd_model_spec *spec)
{
    return spec->altup.n_states > 0;
}

/* Layers that have a state. */
static inline int32_t nrd_spec_state_layers(const nrd_model_spec *spec)
{
    int32_t n = 0;
    for (int32_t i = 0; i < spec->n_layers; i++) {
        n += spec->layer_is_recurrent[i];
    }
    return n;
}

/* Ranks lie stage by stage: rank r is number r % tp_size of pipeline stage r / tp_size. */
static inline bool nrd_spec_is_first(const nrd_model_spec *spec, int32_t rank)
{
    return rank < spec->tp_size;
}

static inline bool nrd_spec_is_last(const nrd_model_spec *spec, int32_t rank)
{
    return rank / spec->tp_size == spec->pp_size - 1;
}

/* The first layer of the rank's stage, counted in the whole network. */
static inline int32_t nrd_spec_first_layer(const nrd_model_spec *spec, int32_t rank)
{
    return rank / spec->tp_size * (spec->n_layers / spec->pp_size);
}

/* Ranks that divide each expert of those that they have together. */
static inline int32_t nrd_spec_moe_tp(const nrd_model_spec *spec)
{
    return spec->tp_size / spec->moe.ep_size;
}

/* The first expert that a rank has, whole or a part of it, and how many; of layers with experts. As in TensorRT-LLM rank r of a
 * stage is number r % ep_size of those that share the list and number r / ep_size of those that divide an expert. Where
 * the list does not come out even, some have one expert more. */
static inline int32_t nrd_spec_first_expert(const nrd_model_spec *spec, int32_t rank)
{
    return rank % spec->tp_size % spec->moe.ep_size * spec->moe.n_experts / spec->moe.ep_size;
}

static inline int32_t nrd_spec_own_experts(const nrd_model_spec *spec, int32_t rank)
{
    const int32_t next = rank % spec->tp_size % spec->moe.ep_size + 1;
    return next * spec->moe.n_experts / spec->moe.ep_size - nrd_spec_first_expert(spec, rank);
}

static inline int32_t nrd_spec_moe_tp_rank(const nrd_model_spec *spec, int32_t rank)
{
    return rank % spec->tp_size / spec->moe.ep_size;
}

/* The network that one rank computes: its stage's layers, and of them its share of the heads and of inter. moe.n_experts stays:
 * every rank routes among all. Where
 * there are fewer KV heads than tensor-parallel ranks, several ranks have the same one. */
nrd_model_spec nrd_spec_of_rank(const nrd_model_spec *spec, int32_t rank);

/* The same network as if all layers were as wide as this one: head_dim, n_kv_heads and inter are this layer's. */
nrd_model_spec nrd_spec_of_layer(const nrd_model_spec *spec, int32_t layer);

/* NRD_ROPE_SCALING_DYNAMIC settled for sequences of up to seq_len tokens: plain up to
 * original_max_positions, else the base that the rule gives for seq_len, at every position (a base that
 * changed within a sequence would not fit the keys that are cached). LONGROPE likewise: the short
 * factors up to original_max_positions, else the long ones (in long_factors then). Other ropes stay as
 * they are. */
nrd_rope_spec nrd_rope_for_length(const nrd_rope_spec *rope, int32_t seq_len);

/* A list of three numbers, or NULL: none. Their sum is looked at by nrd_model_spec_check. */
nrd_error *nrd_rope_read_sections(nrd_rope_spec *rope, const nrd_json *list) NRD_MUST_USE;
bool nrd_rope_has_axes(const nrd_rope_spec *rope); /* it has sections */

/* Inverse frequencies of a rope: out[rotary_dim / 2], scaling applied. `factors` [rotary_dim / 2]
 * only for NRD_ROPE_SCALING_FACTORS. Returns the factor for cos and sin. */
float nrd_rope_inv_freq(const nrd_rope_spec *rope, const float *factors, float *out);

#endif
