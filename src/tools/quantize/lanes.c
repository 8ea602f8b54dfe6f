/* SPDX-License-Identifier: Apache-2.0
 * Each loop is written once, over vectors of 16 floats, and compiled for three instruction sets. Where a lane chooses between two
 * numbers there is a loop over lanes: the compiler makes a vector's choice of it, and of compared vectors it does not. */
#include "tools/quantize/lanes.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = NRD_QLANES, TOGETHER = 8 }; /* sums that do not wait for each other */
#define FAR 0x1p21f          /* no code is as large */
#define TO_WHOLE 0x1.8p23f   /* a number below FAR plus and minus this is a whole one, as rintf makes it */

#define ALL(number) ((nrd_lanes){0} + (number))

/* ---- grids ---- */

INLINE void numbers(const nrd_qgrid *g, const nrd_lanes *codes, const nrd_lanes *scale, const nrd_lanes *zero, nrd_lanes *out)
{
    if (!g->is_float) {
        *out = (*codes - *zero) * *scale;
        return;
    }
    for (int k = 0; k < LANES; k++) {
        (*out)[k] = nrd_qgrid_number(g, (uint8_t)(*codes)[k], (*scale)[k], 0);
    }
}

/* Codes of numbers in units of the scale, without the zero. */
INLINE void whole_codes(float top, const nrd_lanes *units, const nrd_lanes *zero, nrd_lanes *codes)
{
    for (int k = 0; k < LANES; k++) {
        float at = (*units)[k];
        at = at > FAR ? FAR : at;
        at = at < -FAR ? -FAR : at;
        at = at + TO_WHOLE - TO_WHOLE + (*zero)[k];
        at = at > top ? top : at;
        (*codes)[k] = at > 0 ? at : 0;
    }
}

INLINE float top_code(const nrd_qgrid *g)
{
    return (float)((1 << g->bits) - 1);
}

INLINE void nearest(const nrd_qgrid *g, const nrd_lanes *x, const nrd_lanes *scale, const nrd_lanes *zero, nrd_lanes *codes)
{
    if (!g->is_float) {
        const nrd_lanes units = *x / *scale;
        whole_codes(top_code(g), &units, zero, codes);
        return;
    }
    for (int k = 0; k < LANES; k++) {
        (*codes)[k] = (float)nrd_qgrid_code(g, (*x)[k], (*scale)[k], 0);
    }
}

INLINE void range_body(const nrd_lanes *x, int64_t n, nrd_lanes *low, nrd_lanes *high)
{
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < LANES; k++) {
            (*low)[k] = x[i][k] < (*low)[k] ? x[i][k] : (*low)[k];
            (*high)[k] = x[i][k] > (*high)[k] ? x[i][k] : (*high)[k];
        }
    }
}

/* Of floats: each number by itself. */
INLINE void float_errors(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const float *importance, const nrd_lanes *scale,
                         nrd_wide_lanes *sum)
{
    const nrd_lanes zero = {0};
    for (int64_t i = 0; i < n; i++) {
        nrd_lanes d, codes;
        nearest(g, &x[i], scale, &zero, &codes);
        numbers(g, &codes, scale, &zero, &d);
        d -= x[i];
        *sum += __builtin_convertvector(d * d * importance[i], nrd_wide_lanes);
    }
}

INLINE void errors_body(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const float *importance, int n_tries,
                        const nrd_lanes *scales, const nrd_lanes *zeros, nrd_wide_lanes *sums)
{
    const float top = top_code(g);
    for (int t = 0; t < n_tries; t++) {
        const nrd_lanes scale = scales[t], zero = zeros[t], inverse = 1.0f / scale;
        nrd_wide_lanes sum = sums[t];
        if (g->is_float) {
            float_errors(g, x, n, importance, &scale, &sum);
        }
        for (int64_t i = 0; !g->is_float && i < n; i++) {
            const nrd_lanes units = x[i] * inverse;
            nrd_lanes d;
            whole_codes(top, &units, &zero, &d);
            d = (d - zero) * scale - x[i];
            sum += __builtin_convertvector(d * d * importance[i], nrd_wide_lanes);
        }
        sums[t] = sum;
    }
}

INLINE void codes_body(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const nrd_lanes *scale, const nrd_lanes *zero,
                       nrd_lanes *codes)
{
    for (int64_t i = 0; i < n; i++) {
        nearest(g, &x[i], scale, zero, &codes[i]);
    }
}

/* ---- columns ---- */

/* y[from .. to) += by * x */
INLINE void add(nrd_lanes *y, const float *x, int64_t from, int64_t to, const nrd_lanes *by)
{
    for (int64_t i = from; i < to; i++) {
        y[i] += *by * x[i];
    }
}

INLINE void round_body(const nrd_qgrid *g, nrd_lane_block *b)
{
    for (int64_t k = b->width - 1; k >= 0; k--) {
        const float *u = b->corner + k * NRD_QBLOCK;
        const nrd_lanes want = b->w[k] - b->x[k] / u[k];
        nrd_lanes off;
        nearest(g, &want, &b->scale[k], &b->zero[k], &b->codes[k]);
        numbers(g, &b->codes[k], &b->scale[k], &b->zero[k], &off);
        off -= b->w[k];
        add(b->x, u, 0, k, &off);
        b->x[k] = off;
    }
}

