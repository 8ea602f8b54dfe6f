/* SPDX-License-Identifier: Apache-2.0 */
#include "model/redrafter_heads.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/heads_file.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 96, MAX_CONFIG_BYTES = 1 << 20, CONFIG_DEPTH = 32 };

struct nrd_redrafter_heads {
    nrd_heads_file file;
    char *dir; /* of the file and its config.json */
    int32_t hidden, vocab;
    nrd_redrafter_sizes n;
    nrd_redrafter_weights w;
};

/* What the parts are called, without .weight and .bias; %d: the layer. */
static const struct form {
    const char *proj, *linear, *lm_head, *rnn_u, *rnn_w;
} forms[] = {
    {"input_proj", "lm_head.%d.linear", "lm_head.%d", "rnn_u", "rnn_w"},
    {"input_projs", "lm_heads.%d.linear", "lm_heads.%d", "rnn_u", "rnn_w"},
    {"drafter.input_proj", "drafter.layers.%d.linear", "drafter.lm_head", "drafter.rnn_u", "drafter.rnn_w"},
};
enum { N_FORMS = sizeof forms / sizeof forms[0], OF_CHECKPOINT = N_FORMS - 1 };

static void name_of(const char *part, int32_t layer, const char *what, char *out)
{
    char numbered[MAX_NAME];
    const char *at = strstr(part, "%d");
    if (at) {
        snprintf(numbered, sizeof numbered, "%.*s%d%s", (int)(at - part), part, layer, at + 2);
    } else {
        snprintf(numbered, sizeof numbered, "%s", part);
    }
    snprintf(out, MAX_NAME, "%.80s.%s", numbered, what);
}

/* ---- config.json ---- */

typedef struct field {
    const char *name, *of_checkpoint;
    int32_t least, most, otherwise; /* otherwise -1: it must be there */
    int32_t *to;
} field;

static nrd_error *read_fields(const nrd_redrafter_heads *h, const nrd_json *root, bool is_checkpoint, const field *f, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *name = is_checkpoint ? f[i].of_checkpoint : f[i].name;
        const int64_t v = nrd_json_get_int(root, name, f[i].otherwise);
        if (v < f[i].least || v > f[i].most) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.json: %s of a ReDrafter must be a number from %d to %d", h->dir, name,
                              f[i].least, f[i].most);
        }
        *f[i].to = (int32_t)v;
    }
    return NULL;
}

static nrd_error *read_config(nrd_redrafter_heads *h, const nrd_json *root, int64_t hidden, int64_t vocab)
{
    const bool is_checkpoint = nrd_json_get(root, "redrafter_exit_dim") != NULL;
    int32_t own_hidden, own_vocab;
    const field fields[] = {
        {"hidden_size", "redrafter_hidden_size", 1, INT32_MAX, -1, &own_hidden},
        {"vocab_size", "vocab_size", 1, INT32_MAX, (int32_t)vocab, &own_vocab},
        {"exit_dim", "redrafter_exit_dim", 1, NRD_REDRAFTER_MAX_EXIT, -1, &h->n.exit},
        {"num_draft_layers", "redrafter_num_layers", 0, NRD_REDRAFTER_MAX_LAYERS, -1, &h->n.n_layers},
        {"redrafter_num_beams", "redrafter_num_beams", 1, NRD_REDRAFTER_MAX_BEAMS, NRD_REDRAFTER_BEAMS, &h->n.n_beams},
        {"redrafter_draft_len_per_beam", "redrafter_draft_len_per_beam", 1, NRD_REDRAFTER_MAX_LEN, NRD_REDRAFTER_LEN, &h->n.length},
    };
    NRD_TRY(read_fields(h, root, is_checkpoint, fields, sizeof fields / sizeof fields[0]));
    if (own_hidden != hidden || own_vocab != vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.json: a ReDrafter for hidden_size %d and vocab_size %d, the model has %lld and "
                                               "%lld", h->dir, own_hidden, own_vocab, (long long)hidden, (long long)vocab);
    }
    h->hidden = own_hidden;
    h->vocab = own_vocab;
    h->n.rnn = nrd_json_get_bool(root, is_checkpoint ? "redrafter_is_rnn" : "rnn", false);
    return NULL;
}

/* ---- weights ---- */

typedef struct part {
    const char *name;
    int32_t layer;
    bool bias;
    int64_t rows, cols;
    nrd_weight *to;
} part;

enum { MAX_PARTS = 6 + 2 * NRD_REDRAFTER_MAX_LAYERS };

