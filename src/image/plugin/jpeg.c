/* SPDX-License-Identifier: Apache-2.0
 * JPEG by libjpeg, with its defaults (exact transform, smooth chroma). Grey and CMYK become red, green and blue. */
#include "image/plugin/formats.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <jpeglib.h> /* needs stdio.h before it */
#include <jerror.h>

/* Scans of a progressive picture each cost a pass over all of it; encoders write about ten. */
enum { MAX_SCANS = 100 };

typedef struct reader {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    char *why;
    size_t why_n;
    bool is_cut; /* the library makes up what is missing */
} reader;

static void on_error(j_common_ptr c)
{
    reader *r = c->client_data;
    char text[JMSG_LENGTH_MAX];

    c->err->format_message(c, text);
    snprintf(r->why, r->why_n, "%s", text);
    longjmp(r->back, 1);
}

static void on_message(j_common_ptr c, int level)
{
    reader *r = c->client_data;
    r->is_cut = r->is_cut || (level < 0 && c->err->msg_code == JWRN_JPEG_EOF);
}

static void on_progress(j_common_ptr c)
{
    reader *r = c->client_data;
    if (r->c.input_scan_number > MAX_SCANS) {
        snprintf(r->why, r->why_n, "it has more than %d scans", MAX_SCANS);
        longjmp(r->back, 1);
    }
}

static bool is_cmyk(const reader *r)
{
    return r->c.jpeg_color_space == JCS_CMYK || r->c.jpeg_color_space == JCS_YCCK;
}

static void open_reader(reader *r, const uint8_t *bytes, size_t n)
{
    jpeg_create_decompress(&r->c);
    r->c.client_data = r;
    r->progress.progress_monitor = on_progress;
    r->c.progress = &r->progress;
    jpeg_mem_src(&r->c, bytes, (unsigned long)n);
    jpeg_read_header(&r->c, TRUE);
    r->c.out_color_space = is_cmyk(r) ? JCS_CMYK : JCS_RGB;
}

static void begin(reader *r, char *why, size_t why_n)
{
    *r = (reader){.why = why, .why_n = why_n};
    r->c.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->c.client_data = r;
}

/* Adobe's programs store what is left of the paper, others what ink covers. */
static void cmyk_row(const uint8_t *from, int32_t width, bool inverted, uint8_t *to)
{
    for (int32_t x = 0; x < width; x++, from += 4, to += 3) {
        const int white = inverted ? from[3] : 255 - from[3];
        for (int c = 0; c < 3; c++) {
            const int ink = inverted ? 255 - from[c] : from[c], product = ink * white + 128;
            const int v = white - ((product + (product >> 8)) >> 8);
            to[c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

/* One row of four inks; freed with the picture. */
static JSAMPARRAY ink_row(reader *r, int32_t width)
{
    return r->c.mem->alloc_sarray((j_common_ptr)&r->c, JPOOL_IMAGE, (JDIMENSION)width * 4, 1);
}

static void read_rows(reader *r, int32_t width, int32_t height, uint8_t *rgb)
{
    jpeg_start_decompress(&r->c);
    const bool inks = r->c.out_color_space == JCS_CMYK;
    JSAMPARRAY ink = inks ? ink_row(r, width) : NULL;
    while (r->c.output_scanline < r->c.output_height && r->c.output_scanline < (JDIMENSION)height) {
        uint8_t *to = rgb + (size_t)r->c.output_scanline * (size_t)width * 3;
        jpeg_read_scanlines(&r->c, inks ? ink : &to, 1);
        if (inks) {
            cmyk_row(ink[0], width, r->c.saw_Adobe_marker, to);
        }
    }
    jpeg_finish_decompress(&r->c);
}

/* The size, and where `rgb` is one the picture, of a size that is known by then. */
static bool read_picture(const uint8_t *bytes, size_t n, int32_t *width, int32_t *height, uint8_t *rgb, char *why, size_t why_n)
{
    reader *r = malloc(sizeof *r);
    if (!r) {
        snprintf(why, why_n, "there is no memory for it");
        return false;
    }
    begin(r, why, why_n);
    if (setjmp(r->back)) {
        jpeg_destroy_decompress(&r->c);
        free(r);
        return false;
    }
    open_reader(r, bytes, n);
    if (rgb) {
        read_rows(r, *width, *height, rgb);
    } else {
        *width = (int32_t)r->c.image_width;
        *height = (int32_t)r->c.image_height;
    }
    const bool whole = !rgb || !r->is_cut;
    if (!whole) {
        snprintf(why, why_n, "it ends early");
    }
    jpeg_destroy_decompress(&r->c);
    free(r);
    return whole;
}

bool nrd_jpeg_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n)
{
    return read_picture(bytes, n, out_width, out_height, NULL, why, why_n);
}

bool nrd_jpeg_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why, size_t why_n)
{
    return read_picture(bytes, n, &width, &height, rgb, why, why_n);
}
