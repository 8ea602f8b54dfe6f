/* SPDX-License-Identifier: Apache-2.0
 * The tables of a tokenizer, made once all of it is known. */
#include "text/internal.h"

#include "base/hash.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

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
        nrd_tok_find_safe_cuts(t);
    }
    return fill_added(t);
}