/* All that a drafter of these sizes has. */
static int32_t list_parts(nrd_redrafter_heads *h, const struct form *f, part *out)
{
    const int64_t d = h->hidden, exit = h->n.exit;
    nrd_redrafter_weights *w = &h->w;
    int32_t n = 0;

    if (exit != 2 * d) {
        out[n++] = (part){f->proj, 0, false, exit, 2 * d, &w->proj};
        out[n++] = (part){f->proj, 0, true, exit, 0, &w->proj_bias};
    }
    if (h->n.rnn) {
        out[n++] = (part){f->rnn_u, 0, false, d, d, &w->rnn_u};
        out[n++] = (part){f->rnn_u, 0, true, d, 0, &w->rnn_u_bias};
        out[n++] = (part){f->rnn_w, 0, false, d, d, &w->rnn_w};
    }
    for (int32_t l = 0; l < h->n.n_layers; l++) {
        out[n++] = (part){f->linear, l, false, exit, exit, &w->linear[l]};
        out[n++] = (part){f->linear, l, true, exit, 0, &w->bias[l]};
    }
    out[n++] = (part){f->lm_head, h->n.n_layers, false, h->vocab, exit, &w->lm_head};
    return n;
}

static const struct form *form_of(const nrd_redrafter_heads *h)
{
    for (int i = 0; i < N_FORMS; i++) {
        char name[MAX_NAME];
        nrd_heads_tensor t;
        name_of(forms[i].lm_head, h->n.n_layers, "weight", name);
        if (nrd_heads_file_find(&h->file, name, &t)) {
            return &forms[i];
        }
    }
    return NULL;
}

static nrd_error *take_all(nrd_redrafter_heads *h)
{
    const struct form *f = form_of(h);
    part parts[MAX_PARTS];

    if (!f) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor lm_head.%d.weight, nor drafter.lm_head.weight", h->file.path, h->n.n_layers);
    }
    const int32_t n = list_parts(h, f, parts);
    for (int32_t i = 0; i < n; i++) {
        char name[MAX_NAME];
        nrd_heads_tensor t;
        name_of(parts[i].name, parts[i].layer, parts[i].bias ? "bias" : "weight", name);
        if (!nrd_heads_file_find(&h->file, name, &t)) {
            return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor %s", h->file.path, name);
        }
        NRD_TRY(nrd_heads_file_weight(&h->file, name, &t, parts[i].rows, parts[i].cols, parts[i].to));
    }
    return NULL;
}

/* ---- open ---- */

/* Whether a folder itself has one. */
static nrd_error *look(const char *dir, nrd_json_doc **out, bool *found)
{
    *found = false;
    NRD_TRY(nrd_json_parse_in(out, dir, "config.json", &(nrd_json_limits){.max_bytes = MAX_CONFIG_BYTES, .max_depth = CONFIG_DEPTH}));
    const nrd_json *root = *out ? nrd_json_root(*out) : NULL;
    *found = root && (nrd_json_get(root, "exit_dim") || nrd_json_get(root, "redrafter_exit_dim"));
    return NULL;
}

/* The folder, and what its config.json says. *out_dir NULL: there is none. */
static nrd_error *find_dir(const char *dir, char **out_dir, nrd_json_doc **out)
{
    char *inside = NULL;
    bool found = false;
    nrd_error *err = nrd_path_make(&inside, dir, NRD_REDRAFTER_FOLDER);

    *out_dir = NULL;
    *out = NULL;
    NRD_TRY_GOTO(err, err, done);
    NRD_TRY_GOTO(look(inside, out, &found), err, done);
    if (!found) {
        nrd_json_doc_free(*out);
        NRD_TRY_GOTO(look(dir, out, &found), err, done);
        if (found) {
            NRD_DUP_GOTO(*out_dir, dir, err, done);
        }
    } else {
        *out_dir = inside;
        inside = NULL;
    }
done:
    free(inside);
    return err;
}

bool nrd_redrafter_heads_are_in(const char *dir)
{
    char *found = NULL;
    nrd_json_doc *doc = NULL;
    nrd_error *err = find_dir(dir, &found, &doc);
    const bool is = !err && found;
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    free(found);
    return is;
}

