/* SPDX-License-Identifier: Apache-2.0
 * The steps of an image processor, on numbers as transformers' processors for Pillow have them. */
#include "base/limits.h"
#include "base/mem.h"
#include "executor/pictures.h"
#include "executor/pixels.h"
#include "image/image.h"

#include <math.h>
#include <string.h>

size_t nrd_picture_numbers(const nrd_vision_spec *s, nrd_vision_grid grid)
{
    const size_t side = s->any_size ? 0 : (size_t)s->image_size, patch = (size_t)s->patch_size;
    const size_t n = (s->read_by_layers ? 0 : 1) + (size_t)(grid.tiles.high * grid.tiles.wide);
    const size_t planes = 3 * (size_t)(grid.frames > 0 ? grid.frames : 1);
    return s->any_size ? planes * (size_t)grid.height * patch * (size_t)grid.width * patch : n * 3 * side * side;
}

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

static float number(const nrd_vision_input *in, int c, uint8_t byte)
{
    const float v = in->rescale ? (float)((double)byte * in->factor) : (float)byte;
    return in->normalize ? (v - in->mean[c]) / in->deviation[c] : v;
}

static void to_numbers(const nrd_vision_input *in, const nrd_image *image, float *out)
{
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (int c = 0; c < 3; c++) {
        for (size_t i = 0; i < n; i++) {
            out[(size_t)c * n + i] = number(in, c, image->rgb[i * 3 + (size_t)c]);
        }
    }
}

/* Into the box, at the upper left of whole patches. */
static nrd_error *fit_box(const nrd_vision_spec *s, nrd_image *image, nrd_vision_grid grid)
{
    const int32_t wide = grid.width * s->patch_size, high = grid.height * s->patch_size;
    nrd_image scaled = {0}, all = {0};
    nrd_error *err = NULL;
    int32_t width, height;

    nrd_vision_fit_box(s, image->width, image->height, &width, &height);
    NRD_TRY_GOTO(nrd_image_resize(&scaled, image, width, height, (nrd_image_filter)s->input.filter), err, done);
    NRD_TRY_GOTO(nrd_image_new(&all, wide, high), err, done);
    memset(all.rgb, s->padding, (size_t)wide * (size_t)high * 3);
    for (size_t y = 0; y < (size_t)height; y++) {
        memcpy(all.rgb + y * (size_t)wide * 3, scaled.rgb + y * (size_t)width * 3, (size_t)width * 3);
    }
    nrd_image_fini(image);
    *image = all;
done:
    nrd_image_fini(&scaled);
    return err;
}

