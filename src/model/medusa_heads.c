/* SPDX-License-Identifier: Apache-2.0 */
#include "model/medusa_heads.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/heads_file.h"

#include <stdio.h>
#include <string.h>

#define HEADS_FILE "medusa_lm_head.safetensors"
#define TOKEN_MAP "token_map"

struct nrd_medusa_heads {
    nrd_heads_file file;
    const struct form *form;
    int32_t n, n_layers, n_rows;
    int32_t *tokens; /* [n_rows] of each row; NULL: the same */
    nrd_weight linear[NRD_MEDUSA_MAX_HEADS][NRD_MEDUSA_MAX_LAYERS], bias[NRD_MEDUSA_MAX_HEADS][NRD_MEDUSA_MAX_LAYERS];
    nrd_weight lm_head[NRD_MEDUSA_MAX_HEADS]; /* of head 0 only where it is shared; no data: the model's */
    bool is_shared;
};

enum { MAX_NAME = 96 };

/* How the parts of a head are called; %d: head, and layer. */
static const struct form {
    const char *linear, *lm_head; /* linear: without .weight, .bias */
    bool numbers_lm_head;         /* it has the number behind the last layer's */
    const char *n_heads, *n_layers; /* fields of config.json */
} forms[] = {
    {"%d.%d.linear", "%d.%d.weight", true, "medusa_num_heads", "medusa_num_layers"},
    {"medusa_heads.%d.%d.linear", "medusa_heads.%d.%d.weight", true, "medusa_num_heads", "medusa_num_layers"},
    {"medusa_heads.%d.medusa_layers.%d.linear", "medusa_heads.%d.lm_head.weight", false, "num_medusa_heads", "num_medusa_layers"},
    {"blocks.%d.layers.%d", "lm_heads.%d.weight", false, "num_heads", "num_hidden_layers"},
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

static bool has(const nrd_heads_file *file, const char *name)
{
    nrd_heads_tensor t;
    return nrd_heads_file_find(file, name, &t);
}

static const struct form *form_of(const nrd_heads_file *file)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        char name[MAX_NAME];
        linear_name(&forms[i], 0, 0, "weight", name);
        if (has(file, name)) {
            return &forms[i];
        }
    }
    return NULL;
}

/* The file of a path: the path itself, or in its folder. */
static nrd_error *open_file(nrd_heads_file *f, const char *path, bool *found)
{
    static const char *const names[] = {HEADS_FILE, "medusa_lm_head.pt", "rank0.safetensors", "model.safetensors"};

    *found = false;
    if (nrd_path_is_dir(path)) {
        return nrd_heads_file_open(f, path, names, sizeof names / sizeof names[0], found);
    }
    *found = nrd_path_exists(path);
    return *found ? nrd_heads_file_open_at(f, path) : NULL;
}

bool nrd_medusa_heads_are_in(const char *path)
{
    nrd_heads_file file = {0};
    bool found = false;
    nrd_error *err = open_file(&file, path, &found);
    found = !err && found && form_of(&file);
    nrd_error_free(err);
    nrd_heads_file_close(&file);
    return found;
}

/* As many as there are in a row. */
static nrd_error *count(nrd_medusa_heads *m)
{
    char name[MAX_NAME];
    for (linear_name(m->form, 0, m->n_layers, "weight", name); has(&m->file, name) && m->n_layers <= NRD_MEDUSA_MAX_LAYERS;
         linear_name(m->form, 0, m->n_layers, "weight", name)) {
        m->n_layers++;
    }
    for (linear_name(m->form, m->n, 0, "weight", name); has(&m->file, name) && m->n <= NRD_MEDUSA_MAX_HEADS;
         linear_name(m->form, m->n, 0, "weight", name)) {
        m->n++;
    }
    if (m->n > NRD_MEDUSA_MAX_HEADS || m->n_layers > NRD_MEDUSA_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s has more than %d Medusa heads, or heads of more than %d layers", m->file.path,
                          NRD_MEDUSA_MAX_HEADS, NRD_MEDUSA_MAX_LAYERS);
    }
    return NULL;
}

/* A checkpoint's configuration may lie there instead, whose num_hidden_layers are the model's. */
static bool is_of_heads(const nrd_medusa_heads *m, const nrd_json *config)
{
    return m->form != &forms[N_FORMS - 1] || !nrd_json_get(config, "architecture");
}

