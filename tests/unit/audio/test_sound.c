/* SPDX-License-Identifier: Apache-2.0
 * Sound files: every encoding of WAV gives the same sound, damaged ones say what is wrong, limits hold. */
#include "audio/sound.h"
#include "audio/wav.h"
#include "base/limits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct wav {
    unsigned char b[1 << 16];
    size_t n;
} wav;

static void put(wav *w, uint64_t v, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        w->b[w->n++] = (unsigned char)(v >> 8 * i);
    }
}

static void puts4(wav *w, const char *s)
{
    memcpy(w->b + w->n, s, 4);
    w->n += 4;
}

/* Up to the data chunk's name; its size and bytes are the caller's. */
static void head(wav *w, unsigned tag, unsigned channels, uint32_t rate, unsigned bytes, bool extensible)
{
    w->n = 0;
    puts4(w, "RIFF");
    put(w, 0xffffffff, 4); /* never looked at */
    puts4(w, "WAVE");
    puts4(w, "LIST"); /* of an odd length: a byte follows that does not count */
    put(w, 3, 4);
    put(w, 0x616161, 4);
    puts4(w, "fmt ");
    put(w, extensible ? 40 : 16, 4);
    put(w, extensible ? 0xfffe : tag, 2);
    put(w, channels, 2);
    put(w, rate, 4);
    put(w, (uint64_t)rate * channels * bytes, 4);
    put(w, channels * bytes, 2);
    put(w, bytes * 8, 2);
    if (extensible) {
        put(w, 22, 2);
        put(w, bytes * 8, 2);
        put(w, 0, 4);
        put(w, tag, 2);
        put(w, 0x0080001000000000, 8);
        put(w, 0x719b3800aa00, 6);
    }
    puts4(w, "data");
}

static nrd_sound read_all(const wav *w)
{
    nrd_sound s;
    nrd_error *err = nrd_sound_read(&s, w->b, w->n, 16000, NULL);
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
    return s;
}

static void refused(const void *data, size_t n, nrd_error_code code, const char *why)
{
    nrd_sound s;
    nrd_error *err = nrd_sound_read(&s, data, n, 16000, NULL);
    assert_non_null(err);
    if (!strstr(nrd_error_message(err), why) || nrd_error_get_code(err) != code) {
        fail_msg("'%s' has no '%s' (code %d)", nrd_error_message(err), why, (int)nrd_error_get_code(err));
    }
    assert_null(s.samples);
    nrd_error_free(err);
}

static void encode(wav *w, unsigned tag, unsigned bytes, double v)
{
    uint64_t bits = 0;
    float f = (float)v;

    if (tag == 3 && bytes == 4) {
        memcpy(&bits, &f, 4);
    } else if (tag == 3) {
        memcpy(&bits, &v, 8);
    } else if (bytes == 1) {
        bits = (uint64_t)(v * 128 + 128);
    } else {
        bits = (uint64_t)(int64_t)(v * ldexp(1, (int)bytes * 8 - 1));
    }
    put(w, bits, bytes);
}

static void every_encoding_gives_the_same_sound(void **state)
{
    static const struct { unsigned tag, bytes; } kinds[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {3, 4}, {3, 8}};
    static const double samples[] = {0, 0.5, -0.5, 0.25, -1, 0.75, -0.125};
    const size_t n = sizeof samples / sizeof *samples;
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (unsigned channels = 1; channels <= 3; channels += 2) {
            wav w;
            head(&w, kinds[k].tag, channels, 16000, kinds[k].bytes, channels == 3);
            put(&w, n * channels * kinds[k].bytes, 4);
            for (size_t i = 0; i < n; i++) { /* of three channels one is louder and one silent */
                encode(&w, kinds[k].tag, kinds[k].bytes, samples[i]);
                for (unsigned c = 1; c < channels; c++) {
                    encode(&w, kinds[k].tag, kinds[k].bytes, c == 1 ? samples[i] / 2 : 0);
                }
            }
            put(&w, 0x55555555, 4); /* behind the data */
            nrd_sound s = read_all(&w);
            assert_int_equal(s.n, n);
            for (size_t i = 0; i < n; i++) {
                assert_true(fabs((double)s.samples[i] - samples[i] * (channels == 3 ? 0.5 : 1)) < 1e-6);
            }
            nrd_sound_fini(&s);
        }
    }
}

/* Values of the tables of G.711, as ITU's own program expands them. */
static void telephone_sound_is_expanded(void **state)
{
    static const struct { unsigned tag, code; int value; } cases[] = {
        {6, 0xd5, 8}, {6, 0x55, -8}, {6, 0xaa, 32256}, {6, 0x2a, -32256}, {6, 0x80, 5504}, {6, 0x00, -5504},
        {7, 0xff, 0}, {7, 0x80, 32124}, {7, 0x00, -32124}, {7, 0xf0, 120}, {7, 0x70, -120}, {7, 0xa5, 6652},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wav w;
        head(&w, cases[i].tag, 1, 16000, 1, false);
        put(&w, 1, 4);
        put(&w, cases[i].code, 1);
        nrd_sound s = read_all(&w);
        assert_int_equal(s.n, 1);
        assert_int_equal(lround((double)s.samples[0] * 32768), cases[i].value);
        nrd_sound_fini(&s);
    }
}

