/* SPDX-License-Identifier: Apache-2.0
 * Made-up prompts, and what those of files have in common with them: see prompts.h. */
#include "tools/load/prompts.h"

#include "base/number.h"
#include "tools/load/prompts_internal.h"

#include <string.h>

enum { MAX_LENGTH = 10000000, DEFAULT_VOCAB = 32000 };

static const char *const words[] =
    {/* one token each, with a space before it, where tokens are English */
     "the",   "of",     "and",    "to",    "in",    "is",     "for",   "that",  "was",   "with",
     "on",    "as",     "it",     "by",    "from",  "at",     "are",   "this",  "be",    "or",
     "an",    "have",   "not",    "we",    "can",   "which",  "were",  "their", "has",   "more",
     "one",   "time",   "people", "work",  "first", "after",  "new",   "world", "water", "house",
     "story", "power",  "light",  "music", "city",  "school", "group", "night", "paper", "point",
     "state", "family", "number", "place", "year",  "day",    "life",  "hand",  "part",  "child",
     "eye",   "week",   "case",   "fact"};
enum { N_WORDS = sizeof words / sizeof *words };

/* ---- lengths ---- */

nrd_error *nrd_lengths_parse(nrd_lengths *out, const char *name, const char *text)
{
    nrd_lengths l = {NRD_LENGTH_FIXED, 0, 0};
    const char *p = text;
    bool is_fine = true;

    if (nrd_str_has_prefix(p, "normal:") || nrd_str_has_prefix(p, "uniform:")) {
        l.kind = *p == 'n' ? NRD_LENGTH_NORMAL : NRD_LENGTH_UNIFORM;
        p = strchr(p, ':') + 1;
    }
    const char *comma = strchr(p, ',');
    char first[32] = "";
    const size_t n = comma ? (size_t)(comma - p) : strlen(p);
    is_fine = n < sizeof first && (comma != NULL) == (l.kind != NRD_LENGTH_FIXED);
    if (is_fine) {
        memcpy(first, p, n);
        is_fine = nrd_parse_f64(first, &l.a) && (!comma || nrd_parse_f64(comma + 1, &l.b));
    }
    if (!is_fine || !(l.a >= 1 && l.a <= MAX_LENGTH && l.b >= 0 && l.b <= MAX_LENGTH) ||
        (l.kind == NRD_LENGTH_UNIFORM && l.b < l.a)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--%s: expected N, normal:MEAN,DEVIATION or uniform:LOW,HIGH with 1 to "
                          "%d tokens, got '%s'",
                          name, MAX_LENGTH, text);
    }
    *out = l;
    return NULL;
}

int32_t nrd_lengths_draw(const nrd_lengths *l, nrd_random *r)
{
    double v = l->a;
    if (l->kind == NRD_LENGTH_NORMAL) {
        v += l->b * nrd_random_normal(r);
    } else if (l->kind == NRD_LENGTH_UNIFORM) {
        v += floor((l->b - l->a + 1) * (1 - nrd_random_unit(r)));
    }
    v = round(v);
    return v < 1 ? 1 : v > MAX_LENGTH ? MAX_LENGTH : (int32_t)v;
}

/* ---- sets ---- */

int32_t nrd_prompt_tokens(const nrd_tokenizer *t, const char *text, size_t n)
{
    if (t) {
        nrd_ids ids = {0};
        nrd_error_free(nrd_tokenizer_encode(t, text, n, 0, &ids));
        const int32_t n_ids = (int32_t)ids.n;
        nrd_ids_fini(&ids);
        return n_ids;
    }
    size_t n_words = 0;
    for (size_t i = 0; i < n; i++) {
        n_words += text[i] > ' ' && (i == 0 || text[i - 1] <= ' ');
    }
    return (int32_t)((double)n_words * 1.3);
}

