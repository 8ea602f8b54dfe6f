/* SPDX-License-Identifier: Apache-2.0
 * hub/choose.h - which files of a repository a model needs.
 *
 * Purpose   One rule for what the hub lists and for what lies in the cache: a file that is named; the GGUF
 *           file of a type that is named; config.json with safetensors (or pytorch_model.bin), its tokenizer
 *           and README.md; else the usual GGUF file. A GGUF file in parts is all of its parts.
 * Owner     Stateless; any thread.
 * Errors    NOT_FOUND: nothing fits, and what there is.
 */
#ifndef NRD_HUB_CHOOSE_H
#define NRD_HUB_CHOOSE_H

#include "hub/id.h"

#include <stddef.h>

/* Sets wanted[i] for names[i] of n. *out_model: which of them is opened, a GGUF file; NULL: the folder.
 * *out_model borrows from names. */
nrd_error *nrd_hub_choose(const nrd_hub_id *id, const char *const *names, size_t n, bool *wanted,
                          const char **out_model) NRD_MUST_USE;
/* A GGUF file of weights, and not the eye of a model or what it was calibrated with. */
bool nrd_hub_is_weights(const char *name);
/* The file by which a GGUF file in parts is opened; so is every whole one. */
bool nrd_hub_is_first_part(const char *name);
/* "model-Q4_K_M-00001-of-00003.gguf" -> "Q4_K_M" into out; "": the name tells none. */
void nrd_hub_type_of_name(const char *name, char out[32]);

#endif
