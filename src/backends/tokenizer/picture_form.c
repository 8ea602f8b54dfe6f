/* SPDX-License-Identifier: Apache-2.0
 * What a text with pictures looks like to a model, as the published preprocessing writes it. */
#include "backends/tokenizer/pictures.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20 };

/* before, then a place for each picture, between, the text, after. first: places stand in front of all, also of what the tokenizer
 * puts before a text. wraps: before and after are also around a text that has its places. */
struct nrd_tok_picture_form {
    const char *model_type, *word; /* word: the token in a place, by which a text is told that has its places already */
    const char *before, *place, *between, *after;
    bool first, wraps, numbered; /* numbered: a place is behind "Picture 1: " and so on */
};

static const char user[] = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n";
static const char assistant[] = "<|im_end|>\n<|im_start|>assistant\n";

static const char vicuna[] = "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
                             "and polite answers to the user's questions. USER: ";

static const nrd_tok_picture_form forms[] = {
    {"llava", "<image>", "USER:\n", "<image>", "", " ASSISTANT:", false, false, false},
    {"llava_next", "<image>", "USER:\n", "<image>", "", " ASSISTANT:", false, false, false},
    {"llava_onevision", "<image>", "<|im_start|>user ", "<image>", "\n", "<|im_end|><|im_start|>assistant\n", false, false, false},
    {"qwen2_vl", "<|image_pad|>", user, "<|vision_start|><|image_pad|><|vision_end|>", "", assistant, false, false, false},
    {"qwen2_5_vl", "<|image_pad|>", user, "<|vision_start|><|image_pad|><|vision_end|>", "", assistant, false, false, false},
    {"blip2", "<image>", "", "<image>", "", "", true, false, false},
    {"vila", "<image>", vicuna, "<image>", "", " ASSISTANT:", false, true, false},
    {"qwen_vl", "<img>", user, "<img><imgpad></img>\n", "", assistant, false, false, true},
    {"fuyu", "|SPEAKER|", "", "|SPEAKER|", "", "<0x04>", true, false, false},
};

/* A folder of build_multimodal_engine.py: builder_config.model_type of its config.json. */
static nrd_error *find_of_folder(const char *dir, const nrd_tok_picture_form **out)
{
    const nrd_json_limits limits = {.max_bytes = MAX_CONFIG, .max_depth = 64, .special = true};
    nrd_json_doc *doc = NULL;
    char *path = NULL;

    NRD_TRY(nrd_path_make(&path, dir, "config.json"));
    nrd_error *err = nrd_error_wrap(nrd_json_parse_file(&doc, path, &limits), "%s", path);
    free(path);
    NRD_TRY(err);
    const char *type = nrd_json_get_str(nrd_json_get(nrd_json_root(doc), "builder_config"), "model_type", "");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        *out = !strcmp(type, forms[i].model_type) ? &forms[i] : *out;
    }
    nrd_json_doc_free(doc);
    return NULL;
}

nrd_error *nrd_tok_picture_form_find(const char *dir, const nrd_tokenizer *t, const nrd_tok_picture_form **out)
{
    const nrd_tok_picture_form *llava = &forms[0];

    *out = NULL;
    if (dir) {
        return find_of_folder(dir, out);
    }
    *out = nrd_tokenizer_token_id(t, llava->word, strlen(llava->word)) >= 0 ? llava : NULL;
    return NULL;
}

static const char video_word[] = "<video>"; /* LLaVA-OneVision's; its place stands where a picture's would */

static bool wants_places(const nrd_tok_pictures *p, const nrd_tok_picture_form *form, const char *text, size_t n)
{
    const char *word = p->is_video ? video_word : form ? form->word : "";
    return p->per_row > 0 && form && !memmem(text, n, word, strlen(word));
}

nrd_error *nrd_tok_pictures_prompt(const nrd_tok_pictures *p, const nrd_tok_picture_form *form, const char *text, size_t n,
                                   nrd_str *out)
{
    const bool wants = wants_places(p, form, text, n);

    if (!wants && (p->per_row == 0 || !form || !form->wraps || memmem(text, n, form->after, strlen(form->after)))) {
        return NULL;
    }
    if (p->is_video && strcmp(form->model_type, "llava_onevision") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "VIDEO_BYTES: videos are taken of llava_onevision, and this is %s", form->model_type);
    }
    nrd_str_puts(out, form->before);
    nrd_str_puts(out, wants && p->is_video ? video_word : "");
    for (int64_t i = 0; !p->is_video && i < p->per_row && wants && !form->first; i++) {
        if (form->numbered) {
            nrd_str_printf(out, "Picture %lld: ", (long long)(i + 1));
        }
        nrd_str_puts(out, form->place);
    }
    nrd_str_puts(out, wants ? form->between : "");
    nrd_str_append(out, text, n);
    nrd_str_puts(out, form->after);
    return nrd_str_error(out);
}

nrd_error *nrd_tok_pictures_first(const nrd_tok_pictures *p, const nrd_tok_picture_form *form, const nrd_tokenizer *t, const char *text,
                                  size_t n, nrd_ids *ids)
{
    if (!wants_places(p, form, text, n) || !form->first) {
        return NULL;
    }
    const int32_t id = nrd_tokenizer_token_id(t, form->word, strlen(form->word));
    const size_t n_places = (size_t)p->per_row, n_ids = ids->n;
    if (id < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the tokenizer has no token %s, which stands for a picture", form->word);
    }
    for (size_t i = 0; i < n_places; i++) {
        nrd_ids_push(ids, id);
    }
    NRD_TRY(nrd_ids_error(ids));
    memmove(ids->ids + n_places, ids->ids, n_ids * sizeof *ids->ids);
    for (size_t i = 0; i < n_places; i++) {
        ids->ids[i] = id;
    }
    return NULL;
}
