/* SPDX-License-Identifier: Apache-2.0
 * model/lora.h - one LoRA adapter for one model, as operations read it.
 *
 * Purpose   From the rows that requests bring, from a folder of NumPy files and from a PEFT folder to one
 *           object: for each module and layer the pair A [rank, in] and B transposed [rank, out], with its
 *           scale, checked against the model; of a DoRA adapter also a gain for each output. TensorRT-LLM's
 *           numbers of modules.
 * Owner     Immutable once made; any thread may read.
 * Errors    INVALID_ARG names the row or tensor, its module and layer, and the limit. UNSUPPORTED names what
 *           an adapter has that no operation here computes. NOT_FOUND: no adapter in a folder.
 * Sources   LoRA (Hu et al., ICLR 2022); DoRA (Liu et al., ICML 2024); rank-stabilised scales (Kalajdzievski, 2023); the configuration
 *           file of Hugging Face PEFT; TensorRT-LLM's description of lora_weights and lora_config.
 */
#ifndef NRD_MODEL_LORA_H
#define NRD_MODEL_LORA_H

#include "base/dtype.h"
#include "model/spec.h"

#include <stddef.h>
#include <stdint.h>

/* Places of pairs in a layer, in the order of nrd_lora_position; those of one product lie together. */
enum {
    NRD_LORA_AT_QKV = 0,   /* q, k, v, all three at once */
    NRD_LORA_AT_DENSE = 4,
    NRD_LORA_AT_UP = 5,    /* fc, gate */
    NRD_LORA_AT_DOWN = 7,
    NRD_LORA_POSITIONS = 8,
};

enum { NRD_LORA_MODULES = 19, NRD_LORA_DEFAULT_RANK = 64, NRD_LORA_ALIGN = 64 };

const char *nrd_lora_module_name(int32_t id); /* "attn_q"; NULL: no such module */
int32_t nrd_lora_module_id(const char *name); /* -1: no such module */
/* Lengths of a module's input and output in one of the layers that are computed; false: it has no such module. */
bool nrd_lora_module_dims(const nrd_model_spec *spec, int32_t layer, int32_t id, int64_t *out_in, int64_t *out_out);
bool nrd_lora_has_module(const nrd_model_spec *spec, int32_t id); /* in some layer */
int32_t nrd_lora_position(int32_t id); /* of a module that some model has */

typedef struct nrd_lora_row {
    int32_t module, layer, rank;
    nrd_dtype dtype;    /* F32, F16, BF16 */
    float scale;
    int64_t in, out;
    const void *a, *b;  /* [rank, in], [rank, out]; NRD_LORA_ALIGN, inside the adapter's data */
    bool has_gain;      /* DoRA: nrd_lora_gain */
    bool is_magnitude;  /* its first half is the lengths that rows of W + scale B A get: engine/lora_gain.h makes gains of them */
} nrd_lora_row;

/* Bytes of A or B with what lies between it and the next. */
static inline size_t nrd_lora_padded(size_t n)
{
    return (n + NRD_LORA_ALIGN - 1) & ~(size_t)(NRD_LORA_ALIGN - 1);
}

/* Bytes of B, and where what lies behind it begins: [2, out] float32, which each output is multiplied by, and what is added
 * then. */
static inline size_t nrd_lora_b_bytes(const nrd_lora_row *r)
{
    return nrd_lora_padded((size_t)r->rank * (size_t)r->out * nrd_dtype_block_bytes(r->dtype));
}

static inline const float *nrd_lora_gain(const nrd_lora_row *r, const void *b)
{
    return r->has_gain ? (const float *)(const void *)((const uint8_t *)b + nrd_lora_b_bytes(r)) : NULL;
}

static inline size_t nrd_lora_gain_bytes(int64_t out)
{
    return nrd_lora_padded(2 * (size_t)out * sizeof(float));
}

typedef struct nrd_lora {
    nrd_lora_row *rows;
    int32_t n_rows, max_rank;
    size_t bytes;      /* of data */
    uint64_t hash[2];  /* of all rows, with the process's key */
    void *data;
} nrd_lora;

/* What an adapter may be. */
typedef struct nrd_lora_limits {
    int32_t max_rank;     /* 0: NRD_LORA_DEFAULT_RANK */
    uint32_t modules;     /* bit i: module i may come; 0: all that the model has */
} nrd_lora_limits;

/* One pair as it comes: B is [out, rank], of which the transposed is made. */
typedef struct nrd_lora_pair_in {
    const char *name; /* for messages; or NULL: "row i" */
    int32_t module, layer, rank;
    nrd_dtype dtype;
    float scale;
    int64_t in, out;
    const void *a, *b;
    const void *gain;   /* [out] of DoRA, or NULL */
    nrd_dtype gain_dtype;
    bool is_magnitude;  /* not divided by the lengths of the rows of W + scale B A yet */
} nrd_lora_pair_in;

nrd_error *nrd_lora_make(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                         const nrd_lora_pair_in *pairs, int32_t n) NRD_MUST_USE;
/* weights [rows, width] of F16, BF16 or F32: A and B of each row one behind the other, zeros behind them;
 * config [rows, config_width]: module, layer, rank, and with width 4 whether it is DoRA, whose gains [out] lie behind B. */
nrd_error *nrd_lora_from_rows(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                              const void *weights, nrd_dtype dtype, int64_t rows, int64_t width,
                              const int32_t *config, int64_t config_width) NRD_MUST_USE;
/* A PEFT folder, or one with model.lora_weights.npy and model.lora_config.npy (or model.lora_keys.npy). */
nrd_error *nrd_lora_open(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                         const char *dir) NRD_MUST_USE;
void nrd_lora_free(nrd_lora *l); /* NULL is fine */

/* Room for so many rows and so many bytes of data, all zero; n_rows says 0. For those who fill it themselves. */
nrd_error *nrd_lora_alloc(nrd_lora **out, int32_t n_rows, size_t bytes) NRD_MUST_USE;
/* The row of the whole adapter that is row i of a rank's share of it. layer: in the whole network. */
int64_t nrd_lora_whole_row(const nrd_model_spec *spec, int32_t rank, int32_t module, int32_t layer, int64_t i);
/* What one rank of a model over several needs: the rows of its layers, numbered from 0, and of each the part that
 * belongs to its share of the weights. Where a product's outputs are divided B is cut, where its inputs are, A: the
 * ranks' results add up to the whole. spec: of all ranks. Its hash is that of the whole. */
nrd_error *nrd_lora_cut(nrd_lora **out, const nrd_lora *l, const nrd_model_spec *spec, int32_t rank) NRD_MUST_USE;

/* A PEFT folder -> model.lora_weights.npy [1, rows, width] of `dtype` (F32, F16, BF16), scales multiplied
 * into B, and model.lora_config.npy [1, rows, 3]. Needs no base model, and so refuses DoRA, as it refuses what serving refuses. */
nrd_error *nrd_lora_convert(const char *peft_dir, const char *out_dir, nrd_dtype dtype) NRD_MUST_USE;

#endif
