/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/pictures.h"

#include "base/file.h"
#include "base/json.h"
#include "model/vision.h"

#include <stdlib.h>
#include <string.h>

void nrd_tool_pictures_init(nrd_tool_pictures *p, const char *engine_dir, const nrd_tokenizer *t, const char *chat_template)
{
    const bool in_parts = chat_template && strstr(chat_template, "image"), numbered = nrd_tokenizer_numbers_pictures(t);

    *p = (nrd_tool_pictures){.is_on = nrd_vision_is_in(engine_dir) && chat_template && (in_parts || numbered), .in_words = numbered && !in_parts};
}

static void keep(nrd_tool_pictures *p, int32_t n)
{
    while (p->n > n) {
        free((void *)(uintptr_t)p->images[--p->n].bytes);
    }
}

void nrd_tool_pictures_take_back(nrd_tool_pictures *p)
{
    keep(p, p->n_before);
    p->n_told = p->n;
}

void nrd_tool_pictures_clear(nrd_tool_pictures *p)
{
    keep(p, 0);
    free(p->images);
    *p = (nrd_tool_pictures){.is_on = p->is_on, .in_words = p->in_words};
}

nrd_error *nrd_tool_pictures_add(nrd_tool_pictures *p, const char *path)
{
    char *bytes = NULL;
    size_t n = 0;

    if (p->n == NRD_LLM_MAX_IMAGES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': a conversation has at most %d pictures", path, NRD_LLM_MAX_IMAGES);
    }
    NRD_TRY(nrd_file_read(&bytes, &n, path, NRD_LLM_MAX_IMAGE_BYTES));
    nrd_exec_image *images = realloc(p->images, (size_t)(p->n + 1) * sizeof *images);
    if (!images) {
        free(bytes);
        return nrd_error_no_memory();
    }
    p->images = images;
    p->images[p->n++] = (nrd_exec_image){bytes, n};
    return NULL;
}

static void put_in_words(nrd_tool_pictures *p, nrd_str *out, const char *text, size_t n, int32_t n_new)
{
    nrd_str all = {0};

    for (int32_t i = 0; i < n_new; i++) {
        nrd_str_printf(&all, "<|image_%d|>\n", ++p->n_told);
    }
    nrd_str_append(&all, text, n);
    nrd_json_put_string(out, nrd_str_cstr(&all), all.len);
    out->no_memory |= all.no_memory;
    nrd_str_fini(&all);
}

void nrd_tool_pictures_put(nrd_tool_pictures *p, nrd_str *out, const char *text, size_t n, bool of_user)
{
    const int32_t n_new = p->is_on && of_user ? p->n - p->n_told : 0;

    p->n_before = of_user ? p->n_told : p->n_before;
    if (!p->is_on || p->in_words) {
        put_in_words(p, out, text, n, n_new);
        return;
    }
    nrd_str_putc(out, '[');
    for (int32_t i = 0; i < n_new; i++, p->n_told++) {
        nrd_str_puts(out, "{\"type\":\"image\"},");
    }
    nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
    nrd_json_put_string(out, text, n);
    nrd_str_puts(out, "}]");
}
