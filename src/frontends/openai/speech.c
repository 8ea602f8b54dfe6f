/* SPDX-License-Identifier: Apache-2.0
 * Life of a request with sound: the form, the worker, then one window after the other. */
#include "frontends/openai/speech.h"

#include "audio/sound.h"
#include "base/dtype.h"
#include "frontends/http/lease.h"
#include "nereid/llm_tensors.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

/* As openai/whisper has them: an answer that repeats itself or that the model itself finds improbable is asked for again,
 * less greedily each time. */
static const double temperatures[] = {0, 0.2, 0.4, 0.6, 0.8, 1};
static const double most_compression = 2.4, least_log_prob = -1, most_conditioned = 0.5;
enum {
    N_TEMPERATURES = sizeof temperatures / sizeof temperatures[0],
    SHORT_STEP = 100, /* frames */
    MAX_SHORT = 3,    /* such windows in a row; then the whole window is left: a model that stands still would never end */
};

static void release(nrd_speech *r)
{
    if (r->counted) {
        atomic_fetch_sub(&r->o->n_running, 1);
    }
    nrd_error_free(r->err);
    nrd_oai_model_unref(r->model);
    nrd_str_fini(&r->file);
    nrd_str_fini(&r->value);
    nrd_str_fini(&r->unknown);
    nrd_str_fini(&r->prompt);
    nrd_str_fini(&r->text);
    nrd_str_fini(&r->out);
    nrd_ids_fini(&r->before);
    nrd_ids_fini(&r->answer);
    free(r->segments);
    free(r->features);
    nrd_http_request_unref(r->req);
    free(r->extra);
    free(r);
}

/* Answers with the error, in a stream as its last event. Takes err and r. */
static void fail(nrd_speech *r, nrd_error *err)
{
    if (r->streaming) {
        nrd_str_clear(&r->out);
        nrd_str_puts(&r->out, "data: ");
        nrd_oai_put_error(&r->out, nrd_oai_status(err), nrd_error_message(err), NULL, nrd_error_reason(err));
        nrd_str_puts(&r->out, "\n\n");
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
        nrd_error_free(err);
    } else {
        nrd_oai_fail(r->req, err, r->extra);
    }
    release(r);
}

/* ---- on a worker: the file becomes features ---- */

static nrd_error *claim_sound(void *arg, size_t bytes)
{
    return nrd_claim_bytes(arg, bytes, "its sound");
}

static nrd_error *find_model(nrd_speech *r)
{
    NRD_TRY(r->model_name[0] ? nrd_oai_find_model(r->o, r->model_name, &r->model) : nrd_oai_find_only(r->o, NULL, &r->model));
    const nrd_whisper *w = r->model->whisper;
    if (!w) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' hears nothing: it is no speech model", r->model->name);
    }
    r->language = -1;
    if (!nrd_whisper_is_multilingual(w)) {
        return r->translate ? nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' hears English only: it does not translate",
                                             r->model->name)
                            : NULL;
    }
    r->language = r->language_name[0] ? nrd_whisper_find_language(w, r->language_name) : -1;
    return !r->language_name[0] || r->language >= 0
               ? NULL
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "language", "'%.40s' is no language of this model; give a code of ISO 639 "
                                "such as en", r->language_name);
}

/* The prompt is text that could stand before the sound. */
static nrd_error *read_prompt(nrd_speech *r)
{
    nrd_str text = {0};
    const char *p = nrd_str_cstr(&r->prompt);

    p += strspn(p, " \n");
    if (!*p) {
        return NULL;
    }
    nrd_str_printf(&text, " %s", p);
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_oai_check_prompt(r->model, text.len, "prompt");
    err = err ? err : nrd_tokenizer_encode(r->model->tokenizer, text.data, text.len, 0, &r->before);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *make_features(nrd_speech *r, const nrd_sound *s)
{
    const int32_t n_mels = nrd_whisper_n_mels(r->model->whisper);
    size_t bytes;

    r->seconds = (double)s->n / NRD_MEL_RATE;
    r->n_frames = (s->n + NRD_MEL_HOP - 1) / NRD_MEL_HOP;
    r->n_features = nrd_mel_frames(s->n);
    if (!nrd_size_mul(r->n_features, (size_t)n_mels * sizeof *r->features, &bytes)) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_claim_bytes(&r->req->claim, bytes, "its features"));
    r->features = malloc(bytes);
    return r->features ? nrd_mel_make(s->samples, s->n, n_mels, r->features) : nrd_error_no_memory();
}

