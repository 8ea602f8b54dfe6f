/* SPDX-License-Identifier: Apache-2.0
 * The alphabet of byte-level tokenizers, and copies of strings. */
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t nrd_tok_byte_char(uint8_t byte)
{
    /* Printable bytes stand for themselves, the other 68 for U+0100 onwards (Radford 2019). */
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) {
        return byte;
    }
    if (byte <= 0x20) {
        return 0x100u + byte;
    }
    if (byte <= 0xa0) {
        return 0x121u + (uint32_t)(byte - 0x7f);
    }
    return 0x143;
}

int nrd_tok_char_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff)) {
        return (int)cp;
    }
    if (cp >= 0x100 && cp <= 0x120) {
        return (int)cp - 0x100;
    }
    if (cp >= 0x121 && cp <= 0x142) {
        return (int)cp - 0x121 + 0x7f;
    }
    return cp == 0x143 ? 0xad : -1;
}

nrd_error *nrd_tok_text_copy(char **out, size_t *out_n, const char *s, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) {
        return nrd_error_no_memory();
    }
    memcpy(copy, s, n);
    copy[n] = '\0';
    free(*out);
    *out = copy;
    if (out_n) {
        *out_n = n;
    }
    return NULL;
}
