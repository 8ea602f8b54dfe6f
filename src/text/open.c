/* SPDX-License-Identifier: Apache-2.0
 * Opening a tokenizer: which loader reads what lies there. */
#include "text/internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static nrd_error *open_json(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, TOK_MAX_FILE_BYTES));
    nrd_error *err = nrd_tok_load_json_text(t, text, n);
    free(text);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_spm(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *data = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&data, &n, path, TOK_MAX_FILE_BYTES));
    /* GLM-4's tokenizer.model is no SentencePiece file */
    nrd_error *err = nrd_tok_is_tiktoken(data, n) ? nrd_tok_load_tiktoken(t, dir, data, n) : nrd_tok_load_spm_bytes(t, data, n);
    free(data);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_tiktoken(nrd_tokenizer *t, const char *path, const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, TOK_MAX_FILE_BYTES));
    nrd_error *err = nrd_tok_load_tiktoken(t, dir, text, n);
    free(text);
    return err ? nrd_error_wrap(err, "%s", path) : nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_pieces(nrd_tokenizer *t, const char *path, const char *dir)
{
    NRD_TRY(nrd_error_wrap(nrd_tok_load_pieces(t, dir, strrchr(path, '/') + 1), "%s", dir));
    return nrd_tok_load_side_files(t, dir);
}

static nrd_error *open_gguf(nrd_tokenizer *t, const char *path, const char *dir)
{
    (void)dir;
    return nrd_tok_load_gguf(t, path);
}

static nrd_error *open_nemo(nrd_tokenizer *t, const char *path, const char *dir)
{
    (void)dir;
    return nrd_error_wrap(nrd_tok_load_nemo(t, path), "%s", path);
}

/* The folder of the decoder where each part of a model has one (VILA): there is no tokenizer but in it. NULL: it has none. */
static nrd_error *find_decoder(const char *dir, char **out)
{
    nrd_str file = {0};

    nrd_str_printf(&file, "%s/llm/config.json", dir);
    NRD_TRY(nrd_str_error(&file));
    *out = NULL;
    if (nrd_path_exists(file.data)) {
        file.data[file.len - strlen("/config.json")] = '\0';
        *out = nrd_str_steal(&file);
    }
    nrd_str_fini(&file);
    return NULL;
}

static nrd_error *open_folder(nrd_tokenizer *t, const char *dir)
{
    static const struct {
        const char *name;
        nrd_error *(*open)(nrd_tokenizer *, const char *, const char *);
    } kinds[] = {{"tokenizer.json", open_json}, {"tokenizer.model", open_spm}, {"spiece.model", open_spm},
                 {"source.spm", open_pieces}, {"sentencepiece.bpe.model", open_pieces},
                 {"qwen.tiktoken", open_tiktoken}, {"tiktoken.model", open_tiktoken}};
    nrd_error *err = NULL;
    char *path = NULL;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        NRD_TRY(nrd_path_make(&path, dir, kinds[i].name));
        bool exists = nrd_path_exists(path);
        if (exists) {
            err = kinds[i].open(t, path, dir);
        }
        free(path);
        if (exists) {
            return err;
        }
    }
    NRD_TRY(nrd_path_make(&path, dir, "vocab.json"));
    bool exists = nrd_path_exists(path);
    free(path);
    if (!exists && !t->wants_image) {
        NRD_TRY(find_decoder(dir, &path));
        t->wants_image = path != NULL;
        err = path ? open_folder(t, path) : NULL;
        free(path);
        if (t->wants_image) {
            return err;
        }
    }
    if (!exists) {
        bool is_byt5 = false, is_fairseq = false;
        NRD_TRY(nrd_error_wrap(nrd_tok_load_byt5(t, dir, &is_byt5), "%s", dir));
        NRD_TRY(is_byt5 ? NULL : nrd_error_wrap(nrd_tok_load_fairseq(t, dir, &is_fairseq), "%s", dir));
        return is_byt5      ? nrd_tok_load_side_files(t, dir)
               : is_fairseq ? NULL
                       : nrd_errorf(NRD_ERR_NOT_FOUND,
                                    "'%s' holds no tokenizer.json, tokenizer.model, spiece.model, source.spm, "
                                    "sentencepiece.bpe.model, qwen.tiktoken, tiktoken.model or vocab.json", dir);
    }
    NRD_TRY(nrd_error_wrap(nrd_tok_load_vocab_merges(t, dir), "%s", dir));
    return nrd_tok_load_side_files(t, dir);
}

nrd_error *nrd_tokenizer_open(nrd_tokenizer **out, const char *path)
{
    nrd_error *err;
    nrd_tokenizer *t = nrd_tok_new();

    *out = NULL;
    if (!t) {
        return nrd_error_no_memory();
    }
    if (nrd_path_is_dir(path)) {
        err = open_folder(t, path);
    } else {
        char *dir = NULL;
        err = nrd_path_make_dir(&dir, path);
        err = err                                  ? err
              : nrd_str_has_suffix(path, ".gguf")  ? open_gguf(t, path, dir)
              : nrd_str_has_suffix(path, ".nemo")  ? open_nemo(t, path, dir)
              : nrd_str_has_suffix(path, ".model") ? open_spm(t, path, dir)
              : nrd_str_has_suffix(path, ".json")  ? open_json(t, path, dir)
                                                   : nrd_errorf(NRD_ERR_INVALID_ARG,
                                                                "'%s': expected a folder, a .json, "
                                                                ".model, .gguf or .nemo file",
                                                                path);
        free(dir);
    }
    if (!err && t->stop_ids.no_memory) {
        err = nrd_error_no_memory();
    }
    if (err) {
        nrd_tokenizer_close(t);
        return err;
    }
    *out = t;
    return NULL;
}
