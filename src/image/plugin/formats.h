/* SPDX-License-Identifier: Apache-2.0
 * image/plugin/formats.h - nereid_image.so from the inside: a file for each library. image/plugin.h says what they do.
 */
#ifndef NRD_IMAGE_PLUGIN_FORMATS_H
#define NRD_IMAGE_PLUGIN_FORMATS_H

#include "image/plugin.h"

bool nrd_jpeg_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n);
bool nrd_jpeg_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why,
                     size_t why_n);
bool nrd_png_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n);
bool nrd_png_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why, size_t why_n);
bool nrd_webp_size(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why, size_t why_n);
bool nrd_webp_decode(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb, char *why,
                     size_t why_n);

#endif
