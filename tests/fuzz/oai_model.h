/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/oai_model.h - the one model that bodies of /v1 find: a tokenizer of few letters and a chat
 * template. Instead of openai/models.c, for targets that include files of that folder. */
#ifndef NRD_TESTS_FUZZ_OAI_MODEL_H
#define NRD_TESTS_FUZZ_OAI_MODEL_H

#include "frontends/openai/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nrd_oai_model model;
static const nrd_generation search = {.num_beams = 3, .length_penalty = 1, .n_begin = 1, .forced_eos_id = -1};

void nrd_oai_model_unref(nrd_oai_model *m)
{
    (void)m;
}

nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, nrd_oai_model **out)
{
    (void)o;
    *out = &model;
    return name[0] ? NULL : nrd_errorf(NRD_ERR_NOT_FOUND, "The model `` does not exist.");
}

nrd_error *nrd_oai_find_asked(nrd_openai *o, nrd_http_request *req, const char *name, nrd_oai_model **out)
{
    (void)req;
    return nrd_oai_find_model(o, name, out);
}

bool nrd_oai_takes_any_name(const nrd_openai *o, const nrd_http_request *req)
{
    (void)o;
    (void)req;
    return true;
}

nrd_error *nrd_oai_find_only(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out)
{
    (void)req;
    return nrd_oai_find_model(o, nrd_json_str(name, "m"), out);
}

static nrd_error *open_model(void)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":257,\"content\":\"<fim_prefix>\",\"special\":true},{\"id\":258,\"content\":\"<fim_suffix>\","
        "\"special\":true},{\"id\":259,\"content\":\"<fim_middle>\",\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\\u0120\":3,"
        "\"e\":4,\"s\":5,\"u\":6,\"r\":7,\"<\":8,\">\":9},\"merges\":[]}}";
    static const char template[] =
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}";
    static char name[] = "m";
    nrd_tokenizer *tokenizer = NULL;
    nrd_chat *chat = NULL;
    char path[] = "/tmp/fuzz-chat-XXXXXX", file[64], *folder = mkdtemp(path);
    snprintf(file, sizeof file, "%s/tokenizer.json", folder ? folder : "");
    FILE *f = fopen(file, "w");
    if (!f || fwrite(text, 1, sizeof text - 1, f) != sizeof text - 1 || fclose(f)) {
        abort();
    }
    nrd_error *err = nrd_tokenizer_open(&tokenizer, file);
    unlink(file);
    rmdir(folder);
    NRD_TRY(err);
    model.name = name;
    model.tokenizer = tokenizer;
    model.bad_words = true;
    model.search = &search;
    model.max_beams = 4;
    err = nrd_chat_open(&chat, tokenizer, template);
    model.chat = chat;
    return err;
}

static inline void open_model_once(void)
{
    nrd_error *err = model.chat ? NULL : open_model();
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        abort();
    }
}

#endif
