/* SPDX-License-Identifier: Apache-2.0
 * backends/tokenizer/pictures.h - pictures that come beside a text.
 *
 * Purpose   IMAGE_BYTES (pixels) and IMAGE_URL (data: URLs) become files, which go to tensorrt_llm as IMAGES; the vision
 *           tower is in its engine. A text for LLaVA that has no place for them gets one.
 * Owner     The thread of the request. Files are owned by the object until fini.
 * Errors    INVALID_ARG names the input and the limit; UNSUPPORTED: an address, which is not fetched.
 */
#ifndef NRD_BACKENDS_TOKENIZER_PICTURES_H
#define NRD_BACKENDS_TOKENIZER_PICTURES_H

#include "backends/tokenizer/tokenizer_backend.h"
#include "base/str.h"

typedef struct nrd_tok_pictures {
    nrd_str *files;   /* [n_rows * per_row]; PPM of pixels, else as they came */
    int64_t n_rows, per_row; /* per_row 0: there are none */
} nrd_tok_pictures;

/* The caller calls fini, also after an error. */
TRITONSERVER_Error *nrd_tok_pictures_read(nrd_tok_pictures *out, const nrd_tb_inputs *in, int64_t n_rows, bool has_batch);
void nrd_tok_pictures_fini(nrd_tok_pictures *p);
/* The output IMAGES: [n_rows, per_row]. */
TRITONSERVER_Error *nrd_tok_pictures_put(const nrd_tok_pictures *p, TRITONBACKEND_Response *response);
/* The prompt of a text with p->per_row pictures: as it is where it names <image>, or where the tokenizer knows none;
 * else in LLaVA's form, as the published preprocessing has it. *out is empty: as it is. */
nrd_error *nrd_tok_pictures_prompt(const nrd_tok_pictures *p, const nrd_tokenizer *t, const char *text, size_t n,
                                   nrd_str *out) NRD_MUST_USE;

#endif
