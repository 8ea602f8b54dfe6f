/* SPDX-License-Identifier: Apache-2.0
 * Which models of the repository can be talked to, and their tokenizers. */
#include "frontends/openai/internal.h"

#include "base/clock.h"
#include "frontends/common/message.h"
#include "nereid/llm_tensors.h"

#include <string.h>

#define RECHECK_NS 1000000000ull /* a reloaded model may have another tokenizer */

static nrd_error *get_info(nrd_openai *o, const char *name, const nrd_model_info **out)
{
    *out = NULL;
    return nrd_models_get(o->api->front->models, name, -1, out);
}

/* A parameter of a configuration; NULL when it is not set or still a ${placeholder}. */
static const char *parameter(const nrd_json *config, const char *name)
{
    const nrd_json *p = nrd_json_get(nrd_json_get(config, "parameters"), name);
    const char *s = nrd_json_get_str(p, "string_value", "");
    return s[0] && strncmp(s, "${", 2) != 0 ? s : NULL;
}

static bool is_llm(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "backend", ""), "tensorrtllm");
}

static bool is_disaggregated(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "backend", ""), "disaggregated");
}

static nrd_error *set(char **field, const char *value)
{
    if (value) {
        char *copy = strdup(value);
        if (!copy) {
            return nrd_error_no_memory();
        }
        free(*field);
        *field = copy;
    }
    return NULL;
}

const char *const nrd_oai_outputs[OAI_N_OUTPUTS] = {
    "output_ids",      "sequence_length",     "cum_log_probs",     "output_log_probs", "kv_cache_reused_blocks",
    "arrival_time_ns", "first_token_time_ns", "last_token_time_ns"};

/* One of a configuration's inputs or outputs; NULL: it is not declared. */
static const nrd_json *declared(const nrd_json *config, const char *kind, const char *name)
{
    const nrd_json *list = nrd_json_get(config, kind);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        if (!strcmp(nrd_json_get_str(&list->child[i], "name", ""), name)) {
            return &list->child[i];
        }
    }
    return NULL;
}

/* What the published releases do not all have. */
static void read_tensors(nrd_oai_model *m, const nrd_json *config)
{
    const nrd_json *length = declared(config, "input", "request_output_len");

    m->unsigned_inputs = !strcmp(nrd_json_get_str(length, "data_type", ""), "TYPE_UINT32");
    m->short_names = declared(config, "input", "seed") != NULL;
    m->stop_words = declared(config, "input", "stop_words_list") != NULL;
    m->bad_words = declared(config, "input", "bad_words_list") != NULL;
    const nrd_json *features = declared(config, "input", "encoder_input_features");
    m->hears = features != NULL;
    m->hears_half = !strcmp(nrd_json_get_str(features, "data_type", ""), "TYPE_FP16");
    m->outputs = 0;
    for (size_t i = 0; i < OAI_N_OUTPUTS; i++) {
        m->outputs |= declared(config, "output", nrd_oai_outputs[i]) ? 1u << i : 0;
    }
}

/* How prompts become vectors: the parameter embedding_pooling, else as the model does. */
static nrd_error *read_pooling(nrd_oai_model *m, const nrd_json *config)
{
    const char *s = parameter(config, "embedding_pooling");
    static const char *const known[] = {"model", "last", "mean", "first"};

    m->pooling = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        m->pooling = !strcmp(s ? s : known[0], known[i]) ? known[i] : m->pooling;
    }
    if (s && !m->pooling && strcmp(s, "none") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "The parameter embedding_pooling of the model `%s` is '%.40s'; expected model, last, "
                          "mean, first or none.", m->llm, s);
    }
    return NULL;
}

