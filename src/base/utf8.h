/* SPDX-License-Identifier: Apache-2.0
 * base/utf8.h - one step through UTF-8 that may be broken.
 *
 * Purpose   The single definition of "valid" that JSON, tokenizers and writers share.
 * Owner     Stateless, any thread.
 * Errors    A broken sequence gives NRD_UTF8_BAD and the length of its maximal part, so that every
 *           caller replaces the same spans by one U+FFFD each.
 * Source    Unicode 15, section 3.9, table 3-7 and "U+FFFD substitution of maximal subparts".
 */
#ifndef NRD_BASE_UTF8_H
#define NRD_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define NRD_UTF8_BAD UINT32_MAX

/* Reads one code point of s[0..n), n > 0. Returns the bytes that it took, at least 1. */
static inline size_t nrd_utf8_next(const char *s, size_t n, uint32_t *out_cp)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned c = p[0], lo = 0x80, hi = 0xbf;
    size_t need;
    uint32_t cp;

    if (c < 0x80) {
        *out_cp = c;
        return 1;
    }
    *out_cp = NRD_UTF8_BAD;
    if (c < 0xc2 || c > 0xf4) {
        return 1;
    }
    if (c < 0xe0) {
        need = 1;
        cp = c & 0x1f;
    } else if (c < 0xf0) {
        need = 2;
        cp = c & 0x0f;
        lo = c == 0xe0 ? 0xa0 : lo; /* shorter forms exist */
        hi = c == 0xed ? 0x9f : hi; /* surrogates */
    } else {
        need = 3;
        cp = c & 0x07;
        lo = c == 0xf0 ? 0x90 : lo;
        hi = c == 0xf4 ? 0x8f : hi; /* above U+10FFFF */
    }
    for (size_t i = 1; i <= need; i++) {
        if (i >= n || p[i] < lo || p[i] > hi) {
            return i;
        }
        cp = cp << 6 | (p[i] & 0x3fu);
        lo = 0x80;
        hi = 0xbf;
    }
    *out_cp = cp;
    return need + 1;
}

/* Writes a code point (not a surrogate, <= U+10FFFF) to out[0..4). Returns the bytes written. */
static inline size_t nrd_utf8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

#endif
