/* SPDX-License-Identifier: Apache-2.0
 * Reads config.ini and the .bin files beside it. A file that holds a whole tensor stays mapped; the shares
 * of a divided one are copied side by side. Called by model/source.c. */
#include "formats/ft_folder.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INI_BYTES = 1 << 20, MAX_LAYERS = 1024, MAX_RANKS = 64, MAX_SIDE = 1 << 24, MAX_NAME = 96, MAX_VALUE = 64,
       MAX_PATH = 4096 };

/* What a tensor's sides are made of. */
typedef enum { ONE, EMBD, QKV, INTER, VOCAB, POSITIONS } side;

/* '*' is the layer. BY_COLS_OF_3: q, k and v beside each other, each divided. */
typedef struct {
    const char *file, *name;
    side rows, cols;
    enum { WHOLE, BY_ROWS, BY_COLS, BY_COLS_OF_3 } split;
    bool optional;
} rule;

static const rule global_rules[] = {
    {"wte", "wte.weight", VOCAB, EMBD, WHOLE, false},
    {"wpe", "wpe.weight", POSITIONS, EMBD, WHOLE, false},
    {"final_layernorm.weight", "ln_f.weight", ONE, EMBD, WHOLE, false},
    {"final_layernorm.bias", "ln_f.bias", ONE, EMBD, WHOLE, false},
    {"lm_head.weight", "lm_head.weight", VOCAB, EMBD, WHOLE, true},
};
static const rule layer_rules[] = {
    {"layers.*.input_layernorm.weight", "h.*.ln_1.weight", ONE, EMBD, WHOLE, false},
    {"layers.*.input_layernorm.bias", "h.*.ln_1.bias", ONE, EMBD, WHOLE, false},
    {"layers.*.attention.query_key_value.weight", "h.*.attn.c_attn.weight", EMBD, QKV, BY_COLS_OF_3, false},
    {"layers.*.attention.query_key_value.bias", "h.*.attn.c_attn.bias", ONE, QKV, BY_COLS_OF_3, false},
    {"layers.*.attention.dense.weight", "h.*.attn.c_proj.weight", EMBD, EMBD, BY_ROWS, false},
    {"layers.*.attention.dense.bias", "h.*.attn.c_proj.bias", ONE, EMBD, WHOLE, false},
    {"layers.*.post_attention_layernorm.weight", "h.*.ln_2.weight", ONE, EMBD, WHOLE, false},
    {"layers.*.post_attention_layernorm.bias", "h.*.ln_2.bias", ONE, EMBD, WHOLE, false},
    {"layers.*.mlp.dense_h_to_4h.weight", "h.*.mlp.c_fc.weight", EMBD, INTER, BY_COLS, false},
    {"layers.*.mlp.dense_h_to_4h.bias", "h.*.mlp.c_fc.bias", ONE, INTER, BY_COLS, false},
    {"layers.*.mlp.dense_4h_to_h.weight", "h.*.mlp.c_proj.weight", INTER, EMBD, BY_ROWS, false},
    {"layers.*.mlp.dense_4h_to_h.bias", "h.*.mlp.c_proj.bias", ONE, EMBD, WHOLE, false},
};
enum { N_GLOBAL = sizeof global_rules / sizeof global_rules[0], N_LAYER = sizeof layer_rules / sizeof layer_rules[0] };

typedef struct {
    nrd_ft_tensor t;
    char name[MAX_NAME];
    nrd_map map;
    void *owned; /* of shares put together */
} entry;

struct nrd_ft {
    char *dir, *ini;
    int64_t embd, heads, layers, positions, vocab, inter, ranks;
    nrd_dtype dtype;
    entry *entries;
    size_t n;
};

/* ---- config.ini ---- */

/* The value of `key` in the section [gpt]; false: there is none, or it is None. Keys are without case and the last
 * of equal ones counts. What is longer than a number or a name can be is cut off, and then none of them. */
