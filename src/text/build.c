/* SPDX-License-Identifier: Apache-2.0
 * Putting a tokenizer together: the calls that loaders make; finish.c makes its tables at the end. */
#include "text/internal.h"

#include <stdatomic.h>
#include <string.h>

nrd_tokenizer *nrd_tok_new(void)
{
    static atomic_uint serials;
    nrd_tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        return NULL;
    }
    nrd_uni_init();
    do {
        t->serial = atomic_fetch_add(&serials, 1) + 1;
    } while (t->serial == 0);
    nrd_arena_init(&t->arena);
    t->bos_id = t->eos_id = t->pad_id = t->unk_id = t->start_id = -1;
    for (int i = 0; i < TOK_N_FIM; i++) {
        t->fim[i] = -1;
    }
    return t;
}

void nrd_tokenizer_close(nrd_tokenizer *t)
{
    if (!t) {
        return;
    }
    nrd_arena_fini(&t->arena);
    free(t->tokens);
    free(t->bytes);
    free(t->flags);
    free(t->scores);
    nrd_strmap_fini(&t->by_token);
    nrd_strmap_fini(&t->by_added);
    nrd_strmap_fini(&t->by_bytes);
    free(t->added);
    nrd_trie_fini(&t->added_raw);
    nrd_trie_fini(&t->added_norm);
    nrd_trie_fini(&t->pieces);
    nrd_trie_fini(&t->inner_pieces);
    for (size_t i = 0; i < t->n_norm; i++) {
        nrd_pattern_fini(&t->norm[i].pat);
        free(t->norm[i].content);
        free(t->norm[i].map.blob);
        free(t->norm[i].map.units);
    }
    for (size_t i = 0; i < t->n_pre; i++) {
        nrd_pattern_fini(&t->pre[i].pat);
    }
    for (size_t i = 0; i < t->n_dec; i++) {
        free(t->dec[i].from);
        free(t->dec[i].to);
    }
    free(t->merges);
    free(t->pairs);
    free(t->char_ids);
    free(t->prefix);
    free(t->suffix);
    for (int i = 0; i < 3; i++) {
        free(t->pair[i]);
    }
    free(t->chat_template);
    free(t->tool_template);
    nrd_ids_fini(&t->stop_ids);
    free(t);
}

/* Makes room for `cap` elements; the new ones are zero. NULL: no memory, and the array is as it was. */
static void *grow_zeroed(void *array, size_t size, int32_t had, int32_t cap)
{
    char *grown = realloc(array, (size_t)cap * size);
    if (grown) {
        memset(grown + (size_t)had * size, 0, (size_t)(cap - had) * size);
    }
    return grown;
}

static nrd_error *reserve_vocab(nrd_tokenizer *t, int32_t id)
{
    if (id >= t->cap_vocab) {
        int32_t cap = t->cap_vocab ? t->cap_vocab : 4096;
        while (cap <= id) {
            cap *= 2;
        }
        nrd_tok_text *tokens = grow_zeroed(t->tokens, sizeof *tokens, t->cap_vocab, cap);
        t->tokens = tokens ? tokens : t->tokens;
        uint8_t *flags = grow_zeroed(t->flags, sizeof *flags, t->cap_vocab, cap);
        t->flags = flags ? flags : t->flags;
        double *scores = t->scores ? grow_zeroed(t->scores, sizeof *scores, t->cap_vocab, cap) : NULL;
        const bool lacks_scores = t->scores && !scores;
        t->scores = scores ? scores : t->scores;
        if (!tokens || !flags || lacks_scores) {
            return nrd_error_no_memory();
        }
        t->cap_vocab = cap;
    }
    return NULL;
}

nrd_error *nrd_tok_set(nrd_tokenizer *t, int64_t id, const char *s, size_t n, uint8_t flags)
{
    if (id < 0 || id >= TOK_MAX_ID) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "token id %lld is not in [0, %d)", (long long)id,
                          TOK_MAX_ID);
    }
    if (n > TOK_MAX_TOKEN_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "token %lld has %zu bytes, the limit is %d",
                          (long long)id, n, TOK_MAX_TOKEN_BYTES);
    }
    NRD_TRY(reserve_vocab(t, (int32_t)id));
    nrd_tok_text *token = &t->tokens[id];
    if (!token->s || token->n != n || memcmp(token->s, s, n) != 0) {
        if ((t->flags[id] & TOK_IN_MODEL) && (flags & TOK_IN_MODEL)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "token id %lld is used twice, by '%s' and '%.*s'",
                              (long long)id, token->s, (int)n, s);
        }
        token->s = nrd_arena_strndup(&t->arena, s, n);
        token->n = (uint32_t)n;
        if (!token->s) {
            return nrd_error_no_memory();
        }
    }
    t->flags[id] |= (uint8_t)(flags | TOK_PRESENT);
    if (id >= t->n_vocab) {
        t->n_vocab = (int32_t)id + 1;
    }
    return NULL;
}