static void another_rate_is_changed(void **state)
{
    wav w;
    (void)state;
    head(&w, 1, 2, 8000, 2, false);
    put(&w, 8000 * 4, 4);
    for (int i = 0; i < 8000; i++) {
        put(&w, 8192, 2);
        put(&w, 16384, 2);
    }
    nrd_sound s = read_all(&w);
    assert_int_equal(s.n, 16000);
    assert_true(fabs((double)s.samples[8000] - 0.375) < 1e-5);
    nrd_sound_fini(&s);
}

static void a_recorder_that_was_cut_off_gives_what_it_wrote(void **state)
{
    static const uint32_t sizes[] = {0xffffffff, 0x7fffffff, 1000};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        wav w;
        head(&w, 1, 1, 16000, 2, false);
        put(&w, sizes[i], 4);
        put(&w, 0x1234567890, 5); /* two samples and a half */
        nrd_sound s = read_all(&w);
        assert_int_equal(s.n, 2);
        nrd_sound_fini(&s);
    }
}

static void numbers_that_are_none_are_silence(void **state)
{
    wav w;
    (void)state;
    head(&w, 3, 1, 16000, 4, false);
    put(&w, 12, 4);
    put(&w, 0x7fc00000, 4); /* not a number */
    put(&w, 0x7f800000, 4); /* infinity */
    put(&w, 0x3f000000, 4);
    nrd_sound s = read_all(&w);
    assert_int_equal(s.n, 3);
    assert_true(s.samples[0] == 0 && isfinite(s.samples[1]) && s.samples[2] == 0.5f);
    nrd_sound_fini(&s);
}

static void what_does_not_fit_is_refused(void **state)
{
    wav w;
    (void)state;
    refused("", 0, NRD_ERR_INVALID_ARG, "no sound file");
    refused("RIFF____WAVE", 12, NRD_ERR_INVALID_ARG, "no fmt chunk");
    refused("hello, world, this is text", 26, NRD_ERR_INVALID_ARG, "WAV, FLAC, MP3 and Ogg are read");
    refused("\0\0\0\x18" "ftypM4A ", 12, NRD_ERR_UNSUPPORTED, "MP4 (m4a, mp4) is not read");
    refused("\x1a\x45\xdf\xa3____", 8, NRD_ERR_UNSUPPORTED, "WebM");
    head(&w, 1, 0, 16000, 2, false);
    refused(w.b, w.n, NRD_ERR_INVALID_ARG, "0 channels");
    head(&w, 1, 65, 16000, 2, false);
    refused(w.b, w.n, NRD_ERR_INVALID_ARG, "65 channels, 1 to 64");
    head(&w, 1, 1, 16000, 5, false);
    refused(w.b, w.n, NRD_ERR_UNSUPPORTED, "integer samples of 5 bytes");
    head(&w, 2, 1, 16000, 1, false); /* ADPCM */
    refused(w.b, w.n, NRD_ERR_UNSUPPORTED, "encoding 2");
    head(&w, 1, 1, 500, 2, false);
    put(&w, 0, 4);
    refused(w.b, w.n, NRD_ERR_INVALID_ARG, "500 samples a second");
    head(&w, 1, 1, 16000, 2, false);
    put(&w, 0, 4);
    refused(w.b, w.n, NRD_ERR_INVALID_ARG, "holds no sound");
    refused(w.b, w.n - 8, NRD_ERR_INVALID_ARG, "no data chunk");
    head(&w, 1, 1, 16000, 2, true);
    w.b[w.n - 8] ^= 1; /* another encoding's identity */
    refused(w.b, w.n, NRD_ERR_UNSUPPORTED, "extensible");
}

/* limits: SOUND_FILE, SOUND_SECONDS */
static void limits_hold(void **state)
{
    const size_t n = (size_t)NRD_LIMIT_SOUND_SECONDS * 1000 + 1;
    unsigned char *p = calloc(1, n + 64);
    wav w;
    (void)state;
    assert_non_null(p);
    head(&w, 1, 1, 1000, 1, false);
    put(&w, n, 4);
    memcpy(p, w.b, w.n);
    refused(p, w.n + n, NRD_ERR_INVALID_ARG, "longer than 7200 seconds");
    refused(p, (size_t)NRD_LIMIT_SOUND_FILE + 1, NRD_ERR_INVALID_ARG, "at most 104857600");
    free(p);
}

static nrd_error *no_room(void *arg, size_t bytes)
{
    *(size_t *)arg += bytes;
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "no room");
}

static void memory_is_asked_for_before_it_is_taken(void **state)
{
    size_t asked = 0;
    const nrd_sound_room room = {no_room, &asked};
    nrd_sound s;
    wav w;
    (void)state;
    head(&w, 1, 1, 16000, 2, false);
    put(&w, 4, 4);
    put(&w, 0, 4);
    nrd_error *err = nrd_sound_read(&s, w.b, w.n, 16000, &room);
    assert_non_null(err);
    assert_string_equal(nrd_error_message(err), "no room");
    assert_true(asked >= 2 * sizeof(float) && !s.samples);
    nrd_error_free(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoding_gives_the_same_sound),
        cmocka_unit_test(telephone_sound_is_expanded),
        cmocka_unit_test(another_rate_is_changed),
        cmocka_unit_test(a_recorder_that_was_cut_off_gives_what_it_wrote),
        cmocka_unit_test(numbers_that_are_none_are_silence),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(memory_is_asked_for_before_it_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
