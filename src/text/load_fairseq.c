/* SPDX-License-Identifier: Apache-2.0
 * fairseq's translation models: dict.en.txt and dict.fr.txt are a line for each token with how often it was seen, behind <s>, <pad>,
 * </s> and <unk>; bpecodes has the merges of subword-nmt or fastBPE (Sennrich et al., 2016). In the dictionaries "@@" marks what is not the end of
 * a word; here "</w>" marks what is, as in the codes. Texts are cut into words as Moses' tokenizer does (Koehn et al., 2007), whose lists of
 * abbreviations are not here but for a few. */
#include "text/internal.h"

#include "base/file.h"
#include "formats/fairseq.h"

#include <string.h>

#define WORD_END "</w>"
#define GOES_ON "@@"
enum { N_SPECIALS = 4, EOS = 2, UNK = 3, MAX_LANGUAGE = 16 };

/* ---- files ---- */

/* One line of *text up to its end, which is not part of it; false: there is none. */
static bool next_line(const char **text, const char *end, const char **line, size_t *n)
{
    const char *stop = *text < end ? memchr(*text, '\n', (size_t)(end - *text)) : NULL;

    if (*text >= end) {
        return false;
    }
    *line = *text;
    *n = (size_t)((stop ? stop : end) - *text);
    *text = stop ? stop + 1 : end;
    *n -= *n > 0 && (*line)[*n - 1] == '\r';
    return true;
}

static nrd_error *set_word(nrd_tokenizer *t, const char *word, size_t n)
{
    const size_t mark = strlen(GOES_ON);
    nrd_str text = {0};

    if (n > mark && !memcmp(word + n - mark, GOES_ON, mark)) {
        return nrd_tok_set(t, t->n_vocab, word, n - mark, TOK_IN_MODEL);
    }
    nrd_str_append(&text, word, n);
    nrd_str_puts(&text, WORD_END);
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_tok_set(t, t->n_vocab, text.data, text.len, TOK_IN_MODEL);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *load_words(nrd_tokenizer *t, const char *text, size_t n)
{
    static const char *const specials[N_SPECIALS] = {"<s>", "<pad>", "</s>", "<unk>"};
    const char *end = text + n, *line = NULL;
    size_t len = 0;

    for (int i = 0; i < N_SPECIALS; i++) {
        NRD_TRY(nrd_tok_set(t, i, specials[i], strlen(specials[i]), TOK_IN_MODEL | TOK_CONTROL));
        NRD_TRY(nrd_tok_add_added(t, &(nrd_tok_added_token){.id = i, .special = true}));
    }
    for (size_t at = 1; next_line(&text, end, &line, &len); at++) {
        const char *space = memchr(line, ' ', len);
        if (!space || space == line) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: expected a token and how often it was seen", at);
        }
        NRD_TRY(set_word(t, line, (size_t)(space - line)));
    }
    t->bos_id = 0;
    t->pad_id = 1;
    t->eos_id = t->start_id = EOS;
    t->unk_id = UNK;
    return NULL;
}

/* A symbol of the codes that is no token gets an id behind these: no text becomes it. */
static nrd_error *know(nrd_tokenizer *t, const char *s, size_t n)
{
    if (nrd_strmap_get(&t->by_token, t->tokens, s, n) >= 0) {
        return NULL;
    }
    const int32_t id = t->n_vocab;
    NRD_TRY(nrd_tok_set(t, id, s, n, TOK_IN_MODEL));
    nrd_strmap_put(&t->by_token, t->tokens, id);
    return NULL;
}

/* "a b", and in fastBPE's files a number behind them. */
static nrd_error *load_code(nrd_tokenizer *t, const char *line, size_t n)
{
    char both[1024];
    const char *space = memchr(line, ' ', n), *right = space ? space + 1 : NULL;
    const size_t left_n = space ? (size_t)(space - line) : 0;
    const char *stop = right ? memchr(right, ' ', n - left_n - 1) : NULL;
    const size_t right_n = right ? (stop ? (size_t)(stop - right) : n - left_n - 1) : 0;

    if (left_n == 0 || right_n == 0 || left_n + right_n > sizeof both) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected two symbols of at most %zu bytes", sizeof both);
    }
    memcpy(both, line, left_n);
    memcpy(both + left_n, right, right_n);
    NRD_TRY(know(t, line, left_n));
    NRD_TRY(know(t, right, right_n));
    NRD_TRY(know(t, both, left_n + right_n));
    return nrd_tok_add_merge(t, line, left_n, right, right_n);
}

