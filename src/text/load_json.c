/* SPDX-License-Identifier: Apache-2.0
 * tokenizer.json. Every element is either understood in full or refused by its name. */
#include "text/internal.h"

#include "base/base64.h"

#include <stdio.h>
#include <string.h>

static nrd_error *unsupported(const char *what, const nrd_json *node)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s '%s' is not implemented", what,
                      nrd_json_get_str(node, "type", "without type"));
}

static bool is_null(const nrd_json *node)
{
    return !node || nrd_json_is(node, NRD_JSON_NULL);
}

/* `keys` with bars between, of an object: what is there must be of this type (a number: of any). Its default would else be taken, and text
 * become other tokens than those that the model knows. */
static nrd_error *check_kinds(const nrd_json *object, const char *what, const char *keys, nrd_json_type type)
{
    char key[32];

    for (const char *at = keys; *at;) {
        const int n = (int)strcspn(at, "|");
        snprintf(key, sizeof key, "%.*s", n, at);
        const nrd_json *v = nrd_json_get(object, key), like = {.type = type};
        if (!is_null(v) && !nrd_json_is(v, type) && !(type == NRD_JSON_INT && nrd_json_is_number(v))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' must be %s %s, got %s", what, key, type == NRD_JSON_ARRAY ? "an" : "a",
                              type == NRD_JSON_INT ? "number" : nrd_json_type_name(&like), nrd_json_type_name(v));
        }
        at += n + (at[n] == '|');
    }
    return NULL;
}

static nrd_error *get_string(const nrd_json *object, const char *key, const char *what,
                             const nrd_json **out)
{
    *out = nrd_json_get(object, key);
    if (!nrd_json_is(*out, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' must be a string, got %s", what, key,
                          nrd_json_type_name(*out));
    }
    return NULL;
}

/* {"String": …} or {"Regex": …} */
static nrd_error *get_pattern(const nrd_json *object, const char *what, bool *regex,
                              const nrd_json **out)
{
    const nrd_json *p = nrd_json_get(object, "pattern");
    *regex = nrd_json_get(p, "Regex") != NULL;
    return nrd_error_wrap(get_string(p, *regex ? "Regex" : "String", "pattern", out), "%s", what);
}

/* ---- normalizers ---- */

static nrd_error *load_precompiled(nrd_tokenizer *t, const nrd_json *node)
{
    const nrd_json *map;
    nrd_tok_norm_step *step = NULL;
    NRD_TRY(get_string(node, "precompiled_charsmap", "normalizer Precompiled", &map));
    if (!nrd_uni_has_forms()) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "normalizer Precompiled: this build has no utf8proc");
    }
    char *blob = malloc(map->n + 1);
    size_t n = 0;
    if (!blob) {
        return nrd_error_no_memory();
    }
    nrd_error *err = nrd_tok_new_norm(t, NORM_PRECOMPILED, &step);
    if (!err && !nrd_base64_decode(map->str, map->n, blob, &n)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "precompiled_charsmap is no valid base64");
    }
    if (!err) {
        err = nrd_charsmap_init(&step->map, blob, n);
    }
    free(blob);
    return err;
}

static nrd_error *load_bert_normalizer(nrd_tokenizer *t, const nrd_json *node)
{
    const bool lower = nrd_json_get_bool(node, "lowercase", true);
    const bool accents = nrd_json_get_bool(node, "strip_accents", lower); /* null: as lowercase says */

    return nrd_tok_add_bert_normalizer(t, nrd_json_get_bool(node, "clean_text", true),
                                       nrd_json_get_bool(node, "handle_chinese_chars", true), accents, lower);
}

nrd_error *nrd_tok_add_bert_normalizer(nrd_tokenizer *t, bool clean, bool split_ideographs, bool accents, bool lower)
{
    nrd_tok_norm_step *step = NULL;

    if (!nrd_uni_has_forms()) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "normalizer BertNormalizer: this build has no utf8proc");
    }
    NRD_TRY(nrd_tok_new_norm(t, NORM_BERT_CLEAN, &step));
    step->clean = clean;
    step->split_ideographs = split_ideographs;
    if (accents) {
        NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &step));
        step->form = NRD_UNI_NFD;
        NRD_TRY(nrd_tok_new_norm(t, NORM_STRIP_NONSPACING, &step));
    }
    return lower ? nrd_tok_new_norm(t, NORM_LOWERCASE, &step) : NULL;
}

