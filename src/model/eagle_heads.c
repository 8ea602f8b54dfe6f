/* SPDX-License-Identifier: Apache-2.0 */
#include "model/eagle_heads.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/arch.h"
#include "model/heads_file.h"

#include <stdio.h>
#include <string.h>

#define CONFIG "config.json"

enum { COPY_BYTES = 1 << 20 };
enum { MAX_NAME = 96, MAX_CONFIG_BYTES = 1 << 20, CONFIG_DEPTH = 32 };

struct nrd_eagle_heads {
    nrd_heads_file file;
    char *config_path;
    bool is_3;
    nrd_model_spec spec;
    nrd_eagle_weights w;
    int32_t layers[NRD_EAGLE_STATES];
    int32_t *tokens; /* [spec.vocab] the model's token of each row; NULL: the same */
};

/* ---- the file ---- */

/* By a name behind the layer's or a plain one, in any of the published forms. used: the name as it is, or is expected. */
static bool find(const nrd_eagle_heads *e, bool of_layer, const char *name, char *used, nrd_heads_tensor *out)
{
    static const char *const of_layers[] = {"layers.0.", "midlayer.", "model.layers.0.", "model.midlayer."};
    static const char *const plain[] = {"", "model."};
    const int n = of_layer ? 4 : 2;
    for (int i = 0; i < n; i++) {
        snprintf(used, MAX_NAME, "%s%s", of_layer ? of_layers[i] : plain[i], name);
        if (nrd_heads_file_find(&e->file, used, out)) {
            return true;
        }
    }
    snprintf(used, MAX_NAME, "%s%s", of_layer ? (e->is_3 ? "midlayer." : "layers.0.") : "", name);
    return false;
}

static nrd_error *open_file(nrd_eagle_heads *e, const char *dir)
{
    static const char *const names[] = {"model.safetensors", "pytorch_model.bin"};
    bool found;
    NRD_TRY(nrd_heads_file_open(&e->file, dir, names, 2, &found));
    return found ? NULL
                 : nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no EAGLE heads: expected " CONFIG ", and model.safetensors or "
                                                 "pytorch_model.bin", dir);
}

/* ---- weights ---- */

/* cols 0: a vector of `rows` numbers. */
static nrd_error *take(nrd_eagle_heads *e, bool of_layer, const char *name, int64_t rows, int64_t cols, bool must_be,
                       nrd_weight *out)
{
    char used[MAX_NAME];
    nrd_heads_tensor t;

    if (!find(e, of_layer, name, used, &t)) {
        return must_be ? nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor %s", e->file.path, used) : NULL;
    }
    return nrd_heads_file_weight(&e->file, used, &t, rows, cols, out);
}

