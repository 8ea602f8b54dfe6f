/* SPDX-License-Identifier: Apache-2.0 */
#include "audio/fft.h"

#include "base/mem.h"

#include <math.h>

enum { MAX_STAGES = 32 };

struct nrd_fft {
    size_t n, n_stages;
    int radix[MAX_STAGES];
    nrd_complex *root; /* [n]: exp(-2 pi i t / n) */
};

nrd_error *nrd_fft_new(nrd_fft **out, size_t n)
{
    nrd_error *err = NULL;
    nrd_fft *f = NULL;
    size_t rest = n;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    f->n = n;
    for (; rest % 4 == 0 && rest > 0; rest /= 4) {
        f->radix[f->n_stages++] = 4;
    }
    for (; rest % 5 == 0 && rest > 0; rest /= 5) {
        f->radix[f->n_stages++] = 5;
    }
    NRD_ASSERT(rest == 1, "lengths are products of fours and fives");
    NRD_NEW_GOTO(f->root, n, err, fail);
    for (size_t t = 0; t < n; t++) {
        const double angle = -2 * M_PI * (double)t / (double)n;
        f->root[t] = (nrd_complex){cos(angle), sin(angle)};
    }
    *out = f;
    return NULL;

fail:
    nrd_fft_free(f);
    return err;
}

void nrd_fft_free(nrd_fft *f)
{
    if (f) {
        free(f->root);
        free(f);
    }
}

static inline nrd_complex plus(nrd_complex a, nrd_complex b)
{
    return (nrd_complex){a.re + b.re, a.im + b.im};
}

static inline nrd_complex minus(nrd_complex a, nrd_complex b)
{
    return (nrd_complex){a.re - b.re, a.im - b.im};
}

static inline nrd_complex times(nrd_complex a, nrd_complex b)
{
    return (nrd_complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static inline nrd_complex by_minus_i(nrd_complex a)
{
    return (nrd_complex){a.im, -a.re};
}

/* The transforms of 4 and 5 numbers, in place. */
static inline void four(nrd_complex a[5])
{
    const nrd_complex s = plus(a[0], a[2]), d = minus(a[0], a[2]), t = plus(a[1], a[3]), e = by_minus_i(minus(a[1], a[3]));
    a[0] = plus(s, t);
    a[1] = plus(d, e);
    a[2] = minus(s, t);
    a[3] = minus(d, e);
}

static inline void five(nrd_complex a[5])
{
    static const double c1 = 0.30901699437494742410, c2 = -0.80901699437494742410; /* cos(2 pi / 5), cos(4 pi / 5) */
    static const double s1 = 0.95105651629515357212, s2 = 0.58778525229247312917;  /* and the sines */
    const nrd_complex p = plus(a[1], a[4]), q = plus(a[2], a[3]), u = minus(a[1], a[4]), v = minus(a[2], a[3]);
    const nrd_complex m = {a[0].re + c1 * p.re + c2 * q.re, a[0].im + c1 * p.im + c2 * q.im};
    const nrd_complex n = {a[0].re + c2 * p.re + c1 * q.re, a[0].im + c2 * p.im + c1 * q.im};
    const nrd_complex w = by_minus_i((nrd_complex){s1 * u.re + s2 * v.re, s1 * u.im + s2 * v.im});
    const nrd_complex x = by_minus_i((nrd_complex){s2 * u.re - s1 * v.re, s2 * u.im - s1 * v.im});

    a[0] = plus(a[0], plus(p, q));
    a[1] = plus(m, w);
    a[2] = plus(n, x);
    a[3] = minus(n, x);
    a[4] = minus(m, w);
}

/* One stage: `stride` transforms lie side by side. Inlined with each radix. */
static inline __attribute__((always_inline)) void stage(const nrd_fft *f, size_t radix, size_t stride, const nrd_complex *x,
                                                        nrd_complex *y)
{
    const size_t m = f->n / stride / radix;
    for (size_t q = 0; q < m; q++) {
        nrd_complex w[5];
        for (size_t k = 0; k < radix; k++) {
            w[k] = f->root[k * q * stride];
        }
        for (size_t r = 0; r < stride; r++) {
            nrd_complex a[5];
            for (size_t j = 0; j < radix; j++) {
                a[j] = x[r + stride * (q + m * j)];
            }
            if (radix == 4) {
                four(a);
            } else {
                five(a);
            }
            y[r + stride * radix * q] = a[0];
            for (size_t k = 1; k < radix; k++) {
                y[r + stride * (radix * q + k)] = times(a[k], w[k]);
            }
        }
    }
}

void nrd_fft_forward(const nrd_fft *f, nrd_complex *x, nrd_complex *scratch)
{
    nrd_complex *from = x, *to = scratch;
    size_t stride = 1;

    for (size_t i = 0; i < f->n_stages; i++) {
        if (f->radix[i] == 4) {
            stage(f, 4, stride, from, to);
        } else {
            stage(f, 5, stride, from, to);
        }
        stride *= (size_t)f->radix[i];
        nrd_complex *t = from;
        from = to;
        to = t;
    }
    if (from != x) {
        memcpy(x, from, f->n * sizeof *x);
    }
}
