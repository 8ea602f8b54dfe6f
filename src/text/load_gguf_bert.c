/* SPDX-License-Identifier: Apache-2.0
 * The WordPiece tokenizer of a GGUF file with a BERT model. Such files mark the beginnings of words instead of what goes on with
 * one, and say nothing of the normalizer: it is that of BERT, and lowers letters where the vocabulary has no capitals. */
#include "text/internal.h"

#include "base/str.h"
#include "formats/gguf.h"

#include <string.h>

enum { GG_UNKNOWN = 2, GG_CONTROL = 3, GG_USER_DEFINED = 4 }; /* tokenizer.ggml.token_type */

/* Older writers leave marks in brackets as they are and say nothing of their type. */
static bool is_mark(const nrd_gguf_span *s, double type)
{
    return type == GG_UNKNOWN || type == GG_CONTROL || type == GG_USER_DEFINED ||
           (s->n > 2 && s->data[0] == '[' && s->data[s->n - 1] == ']');
}

static nrd_error *set_token(nrd_tokenizer *t, int64_t id, const nrd_gguf_span *s, double type, bool *capitals)
{
    const size_t space = strlen(TOK_SPACE);
    nrd_error *err;

    if (s->n > space && memcmp(s->data, TOK_SPACE, space) == 0) {
        for (size_t i = space; i < s->n; i++) {
            *capitals = *capitals || (s->data[i] >= 'A' && s->data[i] <= 'Z' && s->data[space] != '[');
        }
        return nrd_tok_set(t, id, s->data + space, s->n - space, TOK_IN_MODEL);
    }
    if (is_mark(s, type)) {
        NRD_TRY(nrd_tok_set(t, id, s->data, s->n, type == GG_CONTROL || type == GG_UNKNOWN ? TOK_IN_MODEL | TOK_CONTROL : TOK_IN_MODEL));
        return type == GG_CONTROL || type == GG_UNKNOWN
                   ? nrd_tok_add_added(t, &(nrd_tok_added_token){.id = (int32_t)id, .special = true})
                   : NULL;
    }
    nrd_str inner = {0};
    nrd_str_puts(&inner, t->word_mark);
    nrd_str_append(&inner, s->data, s->n);
    err = nrd_tok_set(t, id, nrd_str_cstr(&inner), inner.len, TOK_IN_MODEL);
    nrd_str_fini(&inner);
    return err;
}

static nrd_error *load_vocab(nrd_tokenizer *t, const nrd_gguf *g, bool *capitals)
{
    const nrd_gguf_value *tokens = nrd_gguf_find(g, "tokenizer.ggml.tokens");
    const nrd_gguf_value *types = nrd_gguf_find(g, "tokenizer.ggml.token_type");
    nrd_gguf_span s;
    double type;

    if (!tokens || tokens->type != NRD_GGUF_ARRAY || tokens->n == 0 || tokens->n > TOK_MAX_ID) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.tokens: expected 1 to %d strings", TOK_MAX_ID);
    }
    for (uint64_t i = 0; i < tokens->n; i++) {
        if (!nrd_gguf_arr_str(tokens, i, &s)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.ggml.tokens[%llu] is no string", (unsigned long long)i);
        }
        if (!types || !nrd_gguf_arr_num(types, i, &type)) {
            type = 0;
        }
        NRD_TRY(set_token(t, (int64_t)i, &s, type, capitals));
    }
    return nrd_tok_index_vocab(t);
}

/* The id of a key, else of a token by its name; -1: there is none. */
static int32_t id_of(const nrd_tokenizer *t, const nrd_gguf *g, const char *key, const char *other, const char *name)
{
    const int64_t id = nrd_gguf_int(g, key, nrd_gguf_int(g, other, -1));
    return id >= 0 && id < t->n_vocab ? (int32_t)id : nrd_strmap_get(&t->by_token, t->tokens, name, strlen(name));
}

static nrd_error *load_steps(nrd_tokenizer *t, bool lower)
{
    nrd_tok_pre_step *pre = NULL;
    nrd_tok_dec_step *dec = NULL;

    NRD_TRY(nrd_tok_add_bert_normalizer(t, true, true, lower, lower));
    NRD_TRY(nrd_tok_new_pre(t, PRE_WHITESPACE_SPLIT, &pre));
    NRD_TRY(nrd_tok_new_pre(t, PRE_PUNCTUATION, &pre));
    pre->behavior = SPLIT_ISOLATED;
    NRD_TRY(nrd_tok_new_dec(t, DEC_WORDPIECE, &dec));
    NRD_TRY(nrd_tok_text_copy(&dec->from, &dec->from_n, t->word_mark, strlen(t->word_mark)));
    dec->cleanup = true;
    return NULL;
}

nrd_error *nrd_tok_load_gguf_bert(nrd_tokenizer *t, const nrd_gguf *g)
{
    bool capitals = false;

    t->model = MODEL_WORDPIECE;
    memcpy(t->word_mark, "##", 3);
    t->max_word_chars = 100;
    NRD_TRY(load_vocab(t, g, &capitals));
    NRD_TRY(load_steps(t, !capitals));
    int32_t cls = id_of(t, g, "tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id", "[CLS]");
    int32_t sep = id_of(t, g, "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id", "[SEP]");
    t->unk_id = id_of(t, g, "tokenizer.ggml.unknown_token_id", "", "[UNK]");
    t->pad_id = id_of(t, g, "tokenizer.ggml.padding_token_id", "", "[PAD]");
    if (cls < 0 || sep < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the tokenizer has no [CLS] or no [SEP]");
    }
    const nrd_ids pair[3] = {{.ids = &cls, .n = 1}, {.ids = &sep, .n = 1}, {.ids = &sep, .n = 1}};
    NRD_TRY(nrd_tok_set_affix(t, false, &cls, 1));
    NRD_TRY(nrd_tok_set_affix(t, true, &sep, 1));
    return nrd_tok_set_pair(t, pair, 1);
}
