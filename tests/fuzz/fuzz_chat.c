/* SPDX-License-Identifier: Apache-2.0
 * Bodies of /v1 requests, and what models write. The sources are included because the front ends are
 * no room that the fuzz programs link. First byte: 0 a chat, 1 a completion, 2 a model's text. What is
 * read twice is the same; prompts hold ids of the model only; spans of an answer lie within it. */
#include "frontends/openai/params.c"
#include "frontends/openai/parse.c"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static nrd_oai_model model;

nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, nrd_oai_model **out)
{
    (void)o;
    *out = &model;
    return name[0] ? NULL : nrd_errorf(NRD_ERR_NOT_FOUND, "The model `` does not exist.");
}

static nrd_error *open_model(void)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\\u0120\":3,"
        "\"e\":4,\"s\":5,\"u\":6,\"r\":7,\"<\":8,\">\":9},\"merges\":[]}}";
    static const char template[] =
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}";
    char path[] = "/tmp/fuzz-chat-XXXXXX", file[64], *folder = mkdtemp(path);
    snprintf(file, sizeof file, "%s/tokenizer.json", folder ? folder : "");
    FILE *f = fopen(file, "w");
    if (!f || fwrite(text, 1, sizeof text - 1, f) != sizeof text - 1 || fclose(f)) {
        abort();
    }
    nrd_error *err = nrd_tokenizer_open(&model.tokenizer, file);
    unlink(file);
    rmdir(folder);
    NRD_TRY(err);
    return nrd_chat_open(&model.chat, model.tokenizer, template);
}

static void check(const nrd_oai_request *r)
{
    if (r->n_prompts == 0 || r->n_prompts > OAI_MAX_PROMPTS || r->n < 1 || r->best_of < r->n ||
        r->n_prompts * (size_t)r->best_of > OAI_MAX_CHOICES || r->n_stops > OAI_MAX_STOPS ||
        (!r->guide_type && r->guide.len > 0)) {
        abort();
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        for (size_t k = 0; k < r->prompts[i].n; k++) {
            int32_t id = r->prompts[i].ids[k];
            if (id < 0 || id >= nrd_tokenizer_vocab_size(model.tokenizer)) {
                abort();
            }
        }
    }
}

static uint64_t read_once(const char *data, size_t n, bool chat, bool *ok)
{
    nrd_oai_request *r = calloc(1, sizeof *r);
    uint64_t sum = 0;
    nrd_error *err = r ? nrd_json_parse(&r->doc, data, n, NULL) : nrd_error_no_memory();
    if (r && !err) {
        r->chat = chat;
        if (nrd_json_is(nrd_json_root(r->doc), NRD_JSON_OBJECT)) {
            err = nrd_oai_read(r, nrd_json_root(r->doc));
        } else {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "no object");
        }
    }
    *ok = !err;
    if (*ok) {
        check(r);
        for (size_t i = 0; i < r->n_prompts; i++) {
            for (size_t k = 0; k < r->prompts[i].n; k++) {
                sum = sum * 31 + (uint64_t)r->prompts[i].ids[k] + 1;
            }
        }
        sum = sum * 31 + r->guide.len;
    }
    nrd_error_free(err);
    for (size_t i = 0; r && i < r->n_prompts; i++) {
        nrd_ids_fini(&r->prompts[i]);
        nrd_str_fini(&r->echoes[i]);
    }
    if (r) {
        nrd_str_fini(&r->unknown);
        nrd_str_fini(&r->guide);
        nrd_str_fini(&r->logit_bias);
        nrd_json_doc_free(r->doc);
    }
    free(r);
    return sum;
}

/* Calls are a list of JSON; what is certain of a beginning stays so. */
static void feed_answer(const char *text, size_t n, uint8_t flags)
{
    static const char tools_text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":"
        "{\"name\":\"get\"}}]";
    nrd_json_doc *tools = NULL, *parsed = NULL;
    nrd_str calls = {0}, list = {0};
    nrd_oai_parsed p, before = {0};

    if (nrd_json_parse(&tools, tools_text, sizeof tools_text - 1, NULL)) {
        abort();
    }
    nrd_oai_parse_options o = {.think_open = flags & 1,
                           .tools = flags & 2 ? nrd_json_root(tools) : NULL,
                           .id = "x_0",
                           .max_calls = flags & 4 ? 1 : 64};
    for (size_t at = 0; at <= n; at += n / 8 + 1) {
        nrd_str_clear(&calls);
        nrd_oai_parse(text, at, &o, &calls, &p);
        if (p.reasoning + p.n_reasoning > at || p.content + p.n_content > at ||
            p.n_reasoning < before.n_reasoning) {
            abort();
        }
        before = p;
    }
    o.final = true;
    nrd_str_clear(&calls);
    nrd_oai_parse(text, n, &o, &calls, &p);
    if (p.reasoning + p.n_reasoning > n || p.content + p.n_content > n) {
        abort();
    }
    nrd_str_printf(&list, "[%s]", nrd_str_cstr(&calls));
    nrd_error *err = nrd_json_parse(&parsed, list.data, list.len, NULL);
    if (err || nrd_json_len(nrd_json_root(parsed)) != (size_t)p.n_calls) {
        abort();
    }
    nrd_json_doc_free(parsed);
    nrd_json_doc_free(tools);
    nrd_str_fini(&calls);
    nrd_str_fini(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model.chat) {
        nrd_error *err = open_model();
        if (err) {
            fprintf(stderr, "%s\n", nrd_error_message(err));
            abort();
        }
    }
    if (size < 1 || size > 16384) {
        return 0;
    }
    if (data[0] % 4 >= 2) {
        feed_answer((const char *)data + 1, size - 1, data[0] / 4);
        return 0;
    }
    bool ok, again;
    uint64_t a = read_once((const char *)data + 1, size - 1, data[0] % 4 == 0, &ok);
    uint64_t b = read_once((const char *)data + 1, size - 1, data[0] % 4 == 0, &again);
    if (a != b || ok != again) {
        abort();
    }
    return 0;
}
