/* SPDX-License-Identifier: Apache-2.0 */
#include "model/source_mtp.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define APART "mtp."
#define LAYERS "model.layers."

nrd_mtp_form nrd_mtp_form_of(const nrd_source *s)
{
    const bool gguf = nrd_source_get_kind(s) == NRD_SOURCE_GGUF;
    char end[64];

    if (!gguf && nrd_source_find(s, 0, APART "fc.weight")) {
        return NRD_MTP_APART;
    }
    snprintf(end, sizeof end, gguf ? "blk.%d.nextn.eh_proj.weight" : "layers.%d.eh_proj.weight", nrd_source_spec(s)->n_layers);
    for (size_t i = 0; i < nrd_source_n_tensors(s, 0); i++) {
        if (nrd_str_has_suffix(nrd_source_tensor_at(s, 0, i)->name, end)) {
            return NRD_MTP_LAST;
        }
    }
    return NRD_MTP_NONE;
}

bool nrd_mtp_has(const nrd_source *s, const char *name)
{
    char layer[32];

    if (nrd_str_has_prefix(name, APART)) {
        return true;
    }
    snprintf(layer, sizeof layer, nrd_source_get_kind(s) == NRD_SOURCE_GGUF ? "blk.%d." : "layers.%d.", nrd_source_spec(s)->n_layers);
    const char *at = strstr(name, layer);
    return at && (at == name || at[-1] == '.');
}

const char *nrd_mtp_name_apart(const char *name, char room[NRD_MTP_MAX_NAME])
{
    if (!nrd_str_has_prefix(name, LAYERS) || strlen(name) >= NRD_MTP_MAX_NAME) {
        return NULL;
    }
    snprintf(room, NRD_MTP_MAX_NAME, APART "layers.%s", name + sizeof LAYERS - 1);
    return room;
}
