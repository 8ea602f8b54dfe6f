/* SPDX-License-Identifier: Apache-2.0
 * audio/sound.h - a sound file as samples of one channel at the rate that a model hears.
 *
 * Purpose   WAV by itself, FLAC, MP3 and Ogg (Vorbis, Opus) through nereid_sound.so. Channels are averaged, the rate is
 *           changed as the file is read, so that only the result is in memory.
 * Owner     Any thread. The data is borrowed for the call.
 * Units     Samples in [-1, 1].
 * Errors    INVALID_ARG: the file is damaged, holds no sound, or exceeds NRD_LIMIT_SOUND_FILE or NRD_LIMIT_SOUND_SECONDS;
 *           UNSUPPORTED: another format, or no nereid_sound.so for it; what `room` gave.
 */
#ifndef NRD_AUDIO_SOUND_H
#define NRD_AUDIO_SOUND_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_sound {
    float *samples; /* owns; [n] */
    size_t n;
    int32_t rate;
    /* private to sound.c */
    size_t cap;
} nrd_sound;

/* Asked before so many more bytes are taken; an error ends the reading. */
typedef struct nrd_sound_room {
    nrd_error *(*take)(void *arg, size_t bytes);
    void *arg;
} nrd_sound_room;

/* rate: of the result. room NULL: nobody is asked. *out is empty after an error. */
NRD_API nrd_error *nrd_sound_read(nrd_sound *out, const void *data, size_t n, int32_t rate, const nrd_sound_room *room)
    NRD_MUST_USE;
NRD_API void nrd_sound_fini(nrd_sound *s); /* an empty one is fine */

#endif
