/* SPDX-License-Identifier: Apache-2.0
 * Opens a .nemo archive: settings, then weights in one file of PyTorch or in folders of zarr, whose names become those of Megatron
 * core. Called by model/source_folder.c and text/load_nemo.c. */
#include "formats/nemo.h"

#include "base/mem.h"
#include "formats/nemo_internal.h"
#include "formats/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 512, MAX_CONFIG_BYTES = 1 << 20 };

struct nrd_nemo {
    nrd_tar *archive;
    nrd_torch_bin *bin; /* NULL: the weights are folders of zarr */
    nrd_nemo_config config;
    int64_t vocab;
    nrd_torch_tensor *tensors;
    size_t n, cap;
    nrd_arena names;
};

/* ---- settings ---- */

nrd_error *nrd_nemo_settings(nrd_json_doc **out, const nrd_tar *archive)
{
    const nrd_tar_member *m = nrd_tar_find(archive, "model_config.yaml");
    nrd_str text = {0};

    *out = NULL;
    if (!m || m->bytes > MAX_CONFIG_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no model_config.yaml of at most %d bytes in the archive", (int)MAX_CONFIG_BYTES);
    }
    nrd_error *err = nrd_yaml_to_json(&text, (const char *)m->data, m->bytes);
    err = err ? err : nrd_json_parse(out, text.data, text.len, NULL);
    nrd_str_fini(&text);
    return nrd_error_wrap(err, "model_config.yaml");
}

const nrd_tar_member *nrd_nemo_artifact(const nrd_tar *archive, const nrd_json *name)
{
    const char *text = nrd_json_str(name, NULL);

    return text ? nrd_tar_find(archive, text + (nrd_str_has_prefix(text, "nemo:") ? strlen("nemo:") : 0)) : NULL;
}

/* ---- tensors ---- */

static nrd_error *add(nrd_nemo *f, const nrd_torch_tensor *t, const char *name)
{
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 256;
        nrd_torch_tensor *grown = realloc(f->tensors, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        f->tensors = grown;
        f->cap = cap;
    }
    f->tensors[f->n] = *t;
    f->tensors[f->n].name = nrd_arena_strndup(&f->names, name, strlen(name));
    return f->tensors[f->n++].name ? NULL : nrd_error_no_memory();
}

/* What a part of a layer is called in Megatron core, by the layers of NeMo's own and of Transformer Engine. */
static const struct {
    const char *theirs, *ours;
} parts[] = {
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.layernorm_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.layernorm_qkv.", "self_attention.linear_qkv."},
    {"self_attention.query_key_value.", "self_attention.linear_qkv."},
    {"self_attention.dense.", "self_attention.linear_proj."},
    {"self_attention.proj.", "self_attention.linear_proj."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
    {"layernorm_mlp.layer_norm_", "pre_mlp_layernorm."},
    {"layernorm_mlp.fc1_", "mlp.linear_fc1."},
    {"layernorm_mlp.fc2_", "mlp.linear_fc2."},
    {"post_attention_layernorm.", "pre_mlp_layernorm."},
    {"mlp.dense_h_to_4h_2.", "mlp.linear_fc1_up."},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
};

/* The name of Megatron core, without "model." in front. */
static void name_of(const char *theirs, char *out, size_t n)
{
    static const char *const fronts[] = {"model.", "module.", "language_model."};

    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++) {
        theirs += nrd_str_has_prefix(theirs, fronts[i]) ? strlen(fronts[i]) : 0;
    }
    const bool of_encoder = nrd_str_has_prefix(theirs, "encoder."); /* as NeMo's own layers are called */
    snprintf(out, n, "%s%s", of_encoder ? "decoder." : "", theirs + (of_encoder ? strlen("encoder.") : 0));
    const char *layers = strstr(out, "layers.");
    const char *part = layers ? layers + strlen("layers.") : NULL;
    part = part ? part + strspn(part, "0123456789") : NULL;
    for (size_t i = 0; part && *part == '.' && i < sizeof parts / sizeof *parts; i++) {
        if (nrd_str_has_prefix(part + 1, parts[i].theirs)) {
            char rest[MAX_NAME];
            snprintf(rest, sizeof rest, "%s", part + 1 + strlen(parts[i].theirs));
            const size_t at = (size_t)(part + 1 - out);
            snprintf(out + at, n - at, "%s%s", parts[i].ours, rest);
            return;
        }
    }
}

/* Gate and what it multiplies, one above the other. */
static nrd_error *add_halves(nrd_nemo *f, const nrd_torch_tensor *t, const char *name, const char *tail)
{
    nrd_torch_tensor half = *t;
    char up[MAX_NAME + 8];

    if (t->n_dims < 1 || t->dims[0] != 2 * f->config.inter) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld rows, expected %lld", t->name, (long long)(t->n_dims ? t->dims[0] : 0),
                          (long long)(2 * f->config.inter));
    }
    half.dims[0] /= 2;
    half.data_bytes /= 2;
    NRD_TRY(add(f, &half, name));
    half.data = (const uint8_t *)t->data + half.data_bytes;
    snprintf(up, sizeof up, "%.*s_up%s", (int)(tail - name), name, tail);
    return add(f, &half, up);
}

