/* SPDX-License-Identifier: Apache-2.0
 * The small questions about a tokenizer. */
#include "text/internal.h"

static bool has_token(const nrd_tokenizer *t, int32_t id)
{
    return id >= 0 && id < nrd_tokenizer_vocab_size(t) && (t->flags[id] & TOK_PRESENT);
}

int32_t nrd_tokenizer_vocab_size(const nrd_tokenizer *t)
{
    return t->n_known > 0 ? t->n_known : t->n_vocab;
}

int32_t nrd_tokenizer_bos_id(const nrd_tokenizer *t)
{
    return t->bos_id;
}

int32_t nrd_tokenizer_eos_id(const nrd_tokenizer *t)
{
    return t->eos_id;
}

int32_t nrd_tokenizer_pad_id(const nrd_tokenizer *t)
{
    return t->pad_id;
}

int32_t nrd_tokenizer_unk_id(const nrd_tokenizer *t)
{
    return t->unk_id;
}

bool nrd_tokenizer_is_special(const nrd_tokenizer *t, int32_t id)
{
    return has_token(t, id) && (t->flags[id] & TOK_SPECIAL);
}

int32_t nrd_tokenizer_token_id(const nrd_tokenizer *t, const char *token, size_t n)
{
    int32_t id = nrd_strmap_get(&t->by_added, t->tokens, token, n);
    id = id >= 0 ? id : nrd_strmap_get(&t->by_token, t->tokens, token, n);
    return has_token(t, id) ? id : -1;
}

const char *nrd_tokenizer_token(const nrd_tokenizer *t, int32_t id, size_t *out_n)
{
    bool known = has_token(t, id);
    if (out_n) {
        *out_n = known ? t->tokens[id].n : 0;
    }
    return known ? t->tokens[id].s : NULL;
}

const char *nrd_tokenizer_token_bytes(const nrd_tokenizer *t, int32_t id, size_t *out_n)
{
    bool known = has_token(t, id) && !(t->flags[id] & (TOK_SPECIAL | TOK_CONTROL));
    *out_n = known ? t->bytes[id].n : 0;
    return known ? t->bytes[id].s : "";
}

const char *nrd_tokenizer_kind(const nrd_tokenizer *t)
{
    return t->model == MODEL_UNIGRAM   ? "Unigram"
           : t->model == MODEL_WORDPIECE ? "WordPiece"
           : t->byte_level           ? "byte-level BPE"
           : t->byte_fallback        ? "BPE with byte fallback"
                                     : "BPE";
}

bool nrd_tokenizer_numbers_pictures(const nrd_tokenizer *t)
{
    return t->numbers_pictures;
}

const char *nrd_tokenizer_chat_template(const nrd_tokenizer *t)
{
    return t->chat_template;
}

const char *nrd_tokenizer_tool_template(const nrd_tokenizer *t)
{
    return t->tool_template;
}

const int32_t *nrd_tokenizer_stop_ids(const nrd_tokenizer *t, size_t *out_n)
{
    *out_n = t->stop_ids.n;
    return t->stop_ids.ids;
}
