/* SPDX-License-Identifier: Apache-2.0
 * nereid inspect on a model repository: what each config.pbtxt says, and what is in the engines and
 * tokenizers that it names. A template whose ${NAME} still stand is shown as well. */
#include "tools/inspect.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tools/pbtree.h"
#include "tools/tools.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMN = 14, LINE_WIDTH = 100 };

static char *config_of(const char *folder)
{
    return nrd_path_join(folder, "config.pbtxt");
}

bool nrd_inspect_is_served_model(const char *path)
{
    char *file = config_of(path);
    const bool yes = nrd_path_exists(file);
    free(file);
    return yes;
}

/* ---- what a configuration may hold ---- */

typedef enum { TEXT, NUMBER, MESSAGE } field_form;

/* The fields of ModelConfig, in the order of protos/model_config.proto. */
static const struct {
    const char *name;
    field_form form;
} known[] = {
    {"name", TEXT},
    {"platform", TEXT},
    {"backend", TEXT},
    {"runtime", TEXT},
    {"version_policy", MESSAGE},
    {"max_batch_size", NUMBER},
    {"input", MESSAGE},
    {"output", MESSAGE},
    {"batch_input", MESSAGE},
    {"batch_output", MESSAGE},
    {"optimization", MESSAGE},
    {"dynamic_batching", MESSAGE},
    {"sequence_batching", MESSAGE},
    {"ensemble_scheduling", MESSAGE},
    {"instance_group", MESSAGE},
    {"default_model_filename", TEXT},
    {"cc_model_filenames", MESSAGE},
    {"metric_tags", MESSAGE},
    {"parameters", MESSAGE},
    {"model_warmup", MESSAGE},
    {"model_operations", MESSAGE},
    {"model_transaction_policy", MESSAGE},
    {"model_repository_agents", MESSAGE},
    {"response_cache", MESSAGE},
    {"model_metrics", MESSAGE},
};

static bool is_unfilled(const char *value)
{
    return value && strstr(value, "${") != NULL;
}

/* Decimal, 0x… or 0…, as the server reads it. */
static bool is_number(const char *value)
{
    char *end;
    (void)strtoll(value, &end, 0);
    return *value && !*end;
}

static nrd_error *check_form(const char *file, const nrd_pbtree *f, field_form form)
{
    if ((form == MESSAGE) != (f->value == NULL)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: %s must be %s", file, f->line, f->name,
                          form == MESSAGE ? "a message in '{' and '}'" : "a value");
    }
    if (form == NUMBER && !is_unfilled(f->value) && !is_number(f->value)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: %s must be a number", file, f->line,
                          f->name);
    }
    return NULL;
}

static nrd_error *check_fields(const char *file, const nrd_pbtree *config)
{
    for (size_t i = 0; i < config->n_fields; i++) {
        const nrd_pbtree *f = &config->fields[i];
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(f->name, known[k].name) != 0) {
            k++;
        }
        if (k == sizeof known / sizeof *known) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: a model configuration has no field '%s'",
                              file, f->line, f->name);
        }
        NRD_TRY(check_form(file, f, known[k].form));
    }
    return NULL;
}

/* ---- rows ---- */

static void put_label(const char *label)
{
    printf("%-*s", COLUMN, label);
}

/* Text of a file, on one line of a terminal. */
static void put_plain(const char *text)
{
    for (; *text; text++) {
        putchar(iscntrl((unsigned char)*text) ? '?' : *text);
    }
}

static void print_row(const char *label, const char *text)
{
    put_label(label);
    put_plain(text);
    putchar('\n');
}

/* ---- parameters ---- */

static const char *parameter_value(const nrd_pbtree *parameter)
{
    return nrd_pbtree_value(nrd_pbtree_next(parameter, "value", NULL), "string_value");
}

/* A key that is given twice has its last value. */
static const char *find_parameter(const nrd_pbtree *config, const char *name)
{
    const char *value = NULL;
    for (const nrd_pbtree *p = NULL; (p = nrd_pbtree_next(config, "parameters", p));) {
        const char *key = nrd_pbtree_value(p, "key");
        value = key && !strcmp(key, name) ? parameter_value(p) : value;
    }
    return value;
}