static nrd_error *load_normalizer(nrd_tokenizer *t, const nrd_json *node)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = nrd_json_get_str(node, "type", "");
    const nrd_json *a, *b;
    nrd_tok_norm_step *step = NULL;
    bool regex;

    if (is_null(node)) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        if (strcmp(type, forms[i]) == 0) {
            if (!nrd_uni_has_forms()) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "normalizer %s: this build has no utf8proc",
                                  type);
            }
            NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &step));
            step->form = (nrd_uni_form)i;
            return NULL;
        }
    }
    if (strcmp(type, "Sequence") == 0) {
        const nrd_json *list = nrd_json_get(node, "normalizers");
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            NRD_TRY(load_normalizer(t, nrd_json_at(list, i)));
        }
        return NULL;
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        return load_bert_normalizer(t, node);
    }
    if (strcmp(type, "Lowercase") == 0) {
        return nrd_tok_new_norm(t, NORM_LOWERCASE, &step);
    }
    if (strcmp(type, "StripAccents") == 0) {
        return nrd_tok_new_norm(t, NORM_STRIP_ACCENTS, &step);
    }
    if (strcmp(type, "Strip") == 0) {
        NRD_TRY(nrd_tok_new_norm(t, NORM_STRIP, &step));
        step->left = nrd_json_get_bool(node, "strip_left", true);
        step->right = nrd_json_get_bool(node, "strip_right", true);
        return NULL;
    }
    if (strcmp(type, "Prepend") == 0) {
        NRD_TRY(get_string(node, "prepend", "normalizer Prepend", &a));
        NRD_TRY(nrd_tok_new_norm(t, NORM_PREPEND, &step));
        return nrd_tok_text_copy(&step->content, &step->content_n, a->str, a->n);
    }
    if (strcmp(type, "Replace") == 0) {
        NRD_TRY(get_pattern(node, "normalizer Replace", &regex, &a));
        NRD_TRY(get_string(node, "content", "normalizer Replace", &b));
        NRD_TRY(nrd_tok_new_norm(t, NORM_REPLACE, &step));
        NRD_TRY(nrd_tok_text_copy(&step->content, &step->content_n, b->str, b->n));
        return nrd_pattern_init(&step->pat, regex, a->str, a->n);
    }
    if (strcmp(type, "Precompiled") == 0) {
        return load_precompiled(t, node);
    }
    return unsupported("normalizer", node);
}

/* ---- pre-tokenizers ---- */

static nrd_error *get_behavior(const nrd_json *node, nrd_tok_split_kind *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = nrd_json_get_str(node, "behavior", "Isolated");
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (nrd_tok_split_kind)i;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "unknown split behavior '%s'", name);
}

static nrd_error *get_prepend(const nrd_json *node, nrd_tok_prepend_kind *out)
{
    const char *name = nrd_json_get_str(node, "prepend_scheme", NULL);
    if (!name) {
        *out = nrd_json_get_bool(node, "add_prefix_space", true) ? PREPEND_ALWAYS : PREPEND_NEVER;
        return NULL;
    }
    *out = strcmp(name, "always") == 0  ? PREPEND_ALWAYS
           : strcmp(name, "first") == 0 ? PREPEND_FIRST
                                        : PREPEND_NEVER;
    if (*out == PREPEND_NEVER && strcmp(name, "never") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unknown prepend_scheme '%s'", name);
    }
    return NULL;
}

static nrd_error *get_replacement(const nrd_json *node, const char **out)
{
    uint32_t cp;
    *out = nrd_json_get_str(node, "replacement", TOK_SPACE);
    size_t n = strlen(*out);
    if (n == 0 || nrd_utf8_next(*out, n, &cp) != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Metaspace: replacement must be one character");
    }
    return NULL;
}

static nrd_error *load_metaspace(nrd_tokenizer *t, const nrd_json *node)
{
    nrd_tok_pre_step *step = NULL;
    const char *mark;
    NRD_TRY(nrd_tok_new_pre(t, PRE_METASPACE, &step));
    NRD_TRY(get_replacement(node, &mark));
    memcpy(step->replacement, mark, strlen(mark) + 1);
    step->split = nrd_json_get_bool(node, "split", true);
    return get_prepend(node, &step->prepend);
}

