/* SPDX-License-Identifier: Apache-2.0
 * Texts and token ids side by side, as llama.cpp's clients send prompts. */
#include "frontends/openai/internal.h"

static nrd_error *add_piece(const nrd_oai_model *m, const nrd_json *v, const char *field, uint32_t flags, nrd_ids *out)
{
    const int64_t id = v->type == NRD_JSON_INT ? v->i : -1;
    if (v->type == NRD_JSON_STRING) {
        NRD_TRY(nrd_oai_check_prompt(m, v->n, field));
        return nrd_tokenizer_encode(m->tokenizer, v->str, v->n, flags, out);
    }
    if (id < 0 || id >= nrd_tokenizer_vocab_size(m->tokenizer)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a string, or a list of strings and token ids of this model");
    }
    nrd_ids_push(out, (int32_t)id);
    return nrd_ids_error(out);
}

nrd_error *nrd_oai_mixed_ids(const nrd_oai_model *m, const nrd_json *v, const char *field, uint32_t flags, nrd_ids *out)
{
    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return v ? add_piece(m, v, field, flags, out) : nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "is missing");
    }
    for (size_t i = 0; i < v->n; i++) { /* what comes before a text comes before the first piece only */
        NRD_TRY(add_piece(m, &v->child[i], field, i == 0 ? flags : flags & ~(uint32_t)NRD_ENCODE_ADD_SPECIAL, out));
    }
    return NULL;
}