/* What the backend says of its model. */
static nrd_error *read_description(nrd_oai_model *m, const nrd_json *config)
{
    const char *text = parameter(config, NRD_LLM_MODEL);

    nrd_json_doc_free(m->description_doc);
    m->description_doc = NULL;
    m->labels = NULL;
    m->sees = false;
    m->videos = (nrd_oai_videos){0};
    m->family = m->type = "";
    m->max_tokens = m->context_length = m->n_parameters = m->picture_tokens = 0;
    m->is_encoder = false;
    if (!text) {
        return NULL;
    }
    NRD_TRY(set(&m->description, text));
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&m->description_doc, m->description, strlen(m->description), NULL),
                           "The parameter " NRD_LLM_MODEL " of the model `%s`", m->llm));
    const nrd_json *root = nrd_json_root(m->description_doc), *labels = nrd_json_get(root, "labels");
    m->labels = nrd_json_is(labels, NRD_JSON_ARRAY) && nrd_json_len(labels) > 0 ? labels : NULL;
    m->sees = nrd_json_get_bool(root, "pictures", false);
    m->videos = (nrd_oai_videos){.frames = nrd_json_get_int(nrd_json_get(root, "videos"), "frames", 0),
                                 .apart = nrd_json_get_bool(nrd_json_get(root, "videos"), "apart", false)};
    m->picture_tokens = nrd_json_get_int(root, "picture_tokens", 0);
    m->function = nrd_json_get_str(root, "function", "none");
    m->pair_function = nrd_json_get_str(root, "pair_function", "none");
    m->prompt = nrd_json_get_str(root, "prompt", "");
    m->family = nrd_json_get_str(root, "family", "");
    m->type = nrd_json_get_str(root, "type", "");
    m->context_length = nrd_json_get_int(root, "context_length", 0);
    m->n_parameters = nrd_json_get_int(root, "parameters", 0);
    m->is_encoder = nrd_json_get_bool(root, "encoder", false);
    m->max_tokens = nrd_json_get_int(root, "max_tokens", 0);
    m->max_tokens = m->max_tokens > 0 && m->max_tokens <= INT32_MAX ? m->max_tokens : 0;
    return NULL;
}

/* As many as both the configuration and the engine allow. */
static void read_beams(nrd_oai_model *m, const nrd_json *config)
{
    const char *s = parameter(config, "max_beam_width");
    const int64_t built = nrd_json_get_int(m->description_doc ? nrd_json_root(m->description_doc) : NULL, "beams", 1);
    long long n = 1;

    n = s && nrd_parse_i64(s, &n) ? n : 1;
    n = n < built ? n : built;
    m->max_beams = n > 1 && n <= NRD_GENERATION_MAX_BEAMS ? (int32_t)n : n > 1 ? NRD_GENERATION_MAX_BEAMS : 1;
}

/* ---- from a name to the model that generates ---- */

static bool list_has(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += *p == ',') {
        size_t len = strcspn(p, ",");
        if (len == n && !memcmp(p, name, n)) {
            return true;
        }
        p += len;
    }
    return false;
}

/* The folder of one of the adapters of a configuration, "NAME=FOLDER;…"; owned; NULL: none of this name, or no
 * memory.
 * name NULL: the n-th name, owned. */
static char *configured(const nrd_json *config, const char *name, size_t n)
{
    const char *p = parameter(config, NRD_LLM_ADAPTERS);
    for (; p && *p; p += *p == ';') {
        size_t len = strcspn(p, ";"), key = strcspn(p, "=");
        if (key < len && name && strlen(name) == key && !memcmp(p, name, key)) {
            return strndup(p + key + 1, len - key - 1);
        }
        if (key < len && !name && n-- == 0) {
            return strndup(p, key);
        }
        p += len;
    }
    return NULL;
}

static nrd_error *take_llm(nrd_oai_model *m, const char *llm, const nrd_json *config)
{
    NRD_TRY(set(&m->llm, llm));
    NRD_TRY(set(&m->served, parameter(config, "served_model_name")));
    m->decoupled =
        nrd_json_get_bool(nrd_json_get(config, "model_transaction_policy"), "decoupled", false);
    m->max_batch = nrd_json_get_int(config, "max_batch_size", 1);
    read_tensors(m, config);
    NRD_TRY(read_description(m, config));
    read_beams(m, config);
    return read_pooling(m, config);
}

/* A model that generates by two others: what it is says the one that goes on with a prompt, what it takes says its own
 * configuration. */
static nrd_error *take_disaggregated(nrd_openai *o, const char *name, const nrd_json *config, nrd_oai_model *m)
{
    const char *generation = parameter(config, "generation_model_name");
    const nrd_model_info *info;

    NRD_TRY(get_info(o, generation ? generation : "", &info));
    nrd_error *err = is_llm(info->config) ? take_llm(m, name, info->config) : NULL;
    err = err ? err : set(&m->tokenizer_dir, parameter(info->config, "tokenizer_dir"));
    nrd_model_info_unref(info);
    m->decoupled = nrd_json_get_bool(nrd_json_get(config, "model_transaction_policy"), "decoupled", false);
    m->max_batch = nrd_json_get_int(config, "max_batch_size", 1);
    read_tensors(m, config);
    return err;
}

