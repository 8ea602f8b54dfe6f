/* SPDX-License-Identifier: Apache-2.0
 * image/image.h - pictures as pixels.
 *
 * Purpose   Reads the formats that clients send, and brings pictures to another size as models were trained with.
 *           PPM is read here; JPEG, PNG and WebP by nereid_image.so, which is opened for the first of them.
 * Owner     Pure functions; any thread.
 * Units     Eight bits a channel, red green blue, rows from the top, no padding.
 * Errors    INVALID_ARG: no picture, a broken one, or over a limit of base/limits.h (NRD_LIMIT_IMAGE_FILE, _IMAGE_PIXELS,
 *           _IMAGE_SIDE), which is refused before memory is taken; UNSUPPORTED: a format that is not known, several frames, or the plug-in is not there.
 * Sources   Resizing: the two passes and the fixed-point weights of Pillow's Image.resize, which image processors of
 *           models call. Each pass is the same to the bit; where Pillow takes columns first, as version 13 does for
 *           some shapes, results differ by a level with the bilinear filter, by two or three in smooth pictures with
 *           the others, and by more in noise, whose sums leave the range of bytes between the passes.
 */
#ifndef NRD_IMAGE_IMAGE_H
#define NRD_IMAGE_IMAGE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_image {
    int32_t width, height;
    uint8_t *rgb; /* [height, width, 3]; owns */
} nrd_image;

typedef enum {
    NRD_IMAGE_UNKNOWN = 0,
    NRD_IMAGE_PPM,
    NRD_IMAGE_JPEG,
    NRD_IMAGE_PNG,
    NRD_IMAGE_WEBP,
} nrd_image_format;

/* Numbers as Pillow's. */
typedef enum {
    NRD_IMAGE_LANCZOS = 1, /* of three lobes (Duchon, 1979) */
    NRD_IMAGE_BILINEAR = 2,
    NRD_IMAGE_BICUBIC = 3,
} nrd_image_filter;

nrd_image_format nrd_image_format_of(const void *bytes, size_t n); /* by its first bytes */
/* The picture as it is looked at: turned as its Exif says. */
nrd_error *nrd_image_read(nrd_image *out, const void *bytes, size_t n) NRD_MUST_USE;
/* Exif's orientation, 1 to 8; 1 (the first row is at the top, the first column at the left) where nothing says another. */
int nrd_image_orientation(const void *bytes, size_t n);
/* A picture that is stored with this orientation becomes one of orientation 1; any other number changes nothing. */
nrd_error *nrd_image_turn(nrd_image *image, int orientation) NRD_MUST_USE;
/* Zeroed pixels; INVALID_ARG where a size is below 1 or over a limit. */
nrd_error *nrd_image_new(nrd_image *out, int64_t width, int64_t height) NRD_MUST_USE;
void nrd_image_fini(nrd_image *image);
nrd_error *nrd_image_resize(nrd_image *out, const nrd_image *in, int32_t width, int32_t height,
                            nrd_image_filter filter) NRD_MUST_USE;
/* By the bilinear filter, and not rounded to bytes, as torch's antialiased interpolation does. out: [3, height, width], the caller's. */
nrd_error *nrd_image_resize_numbers(float *out, const nrd_image *in, int32_t width, int32_t height) NRD_MUST_USE;
/* The middle of `in`; where that is smaller, black stands around it. */
nrd_error *nrd_image_crop_center(nrd_image *out, const nrd_image *in, int32_t width, int32_t height) NRD_MUST_USE;

#endif
