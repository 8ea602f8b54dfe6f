/* SPDX-License-Identifier: Apache-2.0
 * The tokenizer inside a GGUF file. Its metadata name a model and what cuts text into words (load_gguf_pre.c). */
#include "text/internal.h"

#include "formats/gguf.h"

#include <string.h>

enum { /* tokenizer.ggml.token_type */
    GG_NORMAL = 1,
    GG_UNKNOWN = 2,
    GG_CONTROL = 3,
    GG_USER_DEFINED = 4,
    GG_UNUSED = 5,
    GG_BYTE = 6,
};

static bool span_is(const nrd_gguf_span *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

static bool is_newlines(const nrd_gguf_span *s)
{
    size_t n = 0;
    while (n < s->n && s->data[n] == '\n') {
        n++;
    }
    return n > 0 && n == s->n;
}

/* whole_newlines: runs of newlines that are tokens are found before merges. */
static nrd_error *load_tokens(nrd_tokenizer *t, const nrd_gguf *g, bool byte_level, bool whole_newlines)
{
    const nrd_gguf_value *tokens = nrd_gguf_find(g, "tokenizer.ggml.tokens");
    const nrd_gguf_value *types = nrd_gguf_find(g, "tokenizer.ggml.token_type");
    const nrd_gguf_value *scores = nrd_gguf_find(g, "tokenizer.ggml.scores");
    nrd_gguf_span s;
    double type, score;

    if (!tokens || tokens->type != NRD_GGUF_ARRAY || tokens->n == 0 || tokens->n > TOK_MAX_ID) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.tokens: expected 1 to %d strings",
                          TOK_MAX_ID);
    }
    for (uint64_t i = 0; i < tokens->n; i++) {
        if (!nrd_gguf_arr_str(tokens, i, &s)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.tokens[%llu] is no string",
                              (unsigned long long)i);
        }
        if (!types || !nrd_gguf_arr_num(types, i, &type)) {
            type = GG_NORMAL;
        }
        bool added = type == GG_CONTROL || type == GG_USER_DEFINED ||
                     (type == GG_UNKNOWN && !byte_level) || (whole_newlines && is_newlines(&s));
        uint8_t flags = type == GG_BYTE ? TOK_IN_MODEL | TOK_BYTE
                        : type == GG_UNKNOWN || type == GG_CONTROL || type == GG_UNUSED
                            ? TOK_IN_MODEL | TOK_CONTROL
                            : TOK_IN_MODEL;
        flags = type == GG_USER_DEFINED ? TOK_IN_MODEL | TOK_USER | TOK_CONTROL : flags;
        NRD_TRY(nrd_tok_set(t, (int64_t)i, s.data, s.n, flags));
        if (scores && !byte_level && nrd_gguf_arr_num(scores, i, &score)) {
            NRD_TRY(nrd_tok_set_score(t, (int32_t)i, score == score ? score : 0));
        }
        if (added) {
            NRD_TRY(nrd_tok_add_added(
                t, &(nrd_tok_added_token){.id = (int32_t)i, .special = type != GG_USER_DEFINED && type != GG_NORMAL}));
        }
    }
    return nrd_tok_index_vocab(t);
}

static nrd_error *load_merges(nrd_tokenizer *t, const nrd_gguf *g)
{
    const nrd_gguf_value *merges = nrd_gguf_find(g, "tokenizer.ggml.merges");
    nrd_gguf_span s;

    for (uint64_t i = 0; merges && i < merges->n; i++) {
        if (!nrd_gguf_arr_str(merges, i, &s)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.merges: expected strings");
        }
        const char *space = s.n > 1 ? memchr(s.data + 1, ' ', s.n - 1) : NULL;
        if (!space) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.merges[%llu]: expected two tokens",
                              (unsigned long long)i);
        }
        size_t ln = (size_t)(space - s.data);
        NRD_TRY(nrd_tok_add_merge(t, s.data, ln, space + 1, s.n - ln - 1));
    }
    return NULL;
}

