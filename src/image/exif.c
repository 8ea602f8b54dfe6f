/* SPDX-License-Identifier: Apache-2.0
 * How a picture was held: cameras store rows as their sensor reads them, and say in Exif which way is up. Where Exif lies:
 * JPEG in a segment APP1, PNG in a chunk eXIf, WebP in a chunk EXIF. Sources: Exif 2.32 (CIPA DC-008), 4.5 and 4.6.4; TIFF 6.0,
 * section 2. What Pillow also finds in XMP is not looked at. */
#include "image/image.h"

#include <stdbool.h>
#include <string.h>

enum { ORIENTATION = 0x0112, SHORT = 3, LONG = 4, TIFF_HEAD = 8, ENTRY = 12 };

typedef struct span {
    const uint8_t *p;
    size_t n;
    bool is_big_endian;
} span;

static uint32_t number(const span *s, size_t at, size_t bytes)
{
    uint32_t v = 0;
    for (size_t i = 0; i < bytes; i++) {
        v = v << 8 | s->p[at + (s->is_big_endian ? i : bytes - 1 - i)];
    }
    return v;
}

/* ---- where Exif lies: {NULL, 0} where there is none ---- */

static span in_jpeg(span s)
{
    static const char mark[] = "Exif\0"; /* with the zero that ends it: six bytes */
    for (size_t at = 2; at + 4 <= s.n && s.p[at] == 0xff;) {
        const uint8_t kind = s.p[at + 1];
        if (kind == 0xff || kind == 0x01 || (kind >= 0xd0 && kind <= 0xd8)) { /* filling, or a marker alone */
            at += kind == 0xff ? 1 : 2;
            continue;
        }
        const size_t n = number(&s, at + 2, 2);
        if (kind == 0xda || kind == 0xd9 || n < 2 || n > s.n - at - 2) { /* pixels or the end follow */
            break;
        }
        if (kind == 0xe1 && n >= 2 + sizeof mark && !memcmp(s.p + at + 4, mark, sizeof mark)) {
            return (span){.p = s.p + at + 4 + sizeof mark, .n = n - 2 - sizeof mark};
        }
        at += 2 + n;
    }
    return (span){0};
}

/* A name of four bytes, a length of four, and the data, in the order of the format. */
static span in_chunks(span s, size_t at, const char *name, bool name_first, size_t behind, size_t align)
{
    while (at < s.n && s.n - at >= 8) {
        const size_t n = number(&s, at + (name_first ? 4 : 0), 4);
        const bool is_it = !memcmp(s.p + at + (name_first ? 0 : 4), name, 4);
        at += 8;
        if (n > s.n - at) {
            break;
        }
        if (is_it) {
            return (span){.p = s.p + at, .n = n};
        }
        const size_t step = n + n % align + behind;
        if (step > s.n - at) {
            break;
        }
        at += step;
    }
    return (span){0};
}

static span find(const uint8_t *bytes, size_t n)
{
    span s = {.p = bytes, .n = n, .is_big_endian = true};
    switch (nrd_image_format_of(bytes, n)) {
    case NRD_IMAGE_JPEG:
        return in_jpeg(s);
    case NRD_IMAGE_PNG: /* a sum of four bytes behind each chunk */
        return in_chunks(s, 8, "eXIf", false, 4, 1);
    case NRD_IMAGE_WEBP:
        s.is_big_endian = false;
        s = in_chunks(s, 12, "EXIF", true, 0, 2);
        if (s.n >= 6 && !memcmp(s.p, "Exif\0\0", 6)) { /* as some programs write it */
            s.p += 6;
            s.n -= 6;
        }
        return s;
    default:
        return (span){0};
    }
}

/* The first value of the entry at `at`, which lies in the entry or, where all of them take more than four bytes, elsewhere. */
static uint32_t value_of(const span *s, size_t at)
{
    const size_t each = number(s, at + 2, 2) == SHORT ? 2 : 4, n = number(s, at + 4, 4) * each;
    const size_t from = n <= 4 ? at + 8 : number(s, at + 8, 4);
    return n == 0 || n > s->n || from > s->n - n ? 0 : number(s, from, each);
}

int nrd_image_orientation(const void *bytes, size_t n)
{
    span s = find(bytes, n);

    if (s.n < TIFF_HEAD || (memcmp(s.p, "II*\0", 4) != 0 && memcmp(s.p, "MM\0*", 4) != 0)) {
        return 1;
    }
    s.is_big_endian = s.p[0] == 'M';
    const size_t first = number(&s, 4, 4);
    if (first > s.n - 2) {
        return 1;
    }
    const size_t count = number(&s, first, 2);
    for (size_t i = 0, at = first + 2; i < count && s.n - at >= ENTRY; i++, at += ENTRY) {
        const uint32_t type = number(&s, at + 2, 2);
        if (number(&s, at, 2) == ORIENTATION && (type == SHORT || type == LONG)) {
            const uint32_t v = value_of(&s, at);
            return v >= 1 && v <= 8 ? (int)v : 1; /* of several the first one holds, as Pillow has it */
        }
    }
    return 1;
}

nrd_error *nrd_image_turn(nrd_image *image, int orientation)
{
    const bool is_swapped = orientation >= 5; /* rows become columns */
    const int32_t width = image->width, height = image->height;
    nrd_image out;

    if (orientation <= 1 || orientation > 8) {
        return NULL;
    }
    NRD_TRY(nrd_image_new(&out, is_swapped ? height : width, is_swapped ? width : height));
    /* which of the picture's own axes run backwards */
    const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    uint8_t *to = out.rgb;
    for (int32_t y = 0; y < out.height; y++) {
        for (int32_t x = 0; x < out.width; x++, to += 3) {
            const int32_t column = is_swapped ? y : x, row = is_swapped ? x : y;
            const size_t at = (size_t)(from_below ? height - 1 - row : row) * (size_t)width +
                              (size_t)(from_right ? width - 1 - column : column);
            memcpy(to, image->rgb + at * 3, 3);
        }
    }
    nrd_image_fini(image);
    *image = out;
    return NULL;
}
