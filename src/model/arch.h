/* SPDX-License-Identifier: Apache-2.0
 * model/arch.h - the table of model families.
 *
 * Purpose   A row says under which names a family appears (Hugging Face, GGUF, TensorRT-LLM), how
 *           its config becomes an nrd_model_spec, and its weight map: which tensors of the source
 *           make which tensor of the checkpoint. Rows live in model/families, a file for those that
 *           are alike; docs/adding-a-model.md says how to add one.
 * Owner     Constant data and pure functions, any thread.
 * Errors    UNSUPPORTED names the family that is not in the table, the nearest that are, and all.
 * Sources   Configuration classes of Hugging Face transformers; GGUF's key list (ggml-org/ggml,
 *           docs/gguf.md); TensorRT-LLM's checkpoint documentation. Facts only.
 */
#ifndef NRD_MODEL_ARCH_H
#define NRD_MODEL_ARCH_H

#include "base/error.h"
#include "base/json.h"
#include "formats/gguf.h"
#include "model/spec.h"

#include <stdbool.h>
#include <stdint.h>

/* A length that a weight has on one side, as a function of the spec. */
typedef enum {
    NRD_DIM_ONE,
    NRD_DIM_KV_RANGE, /* a number for each head of keys, and for each of values */
    NRD_DIM_HIDDEN,
    NRD_DIM_EMBED,      /* an embedding */
    NRD_DIM_TWO_HIDDEN, /* an embedding and a state beside each other */
    NRD_DIM_QKV,      /* (n_heads + 2 n_kv_heads) * head_dim */
    NRD_DIM_Q,        /* n_heads * head_dim */
    NRD_DIM_KV,       /* n_kv_heads * head_dim */
    NRD_DIM_INTER,
    NRD_DIM_VOCAB,
    NRD_DIM_VOCAB_PART, /* of a rank: vocab / tp_size, rounded up */
    NRD_DIM_HEADS,
    NRD_DIM_Q_NORM,   /* one head, or all heads of a row */
    NRD_DIM_K_NORM,
    NRD_DIM_POSITIONS,
    NRD_DIM_TOKEN_TYPES,
    NRD_DIM_REL_BUCKETS,
    NRD_DIM_LABELS,       /* rows of a classifier's last product */
    NRD_DIM_PROJECTION_1, /* numbers that the first projection gives */
    NRD_DIM_PROJECTION_2,
    NRD_DIM_ROPE_HALF,
    NRD_DIM_EXPERTS,      /* how many there are */
    NRD_DIM_EXPERT_INTER, /* of one of them */
    NRD_DIM_SHARED_INTER, /* of the shared experts together */
    NRD_DIM_VALUES,   /* n_heads * what attention gives of each */
    NRD_DIM_Q_INPUT,  /* latent attention: what queries are made of */
    NRD_DIM_Q_RANK,
    NRD_DIM_KV_RANK,
    NRD_DIM_LATENT,   /* a row of the cache */
    NRD_DIM_KEYS,     /* n_heads * the part of a key without a position */
    NRD_DIM_RECURRENT_IN,       /* of layers with a state: rows of the first product (model/spec_recurrent.h) */
    NRD_DIM_RECURRENT_CHANNELS, /* of the convolution */
    NRD_DIM_RECURRENT_KERNEL,
    NRD_DIM_RECURRENT_INNER,    /* of all heads */
    NRD_DIM_RECURRENT_HEADS,
    NRD_DIM_RECURRENT_HEAD,     /* of one */
    NRD_DIM_RECURRENT_NORM,     /* weights of the gated norm */
    NRD_DIM_RECURRENT_STATE,    /* numbers of a head's state, for each of its own */
    NRD_DIM_RECURRENT_DT,       /* numbers that time steps are made of */
    NRD_DIM_RECURRENT_BC,       /* b and c */
    NRD_DIM_ALTUP_STATES,
    NRD_DIM_ALTUP_PAIRS,     /* of states */
    NRD_DIM_LAUREL,
    NRD_DIM_PER_LAYER,
    NRD_DIM_PER_LAYER_ALL,   /* of all layers */
    NRD_DIM_PER_LAYER_VOCAB,
    NRD_DIM_CONV1, /* of an encoder that hears: three frames, what the first convolution reads */
    NRD_DIM_CONV2, /* … three states */
} nrd_dim;

/* How tensor parallelism divides a weight. */
typedef enum {
    NRD_SHARD_NONE, /* every rank has all of it */
    NRD_SHARD_ROWS,
    NRD_SHARD_COLS,
    NRD_SHARD_QKV,  /* by heads; k and v heads are repeated when there are fewer than ranks */
    NRD_SHARD_KV,   /* the rows of k or v heads alone, likewise */
    NRD_SHARD_VOCAB, /* rows, padded with zeros to a multiple of tp_size */
    NRD_SHARD_Q_NORM, /* by heads, where each has weights of its own; else every rank has all of it */
    NRD_SHARD_K_NORM,
} nrd_shard;

