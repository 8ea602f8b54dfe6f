/* SPDX-License-Identifier: Apache-2.0
 * Arguments and tensors of fairseq's translation models, in the words of Hugging Face's FSMT. Called by model/source.c. */
#include "formats/fairseq.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256, PARTS = 3 /* of a matrix of q, k and v */ };

typedef enum { WIDTH, DECODER_WIDTH, LAYERS, DECODER_LAYERS, HEADS, DECODER_HEADS, FFN, DECODER_FFN, SOURCE_POSITIONS, TARGET_POSITIONS,
               N_SIZES } size_name;

static const struct {
    const char *name; /* in the file */
    const char *hf;   /* NULL: the same number is there under another name already */
    int64_t most, fallback; /* 0: it must be there */
} sizes[N_SIZES] = {
    [WIDTH] = {"args/encoder_embed_dim", "d_model", 1 << 16, 0},
    [DECODER_WIDTH] = {"args/decoder_embed_dim", NULL, 1 << 16, 0},
    [LAYERS] = {"args/encoder_layers", "encoder_layers", 1 << 10, 0},
    [DECODER_LAYERS] = {"args/decoder_layers", "decoder_layers", 1 << 10, 0},
    [HEADS] = {"args/encoder_attention_heads", "encoder_attention_heads", 1 << 10, 0},
    [DECODER_HEADS] = {"args/decoder_attention_heads", "decoder_attention_heads", 1 << 10, 0},
    [FFN] = {"args/encoder_ffn_embed_dim", "encoder_ffn_dim", 1 << 20, 0},
    [DECODER_FFN] = {"args/decoder_ffn_embed_dim", "decoder_ffn_dim", 1 << 20, 0},
    [SOURCE_POSITIONS] = {"args/max_source_positions", NULL, 1 << 16, 1024},
    [TARGET_POSITIONS] = {"args/max_target_positions", NULL, 1 << 16, 1024},
};

/* Arguments of other networks, which must be false or not there. */
static const char *const refused[] = {
    "args/encoder_learned_pos", "args/decoder_learned_pos", "args/no_token_positional_embeddings", "args/layernorm_embedding",
    "args/no_cross_attention", "args/cross_self_attention", "args/adaptive_input",
};

struct nrd_fairseq {
    nrd_torch_bin *bin;
    int64_t sizes[N_SIZES];
    int64_t source_vocab, target_vocab;
    bool norm_first, scales, tied;
    const char *act;
    nrd_torch_tensor *tensors;
    size_t n;
    nrd_arena names;
};

/* ---- arguments ---- */

static bool is_set(const nrd_fairseq *f, const char *name)
{
    int64_t v = 0;
    return nrd_torch_bin_int(f->bin, name, &v) && v != 0;
}

static nrd_error *read_sizes(nrd_fairseq *f, const char *path)
{
    for (int i = 0; i < N_SIZES; i++) {
        f->sizes[i] = sizes[i].fallback;
        if (!nrd_torch_bin_int(f->bin, sizes[i].name, &f->sizes[i]) && sizes[i].fallback == 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no number '%s'; expected a translation model as fairseq saves it", path,
                              sizes[i].name);
        }
        if (f->sizes[i] < 1 || f->sizes[i] > sizes[i].most) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s is %lld, expected 1 to %lld", path, sizes[i].name, (long long)f->sizes[i],
                              (long long)sizes[i].most);
        }
    }
    if (f->sizes[WIDTH] != f->sizes[DECODER_WIDTH]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: args/decoder_embed_dim is %lld, expected that of the encoder, %lld", path,
                          (long long)f->sizes[DECODER_WIDTH], (long long)f->sizes[WIDTH]);
    }
    return NULL;
}

