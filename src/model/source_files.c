/* SPDX-License-Identifier: Apache-2.0
 * The tensors of weight files: tables of them by name, safetensors and pytorch_model.bin, alone or listed by an index. Called by the files
 * that open a kind of source. */
#include "model/source_internal.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHARDS = 4096 };

nrd_error *nrd_source_new(nrd_source **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_source *s = NULL;

    NRD_NEW_GOTO(s, 1, err, fail);
    NRD_NEW_GOTO(s->ranks, 1, err, fail);
    NRD_DUP_GOTO(s->path, path, err, fail);
    s->n_ranks = 1;
    *out = s;
    return NULL;

fail:
    free(s ? s->ranks : NULL);
    free(s);
    return err;
}

/* ---- tables ---- */

nrd_error *nrd_table_add(nrd_tensor_table *t, const nrd_src_tensor *one)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap ? t->cap * 2 : 512;
        nrd_src_tensor *grown = realloc(t->tensors, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        t->tensors = grown;
        t->cap = cap;
    }
    t->tensors[t->n++] = *one;
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nrd_src_tensor *)a)->name, ((const nrd_src_tensor *)b)->name);
}

nrd_error *nrd_table_finish(const nrd_source *s, nrd_tensor_table *t)
{
    if (t->n) {
        qsort(t->tensors, t->n, sizeof *t->tensors, by_name);
    }
    for (size_t i = 1; i < t->n; i++) {
        if (!by_name(&t->tensors[i - 1], &t->tensors[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' appears in two files", s->path,
                              t->tensors[i].name);
        }
    }
    return NULL;
}

const nrd_src_tensor *nrd_table_find(const nrd_tensor_table *t, const char *name)
{
    const nrd_src_tensor key = {.name = name};
    return t->n > 0 ? bsearch(&key, t->tensors, t->n, sizeof key, by_name) : NULL;
}

nrd_error *nrd_source_refuse_pointer(const char *path)
{
    static const char begin[] = "version https://git-lfs";
    char text[sizeof begin] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof begin - 1, f) : 0;

    if (f) {
        fclose(f);
    }
    if (n == sizeof begin - 1 && !memcmp(text, begin, n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is only a pointer of git-lfs; bring the file "
                          "itself with: git lfs pull", path);
    }
    return NULL;
}

/* ---- safetensors and pytorch_model.bin ---- */

nrd_error *nrd_source_add_safetensors(nrd_source *s, nrd_tensor_table *table, const char *path)
{
    nrd_safetensors *f = NULL;
    NRD_TRY(nrd_source_refuse_pointer(path));
    NRD_TRY(nrd_safetensors_open(&f, path));
    nrd_safetensors **grown = realloc(s->st, (s->n_st + 1) * sizeof *s->st);
    if (!grown) {
        nrd_safetensors_close(f);
        return nrd_error_no_memory();
    }
    s->st = grown;
    s->st[s->n_st++] = f;
    for (size_t i = 0; i < nrd_safetensors_n(f); i++) {
        const nrd_safetensor *e = nrd_safetensors_at(f, i);
        nrd_src_tensor t = {.name = e->name, .dtype = e->dtype, .n_dims = e->n_dims,
                            .data = e->data, .data_bytes = e->data_bytes,
                            .type_name = e->type_name};
        memcpy(t.dims, e->dims, sizeof e->dims);
        NRD_TRY(nrd_table_add(table, &t));
    }
    return NULL;
}

nrd_error *nrd_source_add_torch_bin(nrd_source *s, nrd_tensor_table *table, const char *path)
{
    nrd_torch_bin *f = NULL;
    NRD_TRY(nrd_source_refuse_pointer(path));
    NRD_TRY(nrd_torch_bin_open(&f, path));
    nrd_torch_bin **grown = realloc(s->bin, (s->n_bin + 1) * sizeof *s->bin);
    if (!grown) {
        nrd_torch_bin_close(f);
        return nrd_error_no_memory();
    }
    s->bin = grown;
    s->bin[s->n_bin++] = f;
    for (size_t i = 0; i < nrd_torch_bin_n(f); i++) {
        const nrd_torch_tensor *e = nrd_torch_bin_at(f, i);
        nrd_src_tensor t = {.name = e->name, .dtype = e->dtype, .n_dims = e->n_dims,
                            .data = e->data, .data_bytes = e->data_bytes,
                            .type_name = nrd_dtype_name(e->dtype)};
        memcpy(t.dims, e->dims, sizeof e->dims);
        NRD_TRY(nrd_table_add(table, &t));
    }
    return NULL;
}

