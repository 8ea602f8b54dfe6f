/* SPDX-License-Identifier: Apache-2.0
 * Folders as sources: checkpoints, Hugging Face's with config.json, and those of other programs, which are told in its words. Called by
 * source.c. */
#include "model/source_internal.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/source_mtp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 1024 };

/* What each layer is, which stands beside config.json. */
static nrd_error *read_layers(const nrd_source *s, nrd_json_doc **out_doc, const nrd_json **out)
{
    NRD_TRY(nrd_source_json(out_doc, s->path, "quant_cfg.json"));
    *out = *out_doc ? nrd_json_get(nrd_json_root(*out_doc), "quantized_layers") : NULL;
    return nrd_json_is(*out, NRD_JSON_OBJECT) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "quant_algo " NRD_QUANT_MIXED " needs quant_cfg.json "
                                                                  "with an object quantized_layers, got %s",
                                                                  *out_doc ? nrd_json_type_name(*out) : "no such file");
}

/* What TensorRT-LLM's converters quantized. */
static nrd_error *open_rank_quants(nrd_source *s, const nrd_json *quantization)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    const nrd_json *layers = NULL;

    if (!strcmp(s->spec.quant_algo, NRD_QUANT_MIXED)) {
        NRD_TRY_GOTO(read_layers(s, &doc, &layers), err, done);
    }
    NRD_NEW_GOTO(s->rank_quants, (size_t)s->n_ranks, err, done);
    for (int32_t r = 0; r < s->n_ranks && !err; r++) {
        err = nrd_error_wrap(nrd_quant_open_checkpoint(&s->rank_quants[r], quantization, layers, s->spec.dtype,
                                                       s->ranks[r].tensors, &s->ranks[r].n), "rank%d.safetensors", r);
    }
    s->quant = s->rank_quants[0];
done:
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *open_checkpoint(nrd_source *s, const nrd_json *config)
{
    char name[40];

    s->kind = NRD_SOURCE_CHECKPOINT;
    NRD_TRY(nrd_arch_from_checkpoint(&s->spec, config));
    int32_t n = s->spec.tp_size * s->spec.pp_size;
    if (n > MAX_RANKS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "mapping: %d ranks, the limit is %d", n,
                          (int)MAX_RANKS);
    }
    nrd_tensor_table *ranks = calloc((size_t)n, sizeof *ranks);
    if (!ranks) {
        return nrd_error_no_memory();
    }
    free(s->ranks);
    s->ranks = ranks;
    s->n_ranks = n;
    for (int32_t r = 0; r < n; r++) {
        snprintf(name, sizeof name, "rank%d.safetensors", r);
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, s->path, name));
        nrd_error *err = nrd_source_add_safetensors(s, &s->ranks[r], path);
        free(path);
        if (!err) {
            err = nrd_table_finish(s, &s->ranks[r]);
        }
        if (err) {
            return err;
        }
    }
    return nrd_json_get(config, "nereid") || !s->spec.quant_algo[0] ? NULL : open_rank_quants(s, nrd_json_get(config, "quantization"));
}

static bool has_any(const nrd_source *s, const char *prefix, const char *names)
{
    char name[256];
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, "|");
        snprintf(name, sizeof name, "%s%.*s", prefix, (int)n, at);
        if (nrd_source_find(s, 0, name)) {
            return true;
        }
        at += n + (at[n] == '|');
    }
    return false;
}

/* Some files lie about ties, or leave the key out: what is in the file decides. */
static void settle_tie(nrd_source *s)
{
    bool has_head = false;
    for (const nrd_weight_rule *r = s->arch->hf_rules; r->dst; r++) {
        for (const char *const *p = s->arch->hf_prefixes; *p && !strcmp(r->dst, "lm_head.weight"); p++) {
            has_head = has_head || has_any(s, *p, r->src[0]);
        }
    }
    if (!s->spec.tied_embeddings && !has_head) {
        s->spec.tied_embeddings = true;
    }
}

/* Layers that read pictures have nothing to read where the folder has no tower. */
static void settle_pictures(nrd_source *s)
{
    static const char *const names[] = {"vision_model.patch_embedding.weight", "model.vision_model.patch_embedding.weight"};

    s->spec.reads_pictures = s->spec.reads_pictures && (nrd_source_find(s, 0, names[0]) || nrd_source_find(s, 0, names[1]));
}

