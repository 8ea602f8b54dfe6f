/* SPDX-License-Identifier: Apache-2.0 */
#include "agents/checksum/md5.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

/* RFC 1321, 3.4: 64 operations in four rounds; the constants are the integer parts of
 * 2^32 |sin(i)|, i in radians. */
static void add_block(uint32_t state[4], const unsigned char *p)
{
    static const unsigned char turns[4][4] = {
        {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    uint32_t x[16], a = state[0], b = state[1], c = state[2], d = state[3];

    for (int i = 0; i < 16; i++) {
        x[i] = (uint32_t)p[4 * i] | (uint32_t)p[4 * i + 1] << 8 | (uint32_t)p[4 * i + 2] << 16 |
               (uint32_t)p[4 * i + 3] << 24;
    }
    for (unsigned i = 0; i < 64; i++) {
        const uint32_t constant =
            (uint32_t)(int64_t)floor(fabs(sin((double)(i + 1))) * 4294967296.0);
        uint32_t f;
        unsigned k;
        switch (i / 16) {
        case 0:
            f = (b & c) | (~b & d);
            k = i;
            break;
        case 1:
            f = (b & d) | (c & ~d);
            k = (5 * i + 1) % 16;
            break;
        case 2:
            f = b ^ c ^ d;
            k = (3 * i + 5) % 16;
            break;
        default:
            f = c ^ (b | ~d);
            k = 7 * i % 16;
            break;
        }
        const uint32_t next = b + rotate(a + f + x[k] + constant, turns[i / 16][i % 4]);
        a = d;
        d = c;
        c = b;
        b = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

void nrd_md5_init(nrd_md5 *m)
{
    *m = (nrd_md5){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}};
}

void nrd_md5_update(nrd_md5 *m, const void *data, size_t n)
{
    const unsigned char *p = data;

    while (n > 0) {
        size_t at = m->n_bytes % 64, take = 64 - at < n ? 64 - at : n;
        memcpy(m->rest + at, p, take);
        m->n_bytes += take;
        p += take;
        n -= take;
        if (m->n_bytes % 64 == 0) {
            add_block(m->state, m->rest);
        }
    }
}

void nrd_md5_text(nrd_md5 *m, char out[NRD_MD5_TEXT])
{
    static const unsigned char padding[64] = {0x80};
    const uint64_t n_bits = m->n_bytes * 8;
    unsigned char length[8];

    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(n_bits >> (8 * i));
    }
    nrd_md5_update(m, padding, (119 - m->n_bytes % 64) % 64 + 1);
    nrd_md5_update(m, length, sizeof length);
    for (int i = 0; i < 16; i++) {
        snprintf(out + 2 * i, 3, "%02x", (unsigned)(m->state[i / 4] >> (8 * (i % 4)) & 0xff));
    }
}
