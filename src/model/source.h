/* SPDX-License-Identifier: Apache-2.0
 * model/source.h - where weights come from.
 *
 * Purpose   One view of a Hugging Face folder (safetensors or pytorch_model.bin), a GGUF file, a
 *           checkpoint folder, or random weights for a config alone: the spec of the model and its
 *           tensors by name. Tensors stay in the mapped files; nothing is copied. What a quantized
 *           folder keeps in several tensors is one here (model/quant/quant.h).
 * Owner     Immutable after open; any thread may read.
 * Errors    NOT_FOUND, INVALID_ARG (file, field, expected, got), UNSUPPORTED (family, type).
 * Lifetime  Names and data borrow from the source until close.
 */
#ifndef NRD_MODEL_SOURCE_H
#define NRD_MODEL_SOURCE_H

#include "base/error.h"
#include "model/arch.h"
#include "model/spec.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_source nrd_source;

/* In the folder of a checkpoint or an engine: its MTP layer. */
#define NRD_MTP_FOLDER "mtp"

typedef enum {
    NRD_SOURCE_HF,
    NRD_SOURCE_GGUF,
    NRD_SOURCE_CHECKPOINT,
    NRD_SOURCE_DUMMY,
} nrd_source_kind;

enum { NRD_SOURCE_MAX_DIMS = 5 };

typedef struct nrd_src_tensor {
    const char *name;
    nrd_dtype dtype;
    int n_dims;
    int64_t dims[NRD_SOURCE_MAX_DIMS]; /* outermost first, in elements (not in blocks) */
    const void *data;   /* NULL in a dummy source, and with `packed` */
    size_t data_bytes;
    int64_t packed_row0;  /* of `packed`: which of its rows is the first here */
    const struct nrd_quant_weight *packed; /* rows must be made: nrd_quant_rows; else NULL */
    const char *type_name; /* as the file calls its type, for messages */
} nrd_src_tensor;

/* How many elements it has; readers have seen to it that they are counted by 64 bits. */
static inline uint64_t nrd_src_tensor_numbers(const nrd_src_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) {
        n *= (uint64_t)t->dims[d];
    }
    return n;
}

nrd_error *nrd_source_open(nrd_source **out, const char *path) NRD_MUST_USE;
/* Random weights, the same for the same seed. `config_path`: config.json of a Hugging Face model
 * or of a checkpoint, or a folder that holds one. */
nrd_error *nrd_source_open_dummy(nrd_source **out, const char *config_path, uint64_t seed)
    NRD_MUST_USE;
/* UNAVAILABLE where a file was made shorter while it was read: then the weights are not what they were. */
nrd_error *nrd_source_check(const nrd_source *s) NRD_MUST_USE;
void nrd_source_close(nrd_source *s);

nrd_source_kind nrd_source_get_kind(const nrd_source *s);
/* What was opened, for people: "GGUF file", "NeMo archive"; never NULL. */
const char *nrd_source_kind_name(const nrd_source *s);
const char *nrd_source_path(const nrd_source *s);
uint64_t nrd_source_seed(const nrd_source *s);
const nrd_model_spec *nrd_source_spec(const nrd_source *s);
/* The encoder of a model whose decoder `s` is, as a source of its own that lives as long as `s`; NULL: it has none, or
 * `s` is a checkpoint, whose two networks are folders of their own. */
const nrd_source *nrd_source_encoder(const nrd_source *s);
/* The layer behind the model's last that guesses (spec.h, mtp), likewise; of a checkpoint what stands in its folder
 * NRD_MTP_FOLDER. NULL: there is none. */
const nrd_source *nrd_source_mtp(const nrd_source *s);
int32_t nrd_source_first_layer(const nrd_source *s); /* what the files call the first layer: 0, but in an MTP layer's source */
bool nrd_source_is_mtp(const nrd_source *s, const char *name); /* whether a tensor is of that layer, and not of `s` */
const nrd_arch *nrd_source_arch(const nrd_source *s); /* NULL for a checkpoint */
const char *nrd_source_notes(const nrd_source *s); /* one line about weights that take more than in the file; "" */

/* Of a folder with calibrated scales of an 8-bit cache: the largest code that they were made for, 127 or 448; else 0. */
float nrd_source_kv_top(const nrd_source *s);
bool nrd_source_is_foreign(const nrd_source *s);    /* a checkpoint that another converter quantized */
bool nrd_source_int8_inputs(const nrd_source *s); /* its int8 weights were made for inputs in int8 (W8A8) */

/* What a GGUF file says of its licence, at most n - 1 bytes of it; "": nothing, or no such file. */
void nrd_source_licence(const nrd_source *s, char *out, size_t n);

/* Ranks of a checkpoint; 1 for everything else. */
int32_t nrd_source_n_ranks(const nrd_source *s);
size_t nrd_source_n_tensors(const nrd_source *s, int32_t rank);
const nrd_src_tensor *nrd_source_tensor_at(const nrd_source *s, int32_t rank, size_t i);
const nrd_src_tensor *nrd_source_find(const nrd_source *s, int32_t rank, const char *name);

#endif
