/* SPDX-License-Identifier: Apache-2.0
 * The tokens of a tiktoken file: a line is a token's bytes in base64 and its number. Two neighbours join where their bytes together
 * are a token, the lowest number first; so every way to cut a token in two tokens becomes a merge. */
#include "text/internal.h"

#include "base/base64.h"

#include <stdio.h>

enum { MAX_TOKENS = 1 << 20, MAX_LINE = 1024, MAX_TOKEN = 512, MAX_SURFACE = 4 * MAX_TOKEN };

static nrd_error *bad_line(size_t line, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: %s", line, what);
}

/* Adds one line, "IQ== 0"; the numbers of the lines count up from 0. */
static nrd_error *add_token(nrd_tokenizer *t, const char *s, size_t n, size_t line)
{
    char bytes[MAX_LINE], surface[MAX_SURFACE], number[24];
    size_t n_bytes = 0, n_surface = 0;
    const char *space = memchr(s, ' ', n);

    if (n > MAX_LINE || !space || space == s || !nrd_base64_decode(s, (size_t)(space - s), bytes, &n_bytes) || n_bytes == 0) {
        return bad_line(line, "expected a token in base64 and its number");
    }
    const int len = snprintf(number, sizeof number, "%zu", line - 1);
    if ((size_t)len != n - (size_t)(space + 1 - s) || memcmp(number, space + 1, (size_t)len) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: the number is '%.*s', expected %s", line, (int)(s + n - space - 1), space + 1,
                          number);
    }
    if (n_bytes > MAX_TOKEN || line > MAX_TOKENS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: at most %d tokens of %d bytes", line, (int)MAX_TOKENS, (int)MAX_TOKEN);
    }
    for (size_t i = 0; i < n_bytes; i++) {
        n_surface += nrd_utf8_put(surface + n_surface, nrd_tok_byte_char((uint8_t)bytes[i]));
    }
    return nrd_tok_set(t, (int64_t)line - 1, surface, n_surface, TOK_IN_MODEL);
}

static nrd_error *add_tokens(nrd_tokenizer *t, const char *s, size_t n)
{
    const char *end = s + n;
    for (size_t line = 1; s < end; line++) {
        const char *nl = memchr(s, '\n', (size_t)(end - s)), *stop = nl ? nl : end;
        if (stop > s) {
            NRD_TRY(add_token(t, s, (size_t)(stop - s), line));
        } else if (nl && nl + 1 < end) {
            return bad_line(line, "expected a token in base64 and its number");
        }
        s = nl ? nl + 1 : end;
    }
    return t->n_vocab > 0 ? NULL : bad_line(1, "there are no tokens");
}

typedef struct {
    int32_t left;
    uint32_t at;
} cut;

static int by_left(const void *a, const void *b)
{
    const cut *x = a, *y = b;
    return (x->left > y->left) - (x->left < y->left);
}

static nrd_error *add_merges_of(nrd_tokenizer *t, nrd_tok_text token)
{
    cut cuts[MAX_TOKEN];
    size_t n = 0;

    for (uint32_t at = 1; at < token.n; at++) {
        if (((uint8_t)token.s[at] & 0xc0) == 0x80) {
            continue; /* inside of a character, which stands for a byte */
        }
        const int32_t left = nrd_strmap_get(&t->by_token, t->tokens, token.s, at);
        if (left >= 0 && nrd_strmap_get(&t->by_token, t->tokens, token.s + at, token.n - at) >= 0) {
            cuts[n++] = (cut){left, at};
        }
    }
    if (n) {
        qsort(cuts, n, sizeof *cuts, by_left);
    }
    for (size_t i = 0; i < n; i++) {
        NRD_TRY(nrd_tok_add_merge(t, token.s, cuts[i].at, token.s + cuts[i].at, token.n - cuts[i].at));
    }
    return NULL;
}

bool nrd_tok_is_tiktoken(const char *text, size_t n)
{
    const char *nl = memchr(text, '\n', n < MAX_LINE ? n : MAX_LINE);
    return nl && nl - text > 2 && nl[-1] == '0' && nl[-2] == ' '; /* SentencePiece begins with the byte 10 and a length */
}

nrd_error *nrd_tok_add_tiktoken(nrd_tokenizer *t, const char *text, size_t n)
{
    nrd_tok_dec_step *dec = NULL;

    t->model = MODEL_BPE;
    NRD_TRY(add_tokens(t, text, n));
    NRD_TRY(nrd_tok_index_vocab(t));
    const int32_t n_tokens = t->n_vocab;
    for (int32_t i = 0; i < n_tokens; i++) {
        NRD_TRY(add_merges_of(t, t->tokens[i]));
    }
    t->ignore_merges = true; /* a word that is a token is that token */
    return nrd_tok_new_dec(t, DEC_BYTE_LEVEL, &dec);
}