/* One model of those behind a name. */
static nrd_error *take_step(nrd_openai *o, const char *step, nrd_oai_model *m)
{
    const nrd_model_info *info;
    NRD_TRY(get_info(o, step, &info));
    nrd_error *err = is_llm(info->config)             ? take_llm(m, step, info->config)
                     : is_disaggregated(info->config) ? take_disaggregated(o, step, info->config, m)
                                                      : NULL;
    err = err ? err : set(&m->tokenizer_dir, parameter(info->config, "tokenizer_dir"));
    nrd_model_info_unref(info);
    return err;
}

/* The model itself, an ensemble's steps, or the model that a bls model calls. */
static nrd_error *take_config(nrd_openai *o, const char *name, const nrd_json *config,
                              nrd_oai_model *m)
{
    const nrd_json *steps = nrd_json_get(nrd_json_get(config, "ensemble_scheduling"), "step");
    if (is_llm(config)) {
        NRD_TRY(take_llm(m, name, config));
        NRD_TRY(set(&m->tokenizer_dir, parameter(config, "tokenizer_dir")));
    } else if (is_disaggregated(config)) {
        NRD_TRY(take_disaggregated(o, name, config, m));
    } else if (!strcmp(nrd_json_get_str(config, "backend", ""), "bls")) {
        const char *llm = parameter(config, "tensorrt_llm_model_name");
        m->is_bls = true;
        NRD_TRY(take_step(o, llm ? llm : "tensorrt_llm", m));
    }
    for (size_t i = 0; i < nrd_json_len(steps); i++) {
        NRD_TRY(take_step(o, nrd_json_get_str(&steps->child[i], "model_name", ""), m));
    }
    if (m->llm && !m->tokenizer_dir) { /* the model that the templates pair it with */
        nrd_error_free(take_step(o, "preprocessing", m));
    }
    return NULL;
}

static nrd_error *look_up(nrd_openai *o, const char *name, nrd_oai_model *m)
{
    const nrd_model_info *info;
    nrd_error *err = get_info(o, name, &info);
    if (err && nrd_error_get_code(err) != NRD_ERR_UNAVAILABLE &&
        nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) {
        nrd_error_free(err);
        return nrd_errorf(NRD_ERR_NOT_FOUND, "does not exist");
    }
    NRD_TRY(err);
    err = take_config(o, name, info->config, m);
    nrd_model_info_unref(info);
    if (!err && (!m->llm || !m->tokenizer_dir)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "is no language model with a tokenizer");
    }
    return err;
}

static nrd_error *ready_models(nrd_openai *o, nrd_json_doc **out)
{
    TRITONSERVER_Message *message = NULL;
    *out = NULL;
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelIndex(o->api->server, TRITONSERVER_INDEX_FLAG_READY, &message);
    return nrd_from_message(out, e, message);
}

/* What an adapter is called after: the first of its model's names. */
static nrd_error *set_parent(nrd_oai_model *m)
{
    free(m->parent);
    m->parent = m->served ? strndup(m->served, strcspn(m->served, ",")) : strdup(m->llm);
    return m->parent ? NULL : nrd_error_no_memory();
}

/* An adapter of a model: it answers as the model does. */
static nrd_error *look_up_adapter(nrd_openai *o, const char *name, const char *model, const nrd_json *config,
                                  nrd_oai_model *m)
{
    NRD_TRY(look_up(o, model, m));
    free(m->adapter_dir);
    m->adapter_dir = configured(config, name, 0);
    m->adapter = nrd_llm_adapter_number(name, strlen(name));
    return m->adapter_dir ? set_parent(m) : nrd_error_no_memory();
}

static nrd_error *look_up_loaded(nrd_openai *o, const char *name, nrd_oai_model *m, bool *out_found)
{
    char *llm = NULL;
    nrd_error *err = NULL;

    *out_found = nrd_oai_adapter_get(o, name, m, &llm);
    if (*out_found) {
        err = llm && m->adapter_dir ? look_up(o, llm, m) : nrd_error_no_memory();
        err = err ? err : set_parent(m);
    }
    free(llm);
    return err;
}

/* A ready model whose parameter served_model_name has this name, or one of whose adapters has; *out_found
 * false: none. */