/* To whole squares of patches, as near as may be to its shape. */
static nrd_error *fit(const nrd_vision_spec *s, nrd_image *image, nrd_vision_grid *grid)
{
    nrd_image other;

    NRD_TRY(nrd_vision_fit(s, image->width, image->height, grid));
    if (s->swin.n_stages) {
        return nrd_pixels_page(s, image);
    }
    if (s->bare) {
        return s->seated ? NULL : fit_box(s, image, *grid);
    }
    NRD_TRY(nrd_image_resize(&other, image, grid->width * s->patch_size, grid->height * s->patch_size,
                             (nrd_image_filter)s->input.filter));
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

/* Into the middle of a square of the mean colour. */
static nrd_error *pad_to_square(const nrd_vision_spec *s, nrd_image *image)
{
    const int32_t side = image->width > image->height ? image->width : image->height;
    nrd_image other;

    NRD_TRY(nrd_image_new(&other, side, side));
    for (size_t i = 0; i < (size_t)side * (size_t)side * 3; i++) {
        other.rgb[i] = (uint8_t)((double)s->input.mean[i % 3] * 255);
    }
    for (int32_t y = 0; y < image->height; y++) {
        memcpy(other.rgb + ((size_t)(y + (side - image->height) / 2) * (size_t)side + (size_t)((side - image->width) / 2)) * 3,
               image->rgb + (size_t)y * (size_t)image->width * 3, (size_t)image->width * 3);
    }
    nrd_image_fini(image);
    *image = other;
    return NULL;
}

static nrd_error *to_square(const nrd_vision_spec *s, nrd_image *image, nrd_vision_grid *grid)
{
    const int32_t side = s->image_size / s->patch_size;

    *grid = (nrd_vision_grid){.height = side, .width = side};
    NRD_TRY(s->padded ? pad_to_square(s, image) : NULL);
    NRD_TRY(s->input.resize ? resize(&s->input, image) : NULL);
    return s->input.crop ? crop(&s->input, image) : NULL;
}

/* ---- tiles ---- */

/* To the size of all tiles, as near as may be to its shape; the colour of what is around it is black. */
static nrd_error *fill_tiles(const nrd_vision_spec *s, const nrd_image *image, const nrd_vision_tiles *t, nrd_image *out)
{
    const int32_t wide = t->wide * s->image_size, high = t->high * s->image_size;
    const double by_width = (double)wide / image->width, by_height = (double)high / image->height;
    int32_t width = wide, height = high;
    nrd_image scaled;

    if (by_width < by_height) {
        height = (int32_t)fmin(ceil(image->height * by_width), high);
    } else {
        width = (int32_t)fmin(ceil(image->width * by_height), wide);
    }
    if (s->tiles_first) { /* they keep no shape */
        return nrd_image_resize(out, image, wide, high, (nrd_image_filter)s->input.filter);
    }
    NRD_TRY(nrd_image_resize(&scaled, image, width, height, (nrd_image_filter)s->input.filter));
    nrd_error *err = nrd_image_new(out, wide, high);
    for (int32_t y = 0; y < height && !err; y++) {
        memcpy(out->rgb + ((size_t)(y + (high - height) / 2) * (size_t)wide + (size_t)((wide - width) / 2)) * 3,
               scaled.rgb + (size_t)y * (size_t)width * 3, (size_t)width * 3);
    }
    nrd_image_fini(&scaled);
    return err;
}

/* `all` in tiles, by rows. */
static nrd_error *cut(const nrd_vision_spec *s, const nrd_image *all, const nrd_vision_tiles *t, float *out)
{
    const size_t side = (size_t)s->image_size, n = 3 * side * side;
    nrd_image tile;

    NRD_TRY(nrd_image_new(&tile, s->image_size, s->image_size));
    for (int32_t i = 0; i < t->high * t->wide; i++) {
        for (size_t y = 0; y < side; y++) {
            const size_t row = (size_t)(i / t->wide) * side + y, column = (size_t)(i % t->wide) * side;
            memcpy(tile.rgb + y * side * 3, all->rgb + (row * (size_t)all->width + column) * 3, side * 3);
        }
        to_numbers(&s->input, &tile, out + (size_t)i * n);
    }
    nrd_image_fini(&tile);
    return NULL;
}

/* The same where the whole is made of what the tiles are cut from, and that of a picture whose longer side has its length. */
static nrd_error *tile_in_steps(const nrd_vision_spec *s, const nrd_image *image, const nrd_vision_tiles *t, float *out)
{
    const nrd_image_filter filter = (nrd_image_filter)s->input.filter;
    const int32_t side = s->image_size, high = t->high ? t->high : 1, wide = t->high ? t->wide : 1;
    nrd_image first = {0}, all = {0}, whole = {0};
    nrd_error *err = NULL;
    int32_t width, height;

    nrd_vision_first_size(s, image->width, image->height, &width, &height);
    NRD_TRY_GOTO(nrd_image_resize(&first, image, width, height, filter), err, done);
    NRD_TRY_GOTO(nrd_image_resize(&all, &first, wide * side, high * side, filter), err, done);
    NRD_TRY_GOTO(nrd_image_resize(&whole, &all, side, side, filter), err, done);
    to_numbers(&s->input, &whole, out);
    err = t->high ? cut(s, &all, t, out + 3 * (size_t)side * (size_t)side) : NULL;
done:
    nrd_image_fini(&first);
    nrd_image_fini(&all);
    nrd_image_fini(&whole);
    return err;
}

/* Tiles of a canvas with the picture in its upper left corner; what is beside it is black. */
static nrd_error *canvas_numbers(const nrd_vision_spec *s, const nrd_image *image, const nrd_vision_tiles *t, float *out)
{
    const int32_t wide = t->wide * s->image_size, high = t->high * s->image_size;
    nrd_image scaled = {0}, all = {0};
    nrd_error *err = NULL;
    int32_t width, height;

    nrd_vision_fit_canvas(s, t, image->width, image->height, &width, &height);
    NRD_TRY_GOTO(nrd_image_resize(&scaled, image, width, height, (nrd_image_filter)s->input.filter), err, done);
    NRD_TRY_GOTO(nrd_image_new(&all, wide, high), err, done);
    for (size_t y = 0; y < (size_t)height; y++) {
        memcpy(all.rgb + y * (size_t)wide * 3, scaled.rgb + y * (size_t)width * 3, (size_t)width * 3);
    }
    err = cut(s, &all, t, out);
done:
    nrd_image_fini(&scaled);
    nrd_image_fini(&all);
    return err;
}

/* The four pixels around the middle of pixel i of `to`, among `from` of them, and their weights: the cubic curve of torch's bicubic
 * interpolation, which grows no wider for smaller pictures. */
static void cubic(int32_t i, int32_t from, int32_t to, int32_t at[4], float w[4])
{
    const float a = -0.75f, place = ((float)i + 0.5f) * ((float)from / (float)to) - 0.5f, first = floorf(place), t = place - first;

    for (int k = 0; k < 4; k++) {
        const float x = k == 0 ? t + 1 : k == 1 ? t : k == 2 ? 1 - t : 2 - t;
        const int32_t p = (int32_t)first - 1 + k;
        at[k] = p < 0 ? 0 : p < from ? p : from - 1;
        w[k] = k == 1 || k == 2 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    }
}

/* The whole of a picture as a square, from its numbers. */
static void squeeze_numbers(const nrd_vision_spec *s, const nrd_image *all, float *out)
{
    const int32_t side = s->image_size;
    float table[3][256], wy[4], wx[4];
    int32_t ys[4], xs[4];

    for (int i = 0; i < 3 * 256; i++) {
        table[i / 256][i % 256] = number(&s->input, i / 256, (uint8_t)(i % 256));
    }
    for (int32_t i = 0; i < side * side; i++) {
        cubic(i / side, all->height, side, ys, wy);
        cubic(i % side, all->width, side, xs, wx);
        for (int c = 0; c < 3; c++) {
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                const size_t at = (size_t)ys[k / 4] * (size_t)all->width + (size_t)xs[k % 4];
                sum += wy[k / 4] * wx[k % 4] * table[c][all->rgb[at * 3 + (size_t)c]];
            }
            out[(c * side * side) + i] = sum;
        }
    }
}

