/* SPDX-License-Identifier: Apache-2.0
 * What was said in a window: an answer is read, asked for again where it is poor, left out where nothing is said, and cut into
 * segments. */
#include "frontends/openai/speech.h"

#include "nereid/llm_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* As openai/whisper has it: what was guessed is no context. */
static const double most_conditioned = 0.5;
enum {
    SHORT_STEP = 100, /* frames */
    MAX_SHORT = 3,    /* such windows in a row; then the whole window is left: a model that stands still would never end */
};

nrd_error *nrd_speech_read_response(nrd_speech *r, TRITONSERVER_InferenceResponse *response)
{
    const int32_t *ids = NULL;
    size_t n_ids = 0;
    int32_t length = INT32_MAX;
    uint32_t n = 0;

    NRD_TRY(nrd_infer_response_error(response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_infer_tensor o;
        NRD_TRY(nrd_infer_get_tensor(response, i, &o));
        if (!strcmp(o.name, "output_ids")) {
            ids = o.base;
            n_ids = o.size / sizeof *ids;
        } else if (!strcmp(o.name, "sequence_length") && o.size >= sizeof length) {
            memcpy(&length, o.base, sizeof length);
        } else if (!strcmp(o.name, "cum_log_probs") && o.size >= sizeof(float)) {
            r->cum_log_prob = (double)*(const float *)o.base;
            r->has_log_prob = true;
        }
    }
    const double *no_speech = nrd_infer_find_parameter(response, NRD_LLM_NO_SPEECH_PROB, TRITONSERVER_PARAMETER_DOUBLE);
    r->no_speech = no_speech ? *no_speech : r->no_speech;
    for (size_t i = 0; i < n_ids && length >= 0 && i < (size_t)length; i++) {
        if (ids[i] == nrd_tokenizer_eos_id(r->model->tokenizer)) {
            break;
        }
        nrd_ids_push(&r->answer, ids[i]);
    }
    return nrd_ids_error(&r->answer);
}

/* Text in proportion to what zlib makes of it: text that repeats itself has much. */
static double compression(const char *text, size_t n)
{
    uLongf m = compressBound((uLong)n);
    unsigned char *to = n > 0 ? malloc(m) : NULL;
    const bool ok = to && compress(to, &m, (const unsigned char *)text, (uLong)n) == Z_OK;
    free(to);
    return ok && m > 0 ? (double)n / (double)m : 0;
}

static double mean_log_prob(const nrd_speech *r)
{
    const bool has_end = r->answer.n < (size_t)r->n_most; /* which counts */
    return r->has_log_prob ? r->cum_log_prob / (double)(r->answer.n + has_end) : (double)NAN;
}

/* Nothing is said: the model finds so, and what it wrote improbable. */
static bool is_silent(const nrd_speech *r)
{
    return r->no_speech > r->most_no_speech && mean_log_prob(r) < r->least_log_prob;
}

/* Whether the answer should be asked for again, less greedily. */
static bool is_poor(const nrd_speech *r, double ratio)
{
    return r->has_log_prob && r->attempt + 1 < r->n_temperatures &&
           (ratio > r->most_compression || mean_log_prob(r) < r->least_log_prob);
}

static nrd_error *add_segment(nrd_speech *r, const nrd_whisper_segment *w, double ratio)
{
    const double step = (double)NRD_WHISPER_FRAMES_PER_STEP * NRD_MEL_HOP / NRD_MEL_RATE, at = (double)r->seek * NRD_MEL_HOP / NRD_MEL_RATE;

    if (r->n_segments == r->cap_segments) {
        const size_t cap = r->cap_segments ? 2 * r->cap_segments : 16;
        NRD_TRY(nrd_claim_bytes(&r->req->claim, (cap - r->cap_segments) * sizeof *r->segments, "its segments"));
        nrd_speech_segment *p = realloc(r->segments, cap * sizeof *p);
        if (!p) {
            return nrd_error_no_memory();
        }
        r->segments = p;
        r->cap_segments = cap;
    }
    nrd_speech_segment *s = &r->segments[r->n_segments];
    *s = (nrd_speech_segment){.start = at + w->start * step, .end = at + w->end * step, .seek = r->seek,
                              .id_from = r->before.n, .n_ids = w->n, .text_from = r->text.len, .temperature = nrd_speech_temperature(r),
                              .compression = ratio, .log_prob = mean_log_prob(r), .no_speech = r->no_speech};
    nrd_ids_append(&r->before, r->answer.ids + w->from, w->n);
    NRD_TRY(nrd_ids_error(&r->before));
    NRD_TRY(nrd_whisper_text(r->model->whisper, r->answer.ids + w->from, w->n, &r->text));
    s->n_text = r->text.len - s->text_from;
    const char *text = nrd_str_cstr(&r->text) + s->text_from;
    r->n_segments += text[strspn(text, " \n")] != '\0'; /* between two times there may be silence */
    return NULL;
}

static int32_t frames_left(const nrd_speech *r)
{
    const size_t left = r->n_frames - r->seek;
    return (int32_t)(left < NRD_MEL_CHUNK_FRAMES ? left : NRD_MEL_CHUNK_FRAMES);
}

/* The window is silent: it adds nothing. */
static void skip_window(nrd_speech *r)
{
    r->seek += (size_t)frames_left(r);
    r->n_short = r->attempt = 0;
}

/* Keeps the window's segments and moves on. */
static nrd_error *keep_window(nrd_speech *r, double ratio)
{
    const int32_t n_frames = frames_left(r);
    nrd_whisper_segment *v = calloc(r->answer.n + 1, sizeof *v);
    int32_t next = n_frames;

    if (!v) {
        return nrd_error_no_memory();
    }
    const size_t n = nrd_whisper_segments(r->model->whisper, r->answer.ids, r->answer.n, n_frames, v, &next);
    nrd_error *err = NULL;
    for (size_t i = 0; i < n && !err; i++) {
        err = add_segment(r, &v[i], ratio);
    }
    free(v);
    r->n_short = next < SHORT_STEP && next < n_frames ? r->n_short + 1 : 0;
    if (r->n_short > MAX_SHORT) {
        next = n_frames;
        r->n_short = 0;
    }
    r->seek += (size_t)next;
    if (nrd_speech_temperature(r) > most_conditioned) { /* what was guessed is no context */
        r->context_from = r->before.n;
    }
    r->attempt = 0;
    return err;
}

nrd_error *nrd_speech_take_window(nrd_speech *r)
{
    nrd_str text = {0};
    if (r->detecting) {
        r->language = r->answer.n > 0 ? nrd_whisper_language_of(r->model->whisper, r->answer.ids[0]) : -1;
        r->detecting = false;
        return r->language >= 0 ? NULL : nrd_errorf(NRD_ERR_INTERNAL, "The model named no language; give the field language.");
    }
    nrd_error *err = nrd_whisper_text(r->model->whisper, r->answer.ids, r->answer.n, &text);
    const double ratio = err ? 0 : compression(nrd_str_cstr(&text), text.len);
    nrd_str_fini(&text);
    if (!err && is_silent(r)) {
        skip_window(r);
        return NULL;
    }
    if (!err && is_poor(r, ratio)) {
        r->attempt++;
        return NULL;
    }
    return err ? err : keep_window(r, ratio);
}
