/* SPDX-License-Identifier: Apache-2.0 */
#include "model/medusa_heads.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/safetensors.h"

#include <stdio.h>
#include <string.h>

#define HEADS_FILE "medusa_lm_head.safetensors"

struct nrd_medusa_heads {
    nrd_safetensors *file;
    char *path;
    int32_t n, n_layers;
    nrd_weight linear[NRD_MEDUSA_MAX_HEADS][NRD_MEDUSA_MAX_LAYERS], bias[NRD_MEDUSA_MAX_HEADS][NRD_MEDUSA_MAX_LAYERS];
    nrd_weight lm_head[NRD_MEDUSA_MAX_HEADS];
};

enum { MAX_NAME = 96 };

/* How the parts of a head are called; %d: head, and layer. */
static const struct form {
    const char *linear, *lm_head; /* linear: without .weight, .bias */
    bool numbers_lm_head;         /* it has the number behind the last layer's */
} forms[] = {
    {"%d.%d.linear", "%d.%d.weight", true},
    {"medusa_heads.%d.%d.linear", "medusa_heads.%d.%d.weight", true},
    {"medusa_heads.%d.medusa_layers.%d.linear", "medusa_heads.%d.lm_head.weight", false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

static void linear_name(const struct form *f, int32_t head, int32_t layer, const char *what, char *out)
{
    const int n = snprintf(out, MAX_NAME, f->linear, head, layer);
    snprintf(out + n, (size_t)(MAX_NAME - n), ".%s", what);
}

static void lm_head_name(const struct form *f, int32_t head, int32_t n_layers, char *out)
{
    if (f->numbers_lm_head) {
        snprintf(out, MAX_NAME, f->lm_head, head, n_layers);
    } else {
        snprintf(out, MAX_NAME, f->lm_head, head);
    }
}

/* The file of a path: the path itself, or in its folder; *out NULL: none. */
static nrd_error *find_file(char **out, const char *path)
{
    static const char *const names[] = {HEADS_FILE, "rank0.safetensors"};
    *out = NULL;
    if (!nrd_path_is_dir(path)) {
        *out = nrd_path_exists(path) ? strdup(path) : NULL;
        return *out || !nrd_path_exists(path) ? NULL : nrd_error_no_memory();
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        NRD_TRY(nrd_path_make(out, path, names[i]));
        if (nrd_path_exists(*out)) {
            return NULL;
        }
        free(*out);
        *out = NULL;
    }
    return NULL;
}

static const struct form *form_of(const nrd_safetensors *file)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        char name[MAX_NAME];
        linear_name(&forms[i], 0, 0, "weight", name);
        if (nrd_safetensors_find(file, name)) {
            return &forms[i];
        }
    }
    return NULL;
}

bool nrd_medusa_heads_are_in(const char *path)
{
    nrd_safetensors *file = NULL;
    char *name = NULL;
    nrd_error *err = find_file(&name, path);
    err = err || !name ? err : nrd_safetensors_open(&file, name);
    const bool found = !err && file && form_of(file);
    nrd_error_free(err);
    nrd_safetensors_close(file);
    free(name);
    return found;
}

static nrd_error *take(const nrd_medusa_heads *m, const char *name, int64_t rows, int64_t cols, nrd_weight *out)
{
    const nrd_safetensor *t = nrd_safetensors_find(m->file, name);
    const bool vector = cols == 0;

    if (!t) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor %s", m->path, name);
    }
    const int64_t got = t->n_dims > 1 ? t->dims[1] : 0;
    if (t->n_dims != (vector ? 1 : 2) || t->dims[0] != rows || got != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s has %d dimensions, the first of %lld and the second of %lld; the model's heads "
                                               "have %lld and %lld", m->path, name, t->n_dims,
                          (long long)(t->n_dims > 0 ? t->dims[0] : 0), (long long)got, (long long)rows, (long long)cols);
    }
    if (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s has the type %s, expected F32, F16 or BF16", m->path, name, t->type_name);
    }
    /* A vector is a row. */
    *out = (nrd_weight){.dtype = t->dtype,
                        .layout = NRD_LAYOUT_ROWS,
                        .rows = vector ? 1 : rows,
                        .cols = vector ? rows : cols,
                        .data = t->data,
                        .scale = 1,
                        .data_bytes = t->data_bytes};
    return NULL;
}

/* As many as there are in a row. */
static nrd_error *count(nrd_medusa_heads *m, const struct form *f)
{
    char name[MAX_NAME];
    for (linear_name(f, 0, m->n_layers, "weight", name);
         nrd_safetensors_find(m->file, name) && m->n_layers <= NRD_MEDUSA_MAX_LAYERS;
         linear_name(f, 0, m->n_layers, "weight", name)) {
        m->n_layers++;
    }
    for (linear_name(f, m->n, 0, "weight", name); nrd_safetensors_find(m->file, name) && m->n <= NRD_MEDUSA_MAX_HEADS;
         linear_name(f, m->n, 0, "weight", name)) {
        m->n++;
    }
    if (m->n > NRD_MEDUSA_MAX_HEADS || m->n_layers > NRD_MEDUSA_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s has more than %d Medusa heads, or heads of more than %d layers", m->path,
                          NRD_MEDUSA_MAX_HEADS, NRD_MEDUSA_MAX_LAYERS);
    }
    return NULL;
}

