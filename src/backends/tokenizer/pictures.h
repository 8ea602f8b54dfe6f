/* SPDX-License-Identifier: Apache-2.0
 * backends/tokenizer/pictures.h - pictures that come beside a text.
 *
 * Purpose   IMAGE_BYTES (pixels), IMAGE_URL (data: URLs) and VIDEO_BYTES (pixels of the frames of a video) become files, IMAGES, for multimodal_encoders, or for
 *           tensorrt_llm, whose engine has a vision tower too. IMAGE, numbers that the client's processor made, go to
 *           multimodal_encoders past this model. A text that has no place for its pictures gets one (picture_form.c).
 * Owner     The thread of the request. Files are owned by the object until fini.
 * Errors    INVALID_ARG names the input and the limit; UNSUPPORTED: an address, which is not fetched.
 */
#ifndef NRD_BACKENDS_TOKENIZER_PICTURES_H
#define NRD_BACKENDS_TOKENIZER_PICTURES_H

#include "backends/tokenizer/tokenizer_backend.h"
#include "base/str.h"

typedef struct nrd_tok_pictures {
    nrd_str *files;   /* [n_rows * per_row]; PPM of pixels, else as they came; NULL: they are only counted */
    int64_t n_rows, per_row; /* per_row 0: there are none */
    bool is_video;           /* those of a row are the frames of one, which has one place */
} nrd_tok_pictures;

/* The caller calls fini, also after an error. */
TRITONSERVER_Error *nrd_tok_pictures_read(nrd_tok_pictures *out, const nrd_tb_inputs *in, int64_t n_rows, bool has_batch);
void nrd_tok_pictures_fini(nrd_tok_pictures *p);
/* The output IMAGES: [n_rows, per_row]. */
TRITONSERVER_Error *nrd_tok_pictures_put(const nrd_tok_pictures *p, TRITONBACKEND_Response *response);
/* The output IS_VIDEO_INPUT: [n_rows, 1], true. */
TRITONSERVER_Error *nrd_tok_pictures_put_is_video(const nrd_tok_pictures *p, TRITONBACKEND_Response *response);
/* How the model writes texts with pictures: dir is the folder of build_multimodal_engine.py, or NULL: then LLaVA's where the
 * tokenizer knows <image>. *out NULL: texts are prompts as they are. */
nrd_error *nrd_tok_picture_form_find(const char *dir, const nrd_tokenizer *t, const nrd_tok_picture_form **out) NRD_MUST_USE;
/* The prompt of a text with p->per_row pictures, in that form. *out is empty: as it is, since it has none, or places of its own. */
nrd_error *nrd_tok_pictures_prompt(const nrd_tok_pictures *p, const nrd_tok_picture_form *form, const char *text, size_t n,
                                   nrd_str *out) NRD_MUST_USE;
/* The ids of such a text, with the places that the form has in front of them. */
nrd_error *nrd_tok_pictures_first(const nrd_tok_pictures *p, const nrd_tok_picture_form *form, const nrd_tokenizer *t, const char *text,
                                  size_t n, nrd_ids *ids) NRD_MUST_USE;

#endif
