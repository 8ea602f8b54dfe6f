/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/tokenizer_check.h - what must hold of any tokenizer that was opened.
 *
 * Purpose   It encodes a text with every set of flags into ids of its vocabulary, and decodes them, whole and streamed,
 *           with equal results; each id has a token that can be read.
 * Owner     The one thread that runs the target. */
#ifndef NRD_TESTS_FUZZ_TOKENIZER_CHECK_H
#define NRD_TESTS_FUZZ_TOKENIZER_CHECK_H

#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static inline void fuzz_check_stream(const nrd_tokenizer *t, const nrd_ids *ids, uint32_t flags)
{
    nrd_str whole = {0}, stream = {0};
    nrd_detok *d = nrd_detok_new(t, flags);
    nrd_tokenizer_decode(t, ids->ids, ids->n, flags, &whole);
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

static inline void fuzz_check_tokens(const nrd_tokenizer *t, const nrd_ids *ids)
{
    const int32_t vocab = nrd_tokenizer_vocab_size(t);
    volatile size_t sum = 0;
    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0, n_bytes = 0;
        if (ids->ids[i] < 0 || ids->ids[i] >= vocab) {
            abort();
        }
        const char *token = nrd_tokenizer_token(t, ids->ids[i], &n), *bytes = nrd_tokenizer_token_bytes(t, ids->ids[i], &n_bytes);
        for (size_t k = 0; token && k < n; k++) {
            sum += (unsigned char)token[k];
        }
        for (size_t k = 0; bytes && k < n_bytes; k++) {
            sum += (unsigned char)bytes[k];
        }
    }
}

/* Takes err, of the opening; without one the tokenizer is checked. Closes it. */
static inline void fuzz_check_tokenizer(nrd_tokenizer *t, nrd_error *err, const char *text, size_t n)
{
    for (uint32_t flags = 0; flags < 4 && !err; flags++) {
        nrd_ids ids = {0};
        err = nrd_tokenizer_encode(t, text, n, flags, &ids);
        fuzz_check_tokens(t, &ids);
        fuzz_check_stream(t, &ids, flags & NRD_DECODE_SKIP_SPECIAL);
        nrd_ids_fini(&ids);
    }
    nrd_error_free(err);
    nrd_tokenizer_close(t);
}

#endif