static nrd_error *read_sound(nrd_speech *r)
{
    const nrd_sound_room room = {claim_sound, &r->req->claim};
    nrd_sound sound = {0};

    NRD_TRY(find_model(r));
    NRD_TRY(read_prompt(r));
    nrd_error *err = nrd_sound_read(&sound, r->file.data, r->file.len, NRD_MEL_RATE, &room);
    if (err) {
        return nrd_error_at(nrd_error_wrap(err, "file"), "file");
    }
    err = make_features(r, &sound);
    nrd_claim_give(&r->req->claim, sound.cap * sizeof *sound.samples + r->file.len);
    nrd_sound_fini(&sound);
    nrd_str_fini(&r->file);
    return err;
}

static void work(void *arg)
{
    nrd_speech *r = arg;
    r->err = read_sound(r);
}

/* ---- to the model ---- */

static nrd_error *add_f32(nrd_http_call *call, const char *name, double value)
{
    const int64_t shape[] = {1, 1};
    const float v = (float)value;
    return nrd_oai_add(call, name, TRITONSERVER_TYPE_FP32, shape, 2, &v, sizeof v);
}

/* The window's frames; behind the sound's features there are zeros, as openai/whisper fills up. [1, 3000, mels] */
static nrd_error *add_features(nrd_http_call *call, const nrd_speech *r)
{
    const size_t n_mels = (size_t)nrd_whisper_n_mels(r->model->whisper), n = NRD_MEL_CHUNK_FRAMES * n_mels;
    const size_t left = r->n_features - r->seek, have = (left < NRD_MEL_CHUNK_FRAMES ? left : NRD_MEL_CHUNK_FRAMES) * n_mels;
    const size_t width = r->model->hears_half ? sizeof(uint16_t) : sizeof(float);
    const int64_t shape[] = {1, NRD_MEL_CHUNK_FRAMES, (int64_t)n_mels};
    const float *from = r->features + r->seek * n_mels;
    void *window = calloc(n, width);

    if (!window) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < have && r->model->hears_half; i++) {
        ((uint16_t *)window)[i] = nrd_f32_to_f16(from[i]);
    }
    if (!r->model->hears_half) {
        memcpy(window, from, have * width);
    }
    nrd_error *err = nrd_oai_add(call, "encoder_input_features",
                                 r->model->hears_half ? TRITONSERVER_TYPE_FP16 : TRITONSERVER_TYPE_FP32, shape, 3, window,
                                 n * width);
    free(window);
    return err;
}

/* Times are needed where they are answered, and to know where the next window begins. */
static bool wants_times(const nrd_speech *r)
{
    return r->format == NRD_SPEECH_VERBOSE || r->format == NRD_SPEECH_SRT || r->format == NRD_SPEECH_VTT ||
           r->n_frames > NRD_MEL_CHUNK_FRAMES;
}

static double temperature(const nrd_speech *r)
{
    return r->fixed_temperature ? r->temperature : temperatures[r->attempt];
}

/* Only languages may follow. */
static nrd_error *add_languages(nrd_http_call *call, const nrd_speech *r)
{
    nrd_str bias = {0};
    for (size_t i = 0; i < nrd_whisper_n_languages(); i++) {
        const int32_t id = nrd_whisper_language_token(r->model->whisper, (int)i);
        if (id >= 0) {
            nrd_str_printf(&bias, "%c\"%d\":100", bias.len ? ',' : '{', (int)id);
        }
    }
    nrd_str_putc(&bias, '}');
    nrd_error *err = nrd_str_error(&bias);
    err = err ? err : nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(call->infer.request, "logit_bias", bias.data));
    nrd_str_fini(&bias);
    return err;
}

