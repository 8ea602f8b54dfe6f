/* SPDX-License-Identifier: Apache-2.0
 * What the folders of the backends say about themselves. */
#include "core/backend_folder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 10 };

static nrd_error *add(nrd_backend_folders *f, const char *name, const char *model_file, bool runs_backends)
{
    nrd_backend_folder *grown = realloc(f->v, (f->n + 1) * sizeof *f->v);
    nrd_backend_folder one = {.runs_backends = runs_backends};
    nrd_error *err = NULL;

    if (!grown) {
        return nrd_error_no_memory();
    }
    f->v = grown;
    NRD_DUP_GOTO(one.name, name, err, fail);
    NRD_DUP_GOTO(one.model_file, model_file, err, fail);
    f->v[f->n++] = one;
    return NULL;

fail:
    free(one.name);
    return err;
}

/* Takes what the file says, if it says which file the backend runs. */
static nrd_error *read_file(nrd_backend_folders *f, const char *name, const char *path)
{
    const nrd_json_limits limits = {.max_bytes = MAX_BYTES};
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_json_parse_file(&doc, path, &limits));
    const nrd_json *root = nrd_json_root(doc);
    const nrd_json *file = nrd_json_get(root, "default_model_filename");
    const nrd_json *runs = nrd_json_get(root, "runs_backends");
    const char *s = nrd_json_str(file, "");
    if (!nrd_json_is(root, NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "expected an object");
    } else if (file && (!s[0] || strchr(s, '/') || strlen(s) != file->n)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "'default_model_filename' must be the name of a file, without a folder");
    } else if (runs && !nrd_json_is(runs, NRD_JSON_BOOL)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'runs_backends' must be true or false");
    } else if (file) {
        err = add(f, name, s, nrd_json_bool(runs, false));
    }
    nrd_json_doc_free(doc);
    return err;
}

static bool is_no_memory(const nrd_error *err)
{
    return err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY;
}

/* NO_MEMORY; every other fault is logged and the file is left out. */
static nrd_error *read_folder(nrd_backend_folders *f, const char *name, const char *dir, const char *own)
{
    char *path = NULL, *file = NULL;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make(&file, name, NRD_BACKEND_FILE), err, done);
    NRD_TRY_GOTO(nrd_path_make(&path, dir, file), err, done);
    if (!nrd_path_exists(path)) {
        free(path);
        NRD_TRY_GOTO(nrd_path_make(&path, own, file), err, done);
    }
    if (nrd_path_exists(path)) {
        err = read_file(f, name, path);
    }
    if (err && !is_no_memory(err)) {
        NRD_LOG_WARN("'%s' has no effect: %s", path, nrd_error_message(err));
        nrd_error_free(err);
        err = NULL;
    }
done:
    free(file);
    free(path);
    return err;
}

nrd_error *nrd_backend_folders_read(nrd_backend_folders *out, const char *dir)
{
    char **names = NULL, *exe = NULL, *own = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    *out = (nrd_backend_folders){0};
    NRD_TRY_GOTO(nrd_path_make_exe_dir(&exe), err, done);
    NRD_TRY_GOTO(nrd_path_make(&own, exe, "../backends"), err, done);
    err = nrd_dir_list(&names, &n, dir);
    if (err && !is_no_memory(err)) { /* no folder: models may bring their backends */
        nrd_error_free(err);
        err = NULL;
    }
    for (size_t i = 0; i < n && !err; i++) {
        err = read_folder(out, names[i], dir, own);
    }
    nrd_names_free(names, n);
done:
    free(own);
    free(exe);
    if (err) {
        nrd_backend_folders_fini(out);
    }
    return err;
}

void nrd_backend_folders_fini(nrd_backend_folders *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->v[i].name);
        free(f->v[i].model_file);
    }
    free(f->v);
    *f = (nrd_backend_folders){0};
}
