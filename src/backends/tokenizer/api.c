/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the tokenizer backend. */
#include "backends/tokenizer/pictures.h"

#include "backends/util/entry.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#include <string.h>
#include <strings.h>

/* ---- parameters ---- */

/* The rule of the published Python models: these words, any case; else a warning and true. */
static bool param_bool(const nrd_tb_config *c, const char *key)
{
    static const char *const yes[] = {"true", "1", "t", "y", "yes"};
    static const char *const no[] = {"false", "0", "f", "n", "no"};
    const char *v = nrd_tb_config_param(c, key);
    for (size_t i = 0; v && i < sizeof yes / sizeof *yes; i++) {
        if (!strcasecmp(v, yes[i])) {
            return true;
        }
        if (!strcasecmp(v, no[i])) {
            return false;
        }
    }
    if (v) {
        NRD_LOG_WARN("model '%s': %s '%s' is not a boolean, using true", c->name, key, v);
    }
    return true;
}

/* Repositories before v0.11 (their preprocessing has no DECODER_QUERY) take a value that is none, or is
 * still a template's, as false. */
static bool adds_special_tokens(const nrd_tb_config *c)
{
    static const char key[] = "add_special_tokens";
    const bool is_old = !nrd_tb_config_has_input(c, "DECODER_QUERY");
    const bool is_there = nrd_json_get(nrd_json_get(c->root, "parameters"), key) != NULL;

    if (is_old && is_there && !nrd_tb_config_param(c, key)) {
        NRD_LOG_WARN("model '%s': %s is not specified, will be set to false", c->name, key);
        return false;
    }
    return param_bool(c, key);
}

/* `auto`: as the files say. `llama`: a BOS in front, if special tokens are added, even where the files
 * do not ask for one. `t5`: an end token behind. Repositories from v0.5 to v0.8 name one of them. */
static TRITONSERVER_Error *read_type(nrd_tok_model *m)
{
    const char *type = nrd_tb_config_param(&m->config, "tokenizer_type");

    m->type = !type || !strcmp(type, "auto")           ? NRD_TOK_AUTO
              : !strcmp(type, "llama")                 ? NRD_TOK_LLAMA
              : !strcmp(type, "t5")                    ? NRD_TOK_T5
              : !strcmp(type, "sp")                    ? NRD_TOK_AUTO
                                                       : NRD_TOK_UNKNOWN;
    if (m->type == NRD_TOK_UNKNOWN) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "model '%s': Unexpected tokenizer type: %s (auto, llama, t5 or sp)",
                             m->config.name, type);
    }
    return NULL;
}

/* Configurations of published repositories have no output for the pictures themselves, which the backend hands on. */
static TRITONSERVER_Error *find_picture_form(nrd_tok_model *m)
{
    static const char *const keys[] = {"multimodal_model_path", "visual_model_path"};
    const char *dir = NULL;

    for (size_t i = 0; i < sizeof keys / sizeof *keys && !dir; i++) {
        dir = nrd_tb_config_param(&m->config, keys[i]);
        if (dir && !nrd_tb_config_has_output(&m->config, "IMAGES")) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                                 "model '%s': parameter %s is not supported by this version", m->config.name,
                                 keys[i]);
        }
    }
    return nrd_tb_error(nrd_error_wrap(nrd_tok_picture_form_find(dir, m->tokenizer, &m->picture_form), "model '%s'", m->config.name));
}

static TRITONSERVER_Error *find_role(nrd_tok_model *m)
{
    const char *role = nrd_tb_config_param(&m->config, "role");
    if (role && strcmp(role, "preprocessing") && strcmp(role, "postprocessing")) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "model '%s': parameter role is '%s', expected preprocessing or "
                             "postprocessing",
                             m->config.name, role);
    }
    if (role) {
        m->is_pre = !strcmp(role, "preprocessing");
        return NULL;
    }
    const nrd_json *inputs = nrd_json_get(m->config.root, "input");
    for (size_t i = 0; i < nrd_json_len(inputs); i++) {
        if (!strcmp(nrd_json_get_str(nrd_json_at(inputs, i), "name", ""), "QUERY")) {
            m->is_pre = true;
        }
    }
    return NULL;
}

/* ---- entry points ---- */

static void model_free(nrd_tok_model *m)
{
    nrd_text_close(m->text);
    nrd_tb_config_fini(&m->config);
    free(m);
}

static TRITONSERVER_Error *model_init(nrd_tok_model *m, TRITONBACKEND_Model *model)
{
    NRD_TB_TRY(nrd_tb_config_load(&m->config, model));
    NRD_TB_TRY(find_role(m));
    NRD_TB_TRY(read_type(m));
    const char *dir = nrd_tb_config_param(&m->config, "tokenizer_dir");
    if (!dir) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "model '%s': parameter tokenizer_dir is not set", m->config.name);
    }
    NRD_TB_TRY(nrd_tb_error(nrd_error_wrap(nrd_text_open(&m->text, dir), "model '%s'", m->config.name)));
    m->tokenizer = nrd_text_tokenizer(m->text);
    NRD_TB_TRY(find_picture_form(m));
    m->add_special_tokens = m->is_pre && adds_special_tokens(&m->config);
    m->skip_special_tokens = !m->is_pre && param_bool(&m->config, "skip_special_tokens");
    m->end_id = nrd_tokenizer_eos_id(m->tokenizer);
    m->pad_id = nrd_tokenizer_pad_id(m->tokenizer);
    if (m->pad_id < 0) {
        m->pad_id = m->end_id;
    }
    return NULL;
}

NRD_TB_MODEL_ENTRIES(nrd_tok_model, model_init, model_free)

static bool run_one(const nrd_tok_model *m, TRITONBACKEND_Request *request, uint64_t *compute_start,
                    uint64_t *compute_end)
{
    nrd_tb_inputs in = {0};
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *err = nrd_tb_inputs_read(&in, request);

    *compute_start = nrd_now_ns();
    if (!err) {
        err = TRITONBACKEND_ResponseNew(&response, request);
    }
    if (!err) {
        err = m->is_pre ? nrd_preprocess(m, request, &in, response)
                        : nrd_postprocess(m, request, &in, response);
    }
    *compute_end = nrd_now_ns();
    bool ok = !err;
    if (response) {
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                                                    err),
                         "cannot send a response");
        TRITONSERVER_ErrorDelete(err);
    } else {
        nrd_tb_send_error(request, err);
    }
    nrd_tb_inputs_fini(&in);
    return ok;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    nrd_tok_model *m = NULL;
    uint64_t start = nrd_now_ns(), first = 0, last = 0;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&m));
    for (uint32_t i = 0; i < request_count; i++) {
        uint64_t t0 = nrd_now_ns(), t1 = 0, t2 = 0;
        bool ok = run_one(m, requests[i], &t1, &t2);
        first = i == 0 ? t1 : first;
        last = t2;
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], ok, t0, t1,
                                                                     t2, nrd_now_ns()),
                         "statistics");
    }
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count, start,
                                                                      first, last, nrd_now_ns()),
                     "statistics");
    for (uint32_t i = 0; i < request_count; i++) {
        nrd_tb_release(requests[i]);
    }
    return NULL;
}
