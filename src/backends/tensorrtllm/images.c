/* SPDX-License-Identifier: Apache-2.0
 * Pictures of a request: base64 with commas between. */
#include "backends/tensorrtllm/llm.h"

#include "base/base64.h"

#include <string.h>

static TRITONSERVER_Error *read_one(const char *text, size_t n, int32_t number, nrd_arena *arena, nrd_exec_image *out)
{
    if (n / 4 * 3 > NRD_LLM_MAX_IMAGE_BYTES + 3) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_IMAGES ": picture %d has %zu bytes of base64; a picture may "
                             "have %d bytes", number, n, NRD_LLM_MAX_IMAGE_BYTES);
    }
    char *bytes = nrd_arena_alloc(arena, n / 4 * 3 + 3);
    if (!bytes) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    out->bytes = bytes;
    if (n == 0 || !nrd_base64_decode(text, n, bytes, &out->n)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_IMAGES ": picture %d is no base64", number);
    }
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_images(const char *text, nrd_arena *arena, nrd_exec_request *out)
{
    int32_t n = 1;

    for (const char *p = strchr(text, ','); p && n <= NRD_LLM_MAX_IMAGES; p = strchr(p + 1, ',')) {
        n++;
    }
    if (n > NRD_LLM_MAX_IMAGES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, NRD_LLM_IMAGES ": at most %d pictures", NRD_LLM_MAX_IMAGES);
    }
    nrd_exec_image *all = nrd_arena_alloc(arena, (size_t)n * sizeof *all);
    if (!all) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int32_t i = 0; i < n; i++) {
        const size_t len = strcspn(text, ",");
        NRD_TB_TRY(read_one(text, len, i, arena, &all[i]));
        text += len + (text[len] == ',');
    }
    out->images = all;
    out->n_images = n;
    return NULL;
}
