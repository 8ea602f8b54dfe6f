/* SPDX-License-Identifier: Apache-2.0
 * audio/wav.h - reads WAV files.
 *
 * Purpose   Integers of 8 to 32 bits, float of 32 and 64 bits, A-law and mu-law, also in the extensible form. A file
 *           whose data chunk says more than there is, as recorders leave it that write into a pipe, has what is there.
 * Owner     No state. The data is borrowed for the call.
 * Errors    INVALID_ARG: it is no WAV file, or its header does not fit together; UNSUPPORTED: another encoding.
 * Sources   Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0" (1991); Microsoft,
 *           WAVEFORMATEXTENSIBLE; ITU-T G.711.
 */
#ifndef NRD_AUDIO_WAV_H
#define NRD_AUDIO_WAV_H

#include "audio/plugin.h"
#include "base/error.h"

bool nrd_wav_is(const void *data, size_t n); /* it begins as one */
nrd_error *nrd_wav_read(const void *data, size_t n, const nrd_sound_sink *sink) NRD_MUST_USE;

#endif