static nrd_error *look_up_served(nrd_openai *o, const char *name, nrd_oai_model *m, bool *out_found)
{
    nrd_json_doc *index = NULL;
    nrd_error *err = NULL;
    bool found = false;

    NRD_TRY(ready_models(o, &index));
    const nrd_json *list = nrd_json_root(index);
    for (size_t i = 0; i < nrd_json_len(list) && !found && !err; i++) {
        const char *model = nrd_json_get_str(&list->child[i], "name", "");
        const nrd_model_info *info;
        nrd_error_free(get_info(o, model, &info)); /* it may have gone since */
        bool llm = info && is_llm(info->config);
        char *dir = llm ? configured(info->config, name, 0) : NULL;
        found = llm && (dir || list_has(parameter(info->config, "served_model_name"), name));
        if (found) {
            err = dir ? look_up_adapter(o, name, model, info->config, m) : look_up(o, model, m);
        }
        free(dir);
        nrd_model_info_unref(info);
    }
    nrd_json_doc_free(index);
    *out_found = found;
    return err;
}

void nrd_oai_model_unref(nrd_oai_model *m)
{
    if (m && atomic_fetch_sub(&m->refs, 1) == 1) {
        nrd_whisper_close(m->whisper);
        nrd_text_close(m->text);
        free(m->chat_error);
        free(m->name);
        free(m->llm);
        free(m->served);
        free(m->tokenizer_dir);
        free(m->adapter_dir);
        free(m->parent);
        nrd_json_doc_free(m->description_doc);
        free(m->description);
        free(m);
    }
}

static nrd_error *open_model(const nrd_openai *o, nrd_oai_model *m)
{
    NRD_TRY(nrd_text_open(&m->text, m->tokenizer_dir));
    m->tokenizer = nrd_text_tokenizer(m->text);
    NRD_TRY(m->hears ? nrd_whisper_open(&m->whisper, m->tokenizer, m->tokenizer_dir) : NULL);
    m->is_harmony = nrd_harmony_find(m->tokenizer, &m->harmony);
    const char *template = nrd_tokenizer_chat_template(m->tokenizer);
    m->has_channels = template && strstr(template, NRD_OAI_CHANNEL);
    m->sampling = !strcmp(o->api->options->generation_config, "none")
                      ? NRD_SAMPLING_BARE
                      : nrd_tokenizer_sampling(m->tokenizer);
    m->search = m->whisper || !strcmp(o->api->options->generation_config, "none") ? NULL : nrd_tokenizer_generation(m->tokenizer);
    nrd_error *err = nrd_text_chat(m->text, &m->chat);
    if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        return err; /* the next request tries again */
    }
    if (err) { /* completions still work */
        m->chat_error = strdup(nrd_error_message(err));
        nrd_error_free(err);
        return m->chat_error ? NULL : nrd_error_no_memory();
    }
    return NULL;
}

static nrd_error *check_ready(nrd_openai *o, const char *llm)
{
    bool ready = false;
    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerModelIsReady(o->api->server, llm, -1, &ready)));
    return ready ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is not ready.", llm);
}

static void forget(nrd_openai *o, nrd_oai_model *m)
{
    nrd_oai_model **p = &o->models;
    while (*p != m) {
        p = &(*p)->next;
    }
    *p = m->next;
    nrd_oai_model_unref(m);
}

