/* SPDX-License-Identifier: Apache-2.0
 * Tokens for filling in the middle: where a tokenizer's files name them, and by which names families know
 * them.
 * Sources  Efficient training of language models to fill in the middle (Bavarian et al., 2022); the model
 *          cards of StarCoder, Qwen2.5-Coder, CodeGemma, DeepSeek-Coder, CodeLlama, Codestral, GLM-4. */
#include "text/internal.h"

#include <string.h>

const char *const nrd_tok_fim_keys[TOK_N_FIM] = {"prefix_token", "suffix_token", "middle_token"};

void nrd_tok_take_fim_gguf(nrd_tokenizer *t, const nrd_gguf *g)
{
    /* files before 2024-10 have the shorter names */
    static const char *const keys[][2] = {
        {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
        {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
        {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"}};
    for (int i = 0; i < TOK_N_FIM; i++) {
        for (int k = 0; k < 2 && t->fim[i] < 0; k++) {
            const int64_t id = nrd_gguf_int(g, keys[i][k], -1);
            t->fim[i] = id >= 0 && id < t->n_vocab ? (int32_t)id : -1;
        }
    }
}

static int32_t find(const nrd_tokenizer *t, const char *name)
{
    return nrd_tokenizer_token_id(t, name, strlen(name));
}

static int32_t first_of(const nrd_tokenizer *t, const char *const *names)
{
    int32_t id = -1;
    while (*names && id < 0) {
        id = find(t, *names++);
    }
    return id;
}

static bool find_parts(const nrd_tokenizer *t, nrd_fim_tokens *out)
{
    static const char *const families[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
        {"<\xef\xbd\x9c" "fim\xe2\x96\x81" "begin\xef\xbd\x9c>", "<\xef\xbd\x9c" "fim\xe2\x96\x81" "hole\xef\xbd\x9c>",
         "<\xef\xbd\x9c" "fim\xe2\x96\x81" "end\xef\xbd\x9c>"}, /* DeepSeek */
        {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
        {TOK_SPACE "<PRE>", TOK_SPACE "<SUF>", TOK_SPACE "<MID>"},
    };
    out->prefix = t->fim[0];
    out->suffix = t->fim[1];
    out->middle = t->fim[2];
    for (size_t i = 0; i < sizeof families / sizeof families[0] && (out->prefix < 0 || out->suffix < 0 || out->middle < 0);
         i++) {
        out->prefix = find(t, families[i][0]);
        out->suffix = find(t, families[i][1]);
        out->middle = find(t, families[i][2]);
    }
    if (out->prefix < 0 || out->suffix < 0 || out->middle < 0) { /* Mistral */
        out->prefix = find(t, "[PREFIX]");
        out->suffix = find(t, "[SUFFIX]");
        out->middle = -1;
        out->suffix_first = true;
    }
    return out->prefix >= 0 && out->suffix >= 0;
}

bool nrd_tokenizer_fim(const nrd_tokenizer *t, nrd_fim_tokens *out)
{
    static const char *const repos[] = {"<|repo_name|>", "<repo_name>", "<reponame>", NULL};
    static const char *const files[] = {"<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>", NULL};
    static const char *const ends[] = {"<|endoftext|>", "<|fim_pad|>", "<fim_pad>", TOK_SPACE "<EOT>"};

    memset(out, 0, sizeof *out);
    if (!find_parts(t, out)) {
        return false;
    }
    out->repo = first_of(t, repos);
    out->file = first_of(t, files);
    const int32_t marks[] = {out->prefix, out->suffix, out->middle, out->repo, out->file};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (marks[i] >= 0) {
            out->ends[out->n_ends++] = marks[i];
        }
    }
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const int32_t id = find(t, ends[i]);
        if (id >= 0) {
            out->ends[out->n_ends++] = id;
        }
    }
    return true;
}
