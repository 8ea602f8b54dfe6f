/* SPDX-License-Identifier: Apache-2.0
 * Pictures: every format against Pillow's pixels, sizes to the bit, and what is refused. */
#include "unit/image/pictures.h"

#include "base/limits.h"
#include "image/image.h"
#include "image/plugin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t hash_of(const nrd_image *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < (size_t)p->width * (size_t)p->height * 3; i++) {
        h = (h ^ p->rgb[i]) * 0x100000001b3u;
    }
    return h;
}

static nrd_image noise(int32_t width, int32_t height)
{
    nrd_image p;
    uint64_t x = 1;
    assert_null(nrd_image_new(&p, width, height));
    for (size_t i = 0; i < (size_t)width * (size_t)height * 3; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        p.rgb[i] = (uint8_t)(x >> 56);
    }
    return p;
}

static void refused(nrd_error *err, nrd_error_code code, const char *part)
{
    assert_non_null(err);
    if (nrd_error_get_code(err) != code || !strstr(nrd_error_message(err), part)) {
        fail_msg("got '%s', expected '%s'", nrd_error_message(err), part);
    }
    nrd_error_free(err);
}

/* ---- formats ---- */

#ifdef NRD_HAVE_IMAGE
extern const nrd_image_ops nrd_image_ops_1;

static const nrd_image_codec *codec_of(const uint8_t *b, size_t n)
{
    switch (nrd_image_format_of(b, n)) {
    case NRD_IMAGE_JPEG:
        return &nrd_image_ops_1.jpeg;
    case NRD_IMAGE_PNG:
        return &nrd_image_ops_1.png;
    case NRD_IMAGE_WEBP:
        return &nrd_image_ops_1.webp;
    default:
        return NULL;
    }
}

static bool decode(const uint8_t *b, size_t n, nrd_image *out, char why[200])
{
    const nrd_image_codec *c = codec_of(b, n);
    int32_t width = 0, height = 0;
    if (!c->size(b, n, &width, &height, why, 200)) {
        return false;
    }
    nrd_error *err = nrd_image_new(out, width, height);
    if (err) {
        nrd_error_free(err);
        return false;
    }
    if (!c->decode(b, n, width, height, out->rgb, why, 200)) {
        nrd_image_fini(out);
        return false;
    }
    assert_null(nrd_image_turn(out, nrd_image_orientation(b, n)));
    return true;
}

static void every_format_has_the_pixels_that_pillow_has(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        const struct picture *p = &pictures[i];
        char why[200] = "";
        nrd_image image = {0};
        if (p->hash == 0) {
            assert_false(decode(p->bytes, p->n, &image, why));
            assert_string_not_equal(why, "");
            continue;
        }
        if (!decode(p->bytes, p->n, &image, why)) {
            fail_msg("%s: %s", p->name, why);
        }
        if (image.width != p->width || image.height != p->height || hash_of(&image) != p->hash) {
            fail_msg("%s: %d x %d, hash %016llx", p->name, image.width, image.height, (unsigned long long)hash_of(&image));
        }
        nrd_image_fini(&image);
    }
}

/* A cut picture is refused or, where only the end of the file is missing, has all pixels. */
static void cut_pictures_are_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        for (size_t n = 12; n < pictures[i].n; n++) {
            uint8_t *bytes = malloc(n); /* a sanitizer sees a read past it */
            nrd_image image = {0};
            char why[200] = "";
            memcpy(bytes, pictures[i].bytes, n);
            if (decode(bytes, n, &image, why)) {
                assert_true(pictures[i].hash == 0 || hash_of(&image) == pictures[i].hash);
                nrd_image_fini(&image);
            } else {
                assert_string_not_equal(why, "");
            }
            free(bytes);
        }
    }
}
#endif

static void formats_are_known_by_their_first_bytes(void **state)
{
    (void)state;
    assert_int_equal(nrd_image_format_of("P6\n1 1 255\nabc", 14), NRD_IMAGE_PPM);
    assert_int_equal(nrd_image_format_of("GIF89a", 6), NRD_IMAGE_UNKNOWN);
    assert_int_equal(nrd_image_format_of("", 0), NRD_IMAGE_UNKNOWN);
    nrd_image p;
    refused(nrd_image_read(&p, "GIF89a......", 12), NRD_ERR_UNSUPPORTED, "JPEG, PNG, WebP, PPM");
}

