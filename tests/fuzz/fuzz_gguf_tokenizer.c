/* SPDX-License-Identifier: Apache-2.0
 * Input: a GGUF file, a border (parts.h), a text. Loading its tokenizer ends with one (tokenizer_check.h) or an error. */
#include "parts.h"
#include "tokenizer_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[256];
    fuzz_part part[2] = {{0}};
    nrd_tokenizer *t = NULL;

    if (size > 1 << 20) {
        return 0;
    }
    const size_t n = fuzz_split(data, size, part, 2);
    fuzz_write("x.gguf", &part[0]);
    snprintf(path, sizeof path, "%s/x.gguf", fuzz_folder());
    nrd_error *err = nrd_tokenizer_open(&t, path);
    fuzz_check_tokenizer(t, err, n > 1 ? (const char *)part[1].p : "", part[1].n);
    return 0;
}
