/* SPDX-License-Identifier: Apache-2.0
 * audio/fft.h - the discrete Fourier transform of lengths that are products of fours and fives.
 *
 * Purpose   Features of speech are made of windows of 400 samples, which is no power of two.
 * Owner     A plan is immutable: any thread, each with its own arrays.
 * Errors    NO_MEMORY.
 * Sources   Stockham's form of the algorithm, which needs no reordering: Cochran et al., "What is the fast Fourier
 *           transform?", Proceedings of the IEEE 55 (1967).
 */
#ifndef NRD_AUDIO_FFT_H
#define NRD_AUDIO_FFT_H

#include "base/error.h"

#include <stddef.h>

typedef struct nrd_complex {
    double re, im;
} nrd_complex;

typedef struct nrd_fft nrd_fft;

/* n = 4^a * 5^b, at least 1. */
nrd_error *nrd_fft_new(nrd_fft **out, size_t n) NRD_MUST_USE;
/* x[k] = sum over j of x[j] * exp(-2 pi i j k / n). Both arrays: [n]; `scratch` is overwritten. */
void nrd_fft_forward(const nrd_fft *f, nrd_complex *x, nrd_complex *scratch);
void nrd_fft_free(nrd_fft *f); /* NULL is fine */

#endif