/* Numbers of the configuration beside the file, where it says some. */
static nrd_error *check_config(const nrd_medusa_heads *m, const char *dir)
{
    static const struct {
        const char *names[2];
        bool of_layers;
    } rows[] = {{{"medusa_num_heads", "num_medusa_heads"}, false}, {{"medusa_num_layers", "num_medusa_layers"}, true}};
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    char *path = NULL;

    if (nrd_path_is_dir(dir)) {
        NRD_TRY(nrd_path_make(&path, dir, "config.json"));
    }
    if (path && nrd_path_exists(path)) {
        NRD_TRY_GOTO(nrd_json_parse_file(&doc, path, &(nrd_json_limits){.max_bytes = 1 << 20, .max_depth = 32}), err, done);
        for (int i = 0; i < 4; i++) {
            const char *name = rows[i / 2].names[i % 2];
            const int32_t have = rows[i / 2].of_layers ? m->n_layers : m->n;
            const int64_t said = nrd_json_get_int(nrd_json_root(doc), name, have);
            if (said < 1 || said > have) {
                err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s is %lld, %s has %d", path, name, (long long)said, m->path, have);
                goto done;
            }
        }
    }
done:
    nrd_json_doc_free(doc);
    free(path);
    return err;
}

static nrd_error *take_all(nrd_medusa_heads *m, const struct form *f, int64_t hidden, int64_t vocab)
{
    char name[MAX_NAME];
    for (int32_t h = 0; h < m->n; h++) {
        for (int32_t l = 0; l < m->n_layers; l++) {
            linear_name(f, h, l, "weight", name);
            NRD_TRY(take(m, name, hidden, hidden, &m->linear[h][l]));
            linear_name(f, h, l, "bias", name);
            NRD_TRY(take(m, name, hidden, 0, &m->bias[h][l]));
        }
        lm_head_name(f, h, m->n_layers, name);
        NRD_TRY(take(m, name, vocab, hidden, &m->lm_head[h]));
    }
    return NULL;
}

nrd_error *nrd_medusa_heads_open(nrd_medusa_heads **out, const char *path, int64_t hidden, int64_t vocab)
{
    nrd_error *err = NULL;
    nrd_medusa_heads *m = NULL;

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_TRY_GOTO(find_file(&m->path, path), err, fail);
    if (!m->path) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no Medusa heads: expected " HEADS_FILE ", or a checkpoint's "
                                            "rank0.safetensors", path);
        goto fail;
    }
    NRD_TRY_GOTO(nrd_safetensors_open(&m->file, m->path), err, fail);
    const struct form *f = form_of(m->file);
    if (!f) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no Medusa heads: no tensor 0.0.linear.weight, nor "
                                            "medusa_heads.0.medusa_layers.0.linear.weight", m->path);
        goto fail;
    }
    NRD_TRY_GOTO(count(m, f), err, fail);
    NRD_TRY_GOTO(check_config(m, path), err, fail);
    NRD_TRY_GOTO(take_all(m, f, hidden, vocab), err, fail);
    *out = m;
    return NULL;

fail:
    nrd_medusa_heads_close(m);
    return err;
}

void nrd_medusa_heads_close(nrd_medusa_heads *m)
{
    if (m) {
        nrd_safetensors_close(m->file);
        free(m->path);
        free(m);
    }
}

void nrd_medusa_heads_keep(nrd_medusa_heads *m, int32_t n)
{
    m->n = n > 0 && n < m->n ? n : m->n;
}

int32_t nrd_medusa_heads_n(const nrd_medusa_heads *m)
{
    return m->n;
}

int32_t nrd_medusa_heads_n_layers(const nrd_medusa_heads *m)
{
    return m->n_layers;
}

const nrd_weight *nrd_medusa_heads_linear(const nrd_medusa_heads *m, int32_t head, int32_t layer)
{
    return &m->linear[head][layer];
}

const nrd_weight *nrd_medusa_heads_bias(const nrd_medusa_heads *m, int32_t head, int32_t layer)
{
    return &m->bias[head][layer];
}

const nrd_weight *nrd_medusa_heads_lm_head(const nrd_medusa_heads *m, int32_t head)
{
    return &m->lm_head[head];
}

/* ---- writing ---- */

/* All tensors in their order: announced where `data` is false, else written. */
static nrd_error *put_all(const nrd_medusa_heads *m, nrd_safetensors_writer *w, bool data)
{
    const struct form *f = &forms[0];
    for (int32_t h = 0; h < m->n; h++) {
        for (int32_t i = 0; i <= 2 * m->n_layers; i++) {
            const bool is_last = i == 2 * m->n_layers, is_bias = !is_last && i % 2;
            const nrd_weight *t = is_last ? &m->lm_head[h] : is_bias ? &m->bias[h][i / 2] : &m->linear[h][i / 2];
            const int64_t dims[2] = {is_bias ? t->cols : t->rows, t->cols};
            char name[MAX_NAME];
            if (is_last) {
                lm_head_name(f, h, m->n_layers, name);
            } else {
                linear_name(f, h, i / 2, is_bias ? "bias" : "weight", name);
            }
            NRD_TRY(data ? nrd_safetensors_writer_write(w, t->data, (size_t)t->data_bytes)
                         : nrd_safetensors_writer_add(w, name, t->dtype, dims, is_bias ? 1 : 2));
        }
    }
    return NULL;
}

nrd_error *nrd_medusa_heads_write(const nrd_medusa_heads *m, const char *dir)
{
    nrd_error *err = NULL;
    nrd_safetensors_writer *w = NULL;
    char *path = NULL;

    NRD_TRY(nrd_path_make(&path, dir, HEADS_FILE));
    NRD_TRY_GOTO(nrd_safetensors_writer_open(&w, path), err, done);
    NRD_TRY_GOTO(put_all(m, w, false), err, done);
    NRD_TRY_GOTO(nrd_safetensors_writer_begin(w), err, done);
    NRD_TRY_GOTO(put_all(m, w, true), err, done);
    err = nrd_safetensors_writer_commit(w);
    w = NULL;
done:
    if (w) {
        nrd_safetensors_writer_abort(w);
    }
    free(path);
    return err;
}
