/* SPDX-License-Identifier: Apache-2.0
 * Opening, encoding, and the small questions about a tokenizer. */
#include "text/internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(nrd_ids *v, size_t more)
{
    size_t need, bytes, cap = v->cap ? v->cap : 64;
    if (v->no_memory || (v->cap - v->n >= more)) {
        return !v->no_memory;
    }
    v->no_memory = true;
    if (!nrd_size_add(v->n, more, &need)) {
        return false;
    }
    while (cap < need) {
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    }
    int32_t *ids = nrd_size_mul(cap, sizeof *ids, &bytes) ? realloc(v->ids, bytes) : NULL;
    if (!ids) {
        return false;
    }
    v->ids = ids;
    v->cap = cap;
    v->no_memory = false;
    return true;
}

void nrd_ids_push(nrd_ids *v, int32_t id)
{
    if (reserve(v, 1)) {
        v->ids[v->n++] = id;
    }
}

void nrd_ids_append(nrd_ids *v, const int32_t *ids, size_t n)
{
    if (n == 0 || !reserve(v, n)) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        v->ids[v->n + i] = ids[i];
    }
    v->n += n;
}

nrd_error *nrd_ids_error(const nrd_ids *v)
{
    return v->no_memory ? nrd_error_no_memory() : NULL;
}

void nrd_ids_fini(nrd_ids *v)
{
    free(v->ids);
    memset(v, 0, sizeof *v);
}

/* ---- opening ---- */

static nrd_error *open_json(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, TOK_MAX_FILE_BYTES));
    nrd_error *err = nrd_tok_load_json_text(t, text, n);
    free(text);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_spm(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *data = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&data, &n, path, TOK_MAX_FILE_BYTES));
    /* GLM-4's tokenizer.model is no SentencePiece file */
    nrd_error *err = nrd_tok_is_tiktoken(data, n) ? nrd_tok_load_tiktoken(t, dir, data, n) : nrd_tok_load_spm_bytes(t, data, n);
    free(data);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_tiktoken(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, TOK_MAX_FILE_BYTES));
    nrd_error *err = nrd_tok_load_tiktoken(t, dir, text, n);
    free(text);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_pieces(nrd_tokenizer *t, const char *path, const char *dir)
{
    NRD_TRY(nrd_error_wrap(nrd_tok_load_pieces(t, dir, strrchr(path, '/') + 1), "%s", dir));
    return nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_gguf(nrd_tokenizer *t, const char *path, const char *dir)
{
    (void)dir;
    return nrd_error_wrap(nrd_tok_load_gguf(t, path), "%s", path);
}

static nrd_error *open_nemo(nrd_tokenizer *t, const char *path, const char *dir)
{
    (void)dir;
    return nrd_error_wrap(nrd_tok_load_nemo(t, path), "%s", path);
}

/* The folder of the decoder where each part of a model has one (VILA): there is no tokenizer but in it. NULL: it has none. */
static nrd_error *find_decoder(const char *dir, char **out)
{
    nrd_str file = {0};

    nrd_str_printf(&file, "%s/llm/config.json", dir);
    NRD_TRY(nrd_str_error(&file));
    *out = NULL;
    if (nrd_path_exists(file.data)) {
        file.data[file.len - strlen("/config.json")] = '\0';
        *out = nrd_str_steal(&file);
    }
    nrd_str_fini(&file);
    return NULL;
}

static nrd_error *open_folder(nrd_tokenizer *t, const char *dir)
{
    static const struct {
        const char *name;
        nrd_error *(*open)(nrd_tokenizer *, const char *, const char *);
    } kinds[] = {{"tokenizer.json", open_json}, {"tokenizer.model", open_spm}, {"spiece.model", open_spm},
                 {"source.spm", open_pieces}, {"sentencepiece.bpe.model", open_pieces},
                 {"qwen.tiktoken", open_tiktoken}, {"tiktoken.model", open_tiktoken}};
    nrd_error *err = NULL;
    char *path = NULL;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        NRD_TRY(nrd_path_make(&path, dir, kinds[i].name));
        bool exists = nrd_path_exists(path);
        if (exists) {
            err = kinds[i].open(t, path, dir);
        }
        free(path);
        if (exists) {
            return err;
        }
    }
    NRD_TRY(nrd_path_make(&path, dir, "vocab.json"));
    bool exists = nrd_path_exists(path);
    free(path);
    if (!exists && !t->wants_image) {
        NRD_TRY(find_decoder(dir, &path));
        t->wants_image = path != NULL;
        err = path ? open_folder(t, path) : NULL;
        free(path);
        if (t->wants_image) {
            return err;
        }
    }
    if (!exists) {
        bool is_byt5 = false, is_fairseq = false;
        NRD_TRY(nrd_error_wrap(nrd_tok_load_byt5(t, dir, &is_byt5), "%s", dir));
        NRD_TRY(is_byt5 ? NULL : nrd_error_wrap(nrd_tok_load_fairseq(t, dir, &is_fairseq), "%s", dir));
        return is_byt5      ? nrd_tok_load_side_files(t, dir)
               : is_fairseq ? NULL
                       : nrd_errorf(NRD_ERR_NOT_FOUND,
                                    "'%s' holds no tokenizer.json, tokenizer.model, spiece.model, source.spm, "
                                    "sentencepiece.bpe.model, qwen.tiktoken, tiktoken.model or vocab.json", dir);
    }
    NRD_TRY(nrd_error_wrap(nrd_tok_load_vocab_merges(t, dir), "%s", dir));
    return nrd_tok_load_side_files(t, dir);
}

