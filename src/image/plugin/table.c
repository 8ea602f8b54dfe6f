/* SPDX-License-Identifier: Apache-2.0
 * nereid_image.so from outside: the table of image/plugin.h. */
#include "image/plugin/formats.h"

extern const nrd_image_ops nrd_image_ops_1;
__attribute__((visibility("default"))) const nrd_image_ops nrd_image_ops_1 = {
    .jpeg = {nrd_jpeg_size, nrd_jpeg_decode},
    .png = {nrd_png_size, nrd_png_decode},
    .webp = {nrd_webp_size, nrd_webp_decode},
};