static bool ini_get(const char *ini, const char *key, char out[MAX_VALUE])
{
    bool in_section = false, found = false;
    const size_t n_key = strlen(key);
    for (const char *p = ini; *p;) {
        size_t n = strcspn(p, "\n");
        const char *end = p + n, *next = *end ? end + 1 : end;
        while (end > p && isspace((unsigned char)end[-1])) {
            end--;
        }
        if (*p == '[') {
            in_section = end - p == 5 && !memcmp(p, "[gpt]", 5);
        } else if (in_section && (size_t)(end - p) > n_key && !strncasecmp(p, key, n_key)) {
            const char *v = p + n_key;
            v += strspn(v, " \t");
            if (v < end && (*v == '=' || *v == ':')) {
                v += 1 + strspn(v + 1, " \t");
                found = v < end && !(end - v == 4 && !memcmp(v, "None", 4));
                snprintf(out, MAX_VALUE, "%.*s", v < end ? (int)(end - v) : 0, v);
            }
        }
        p = next;
    }
    return found;
}

static nrd_error *ini_int(const nrd_ft *f, const char *key, int64_t max, int64_t otherwise, int64_t *out)
{
    long long v = 0;
    char text[MAX_VALUE];
    const bool found = ini_get(f->ini, key, text);
    if (!found && otherwise > 0) {
        *out = otherwise;
        return NULL;
    }
    if (!found || !nrd_parse_i64(text, &v) || v < 1 || v > max) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.ini: %s in [gpt] must be a whole number from 1 to %lld, got '%s'",
                          f->dir, key, (long long)max, found ? text : "(none)");
    }
    *out = v;
    return NULL;
}

static bool ini_is(const nrd_ft *f, const char *key, const char *word)
{
    char text[MAX_VALUE];
    return ini_get(f->ini, key, text) && !strcasecmp(text, word);
}

static nrd_error *read_ini(nrd_ft *f)
{
    nrd_error *err = NULL;
    size_t n = 0;
    char *path = NULL, dtype[MAX_VALUE];
    NRD_TRY_GOTO(nrd_path_make(&path, f->dir, "config.ini"), err, done);
    NRD_TRY_GOTO(nrd_file_read(&f->ini, &n, path, MAX_INI_BYTES), err, done);
    NRD_TRY_GOTO(ini_int(f, "n_embd", MAX_SIDE, 0, &f->embd), err, done);
    NRD_TRY_GOTO(ini_int(f, "n_head", MAX_SIDE, 0, &f->heads), err, done);
    NRD_TRY_GOTO(ini_int(f, "n_layer", MAX_LAYERS, 0, &f->layers), err, done);
    NRD_TRY_GOTO(ini_int(f, "n_positions", MAX_SIDE, 0, &f->positions), err, done);
    NRD_TRY_GOTO(ini_int(f, "vocab_size", MAX_SIDE, 0, &f->vocab), err, done);
    NRD_TRY_GOTO(ini_int(f, "tensor_parallelism", MAX_RANKS, 1, &f->ranks), err, done);
    NRD_TRY_GOTO(ini_int(f, "n_inner", MAX_SIDE, 4 * f->embd, &f->inter), err, done);
    NRD_TRY_GOTO(ini_int(f, "intermediate_size", MAX_SIDE, f->inter, &f->inter), err, done);
    if (ini_is(f, "multi_query_mode", "True")) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s/config.ini: multi_query_mode is not supported; only gpt2 is", f->dir);
        goto done;
    }
    if (!ini_get(f->ini, "storage_dtype", dtype)) {
        snprintf(dtype, sizeof dtype, "float32");
    }
    bool known = nrd_dtype_parse(dtype, &f->dtype) &&
                 (f->dtype == NRD_DTYPE_F32 || f->dtype == NRD_DTYPE_F16 || f->dtype == NRD_DTYPE_BF16);
    if (!known) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.ini: storage_dtype '%s', expected float32, float16 or bfloat16",
                         f->dir, dtype);
    } else if (f->embd % f->ranks || f->inter % f->ranks) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.ini: tensor_parallelism %lld does not divide n_embd %lld and the "
                         "MLP's size %lld", f->dir, (long long)f->ranks, (long long)f->embd, (long long)f->inter);
    }
