/* SPDX-License-Identifier: Apache-2.0
 * Input: a tokenizer.json, a NUL byte, a text. Loading ends with a tokenizer or an error; a tokenizer
 * encodes and decodes the text, whole and streamed, with equal results. */
#include "text/internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stream(const nrd_tokenizer *t, const nrd_ids *ids)
{
    nrd_str whole = {0}, stream = {0};
    nrd_detok *d = nrd_detok_new(t, 0);
    nrd_tokenizer_decode(t, ids->ids, ids->n, 0, &whole);
    for (size_t i = 0; i < ids->n; i++) {
        nrd_detok_push(d, ids->ids[i], &stream);
    }
    nrd_detok_flush(d, &stream);
    if (whole.len != stream.len || memcmp(nrd_str_cstr(&whole), nrd_str_cstr(&stream), whole.len)) {
        abort();
    }
    nrd_detok_free(d);
    nrd_str_fini(&whole);
    nrd_str_fini(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t json_n = nul ? (size_t)(nul - data) : size, text_n = nul ? size - json_n - 1 : 0;
    nrd_tokenizer *t = nrd_tok_new();
    nrd_error *err = nrd_tok_load_json_text(t, (const char *)data, json_n);
    for (uint32_t flags = 0; flags < 4 && !err; flags++) {
        nrd_ids ids = {0};
        err = nrd_tokenizer_encode(t, nul ? (const char *)nul + 1 : "", text_n, flags, &ids);
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= TOK_MAX_ID) {
                abort();
            }
        }
        check_stream(t, &ids);
        nrd_ids_fini(&ids);
    }
    nrd_error_free(err);
    nrd_tokenizer_close(t);
    return 0;
}
