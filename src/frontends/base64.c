#include "frontends/base64.h"

#include <stdint.h>

static int base64_digit(char c)
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
    *out_n = 0;
    for (size_t i = 0; i < n && in[i] != '='; i++) {
        if (in[i] == '\n' || in[i] == '\r') {
            continue;
        }
        int d = base64_digit(in[i]);
        if (d < 0) {
            return false;
        }
        acc = acc << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[(*out_n)++] = (char)(acc >> bits & 0xff);
        }
    }
    return true;
}
