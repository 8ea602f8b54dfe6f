/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the model "whisper_bls". */
#include "backends/whisper/hear.h"

#include "audio/mel.h"
#include "backends/util/entry.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- the tokenizer's folder ---- */

/* Of a Hugging Face folder, else of openai/whisper: for all languages, for English. */
static const char *const tokenizers[] = {"tokenizer.json", "multilingual.tiktoken", "gpt2.tiktoken"};

/* *out: the tokenizer's file in a folder, the caller's; NULL: there is none. */
static nrd_error *tokenizer_file(const char *dir, char **out)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        NRD_TRY(nrd_path_make(out, dir, tokenizers[i]));
        if (nrd_path_exists(*out)) {
            return NULL;
        }
        free(*out);
        *out = NULL;
    }
    return NULL;
}

static nrd_error *has_tokenizer(const char *dir, bool *out)
{
    char *file = NULL;
    NRD_TRY(tokenizer_file(dir, &file));
    *out = file != NULL;
    free(file);
    return NULL;
}

/* The folder of this version, in which the published guide lays the tokenizer. */
static TRITONSERVER_Error *version_folder(const nrd_hear_model *m, TRITONBACKEND_Model *model, char **out)
{
    TRITONBACKEND_ArtifactType type;
    const char *location = NULL;
    char version[24];

    NRD_TB_TRY(TRITONBACKEND_ModelRepository(model, &type, &location));
    snprintf(version, sizeof version, "%llu", (unsigned long long)m->config.version);
    return nrd_tb_error(nrd_path_make(out, location, version));
}

/* tokenizer_dir, else the version's folder, else engine_dir. *out is the caller's. */
static TRITONSERVER_Error *find_folder(const nrd_hear_model *m, TRITONBACKEND_Model *model, char **out)
{
    const char *named = nrd_tb_config_param(&m->config, "tokenizer_dir");
    const char *engine = nrd_tb_config_param(&m->config, "engine_dir");
    nrd_error *err = NULL;
    bool found = false;

    *out = NULL;
    if (named) {
        *out = strdup(named);
        return *out ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    NRD_TB_TRY(version_folder(m, model, out));
    err = has_tokenizer(*out, &found);
    if (!err && !found && engine) {
        err = has_tokenizer(engine, &found);
        if (!err && found) {
            free(*out);
            *out = strdup(engine);
            err = *out ? NULL : nrd_error_no_memory();
        }
    }
    if (!err && !found) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "model '%s': there is no tokenizer: set the parameter tokenizer_dir to the "
                         "model's Hugging Face folder, or copy tokenizer.json, tokenizer_config.json, generation_config.json "
                         "and preprocessor_config.json from it, or OpenAI's multilingual.tiktoken, to '%s'", m->config.name, *out);
    }
    if (err) {
        free(*out);
        *out = NULL;
    }
    return nrd_tb_error(err);
}

/* That of the folder. OpenAI's file does not say how many languages there are: models that hear 128 mels know one more. */
static nrd_error *open_files(nrd_hear_model *m, const char *dir)
{
    enum { N_LANGUAGES = 99 };
    const char *n_mels = nrd_tb_config_param(&m->config, "n_mels");
    char *file = NULL;
    nrd_error *err = NULL;

    NRD_TRY(tokenizer_file(dir, &file));
    if (file && nrd_str_has_suffix(file, ".tiktoken")) {
        err = nrd_whisper_tokenizer_open(&m->openai, file, N_LANGUAGES + (n_mels && !strcmp(n_mels, "128")));
        m->tokenizer = m->openai;
    } else {
        err = nrd_text_open(&m->text, dir);
        m->tokenizer = err ? NULL : nrd_text_tokenizer(m->text);
    }
    free(file);
    return err ? err : nrd_whisper_open(&m->whisper, m->tokenizer, dir);
}

static TRITONSERVER_Error *open_tokenizer(nrd_hear_model *m, TRITONBACKEND_Model *model)
{
    char *dir = NULL;

    NRD_TB_TRY(find_folder(m, model, &dir));
    nrd_error *err = open_files(m, dir);
    if (!err && !m->whisper) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no tokenizer of Whisper", dir);
    }
    err = nrd_error_wrap(err, "model '%s'", m->config.name);
    free(dir);
    return nrd_tb_error(err);
}

/* ---- parameters ---- */

static TRITONSERVER_Error *read_parameters(nrd_hear_model *m)
{
    const char *n_mels = nrd_tb_config_param(&m->config, "n_mels"), *pad = nrd_tb_config_param(&m->config, "zero_pad");
    const char *llm = nrd_tb_config_param(&m->config, "tensorrt_llm_model_name");
    long long n = 0;

    m->llm_name = llm ? llm : "tensorrt_llm";
    m->zero_pad = pad && !strcasecmp(pad, "true");
    m->n_mels = nrd_whisper_n_mels(m->whisper);
    if (!n_mels) {
        return NULL;
    }
    if (!nrd_parse_i64(n_mels, &n) || n < 1 || n > NRD_MEL_MAX_BANDS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s': parameter n_mels is '%s', expected 1 to %d",
                             m->config.name, n_mels, NRD_MEL_MAX_BANDS);
    }
    if (n != m->n_mels && m->text) { /* beside OpenAI's there is no such file */
        NRD_LOG_WARN("model '%s': n_mels %lld, preprocessor_config.json says %d", m->config.name, n, m->n_mels);
    }
    m->n_mels = (int32_t)n;
    return NULL;
}

/* ---- entry points ---- */

static void model_free(nrd_hear_model *m)
{
    nrd_tb_inflight_stop(&m->inflight);
    if (m->allocator) {
        nrd_tb_log_error(TRITONSERVER_ResponseAllocatorDelete(m->allocator), "response allocator");
    }
    nrd_whisper_close(m->whisper);
    nrd_text_close(m->text);
    nrd_tokenizer_close(m->openai);
    nrd_tb_inner_config_free(m->llm);
    nrd_tb_config_fini(&m->config);
    pthread_mutex_destroy(&m->mu);
    free(m);
}

static TRITONSERVER_Error *model_init(nrd_hear_model *m, TRITONBACKEND_Model *model)
{
    pthread_mutex_init(&m->mu, NULL);
    NRD_TB_TRY(nrd_tb_config_load(&m->config, model));
    NRD_TB_TRY(open_tokenizer(m, model));
    NRD_TB_TRY(read_parameters(m));
    NRD_TB_TRY(nrd_tb_inner_allocator(&m->allocator));
    return nrd_tb_inflight_start(&m->inflight);
}

NRD_TB_MODEL_ENTRIES(nrd_hear_model, model_init, model_free)
NRD_TB_EXECUTE_EACH(nrd_hear_model, nrd_hear_start)
