/* SPDX-License-Identifier: Apache-2.0
 * Folders whose vocabulary is a tiktoken file: qwen.tiktoken (Qwen 1), tiktoken.model (Kimi), tokenizer.model (GLM-4). What cuts words,
 * and how special tokens are numbered, is in the model's own Python class, whose name tokenizer_config.json has. */
#include "text/internal.h"

#include <stdio.h>
#include <string.h>

enum { N_RESERVED = 256 /* of Kimi */, N_EXTRA = 205 /* of Qwen */ };

static nrd_error *add_special(nrd_tokenizer *t, const char *name)
{
    const int32_t id = t->n_vocab;
    NRD_TRY(nrd_tok_set(t, id, name, strlen(name), 0));
    return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true});
}

/* Qwen's chat format, which its Python class writes. */
static const char qwen_chat[] =
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* The same of Qwen-VL, whose class numbers the pictures of a conversation. */
static const char qwen_vl_chat[] =
    "{% set seen = namespace(n=0) %}"
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}{% set seen.n = seen.n + 1 %}{{ 'Picture ' ~ seen.n ~ ': <img><imgpad></img>\\n' }}"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* *out: it is Qwen-VL's, which has more tokens. */
static nrd_error *add_picture_tokens(nrd_tokenizer *t, const char *dir, bool *out)
{
    static const char *const names[] = {"<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>", "<img>", "</img>", "<imgpad>"};
    nrd_json_doc *config = NULL;

    NRD_TRY(nrd_tok_read_json(dir, "config.json", &config));
    *out = nrd_json_is(nrd_json_get(nrd_json_root(config), "visual"), NRD_JSON_OBJECT);
    nrd_json_doc_free(config);
    for (size_t i = 0; i < sizeof names / sizeof *names && *out; i++) {
        NRD_TRY(add_special(t, names[i]));
    }
    return NULL;
}

static nrd_error *qwen(nrd_tokenizer *t, const char *dir, const nrd_json *config)
{
    nrd_tok_norm_step *norm = NULL;
    nrd_json_doc *generation = NULL;
    bool sees = false;
    char name[24];

    (void)config;
    if (!nrd_uni_has_forms()) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "normalizer NFC: this build has no utf8proc");
    }
    NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &norm));
    norm->form = NRD_UNI_NFC;
    t->eos_id = t->pad_id = t->n_vocab;
    NRD_TRY(add_special(t, "<|endoftext|>"));
    NRD_TRY(add_special(t, "<|im_start|>"));
    NRD_TRY(add_special(t, "<|im_end|>"));
    nrd_tok_add_stop(t, t->n_vocab - 1);
    for (int i = 0; i < N_EXTRA; i++) {
        snprintf(name, sizeof name, "<|extra_%d|>", i);
        NRD_TRY(add_special(t, name));
    }
    NRD_TRY(add_picture_tokens(t, dir, &sees));
    NRD_TRY(nrd_tok_read_json(dir, "generation_config.json", &generation));
    const bool chats = !strcmp(nrd_json_get_str(nrd_json_root(generation), "chat_format", ""), "chatml");
    nrd_json_doc_free(generation);
    const char *chat = sees ? qwen_vl_chat : qwen_chat;
    return chats ? nrd_tok_text_copy(&t->chat_template, NULL, chat, strlen(chat)) : NULL;
}

/* tokenizer_config.json names some of 256 tokens behind those of the text. */
static nrd_error *kimi(nrd_tokenizer *t, const char *dir, const nrd_json *config)
{
    const int32_t first = t->n_vocab;
    char name[32];

    NRD_TRY(nrd_tok_load_added_tokens(t, dir, config));
    for (int32_t id = first; id < first + N_RESERVED; id++) {
        const int n = snprintf(name, sizeof name, "<|reserved_token_%d|>", id);
        if (id >= t->n_vocab || !(t->flags[id] & TOK_PRESENT)) {
            NRD_TRY(nrd_tok_set(t, id, name, (size_t)n, 0));
            NRD_TRY(nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id, .special = true}));
        }
    }
    return NULL;
}

static nrd_error *glm4(nrd_tokenizer *t, const char *dir, const nrd_json *config)
{
    static const char *const names[] = {"[gMASK]", "<sop>"};
    int32_t front[2];

    NRD_TRY(nrd_tok_load_added_tokens(t, dir, config));
    for (int i = 0; i < 2; i++) {
        front[i] = -1;
        for (size_t k = 0; k < t->n_added; k++) {
            const nrd_tok_text *text = &t->tokens[t->added[k].id];
            if (text->n == strlen(names[i]) && !memcmp(text->s, names[i], text->n)) {
                front[i] = t->added[k].id;
            }
        }
        if (front[i] < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tokenizer_config.json: 'added_tokens_decoder' has no %s", names[i]);
        }
    }
    return nrd_tok_set_affix(t, false, front, 2);
}

static const struct {
    const char *class, *pattern;
    nrd_error *(*specials)(nrd_tokenizer *, const char *dir, const nrd_json *tokenizer_config);
} classes[] = {{"QWenTokenizer", nrd_pattern_text_qwen2, qwen},
               {"TikTokenTokenizer", nrd_pattern_text_kimi, kimi},
               {"ChatGLM4Tokenizer", nrd_pattern_text_llama3, glm4}};

nrd_error *nrd_tok_load_tiktoken(nrd_tokenizer *t, const char *dir, const char *text, size_t n)
{
    nrd_json_doc *config = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_tok_read_json(dir, "tokenizer_config.json", &config));
    const nrd_json *c = nrd_json_root(config);
    const char *class = nrd_json_get_str(c, "tokenizer_class", "");
    size_t i = 0;
    while (i < sizeof classes / sizeof *classes && strcmp(classes[i].class, class) != 0) {
        i++;
    }
    if (i == sizeof classes / sizeof *classes) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer_class '%.64s' of a tiktoken file is not implemented; save a tokenizer.json", class);
        goto done;
    }
    NRD_TRY_GOTO(nrd_tok_add_tiktoken(t, text, n), err, done);
    NRD_TRY_GOTO(nrd_tok_add_split(t, true, classes[i].pattern, strlen(classes[i].pattern), SPLIT_ISOLATED, false), err, done);
    NRD_TRY_GOTO(nrd_tok_add_byte_level(t, false, false), err, done);
    NRD_TRY_GOTO(classes[i].specials(t, dir, c), err, done);
    err = nrd_tok_finish(t);
done:
    nrd_json_doc_free(config);
    return err;
}
