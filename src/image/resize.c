/* SPDX-License-Identifier: Apache-2.0
 * Resizing with antialiasing: each pixel is a weighted sum of those under a filter that is as wide as the step between
 * pixels, first along rows, then along columns, rounded to eight bits in between. Weights are whole numbers of
 * 2^-PRECISION, so that sums are the same everywhere. */
#include "image/image.h"

#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Eight bits of a pixel, and two more for sums of weights above 1. */
enum { PRECISION = 32 - 8 - 2, LOBES = 3 };

/* The pixels that make up each pixel of one line. */
typedef struct taps {
    int32_t most;          /* of one pixel */
    int32_t *first, *count; /* [n] */
    int32_t *weights;      /* [n, most] */
} taps;

static double sinc(double x)
{
    const double pi = 3.14159265358979323846, at = x * pi;
    return x > 0 || x < 0 ? sin(at) / at : 1;
}

static double filter_value(nrd_image_filter filter, double x)
{
    const double a = -0.5; /* of the cubic (Keys, 1981) */

    x = fabs(x);
    if (filter == NRD_IMAGE_LANCZOS) {
        return x < LOBES ? sinc(x) * sinc(x / LOBES) : 0;
    }
    if (filter == NRD_IMAGE_BILINEAR) {
        return x < 1 ? 1 - x : 0;
    }
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* How far from its middle a filter reaches. */
static double reach(nrd_image_filter filter)
{
    return filter == NRD_IMAGE_LANCZOS ? LOBES : filter == NRD_IMAGE_BICUBIC ? 2 : 1;
}

static void taps_fini(taps *t)
{
    free(t->first);
    free(t->count);
    free(t->weights);
    *t = (taps){0};
}

/* Weights of the pixels from `first` on, which add up to 1. */
static void fill_weights(double *w, int32_t first, int32_t count, double center, double width, nrd_image_filter filter,
                         int32_t *out)
{
    double sum = 0;
    for (int32_t k = 0; k < count; k++) {
        w[k] = filter_value(filter, (k + first - center + 0.5) * (1.0 / width));
        sum += w[k];
    }
    for (int32_t k = 0; k < count; k++) {
        const double v = (sum < 0 || sum > 0 ? w[k] / sum : w[k]) * (1 << PRECISION);
        out[k] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
    }
}

static nrd_error *taps_of(taps *t, int32_t from, int32_t to, nrd_image_filter filter)
{
    const double scale = (double)from / to, width = scale < 1 ? 1 : scale;
    const double support = reach(filter) * width;
    nrd_error *err = NULL;
    double *w = NULL;

    *t = (taps){.most = (int32_t)ceil(support) * 2 + 1};
    NRD_NEW_GOTO(w, t->most, err, done);
    NRD_NEW_GOTO(t->first, to, err, done);
    NRD_NEW_GOTO(t->count, to, err, done);
    NRD_NEW_GOTO(t->weights, (size_t)to * (size_t)t->most, err, done);
    for (int32_t i = 0; i < to; i++) {
        const double center = (i + 0.5) * scale;
        int32_t first = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > from ? from : end;
        t->first[i] = first;
        t->count[i] = end - first;
        fill_weights(w, first, end - first, center, width, filter, t->weights + (size_t)i * (size_t)t->most);
    }
done:
    free(w);
    if (err) {
        taps_fini(t);
    }
    return err;
}

static uint8_t rounded(int64_t sum)
{
    const int64_t v = (sum + (1 << (PRECISION - 1))) >> PRECISION;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* Line by line: pixels of a row are 3 bytes apart. */
static void along_rows(const taps *t, const nrd_image *in, nrd_image *out)
{
    for (int32_t y = 0; y < in->height; y++) {
        const uint8_t *row = in->rgb + (size_t)y * (size_t)in->width * 3;
        uint8_t *to = out->rgb + (size_t)y * (size_t)out->width * 3;
        for (int32_t x = 0; x < out->width; x++) {
            const int32_t *w = t->weights + (size_t)x * (size_t)t->most;
            int64_t sum[3] = {0};
            for (int32_t k = 0; k < t->count[x]; k++) {
                for (int c = 0; c < 3; c++) {
                    sum[c] += (int64_t)w[k] * row[(size_t)(t->first[x] + k) * 3 + (size_t)c];
                }
            }
            for (int c = 0; c < 3; c++) {
                to[x * 3 + c] = rounded(sum[c]);
            }
        }
    }
}

static void along_columns(const taps *t, const nrd_image *in, nrd_image *out)
{
    const size_t stride = (size_t)in->width * 3;
    for (int32_t y = 0; y < out->height; y++) {
        const int32_t *w = t->weights + (size_t)y * (size_t)t->most;
        const uint8_t *from = in->rgb + (size_t)t->first[y] * stride;
        for (size_t i = 0; i < stride; i++) {
            int64_t sum = 0;
            for (int32_t k = 0; k < t->count[y]; k++) {
                sum += (int64_t)w[k] * from[(size_t)k * stride + i];
            }
            out->rgb[(size_t)y * stride + i] = rounded(sum);
        }
    }
}

static nrd_error *copy(nrd_image *out, const nrd_image *in)
{
    NRD_TRY(nrd_image_new(out, in->width, in->height));
    memcpy(out->rgb, in->rgb, (size_t)in->width * (size_t)in->height * 3);
    return NULL;
}

/* One pass: to another width, or to another height. */
static nrd_error *pass(nrd_image *out, const nrd_image *in, int32_t width, int32_t height, nrd_image_filter filter)
{
    const bool rows = width != in->width;
    taps t = {0};

    NRD_TRY(nrd_image_new(out, width, height));
    nrd_error *err = rows ? taps_of(&t, in->width, width, filter) : taps_of(&t, in->height, height, filter);
    if (err) {
        nrd_image_fini(out);
        return err;
    }
    (rows ? along_rows : along_columns)(&t, in, out);
    taps_fini(&t);
    return NULL;
}

nrd_error *nrd_image_resize(nrd_image *out, const nrd_image *in, int32_t width, int32_t height, nrd_image_filter filter)
{
    nrd_image mid = {0};

    *out = (nrd_image){0};
    if (width == in->width && height == in->height) {
        return copy(out, in);
    }
    if (width == in->width || height == in->height) {
        return pass(out, in, width, height, filter);
    }
    NRD_TRY(pass(&mid, in, width, in->height, filter));
    nrd_error *err = pass(out, &mid, width, height, filter);
    nrd_image_fini(&mid);
    return err;
}

nrd_error *nrd_image_resize_numbers(float *out, const nrd_image *in, int32_t width, int32_t height)
{
    const size_t wide = (size_t)width, tall = (size_t)height;
    taps rows = {0}, columns = {0};
    nrd_error *err = NULL;
    float *mid = NULL; /* [in's height, width, 3] */

    NRD_TRY_GOTO(taps_of(&rows, in->width, width, NRD_IMAGE_BILINEAR), err, done);
    NRD_TRY_GOTO(taps_of(&columns, in->height, height, NRD_IMAGE_BILINEAR), err, done);
    NRD_NEW_GOTO(mid, (size_t)in->height * wide * 3, err, done);
    for (size_t i = 0; i < (size_t)in->height * wide * 3; i++) {
        const size_t x = i / 3 % wide;
        const uint8_t *from = in->rgb + (i / 3 / wide * (size_t)in->width + (size_t)rows.first[x]) * 3 + i % 3;
        const int32_t *w = rows.weights + x * (size_t)rows.most;
        int64_t sum = 0;
        for (int32_t k = 0; k < rows.count[x]; k++) {
            sum += (int64_t)w[k] * from[3 * k];
        }
        mid[i] = (float)((double)sum / (1 << PRECISION));
    }
    for (size_t i = 0; i < 3 * tall * wide; i++) {
        const size_t y = i / wide % tall;
        const float *from = mid + ((size_t)columns.first[y] * wide + i % wide) * 3 + i / (tall * wide);
        const int32_t *w = columns.weights + y * (size_t)columns.most;
        double sum = 0;
        for (int32_t k = 0; k < columns.count[y]; k++) {
            sum += (double)w[k] * (double)from[(size_t)k * wide * 3];
        }
        out[i] = (float)(sum / (1 << PRECISION));
    }
done:
    free(mid);
    taps_fini(&rows);
    taps_fini(&columns);
    return err;
}
