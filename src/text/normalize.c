/* SPDX-License-Identifier: Apache-2.0
 * Normalizers: text to text, before it is cut into words. */
#include "text/internal.h"

#include <string.h>

/* ---- precompiled_charsmap: a double array (Darts) that maps spans of text to strings ---- */

enum { MAX_CHARSMAP_TARGET = 256 };

static uint32_t read_u32(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

nrd_error *nrd_charsmap_init(nrd_tok_charsmap *m, const void *blob, size_t n)
{
    nrd_error *err = NULL;
    memset(m, 0, sizeof *m);
    if (n == 0) {
        return NULL; /* an empty map changes nothing */
    }
    if (n < 5 || n > ((size_t)64 << 20)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "precompiled_charsmap has %zu bytes", n);
    }
    size_t trie_bytes = read_u32(blob);
    if (trie_bytes % 4 || trie_bytes == 0 || trie_bytes > n - 5) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "precompiled_charsmap: the index of %zu bytes does not fit %zu", trie_bytes,
                          n);
    }
    if (((const char *)blob)[n - 1] != '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "precompiled_charsmap does not end with a NUL");
    }
    m->n_units = trie_bytes / 4;
    NRD_NEW_GOTO(m->blob, n, err, fail);
    NRD_NEW_GOTO(m->units, m->n_units, err, fail);
    memcpy(m->blob, blob, n);
    m->blob_n = n;
    for (size_t i = 0; i < m->n_units; i++) {
        m->units[i] = read_u32(m->blob + 4 + 4 * i);
    }
    m->strings = m->blob + 4 + trie_bytes;
    m->strings_n = n - 4 - trie_bytes;
fail:
    return err; /* what was made is freed with the tokenizer */
}

/* A unit: bits 0-7 label, bit 8 has a leaf, bit 9 offset is shifted by 8, bits 10-31 offset; bit 31
 * marks leaves, whose bits 0-30 are the value. */
static uint32_t unit_offset(uint32_t u)
{
    return (u >> 10) << ((u & (1u << 9)) >> 6);
}

