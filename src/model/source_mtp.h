/* SPDX-License-Identifier: Apache-2.0
 * model/source_mtp.h - where the files of a model keep its MTP layer (spec.h, mtp).
 *
 * Forms     As the layer behind the last: model.layers.N.eh_proj.weight, in GGUF blk.N.nextn.eh_proj.weight (DeepSeek-V3, GLM-4.5). Or apart,
 *           beside the model: mtp.fc.weight and mtp.layers.0.* (Qwen3-Next, Qwen3.5).
 * Owner     Nothing is kept.
 */
#ifndef NRD_MODEL_SOURCE_MTP_H
#define NRD_MODEL_SOURCE_MTP_H

#include "model/source.h"

typedef enum { NRD_MTP_NONE, NRD_MTP_LAST, NRD_MTP_APART } nrd_mtp_form;

nrd_mtp_form nrd_mtp_form_of(const nrd_source *s);
/* Whether a tensor of `s`, which has an MTP layer, is of that layer. */
bool nrd_mtp_has(const nrd_source *s, const char *name);
/* What an MTP layer's tensor is called that in a model's layer 0 has the name `name`; NULL: as there. `room` holds it. */
enum { NRD_MTP_MAX_NAME = 192 };
const char *nrd_mtp_name_apart(const char *name, char room[NRD_MTP_MAX_NAME]);

#endif
