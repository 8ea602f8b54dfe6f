/* SPDX-License-Identifier: Apache-2.0
 * Putting a tokenizer together: the calls that loaders make, and the tables made at the end. */
#include "text/internal.h"

#include "base/hash.h"

#include <float.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

nrd_error *nrd_tok_text_copy(char **out, size_t *out_n, const char *s, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) {
        return nrd_error_no_memory();
    }
    memcpy(copy, s, n);
    copy[n] = '\0';
    free(*out);
    *out = copy;
    if (out_n) {
        *out_n = n;
    }
    return NULL;
}

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

uint32_t nrd_tok_byte_char(uint8_t byte)
{
    /* Printable bytes stand for themselves, the other 68 for U+0100 onwards (Radford 2019). */
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) {
        return byte;
    }
    if (byte <= 0x20) {
        return 0x100u + byte;
    }
    if (byte <= 0xa0) {
        return 0x121u + (uint32_t)(byte - 0x7f);
    }
    return 0x143;
}

int nrd_tok_char_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff)) {
        return (int)cp;
    }
    if (cp >= 0x100 && cp <= 0x120) {
        return (int)cp - 0x100;
    }
    if (cp >= 0x121 && cp <= 0x142) {
        return (int)cp - 0x121 + 0x7f;
    }
    return cp == 0x143 ? 0xad : -1;
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
    t->by_score = true;
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

/* ---- finishing ---- */

static bool parse_byte_token(const nrd_tok_text *token, uint8_t *out)
{
    static const char digits[] = "0123456789ABCDEF";
    if (token->n != 6 || memcmp(token->s, "<0x", 3) != 0 || token->s[5] != '>') {
        return false;
    }
    const char *hi = memchr(digits, token->s[3], 16), *lo = memchr(digits, token->s[4], 16);
    if (!hi || !lo) {
        return false;
    }
    *out = (uint8_t)((hi - digits) * 16 + (lo - digits));
    return true;
}

/* Byte-level: surface -> raw bytes; false when some character is outside the alphabet. */
static bool unmap_bytes(const nrd_tok_text *token, char *out, uint32_t *out_n)
{
    uint32_t n = 0;
    for (size_t i = 0; i < token->n;) {
        uint32_t cp;
        i += nrd_utf8_next(token->s + i, token->n - i, &cp);
        int byte = cp == NRD_UTF8_BAD ? -1 : nrd_tok_char_byte(cp);
        if (byte < 0) {
            return false;
        }
        out[n++] = (char)byte;
    }
    *out_n = n;
    return true;
}

/* SentencePiece-like: U+2581 reads as a space. */
static uint32_t unmap_spaces(const nrd_tok_text *token, char *out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < token->n;) {
        if (token->n - i >= 3 && memcmp(token->s + i, TOK_SPACE, 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = token->s[i++];
        }
    }
    return n;
}

static nrd_error *fill_bytes(nrd_tokenizer *t)
{
    nrd_error *err = NULL;
    bool decodes_bytes = t->byte_level, byte_tokens = t->byte_fallback;
    for (size_t i = 0; i < t->n_dec; i++) {
        decodes_bytes = decodes_bytes || t->dec[i].kind == DEC_BYTE_LEVEL;
        byte_tokens = byte_tokens || t->dec[i].kind == DEC_BYTE_FALLBACK;
    }
    NRD_NEW_GOTO(t->bytes, (size_t)t->n_vocab, err, fail);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const nrd_tok_text *token = &t->tokens[id];
        nrd_tok_text *raw = &t->bytes[id];
        uint8_t byte;
        *raw = *token;
        if (!(t->flags[id] & TOK_PRESENT) || token->n == 0) {
            continue;
        }
        char *text = nrd_arena_alloc(&t->arena, token->n);
        if (!text) {
            err = nrd_error_no_memory();
            goto fail;
        }
        if (decodes_bytes) {
            if (unmap_bytes(token, text, &raw->n)) {
                raw->s = text;
            }
        } else if (byte_tokens && parse_byte_token(token, &byte)) {
            text[0] = (char)byte;
            *raw = (nrd_tok_text){text, 1};
            t->flags[id] |= TOK_BYTE;
        } else {
            raw->n = unmap_spaces(token, text);
            raw->s = text;
        }
    }
