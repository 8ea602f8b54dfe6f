/* SPDX-License-Identifier: Apache-2.0
 * WebP by libwebp: still pictures; what is behind their transparency shows, as if they had none. */
#include "image/plugin/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <webp/decode.h>

bool nrd_webp_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(bytes, n, &f) != VP8_STATUS_OK) {
        snprintf(why, why_n, "its head is broken");
        return false;
    }
    if (f.has_animation) {
        snprintf(why, why_n, "it has several frames");
        return false;
    }
    *out_width = f.width;
    *out_height = f.height;
    return true;
}

bool nrd_webp_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why, size_t why_n)
{
    const size_t stride = (size_t)width * 3;
    if (!WebPDecodeRGBInto(bytes, n, rgb, stride * (size_t)height, (int)stride)) {
        snprintf(why, why_n, "its pixels are broken or end early");
        return false;
    }
    return true;
}
