/* SPDX-License-Identifier: Apache-2.0
 * Text to ids: added tokens are found first, what is between them is normalized, cut into words, and these into tokens. */
#include "text/internal.h"

#include <string.h>

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