/* GPT-2 as hf_gpt_convert.py of v0.5 to v0.8 writes it: the tensors are those of Hugging Face again. */
static nrd_error *open_ft(nrd_source *s)
{
    nrd_error *err = NULL;
    nrd_str text = {0};
    nrd_json_doc *config = NULL;

    s->kind = NRD_SOURCE_HF;
    NRD_TRY(nrd_ft_open(&s->ft, s->path));
    nrd_ft_config_json(s->ft, &text);
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&config, text.data, text.len, NULL), err, done);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_arch_from_hf(&s->spec, &s->arch, nrd_json_root(config), NULL), "%s/config.ini",
                                s->path), err, done);
    for (size_t i = 0; i < nrd_ft_n(s->ft); i++) {
        const nrd_ft_tensor *e = nrd_ft_at(s->ft, i);
        nrd_src_tensor t = {.name = e->name, .dtype = nrd_ft_dtype(s->ft), .n_dims = e->n_dims, .data = e->data,
                            .data_bytes = e->data_bytes, .type_name = nrd_dtype_name(nrd_ft_dtype(s->ft))};
        memcpy(t.dims, e->dims, sizeof e->dims);
        NRD_TRY_GOTO(nrd_table_add(&s->ranks[0], &t), err, done);
    }
    NRD_TRY_GOTO(nrd_table_finish(s, &s->ranks[0]), err, done);
    s->spec.tied_embeddings = !nrd_source_find(s, 0, "lm_head.weight");
done:
    nrd_json_doc_free(config);
    nrd_str_fini(&text);
    return err;
}

/* A folder without config.json: says what it is instead, and what to give. */
static nrd_error *refuse_folder(const char *dir)
{
    nrd_json_doc *adapter = NULL;
    char **names = NULL;
    const char *gguf = NULL;
    size_t n = 0;

    NRD_TRY(nrd_source_json(&adapter, dir, "adapter_config.json"));
    if (adapter) {
        nrd_error *err = nrd_errorf(
            NRD_ERR_UNSUPPORTED, "%s is a LoRA adapter, which cannot be loaded by itself; give its base "
            "model (%s), and the adapter with --lora_dir", dir,
            nrd_json_get_str(nrd_json_root(adapter), "base_model_name_or_path", "not named"));
        nrd_json_doc_free(adapter);
        return err;
    }
    NRD_TRY(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n && !gguf; i++) {
        gguf = nrd_str_has_suffix(names[i], ".gguf") ? names[i] : NULL;
    }
    nrd_error *err = gguf ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s holds a GGUF file; give the file "
                                       "itself: %s/%s", dir, dir, gguf)
                          : nrd_errorf(NRD_ERR_NOT_FOUND, "%s: no config.json; expected a Hugging "
                                       "Face model folder, a checkpoint folder, or a .gguf file",
                                       dir);
    nrd_names_free(names, n);
    return err;
}

/* The bias of the logits of BART and its like is a row of a matrix; where it is left out, as some do, it is all zero. */
static void settle_logits_bias(nrd_source *s)
{
    nrd_tensor_table *all = &s->ranks[0];

    for (size_t i = 0; i < all->n; i++) {
        nrd_src_tensor *t = &all->tensors[i];
        if (!strcmp(t->name, "final_logits_bias")) {
            if (t->n_dims == 2 && t->dims[0] == 1) {
                t->n_dims = 1;
                t->dims[0] = t->dims[1];
            }
            return;
        }
    }
    s->spec.lm_head_bias = false;
}

nrd_error *nrd_source_add_encoder(nrd_source *s, const nrd_json *config)
{
    nrd_source *e = NULL;
    nrd_error *err = NULL;

    if (!nrd_arch_encoder_of(s->arch)) {
        return NULL;
    }
    NRD_NEW_GOTO(e, 1, err, done);
    *e = *s;
    e->encoder = NULL;
    e->arch = nrd_arch_encoder_of(s->arch);
    s->encoder = e;
    err = config ? nrd_arch_encoder_from_hf(&e->spec, s->arch, config) : nrd_arch_encoder_from_gguf(&e->spec, s->arch, s->gguf);
done:
    return err;
}