static nrd_error *add_sampling(nrd_http_call *call, const nrd_speech *r)
{
    const int64_t one[] = {1, 1};
    const uint64_t seed = r->seek * N_TEMPERATURES + (uint64_t)r->attempt;

    if (r->detecting) {
        NRD_TRY(add_languages(call, r));
    }
    if (r->detecting || !(temperature(r) > 0)) {
        return nrd_oai_add_i32(call, r->model, "runtime_top_k", 1);
    }
    NRD_TRY(add_f32(call, "temperature", temperature(r)));
    NRD_TRY(add_f32(call, "runtime_top_p", 1));
    return nrd_oai_add(call, "random_seed", TRITONSERVER_TYPE_UINT64, one, 2, &seed, sizeof seed);
}

static nrd_error *make_prompt(const nrd_speech *r, nrd_ids *out)
{
    const bool has_context = !r->detecting && r->before.n > r->context_from;
    const nrd_whisper_ask ask = {.previous = has_context ? r->before.ids + r->context_from : NULL,
                                 .n_previous = has_context ? r->before.n - r->context_from : 0,
                                 .language = r->language,
                                 .translate = r->translate,
                                 .times = wants_times(r)};
    return nrd_whisper_prompt(r->model->whisper, &ask, out);
}

/* What the model may not say. [1, 2, n]: ids, and where phrases end */
static nrd_error *add_bad_words(nrd_http_call *call, const nrd_speech *r, const nrd_ids *prompt)
{
    nrd_ids list = {0};

    if (r->detecting || !r->model->bad_words) {
        return NULL;
    }
    nrd_error *err = nrd_whisper_bad_words(r->model->whisper, prompt->ids[prompt->n - 1], &list);
    const int64_t shape[] = {1, 2, (int64_t)list.n / 2};
    if (!err && list.n > 0) {
        err = nrd_oai_add(call, "bad_words_list", TRITONSERVER_TYPE_INT32, shape, 3, list.ids, list.n * sizeof *list.ids);
    }
    nrd_ids_fini(&list);
    return err;
}

static nrd_error *fill(nrd_http_call *call, const nrd_speech *r, const nrd_ids *prompt)
{
    static const char *const switches[] = {NRD_LLM_EXCLUDE_INPUT, NRD_LLM_PERF_METRICS};
    const int64_t shape[] = {1, (int64_t)prompt->n};
    const int32_t context = nrd_whisper_max_tokens(r->model->whisper), room = context - (int32_t)prompt->n;
    const int32_t most = r->detecting ? 1 : room < context / 2 ? room : context / 2;

    if (most < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "generation_config.json: max_length %d leaves no room for an answer", context);
    }
    NRD_TRY(add_features(call, r));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "encoder_output_lengths", NRD_WHISPER_STEPS));
    NRD_TRY(nrd_oai_add(call, "input_ids", TRITONSERVER_TYPE_INT32, shape, 2, prompt->ids, prompt->n * sizeof *prompt->ids));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "input_lengths", (int64_t)prompt->n));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "request_output_len", most));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "end_id", nrd_tokenizer_eos_id(r->model->tokenizer)));
    NRD_TRY(nrd_oai_add_bool(call, "streaming", false));
    NRD_TRY(nrd_oai_add_bool(call, "return_log_probs", true));
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetBoolParameter(call->infer.request, switches[i], true)));
    }
    NRD_TRY(add_sampling(call, r));
    NRD_TRY(add_bad_words(call, r, prompt));
    NRD_TRY(nrd_oai_add_background(call));
    for (size_t i = 0; i < 3; i++) { /* ids, their number, their log probability */
        NRD_TRY(r->model->outputs & 1u << i ? nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(
                                                  call->infer.request, nrd_oai_outputs[i]))
                                            : NULL);
    }
    return nrd_http_forward_headers(call);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final);

static void on_gone(nrd_http_request *req, void *arg)
{
    nrd_speech *r = arg;
    (void)req;
    nrd_infer_cancel(&r->call->infer);
}