static nrd_error *load_pre_tokenizer(nrd_tokenizer *t, const nrd_json *node)
{
    const char *type = nrd_json_get_str(node, "type", "");
    const nrd_json *a;
    nrd_tok_split_kind behavior;
    nrd_tok_pre_step *step = NULL;
    bool regex;

    if (is_null(node)) {
        return NULL;
    }
    if (strcmp(type, "Sequence") == 0) {
        const nrd_json *list = nrd_json_get(node, "pretokenizers");
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            NRD_TRY(load_pre_tokenizer(t, nrd_json_at(list, i)));
        }
        return NULL;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return nrd_tok_add_byte_level(t, nrd_json_get_bool(node, "add_prefix_space", true),
                                      nrd_json_get_bool(node, "use_regex", true));
    }
    if (strcmp(type, "Split") == 0) {
        NRD_TRY(get_pattern(node, "pre-tokenizer Split", &regex, &a));
        NRD_TRY(get_behavior(node, &behavior));
        return nrd_tok_add_split(t, regex, a->str, a->n, behavior,
                                 nrd_json_get_bool(node, "invert", false));
    }
    if (strcmp(type, "Metaspace") == 0) {
        return load_metaspace(t, node);
    }
    if (strcmp(type, "Digits") == 0) {
        NRD_TRY(nrd_tok_new_pre(t, PRE_DIGITS, &step));
        step->individual = nrd_json_get_bool(node, "individual_digits", false);
        return NULL;
    }
    if (strcmp(type, "Whitespace") == 0) {
        return nrd_tok_new_pre(t, PRE_WHITESPACE, &step);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        return nrd_tok_new_pre(t, PRE_WHITESPACE_SPLIT, &step);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        NRD_TRY(nrd_tok_new_pre(t, PRE_WHITESPACE_SPLIT, &step));
        NRD_TRY(nrd_tok_new_pre(t, PRE_PUNCTUATION, &step));
        step->behavior = SPLIT_ISOLATED;
        return NULL;
    }
    if (strcmp(type, "Punctuation") == 0) {
        NRD_TRY(nrd_tok_new_pre(t, PRE_PUNCTUATION, &step));
        return get_behavior(node, &step->behavior);
    }
    return unsupported("pre-tokenizer", node);
}

/* ---- models ---- */

static nrd_error *load_merges(nrd_tokenizer *t, const nrd_json *list)
{
    if (list && !nrd_json_is(list, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model: 'merges' must be an array, got %s", nrd_json_type_name(list));
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *m = &list->child[i], *l = nrd_json_at(m, 0), *r = nrd_json_at(m, 1);
        if (nrd_json_is(m, NRD_JSON_STRING)) {
            const char *space = memchr(m->str, ' ', m->n);
            size_t ln = space ? (size_t)(space - m->str) : 0;
            if (!space || ln + 1 >= m->n || memchr(space + 1, ' ', m->n - ln - 1)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "merge %zu: expected two tokens in '%s'", i,
                                  m->str);
            }
            NRD_TRY(nrd_tok_add_merge(t, m->str, ln, space + 1, m->n - ln - 1));
        } else if (nrd_json_len(m) == 2 && nrd_json_is(l, NRD_JSON_STRING) &&
                   nrd_json_is(r, NRD_JSON_STRING)) {
            NRD_TRY(nrd_tok_add_merge(t, l->str, l->n, r->str, r->n));
        } else {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "merge %zu: expected two tokens", i);
        }
    }
    return NULL;
}

static nrd_error *load_vocab(nrd_tokenizer *t, const nrd_json *vocab)
{
    if (!nrd_json_is(vocab, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model: 'vocab' must be an object, got %s",
                          nrd_json_type_name(vocab));
    }
    for (size_t i = 0; i < vocab->n; i++) {
        const nrd_json *v = &vocab->child[i];
        NRD_TRY(nrd_tok_set(t, nrd_json_int(v, -1), v->key, v->key_len, TOK_IN_MODEL));
    }
    return nrd_tok_index_vocab(t);
}

