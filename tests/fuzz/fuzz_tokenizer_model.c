/* SPDX-License-Identifier: Apache-2.0
 * Input: a length of a tokenizer.model (two bytes, little endian), the model, a text. Loading ends with a tokenizer or an error; a tokenizer
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
    if (size < 2) {
        return 0;
    }
    size_t model_n = (size_t)(data[0] | data[1] << 8);
    model_n = model_n < size - 2 ? model_n : size - 2;
    const char *text = (const char *)data + 2 + model_n;
    size_t text_n = size - 2 - model_n;
    nrd_tokenizer *t = nrd_tok_new();
    nrd_error *err = nrd_tok_load_spm_bytes(t, data + 2, model_n);
    for (uint32_t flags = 0; flags < 4 && !err; flags++) {
        nrd_ids ids = {0};
        err = nrd_tokenizer_encode(t, text, text_n, flags, &ids);
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
