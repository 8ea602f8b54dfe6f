/* SPDX-License-Identifier: Apache-2.0
 * gpu.h - what gpu_check and gpu_bench share: opening the plug-in, device buffers, random data. */
#ifndef NRD_TESTS_GPU_H
#define NRD_TESTS_GPU_H

#include "base/dtype.h"
#include "base/error.h"
#include "nereid/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gpu.c */
extern nrd_device *dev;
extern nrd_stream *st;
extern uint64_t rng_state;
void gpu_open(const char *path); /* ends the program where that fails */

static inline void ok(nrd_error *err, const char *what)
{
    if (err) {
        fprintf(stderr, "FAILED %s: %s\n", what, nrd_error_message(err));
        exit(1);
    }
}
#define OK(expr) ok(expr, #expr)

static inline void *dev_new(size_t bytes)
{
    void *p;
    OK(dev->ops->alloc(dev, &p, NRD_MEM_DEVICE, bytes, "test"));
    return p;
}

static inline void dev_free(void *p)
{
    dev->ops->free(dev, NRD_MEM_DEVICE, p);
}

static inline void *dev_put(const void *src, size_t bytes)
{
    void *p = dev_new(bytes);
    OK(dev->ops->copy(st, p, src, bytes));
    OK(dev->ops->stream_sync(st));
    return p;
}

static inline void dev_get(void *dst, const void *src, size_t bytes)
{
    OK(dev->ops->copy(st, dst, src, bytes));
    OK(dev->ops->stream_sync(st));
}

/* SplitMix64 (Steele et al. 2014). */
static inline uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline int rnd(int lo, int hi) /* inclusive */
{
    return lo + (int)(rng() % (uint64_t)(hi - lo + 1));
}
static inline float uniform(void)
{
    return (float)(rng() >> 40) * (1.0f / 16777216.0f);
}
static inline float normal(void) /* close enough: sum of four uniforms, variance 1 */
{
    return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f;
}

static inline size_t elem(nrd_dtype t)
{
    return nrd_dtype_block_bytes(t);
}

static inline void put(nrd_dtype t, void *p, size_t i, float v)
{
    switch (t) {
    case NRD_DTYPE_BF16:
        ((uint16_t *)p)[i] = nrd_f32_to_bf16(v);
        break;
    case NRD_DTYPE_F16:
        ((uint16_t *)p)[i] = nrd_f32_to_f16(v);
        break;
    case NRD_DTYPE_F8_E4M3:
        ((uint8_t *)p)[i] = nrd_f32_to_f8e4m3(v);
        break;
    case NRD_DTYPE_I8:
        ((int8_t *)p)[i] = (int8_t)lrintf(fmaxf(-127.0f, fminf(127.0f, v)));
        break;
    default:
        ((float *)p)[i] = v;
    }
}

static inline float get(nrd_dtype t, const void *p, size_t i)
{
    switch (t) {
    case NRD_DTYPE_BF16:
        return nrd_bf16_to_f32(((const uint16_t *)p)[i]);
    case NRD_DTYPE_F16:
        return nrd_f16_to_f32(((const uint16_t *)p)[i]);
    case NRD_DTYPE_F8_E4M3:
        return nrd_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    case NRD_DTYPE_I8:
        return (float)((const int8_t *)p)[i];
    default:
        return ((const float *)p)[i];
    }
}

static inline float round_to(nrd_dtype t, float v)
{
    uint32_t u;
    put(t, &u, 0, v);
    return get(t, &u, 0);
}

static inline void *random_host(nrd_dtype t, size_t n, float scale)
{
    void *p = malloc(n * elem(t) + 16);
    for (size_t i = 0; i < n; i++) {
        put(t, p, i, normal() * scale);
    }
    return p;
}

/* A loaded weight, and its host form beside it. */
typedef struct test_weight {
    nrd_weight host, dev;
    float *values; /* of the formats in blocks: what base/dtype.c says of the first n_distinct rows, */
    int64_t n_distinct; /* which repeat */
    bool owned;
} test_weight;

