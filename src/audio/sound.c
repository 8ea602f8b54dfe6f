/* SPDX-License-Identifier: Apache-2.0 */
#include "audio/sound.h"

#include "audio/plugin.h"
#include "audio/resample.h"
#include "audio/wav.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/plugin.h"

#include <math.h>

enum { FIRST_ROOM = 1 << 16 }; /* samples */

static nrd_plugin plugin =
    NRD_PLUGIN(.file = "nereid_sound.so", .symbol = NRD_SOUND_SYMBOL, .need = "FLAC, MP3 and Ogg files need",
               .built_with = "libsndfile1-dev");

/* What takes a file's sound. */
typedef struct taker {
    nrd_sound *out;
    const nrd_sound_room *room;
    nrd_resampler *resampler;
    int32_t n_channels;
    int32_t rate; /* of the file */
    uint64_t n_frames;
    nrd_error *err;
} taker;

/* ---- the formats ---- */

/* Begins the file with these bytes? `at` is where they stand. */
typedef struct mark {
    const char *name;
    size_t at, n;
    const char *bytes;
    bool is_read; /* by the plug-in */
} mark;

static const mark marks[] = {
    {"FLAC", 0, 4, "fLaC", true},
    {"Ogg", 0, 4, "OggS", true},
    {"MP3", 0, 3, "ID3", true},
    {"MP4 (m4a, mp4)", 4, 4, "ftyp", false},
    {"WebM or Matroska", 0, 4, "\x1a\x45\xdf\xa3", false},
    {"AIFF", 0, 4, "FORM", false},
    {"AMR", 0, 5, "#!AMR", false},
    {"a WAV file of more than 4 GB (RF64)", 0, 4, "RF64", false},
};

/* MPEG audio without a tag: the eleven bits of a frame's head, layer 1 to 3, a bit rate and a rate that exist. */
static bool is_mpeg_frame(const unsigned char *p, size_t n)
{
    return n >= 4 && p[0] == 0xff && (p[1] & 0xe0) == 0xe0 && (p[1] & 0x18) != 0x08 && (p[1] & 0x06) != 0 &&
           (p[2] & 0xf0) != 0xf0 && (p[2] & 0x0c) != 0x0c;
}

static nrd_error *read_by_plugin(const void *data, size_t n, const nrd_sound_sink *sink)
{
    const void *table = NULL;
    nrd_sound_fault fault = {.code = 0};

    NRD_TRY(nrd_plugin_open(&plugin, &table));
    ((const nrd_sound_ops *)table)->read(data, n, sink, &fault);
    return fault.code ? nrd_errorf((nrd_error_code)fault.code, "%s", fault.text) : NULL;
}

static nrd_error *read_any(const void *data, size_t n, const nrd_sound_sink *sink)
{
    if (nrd_wav_is(data, n)) {
        return nrd_wav_read(data, n, sink);
    }
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const mark *m = &marks[i];
        if (n < m->at + m->n || memcmp((const char *)data + m->at, m->bytes, m->n) != 0) {
            continue;
        }
        return m->is_read ? read_by_plugin(data, n, sink)
                          : nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not read; WAV, FLAC, MP3 and Ogg are", m->name);
    }
    if (is_mpeg_frame(data, n)) {
        return read_by_plugin(data, n, sink);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "this is no sound file that is known; WAV, FLAC, MP3 and Ogg are read");
}

/* ---- what a format gives ---- */

static nrd_error *grow(taker *t, size_t n)
{
    nrd_sound *s = t->out;
    size_t cap = s->cap;

    if (n <= s->cap - s->n) {
        return NULL;
    }
    while (cap - s->n < n) { /* bounded by NRD_LIMIT_SOUND_SECONDS */
        cap = cap ? cap + cap / 2 : FIRST_ROOM;
    }
    if (t->room) {
        NRD_TRY(t->room->take(t->room->arg, (cap - s->cap) * sizeof *s->samples));
    }
    float *p = realloc(s->samples, cap * sizeof *p);
    if (!p) {
        return nrd_error_no_memory();
    }
    s->samples = p;
    s->cap = cap;
    return NULL;
}

static nrd_error *keep(void *arg, const float *samples, size_t n)
{
    taker *t = arg;
    NRD_TRY(grow(t, n));
    memcpy(t->out->samples + t->out->n, samples, n * sizeof *samples);
    t->out->n += n;
    return NULL;
}

/* false: so many frames are more than are read. */
static bool fits(taker *t, uint64_t n_frames)
{
    if (n_frames > (uint64_t)NRD_LIMIT_SOUND_SECONDS * (uint64_t)t->rate) {
        t->err = nrd_errorf(NRD_ERR_INVALID_ARG, "the sound is longer than %d seconds, which is the limit",
                            NRD_LIMIT_SOUND_SECONDS);
    }
    return !t->err;
}

static bool begin(void *arg, int32_t rate, int32_t n_channels, uint64_t n_frames)
{
    taker *t = arg;
    t->n_channels = n_channels;
    t->rate = rate;
    t->err = nrd_resampler_new(&t->resampler, rate, t->out->rate, keep, t);
    return !t->err && fits(t, n_frames);
}

static bool frames(void *arg, const float *samples, size_t n_frames)
{
    float mono[NRD_SOUND_BLOCK];
    taker *t = arg;

    t->n_frames += n_frames;
    if (!fits(t, t->n_frames)) { /* the head may have said less */
        return false;
    }
    for (size_t i = 0; i < n_frames; i++) {
        float sum = 0;
        for (int32_t c = 0; c < t->n_channels; c++) {
            sum += *samples++;
        }
        mono[i] = isfinite(sum) ? sum / (float)t->n_channels : 0;
    }
    t->err = nrd_resampler_push(t->resampler, mono, n_frames);
    return !t->err;
}

nrd_error *nrd_sound_read(nrd_sound *out, const void *data, size_t n, int32_t rate, const nrd_sound_room *room)
{
    taker t = {.out = out, .room = room};
    const nrd_sound_sink sink = {begin, frames, &t};

    *out = (nrd_sound){.rate = rate};
    if (n > NRD_LIMIT_SOUND_FILE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the sound file has %zu bytes, at most %d are read", n, NRD_LIMIT_SOUND_FILE);
    }
    nrd_error *err = read_any(data, n, &sink);
    if (t.err) {
        nrd_error_free(err);
        err = t.err;
    }
    if (!err && t.resampler) {
        err = nrd_resampler_finish(t.resampler);
    }
    if (!err && out->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the file holds no sound");
    }
    nrd_resampler_free(t.resampler);
    if (err) {
        nrd_sound_fini(out);
    }
    return err;
}

void nrd_sound_fini(nrd_sound *s)
{
    free(s->samples);
    *s = (nrd_sound){.rate = s->rate};
}
