/* SPDX-License-Identifier: Apache-2.0
 * A tokenizer's folder as Hugging Face has it. First byte: 0 tokenizer.json, 1 tokenizer.model, 2 vocab.json with
 * merges.txt, 3 source.spm with vocab.json, 4 sentencepiece.bpe.model with vocab.json, 5 alone, 6 qwen.tiktoken, 7 tiktoken.model, 8 none,
 * 9 model.pt with dict.en.txt and bpecodes;
 * then (parts.h) a text, those files, and the small ones beside them in the order of `others`. Opening ends with
 * a tokenizer (tokenizer_check.h) or an error; the ids that the small files name are tokens of it, and its template is rendered. */
#include "base/json.h"
#include "json_swap.h"
#include "parts.h"
#include "text/template/chat.h"
#include "text/translate.h"
#include "tokenizer_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_MAIN = 3, MAX_PARTS = 10 };
static const char *const mains[][MAX_MAIN] = {{"tokenizer.json", NULL}, {"tokenizer.model", NULL}, {"vocab.json", "merges.txt"},
                                               {"source.spm", "vocab.json"}, {"sentencepiece.bpe.model", "vocab.json"},
                                               {"sentencepiece.bpe.model", NULL}, {"qwen.tiktoken", NULL}, {"tiktoken.model", NULL}, {NULL, NULL},
                                               {"model.pt", "dict.en.txt", "bpecodes"}};
enum { N_KINDS = sizeof mains / sizeof *mains };
static const char *const others[] = {"tokenizer_config.json",  "special_tokens_map.json", "added_tokens.json",
                                     "generation_config.json", "config.json",             "chat_template.jinja"};

static void write_files(unsigned kind, const fuzz_part *part, size_t n)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < MAX_MAIN && mains[k][i]; i++) {
            fuzz_write(mains[k][i], NULL);
        }
    }
    size_t at = 1;
    for (size_t i = 0; i < MAX_MAIN && mains[kind][i]; i++, at++) {
        fuzz_write(mains[kind][i], at < n ? &part[at] : NULL);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++, at++) {
        fuzz_write(others[i], at < n && part[at].n > 0 ? &part[at] : NULL);
    }
}

static void check_special(const nrd_tokenizer *t)
{
    const int32_t ids[] = {nrd_tokenizer_bos_id(t), nrd_tokenizer_eos_id(t), nrd_tokenizer_pad_id(t), nrd_tokenizer_unk_id(t)};
    size_t n = 0;
    const int32_t *stops = nrd_tokenizer_stop_ids(t, &n);

    for (size_t i = 0; i < 4; i++) {
        if (ids[i] < -1 || ids[i] >= nrd_tokenizer_vocab_size(t)) {
            abort();
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (stops[i] < 0) {
            abort();
        }
    }
}

static void render(const nrd_tokenizer *t)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"one two\"}]";
    nrd_json_doc *doc = NULL;
    nrd_chat *chat = NULL;
    nrd_str text = {0};
    nrd_error *err = nrd_json_parse(&doc, messages, sizeof messages - 1, NULL);

    if (!err && nrd_tokenizer_chat_template(t)) {
        err = nrd_chat_open(&chat, t, NULL);
    }
    if (!err && chat) {
        const nrd_chat_input in = {.messages = nrd_json_root(doc), .add_generation_prompt = true};
        err = nrd_chat_render(chat, &in, &text);
    }
    nrd_error_free(err);
    nrd_chat_free(chat);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
}

/* Ids of a text to translate, and of what the answer begins with, are the model's. */
static void translate(const nrd_tokenizer *t, const char *text, size_t n)
{
    const nrd_translation languages[] = {{NULL, "fr"}, {"fr", NULL}, {NULL, NULL}};

    for (size_t k = 0; k < sizeof languages / sizeof *languages; k++) {
        nrd_ids ids[2] = {{0}};
        nrd_error *err = nrd_tokenizer_encode_translation(t, text, n, &languages[k], &ids[0], &ids[1]);
        for (size_t j = 0; !err && j < 2; j++) {
            for (size_t i = 0; i < ids[j].n; i++) {
                if (ids[j].ids[i] < 0 || ids[j].ids[i] >= nrd_tokenizer_vocab_size(t)) {
                    abort();
                }
            }
        }
        nrd_error_free(err);
        nrd_ids_fini(&ids[0]);
        nrd_ids_fini(&ids[1]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part part[MAX_PARTS] = {{0}};
    nrd_tokenizer *t = NULL;

    if (size < 1 || size > 1 << 18) {
        return 0;
    }
    const size_t n = fuzz_split(data + 1, size - 1, part, MAX_PARTS);
    write_files(data[0] % N_KINDS, part, n);
    nrd_error *err = nrd_tokenizer_open(&t, fuzz_folder());
    if (!err) {
        check_special(t);
        render(t);
        translate(t, (const char *)part[0].p, part[0].n);
    }
    fuzz_check_tokenizer(t, err, (const char *)part[0].p, part[0].n);
    return 0;
}
