/* SPDX-License-Identifier: Apache-2.0
 * Bodies of /v1 requests, and what models write. The sources are included because the front ends are
 * no room that the fuzz programs link. First byte: 0 a chat, 1 a completion, 2 a model's text, 3 messages
 * as Anthropic's clients send them, 7 and 11 as Ollama's, 15 as /v1/responses has them, which go on from
 * a kept answer, 19 and 23 as llama.cpp's. What is
 * read twice is the same; prompts hold ids of the model only; spans of an answer lie within it. */
#include "frontends/openai/chat_in.c"
#include "frontends/openai/fim.c"
#include "frontends/openai/forms.c"
#include "frontends/openai/guides.c"
#include "frontends/openai/llama_in.c"
#include "frontends/openai/messages_in.c"
#include "frontends/openai/mixed_ids.c"
#include "frontends/openai/ollama_in.c"
#include "frontends/openai/params.c"
#include "frontends/openai/parse.c"
#include "frontends/openai/reasoning.c"
#include "frontends/openai/response_store.c"
#include "frontends/openai/responses_in.c"
#include "frontends/openai/search.c"
#include "frontends/openai/responses_items.c"
#include "frontends/openai/words.c"
#include "json_swap.h"
#include "oai_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory is the sanitizer's to count. */
nrd_error *nrd_claim_json(nrd_claim *c, const char *text, size_t n, size_t max_values)
{
    (void)c;
    (void)text;
    (void)n;
    (void)max_values;
    return NULL;
}

/* Without the answers. */
const nrd_oai_form nrd_oai_form_chat = {.is_chat = true};
const nrd_oai_form nrd_oai_form_text = {.is_chat = false};
const nrd_oai_form nrd_oai_form_messages = {.is_chat = true, .convert = nrd_oai_messages_convert};
const nrd_oai_form nrd_oai_form_ollama_chat = {.is_chat = true, .convert = nrd_oai_ollama_chat};
const nrd_oai_form nrd_oai_form_ollama_generate = {.is_chat = true, .convert = nrd_oai_ollama_generate};
const nrd_oai_form nrd_oai_form_responses = {.is_chat = true, .id_prefix = "", .convert = nrd_oai_responses_convert};

const nrd_oai_form nrd_oai_form_llama = {.convert = nrd_oai_llama_completion};
const nrd_oai_form nrd_oai_form_infill = {.convert = nrd_oai_llama_infill};

static nrd_openai front;

/* One answer, for bodies that name it. */
static void keep_one(void)
{
    static const char said[] = "{\"output\":[{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":"
                               "\"e\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
                               "\"text\":\"a\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
                               "\"arguments\":\"{}\"}]}";
    nrd_str input = {0}, answer = {0};
    nrd_str_puts(&input, "[{\"role\":\"user\",\"content\":\"b\"}]");
    nrd_str_puts(&answer, said);
    if (nrd_response_store_new(&front.kept, 4, 1 << 20) ||
        nrd_response_store_add(front.kept, 0, "r", NULL, &input, &answer)) {
        abort();
    }
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

/* What is kept or answered must be JSON. */
static void check_json(const nrd_str *text, char before, char behind)
{
    nrd_str all = {0};
    nrd_json_doc *doc = NULL;
    nrd_str_putc(&all, before);
    nrd_str_put(&all, text);
    nrd_str_putc(&all, behind);
    nrd_error *err = nrd_json_parse(&doc, all.data, all.len, NULL);
    if (err) {
        abort();
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&all);
}

static uint64_t read_once(const char *data, size_t n, const nrd_oai_form *form, bool *ok)
{
    nrd_oai_request *r = calloc(1, sizeof *r);
    uint64_t sum = 0;
    nrd_error *err = r ? nrd_json_parse(&r->doc, data, n, NULL) : nrd_error_no_memory();
    if (r && !err) {
        r->o = &front;
        r->form = form;
        r->chat = form->is_chat;
        if (nrd_json_is(nrd_json_root(r->doc), NRD_JSON_OBJECT)) {
            nrd_claim claim = {0};
            err = nrd_oai_read_form(r, &claim);
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
        if (r->resp.echoed.len > 0) {
            check_json(&r->resp.echoed, '{', '}');
            check_json(&r->resp.input, ' ', ' ');
        }
        if (r->reasoning.len > 0) {
            check_json(&r->reasoning, ' ', ' ');
        }
    }
    nrd_error_free(err);
    for (size_t i = 0; r && i < r->n_prompts; i++) {
        nrd_ids_fini(&r->prompts[i]);
        nrd_str_fini(&r->echoes[i]);
    }
    if (r) {
        nrd_str_fini(&r->unknown);
        nrd_str_fini(&r->guide);
        nrd_str_fini(&r->reasoning);
        nrd_str_fini(&r->shown);
        nrd_str_fini(&r->images);
        nrd_str_fini(&r->logit_bias);
        nrd_ids_fini(&r->stop_ids);
        nrd_ids_fini(&r->bad_ids);
        nrd_ids_fini(&r->bad_ends);
        nrd_str_fini(&r->allowed);
        nrd_str_fini(&r->llama.fields);
        nrd_str_fini(&r->resp.echoed);
        nrd_str_fini(&r->resp.input);
        nrd_response_store_give_back(front.kept, r->resp.previous);
        nrd_json_doc_free(r->resp.tools);
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
        if (p.reasoning + p.n_reasoning > text + at || p.content + p.n_content > text + at ||
            p.n_reasoning < before.n_reasoning) {
            abort();
        }
        before = p;
    }
    o.final = true;
    nrd_str_clear(&calls);
    nrd_oai_parse(text, n, &o, &calls, &p);
    if (p.reasoning + p.n_reasoning > text + n || p.content + p.n_content > text + n) {
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
    open_model_once();
    if (!front.kept) {
        keep_one();
    }
    if (size < 1 || size > 16384) {
        return 0;
    }
    if (data[0] % 4 == 2) {
        feed_answer((const char *)data + 1, size - 1, data[0] / 4);
        return 0;
    }
    const nrd_oai_form *const others[] = {&nrd_oai_form_messages, &nrd_oai_form_ollama_chat,
                                          &nrd_oai_form_ollama_generate, &nrd_oai_form_responses,
                                          &nrd_oai_form_llama, &nrd_oai_form_infill};
    const nrd_oai_form *const of[] = {&nrd_oai_form_chat, &nrd_oai_form_text, NULL, others[data[0] / 4 % 6]};
    bool ok, again;
    uint64_t a = read_once((const char *)data + 1, size - 1, of[data[0] % 4], &ok);
    uint64_t b = read_once((const char *)data + 1, size - 1, of[data[0] % 4], &again);
    if (a != b || ok != again) {
        abort();
    }
    return 0;
}
