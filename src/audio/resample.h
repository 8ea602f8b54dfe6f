/* SPDX-License-Identifier: Apache-2.0
 * audio/resample.h - sound at another rate, in pieces of any size.
 *
 * Purpose   A polyphase filter: a sinc of 48 zero crossings on each side at the lower of the two rates, under a Kaiser
 *           window. What is above 0.5 of the lower rate is more than 80 dB down; below 0.44 of it nothing changes by more
 *           than 0.01 dB (tests/unit/audio/test_resample.c measures both).
 * Owner     One thread at a time.
 * Units     Samples of one channel. Output i stands at the time of input i * from / to; there are as many as fit:
 *           ceil(n * to / from).
 * Errors    NO_MEMORY. INVALID_ARG: a rate outside of the limits.
 * Sources   Crochiere and Rabiner, "Multirate Digital Signal Processing" (1983), chapter 2; Kaiser (1974) for the window.
 */
#ifndef NRD_AUDIO_RESAMPLE_H
#define NRD_AUDIO_RESAMPLE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { NRD_RATE_MIN = 1000, NRD_RATE_MAX = 384000 }; /* samples a second */

typedef struct nrd_resampler nrd_resampler;

/* What comes out: called from push and finish. An error ends them. */
typedef nrd_error *(*nrd_resampled)(void *arg, const float *samples, size_t n);

nrd_error *nrd_resampler_new(nrd_resampler **out, int32_t from, int32_t to, nrd_resampled take, void *arg) NRD_MUST_USE;
nrd_error *nrd_resampler_push(nrd_resampler *r, const float *samples, size_t n) NRD_MUST_USE;
/* Nothing more comes: the rest goes out. */
nrd_error *nrd_resampler_finish(nrd_resampler *r) NRD_MUST_USE;
void nrd_resampler_free(nrd_resampler *r); /* NULL is fine */

#endif