/* Columns [from, to), which share a scale; what is left is kept up from column `first` on. */
INLINE void move_codes(const nrd_qgrid *g, nrd_lane_block *b, int64_t from, int64_t to, bool scales)
{
    const nrd_lanes *scale = &b->scale[from / b->group], *zero = &b->zero[from / b->group];
    for (int64_t c = from; c < to; c++) {
        const float *column = b->corner + c * NRD_QBLOCK;
        nrd_lanes is, codes, change;
        numbers(g, &b->codes[c], scale, zero, &is);
        const nrd_lanes want = is + b->x[c] / column[c];
        nearest(g, &want, scale, zero, &codes);
        numbers(g, &codes, scale, zero, &change);
        change -= is;
        float most = 0;
        for (int k = 0; k < LANES; k++) {
            b->codes[c][k] = change[k] != 0 ? codes[k] : b->codes[c][k];
            most = fabsf(change[k]) > most ? fabsf(change[k]) : most;
        }
        if (most > 0) {
            b->w[c] += change;
            change = -change;
            add(b->x, column, scales ? from : c + 1, b->width, &change);
        }
    }
}

INLINE void move_scale(const nrd_qgrid *g, nrd_lane_block *b, int64_t from, int64_t to)
{
    const int64_t group = from / b->group;
    nrd_lanes units[NRD_QBLOCK], times[NRD_QBLOCK + TOGETHER], change = {0};
    const nrd_lanes one = ALL(1.0f);
    nrd_wide_lanes slope = {0}, bend = {0};

    for (int64_t c = from; c < to; c++) {
        numbers(g, &b->codes[c], &one, &b->zero[group], &units[c]);
    }
    for (int64_t i = from; i < b->width; i += TOGETHER) { /* behind the block a corner's rows have room, and times, too */
        nrd_lanes sum[TOGETHER] = {{0}};
        for (int64_t c = from; c < to; c++) {
            const float *row = b->corner + c * NRD_QBLOCK + i;
            for (int k = 0; k < TOGETHER; k++) {
                sum[k] += units[c] * row[k];
            }
        }
        for (int k = 0; k < TOGETHER; k++) {
            times[i + k] = sum[k];
        }
    }
    for (int64_t c = from; c < to; c++) {
        slope += __builtin_convertvector(units[c] * b->x[c], nrd_wide_lanes);
        bend += __builtin_convertvector(units[c] * times[c], nrd_wide_lanes);
    }
    for (int k = 0; k < LANES; k++) {
        float scale = b->scale[group][k], by = 0;
        if (nrd_qgrid_better_scale(g, &scale, slope[k], bend[k], &by)) {
            b->scale[group][k] = scale;
            change[k] = by;
        }
    }
    for (int64_t c = from; c < to; c++) {
        b->w[c] += change * units[c];
    }
    for (int64_t i = from; i < b->width; i++) {
        b->x[i] -= change * times[i];
    }
}

INLINE void move_body(const nrd_qgrid *g, nrd_lane_block *b, bool scales)
{
    for (int64_t c = 0, end; c < b->width; c = end) {
        end = b->width - c < b->group ? b->width : c + b->group;
        move_codes(g, b, c, end, scales);
        if (scales) {
            move_scale(g, b, c, end);
        }
    }
}

/* ---- for each instruction set ---- */

#define VERSION(set, ...)                                                                                                   \
    __VA_ARGS__ static void range_##set(const nrd_lanes *x, int64_t n, nrd_lanes *low, nrd_lanes *high)                      \
    {                                                                                                                        \
        range_body(x, n, low, high);                                                                                         \
    }                                                                                                                        \
    __VA_ARGS__ static void errors_##set(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const float *importance,         \
                                         int n_tries, const nrd_lanes *scales, const nrd_lanes *zeros, nrd_wide_lanes *sums) \
    {                                                                                                                        \
        errors_body(g, x, n, importance, n_tries, scales, zeros, sums);                                                      \
    }                                                                                                                        \
    __VA_ARGS__ static void codes_##set(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const nrd_lanes *scale,           \
                                        const nrd_lanes *zero, nrd_lanes *codes)                                             \
    {                                                                                                                        \
        codes_body(g, x, n, scale, zero, codes);                                                                             \
    }                                                                                                                        \
    __VA_ARGS__ static void round_##set(const nrd_qgrid *g, nrd_lane_block *b)                                               \
    {                                                                                                                        \
        round_body(g, b);                                                                                                    \
    }                                                                                                                        \
    __VA_ARGS__ static void move_##set(const nrd_qgrid *g, nrd_lane_block *b, bool scales)                                   \
    {                                                                                                                        \
        move_body(g, b, scales);                                                                                             \
    }                                                                                                                        \
    static const nrd_lane_ops ops_##set = {range_##set, errors_##set, codes_##set, round_##set, move_##set};

VERSION(any)
#if defined(__x86_64__)
VERSION(avx2, __attribute__((target("avx2"))))
VERSION(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))))
#endif

const nrd_lane_ops *nrd_lane_ops_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
        return &ops_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return &ops_avx2;
    }
#endif
    return &ops_any;
}
