/* SPDX-License-Identifier: Apache-2.0
 * WAV files: frames come only after begin, whole, no more of them than the file has bytes; samples are finite; and what
 * is made of them at another rate has as many samples as fit. */
#include "audio/resample.h"
#include "audio/wav.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct told {
    int32_t rate, n_channels;
    size_t n_frames, n_out;
    uint64_t said;
    nrd_resampler *resampler;
} told;

static nrd_error *on_output(void *arg, const float *samples, size_t n)
{
    told *t = arg;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(samples[i])) {
            abort();
        }
    }
    t->n_out += n;
    return NULL;
}

static bool on_begin(void *arg, int32_t rate, int32_t n_channels, uint64_t n_frames)
{
    told *t = arg;
    if (t->n_channels || n_channels < 1 || n_channels > NRD_SOUND_CHANNELS || rate < 0) {
        abort();
    }
    t->rate = rate;
    t->n_channels = n_channels;
    t->said = n_frames;
    nrd_error *err = nrd_resampler_new(&t->resampler, rate, 16000, on_output, t);
    if (!err != (rate >= NRD_RATE_MIN && rate <= NRD_RATE_MAX)) {
        abort();
    }
    nrd_error_free(err);
    return true;
}

static bool on_frames(void *arg, const float *samples, size_t n_frames)
{
    told *t = arg;
    if (t->n_channels == 0 || n_frames == 0 || n_frames * (size_t)t->n_channels > NRD_SOUND_BLOCK) {
        abort();
    }
    for (size_t i = 0; i < n_frames * (size_t)t->n_channels; i++) {
        if (!isfinite(samples[i])) {
            abort();
        }
    }
    t->n_frames += n_frames;
    if (t->resampler) { /* any of the channels' samples are a sound */
        nrd_error_free(nrd_resampler_push(t->resampler, samples, n_frames));
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    told t = {0};
    const nrd_sound_sink sink = {on_begin, on_frames, &t};
    nrd_error *err = nrd_wav_read(data, n, &sink);

    if (t.n_frames > n || t.n_frames != t.said || (err && t.n_channels)) {
        abort();
    }
    if (t.resampler) {
        nrd_error_free(nrd_resampler_finish(t.resampler));
        if (t.n_out != (t.n_frames * 16000 + (size_t)t.rate - 1) / (size_t)t.rate) {
            abort();
        }
    }
    nrd_resampler_free(t.resampler);
    nrd_error_free(err);
    return 0;
}
