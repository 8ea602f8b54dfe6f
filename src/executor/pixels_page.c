/* SPDX-License-Identifier: Apache-2.0
 * Pages as the processors of Donut and Nougat bring them into one size, with Pillow. */
#include "executor/pixels.h"

#include <string.h>

/* Takes the place of *image. */
static nrd_error *resize(nrd_image *image, int32_t width, int32_t height, nrd_image_filter filter)
{
    nrd_image other;
    NRD_TRY(nrd_image_resize(&other, image, width, height, filter));
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

/* Pillow's grey of a pixel. */
static uint8_t grey(const uint8_t *rgb)
{
    return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/* Leaves the box around all that is dark, once greys go from 0 to 255. */
static nrd_error *crop_margin(nrd_image *image)
{
    enum { DARK = 200 };
    const int32_t width = image->width, height = image->height;
    int32_t left = width, right = -1, top = height, bottom = -1, least = UINT8_MAX, most = 0;
    nrd_image other;

    for (int32_t i = 0; i < width * height; i++) {
        const uint8_t v = grey(image->rgb + (size_t)i * 3);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    if (least == most) {
        return NULL;
    }
    for (int32_t i = 0; i < width * height; i++) {
        const int32_t x = i % width, y = i / width;
        if ((double)(grey(image->rgb + (size_t)i * 3) - least) / (most - least) * 255 < DARK) {
            left = x < left ? x : left;
            right = x > right ? x : right;
            top = y < top ? y : top;
            bottom = y;
        }
    }
    const size_t row = (size_t)(right - left + 1) * 3;
    NRD_TRY(nrd_image_new(&other, right - left + 1, bottom - top + 1));
    for (int32_t y = top; y <= bottom; y++) {
        memcpy(other.rgb + (size_t)(y - top) * row, image->rgb + ((size_t)y * (size_t)width + (size_t)left) * 3, row);
    }
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

/* The shorter side to that of the page. */
static nrd_error *fill_page(nrd_image *image, int32_t width, int32_t height, nrd_image_filter filter)
{
    const int64_t edge = width < height ? width : height;
    const bool is_wide = image->width > image->height;
    const int64_t longer = (int64_t)((double)(edge * (is_wide ? image->width : image->height)) / (is_wide ? image->height : image->width));
    nrd_image probe;

    NRD_TRY(nrd_image_new(&probe, is_wide ? longer : edge, is_wide ? edge : longer)); /* too long a page is refused by its size */
    nrd_image_fini(&probe);
    return resize(image, (int32_t)(is_wide ? longer : edge), (int32_t)(is_wide ? edge : longer), filter);
}

/* Within the page, where a side is longer. */
static nrd_error *shrink(nrd_image *image, int32_t page_width, int32_t page_height)
{
    enum { MOST = 4 }; /* times: Pillow takes another way of less than a quarter */
    const int32_t w = image->width, h = image->height;
    int32_t width = w < page_width ? w : page_width, height = h < page_height ? h : page_height;

    if (width == w && height == h) {
        return NULL;
    }
    if (h > w) {
        width = (int32_t)((double)((int64_t)w * height) / h);
    } else if (w > h) {
        height = (int32_t)((double)((int64_t)h * width) / w);
    }
    if (width < 1 || height < 1 || w / MOST >= width || h / MOST >= height) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "one of its sides is too long: it would become %d x %d pixels of %d x %d", width, height, w, h);
    }
    return resize(image, width, height, NRD_IMAGE_BICUBIC);
}

nrd_error *nrd_pixels_page(const nrd_vision_spec *s, nrd_image *image)
{
    enum { TURN_RIGHT = 6 }; /* an orientation of Exif */
    const int32_t width = s->swin.width * s->patch_size, height = s->swin.height * s->patch_size;
    nrd_image page;

    NRD_TRY(s->swin.crops ? crop_margin(image) : NULL);
    if (s->swin.turns && ((width < height && image->width > image->height) || (width > height && image->width < image->height))) {
        NRD_TRY(nrd_image_turn(image, TURN_RIGHT));
    }
    NRD_TRY(fill_page(image, width, height, (nrd_image_filter)s->input.filter));
    NRD_TRY(shrink(image, width, height));
    NRD_TRY(nrd_image_new(&page, width, height));
    for (int32_t y = 0; y < image->height; y++) {
        const size_t to = (size_t)(y + (height - image->height) / 2) * (size_t)width + (size_t)((width - image->width) / 2);
        memcpy(page.rgb + to * 3, image->rgb + (size_t)y * (size_t)image->width * 3, (size_t)image->width * 3);
    }
    nrd_image_fini(image);
    *image = page;
    return NULL;
}