static nrd_error *open_all(nrd_redrafter_heads *h, const char *dir, int64_t hidden, int64_t vocab)
{
    static const char *const names[] = {"model.safetensors", "model.pt", "pytorch_model.bin", "rank0.safetensors"};
    nrd_json_doc *doc = NULL;
    bool found = false;

    nrd_error *err = find_dir(dir, &h->dir, &doc);
    if (!err && !h->dir) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no ReDrafter: expected config.json with exit_dim, and model.safetensors, model.pt or "
                                            "pytorch_model.bin", dir);
    }
    if (!err) {
        err = read_config(h, nrd_json_root(doc), hidden, vocab);
    }
    nrd_json_doc_free(doc);
    NRD_TRY(err);
    NRD_TRY(nrd_heads_file_open(&h->file, h->dir, names, sizeof names / sizeof names[0], &found));
    return found ? take_all(h)
                 : nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has config.json of a ReDrafter, but no model.safetensors, model.pt or "
                                                 "pytorch_model.bin", h->dir);
}

nrd_error *nrd_redrafter_heads_open(nrd_redrafter_heads **out, const char *dir, int64_t hidden, int64_t vocab)
{
    nrd_error *err = NULL;
    nrd_redrafter_heads *h = NULL;

    *out = NULL;
    NRD_NEW_GOTO(h, 1, err, fail);
    NRD_TRY_GOTO(open_all(h, dir, hidden, vocab), err, fail);
    *out = h;
    return NULL;

fail:
    nrd_redrafter_heads_close(h);
    return err;
}

void nrd_redrafter_heads_close(nrd_redrafter_heads *h)
{
    if (h) {
        nrd_heads_file_close(&h->file);
        free(h->dir);
        free(h);
    }
}

const nrd_redrafter_sizes *nrd_redrafter_heads_sizes(const nrd_redrafter_heads *h)
{
    return &h->n;
}

const nrd_redrafter_weights *nrd_redrafter_heads_weights(const nrd_redrafter_heads *h)
{
    return &h->w;
}

/* ---- writing ---- */

/* All tensors in their order: announced where `data` is false, else written. */
static nrd_error *put_all(const part *parts, int32_t n, nrd_safetensors_writer *w, bool data)
{
    for (int32_t i = 0; i < n; i++) {
        const nrd_weight *t = parts[i].to;
        char name[MAX_NAME];
        name_of(parts[i].name, parts[i].layer, parts[i].bias ? "bias" : "weight", name);
        NRD_TRY(nrd_heads_file_put(w, name, t, parts[i].bias, data));
    }
    return NULL;
}

static nrd_error *write_weights(const nrd_redrafter_heads *h, const char *folder)
{
    nrd_redrafter_heads copy = *h; /* its parts are only read */
    nrd_error *err = NULL;
    nrd_safetensors_writer *w = NULL;
    part parts[MAX_PARTS];
    char *path = NULL;
    const int32_t n = list_parts(&copy, &forms[0], parts);

    NRD_TRY(nrd_path_make(&path, folder, "model.safetensors"));
    NRD_TRY_GOTO(nrd_safetensors_writer_open(&w, path), err, done);
    NRD_TRY_GOTO(put_all(parts, n, w, false), err, done);
    NRD_TRY_GOTO(nrd_safetensors_writer_begin(w), err, done);
    NRD_TRY_GOTO(put_all(parts, n, w, true), err, done);
    err = nrd_safetensors_writer_commit(w);
    w = NULL;
done:
    if (w) {
        nrd_safetensors_writer_abort(w);
    }
    free(path);
    return err;
}

/* Last, so that a folder with it is whole. */
static nrd_error *write_config(const nrd_redrafter_heads *h, const char *folder, int32_t n_beams, int32_t length)
{
    char *path = NULL, text[512];
    NRD_TRY(nrd_path_make(&path, folder, "config.json"));
    const int n = snprintf(text, sizeof text, "{\"model_type\": \"recurrent_drafting_drafter\", \"hidden_size\": %d, \"vocab_size\": %d, \"exit_dim\": %d, "
                                              "\"num_draft_layers\": %d, \"rnn\": %s, \"redrafter_num_beams\": %d, "
                                              "\"redrafter_draft_len_per_beam\": %d}\n",
                           h->hidden, h->vocab, h->n.exit, h->n.n_layers, h->n.rnn ? "true" : "false",
                           n_beams > 0 ? n_beams : h->n.n_beams, length > 0 ? length : h->n.length);
    nrd_error *err = nrd_file_write(path, text, (size_t)n);
    free(path);
    return err;
}

nrd_error *nrd_redrafter_heads_write(const nrd_redrafter_heads *h, const char *dir, int32_t n_beams, int32_t length)
{
    char *folder = NULL;
    NRD_TRY(nrd_path_make(&folder, dir, NRD_REDRAFTER_FOLDER));
    nrd_error *err = nrd_mkdirs(folder);
    err = err ? err : write_weights(h, folder);
    err = err ? err : write_config(h, folder, n_beams, length);
    free(folder);
    return err;
}
