/* SPDX-License-Identifier: Apache-2.0
 * Opens a model of any kind and lists its tensors by name. The kind is found by looking: a GGUF
 * file, a folder with config.json and weights, a checkpoint, or a configuration alone, whose
 * weights are random. Called by `nereid convert`, `build`, `inspect` and those that build on
 * demand. */
#include "model/source_internal.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parts.h"
#include "base/str.h"
#include "model/source_mtp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_SHARDS = 4096, MAX_RANKS = 1024 };

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

/* git clones without git-lfs bring small texts where the weights should be. */
static nrd_error *refuse_pointer(const char *path)
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

/* ---- GGUF ---- */

/* The other parts of a model in parts, which is named by its first. */
static nrd_error *open_parts(nrd_source *s, int64_t n)
{
    size_t at = 0;
    const size_t told = nrd_parts_of_name(s->path, &at);

    if (told != (uint64_t)n || nrd_gguf_int(s->gguf, "split.no", 0) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is one of %lld parts: give the first, NAME-00001-of-%05lld.gguf, with the "
                          "others beside it", s->path, (long long)n, (long long)n);
    }
    for (size_t i = 2; i <= told; i++) {
        nrd_gguf *part = NULL;
        char *path = nrd_part_name(s->path, at, i);
        nrd_error *err = path ? refuse_pointer(path) : nrd_error_no_memory();
        err = err ? err : nrd_gguf_open(&part, path);
        if (!err && nrd_gguf_int(part, "split.no", -1) != (int64_t)i - 1) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: split.no is %lld, expected %zu", path,
                             (long long)nrd_gguf_int(part, "split.no", -1), i - 1);
        }
        err = err ? err : nrd_gguf_join(s->gguf, part);
        if (err) {
            nrd_gguf_close(part);
        }
        free(path);
        NRD_TRY(err);
    }
    const int64_t all = nrd_gguf_int(s->gguf, "split.tensors.count", -1);
    return all < 0 || all == (int64_t)nrd_gguf_n_tensors(s->gguf)
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: its parts have %zu tensors, expected %lld", s->path,
                            nrd_gguf_n_tensors(s->gguf), (long long)all);
}

static nrd_error *open_gguf(nrd_source *s)
{
    static const char *const parts[] = {".safetensors", ".bin", ".json"};

    s->kind = NRD_SOURCE_GGUF;
    NRD_TRY(refuse_pointer(s->path));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (nrd_str_has_suffix(s->path, parts[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is one file of a model; give its folder", s->path);
        }
    }
    NRD_TRY(nrd_gguf_open(&s->gguf, s->path));
    const int64_t n_parts = nrd_gguf_int(s->gguf, "split.count", 0);
    NRD_TRY(n_parts > 1 ? open_parts(s, n_parts) : NULL);
    NRD_TRY(nrd_error_wrap(nrd_arch_from_gguf(&s->spec, &s->arch, s->gguf), "%s", s->path));
    for (size_t i = 0; i < nrd_gguf_n_tensors(s->gguf); i++) {
        const nrd_gguf_tensor *g = nrd_gguf_tensor_at(s->gguf, i);
        nrd_src_tensor t = {.name = g->name, .dtype = g->dtype, .n_dims = g->n_dims,
                            .data = g->data, .data_bytes = g->data_bytes,
                            .type_name = nrd_gguf_tensor_type_name(g->type)};
        for (int d = 0; d < g->n_dims; d++) {
            t.dims[d] = g->dims[g->n_dims - 1 - d];
        }
        NRD_TRY(nrd_table_add(&s->ranks[0], &t));
    }
    NRD_TRY(nrd_source_add_numbers(s));
    return nrd_table_finish(s, &s->ranks[0]);
}

/* ---- safetensors and pytorch_model.bin ---- */

nrd_error *nrd_source_add_safetensors(nrd_source *s, nrd_tensor_table *table, const char *path)
{
    nrd_safetensors *f = NULL;
    NRD_TRY(refuse_pointer(path));
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
    NRD_TRY(refuse_pointer(path));
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
    nrd_json_limits limits = {.max_bytes = MAX_CONFIG_BYTES, .special = true};
    char *path = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(nrd_path_make(&path, dir, name));
    if (nrd_path_exists(path)) {
        err = nrd_json_parse_file(out, path, &limits);
    }
    free(path);
    return err;
}

/* What TensorRT-LLM's converters quantized. */
static nrd_error *open_rank_quants(nrd_source *s, const nrd_json *quantization)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(s->rank_quants, (size_t)s->n_ranks, err, done);
    for (int32_t r = 0; r < s->n_ranks && !err; r++) {
        err = nrd_error_wrap(nrd_quant_open_checkpoint(&s->rank_quants[r], quantization, s->spec.dtype, s->ranks[r].tensors,
                                                       &s->ranks[r].n), "rank%d.safetensors", r);
    }
    s->quant = s->rank_quants[0];
done:
    return err;
}

