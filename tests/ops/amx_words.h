/* SPDX-License-Identifier: Apache-2.0
 * The words of device/cpu/amx.h in plain C, after the operation sections of the manual (Intel SDM,
 * TDPBSSD, TDPBF16PS): the kernels of the matrix unit run with them on machines without it. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct mx_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mx_config;

static _Thread_local mx_config words_config;
static _Thread_local uint8_t words_tile[8][16][64];

static inline bool mx_usable(void)
{
    return true;
}

static inline void words_need(bool holds) /* where the processor would trap */
{
    if (!holds) {
        abort();
    }
}

static inline void mx_configure(const mx_config *c)
{
    for (int t = 0; t < 8; t++) {
        words_need(c->rows[t] <= 16 && c->row_bytes[t] <= 64);
        words_need((c->rows[t] == 0) == (c->row_bytes[t] == 0));
    }
    words_need(c->palette == 1 && c->start_row == 0);
    words_config = *c;
    memset(words_tile, 0, sizeof words_tile);
}

static inline void mx_release(void)
{
    memset(&words_config, 0, sizeof words_config);
    memset(words_tile, 0xa5, sizeof words_tile);
}

static inline void mx_zero(int t)
{
    words_need(words_config.rows[t] > 0);
    memset(words_tile[t], 0, sizeof words_tile[t]);
}

static inline void mx_load(int t, const void *p, int64_t step)
{
    words_need(words_config.rows[t] > 0);
    memset(words_tile[t], 0, sizeof words_tile[t]);
    for (int r = 0; r < words_config.rows[t]; r++) {
        memcpy(words_tile[t][r], (const uint8_t *)p + r * step, words_config.row_bytes[t]);
    }
}

static inline void mx_stream(int t, const void *p, int64_t step)
{
    mx_load(t, p, step);
}

static inline void mx_ask_to_write(void *p)
{
    (void)p;
}

static inline void mx_store(int t, void *p, int64_t step)
{
    words_need(words_config.rows[t] > 0);
    for (int r = 0; r < words_config.rows[t]; r++) {
        memcpy((uint8_t *)p + r * step, words_tile[t][r], words_config.row_bytes[t]);
    }
}

static inline void words_shapes(int c, int a, int b)
{
    const mx_config *w = &words_config;

    words_need(c != a && c != b && a != b);
    words_need(w->rows[c] == w->rows[a] && w->row_bytes[c] == w->row_bytes[b]);
    words_need(w->row_bytes[a] == w->rows[b] * 4 && w->row_bytes[c] % 4 == 0);
}

static inline void mx_dot_i8(int c, int a, int b)
{
    words_shapes(c, a, b);
    for (int m = 0; m < words_config.rows[c]; m++) {
        int32_t sum[16];
        memcpy(sum, words_tile[c][m], sizeof sum);
        for (int k = 0; k < words_config.row_bytes[a]; k++) {
            const int x = (int8_t)words_tile[a][m][k];
            for (int n = 0; n < words_config.row_bytes[c] / 4; n++) {
                sum[n] += x * (int8_t)words_tile[b][k / 4][n * 4 + k % 4];
            }
        }
        memcpy(words_tile[c][m], sum, sizeof sum);
    }
}

static inline void mx_round_32(uint8_t *p, const float *x)
{
    for (int i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u = isnan(x[i]) ? u | 0x400000u : (u & 0x7f800000u) == 0 ? u & 0x80000000u : u + 0x7fff + (u >> 16 & 1);
        p[i * 2] = (uint8_t)(u >> 16);
        p[i * 2 + 1] = (uint8_t)(u >> 24);
    }
}

static inline float words_bf16(const uint8_t *p)
{
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float f;

    u = (u & 0x7f800000u) ? u : u & 0x80000000u; /* denormals are zeros */
    memcpy(&f, &u, 4);
    return f;
}

static inline float words_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? 0.0f * x : x;
}

/* A product of two bfloat16 is exact in double, and so is nearly every sum: fmaf would be a call for each. */
static inline void mx_dot_bf16(int c, int a, int b)
{
    const int n_k = words_config.row_bytes[a] / 2, n_cols = words_config.row_bytes[c] / 4;
    float w[32][16], x[32];

    words_shapes(c, a, b);
    for (int k = 0; k < n_k; k++) {
        for (int n = 0; n < n_cols; n++) {
            w[k][n] = words_bf16(words_tile[b][k / 2] + n * 4 + k % 2 * 2);
        }
    }
    for (int m = 0; m < words_config.rows[c]; m++) {
        for (int k = 0; k < n_k; k++) {
            x[k] = words_bf16(words_tile[a][m] + k * 2);
        }
        for (int n = 0; n < n_cols; n++) {
            float sum[2] = {0, 0}, old;
            for (int k = 0; k < n_k; k++) {
                sum[k % 2] = words_flush((float)((double)x[k] * (double)w[k][n] + (double)sum[k % 2]));
            }
            memcpy(&old, words_tile[c][m] + n * 4, 4);
            old = words_flush(old + words_flush(sum[0] + sum[1]));
            memcpy(words_tile[c][m] + n * 4, &old, 4);
        }
    }
}
