/* SPDX-License-Identifier: Apache-2.0
 * nereid repo: writes the five-model repository for an engine and a tokenizer. */
#include "tools/repo.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "model/engine.h"
#include "text/generation.h"
#include "text/template/chat.h"
#include "text/tokenizer.h"
#include "tools/pbtree.h"
#include "tools/template.h"
#include "tools/tools.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char usage[] =
    "Usage: nereid repo --engine_dir ENGINE --tokenizer_dir TOKENIZER --output_dir REPO [options]\n"
    "Writes a model repository: preprocessing, tensorrt_llm, postprocessing, ensemble and\n"
    "tensorrt_llm_bls, each a config.pbtxt made from its template.\n";

enum { MAX_LISTS = 64 };

typedef struct options {
    const char *engine, *tokenizer, *repo, *templates, *served;
    const char *lists[MAX_LISTS];
    size_t n_lists;
    bool json;
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
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: the folder and how many models are in it"),
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
#define STANDS_FOR_ALL "ensemble"
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

/* ---- other names for models ---- */

static char *new_name(const char *model, const char *stands_for_all, const char *name)
{
    return !strcmp(model, stands_for_all) ? nrd_xstrdup(name) : nrd_xasprintf("%s.%s", name, model);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the quotation mark at text[at] begins the name of a model: behind `model_name:`, or a `name:` that
 * begins a line, since only that of the model itself does; inside of messages names are indented. */
static bool names_model(const char *text, size_t at)
{
    static const char *const keys[] = {"model_name", "name"};
    while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) {
        at--;
    }
    if (at == 0 || text[at - 1] != ':') {
        return false;
    }
    at--;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t n = strlen(keys[i]);
        if (at >= n && !memcmp(text + at - n, keys[i], n)) {
            const char before = at == n ? '\n' : text[at - n - 1];
            return i == 0 ? !is_word(before) : before == '\n';
        }
    }
    return false;
}

/* The configuration with the new names of these models. */
static void rename_in(const char *text, size_t n, char *const *folders, size_t n_folders, const char *stands_for_all,
                      const char *name, nrd_str *out)
{
    for (size_t i = 0; i < n;) {
        char *fresh = NULL;
        size_t len = 0;
        for (size_t k = 0; text[i] == '"' && k < n_folders && !fresh && names_model(text, i); k++) {
            len = strlen(folders[k]);
            if (n - i > len + 1 && !memcmp(text + i + 1, folders[k], len) && text[i + 1 + len] == '"') {
                fresh = new_name(folders[k], stands_for_all, name);
            }
        }
        if (fresh) {
            nrd_str_printf(out, "\"%s\"", fresh);
            i += len + 2;
        } else {
            nrd_str_putc(out, text[i++]);
        }
        free(fresh);
    }
}

char *nrd_repo_folder_name(const char *name)
{
    nrd_str out = {0};
    for (const char *p = name; *p; p++) {
        nrd_str_puts(&out, *p == '/' ? "--" : (char[2]){*p, '\0'});
    }
    return nrd_str_steal(&out);
}

/* All but config.pbtxt is a link to where it lies. */
static nrd_error *link_rest(const char *to, const char *from)
{
    char **names = NULL;
    size_t n = 0;
    char *real = realpath(from, NULL);
    nrd_error *err = real ? nrd_dir_list(&names, &n, from) : nrd_path_missing(from);

    for (size_t i = 0; i < n && !err; i++) {
        char *target = nrd_path_join(real, names[i]), *link = nrd_path_join(to, names[i]);
        if (strcmp(names[i], "config.pbtxt") != 0 && symlink(target, link) != 0 && errno != EEXIST) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot write '%s': %s", link, strerror(errno));
        }
        free(target);
        free(link);
    }
    nrd_names_free(names, n);
    free(real);
    return err;
}

static nrd_error *rename_model(const char *to, const char *from, char *const *folders, size_t n_folders, size_t i,
                               const char *stands_for_all, const char *name)
{
    nrd_str out = {0};
    char *text = NULL, *fresh = new_name(folders[i], stands_for_all, name);
    size_t n = 0;
    char *source = nrd_path_join(from, folders[i]), *target = nrd_path_join(to, fresh);
    char *config = nrd_path_join(source, "config.pbtxt"), *written = nrd_path_join(target, "config.pbtxt");
    nrd_error *err = nrd_file_read(&text, &n, config, MAX_TEMPLATE);

    err = err ? err : nrd_mkdirs(target);
    err = err ? err : link_rest(target, source);
    if (!err) {
        rename_in(text, n, folders, n_folders, stands_for_all, name, &out);
        err = nrd_file_write(written, nrd_str_cstr(&out), out.len);
    }
    nrd_str_fini(&out);
    free(text);
    free(fresh);
    free(source);
    free(target);
    free(config);
    free(written);
    return err;
}

