/* SPDX-License-Identifier: Apache-2.0
 * Log-mel features are those of transformers; the transform below them is the one of its definition. */
#include "audio/fft.h"
#include "audio/mel.h"
#include "unit/audio/mel_golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* As make_mel_golden.py makes it. */
static float *signal_of(size_t n)
{
    float *s = malloc(n * sizeof *s);
    assert_non_null(s);
    for (uint64_t i = 0; i < n; i++) {
        s[i] = (float)((double)(((int64_t)((i * i * 7 + i * 31) % 4001) - 2000) * (int64_t)(i / 1600 % 10)) / 32768);
    }
    return s;
}

static void check(size_t n, int32_t n_mels, const float *golden, double golden_sum)
{
    const size_t n_frames = nrd_mel_frames(n), n_bands = (size_t)n_mels;
    float *s = signal_of(n), *out = malloc(n_frames * n_bands * sizeof *out);
    double sum = 0, worst = 0;

    assert_non_null(out);
    assert_null(nrd_mel_make(s, n, n_mels, out));
    for (size_t f = 0; f < sizeof golden_frames / sizeof *golden_frames; f++) {
        for (size_t b = 0; b < n_bands; b += 4) {
            const double d = fabs((double)out[(size_t)golden_frames[f] * n_bands + b] - (double)*golden++);
            worst = d > worst ? d : worst;
        }
    }
    for (size_t i = 0; i < n_frames * n_bands; i++) {
        sum += (double)out[i];
    }
    print_message("worst difference %.2e, of the mean %.2e\n", worst, fabs(sum - golden_sum) / (double)(n_frames * n_bands));
    assert_true(worst < 2e-5); /* the golden numbers have five digits */
    assert_true(fabs(sum - golden_sum) < 1e-5 * (double)(n_frames * n_bands));
    free(out);
    free(s);
}

static void features_are_those_of_transformers(void **state)
{
    (void)state;
    check(50000, 80, golden_short_80, golden_short_80_sum);
    check(30011, 128, golden_short_128, golden_short_128_sum);
}

static void more_than_30_s_are_not_filled_up(void **state)
{
    (void)state;
    assert_int_equal(nrd_mel_frames(500123), 3125);
    assert_int_equal(nrd_mel_frames(1), 3000);
    check(500123, 80, golden_long_80, golden_long_80_sum);
}

static void a_number_of_mels_that_is_none_is_refused(void **state)
{
    float s = 0, out = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        nrd_error *err = nrd_mel_make(&s, 1, i ? 257 : 0, &out);
        assert_non_null(err);
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
        nrd_error_free(err);
    }
}

static void the_transform_is_its_definition(void **state)
{
    static const size_t lengths[] = {1, 4, 5, 16, 20, 25, 100, 400};
    (void)state;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const size_t n = lengths[l];
        nrd_complex x[400], scratch[400], in[400];
        nrd_fft *f = NULL;
        assert_null(nrd_fft_new(&f, n));
        for (size_t i = 0; i < n; i++) {
            in[i] = x[i] = (nrd_complex){(double)(i * i * 7 % 11) - 5, (double)(i * 3 % 7) - 3};
        }
        nrd_fft_forward(f, x, scratch);
        for (size_t k = 0; k < n; k++) {
            double re = 0, im = 0;
            for (size_t j = 0; j < n; j++) {
                const double a = -2 * M_PI * (double)(j * k % n) / (double)n;
                re += in[j].re * cos(a) - in[j].im * sin(a);
                im += in[j].re * sin(a) + in[j].im * cos(a);
            }
            assert_true(fabs(re - x[k].re) < 1e-9 * (double)n && fabs(im - x[k].im) < 1e-9 * (double)n);
        }
        nrd_fft_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_transform_is_its_definition),
        cmocka_unit_test(features_are_those_of_transformers),
        cmocka_unit_test(more_than_30_s_are_not_filled_up),
        cmocka_unit_test(a_number_of_mels_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
