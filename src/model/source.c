/* SPDX-License-Identifier: Apache-2.0
 * Opens a model of any kind and lists its tensors by name. The kind is found by looking: a GGUF
 * file, a folder with config.json and weights, a checkpoint, or a configuration alone, whose
 * weights are random. Called by `nereid convert`, `build`, `inspect` and those that build on
 * demand. */
#include "model/source_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/parts.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

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
        nrd_error *err = path ? nrd_source_refuse_pointer(path) : nrd_error_no_memory();
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
    NRD_TRY(nrd_source_refuse_pointer(s->path));
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
    NRD_TRY(nrd_table_finish(s, &s->ranks[0]));
    return nrd_quant_open_ternary(&s->quant, s->spec.dtype, s->ranks[0].tensors, &s->ranks[0].n);
}

/* ---- opening and closing ---- */

nrd_error *nrd_source_open(nrd_source **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_source *s = NULL;

    *out = NULL;
    NRD_TRY(nrd_source_new(&s, path));
    if (!nrd_path_exists(path)) {
        err = nrd_path_missing(path);
        goto fail;
    }
    NRD_TRY_GOTO(nrd_path_is_dir(path)                ? nrd_source_open_folder(s)
                 : nrd_str_has_suffix(path, ".pt")   ? nrd_source_open_whisper(s, path)
                 : nrd_str_has_suffix(path, ".nemo") ? nrd_source_open_nemo(s)
                                                     : open_gguf(s), err, fail);
    if (s->kind == NRD_SOURCE_GGUF) {
        NRD_TRY_GOTO(nrd_source_add_mtp(s), err, fail);
        NRD_TRY_GOTO(nrd_source_add_encoder(s, NULL), err, fail);
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
    nrd_json_limits limits = {.max_bytes = NRD_SOURCE_MAX_CONFIG_BYTES, .special = true};
    char *path = NULL;

    *out = NULL;
    if (nrd_path_is_dir(config_path)) {
        NRD_TRY(nrd_path_make(&path, config_path, "config.json"));
    } else {
        NRD_DUP_GOTO(path, config_path, err, fail);
    }
    NRD_TRY_GOTO(nrd_source_new(&s, path), err, fail);
    s->kind = NRD_SOURCE_DUMMY;
    s->seed = seed;
    NRD_TRY_GOTO(nrd_json_parse_file(&doc, path, &limits), err, fail);
    const nrd_json *root = nrd_json_root(doc);
    if (nrd_json_get_str(root, "architecture", NULL)) {
        NRD_TRY_GOTO(nrd_arch_from_checkpoint(&s->spec, root), err, fail);
        s->arch = nrd_arch_by_model_type(s->spec.model_type);
        s->spec.tp_size = s->spec.pp_size = 1;
    } else if (nrd_json_is(nrd_json_get(root, "quantization_config"), NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'quantization_config' is not supported for random weights; remove it and "
                         "give --quantize");
        goto fail;
    } else {
        NRD_TRY_GOTO(nrd_arch_from_hf(&s->spec, &s->arch, root, NULL), err, fail);
        NRD_TRY_GOTO(nrd_source_add_encoder(s, root), err, fail);
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