/* NULL: empty or not filled, which the backends take as not set. */
static const char *set_parameter(const nrd_pbtree *config, const char *name)
{
    const char *value = find_parameter(config, name);
    return value && *value && !is_unfilled(value) ? value : NULL;
}

static bool has_own_row(const char *key)
{
    return !strcmp(key, "gpt_model_path") || !strcmp(key, "tokenizer_dir") ||
           !strcmp(key, "served_model_name");
}

static void print_parameters(const nrd_pbtree *config)
{
    const char *label = "parameters";
    for (const nrd_pbtree *p = NULL; (p = nrd_pbtree_next(config, "parameters", p));) {
        const char *key = nrd_pbtree_value(p, "key"), *value = parameter_value(p);
        if (key && value && set_parameter(config, key) == value && !has_own_row(key)) {
            put_label(label);
            put_plain(key);
            printf(" = ");
            put_plain(value);
            putchar('\n');
            label = "";
        }
    }
}

/* ---- ${NAME} that nobody filled ---- */

/* Distinct names, "\n"-separated with one at the start: "\na\nb\n". */
static void add_name(nrd_str *names, const char *name, size_t n)
{
    char *line = nrd_xasprintf("\n%.*s\n", (int)n, name);
    if (!strstr(nrd_str_cstr(names), line)) {
        nrd_str_puts(names, names->len ? line + 1 : line);
    }
    free(line);
}

static void add_names_of(nrd_str *names, const char *value)
{
    for (const char *p = value, *close; (p = strstr(p, "${")) && (close = strchr(p, '}'));
         p = close) {
        add_name(names, p + 2, (size_t)(close - p - 2));
    }
}

static void add_unfilled(nrd_str *names, const nrd_pbtree *f)
{
    if (f->value) {
        add_names_of(names, f->value);
    }
    for (size_t i = 0; i < f->n_fields; i++) {
        add_unfilled(names, &f->fields[i]);
    }
}

static void print_names(const char *label, const nrd_str *names)
{
    size_t at = COLUMN;
    if (!names->len) {
        return;
    }
    put_label(label);
    for (const char *p = names->data + 1; *p; p += strcspn(p, "\n") + 1) {
        const size_t n = strcspn(p, "\n");
        if (at > COLUMN && at + n + 4 > LINE_WIDTH) {
            printf("\n%*s", COLUMN, "");
            at = COLUMN;
        }
        char *name = nrd_xasprintf("%s${%.*s}", at > COLUMN ? " " : "", (int)n, p);
        put_plain(name);
        at += strlen(name);
        free(name);
    }
    putchar('\n');
}

/* An open parameter has its default; with any other open field the model is not loaded. */
static void print_unfilled(const nrd_pbtree *config)
{
    nrd_str parameters = {0}, others = {0};
    for (size_t i = 0; i < config->n_fields; i++) {
        const nrd_pbtree *f = &config->fields[i];
        add_unfilled(!strcmp(f->name, "parameters") ? &parameters : &others, f);
    }
    print_names("unfilled", &parameters);
    print_names("must be set", &others);
    nrd_str_fini(&parameters);
    nrd_str_fini(&others);
}

/* ---- the rest of a configuration ---- */

static void print_title(const char *name, const nrd_pbtree *config)
{
    const char *backend = nrd_pbtree_value(config, "backend");
    const char *platform = nrd_pbtree_value(config, "platform");
    const bool has_backend = backend && *backend;

    put_plain(name);
    if (has_backend || (platform && *platform)) {
        printf(": %s ", has_backend ? "backend" : "platform");
        put_plain(has_backend ? backend : platform);
    }
    putchar('\n');
}

