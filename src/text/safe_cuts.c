/* SPDX-License-Identifier: Apache-2.0
 * Where a text can be cut so that its parts become the tokens that the whole does. */
#include "text/internal.h"

#include <string.h>

/* Finds the characters after which some token goes on with U+2581. Everywhere else no token spans
 * the border before a U+2581, so the words on both sides can be encoded, and remembered, alone. */
void nrd_tok_find_safe_cuts(nrd_tokenizer *t)
{
    t->can_split = true;
    for (int32_t id = 0; id < t->n_vocab && t->can_split; id++) {
        const nrd_tok_text *token = &t->tokens[id];
        uint32_t before = 0, cp;
        if (!(t->flags[id] & TOK_IN_MODEL) || (t->flags[id] & (TOK_CONTROL | TOK_BYTE | TOK_OUTPUT))) {
            continue;
        }
        for (size_t i = 0; i < token->n; before = cp) {
            i += nrd_utf8_next(token->s + i, token->n - i, &cp);
            if (cp != 0x2581 || before == 0x2581 || before == 0) {
                continue;
            }
            bool known = false;
            for (size_t k = 0; k < t->n_no_split; k++) {
                known = known || t->no_split[k] == before;
            }
            if (!known && t->n_no_split == sizeof t->no_split / sizeof t->no_split[0]) {
                t->can_split = false;
                return;
            }
            if (!known) {
                t->no_split[t->n_no_split++] = before;
            }
        }
    }
    /* an unknown U+2581 could fuse with unknown neighbours */
    const int32_t space = nrd_strmap_get(&t->by_token, t->tokens, TOK_SPACE, 3);
    t->can_split = space >= 0 && !(t->flags[space] & TOK_OUTPUT);
}

size_t nrd_tok_safe_chunk(const nrd_tokenizer *t, const char *s, size_t n)
{
    size_t i = 0;
    if (!t->can_split) {
        return n;
    }
    while (n - i >= 3 && memcmp(s + i, TOK_SPACE, 3) == 0) {
        i += 3;
    }
    while (i < n) {
        const char *hit = memchr(s + i, (char)0xe2, n - i);
        if (!hit || n - (size_t)(hit - s) < 3) {
            return n;
        }
        i = (size_t)(hit - s);
        if (hit[1] != (char)0x96 || hit[2] != (char)0x81) {
            i++;
            continue;
        }
        size_t at = i;
        bool cut = at > 0;
        if (cut && t->n_no_split) {
            uint32_t before;
            size_t back = at - 1;
            while (back > 0 && ((uint8_t)s[back] & 0xc0) == 0x80) {
                back--;
            }
            nrd_utf8_next(s + back, at - back, &before);
            for (size_t k = 0; k < t->n_no_split; k++) {
                cut = cut && t->no_split[k] != before;
            }
        }
        if (cut) {
            return at;
        }
        while (n - i >= 3 && memcmp(s + i, TOK_SPACE, 3) == 0) {
            i += 3;
        }
    }
    return n;
}
