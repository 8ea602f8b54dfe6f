/* SPDX-License-Identifier: Apache-2.0
 * model/peft.h - a folder that Hugging Face PEFT wrote: adapter_config.json and adapter_model.safetensors
 * or .bin.
 *
 * Purpose   Its pairs of matrices with the modules and layers they belong to, and their scales: alpha / r,
 *           or alpha / sqrt(r) with use_rslora, rank_pattern and alpha_pattern applied; with use_dora the lengths of rows.
 * Owner     Immutable after open.
 * Errors    UNSUPPORTED names what is not computed here: biases, embeddings, modules_to_save, initial
 *           values that change the base weights, other methods than LoRA. INVALID_ARG names the tensor.
 * Limits    adapter_config.json of 4 MiB.
 * Lifetime  Names and matrices borrow from the object until close, the object the folder's name.
 */
#ifndef NRD_MODEL_PEFT_H
#define NRD_MODEL_PEFT_H

#include "model/lora.h"

typedef struct nrd_peft nrd_peft;

nrd_error *nrd_peft_open(nrd_peft **out, const char *dir) NRD_MUST_USE;
void nrd_peft_close(nrd_peft *p);
/* model_type: the family whose names count; NULL: those of any family. */
nrd_error *nrd_peft_pairs(nrd_peft *p, const char *model_type, const nrd_lora_pair_in **out, int32_t *out_n)
    NRD_MUST_USE;

#endif
