#include "text/base64.h"

#include <stdint.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool nrd_text_base64_decode(const char *s, size_t n, nrd_str *out)
{
    uint8_t value[256];
    uint32_t bits = 0;
    int n_bits = 0;

    memset(value, 0xff, sizeof value);
    for (uint8_t i = 0; i < 64; i++) {
        value[(uint8_t)alphabet[i]] = i;
    }
    if (n % 4) {
        return false;
    }
    for (int pad = 0; pad < 2 && n && s[n - 1] == '='; pad++) {
        n--;
    }
    nrd_str_reserve(out, n);
    for (size_t i = 0; i < n; i++) {
        uint8_t v = value[(uint8_t)s[i]];
        if (v == 0xff) {
            return false;
        }
        bits = bits << 6 | v;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            nrd_str_putc(out, (char)(bits >> n_bits & 0xff));
        }
    }
    return true;
}

void nrd_base64_encode(const char *s, size_t n, nrd_str *out)
{
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v = (uint32_t)(uint8_t)s[i] << 16;
        v |= left > 1 ? (uint32_t)(uint8_t)s[i + 1] << 8 : 0;
        v |= left > 2 ? (uint32_t)(uint8_t)s[i + 2] : 0;
        char four[4] = {alphabet[v >> 18], alphabet[v >> 12 & 63],
                        left > 1 ? alphabet[v >> 6 & 63] : '=', left > 2 ? alphabet[v & 63] : '='};
        nrd_str_append(out, four, 4);
    }
}