done:
    free(path);
    return err;
}

static void put_member(nrd_str *out, const char *name, int64_t value)
{
    nrd_str_printf(out, ",\"%s\":%lld", name, (long long)value);
}

void nrd_ft_config_json(const nrd_ft *f, nrd_str *out)
{
    static const char *const numbers[] = {"layer_norm_epsilon", "bos_token_id", "eos_token_id", "pad_token_id"};
    nrd_str_printf(out, "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"torch_dtype\":\"%s\"",
                   nrd_dtype_name(f->dtype));
    put_member(out, "n_embd", f->embd);
    put_member(out, "n_head", f->heads);
    put_member(out, "n_layer", f->layers);
    put_member(out, "n_positions", f->positions);
    put_member(out, "vocab_size", f->vocab);
    put_member(out, "n_inner", f->inter);
    char text[MAX_VALUE];
    bool plain = ini_get(f->ini, "activation_function", text) &&
                 strspn(text, "abcdefghijklmnopqrstuvwxyz_0123456789") == strlen(text);
    nrd_str_printf(out, ",\"activation_function\":\"%s\"", plain ? text : "gelu_new");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double v;
        if (ini_get(f->ini, numbers[i], text) && nrd_parse_f64(text, &v) && v >= 0 && v < 1e9) {
            nrd_str_printf(out, ",\"%s\":%.9g", numbers[i], v);
        }
    }
    nrd_str_putc(out, '}');
}

/* ---- tensors ---- */

static int64_t length(const nrd_ft *f, side s)
{
    switch (s) {
    case ONE:
        return 1;
    case EMBD:
        return f->embd;
    case QKV:
        return 3 * f->embd;
    case INTER:
        return f->inter;
    case VOCAB:
        return f->vocab;
    case POSITIONS:
        return f->positions;
    }
    return 0;
}

static void expand(char out[MAX_NAME], const char *pattern, int64_t layer)
{
    const char *star = strchr(pattern, '*');
    if (star) {
        snprintf(out, MAX_NAME, "%.*s%lld%s", (int)(star - pattern), pattern, (long long)layer, star + 1);
    } else {
        snprintf(out, MAX_NAME, "%s", pattern);
    }
}

/* rank < 0: a tensor that no rank has a share of. */
static nrd_error *path_of(char out[MAX_PATH], const nrd_ft *f, const char *file, int64_t rank)
{
    int n = rank < 0 ? snprintf(out, MAX_PATH, "%s/model.%s.bin", f->dir, file)
                     : snprintf(out, MAX_PATH, "%s/model.%s.%lld.bin", f->dir, file, (long long)rank);
    return n < MAX_PATH ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "the path '%s' is too long", f->dir);
}

static nrd_error *map_file(nrd_map *out, const nrd_ft *f, const char *file, int64_t rank, size_t bytes)
{
    char path[MAX_PATH];
    NRD_TRY(path_of(path, f, file, rank));
    NRD_TRY(nrd_map_open(out, path));
    return out->size_bytes == bytes ? NULL
                                    : nrd_errorf(NRD_ERR_INVALID_ARG, "%s has %zu bytes, expected %zu by config.ini",
                                                 path, out->size_bytes, bytes);
}

/* A rank's share is n_chunks pieces, and chunk i of the whole is the ranks' pieces i side by side. */
static nrd_error *join_shares(const nrd_ft *f, const char *file, entry *e, size_t n_chunks)
{
    nrd_error *err = NULL;
    const size_t ranks = (size_t)f->ranks, share = e->t.data_bytes / ranks, chunk = share / n_chunks;
    uint8_t *to = NULL;
    NRD_NEW_GOTO(to, e->t.data_bytes, err, done);
    e->owned = to;
    e->t.data = to;
    for (size_t rank = 0; rank < ranks && !err; rank++) {
        nrd_map m = {0};
        err = map_file(&m, f, file, (int64_t)rank, share);
        for (size_t i = 0; i < n_chunks && !err; i++) {
            memcpy(to + (i * ranks + rank) * chunk, m.data + i * chunk, chunk);
        }
        if (!err && nrd_map_is_lost(&m)) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: a file was made shorter while it was read", f->dir);
        }
        nrd_map_close(&m);
    }