/* Asks for the window, or for its language. Answers errors itself, as r is gone then. */
static void ask(nrd_speech *r)
{
    nrd_http_call *call = NULL;
    nrd_ids prompt = {0};
    nrd_error *err = make_prompt(r, &prompt);

    err = err ? err : nrd_http_call_new(&call, r->o->api, r->req, r->model->llm, -1);
    if (!err) {
        call->on_response = on_response;
        call->user = r;
        err = fill(call, r, &prompt);
        err = err ? err : nrd_http_call_submit(call);
        if (err) {
            nrd_http_call_abandon(call);
        }
    }
    nrd_ids_fini(&prompt);
    if (err) {
        fail(r, err);
        return;
    }
    r->call = call;
    r->answer.n = 0;
    r->cum_log_prob = 0;
    r->has_log_prob = false;
    r->req->on_gone = on_gone;
    r->req->gone_arg = r;
}

/* ---- from the model ---- */

static nrd_error *read_response(nrd_speech *r, TRITONSERVER_InferenceResponse *response)
{
    const int32_t *ids = NULL;
    size_t n_ids = 0;
    int32_t length = INT32_MAX;
    uint32_t n = 0;

    NRD_TRY(nrd_infer_response_error(response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_oai_output o;
        NRD_TRY(nrd_oai_output_get(response, i, &o));
        if (!strcmp(o.name, "output_ids")) {
            ids = o.base;
            n_ids = o.bytes / sizeof *ids;
        } else if (!strcmp(o.name, "sequence_length") && o.bytes >= sizeof length) {
            memcpy(&length, o.base, sizeof length);
        } else if (!strcmp(o.name, "cum_log_probs") && o.bytes >= sizeof(float)) {
            r->cum_log_prob = (double)*(const float *)o.base;
            r->has_log_prob = true;
        }
    }
    for (size_t i = 0; i < n_ids && length >= 0 && i < (size_t)length; i++) {
        if (ids[i] == nrd_tokenizer_eos_id(r->model->tokenizer)) {
            break;
        }
        nrd_ids_push(&r->answer, ids[i]);
    }
    return nrd_ids_error(&r->answer);
}

/* ---- what was said in a window ---- */

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
    return r->has_log_prob ? r->cum_log_prob / (double)(r->answer.n + 1) : (double)NAN; /* the end counts */
}

/* Whether the answer should be asked for again, less greedily. */
static bool is_poor(const nrd_speech *r, double ratio)
{
    return !r->fixed_temperature && r->has_log_prob && r->attempt + 1 < N_TEMPERATURES &&
           (ratio > most_compression || mean_log_prob(r) < least_log_prob);
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
                              .id_from = r->before.n, .n_ids = w->n, .text_from = r->text.len, .temperature = temperature(r),
                              .compression = ratio, .log_prob = mean_log_prob(r)};
    nrd_ids_append(&r->before, r->answer.ids + w->from, w->n);
    NRD_TRY(nrd_ids_error(&r->before));
    NRD_TRY(nrd_whisper_text(r->model->whisper, r->answer.ids + w->from, w->n, &r->text));
    s->n_text = r->text.len - s->text_from;
    const char *text = nrd_str_cstr(&r->text) + s->text_from;
    r->n_segments += text[strspn(text, " \n")] != '\0'; /* between two times there may be silence */
    return NULL;
}

/* Keeps the window's segments and moves on. */
static nrd_error *keep_window(nrd_speech *r, double ratio)
{
    const size_t left = r->n_frames - r->seek;
    const int32_t n_frames = (int32_t)(left < NRD_MEL_CHUNK_FRAMES ? left : NRD_MEL_CHUNK_FRAMES);
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
    if (temperature(r) > most_conditioned) { /* what was guessed is no context */
        r->context_from = r->before.n;
    }
    r->attempt = 0;
    return err;
}

static void answer(nrd_speech *r)
{
    nrd_str_clear(&r->out);
    if (r->stream) {
        nrd_speech_put_done(r, &r->out);
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
    } else {
        nrd_speech_put_answer(r, &r->out);
        nrd_http_reply_str(r->req, 200, nrd_speech_type(r), r->extra, &r->out);
    }
    release(r);
}

static void tell(nrd_speech *r)
{
    if (!r->streaming) {
        nrd_http_stream_begin(r->req, 200, "text/event-stream", r->extra);
        r->streaming = true;
    }
    nrd_str_clear(&r->out);
    nrd_speech_put_deltas(r, &r->out);
    if (r->out.len > 0 || r->out.no_memory) {
        nrd_http_stream_put(r->req, &r->out);
    }
}

