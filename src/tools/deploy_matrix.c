/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/deploy_matrix.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_FILE = 1 << 20, MAX_NAME = 100 };

void nrd_deploy_matrix_init(nrd_deploy_matrix *m)
{
    memset(m, 0, sizeof *m);
    nrd_arena_init(&m->text);
}

void nrd_deploy_matrix_fini(nrd_deploy_matrix *m)
{
    nrd_arena_fini(&m->text);
}

static nrd_error *keep(nrd_deploy_matrix *m, const char *text, size_t n, const char **out)
{
    *out = nrd_arena_strndup(&m->text, text, n);
    return *out ? NULL : nrd_error_no_memory();
}

static nrd_error *check_room(const char *key, size_t n)
{
    return n < NRD_DEPLOY_MAX
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: at most %d entries", key, NRD_DEPLOY_MAX);
}

/* ---- entries as text ---- */

/* "Org/Model-7B:Q4", "/models/Model-7B/", "Model-7B.gguf" -> "Model-7B" */
static nrd_error *name_of_path(nrd_deploy_matrix *m, const char *path, const char **out)
{
    static const char suffix[] = ".gguf";
    const size_t n_suffix = sizeof suffix - 1;
    size_t end = strlen(path), begin;

    while (end > 0 && path[end - 1] == '/') {
        end--;
    }
    for (begin = end; begin > 0 && path[begin - 1] != '/';) {
        begin--;
    }
    const size_t id = strcspn(path + begin, ":@");
    size_t n = id < end - begin ? id : end - begin;
    if (n > n_suffix && !strncasecmp(path + begin + n - n_suffix, suffix, n_suffix)) {
        n -= n_suffix;
    }
    return keep(m, path + begin, n, out);
}

static nrd_error *add_model(nrd_deploy_matrix *m, const char *text)
{
    const char *equals = strchr(text, '=');

    NRD_TRY(check_room("models", m->n_models));
    nrd_deploy_model *to = &m->models[m->n_models];
    *to = (nrd_deploy_model){0};
    NRD_TRY(keep(m, equals ? equals + 1 : text, strlen(equals ? equals + 1 : text), &to->path));
    NRD_TRY(equals ? keep(m, text, (size_t)(equals - text), &to->name)
                   : name_of_path(m, to->path, &to->name));
    m->n_models++;
    return NULL;
}

static nrd_error *add_precision(nrd_deploy_matrix *m, const char *text)
{
    NRD_TRY(check_room("precisions", m->n_precisions));
    nrd_deploy_precision *to = &m->precisions[m->n_precisions];
    *to = (nrd_deploy_precision){0};
    NRD_TRY(keep(m, text, strlen(text), &to->name));
    m->n_precisions++;
    return NULL;
}

static nrd_error *read_number(const char *key, const char *text, int32_t *out)
{
    long long v;
    if (!nrd_parse_i64(text, &v) || v < 1 || v > NRD_DEPLOY_MAX_NUMBER) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected a whole number from 1 to %d, got '%s'",
                          key, NRD_DEPLOY_MAX_NUMBER, text);
    }
    *out = (int32_t)v;
    return NULL;
}

static nrd_error *add_batch_size(nrd_deploy_matrix *m, const char *text)
{
    NRD_TRY(check_room("batch_sizes", m->n_batch_sizes));
    NRD_TRY(read_number("batch_sizes", text, &m->batch_sizes[m->n_batch_sizes]));
    m->n_batch_sizes++;
    return NULL;
}

static nrd_error *add_lengths(nrd_deploy_matrix *m, const char *text)
{
    NRD_TRY(check_room("lengths", m->n_lengths));
    nrd_deploy_lengths *to = &m->lengths[m->n_lengths];
    const char *comma = strchr(text, ','), *input;
    if (!comma) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "lengths: expected INPUT,OUTPUT in tokens, as 2048,1024, got '%s'", text);
    }
    NRD_TRY(keep(m, text, (size_t)(comma - text), &input));
    NRD_TRY(read_number("lengths: input", input, &to->input));
    NRD_TRY(read_number("lengths: output", comma + 1, &to->output));
    m->n_lengths++;
    return NULL;
}

static nrd_error *add_word(nrd_deploy_matrix *m, const char *key, const char **list, size_t *n,
                           const char *text)
{
    NRD_TRY(check_room(key, *n));
    NRD_TRY(keep(m, text, strlen(text), &list[*n]));
    (*n)++;
    return NULL;
}