static nrd_error *read_form(nrd_fairseq *f, const char *path)
{
    static const char *const acts[] = {"relu", "gelu", "swish"};
    const char *act = nrd_torch_bin_text(f->bin, "args/activation_fn");

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (is_set(f, refused[i])) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' is not supported", path, refused[i]);
        }
    }
    if (nrd_torch_bin_text(f->bin, "args/adaptive_softmax_cutoff")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: 'args/adaptive_softmax_cutoff' is not supported", path);
    }
    f->norm_first = is_set(f, "args/encoder_normalize_before");
    if (f->norm_first != is_set(f, "args/decoder_normalize_before")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: args/encoder_normalize_before and args/decoder_normalize_before differ", path);
    }
    f->scales = !is_set(f, "args/no_scale_embedding");
    f->tied = is_set(f, "args/share_all_embeddings") || is_set(f, "args/share_decoder_input_output_embed");
    for (size_t i = 0; !f->act && i < sizeof acts / sizeof *acts; i++) { /* older files do not say: relu */
        f->act = !act || !strcmp(act, acts[i]) ? acts[i] : NULL;
    }
    return f->act ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: args/activation_fn '%.40s' is not supported; known: relu, gelu, swish",
                                      path, act);
}

void nrd_fairseq_config_json(const nrd_fairseq *f, nrd_str *out)
{
    const int64_t source = f->sizes[SOURCE_POSITIONS], target = f->sizes[TARGET_POSITIONS];

    nrd_str_printf(out, "{\"model_type\":\"fsmt\",\"architectures\":[\"FSMTForConditionalGeneration\"],\"is_encoder_decoder\":true,"
                   "\"activation_function\":\"%s\",\"torch_dtype\":\"%s\",\"scale_embedding\":%s,\"normalize_before\":%s,"
                   "\"tie_word_embeddings\":%s,\"bos_token_id\":0,\"pad_token_id\":1,\"eos_token_id\":2,\"decoder_start_token_id\":2,"
                   "\"max_position_embeddings\":%lld,\"src_vocab_size\":%lld,\"tgt_vocab_size\":%lld",
                   f->act, nrd_dtype_name(f->n ? f->tensors[0].dtype : NRD_DTYPE_F32), f->scales ? "true" : "false",
                   f->norm_first ? "true" : "false", f->tied ? "true" : "false", (long long)(source > target ? source : target),
                   (long long)f->source_vocab, (long long)f->target_vocab);
    for (int i = 0; i < N_SIZES; i++) {
        if (sizes[i].hf) {
            nrd_str_printf(out, ",\"%s\":%lld", sizes[i].hf, (long long)f->sizes[i]);
        }
    }
    nrd_str_putc(out, '}');
}

/* ---- tensors ---- */

static nrd_error *add(nrd_fairseq *f, const nrd_torch_tensor *t, const char *name)
{
    nrd_torch_tensor *out = &f->tensors[f->n];

    *out = *t;
    out->name = nrd_arena_strndup(&f->names, name, strlen(name));
    f->n++;
    return out->name ? NULL : nrd_error_no_memory();
}

/* One matrix, or bias, of q, k and v below each other: three. */
static nrd_error *add_parts(nrd_fairseq *f, const nrd_torch_tensor *t, size_t stem, const char *tail)
{
    static const char *const parts[PARTS] = {"q_proj", "k_proj", "v_proj"};
    char name[MAX_NAME];
    nrd_torch_tensor part = *t;

    if (t->n_dims < 1 || t->dims[0] % PARTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld rows, expected those of queries, keys and values", t->name,
                          (long long)t->dims[0]);
    }
    part.dims[0] /= PARTS;
    part.data_bytes /= PARTS;
    for (int i = 0; i < PARTS; i++) {
        part.data = (const uint8_t *)t->data + (size_t)i * part.data_bytes;
        snprintf(name, sizeof name, "%.*s%s.%s", (int)stem, t->name, parts[i], tail);
        NRD_TRY(add(f, &part, name));
    }
    return NULL;
}

