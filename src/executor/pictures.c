/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/pictures.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/siphash.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)NRD_LLM_MAX_IMAGES == (int)NRD_LIMIT_IMAGES && (int)NRD_LLM_MAX_IMAGE_BYTES == (int)NRD_LIMIT_IMAGE_FILE,
               "clients are told the limits of base/limits.h");

static size_t numbers_of(const nrd_vision_spec *s)
{
    return 3 * (size_t)s->image_size * (size_t)s->image_size;
}

static int32_t count_places(const nrd_vision_spec *s, const nrd_exec_request *in)
{
    int32_t n = 0;
    for (int32_t i = 0; i < in->n_input_ids && in->input_ids; i++) {
        n += in->input_ids[i] == s->image_token;
    }
    return n;
}

/* A place is one token, or as many as a picture has rows where the client has seen to that. *out_each: tokens of a place. */
static nrd_error *check(const nrd_vision_spec *s, const nrd_exec_request *in, int32_t max_ids, int32_t *out_each)
{
    const int32_t places = count_places(s, in), rows = nrd_vision_n_rows(s);

    if (!in->images || in->n_images < 0 || in->n_images > NRD_LLM_MAX_IMAGES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a request has %d pictures, at most %d are taken", in->n_images,
                          NRD_LLM_MAX_IMAGES);
    }
    *out_each = places == in->n_images ? 1 : rows;
    if ((int64_t)places != (int64_t)*out_each * in->n_images) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %d places for pictures (token %d), and the request brings %d pictures",
                          places, s->image_token, in->n_images);
    }
    const int64_t total = (int64_t)in->n_input_ids + (int64_t)(rows - *out_each) * in->n_images;
    if (total > max_ids) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%lld, %d of each picture) exceeds maximum input "
                                            "length (%d)", (long long)total, rows, max_ids), NRD_LLM_PROMPT_TOO_LONG);
    }
    return NULL;
}

/* The prompt with rows, and what tells pictures apart. */
static nrd_error *expand(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab, int32_t each)
{
    const int32_t rows = nrd_vision_n_rows(s);
    uint64_t sum[2] = {0};
    int32_t row = 0;
    nrd_error *err = NULL;

    p->n_ids = in->n_input_ids + (rows - each) * p->n;
    NRD_NEW_GOTO(p->ids, p->n_ids, err, fail);
    NRD_NEW_GOTO(p->extra, p->n_ids, err, fail);
    for (int32_t i = 0, to = 0; i < in->n_input_ids; i++) {
        if (in->input_ids[i] != s->image_token) {
            p->ids[to++] = in->input_ids[i];
            continue;
        }
        for (int32_t k = 0; k < rows / each; k++, row++) {
            nrd_siphash h;
            if (row % rows == 0) {
                nrd_siphash_init(&h, nrd_siphash_process_key());
                nrd_siphash_add(&h, p->pixels + (size_t)(row / rows) * numbers_of(s), numbers_of(s) * sizeof *p->pixels);
                nrd_siphash_end(&h, sum);
            }
            p->ids[to] = vocab + row;
            p->extra[to++] = (sum[0] + (uint64_t)(row % rows) * 0x9e3779b97f4a7c15u) | 1u; /* never 0: no extra id */
        }
    }
fail:
    return err;
}

nrd_error *nrd_pictures_new(nrd_pictures **out, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab, int32_t max_ids)
{
    nrd_error *err = NULL;
    nrd_pictures *p = NULL;
    int32_t each = 1;

    *out = NULL;
    NRD_TRY(check(s, in, max_ids, &each));
    NRD_NEW_GOTO(p, 1, err, fail);
    atomic_store(&p->refs, 1);
    p->n = in->n_images;
    p->n_rows = p->n * nrd_vision_n_rows(s);
    p->both_ways = s->both_ways ? nrd_vision_n_rows(s) : 0;
    NRD_NEW_GOTO(p->pixels, (size_t)p->n * numbers_of(s), err, fail);
    for (int32_t i = 0; i < p->n; i++) {
        NRD_TRY_GOTO(nrd_error_wrap(nrd_pixels_of(s, in->images[i].bytes, in->images[i].n, p->pixels + (size_t)i * numbers_of(s)),
                                    "picture %d", i),
                     err, fail);
    }
    NRD_TRY_GOTO(expand(p, s, in, vocab, each), err, fail);
    *out = p;
    return NULL;

fail:
    nrd_pictures_unref(p);
    return err;
}

nrd_pictures *nrd_pictures_ref(nrd_pictures *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void nrd_pictures_unref(nrd_pictures *p)
{
    if (p && atomic_fetch_sub(&p->refs, 1) == 1) {
        free(p->ids);
        free(p->extra);
        free(p->pixels);
        free(p);
    }
}

uint64_t nrd_pictures_bytes(const nrd_vision_spec *s, int32_t n, int32_t hidden)
{
    const uint64_t rows = (uint64_t)nrd_vision_n_rows(s), count = n > 0 && n <= NRD_LLM_MAX_IMAGES ? (uint64_t)n : 0;
    return count * (numbers_of(s) * sizeof(float) + rows * ((uint64_t)hidden * sizeof(float) + 6 * sizeof(uint64_t)));
}
