/* SPDX-License-Identifier: Apache-2.0
 * A .json file that holds a whole tokenizer: tokenizer.json, or what TensorRT-LLM's
 * generate_xgrammar_tokenizer_info.py writes for guided decoding, an object of
 *   tokenizer_str    the text of a tokenizer.json
 *   stop_token_ids   of which the first ends texts; null: none does
 *   encoded_vocab    the tokens, which tokenizer_str has too: not read */
#include "text/internal.h"

static const nrd_json_limits limits = {.max_bytes = TOK_MAX_FILE_BYTES, .max_depth = 32};

static nrd_error *load_stops(nrd_tokenizer *t, const nrd_json *list)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *item = nrd_json_at(list, i);
        const int64_t id = nrd_json_int(item, -1);
        if (nrd_json_is(item, NRD_JSON_NULL)) {
            continue;
        }
        if (id < 0 || id >= t->n_vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "stop_token_ids[%zu] is not a token id in [0, %d)", i, t->n_vocab);
        }
        t->eos_id = t->eos_id < 0 ? (int32_t)id : t->eos_id;
        nrd_tok_add_stop(t, id);
    }
    return NULL;
}

static nrd_error *load_info(nrd_tokenizer *t, const nrd_json *root, const nrd_json *text)
{
    nrd_json_doc *doc = NULL;

    if (!nrd_json_is(text, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer_str must be a string, the text of a tokenizer.json, got %s",
                          nrd_json_type_name(text));
    }
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, text->str, text->n, &limits), "tokenizer_str"));
    nrd_error *err = nrd_error_wrap(nrd_tok_load_json(t, nrd_json_root(doc)), "tokenizer_str");
    nrd_json_doc_free(doc);
    return err ? err : load_stops(t, nrd_json_get(root, "stop_token_ids"));
}

nrd_error *nrd_tok_load_json_text(nrd_tokenizer *t, const char *text, size_t n)
{
    nrd_json_doc *doc = NULL;

    NRD_TRY(nrd_json_parse(&doc, text, n, &limits));
    const nrd_json *root = nrd_json_root(doc), *inner = nrd_json_get(root, "tokenizer_str");
    nrd_error *err = inner ? load_info(t, root, inner) : nrd_tok_load_json(t, root);
    nrd_json_doc_free(doc);
    return err;
}
