/* SPDX-License-Identifier: Apache-2.0 */
#include "audio/wav.h"

#include <math.h>
#include <string.h>

enum { TAG_PCM = 1, TAG_FLOAT = 3, TAG_ALAW = 6, TAG_MULAW = 7, TAG_EXTENSIBLE = 0xfffe };
enum { FMT_BYTES = 16, EXTENSIBLE_BYTES = 40, SUBFORMAT_AT = 24 };

typedef struct format {
    unsigned tag, n_channels, frame_bytes, bits;
    uint32_t rate;
    size_t sample_bytes; /* of one channel */
    float (*sample)(const unsigned char *p);
} format;

static uint32_t get(const unsigned char *p, size_t n_bytes)
{
    uint32_t v = 0;
    for (size_t i = n_bytes; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

/* ---- one sample ---- */

static float pcm8(const unsigned char *p) /* the one form without a sign */
{
    return ((float)p[0] - 128) / 128;
}

static float pcm16(const unsigned char *p)
{
    return (float)(int16_t)get(p, 2) / 32768;
}

static float pcm24(const unsigned char *p)
{
    return (float)(int32_t)(get(p, 3) << 8) / 2147483648.0f;
}

static float pcm32(const unsigned char *p)
{
    return (float)(int32_t)get(p, 4) / 2147483648.0f;
}

/* What is no number, or far from all sound, would spoil the whole file's features. */
static float bounded(double v)
{
    return isnan(v) ? 0 : v > 1e3 ? 1e3f : v < -1e3 ? -1e3f : (float)v;
}

static float float32(const unsigned char *p)
{
    float v;
    uint32_t bits = get(p, 4);
    memcpy(&v, &bits, sizeof v);
    return bounded((double)v);
}

static float float64(const unsigned char *p)
{
    double v;
    uint64_t bits = (uint64_t)get(p + 4, 4) << 32 | get(p, 4);
    memcpy(&v, &bits, sizeof v);
    return bounded(v);
}

static float alaw(const unsigned char *p)
{
    const unsigned v = *p ^ 0x55u, exponent = v >> 4 & 7, mantissa = v & 15;
    const unsigned size = exponent ? (mantissa * 2 + 33) << (exponent - 1) : mantissa * 2 + 1;
    return (v & 0x80 ? 1 : -1) * (float)(size * 8) / 32768;
}

static float mulaw(const unsigned char *p)
{
    const unsigned v = ~(unsigned)*p & 0xff, exponent = v >> 4 & 7, mantissa = v & 15;
    const unsigned size = ((mantissa * 2 + 33) << exponent) - 33;
    return (v & 0x80 ? -1 : 1) * (float)(size * 4) / 32768;
}

/* ---- the header ---- */

/* NULL: there is no such encoding. The bits of a sample stand at the upper end of its bytes. */
static float (*sample_of(unsigned tag, size_t bytes))(const unsigned char *)
{
    switch (tag) {
    case TAG_PCM:
        return bytes == 1 ? pcm8 : bytes == 2 ? pcm16 : bytes == 3 ? pcm24 : bytes == 4 ? pcm32 : NULL;
    case TAG_FLOAT:
        return bytes == 4 ? float32 : bytes == 8 ? float64 : NULL;
    case TAG_ALAW:
        return bytes == 1 ? alaw : NULL;
    case TAG_MULAW:
        return bytes == 1 ? mulaw : NULL;
    default:
        return NULL;
    }
}

static nrd_error *read_format(const unsigned char *p, size_t n, format *f)
{
    /* Behind the two bytes of a tag, the identity of every encoding that has one of the tags above. */
    static const unsigned char guid[14] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71};

    if (n < FMT_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file's fmt chunk has %zu bytes, at least %d are needed", n, FMT_BYTES);
    }
    *f = (format){.tag = get(p, 2), .n_channels = get(p + 2, 2), .rate = get(p + 4, 4), .frame_bytes = get(p + 12, 2),
                  .bits = get(p + 14, 2)};
    if (f->tag == TAG_EXTENSIBLE) {
        if (n < EXTENSIBLE_BYTES || memcmp(p + SUBFORMAT_AT + 2, guid, sizeof guid) != 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "the WAV file has an extensible format of another kind than PCM, float, "
                                                   "A-law and mu-law");
        }
        f->tag = get(p + SUBFORMAT_AT, 2);
    }
    if (f->n_channels < 1 || f->n_channels > NRD_SOUND_CHANNELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file has %u channels, 1 to %d are read", f->n_channels,
                          NRD_SOUND_CHANNELS);
    }
    f->sample_bytes = f->frame_bytes / f->n_channels;
    f->sample = sample_of(f->tag, f->sample_bytes);
    if (!f->sample && (f->tag == TAG_PCM || f->tag == TAG_FLOAT)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the WAV file has %s samples of %zu bytes; integers of 1 to 4 and float of 4 "
                          "and 8 bytes are read", f->tag == TAG_PCM ? "integer" : "float", f->sample_bytes);
    }
    if (!f->sample) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the WAV file has encoding %u; PCM (1), float (3), A-law (6) and mu-law (7) are "
                          "read", f->tag);
    }
    if (f->frame_bytes != f->n_channels * f->sample_bytes || f->bits > f->sample_bytes * 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file's header does not fit together: %u channels of %u bits in frames of "
                          "%u bytes", f->n_channels, f->bits, f->frame_bytes);
    }
    return NULL;
}

static void give(const format *f, const unsigned char *p, size_t n_frames, const nrd_sound_sink *sink)
{
    float block[NRD_SOUND_BLOCK];
    const size_t most = NRD_SOUND_BLOCK / f->n_channels;

    while (n_frames > 0) {
        const size_t now = n_frames < most ? n_frames : most;
        for (size_t i = 0; i < now * f->n_channels; i++, p += f->sample_bytes) {
            block[i] = f->sample(p);
        }
        if (!sink->frames(sink->arg, block, now)) {
            return;
        }
        n_frames -= now;
    }
}

bool nrd_wav_is(const void *data, size_t n)
{
    return n >= 12 && !memcmp(data, "RIFF", 4) && !memcmp((const char *)data + 8, "WAVE", 4);
}

nrd_error *nrd_wav_read(const void *data, size_t n, const nrd_sound_sink *sink)
{
    const unsigned char *p = data;
    bool has_format = false;
    format f;

    if (!nrd_wav_is(data, n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this is no WAV file");
    }
    for (size_t at = 12; n - at >= 8;) {
        const unsigned char *name = p + at;
        size_t size = get(p + at + 4, 4);
        at += 8;
        size = size < n - at ? size : n - at;
        if (!memcmp(name, "fmt ", 4) && !has_format) {
            NRD_TRY(read_format(p + at, size, &f));
            has_format = true;
        } else if (!memcmp(name, "data", 4)) {
            if (!has_format) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file's data comes before its fmt chunk");
            }
            if (f.rate > INT32_MAX) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file has %u samples a second", f.rate);
            }
            if (sink->begin(sink->arg, (int32_t)f.rate, (int32_t)f.n_channels, size / f.frame_bytes)) {
                give(&f, p + at, size / f.frame_bytes, sink);
            }
            return NULL;
        }
        size += size & 1; /* chunks begin at even places */
        at += size < n - at ? size : n - at;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "the WAV file has no %s chunk", has_format ? "data" : "fmt");
}
