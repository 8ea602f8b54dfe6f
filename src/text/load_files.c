/* SPDX-License-Identifier: Apache-2.0
 * The small files of a Hugging Face folder: vocab.json with merges.txt, and what says which tokens
 * begin, end and pad a text. */
#include "text/internal.h"

#include "base/file.h"
#include "base/limits.h"

#include <stdio.h>
#include <string.h>

static int32_t token_named(const nrd_tokenizer *t, const nrd_json *object, const char *key)
{
    const nrd_json *s = nrd_tok_text_of(nrd_json_get(object, key));
    return s ? nrd_tokenizer_token_id(t, s->str, s->n) : -1;
}

static void take_names(nrd_tokenizer *t, const nrd_json *config)
{
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    int32_t *const ids[] = {&t->bos_id, &t->eos_id, &t->pad_id, &t->unk_id};
    for (int i = 0; i < 4; i++) {
        int32_t id = token_named(t, config, keys[i]);
        if (id >= 0 && (i < 3 || *ids[i] < 0) && !(i == 3 && t->model == MODEL_BPE)) {
            *ids[i] = id; /* the unknown token of the model decides, if it has one */
        }
    }
    for (int i = 0; i < TOK_N_FIM; i++) { /* CodeLlama's files say so */
        int32_t id = token_named(t, config, nrd_tok_fim_keys[i]);
        t->fim[i] = id >= 0 ? id : t->fim[i];
    }
}

static nrd_error *take_template(nrd_tokenizer *t, const nrd_json *node)
{
    const nrd_json *s = nrd_json_is(node, NRD_JSON_STRING) ? node : NULL;
    for (size_t i = 0; i < nrd_json_len(node); i++) { /* [{"name": …, "template": …}] */
        const nrd_json *item = nrd_json_at(node, i), *text = nrd_json_get(item, "template");
        if (nrd_json_is(text, NRD_JSON_STRING) &&
            (!s || strcmp(nrd_json_get_str(item, "name", ""), "default") == 0)) {
            s = text;
        }
        if (nrd_json_is(text, NRD_JSON_STRING) &&
            strcmp(nrd_json_get_str(item, "name", ""), "tool_use") == 0) {
            NRD_TRY(nrd_tok_text_copy(&t->tool_template, NULL, text->str, text->n));
        }
    }
    return s ? nrd_tok_text_copy(&t->chat_template, NULL, s->str, s->n) : NULL;
}

/* eos_token_id: a number or a list; the first is the end of the text, the others stop it too. */
static void take_eos(nrd_tokenizer *t, const nrd_json *node)
{
    size_t n = nrd_json_is(node, NRD_JSON_ARRAY) ? nrd_json_len(node) : 1;
    for (size_t i = 0; i < n; i++) {
        int64_t id = nrd_json_int(nrd_json_is(node, NRD_JSON_ARRAY) ? nrd_json_at(node, i) : node, -1);
        if (id < 0 || id >= t->n_vocab) {
            continue;
        }
        if (t->eos_id < 0) {
            t->eos_id = (int32_t)id;
        }
        nrd_tok_add_stop(t, id);
    }
}

static void take_id(const nrd_tokenizer *t, const nrd_json *object, const char *key, int32_t *io)
{
    int64_t id = nrd_json_get_int(object, key, -1);
    if (*io < 0 && id >= 0 && id < t->n_vocab) {
        *io = (int32_t)id;
    }
}

/* add_bos_token / add_eos_token say what a tokenizer.model cannot. */
static nrd_error *take_affixes(nrd_tokenizer *t, const nrd_json *config)
{
    const nrd_json *bos = nrd_json_get(config, "add_bos_token"), *eos = nrd_json_get(config, "add_eos_token");
    if (nrd_json_is(bos, NRD_JSON_BOOL)) {
        NRD_TRY(nrd_tok_set_affix(t, false, &t->bos_id, bos->boolean && t->bos_id >= 0));
    }
    if (nrd_json_is(eos, NRD_JSON_BOOL)) {
        NRD_TRY(nrd_tok_set_affix(t, true, &t->eos_id, eos->boolean && t->eos_id >= 0));
    }
    return NULL;
}

