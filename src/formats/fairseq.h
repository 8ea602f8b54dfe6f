/* SPDX-License-Identifier: Apache-2.0
 * formats/fairseq.h - folders of fairseq's translation models: model.pt beside dict.en.txt and dict.fr.txt.
 *
 * Purpose   A file of PyTorch with `args` (how the model was trained) and `model` (its tensors). Sizes become the config.json of
 *           Hugging Face's port of these models (FSMT), and tensors get the names that it has for them.
 * Owner     Immutable after open; any thread may read.
 * Errors    Those of formats/torch_bin.h. INVALID_ARG: a size that is missing or out of its limits. UNSUPPORTED names an argument with
 *           which another network was trained than the transformer of Vaswani et al. (2017).
 * Limits    See fairseq.c.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   facebookresearch/fairseq, models/transformer (facts only).
 */
#ifndef NRD_FORMATS_FAIRSEQ_H
#define NRD_FORMATS_FAIRSEQ_H

#include "base/str.h"
#include "formats/torch_bin.h"

typedef struct nrd_fairseq nrd_fairseq;

/* The .pt file of a folder with dict.*.txt, which the caller frees: model.pt, or the only one. *out NULL: it is no such folder. */
nrd_error *nrd_fairseq_find(char **out, const char *dir) NRD_MUST_USE;
nrd_error *nrd_fairseq_open(nrd_fairseq **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_fairseq_open_memory(nrd_fairseq **out, const void *data, size_t n) NRD_MUST_USE;
void nrd_fairseq_close(nrd_fairseq *f);
bool nrd_fairseq_is_lost(const nrd_fairseq *f); /* the file was made shorter while it was read */
/* The configuration as config.json of an FSMT has it. */
void nrd_fairseq_config_json(const nrd_fairseq *f, nrd_str *out);
size_t nrd_fairseq_n(const nrd_fairseq *f);
const nrd_torch_tensor *nrd_fairseq_at(const nrd_fairseq *f, size_t i);

#endif