static inline void weight_up(test_weight *w, bool is_linear)
{
    w->host.layout = NRD_LAYOUT_ROWS;
    if (w->host.scale == 0.0f) {
        w->host.scale = 1.0f;
    }
    OK(dev->ops->weight_load(st, &w->host, is_linear, &w->dev, &w->owned));
}

static inline void weight_gone(test_weight *w)
{
    if (w->owned) {
        dev->ops->weight_unload(dev, &w->dev);
    }
    free((void *)(uintptr_t)w->host.data);
    free((void *)(uintptr_t)w->host.scales);
    free(w->values);
    memset(w, 0, sizeof *w);
}

/* Random rows in a format of blocks, with a mean other than zero. Of large matrices 61 differ: a prime, so
 * that no tile repeats. */
static inline void weight_blocks(test_weight *w, nrd_dtype t, int64_t rows, int64_t cols, float scale)
{
    size_t bytes = 0;
    float *x = malloc((size_t)cols * 4);

    memset(w, 0, sizeof *w);
    if (!nrd_dtype_bytes(t, (uint64_t)cols, &bytes)) {
        ok(nrd_errorf(NRD_ERR_INVALID_ARG, "no rows of %lld in %s", (long long)cols, nrd_dtype_name(t)),
           "weight_blocks");
    }
    w->n_distinct = rows * cols <= 200000 || rows < 61 ? rows : 61;
    char *q = malloc(bytes * (size_t)rows);
    w->values = malloc((size_t)(w->n_distinct * cols) * 4);
    for (int64_t r = 0; r < rows; r++) {
        if (r >= w->n_distinct) {
            memcpy(q + (size_t)r * bytes, q + (size_t)(r - w->n_distinct) * bytes, bytes);
            continue;
        }
        for (int64_t c = 0; c < cols; c++) {
            x[c] = (normal() + 0.2f) * scale;
        }
        if (!nrd_quantize_row(t, x, q + (size_t)r * bytes, cols) ||
            !nrd_dequantize_row(t, q + (size_t)r * bytes, w->values + r * cols, cols)) {
            ok(nrd_errorf(NRD_ERR_UNSUPPORTED, "no definition of %s", nrd_dtype_name(t)), "weight_blocks");
        }
    }
    free(x);
    w->host.dtype = t;
    w->host.rows = rows;
    w->host.cols = cols;
    w->host.data = q;
    weight_up(w, true);
}

static inline void weight_random(test_weight *w, nrd_dtype t, int64_t rows, int64_t cols, float scale,
                                 bool is_linear)
{
    memset(w, 0, sizeof *w);
    w->host.dtype = t;
    w->host.rows = rows;
    w->host.cols = cols;
    w->host.data = random_host(t, (size_t)(rows * cols), t == NRD_DTYPE_I8 ? 40.0f : scale);
    if (t == NRD_DTYPE_I8 || (t == NRD_DTYPE_F8_E4M3 && rng() % 2)) {
        float *s = malloc((size_t)rows * 4);
        for (int64_t r = 0; r < rows; r++) {
            s[r] = (t == NRD_DTYPE_I8 ? scale / 40.0f : 1.0f) * (0.5f + uniform());
        }
        w->host.scales = s;
    } else if (t == NRD_DTYPE_F8_E4M3) {
        w->host.scale = 0.7f;
    }
    weight_up(w, is_linear);
}

static inline double weight_at(const test_weight *w, int64_t r, int64_t c)
{
    if (w->values) {
        return (double)w->values[r % w->n_distinct * w->host.cols + c];
    }
    const double v = (double)get(w->host.dtype, w->host.data, (size_t)(r * w->host.cols + c));
    const float *s = w->host.scales;
    return v * (double)(s ? s[r] : w->host.scale);
}

#endif