static nrd_error *open_checkpoint(nrd_source *s, const nrd_json *config)
{
    char name[40];

    s->kind = NRD_SOURCE_CHECKPOINT;
    NRD_TRY(nrd_model_spec_from_json(&s->spec, config));
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

/* The other network of the folder or GGUF file: all but spec and family is shared. config: of a folder. */
static nrd_error *add_encoder(nrd_source *s, const nrd_json *config)
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
    err = nrd_error_wrap(add_encoder(s, root), "%s", path);
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

/* OpenAI's file of a Whisper model. */
static nrd_error *open_whisper(nrd_source *s, const char *path)
{
    nrd_str text = {0};

    NRD_TRY(refuse_pointer(path));
    NRD_TRY(nrd_whisper_pt_open(&s->whisper, path));
    nrd_whisper_pt_config_json(s->whisper, &text);
    nrd_error *err = open_told(s, path, &text, nrd_whisper_pt_n(s->whisper), whisper_at);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *open_fairseq(nrd_source *s, const char *path)
{
    nrd_str text = {0};

    NRD_TRY(refuse_pointer(path));
    NRD_TRY(nrd_fairseq_open(&s->fairseq, path));
    nrd_fairseq_config_json(s->fairseq, &text);
    nrd_error *err = open_told(s, path, &text, nrd_fairseq_n(s->fairseq), fairseq_at);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *open_nemo(nrd_source *s)
{
    nrd_str text = {0};

    NRD_TRY(refuse_pointer(s->path));
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
        err = err ? err : pt ? open_whisper(s, pt) : refuse_folder(s->path);
    }
    free(pt);
    return err;
}

/* The layer that guesses, as a source of its own. Of families whose sequences have a state that no token can be taken from again only where
 * it is a layer of attention, as it is where it stands apart. */
static nrd_error *add_mtp(nrd_source *s)
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

static nrd_error *source_new(nrd_source **out, const char *path);

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
    NRD_TRY_GOTO(source_new(&s->mtp, dir), err, done);
    NRD_TRY_GOTO(nrd_error_wrap(open_checkpoint(s->mtp, nrd_json_root(config)), "%s", dir), err, done);
    if (!s->mtp->spec.mtp || s->mtp->spec.hidden != s->spec.hidden || s->mtp->spec.vocab != s->spec.vocab) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no MTP layer of the model beside it", dir);
    }
done:
    nrd_json_doc_free(config);
    free(dir);
    return err;
}

static nrd_error *open_folder(nrd_source *s)
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
    NRD_TRY_GOTO(add_mtp(s), err, done);
    err = nrd_error_wrap(add_encoder(s, own), "%s/config.json", s->path);

done:
    nrd_json_doc_free(config);
    nrd_json_doc_free(generation);
    return err;
}

static nrd_error *source_new(nrd_source **out, const char *path)
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

nrd_error *nrd_source_open(nrd_source **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_source *s = NULL;

    *out = NULL;
    NRD_TRY(source_new(&s, path));
    if (!nrd_path_exists(path)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", path);
        goto fail;
    }
    NRD_TRY_GOTO(nrd_path_is_dir(path)                ? open_folder(s)
                 : nrd_str_has_suffix(path, ".pt")   ? open_whisper(s, path)
                 : nrd_str_has_suffix(path, ".nemo") ? open_nemo(s)
                                                     : open_gguf(s), err, fail);
    if (s->kind == NRD_SOURCE_GGUF) {
        NRD_TRY_GOTO(add_mtp(s), err, fail);
        NRD_TRY_GOTO(add_encoder(s, NULL), err, fail);
    }
    *out = s;
    return NULL;

fail:
    nrd_source_close(s);
    return err;
}