static nrd_error *add_entry(nrd_deploy_matrix *m, const char *key, const char *text)
{
    return !strcmp(key, "models")        ? add_model(m, text)
           : !strcmp(key, "precisions")  ? add_precision(m, text)
           : !strcmp(key, "batch_sizes") ? add_batch_size(m, text)
           : !strcmp(key, "lengths")     ? add_lengths(m, text)
           : !strcmp(key, "set")         ? add_word(m, key, m->sets, &m->n_sets, text)
                                         : add_word(m, key, m->builds, &m->n_builds, text);
}

nrd_error *nrd_deploy_matrix_add(nrd_deploy_matrix *m, const char *key, const char *text)
{
    const bool is_list = !strcmp(key, "precisions") || !strcmp(key, "batch_sizes");
    const char *between = is_list ? ", " : !strcmp(key, "lengths") ? " " : "";

    if (!between[0]) {
        return add_entry(m, key, text);
    }
    for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
        const char *entry;
        const size_t n = strcspn(p, between);
        NRD_TRY(keep(m, p, n, &entry));
        NRD_TRY(add_entry(m, key, entry));
        p += n;
    }
    return NULL;
}

/* ---- the file ---- */

static nrd_error *wrong(const char *key, const char *expected, const nrd_json *got)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected %s, got %s", key, expected,
                      nrd_json_type_name(got));
}

static nrd_error *read_text(nrd_deploy_matrix *m, const char *key, const nrd_json *node,
                            const char **out)
{
    if (!nrd_json_is(node, NRD_JSON_STRING) || strlen(nrd_json_str(node, "")) != node->n ||
        node->n == 0) {
        return wrong(key, "a text", node);
    }
    return keep(m, nrd_json_str(node, ""), node->n, out);
}

static nrd_error *read_ranks(const char *key, const nrd_json *node, int32_t *out)
{
    const int64_t v = nrd_json_int(node, 0);
    if (v < 1 || v > NRD_DEPLOY_MAX_RANKS) {
        nrd_str got = {0};
        nrd_json_put(&got, node, -1);
        nrd_error *err =
            nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected a whole number from 1 to %d, got %.64s",
                       key, NRD_DEPLOY_MAX_RANKS, nrd_str_cstr(&got));
        nrd_str_fini(&got);
        return err;
    }
    *out = (int32_t)v;
    return NULL;
}

static nrd_error *read_model(nrd_deploy_matrix *m, const nrd_json *object)
{
    nrd_deploy_model *to = &m->models[m->n_models];

    *to = (nrd_deploy_model){0};
    for (size_t i = 0; i < object->n; i++) {
        const nrd_json *v = nrd_json_at(object, i);
        NRD_TRY(
            !strcmp(v->key, "name")   ? read_text(m, "models: name", v, &to->name)
            : !strcmp(v->key, "path") ? read_text(m, "models: path", v, &to->path)
            : !strcmp(v->key, "tokenizer_dir")
                ? read_text(m, "models: tokenizer_dir", v, &to->tokenizer)
            : !strcmp(v->key, "tp_size") ? read_ranks("models: tp_size", v, &to->tp_size)
            : !strcmp(v->key, "pp_size")
                ? read_ranks("models: pp_size", v, &to->pp_size)
                : nrd_errorf(NRD_ERR_INVALID_ARG,
                             "models: '%s' is none of name, path, tokenizer_dir, tp_size, pp_size",
                             v->key));
    }
    if (!to->path) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "models: an entry has no path");
    }
    NRD_TRY(to->name ? NULL : name_of_path(m, to->path, &to->name));
    m->n_models++;
    return NULL;
}

static nrd_error *read_precision(nrd_deploy_matrix *m, const nrd_json *object)
{
    nrd_deploy_precision *to = &m->precisions[m->n_precisions];
    const nrd_json *words = NULL;

    *to = (nrd_deploy_precision){0};
    for (size_t i = 0; i < object->n; i++) {
        const nrd_json *v = nrd_json_at(object, i);
        if (!strcmp(v->key, "name")) {
            NRD_TRY(read_text(m, "precisions: name", v, &to->name));
        } else if (!strcmp(v->key, "convert") && nrd_json_is(v, NRD_JSON_ARRAY) &&
                   v->n <= NRD_DEPLOY_MAX) {
            words = v;
        } else {
            return nrd_errorf(
                NRD_ERR_INVALID_ARG,
                "precisions: '%s' is neither name nor convert, a list of at most %d options",
                v->key, NRD_DEPLOY_MAX);
        }
    }
    if (!to->name || !words) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "precisions: an entry has no %s",
                          to->name ? "convert" : "name");
    }
    to->convert = nrd_arena_alloc(&m->text, (words->n + 1) * sizeof *to->convert);
    if (!to->convert) {
        return nrd_error_no_memory();
    }
    for (; to->n_convert < words->n; to->n_convert++) {
        NRD_TRY(read_text(m, "precisions: convert", nrd_json_at(words, to->n_convert),
                          &to->convert[to->n_convert]));
    }
    m->n_precisions++;
    return NULL;
}

