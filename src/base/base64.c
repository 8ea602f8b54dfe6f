/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base64.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

bool nrd_base64_decode(const char *in, size_t n, char *out, size_t *out_n)
{
    uint32_t acc = 0;
    unsigned bits = 0;
    size_t n_digits = 0, i = 0;

    *out_n = 0;
    for (; i < n && in[i] != '='; i++) {
        if (in[i] == '\n' || in[i] == '\r') {
            continue;
        }
        int d = digit(in[i]);
        if (d < 0) {
            return false;
        }
        acc = acc << 6 | (uint32_t)d;
        bits += 6;
        n_digits++;
        if (bits >= 8) {
            bits -= 8;
            out[(*out_n)++] = (char)(acc >> bits & 0xff);
        }
    }
    for (; i < n; i++) {
        if (in[i] != '=' && in[i] != '\n' && in[i] != '\r') {
            return false;
        }
    }
    return n_digits % 4 != 1;
}

void nrd_base64_encode(const char *in, size_t n, nrd_str *out)
{
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v = (uint32_t)(uint8_t)in[i] << 16;
        v |= left > 1 ? (uint32_t)(uint8_t)in[i + 1] << 8 : 0;
        v |= left > 2 ? (uint32_t)(uint8_t)in[i + 2] : 0;
        char four[4] = {alphabet[v >> 18], alphabet[v >> 12 & 63],
                        left > 1 ? alphabet[v >> 6 & 63] : '=', left > 2 ? alphabet[v & 63] : '='};
        nrd_str_append(out, four, 4);
    }
}