static nrd_error *load_byte_level(nrd_tokenizer *t, const nrd_gguf *g)
{
    nrd_tok_dec_step *dec = NULL;

    NRD_TRY(load_tokens(t, g, true, false));
    NRD_TRY(nrd_tok_load_gguf_pre(t, g));
    NRD_TRY(nrd_tok_new_dec(t, DEC_BYTE_LEVEL, &dec));
    return load_merges(t, g);
}

/* merges: the file has them (Gemma 4's), else scores say which come first. */
static nrd_error *load_sentencepiece(nrd_tokenizer *t, const nrd_gguf *g, bool unigram, bool merges)
{
    bool prefix = nrd_gguf_bool(g, "tokenizer.ggml.add_space_prefix", true);
    const nrd_gguf_value *map = nrd_gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
    nrd_tok_norm_step *norm = NULL;
    nrd_tok_dec_step *dec = NULL;

    t->byte_fallback = true;
    t->fuse_unk = true;
    t->scores_are_float = true;
    NRD_TRY(load_tokens(t, g, false, merges));
    if (unigram) {
        t->model = MODEL_UNIGRAM;
        t->byte_fallback = false;
        NRD_TRY(nrd_tok_new_norm(t, NORM_SENTENCEPIECE, &norm));
        norm->add_dummy_prefix = prefix;
        norm->remove_extra_spaces = nrd_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", false);
        norm->escape_spaces = true;
        if (map) {
            NRD_TRY(nrd_charsmap_init(&norm->map, map->data, map->data_bytes));
        }
    } else {
        if (prefix) {
            NRD_TRY(nrd_tok_new_norm(t, NORM_PREPEND, &norm));
            NRD_TRY(nrd_tok_text_copy(&norm->content, &norm->content_n, TOK_SPACE, 3));
        }
        NRD_TRY(nrd_tok_add_replace(t, false, " ", TOK_SPACE));
        NRD_TRY(merges ? load_merges(t, g) : nrd_tok_merges_from_scores(t));
    }
    NRD_TRY(nrd_tok_new_dec(t, DEC_REPLACE, &dec));
    NRD_TRY(nrd_tok_text_copy(&dec->from, &dec->from_n, TOK_SPACE, 3));
    NRD_TRY(nrd_tok_text_copy(&dec->to, &dec->to_n, " ", 1));
    NRD_TRY(nrd_tok_new_dec(t, DEC_BYTE_FALLBACK, &dec));
    NRD_TRY(nrd_tok_new_dec(t, DEC_FUSE, &dec));
    if (prefix) {
        NRD_TRY(nrd_tok_new_dec(t, DEC_STRIP, &dec));
        NRD_TRY(nrd_tok_text_copy(&dec->from, &dec->from_n, " ", 1));
        dec->start = 1;
    }
    return NULL;
}

static int32_t id_of(const nrd_tokenizer *t, const nrd_gguf *g, const char *key)
{
    int64_t id = nrd_gguf_int(g, key, -1);
    return id >= 0 && id < t->n_vocab ? (int32_t)id : -1;
}

/* A control token by its name; -1: there is none. */
static int32_t control_of(const nrd_tokenizer *t, const char *name)
{
    const int32_t id = nrd_strmap_get(&t->by_token, t->tokens, name, strlen(name));
    return id >= 0 && (t->flags[id] & TOK_CONTROL) ? id : -1;
}