static nrd_error *take_all(nrd_eagle_heads *e, const nrd_model_spec *model)
{
    const nrd_model_spec *m = &e->spec;
    const int64_t h = m->hidden, in = e->is_3 ? 2 * h : h, q = (int64_t)m->n_heads * m->head_dim,
                  kv = (int64_t)m->n_kv_heads * m->head_dim;
    nrd_eagle_weights *w = &e->w;
    const struct {
        bool of_layer;
        const char *name;
        int64_t rows, cols;
        bool must_be;
        nrd_weight *to;
    } rows[] = {
        {false, "fc.weight", h, e->is_3 ? NRD_EAGLE_STATES * (int64_t)model->hidden : 2 * h, true, &w->fc},
        {false, "fc.bias", h, 0, false, &w->fc_bias},
        {true, "self_attn.q_proj.weight", q, in, true, &w->q},
        {true, "self_attn.k_proj.weight", kv, in, true, &w->k},
        {true, "self_attn.v_proj.weight", kv, in, true, &w->v},
        {true, "self_attn.o_proj.weight", h, q, true, &w->o},
        {true, "self_attn.q_proj.bias", q, 0, m->qkv_bias, &w->q_bias},
        {true, "self_attn.k_proj.bias", kv, 0, m->qkv_bias, &w->k_bias},
        {true, "self_attn.v_proj.bias", kv, 0, m->qkv_bias, &w->v_bias},
        {true, "self_attn.o_proj.bias", h, 0, m->dense_bias, &w->o_bias},
        {true, "mlp.gate_proj.weight", m->inter, h, true, &w->gate},
        {true, "mlp.up_proj.weight", m->inter, h, true, &w->up},
        {true, "mlp.down_proj.weight", h, m->inter, true, &w->down},
        {true, "post_attention_layernorm.weight", h, 0, true, &w->mlp_norm},
        {false, "embed_tokens.weight", model->vocab, h, false, &w->embed},
        {false, "lm_head.weight", m->vocab, h, e->is_3 && m->vocab != model->vocab, &w->lm_head},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(take(e, rows[i].of_layer, rows[i].name, rows[i].rows, rows[i].cols, rows[i].must_be, rows[i].to));
    }
    if (!e->is_3) {
        return NULL;
    }
    NRD_TRY(take(e, true, "input_layernorm.weight", h, 0, true, &w->embed_norm));
    NRD_TRY(take(e, true, "hidden_norm.weight", h, 0, true, &w->state_norm));
    return take(e, false, "norm.weight", h, 0, true, &w->final_norm);
}

/* d2t: how far the model's token lies behind the row's number. */
static nrd_error *take_tokens(nrd_eagle_heads *e, const nrd_model_spec *model)
{
    const int32_t n = e->spec.vocab;
    nrd_error *err = NULL;
    char used[MAX_NAME];
    nrd_heads_tensor t;

    if (!e->is_3 || !find(e, false, "d2t", used, &t)) {
        return n == model->vocab ? NULL
                                 : nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no tensor d2t, which says the tokens of a vocabulary of %d; "
                                                                 "the model has %d", e->file.path, n, model->vocab);
    }
    if (t.dtype != NRD_DTYPE_I64 || t.n_dims != 1 || t.dims[0] != n || t.data_bytes != (size_t)n * sizeof(int64_t)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s must be %d numbers of int64 (draft_vocab_size)", e->file.path, used, n);
    }
    NRD_NEW_GOTO(e->tokens, n, err, fail);
    for (int32_t i = 0; i < n; i++) {
        int64_t behind;
        memcpy(&behind, (const char *)t.data + (size_t)i * sizeof behind, sizeof behind);
        const int32_t least = i > 0 ? e->tokens[i - 1] + 1 : 0; /* no token twice: children of a tree's node differ */
        if (behind < least - i || behind >= model->vocab - i) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s[%d] is %lld; with %d it must be a token of the model, from %d to %d", e->file.path,
                              used, i, (long long)behind, i, least, model->vocab - 1);
        }
        e->tokens[i] = i + (int32_t)behind;
    }
fail:
    return err;
}

/* ---- config.json ---- */

static nrd_error *unsupported(const nrd_eagle_heads *e, const char *part)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: EAGLE heads with %s are not supported", e->file.path, part);
}

static nrd_error *check_spec(nrd_eagle_heads *e, const nrd_model_spec *model)
{
    const nrd_model_spec *m = &e->spec;
    const struct {
        bool is;
        const char *part;
    } rows[] = {
        {m->norm != NRD_NORM_RMS, "layer norms"},
        {m->qk_norm, "norms of q and k"},
        {m->has_experts, "experts"},
        {!m->gated_mlp || m->mlp_bias, "an MLP that is not gated, or has biases"},
        {m->parallel || m->post_norms || !m->pre_norms || m->alibi || m->learned_positions || m->sink_logits, "such a layer"},
        {m->sliding_window > 0 && m->layer_is_sliding[0], "an attention window"},
        {m->attn_softcap > 0, "an attention softcap"},
        {nrd_spec_is_latent(m) || m->cross_attention, "latent or cross attention"},
        {m->rope.scaling == NRD_ROPE_SCALING_FACTORS, "rotary factors in a tensor"},
        {m->n_layers != 1, "several layers"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].is) {
            return unsupported(e, rows[i].part);
        }
    }
    if (m->hidden != model->hidden) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: EAGLE heads of hidden_size %d, the model has %d", e->file.path, m->hidden,
                          model->hidden);
    }
    return NULL;
}