nrd_error *nrd_prompts_add(nrd_prompts *p, nrd_prompt row)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 256;
        p->v = nrd_xrealloc(p->v, p->cap * sizeof *p->v);
    }
    row.text = nrd_arena_strndup(&p->memory, row.text ? row.text : "", row.n_text);
    row.reference =
        row.reference ? nrd_arena_strndup(&p->memory, row.reference, strlen(row.reference)) : NULL;
    if (row.ids) {
        int32_t *ids = nrd_arena_alloc(&p->memory, (size_t)row.n_in * sizeof *ids);
        if (!ids) {
            return nrd_error_no_memory();
        }
        memcpy(ids, row.ids, (size_t)row.n_in * sizeof *ids);
        row.ids = ids;
    }
    if (!row.text) {
        return nrd_error_no_memory();
    }
    p->v[p->n++] = row;
    return NULL;
}

void nrd_prompts_fini(nrd_prompts *p)
{
    nrd_arena_fini(&p->memory);
    free(p->v);
    *p = (nrd_prompts){0};
}

/* ---- made up ---- */

/* The same tokens again for the same state: that is how groups share a beginning. */
static void put_words(nrd_str *text, nrd_random *r, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        nrd_str_puts(text, text->len ? " " : "");
        nrd_str_puts(text, words[nrd_random_u64(r) % N_WORDS]);
    }
}

/* A word may be more than one token: what is too much is cut off, where the text stays the same. */
static nrd_error *fit(const nrd_tokenizer *t, nrd_str *text, int32_t n, int32_t *out_n)
{
    nrd_ids ids = {0};
    nrd_error *err = nrd_tokenizer_encode(t, nrd_str_cstr(text), text->len, 0, &ids);
    if (!err && ids.n > (size_t)n) {
        nrd_str_clear(text);
        nrd_tokenizer_decode(t, ids.ids, (size_t)n, 0, text);
        ids.n = 0;
        err = nrd_tokenizer_encode(t, nrd_str_cstr(text), text->len, 0, &ids);
    }
    *out_n = (int32_t)ids.n;
    nrd_ids_fini(&ids);
    return err;
}

static nrd_error *make_one(nrd_prompts *p, const nrd_prompts_config *c, nrd_random *r, size_t i,
                           nrd_str *text, nrd_ids *ids)
{
    const int32_t n = nrd_lengths_draw(&c->in, r), n_out = nrd_lengths_draw(&c->out, r);
    const int32_t n_shared = c->prefix_len < n ? c->prefix_len : n;
    const int32_t vocab = c->vocab > 0   ? c->vocab
                          : c->tokenizer ? nrd_tokenizer_vocab_size(c->tokenizer)
                                         : DEFAULT_VOCAB;
    nrd_random group = {
        nrd_hash_u64(c->seed + 1, c->n_prefixes > 0 ? i % (size_t)c->n_prefixes : 0)};
    nrd_prompt row = {.n_in = n, .max_tokens = n_out};

    nrd_str_clear(text);
    ids->n = 0;
    if (c->wants_ids) {
        for (int32_t k = 0; k < n; k++) {
            nrd_ids_push(ids,
                         (int32_t)(nrd_random_u64(k < n_shared ? &group : r) % (uint64_t)vocab));
        }
        row.ids = ids->ids;
        NRD_TRY(nrd_ids_error(ids));
    } else {
        put_words(text, &group, n_shared);
        put_words(text, r, n - n_shared);
        if (c->tokenizer) {
            NRD_TRY(fit(c->tokenizer, text, n, &row.n_in));
        }
        row.text = nrd_str_cstr(text);
        row.n_text = text->len;
    }
    return nrd_prompts_add(p, row);
}

nrd_error *nrd_prompts_make(nrd_prompts *p, const nrd_prompts_config *c)
{
    nrd_random r = {c->seed};
    nrd_str text = {0};
    nrd_ids ids = {0};
    nrd_error *err = NULL;

    for (size_t i = 0; i < c->n && !err; i++) {
        err = make_one(p, c, &r, i, &text, &ids);
    }
    nrd_str_fini(&text);
    nrd_ids_fini(&ids);
    return err;
}