static nrd_error *load_ids(nrd_tokenizer *t, const nrd_gguf *g, bool llama)
{
    static const char *const stops[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    static const char *const stop_names[] = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>",
                                             "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<|return|>", "<|call|>"};
    /* GPT-OSS: only a message of the answer ends there */
    const bool is_harmony = control_of(t, "<|return|>") >= 0 && control_of(t, "<|call|>") >= 0;
    const int32_t message_end = is_harmony ? control_of(t, "<|end|>") : -1;
    nrd_gguf_span s;

    t->bos_id = id_of(t, g, nrd_gguf_find(g, "tokenizer.ggml.bos_token_id") ? "tokenizer.ggml.bos_token_id" : "tokenizer.ggml.cls_token_id");
    t->eos_id = id_of(t, g, nrd_gguf_find(g, "tokenizer.ggml.eos_token_id") ? "tokenizer.ggml.eos_token_id" : "tokenizer.ggml.seperator_token_id");
    t->pad_id = id_of(t, g, "tokenizer.ggml.padding_token_id");
    t->unk_id = id_of(t, g, "tokenizer.ggml.unknown_token_id");
    if (t->byte_level) {
        t->unk_id = -1; /* every byte has a token; the id in the file is never produced */
    }
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        const int32_t id = id_of(t, g, stops[i]);
        if (id < 0 || id != message_end) {
            nrd_tok_add_stop(t, id);
        }
    }
    for (size_t i = 0; i < sizeof stop_names / sizeof stop_names[0]; i++) {
        const int32_t id = control_of(t, stop_names[i]);
        if (id >= 0 && id != message_end) {
            nrd_tok_add_stop(t, id);
        }
    }
    if (nrd_gguf_bool(g, "tokenizer.ggml.add_bos_token", llama) && t->bos_id >= 0) {
        NRD_TRY(nrd_tok_set_affix(t, false, &t->bos_id, 1));
    }
    if (nrd_gguf_bool(g, "tokenizer.ggml.add_eos_token", false) && t->eos_id >= 0) {
        NRD_TRY(nrd_tok_set_affix(t, true, &t->eos_id, 1));
    }
    nrd_tok_take_fim_gguf(t, g);
    nrd_tok_take_sampling_gguf(t, g);
    if (nrd_gguf_str(g, "tokenizer.chat_template", &s) && s.n) {
        NRD_TRY(nrd_tok_text_copy(&t->chat_template, NULL, s.data, s.n));
    }
    if (nrd_gguf_str(g, "tokenizer.chat_template.tool_use", &s) && s.n) {
        NRD_TRY(nrd_tok_text_copy(&t->tool_template, NULL, s.data, s.n));
    }
    return NULL;
}

/* Two texts to a RoBERTa: <s> A </s></s> B </s>, all of one type. */
static nrd_error *load_pair(nrd_tokenizer *t, const nrd_gguf *g)
{
    nrd_gguf_span arch = {"", 0};
    int32_t ends[2] = {t->eos_id, id_of(t, g, "tokenizer.ggml.seperator_token_id")};

    nrd_gguf_str(g, "general.architecture", &arch);
    if (!span_is(&arch, "bert") || t->n_prefix != 1 || t->n_suffix != 1) {
        return NULL;
    }
    ends[1] = ends[1] < 0 ? t->eos_id : ends[1];
    const nrd_ids pair[3] = {{.ids = &t->bos_id, .n = 1}, {.ids = ends, .n = 2}, {.ids = ends, .n = 1}};
    return nrd_tok_set_pair(t, pair, TOK_NO_TYPES);
}

nrd_error *nrd_tok_load_gguf(nrd_tokenizer *t, const char *path)
{
    nrd_error *err = NULL;
    nrd_gguf *g = NULL;
    nrd_gguf_span model = {"", 0};

    NRD_TRY(nrd_gguf_open(&g, path));
    nrd_gguf_str(g, "tokenizer.ggml.model", &model);
    const bool gemma = span_is(&model, "gemma") || span_is(&model, "gemma4");
    if (span_is(&model, "gpt2")) {
        err = load_byte_level(t, g);
    } else if (span_is(&model, "llama") || gemma || span_is(&model, "t5")) {
        err = load_sentencepiece(t, g, span_is(&model, "t5"), span_is(&model, "gemma4"));
    } else if (span_is(&model, "bert")) {
        err = nrd_tok_load_gguf_bert(t, g);
    } else if (model.n == 0) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "the file holds no tokenizer");
    } else {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer.ggml.model '%.*s' is not implemented",
                         (int)(model.n < 64 ? model.n : 64), model.data);
    }
    if (!err && !span_is(&model, "bert")) {
        err = load_ids(t, g, span_is(&model, "llama") || gemma);
        err = err ? err : load_pair(t, g);
    }
    if (!err) {
        err = nrd_tok_finish(t);
    }
    err = nrd_error_wrap(err, "%s", path);
    if (nrd_gguf_is_lost(g)) { /* whatever was found in it */
        nrd_error_free(err);
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' was made shorter while it was read", path);
    }
    nrd_gguf_close(g);
    return err;
}
