/* SPDX-License-Identifier: Apache-2.0
 * model/plan.h - what a rank's weights are and how each is made from the source.
 *
 * Purpose   Weight maps, sharding and type changes come together here: a list of tensors with their
 *           checkpoint names, and a function that produces any range of their rows. Writing a
 *           checkpoint and building an engine both walk this list, so that a build straight from a
 *           GGUF file or a Hugging Face folder needs no copy in between.
 * Owner     Immutable after make; rows may be read by many threads.
 * Errors    NOT_FOUND: a tensor that the family needs is missing. INVALID_ARG: another shape than
 *           the config says. UNSUPPORTED: a type or a division that cannot be made.
 * Lifetime  Borrows from the source, which must outlive the plan.
 */
#ifndef NRD_MODEL_PLAN_H
#define NRD_MODEL_PLAN_H

#include "base/error.h"
#include "model/source.h"
#include "model/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_PLAN_MAX_PARTS = 4 };

typedef enum {
    NRD_FILL_NONE, /* rows of a source tensor */
    NRD_FILL_ZERO,
    NRD_FILL_ONE,
    NRD_FILL_SINUSOIDS, /* NRD_RULE_SINUSOIDS, NRD_RULE_FAIRSEQ_SINUSOIDS */
    NRD_FILL_FAIRSEQ_SINUSOIDS,
    NRD_FILL_RANDOM,
} nrd_fill;

typedef struct nrd_plan_part {
    const nrd_src_tensor *src; /* NULL with a fill */
    nrd_fill fill;
    int64_t row0, n_rows; /* rows of the source as [out, in] */
    int64_t col0;
    /* Of experts: the same rows of each of these, one expert below the other; stack_rows are one
     * expert's, n_rows all. NULL: src alone. */
    const nrd_src_tensor *const *stack;
    int64_t stack_rows;
    /* Rows that lie apart in the source: row r of it, counted as if they did not, is at group0 +
     * r / group_rows * group_stride + r % group_rows. 0: they do not. */
    int64_t group0, group_rows, group_stride;
    /* Rows are multiplied by this matrix, [cols, width] or [width, cols] of rows of `width` numbers. NULL: they are not. */
    const nrd_src_tensor *times;
} nrd_plan_part;

enum { NRD_PLAN_MAX_FACTORS = 5 };

typedef struct nrd_plan_tensor {
    const char *name;  /* owned by the plan */
    nrd_dtype dtype;
    int64_t rows, cols; /* vectors: cols = 1 */
    uint32_t flags;     /* NRD_RULE_* */
    bool is_vector;
    bool is_divided; /* ranks have different shares; else all have the same */
    bool has_own_input;  /* rows are for an input that tensors beside it say how to make (NRD_ORDER_*, NRD_COLUMNS_*; nrd_quant_has_own_input) */
    bool has_row_scales; /* I8 and F8_E4M3: one f32 a row */
    int32_t n_stacked;   /* experts of the rank; 0: one matrix */
    int n_parts;
    nrd_plan_part parts[NRD_PLAN_MAX_PARTS];
    size_t data_bytes;
    int n_factors; /* rows are multiplied: the first factor_rows[0] by factors[0], and so on; 0: none is */
    int64_t factor_rows[NRD_PLAN_MAX_FACTORS];
    float factors[NRD_PLAN_MAX_FACTORS];
} nrd_plan_tensor;

typedef struct nrd_plan_options {
    int32_t tp_size, pp_size;  /* 0: 1, or what the checkpoint has */
    int32_t moe_ep_size;       /* likewise: of tp_size ranks, how many share the list of experts */
    nrd_dtype dtype;           /* unquantized tensors; NONE: as in the source */
    nrd_dtype quantize;        /* linear weights; NONE: as in the source */
    bool parallel_embedding;   /* nrd_model_spec's; of a checkpoint: no effect unless it has it */
    bool keep_packed;          /* types that only GPUs multiply (nrd_dtype_is_packed) stay; else they are unpacked */
    bool embedding_by_columns; /* likewise */
    bool quantize_lm_head;     /* else the LM head becomes q8_0 with a block format, or stays */
    const char *mmproj;        /* the file of a GGUF model's vision tower, as nrd_mmproj_find takes it */
} nrd_plan_options;

typedef struct nrd_plan nrd_plan;

nrd_error *nrd_plan_make(nrd_plan **out, const nrd_source *src, const nrd_plan_options *opt,
                         int32_t rank) NRD_MUST_USE;
nrd_error *nrd_plan_check(const nrd_plan *p) NRD_MUST_USE; /* nrd_source_check of what it was made from */
void nrd_plan_free(nrd_plan *p);

const nrd_model_spec *nrd_plan_spec(const nrd_plan *p); /* with tp, pp, dtype, quantization set */
int32_t nrd_plan_rank(const nrd_plan *p);
/* The type in which the plan keeps rows of a quantized folder's tensor: its own, or that which it is unpacked to. */
nrd_dtype nrd_plan_kept_type(const nrd_plan *p, const nrd_src_tensor *t);
size_t nrd_plan_n_tensors(const nrd_plan *p);
const nrd_plan_tensor *nrd_plan_at(const nrd_plan *p, size_t i);
uint64_t nrd_plan_total_bytes(const nrd_plan *p);
/* Source tensors that no rule used (vision towers, old buffers); borrows. */
size_t nrd_plan_unused(const nrd_plan *p, const char *const **out_names);
/* Whether a runner finds in the plan all that it asks an engine for (model/needs.h). */
nrd_error *nrd_plan_check_engine(const nrd_plan *p, nrd_dtype kv_dtype) NRD_MUST_USE;
/* One line about choices that the user should know ("" if none): types that fell back. */
const char *nrd_plan_notes(const nrd_plan *p);

/* Both look at the numbers of the source: INVALID_ARG names one that is NaN or infinite. */
/* *out: the tensor's bytes when they lie ready in the source, else NULL. */
nrd_error *nrd_plan_direct(const nrd_plan_tensor *t, const void **out) NRD_MUST_USE;
/* Makes rows [row0, row0 + n_rows) in ROWS layout. `scales` [n_rows] only with has_row_scales. */
nrd_error *nrd_plan_read(const nrd_plan *p, const nrd_plan_tensor *t, int64_t row0, int64_t n_rows,
                         void *dst, float *scales) NRD_MUST_USE;

#endif