/* The processor of Phi-3-vision cuts a text at <|image_1|> and so on, which its tokenizer does not know, and encodes what is between them
 * apart: they are the token <|image|>, with nothing stripped beside it. */
static nrd_error *take_picture_words(nrd_tokenizer *t, const nrd_json *config)
{
    static const char word[] = "<|image|>";
    const int32_t id = nrd_tokenizer_token_id(t, word, sizeof word - 1), index = (int32_t)t->n_added;

    if (id < 0 || strcmp(nrd_json_get_str(config, "model_type", ""), "phi3_v") != 0) {
        return NULL;
    }
    NRD_TRY(nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true, .is_alias = true}));
    for (int i = 1; i <= NRD_LIMIT_IMAGES; i++) {
        char numbered[32];
        const int n = snprintf(numbered, sizeof numbered, "<|image_%d|>", i);
        NRD_TRY(nrd_trie_add(&t->added_raw, numbered, (size_t)n, index));
    }
    t->has_added_raw = t->numbers_pictures = true;
    return NULL;
}

/* To Qwen-VL a picture is a file's name between <img> and </img>, whatever it is. */
static void take_picture_files(nrd_tokenizer *t, const nrd_json *config)
{
    const bool sees = !strcmp(nrd_json_get_str(config, "model_type", ""), "qwen") && nrd_json_get(config, "visual");

    t->picture_start = sees ? nrd_tokenizer_token_id(t, "<img>", 5) : -1;
    t->picture_pad = nrd_tokenizer_token_id(t, "<imgpad>", 8);
}

nrd_error *nrd_tok_load_side_files(nrd_tokenizer *t, const char *dir)
{
    static const char *const generation[] = {"generation_config.json", "config.json"};
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    char *path = NULL, *text = NULL;
    size_t n = 0;

    NRD_TRY_GOTO(nrd_tok_read_json(dir, "special_tokens_map.json", &doc), err, done);
    take_names(t, nrd_json_root(doc));
    nrd_json_doc_free(doc);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "tokenizer_config.json", &doc), err, done);
    take_names(t, nrd_json_root(doc));
    NRD_TRY_GOTO(take_template(t, nrd_json_get(nrd_json_root(doc), "chat_template")), err, done);
    if (t->scores_are_float) {
        NRD_TRY_GOTO(take_affixes(t, nrd_json_root(doc)), err, done);
    }
    NRD_TRY_GOTO(nrd_tok_take_languages(t, nrd_json_root(doc)), err, done);
    nrd_json_doc_free(doc);
    doc = NULL;
    for (int i = 0; i < 2; i++) {
        NRD_TRY_GOTO(nrd_tok_read_json(dir, generation[i], &doc), err, done);
        const nrd_json *root = nrd_json_root(doc);
        take_eos(t, nrd_json_get(root, "eos_token_id"));
        take_id(t, root, "bos_token_id", &t->bos_id);
        take_id(t, root, "pad_token_id", &t->pad_id);
        take_id(t, root, "decoder_start_token_id", &t->start_id);
        t->has_encoder = t->has_encoder || nrd_tok_says_encoder(root);
        if (i == 0) {
            nrd_tok_take_sampling_json(t, root);
        } else {
            NRD_TRY_GOTO(take_picture_words(t, root), err, done);
            take_picture_files(t, root);
        }
        nrd_tok_take_generation(&t->generation, root, i == 0);
        nrd_json_doc_free(doc);
        doc = NULL;
    }
    NRD_TRY_GOTO(t->has_encoder ? nrd_tok_check_generation(&t->generation) : NULL, err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "chat_template.json", &doc), err, done);
    NRD_TRY_GOTO(take_template(t, nrd_json_get(nrd_json_root(doc), "chat_template")), err, done);
    NRD_TRY_GOTO(nrd_path_make(&path, dir, "chat_template.jinja"), err, done);
    if (nrd_path_exists(path)) {
        NRD_TRY_GOTO(nrd_file_read(&text, &n, path, 1 << 20), err, done);
        free(t->chat_template); /* it stands for all that tokenizer_config.json names */
        free(t->tool_template);
        t->tool_template = NULL;
        t->chat_template = text;
    }
