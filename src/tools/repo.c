/* SPDX-License-Identifier: Apache-2.0
 * nereid repo: writes the five-model repository for an engine and a tokenizer. */
#include "tools/repo.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"
#include "tools/template.h"
#include "tools/tools.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char usage[] =
    "Usage: nereid repo --engine_dir ENGINE --tokenizer_dir TOKENIZER --output_dir REPO [options]\n"
    "Writes a model repository: preprocessing, tensorrt_llm, postprocessing, ensemble and\n"
    "tensorrt_llm_bls, each a config.pbtxt made from its template.\n";

enum { MAX_LISTS = 64 };

typedef struct options {
    const char *engine, *tokenizer, *repo, *templates, *served;
    const char *lists[MAX_LISTS];
    size_t n_lists;
} options;

static nrd_error *add_list(void *values, const char *name, const char *value)
{
    options *o = values;
    if (o->n_lists == MAX_LISTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: at most %d times", name, MAX_LISTS);
    }
    o->lists[o->n_lists++] = value;
    return NULL;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "engine_dir", NULL, engine, "DIR", NULL, "the engine folder"),
    OPT(STR, "tokenizer_dir", NULL, tokenizer, "DIR", NULL, "folder with its tokenizer"),
    OPT(STR, "output_dir", "-o", repo, "DIR", NULL, "the repository to write"),
    OPT(STR, "served_model_name", NULL, served, "NAME[,NAME…]", "the engine folder's name",
        "what clients of /v1 call the model"),
    {.name = "set", .form = NRD_OPT_CUSTOM, .parse = add_list, .arg = "NAME:VALUE[,NAME:VALUE…]",
     .help = "any ${NAME} of the templates (all_models/), for example "
             "decoupled_mode:False,enable_kv_cache_reuse:True; may be repeated"},
    OPT(STR, "templates", NULL, templates, "DIR", "the built-in ones", "other templates"),
};
const nrd_tool_table nrd_repo_table = NRD_TOOL_TABLE("repo", usage, rows, 0);

static const char *const models[] = {"preprocessing", "tensorrt_llm", "postprocessing", "ensemble",
                                     "tensorrt_llm_bls"};
enum { N_MODELS = sizeof models / sizeof *models, MAX_TEMPLATE = 1 << 20, MAX_NAME = 256 };

/* Values that the templates must have, and defaults that the model would otherwise warn about. The
 * rest may stay open. */
static const struct {
    const char *name, *value;
} defaults[] = {
    {"triton_max_batch_size", "64"},
    {"decoupled_mode", "True"},
    {"triton_backend", "tensorrtllm"},
    {"batching_strategy", "inflight_fused_batching"},
    {"batch_scheduler_policy", "max_utilization"},
    {"enable_kv_cache_reuse", "True"},
    {"enable_chunked_context", "True"},
    {"max_beam_width", "1"},
    {"decoding_mode", "auto"},
    {"kv_cache_host_memory_bytes", "0"},
    {"sink_token_length", "0"},
    {"normalize_log_probs", "True"},
    {"exclude_input_in_output", "False"},
    {"cancellation_check_period_ms", "100"},
    {"stats_check_period_ms", "100"},
    {"iter_stats_max_iterations", "1000"},
    {"request_stats_max_iterations", "0"},
    {"max_queue_delay_microseconds", "0"},
    {"max_queue_size", "0"},
    {"logits_datatype", "TYPE_FP32"},
    {"encoder_input_features_data_type", "TYPE_FP16"},
    {"preprocessing_instance_count", "1"},
    {"postprocessing_instance_count", "1"},
    {"bls_instance_count", "1"},
};

static char *templates_dir(void)
{
    char *exe = nrd_path_exe_dir();
    char *dir = nrd_path_join(exe, "../share/nereid/all_models/inflight_batcher_llm");
    free(exe);
    return dir;
}

