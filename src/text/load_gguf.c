/* SPDX-License-Identifier: Apache-2.0
 * The tokenizer inside a GGUF file. Its metadata name a model and a pre-tokenizer; the expressions
 * behind those names are the published ones of the model families. */
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

static bool is_one_of(const nrd_gguf_span *s, const char *const *names)
{
    for (; *names; names++) {
        if (span_is(s, *names)) {
            return true;
        }
    }
    return false;
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

static nrd_error *isolate(nrd_tokenizer *t, const char *regex)
{
    return nrd_tok_add_split(t, true, regex, strlen(regex), SPLIT_ISOLATED, false);
}

/* The letters with two cases that DeepSeek's first tokenizers list one by one: those of an older Unicode, without
 * Georgian's and what came later, so that no property says the same. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}" \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}" \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}" \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}" \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}" \
    "\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}" \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}" \
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}" \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}" \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}" \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}" \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}" \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}" \
    "\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_IDEOGRAPHS "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* Of DeepSeek LLM and V2, and of DeepSeek Coder. */
static nrd_error *isolate_deepseek(nrd_tokenizer *t, bool coder)
{
    nrd_tok_pre_step *step = NULL;

    NRD_TRY(isolate(t, "[\\r\\n]"));
    NRD_TRY(isolate(t, coder ? "\\s?\\p{L}+" : "\\s?[" DEEPSEEK_LETTERS "]+"));
    NRD_TRY(isolate(t, coder ? "\\s?\\p{P}+"
                             : "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"));
    if (!coder) {
        NRD_TRY(isolate(t, "\\s+$"));
    }
    NRD_TRY(isolate(t, DEEPSEEK_IDEOGRAPHS));
    NRD_TRY(nrd_tok_new_pre(t, PRE_DIGITS, &step));
    step->individual = true;
    return NULL;
}

/* tokenizer.ggml.pre -> what stands before byte-level BPE. */
static nrd_error *load_pre(nrd_tokenizer *t, const nrd_gguf *g)
{
    static const char *const gpt2[] = {"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "a.x-4.0",
                                       "mellum", "trillion", NULL};
    static const char *const whole_words[] = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral",
                                              "midm-2.0", "lfm2", NULL};
    static const char *const llama3[] = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe", NULL};
    static const char *const qwen2[] = {"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo", NULL};
    static const char *const gpt4o[] = {"gpt-4o", "llama4", "minimax-m2", "kanana2", NULL};
    static const char *const digits[] = {"smollm", "starcoder", "refact", "command-r", "codeshell",
                                         "exaone", "minerva-7b", NULL};
    static const char *const deepseek[] = {"deepseek-v3", "deepseek3", "hunyuan-dense", NULL};
    nrd_gguf_span pre = {"default", 7};
    nrd_tok_pre_step *step = NULL;
    nrd_tok_norm_step *norm = NULL;

    nrd_gguf_str(g, "tokenizer.ggml.pre", &pre);
    if (is_one_of(&pre, gpt2)) {
        return nrd_tok_add_byte_level(t, false, true);
    }
    if (is_one_of(&pre, digits)) {
        NRD_TRY(nrd_tok_new_pre(t, PRE_DIGITS, &step));
        step->individual = true;
        return nrd_tok_add_byte_level(t, false, true);
    }
    if (is_one_of(&pre, llama3) || is_one_of(&pre, whole_words)) {
        t->ignore_merges = is_one_of(&pre, whole_words);
        NRD_TRY(isolate(t, nrd_pattern_text_llama3));
    } else if (is_one_of(&pre, qwen2) || span_is(&pre, "qwen35")) {
        if (nrd_uni_has_forms()) {
            NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &norm));
            norm->form = NRD_UNI_NFC;
        }
        NRD_TRY(isolate(t, span_is(&pre, "qwen35") ? "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                                                     " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
                                                   : nrd_pattern_text_qwen2));
    } else if (is_one_of(&pre, deepseek)) {
        NRD_TRY(isolate(t, nrd_pattern_text_digits3));
        NRD_TRY(isolate(t, nrd_pattern_text_cjk));
        NRD_TRY(isolate(t, nrd_pattern_text_deepseek));
    } else if (span_is(&pre, "deepseek-llm") || span_is(&pre, "deepseek-coder")) {
        NRD_TRY(isolate_deepseek(t, span_is(&pre, "deepseek-coder")));
    } else if (span_is(&pre, "tekken")) {
        t->ignore_merges = true;
        NRD_TRY(isolate(t, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"
                           "\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}"
                           "\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                           "\\s+(?!\\S)|\\s+"));
    } else if (is_one_of(&pre, gpt4o)) {
        NRD_TRY(isolate(t, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"
                           "\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}"
                           "\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                           "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"));
    } else if (span_is(&pre, "seed-coder")) {
        NRD_TRY(isolate(t, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|"
                           "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"));
    } else if (span_is(&pre, "falcon")) {
        NRD_TRY(isolate(t, "[\\p{P}\\$\\+<=>\\^~\\|`]+"));
        NRD_TRY(isolate(t, nrd_pattern_text_gpt2));
        NRD_TRY(isolate(t, "[0-9][0-9][0-9]"));
    } else if (span_is(&pre, "bloom")) {
        NRD_TRY(isolate(t, " ?[^(\\s|.,!?…。，、।۔،)]+"));
    } else if (span_is(&pre, "default")) {
        NRD_TRY(isolate(t, "[\\p{P}\\$\\+<=>\\^~\\|]+"));
        NRD_TRY(isolate(t, nrd_pattern_text_gpt2));
        NRD_TRY(isolate(t, "\\p{N}+"));
        NRD_TRY(isolate(t, "[0-9][0-9][0-9]"));
    } else {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer.ggml.pre '%.*s' is not implemented",
                          (int)(pre.n < 64 ? pre.n : 64), pre.data);
    }
    return nrd_tok_add_byte_level(t, false, false);
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
    NRD_TRY(load_pre(t, g));
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

    t->bos_id = id_of(t, g, "tokenizer.ggml.bos_token_id");
    t->eos_id = id_of(t, g, "tokenizer.ggml.eos_token_id");
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
    }
    if (!err) {
        err = nrd_tok_finish(t);
    }
    if (nrd_gguf_is_lost(g)) { /* whatever was found in it */
        nrd_error_free(err);
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' was made shorter while it was read", path);
    }
    nrd_gguf_close(g);
    return err;
}
