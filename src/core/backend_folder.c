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
        f->v = nrd_xrealloc(f->v, (f->n + 1) * sizeof *f->v);
        f->v[f->n++] = (nrd_backend_folder){.name = nrd_xstrdup(name),
                                            .model_file = nrd_xstrdup(s),
                                            .runs_backends = nrd_json_bool(runs, false)};
    }
    nrd_json_doc_free(doc);
    return err;
}

static void read_folder(nrd_backend_folders *f, const char *name, const char *dir, const char *own)
{
    char *path = nrd_xasprintf("%s/%s/" NRD_BACKEND_FILE, dir, name);

    if (!nrd_path_exists(path)) {
        free(path);
        path = nrd_xasprintf("%s/%s/" NRD_BACKEND_FILE, own, name);
    }
    if (nrd_path_exists(path)) {
        nrd_error *err = read_file(f, name, path);
        if (err) {
            NRD_LOG_WARN("'%s' has no effect: %s", path, nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    free(path);
}

void nrd_backend_folders_read(nrd_backend_folders *out, const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    char *exe = nrd_path_exe_dir(), *own = nrd_path_join(exe, "../backends");
    nrd_error *err = nrd_dir_list(&names, &n, dir);

    *out = (nrd_backend_folders){0};
    nrd_error_free(err); /* no folder: models may bring their backends */
    for (size_t i = 0; i < n; i++) {
        read_folder(out, names[i], dir, own);
    }
    nrd_names_free(names, n);
    free(own);
    free(exe);
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