done:
    nrd_json_doc_free(doc);
    free(path);
    return err;
}

/* ---- vocab.json + merges.txt ---- */

static nrd_error *load_merges_text(nrd_tokenizer *t, const char *s, size_t n)
{
    const char *end = s + n;
    for (size_t line = 1; s < end; line++) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        const char *stop = nl ? nl : end, *next = nl ? nl + 1 : end;
        if (stop > s && stop[-1] == '\r') {
            stop--;
        }
        bool comment = line == 1 && stop - s >= 8 && memcmp(s, "#version", 8) == 0;
        if (stop > s && !comment) {
            const char *space = memchr(s, ' ', (size_t)(stop - s));
            if (!space || space == s || space + 1 == stop) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "merges.txt line %zu: expected two tokens", line);
            }
            NRD_TRY(nrd_tok_add_merge(t, s, (size_t)(space - s), space + 1, (size_t)(stop - space - 1)));
        }
        s = next;
    }
    return NULL;
}

static nrd_error *add_special(nrd_tokenizer *t, int64_t id, const nrd_json *text, const nrd_json *how,
                              bool special)
{
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->tokens[t->added[i].id].n == text->n &&
            memcmp(t->tokens[t->added[i].id].s, text->str, text->n) == 0) {
            return NULL;
        }
    }
    if (id < 0) {
        id = nrd_strmap_get(&t->by_token, t->tokens, text->str, text->n);
    }
    if (id < 0) {
        return NULL; /* named in a map, but nowhere given an id */
    }
    NRD_TRY(nrd_tok_set(t, id, text->str, text->n, 0));
    return nrd_tok_add_added(
        t, &(nrd_tok_added_token){.id = (int32_t)id,
                                  .single_word = nrd_json_get_bool(how, "single_word", false),
                                  .lstrip = nrd_json_get_bool(how, "lstrip", false),
                                  .rstrip = nrd_json_get_bool(how, "rstrip", false),
                                  .normalized = nrd_json_get_bool(how, "normalized", false),
                                  .special = special});
}

static bool is_special_name(const nrd_json *map, const char *name, size_t n)
{
    for (size_t i = 0; i < nrd_json_len(map); i++) {
        const nrd_json *m = &map->child[i], *s = nrd_tok_text_of(m);
        if (s && s->n == n && memcmp(s->str, name, n) == 0) {
            return true;
        }
        for (size_t k = 0; nrd_json_is(m, NRD_JSON_ARRAY) && k < m->n; k++) {
            s = nrd_tok_text_of(nrd_json_at(m, k));
            if (s && s->n == n && memcmp(s->str, name, n) == 0) {
                return true;
            }
        }
    }
    return false;
}

nrd_error *nrd_tok_load_added_tokens(nrd_tokenizer *t, const char *dir, const nrd_json *config)
{
    const nrd_json *decoder = nrd_json_get(config, "added_tokens_decoder");
    nrd_json_doc *map = NULL, *added = NULL;
    nrd_error *err = NULL;

    for (size_t i = 0; i < nrd_json_len(decoder); i++) {
        const nrd_json *a = &decoder->child[i], *text = nrd_tok_text_of(a);
        long long id;
        if (!text || !a->key || !nrd_parse_i64(a->key, &id)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer_config.json: added_tokens_decoder[%zu]", i);
        }
        NRD_TRY(add_special(t, id, text, a, nrd_json_get_bool(a, "special", false)));
    }
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "special_tokens_map.json", &map), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "added_tokens.json", &added), err, done);
    const nrd_json *specials = nrd_json_root(map), *list = nrd_json_root(added);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *a = &list->child[i];
        const nrd_json text = {.type = NRD_JSON_STRING, .str = a->key, .n = a->key_len};
        NRD_TRY_GOTO(add_special(t, nrd_json_int(a, -1), &text, NULL,
                                 is_special_name(specials, a->key, a->key_len)), err, done);
    }
    for (size_t i = 0; i < nrd_json_len(specials); i++) {
        const nrd_json *m = &specials->child[i], *s = nrd_tok_text_of(m);
        if (s) {
            NRD_TRY_GOTO(add_special(t, -1, s, m, true), err, done);
        }
        for (size_t k = 0; nrd_json_is(m, NRD_JSON_ARRAY) && k < m->n; k++) {
            s = nrd_tok_text_of(nrd_json_at(m, k));
            if (s) {
                NRD_TRY_GOTO(add_special(t, -1, s, nrd_json_at(m, k), true), err, done);
            }
        }
    }
