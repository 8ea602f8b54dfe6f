/* SPDX-License-Identifier: Apache-2.0
 * Ids to text. One machine for whole sequences and for streams: it holds back what later ids may
 * still change: the bytes of an unfinished character, a run of byte tokens, what may become a match of
 * a Replace behind Fuse. */
#include "text/internal.h"

#include <string.h>

struct nrd_detok {
    const nrd_tokenizer *t;
    uint32_t flags;
    bool started;  /* some token has been taken */
    bool word_ended; /* … the last of which was the end of a word */
    size_t behind; /* the first decoder behind Fuse */
    /* Of decoders behind Fuse: characters that a Strip may still take; bytes at the text's end that begin
     * what a Replace looks for. */
    size_t state[TOK_MAX_STEPS];
    nrd_str held;    /* undecided bytes */
    nrd_str work[2]; /* one token between decoders */
    nrd_str text[2]; /* the same behind Fuse */
};

void nrd_detok_reset(nrd_detok *d)
{
    const nrd_tokenizer *t = d->t;

    d->started = d->word_ended = false;
    d->behind = 0;
    while (d->behind < t->n_dec && t->dec[d->behind].kind != DEC_FUSE) {
        d->behind++;
    }
    for (size_t i = d->behind; i < t->n_dec; i++) {
        d->state[i] = t->dec[i].start; /* 0 but for Strip */
    }
    nrd_str_clear(&d->held);
}

nrd_detok *nrd_detok_new(const nrd_tokenizer *t, uint32_t flags)
{
    nrd_detok *d = calloc(1, sizeof *d);
    if (!d) {
        return NULL;
    }
    d->t = t;
    d->flags = flags;
    nrd_detok_reset(d);
    return d;
}

static void fini(nrd_detok *d)
{
    nrd_str_fini(&d->held);
    for (int i = 0; i < 2; i++) {
        nrd_str_fini(&d->work[i]);
        nrd_str_fini(&d->text[i]);
    }
}

void nrd_detok_free(nrd_detok *d)
{
    if (d) {
        fini(d);
        free(d);
    }
}

/* With `more` to come, the end of `s` that may begin another match is left out; returns its length. */
static size_t replace(const nrd_tok_dec_step *step, const char *s, size_t n, bool more,
                      nrd_str *out)
{
    const char *hit;
    size_t rest = 0;

    while (n && (hit = memmem(s, n, step->from, step->from_n))) {
        nrd_str_append(out, s, (size_t)(hit - s));
        nrd_str_append(out, step->to, step->to_n);
        n -= (size_t)(hit - s) + step->from_n;
        s = hit + step->from_n;
    }
    if (more) {
        rest = n < step->from_n ? n : step->from_n - 1;
        while (rest && memcmp(s + n - rest, step->from, rest) != 0) {
            rest--;
        }
    }
    nrd_str_append(out, s, n - rest);
    return rest;
}

/* Text behind Fuse. */
static void put(nrd_detok *d, const char *s, size_t n, bool more, nrd_str *out)
{
    nrd_str *in = &d->text[0], *to = &d->text[1];

    for (size_t i = d->behind; i < d->t->n_dec; i++) {
        const nrd_tok_dec_step *step = &d->t->dec[i];
        size_t *state = &d->state[i];
        if (step->kind == DEC_STRIP) {
            while (*state && n >= step->from_n && memcmp(s, step->from, step->from_n) == 0) {
                s += step->from_n;
                n -= step->from_n;
                (*state)--;
            }
            *state = n ? 0 : *state;
        } else if (step->kind == DEC_REPLACE) {
            nrd_str_clear(in);
            nrd_str_append(in, step->from, *state);
            nrd_str_append(in, s, n);
            nrd_str_clear(to);
            *state = replace(step, nrd_str_cstr(in), in->len, more, to);
            if (in->no_memory || to->no_memory) {
                nrd_str_spoil(out);
            }
            s = nrd_str_cstr(to);
            n = to->len;
        }
    }
    nrd_str_append(out, s, n);
}

static bool may_continue(const char *s, size_t n, size_t len)
{
    uint8_t lead = (uint8_t)s[0];
    return len == n && lead >= 0xc2 && lead <= 0xf4;
}

/* Gives out the decided part of the held bytes; all of it at the end. */
static void drain(nrd_detok *d, bool end, bool byte_by_byte, nrd_str *out)
{
    const char *s = nrd_str_cstr(&d->held);
    size_t n = d->held.len, at = 0, from = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + at, n - at, &cp);
        if (cp != NRD_UTF8_BAD) {
            at += len;
            continue;
        }
        if (!end && may_continue(s + at, n - at, len)) {
            break;
        }
        put(d, s + from, at - from, true, out);
        put(d, "\xef\xbf\xbd", 3, true, out);
        at += byte_by_byte ? 1 : len;
        from = at;
    }
    put(d, s + from, at - from, true, out);
    if (at > 0) {
        memmove(d->held.data, d->held.data + at, n - at);
        d->held.len = n - at;
        d->held.data[d->held.len] = '\0';
    }
}

static void strip(const nrd_tok_dec_step *step, const char *s, size_t n, nrd_str *out)
{
    for (size_t i = 0; i < step->start && n >= step->from_n; i++) {
        if (memcmp(s, step->from, step->from_n) != 0) {
            break;
        }
        s += step->from_n;
        n -= step->from_n;
    }
    for (size_t i = 0; i < step->stop && n >= step->from_n; i++) {
        if (memcmp(s + n - step->from_n, step->from, step->from_n) != 0) {
            break;
        }
        n -= step->from_n;
    }
    nrd_str_append(out, s, n);
}

