/* SPDX-License-Identifier: Apache-2.0
 * ByT5 (Xue et al., 2022): a token for each byte, behind <pad>, </s> and <unk>, and then <extra_id_0> and so on. Its folder has no
 * vocabulary, only the name of its class in tokenizer_config.json. */
#include "text/internal.h"

#include <stdio.h>
#include <string.h>

enum { N_BYTES = 256, MAX_EXTRA = 4096 };

static nrd_error *add_special(nrd_tokenizer *t, const char *name, bool strips)
{
    const int32_t id = t->n_vocab;
    NRD_TRY(nrd_tok_set(t, id, name, strlen(name), 0));
    return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true, .lstrip = strips, .rstrip = strips});
}

static nrd_error *load(nrd_tokenizer *t, const nrd_json *config)
{
    static const char *const names[] = {"<pad>", "</s>", "<unk>"};
    const int64_t n_extra = nrd_json_get_int(config, "extra_ids", 125);
    const int32_t eos = 1;
    nrd_tok_dec_step *dec = NULL;
    char text[24];

    if (n_extra < 0 || n_extra > MAX_EXTRA) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer_config.json: 'extra_ids' must be between 0 and %d, got %lld", (int)MAX_EXTRA,
                          (long long)n_extra);
    }
    t->model = MODEL_BPE; /* without merges */
    for (int i = 0; i < 3; i++) {
        NRD_TRY(add_special(t, names[i], true));
    }
    for (int i = 0; i < N_BYTES; i++) {
        const size_t n = nrd_utf8_put(text, nrd_tok_byte_char((uint8_t)i));
        NRD_TRY(nrd_tok_set(t, t->n_vocab, text, n, TOK_IN_MODEL));
    }
    NRD_TRY(nrd_tok_index_vocab(t));
    for (int i = 0; i < n_extra; i++) {
        snprintf(text, sizeof text, "<extra_id_%d>", i);
        NRD_TRY(add_special(t, text, false));
    }
    t->pad_id = 0;
    t->eos_id = eos;
    NRD_TRY(nrd_tok_add_byte_level(t, false, false));
    NRD_TRY(nrd_tok_new_dec(t, DEC_BYTE_LEVEL, &dec));
    NRD_TRY(nrd_tok_set_affix(t, true, &eos, 1));
    return nrd_tok_finish(t);
}

nrd_error *nrd_tok_load_byt5(nrd_tokenizer *t, const char *dir, bool *out_is)
{
    nrd_json_doc *config = NULL;

    NRD_TRY(nrd_tok_read_json(dir, "tokenizer_config.json", &config));
    *out_is = !strcmp(nrd_json_get_str(nrd_json_root(config), "tokenizer_class", ""), "ByT5Tokenizer");
    nrd_error *err = *out_is ? load(t, nrd_json_root(config)) : NULL;
    nrd_json_doc_free(config);
    return err;
}
