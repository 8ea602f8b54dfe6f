/* SPDX-License-Identifier: Apache-2.0
 * Base64, as files of models, pictures and handles come in JSON. What was read is written as a text that is read as the
 * same; any bytes come back from their text. */
#include "base/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void comes_back(const char *bytes, size_t n)
{
    nrd_str text = {0};
    size_t back_n = 0;

    nrd_base64_encode(bytes, n, &text);
    char *back = malloc(text.len + 1);
    if (!back || text.len != (n + 2) / 3 * 4 || !nrd_base64_decode(text.data ? text.data : "", text.len, back, &back_n) ||
        back_n != n || memcmp(back, bytes, n) != 0) {
        abort();
    }
    free(back);
    nrd_str_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *out = malloc(size ? size : 1); /* as much as is promised to be enough */
    size_t n = 0;

    if (!out) {
        return 0;
    }
    comes_back((const char *)data, size);
    if (nrd_base64_decode((const char *)data, size, out, &n)) {
        if (n > size) {
            abort();
        }
        comes_back(out, n);
    }
    free(out);
    return 0;
}