done:
    nrd_json_doc_free(map);
    nrd_json_doc_free(added);
    return err;
}

static nrd_error *add_pipeline(nrd_tokenizer *t, const nrd_json *config)
{
    const char *class = nrd_json_get_str(config, "tokenizer_class", "GPT2Tokenizer");
    bool prefix = nrd_json_get_bool(config, "add_prefix_space", false);
    nrd_tok_norm_step *norm = NULL;
    nrd_tok_dec_step *dec = NULL;

    NRD_TRY(nrd_tok_new_dec(t, DEC_BYTE_LEVEL, &dec));
    if (nrd_str_has_prefix(class, "Qwen2Tokenizer")) {
        if (!nrd_uni_has_forms()) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "normalizer NFC: this build has no utf8proc");
        }
        NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &norm));
        norm->form = NRD_UNI_NFC;
        NRD_TRY(nrd_tok_add_split(t, true, nrd_pattern_text_qwen2, strlen(nrd_pattern_text_qwen2),
                                  SPLIT_ISOLATED, false));
        return nrd_tok_add_byte_level(t, prefix, false);
    }
    if (nrd_str_has_prefix(class, "GPT2Tokenizer") || nrd_str_has_prefix(class, "CodeGenTokenizer") ||
        strcmp(class, "PreTrainedTokenizerFast") == 0) {
        return nrd_tok_add_byte_level(t, prefix, true);
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED,
                      "tokenizer_class '%s' from vocab.json is not implemented; save a tokenizer.json",
                      class);
}

static nrd_error *add_words_and_merges(nrd_tokenizer *t, const nrd_json *words, const char *merges, size_t n)
{
    for (size_t i = 0; i < nrd_json_len(words); i++) {
        const nrd_json *w = &words->child[i];
        NRD_TRY(nrd_tok_set(t, nrd_json_int(w, -1), w->key, w->key_len, TOK_IN_MODEL));
    }
    NRD_TRY(nrd_tok_index_vocab(t));
    return load_merges_text(t, merges, n);
}

nrd_error *nrd_tok_load_gpt2(nrd_tokenizer *t, const nrd_json *words, const char *merges, size_t n)
{
    static const char end[] = "<|endoftext|>";
    const nrd_json text = {.type = NRD_JSON_STRING, .str = end, .n = sizeof end - 1};

    if (!nrd_json_is(words, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the vocabulary must be an object, got %s", nrd_json_type_name(words));
    }
    NRD_TRY(add_words_and_merges(t, words, merges, n));
    NRD_TRY(add_pipeline(t, NULL));
    NRD_TRY(add_special(t, -1, &text, NULL, true));
    NRD_TRY(nrd_tok_finish(t));
    t->eos_id = nrd_tokenizer_token_id(t, end, sizeof end - 1);
    return NULL;
}

nrd_error *nrd_tok_load_vocab_merges(nrd_tokenizer *t, const char *dir)
{
    nrd_json_doc *vocab = NULL, *config = NULL;
    char *path = NULL, *text = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make(&path, dir, "merges.txt"), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "vocab.json", &vocab), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "tokenizer_config.json", &config), err, done);
    NRD_TRY_GOTO(nrd_file_read(&text, &n, path, TOK_MAX_FILE_BYTES), err, done);
    NRD_TRY_GOTO(add_words_and_merges(t, nrd_json_root(vocab), text, n), err, done);
    NRD_TRY_GOTO(add_pipeline(t, nrd_json_root(config)), err, done);
    NRD_TRY_GOTO(nrd_tok_load_added_tokens(t, dir, nrd_json_root(config)), err, done);
    err = nrd_tok_finish(t);
done:
    nrd_json_doc_free(vocab);
    nrd_json_doc_free(config);
    free(path);
    free(text);
    return err;
}