static nrd_error *load_codes(nrd_tokenizer *t, const char *text, size_t n)
{
    const char *end = text + n, *line = NULL;
    size_t len = 0, n_lines = 1;

    for (size_t i = 0; i < n; i++) {
        n_lines += text[i] == '\n';
    }
    if (n_lines > TOK_MAX_ID || (size_t)t->n_vocab + 3 * n_lines > TOK_MAX_ID) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "bpecodes has %zu lines, which make more than %d symbols", n_lines, (int)TOK_MAX_ID);
    }
    t->n_known = t->n_vocab;
    nrd_strmap_fini(&t->by_token);
    NRD_TRY(nrd_strmap_init(&t->by_token, (size_t)t->n_vocab + 3 * n_lines));
    for (int32_t id = 0; id < t->n_known; id++) {
        nrd_strmap_put(&t->by_token, t->tokens, id);
    }
    for (size_t at = 1; next_line(&text, end, &line, &len); at++) {
        if (len > 0 && !(at == 1 && line[0] == '#')) {
            NRD_TRY(nrd_error_wrap(load_code(t, line, len), "bpecodes line %zu", at));
        }
    }
    memcpy(t->word_end, WORD_END, sizeof WORD_END);
    return NULL;
}

/* ---- Moses: words ---- */

#define LETTER "[\\p{L}\\p{N}]"
#define ENTITY "&(?:amp|lt|gt|quot|#124|#91|#93);|@-@|\\.{2,}|"
/* Commas but those of numbers. */
#define COMMA ",(?!\\p{N})|(?<!\\p{N}),|"
/* The end of a sentence: of the text, or before a word that begins with no small letter; not behind initials and `abbreviations`. */
#define STOP(abbreviations)                                                                        \
    "(?<=[^\\s.])(?<!\\.\\p{L})" abbreviations "\\.(?=\\s*$|(?<!\\b\\p{Lu}\\.)\\s+[^\\p{Ll}\\s])|"
#define NOT(word) "(?<!\\b" word ")"
#define TITLES NOT("Mr") NOT("Mrs") NOT("Ms") NOT("Dr") NOT("Prof") NOT("St") NOT("Jr") NOT("Sr") NOT("vs") NOT("No")
#define OTHERS "[^\\p{L}\\p{M}\\p{N}\\s.,`-]"

static nrd_error *add_words(nrd_tokenizer *t, const char *source)
{
    static const char *const entities[][2] = {{"&", "&amp;"},   {"|", "&#124;"},  {"<", "&lt;"},  {">", "&gt;"},
                                              {"'", "&apos;"}, {"\"", "&quot;"}, {"[", "&#91;"}, {"]", "&#93;"}};
    static const char english[] = ENTITY "(?<=\\p{L})&apos;" LETTER "+|(?<=\\p{N})&apos;s|&apos;|" COMMA STOP(TITLES) OTHERS;
    static const char roman[] = ENTITY LETTER "*\\p{L}&apos;(?=\\p{L})|&apos;|" COMMA STOP("") OTHERS;
    static const char others[] = ENTITY "&apos;|" COMMA STOP("") OTHERS;
    const char *pattern = !strcmp(source, "en") ? english : !strcmp(source, "fr") || !strcmp(source, "it") ? roman : others;
    nrd_tok_pre_step *step = NULL;

    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++) {
        NRD_TRY(nrd_tok_add_replace(t, false, entities[i][0], entities[i][1]));
    }
    NRD_TRY(nrd_tok_add_replace(t, true, "(?<=" LETTER ")-(?=" LETTER ")", " @-@ "));
    NRD_TRY(nrd_tok_add_split(t, true, pattern, strlen(pattern), SPLIT_ISOLATED, false));
    return nrd_tok_new_pre(t, PRE_WHITESPACE_SPLIT, &step);
}

/* ---- and back ---- */

static nrd_error *replace(nrd_tokenizer *t, const char *from, const char *to)
{
    nrd_tok_dec_step *step = NULL;

    NRD_TRY(nrd_tok_new_dec(t, DEC_REPLACE, &step));
    NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, from, strlen(from)));
    return nrd_tok_text_copy(&step->to, &step->to_n, to, strlen(to));
}

