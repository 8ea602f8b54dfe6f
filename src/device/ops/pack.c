/* SPDX-License-Identifier: Apache-2.0
 * Weights in tiles of 16 rows (NRD_LAYOUT_TILE16).
 *
 * Why       One layout serves a single token (memory bound: a tile is one contiguous stream) and
 *           many tokens (a tile's integers stay in registers), with 16 results per vector and no
 *           horizontal sums. All instruction sets read it, so an engine file runs on any machine.
 * Bytes     A block is 32 k of 16 rows. f16 scales come as in the file; integers are unsigned:
 *   lo4  256 bytes: vector i (of 4): low nibble group i, high nibble group i + 4
 *   lo2  128 bytes: vector i (of 2): bits 2j of group 4 i + j
 *   hi1   64 bytes: bit g of group g          hi2  128 bytes: vector i: bits 2j of group 4 i + j
 *   u8   512 bytes: group after group, value + 128
 *   Q4_0 d16 lo4 | Q4_1 d16 m16 lo4 | Q5_0 d16 hi1 lo4 | Q5_1 d16 m16 hi1 lo4 | Q8_0 d16 u8 | Q8_1 d16 m16 u8 | I8 u8
 *   Q4_K d16 m16, 8 x (sc8 m8 lo4)     Q5_K d16 m16, 8 x (sc8 m8 hi1 lo4)
 *   Q6_K d16, 8 x (sc8[2] hi2 lo4)     Q3_K d16, 8 x (sc8[2] hi1 lo2)    Q2_K d16 m16, 8 x (sm8[2] lo2)
 *   IQ4_NL d16 lo4 | IQ4_XS d16, 8 x (sc8 lo4): lo4 has the places in the table of values
 *   MXFP4 d16 lo4: d16 is half of the scale, as bfloat16; lo4 as in IQ4_NL
 *   F32, F16 [k][16]; BF16 [k / 2][16][2], the pairs that dot-product instructions take.
 */
#include "device/ops/pack.h"

#include "device/ops/ops.h"

#include <string.h>

static const int8_t iq4_values[16] = NRD_IQ4_VALUES, mxfp4_values[16] = NRD_MXFP4_VALUES;

static const nrd_tile16_format formats[] = {
    /* type            k   head block  sub bytes: scales, hi, lo        bits hi lo  offset */
    {NRD_DTYPE_Q4_0, 32, 0, 32, 0, 256, 8},      {NRD_DTYPE_Q4_1, 32, 0, 64, 0, 256, 0},
    {NRD_DTYPE_Q5_0, 32, 0, 32, 64, 256, 16},    {NRD_DTYPE_Q5_1, 32, 0, 64, 64, 256, 0},
    {NRD_DTYPE_Q8_0, 32, 0, 32, 0, 512, 128},    {NRD_DTYPE_I8, 32, 0, 0, 0, 512, 128},
    {NRD_DTYPE_Q8_1, 32, 0, 64, 0, 512, 128},
    {NRD_DTYPE_Q2_K, 256, 64, 32, 0, 128, 0},    {NRD_DTYPE_Q3_K, 256, 32, 32, 64, 128, 4},
    {NRD_DTYPE_Q4_K, 256, 64, 32, 0, 256, 0},    {NRD_DTYPE_Q5_K, 256, 64, 32, 64, 256, 0},
    {NRD_DTYPE_Q6_K, 256, 32, 32, 128, 256, 32},
    {NRD_DTYPE_IQ4_NL, 32, 0, 32, 0, 256, 128},  {NRD_DTYPE_IQ4_XS, 256, 32, 16, 0, 256, 128},
    {NRD_DTYPE_MXFP4, 32, 0, 32, 0, 256, 12},
};

const nrd_tile16_format *nrd_tile16_format_of(nrd_dtype t)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].type == t) {
            return &formats[i];
        }
    }
    return NULL;
}

static size_t sub_bytes(const nrd_tile16_format *f)
{
    return (size_t)(f->scale_bytes + f->hi_bytes + f->lo_bytes);
}