static nrd_error *write_model(const char *templates, const char *model, const char *repo,
                              const nrd_template_values *values)
{
    nrd_str out = {0};
    char *text = NULL;
    size_t n = 0;
    char *from = nrd_xasprintf("%s/%s/config.pbtxt", templates, model);
    char *to = nrd_xasprintf("%s/%s/config.pbtxt", repo, model);
    char *version = nrd_xasprintf("%s/%s/1", repo, model);
    nrd_error *err = nrd_file_read(&text, &n, from, MAX_TEMPLATE);

    if (!err) {
        err = nrd_mkdirs(version);
    }
    if (!err) {
        nrd_template_fill(values, text, n, &out);
        err = nrd_file_write(to, nrd_str_cstr(&out), out.len);
    }
    nrd_str_fini(&out);
    free(text);
    free(from);
    free(to);
    free(version);
    return err;
}

static bool stands_in(const char *text, size_t n, const char *name)
{
    char *field = nrd_xasprintf("${%s}", name);
    bool found = memmem(text, n, field, strlen(field)) != NULL;
    free(field);
    return found;
}

/* A value that no template asks for would be lost without a word. */
static nrd_error *check_names(const char *templates, const nrd_template_values *given)
{
    nrd_error *err = NULL;
    nrd_str all = {0};

    for (size_t i = 0; !err && i < N_MODELS; i++) {
        char *text = NULL, *from = nrd_xasprintf("%s/%s/config.pbtxt", templates, models[i]);
        size_t n = 0;
        err = nrd_file_read(&text, &n, from, MAX_TEMPLATE);
        if (!err) {
            nrd_str_append(&all, text, n);
        }
        free(text);
        free(from);
    }
    for (size_t i = 0; !err && i < given->n; i++) {
        if (!stands_in(nrd_str_cstr(&all), all.len, given->names[i])) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--set: no template in %s has ${%s}", templates,
                             given->names[i]);
        }
    }
    nrd_str_fini(&all);
    return err;
}

/* A name stands in a configuration, in JSON, in URLs and on terminals. */
static bool is_plain(unsigned char c)
{
    return c >= ' ' && c != 0x7f && c != '"' && c != '\\' && c != ',';
}

static nrd_error *check_served_names(const char *names)
{
    for (const char *p = names;; p++) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n > MAX_NAME) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "served_model_name: a name must have 1 to %d bytes, got '%s'",
                              MAX_NAME, names);
        }
        for (size_t i = 0; i < n; i++) {
            if (!is_plain((unsigned char)p[i])) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "served_model_name: quotes, backslashes and control "
                                  "characters are not allowed in '%s'", names);
            }
        }
        p += n;
        if (!*p) {
            return NULL;
        }
    }
}

/* ".../models--Org--Name/snapshots/HASH" -> "Org/Name"; NULL: another path. */
static char *hub_name(const char *path)
{
    char *snapshots = nrd_path_dir(path), *model = nrd_path_dir(snapshots);
    const char *base = nrd_path_base(model);
    nrd_str name = {0};

    if (!strcmp(nrd_path_base(snapshots), "snapshots") && nrd_str_has_prefix(base, "models--")) {
        for (const char *p = base + strlen("models--"); *p; p++) {
            bool sep = p[0] == '-' && p[1] == '-';
            nrd_str_putc(&name, sep ? '/' : *p);
            p += sep;
        }
    }
    free(snapshots);
    free(model);
    return name.len > 0 ? nrd_str_steal(&name) : NULL;
}

char *nrd_repo_model_name(const char *path)
{
    const bool is_dir = nrd_path_is_dir(path);
    char *real = is_dir ? realpath(path, NULL) : NULL; /* a file may be a link to a name that says nothing */
    char *name = is_dir ? hub_name(real ? real : path) : NULL;

    if (!name) {
        name = nrd_xstrdup(nrd_path_base(real ? real : path));
    }
    size_t n = strlen(name);
    if (!is_dir && n > 5 && !strcasecmp(name + n - 5, ".gguf")) {
        name[n - 5] = '\0';
    }
    for (char *c = name; *c; c++) {
        *c = is_plain((unsigned char)*c) ? *c : '_';
    }
    free(real);
    return name;
}

