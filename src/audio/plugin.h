/* SPDX-License-Identifier: Apache-2.0
 * audio/plugin.h - what nereid_sound.so does: the sound of compressed files.
 *
 * Purpose   WAV is read without any library. FLAC, MP3 and Ogg are read by libsndfile, which only a server that is sent
 *           such files loads. This table is what stands between.
 * Owner     Any thread; a call reads one file and returns at its end.
 * Units     Frames: one sample of each channel. Samples lie in [-1, 1], or a little outside.
 * Errors    A code as in base/error.h and a text; the two sides share no error objects.
 */
#ifndef NRD_AUDIO_PLUGIN_H
#define NRD_AUDIO_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_SOUND_CHANNELS = 64, NRD_SOUND_BLOCK = 4096 /* samples of all channels in one piece, at most */ };

/* Who is given a file's sound. false from either: nothing more is wanted, and the reader returns without an error of its
 * own. */
typedef struct nrd_sound_sink {
    bool (*begin)(void *arg, int32_t rate, int32_t n_channels, uint64_t n_frames); /* once, first; about so many come */
    bool (*frames)(void *arg, const float *samples, size_t n_frames); /* [n_frames, n_channels] */
    void *arg;
} nrd_sound_sink;

typedef struct nrd_sound_fault {
    int code; /* 0: none */
    char text[512];
} nrd_sound_fault;

typedef struct nrd_sound_ops {
    void (*read)(const void *data, size_t n, const nrd_sound_sink *sink, nrd_sound_fault *fault);
} nrd_sound_ops;

#define NRD_SOUND_SYMBOL "nrd_sound_ops_1"

#endif