static bool is_ensemble(const char *repo, const char *model)
{
    nrd_pbtree tree = {0};
    char *config = nrd_xasprintf("%s/%s/config.pbtxt", repo, model);
    nrd_error *err = nrd_pbtree_read(&tree, config);
    const char *platform = err ? NULL : nrd_pbtree_value(&tree, "platform");
    const bool is = platform && !strcmp(platform, "ensemble");
    nrd_pbtree_fini(&tree);
    nrd_error_free(err);
    free(config);
    return is;
}

nrd_error *nrd_repo_rename(const char *to, const char *from, const char *name, char **out_load, char **out_parts)
{
    char **names = NULL;
    size_t n = 0, n_models = 0, n_ensembles = 0, chosen = 0;
    nrd_str parts = {0};

    *out_load = *out_parts = NULL;
    nrd_error *err = nrd_dir_list(&names, &n, from);
    for (size_t i = 0; i < n && !err; i++) { /* models stand first */
        char *config = nrd_xasprintf("%s/%s/config.pbtxt", from, names[i]);
        if (nrd_path_exists(config)) {
            char *model = names[i];
            names[i] = names[n_models];
            names[n_models] = model;
            if (is_ensemble(from, model)) {
                chosen = n_ensembles++ == 0 ? n_models : chosen;
            }
            n_models++;
        }
        free(config);
    }
    if (!err && (n_models == 0 || (n_models > 1 && n_ensembles != 1))) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has %zu models of which %zu are ensembles; to stand beside others a "
                         "repository has one model, or one ensemble with its steps", from, n_models, n_ensembles);
    }
    for (size_t i = 0; i < n_models && !err; i++) {
        err = rename_model(to, from, names, n_models, i, names[chosen], name);
        if (i != chosen) {
            nrd_str_printf(&parts, "%s%s.%s", parts.len ? "," : "", name, names[i]);
        }
    }
    nrd_names_free(names, n);
    if (!err) {
        *out_load = nrd_xstrdup(name);
        *out_parts = nrd_xstrdup(nrd_str_cstr(&parts));
    }
    nrd_str_fini(&parts);
    return err;
}

/* ---- from templates ---- */

