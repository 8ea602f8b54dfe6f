/* SPDX-License-Identifier: Apache-2.0
 * Sizes and names of OpenAI's Whisper files, in the words of Hugging Face. Called by model/source_folder.c. */
#include "formats/whisper_pt.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256, MANY_MELS = 128 };

/* ---- sizes ---- */

typedef enum { MELS, AUDIO_CTX, AUDIO_STATE, AUDIO_HEADS, AUDIO_LAYERS, VOCAB, TEXT_CTX, TEXT_STATE, TEXT_HEADS, TEXT_LAYERS,
               N_DIMS } dim;

static const struct {
    const char *name; /* in the file */
    const char *hf;   /* NULL: the same number is there under another name already */
    int64_t most;
} dims[N_DIMS] = {
    [MELS] = {"dims/n_mels", "num_mel_bins", 256},
    [AUDIO_CTX] = {"dims/n_audio_ctx", "max_source_positions", 1 << 16},
    [AUDIO_STATE] = {"dims/n_audio_state", "d_model", 1 << 16},
    [AUDIO_HEADS] = {"dims/n_audio_head", "encoder_attention_heads", 1 << 10},
    [AUDIO_LAYERS] = {"dims/n_audio_layer", "encoder_layers", 1 << 10},
    [VOCAB] = {"dims/n_vocab", "vocab_size", 1 << 20},
    [TEXT_CTX] = {"dims/n_text_ctx", "max_target_positions", 1 << 16},
    [TEXT_STATE] = {"dims/n_text_state", NULL, 1 << 16},
    [TEXT_HEADS] = {"dims/n_text_head", "decoder_attention_heads", 1 << 10},
    [TEXT_LAYERS] = {"dims/n_text_layer", "decoder_layers", 1 << 10},
};

/* Tokens that are no text: the end and the start of a transcript, two tasks, the marks of a language model, of what was said
 * before, of silence and of no times, and the times; languages beside them. */
enum { N_MARKS = 8, N_TIMES = 1501, N_LANGUAGES = 99 /* those with 128 mels: one more, Cantonese */ };

struct nrd_whisper_pt {
    nrd_torch_bin *bin;
    int64_t dims[N_DIMS];
    nrd_torch_tensor *tensors;
    size_t n;
    nrd_arena names;
};

static nrd_error *read_dims(nrd_whisper_pt *w, const char *path)
{
    for (int i = 0; i < N_DIMS; i++) {
        if (!nrd_torch_bin_int(w->bin, dims[i].name, &w->dims[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no number '%s'; expected a Whisper model as OpenAI publishes it", path,
                              dims[i].name);
        }
        if (w->dims[i] < 1 || w->dims[i] > dims[i].most) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s is %lld, expected 1 to %lld", path, dims[i].name,
                              (long long)w->dims[i], (long long)dims[i].most);
        }
    }
    if (w->dims[TEXT_STATE] != w->dims[AUDIO_STATE]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: dims/n_text_state is %lld, expected n_audio_state, %lld", path,
                          (long long)w->dims[TEXT_STATE], (long long)w->dims[AUDIO_STATE]);
    }
    return NULL;
}

/* The token that ends a transcript is the first that is no text. -1: the vocabulary is too small for them. */
static int64_t end_token(const nrd_whisper_pt *w)
{
    const int64_t n = w->dims[VOCAB] - N_MARKS - N_TIMES - N_LANGUAGES - (w->dims[MELS] == MANY_MELS);
    return n >= 0 ? n : -1;
}

void nrd_whisper_pt_config_json(const nrd_whisper_pt *w, nrd_str *out)
{
    const int64_t end = end_token(w), ffn = 4 * w->dims[AUDIO_STATE];

    nrd_str_printf(out, "{\"model_type\":\"whisper\",\"architectures\":[\"WhisperForConditionalGeneration\"],"
                   "\"activation_function\":\"gelu\",\"is_encoder_decoder\":true,\"tie_word_embeddings\":true,"
                   "\"torch_dtype\":\"%s\",\"encoder_ffn_dim\":%lld,\"decoder_ffn_dim\":%lld",
                   nrd_dtype_name(w->n ? w->tensors[0].dtype : NRD_DTYPE_F32), (long long)ffn, (long long)ffn);
    for (int i = 0; i < N_DIMS; i++) {
        if (dims[i].hf) {
            nrd_str_printf(out, ",\"%s\":%lld", dims[i].hf, (long long)w->dims[i]);
        }
    }
    if (end >= 0) {
        nrd_str_printf(out, ",\"bos_token_id\":%lld,\"eos_token_id\":%lld,\"pad_token_id\":%lld,\"decoder_start_token_id\":%lld",
                       (long long)end, (long long)end, (long long)end, (long long)end + 1);
    }
    nrd_str_putc(out, '}');
}

/* ---- names ---- */

typedef struct {
    const char *openai, *hf;
} part;