nrd_error *nrd_tokenizer_open(nrd_tokenizer **out, const char *path)
{
    nrd_error *err;
    nrd_tokenizer *t = nrd_tok_new();

    *out = NULL;
    if (!t) {
        return nrd_error_no_memory();
    }
    if (nrd_path_is_dir(path)) {
        err = open_folder(t, path);
    } else {
        char *dir = NULL;
        err = nrd_path_make_dir(&dir, path);
        err = err                                  ? err
              : nrd_str_has_suffix(path, ".gguf")  ? open_gguf(t, path, dir)
              : nrd_str_has_suffix(path, ".nemo")  ? open_nemo(t, path, dir)
              : nrd_str_has_suffix(path, ".model") ? open_spm(t, path, dir)
              : nrd_str_has_suffix(path, ".json")  ? open_json(t, path, dir)
                                                   : nrd_errorf(NRD_ERR_INVALID_ARG,
                                                                "'%s': expected a folder, a .json, "
                                                                ".model, .gguf or .nemo file",
                                                                path);
        free(dir);
    }
    if (!err && t->stop_ids.no_memory) {
        err = nrd_error_no_memory();
    }
    if (err) {
        nrd_tokenizer_close(t);
        return err;
    }
    *out = t;
    return NULL;
}

/* ---- encoding ---- */