static nrd_error *load_wordpiece(nrd_tokenizer *t, const nrd_json *model)
{
    const nrd_json *unk = nrd_json_get(model, "unk_token");
    const char *mark = nrd_json_get_str(model, "continuing_subword_prefix", "##");
    const int64_t most = nrd_json_get_int(model, "max_input_chars_per_word", 100);

    t->model = MODEL_WORDPIECE;
    if (strlen(mark) == 0 || strlen(mark) >= sizeof t->word_mark) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "continuing_subword_prefix must have 1 to %zu bytes, got '%.40s'",
                          sizeof t->word_mark - 1, mark);
    }
    if (most < 1 || most > TOK_MAX_TOKEN_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_input_chars_per_word must be between 1 and %d, got %lld",
                          (int)TOK_MAX_TOKEN_BYTES, (long long)most);
    }
    memcpy(t->word_mark, mark, strlen(mark) + 1);
    t->max_word_chars = (size_t)most;
    NRD_TRY(load_vocab(t, nrd_json_get(model, "vocab")));
    if (nrd_json_is(unk, NRD_JSON_STRING)) {
        t->unk_id = nrd_strmap_get(&t->by_token, t->tokens, unk->str, unk->n);
    }
    return NULL;
}

static nrd_error *load_bpe(nrd_tokenizer *t, const nrd_json *model)
{
    const char *end = nrd_json_get_str(model, "end_of_word_suffix", "");
    const nrd_json *vocab = nrd_json_get(model, "vocab"), *unk = nrd_json_get(model, "unk_token");

    t->model = MODEL_BPE;
    if (nrd_json_get_num(model, "dropout", 0) != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "BPE with dropout gives random results");
    }
    if (nrd_json_get_str(model, "continuing_subword_prefix", "")[0]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "BPE with continuing_subword_prefix is not implemented");
    }
    if (strlen(end) >= sizeof t->word_end) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "end_of_word_suffix must have at most %zu bytes, got '%.40s'", sizeof t->word_end - 1, end);
    }
    if (end[0] && t->byte_level) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "BPE of bytes with end_of_word_suffix is not implemented");
    }
    memcpy(t->word_end, end, strlen(end) + 1);
    NRD_TRY(load_vocab(t, vocab));
    t->byte_fallback = nrd_json_get_bool(model, "byte_fallback", false);
    t->fuse_unk = nrd_json_get_bool(model, "fuse_unk", false);
    t->ignore_merges = nrd_json_get_bool(model, "ignore_merges", false);
    if (nrd_json_is(unk, NRD_JSON_STRING)) {
        t->unk_id = nrd_strmap_get(&t->by_token, t->tokens, unk->str, unk->n);
    }
    return load_merges(t, nrd_json_get(model, "merges"));
}

static nrd_error *load_unigram(nrd_tokenizer *t, const nrd_json *model)
{
    const nrd_json *vocab = nrd_json_get(model, "vocab");
    t->model = MODEL_UNIGRAM;
    if (!nrd_json_is(vocab, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model: 'vocab' must be an array, got %s",
                          nrd_json_type_name(vocab));
    }
    for (size_t i = 0; i < vocab->n; i++) {
        const nrd_json *word = nrd_json_at(&vocab->child[i], 0), *score = nrd_json_at(&vocab->child[i], 1);
        if (!nrd_json_is(word, NRD_JSON_STRING) || !nrd_json_is_number(score)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vocab[%zu]: expected [string, score]", i);
        }
        NRD_TRY(nrd_tok_set(t, (int64_t)i, word->str, word->n, TOK_IN_MODEL));
        NRD_TRY(nrd_tok_set_score(t, (int32_t)i, nrd_json_num(score, 0)));
    }
    t->byte_fallback = nrd_json_get_bool(model, "byte_fallback", false);
    int64_t unk = nrd_json_get_int(model, "unk_id", -1);
    if (unk >= (int64_t)vocab->n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unk_id %lld is not in the vocabulary", (long long)unk);
    }
    t->unk_id = unk < 0 ? -1 : (int32_t)unk;
    return NULL;
}

static nrd_error *load_model(nrd_tokenizer *t, const nrd_json *model)
{
    const char *type = nrd_json_get_str(model, "type", NULL);
    if (!nrd_json_is(model, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'model' must be an object, got %s",
                          nrd_json_type_name(model));
    }
    NRD_TRY(check_kinds(model, "model", "byte_fallback|fuse_unk|ignore_merges", NRD_JSON_BOOL));
    NRD_TRY(check_kinds(model, "model", "continuing_subword_prefix|end_of_word_suffix|unk_token|type", NRD_JSON_STRING));
    NRD_TRY(check_kinds(model, "model", "dropout|max_input_chars_per_word|unk_id", NRD_JSON_INT));
    if (type ? strcmp(type, "BPE") == 0 : nrd_json_get(model, "merges") != NULL) {
        return load_bpe(t, model);
    }
    if (type && strcmp(type, "Unigram") == 0) {
        return load_unigram(t, model);
    }
    if (type && strcmp(type, "WordPiece") == 0) {
        return load_wordpiece(t, model);
    }
    return unsupported("model", model);
}