/* A file of PyTorch whose reader tells it in the words of Hugging Face: config.json and tensors. */
static nrd_error *open_told(nrd_source *s, const char *path, const nrd_str *text, size_t n,
                            const nrd_torch_tensor *(*at)(const nrd_source *s, size_t i))
{
    nrd_error *err = NULL;
    nrd_json_doc *config = NULL;

    s->kind = NRD_SOURCE_HF;
    NRD_TRY(nrd_str_error(text));
    NRD_TRY_GOTO(nrd_json_parse(&config, text->data, text->len, NULL), err, done);
    const nrd_json *root = nrd_json_root(config);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_arch_from_hf(&s->spec, &s->arch, root, NULL), "%s", path), err, done);
    for (size_t i = 0; i < n; i++) {
        const nrd_torch_tensor *e = at(s, i);
        nrd_src_tensor t = {.name = e->name, .dtype = e->dtype, .n_dims = e->n_dims, .data = e->data,
                            .data_bytes = e->data_bytes, .type_name = nrd_dtype_name(e->dtype)};
        memcpy(t.dims, e->dims, sizeof e->dims);
        NRD_TRY_GOTO(nrd_table_add(&s->ranks[0], &t), err, done);
    }
    NRD_TRY_GOTO(nrd_table_finish(s, &s->ranks[0]), err, done);
    settle_tie(s);
    settle_logits_bias(s);
    err = nrd_error_wrap(nrd_source_add_encoder(s, root), "%s", path);
done:
    nrd_json_doc_free(config);
    return err;
}

static const nrd_torch_tensor *whisper_at(const nrd_source *s, size_t i)
{
    return nrd_whisper_pt_at(s->whisper, i);
}

static const nrd_torch_tensor *fairseq_at(const nrd_source *s, size_t i)
{
    return nrd_fairseq_at(s->fairseq, i);
}

static const nrd_torch_tensor *nemo_at(const nrd_source *s, size_t i)
{
    return nrd_nemo_at(s->nemo, i);
}

nrd_error *nrd_source_open_whisper(nrd_source *s, const char *path)
{
    nrd_str text = {0};

    NRD_TRY(nrd_source_refuse_pointer(path));
    NRD_TRY(nrd_whisper_pt_open(&s->whisper, path));
    nrd_whisper_pt_config_json(s->whisper, &text);
    nrd_error *err = open_told(s, path, &text, nrd_whisper_pt_n(s->whisper), whisper_at);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *open_fairseq(nrd_source *s, const char *path)
{
    nrd_str text = {0};

    NRD_TRY(nrd_source_refuse_pointer(path));
    NRD_TRY(nrd_fairseq_open(&s->fairseq, path));
    nrd_fairseq_config_json(s->fairseq, &text);
    nrd_error *err = open_told(s, path, &text, nrd_fairseq_n(s->fairseq), fairseq_at);
    nrd_str_fini(&text);
    return err;
}

nrd_error *nrd_source_open_nemo(nrd_source *s)
{
    nrd_str text = {0};

    NRD_TRY(nrd_source_refuse_pointer(s->path));
    NRD_TRY(nrd_nemo_open(&s->nemo, s->path));
    nrd_nemo_config_json(s->nemo, &text);
    nrd_error *err = open_told(s, s->path, &text, nrd_nemo_n(s->nemo), nemo_at);
    nrd_str_fini(&text);
    return err;
}

/* A folder without config.json. */
static nrd_error *open_plain_folder(nrd_source *s)
{
    char *pt = NULL;
    if (nrd_ft_is_folder(s->path)) {
        return open_ft(s);
    }
    NRD_TRY(nrd_fairseq_find(&pt, s->path));
    nrd_error *err = pt ? open_fairseq(s, pt) : NULL;
    if (!pt) {
        err = nrd_whisper_pt_find(&pt, s->path);
        err = err ? err : pt ? nrd_source_open_whisper(s, pt) : refuse_folder(s->path);
    }
    free(pt);
    return err;
}

/* Of families whose sequences have a state that no token can be taken from again it is taken only where it is a layer of attention, as
 * where it stands apart. */
nrd_error *nrd_source_add_mtp(nrd_source *s)
{
    const nrd_mtp_form form = nrd_mtp_form_of(s);
    nrd_error *err = NULL;

    if (form == NRD_MTP_NONE || (form == NRD_MTP_LAST && nrd_spec_is_recurrent(&s->spec)) || s->spec.encoder || s->spec.cross_attention) {
        return NULL;
    }
    NRD_NEW_GOTO(s->mtp, 1, err, done);
    *s->mtp = *s;
    s->mtp->mtp = s->mtp->encoder = NULL;
    s->mtp->first_layer = form == NRD_MTP_LAST ? s->spec.n_layers : 0;
    s->mtp->is_mtp_apart = form == NRD_MTP_APART;
    s->mtp->spec = nrd_arch_mtp_spec(&s->spec);
done:
    return err;
}

/* That of a checkpoint, in a folder of its own. */
static nrd_error *open_mtp_folder(nrd_source *s)
{
    nrd_json_doc *config = NULL;
    nrd_error *err = NULL;
    char *dir = NULL;

    if (s->spec.mtp) {
        return NULL;
    }
    NRD_TRY_GOTO(nrd_path_make(&dir, s->path, NRD_MTP_FOLDER), err, done);
    NRD_TRY_GOTO(nrd_source_json(&config, dir, "config.json"), err, done);
    if (!config) {
        goto done;
    }
    NRD_TRY_GOTO(nrd_source_new(&s->mtp, dir), err, done);
    NRD_TRY_GOTO(nrd_error_wrap(open_checkpoint(s->mtp, nrd_json_root(config)), "%s", dir), err, done);
    if (!s->mtp->spec.mtp || s->mtp->spec.hidden != s->spec.hidden || s->mtp->spec.vocab != s->spec.vocab) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no MTP layer of the model beside it", dir);
    }
done:
    nrd_json_doc_free(config);
    free(dir);
    return err;
}

