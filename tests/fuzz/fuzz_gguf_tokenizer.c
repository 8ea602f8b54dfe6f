/* SPDX-License-Identifier: Apache-2.0
 * Input: a GGUF file, a border (parts.h), a text. Loading its tokenizer ends with one or an error; a
 * tokenizer encodes and decodes the text, whole and streamed, with equal results. */
#include "parts.h"
#include "text/tokenizer.h"

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
    char path[256];
    fuzz_part part[2] = {{0}};
    nrd_tokenizer *t = NULL;

    if (size > 1 << 20) {
        return 0;
    }
    const size_t n = fuzz_split(data, size, part, 2);
    const char *text = n > 1 ? (const char *)part[1].p : "";
    fuzz_write("x.gguf", &part[0]);
    snprintf(path, sizeof path, "%s/x.gguf", fuzz_folder());
    nrd_error *err = nrd_tokenizer_open(&t, path);
    for (uint32_t flags = 0; flags < 4 && !err; flags++) {
        nrd_ids ids = {0};
        err = nrd_tokenizer_encode(t, text, part[1].n, flags, &ids);
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= nrd_tokenizer_vocab_size(t)) {
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
