/* SPDX-License-Identifier: Apache-2.0
 * nereid_sound.so: the sound of FLAC, MP3 and Ogg files, by libsndfile, from memory. */
#include "audio/plugin.h"

#include "base/error.h"

#include <limits.h>
#include <sndfile.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct memory {
    const char *data;
    sf_count_t n, at;
} memory;

static sf_count_t size_of(void *user)
{
    return ((const memory *)user)->n;
}

static sf_count_t seek(sf_count_t offset, int whence, void *user)
{
    memory *m = user;
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->n;

    /* base is at most the file's size, which is far below half of the range. */
    if (offset >= -base && offset <= m->n - base) {
        m->at = base + offset;
    }
    return m->at;
}

static sf_count_t read_some(void *to, sf_count_t n, void *user)
{
    memory *m = user;
    const sf_count_t now = n < 0 ? 0 : n < m->n - m->at ? n : m->n - m->at;
    memcpy(to, m->data + m->at, (size_t)now);
    m->at += now;
    return now;
}

static sf_count_t write_nothing(const void *data, sf_count_t n, void *user)
{
    (void)data;
    (void)n;
    (void)user;
    return 0;
}

static sf_count_t tell(void *user)
{
    return ((const memory *)user)->at;
}

static void fail(nrd_sound_fault *fault, nrd_error_code code, const char *fmt, ...) NRD_PRINTF(3, 4);
static void fail(nrd_sound_fault *fault, nrd_error_code code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault->text, sizeof fault->text, fmt, args);
    va_end(args);
    fault->code = (int)code;
}

static bool is_allowed(int format)
{
    const int major = format & SF_FORMAT_TYPEMASK;
    return major == SF_FORMAT_FLAC || major == SF_FORMAT_OGG || major == SF_FORMAT_MPEG;
}

static void read_frames(SNDFILE *file, const SF_INFO *info, const nrd_sound_sink *sink, nrd_sound_fault *fault)
{
    float block[NRD_SOUND_BLOCK];
    const sf_count_t most = NRD_SOUND_BLOCK / info->channels;
    sf_count_t n;

    if (!sink->begin(sink->arg, info->samplerate, info->channels, info->frames > 0 ? (uint64_t)info->frames : 0)) {
        return;
    }
    while ((n = sf_readf_float(file, block, most)) > 0) {
        if (!sink->frames(sink->arg, block, (size_t)n)) {
            return;
        }
    }
    if (sf_error(file) != SF_ERR_NO_ERROR) {
        fail(fault, NRD_ERR_INVALID_ARG, "the sound file is damaged: %s", sf_strerror(file));
    }
}

static void read_file(const void *data, size_t n, const nrd_sound_sink *sink, nrd_sound_fault *fault)
{
    SF_VIRTUAL_IO io = {size_of, seek, read_some, write_nothing, tell};
    memory m = {.data = data, .n = n < INT_MAX ? (sf_count_t)n : INT_MAX};
    SF_INFO info = {.format = 0};

    fault->code = 0;
    SNDFILE *file = sf_open_virtual(&io, SFM_READ, &info, &m);
    if (!file) {
        fail(fault, NRD_ERR_INVALID_ARG, "the sound file cannot be read: %s", sf_strerror(NULL));
        return;
    }
    if (!is_allowed(info.format)) {
        fail(fault, NRD_ERR_UNSUPPORTED, "the sound file is none of FLAC, MP3 and Ogg");
    } else if (info.channels < 1 || info.channels > NRD_SOUND_CHANNELS) {
        fail(fault, NRD_ERR_INVALID_ARG, "the sound file has %d channels, 1 to %d are read", info.channels,
             NRD_SOUND_CHANNELS);
    } else {
        read_frames(file, &info, sink, fault);
    }
    sf_close(file);
}

__attribute__((visibility("default"))) const nrd_sound_ops nrd_sound_ops_1 = {.read = read_file};