static nrd_error *load_added(nrd_tokenizer *t, const nrd_json *list)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *a = nrd_json_at(list, i), *content;
        NRD_TRY(get_string(a, "content", "added_tokens", &content));
        NRD_TRY(check_kinds(a, "added_tokens", "single_word|lstrip|rstrip|normalized|special", NRD_JSON_BOOL));
        int32_t known = nrd_strmap_get(&t->by_token, t->tokens, content->str, content->n);
        int64_t id = known >= 0 ? known : nrd_json_get_int(a, "id", -1);
        NRD_TRY(nrd_tok_set(t, id, content->str, content->n, 0));
        bool special = nrd_json_get_bool(a, "special", false);
        NRD_TRY(nrd_tok_add_added(
            t, &(nrd_tok_added_token){.id = (int32_t)id,
                                      .single_word = nrd_json_get_bool(a, "single_word", false),
                                      .lstrip = nrd_json_get_bool(a, "lstrip", false),
                                      .rstrip = nrd_json_get_bool(a, "rstrip", false),
                                      .normalized = nrd_json_get_bool(a, "normalized", !special),
                                      .special = special}));
    }
    return NULL;
}

/* ---- post-processors ---- */

static nrd_error *load_template(nrd_tokenizer *t, const nrd_json *node)
{
    const nrd_json *single = nrd_json_get(node, "single"), *specials = nrd_json_get(node, "special_tokens");
    nrd_ids side[2] = {{0}, {0}};
    nrd_error *err = NULL;
    int at = 0;

    for (size_t i = 0; i < nrd_json_len(single) && !err; i++) {
        const nrd_json *item = nrd_json_at(single, i), *special = nrd_json_get(item, "SpecialToken");
        if (!special) {
            at++;
            continue;
        }
        const nrd_json *ids = nrd_json_get(
            nrd_json_get(specials, nrd_json_get_str(special, "id", "")), "ids");
        if (nrd_json_len(ids) == 0) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "TemplateProcessing: special token '%s' has no ids",
                             nrd_json_get_str(special, "id", ""));
        }
        for (size_t k = 0; k < nrd_json_len(ids) && at < 2; k++) {
            int64_t id = nrd_json_int(nrd_json_at(ids, k), -1);
            nrd_ids_push(&side[at], id < 0 || id >= TOK_MAX_ID ? -1 : (int32_t)id);
        }
    }
    if (!err && at != 1) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "TemplateProcessing with %d sequences in 'single'", at);
    }
    for (int i = 0; i < 2 && !err; i++) {
        err = nrd_tok_set_affix(t, i == 1, side[i].ids, side[i].n);
    }
    nrd_ids_fini(&side[0]);
    nrd_ids_fini(&side[1]);
    return err ? err : nrd_tok_load_pair(t, nrd_json_get(node, "pair"), specials);
}

/* BERT: [CLS] A [SEP] B [SEP], the last two of type 1; RoBERTa: <s> A </s></s> B </s>. */
static nrd_error *load_fixed(nrd_tokenizer *t, const nrd_json *node, bool roberta)
{
    int64_t cls = nrd_json_int(nrd_json_at(nrd_json_get(node, "cls"), 1), -1);
    int64_t sep = nrd_json_int(nrd_json_at(nrd_json_get(node, "sep"), 1), -1);
    int32_t a = cls < TOK_MAX_ID ? (int32_t)cls : -1, b[2];
    b[0] = b[1] = sep < TOK_MAX_ID ? (int32_t)sep : -1;
    const nrd_ids pair[3] = {{.ids = &a, .n = 1}, {.ids = b, .n = roberta ? 2 : 1}, {.ids = b, .n = 1}};

    NRD_TRY(nrd_tok_set_affix(t, false, &a, 1));
    NRD_TRY(nrd_tok_set_affix(t, true, b, 1));
    return nrd_tok_set_pair(t, pair, roberta ? TOK_NO_TYPES : 1);
}