/* The text itself when it is valid UTF-8, else a copy with U+FFFD for each invalid part. */
static void clean_text(nrd_tok_scratch *sc, const char **s, size_t *n)
{
    const char *p = *s;
    size_t i = 0, kept = 0, len = *n;
    bool copied = false;

    while (i < len) {
        uint64_t eight;
        uint32_t cp;
        if (len - i >= 8 && (memcpy(&eight, p + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        size_t step = nrd_utf8_next(p + i, len - i, &cp);
        if (cp == NRD_UTF8_BAD) {
            if (!copied) {
                nrd_str_clear(&sc->clean);
                copied = true;
            }
            nrd_str_append(&sc->clean, p + kept, i - kept);
            nrd_str_append(&sc->clean, "\xef\xbf\xbd", 3);
            kept = i + step;
        }
        i += step;
    }
    if (copied) {
        nrd_str_append(&sc->clean, p + kept, len - kept);
        sc->no_memory = sc->no_memory || sc->clean.no_memory;
        *s = nrd_str_cstr(&sc->clean);
        *n = sc->clean.len;
    }
}

static void encode_words(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                         bool at_start, nrd_ids *out)
{
    nrd_tok_pieces *words;
    nrd_tok_pretokenize(t, sc, &s, &n, at_start, &words);
    for (size_t i = 0; i < words->n && !sc->no_memory; i++) {
        size_t start = words->v[i].start, len = words->v[i].end - start;
        if (t->model == MODEL_BPE) {
            nrd_tok_bpe_encode(t, sc, s + start, len, out);
        } else if (t->model == MODEL_WORDPIECE) {
            nrd_tok_wordpiece_encode(t, s + start, len, out);
        } else {
            nrd_tok_unigram_encode(t, sc, s + start, len, out);
        }
    }
}

static bool is_word_before(const char *s, size_t at)
{
    uint32_t cp;
    size_t back = at;
    if (at == 0) {
        return false;
    }
    do {
        back--;
    } while (back > 0 && ((uint8_t)s[back] & 0xc0) == 0x80);
    nrd_utf8_next(s + back, at - back, &cp);
    return nrd_uni_class(cp) & NRD_UNI_WORD;
}

static bool is_word_after(const char *s, size_t at, size_t n)
{
    uint32_t cp;
    if (at >= n) {
        return false;
    }
    nrd_utf8_next(s + at, n - at, &cp);
    return nrd_uni_class(cp) & NRD_UNI_WORD;
}

static size_t spaces_before(const char *s, size_t at, size_t limit)
{
    while (at > limit) {
        uint32_t cp;
        size_t back = at - 1;
        while (back > limit && ((uint8_t)s[back] & 0xc0) == 0x80) {
            back--;
        }
        nrd_utf8_next(s + back, at - back, &cp);
        if (!(nrd_uni_class(cp) & NRD_UNI_SPACE)) {
            break;
        }
        at = back;
    }
    return at;
}

static size_t spaces_after(const char *s, size_t at, size_t n)
{
    while (at < n) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + at, n - at, &cp);
        if (!(nrd_uni_class(cp) & NRD_UNI_SPACE)) {
            break;
        }
        at += len;
    }
    return at;
}

typedef struct scan { /* walks a text from one added token to the next */
    const nrd_tokenizer *t;
    const nrd_tok_trie *words;
    const char *s;
    size_t n;
    bool parse_special;
    size_t at;   /* matching goes on here */
    size_t done; /* text before this is spoken for */
} scan;

/* Finds the next added token: [start, end) of the text, its id. Tokens that may not match here are
 * passed over whole, as in the reference. */
static bool scan_next(scan *c, size_t *out_start, size_t *out_end, int32_t *out_id)
{
    while (c->at < c->n) {
        int32_t index;
        if (!c->words->root[(uint8_t)c->s[c->at]]) {
            c->at++;
            continue;
        }
        size_t len = nrd_trie_longest(c->words, c->s + c->at, c->n - c->at, &index), start = c->at;
        if (!len) {
            c->at++;
            continue;
        }
        const nrd_tok_added_token *a = &c->t->added[index];
        size_t end = start + len;
        c->at = end;
        if (a->special && !c->parse_special) {
            continue;
        }
        if (a->single_word && (is_word_before(c->s, start) || is_word_after(c->s, end, c->n))) {
            continue;
        }
        if (start < c->done) {
            start = c->done; /* spaces taken by the token before */
        }
        if (a->lstrip) {
            start = spaces_before(c->s, start, c->done);
        }
        if (a->rstrip) {
            end = spaces_after(c->s, end, c->n);
        }
        *out_start = start;
        *out_end = end > start ? end : start;
        *out_id = a->id;
        c->done = *out_end;
        return true;
    }
    return false;
}

/* A stretch of raw text between added tokens. */
static nrd_error *encode_section(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s,
                                 size_t n, bool at_start, bool parse_special, nrd_ids *out)
{
    size_t start, end, done = 0;
    int32_t id;
    bool whole = t->model == MODEL_UNIGRAM && t->n_norm && t->norm[0].kind == NORM_SENTENCEPIECE;

    nrd_tok_normalize(t, sc, s, n, &s, &n);
    if (n > UINT32_MAX / 4) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the normalized text has %zu bytes", n);
    }
    if (t->has_added_norm && !whole) {
        scan c = {.t = t, .words = &t->added_norm, .s = s, .n = n, .parse_special = parse_special};
        while (scan_next(&c, &start, &end, &id)) {
            encode_words(t, sc, s + done, start - done, at_start && done == 0, out);
            nrd_ids_push(out, id);
            done = end;
        }
    }
    encode_words(t, sc, s + done, n - done, at_start && done == 0, out);
    return NULL;
}

/* ">>fra<<" in front of a text is one token, of a language that the model has not the unknown one. */
static void take_language(const nrd_tokenizer *t, const char **text, size_t *n, nrd_ids *out)
{
    const char *end = *n >= 4 && !memcmp(*text, ">>", 2) ? memmem(*text, *n, "<<", 2) : NULL;
    if (end) {
        const size_t len = (size_t)(end + 2 - *text);
        const int32_t id = nrd_tokenizer_token_id(t, *text, len);
        nrd_ids_push(out, id >= 0 ? id : t->unk_id);
        *text += len;
        *n -= len;
    }
}

/* The place of a picture, whose file's name begins at *done, behind <img>; nothing, where no </img> is behind it. */
static void take_picture(scan *c, size_t *done, nrd_ids *out)
{
    static const char end[] = "</img>";
    const char *at = memmem(c->s + *done, c->n - *done, end, sizeof end - 1);

    if (at) {
        nrd_ids_push(out, c->t->picture_pad);
        *done = c->at = c->done = (size_t)(at - c->s);
    }
}