fail:
    return err;
}

static nrd_error *fill_symbols(nrd_tokenizer *t)
{
    nrd_error *err = NULL;
    char text[8];

    t->has_all_bytes = true;
    for (int b = 0; b < 256; b++) {
        size_t n = nrd_utf8_put(text, nrd_tok_byte_char((uint8_t)b));
        if (!t->byte_level) {
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
            n = 6;
        }
        t->byte_ids[b] = nrd_strmap_get(&t->by_token, t->tokens, text, n);
        t->has_all_bytes = t->has_all_bytes && t->byte_ids[b] >= 0;
    }
    if (t->byte_level) {
        NRD_TRY(nrd_strmap_init(&t->by_bytes, (size_t)t->n_vocab));
        for (int32_t id = 0; id < t->n_vocab; id++) {
            if ((t->flags[id] & TOK_IN_MODEL) && t->bytes[id].s != t->tokens[id].s) {
                nrd_strmap_put(&t->by_bytes, t->bytes, id);
            }
        }
        return NULL;
    }
    NRD_NEW_GOTO(t->char_ids, 0x10000, err, fail);
    memset(t->char_ids, 0xff, 0x10000 * sizeof *t->char_ids);
    for (int32_t id = t->n_vocab; id-- > 0;) { /* backwards: the first of equal tokens stays */
        const nrd_tok_text *token = &t->tokens[id];
        uint32_t cp;
        if ((t->flags[id] & TOK_IN_MODEL) && !(t->flags[id] & (TOK_CONTROL | TOK_OUTPUT)) && token->n > 0 &&
            nrd_utf8_next(token->s, token->n, &cp) == token->n && cp < 0x10000) {
            t->char_ids[cp] = id;
        }
    }
fail:
    return err;
}

static nrd_error *fill_pairs(nrd_tokenizer *t)
{
    nrd_error *err = NULL;
    size_t cap = 1024;
    while (cap < t->n_merges * 2) {
        cap *= 2;
    }
    NRD_NEW_GOTO(t->pairs, cap, err, fail);
    memset(t->pairs, 0xff, cap * sizeof *t->pairs);
    t->pair_mask = cap - 1;
    for (size_t i = 0; i < t->n_merges; i++) {
        const nrd_tok_merge *m = &t->merges[i];
        uint64_t key = (uint64_t)(uint32_t)m->left << 32 | (uint32_t)m->right;
        size_t at = (size_t)nrd_hash_mix(key) & t->pair_mask;
        while (t->pairs[at].key != UINT64_MAX && t->pairs[at].key != key) {
            at = (at + 1) & t->pair_mask;
        }
        /* a pair listed twice has the rank of its last line in the reference */
        t->pairs[at] = (nrd_tok_pair_slot){key, m->rank, m->id};
    }
fail:
    return err;
}

/* Finds the characters after which some token goes on with U+2581. Everywhere else no token spans
 * the border before a U+2581, so the words on both sides can be encoded, and remembered, alone. */
static void find_safe_cuts(nrd_tokenizer *t)
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

static nrd_error *fill_unigram(nrd_tokenizer *t)
{
    double min = 0;
    bool any = false;
    t->max_score = (double)FLT_MIN; /* where SentencePiece starts its search for the maximum */
    NRD_TRY(nrd_trie_init(&t->pieces));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if (!(t->flags[id] & TOK_IN_MODEL) || (t->flags[id] & (TOK_CONTROL | TOK_OUTPUT))) {
            continue;
        }
        double score = t->scores ? t->scores[id] : 0;
        if (!(t->flags[id] & (TOK_USER | TOK_BYTE)) || !t->scores_are_float) {
            min = !any || score < min ? score : min;
            t->max_score = score > t->max_score ? score : t->max_score;
            any = true;
        }
        if (t->scores_are_float && (t->flags[id] & TOK_BYTE)) {
            continue;
        }
        NRD_TRY(nrd_trie_add(&t->pieces, t->tokens[id].s, t->tokens[id].n, id));
    }
    t->unk_score = min - 10.0; /* penalty of the reference implementations */
    t->unk_score = t->scores_are_float ? (double)(float)t->unk_score : t->unk_score;
    return NULL;
}