nrd_error *nrd_source_open_dummy(nrd_source **out, const char *config_path, uint64_t seed)
{
    nrd_error *err = NULL;
    nrd_source *s = NULL;
    nrd_json_doc *doc = NULL;
    nrd_json_limits limits = {.max_bytes = MAX_CONFIG_BYTES, .special = true};
    char *path = NULL;

    *out = NULL;
    if (nrd_path_is_dir(config_path)) {
        NRD_TRY(nrd_path_make(&path, config_path, "config.json"));
    } else {
        NRD_DUP_GOTO(path, config_path, err, fail);
    }
    NRD_TRY_GOTO(source_new(&s, path), err, fail);
    s->kind = NRD_SOURCE_DUMMY;
    s->seed = seed;
    NRD_TRY_GOTO(nrd_json_parse_file(&doc, path, &limits), err, fail);
    const nrd_json *root = nrd_json_root(doc);
    if (nrd_json_get_str(root, "architecture", NULL)) {
        NRD_TRY_GOTO(nrd_model_spec_from_json(&s->spec, root), err, fail);
        s->arch = nrd_arch_by_model_type(s->spec.model_type);
        s->spec.tp_size = s->spec.pp_size = 1;
    } else if (nrd_json_is(nrd_json_get(root, "quantization_config"), NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'quantization_config' is not supported for random weights; remove it and "
                         "give --quantize");
        goto fail;
    } else {
        NRD_TRY_GOTO(nrd_arch_from_hf(&s->spec, &s->arch, root, NULL), err, fail);
        NRD_TRY_GOTO(add_encoder(s, root), err, fail);
    }
    if (!s->arch) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "model_type '%s' is no known family",
                         s->spec.model_type);
        goto fail;
    }
    nrd_json_doc_free(doc);
    free(path);
    *out = s;
    return NULL;

fail:
    err = nrd_error_wrap(err, "%s", path);
    nrd_json_doc_free(doc);
    nrd_source_close(s);
    free(path);
    return err;
}

nrd_error *nrd_source_check(const nrd_source *s)
{
    bool lost = (s->gguf && nrd_gguf_is_lost(s->gguf)) || (s->ft && nrd_ft_is_lost(s->ft)) ||
                (s->whisper && nrd_whisper_pt_is_lost(s->whisper)) || (s->fairseq && nrd_fairseq_is_lost(s->fairseq)) ||
                (s->nemo && nrd_nemo_is_lost(s->nemo));
    for (size_t i = 0; i < s->n_st; i++) {
        lost = lost || nrd_safetensors_is_lost(s->st[i]);
    }
    for (size_t i = 0; i < s->n_bin; i++) {
        lost = lost || nrd_torch_bin_is_lost(s->bin[i]);
    }
    return lost ? nrd_errorf(NRD_ERR_UNAVAILABLE, "a file of '%s' was made shorter while it was read", s->path)
                : NULL;
}

void nrd_source_licence(const nrd_source *s, char *out, size_t n)
{
    nrd_gguf_span span = {0};
    out[0] = '\0';
    if (s->gguf && nrd_gguf_str(s->gguf, "general.license", &span)) {
        const size_t len = span.n < n - 1 ? span.n : n - 1;
        memcpy(out, span.data, len);
        out[len] = '\0';
    }
}