size_t nrd_tile16_bytes(nrd_dtype t, int64_t cols)
{
    const nrd_tile16_format *f = nrd_tile16_format_of(t);

    if (f) {
        size_t blocks = (size_t)((cols + f->k - 1) / f->k);
        return blocks * ((size_t)f->head_bytes + (size_t)(f->k / 32) * sub_bytes(f));
    }
    switch (t) {
    case NRD_DTYPE_F32:
        return (size_t)cols * 64;
    case NRD_DTYPE_F16:
        return (size_t)cols * 32;
    case NRD_DTYPE_BF16:
        return (size_t)((cols + 1) / 2) * 64;
    default:
        return 0;
    }
}

/* Reads 32 integers of a row's block `b` (32 k), and the scales that go with them. Simple types
 * fill scale bytes for the sub block, K types also the head of their super block. */
typedef struct row_block {
    uint8_t q[32];
    uint8_t scale[2], min[2]; /* K types */
    uint8_t d[2], m[2];       /* f16 bytes */
} row_block;

static void low_nibbles(const uint8_t *p, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

/* K types: b / 8 is the super block. */
static void read_sub_block(nrd_dtype t, const uint8_t *row, int64_t b, row_block *o)
{
    const uint8_t *p;
    int s = (int)(b % 8);

    switch (t) {
    case NRD_DTYPE_Q2_K:
        p = row + b / 8 * 84;
        memcpy(o->d, p + 80, 2);
        memcpy(o->m, p + 82, 2);
        memcpy(o->scale, p + 2 * s, 2);
        for (int i = 0; i < 32; i++) {
            o->q[i] = (p[16 + s / 4 * 32 + i] >> (s % 4 * 2)) & 3;
        }
        return;
    case NRD_DTYPE_Q3_K:
        p = row + b / 8 * 110;
        memcpy(o->d, p + 108, 2);
        for (int h = 0; h < 2; h++) {
            int j = 2 * s + h, lo = j < 8 ? p[96 + j] & 15 : p[96 + j - 8] >> 4;
            int hi = (p[104 + j % 4] >> (2 * (j / 4))) & 3;
            o->scale[h] = (uint8_t)((lo | hi << 4) - 32);
        }
        for (int i = 0; i < 32; i++) {
            int v = (p[32 + s / 4 * 32 + i] >> (s % 4 * 2)) & 3;
            o->q[i] = (uint8_t)(v | ((p[i] >> s) & 1) << 2);
        }
        return;
    case NRD_DTYPE_Q4_K:
    case NRD_DTYPE_Q5_K: {
        bool five = t == NRD_DTYPE_Q5_K;
        p = row + b / 8 * (five ? 176 : 144);
        memcpy(o->d, p, 2);
        memcpy(o->m, p + 2, 2);
        const uint8_t *sc = p + 4, *qs = p + (five ? 48 : 16) + s / 2 * 32;
        if (s < 4) {
            o->scale[0] = sc[s] & 63;
            o->min[0] = sc[s + 4] & 63;
        } else {
            o->scale[0] = (uint8_t)((sc[s + 4] & 15) | (sc[s - 4] >> 6) << 4);
            o->min[0] = (uint8_t)((sc[s + 4] >> 4) | (sc[s] >> 6) << 4);
        }
        for (int i = 0; i < 32; i++) {
            int v = s % 2 ? qs[i] >> 4 : qs[i] & 15;
            o->q[i] = (uint8_t)(five ? v | ((p[16 + i] >> s) & 1) << 4 : v);
        }
        return;
    }
    case NRD_DTYPE_Q6_K: {
        int quarter = s % 4;
        p = row + b / 8 * 210;
        memcpy(o->d, p + 208, 2);
        memcpy(o->scale, p + 192 + 2 * s, 2);
        for (int i = 0; i < 32; i++) {
            int lo = p[s / 4 * 64 + (quarter & 1) * 32 + i];
            lo = quarter < 2 ? lo & 15 : lo >> 4;
            o->q[i] = (uint8_t)(lo | ((p[128 + s / 4 * 32 + i] >> (2 * quarter)) & 3) << 4);
        }
        return;
    }
    default:
        return;
    }
}

static void read_block(nrd_dtype t, const uint8_t *row, int64_t b, row_block *o)
{
    const uint8_t *p;
    uint32_t qh = 0;
    int s = (int)(b % 8);

    switch (t) {
    case NRD_DTYPE_Q4_0:
        p = row + b * 18;
        memcpy(o->d, p, 2);
        low_nibbles(p + 2, o->q);
        return;
    case NRD_DTYPE_Q4_1:
        p = row + b * 20;
        memcpy(o->d, p, 2);
        memcpy(o->m, p + 2, 2);
        low_nibbles(p + 4, o->q);
        return;
    case NRD_DTYPE_Q5_0:
    case NRD_DTYPE_Q5_1:
        p = row + b * (t == NRD_DTYPE_Q5_0 ? 22 : 24);
        memcpy(o->d, p, 2);
        p += 2;
        if (t == NRD_DTYPE_Q5_1) {
            memcpy(o->m, p, 2);
            p += 2;
        }
        memcpy(&qh, p, 4);
        low_nibbles(p + 4, o->q);
        for (int i = 0; i < 32; i++) {
            o->q[i] = (uint8_t)(o->q[i] | ((qh >> i) & 1u) << 4);
        }
        return;
    case NRD_DTYPE_Q8_0:
        p = row + b * 34;
        memcpy(o->d, p, 2);
        for (int i = 0; i < 32; i++) {
            o->q[i] = p[2 + i] ^ 0x80;
        }
        return;
    case NRD_DTYPE_Q8_1:
        p = row + b * 36;
        memcpy(o->d, p, 2);
        memcpy(o->m, p + 2, 2);
        for (int i = 0; i < 32; i++) {
            o->q[i] = p[4 + i] ^ 0x80;
        }
        return;
    case NRD_DTYPE_IQ4_NL:
        p = row + b * 18;
        memcpy(o->d, p, 2);
        low_nibbles(p + 2, o->q);
        return;
    case NRD_DTYPE_IQ4_XS:
        p = row + b / 8 * 136;
        memcpy(o->d, p, 2);
        o->scale[0] = (uint8_t)(((p[4 + s / 2] >> (s % 2 * 4) & 15) | (p[2 + s / 4] >> (s % 4 * 2) & 3) << 4) - 32);
        low_nibbles(p + 8 + s * 16, o->q);
        return;
    case NRD_DTYPE_MXFP4: {
        p = row + b * 17;
        const uint16_t d = nrd_mxfp4_half_scale(p[0]);
        memcpy(o->d, &d, 2);
        low_nibbles(p + 1, o->q);
        return;
    }
    default:
        read_sub_block(t, row, b, o);
    }
}

/* Writes one row's 32 integers into a sub block. `at` is past the scales. */
static void write_ints(const nrd_tile16_format *f, uint8_t *at, int r, const uint8_t *q)
{
    uint8_t *hi = at, *lo = at + f->hi_bytes;

    if (f->lo_bytes == 512) {
        for (int g = 0; g < 8; g++) {
            memcpy(lo + g * 64 + r * 4, q + g * 4, 4);
        }
        return;
    }
    int shift = f->lo_bytes == 256 ? 4 : 2;
    for (int i = 0; i < 4; i++) { /* k within a group */
        int p = r * 4 + i;
        if (shift == 4) {
            for (int g = 0; g < 4; g++) {
                lo[g * 64 + p] = (uint8_t)((q[g * 4 + i] & 15) | (q[g * 4 + 16 + i] & 15) << 4);
            }
        } else {
            for (int g = 0; g < 2; g++) {
                const uint8_t *s = q + g * 16 + i;
                lo[g * 64 + p] = (uint8_t)((s[0] & 3) | (s[4] & 3) << 2 | (s[8] & 3) << 4 | (s[12] & 3) << 6);
            }
        }
        if (f->hi_bytes == 64) {
            unsigned v = 0;
            for (int g = 0; g < 8; g++) {
                v |= (unsigned)(q[g * 4 + i] >> shift & 1) << g;
            }
            hi[p] = (uint8_t)v;
        } else if (f->hi_bytes == 128) {
            for (int g = 0; g < 2; g++) {
                const uint8_t *s = q + g * 16 + i;
                hi[g * 64 + p] = (uint8_t)((s[0] >> 4) | (s[4] >> 4) << 2 | (s[8] >> 4) << 4 | (s[12] >> 4) << 6);
            }
        }
    }
}

static void pack_quant(const nrd_tile16_format *f, const nrd_weight *w, int64_t row, uint8_t *tile)
{
    bool is_k = f->k == 256, i8 = f->type == NRD_DTYPE_I8;
    int64_t n_blocks = (w->cols + f->k - 1) / f->k * (f->k / 32);
    int n_rows = w->rows - row < 16 ? (int)(w->rows - row) : 16;
    size_t row_bytes = i8 ? (size_t)w->cols
                          : (size_t)(w->cols / f->k) * nrd_dtype_block_bytes(f->type);

    for (int64_t b = 0; b < n_blocks; b++) {
        if (is_k && b % 8 == 0) {
            if (b) {
                tile += 8 * sub_bytes(f);
            }
            tile += f->head_bytes;
        }
        uint8_t *head = tile - f->head_bytes;
        uint8_t *sub = is_k ? tile + (size_t)(b % 8) * sub_bytes(f) : tile;
        for (int r = 0; r < 16; r++) {
            row_block o;
            memset(&o, 0, sizeof o);
            if (r < n_rows) {
                const uint8_t *src = (const uint8_t *)w->data + (size_t)(row + r) * row_bytes;
                if (i8) {
                    for (int64_t i = 0; i < 32; i++) {
                        int64_t k = b * 32 + i;
                        o.q[i] = (uint8_t)((k < w->cols ? src[k] : 0) ^ 0x80);
                    }
                } else {
                    read_block(f->type, src, b, &o);
                }
            }
            if (is_k) {
                if (b % 8 == 0) {
                    memcpy(head + r * 2, o.d, 2);
                    if (f->head_bytes == 64) {
                        memcpy(head + 32 + r * 2, o.m, 2);
                    }
                }
                sub[r] = o.scale[0];
                if (f->scale_bytes == 32) {
                    sub[16 + r] = f->type == NRD_DTYPE_Q4_K || f->type == NRD_DTYPE_Q5_K ? o.min[0] : o.scale[1];
                }
            } else {
                if (f->scale_bytes >= 32) {
                    memcpy(sub + r * 2, o.d, 2);
                }
                if (f->scale_bytes == 64) {
                    memcpy(sub + 32 + r * 2, o.m, 2);
                }
            }
            write_ints(f, sub + f->scale_bytes, r, o.q);
        }
        if (!is_k) {
            tile += sub_bytes(f);
        }
    }
}

void nrd_tile16_pack(const nrd_weight *w, int64_t row, void *tile)
{
    const nrd_tile16_format *f = nrd_tile16_format_of(w->dtype);
    int n_rows = w->rows - row < 16 ? (int)(w->rows - row) : 16;

    if (f) {
        pack_quant(f, w, row, tile);
        return;
    }
    if (n_rows < 16 || w->cols % 2) {
        memset(tile, 0, nrd_tile16_bytes(w->dtype, w->cols));
    }
    for (int r = 0; r < n_rows; r++) {
        if (w->dtype == NRD_DTYPE_F32) {
            const uint32_t *s = (const uint32_t *)w->data + (row + r) * w->cols;
            uint32_t *d = (uint32_t *)tile + r;
            for (int64_t k = 0; k < w->cols; k++) {
                d[k * 16] = s[k];
            }
        } else if (w->dtype == NRD_DTYPE_F16) {
            const uint16_t *s = (const uint16_t *)w->data + (row + r) * w->cols;
            uint16_t *d = (uint16_t *)tile + r;
            for (int64_t k = 0; k < w->cols; k++) {
                d[k * 16] = s[k];
            }
        } else {
            const uint16_t *s = (const uint16_t *)w->data + (row + r) * w->cols;
            uint16_t *d = (uint16_t *)tile + r * 2;
            for (int64_t k = 0; k < w->cols; k++) {
                d[k / 2 * 32 + k % 2] = s[k];
            }
        }
    }
}

static float half_at(const uint8_t *p, int r)
{
    uint16_t h;
    memcpy(&h, p + r * 2, 2);
    return nrd_f16_to_f32(h);
}

/* Integer of row r, k i of the sub block whose integers begin at `at`. */
static int read_int(const nrd_tile16_format *f, const uint8_t *at, int r, int i)
{
    const uint8_t *hi = at, *lo = at + f->hi_bytes;
    int g = i / 4, p = r * 4 + i % 4, v;

    if (f->lo_bytes == 512) {
        return lo[g * 64 + p];
    }
    if (f->lo_bytes == 256) {
        v = (lo[g % 4 * 64 + p] >> (g / 4 * 4)) & 15;
        if (f->hi_bytes == 64) {
            v |= (hi[p] >> g & 1) << 4;
        } else if (f->hi_bytes == 128) {
            v |= (hi[g / 4 * 64 + p] >> (g % 4 * 2) & 3) << 4;
        }
        return v;
    }
    v = (lo[g / 4 * 64 + p] >> (g % 4 * 2)) & 3;
    return f->hi_bytes ? v | (hi[p] >> g & 1) << 2 : v;
}

void nrd_tile16_unpack_row(nrd_dtype t, const void *tile, int64_t cols, int row, float *dst)
{
    const nrd_tile16_format *f = nrd_tile16_format_of(t);
    const uint8_t *p = tile, *head = p;

    if (!f) {
        for (int64_t k = 0; k < cols; k++) {
            int64_t i = t == NRD_DTYPE_BF16 ? k / 2 * 32 + row * 2 + k % 2 : k * 16 + row;
            dst[k] = nrd_load_f32(t, tile, i);
        }
        return;
    }
    for (int64_t b = 0; b * 32 < cols; b++) {
        float d[2], m[2] = {0, 0};
        if (f->k == 256) {
            if (b % 8 == 0) {
                head = p;
                p += f->head_bytes;
            }
            for (int h = 0; h < 2; h++) {
                int sc = p[(f->scale_bytes == 16 ? 0 : h * 16) + row];
                d[h] = half_at(head, row);
                if (t == NRD_DTYPE_Q2_K) {
                    m[h] = -half_at(head + 32, row) * (float)(sc >> 4);
                    d[h] *= (float)(sc & 15);
                } else if (f->head_bytes == 64) {
                    m[h] = -half_at(head + 32, row) * (float)p[16 + row];
                    d[h] *= (float)p[row];
                } else {
                    d[h] *= (float)(int8_t)sc;
                }
            }
        } else {
            d[0] = d[1] = t == NRD_DTYPE_MXFP4 ? nrd_load_f32(NRD_DTYPE_BF16, p, row)
                          : f->scale_bytes     ? half_at(p, row)
                                               : 1.0f;
            if (f->scale_bytes == 64) {
                m[0] = m[1] = half_at(p + 32, row);
            }
        }
        for (int i = 0; i < 32 && b * 32 + i < cols; i++) {
            int v = read_int(f, p + f->scale_bytes, row, i);
            v = t == NRD_DTYPE_MXFP4                              ? mxfp4_values[v]
                : t == NRD_DTYPE_IQ4_NL || t == NRD_DTYPE_IQ4_XS ? iq4_values[v]
                                                                 : v - f->offset;
            dst[b * 32 + i] = d[i / 16] * (float)v + m[i / 16];
        }
        p += sub_bytes(f);
    }
}
