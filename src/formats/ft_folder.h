/* SPDX-License-Identifier: Apache-2.0
 * formats/ft_folder.h - reading what hf_gpt_convert.py of TensorRT-LLM v0.5 to v0.8 writes for GPT-2.
 *
 * Purpose   A folder `<N>-gpu` with config.ini and one .bin of plain numbers for each tensor, divided
 *           tensors as one .bin a rank. The shares are put together again, so that the tensors are those
 *           of Hugging Face: names (`h.0.attn.c_attn.weight`), shapes, [in, out] for linear layers.
 * Owner     Immutable after open; any thread may read.
 * Errors    NOT_FOUND: a file is missing. INVALID_ARG: file or key, expected, got. UNSUPPORTED: one head of
 *           keys for all of queries (santacoder, starcoder).
 * Limits    See ft_folder.c: sizes, layers, ranks. Files must have exactly the size that config.ini says.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   examples/gpt/hf_gpt_convert.py and weight.py of those releases (facts only).
 */
#ifndef NRD_FORMATS_FT_FOLDER_H
#define NRD_FORMATS_FT_FOLDER_H

#include "base/error.h"
#include "base/str.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_ft nrd_ft;

typedef struct nrd_ft_tensor {
    const char *name;
    int n_dims;
    int64_t dims[2]; /* outermost first */
    const void *data;
    size_t data_bytes;
} nrd_ft_tensor;

bool nrd_ft_is_folder(const char *dir); /* it has a config.ini */
nrd_error *nrd_ft_open(nrd_ft **out, const char *dir) NRD_MUST_USE;
void nrd_ft_close(nrd_ft *f);
bool nrd_ft_is_lost(const nrd_ft *f); /* a file was made shorter while it was read */
/* The configuration as Hugging Face's config.json has it. */
void nrd_ft_config_json(const nrd_ft *f, nrd_str *out);
nrd_dtype nrd_ft_dtype(const nrd_ft *f); /* F32, F16 or BF16, of all tensors */
size_t nrd_ft_n(const nrd_ft *f);
const nrd_ft_tensor *nrd_ft_at(const nrd_ft *f, size_t i);

#endif
