/* SPDX-License-Identifier: Apache-2.0
 * audio/mel.h - the log-mel spectrogram that Whisper listens to.
 *
 * Purpose   Sound of 16 kHz to 100 frames a second of 80 or 128 numbers, as transformers' WhisperFeatureExtractor makes
 *           them: windows of 400 samples under a periodic Hann window, sound mirrored at both ends, power, mel filters of
 *           Slaney's scale and area, the decimal logarithm not below -10, all not more than 8 below the largest, then
 *           (x + 4) / 4. Sound of less than 30 s is filled up with silence, as the models were trained.
 * Owner     No state. Any thread.
 * Units     Samples in [-1, 1]; frames of NRD_MEL_HOP samples.
 * Errors    NO_MEMORY; INVALID_ARG: a number of mels outside of the limits.
 * Sources   Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2; Slaney,
 *           "Auditory Toolbox" (1998), for the scale. tests/unit/audio/mel_golden.h has transformers' own numbers.
 */
#ifndef NRD_AUDIO_MEL_H
#define NRD_AUDIO_MEL_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum {
    NRD_MEL_RATE = 16000,
    NRD_MEL_WINDOW = 400,
    NRD_MEL_HOP = 160,
    NRD_MEL_CHUNK = 30 * NRD_MEL_RATE, /* samples: what a model hears at once */
    NRD_MEL_CHUNK_FRAMES = NRD_MEL_CHUNK / NRD_MEL_HOP,
    NRD_MEL_MAX_BANDS = 256,
};

/* Frames of n samples: 3000, or more where there are more than 30 s. */
NRD_API size_t nrd_mel_frames(size_t n_samples);
/* out: [nrd_mel_frames(n), n_mels], the caller's. */
NRD_API nrd_error *nrd_mel_make(const float *samples, size_t n, int32_t n_mels, float *out) NRD_MUST_USE;

#endif
