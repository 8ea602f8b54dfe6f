/* SPDX-License-Identifier: Apache-2.0
 * A model whose parts have folders of their own, as VILA 1.5 is published (Lin et al., 2024): the decoder in llm, the tower in vision_tower,
 * what is between them in mm_projector. Called by source_folder.c. */
#include "model/source_internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static nrd_error *add_folder(nrd_source *s, const char *name)
{
    char *dir = NULL;

    NRD_TRY(nrd_path_make(&dir, s->path, name));
    nrd_error *err = nrd_source_add_weights(s, dir);
    free(dir);
    return err;
}

/* The projector's tensors are called by their places in a list of modules. */
static nrd_error *rename_projector(nrd_source *s, size_t first)
{
    static const char *const names[][2] = {
        {"layers.1.weight", "multi_modal_projector.layer_norm.weight"}, {"layers.1.bias", "multi_modal_projector.layer_norm.bias"},
        {"layers.2.weight", "multi_modal_projector.linear_1.weight"}, {"layers.2.bias", "multi_modal_projector.linear_1.bias"},
        {"layers.4.weight", "multi_modal_projector.linear_2.weight"}, {"layers.4.bias", "multi_modal_projector.linear_2.bias"},
    };
    nrd_tensor_table *table = &s->ranks[0];

    for (size_t i = first; i < table->n; i++) {
        const char *to = NULL;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            to = !strcmp(table->tensors[i].name, names[k][0]) ? names[k][1] : to;
        }
        if (!to) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/mm_projector: the tensor '%.80s' is no part of the projector mlp_downsample", s->path,
                              table->tensors[i].name);
        }
        table->tensors[i].name = to;
    }
    return NULL;
}

nrd_error *nrd_source_add_parts(nrd_source *s, const nrd_json *config)
{
    const char *projector = nrd_json_get_str(nrd_json_get(config, "mm_projector_cfg"), "mm_projector_type", "");

    if (strcmp(projector, "mlp_downsample") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s/config.json: the projector '%.60s' (mm_projector_cfg.mm_projector_type) is not supported; "
                          "known: mlp_downsample", s->path, projector);
    }
    NRD_TRY(add_folder(s, NRD_SOURCE_DECODER));
    NRD_TRY(add_folder(s, "vision_tower"));
    const size_t first = s->ranks[0].n;
    NRD_TRY(add_folder(s, "mm_projector"));
    return rename_projector(s, first);
}