static nrd_error *take_window(nrd_speech *r)
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
    if (!err && is_poor(r, ratio)) {
        r->attempt++;
        return NULL;
    }
    return err ? err : keep_window(r, ratio);
}

static void go_on(nrd_speech *r)
{
    if (r->stream && !r->detecting && r->n_segments > r->n_told) {
        tell(r);
    }
    if (r->seek < r->n_frames) {
        ask(r);
        return;
    }
    if (r->stream && !r->streaming) {
        tell(r);
    }
    answer(r);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_speech *r = call->user;

    if (response && !r->err) {
        r->err = read_response(r, response);
    }
    nrd_infer_response_delete(response);
    if (!final) {
        return;
    }
    nrd_error *err = r->err ? r->err : nrd_http_call_error(call);
    r->err = NULL;
    r->call = NULL;
    r->req->on_gone = NULL;
    err = err ? err : take_window(r);
    if (nrd_http_is_gone(r->req)) {
        nrd_error_free(err);
        release(r);
    } else if (err) {
        fail(r, err);
    } else {
        go_on(r);
    }
}

/* ---- before it: the form, the model ---- */

static void worked(void *arg, bool ran)
{
    nrd_speech *r = arg;
    nrd_error *err = r->err;

    r->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (err) {
        fail(r, err);
        return;
    }
    nrd_claim_open(&r->req->claim); /* all windows are one request */
    r->counted = true;
    atomic_fetch_add(&r->o->n_running, 1);
    r->detecting = r->language < 0 && nrd_whisper_is_multilingual(r->model->whisper);
    ask(r);
}

static void leased(void *user, nrd_http_request *req, nrd_error *err)
{
    nrd_speech *r = user;
    err = err ? err : nrd_http_work(r->o->api->front->workers, req, work, worked, r);
    if (err) {
        fail(r, err);
    }
}

/* The form is whole: where models come and go, its model is waited for. */
static void have_form(nrd_speech *r)
{
    nrd_switcher *s = r->o->api->front->switcher;
    nrd_switch_model *m = s && r->model_name[0]            ? nrd_oai_switch_model(r->o, r->model_name)
                          : s && nrd_switcher_n(s) == 1 ? nrd_switcher_at(s, 0)
                                                        : NULL;
    if (m) {
        nrd_http_lease(s, r->req, m, NRD_SWITCH_DEFAULT, leased, r);
    } else {
        leased(r, r->req, NULL); /* whoever looks for it says what is wrong */
    }
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last);

static void on_gone_early(nrd_http_request *req, void *arg)
{
    (void)req;
    release(arg);
}

/* The request is the connection's until a piece comes or the client is gone. */
static void read_more(nrd_speech *r)
{
    if (nrd_http_is_gone(r->req)) {
        release(r);
        return;
    }
    r->req->on_gone = on_gone_early;
    r->req->gone_arg = r;
    nrd_http_read_body(r->req, on_piece, r);
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last)
{
    nrd_speech *r = arg;

    req->on_gone = NULL;
    nrd_error *err = nrd_multipart_feed(&r->multipart, data, n);
    if (!err && last) {
        err = nrd_speech_form_end(r);
    }
    if (err) {
        fail(r, err);
    } else if (last) {
        have_form(r);
    } else {
        read_more(r);
    }
}

static void begin(nrd_openai *o, nrd_http_request *req, bool translate)
{
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, true, &extra)) {
        return;
    }
    if (nrd_oai_refuse_foreign(o, req, extra)) {
        free(extra);
        return;
    }
    nrd_speech *r = calloc(1, sizeof *r);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    r->o = o;
    r->req = req;
    r->extra = extra;
    r->translate = translate;
    nrd_http_request_ref(req);
    nrd_error *err = nrd_speech_form_begin(r);
    if (err) {
        fail(r, err);
    } else {
        read_more(r);
    }
}

void nrd_oai_on_transcriptions(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    begin(user, req, false);
}

void nrd_oai_on_translations(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    begin(user, req, true);
}
