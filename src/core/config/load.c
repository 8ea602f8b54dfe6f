/* SPDX-License-Identifier: Apache-2.0
 * config.pbtxt (or an override in JSON) -> nrd_config. */
#include "core/backend_folder.h"
#include "core/config/config.h"
#include "core/config/pbfield.h"
#include "core/config/pbjson.h"
#include "core/config/pbtext.h"
#include "core/context.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

bool nrd_config_is_ensemble(const nrd_config *cfg)
{
    return cfg->scheduling_choice_case ==
           INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_ENSEMBLE_SCHEDULING;
}

nrd_error *nrd_config_from_json(nrd_config **out, const char *json, size_t len)
{
    nrd_json_doc *doc = NULL;
    ProtobufCMessage *msg = NULL;
    nrd_json_limits limits = {.max_bytes = NRD_CONFIG_MAX_BYTES};
    nrd_error *err;

    *out = NULL;
    NRD_TRY(nrd_json_parse(&doc, json, len, &limits));
    err = nrd_pbjson_parse(&msg, &inference__model_config__descriptor, nrd_json_root(doc));
    nrd_json_doc_free(doc);
    if (!err) {
        *out = (nrd_config *)(void *)msg;
    }
    return err;
}

static nrd_error *read_text(nrd_config **out, const char *path)
{
    ProtobufCMessage *msg = NULL;
    char *text = NULL;
    size_t len;
    nrd_error *err;

    NRD_TRY(nrd_file_read(&text, &len, path, NRD_CONFIG_MAX_BYTES));
    err = nrd_pbtext_parse(&msg, &inference__model_config__descriptor, text, len);
    free(text);
    if (err && nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) {
        nrd_str line = {0}; /* readers and scripts look for this form */
        nrd_str_printf(&line,
                       "[libprotobuf ERROR %s] Error parsing text-format inference.ModelConfig: %s",
                       nrd_path_base(path), nrd_error_message(err));
        nrd_log_raw(nrd_str_cstr(&line));
        nrd_str_fini(&line);
        nrd_error *full = nrd_errorf(NRD_ERR_INTERNAL, "failed to read text proto from %s: %s",
                                     path, nrd_error_message(err));
        nrd_error_free(err);
        return full;
    }
    *out = (nrd_config *)(void *)msg;
    return err;
}

/* ---- the configuration of a load request ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '.';
}

/* Copies a string up to its closing quotation mark; one in '' becomes one in "". */
static const char *put_string(nrd_str *out, const char *p)
{
    const char quote = *p++;

    nrd_str_putc(out, '"');
    while (*p && *p != quote) {
        if (*p == '\\' && p[1]) {
            if (p[1] != '\'') {
                nrd_str_putc(out, '\\');
            }
            nrd_str_putc(out, p[1]);
            p += 2;
            continue;
        }
        if (*p == '"') {
            nrd_str_putc(out, '\\');
        }
        nrd_str_putc(out, *p++);
    }
    nrd_str_putc(out, '"');
    return *p ? p + 1 : p;
}

/* Triton reads these configurations with protobuf's JSON parser, which takes names without quotation
 * marks and strings in single ones. */
static void put_strict_json(nrd_str *out, const char *p)
{
    while (*p) {
        if (*p == '"' || *p == '\'') {
            p = put_string(out, p);
        } else if (is_word(*p)) {
            const char *end = p, *next;
            while (is_word(*end)) {
                end++;
            }
            next = end + strspn(end, " \t\r\n");
            nrd_str_printf(out, *next == ':' ? "\"%.*s\"" : "%.*s", (int)(end - p), p);
            p = end;
        } else {
            nrd_str_putc(out, *p++);
        }
    }
}

static nrd_error *read_override(nrd_config **out, const char *json)
{
    nrd_str strict = {0};
    nrd_error *err = NULL, *again;

    if (strlen(json) > NRD_CONFIG_MAX_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the configuration is too large");
    }
    err = nrd_config_from_json(out, json, strlen(json));
    if (!err) {
        return NULL;
    }
    if (nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        return err;
    }
    put_strict_json(&strict, json);
    again = nrd_str_error(&strict);
    again = again ? again : nrd_config_from_json(out, nrd_str_cstr(&strict), strict.len);
    nrd_str_fini(&strict);
    if (again && nrd_error_get_code(again) != NRD_ERR_NO_MEMORY) { /* the first error tells the true place */
        nrd_error_free(again);
        return err;
    }
    nrd_error_free(err);
    return again;
}