/* FSMT's names are those of newer files of fairseq. */
static nrd_error *take(nrd_fairseq *f, const nrd_torch_tensor *t)
{
    static const struct {
        const char *theirs, *ours;
    } norms[] = {{".layer_norms.0.", ".self_attn_layer_norm."}, {".layer_norms.1.", ".final_layer_norm."}};
    const char *at = strstr(t->name, ".in_proj_");
    char name[MAX_NAME];

    if (strlen(t->name) >= MAX_NAME - 16) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a tensor's name has %zu bytes, the limit is %d", strlen(t->name), MAX_NAME - 16);
    }
    if (at && (!strcmp(at, ".in_proj_weight") || !strcmp(at, ".in_proj_bias"))) {
        return add_parts(f, t, (size_t)(at - t->name) + 1, at + strlen(".in_proj_"));
    }
    snprintf(name, sizeof name, "%s", !strcmp(t->name, "decoder.embed_out") ? "decoder.output_projection.weight" : t->name);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        at = strstr(t->name, norms[i].theirs);
        if (at) {
            snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, norms[i].ours, at + strlen(norms[i].theirs));
        }
    }
    return add(f, t, name);
}

static nrd_error *take_tensors(nrd_fairseq *f, const char *path)
{
    nrd_error *err = NULL;
    const size_t n = nrd_torch_bin_n(f->bin);

    NRD_NEW_GOTO(f->tensors, PARTS * n, err, done);
    for (size_t i = 0; i < n; i++) {
        const nrd_torch_tensor *t = nrd_torch_bin_at(f->bin, i);
        NRD_TRY(nrd_error_wrap(take(f, t), "%s", path));
        f->source_vocab = !strcmp(t->name, "encoder.embed_tokens.weight") ? t->dims[0] : f->source_vocab;
        f->target_vocab = !strcmp(t->name, "decoder.embed_tokens.weight") ? t->dims[0] : f->target_vocab;
    }
    if (f->source_vocab < 1 || f->target_vocab < 1) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no 'encoder.embed_tokens.weight' or no 'decoder.embed_tokens.weight'", path);
    }
done:
    return err;
}

/* ---- opening ---- */

nrd_error *nrd_fairseq_find(char **out, const char *dir)
{
    char **names = NULL;
    const char *found = NULL;
    size_t n = 0, n_found = 0;
    bool has_words = false, is_usual = false;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        has_words = has_words || (nrd_str_has_prefix(names[i], "dict.") && nrd_str_has_suffix(names[i], ".txt"));
        if (nrd_str_has_suffix(names[i], ".pt") && !is_usual) {
            found = names[i];
            is_usual = !strcmp(found, "model.pt");
            n_found++;
        }
    }
    if (has_words && found && (is_usual || n_found == 1)) {
        err = nrd_path_make(out, dir, found);
    } else if (has_words && n_found > 1) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s holds %zu .pt files, none of them model.pt; leave one", dir, n_found);
    }
    nrd_names_free(names, n);
    return err;
}

static nrd_error *open_any(nrd_fairseq **out, const char *path, const void *data, size_t n)
{
    const char *told = path ? path : "<memory>";
    nrd_error *err = NULL;
    nrd_fairseq *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    NRD_TRY_GOTO(path ? nrd_torch_bin_open(&f->bin, path) : nrd_torch_bin_open_memory(&f->bin, data, n), err, fail);
    NRD_TRY_GOTO(read_sizes(f, told), err, fail);
    NRD_TRY_GOTO(read_form(f, told), err, fail);
    NRD_TRY_GOTO(take_tensors(f, told), err, fail);
    *out = f;
    return NULL;

fail:
    nrd_fairseq_close(f);
    return err;
}

nrd_error *nrd_fairseq_open(nrd_fairseq **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_fairseq_open_memory(nrd_fairseq **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

void nrd_fairseq_close(nrd_fairseq *f)
{
    if (!f) {
        return;
    }
    nrd_torch_bin_close(f->bin);
    free(f->tensors);
    nrd_arena_fini(&f->names);
    free(f);
}

bool nrd_fairseq_is_lost(const nrd_fairseq *f)
{
    return nrd_torch_bin_is_lost(f->bin);
}

size_t nrd_fairseq_n(const nrd_fairseq *f)
{
    return f->n;
}

const nrd_torch_tensor *nrd_fairseq_at(const nrd_fairseq *f, size_t i)
{
    return i < f->n ? &f->tensors[i] : NULL;
}