nrd_error *nrd_tok_set_score(nrd_tokenizer *t, int32_t id, double score)
{
    if (!t->scores) {
        nrd_error *err = NULL;
        NRD_NEW_GOTO(t->scores, t->cap_vocab, err, fail);
        goto set;
    fail:
        return err;
    }
set:
    t->scores[id] = score;
    return NULL;
}

nrd_error *nrd_tok_add_added(nrd_tokenizer *t, const nrd_tok_added_token *a)
{
    nrd_tok_added_token *grown = realloc(t->added, (t->n_added + 1) * sizeof *grown);
    if (!grown) {
        return nrd_error_no_memory();
    }
    t->added = grown;
    t->added[t->n_added++] = *a;
    t->flags[a->id] |= (uint8_t)(TOK_ADDED | (a->special ? TOK_SPECIAL : 0));
    return NULL;
}

nrd_error *nrd_tok_index_vocab(nrd_tokenizer *t)
{
    nrd_strmap_fini(&t->by_token);
    NRD_TRY(nrd_strmap_init(&t->by_token, (size_t)t->n_vocab));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if (t->flags[id] & TOK_IN_MODEL) {
            nrd_strmap_put(&t->by_token, t->tokens, id);
        }
    }
    return NULL;
}

static nrd_error *push_merge(nrd_tokenizer *t, nrd_tok_merge m)
{
    if (t->n_merges == t->cap_merges) {
        size_t cap = t->cap_merges ? t->cap_merges * 2 : 4096;
        nrd_tok_merge *grown = realloc(t->merges, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        t->merges = grown;
        t->cap_merges = cap;
    }
    t->merges[t->n_merges++] = m;
    return NULL;
}

nrd_error *nrd_tok_add_merge(nrd_tokenizer *t, const char *l, size_t ln, const char *r, size_t rn)
{
    char joined[512];
    char *text = joined, *heap = NULL;
    nrd_tok_merge m = {.rank = (uint32_t)t->n_merges};

    if (ln > TOK_MAX_TOKEN_BYTES || rn > TOK_MAX_TOKEN_BYTES || t->n_merges >= TOK_MAX_ID * 4) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "merge %zu is over the limits", t->n_merges);
    }
    if (ln + rn > sizeof joined) {
        text = heap = malloc(ln + rn);
    }
    if (!text) {
        return nrd_error_no_memory();
    }
    memcpy(text, l, ln);
    memcpy(text + ln, r, rn);
    m.left = nrd_strmap_get(&t->by_token, t->tokens, l, ln);
    m.right = nrd_strmap_get(&t->by_token, t->tokens, r, rn);
    m.id = nrd_strmap_get(&t->by_token, t->tokens, text, ln + rn);
    nrd_error *err = NULL;
    if (m.left < 0 || m.right < 0 || m.id < 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "merge %zu: '%.*s' + '%.*s' needs a token that is not in the vocabulary",
                         t->n_merges, (int)ln, l, (int)rn, r);
    } else {
        err = push_merge(t, m);
    }
    free(heap);
    return err;
}

/* SentencePiece keeps no merge list: any two neighbours whose concatenation is a piece may merge,
 * the piece with the best score first. The list is made here, rank = place of the score. */
struct scored {
    double score;
    int32_t id;
};

static int by_score_desc(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static int32_t mergeable(const nrd_tokenizer *t, const char *s, size_t n)
{
    int32_t id = nrd_strmap_get(&t->by_token, t->tokens, s, n);
    return id >= 0 && (t->flags[id] & (TOK_CONTROL | TOK_BYTE | TOK_OUTPUT)) ? -1 : id;
}

nrd_error *nrd_tok_merges_from_scores(nrd_tokenizer *t)
{
    nrd_error *err = NULL;
    struct scored *order = NULL;
    size_t n = 0;
    uint32_t rank = 0;

    NRD_NEW_GOTO(order, (size_t)t->n_vocab, err, fail);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if ((t->flags[id] & TOK_IN_MODEL) && !(t->flags[id] & (TOK_CONTROL | TOK_BYTE | TOK_OUTPUT))) {
            order[n++] = (struct scored){t->scores ? t->scores[id] : 0, id};
        }
    }
    qsort(order, n, sizeof *order, by_score_desc);
    for (size_t i = 0; i < n; i++) {
        const nrd_tok_text *token = &t->tokens[order[i].id];
        rank += i > 0 && order[i].score != order[i - 1].score;
        for (size_t cut = 1; cut < token->n; cut++) {
            if (((uint8_t)token->s[cut] & 0xc0) == 0x80) {
                continue; /* not between characters */
            }
            nrd_tok_merge m = {.id = order[i].id, .rank = rank};
            m.left = mergeable(t, token->s, cut);
            if (m.left < 0) {
                continue;
            }
            m.right = mergeable(t, token->s + cut, token->n - cut);
            if (m.right >= 0) {
                NRD_TRY_GOTO(push_merge(t, m), err, fail);
            }
        }
    }
fail:
    free(order);
    return err;
}