static bool is_same_text(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

static bool is_same(const nrd_oai_model *a, const nrd_oai_model *b)
{
    return a->text == b->text && a->decoupled == b->decoupled && a->outputs == b->outputs &&
           a->short_names == b->short_names && a->stop_words == b->stop_words && a->bad_words == b->bad_words && a->hears == b->hears && a->hears_half == b->hears_half && a->unsigned_inputs == b->unsigned_inputs && a->pooling == b->pooling && a->max_beams == b->max_beams &&
           is_same_text(a->llm, b->llm) && is_same_text(a->tokenizer_dir, b->tokenizer_dir) &&
           is_same_text(a->served, b->served) && is_same_text(a->description, b->description) && a->adapter == b->adapter &&
           is_same_text(a->adapter_dir, b->adapter_dir);
}

/* By a name of the repository, else by one that a configuration gives. */
static nrd_error *look_up_any(nrd_openai *o, const char *name, nrd_oai_model *m)
{
    nrd_error *err = look_up(o, name, m);
    bool found = false;

    if (err && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND) {
        nrd_error *other = look_up_served(o, name, m, &found);
        if (!other && !found) {
            other = look_up_loaded(o, name, m, &found);
        }
        if (other || found) {
            nrd_error_free(err);
            return other;
        }
    }
    return err;
}

/* Lock held. */
static nrd_oai_model *listed(const nrd_openai *o, const char *name)
{
    nrd_oai_model *m = o->models;
    while (m && strcmp(m->name, name) != 0) {
        m = m->next;
    }
    return m;
}

nrd_oai_model *nrd_oai_known_model(nrd_openai *o, const char *name)
{
    pthread_mutex_lock(&o->mu);
    nrd_oai_model *m = listed(o, name);
    m = m && nrd_now_ns() - m->checked_ns < RECHECK_NS ? m : NULL;
    if (m) {
        atomic_fetch_add(&m->refs, 1);
    }
    pthread_mutex_unlock(&o->mu);
    return m;
}

void nrd_oai_forget_model(nrd_openai *o, const char *name)
{
    pthread_mutex_lock(&o->mu);
    nrd_oai_model *m = listed(o, name);
    if (m) {
        forget(o, m);
    }
    pthread_mutex_unlock(&o->mu);
}

/* Takes the place of what the name meant before, unless that is the same. Takes m; what is listed
 * comes back, shared. */
static nrd_oai_model *list_model(nrd_openai *o, nrd_oai_model *m)
{
    pthread_mutex_lock(&o->mu);
    nrd_oai_model *old = listed(o, m->name), *is = old && is_same(old, m) ? old : m;
    is->checked_ns = nrd_now_ns();
    atomic_fetch_add(&is->refs, 1);
    if (is == m) {
        if (old) {
            forget(o, old);
        }
        m->next = o->models;
        o->models = m;
    }
    pthread_mutex_unlock(&o->mu);
    if (is == old) {
        nrd_oai_model_unref(m);
    }
    return is;
}

/* Shares: the caller gives its reference back. May open files. */
static nrd_error *find(nrd_openai *o, const char *name, nrd_oai_model **out)
{
    nrd_error *err = NULL;
    nrd_oai_model *m = NULL;

    *out = nrd_oai_known_model(o, name);
    if (*out) {
        return NULL;
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    atomic_init(&m->refs, 1);
    NRD_TRY_GOTO(set(&m->name, name), err, fail);
    NRD_TRY_GOTO(look_up_any(o, name, m), err, fail);
    NRD_TRY_GOTO(check_ready(o, m->llm), err, fail);
    NRD_TRY_GOTO(open_model(o, m), err, fail);
    *out = list_model(o, m);
    return NULL;

fail:
    nrd_oai_model_unref(m);
    return err;
}

/* ---- the names that are offered ---- */

void nrd_oai_names_fini(nrd_oai_names *list)
{
    while (list->n > 0) {
        nrd_oai_model_unref(list->v[--list->n]);
    }
}

static void offer(nrd_openai *o, const char *name, nrd_oai_names *list)
{
    nrd_oai_model *m = NULL;
    nrd_error *err = find(o, name, &m);
    bool is_new = !err && list->n < OAI_MAX_LISTED;
    for (size_t i = 0; is_new && i < list->n; i++) {
        is_new = list->v[i] != m;
    }
    if (is_new) {
        list->v[list->n++] = m;
    } else {
        nrd_oai_model_unref(m);
    }
    nrd_error_free(err);
}

static nrd_error *offer_each(nrd_openai *o, const char *names, nrd_oai_names *list)
{
    for (const char *p = names; *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        char *name = strndup(p, n);
        if (!name) {
            return nrd_error_no_memory();
        }
        offer(o, name, list);
        free(name);
        p += n;
    }
    return NULL;
}

/* The adapters of a model: those of its configuration, and those that were loaded since. */
static void offer_adapters(nrd_openai *o, const char *llm, nrd_oai_names *list)
{
    const nrd_model_info *info;
    char *name;

    nrd_error_free(get_info(o, llm, &info));
    for (size_t i = 0; info && (name = configured(info->config, NULL, i)) != NULL; i++) {
        offer(o, name, list);
        free(name);
    }
    nrd_model_info_unref(info);
    for (size_t i = 0; (name = nrd_oai_adapter_name(o, llm, i)) != NULL; i++) {
        offer(o, name, list);
        free(name);
    }
}

/* A model is offered by the names that its configuration gives it; the repository's names are then
 * aliases. A model without such names, and the ensembles around it, by the repository's. */
nrd_error *nrd_oai_offered(nrd_openai *o, nrd_oai_names *list)
{
    nrd_json_doc *index = NULL;
    nrd_error *err = ready_models(o, &index);
    const nrd_json *rows = nrd_json_root(index);
    for (size_t i = 0; i < nrd_json_len(rows) && !err; i++) {
        const char *name = nrd_json_get_str(&rows->child[i], "name", "");
        nrd_oai_model *m = NULL;
        err = find(o, name, &m);
        if (err && nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) { /* not a model to talk to */
            nrd_error_free(err);
            err = NULL;
        } else if (!err && !m->served) {
            if (!m->is_bls) {
                offer(o, name, list);
            }
        } else if (!err && !strcmp(name, m->llm)) {
            err = offer_each(o, m->served, list);
        }
        if (m && !strcmp(name, m->llm)) {
            offer_adapters(o, name, list);
        }
        nrd_oai_model_unref(m);
    }
    nrd_json_doc_free(index);
    return err;
}

/* Always takes why. */
static nrd_error *not_found(nrd_openai *o, const char *name, nrd_error *why)
{
    nrd_oai_names list = {.n = 0};
    nrd_str names = {0};

    nrd_error *err = nrd_oai_offered(o, &list);
    for (size_t i = 0; i < list.n; i++) {
        nrd_str_printf(&names, "%s`%s`", i ? ", " : "", list.v[i]->name);
    }
    if (!err) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "The model `%.200s` %s; %s%s.", name,
                         nrd_error_message(why), list.n ? "this server has " : "no language model is ready",
                         names.no_memory ? "others" : nrd_str_cstr(&names));
    }
    nrd_oai_names_fini(&list);
    nrd_str_fini(&names);
    nrd_error_free(why);
    return err;
}

nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, nrd_oai_model **out)
{
    nrd_error *err = find(o, name, out);
    if (err && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND && o->api->front->switcher && !nrd_oai_switch_model(o, name)) {
        nrd_error_free(err);
        return nrd_oai_no_such_model(o, name);
    }
    return err && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND ? not_found(o, name, err) : err;
}

/* Names of one model, the ensembles around it among them, are one. *out_adapters: there are some. */
static nrd_error *find_only(nrd_openai *o, nrd_oai_model **out, bool *out_adapters)
{
    nrd_oai_names list = {.n = 0};
    nrd_oai_model *only = NULL;
    bool several = false;

    *out_adapters = false;
    if (o->api->front->switcher && !nrd_switcher_only(o->api->front->switcher)) { /* whichever of them is loaded */
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be given: there are several (/v1/models lists them)");
    }
    NRD_TRY(nrd_oai_offered(o, &list));
    for (size_t i = 0; i < list.n; i++) {
        nrd_oai_model *m = list.v[i];
        *out_adapters = *out_adapters || m->adapter;
        if (!m->adapter) {
            several = several || (only && strcmp(only->llm, m->llm) != 0);
            only = only ? only : m;
        }
    }
    if (only && !several) {
        atomic_fetch_add(&only->refs, 1);
        *out = only;
    }
    nrd_oai_names_fini(&list);
    return only && !several ? NULL
                            : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model",
                                             only ? "must be given: there are several (/v1/models lists them)"
                                                  : "no language model is ready");
}

nrd_error *nrd_oai_find_asked(nrd_openai *o, nrd_http_request *req, const char *name, nrd_oai_model **out)
{
    nrd_oai_model *only = NULL;
    bool adapters;

    nrd_error *err = nrd_oai_find_model(o, name, out);
    if (!err || nrd_error_get_code(err) != NRD_ERR_NOT_FOUND || !nrd_oai_takes_any_name(o, req)) {
        return err;
    }
    nrd_error_free(find_only(o, &only, &adapters));
    if (!only || adapters) {
        nrd_oai_model_unref(only);
        return err;
    }
    nrd_error_free(err);
    nrd_http_warn(req, "this server has no model '%.100s': '%.100s' answers", name, only->name);
    *out = only;
    return NULL;
}

nrd_error *nrd_oai_find_only(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out)
{
    bool adapters;
    *out = NULL;
    if (!nrd_oai_given(name)) {
        return find_only(o, out, &adapters);
    }
    return name->type == NRD_JSON_STRING
               ? nrd_oai_find_asked(o, req, name->str, out)
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be the name of a model");
}

void nrd_oai_free_models(nrd_openai *o)
{
    while (o->models) {
        forget(o, o->models);
    }
}
