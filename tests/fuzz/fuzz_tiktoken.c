/* SPDX-License-Identifier: Apache-2.0
 * Input: a vocabulary of OpenAI's Whisper, a NUL byte, a text. Loading ends with a tokenizer (tokenizer_check.h) or an error. */
#include "text/whisper.h"

#include "tokenizer_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MAX_SIZE = 1 << 14 };
    const uint8_t *nul = memchr(data, 0, size);
    const size_t n = nul ? (size_t)(nul - data) : size, text_n = nul ? size - n - 1 : 0;
    nrd_tokenizer *t = NULL;

    if (size > MAX_SIZE) {
        return 0;
    }
    nrd_error *err = nrd_whisper_tokenizer_open_memory(&t, (const char *)data, n, 99);
    fuzz_check_tokenizer(t, err, nul ? (const char *)nul + 1 : "", text_n);
    return 0;
}