static nrd_error *add_text(nrd_tokenizer *t, const char *target)
{
    static const char *const all[][2] = {{" @-@ ", "-"}, {" ,", ","}, {" .", "."}, {" )", ")"}, {"( ", "("}, {" &#93;", "]"}, {"&#91; ", "["}};
    static const char *const not_french[][2] = {{" !", "!"}, {" ?", "?"}, {" ;", ";"}, {" :", ":"}, {" %", "%"}};
    static const char *const entities[][2] = {{"&apos;", "'"}, {"&quot;", "\""}, {"&lt;", "<"},   {"&gt;", ">"},
                                              {"&#124;", "|"}, {"&#91;", "["},   {"&#93;", "]"}, {"&amp;", "&"}};
    const bool french = !strcmp(target, "fr");
    nrd_tok_dec_step *step = NULL;

    NRD_TRY(nrd_tok_new_dec(t, DEC_WORD_END, &step));
    NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, WORD_END, strlen(WORD_END)));
    NRD_TRY(nrd_tok_new_dec(t, DEC_FUSE, &step));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        NRD_TRY(replace(t, all[i][0], all[i][1]));
    }
    for (size_t i = 0; !french && i < sizeof not_french / sizeof *not_french; i++) {
        NRD_TRY(replace(t, not_french[i][0], not_french[i][1]));
    }
    if (french || !strcmp(target, "it")) {
        NRD_TRY(replace(t, "&apos; ", "'"));
    } else if (!strcmp(target, "en")) {
        NRD_TRY(replace(t, " &apos;", "'"));
    }
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++) {
        NRD_TRY(replace(t, entities[i][0], entities[i][1]));
    }
    return NULL;
}

/* ---- the folder ---- */

/* Both languages: one dictionary. */
static nrd_error *read_dictionary(const char *dir, const char *const languages[2], char **out, size_t *n)
{
    char *text[2] = {NULL, NULL};
    size_t len[2] = {0, 0};
    nrd_error *err = NULL;

    for (int i = 0; i < 2 && !err; i++) {
        nrd_str path = {0};
        nrd_str_printf(&path, "%s/dict.%s.txt", dir, languages[i]);
        err = nrd_str_error(&path);
        err = err ? err : nrd_file_read(&text[i], &len[i], path.data, TOK_MAX_FILE_BYTES);
        nrd_str_fini(&path);
    }
    if (!err && (len[0] != len[1] || memcmp(text[0], text[1], len[0]) != 0)) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "dict.%s.txt and dict.%s.txt differ: a dictionary for each language is not supported",
                         languages[0], languages[1]);
    }
    free(text[1]);
    if (err) {
        free(text[0]);
        return err;
    }
    *out = text[0];
    *n = len[0];
    return NULL;
}

static nrd_error *load(nrd_tokenizer *t, const char *dir, const char *model)
{
    const int32_t eos = EOS;
    char *words = NULL, *codes = NULL, *path = NULL;
    size_t n_words = 0, n_codes = 0;
    nrd_torch_bin *bin = NULL;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_torch_bin_open(&bin, model), err, done);
    const char *const languages[2] = {nrd_torch_bin_text(bin, "args/source_lang"), nrd_torch_bin_text(bin, "args/target_lang")};
    for (int i = 0; i < 2; i++) {
        if (!languages[i] || strlen(languages[i]) > MAX_LANGUAGE || strchr(languages[i], '/')) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no 'args/%s_lang', or one of more than %d bytes", model, i ? "target" : "source",
                             (int)MAX_LANGUAGE);
            goto done;
        }
    }
    NRD_TRY_GOTO(read_dictionary(dir, languages, &words, &n_words), err, done);
    NRD_TRY_GOTO(nrd_path_make(&path, dir, "bpecodes"), err, done);
    NRD_TRY_GOTO(nrd_file_read(&codes, &n_codes, path, TOK_MAX_FILE_BYTES), err, done);
    t->model = MODEL_BPE;
    t->has_encoder = true;
    NRD_TRY_GOTO(nrd_error_wrap(load_words(t, words, n_words), "dict.%s.txt", languages[0]), err, done);
    NRD_TRY_GOTO(load_codes(t, codes, n_codes), err, done);
    NRD_TRY_GOTO(add_words(t, languages[0]), err, done);
    NRD_TRY_GOTO(add_text(t, languages[1]), err, done);
    NRD_TRY_GOTO(nrd_tok_set_affix(t, true, &eos, 1), err, done);
    err = nrd_tok_finish(t);
done:
    nrd_torch_bin_close(bin);
    free(words);
    free(codes);
    free(path);
    return err;
}

nrd_error *nrd_tok_load_fairseq(nrd_tokenizer *t, const char *dir, bool *out_is)
{
    char *model = NULL;

    NRD_TRY(nrd_fairseq_find(&model, dir));
    *out_is = model != NULL;
    nrd_error *err = model ? load(t, dir, model) : NULL;
    free(model);
    return err;
}