/* When a weight exists. */
typedef enum {
    NRD_WHEN_ALWAYS,
    NRD_WHEN_QKV,           /* heads have keys and values of their own */
    NRD_WHEN_QKV_BIAS,
    NRD_WHEN_LATENT,
    NRD_WHEN_LATENT_Q,      /* … of the queries, too */
    NRD_WHEN_DENSE_BIAS,
    NRD_WHEN_MLP_BIAS,
    NRD_WHEN_GATED,
    NRD_WHEN_GATE_BIAS,     /* gated, and the MLP has biases */
    NRD_WHEN_PRE_NORMS,
    NRD_WHEN_PRE_NORM_BIAS,
    NRD_WHEN_MLP_NORM,      /* a norm before the MLP that is not the attention's */
    NRD_WHEN_MLP_NORM_BIAS,
    NRD_WHEN_NORM_BIAS,
    NRD_WHEN_TOKENS,        /* it reads tokens */
    NRD_WHEN_SOUND,         /* … frames of features */
    NRD_WHEN_MTP,           /* … the states of another model */
    NRD_WHEN_EMBED_NORM,
    NRD_WHEN_EMBED_NORM_BIAS,
    NRD_WHEN_EMBED_PROJECTION,
    NRD_WHEN_FINAL_NORM,
    NRD_WHEN_FINAL_NORM_BIAS,
    NRD_WHEN_TOKEN_TYPES,
    NRD_WHEN_REL_BIAS,
    NRD_WHEN_CROSS,
    NRD_WHEN_CROSS_NORM_BIAS,
    NRD_WHEN_CROSS_Q_BIAS, /* of q and v; keys have one where the model's own attention has */
    NRD_WHEN_CROSS_DENSE_BIAS,
    NRD_WHEN_PICTURES,      /* of layers that read pictures, in front of others */
    NRD_WHEN_PICTURE_ROWS,  /* weights that a picture's embeddings take */
    NRD_WHEN_INNER_NORMS,
    NRD_WHEN_INNER_NORM_BIAS,
    NRD_WHEN_QK_NORM,
    NRD_WHEN_QK_NORM_BIAS,
    NRD_WHEN_POST_NORMS,
    NRD_WHEN_UNTIED,
    NRD_WHEN_LM_HEAD_BIAS,
    NRD_WHEN_POSITIONS,
    NRD_WHEN_ROPE_FACTORS,
    NRD_WHEN_EXPERTS,
    NRD_WHEN_EXPERTS_GATED,
    NRD_WHEN_SCORE_BIAS,
    NRD_WHEN_SHARED,        /* experts that all tokens see */
    NRD_WHEN_SHARED_GATED,
    NRD_WHEN_SHARED_GATE,
    NRD_WHEN_EXPERT_BIAS,
    NRD_WHEN_EXPERTS_SUM_BIAS,
    NRD_WHEN_EXPERTS_BESIDE, /* an MLP */
    NRD_WHEN_EXPERTS_BEHIND, /* … and behind attention */
    NRD_WHEN_SINK_LOGITS,
    NRD_WHEN_XIELU,
    NRD_WHEN_ATTN_GATE,
    NRD_WHEN_ALTUP,
    NRD_WHEN_LAYER_INPUTS,  /* a second embedding has something for each layer */
    NRD_WHEN_LAYER_SCALE,
    NRD_WHEN_SHARED_KV,     /* some layers have queries only */
    NRD_WHEN_RECURRENT,
    NRD_WHEN_RECURRENT_CONV_BIAS,
    NRD_WHEN_RECURRENT_PROJ_BIAS,
    NRD_WHEN_RECURRENT_HEADS, /* time steps with a bias */
    NRD_WHEN_RECURRENT_RATES, /* a rate for each head */
    NRD_WHEN_SSM,             /* a selective scan */
    NRD_WHEN_GATED_NORM,
    NRD_WHEN_MAMBA,
    NRD_WHEN_MAMBA_NORMS,
    NRD_WHEN_MAMBA_C_NORM,
    NRD_WHEN_DELTA,
    NRD_WHEN_RECURRENT_GATE,  /* a product of its own */
    NRD_WHEN_RECURRENT_GATE_BIAS,
    NRD_WHEN_RG_LRU,
    NRD_WHEN_CLASSIFIER,
    NRD_WHEN_CLASSIFIER_BIAS,
    NRD_WHEN_CLASSIFIER_DENSE,
    NRD_WHEN_CLASSIFIER_DENSE_BIAS,
    NRD_WHEN_CLASSIFIER_NORM,
    NRD_WHEN_CLASSIFIER_NORM_BIAS,
    NRD_WHEN_PROJECTION_1,
    NRD_WHEN_PROJECTION_1_BIAS,
    NRD_WHEN_PROJECTION_2,
    NRD_WHEN_PROJECTION_2_BIAS,
} nrd_when;

