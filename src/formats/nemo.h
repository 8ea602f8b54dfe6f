/* SPDX-License-Identifier: Apache-2.0
 * formats/nemo.h - .nemo archives of Megatron's GPT models: model_config.yaml, weights, and the files of a tokenizer.
 *
 * Purpose   A tar with what NeMo trained. Settings become a config.json of our own words (model/families/nemo.c), tensors get the names
 *           of Megatron core, whichever of the three implementations of a layer saved them.
 * Owner     Immutable after open; any thread may read.
 * Errors    INVALID_ARG names the file and the setting; UNSUPPORTED: another network than a GPT, weights of several ranks, weights in
 *           a form that is not read.
 * Limits    See nemo.c, and those of the readers that it is made of.
 * Lifetime  Names and data borrow from the object until close.
 * Sources   NVIDIA/NeMo, collections/nlp (1.x), and its scripts/checkpoint_converters (facts only); zarr specification 2.
 */
#ifndef NRD_FORMATS_NEMO_H
#define NRD_FORMATS_NEMO_H

#include "base/json.h"
#include "base/str.h"
#include "formats/tar.h"
#include "formats/torch_bin.h"

typedef struct nrd_nemo nrd_nemo;

nrd_error *nrd_nemo_open(nrd_nemo **out, const char *path) NRD_MUST_USE;
/* Over memory that outlives the object. */
nrd_error *nrd_nemo_open_memory(nrd_nemo **out, const void *data, size_t n) NRD_MUST_USE;
void nrd_nemo_close(nrd_nemo *f);
bool nrd_nemo_is_lost(const nrd_nemo *f); /* the file was made shorter while it was read */
/* The configuration as config.json. */
void nrd_nemo_config_json(const nrd_nemo *f, nrd_str *out);
size_t nrd_nemo_n(const nrd_nemo *f);
const nrd_torch_tensor *nrd_nemo_at(const nrd_nemo *f, size_t i);

/* What of an archive a tokenizer needs: its settings alone, no weights. The caller frees the document. */
nrd_error *nrd_nemo_settings(nrd_json_doc **out, const nrd_tar *archive) NRD_MUST_USE;
/* The file that a setting names ("nemo:0a1b_tokenizer.model"); NULL: it names none, or the archive lacks it. */
const nrd_tar_member *nrd_nemo_artifact(const nrd_tar *archive, const nrd_json *name);

#endif