/* What follows "encoder.blocks.N." or "decoder.blocks.N.", up to ".weight" or ".bias". */
static const part of_layers[] = {
    {"attn.query", "self_attn.q_proj"}, {"attn.key", "self_attn.k_proj"}, {"attn.value", "self_attn.v_proj"},
    {"attn.out", "self_attn.out_proj"}, {"attn_ln", "self_attn_layer_norm"}, {"cross_attn.query", "encoder_attn.q_proj"},
    {"cross_attn.key", "encoder_attn.k_proj"}, {"cross_attn.value", "encoder_attn.v_proj"},
    {"cross_attn.out", "encoder_attn.out_proj"}, {"cross_attn_ln", "encoder_attn_layer_norm"}, {"mlp.0", "fc1"}, {"mlp.2", "fc2"},
    {"mlp_ln", "final_layer_norm"},
};
static const part whole[] = {
    {"encoder.positional_embedding", "encoder.embed_positions.weight"}, {"encoder.ln_post.weight", "encoder.layer_norm.weight"},
    {"encoder.ln_post.bias", "encoder.layer_norm.bias"}, {"decoder.token_embedding.weight", "decoder.embed_tokens.weight"},
    {"decoder.positional_embedding", "decoder.embed_positions.weight"}, {"decoder.ln.weight", "decoder.layer_norm.weight"},
    {"decoder.ln.bias", "decoder.layer_norm.bias"},
};

static const char *find(const part *list, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i].openai) == len && !memcmp(list[i].openai, name, len)) {
            return list[i].hf;
        }
    }
    return NULL;
}

/* The name as Hugging Face has it, into out[MAX_NAME]; one that is not known stays. */
static void rename_into(char *out, const char *name)
{
    static const char blocks[] = "coder.blocks."; /* of "encoder.blocks." and "decoder.blocks." */
    const size_t stem = 2 + sizeof blocks - 1;
    const char *hf = find(whole, sizeof whole / sizeof *whole, name, strlen(name)), *end = strrchr(name, '.');

    snprintf(out, MAX_NAME, "%s", hf ? hf : name);
    if (hf || strlen(name) < stem || strncmp(name + 2, blocks, sizeof blocks - 1) != 0) {
        return;
    }
    const size_t digits = strspn(name + stem, "0123456789");
    const char *at = name + stem + digits + 1;
    if (!digits || at[-1] != '.' || end <= at) {
        return;
    }
    hf = find(of_layers, sizeof of_layers / sizeof *of_layers, at, (size_t)(end - at));
    if (hf) {
        snprintf(out, MAX_NAME, "%.8slayers.%.*s.%s%s", name, (int)digits, name + stem, hf, end);
    }
}

static nrd_error *take_tensors(nrd_whisper_pt *w)
{
    nrd_error *err = NULL;
    char name[MAX_NAME];

    NRD_NEW_GOTO(w->tensors, nrd_torch_bin_n(w->bin), err, done);
    for (size_t i = 0; i < nrd_torch_bin_n(w->bin); i++) {
        nrd_torch_tensor *t = &w->tensors[w->n++];
        *t = *nrd_torch_bin_at(w->bin, i);
        rename_into(name, t->name);
        t->name = nrd_arena_strndup(&w->names, name, strlen(name));
        if (!t->name) {
            return nrd_error_no_memory();
        }
    }
done:
    return err;
}

/* ---- opening ---- */

nrd_error *nrd_whisper_pt_find(char **out, const char *dir)
{
    char **names = NULL;
    const char *found = NULL;
    size_t n = 0, n_found = 0;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_suffix(names[i], ".pt")) {
            found = names[i];
            n_found++;
        }
    }
    if (n_found > 1) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s holds %zu .pt files; give one itself, such as %s/%s", dir, n_found, dir, found);
    } else if (found) {
        err = nrd_path_make(out, dir, found);
    }
    nrd_names_free(names, n);
    return err;
}

static nrd_error *open_any(nrd_whisper_pt **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_whisper_pt *w = NULL;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    NRD_TRY_GOTO(path ? nrd_torch_bin_open(&w->bin, path) : nrd_torch_bin_open_memory(&w->bin, data, n), err, fail);
    NRD_TRY_GOTO(read_dims(w, path ? path : "<memory>"), err, fail);
    NRD_TRY_GOTO(take_tensors(w), err, fail);
    *out = w;
    return NULL;

fail:
    nrd_whisper_pt_close(w);
    return err;
}

nrd_error *nrd_whisper_pt_open(nrd_whisper_pt **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_whisper_pt_open_memory(nrd_whisper_pt **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

void nrd_whisper_pt_close(nrd_whisper_pt *w)
{
    if (!w) {
        return;
    }
    nrd_torch_bin_close(w->bin);
    free(w->tensors);
    nrd_arena_fini(&w->names);
    free(w);
}

bool nrd_whisper_pt_is_lost(const nrd_whisper_pt *w)
{
    return nrd_torch_bin_is_lost(w->bin);
}

size_t nrd_whisper_pt_n(const nrd_whisper_pt *w)
{
    return w->n;
}

const nrd_torch_tensor *nrd_whisper_pt_at(const nrd_whisper_pt *w, size_t i)
{
    return i < w->n ? &w->tensors[i] : NULL;
}