void nrd_source_close(nrd_source *s)
{
    if (!s) {
        return;
    }
    for (int32_t r = 0; r < s->n_ranks; r++) {
        free(s->ranks[r].tensors);
    }
    free(s->ranks);
    nrd_quant_close(s->quant);
    for (int32_t r = 1; s->rank_quants && r < s->n_ranks; r++) {
        nrd_quant_close(s->rank_quants[r]);
    }
    free(s->rank_quants);
    nrd_gguf_close(s->gguf);
    nrd_ft_close(s->ft);
    nrd_whisper_pt_close(s->whisper);
    nrd_fairseq_close(s->fairseq);
    nrd_nemo_close(s->nemo);
    for (size_t i = 0; i < s->n_st; i++) {
        nrd_safetensors_close(s->st[i]);
    }
    free(s->st);
    for (size_t i = 0; i < s->n_bin; i++) {
        nrd_torch_bin_close(s->bin[i]);
    }
    free(s->bin);
    free(s->numbers);
    free(s->encoder);
    if (s->kind == NRD_SOURCE_CHECKPOINT) {
        nrd_source_close(s->mtp);
    } else {
        free(s->mtp); /* all but its spec is ours */
    }
    for (int i = 0; i < NRD_SPEC_MAX_PROJECTIONS; i++) {
        free(s->dense[i]);
    }
    free(s->path);
    free(s);
}

/* ---- access ---- */

nrd_source_kind nrd_source_get_kind(const nrd_source *s)
{
    return s->kind;
}

const char *nrd_source_kind_name(const nrd_source *s)
{
    switch (s->kind) {
    case NRD_SOURCE_HF: /* and what is read as if it were one */
        return s->nemo      ? "NeMo archive"
               : s->fairseq ? "fairseq model"
               : s->whisper ? "OpenAI's Whisper model"
               : s->ft      ? "FasterTransformer folder"
                            : "Hugging Face model";
    case NRD_SOURCE_GGUF:
        return "GGUF file";
    case NRD_SOURCE_CHECKPOINT:
        return "checkpoint";
    case NRD_SOURCE_DUMMY:
        return "random weights";
    }
    return "unknown";
}

const char *nrd_source_path(const nrd_source *s)
{
    return s->path;
}

uint64_t nrd_source_seed(const nrd_source *s)
{
    return s->seed;
}

const nrd_model_spec *nrd_source_spec(const nrd_source *s)
{
    return &s->spec;
}

const nrd_source *nrd_source_encoder(const nrd_source *s)
{
    return s->encoder;
}

const nrd_source *nrd_source_mtp(const nrd_source *s)
{
    return s->mtp;
}

int32_t nrd_source_first_layer(const nrd_source *s)
{
    return s->first_layer;
}

bool nrd_source_is_mtp(const nrd_source *s, const char *name)
{
    return s->spec.mtp || !s->mtp ? s->spec.mtp : nrd_mtp_has(s, name); /* an MTP layer's source has the model's tensors, too */
}

const nrd_arch *nrd_source_arch(const nrd_source *s)
{
    return s->arch;
}

const char *nrd_source_notes(const nrd_source *s)
{
    return nrd_quant_notes(s->quant);
}

float nrd_source_kv_top(const nrd_source *s)
{
    return nrd_quant_kv_top(s->quant);
}

bool nrd_source_is_foreign(const nrd_source *s)
{
    return s->rank_quants != NULL;
}

bool nrd_source_int8_inputs(const nrd_source *s)
{
    return nrd_quant_int8_inputs(s->quant);
}

int32_t nrd_source_n_ranks(const nrd_source *s)
{
    return s->n_ranks;
}

size_t nrd_source_n_tensors(const nrd_source *s, int32_t rank)
{
    return rank >= 0 && rank < s->n_ranks ? s->ranks[rank].n : 0;
}

const nrd_src_tensor *nrd_source_tensor_at(const nrd_source *s, int32_t rank, size_t i)
{
    return i < nrd_source_n_tensors(s, rank) ? &s->ranks[rank].tensors[i] : NULL;
}

const nrd_src_tensor *nrd_source_find(const nrd_source *s, int32_t rank, const char *name)
{
    char room[NRD_MTP_MAX_NAME];
    const char *own = s->is_mtp_apart ? nrd_mtp_name_apart(name, room) : NULL;
    nrd_src_tensor key = {.name = own ? own : name};
    size_t n = nrd_source_n_tensors(s, rank);
    return n ? bsearch(&key, s->ranks[rank].tensors, n, sizeof key, by_name) : NULL;
}