/* The whole, then tiles of a picture whose longer side fills them; above and below it, where it lies on that side, it is white. The whole is
 * made of the tiles' numbers (Phi-3-vision). */
static nrd_error *separated_numbers(const nrd_vision_spec *s, nrd_image *image, const nrd_vision_tiles *t, float *out)
{
    enum { TRANSPOSED = 5, WHITE = 255 }; /* an orientation of Exif */
    const bool tall = image->width < image->height;
    nrd_image scaled = {0}, all = {0};
    nrd_error *err = NULL;
    int32_t width, height;

    nrd_vision_long_size(s, image->width, image->height, &width, &height);
    NRD_TRY_GOTO(tall ? nrd_image_turn(image, TRANSPOSED) : NULL, err, done);
    NRD_TRY_GOTO(nrd_image_resize(&scaled, image, width, height, (nrd_image_filter)s->input.filter), err, done);
    const int32_t high = (tall ? t->wide : t->high) * s->image_size;
    const size_t row = (size_t)width * 3;
    NRD_TRY_GOTO(nrd_image_new(&all, width, high), err, done);
    memset(all.rgb, WHITE, (size_t)high * row);
    memcpy(all.rgb + (size_t)((high - height) / 2) * row, scaled.rgb, (size_t)height * row);
    NRD_TRY_GOTO(tall ? nrd_image_turn(&all, TRANSPOSED) : NULL, err, done);
    squeeze_numbers(s, &all, out);
    err = cut(s, &all, t, out + 3 * (size_t)s->image_size * (size_t)s->image_size);
done:
    nrd_image_fini(&scaled);
    nrd_image_fini(&all);
    return err;
}