/* A number, a pair of numbers, a text or an object. */
static nrd_error *read_entry(nrd_deploy_matrix *m, const char *key, const nrd_json *node)
{
    char text[64];
    const char *kept;

    if (nrd_json_is(node, NRD_JSON_OBJECT) && !strcmp(key, "models")) {
        NRD_TRY(check_room(key, m->n_models));
        return read_model(m, node);
    }
    if (nrd_json_is(node, NRD_JSON_OBJECT) && !strcmp(key, "precisions")) {
        NRD_TRY(check_room(key, m->n_precisions));
        return read_precision(m, node);
    }
    if (nrd_json_is(node, NRD_JSON_INT) &&
        !strcmp(key, "batch_sizes")) { /* as a text it is read too */
        snprintf(text, sizeof text, "%lld", (long long)node->i);
        return add_entry(m, key, text);
    }
    if (nrd_json_is(node, NRD_JSON_ARRAY) && node->n == 2 && !strcmp(key, "lengths") &&
        nrd_json_is(nrd_json_at(node, 0), NRD_JSON_INT) &&
        nrd_json_is(nrd_json_at(node, 1), NRD_JSON_INT)) {
        snprintf(text, sizeof text, "%lld,%lld", (long long)nrd_json_at(node, 0)->i,
                 (long long)nrd_json_at(node, 1)->i);
        return add_entry(m, key, text);
    }
    if (nrd_json_is(node, NRD_JSON_ARRAY) && !strcmp(key, "lengths")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "lengths: expected pairs of whole numbers, [INPUT, OUTPUT]");
    }
    NRD_TRY(read_text(m, key, node, &kept));
    return add_entry(m, key, kept);
}

static nrd_error *read_member(nrd_deploy_matrix *m, const nrd_json *v)
{
    static const char *const lists[] = {"models",  "precisions", "batch_sizes",
                                        "lengths", "set",        "build"};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(v->key, lists[i]) != 0) {
            continue;
        }
        if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
            return wrong(v->key, "a list", v);
        }
        for (size_t k = 0; k < v->n; k++) {
            NRD_TRY(read_entry(m, lists[i], nrd_json_at(v, k)));
        }
        return NULL;
    }
    return !strcmp(v->key, "device")       ? read_text(m, "device", v, &m->device)
           : !strcmp(v->key, "output_dir") ? read_text(m, "output_dir", v, &m->output_dir)
           : !strcmp(v->key, "tp_size")    ? read_ranks("tp_size", v, &m->tp_size)
           : !strcmp(v->key, "pp_size")
               ? read_ranks("pp_size", v, &m->pp_size)
               : nrd_errorf(NRD_ERR_INVALID_ARG,
                            "'%s' is none of models, precisions, batch_sizes, lengths, set, build, "
                            "device, output_dir, tp_size, pp_size",
                            v->key);
}

nrd_error *nrd_deploy_matrix_parse(nrd_deploy_matrix *m, const char *text, size_t n)
{
    nrd_json_doc *doc = NULL;
    NRD_TRY(
        nrd_json_parse(&doc, text, n, &(nrd_json_limits){.max_bytes = MAX_FILE, .max_depth = 8}));
    const nrd_json *root = nrd_json_root(doc);
    nrd_error *err =
        nrd_json_is(root, NRD_JSON_OBJECT) ? NULL : wrong("the matrix", "an object", root);
    for (size_t i = 0; !err && i < root->n; i++) {
        err = read_member(m, nrd_json_at(root, i));
    }
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_deploy_matrix_read(nrd_deploy_matrix *m, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, MAX_FILE));
    nrd_error *err = nrd_deploy_matrix_parse(m, text, n);
    free(text);
    return nrd_error_wrap(err, "%s", path);
}

/* ---- together ---- */

