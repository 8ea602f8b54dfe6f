/* SPDX-License-Identifier: Apache-2.0
 * WordPiece, and the normalizer of BERT in front of it (Devlin et al., 2018; what it does exactly follows the
 * tokenizers library): the longest token at the beginning of a word, then the longest of those that go on with a
 * word, until its end. A word with a part that no token covers is unknown as a whole. */
#include "text/internal.h"

#include <string.h>

/* Longer words are unknown without being tried. */
static bool is_too_long(const nrd_tokenizer *t, const char *s, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++) {
        chars += ((uint8_t)s[i] & 0xc0) != 0x80;
    }
    return chars > t->max_word_chars;
}

void nrd_tok_wordpiece_encode(const nrd_tokenizer *t, const char *s, size_t n, nrd_ids *out)
{
    const size_t before = out->n;
    bool known = n > 0 && !is_too_long(t, s, n);

    for (size_t at = 0; at < n && known;) {
        int32_t id = -1;
        const size_t len =
            nrd_trie_longest(at ? &t->inner_pieces : &t->pieces, s + at, n - at, &id);
        known = len > 0;
        if (known) {
            nrd_ids_push(out, id);
        }
        at += len;
    }
    if (!known && n > 0) {
        out->n = before;
        nrd_ids_push(out, t->unk_id);
    }
}

nrd_error *nrd_tok_wordpiece_fill(nrd_tokenizer *t)
{
    const size_t mark_n = strlen(t->word_mark);

    if (t->unk_id < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "WordPiece: unk_token is not in the vocabulary");
    }
    NRD_TRY(nrd_trie_init(&t->pieces));
    NRD_TRY(nrd_trie_init(&t->inner_pieces));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const nrd_tok_text *token = &t->tokens[id];
        if (!(t->flags[id] & TOK_IN_MODEL) || token->n == 0) {
            continue;
        }
        NRD_TRY(nrd_trie_add(&t->pieces, token->s, token->n, id));
        if (token->n > mark_n && memcmp(token->s, t->word_mark, mark_n) == 0) {
            NRD_TRY(nrd_trie_add(&t->inner_pieces, token->s + mark_n, token->n - mark_n, id));
        }
    }
    return NULL;
}

/* ---- BERT's normalizer ---- */

static bool is_ideograph(uint32_t c)
{
    static const struct {
        uint32_t from, to;
    } blocks[] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
                  {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (c >= blocks[i].from && c <= blocks[i].to) {
            return true;
        }
    }
    return false;
}

static bool is_dropped(uint32_t c)
{
    return c == 0 || c == 0xfffd || (c != '\t' && c != '\n' && c != '\r' && nrd_uni_is_other(c));
}

void nrd_tok_bert_clean(const nrd_tok_norm_step *step, const char *s, size_t n, nrd_str *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = nrd_utf8_next(s + i, n - i, &c);
        if (step->clean && is_dropped(c)) {
            continue;
        }
        const bool apart = step->split_ideographs && is_ideograph(c);
        if (step->clean && (nrd_uni_class(c) & NRD_UNI_SPACE)) {
            nrd_str_putc(out, ' ');
            continue;
        }
        nrd_str_puts(out, apart ? " " : "");
        nrd_str_append(out, s + i, len);
        nrd_str_puts(out, apart ? " " : "");
    }
}

void nrd_tok_strip_nonspacing(const char *s, size_t n, nrd_str *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = nrd_utf8_next(s + i, n - i, &c);
        if (!nrd_uni_is_nonspacing(c)) {
            nrd_str_append(out, s + i, len);
        }
    }
}

/* ---- from tokens to text ---- */

static void replace_all(const char *s, size_t n, const char *from, const char *to, nrd_str *out)
{
    const size_t from_n = strlen(from);

    for (const char *hit; (hit = memmem(s, n, from, from_n)) != NULL;) {
        nrd_str_append(out, s, (size_t)(hit - s));
        nrd_str_puts(out, to);
        n -= (size_t)(hit - s) + from_n;
        s = hit + from_n;
    }
    nrd_str_append(out, s, n);
}

/* Of a single token, as the tokenizers library does it. */
static void clean_up(nrd_str *text, nrd_str *spare)
{
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (!memmem(nrd_str_cstr(text), text->len, pairs[i][0], strlen(pairs[i][0]))) {
            continue;
        }
        nrd_str_clear(spare);
        replace_all(nrd_str_cstr(text), text->len, pairs[i][0], pairs[i][1], spare);
        nrd_str_clear(text);
        nrd_str_append(text, nrd_str_cstr(spare), spare->len);
        if (spare->no_memory) {
            nrd_str_spoil(text);
        }
    }
}

void nrd_tok_wordpiece_decode(const nrd_tok_dec_step *step, const char *s, size_t n, bool first,
                              nrd_str *out, nrd_str *spare)
{
    const bool goes_on = n >= step->from_n && memcmp(s, step->from, step->from_n) == 0;

    if (!first && goes_on) {
        s += step->from_n;
        n -= step->from_n;
    }
    nrd_str_puts(out, first || goes_on ? "" : " ");
    nrd_str_append(out, s, n);
    if (step->cleanup) {
        clean_up(out, spare);
    }
}
