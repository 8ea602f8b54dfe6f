/* SPDX-License-Identifier: Apache-2.0
 * The client's inputs: samples become features, TEXT_PREFIX becomes the decoder's prompt. */
#include "backends/whisper/hear.h"

#include "audio/mel.h"
#include "base/dtype.h"

#include <math.h>
#include <string.h>

enum { MAX_PREFIX_BYTES = 16 << 10 };
static const char usual_prefix[] = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>";

void nrd_hear_ask_fini(nrd_hear_ask *a)
{
    nrd_ids_fini(&a->prompt);
    nrd_ids_fini(&a->bad_words);
    free(a->features);
    memset(a, 0, sizeof *a);
}

/* ---- TEXT_PREFIX ---- */

static nrd_error *make_prompt(const nrd_hear_model *m, const char *text, size_t n, nrd_hear_ask *out)
{
    const size_t most = (size_t)nrd_whisper_max_tokens(m->whisper) - 1;

    NRD_TRY(nrd_tokenizer_encode(m->tokenizer, text, n, NRD_ENCODE_PARSE_SPECIAL, &out->prompt));
    if (out->prompt.n < 1 || out->prompt.n > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "TEXT_PREFIX has %zu tokens, expected 1 to %zu", out->prompt.n, most);
    }
    return nrd_whisper_bad_words(m->whisper, out->prompt.ids[out->prompt.n - 1], &out->bad_words);
}

static TRITONSERVER_Error *read_prefix(const nrd_hear_model *m, const nrd_tb_tensor *t, nrd_hear_ask *out)
{
    const char *text = usual_prefix;
    size_t offset = 0, n = 0;
    bool bad = false;

    if (!t || !nrd_tb_next_string(t, &offset, &text, &n, &bad) || bad) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "TEXT_PREFIX must hold one string");
    }
    if (n > MAX_PREFIX_BYTES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "TEXT_PREFIX has %zu bytes, at most %d", n, MAX_PREFIX_BYTES);
    }
    return nrd_tb_error(n > 0 ? make_prompt(m, text, n, out) : make_prompt(m, usual_prefix, sizeof usual_prefix - 1, out));
}

/* ---- WAV ---- */

/* How many of WAV's samples are sound. */
static TRITONSERVER_Error *count_samples(const nrd_tb_inputs *in, const nrd_tb_tensor *wav, int64_t *out)
{
    const nrd_tb_tensor *lengths = nrd_tb_find(in, "WAV_LENS");

    *out = wav->n_elements;
    if (wav->n_dims > 1 && wav->shape[0] != 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "WAV has %lld rows: a request has one sound",
                             (long long)wav->shape[0]);
    }
    if (lengths && (!nrd_tb_get_i64(lengths, 0, out) || *out < 0 || *out > wav->n_elements)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "WAV_LENS is %lld, expected 1 to %lld (the samples of WAV)",
                             (long long)*out, (long long)wav->n_elements);
    }
    if (*out < 1 || *out > NRD_MEL_CHUNK) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "WAV has %lld samples of sound, expected 1 to %d (30 s of 16 kHz); "
                             "longer sound is cut by its sender, or by /v1/audio/transcriptions", (long long)*out, NRD_MEL_CHUNK);
    }
    return NULL;
}

static nrd_error *check_finite(const float *samples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(samples[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "WAV[%zu] is not a finite number", i);
        }
    }
    return NULL;
}

/* In place: half the size. */
static void to_half(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = nrd_f32_to_f16(values[i]);
        memcpy((uint8_t *)values + i * sizeof h, &h, sizeof h);
    }
}

static nrd_error *make_features(const nrd_hear_model *m, const uint8_t *wav, size_t n, nrd_hear_ask *out)
{
    const size_t n_mels = (size_t)m->n_mels;
    float *samples = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(samples, n, err, done);
    memcpy(samples, wav, n * sizeof *samples);
    NRD_TRY_GOTO(check_finite(samples, n), err, done);
    out->n_frames = m->zero_pad ? (int32_t)((n + NRD_MEL_HOP - 1) / NRD_MEL_HOP) : (int32_t)nrd_mel_frames(n);
    float *features = NULL;
    NRD_NEW_GOTO(features, nrd_mel_frames(n) * n_mels, err, done);
    out->features = features;
    NRD_TRY_GOTO(nrd_mel_make(samples, n, m->n_mels, features), err, done);
    const size_t n_values = (size_t)out->n_frames * n_mels;
    if (out->half) {
        to_half(features, n_values);
    }
    out->feature_bytes = n_values * (out->half ? sizeof(uint16_t) : sizeof *features);
done:
    free(samples);
    return err;
}

TRITONSERVER_Error *nrd_hear_listen(const nrd_hear_model *m, const nrd_tb_inputs *in, bool half, nrd_hear_ask *out)
{
    const nrd_tb_tensor *wav = nrd_tb_find(in, "WAV");
    int64_t n = 0;

    memset(out, 0, sizeof *out);
    out->half = half;
    if (!wav || wav->dtype != TRITONSERVER_TYPE_FP32) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "WAV must hold samples of float32");
    }
    NRD_TB_TRY(count_samples(in, wav, &n));
    NRD_TB_TRY(read_prefix(m, nrd_tb_find(in, "TEXT_PREFIX"), out));
    return nrd_tb_error(make_features(m, wav->data, (size_t)n, out));
}