static nrd_error *encode(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *text, size_t n,
                         uint32_t flags, nrd_ids *out)
{
    bool parse_special = (flags & NRD_ENCODE_PARSE_SPECIAL) != 0;
    size_t start, end, done = 0;
    int32_t id;

    clean_text(sc, &text, &n);
    if (flags & NRD_ENCODE_ADD_SPECIAL) {
        nrd_ids_append(out, t->prefix, t->n_prefix);
    }
    const size_t first = out->n;
    if (t->languages == LANGUAGES_IN_TEXT) {
        take_language(t, &text, &n, out);
    }
    if (t->has_added_raw) {
        scan c = {.t = t, .words = &t->added_raw, .s = text, .n = n,
                  .parse_special = parse_special};
        while (scan_next(&c, &start, &end, &id)) {
            if (start > done) {
                NRD_TRY(encode_section(t, sc, text + done, start - done, done == 0, parse_special,
                                       out));
            }
            nrd_ids_push(out, id);
            done = end;
            if (t->picture_start > 0 && id == t->picture_start && t->picture_pad > 0) {
                take_picture(&c, &done, out);
            }
        }
    }
    if (n > done) {
        NRD_TRY(encode_section(t, sc, text + done, n - done, done == 0, parse_special, out));
    }
    for (size_t i = first; t->n_known > 0 && i < out->n; i++) {
        out->ids[i] = out->ids[i] < t->n_known ? out->ids[i] : t->unk_id;
    }
    if (flags & NRD_ENCODE_ADD_SPECIAL) {
        nrd_ids_append(out, t->suffix, t->n_suffix);
    }
    return NULL;
}

nrd_error *nrd_tokenizer_encode(const nrd_tokenizer *t, const char *text, size_t n, uint32_t flags,
                                nrd_ids *out)
{
    nrd_tok_scratch *sc = nrd_tok_scratch_get();

    if (n > TOK_MAX_TEXT_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the text has %zu bytes, the limit is %d", n,
                          TOK_MAX_TEXT_BYTES);
    }
    if (!sc) {
        return nrd_error_no_memory();
    }
    sc->no_memory = false;
    nrd_error *err = encode(t, sc, text, n, flags, out);
    if (!err && sc->no_memory) {
        err = nrd_error_no_memory();
    }
    nrd_tok_scratch_trim(sc);
    return err ? err : nrd_ids_error(out);
}

/* ---- questions ---- */

static bool has_token(const nrd_tokenizer *t, int32_t id)
{
    return id >= 0 && id < nrd_tokenizer_vocab_size(t) && (t->flags[id] & TOK_PRESENT);
}

int32_t nrd_tokenizer_vocab_size(const nrd_tokenizer *t)
{
    return t->n_known > 0 ? t->n_known : t->n_vocab;
}

int32_t nrd_tokenizer_bos_id(const nrd_tokenizer *t)
{
    return t->bos_id;
}

int32_t nrd_tokenizer_eos_id(const nrd_tokenizer *t)
{
    return t->eos_id;
}

int32_t nrd_tokenizer_pad_id(const nrd_tokenizer *t)
{
    return t->pad_id;
}

int32_t nrd_tokenizer_unk_id(const nrd_tokenizer *t)
{
    return t->unk_id;
}

bool nrd_tokenizer_is_special(const nrd_tokenizer *t, int32_t id)
{
    return has_token(t, id) && (t->flags[id] & TOK_SPECIAL);
}

int32_t nrd_tokenizer_token_id(const nrd_tokenizer *t, const char *token, size_t n)
{
    int32_t id = nrd_strmap_get(&t->by_added, t->tokens, token, n);
    id = id >= 0 ? id : nrd_strmap_get(&t->by_token, t->tokens, token, n);
    return has_token(t, id) ? id : -1;
}

const char *nrd_tokenizer_token(const nrd_tokenizer *t, int32_t id, size_t *out_n)
{
    bool known = has_token(t, id);
    if (out_n) {
        *out_n = known ? t->tokens[id].n : 0;
    }
    return known ? t->tokens[id].s : NULL;
}

const char *nrd_tokenizer_token_bytes(const nrd_tokenizer *t, int32_t id, size_t *out_n)
{
    bool known = has_token(t, id) && !(t->flags[id] & (TOK_SPECIAL | TOK_CONTROL));
    *out_n = known ? t->bytes[id].n : 0;
    return known ? t->bytes[id].s : "";
}

const char *nrd_tokenizer_kind(const nrd_tokenizer *t)
{
    return t->model == MODEL_UNIGRAM   ? "Unigram"
           : t->model == MODEL_WORDPIECE ? "WordPiece"
           : t->byte_level           ? "byte-level BPE"
           : t->byte_fallback        ? "BPE with byte fallback"
                                     : "BPE";
}

bool nrd_tokenizer_numbers_pictures(const nrd_tokenizer *t)
{
    return t->numbers_pictures;
}

const char *nrd_tokenizer_chat_template(const nrd_tokenizer *t)
{
    return t->chat_template;
}

const char *nrd_tokenizer_tool_template(const nrd_tokenizer *t)
{
    return t->tool_template;
}

const int32_t *nrd_tokenizer_stop_ids(const nrd_tokenizer *t, size_t *out_n)
{
    *out_n = t->stop_ids.n;
    return t->stop_ids.ids;
}