/* A value that stands between quotes in a config.pbtxt, where JSON's escapes mean the same. */
static void set_quoted(nrd_template_values *values, const char *name, const char *value)
{
    nrd_str quoted = {0};
    nrd_json_put_cstr(&quoted, value);
    quoted.data[quoted.len - 1] = '\0';
    nrd_template_set(values, name, quoted.data + 1);
    nrd_str_fini(&quoted);
}

nrd_error *nrd_repo_write(const char *repo, const nrd_repo_options *o)
{
    nrd_template_values values = {0}, given = {0};
    char *dir = o->templates ? nrd_xstrdup(o->templates) : templates_dir();
    char *engine = realpath(o->engine_dir, NULL), *tokenizer = realpath(o->tokenizer_dir, NULL);
    nrd_error *err = check_served_names(o->served_names);

    if (!err && (!engine || !tokenizer)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist",
                         engine ? o->tokenizer_dir : o->engine_dir);
    }
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        nrd_template_set(&values, defaults[i].name, defaults[i].value);
    }
    if (!err) {
        nrd_template_set(&values, "engine_dir", engine);
        nrd_template_set(&values, "tokenizer_dir", tokenizer);
        nrd_template_set(&values, "served_model_name", o->served_names);
        if (o->adapters && o->adapters[0]) {
            nrd_template_set(&values, "lora_adapters", o->adapters);
        }
        if (o->record) {
            nrd_template_set(&values, "scheduler_record", o->record);
        }
        if (o->speculative) {
            set_quoted(&values, "speculative_config", o->speculative);
        }
    }
    for (size_t i = 0; !err && i < o->n_lists; i++) {
        err = nrd_template_set_list(&given, o->lists[i]);
    }
    if (!err) {
        err = check_names(dir, &given);
    }
    for (size_t i = 0; !err && i < given.n; i++) {
        nrd_template_set(&values, given.names[i], given.values[i]);
    }
    for (size_t i = 0; !err && i < N_MODELS; i++) {
        err = write_model(dir, models[i], repo, &values);
    }
    nrd_template_fini(&values);
    nrd_template_fini(&given);
    free(engine);
    free(tokenizer);
    free(dir);
    return err;
}

nrd_error *nrd_repo_tokenizer(const char *path, const char *given, const char *dir, char **out)
{
    nrd_tokenizer *t = NULL;
    const char *from = given ? given : path;
    nrd_error *err = nrd_tokenizer_open(&t, from);

    *out = NULL;
    if (err) {
        return nrd_error_wrap(err, "no tokenizer (name one with --tokenizer_dir)");
    }
    if (nrd_path_is_dir(from)) {
        *out = nrd_xstrdup(from);
    } else {
        err = nrd_mkdirs(dir);
        if (!err) {
            err = nrd_tokenizer_save(t, dir);
        }
        if (!err) {
            *out = nrd_xstrdup(dir);
        }
    }
    nrd_tokenizer_close(t);
    return err;
}

int nrd_tool_repo(int argc, char **argv)
{
    options o = {0};
    int status = nrd_tool_parse(&nrd_repo_table, argc, argv, &o, NULL, NULL);

    if (status >= 0) {
        return status;
    }
    if (!o.engine || !o.tokenizer || !o.repo) {
        fprintf(stderr, "nereid repo: --%s is missing (see --help)\n",
                !o.engine ? "engine_dir" : !o.tokenizer ? "tokenizer_dir" : "output_dir");
        return 2;
    }
    char *name = nrd_repo_model_name(o.engine);
    nrd_error *err = nrd_repo_write(o.repo, &(nrd_repo_options){.engine_dir = o.engine,
                                                                .tokenizer_dir = o.tokenizer,
                                                                .templates = o.templates,
                                                                .served_names = o.served ? o.served : name,
                                                                .lists = o.lists,
                                                                .n_lists = o.n_lists});
    free(name);
    if (!err) {
        printf("%s: %d models; start with: tritonserver --model-repository=%s\n", o.repo, N_MODELS, o.repo);
    }
    return nrd_tool_finish("repo", err);
}