/* The files that an index ("weight_map": tensor -> file) names, each once. A name that leaves the
 * folder is refused. */
static nrd_error *index_files(const char *path, char ***out, size_t *out_n)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    char **names = NULL;
    size_t n = 0;

    *out = NULL;
    *out_n = 0;
    NRD_TRY(nrd_json_parse_file(&doc, path, NULL));
    const nrd_json *map = nrd_json_get(nrd_json_root(doc), "weight_map");
    if (!nrd_json_is(map, NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected the object 'weight_map', got %s", path,
                         nrd_json_type_name(map));
        goto fail;
    }
    for (size_t i = 0; i < nrd_json_len(map); i++) {
        const char *file = nrd_json_str(&map->child[i], "");
        bool known = false;
        for (size_t k = n; k > 0 && !known; k--) { /* neighbours mostly share a file */
            known = !strcmp(names[k - 1], file);
        }
        if (known) {
            continue;
        }
        if (!*file || strchr(file, '/') || !strcmp(file, "..") || n >= MAX_SHARDS) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: weight_map names the file '%s'; expected a "
                             "name in the same folder, and at most %d files", path, file,
                             (int)MAX_SHARDS);
            goto fail;
        }
        char **grown = realloc(names, (n + 1) * sizeof *names);
        names = grown ? grown : names;
        char *name = grown ? strdup(file) : NULL;
        if (!name) {
            err = nrd_error_no_memory();
            goto fail;
        }
        names[n++] = name;
    }
    nrd_json_doc_free(doc);
    *out = names;
    *out_n = n;
    return NULL;

fail:
    nrd_json_doc_free(doc);
    nrd_names_free(names, n);
    return err;
}

static nrd_error *add_indexed(nrd_source *s, const char *dir, const char *index_path, bool bin)
{
    nrd_error *err = NULL;
    char **names = NULL;
    size_t n = 0;

    NRD_TRY(index_files(index_path, &names, &n));
    for (size_t i = 0; i < n && !err; i++) {
        char *path = NULL;
        err = nrd_path_make(&path, dir, names[i]);
        err = err ? err : bin ? nrd_source_add_torch_bin(s, &s->ranks[0], path) : nrd_source_add_safetensors(s, &s->ranks[0], path);
        free(path);
    }
    nrd_names_free(names, n);
    return err;
}

nrd_error *nrd_source_add_weights(nrd_source *s, const char *dir)
{
    static const struct {
        const char *name;
        bool bin, index;
    } forms[] = {
        {"model.safetensors", false, false},
        {"model.safetensors.index.json", false, true},
        {"pytorch_model.bin", true, false},
        {"pytorch_model.bin.index.json", true, true},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, forms[i].name));
        bool exists = nrd_path_exists(path);
        nrd_error *err = NULL;
        if (exists && forms[i].index) {
            err = add_indexed(s, dir, path, forms[i].bin);
        } else if (exists) {
            err = forms[i].bin ? nrd_source_add_torch_bin(s, &s->ranks[0], path)
                               : nrd_source_add_safetensors(s, &s->ranks[0], path);
        }
        free(path);
        if (exists) {
            return err;
        }
    }
    return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: no weights; expected model.safetensors, "
                      "pytorch_model.bin, or an index of several such files", dir);
}

/* ---- folders ---- */

nrd_error *nrd_source_json(nrd_json_doc **out, const char *dir, const char *name)
{
    /* Python writes Infinity: of Mamba-2 as the limit of time steps */
    const nrd_json_limits limits = {.max_bytes = NRD_SOURCE_MAX_CONFIG_BYTES, .special = true};

    return nrd_json_parse_in(out, dir, name, &limits);
}
