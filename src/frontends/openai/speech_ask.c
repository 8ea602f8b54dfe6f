/* SPDX-License-Identifier: Apache-2.0
 * What the model is asked for a window, or for its language. */
#include "frontends/openai/speech.h"

#include "base/dtype.h"
#include "nereid/llm_tensors.h"

#include <stdlib.h>
#include <string.h>

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

double nrd_speech_temperature(const nrd_speech *r)
{
    return r->temperatures[r->attempt];
}

/* A parameter of the request that is a whole number. */
static nrd_error *set_int(nrd_http_call *call, const char *name, int64_t value)
{
    return nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(call->infer.request, name, value));
}

/* Times in pairs that do not go back; whether something is said is told beside the answer. */
static nrd_error *add_rules(nrd_http_call *call, const nrd_speech *r, const nrd_ids *prompt)
{
    const nrd_whisper *w = r->model->whisper;
    const int32_t no_speech = nrd_whisper_no_speech_token(w), most = nrd_whisper_max_first_time(w);

    if (r->detecting) {
        return NULL;
    }
    if (wants_times(r)) {
        NRD_TRY(set_int(call, NRD_LLM_NO_TIMES, nrd_whisper_no_times_token(w)));
        NRD_TRY(most >= 0 ? set_int(call, NRD_LLM_MAX_FIRST_TIME, most) : NULL);
    }
    if (no_speech < 0) {
        return NULL;
    }
    NRD_TRY(set_int(call, NRD_LLM_NO_SPEECH, no_speech));
    return set_int(call, NRD_LLM_NO_SPEECH_AT, (int64_t)nrd_whisper_start_of(w, prompt));
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
    const uint64_t seed = r->seed + r->seek * NRD_SPEECH_TEMPERATURES + (uint64_t)r->attempt;

    if (r->detecting) {
        NRD_TRY(add_languages(call, r));
    }
    if (r->detecting || !(nrd_speech_temperature(r) > 0)) {
        return nrd_oai_add_i32(call, r->model, "runtime_top_k", 1);
    }
    NRD_TRY(add_f32(call, "temperature", nrd_speech_temperature(r)));
    NRD_TRY(add_f32(call, "runtime_top_p", 1));
    return nrd_oai_add(call, r->model->short_names ? "seed" : "random_seed", TRITONSERVER_TYPE_UINT64, one, 2, &seed, sizeof seed);
}

nrd_error *nrd_speech_make_prompt(const nrd_speech *r, nrd_ids *out)
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

nrd_error *nrd_speech_fill(nrd_http_call *call, nrd_speech *r, const nrd_ids *prompt)
{
    static const char *const switches[] = {NRD_LLM_EXCLUDE_INPUT, NRD_LLM_PERF_METRICS};
    const int64_t shape[] = {1, (int64_t)prompt->n};
    const int32_t context = nrd_whisper_max_tokens(r->model->whisper), room = context - (int32_t)prompt->n;
    const int32_t most = r->detecting ? 1 : room < context / 2 ? room : context / 2;

    if (most < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "generation_config.json: max_length %d leaves no room for an answer", context);
    }
    r->n_most = most;
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
    NRD_TRY(add_rules(call, r, prompt));
    NRD_TRY(nrd_oai_add_background(call));
    for (size_t i = 0; i < 3; i++) { /* ids, their number, their log probability */
        NRD_TRY(r->model->outputs & 1u << i ? nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(
                                                  call->infer.request, nrd_oai_outputs[i]))
                                            : NULL);
    }
    return nrd_http_forward_headers(call);
}
