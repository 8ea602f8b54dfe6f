/* SPDX-License-Identifier: Apache-2.0
 * model/vision_folder.h - a vision tower in a folder of its own, apart from its decoder.
 *
 * Purpose   What the published build_multimodal_engine.py leaves: config.json with `builder_config`, and here the files of
 *           model/vision.h in place of a compiled engine. config.json also says what the tower needs to know of the decoder.
 * Owner     Stateless; any thread.
 * Errors    INVALID_ARG: file, field, expected and got. NOT_FOUND: the folder has no tower. UNSUPPORTED: of the tower.
 */
#ifndef NRD_MODEL_VISION_FOLDER_H
#define NRD_MODEL_VISION_FOLDER_H

#include "model/vision.h"

typedef struct nrd_vision_folder {
    char model_type[64]; /* "llava", "qwen2_vl", ...: config.json of the Hugging Face folder says it */
    int32_t hidden;      /* of the decoder */
    float embed_scale;   /* of the decoder; 0: none */
    nrd_dtype dtype;     /* of activations, on a GPU */
    int32_t max_batch_size; /* kept for those who read it: pictures are computed one by one */
    int32_t max_patches;    /* of a picture, where pictures keep their shape */
} nrd_vision_folder;

/* Writes the tower of a Hugging Face folder into `dir`, which is made where it is missing. model_type: what the caller takes
 * it for, or NULL; another one than the folder's is refused. f: the two limits are the caller's, the rest becomes what was
 * written. */
nrd_error *nrd_vision_folder_write(const nrd_source *src, const char *dir, const char *model_type,
                                   nrd_vision_folder *f) NRD_MUST_USE;
nrd_error *nrd_vision_folder_read(const char *dir, nrd_vision_folder *out) NRD_MUST_USE;

#endif
