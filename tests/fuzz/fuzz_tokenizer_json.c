/* SPDX-License-Identifier: Apache-2.0
 * Input: a tokenizer.json, a NUL byte, a text. Loading ends with a tokenizer (tokenizer_check.h) or an error. */
#include "json_swap.h"
#include "text/internal.h"
#include "tokenizer_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t json_n = nul ? (size_t)(nul - data) : size, text_n = nul ? size - json_n - 1 : 0;
    nrd_tokenizer *t = nrd_tok_new();
    nrd_error *err = nrd_tok_load_json_text(t, (const char *)data, json_n);

    fuzz_check_tokenizer(t, err, nul ? (const char *)nul + 1 : "", text_n);
    return 0;
}
