/* SPDX-License-Identifier: Apache-2.0
 * Below source_access.c, which asks it: looks into the source itself. */
#include "model/source_mtp.h"

#include "base/str.h"
#include "model/source_internal.h"

#include <stdio.h>
#include <string.h>

#define APART "mtp."
#define LAYERS "model.layers."

nrd_mtp_form nrd_mtp_form_of(const nrd_source *s)
{
    const bool gguf = s->kind == NRD_SOURCE_GGUF;
    const size_t n = s->n_ranks > 0 ? s->ranks[0].n : 0;
    char end[64];

    if (!gguf && n > 0 && nrd_table_find(&s->ranks[0], APART "fc.weight")) {
        return NRD_MTP_APART;
    }
    snprintf(end, sizeof end, gguf ? "blk.%d.nextn.eh_proj.weight" : "layers.%d.eh_proj.weight", s->spec.n_layers);
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_suffix(s->ranks[0].tensors[i].name, end)) {
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
    snprintf(layer, sizeof layer, s->kind == NRD_SOURCE_GGUF ? "blk.%d." : "layers.%d.", s->spec.n_layers);
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
