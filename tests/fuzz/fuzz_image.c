/* SPDX-License-Identifier: Apache-2.0
 * Pictures of any format. What is read has the size that its head says, and comes to another size. The readers of formats
 * are part of the program, where a server opens them as a plug-in. */
#include "image/image.h"
#include "image/plugin.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIXELS = 1 << 20 }; /* larger ones only take time */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef NRD_HAVE_IMAGE
extern const nrd_image_ops nrd_image_ops_1;

static const nrd_image_codec *codec_of(nrd_image_format format)
{
    return format == NRD_IMAGE_JPEG   ? &nrd_image_ops_1.jpeg
           : format == NRD_IMAGE_PNG  ? &nrd_image_ops_1.png
           : format == NRD_IMAGE_WEBP ? &nrd_image_ops_1.webp
                                      : NULL;
}

static void decode(const uint8_t *data, size_t size, nrd_image *out)
{
    const nrd_image_codec *c = codec_of(nrd_image_format_of(data, size));
    char why[200] = "";
    int32_t width = 0, height = 0;

    if (!c || !c->size(data, size, &width, &height, why, sizeof why) || (int64_t)width * height > MOST_PIXELS) {
        return;
    }
    nrd_error *err = nrd_image_new(out, width, height);
    if (!err && !c->decode(data, size, width, height, out->rgb, why, sizeof why)) {
        if (!why[0]) {
            abort(); /* no reason */
        }
        nrd_image_fini(out);
    }
    nrd_error_free(err);
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_image image = {0}, other = {0};
    nrd_error *err = NULL;

    if (nrd_image_format_of(data, size) == NRD_IMAGE_PPM || nrd_image_format_of(data, size) == NRD_IMAGE_UNKNOWN) {
        err = nrd_image_read(&image, data, size);
    }
#ifdef NRD_HAVE_IMAGE
    decode(data, size, &image);
#endif
    const int orientation = nrd_image_orientation(data, size);
    if (orientation < 1 || orientation > 8) {
        abort();
    }
    if (image.rgb) {
        const int32_t width = image.width, height = image.height;
        nrd_error_free(err);
        err = nrd_image_turn(&image, orientation);
        if (err || image.width != (orientation < 5 ? width : height)) {
            abort();
        }
        nrd_error_free(nrd_image_resize(&other, &image, 1 + size % 37, 1 + size % 29, (nrd_image_filter)(1 + size % 3)));
        if (other.rgb && other.width != (int32_t)(1 + size % 37)) {
            abort();
        }
    }
    nrd_image_fini(&other);
    nrd_image_fini(&image);
    nrd_error_free(err);
    return 0;
}