static nrd_error *take(void *user, const nrd_torch_tensor *t)
{
    static const char fc1[] = "mlp.linear_fc1";
    nrd_nemo *f = user;
    char name[MAX_NAME + 32];

    if (strstr(t->name, "_extra_state") || strstr(t->name, "inv_freq")) {
        return NULL;
    }
    if (strlen(t->name) >= MAX_NAME - 64) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a tensor's name has %zu bytes, the limit is %d", strlen(t->name), MAX_NAME - 64);
    }
    name_of(t->name, name, MAX_NAME);
    if (!strcmp(name, "embedding.word_embeddings.weight") && t->n_dims == 2) {
        f->vocab = t->dims[0];
    }
    const char *at = strstr(name, fc1);
    const bool is_fc1 = at && at[strlen(fc1)] == '.';
    /* of NeMo's own layers the two parts may stand apart */
    return is_fc1 && f->config.gated && t->n_dims > 0 && t->dims[0] != f->config.inter ? add_halves(f, t, name, at + strlen(fc1))
                                                                                      : add(f, t, name);
}

static nrd_error *read_weights(nrd_nemo *f)
{
    static const char folder[] = "model_weights/";
    const nrd_tar_member *m = nrd_tar_find(f->archive, "model_weights.ckpt");
    size_t n = 0;

    if (m) {
        NRD_TRY(nrd_error_wrap(nrd_torch_bin_open_memory(&f->bin, m->data, m->bytes), "model_weights.ckpt"));
        for (size_t i = 0; i < nrd_torch_bin_n(f->bin); i++) {
            NRD_TRY(take(f, nrd_torch_bin_at(f->bin, i)));
        }
        return NULL;
    }
    for (size_t i = 0; i < nrd_tar_n(f->archive); i++) {
        const char *name = nrd_tar_at(f->archive, i)->name, *base = strrchr(name, '/');
        if (base && !strcmp(base, "/model_weights.ckpt")) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%.200s' is the part of one rank; expected weights of one rank, as NeMo's "
                              "megatron_change_num_partitions.py writes them for 1 and 1", name);
        }
        if (nrd_str_has_suffix(name, ".distcp")) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "weights in the format torch_dist ('%.200s') are not supported; expected "
                              "model_weights.ckpt, or zarr", name);
        }
    }
    NRD_TRY(nrd_nemo_read_zarr(f->archive, folder, take, f, &n));
    return n ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "no weights; expected model_weights.ckpt, or model_weights/NAME/.zarray");
}

/* ---- opening ---- */

static nrd_error *read_archive(nrd_nemo *f)
{
    nrd_json_doc *settings = NULL;

    NRD_TRY(nrd_nemo_settings(&settings, f->archive));
    nrd_error *err = nrd_error_wrap(nrd_nemo_read_config(&f->config, nrd_json_root(settings)), "model_config.yaml");
    nrd_json_doc_free(settings);
    err = err ? err : read_weights(f);
    if (!err && f->vocab < 1) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "no tensor 'embedding.word_embeddings.weight'");
    }
    return err;
}

static nrd_error *open_any(nrd_nemo **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_nemo *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    nrd_arena_init(&f->names);
    NRD_TRY_GOTO(path ? nrd_tar_open(&f->archive, path) : nrd_tar_open_memory(&f->archive, data, n), err, fail);
    NRD_TRY_GOTO(nrd_error_wrap(read_archive(f), "%s", path ? path : "<memory>"), err, fail);
    *out = f;
    return NULL;

fail:
    nrd_nemo_close(f);
    return err;
}

nrd_error *nrd_nemo_open(nrd_nemo **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_nemo_open_memory(nrd_nemo **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

void nrd_nemo_close(nrd_nemo *f)
{
    if (!f) {
        return;
    }
    nrd_torch_bin_close(f->bin);
    nrd_tar_close(f->archive);
    free(f->tensors);
    nrd_arena_fini(&f->names);
    free(f);
}

bool nrd_nemo_is_lost(const nrd_nemo *f)
{
    return nrd_tar_is_lost(f->archive);
}

void nrd_nemo_config_json(const nrd_nemo *f, nrd_str *out)
{
    nrd_nemo_put_config(&f->config, f->vocab, f->n ? f->tensors[0].dtype : NRD_DTYPE_F32, out);
}

size_t nrd_nemo_n(const nrd_nemo *f)
{
    return f->n;
}

const nrd_torch_tensor *nrd_nemo_at(const nrd_nemo *f, size_t i)
{
    return i < f->n ? &f->tensors[i] : NULL;
}
