/* SPDX-License-Identifier: Apache-2.0 */
#include "image/image.h"

#include "base/limits.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

nrd_error *nrd_image_new(nrd_image *out, int64_t width, int64_t height)
{
    nrd_error *err = NULL;

    *out = (nrd_image){0};
    if (width < 1 || height < 1 || width > NRD_LIMIT_IMAGE_SIDE || height > NRD_LIMIT_IMAGE_SIDE ||
        width * height > NRD_LIMIT_IMAGE_PIXELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %lld x %lld pixels; at most %d on a side and %d in all",
                          (long long)width, (long long)height, NRD_LIMIT_IMAGE_SIDE, NRD_LIMIT_IMAGE_PIXELS);
    }
    NRD_NEW_GOTO(out->rgb, (size_t)(width * height) * 3, err, fail);
    out->width = (int32_t)width;
    out->height = (int32_t)height;
fail:
    return err;
}

void nrd_image_fini(nrd_image *image)
{
    free(image->rgb);
    *image = (nrd_image){0};
}

nrd_error *nrd_image_crop_center(nrd_image *out, const nrd_image *in, int32_t width, int32_t height)
{
    NRD_TRY(nrd_image_new(out, width, height));
    /* rounding down of both sides' halves, also where the picture is smaller than what is cut */
    const int32_t dy = (in->height - height) / 2 - ((in->height - height) % 2 < 0);
    const int32_t dx = (in->width - width) / 2 - ((in->width - width) % 2 < 0);
    const int32_t from = dx < 0 ? -dx : 0, end = in->width - dx < width ? in->width - dx : width;

    for (int32_t y = 0; y < height; y++) {
        const int32_t source = y + dy;
        if (source >= 0 && source < in->height && end > from) {
            memcpy(out->rgb + ((size_t)y * (size_t)width + (size_t)from) * 3,
                   in->rgb + ((size_t)source * (size_t)in->width + (size_t)(from + dx)) * 3, (size_t)(end - from) * 3);
        }
    }
    return NULL;
}
