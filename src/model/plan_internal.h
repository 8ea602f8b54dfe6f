/* SPDX-License-Identifier: Apache-2.0
 * model/plan_internal.h - a plan from inside, for the files that make it (plan.c, plan_*.c) and read by it (plan_read.c). */
#ifndef NRD_MODEL_PLAN_INTERNAL_H
#define NRD_MODEL_PLAN_INTERNAL_H

#include "base/mem.h"
#include "base/str.h"
#include "model/needs.h"
#include "model/plan.h"

enum {
    NRD_PLAN_MAX_NAME = 256,
    NRD_PLAN_KERNEL = 3, /* of the convolutions of encoders that hear */
    NRD_PLAN_POOL = 1 << 18,
};

struct nrd_plan {
    const nrd_source *src;
    nrd_model_spec spec; /* while a layer is planned: as nrd_spec_of_layer has it */
    nrd_plan_options opt;
    int32_t rank, tp_rank, pp_rank;
    int32_t source_layer; /* what the source calls the first layer: 0, of an MTP layer the number of the model's layers */
    nrd_plan_tensor *tensors;
    size_t n, cap;
    uint64_t total_bytes;
    const char **unused;
    size_t n_unused;
    bool qkv_is_split; /* of the layer that is being planned: its q, k, v are three tensors */
    uint8_t *used; /* one for each source tensor */
    nrd_arena arena;
    nrd_str notes;
    float *pool; /* [NRD_PLAN_POOL] random numbers for dummy weights */
};

static inline bool nrd_plan_has_row_scales(nrd_dtype t)
{
    return t == NRD_DTYPE_I8 || t == NRD_DTYPE_F8_E4M3;
}

/* Sets the factors of the weight of this name (model/needs.h). UNSUPPORTED: its source is quantized. */
nrd_error *nrd_plan_multiply(const nrd_model_spec *spec, const char *weight, nrd_plan_tensor *t) NRD_MUST_USE;

/* ---- plan_list.c ---- */

/* Takes `t` into the plan; sets its name, rows and sizes. */
nrd_error *nrd_plan_add(nrd_plan *p, nrd_plan_tensor *t, const char *name) NRD_MUST_USE;
/* Another type for a tensor that was taken. */
nrd_error *nrd_plan_retype(nrd_plan *p, nrd_plan_tensor *t, nrd_dtype dtype) NRD_MUST_USE;

/* ---- plan_types.c ---- */

bool nrd_plan_is_float(nrd_dtype t);
nrd_dtype nrd_plan_plain_dtype(const nrd_plan *p, nrd_dtype src);
/* The type a linear weight gets. Where rows are no multiple of the block the next type with a
 * smaller one is taken, as other quantizers do. */
nrd_dtype nrd_plan_linear_dtype(nrd_plan *p, const char *name, nrd_dtype src, int64_t cols);
/* Says in the notes which weights of types for GPUs are unpacked, why, and how many bytes they take then. */
void nrd_plan_note_unpacked(nrd_plan *p);
/* Small numbers that decide much. Of a layer with a state that is all but its products. */
bool nrd_plan_is_always_f32(const char *name);
/* Matrices that latent attention applies by itself, head by head: never quantized. The unquantized weights of GGUF files
 * with blocks are float32; that much these need not be. */
nrd_dtype nrd_plan_map_dtype(const nrd_plan *p, nrd_dtype src);
bool nrd_plan_is_map(const char *name);

/* ---- plan_order.c ---- */

/* The type to plan with for a source's tensor: its own, or the model's where rows of its own would be for an input
 * (nrd_quant_has_own_input) that the product of the weight `need` cannot have. need: NULL for what is no weight of the table. */
nrd_dtype nrd_plan_own_type(const nrd_plan *p, const nrd_need *need, const nrd_src_tensor *t);
/* Of a layer whose tensors are among those from `first` on: adds the orders and numbers that make the input of its weights; where
 * products that read the same have different ones, their weights become the model's own type. */
nrd_error *nrd_plan_add_inputs(nrd_plan *p, size_t first, int32_t layer) NRD_MUST_USE;
/* Says in the notes which weights were unpacked because of their input. */
void nrd_plan_note_inputs(nrd_plan *p);

/* ---- plan_cache.c ---- */

/* NRD_KV_RANGE of a layer whose weight of q, k and v is made of the source's tensor `qkv`, where the folder has calibrated
 * scales of an 8-bit cache; else nothing. */
nrd_error *nrd_plan_add_kv_range(nrd_plan *p, const char *qkv, int32_t layer) NRD_MUST_USE;

/* A rule at work on a layer. */
typedef struct nrd_plan_job {
    const nrd_weight_rule *rule;
    const nrd_need *need; /* of rule->dst */
    uint32_t flags;       /* the rule's, and what follows from need, family and source */
    int32_t layer, out_layer; /* -1: none */
    const nrd_src_tensor **stack; /* [experts] of a stacked weight, [heads] of a norm; its first is src[0] */
    char name[NRD_PLAN_MAX_NAME];
    int n_src;
    const nrd_src_tensor *src[3];
    const nrd_src_tensor *times; /* nrd_plan_part's */
    nrd_dtype dtype[3]; /* of each part */
} nrd_plan_job;

/* ---- plan_sources.c ---- */

/* The source's tensor of this name, which then is used; NULL: there is none. */
const nrd_src_tensor *nrd_plan_use(nrd_plan *p, const char *name);
/* `pattern`: one name, or several with '|' between them; '*' is the layer. NULL: there is none. */
const nrd_src_tensor *nrd_plan_lookup(nrd_plan *p, const char *pattern, int32_t layer);
/* Sets src, n_src and stack. NOT_FOUND, INVALID_ARG: one is missing or has another shape. */
nrd_error *nrd_plan_find_sources(nrd_plan *p, nrd_plan_job *j) NRD_MUST_USE;
int64_t nrd_plan_state_rows(const nrd_model_spec *spec, int part); /* of q, k or v of the delta rule, where a file has them apart */
int64_t nrd_plan_whole_rows(const nrd_plan *p, const nrd_need *n); /* of the weight of all ranks */

/* ---- plan_shares.c ---- */

/* Which of the layer's heads of keys are the rank's. */
void nrd_plan_own_kv_heads(const nrd_plan *p, int64_t *out_first, int64_t *out_n);
bool nrd_plan_is_one_type(const nrd_plan_job *j); /* q, k and v */
nrd_fill nrd_plan_constant_of(const nrd_plan_job *j); /* what stands for a weight that no source has */
/* Adds the rank's share of the weight of a job whose sources and types are known. */
nrd_error *nrd_plan_add_shares(nrd_plan *p, nrd_plan_job *j) NRD_MUST_USE;

#endif
