/* SPDX-License-Identifier: Apache-2.0
 * Passes over a row of logits: the building blocks of sample_cpu.c. */
#include "device/cpu/simd.h"

/* Largest number and the first place that has it; NaN is passed over. */
static float max_row(const float *x, int32_t n, int32_t *out_first)
{
    vf m0 = vf_set1(-INFINITY), m1 = m0;
    int32_t i = 0;
    float top;

    for (; i + 32 <= n; i += 32) {
        m0 = vf_gt(vf_load(x + i), m0, vf_load(x + i), m0);
        m1 = vf_gt(vf_load(x + i + 16), m1, vf_load(x + i + 16), m1);
    }
    top = vf_hmax(vf_max(m0, m1));
    for (; i < n; i++) {
        top = x[i] > top ? x[i] : top;
    }
    *out_first = 0;
    if (top == -INFINITY) {
        return top;
    }
    vf below = vf_set1(nextafterf(top, -INFINITY));
    for (i = 0; i + 16 <= n; i += 16) {
        uint32_t bits = vf_gt_bits(vf_load(x + i), below);
        if (bits) {
            *out_first = i + __builtin_ctz(bits);
            return top;
        }
    }
    for (; i < n; i++) {
        if (x[i] == top) {
            *out_first = i;
            break;
        }
    }
    return top;
}

static int32_t count_above(const float *x, int32_t n, float limit)
{
    vf t = vf_set1(limit), c0 = vf_zero(), c1 = vf_zero(), one = vf_set1(1.0f);
    int32_t i = 0;

    for (; i + 32 <= n; i += 32) { /* exact up to 2^24 a lane */
        c0 = vf_add(c0, vf_gt(vf_load(x + i), t, one, vf_zero()));
        c1 = vf_add(c1, vf_gt(vf_load(x + i + 16), t, one, vf_zero()));
    }
    int32_t count = (int32_t)vf_sum(vf_add(c0, c1));
    for (; i < n; i++) {
        count += x[i] > limit;
    }
    return count;
}

/* (x, index) pairs of what is above the limit, in order; `out` and `out_ids` are the first pair's
 * members in an array of {float, int32}. */
static int32_t collect_above(const float *x, int32_t n, float limit, float *out, int32_t *out_ids)
{
    vf t = vf_set1(limit);
    int32_t i = 0, got = 0;

    for (; i + 16 <= n; i += 16) {
        uint32_t bits = vf_gt_bits(vf_load(x + i), t);
        for (; bits; bits &= bits - 1, got++) {
            int32_t k = i + __builtin_ctz(bits);
            out[2 * got] = x[k];
            out_ids[2 * got] = k;
        }
    }
    for (; i < n; i++) {
        if (x[i] > limit) {
            out[2 * got] = x[i];
            out_ids[2 * got++] = i;
        }
    }
    return got;
}

/* What lies between is not known; a rough product that is not finite says nothing. */
static void bounds_row(const float *x, const float *error, const float *length, float by, float off, float more, int32_t n,
                       float *lo, float *hi)
{
    const vf vby = vf_set1(by), voff = vf_set1(off), vmore = vf_set1(more), top = vf_set1(INFINITY), most = vf_set1(3.4e38f);

    for (int32_t i = 0; i < n; i += 16) {
        const int32_t left = n - i < 16 ? n - i : 16;
        vf v = vf_load_n(x + i, left);
        vf d = vf_fma(vf_load_n(error + i, left), vby, vf_fma(vf_load_n(length + i, left), voff, vmore));
        vf up = vf_add(v, d), down = vf_sub(v, d);
        up = vf_gt(up, vf_set1(-INFINITY), up, top); /* also where it is no number */
        down = vf_gt(most, down, down, vf_set1(-INFINITY));
        vf_store_n(lo + i, down, left);
        vf_store_n(hi + i, up, left);
    }
}

static void max_of_16(const float *x, int32_t n, float *out)
{
    const vf least = vf_set1(-INFINITY);

    for (int32_t i = 0; i < n; i += 16) {
        vf v = n - i < 16 ? vf_load_n(x + i, n - i) : vf_load(x + i);
        if (n - i < 16) { /* behind the end are zeros */
            float t[16];
            vf_store(t, v);
            for (int32_t k = n - i; k < 16; k++) {
                t[k] = -INFINITY;
            }
            v = vf_load(t);
        }
        out[i / 16] = vf_hmax(vf_gt(v, least, v, least));
    }
}

/* w = e^((x - top) * inv_t) (w may be NULL); gives the sum. Blocks of 1024 keep it exact enough. */
static double exp_row(const float *x, int32_t n, float top, float inv_t, float *w)
{
    double total = 0;

    for (int32_t at = 0; at < n; at += 1024) {
        int32_t end = n - at < 1024 ? n : at + 1024;
        vf sum = vf_zero();
        for (int32_t i = at; i < end; i += 16) {
            int32_t left = end - i;
            vf v = left >= 16 ? vf_load(x + i) : vf_load_n(x + i, left);
            v = vf_exp(vf_mul(vf_sub(v, vf_set1(top)), vf_set1(inv_t)));
            if (left < 16) {
                float t[16];
                vf_store(t, v);
                v = vf_load_n(t, left);
            }
            if (w) {
                if (left >= 16) {
                    vf_store(w + i, v);
                } else {
                    vf_store_n(w + i, v, left);
                }
            }
            sum = vf_add(sum, v);
        }
        total += (double)vf_sum(sum);
    }
    return total;
}

static double sum_above(const float *w, int32_t n, float limit)
{
    double total = 0;
    vf t = vf_set1(limit);

    for (int32_t at = 0; at < n; at += 1024) {
        int32_t end = n - at < 1024 ? n : at + 1024;
        vf sum = vf_zero();
        for (int32_t i = at; i < end; i += 16) {
            vf v = end - i >= 16 ? vf_load(w + i) : vf_load_n(w + i, end - i);
            sum = vf_add(sum, vf_gt(v, t, v, vf_zero()));
        }
        total += (double)vf_sum(sum);
    }
    return total;
}
