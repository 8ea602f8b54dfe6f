/* SPDX-License-Identifier: Apache-2.0
 * executor/pictures.h - pictures and videos of a request, on their way to rows of embeddings.
 *
 * Purpose   Reads pictures, brings them into the form that the tower takes, and puts as many ids past the vocabulary into
 *           the prompt as a picture has rows, each with an extra id that is the picture's: blocks of the cache are shared
 *           where the pictures are the same. Where positions have axes (M-RoPE), says where each token is on them.
 * Owner     make: any thread; run: the loop thread. Counted.
 * Errors    INVALID_ARG names the picture by its number, from 0.
 */
#ifndef NRD_EXECUTOR_PICTURES_H
#define NRD_EXECUTOR_PICTURES_H

#include "engine/run/tower.h"
#include "engine/seq_request.h"
#include "nereid/executor.h"

typedef struct nrd_picture {
    int32_t width, height; /* pixels, as it came */
    nrd_vision_grid grid;
    int32_t n_rows;
    float *pixels;    /* [1 + tiles, 3, height, width], as the tower takes them; NULL: it came as rows */
    uint64_t hash[2]; /* of pixels and shape, with a key of this process; of rows: its number, they are looked at themselves */
    /* A video is several of these, whose rows stand in one place of the prompt: */
    int32_t time;    /* … behind the video's begin, in places of the axis of time */
    bool goes_on;    /* … the next one is of the same video */
} nrd_picture;

typedef struct nrd_pictures {
    _Atomic int32_t refs;
    int32_t n, n_rows, n_tokens; /* pictures, and groups of frames; rows of all of them; tokens, with what ends lines */
    nrd_picture *pictures; /* [n] */
    int32_t both_ways; /* > 0: rows of one, NRD_PICTURE_ROWS_VARY or NRD_PICTURE_ROWS_PROMPT; tokens see all of their picture, or prompt */
    int32_t *ids;      /* [n_ids] the prompt with rows: vocab + row */
    int32_t n_ids;
    uint64_t *extra;   /* [n_ids] 0: a token of text */
    /* Where layers read the pictures' states: the prompt's first n_cross places are for them (nrd_seq_request). */
    int32_t n_cross;
    nrd_seq_picture *states; /* [n] */
    int32_t *axes;     /* [n_ids, NRD_ROPE_AXES], or NULL: tokens are where they stand */
    int32_t axes_shift; /* of what follows the prompt */
} nrd_pictures;

size_t nrd_picture_numbers(const nrd_vision_spec *s, nrd_vision_grid grid); /* of its pixels */
/* The picture's grid and pixels; alone: the request has no other one; more than max_tokens of the prompt are too many. The caller frees out->pixels, also
 * after an error. */
nrd_error *nrd_pixels_of(const nrd_vision_spec *s, const void *bytes, size_t n, bool alone, int32_t max_tokens,
                            nrd_picture *out) NRD_MUST_USE;
/* The same of the frames from `at` on that the tower sees at once; s->frames of them, or fewer: the last one is repeated. */
nrd_error *nrd_pixels_of_frames(const nrd_vision_spec *s, const nrd_exec_video *v, int32_t at, int32_t max_tokens, nrd_picture *out) NRD_MUST_USE;
/* Grid and rows of a picture of so many pixels that another one read; it has no pixels here. */
nrd_error *nrd_picture_of_size(const nrd_vision_spec *s, int32_t height, int32_t width, bool alone, nrd_picture *out) NRD_MUST_USE;
/* The same of frame `at` of a video of n_frames. */
nrd_error *nrd_picture_of_frame(const nrd_vision_spec *s, int32_t height, int32_t width, int32_t n_frames, int32_t at, nrd_picture *out) NRD_MUST_USE;
/* hash, of a picture with pixels. */
void nrd_picture_add_hash(const nrd_vision_spec *s, nrd_picture *y);

/* Of in->images, or in->image_sizes, in->videos and in->input_ids; max_ids: of the prompt with rows, without places for states that layers read,
 * which are whole blocks of block_tokens. */
nrd_error *nrd_pictures_new(nrd_pictures **out, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab,
                            int32_t max_ids, int32_t block_tokens) NRD_MUST_USE;
nrd_pictures *nrd_pictures_ref(nrd_pictures *p);
void nrd_pictures_unref(nrd_pictures *p); /* NULL is fine */
/* Host memory of a request's pictures, videos and their rows, max_ids at most, but for what reading one takes for a moment. */
uint64_t nrd_pictures_bytes(const nrd_vision_spec *s, const nrd_exec_request *in, int32_t hidden, int32_t max_ids);

#endif