#define NEW_STEP(t, array, count, what, out)                                                       \
    do {                                                                                           \
        if ((t)->count == TOK_MAX_STEPS) {                                                         \
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "more than %d " what, TOK_MAX_STEPS);           \
        }                                                                                          \
        *(out) = &(t)->array[(t)->count++];                                                        \
        (*(out))->kind = kind;                                                                     \
    } while (0)

nrd_error *nrd_tok_new_norm(nrd_tokenizer *t, nrd_tok_norm_kind kind, nrd_tok_norm_step **out)
{
    NEW_STEP(t, norm, n_norm, "normalizers", out);
    return NULL;
}

nrd_error *nrd_tok_new_pre(nrd_tokenizer *t, nrd_tok_pre_kind kind, nrd_tok_pre_step **out)
{
    *out = NULL;
    if (t->n_pre && t->pre[t->n_pre - 1].kind == PRE_BYTE_LEVEL) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a pre-tokenizer after ByteLevel");
    }
    NEW_STEP(t, pre, n_pre, "pre-tokenizers", out);
    return NULL;
}

nrd_error *nrd_tok_new_dec(nrd_tokenizer *t, nrd_tok_dec_kind kind, nrd_tok_dec_step **out)
{
    t->has_decoder = true;
    NEW_STEP(t, dec, n_dec, "decoders", out);
    return NULL;
}

nrd_error *nrd_tok_add_replace(nrd_tokenizer *t, bool regex, const char *from, const char *to)
{
    nrd_tok_norm_step *step = NULL;
    NRD_TRY(nrd_tok_new_norm(t, NORM_REPLACE, &step));
    NRD_TRY(nrd_tok_text_copy(&step->content, &step->content_n, to, strlen(to)));
    return nrd_pattern_init(&step->pat, regex, from, strlen(from));
}

nrd_error *nrd_tok_add_split(nrd_tokenizer *t, bool regex, const char *text, size_t n,
                             nrd_tok_split_kind behavior, bool invert)
{
    nrd_tok_pre_step *step = NULL;
    NRD_TRY(nrd_tok_new_pre(t, PRE_SPLIT, &step));
    step->behavior = behavior;
    step->invert = invert;
    return nrd_pattern_init(&step->pat, regex, text, n);
}

nrd_error *nrd_tok_add_byte_level(nrd_tokenizer *t, bool add_prefix_space, bool use_regex)
{
    nrd_tok_pre_step *step = NULL;
    NRD_TRY(nrd_tok_new_pre(t, PRE_BYTE_LEVEL, &step));
    step->add_prefix_space = add_prefix_space;
    step->use_regex = use_regex;
    t->byte_level = true;
    return NULL;
}

nrd_error *nrd_tok_set_affix(nrd_tokenizer *t, bool suffix, const int32_t *ids, size_t n)
{
    nrd_error *err = NULL;
    int32_t *copy;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= TOK_MAX_ID) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "the post-processor adds token id %d", ids[i]);
        }
    }
    NRD_NEW_GOTO(copy, n, err, fail);
    if (n) {
        memcpy(copy, ids, n * sizeof *ids);
    }
    free(suffix ? t->suffix : t->prefix);
    *(suffix ? &t->suffix : &t->prefix) = copy;
    *(suffix ? &t->n_suffix : &t->n_prefix) = n;
fail:
    return err;
}

void nrd_tok_add_stop(nrd_tokenizer *t, int64_t id)
{
    if (id < 0 || id >= t->n_vocab || id == t->eos_id) {
        return;
    }
    for (size_t i = 0; i < t->stop_ids.n; i++) {
        if (t->stop_ids.ids[i] == id) {
            return;
        }
    }
    nrd_ids_push(&t->stop_ids, (int32_t)id);
}
