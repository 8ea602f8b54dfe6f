/* SPDX-License-Identifier: Apache-2.0
 * nereid/vision.h - pictures become rows of a decoder's embeddings, apart from the decoder.
 *
 * Purpose   Runs the vision tower of a folder that `nereid build_multimodal_engine` wrote. The rows go to an engine of the
 *           same model as prompt_embedding_table, with image_sizes (nereid/executor.h). An engine of nrd_exec_open has the
 *           tower too and needs none of this: it is for repositories whose pictures are seen by a model of their own.
 * Owner     run: any thread, one after the other. Everything else: who opened it.
 * Errors    As nereid/executor.h's (nrd_exec_error_code). Of run: INVALID_ARG names the picture by its number, from 0;
 *           UNAVAILABLE: the device is lost, now and from then on.
 */
#ifndef NEREID_VISION_H
#define NEREID_VISION_H

#include "nereid/export.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_error nrd_error;
typedef struct nrd_vision_encoder nrd_vision_encoder;

typedef struct nrd_vision_encoder_config {
    uint32_t size;
    const char *device;   /* "auto", "cpu", "cuda"; NULL: auto */
    int32_t device_id;
    int32_t n_threads;    /* CPU; 0: one for each core that it may use */
    uint64_t cache_bytes; /* rows of pictures that are kept in host memory; default 256 MiB, 0: none */
} nrd_vision_encoder_config;

NRD_API void nrd_vision_encoder_config_init(nrd_vision_encoder_config *config);

typedef struct nrd_vision_encoder_info {
    uint32_t size;
    char model_type[64]; /* of the folder's config.json: "llava", ... */
    char device[96];
    int32_t hidden;      /* of the decoder */
    int32_t row_size;    /* numbers of a row: hidden, or several of them */
    int32_t max_rows;    /* that a picture becomes; all become so many where sizes do not vary */
    int32_t image_size;  /* pixels of a side, of pictures that come as pixels; 0: they cannot, since the tower takes many sizes */
    uint64_t weight_bytes;
} nrd_vision_encoder_info;

NRD_API nrd_error *nrd_vision_encoder_open(nrd_vision_encoder **out, const char *dir, const nrd_vision_encoder_config *config);
NRD_API void nrd_vision_encoder_close(nrd_vision_encoder *e); /* NULL is fine */
NRD_API void nrd_vision_encoder_get_info(const nrd_vision_encoder *e, nrd_vision_encoder_info *info); /* set info->size first */

/* One of the two; borrowed during run. */
typedef struct nrd_vision_encoder_picture {
    const void *bytes; /* JPEG, PNG, WebP or PPM, n of them */
    size_t n;
    const float *pixels; /* [3, image_size, image_size], scaled and normalised as the model's processor does */
} nrd_vision_encoder_picture;

typedef struct nrd_vision_encoder_rows {
    float *rows;    /* [n_rows, row_size], of one picture after the other; the caller's, by free() */
    int32_t *sizes; /* [n pictures, 2] height and width in pixels, as they came; the caller's, by free() */
    int32_t n_rows;
} nrd_vision_encoder_rows;

/* The pictures of one prompt, 1 to NRD_LLM_MAX_IMAGES. *out is empty after an error. */
NRD_API nrd_error *nrd_vision_encoder_run(nrd_vision_encoder *e, const nrd_vision_encoder_picture *pictures, int32_t n,
                                          nrd_vision_encoder_rows *out);
/* The frames of one video, as files, 1 to NRD_LLM_MAX_VIDEO_FRAMES of one size; out->sizes is theirs. UNSUPPORTED: the tower takes videos only with
 * its decoder (nereid/executor.h), or none. */
NRD_API nrd_error *nrd_vision_encoder_run_video(nrd_vision_encoder *e, const nrd_vision_encoder_picture *frames, int32_t n,
                                                nrd_vision_encoder_rows *out);

#endif