static int by_number(const void *a, const void *b)
{
    const long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

/* 0: no version. The server ignores folders whose names begin with 0, too. */
static long long version_of(const char *folder, const char *name)
{
    char *path = nrd_path_join(folder, name);
    long long number = 0;
    const bool is =
        *name != '0' && nrd_parse_i64(name, &number) && number > 0 && nrd_path_is_dir(path);
    free(path);
    return is ? number : 0;
}

static nrd_error *print_versions(const char *folder)
{
    char **names = NULL;
    size_t n = 0, found = 0;

    NRD_TRY(nrd_dir_list(&names, &n, folder));
    long long *versions = nrd_xcalloc(n + 1, sizeof *versions);
    for (size_t i = 0; i < n; i++) {
        versions[found] = version_of(folder, names[i]);
        found += versions[found] > 0;
    }
    qsort(versions, found, sizeof *versions, by_number);
    put_label("versions");
    for (size_t i = 0; i < found; i++) {
        printf("%s%lld", i ? ", " : "", versions[i]);
    }
    printf("%s\n", found ? "" : "none");
    free(versions);
    nrd_names_free(names, n);
    return NULL;
}

static void print_batching(const nrd_pbtree *config)
{
    const char *max = nrd_pbtree_value(config, "max_batch_size");
    put_label("max batch");
    put_plain(max ? max : "0");
    printf("%s%s%s\n", nrd_pbtree_count(config, "dynamic_batching") ? ", dynamic batching" : "",
           nrd_pbtree_count(config, "sequence_batching") ? ", sequence batching" : "",
           nrd_pbtree_count(config, "response_cache") ? ", response cache" : "");
}

static void print_tensors(const nrd_pbtree *config)
{
    size_t optional = 0;
    for (const nrd_pbtree *f = NULL; (f = nrd_pbtree_next(config, "input", f));) {
        const char *value = nrd_pbtree_value(f, "optional");
        optional += value && strchr("tT1", *value) != NULL;
    }
    put_label("tensors");
    printf("%zu inputs (%zu optional), %zu outputs\n", nrd_pbtree_count(config, "input"), optional,
           nrd_pbtree_count(config, "output"));
}

/* "2 KIND_GPU 0 1, 1 KIND_CPU" */
static void print_instances(const nrd_pbtree *config)
{
    const nrd_pbtree *g = nrd_pbtree_next(config, "instance_group", NULL);
    if (!g) {
        return;
    }
    put_label("instances");
    for (const char *sep = ""; g; g = nrd_pbtree_next(config, "instance_group", g), sep = ", ") {
        const char *count = nrd_pbtree_value(g, "count"), *kind = nrd_pbtree_value(g, "kind");
        printf("%s", sep);
        put_plain(count ? count : "1");
        putchar(' ');
        put_plain(kind ? kind : "KIND_AUTO");
        for (const nrd_pbtree *gpu = NULL; (gpu = nrd_pbtree_next(g, "gpus", gpu));) {
            putchar(' ');
            put_plain(gpu->value ? gpu->value : "?");
        }
    }
    putchar('\n');
}

static void print_steps(const nrd_pbtree *config)
{
    const nrd_pbtree *ensemble = nrd_pbtree_next(config, "ensemble_scheduling", NULL);
    const nrd_pbtree *step = nrd_pbtree_next(ensemble, "step", NULL);
    if (!step) {
        return;
    }
    put_label("steps");
    for (const char *sep = ""; step; step = nrd_pbtree_next(ensemble, "step", step), sep = ", ") {
        const char *model = nrd_pbtree_value(step, "model_name");
        printf("%s", sep);
        put_plain(model ? model : "?");
    }
    putchar('\n');
}

/* ---- one model ---- */

static nrd_error *inspect_named(const nrd_pbtree *config, const nrd_inspect_options *o)
{
    const char *engine = set_parameter(config, "gpt_model_path");
    const char *tokenizer = set_parameter(config, "tokenizer_dir");

    if (tokenizer) {
        print_row("tokenizer in", tokenizer);
        NRD_TRY(nrd_error_wrap(nrd_inspect_tokenizer(tokenizer), "tokenizer_dir"));
    }
    if (!engine && find_parameter(config, "gpt_model_path")) {
        print_row("engine", "gpt_model_path is not set");
    }
    if (engine) {
        NRD_TRY(nrd_error_wrap(nrd_inspect_engine(engine, o), "gpt_model_path"));
    }
    return NULL;
}

static nrd_error *print_model(const char *folder, const char *name, const nrd_pbtree *config,
                              const nrd_inspect_options *o)
{
    const char *served = set_parameter(config, "served_model_name");

    print_title(name, config);
    NRD_TRY(print_versions(folder));
    print_batching(config);
    print_tensors(config);
    print_instances(config);
    print_steps(config);
    if (served) {
        print_row("served as", served);
    }
    print_parameters(config);
    print_unfilled(config);
    return nrd_error_wrap(inspect_named(config, o), "model '%s'", name);
}

/* The folder's name in its repository, where it may be a link to one of another name. */
static char *folder_name(const char *path)
{
    char *trimmed = nrd_xstrdup(path);
    for (size_t n = strlen(trimmed); n > 1 && trimmed[n - 1] == '/'; n--) {
        trimmed[n - 1] = '\0';
    }
    const char *base = nrd_path_base(trimmed);
    const bool is_named = strcmp(base, ".") != 0 && strcmp(base, "..") != 0;
    char *real = is_named ? NULL : realpath(path, NULL);
    char *name = nrd_xstrdup(nrd_path_base(real ? real : trimmed));
    free(real);
    free(trimmed);
    return name;
}

/* before: what comes before the model's lines, not before an error. */
static nrd_error *inspect_folder(const char *path, const nrd_inspect_options *o, const char *before)
{
    nrd_pbtree config = {0};
    char *file = config_of(path), *folder = folder_name(path);
    nrd_error *err = nrd_pbtree_read(&config, file);

    if (!err) {
        err = check_fields(file, &config);
    }
    const char *name = nrd_pbtree_value(&config, "name");
    if (!err && name && *name && strcmp(name, folder) != 0) { /* as the server refuses it */
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s:%d: name must be that of the folder, '%s'", file,
                         nrd_pbtree_next(&config, "name", NULL)->line, folder);
    }
    if (!err) {
        printf("%s", before);
        err = print_model(path, folder, &config, o);
    }
    nrd_pbtree_fini(&config);
    free(folder);
    free(file);
    return err;
}