/* The layers that EAGLE-3 reads: named, or a low, a middle and a high one, as they are trained. */
static nrd_error *read_layers(nrd_eagle_heads *e, const nrd_json *config, const nrd_model_spec *model)
{
    const nrd_json *own = nrd_json_get(config, "eagle_config");
    const nrd_json *list = nrd_json_get(own ? own : config, "eagle_aux_hidden_state_layer_ids");
    const int32_t n = model->n_layers, usual[NRD_EAGLE_STATES] = {2, n / 2, n - 3};

    if (list && (!nrd_json_is(list, NRD_JSON_ARRAY) || nrd_json_len(list) != NRD_EAGLE_STATES)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: eagle_aux_hidden_state_layer_ids must be %d numbers", e->file.path, NRD_EAGLE_STATES);
    }
    for (int32_t i = 0; i < NRD_EAGLE_STATES; i++) {
        const int64_t layer = list ? nrd_json_int(nrd_json_at(list, (size_t)i), -1) : usual[i];
        if (layer < 0 || layer >= n) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: EAGLE-3 reads what goes into layer %lld, the model has the layers 0 to %d%s",
                              e->file.path, (long long)layer, n - 1,
                              list ? "" : "; name others by eagle_aux_hidden_state_layer_ids in config.json");
        }
        e->layers[i] = (int32_t)layer;
    }
    return NULL;
}

static nrd_error *read_config(nrd_eagle_heads *e, const nrd_json *config, const nrd_model_spec *model)
{
    const nrd_arch *arch = NULL;

    NRD_TRY(nrd_error_wrap(nrd_arch_from_hf(&e->spec, &arch, config, NULL), "%s: config.json", e->file.path));
    NRD_TRY(check_spec(e, model));
    const int64_t vocab = e->is_3 ? nrd_json_get_int(config, "draft_vocab_size", model->vocab) : model->vocab;
    if (vocab < 1 || vocab > model->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: draft_vocab_size is %lld, expected 1 to %d, the model's vocabulary", e->file.path,
                          (long long)vocab, model->vocab);
    }
    e->spec.vocab = (int32_t)vocab;
    return e->is_3 ? read_layers(e, config, model) : NULL;
}

/* ---- open ---- */

static nrd_error *open_all(nrd_eagle_heads *e, const char *dir, const nrd_model_spec *model, nrd_eagle_kind kind)
{
    nrd_json_doc *doc = NULL;
    char used[MAX_NAME];
    nrd_heads_tensor t;

    NRD_TRY(open_file(e, dir));
    if (!find(e, false, "fc.weight", used, &t)) { /* before a kind is told by what is missing */
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no EAGLE heads: no tensor %s", e->file.path, used);
    }
    const bool has_norm = find(e, true, "hidden_norm.weight", used, &t);
    e->is_3 = kind == NRD_EAGLE_ANY ? has_norm : e->is_3;
    if (has_norm != e->is_3) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s %s a tensor %s: these are heads of EAGLE-%s, use the method '%s'", e->file.path,
                          e->is_3 ? "has not" : "has", used, e->is_3 ? "1" : "3", e->is_3 ? "eagle" : "eagle3");
    }
    NRD_TRY(nrd_path_make(&e->config_path, dir, CONFIG));
    NRD_TRY(nrd_json_parse_file(&doc, e->config_path, &(nrd_json_limits){.max_bytes = MAX_CONFIG_BYTES, .max_depth = CONFIG_DEPTH}));
    nrd_error *err = read_config(e, nrd_json_root(doc), model);
    nrd_json_doc_free(doc);
    NRD_TRY(err);
    NRD_TRY(take_all(e, model));
    return take_tokens(e, model);
}

