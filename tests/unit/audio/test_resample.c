/* SPDX-License-Identifier: Apache-2.0
 * Sound at another rate: tones that fit stay what they are, others vanish, and pieces do not matter. */
#include "audio/resample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct sound {
    float *v;
    size_t n, cap;
} sound;

static nrd_error *take(void *arg, const float *samples, size_t n)
{
    sound *s = arg;
    assert_true(n > 0);
    if (s->n + n > s->cap) {
        s->cap = 2 * (s->n + n);
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        assert_non_null(s->v);
    }
    memcpy(s->v + s->n, samples, n * sizeof *samples);
    s->n += n;
    return NULL;
}

static sound resample(const float *in, size_t n, int32_t from, int32_t to, size_t piece)
{
    nrd_resampler *r = NULL;
    sound out = {0};
    assert_null(nrd_resampler_new(&r, from, to, take, &out));
    for (size_t at = 0; at < n; at += piece) {
        assert_null(nrd_resampler_push(r, in + at, n - at < piece ? n - at : piece));
    }
    assert_null(nrd_resampler_finish(r));
    nrd_resampler_free(r);
    return out;
}

static float *tone(int32_t rate, double hz, size_t n)
{
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) {
        v[i] = (float)sin(2 * M_PI * hz * (double)i / rate);
    }
    return v;
}

/* The largest difference from the same tone, or from silence, away from the ends. */
static double difference(int32_t from, int32_t to, double hz, bool stays)
{
    const size_t n = (size_t)from;
    float *in = tone(from, hz, n);
    sound out = resample(in, n, from, to, 4096);
    double worst = 0;

    assert_int_equal(out.n, (size_t)to);
    for (size_t i = out.n / 8; i < out.n - out.n / 8; i++) {
        const double want = stays ? sin(2 * M_PI * hz * (double)i / to) : 0, d = fabs((double)out.v[i] - want);
        worst = d > worst ? d : worst;
    }
    free(in);
    free(out.v);
    return worst;
}

static void tones_that_fit_stay(void **state)
{
    static const int32_t rates[] = {8000, 11025, 12000, 22050, 24000, 44100, 44101, 48000, 96000, 191999};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const double top = 0.44 * (rates[i] < 16000 ? rates[i] : 16000);
        for (double hz = 100; hz < top; hz += 487) {
            const double d = difference(rates[i], 16000, hz, true);
            if (d > 1.2e-3) {
                fail_msg("%d Hz sound, a tone of %g Hz: differs by %g", (int)rates[i], hz, d);
            }
        }
    }
}

static void tones_that_do_not_fit_vanish(void **state)
{
    static const int32_t rates[] = {22050, 44100, 44101, 48000, 96000};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        for (double hz = 8010; hz < rates[i] / 2.0; hz += 1511) {
            const double d = difference(rates[i], 16000, hz, false);
            if (d > 1.0e-4) {
                fail_msg("%d Hz sound, a tone of %g Hz: %g is left", (int)rates[i], hz, d);
            }
        }
    }
}

static void a_constant_stays_and_lengths_fit(void **state)
{
    static const struct { int32_t from; size_t n, want; } cases[] = {
        {8000, 1, 2}, {44100, 1, 1}, {44100, 441, 160}, {44100, 442, 161}, {48000, 4801, 1601}, {384000, 1, 1}, {384000, 100000, 4167},
        {16000, 777, 777}, {1000, 10, 160},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float *in = malloc(cases[c].n * sizeof *in);
        assert_non_null(in);
        for (size_t i = 0; i < cases[c].n; i++) {
            in[i] = 0.5f;
        }
        sound out = resample(in, cases[c].n, cases[c].from, 16000, 1000);
        assert_int_equal(out.n, cases[c].want);
        if (out.n > 1000) {
            assert_true(fabsf(out.v[out.n / 2] - 0.5f) < 1e-5f);
        }
        free(in);
        free(out.v);
    }
}

static void nothing_stays_nothing(void **state)
{
    (void)state;
    sound out = resample(NULL, 0, 44100, 16000, 1);
    assert_int_equal(out.n, 0);
    free(out.v);
}

static void pieces_do_not_matter(void **state)
{
    static const size_t pieces[] = {1, 7, 1023, 1024, 1025, 5000};
    float *in = tone(44100, 3000, 20000);
    sound whole = resample(in, 20000, 44100, 16000, 20000);
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        sound out = resample(in, 20000, 44100, 16000, pieces[i]);
        assert_int_equal(out.n, whole.n);
        assert_memory_equal(out.v, whole.v, whole.n * sizeof *out.v);
        free(out.v);
    }
    free(whole.v);
    free(in);
}

static void rates_outside_of_the_limits_are_refused(void **state)
{
    static const int32_t rates[] = {0, -1, 999, 384001};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        nrd_resampler *r = NULL;
        nrd_error *err = nrd_resampler_new(&r, rates[i], 16000, take, NULL);
        assert_non_null(err);
        assert_null(r);
        assert_non_null(strstr(nrd_error_message(err), "1000 to 384000"));
        nrd_error_free(err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tones_that_fit_stay),
        cmocka_unit_test(tones_that_do_not_fit_vanish),
        cmocka_unit_test(a_constant_stays_and_lengths_fit),
        cmocka_unit_test(nothing_stays_nothing),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(rates_outside_of_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