static nrd_error *load_post_processor(nrd_tokenizer *t, const nrd_json *node)
{
    const char *type = nrd_json_get_str(node, "type", "");
    if (is_null(node) || strcmp(type, "ByteLevel") == 0) {
        return NULL; /* ByteLevel trims offsets only */
    }
    if (strcmp(type, "Sequence") == 0) {
        const nrd_json *list = nrd_json_get(node, "processors");
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            NRD_TRY(load_post_processor(t, nrd_json_at(list, i)));
        }
        return NULL;
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return load_template(t, node);
    }
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        return load_fixed(t, node, type[0] == 'R');
    }
    return unsupported("post-processor", node);
}

/* ---- decoders ---- */

static nrd_error *load_decoder(nrd_tokenizer *t, const nrd_json *node)
{
    const char *type = nrd_json_get_str(node, "type", ""), *mark;
    const nrd_json *a, *b;
    nrd_tok_dec_step *step = NULL;
    bool regex;

    if (is_null(node)) {
        return NULL;
    }
    if (strcmp(type, "Sequence") == 0) {
        const nrd_json *list = nrd_json_get(node, "decoders");
        t->has_decoder = true;
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            NRD_TRY(load_decoder(t, nrd_json_at(list, i)));
        }
        return NULL;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return nrd_tok_new_dec(t, DEC_BYTE_LEVEL, &step);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        return nrd_tok_new_dec(t, DEC_BYTE_FALLBACK, &step);
    }
    if (strcmp(type, "Fuse") == 0) {
        return nrd_tok_new_dec(t, DEC_FUSE, &step);
    }
    if (strcmp(type, "Replace") == 0) {
        NRD_TRY(get_pattern(node, "decoder Replace", &regex, &a));
        NRD_TRY(get_string(node, "content", "decoder Replace", &b));
        if (regex || a->n == 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder Replace with a regex is not implemented");
        }
        NRD_TRY(nrd_tok_new_dec(t, DEC_REPLACE, &step));
        NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, a->str, a->n));
        return nrd_tok_text_copy(&step->to, &step->to_n, b->str, b->n);
    }
    if (strcmp(type, "Strip") == 0) {
        NRD_TRY(get_string(node, "content", "decoder Strip", &a));
        int64_t start = nrd_json_get_int(node, "start", 0), stop = nrd_json_get_int(node, "stop", 0);
        if (a->n == 0 || start < 0 || stop < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder Strip: content, start or stop is wrong");
        }
        NRD_TRY(nrd_tok_new_dec(t, DEC_STRIP, &step));
        NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, a->str, a->n));
        step->start = (size_t)start;
        step->stop = (size_t)stop;
        return NULL;
    }
    if (strcmp(type, "WordPiece") == 0) {
        NRD_TRY(nrd_tok_new_dec(t, DEC_WORDPIECE, &step));
        step->from = strdup(nrd_json_get_str(node, "prefix", "##"));
        if (!step->from) {
            return nrd_error_no_memory();
        }
        step->from_n = strlen(step->from);
        step->cleanup = nrd_json_get_bool(node, "cleanup", true);
        return NULL;
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        const char *end = nrd_json_get_str(node, "suffix", "</w>");
        NRD_TRY(nrd_tok_new_dec(t, DEC_WORD_END, &step));
        return nrd_tok_text_copy(&step->from, &step->from_n, end, strlen(end));
    }
    if (strcmp(type, "Metaspace") == 0) {
        NRD_TRY(get_replacement(node, &mark));
        NRD_TRY(nrd_tok_new_dec(t, DEC_METASPACE, &step));
        NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, mark, strlen(mark)));
        return get_prepend(node, &step->prepend);
    }
    return unsupported("decoder", node);
}

nrd_error *nrd_tok_load_json(nrd_tokenizer *t, const nrd_json *root)
{
    NRD_TRY(check_kinds(root, "the file", "added_tokens", NRD_JSON_ARRAY));
    NRD_TRY(load_normalizer(t, nrd_json_get(root, "normalizer")));
    NRD_TRY(load_pre_tokenizer(t, nrd_json_get(root, "pre_tokenizer")));
    NRD_TRY(load_model(t, nrd_json_get(root, "model")));
    NRD_TRY(nrd_tok_index_vocab(t));
    NRD_TRY(load_added(t, nrd_json_get(root, "added_tokens")));
    NRD_TRY(load_post_processor(t, nrd_json_get(root, "post_processor")));
    NRD_TRY(load_decoder(t, nrd_json_get(root, "decoder")));
    return nrd_tok_finish(t);
}
