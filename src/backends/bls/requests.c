/* SPDX-License-Identifier: Apache-2.0
 * Requests to tensorrt_llm, and to its draft model: which tensors go there, under which names. */
#include "backends/bls/flow_internal.h"

#include "nereid/llm_tensors.h"

#include <string.h>

const nrd_bls_map_row nrd_bls_to_pre[] = {
    {"text_input", "QUERY"},
    {"decoder_text_input", "DECODER_QUERY"},
    {"max_tokens", "REQUEST_OUTPUT_LEN"},
    {"bad_words", "BAD_WORDS_DICT"},
    {"stop_words", "STOP_WORDS_DICT"},
    {"embedding_bias_words", "EMBEDDING_BIAS_WORDS"},
    {"embedding_bias_weights", "EMBEDDING_BIAS_WEIGHTS"},
    {"end_id", "END_ID"},
    {"pad_id", "PAD_ID"},
    {"prompt_table_extra_id", "PROMPT_TABLE_EXTRA_ID"},
    {"image_bytes_input", "IMAGE_BYTES"},
    {"image_url_input", "IMAGE_URL"},
    {"image_input", "IMAGE"},
    {"video_bytes_input", "VIDEO_BYTES"},
    {NULL, NULL},
};

static const nrd_bls_map_row encoders_to_llm[] = {
    {"OUT_PROMPT_EMBEDDING_TABLE", "prompt_embedding_table"},
    {"OUT_PROMPT_VOCAB_SIZE", "prompt_vocab_size"},
    {"OUT_IMAGE_SIZES", "image_sizes"},
};

static const nrd_bls_map_row pre_to_llm[] = {
    {"INPUT_ID", "input_ids"},
    {"REQUEST_INPUT_LEN", "input_lengths"},
    {"REQUEST_OUTPUT_LEN", "request_output_len"},
    {"BAD_WORDS_IDS", "bad_words_list"},
    {"STOP_WORDS_IDS", "stop_words_list"},
    {"EMBEDDING_BIAS", "embedding_bias"},
    {"OUT_END_ID", "end_id"},
    {"OUT_PAD_ID", "pad_id"},
    {"DECODER_INPUT_ID", "decoder_input_ids"},
    {"REQUEST_DECODER_INPUT_LEN", "decoder_input_lengths"},
    {"OUT_PROMPT_TABLE_EXTRA_IDS", "prompt_table_extra_ids"},
    {"IMAGES", "image_files"},
};

/* What the client sends for tensorrt_llm itself; other inputs keep their name. */
static const nrd_bls_map_row to_llm[] = {
    {"top_k", "runtime_top_k"},
    {"top_p", "runtime_top_p"},
    {"min_p", "runtime_min_p"},
    {"length_penalty", "len_penalty"},
    {"stream", "streaming"},
};

static const char *const own_inputs[] = {"num_draft_tokens", "use_draft_logits"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *nrd_bls_map_name(const nrd_bls_map_row *map, size_t n, const char *from)
{
    for (size_t i = 0; i < n && map[i].from; i++) {
        if (!strcmp(map[i].from, from)) {
            return map[i].to;
        }
    }
    return NULL;
}

static bool is_among(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(name, list[i])) {
            return true;
        }
    }
    return false;
}

/* The input's name in tensorrt_llm; NULL: it is not for it. What the client sends for preprocessing goes to
 * tensorrt_llm where preprocessing does not take it: an end_id does up to v0.7. */
static const char *llm_name_of(const bls_flow *f, const char *from)
{
    const char *pre = nrd_bls_map_name(nrd_bls_to_pre, SIZE_MAX, from);
    const char *name = nrd_bls_map_name(to_llm, COUNT(to_llm), from);

    if ((pre && nrd_tb_config_has_input(f->steps[NRD_BLS_PRE], pre)) ||
        is_among(from, own_inputs, COUNT(own_inputs))) {
        return NULL;
    }
    return name ? name : from;
}

TRITONSERVER_Error *nrd_bls_add_llm_inputs(bls_flow *f, TRITONSERVER_InferenceRequest *r, nrd_bls_step which,
                                           const char *const *skip, size_t n_skip)
{
    const nrd_tb_config *step = f->steps[which];
    nrd_tb_tensor t;
    uint32_t n = 0;

    NRD_TB_TRY(TRITONSERVER_InferenceResponseOutputCount(f->pre, &n));
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(nrd_tb_inner_output(f->pre, i, &t));
        const char *name = nrd_bls_map_name(pre_to_llm, COUNT(pre_to_llm), t.name);
        const bool is_seen = f->seen && !strcmp(t.name, "IMAGES"); /* they come as rows */
        if (name && !is_seen && nrd_tb_config_has_input(step, name) && !is_among(name, skip, n_skip)) {
            NRD_TB_TRY(nrd_bls_add_input(r, step, name, &t));
        }
    }
    for (size_t i = 0; i < COUNT(encoders_to_llm) && f->seen; i++) {
        if (nrd_tb_inner_find(f->seen, encoders_to_llm[i].from, &t)) {
            NRD_TB_TRY(nrd_bls_add_input(r, step, encoders_to_llm[i].to, &t));
        }
    }
    for (uint32_t i = 0; i < f->inputs.n; i++) {
        const char *name = llm_name_of(f, f->inputs.t[i].name);
        bool goes = name && !is_among(name, skip, n_skip) &&
                    (which == NRD_BLS_LLM || nrd_tb_config_has_input(step, name));
        if (goes) {
            NRD_TB_TRY(nrd_bls_add_input(r, step, name, &f->inputs.t[i]));
        }
    }
    return NULL;
}

/* Whose cached blocks may be used is the client's matter, not this model's. */
static TRITONSERVER_Error *pass_salts(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    uint32_t n = 0;
    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(f->request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key;
        TRITONSERVER_ParameterType type;
        const void *value;
        NRD_TB_TRY(TRITONBACKEND_RequestParameter(f->request, i, &key, &type, &value));
        if (type == TRITONSERVER_PARAMETER_STRING &&
            (!strcmp(key, NRD_LLM_CACHE_SALT) || !strcmp(key, NRD_LLM_CACHE_SALT_OF_KEY))) {
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetStringParameter(r, key, value));
        }
    }
    return NULL;
}

TRITONSERVER_Error *nrd_bls_request_new(bls_flow *f, const char *model,
                                        TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                        TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                        TRITONSERVER_InferenceRequest **out)
{
    NRD_TB_TRY(nrd_bls_inner_new(f, model, on_response, on_release, release_user, out));
    NRD_TB_TRY(pass_salts(f, *out));
    return nrd_tb_inner_timeout(*out, f->request, f->start_ns);
}

bool nrd_bls_request_send(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&f->mu);
    f->llm_request = err ? NULL : r;
    pthread_mutex_unlock(&f->mu);
    err = nrd_bls_inner_send(f, r, err);
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    return !err;
}
