/* SPDX-License-Identifier: Apache-2.0
 * Pre-tokenizers: text to words. A step either cuts words further, or writes the text anew because
 * it changes characters (Metaspace, ByteLevel's leading space). */
#include "text/internal.h"

#include <string.h>

typedef struct cutter { /* joins matches and gaps into words as the behaviour says */
    nrd_tok_pieces *out;
    nrd_tok_split_kind behavior;
    bool invert, last_match;
    size_t first; /* words of this run start here */
} cutter;

static void emit(cutter *c, size_t start, size_t end, bool match)
{
    nrd_tok_pieces *out = c->out;
    match = match != c->invert;
    if (start == end) {
        return;
    }
    bool has_last = out->n > c->first;
    switch (c->behavior) {
    case SPLIT_ISOLATED:
        nrd_tok_pieces_push(out, start, end);
        break;
    case SPLIT_REMOVED:
        if (!match) {
            nrd_tok_pieces_push(out, start, end);
        }
        break;
    case SPLIT_PREVIOUS: /* a match joins the gap before it */
        if (match && !c->last_match && has_last) {
            out->v[out->n - 1].end = (uint32_t)end;
        } else {
            nrd_tok_pieces_push(out, start, end);
        }
        break;
    case SPLIT_NEXT: /* a gap joins the match before it, unless another match already follows */
        if (!match && c->last_match && has_last) {
            out->v[out->n - 1].end = (uint32_t)end;
        } else {
            nrd_tok_pieces_push(out, start, end);
        }
        break;
    case SPLIT_CONTIGUOUS:
        if (match == c->last_match && has_last) {
            out->v[out->n - 1].end = (uint32_t)end;
        } else {
            nrd_tok_pieces_push(out, start, end);
        }
        break;
    }
    c->last_match = match;
}

static void cut_by_pattern(cutter *c, const nrd_tok_pattern *p, const char *s, size_t start,
                           size_t end)
{
    size_t from = 0, n = end - start, a, b;
    while (nrd_pattern_find(p, s + start, n, from, &a, &b)) {
        emit(c, start + from, start + a, false);
        emit(c, start + a, start + b, true);
        from = b;
    }
    emit(c, start + from, end, false);
}

/* Matches are single characters with a class of `any`. */
static void cut_by_class(cutter *c, uint8_t any, const char *s, size_t start, size_t end)
{
    size_t gap = start;
    for (size_t i = start; i < end;) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + i, end - i, &cp);
        bool hit = (nrd_uni_class(cp) & any) != 0;
        if (any == NRD_UNI_P && cp < 0x80) {
            hit = (nrd_uni_flat[cp] & (NRD_UNI_P | NRD_UNI_S)) != 0; /* ASCII symbols count */
        }
        if (hit) {
            emit(c, gap, i, false);
            emit(c, i, i + len, true);
            gap = i + len;
        }
        i += len;
    }
    emit(c, gap, end, false);
}

/* \w+|[^\w\s]+ */
static void cut_words(nrd_tok_pieces *out, const char *s, size_t start, size_t end)
{
    const uint8_t known = NRD_UNI_WORD | NRD_UNI_SPACE;
    size_t from = start;
    uint8_t kind = NRD_UNI_SPACE;
    for (size_t i = start; i < end;) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + i, end - i, &cp);
        uint8_t c = nrd_uni_class(cp) & known;
        c = c & NRD_UNI_WORD ? NRD_UNI_WORD : c;
        if (c != kind) {
            if (kind != NRD_UNI_SPACE) {
                nrd_tok_pieces_push(out, from, i);
            }
            from = i;
            kind = c;
        }
        i += len;
    }
    if (kind != NRD_UNI_SPACE && from < end) {
        nrd_tok_pieces_push(out, from, end);
    }
}

