/* SPDX-License-Identifier: Apache-2.0
 * image/plugin.h - what nereid_image.so does for the programs.
 *
 * Purpose   The programs are not linked with libraries for pictures: who serves text needs none of them. This table is
 *           what stands between; read.c opens the plug-in, the files of image/plugin are its inside.
 * Owner     Any thread; calls have no state.
 * Errors    A reason as text in why[0..why_n), always terminated: the two sides share no error objects.
 */
#ifndef NRD_IMAGE_PLUGIN_H
#define NRD_IMAGE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A picture's size from its head; its pixels are not touched. */
typedef bool (*nrd_image_size_fn)(const uint8_t *bytes, size_t n, int32_t *out_width, int32_t *out_height, char *why,
                                  size_t why_n);
/* rgb: [height, width, 3] of the size that nrd_image_size_fn gave. */
typedef bool (*nrd_image_decode_fn)(const uint8_t *bytes, size_t n, int32_t width, int32_t height, uint8_t *rgb,
                                    char *why, size_t why_n);

typedef struct nrd_image_codec {
    nrd_image_size_fn size;
    nrd_image_decode_fn decode;
} nrd_image_codec;

typedef struct nrd_image_ops {
    nrd_image_codec jpeg, png, webp;
} nrd_image_ops;

/* The one symbol of the plug-in; changes its name with the table. */
#define NRD_IMAGE_SYMBOL "nrd_image_ops_1"

#endif