done:
    return err;
}

static nrd_error *add(nrd_ft *f, const rule *r, int64_t layer)
{
    entry *e = &f->entries[f->n];
    char file[MAX_NAME];
    const int64_t rows = length(f, r->rows), cols = length(f, r->cols);
    size_t elements;

    expand(file, r->file, layer);
    expand(e->name, r->name, layer);
    e->t = (nrd_ft_tensor){.name = e->name, .n_dims = r->rows == ONE ? 1 : 2};
    e->t.dims[0] = r->rows == ONE ? cols : rows;
    e->t.dims[1] = r->rows == ONE ? 0 : cols;
    if (!nrd_size_mul((size_t)rows, (size_t)cols, &elements) ||
        !nrd_size_mul(elements, f->dtype == NRD_DTYPE_F32 ? 4 : 2, &e->t.data_bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s/config.ini: '%s' would be too large", f->dir, file);
    }
    if (r->optional) {
        char path[MAX_PATH];
        NRD_TRY(path_of(path, f, file, -1));
        if (!nrd_path_exists(path)) {
            return NULL;
        }
    }
    f->n++;
    if (r->split == WHOLE || f->ranks == 1) {
        NRD_TRY(map_file(&e->map, f, file, r->split == WHOLE ? -1 : 0, e->t.data_bytes));
        e->t.data = e->map.data;
        return NULL;
    }
    return join_shares(f, file, e, r->split == BY_ROWS ? 1 : (size_t)rows * (r->split == BY_COLS_OF_3 ? 3 : 1));
}

bool nrd_ft_is_folder(const char *dir)
{
    char path[MAX_PATH];
    return snprintf(path, sizeof path, "%s/config.ini", dir) < MAX_PATH && nrd_path_exists(path);
}

nrd_error *nrd_ft_open(nrd_ft **out, const char *dir)
{
    nrd_error *err = NULL;
    nrd_ft *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    f->dir = strdup(dir);
    if (!f->dir) {
        err = nrd_error_no_memory();
        goto fail;
    }
    NRD_TRY_GOTO(read_ini(f), err, fail);
    NRD_NEW_GOTO(f->entries, N_GLOBAL + (size_t)f->layers * N_LAYER, err, fail);
    for (size_t i = 0; i < N_GLOBAL; i++) {
        NRD_TRY_GOTO(add(f, &global_rules[i], 0), err, fail);
    }
    for (int64_t layer = 0; layer < f->layers; layer++) {
        for (size_t i = 0; i < N_LAYER; i++) {
            NRD_TRY_GOTO(add(f, &layer_rules[i], layer), err, fail);
        }
    }
    *out = f;
    return NULL;

fail:
    nrd_ft_close(f);
    return err;
}

void nrd_ft_close(nrd_ft *f)
{
    if (!f) {
        return;
    }
    for (size_t i = 0; i < f->n; i++) {
        nrd_map_close(&f->entries[i].map);
        free(f->entries[i].owned);
    }
    free(f->entries);
    free(f->ini);
    free(f->dir);
    free(f);
}

bool nrd_ft_is_lost(const nrd_ft *f)
{
    for (size_t i = 0; i < f->n; i++) {
        if (f->entries[i].map.data && nrd_map_is_lost(&f->entries[i].map)) {
            return true;
        }
    }
    return false;
}

nrd_dtype nrd_ft_dtype(const nrd_ft *f)
{
    return f->dtype;
}

size_t nrd_ft_n(const nrd_ft *f)
{
    return f->n;
}

const nrd_ft_tensor *nrd_ft_at(const nrd_ft *f, size_t i)
{
    return i < f->n ? &f->entries[i].t : NULL;
}
