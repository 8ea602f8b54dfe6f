/* SPDX-License-Identifier: Apache-2.0
 * Pictures of a request: base64 with commas between. Videos: such frames behind their number a second, with semicolons between. */
#include "backends/tensorrtllm/llm.h"

#include "base/base64.h"
#include "base/number.h"

#include <string.h>

enum { MAX_FPS_LEN = 31 };

static TRITONSERVER_Error *read_one(const char *text, size_t n, const char *key, int32_t number, nrd_arena *arena, nrd_exec_image *out)
{
    if (n / 4 * 3 > NRD_LLM_MAX_IMAGE_BYTES + 3) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: picture %d has %zu bytes of base64; a picture may have %d bytes", key, number, n,
                             NRD_LLM_MAX_IMAGE_BYTES);
    }
    char *bytes = nrd_arena_alloc(arena, n / 4 * 3 + 3);
    if (!bytes) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    out->bytes = bytes;
    if (n == 0 || !nrd_base64_decode(text, n, bytes, &out->n)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: picture %d is no base64", key, number);
    }
    return NULL;
}

/* So many parts of n bytes, at most `most` + 1. */
static int32_t count_parts(const char *text, size_t n, char between, int32_t most)
{
    const char *const end = text + n;
    int32_t parts = 1;

    for (const char *p = memchr(text, between, n); p && parts <= most; p = memchr(p + 1, between, (size_t)(end - p - 1))) {
        parts++;
    }
    return parts;
}

/* n bytes of text; `first`: the number of the first picture, for messages. */
static TRITONSERVER_Error *read_list(const char *text, size_t n, const char *key, int32_t first, int32_t most, nrd_arena *arena,
                                     const nrd_exec_image **out, int32_t *out_n)
{
    const int32_t count = count_parts(text, n, ',', most);
    nrd_exec_image *all = NULL;

    if (count > most) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: at most %d pictures", key, most);
    }
    all = nrd_arena_alloc(arena, (size_t)count * sizeof *all);
    if (!all) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int32_t i = 0; i < count; i++) {
        const char *comma = memchr(text, ',', n);
        const size_t len = comma ? (size_t)(comma - text) : n;
        NRD_TB_TRY(read_one(text, len, key, first + i, arena, &all[i]));
        text += len + (comma != NULL);
        n -= len + (comma != NULL);
    }
    *out = all;
    *out_n = count;
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_images(const char *text, nrd_arena *arena, nrd_exec_request *out)
{
    return read_list(text, strlen(text), NRD_LLM_IMAGES, 0, NRD_LLM_MAX_IMAGES, arena, &out->images, &out->n_images);
}

/* FPS:FRAME,FRAME */
static TRITONSERVER_Error *read_video(const char *text, size_t n, int32_t number, int32_t n_before, nrd_arena *arena, nrd_exec_video *out)
{
    const char *colon = memchr(text, ':', n < MAX_FPS_LEN + 1 ? n : MAX_FPS_LEN + 1);
    char fps[MAX_FPS_LEN + 1] = "";
    char *end = fps;

    if (colon) {
        memcpy(fps, text, (size_t)(colon - text));
        out->fps = nrd_number_read(fps, &end); /* its range is the executor's to check */
    }
    if (!colon || end == fps || *end) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_VIDEOS ": video %d does not begin with its frames a second and a colon", number);
    }
    return read_list(colon + 1, n - (size_t)(colon + 1 - text), NRD_LLM_VIDEOS, n_before, NRD_LLM_MAX_VIDEO_FRAMES - n_before, arena, &out->frames,
                     &out->n_frames);
}

TRITONSERVER_Error *nrd_llm_read_videos(const char *text, nrd_arena *arena, nrd_exec_request *out)
{
    size_t n = strlen(text);
    const int32_t count = count_parts(text, n, ';', NRD_LLM_MAX_VIDEO_FRAMES);
    int32_t n_frames = 0;

    if (count > NRD_LLM_MAX_VIDEO_FRAMES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_VIDEOS ": at most %d frames of all videos", NRD_LLM_MAX_VIDEO_FRAMES);
    }
    nrd_exec_video *all = nrd_arena_alloc(arena, (size_t)count * sizeof *all);
    if (!all) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int32_t i = 0; i < count; i++) {
        const char *semicolon = memchr(text, ';', n);
        const size_t len = semicolon ? (size_t)(semicolon - text) : n;
        NRD_TB_TRY(read_video(text, len, i, n_frames, arena, &all[i]));
        n_frames += all[i].n_frames;
        text += len + (semicolon != NULL);
        n -= len + (semicolon != NULL);
    }
    out->videos = all;
    out->n_videos = count;
    return NULL;
}