/* Numbers of the configuration beside the file, where it says some. */
static nrd_error *check_config(const nrd_medusa_heads *m, const char *dir)
{
    const struct {
        const char *name;
        int32_t have;
    } rows[] = {{m->form->n_heads, m->n}, {m->form->n_layers, m->n_layers}};
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    char *path = NULL;

    if (nrd_path_is_dir(dir)) {
        NRD_TRY(nrd_path_make(&path, dir, "config.json"));
    }
    if (path && nrd_path_exists(path)) {
        NRD_TRY_GOTO(nrd_json_parse_file(&doc, path, &(nrd_json_limits){.max_bytes = 1 << 20, .max_depth = 32}), err, done);
        for (int i = 0; i < 2 && is_of_heads(m, nrd_json_root(doc)); i++) {
            const int64_t said = nrd_json_get_int(nrd_json_root(doc), rows[i].name, rows[i].have);
            if (said < 1 || said > rows[i].have) {
                err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s is %lld, %s has %d", path, rows[i].name, (long long)said, m->file.path,
                                 rows[i].have);
                goto done;
            }
        }
    }
done:
    nrd_json_doc_free(doc);
    free(path);
    return err;
}

/* cols 0: a vector. *out without data: there is none. */
static nrd_error *take(nrd_medusa_heads *m, const char *name, int64_t rows, int64_t cols, nrd_weight *out)
{
    nrd_heads_tensor t;
    return nrd_heads_file_find(&m->file, name, &t) ? nrd_heads_file_weight(&m->file, name, &t, rows, cols, out) : NULL;
}

/* The token of each row of the matrices. */
static nrd_error *take_map(nrd_medusa_heads *m, int64_t vocab)
{
    nrd_error *err = NULL;
    nrd_heads_tensor t;
    bool *seen = NULL;

    m->n_rows = (int32_t)vocab;
    if (!nrd_heads_file_find(&m->file, TOKEN_MAP, &t)) {
        return NULL;
    }
    if (t.dtype != NRD_DTYPE_I64 || t.n_dims != 1 || t.dims[0] < 1 || t.dims[0] > vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: " TOKEN_MAP " must be 1 to %lld numbers of int64, the model's vocabulary", m->file.path,
                          (long long)vocab);
    }
    m->n_rows = (int32_t)t.dims[0];
    NRD_NEW_GOTO(seen, vocab, err, done);
    NRD_NEW_GOTO(m->tokens, m->n_rows, err, done);
    for (int32_t i = 0; i < m->n_rows; i++) {
        int64_t token;
        memcpy(&token, (const char *)t.data + (size_t)i * sizeof token, sizeof token);
        if (token < 0 || token >= vocab || seen[token]) { /* children of a tree's node differ */
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: " TOKEN_MAP "[%d] is %lld, expected a token of the model, from 0 to %lld, and none twice",
                             m->file.path, i, (long long)token, (long long)vocab - 1);
            goto done;
        }
        seen[token] = true;
        m->tokens[i] = (int32_t)token;
    }
done:
    free(seen);
    return err;
}

/* Of each head, or one for all. */
static nrd_error *take_lm_heads(nrd_medusa_heads *m, int64_t hidden)
{
    char name[MAX_NAME];

    for (int32_t h = 0; h < m->n; h++) {
        lm_head_name(m->form, h, m->n_layers, name);
        NRD_TRY(take(m, name, m->n_rows, hidden, &m->lm_head[h]));
        if (!m->lm_head[h].data && h > 0 && !m->is_shared) {
            m->is_shared = h == 1 && m->form == &forms[N_FORMS - 1];
            if (!m->is_shared) {
                return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor %s", m->file.path, name);
            }
        } else if (!m->lm_head[0].data) { /* one of another name, or the model's */
            m->is_shared = true;
            NRD_TRY(take(m, "lm_head.weight", m->n_rows, hidden, &m->lm_head[0]));
            break;
        }
    }
    return m->tokens && !m->lm_head[0].data
               ? nrd_errorf(NRD_ERR_NOT_FOUND, "%s has a tensor " TOKEN_MAP ", but no LM head whose rows it names", m->file.path)
               : NULL;
}

