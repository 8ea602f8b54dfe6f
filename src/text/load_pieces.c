/* SPDX-License-Identifier: Apache-2.0
 * Folders whose SentencePiece file is not the whole vocabulary. The ids of its pieces stand in vocab.json (Marian, M2M100), or are
 * fairseq's (mBART, XLM-RoBERTa). Tokens of languages follow behind, numbered by their order in the files. */
#include "text/internal.h"

#include "base/file.h"

#include <string.h>

static nrd_error *load_words(nrd_tokenizer *t, const nrd_json *words)
{
    for (size_t i = 0; i < nrd_json_len(words); i++) {
        const nrd_json *w = &words->child[i];
        NRD_TRY(nrd_tok_set(t, nrd_json_int(w, -1), w->key, w->key_len, TOK_IN_MODEL | TOK_OUTPUT));
    }
    return nrd_tok_index_vocab(t);
}

/* A special token that no file numbers has the next id. */
static nrd_error *number(nrd_tokenizer *t, const nrd_json *token)
{
    const nrd_json *text = nrd_tok_text_of(token);

    if (!text || text->n == 0 || nrd_strmap_get(&t->by_token, t->tokens, text->str, text->n) >= 0) {
        return NULL;
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const nrd_tok_text *known = &t->tokens[t->added[i].id];
        if (known->n == text->n && !memcmp(known->s, text->str, text->n)) {
            return NULL;
        }
    }
    const int32_t id = t->n_vocab;
    NRD_TRY(nrd_tok_set(t, id, text->str, text->n, 0));
    return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true});
}

/* Languages, and the mask behind them, as tokenizer_config.json or special_tokens_map.json list them. */
static nrd_error *number_rest(nrd_tokenizer *t, const nrd_json *specials, const nrd_json *config)
{
    const nrd_json *const lists[] = {nrd_json_get(specials, "additional_special_tokens"),
                                     nrd_json_get(config, "additional_special_tokens"),
                                     nrd_json_get(config, "extra_special_tokens")};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (size_t k = 0; nrd_json_is(lists[i], NRD_JSON_ARRAY) && k < nrd_json_len(lists[i]); k++) {
            NRD_TRY(number(t, nrd_json_at(lists[i], k)));
        }
    }
    NRD_TRY(number(t, nrd_json_get(specials, "mask_token")));
    return number(t, nrd_json_get(config, "mask_token"));
}

static nrd_error *add_special_tokens(nrd_tokenizer *t, const char *dir, const nrd_json *config)
{
    nrd_json_doc *specials = NULL;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_tok_load_added_tokens(t, dir, config), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "special_tokens_map.json", &specials), err, done);
    err = number_rest(t, nrd_json_root(specials), config);
done:
    nrd_json_doc_free(specials);
    return err;
}

/* vocab.json first: its ids, and those of special tokens, are not free for pieces that it has not. */
static nrd_error *load_with_vocabulary(nrd_tokenizer *t, const char *dir, const nrd_json *words, const nrd_json *config,
                                       const char *spm, size_t n)
{
    NRD_TRY(load_words(t, words));
    NRD_TRY(add_special_tokens(t, dir, config));
    t->n_known = t->n_vocab;
    NRD_TRY(nrd_tok_load_spm(t, spm, n, PIECES_OF_VOCABULARY));
    t->unk_id = nrd_strmap_get(&t->by_token, t->tokens, "<unk>", 5);
    if (t->unk_id < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vocab.json has no <unk>");
    }
    const int32_t eos = nrd_strmap_get(&t->by_token, t->tokens, "</s>", 4);
    return eos < 0 ? nrd_errorf(NRD_ERR_INVALID_ARG, "vocab.json has no </s>") : nrd_tok_set_affix(t, true, &eos, 1);
}

static nrd_error *load_fairseq(nrd_tokenizer *t, const char *dir, const nrd_json *config, const char *spm, size_t n)
{
    const char *class = nrd_json_get_str(config, "tokenizer_class", "");
    const int32_t bos = 0, pad = 1, eos = 2;

    if (!nrd_str_has_prefix(class, "MBart") && !nrd_str_has_prefix(class, "XLMRoberta")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer_class '%s' from sentencepiece.bpe.model is not implemented; save a "
                          "tokenizer.json", class);
    }
    NRD_TRY(nrd_tok_load_spm(t, spm, n, PIECES_OF_FAIRSEQ));
    NRD_TRY(nrd_tok_set(t, pad, "<pad>", 5, TOK_IN_MODEL | TOK_CONTROL));
    NRD_TRY(nrd_tok_add_added(t, &(nrd_tok_added_token){.id = pad, .special = true}));
    NRD_TRY(nrd_tok_index_vocab(t));
    NRD_TRY(add_special_tokens(t, dir, config));
    NRD_TRY(nrd_tok_set_affix(t, false, &bos, class[0] == 'X'));
    return nrd_tok_set_affix(t, true, &eos, 1);
}

nrd_error *nrd_tok_load_pieces(nrd_tokenizer *t, const char *dir, const char *spm)
{
    nrd_json_doc *vocab = NULL, *config = NULL;
    char *path = NULL, *data = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make(&path, dir, spm), err, done);
    NRD_TRY_GOTO(nrd_file_read(&data, &n, path, TOK_MAX_FILE_BYTES), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "vocab.json", &vocab), err, done);
    NRD_TRY_GOTO(nrd_tok_read_json(dir, "tokenizer_config.json", &config), err, done);
    const nrd_json *c = nrd_json_root(config);
    const bool is_marian = !strcmp(spm, "source.spm");
    if (nrd_json_get_bool(c, "separate_vocabs", false)) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer_config.json: 'separate_vocabs' is not supported");
    } else if (vocab) {
        t->languages = is_marian ? LANGUAGES_IN_TEXT : LANGUAGES_FRONT;
        err = load_with_vocabulary(t, dir, nrd_json_root(vocab), c, data, n);
    } else if (is_marian) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "source.spm needs vocab.json beside it");
    } else {
        err = load_fairseq(t, dir, c, data, n);
    }
    err = err ? err : nrd_tok_finish(t);
done:
    nrd_json_doc_free(vocab);
    nrd_json_doc_free(config);
    free(path);
    free(data);
    return err;
}
