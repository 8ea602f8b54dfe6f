/* SPDX-License-Identifier: Apache-2.0
 * From bytes to pixels: the format by its first bytes, the size before memory is taken. */
#include "image/image.h"

#include "base/limits.h"
#include "base/plugin.h"
#include "image/plugin.h"

#include <ctype.h>
#include <string.h>

/* An address in the library that this file is part of. */
static const char here = 0;

static nrd_plugin plugin = NRD_PLUGIN(.file = "nereid_image.so", .symbol = NRD_IMAGE_SYMBOL, .need = "JPEG, PNG and WebP need",
                                      .built_with = "libjpeg-dev, libpng-dev and libwebp-dev", .beside = &here);

/* ---- PPM, the plain form of eight bits (P6) ---- */

/* A number of the head, behind blanks and comments; -1: none, or over a million. */
static int32_t head_number(const uint8_t *b, size_t n, size_t *at)
{
    int32_t v = 0;
    size_t i = *at, digits = 0;

    while (i < n && (isspace(b[i]) || b[i] == '#')) {
        if (b[i] == '#') {
            while (i < n && b[i] != '\n') {
                i++;
            }
        } else {
            i++;
        }
    }
    for (; i < n && isdigit(b[i]) && digits < 7; i++, digits++) {
        v = v * 10 + (b[i] - '0');
    }
    *at = i;
    return digits > 0 && digits < 7 ? v : -1;
}

static nrd_error *read_ppm(nrd_image *out, const uint8_t *b, size_t n)
{
    size_t at = 2;
    const int32_t width = head_number(b, n, &at), height = head_number(b, n, &at), most = head_number(b, n, &at);

    if (width < 1 || height < 1 || most != 255 || at >= n || !isspace(b[at])) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a PPM picture's head must be P6, width, height and 255");
    }
    at++;
    if ((n - at) / 3 / (size_t)width < (size_t)height) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a PPM picture of %d x %d pixels ends early: it has %zu bytes", width, height, n);
    }
    NRD_TRY(nrd_image_new(out, width, height));
    memcpy(out->rgb, b + at, (size_t)width * (size_t)height * 3);
    return NULL;
}

/* ---- the others ---- */

static nrd_error *decode(nrd_image *out, const nrd_image_codec *c, const char *name, const uint8_t *b, size_t n)
{
    char why[200] = "";
    int32_t width = 0, height = 0;

    if (!c->size(b, n, &width, &height, why, sizeof why)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this %s picture cannot be read: %s", name, why);
    }
    NRD_TRY(nrd_image_new(out, width, height));
    if (!c->decode(b, n, width, height, out->rgb, why, sizeof why)) {
        nrd_image_fini(out);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this %s picture cannot be read: %s", name, why);
    }
    return NULL;
}

nrd_error *nrd_image_read(nrd_image *out, const void *bytes, size_t n)
{
    const nrd_image_format format = nrd_image_format_of(bytes, n);
    const void *table = NULL;

    *out = (nrd_image){0};
    if (n > NRD_LIMIT_IMAGE_FILE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture has %zu bytes, at most %d are read", n, NRD_LIMIT_IMAGE_FILE);
    }
    if (format == NRD_IMAGE_UNKNOWN) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "these bytes are no picture that is known here: JPEG, PNG, WebP, PPM (P6)");
    }
    if (format == NRD_IMAGE_PPM) {
        return read_ppm(out, bytes, n);
    }
    NRD_TRY(nrd_plugin_open(&plugin, &table));
    const nrd_image_ops *ops = table;
    NRD_TRY(format == NRD_IMAGE_JPEG  ? decode(out, &ops->jpeg, "JPEG", bytes, n)
            : format == NRD_IMAGE_PNG ? decode(out, &ops->png, "PNG", bytes, n)
                                      : decode(out, &ops->webp, "WebP", bytes, n));
    nrd_error *err = nrd_image_turn(out, nrd_image_orientation(bytes, n));
    if (err) {
        nrd_image_fini(out);
    }
    return err;
}
