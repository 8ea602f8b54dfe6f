/* SPDX-License-Identifier: Apache-2.0
 * What an answer is made of, in vLLM's fields: bad_words, which it does not have, and allowed_token_ids, its only tokens. */
#include "frontends/openai/internal.h"
#include "base/limits.h"

enum { MAX_WORDS = NRD_LIMIT_BAD_WORDS, MAX_WORD_IDS = NRD_LIMIT_BAD_WORD_TOKENS };

static nrd_error *wrong_word(const char *why)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "bad_words", "%s", why);
}

/* One spelling of a word. Behind a space it counts where its token is another one and there are as many: a space that is
 * a token of its own would make the phrase match less than the word alone does. */
static nrd_error *add_word(nrd_oai_request *r, const char *s, size_t n, nrd_ids *word)
{
    nrd_ids spaced = {0};
    nrd_str text = {0};
    nrd_error *err;

    NRD_TRY_GOTO(nrd_tokenizer_encode(r->model->tokenizer, s, n, NRD_ENCODE_PARSE_SPECIAL, word), err, done);
    nrd_str_putc(&text, ' ');
    nrd_str_append(&text, s, n);
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    NRD_TRY_GOTO(nrd_tokenizer_encode(r->model->tokenizer, text.data, text.len, NRD_ENCODE_PARSE_SPECIAL, &spaced), err, done);
    if (word->n == 0) {
        err = wrong_word("holds a word that has no token");
        goto done;
    }
    nrd_ids_append(&r->bad_ids, word->ids, word->n);
    nrd_ids_push(&r->bad_ends, (int32_t)r->bad_ids.n);
    if (spaced.n == word->n && spaced.ids[0] != word->ids[0]) {
        nrd_ids_append(&r->bad_ids, spaced.ids, spaced.n);
        nrd_ids_push(&r->bad_ends, (int32_t)r->bad_ids.n);
    }
done:
    nrd_str_fini(&text);
    nrd_ids_fini(&spaced);
    return err;
}

nrd_error *nrd_oai_read_bad_words(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "bad_words");

    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (v->type != NRD_JSON_ARRAY || v->n > MAX_WORDS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "bad_words", "must be a list of at most %d strings", MAX_WORDS);
    }
    if (v->n > 0 && !r->model->bad_words) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "bad_words", "the model has no input bad_words_list");
    }
    for (size_t i = 0; i < v->n; i++) {
        const nrd_json *s = &v->child[i];
        size_t from = 0;
        if (s->type != NRD_JSON_STRING) {
            return wrong_word("must be a list of strings");
        }
        while (from < s->n && s->str[from] == ' ') {
            from++;
        }
        if (from == s->n) {
            return wrong_word("holds an empty word");
        }
        NRD_TRY(nrd_oai_check_prompt(r->model, s->n, "bad_words"));
        nrd_ids word = {0};
        nrd_error *err = add_word(r, s->str + from, s->n - from, &word);
        nrd_ids_fini(&word);
        NRD_TRY(err);
        if (r->bad_ids.n > MAX_WORD_IDS) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "bad_words", "the words have more than %d tokens", MAX_WORD_IDS);
        }
    }
    nrd_error *err = nrd_ids_error(&r->bad_ids);
    return err ? err : nrd_ids_error(&r->bad_ends);
}

nrd_error *nrd_oai_read_allowed(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "allowed_token_ids");
    const int32_t vocab = nrd_tokenizer_vocab_size(r->model->tokenizer);

    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (v->type != NRD_JSON_ARRAY || v->n == 0 || v->n > (size_t)vocab) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "allowed_token_ids", "must be a list of 1 to %d token ids", vocab);
    }
    for (size_t i = 0; i < v->n; i++) {
        const nrd_json *id = &v->child[i];
        if (id->type != NRD_JSON_INT || id->i < 0 || id->i >= vocab) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "allowed_token_ids", "element %zu is no token id of this model", i);
        }
    }
    nrd_json_put(&r->allowed, v, -1);
    return nrd_str_error(&r->allowed);
}