static void a_ppm_picture_is_read_without_the_plug_in(void **state)
{
    nrd_image p;
    (void)state;
    assert_null(nrd_image_read(&p, "P6 # two\n2 1\n255\nabcdef", 23));
    assert_int_equal(p.width, 2);
    assert_int_equal(p.height, 1);
    assert_memory_equal(p.rgb, "abcdef", 6);
    nrd_image_fini(&p);
    refused(nrd_image_read(&p, "P6\n2 1\n255\nabcde", 16), NRD_ERR_INVALID_ARG, "ends early");
    refused(nrd_image_read(&p, "P6\n2 1\n65535\nabcdefabcdef", 25), NRD_ERR_INVALID_ARG, "255");
    refused(nrd_image_read(&p, "P6\n2", 4), NRD_ERR_INVALID_ARG, "head");
    refused(nrd_image_read(&p, "P6\n99999999 1\n255\nabc", 21), NRD_ERR_INVALID_ARG, "head");
}

/* limits: IMAGE_FILE, IMAGE_SIDE, IMAGE_PIXELS */
static void pictures_over_a_limit_are_refused_before_memory_is_taken(void **state)
{
    nrd_image p;
    (void)state;
    refused(nrd_image_new(&p, NRD_LIMIT_IMAGE_SIDE + 1, 1), NRD_ERR_INVALID_ARG, "16384 on a side");
    refused(nrd_image_new(&p, 16384, 16384), NRD_ERR_INVALID_ARG, "67108864 in all");
    refused(nrd_image_new(&p, 0, 5), NRD_ERR_INVALID_ARG, "0 x 5");
    char *many = calloc(1, (size_t)NRD_LIMIT_IMAGE_FILE + 1);
    refused(nrd_image_read(&p, many, (size_t)NRD_LIMIT_IMAGE_FILE + 1), NRD_ERR_INVALID_ARG, "20971520");
    free(many);
}

/* ---- sizes ---- */

static void resized_pictures_are_pillows_to_the_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizings / sizeof sizings[0]; i++) {
        const struct sizing *s = &sizings[i];
        nrd_image in = noise(s->width, s->height), out;
        assert_null(nrd_image_resize(&out, &in, s->to_width, s->to_height, s->filter));
        if (hash_of(&out) != s->hash) {
            fail_msg("filter %d, %d x %d to %d x %d differs", s->filter, s->width, s->height, s->to_width, s->to_height);
        }
        nrd_image_fini(&in);
        nrd_image_fini(&out);
    }
}

/* 0, 60 and 240 in a row: by the middles of pixels between them, and by a wider filter where there are fewer. */
static void numbers_are_not_rounded(void **state)
{
    static const float wide[6] = {0, 15, 45, 105, 195, 240};
    nrd_image in;
    float out[2 * 6 * 3];
    (void)state;
    assert_null(nrd_image_new(&in, 3, 1));
    for (int i = 0; i < 9; i++) {
        in.rgb[i] = (uint8_t)((int[]){0, 60, 240}[i / 3] * (i % 3 != 2)); /* nothing in blue */
    }
    assert_null(nrd_image_resize_numbers(out, &in, 6, 2));
    for (int i = 0; i < 36; i++) {
        assert_true(fabsf(out[i] - (i < 24 ? wide[i % 6] : 0)) < 1e-3f);
    }
    assert_null(nrd_image_resize_numbers(out, &in, 1, 1)); /* weights 2/3, 1, 2/3 */
    assert_true(fabsf(out[0] - (60 + 240 * 2 / 3.0f) / (7 / 3.0f)) < 1e-3f && fabsf(out[2]) < 1e-3f);
    nrd_image_fini(&in);
}

static void the_middle_is_cut_out_or_framed_in_black(void **state)
{
    nrd_image in, out;
    (void)state;
    assert_null(nrd_image_read(&in, "P6 3 1 255\nabcdefghi", 20));
    assert_null(nrd_image_crop_center(&out, &in, 1, 1));
    assert_memory_equal(out.rgb, "def", 3);
    nrd_image_fini(&out);
    assert_null(nrd_image_crop_center(&out, &in, 5, 3));
    assert_memory_equal(out.rgb + 15, "\0\0\0abcdefghi\0\0\0", 15);
    assert_int_equal(out.rgb[3], 0);
    nrd_image_fini(&out);
    nrd_image_fini(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef NRD_HAVE_IMAGE
        cmocka_unit_test(every_format_has_the_pixels_that_pillow_has),
        cmocka_unit_test(cut_pictures_are_refused_with_a_reason),
#endif
        cmocka_unit_test(formats_are_known_by_their_first_bytes),
        cmocka_unit_test(a_ppm_picture_is_read_without_the_plug_in),
        cmocka_unit_test(pictures_over_a_limit_are_refused_before_memory_is_taken),
        cmocka_unit_test(resized_pictures_are_pillows_to_the_bit),
        cmocka_unit_test(numbers_are_not_rounded),
        cmocka_unit_test(the_middle_is_cut_out_or_framed_in_black),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