enum {
    NRD_RULE_TRANSPOSE = 1u,    /* the source keeps [in, out] (GPT-2's Conv1D) */
    NRD_RULE_ADD_ONE = 2u,      /* the source keeps w of a norm that multiplies by 1 + w */
    NRD_RULE_LINEAR = 4u,       /* used by linear(): quantized and packed; set by the plan */
    NRD_RULE_FIRST_HALF = 8u,   /* the source has two such matrices, one above the other: the upper */
    NRD_RULE_SECOND_HALF = 16u, /* … the lower */
    NRD_RULE_GROUPED_QKV = 32u, /* the source has for each KV head its queries, its key, its value */
    NRD_RULE_SKIP_TWO = 64u,    /* the source's first two rows are not used (OPT's positions) */
    NRD_RULE_EVEN_ROWS = 128u,  /* the source has the rows of two such matrices by turns: the first one's */
    NRD_RULE_ODD_ROWS = 256u,   /* … the second one's (GPT-OSS's gate and up) */
    NRD_RULE_ONES = 512u,       /* no source has it: all are 1 (norms without weights) */
    NRD_RULE_UNIT_ROWS = 1024u, /* rows are divided by their length; set by the plan */
    /* Latent attention. The source has for each head the rows of its key, then those of its value: the keys' or the
     * values'. Or it has the keys' matrix of each head the other way round, [kv_rank, nope_dim]. */
    NRD_RULE_HEAD_KEYS = 2048u,
    NRD_RULE_HEAD_VALUES = 4096u,
    NRD_RULE_TURNED_HEADS = 8192u,
    NRD_RULE_HEADS_APART = 16384u, /* the source has three dimensions, the heads in front */
    NRD_RULE_IF_THERE = 32768u,    /* where the source has it and no rule before made the same */
    NRD_RULE_NEGATIVE_EXP = 65536u, /* the source keeps log(-x) (Mamba's A_log) */
    NRD_RULE_QUERY_ROWS = 131072u,  /* the source has for each head its query, then its gate: q's rows are the queries */
    NRD_RULE_GATE_ROWS = 262144u,   /* … these rows are the gates (Qwen3-Next) */
    NRD_RULE_ZEROS = 524288u,       /* no source has it: all are 0 */
    NRD_RULE_NO_KEYS = 2097152u,    /* the source has no bias of the keys, which is 0 (Whisper) */
    NRD_RULE_KERNEL_LAST = 4194304u, /* a convolution [out, in, kernel]: rows become [kernel, in] */
    NRD_RULE_DT_ROWS = 8388608u,     /* the source has the rows of time steps, then those of b and c: the former (Mamba) */
    NRD_RULE_BC_ROWS = 16777216u,    /* … the latter */
    /* No source needs to have them: fixed sinusoids of positions (Vaswani et al., 2017), the sines in front of the cosines. Pair i
     * of n numbers turns by 10000^(-2i/n) a position (Marian), … */
    NRD_RULE_SINUSOIDS = 33554432u,
    /* … or by 10000^(-i/(n/2-1)), as tensor2tensor has it, and the first position is that behind pad_id (fairseq), of a decoder
     * alone 2. */
    NRD_RULE_FAIRSEQ_SINUSOIDS = 67108864u,
    NRD_RULE_EIGHT_MORE = 134217728u, /* the source has eight rows more behind, which are not used (Llama 3.2 Vision's embedding) */
    /* The source's second tensor has rows that are multiplied by its first, a product of the network that is done at the build: [cols,
     * width] gives a row's numbers, or [width, cols] takes its own (OPT-350m). With NRD_RULE_IF_THERE. */
    NRD_RULE_TIMES = 536870912u,
    NRD_RULE_QVK_QUARTERS = 268435456u, /* the source has four parts, each a quarter of the queries, of the values, of the keys (CodeGen) */
    NRD_RULE_JOINED_KV = 1073741824u, /* the second source has the keys and the values, and is named again as the third (SantaCoder) */
    NRD_RULE_DELTA_GROUPS = 1048576u, /* the source has for each key head q, k, v and gate, or beta and alpha (Qwen3-Next) */
};

/* `dst` as in the table of needs (model/needs.h), which knows its shape and when it exists. In a source's name '*' is
 * the layer, '^' the one before it and '#' the expert; '|' stands between two names of which it has one (not beside '#'). A source without '#'
 * of a weight of experts has all of them: [experts, rows, cols], or one below the other. "[k]" behind a name: matrix k of a source
 * with three dimensions. Several sources are stacked
 * along the rows in their order; a single source of a QKV weight is already q, k, v stacked. Rules for what a model has
 * not got are ignored. '#' in a norm of q or k: a source for each head. */
