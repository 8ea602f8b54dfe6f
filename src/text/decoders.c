/* SPDX-License-Identifier: Apache-2.0
 * Which chains of decoders detok.c can run. Those before Fuse see one token at a time, those behind it the whole text,
 * of which a stream has only the beginning. */
#include "base/utf8.h"
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

/* Text whose characters all stand for bytes: ByteLevel's alphabet. */
static bool is_of_bytes(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += nrd_utf8_next(s + i, n - i, &cp);
        if (cp == NRD_UTF8_BAD || nrd_tok_char_byte(cp) < 0) {
            return false;
        }
    }
    return true;
}

/* transformers 4 and 5 write "ByteFallback, Fuse, Replace, ByteLevel" for GGUF files with byte-level vocabularies. There
 * ByteLevel sees the whole text, and what stands before it finds nothing in a text of its alphabet: it can as well map
 * token by token. A text with a character out of the alphabet (of an added token) the reference leaves as it is, "\u0120" for
 * spaces; here the rest of it is mapped. */
static void move_byte_level(nrd_tokenizer *t)
{
    size_t at = 0;
    bool fused = false;

    while (at < t->n_dec && t->dec[at].kind != DEC_BYTE_LEVEL) {
        const nrd_tok_dec_step *d = &t->dec[at++];
        fused = fused || d->kind == DEC_FUSE;
        if (d->kind != DEC_FUSE && d->kind != DEC_BYTE_FALLBACK &&
            (d->kind != DEC_REPLACE || is_of_bytes(d->from, d->from_n))) {
            return; /* to be refused, if there is a ByteLevel behind it */
        }
    }
    if (at == t->n_dec || !fused) {
        return;
    }
    for (size_t i = 0; i < at; i++) {
        free(t->dec[i].from);
        free(t->dec[i].to);
    }
    t->dec[0] = (nrd_tok_dec_step){.kind = DEC_BYTE_LEVEL};
    t->dec[1] = (nrd_tok_dec_step){.kind = DEC_FUSE};
    memmove(t->dec + 2, t->dec + at + 1, (t->n_dec - at - 1) * sizeof t->dec[0]);
    t->n_dec -= at - 1;
}

nrd_error *nrd_tok_finish_decoders(nrd_tokenizer *t)
{
    bool fused = false, bytes = false;

    move_byte_level(t);
    for (size_t i = 0; i < t->n_dec; i++) {
        const nrd_tok_dec_step *d = &t->dec[i];
        if (d->kind == DEC_BYTE_LEVEL && (i > 0 || (t->n_dec > 1 && t->dec[1].kind != DEC_FUSE))) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder ByteLevel in this place");
        }
        if (d->kind == DEC_BYTE_FALLBACK) {
            if (bytes || fused) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder ByteFallback in this place");
            }
            bytes = true;
        }
        if (d->kind == DEC_WORDPIECE && t->n_dec > 1) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder WordPiece together with others");
        }
        if (d->kind == DEC_WORD_END && (bytes || fused)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder BPEDecoder in this place");
        }
        if (d->kind == DEC_METASPACE && (bytes || fused)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder Metaspace in this place");
        }
        if (d->kind == DEC_STRIP && fused && d->stop) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder Strip with stop after Fuse");
        }
        fused = fused || d->kind == DEC_FUSE;
    }
    return NULL;
}
