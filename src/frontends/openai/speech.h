/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/speech.h - /v1/audio/transcriptions and /v1/audio/translations: sound into text.
 *
 * Purpose   Life of a request (speech.c): speech_form.c keeps the form's file in memory and reads its fields; on a worker
 *           speech_sound.c opens the model and turns the file into features (audio/); speech_ask.c asks the model for one
 *           window of 30 s after the other, each where the last one's times end; speech_window.c says what was said in it;
 *           speech_out.c writes the answer or the events of a stream.
 * Owner     One at a time: the loop thread, or the worker that reads. A request that waits for a piece, its model or
 *           an answer is freed when its client goes.
 * Sources   OpenAI's API reference (audio); Radford et al. (2022), section 4.5, for windows and the temperatures of
 *           answers that repeat or are improbable.
 */
#ifndef NRD_FRONTENDS_OPENAI_SPEECH_H
#define NRD_FRONTENDS_OPENAI_SPEECH_H

#include "frontends/openai/internal.h"

#include "audio/mel.h"
#include "frontends/openai/multipart.h"

typedef enum { NRD_SPEECH_JSON, NRD_SPEECH_TEXT, NRD_SPEECH_VERBOSE, NRD_SPEECH_SRT, NRD_SPEECH_VTT, NRD_SPEECH_N_FORMATS } nrd_speech_format;

enum { NRD_SPEECH_TEMPERATURES = 8 }; /* of a request, at most */

typedef struct nrd_speech_segment {
    double start, end; /* seconds of the whole sound */
    size_t seek;       /* its window's first frame */
    size_t id_from, n_ids, text_from, n_text;
    /* Of its window; log_prob: the mean of its tokens, NAN: not told; no_speech: a probability, below 0: not told */
    double temperature, compression, log_prob, no_speech;
} nrd_speech_segment;

typedef struct nrd_speech {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra;
    bool translate;
    nrd_quota *quota; /* of the key whose place it has; NULL: none */

    nrd_multipart multipart; /* the form, as it comes */
    int field;
    uint32_t seen;
    nrd_str file, value, unknown;
    char model_name[512];
    nrd_str prompt; /* what was said before */
    char language_name[64];
    nrd_speech_format format;
    double temperatures[NRD_SPEECH_TEMPERATURES]; /* one after the other, while answers are poor */
    int n_temperatures;
    double most_compression, least_log_prob, most_no_speech; /* an answer is poor, or nothing is said: speech_window.c */
    uint64_t seed;
    bool stream;

    nrd_oai_model *model; /* shares */
    nrd_error *err;       /* of the worker */
    int language;         /* -1: the model is asked */
    double seconds;
    float *features; /* [n_features, mels] */
    size_t n_features, n_frames; /* of them are sound */

    size_t seek;            /* the window's first frame */
    int n_short;            /* windows in a row that went on by less than a second */
    int attempt;            /* with temperatures, of this window */
    bool detecting;         /* the language is asked for */
    nrd_ids before;         /* the prompt's ids and those of all segments */
    size_t context_from;    /* of them the model is told those from here on */
    nrd_http_call *call;    /* shares while it runs */
    nrd_ids answer;         /* of the window */
    double cum_log_prob, no_speech; /* no_speech below 0: not told */
    bool has_log_prob;
    int32_t n_most; /* tokens that the window may have */

    nrd_str text; /* of all segments */
    nrd_speech_segment *segments;
    size_t n_segments, cap_segments, n_told; /* told: in the stream */
    nrd_str out;
    bool counted, streaming;
} nrd_speech;

/* speech_form.c */
nrd_error *nrd_speech_form_begin(nrd_speech *r) NRD_MUST_USE;
nrd_error *nrd_speech_form_end(nrd_speech *r) NRD_MUST_USE; /* all fields are there, and fit */

/* speech_sound.c: finds the model and reads the file, on a worker. */
nrd_error *nrd_speech_read_sound(nrd_speech *r) NRD_MUST_USE;

/* speech_ask.c */
double nrd_speech_temperature(const nrd_speech *r); /* of the question under way */
nrd_error *nrd_speech_make_prompt(const nrd_speech *r, nrd_ids *out) NRD_MUST_USE;
nrd_error *nrd_speech_fill(nrd_http_call *call, nrd_speech *r, const nrd_ids *prompt) NRD_MUST_USE;

/* speech_window.c */
nrd_error *nrd_speech_read_response(nrd_speech *r, TRITONSERVER_InferenceResponse *response) NRD_MUST_USE;
/* The answer is whole: its segments are kept and seek moves on, or it is asked for again. */
nrd_error *nrd_speech_take_window(nrd_speech *r) NRD_MUST_USE;

/* speech_out.c */
void nrd_speech_put_answer(nrd_speech *r, nrd_str *out);
const char *nrd_speech_type(const nrd_speech *r); /* of the answer */
void nrd_speech_put_deltas(nrd_speech *r, nrd_str *out); /* events for what is not told yet */
void nrd_speech_put_done(nrd_speech *r, nrd_str *out);

#endif