nrd_error *nrd_inspect_served_model(const char *path, const nrd_inspect_options *o)
{
    return inspect_folder(path, o, "");
}

/* ---- all models ---- */

/* Paths of the folders with a config.pbtxt; the other names of the list are freed. */
static nrd_error *list_models(const char *path, char ***out, size_t *out_n)
{
    size_t n = 0, n_models = 0;
    char **names = NULL;

    NRD_TRY(nrd_dir_list(&names, &n, path));
    for (size_t i = 0; i < n; i++) {
        char *model = nrd_path_join(path, names[i]);
        free(names[i]);
        if (nrd_inspect_is_served_model(model)) {
            names[n_models++] = model;
        } else {
            free(model);
        }
    }
    *out = names;
    *out_n = n_models;
    return NULL;
}

bool nrd_inspect_is_repository(const char *path)
{
    char **models = NULL;
    size_t n = 0;
    nrd_error *err = nrd_path_is_dir(path) ? list_models(path, &models, &n) : NULL;

    nrd_error_free(err);
    nrd_names_free(models, n);
    return n > 0;
}

nrd_error *nrd_inspect_repository(const char *path, const nrd_inspect_options *o)
{
    nrd_error *err = NULL;
    char **models = NULL;
    size_t n = 0;

    NRD_TRY(list_models(path, &models, &n));
    printf("%s: model repository, %zu %s\n", path, n, n == 1 ? "model" : "models");
    for (size_t i = 0; i < n; i++) {
        nrd_error *next = inspect_folder(models[i], o, "\n");
        if (next) {
            nrd_tool_finish("inspect", err);
            err = next;
        }
    }
    nrd_names_free(models, n);
    return err;
}