/* name: NULL, or of nrd_repo_options. */
static nrd_error *write_model(const char *templates, const char *model, const char *repo,
                              const nrd_template_values *values, const char *name)
{
    nrd_str out = {0}, named = {0};
    char *text = NULL;
    size_t n = 0;
    char *folder = name ? new_name(model, STANDS_FOR_ALL, name) : nrd_xstrdup(model);
    char *from = nrd_xasprintf("%s/%s/config.pbtxt", templates, model);
    char *to = nrd_xasprintf("%s/%s/config.pbtxt", repo, folder);
    char *version = nrd_xasprintf("%s/%s/1", repo, folder);
    nrd_error *err = nrd_file_read(&text, &n, from, MAX_TEMPLATE);

    if (!err) {
        err = nrd_mkdirs(version);
    }
    if (!err) {
        nrd_template_fill(values, text, n, &out);
        if (name) {
            rename_in(nrd_str_cstr(&out), out.len, (char *const *)(uintptr_t)models, N_MODELS, STANDS_FOR_ALL, name, &named);
        } else {
            nrd_str_append(&named, nrd_str_cstr(&out), out.len);
        }
        err = nrd_file_write(to, nrd_str_cstr(&named), named.len);
    }
    nrd_str_fini(&out);
    nrd_str_fini(&named);
    free(folder);
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

/* Of the names in `text`, the one that was probably meant -> *out_n bytes; NULL: none is close. */
static const char *nearest_name(const char *text, const char *name, size_t *out_n)
{
    const char *best = NULL;
    int limit = 4;

    for (const char *p = text; (p = strstr(p, "${")) != NULL;) {
        p += 2;
        const size_t n = strcspn(p, "}");
        const int d = nrd_opts_distance(p, n, name);
        if (d < limit && d < (int)strlen(name)) {
            limit = d;
            best = p;
            *out_n = n;
        }
    }
    return best;
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
            size_t n = 0;
            const char *near = nearest_name(nrd_str_cstr(&all), given->names[i], &n);
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--set: no template in %s has ${%s}%s%.*s%s", templates, given->names[i],
                             near ? "; did you mean " : "", (int)n, near ? near : "", near ? "?" : "");
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
    if (!is_dir && n > 5 && (!strcasecmp(name + n - 5, ".gguf") || !strcasecmp(name + n - 5, ".nemo"))) {
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
    char *engine = realpath(o->engine_dir, NULL), *tokenizer = realpath(o->tokenizer_dir, NULL), beams[16];
    nrd_error *err = check_served_names(o->served_names);

    if (!err && (!engine || !tokenizer)) {
        err = nrd_path_missing(engine ? o->tokenizer_dir : o->engine_dir);
    }
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        nrd_template_set(&values, defaults[i].name, defaults[i].value);
    }
    if (!err) {
        nrd_template_set(&values, "engine_dir", engine);
        nrd_template_set(&values, "tokenizer_dir", tokenizer);
        nrd_template_set(&values, "served_model_name", o->served_names);
        snprintf(beams, sizeof beams, "%d", (int)nrd_generation_beams(tokenizer)); /* those that a request gets without a word */
        nrd_template_set(&values, "max_beam_width", beams);
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
    const size_t n_written = o->name ? N_MODELS - 1 : N_MODELS; /* tensorrt_llm_bls is the last */
    for (size_t i = 0; !err && i < n_written; i++) {
        err = write_model(dir, models[i], repo, &values, o->name);
    }
    nrd_template_fini(&values);
    nrd_template_fini(&given);
    free(engine);
    free(tokenizer);
    free(dir);
    return err;
}

/* Beside the tokenizer, where it takes the place of its own; wrong ones are refused. */
static nrd_error *write_chat_template(const nrd_tokenizer *t, const char *text, const char *dir)
{
    nrd_chat *c = NULL;
    char *file = nrd_path_join(dir, "chat_template.jinja");
    nrd_error *err = nrd_error_wrap(nrd_chat_open(&c, t, text), "--chat-template");

    nrd_chat_free(c);
    err = err ? err : nrd_file_write(file, text, strlen(text));
    free(file);
    return err;
}

nrd_error *nrd_repo_tokenizer(const char *path, const char *given, const char *template, const char *dir, char **out)
{
    nrd_tokenizer *t = NULL;
    const char *from = given ? given : path;
    nrd_error *err = nrd_tokenizer_open(&t, from);

    *out = NULL;
    if (err) {
        return nrd_error_wrap(err, "no tokenizer (name one with --tokenizer_dir)");
    }
    if (nrd_path_is_dir(from) && !template) {
        *out = nrd_xstrdup(from);
    } else {
        err = nrd_mkdirs(dir);
        if (!err) {
            err = nrd_tokenizer_save(t, dir);
        }
        if (!err && template) {
            err = write_chat_template(t, template, dir);
        }
        if (!err) {
            *out = nrd_xstrdup(dir);
        }
    }
    nrd_tokenizer_close(t);
    return err;
}

/* A repository may be written before what it serves is there, but seldom is meant to. */
static void warn_of_missing(const options *o)
{
    nrd_tokenizer *t = NULL;
    nrd_error *err = nrd_tokenizer_open(&t, o->tokenizer);

    if (!nrd_engine_is_folder(o->engine)) {
        fprintf(stderr, "nereid repo: warning: '%s' holds no engine (nereid build makes one): tensorrt_llm will not load\n", o->engine);
    }
    if (err) {
        fprintf(stderr, "nereid repo: warning: no tokenizer: %s\n", nrd_error_message(err));
    }
    nrd_error_free(err);
    nrd_tokenizer_close(t);
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
        warn_of_missing(&o);
        if (o.json) {
            nrd_str out = {0};
            nrd_json_put_cstr(&out, o.repo);
            printf("{\"output_dir\": %s, \"models\": %d}\n", nrd_str_cstr(&out), N_MODELS);
            nrd_str_fini(&out);
        } else {
            printf("%s: %d models; start with: tritonserver --model-repository=%s\n", o.repo, N_MODELS, o.repo);
        }
    }
    return nrd_tool_finish("repo", err);
}
