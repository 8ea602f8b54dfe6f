/* SPDX-License-Identifier: Apache-2.0
 * model/arch.h - the table of model families.
 *
 * Purpose   A row says under which names a family appears (Hugging Face, GGUF, TensorRT-LLM), how
 *           its config becomes an nrd_model_spec, and its weight map: which tensors of the source
 *           make which tensor of the checkpoint. To add a family, add a row and two weight maps.
 * Owner     Constant data and pure functions, any thread.
 * Errors    UNSUPPORTED names the family that is not in the table and lists those that are.
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
    NRD_DIM_HIDDEN,
    NRD_DIM_QKV,      /* (n_heads + 2 n_kv_heads) * head_dim */
    NRD_DIM_Q,        /* n_heads * head_dim */
    NRD_DIM_KV,       /* n_kv_heads * head_dim */
    NRD_DIM_INTER,
    NRD_DIM_VOCAB,
    NRD_DIM_VOCAB_PART, /* of a rank: vocab / tp_size, rounded up */
    NRD_DIM_HEAD,
    NRD_DIM_POSITIONS,
    NRD_DIM_ROPE_HALF,
} nrd_dim;

/* How tensor parallelism divides a weight. */
typedef enum {
    NRD_SHARD_NONE, /* every rank has all of it */
    NRD_SHARD_ROWS,
    NRD_SHARD_COLS,
    NRD_SHARD_QKV,  /* by heads; k and v heads are repeated when there are fewer than ranks */
    NRD_SHARD_VOCAB, /* rows, padded with zeros to a multiple of tp_size */
} nrd_shard;

/* When a weight exists. */
typedef enum {
    NRD_WHEN_ALWAYS,
    NRD_WHEN_QKV_BIAS,
    NRD_WHEN_DENSE_BIAS,
    NRD_WHEN_MLP_BIAS,
    NRD_WHEN_GATED,
    NRD_WHEN_GATE_BIAS,  /* gated, and the MLP has biases */
    NRD_WHEN_LAYER_NORM, /* norms with a bias */
    NRD_WHEN_QK_NORM,
    NRD_WHEN_POST_NORMS,
    NRD_WHEN_UNTIED,
    NRD_WHEN_LM_HEAD_BIAS,
    NRD_WHEN_POSITIONS,
    NRD_WHEN_ROPE_FACTORS,
} nrd_when;

enum {
    NRD_RULE_TRANSPOSE = 1u, /* the source keeps [in, out] (GPT-2's Conv1D) */
    NRD_RULE_ADD_ONE = 2u,   /* the source keeps w of a norm that multiplies by 1 + w */
    NRD_RULE_LINEAR = 4u,    /* used by linear(): quantized and packed */
};

/* '*' in a name is the layer. Several sources are stacked along the rows in their order; a single
 * source of a QKV weight is already q, k, v stacked. */
typedef struct nrd_weight_rule {
    const char *dst;
    const char *src[3];
    nrd_dim rows, cols;
    nrd_shard shard;
    nrd_when when;
    uint32_t flags;
} nrd_weight_rule;

typedef struct nrd_arch {
    const char *model_type;         /* our name: nrd_model_spec.model_type */
    const char *architecture;       /* written into checkpoints (TensorRT-LLM's name) */
    const char *hf_model_types[3];  /* config.json model_type */
    const char *hf_architectures[3];
    const char *gguf_arch;          /* general.architecture; NULL: none */
    const char *hf_prefixes[4];     /* put before the names of hf_rules, tried in order */
    const nrd_weight_rule *hf_rules;   /* ends with dst NULL */
    const nrd_weight_rule *gguf_rules;
    uint32_t traits;
} nrd_arch;

const nrd_arch *nrd_arch_at(int i); /* NULL behind the last */
const nrd_arch *nrd_arch_by_model_type(const char *model_type);

/* config.json of a Hugging Face folder. `generation` is generation_config.json or NULL. */
nrd_error *nrd_arch_from_hf(nrd_model_spec *out, const nrd_arch **out_arch, const nrd_json *config,
                            const nrd_json *generation) NRD_MUST_USE;
nrd_error *nrd_arch_from_gguf(nrd_model_spec *out, const nrd_arch **out_arch, const nrd_gguf *g)
    NRD_MUST_USE;
/* Completes a spec whose common fields were read from a config.json without our section. */
nrd_error *nrd_arch_from_trtllm(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;

int64_t nrd_dim_of(const nrd_model_spec *spec, nrd_dim dim);
bool nrd_when_holds(const nrd_model_spec *spec, nrd_when when);

/* model/spec.c, for those who fill a spec. */
void nrd_model_spec_init(nrd_model_spec *spec);
nrd_error *nrd_model_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
void nrd_model_spec_add_stop_id(nrd_model_spec *spec, int64_t id); /* ignores doubles, bad ids */
const char *nrd_act_name(nrd_act_kind act);
bool nrd_act_parse(const char *name, nrd_act_kind *out, bool *out_gated);

#endif
