/* SPDX-License-Identifier: Apache-2.0
 * executor/pixels.h - steps of an image processor that have a file of their own.
 *
 * Purpose   For executor/pixels.c.
 * Owner     Pure functions; any thread.
 * Errors    INVALID_ARG: the page has a shape that is not computed.
 */
#ifndef NRD_EXECUTOR_PIXELS_H
#define NRD_EXECUTOR_PIXELS_H

#include "image/image.h"
#include "model/vision.h"

/* *image becomes a page of the tower's size (s->swin); it stays the caller's, also after an error. */
nrd_error *nrd_pixels_page(const nrd_vision_spec *s, nrd_image *image) NRD_MUST_USE;

#endif
