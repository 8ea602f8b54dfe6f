/* SPDX-License-Identifier: Apache-2.0
 * The tokens as a tree of their bytes, laid out in the order of a walk, so that a walk reads memory
 * forwards and skips what a dead beginning begins in one step. */
#include "guided/internal.h"

#include "base/utf8.h"

#include <string.h>

typedef struct token {
    int32_t id;
    const char *s;
    uint16_t n;
} token;

enum { MAX_TOKEN_BYTES = 512, MAX_EQUAL = 255 }; /* of tokens with the same bytes the first ones */

static int by_bytes(const void *a, const void *b)
{
    const token *x = a, *y = b;
    int n = x->n < y->n ? x->n : y->n, c = memcmp(x->s, y->s, (size_t)n);
    return c ? c : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

static uint16_t shared_bytes(const token *x, const token *y)
{
    uint16_t n = 0;
    while (n < x->n && n < y->n && x->s[n] == y->s[n]) {
        n++;
    }
    return n;
}

/* Every open node, one a depth, ends where a token begins that does not share it. */
static void close_nodes(trie *t, const uint32_t *open, uint16_t from, uint16_t to, uint32_t n_ids)
{
    for (uint16_t d = to; d < from; d++) {
        t->ends[open[d]] = (trie_end){t->n_nodes, n_ids};
    }
}

static void fill_tree(trie *t, const token *sorted, size_t n_sorted)
{
    uint32_t open[MAX_TOKEN_BYTES], n_ids = 0;
    uint16_t depth = 0;
    for (size_t i = 0; i < n_sorted; i++) {
        const token *x = &sorted[i];
        uint16_t same = i > 0 ? shared_bytes(x, &sorted[i - 1]) : 0;
        close_nodes(t, open, depth, same, n_ids);
        for (depth = same; depth < x->n; depth++) {
            open[depth] = t->n_nodes;
            t->nodes[t->n_nodes++] = (trie_node){.byte = (uint8_t)x->s[depth], .depth = depth};
        }
        trie_node *node = &t->nodes[open[depth - 1]];
        if (node->n_tokens < MAX_EQUAL) {
            node->n_tokens++;
            t->ids[n_ids++] = x->id;
        }
    }
    close_nodes(t, open, depth, 0, n_ids);
}

static nrd_error *build_tree(trie *t, const token *sorted, size_t n_sorted)
{
    nrd_error *err = NULL;
    size_t n_nodes = 0;
    for (size_t i = 0; i < n_sorted; i++) {
        n_nodes += (size_t)(sorted[i].n - (i > 0 ? shared_bytes(&sorted[i], &sorted[i - 1]) : 0));
    }
    if (n_nodes > UINT32_MAX / 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the vocabulary's tokens are too long");
    }
    NRD_NEW_GOTO(t->nodes, n_nodes, err, fail);
    NRD_NEW_GOTO(t->ends, n_nodes, err, fail);
    NRD_NEW_GOTO(t->ids, n_sorted, err, fail);
    fill_tree(t, sorted, n_sorted);
fail:
    return err;
}

/* How many characters, all of them plain; 0: not so, or too many. */
static uint32_t plain_chars(const token *t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t->n; n++) {
        uint8_t c = (uint8_t)t->s[i];
        if (c < 0x80) {
            if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
                return 0;
            }
            i++;
            continue;
        }
        uint32_t cp;
        i += nrd_utf8_next(t->s + i, t->n - i, &cp);
        if (cp == NRD_UTF8_BAD) {
            return 0;
        }
    }
    return n <= PLAIN_CHARS ? n : 0;
}

/* Masks of the plain tokens; moves the others to the front of `sorted`, in their order. */
static nrd_error *take_plain(nrd_guide_vocab *v, token *sorted, size_t n_sorted, size_t *out_rest)
{
    nrd_error *err = NULL;
    size_t words = ((size_t)v->n_tokens + 31) / 32, rest = 0;
    for (size_t i = 0; i <= PLAIN_CHARS; i++) {
        NRD_NEW_GOTO(v->plain[i], words, err, fail);
    }
    for (size_t i = 0; i < n_sorted; i++) {
        uint32_t n = plain_chars(&sorted[i]);
        if (n == 0) {
            sorted[rest++] = sorted[i];
        } else {
            v->plain[n][sorted[i].id / 32] |= 1u << (sorted[i].id % 32);
        }
    }
    for (size_t i = 1; i <= PLAIN_CHARS; i++) {
        for (size_t w = 0; w < words; w++) {
            v->plain[i][w] |= v->plain[i - 1][w];
        }
    }
    *out_rest = rest;
fail:
    return err;
}

nrd_error *nrd_guide_vocab_new(nrd_guide_vocab **out, int32_t n_tokens,
                               const char *(*get)(void *user, int32_t id, size_t *out_n), void *user)
{
    nrd_error *err = NULL;
    nrd_guide_vocab *v = NULL;
    token *sorted = NULL;
    size_t total = 0, n, n_sorted = 0, n_rest = 0;

    *out = NULL;
    NRD_NEW_GOTO(v, 1, err, fail);
    v->n_tokens = n_tokens;
    NRD_NEW_GOTO(sorted, n_tokens, err, fail);
    NRD_NEW_GOTO(v->bytes, n_tokens, err, fail);
    NRD_NEW_GOTO(v->lengths, n_tokens, err, fail);
    for (int32_t i = 0; i < n_tokens; i++) {
        n = 0;
        if (get(user, i, &n) && n <= MAX_TOKEN_BYTES) {
            total += n;
        }
    }
    NRD_NEW_GOTO(v->mem, total, err, fail);
    total = 0;
    for (int32_t i = 0; i < n_tokens; i++) {
        n = 0;
        const char *s = get(user, i, &n);
        if (s && n > 0 && n <= MAX_TOKEN_BYTES) {
            memcpy(v->mem + total, s, n);
            v->bytes[i] = v->mem + total;
            v->lengths[i] = (uint16_t)n;
            v->longest = n > v->longest ? (uint16_t)n : v->longest;
            sorted[n_sorted++] = (token){i, v->bytes[i], (uint16_t)n};
            total += n;
        }
    }
    if (n_sorted > 1) {
        qsort(sorted, n_sorted, sizeof *sorted, by_bytes);
    }
    NRD_TRY_GOTO(build_tree(&v->all, sorted, n_sorted), err, fail);
    NRD_TRY_GOTO(take_plain(v, sorted, n_sorted, &n_rest), err, fail);
    NRD_TRY_GOTO(build_tree(&v->rest, sorted, n_rest), err, fail);
    free(sorted);
    *out = v;
    return NULL;

fail:
    free(sorted);
    nrd_guide_vocab_free(v);
    return err;
}

void nrd_guide_vocab_set_encode(nrd_guide_vocab *v, nrd_guide_encode encode, void *user)
{
    v->encode = encode;
    v->user = user;
}

void nrd_guide_vocab_free(nrd_guide_vocab *v)
{
    if (v) {
        trie *tries[] = {&v->all, &v->rest};
        for (int i = 0; i < 2; i++) {
            free(tries[i]->nodes);
            free(tries[i]->ends);
            free(tries[i]->ids);
        }
        for (int i = 0; i <= PLAIN_CHARS; i++) {
            free(v->plain[i]);
        }
        free((void *)v->bytes);
        free(v->lengths);
        free(v->mem);
        free(v);
    }
}