static nrd_error *fill_added(nrd_tokenizer *t)
{
    NRD_TRY(nrd_strmap_init(&t->by_added, t->n_added));
    NRD_TRY(nrd_trie_init(&t->added_raw));
    NRD_TRY(nrd_trie_init(&t->added_norm));
    for (size_t i = 0; i < t->n_added; i++) {
        const nrd_tok_added_token *a = &t->added[i];
        const nrd_tok_text *token = &t->tokens[a->id];
        nrd_strmap_put(&t->by_added, t->tokens, a->id);
        if (token->n == 0) {
            continue;
        }
        if (!a->normalized) {
            NRD_TRY(nrd_trie_add(&t->added_raw, token->s, token->n, (int32_t)i));
            t->has_added_raw = true;
            continue;
        }
        const char *text;
        size_t n;
        if (t->n_norm && t->norm[0].kind == NORM_SENTENCEPIECE) {
            text = token->s; /* user-defined symbols are written in normalized form */
            n = token->n;
        } else {
            nrd_tok_scratch *sc = nrd_tok_scratch_get();
            if (!sc) {
                return nrd_error_no_memory();
            }
            sc->no_memory = false;
            nrd_tok_normalize(t, sc, token->s, token->n, &text, &n);
            if (sc->no_memory) {
                return nrd_error_no_memory();
            }
        }
        if (n > 0) {
            NRD_TRY(nrd_trie_add(&t->added_norm, text, n, (int32_t)i));
            t->has_added_norm = true;
        }
    }
    return NULL;
}

static nrd_error *check_affix(const nrd_tokenizer *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= t->n_vocab || !(t->flags[ids[i]] & TOK_PRESENT)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "the post-processor adds token id %d, which is not in the vocabulary", ids[i]);
        }
    }
    return NULL;
}

/* The word of a picture, which VILA's code gives the first id that is free where the tokenizer does not have it. */
static nrd_error *add_image(nrd_tokenizer *t)
{
    static const char word[] = "<image>";
    const size_t n = sizeof word - 1;
    int32_t id = 0;

    while (id < t->n_vocab && (t->tokens[id].n != n || memcmp(t->tokens[id].s, word, n) != 0)) {
        id++;
    }
    if (id < t->n_vocab && (t->flags[id] & TOK_ADDED)) {
        return NULL;
    }
    NRD_TRY(nrd_tok_set(t, id, word, n, 0));
    return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true});
}

nrd_error *nrd_tok_finish(nrd_tokenizer *t)
{
    if (t->n_vocab == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the vocabulary is empty");
    }
    NRD_TRY(t->wants_image ? add_image(t) : NULL);
    if (t->byte_level && t->model != MODEL_BPE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s with ByteLevel", nrd_tokenizer_kind(t));
    }
    NRD_TRY(check_affix(t, t->prefix, t->n_prefix));
    NRD_TRY(check_affix(t, t->suffix, t->n_suffix));
    for (int i = 0; i < 3; i++) {
        NRD_TRY(check_affix(t, t->pair[i], t->n_pair[i]));
    }
    NRD_TRY(nrd_tok_finish_decoders(t));
    NRD_TRY(nrd_tok_index_vocab(t));
    NRD_TRY(fill_bytes(t));
    NRD_TRY(fill_symbols(t));
    if (t->model == MODEL_BPE) {
        NRD_TRY(fill_pairs(t));
    } else if (t->model == MODEL_WORDPIECE) {
        NRD_TRY(nrd_tok_wordpiece_fill(t));
    } else {
        NRD_TRY(fill_unigram(t));
    }
    if (!t->byte_level) {
        find_safe_cuts(t);
    }
    return fill_added(t);
}