static nrd_error *take_all(nrd_medusa_heads *m, int64_t hidden, int64_t vocab)
{
    char name[MAX_NAME];

    NRD_TRY(take_map(m, vocab));
    for (int32_t h = 0; h < m->n; h++) {
        for (int32_t l = 0; l < m->n_layers; l++) {
            linear_name(m->form, h, l, "weight", name);
            NRD_TRY(take(m, name, hidden, hidden, &m->linear[h][l]));
            if (!m->linear[h][l].data) {
                return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor %s", m->file.path, name);
            }
            linear_name(m->form, h, l, "bias", name);
            NRD_TRY(take(m, name, hidden, 0, &m->bias[h][l]));
        }
    }
    return take_lm_heads(m, hidden);
}

nrd_error *nrd_medusa_heads_open(nrd_medusa_heads **out, const char *path, int64_t hidden, int64_t vocab)
{
    nrd_error *err = NULL;
    nrd_medusa_heads *m = NULL;
    bool found = false;

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_TRY_GOTO(open_file(&m->file, path, &found), err, fail);
    if (!found) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no Medusa heads: expected " HEADS_FILE ", or a checkpoint's "
                                            "rank0.safetensors", path);
        goto fail;
    }
    m->form = form_of(&m->file);
    if (!m->form) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no Medusa heads: no tensor 0.0.linear.weight, blocks.0.layers.0.weight, nor "
                                            "medusa_heads.0.medusa_layers.0.linear.weight", m->file.path);
        goto fail;
    }
    NRD_TRY_GOTO(count(m), err, fail);
    NRD_TRY_GOTO(check_config(m, path), err, fail);
    NRD_TRY_GOTO(take_all(m, hidden, vocab), err, fail);
    *out = m;
    return NULL;

fail:
    nrd_medusa_heads_close(m);
    return err;
}

void nrd_medusa_heads_close(nrd_medusa_heads *m)
{
    if (m) {
        nrd_heads_file_close(&m->file);
        free(m->tokens);
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
    return m->bias[head][layer].data ? &m->bias[head][layer] : NULL;
}

const nrd_weight *nrd_medusa_heads_lm_head(const nrd_medusa_heads *m, int32_t head)
{
    const nrd_weight *w = &m->lm_head[m->is_shared ? 0 : head];
    return w->data ? w : NULL;
}

int32_t nrd_medusa_heads_rows(const nrd_medusa_heads *m)
{
    return m->n_rows;
}

int32_t nrd_medusa_heads_token(const nrd_medusa_heads *m, int32_t row)
{
    if (row < 0 || row >= m->n_rows) { /* of logits that are no numbers */
        return 0;
    }
    return m->tokens ? m->tokens[row] : row;
}

/* ---- writing ---- */

/* The map is int64 again. */
static nrd_error *put_map(const nrd_medusa_heads *m, nrd_safetensors_writer *w, bool data)
{
    nrd_heads_tensor t;

    if (!nrd_heads_file_find(&m->file, TOKEN_MAP, &t)) {
        return NULL;
    }
    return data ? nrd_safetensors_writer_write(w, t.data, t.data_bytes)
                : nrd_safetensors_writer_add(w, TOKEN_MAP, NRD_DTYPE_I64, t.dims, 1);
}

/* All tensors in their order: announced where `data` is false, else written. */
static nrd_error *put_all(const nrd_medusa_heads *m, nrd_safetensors_writer *w, bool data)
{
    const struct form *f = m->form->numbers_lm_head ? &forms[0] : m->form;
    char name[MAX_NAME];

    NRD_TRY(put_map(m, w, data));
    for (int32_t h = 0; h < m->n; h++) {
        for (int32_t l = 0; l < m->n_layers; l++) {
            linear_name(f, h, l, "weight", name);
            NRD_TRY(nrd_heads_file_put(w, name, &m->linear[h][l], false, data));
            if (m->bias[h][l].data) {
                linear_name(f, h, l, "bias", name);
                NRD_TRY(nrd_heads_file_put(w, name, &m->bias[h][l], true, data));
            }
        }
        if (m->lm_head[h].data && (h == 0 || !m->is_shared)) {
            lm_head_name(f, h, m->n_layers, name);
            NRD_TRY(nrd_heads_file_put(w, m->is_shared ? "lm_head.weight" : name, &m->lm_head[h], false, data));
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