/* The whole as a square, then the tiles, by rows. */
static nrd_error *tile_numbers(const nrd_vision_spec *s, const nrd_image *image, const nrd_vision_tiles *t, float *out)
{
    nrd_image whole = {0}, all = {0};
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_image_resize(&whole, image, s->image_size, s->image_size, (nrd_image_filter)s->input.filter), err, done);
    to_numbers(&s->input, &whole, out);
    if (t->high == 0) {
        goto done;
    }
    NRD_TRY_GOTO(fill_tiles(s, image, t, &all), err, done);
    err = cut(s, &all, t, out + 3 * (size_t)s->image_size * (size_t)s->image_size);
done:
    nrd_image_fini(&whole);
    nrd_image_fini(&all);
    return err;
}

/* The picture in the size of the grid, normed by what its pixels are before that. */
static nrd_error *seated_numbers(const nrd_vision_spec *s, const nrd_image *image, nrd_vision_grid grid, float *out)
{
    const size_t n = (size_t)image->width * (size_t)image->height * 3;
    const size_t n_out = (size_t)grid.width * (size_t)grid.height * (size_t)s->patch_size * (size_t)s->patch_size * 3;
    double sum = 0, squares = 0;

    for (size_t i = 0; i < n; i++) {
        sum += image->rgb[i];
    }
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        squares += (image->rgb[i] - mean) * (image->rgb[i] - mean);
    }
    const double deviation = fmax(sqrt(squares / (double)n), 1 / sqrt((double)n));
    NRD_TRY(nrd_image_resize_numbers(out, image, grid.width * s->patch_size, grid.height * s->patch_size));
    for (size_t i = 0; i < n_out; i++) {
        out[i] = (float)((out[i] - mean) / deviation);
    }
    return NULL;
}

/* ---- all ---- */

static nrd_error *grid_of(const nrd_vision_spec *s, nrd_image *image, bool alone, nrd_vision_grid *out)
{
    if (s->read_by_layers) {
        nrd_vision_tile_mllama(s, image->width, image->height, out);
        return NULL;
    }
    if (s->tiled) {
        NRD_TRY(nrd_vision_tile(s, image->width, image->height, alone, out));
        return out->tiles.high == 0 && !s->tiles_first ? pad_to_square(s, image) : NULL;
    }
    return s->any_size ? fit(s, image, out) : to_square(s, image, out);
}

static nrd_error *check_size(int32_t width, int32_t height)
{
    return width >= 1 && height >= 1 && width <= NRD_LIMIT_IMAGE_SIDE && height <= NRD_LIMIT_IMAGE_SIDE
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "its size is %d x %d pixels, expected 1 to %d each", width, height, NRD_LIMIT_IMAGE_SIDE);
}

nrd_error *nrd_picture_of_frame(const nrd_vision_spec *s, int32_t height, int32_t width, int32_t n_frames, int32_t at, nrd_picture *out)
{
    *out = (nrd_picture){.width = width, .height = height};
    NRD_TRY(check_size(width, height));
    NRD_TRY(nrd_vision_fit_frame(s, n_frames, width, height, &out->grid));
    out->grid.ends = s->tiled && at + 1 == n_frames;
    out->n_rows = nrd_vision_rows_of(s, out->grid);
    return NULL;
}

nrd_error *nrd_picture_of_size(const nrd_vision_spec *s, int32_t height, int32_t width, bool alone, nrd_picture *out)
{
    const int32_t side = s->any_size ? 0 : s->image_size / s->patch_size;

    *out = (nrd_picture){.width = width, .height = height, .grid = {.height = side, .width = side}};
    NRD_TRY(check_size(width, height));
    if (s->read_by_layers) {
        nrd_vision_tile_mllama(s, width, height, &out->grid);
    } else if (s->tiled) {
        NRD_TRY(nrd_vision_tile(s, width, height, alone, &out->grid));
    } else if (s->any_size) {
        NRD_TRY(nrd_vision_fit(s, width, height, &out->grid));
    }
    out->n_rows = nrd_vision_rows_of(s, out->grid);
    return NULL;
}

