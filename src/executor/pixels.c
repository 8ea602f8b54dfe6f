/* SPDX-License-Identifier: Apache-2.0
 * The steps of an image processor, on numbers as transformers' processors for Pillow have them. */
#include "base/mem.h"
#include "executor/pictures.h"
#include "image/image.h"

/* The shorter side, or both, to in->size. */
static nrd_error *resize(const nrd_vision_input *in, nrd_image *image)
{
    const int64_t size = in->size;
    int64_t width = size, height = size;
    nrd_image other;

    if (!in->to_square && image->width <= image->height) {
        height = (int64_t)((double)(size * image->height) / image->width);
    } else if (!in->to_square) {
        width = (int64_t)((double)(size * image->width) / image->height);
    }
    NRD_TRY(nrd_image_new(&other, width, height)); /* too long a picture is refused by its size */
    nrd_image_fini(&other);
    NRD_TRY(nrd_image_resize(&other, image, (int32_t)width, (int32_t)height, (nrd_image_filter)in->filter));
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

static nrd_error *crop(const nrd_vision_input *in, nrd_image *image)
{
    nrd_image other;
    NRD_TRY(nrd_image_crop_center(&other, image, in->crop_width, in->crop_height));
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

static void to_numbers(const nrd_vision_input *in, const nrd_image *image, float *out)
{
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (size_t c = 0; c < 3; c++) {
        for (size_t i = 0; i < n; i++) {
            float v = image->rgb[i * 3 + c];
            v = in->rescale ? (float)((double)v * in->factor) : v;
            out[c * n + i] = in->normalize ? (v - in->mean[c]) / in->deviation[c] : v;
        }
    }
}

/* To whole squares of patches, as near as may be to its shape. */
static nrd_error *fit(const nrd_vision_spec *s, nrd_image *image, nrd_vision_grid *grid)
{
    nrd_image other;

    NRD_TRY(nrd_vision_fit(s, image->width, image->height, grid));
    NRD_TRY(nrd_image_resize(&other, image, grid->width * s->patch_size, grid->height * s->patch_size,
                             (nrd_image_filter)s->input.filter));
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

static nrd_error *to_square(const nrd_vision_spec *s, nrd_image *image, nrd_vision_grid *grid)
{
    const int32_t side = s->image_size / s->patch_size;

    *grid = (nrd_vision_grid){side, side};
    NRD_TRY(s->input.resize ? resize(&s->input, image) : NULL);
    return s->input.crop ? crop(&s->input, image) : NULL;
}

nrd_error *nrd_pixels_of(const nrd_vision_spec *s, const void *bytes, size_t n, int32_t max_rows, nrd_picture *out)
{
    nrd_image image;
    nrd_error *err = NULL;

    *out = (nrd_picture){0};
    NRD_TRY(nrd_image_read(&image, bytes, n));
    NRD_TRY_GOTO(s->any_size ? fit(s, &image, &out->grid) : to_square(s, &image, &out->grid), err, done);
    out->n_rows = nrd_vision_rows_of(s, out->grid);
    if (out->n_rows > max_rows) {
        err = nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "it is %d tokens, and the prompt has room for %d", out->n_rows,
                                           max_rows), NRD_LLM_PROMPT_TOO_LONG);
        goto done;
    }
    NRD_NEW_GOTO(out->pixels, 3 * (size_t)image.width * (size_t)image.height, err, done);
    to_numbers(&s->input, &image, out->pixels);
done:
    nrd_image_fini(&image);
    return err;
}