/* Runs the steps [from, Fuse) over one token's text and gives it out. */
static void put_token(nrd_detok *d, size_t from, const char *s, size_t n, bool first, nrd_str *out)
{
    const nrd_tokenizer *t = d->t;
    for (size_t i = from, w = 0; i < t->n_dec && t->dec[i].kind != DEC_FUSE; i++) {
        const nrd_tok_dec_step *step = &t->dec[i];
        nrd_str *to = &d->work[w];
        if (step->kind == DEC_BYTE_FALLBACK) {
            continue;
        }
        nrd_str_clear(to);
        if (step->kind == DEC_WORD_END) {
            const bool ends = n >= step->from_n && !memcmp(s + n - step->from_n, step->from, step->from_n);
            nrd_str_puts(to, d->word_ended ? " " : "");
            nrd_str_append(to, s, ends ? n - step->from_n : n);
            d->word_ended = ends;
        } else if (step->kind == DEC_REPLACE) {
            replace(step, s, n, false, to);
        } else if (step->kind == DEC_STRIP) {
            strip(step, s, n, to);
        } else if (step->kind == DEC_WORDPIECE) {
            nrd_tok_wordpiece_decode(step, s, n, first, to, &d->work[1 - w]);
        } else { /* Metaspace: in the first token the marks vanish */
            nrd_tok_dec_step marks = *step;
            char space[] = " ";
            marks.to = space;
            marks.to_n = first && step->prepend != PREPEND_NEVER ? 0 : 1;
            replace(&marks, s, n, false, to);
        }
        if (to->no_memory) {
            nrd_str_spoil(out);
        }
        s = nrd_str_cstr(to);
        n = to->len;
        w = 1 - w;
    }
    put(d, s, n, true, out);
}

static size_t byte_fallback_step(const nrd_tokenizer *t)
{
    for (size_t i = 0; i < t->n_dec; i++) {
        if (t->dec[i].kind == DEC_BYTE_FALLBACK) {
            return i;
        }
    }
    return SIZE_MAX;
}

static bool is_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += nrd_utf8_next(s + i, n - i, &cp);
        if (cp == NRD_UTF8_BAD) {
            return false;
        }
    }
    return true;
}

/* The end of a run of byte tokens: text if the whole run is valid, else one U+FFFD for each byte. */
static void end_run(nrd_detok *d, nrd_str *out)
{
    if (d->held.len == 0) {
        return;
    }
    if (d->t->decode_per_char) {
        drain(d, true, true, out);
        return;
    }
    size_t step = byte_fallback_step(d->t) + 1;
    if (is_valid(d->held.data, d->held.len)) {
        put_token(d, step, d->held.data, d->held.len, false, out);
    } else {
        for (size_t i = 0; i < d->held.len; i++) {
            put_token(d, step, "\xef\xbf\xbd", 3, false, out);
        }
    }
    nrd_str_clear(&d->held);
}

/* Bytes that are not known to be whole characters. */
static void hold(nrd_detok *d, const char *s, size_t n, nrd_str *out)
{
    nrd_str_append(&d->held, s, n);
    if (d->held.no_memory) {
        nrd_str_spoil(out);
    }
}

void nrd_detok_push(nrd_detok *d, int32_t id, nrd_str *out)
{
    const nrd_tokenizer *t = d->t;
    bool first = !d->started;

    if (id < 0 || id >= t->n_vocab || !(t->flags[id] & TOK_PRESENT) ||
        ((d->flags & NRD_DECODE_SKIP_SPECIAL) && (t->flags[id] & TOK_SPECIAL))) {
        return;
    }
    d->started = true;
    if (t->n_dec && t->dec[0].kind == DEC_BYTE_LEVEL) {
        hold(d, t->bytes[id].s, t->bytes[id].n, out);
        drain(d, false, false, out);
        return;
    }
    if ((t->flags[id] & TOK_BYTE) && byte_fallback_step(t) != SIZE_MAX) {
        hold(d, t->bytes[id].s, 1, out);
        if (t->decode_per_char) {
            drain(d, false, true, out);
        }
        return;
    }
    end_run(d, out);
    if (!t->has_decoder && !first) {
        nrd_str_putc(out, ' ');
    }
    if (t->decode_sentencepiece && id == t->unk_id) {
        d->state[d->t->n_dec - 1] = 0;
        put(d, " \xe2\x81\x87 ", 5, true, out); /* SentencePiece's default unk_surface */
    } else {
        put_token(d, 0, t->tokens[id].s, t->tokens[id].n, first, out);
    }
}

void nrd_detok_flush(nrd_detok *d, nrd_str *out)
{
    if (d->t->n_dec && d->t->dec[0].kind == DEC_BYTE_LEVEL) {
        drain(d, true, false, out);
    } else {
        end_run(d, out);
    }
    put(d, "", 0, false, out);
}

void nrd_tokenizer_decode(const nrd_tokenizer *t, const int32_t *ids, size_t n, uint32_t flags,
                          nrd_str *out)
{
    nrd_detok d = {.t = t, .flags = flags};
    nrd_detok_reset(&d);
    for (size_t i = 0; i < n; i++) {
        nrd_detok_push(&d, ids[i], out);
    }
    nrd_detok_flush(&d, out);
    fini(&d);
}
