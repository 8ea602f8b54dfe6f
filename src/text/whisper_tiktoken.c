/* SPDX-License-Identifier: Apache-2.0
 * OpenAI's vocabularies of Whisper, multilingual.tiktoken and gpt2.tiktoken. Behind the file's tokens come those that are no text,
 * in the order of openai/whisper's tokenizer.py. */
#include "text/whisper.h"

#include "base/file.h"
#include "text/internal.h"

#include <stdio.h>

enum { MAX_FILE_BYTES = 16 << 20 };

/* ---- tokens that are no text ---- */

static nrd_error *add_mark(nrd_tokenizer *t, const char *text)
{
    const int32_t id = t->n_vocab;
    NRD_TRY(nrd_tok_set(t, id, text, strlen(text), 0));
    return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true});
}

static nrd_error *add_marks(nrd_tokenizer *t, int32_t n_languages)
{
    static const char *const tasks[] = {"<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
                                        "<|notimestamps|>"};
    char text[24];

    t->eos_id = t->bos_id = t->pad_id = t->n_vocab;
    NRD_TRY(add_mark(t, "<|endoftext|>"));
    NRD_TRY(add_mark(t, "<|startoftranscript|>"));
    for (int32_t i = 0; i < n_languages; i++) {
        snprintf(text, sizeof text, "<|%s|>", nrd_whisper_language_at(i)->code);
        NRD_TRY(add_mark(t, text));
    }
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        NRD_TRY(add_mark(t, tasks[i]));
    }
    for (int i = 0; i <= NRD_WHISPER_STEPS; i++) {
        snprintf(text, sizeof text, "<|%d.%02d|>", i / 50, 2 * (i % 50));
        NRD_TRY(add_mark(t, text));
    }
    return NULL;
}

/* ---- opening ---- */

static nrd_error *load(nrd_tokenizer *t, const char *text, size_t n, int32_t n_languages)
{
    if (n_languages < 1 || n_languages > (int32_t)nrd_whisper_n_languages()) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%d languages, expected 1 to %zu", n_languages, nrd_whisper_n_languages());
    }
    NRD_TRY(nrd_tok_add_tiktoken(t, text, n));
    NRD_TRY(nrd_tok_add_byte_level(t, false, true));
    NRD_TRY(add_marks(t, n_languages));
    return nrd_tok_finish(t);
}

nrd_error *nrd_whisper_tokenizer_open_memory(nrd_tokenizer **out, const char *text, size_t n, int32_t n_languages)
{
    nrd_tokenizer *t = nrd_tok_new();
    *out = NULL;
    if (!t) {
        return nrd_error_no_memory();
    }
    nrd_error *err = load(t, text, n, n_languages);
    if (err) {
        nrd_tokenizer_close(t);
        return err;
    }
    *out = t;
    return NULL;
}

nrd_error *nrd_whisper_tokenizer_open(nrd_tokenizer **out, const char *path, int32_t n_languages)
{
    char *text = NULL;
    size_t n = 0;

    *out = NULL;
    NRD_TRY(nrd_file_read(&text, &n, path, MAX_FILE_BYTES));
    nrd_error *err = nrd_whisper_tokenizer_open_memory(out, text, n, n_languages);
    free(text);
    return nrd_error_wrap(err, "%s", path);
}