nrd_error *nrd_eagle_heads_open(nrd_eagle_heads **out, const char *dir, const nrd_model_spec *model, nrd_eagle_kind kind)
{
    nrd_error *err = NULL;
    nrd_eagle_heads *e = NULL;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    e->is_3 = kind == NRD_EAGLE_3;
    NRD_TRY_GOTO(open_all(e, dir, model, kind), err, fail);
    *out = e;
    return NULL;

fail:
    nrd_eagle_heads_close(e);
    return err;
}

void nrd_eagle_heads_close(nrd_eagle_heads *e)
{
    if (e) {
        nrd_heads_file_close(&e->file);
        free(e->tokens);
        free(e->config_path);
        free(e);
    }
}

bool nrd_eagle_heads_is_3(const nrd_eagle_heads *e)
{
    return e->is_3;
}

const nrd_model_spec *nrd_eagle_heads_spec(const nrd_eagle_heads *e)
{
    return &e->spec;
}

const nrd_eagle_weights *nrd_eagle_heads_weights(const nrd_eagle_heads *e)
{
    return &e->w;
}

const int32_t *nrd_eagle_heads_layers(const nrd_eagle_heads *e)
{
    return e->layers;
}

int32_t nrd_eagle_heads_token(const nrd_eagle_heads *e, int32_t row)
{
    if (row < 0 || row >= e->spec.vocab) { /* of logits that are no numbers */
        return 0;
    }
    return e->tokens ? e->tokens[row] : row;
}

/* ---- in a checkpoint ---- */

bool nrd_eagle_heads_are_in(const char *dir)
{
    char *config = NULL;
    nrd_error *err = nrd_path_make(&config, dir, NRD_EAGLE_FOLDER "/" CONFIG);
    const bool found = !err && nrd_path_exists(config);
    nrd_error_free(err);
    free(config);
    return found;
}

static nrd_error *copy_open(FILE *from, FILE *to, const char *to_path)
{
    char *piece = malloc(COPY_BYTES);
    size_t n = 0;
    bool ok = piece != NULL;

    if (!piece) {
        return nrd_error_no_memory();
    }
    while (ok && (n = fread(piece, 1, COPY_BYTES, from)) > 0) {
        ok = fwrite(piece, 1, n, to) == n;
    }
    free(piece);
    return ok && !ferror(from) && fflush(to) == 0 ? NULL : nrd_errorf(NRD_ERR_INTERNAL, "cannot write '%s'", to_path);
}

static nrd_error *copy_file(const char *from_path, const char *dir, const char *name)
{
    char *to_path = NULL;
    NRD_TRY(nrd_path_make(&to_path, dir, name));
    FILE *from = fopen(from_path, "rb"), *to = from ? fopen(to_path, "wb") : NULL;
    nrd_error *err = to ? copy_open(from, to, to_path)
                        : nrd_errorf(NRD_ERR_INTERNAL, "cannot copy '%s' to '%s'", from_path, to_path);
    if (from) {
        fclose(from);
    }
    if (to && fclose(to) != 0 && !err) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot write '%s'", to_path);
    }
    free(to_path);
    return err;
}

nrd_error *nrd_eagle_heads_copy(const nrd_eagle_heads *e, const char *dir)
{
    char *folder = NULL;
    NRD_TRY(nrd_path_make(&folder, dir, NRD_EAGLE_FOLDER));
    nrd_error *err = nrd_mkdirs(folder);

    if (!err) {
        err = copy_file(e->file.path, folder, nrd_path_base(e->file.path));
    }
    if (!err) { /* last, so that a folder with it is whole */
        err = copy_file(e->config_path, folder, CONFIG);
    }
    free(folder);
    return err;
}
