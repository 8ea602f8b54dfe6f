/* SPDX-License-Identifier: Apache-2.0
 * The tokenizer in a .nemo archive: a SentencePiece file, or GPT-2's vocabulary and merges. No token is put around a text, as NeMo
 * puts none. Called by tokenizer.c. */
#include "text/internal.h"

#include "formats/nemo.h"

#include <string.h>

/* The file that tokenizer.KEY names. */
static nrd_error *find(const nrd_tar *archive, const nrd_json *tokenizer, const char *key, const nrd_tar_member **out)
{
    *out = nrd_nemo_artifact(archive, nrd_json_get(tokenizer, key));
    if (!*out || (*out)->bytes > TOK_MAX_FILE_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer.%s names '%.200s', expected a file in the archive of at most %zu bytes", key,
                          nrd_json_get_str(tokenizer, key, ""), (size_t)TOK_MAX_FILE_BYTES);
    }
    return NULL;
}

static nrd_error *load_pieces(nrd_tokenizer *t, const nrd_tar *archive, const nrd_json *tokenizer)
{
    const nrd_tar_member *model = NULL;

    NRD_TRY(find(archive, tokenizer, "model", &model));
    NRD_TRY(nrd_error_wrap(nrd_tok_load_spm_bytes(t, model->data, model->bytes), "%.200s", model->name));
    NRD_TRY(nrd_tok_set_affix(t, false, NULL, 0));
    return nrd_tok_set_affix(t, true, NULL, 0);
}

static nrd_error *load_words(nrd_tokenizer *t, const nrd_tar *archive, const nrd_json *tokenizer)
{
    const nrd_tar_member *vocab = NULL, *merges = NULL;
    nrd_json_doc *words = NULL;

    NRD_TRY(find(archive, tokenizer, "vocab_file", &vocab));
    NRD_TRY(find(archive, tokenizer, "merge_file", &merges));
    nrd_error *err = nrd_json_parse(&words, (const char *)vocab->data, vocab->bytes, NULL);
    err = nrd_error_wrap(err, "%.200s", vocab->name);
    err = err ? err : nrd_tok_load_gpt2(t, nrd_json_root(words), (const char *)merges->data, merges->bytes);
    nrd_json_doc_free(words);
    return err;
}

static nrd_error *load(nrd_tokenizer *t, const nrd_tar *archive, const nrd_json *settings)
{
    const nrd_json *tokenizer = nrd_json_get(settings, "tokenizer");
    const char *library = nrd_json_get_str(tokenizer, "library", ""), *type = nrd_json_get_str(tokenizer, "type", "");

    if (!strcmp(library, "sentencepiece")) {
        return load_pieces(t, archive, tokenizer);
    }
    if (!strcmp(library, "megatron") && !strcmp(type, "GPT2BPETokenizer")) {
        return load_words(t, archive, tokenizer);
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer.library is '%.40s' and tokenizer.type '%.120s', whose files the archive does not have; "
                      "known: sentencepiece, and megatron with GPT2BPETokenizer. Give a folder with the tokenizer: --tokenizer_dir",
                      library, type);
}

nrd_error *nrd_tok_load_nemo(nrd_tokenizer *t, const char *path)
{
    nrd_tar *archive = NULL;
    nrd_json_doc *settings = NULL;

    NRD_TRY(nrd_tar_open(&archive, path));
    nrd_error *err = nrd_nemo_settings(&settings, archive);
    err = err ? err : load(t, archive, nrd_json_root(settings));
    nrd_json_doc_free(settings);
    nrd_tar_close(archive);
    return err;
}