/* The file that the server's option names, where the model has it, else config.pbtxt. */
static nrd_error *find_text(char **out, const nrd_context *ctx, const char *dir)
{
    *out = NULL;
    if (ctx->opt.config_name[0]) {
        if (asprintf(out, "%s/configs/%s.pbtxt", dir, ctx->opt.config_name) < 0) {
            *out = NULL;
            return nrd_error_no_memory();
        }
        if (nrd_path_exists(*out)) {
            return NULL;
        }
        free(*out);
    }
    return nrd_path_make(out, dir, "config.pbtxt");
}

nrd_error *nrd_config_load(nrd_config **out, nrd_context *ctx, const char *name, const char *dir,
                           const char *override_json)
{
    char *path = NULL;
    nrd_config *cfg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    if (override_json) {
        NRD_TRY(read_override(&cfg, override_json));
    } else {
        NRD_TRY(find_text(&path, ctx, dir));
        if (nrd_path_exists(path)) {
            err = read_text(&cfg, path);
        } else if (ctx->opt.strict_config) {
            err = nrd_errorf(NRD_ERR_INTERNAL,
                             "failed to open text file for read %s: No such file "
                             "or directory",
                             path);
        } else {
            cfg = malloc(sizeof *cfg);
            if (cfg) {
                inference__model_config__init(cfg);
            } else {
                err = nrd_error_no_memory();
            }
        }
        free(path);
        if (err) {
            return err;
        }
    }
    if (cfg->name[0] == '\0') {
        err = nrd_pb_set_string(&cfg->name, name);
    } else if (strcmp(cfg->name, name) != 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "unexpected directory name '%s' for model '%s', "
                         "directory name must equal model name",
                         name, cfg->name);
    }
    if (err) {
        inference__model_config__free_unpacked(cfg, NULL);
        return err;
    }
    *out = cfg;
    return NULL;
}

/* ---- what the folder tells when the configuration does not ---- */

static nrd_error *any_version_has(bool *out, const char *dir, const char *file)
{
    char **names = NULL;
    size_t n = 0;
    nrd_error *err = nrd_dir_list(&names, &n, dir);

    *out = false;
    if (err && nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) { /* no folder, no version */
        nrd_error_free(err);
        return NULL;
    }
    for (size_t i = 0; i < n && !*out && !err; i++) {
        char *p = NULL;
        if (asprintf(&p, "%s/%s/%s", dir, names[i], file) < 0) {
            p = NULL;
            err = nrd_error_no_memory();
        }
        *out = p && nrd_path_exists(p);
        free(p);
    }
    nrd_names_free(names, n);
    return err;
}

/* The backend of a model that names none: the one whose file a version has, or the end of its name. */
static nrd_error *find_backend(nrd_config *cfg, const nrd_backend_folders *backends,
                               const char *dir)
{
    const char *dot = strchr(cfg->name, '.');

    for (size_t i = 0; i < backends->n; i++) {
        bool has = false;
        NRD_TRY(any_version_has(&has, dir, backends->v[i].model_file));
        if (has) {
            return nrd_pb_set_string(&cfg->backend, backends->v[i].name);
        }
    }
    if (!dot || !dot[1]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Invalid model name: Could not determine backend for model '%s' with "
                          "no backend in model configuration. Expected model name of the form "
                          "'model.<backend_name>'.",
                          cfg->name);
    }
    return nrd_pb_set_string(&cfg->backend, dot + 1);
}

nrd_error *nrd_config_autofill(nrd_context *ctx, nrd_config *cfg, const char *dir)
{
    nrd_backend_folders backends;
    nrd_error *err = NULL;

    if (nrd_config_is_ensemble(cfg)) {
        return cfg->platform[0] == '\0' ? nrd_pb_set_string(&cfg->platform, "ensemble") : NULL;
    }
    NRD_TRY(nrd_backend_folders_read(&backends, ctx->opt.backend_dir));
    if (cfg->backend[0] == '\0' && cfg->platform[0] == '\0') {
        err = find_backend(cfg, &backends, dir);
    }
    for (size_t i = 0; i < backends.n && !err; i++) {
        if (cfg->default_model_filename[0] == '\0' &&
            strcmp(cfg->backend, backends.v[i].name) == 0) {
            err = nrd_pb_set_string(&cfg->default_model_filename, backends.v[i].model_file);
        }
    }
    nrd_backend_folders_fini(&backends);
    return err;
}