typedef struct nrd_weight_rule {
    const char *dst;
    const char *src[3];
    uint32_t flags;
} nrd_weight_rule;

typedef struct nrd_arch {
    const char *model_type;         /* our name: nrd_model_spec.model_type */
    const char *architecture;       /* written into checkpoints (TensorRT-LLM's name) */
    const char *hf_model_types[4];  /* config.json model_type; ends with NULL, or full */
    const char *hf_architectures[3];
    const char *gguf_arch;          /* general.architecture, with '|' between several; NULL: none */
    const char *hf_prefixes[5];     /* put before the names of hf_rules, tried in order */
    const nrd_weight_rule *hf_rules;   /* ends with dst NULL */
    const nrd_weight_rule *gguf_rules;
    uint64_t traits;                /* model/families/family.h */
    /* What of config.json only this family has, read after the common keys; or NULL. */
    nrd_error *(*hf)(nrd_model_spec *spec, const nrd_json *config);
    /* The same of GGUF metadata. */
    nrd_error *(*gguf)(nrd_model_spec *spec, const nrd_gguf *file);
} nrd_arch;

const nrd_arch *nrd_arch_at(int i); /* NULL behind the last */
/* What follows from the family alone; `spec` is initialized. */
void nrd_arch_of_family(nrd_model_spec *spec, const nrd_arch *arch);
const nrd_arch *nrd_arch_by_model_type(const char *model_type);

/* The configuration of a decoder where config.json has it as a whole (VILA), whose files are in folders for each part of the model;
 * else config.json itself. */
const nrd_json *nrd_arch_decoder_config(const nrd_json *config);
/* config.json of a Hugging Face folder. `generation` is generation_config.json or NULL. */
nrd_error *nrd_arch_from_hf(nrd_model_spec *out, const nrd_arch **out_arch, const nrd_json *config,
                            const nrd_json *generation) NRD_MUST_USE;
/* INVALID_ARG where a key of config.json that families know has a value of another kind, as a number in quotes. */
nrd_error *nrd_arch_check_types(const nrd_json *config) NRD_MUST_USE;
/* The encoder whose states a decoder of this family reads: a row that is found here only. NULL: it reads none. */
const nrd_arch *nrd_arch_encoder_of(const nrd_arch *decoder);
/* That encoder, from the configuration of both. */
nrd_error *nrd_arch_encoder_from_hf(nrd_model_spec *out, const nrd_arch *decoder, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_arch_from_gguf(nrd_model_spec *out, const nrd_arch **out_arch, const nrd_gguf *g)
    NRD_MUST_USE;
/* The encoder of a GGUF file that has a decoder of this family. */
nrd_error *nrd_arch_encoder_from_gguf(nrd_model_spec *out, const nrd_arch *decoder, const nrd_gguf *g) NRD_MUST_USE;
/* The config.json that nrd_model_spec_to_json writes, or TensorRT-LLM's own converters. Refuses sizes out of range, naming
 * the field. */
nrd_error *nrd_arch_from_checkpoint(nrd_model_spec *out, const nrd_json *config) NRD_MUST_USE;

/* Of the layer behind the last that guesses (spec.h, mtp), in a model that is read. */
nrd_model_spec nrd_arch_mtp_spec(const nrd_model_spec *model);

/* UNSUPPORTED for a family that is not in the table: `kind` is the field that named it. Says which names are
 * near to it, and what the configuration has that no row could compute (`config` may be NULL). */
nrd_error *nrd_arch_unknown(const char *kind, const char *name, const nrd_json *config) NRD_MUST_USE;

int64_t nrd_dim_of(const nrd_model_spec *spec, nrd_dim dim);
bool nrd_when_holds(const nrd_model_spec *spec, nrd_when when);

/* model/spec.c, for those who fill a spec. */
void nrd_model_spec_init(nrd_model_spec *spec);
/* What a checkpoint's config.json says, with nothing that follows from its family where it has no section of ours. */
nrd_error *nrd_model_spec_read(nrd_model_spec *out, const nrd_json *config) NRD_MUST_USE;
/* The refusal of a checkpoint whose weights another converter has quantized. */
nrd_error *nrd_spec_foreign_quantization(const char *algo) NRD_MUST_USE;
nrd_error *nrd_model_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
/* One more of banned_ids; INVALID_ARG: no id, or too many. */
nrd_error *nrd_model_spec_ban(nrd_model_spec *spec, int64_t id) NRD_MUST_USE;
void nrd_model_spec_add_stop_id(nrd_model_spec *spec, int64_t id); /* ignores doubles, bad ids */
const char *nrd_act_name(nrd_act_kind act);
bool nrd_act_parse(const char *name, nrd_act_kind *out, bool *out_gated);

#endif