/* Writes the words of `in` into `text` with U+2581 for spaces and in front; cuts before each. */
static void metaspace(const nrd_tok_pre_step *step, const char *s, const nrd_tok_pieces *in,
                      bool at_start, nrd_str *text, nrd_tok_pieces *out)
{
    const char *mark = step->replacement;
    size_t mark_n = strlen(mark);
    nrd_tok_pattern by_mark = {
        .kind = PATTERN_STRING, .text = (char *)(uintptr_t)mark, .n = mark_n};
    for (size_t i = 0; i < in->n; i++) {
        const char *p = s + in->v[i].start;
        size_t n = in->v[i].end - in->v[i].start, start = text->len;
        bool has_mark = *p == ' ' || (n >= mark_n && memcmp(p, mark, mark_n) == 0);
        bool first = at_start && in->v[i].start == 0;
        nrd_str_reserve(text, n * 3 + 4);
        if (!has_mark && (step->prepend == PREPEND_ALWAYS ||
                          (step->prepend == PREPEND_FIRST && first))) {
            nrd_str_append(text, mark, mark_n);
        }
        for (size_t k = 0; k < n;) {
            const char *hit = memchr(p + k, ' ', n - k);
            size_t plain = hit ? (size_t)(hit - p) - k : n - k;
            nrd_str_append(text, p + k, plain);
            k += plain;
            if (hit) {
                nrd_str_append(text, mark, mark_n);
                k++;
            }
        }
        if (step->split) {
            cutter c = {.out = out, .behavior = SPLIT_NEXT, .first = out->n};
            cut_by_pattern(&c, &by_mark, text->data, start, text->len);
        } else {
            nrd_tok_pieces_push(out, start, text->len);
        }
    }
}

static void byte_level(const nrd_tok_pre_step *step, const char **s, const nrd_tok_pieces *in,
                       nrd_str *text, nrd_tok_pieces *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t start = in->v[i].start, end = in->v[i].end;
        const char *p = *s;
        if (step->add_prefix_space) {
            size_t at = text->len;
            if (p[start] != ' ') {
                nrd_str_putc(text, ' ');
            }
            nrd_str_append(text, p + start, end - start);
            start = at;
            end = text->len;
            p = nrd_str_cstr(text);
        }
        if (!step->use_regex) {
            nrd_tok_pieces_push(out, start, end);
            continue;
        }
        while (start < end) {
            size_t len = nrd_pattern_gpt2(p + start, end - start);
            nrd_tok_pieces_push(out, start, start + len);
            start += len;
        }
    }
    if (step->add_prefix_space) {
        *s = nrd_str_cstr(text);
    }
}

static void cut(const nrd_tok_pre_step *step, const char *s, const nrd_tok_pieces *in,
                nrd_tok_pieces *out)
{
    cutter c = {.out = out, .behavior = step->behavior, .invert = step->invert};
    if (step->kind == PRE_DIGITS) {
        c.behavior = step->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    } else if (step->kind == PRE_WHITESPACE_SPLIT) {
        c.behavior = SPLIT_REMOVED;
    }
    for (size_t i = 0; i < in->n; i++) {
        size_t start = in->v[i].start, end = in->v[i].end;
        c.first = out->n;
        c.last_match = false;
        switch (step->kind) {
        case PRE_DIGITS:
            cut_by_class(&c, NRD_UNI_N, s, start, end);
            break;
        case PRE_WHITESPACE_SPLIT:
            cut_by_class(&c, NRD_UNI_SPACE, s, start, end);
            break;
        case PRE_PUNCTUATION:
            cut_by_class(&c, NRD_UNI_P, s, start, end);
            break;
        case PRE_WHITESPACE:
            cut_words(out, s, start, end);
            break;
        default:
            cut_by_pattern(&c, &step->pat, s, start, end);
            break;
        }
    }
}

void nrd_tok_pretokenize(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char **text, size_t *n,
                         bool at_start, nrd_tok_pieces **out)
{
    nrd_tok_pieces *in = &sc->cut[0], *to = &sc->cut[1];
    in->n = 0;
    in->no_memory = to->no_memory = false;
    if (*n) {
        nrd_tok_pieces_push(in, 0, *n);
    }
    for (size_t i = 0; i < t->n_pre && !sc->no_memory; i++) {
        const nrd_tok_pre_step *step = &t->pre[i];
        nrd_str *fresh = &sc->pre[i % 2];
        to->n = 0;
        nrd_str_clear(fresh);
        if (step->kind == PRE_METASPACE) {
            metaspace(step, *text, in, at_start, fresh, to);
            *text = nrd_str_cstr(fresh);
            *n = fresh->len;
        } else if (step->kind == PRE_BYTE_LEVEL) {
            byte_level(step, text, in, fresh, to);
        } else {
            cut(step, *text, in, to);
        }
        sc->no_memory = sc->no_memory || fresh->no_memory || in->no_memory || to->no_memory;
        nrd_tok_pieces *swap = in;
        in = to;
        to = swap;
    }
    sc->no_memory = sc->no_memory || in->no_memory;
    *out = in;
}