static nrd_error *check_room(const nrd_vision_spec *s, nrd_vision_grid grid, int32_t max_tokens)
{
    const int32_t n = nrd_vision_tokens_of(s, grid);
    return n <= max_tokens ? NULL : nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "it is %d tokens, and the prompt has room for %d", n, max_tokens),
                                                      NRD_LLM_PROMPT_TOO_LONG);
}

nrd_error *nrd_pixels_of(const nrd_vision_spec *s, const void *bytes, size_t n, bool alone, int32_t max_tokens, nrd_picture *out)
{
    nrd_image image;
    nrd_error *err = NULL;

    *out = (nrd_picture){0};
    NRD_TRY(nrd_image_read(&image, bytes, n));
    out->width = image.width;
    out->height = image.height;
    NRD_TRY_GOTO(grid_of(s, &image, alone, &out->grid), err, done);
    out->n_rows = nrd_vision_rows_of(s, out->grid);
    NRD_TRY_GOTO(check_room(s, out->grid, max_tokens), err, done);
    NRD_NEW_GOTO(out->pixels, nrd_picture_numbers(s, out->grid), err, done);
    if (s->read_by_layers) {
        err = canvas_numbers(s, &image, &out->grid.tiles, out->pixels);
    } else if (s->seated) {
        err = seated_numbers(s, &image, out->grid, out->pixels);
    } else if (s->separated) {
        err = separated_numbers(s, &image, &out->grid.tiles, out->pixels);
    } else if (s->tiled) {
        err = (s->in_steps ? tile_in_steps : tile_numbers)(s, &image, &out->grid.tiles, out->pixels);
    } else {
        to_numbers(&s->input, &image, out->pixels);
    }
done:
    nrd_image_fini(&image);
    return err;
}

/* Frame i of a group, of a video of n_frames. */
static nrd_error *frame_numbers(const nrd_vision_spec *s, const nrd_exec_image *frame, int32_t n_frames, bool ends, nrd_picture *y, int32_t i,
                                int32_t max_tokens)
{
    nrd_image image, scaled = {0};
    nrd_error *err = NULL;

    NRD_TRY(nrd_image_read(&image, frame->bytes, frame->n));
    if (i == 0) {
        y->width = image.width;
        y->height = image.height;
        NRD_TRY_GOTO(nrd_vision_fit_frame(s, n_frames, image.width, image.height, &y->grid), err, done);
        y->grid.ends = ends && s->tiled;
        y->n_rows = nrd_vision_rows_of(s, y->grid);
        NRD_TRY_GOTO(check_room(s, y->grid, max_tokens), err, done);
        NRD_NEW_GOTO(y->pixels, nrd_picture_numbers(s, y->grid), err, done);
    } else if (image.width != y->width || image.height != y->height) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "one has %d x %d pixels, and the next %d x %d", y->width, y->height, image.width, image.height);
        goto done;
    }
    const int32_t wide = s->tiled ? s->image_size : y->grid.width * s->patch_size, high = s->tiled ? s->image_size : y->grid.height * s->patch_size;
    NRD_TRY_GOTO(nrd_image_resize(&scaled, &image, wide, high, (nrd_image_filter)s->video.input.filter), err, done);
    to_numbers(&s->video.input, &scaled, y->pixels + (size_t)i * 3 * (size_t)wide * (size_t)high);
done:
    nrd_image_fini(&image);
    nrd_image_fini(&scaled);
    return err;
}

nrd_error *nrd_pixels_of_frames(const nrd_vision_spec *s, const nrd_exec_video *v, int32_t at, int32_t max_tokens, nrd_picture *out)
{
    const int32_t left = v->n_frames - at, n = left < s->frames ? left : s->frames;

    *out = (nrd_picture){0};
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(frame_numbers(s, &v->frames[at + i], v->n_frames, n == left, out, i, max_tokens));
    }
    const size_t each = nrd_picture_numbers(s, out->grid) / (size_t)s->frames;
    for (int32_t i = n; i < s->frames; i++) {
        memcpy(out->pixels + (size_t)i * each, out->pixels + (size_t)(n - 1) * each, each * sizeof *out->pixels);
    }
    return NULL;
}