#define REPLACE(list)                                                                              \
    do {                                                                                           \
        if (given->n_##list > 0) {                                                                 \
            memcpy(m->list, given->list, sizeof m->list);                                          \
            m->n_##list = given->n_##list;                                                         \
        }                                                                                          \
    } while (0)

void nrd_deploy_matrix_override(nrd_deploy_matrix *m, const nrd_deploy_matrix *given)
{
    REPLACE(models);
    REPLACE(precisions);
    REPLACE(batch_sizes);
    REPLACE(lengths);
    for (size_t i = 0; i < given->n_sets && m->n_sets < NRD_DEPLOY_MAX; i++) {
        m->sets[m->n_sets++] = given->sets[i];
    }
    for (size_t i = 0; i < given->n_builds && m->n_builds < NRD_DEPLOY_MAX; i++) {
        m->builds[m->n_builds++] = given->builds[i];
    }
    m->device = given->device ? given->device : m->device;
    m->output_dir = given->output_dir ? given->output_dir : m->output_dir;
    m->tp_size = given->tp_size ? given->tp_size : m->tp_size;
    m->pp_size = given->pp_size ? given->pp_size : m->pp_size;
}

static nrd_error *check_name(const char *key, const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n > MAX_NAME || name[0] == '.' || name[0] == '-' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "%s: expected a name of 1 to %d letters, digits, '.', '_' and '-', got '%.*s'", key,
            MAX_NAME, MAX_NAME, name);
    }
    return NULL;
}

/* The options of a precision that is only a word. */
static nrd_error *find_options(nrd_deploy_matrix *m, nrd_deploy_precision *p)
{
    static const struct {
        const char *name, *dtype;
    } floats[] = {{"fp32", "float32"},    {"fp16", "float16"},    {"bf16", "bfloat16"},
                  {"float32", "float32"}, {"float16", "float16"}, {"bfloat16", "bfloat16"},
                  {"auto", "auto"}};
    nrd_dtype type;

    p->convert = nrd_arena_alloc(&m->text, 2 * sizeof *p->convert);
    if (!p->convert) {
        return nrd_error_no_memory();
    }
    p->n_convert = 2;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (!strcmp(p->name, floats[i].name)) {
            p->convert[0] = "--dtype";
            p->convert[1] = floats[i].dtype;
            return NULL;
        }
    }
    p->convert[0] = "--quantize";
    p->convert[1] = p->name;
    return nrd_error_wrap(nrd_tool_parse_quant(p->name, &type),
                          "precisions: auto, fp32, fp16, bf16 and types of weights");
}

static nrd_error *check_models(const nrd_deploy_matrix *m)
{
    for (size_t i = 0; i < m->n_models; i++) {
        NRD_TRY(check_name("models: name", m->models[i].name));
        for (size_t k = 0; k < i; k++) {
            if (!strcmp(m->models[i].name, m->models[k].name)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "models: two are called '%s'",
                                  m->models[i].name);
            }
        }
    }
    return NULL;
}

static nrd_error *check_precisions(nrd_deploy_matrix *m)
{
    for (size_t i = 0; i < m->n_precisions; i++) {
        nrd_deploy_precision *p = &m->precisions[i];
        NRD_TRY(check_name("precisions: name", p->name));
        NRD_TRY(p->convert ? NULL : find_options(m, p));
        for (size_t k = 0; k < i; k++) {
            if (!strcmp(p->name, m->precisions[k].name)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "precisions: two are called '%s'", p->name);
            }
        }
    }
    return NULL;
}

nrd_error *nrd_deploy_matrix_finish(nrd_deploy_matrix *m)
{
    if (m->n_models == 0) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "there is no model: name some with --model NAME=PATH, or in a matrix file");
    }
    NRD_TRY(m->n_precisions > 0 ? NULL : add_precision(m, "auto"));
    NRD_TRY(m->n_batch_sizes > 0 ? NULL : add_batch_size(m, "8"));
    NRD_TRY(m->n_lengths > 0 ? NULL : add_lengths(m, "2048,1024"));
    m->output_dir = m->output_dir ? m->output_dir : ".";
    for (size_t i = 0; i < m->n_models; i++) {
        nrd_deploy_model *d = &m->models[i];
        d->tp_size = d->tp_size ? d->tp_size : m->tp_size ? m->tp_size : 1;
        d->pp_size = d->pp_size ? d->pp_size : m->pp_size ? m->pp_size : 1;
    }
    NRD_TRY(check_models(m));
    return check_precisions(m);
}