nrd_error *nrd_source_open_folder(nrd_source *s)
{
    nrd_error *err = NULL;
    nrd_json_doc *config = NULL, *generation = NULL;

    NRD_TRY_GOTO(nrd_source_json(&config, s->path, "config.json"), err, done);
    if (!config) {
        err = open_plain_folder(s);
        goto done;
    }
    const nrd_json *root = nrd_json_root(config);
    if (nrd_json_get(root, "pretrained_config")) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s is an engine folder already; expected a model or "
                         "a checkpoint", s->path);
        goto done;
    }
    if (nrd_json_get_str(root, "architecture", NULL)) {
        err = nrd_error_wrap(open_checkpoint(s, root), "%s", s->path);
        err = err ? err : open_mtp_folder(s);
        goto done;
    }
    s->kind = NRD_SOURCE_HF;
    const nrd_json *own = nrd_arch_decoder_config(root);
    const bool in_parts = own != root;
    NRD_TRY_GOTO(nrd_source_json(&generation, s->path, in_parts ? NRD_SOURCE_DECODER "/generation_config.json" : "generation_config.json"),
                 err, done);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_arch_from_hf(&s->spec, &s->arch, root,
                                                 generation ? nrd_json_root(generation) : NULL),
                                "%s/config.json", s->path),
                 err, done);
    NRD_TRY_GOTO(nrd_source_read_classifier_tokens(s, root), err, done);
    NRD_TRY_GOTO(nrd_source_read_modules(s), err, done);
    NRD_TRY_GOTO(in_parts ? nrd_source_add_parts(s, root) : nrd_source_add_weights(s, s->path), err, done);
    NRD_TRY_GOTO(nrd_table_finish(s, &s->ranks[0]), err, done);
    NRD_TRY_GOTO(nrd_source_add_dense(s), err, done);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_quant_open(&s->quant, own, s->path, s->spec.dtype, s->ranks[0].tensors,
                                               &s->ranks[0].n), "%s", s->path), err, done);
    settle_tie(s);
    settle_pictures(s);
    if (s->spec.cross_attention) {
        settle_logits_bias(s);
    }
    NRD_TRY_GOTO(nrd_source_add_mtp(s), err, done);
    err = nrd_error_wrap(nrd_source_add_encoder(s, own), "%s/config.json", s->path);

done:
    nrd_json_doc_free(config);
    nrd_json_doc_free(generation);
    return err;
}
