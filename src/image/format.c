/* SPDX-License-Identifier: Apache-2.0
 * The format of a picture by its first bytes. */
#include "image/image.h"

#include <ctype.h>
#include <string.h>

nrd_image_format nrd_image_format_of(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    if (n >= 3 && b[0] == 'P' && b[1] == '6' && isspace(b[2])) {
        return NRD_IMAGE_PPM;
    }
    if (n >= 3 && !memcmp(b, "\xff\xd8\xff", 3)) {
        return NRD_IMAGE_JPEG;
    }
    if (n >= 8 && !memcmp(b, "\x89PNG\r\n\x1a\n", 8)) {
        return NRD_IMAGE_PNG;
    }
    return n >= 12 && !memcmp(b, "RIFF", 4) && !memcmp(b + 8, "WEBP", 4) ? NRD_IMAGE_WEBP : NRD_IMAGE_UNKNOWN;
}