/* Length of the shortest (first) or longest prefix in the map; 0: none. */
static size_t charsmap_find(const nrd_tok_charsmap *m, const char *s, size_t n, bool longest,
                            const char **out, size_t *out_n)
{
    size_t found = 0;
    if (!m->n_units) {
        return 0;
    }
    size_t node = unit_offset(m->units[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        node ^= (uint8_t)s[i];
        if (node >= m->n_units) {
            break;
        }
        uint32_t u = m->units[node];
        if ((u & (1u << 31 | 0xffu)) != (uint8_t)s[i]) {
            break;
        }
        node ^= unit_offset(u);
        if (u >> 8 & 1) {
            size_t at = node < m->n_units ? m->units[node] & 0x7fffffffu : SIZE_MAX;
            if (at >= m->strings_n) {
                break;
            }
            size_t len = strnlen(m->strings + at, MAX_CHARSMAP_TARGET);
            found = i + 1;
            *out = m->strings + at;
            *out_n = len;
            if (!longest) {
                break;
            }
        }
    }
    return found;
}

/* Grapheme by grapheme, as the tokenizers library applies these maps: a cluster of less than six
 * bytes is replaced as a whole by what its shortest prefix maps to, a longer one char by char. */
static void apply_precompiled(const nrd_tok_charsmap *m, const char *s, size_t n, nrd_str *out)
{
    const char *to;
    size_t to_n;
    for (size_t i = 0; i < n;) {
        size_t g = nrd_uni_grapheme(s + i, n - i);
        if (g < 6 && charsmap_find(m, s + i, g, false, &to, &to_n)) {
            nrd_str_append(out, to, to_n);
            i += g;
            continue;
        }
        for (size_t end = i + g; i < end;) {
            uint32_t cp;
            size_t len = nrd_utf8_next(s + i, end - i, &cp);
            if (charsmap_find(m, s + i, len, false, &to, &to_n)) {
                nrd_str_append(out, to, to_n);
            } else {
                nrd_str_append(out, s + i, len);
            }
            i += len;
        }
    }
}

/* ---- SentencePiece ---- */

/* One step of SentencePiece: user-defined symbols stay as they are, else the longest prefix in the
 * map, else one character. */
static size_t sp_step(const nrd_tokenizer *t, const nrd_tok_norm_step *step, const char *s,
                      size_t n, const char **out, size_t *out_n)
{
    int32_t index;
    uint32_t cp;
    size_t len = t->has_added_norm ? nrd_trie_longest(&t->added_norm, s, n, &index) : 0;
    if (!len && step->map.n_units) {
        len = charsmap_find(&step->map, s, n, true, out, out_n);
        if (len) {
            return len;
        }
    }
    *out = s;
    *out_n = len = len ? len : nrd_utf8_next(s, n, &cp);
    return len;
}

static void apply_sentencepiece(const nrd_tokenizer *t, const nrd_tok_norm_step *step,
                                const char *s, size_t n, nrd_str *out)
{
    const char *space = step->escape_spaces ? TOK_SPACE : " ", *to;
    size_t space_n = strlen(space), i = 0, to_n, start;
    bool after_space = step->remove_extra_spaces;

    while (step->remove_extra_spaces && i < n) {
        size_t len = sp_step(t, step, s + i, n - i, &to, &to_n);
        if (to_n != 1 || *to != ' ') {
            break;
        }
        i += len;
    }
    if (i == n) {
        return;
    }
    start = out->len;
    if (step->add_dummy_prefix) {
        nrd_str_append(out, space, space_n);
    }
    while (i < n) {
        i += sp_step(t, step, s + i, n - i, &to, &to_n);
        while (after_space && to_n && *to == ' ') {
            to++;
            to_n--;
        }
        if (to_n) {
            after_space = to[to_n - 1] == ' ';
            for (size_t k = 0; k < to_n; k++) {
                if (to[k] == ' ') {
                    nrd_str_append(out, space, space_n);
                } else {
                    nrd_str_putc(out, to[k]);
                }
            }
        }
        after_space = after_space && step->remove_extra_spaces;
    }
    while (step->remove_extra_spaces && out->len >= start + space_n &&
           memcmp(out->data + out->len - space_n, space, space_n) == 0) {
        out->len -= space_n;
        out->data[out->len] = '\0';
    }
}

/* ---- the others ---- */

static void apply_replace(const nrd_tok_norm_step *step, const char *s, size_t n, nrd_str *out)
{
    size_t from = 0, start, end;
    nrd_str_reserve(out, n + n / 2);
    if (step->pat.kind == PATTERN_STRING && step->pat.n == 1) {
        char c = step->pat.text[0];
        while (from < n) {
            const char *hit = memchr(s + from, c, n - from);
            size_t plain = hit ? (size_t)(hit - s) - from : n - from;
            nrd_str_append(out, s + from, plain);
            if (hit) {
                nrd_str_append(out, step->content, step->content_n);
            }
            from += plain + 1;
        }
        return;
    }
    while (nrd_pattern_find(&step->pat, s, n, from, &start, &end)) {
        nrd_str_append(out, s + from, start - from);
        nrd_str_append(out, step->content, step->content_n);
        from = end;
    }
    nrd_str_append(out, s + from, n - from);
}

static void apply_strip(const nrd_tok_norm_step *step, const char *s, size_t n, nrd_str *out)
{
    uint32_t cp;
    size_t len;
    while (step->left && n &&
           (len = nrd_utf8_next(s, n, &cp), nrd_uni_class(cp) & NRD_UNI_SPACE)) {
        s += len;
        n -= len;
    }
    while (step->right && n) {
        size_t at = n - 1;
        while (at > 0 && ((uint8_t)s[at] & 0xc0) == 0x80) {
            at--;
        }
        nrd_utf8_next(s + at, n - at, &cp);
        if (!(nrd_uni_class(cp) & NRD_UNI_SPACE)) {
            break;
        }
        n = at;
    }
    nrd_str_append(out, s, n);
}

static void apply_strip_accents(const char *s, size_t n, nrd_str *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + i, n - i, &cp);
        if (!(nrd_uni_class(cp) & NRD_UNI_M)) {
            nrd_str_append(out, s + i, len);
        }
        i += len;
    }
}

static void apply(const nrd_tokenizer *t, const nrd_tok_norm_step *step, const char *s, size_t n,
                  nrd_str *out)
{
    switch (step->kind) {
    case NORM_FORM:
        nrd_uni_normalize(step->form, s, n, out);
        break;
    case NORM_LOWERCASE:
        nrd_uni_lower(s, n, out);
        break;
    case NORM_REPLACE:
        apply_replace(step, s, n, out);
        break;
    case NORM_PREPEND:
        if (n) {
            nrd_str_append(out, step->content, step->content_n);
            nrd_str_append(out, s, n);
        }
        break;
    case NORM_STRIP:
        apply_strip(step, s, n, out);
        break;
    case NORM_STRIP_ACCENTS:
        apply_strip_accents(s, n, out);
        break;
    case NORM_PRECOMPILED:
        apply_precompiled(&step->map, s, n, out);
        break;
    case NORM_SENTENCEPIECE:
        apply_sentencepiece(t, step, s, n, out);
        break;
    case NORM_BERT_CLEAN:
        nrd_tok_bert_clean(step, s, n, out);
        break;
    case NORM_STRIP_NONSPACING:
        nrd_tok_strip_nonspacing(s, n, out);
        break;
    }
}

void nrd_tok_normalize(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                       const char **out, size_t *out_n)
{
    for (size_t i = 0; i < t->n_norm; i++) {
        nrd_str *to = &sc->norm[i % 2];
        nrd_str_clear(to);
        apply(t, &t->norm[i], s, n, to);
        sc->no_memory = sc->no_memory || to->no_memory;
        s = nrd_str_cstr(to);
        n = to->len;
    }
    *out = s;
    *out_n = n;
}
