/* SPDX-License-Identifier: Apache-2.0
 * PNG by libpng: all colour types become red, green and blue of eight bits, without transparency; of an animation the
 * first frame. Colour profiles and gamma are not looked at, as image processors of models do not. */
#include "image/plugin/formats.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHUNK = 8 << 20, HEAD_BYTES = 24 }; /* the head: signature, length and name of IHDR, width, height */

typedef struct source {
    const uint8_t *bytes;
    size_t n, at;
    char *why;
    size_t why_n;
} source;

static void take(png_structp png, png_bytep to, size_t n)
{
    source *s = png_get_io_ptr(png);
    if (s->n - s->at < n) {
        png_error(png, "it ends early");
    }
    memcpy(to, s->bytes + s->at, n);
    s->at += n;
}

static void on_error(png_structp png, png_const_charp message)
{
    source *s = png_get_error_ptr(png);
    snprintf(s->why, s->why_n, "%s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static uint32_t big_endian(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

bool nrd_png_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n)
{
    if (n < HEAD_BYTES || memcmp(bytes + 12, "IHDR", 4) || big_endian(bytes + 16) > INT32_MAX ||
        big_endian(bytes + 20) > INT32_MAX) {
        snprintf(why, why_n, "its head is broken");
        return false;
    }
    *out_width = (int32_t)big_endian(bytes + 16);
    *out_height = (int32_t)big_endian(bytes + 20);
    return true;
}

static void set_form(png_structp png)
{
    png_set_expand(png); /* palettes and few bits */
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
}

/* Behind this frame libpng jumps back where something is wrong; nothing of it changes in between. */
static bool read_all(png_structp png, png_infop info, int32_t width, int32_t height, png_bytep *rows)
{
    if (setjmp(png_jmpbuf(png))) {
        return false;
    }
    png_set_user_limits(png, (png_uint_32)width, (png_uint_32)height);
    png_set_chunk_malloc_max(png, MAX_CHUNK);
    png_set_chunk_cache_max(png, 64);
    png_read_info(png, info);
    set_form(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != (size_t)width * 3 || png_get_image_height(png, info) != (png_uint_32)height) {
        png_error(png, "it has another form than its head says");
    }
    png_read_image(png, rows);
    return true;
}

bool nrd_png_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why, size_t why_n)
{
    source s = {.bytes = bytes, .n = n, .why = why, .why_n = why_n};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    png_bytep *rows = malloc((size_t)height * sizeof *rows);
    bool done = false;

    if (!info || !rows) {
        snprintf(why, why_n, "there is no memory for it");
    } else {
        for (int32_t y = 0; y < height; y++) {
            rows[y] = rgb + (size_t)y * (size_t)width * 3;
        }
        png_set_read_fn(png, &s, take);
        done = read_all(png, info, width, height, rows);
    }
    png_destroy_read_struct(&png, &info, NULL);
    free(rows);
    return done;
}
