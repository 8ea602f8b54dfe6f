/* SPDX-License-Identifier: Apache-2.0
 * Answers of Ollama's /api/chat and /api/generate: whole, as lines of JSON, and errors.
 * Source: Ollama's API reference (chat, generate, errors). */
#include "frontends/openai/internal.h"

#include "base/clock.h"

#include <string.h>
#include <time.h>

static bool is_chat(const nrd_oai_request *r)
{
    return r->form == &nrd_oai_form_ollama_chat;
}

void nrd_oai_ollama_put_time(nrd_str *o, int64_t seconds)
{
    char text[40];
    struct tm tm;
    const time_t t = (time_t)seconds;
    const size_t n = gmtime_r(&t, &tm) ? strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm) : 0;
    nrd_json_put_string(o, text, n);
}

static void put_head(nrd_str *o, const nrd_oai_request *r)
{
    nrd_str_puts(o, "{\"model\":");
    nrd_json_put_cstr(o, r->model->name);
    nrd_str_puts(o, ",\"created_at\":");
    nrd_oai_ollama_put_time(o, r->created);
}

/* The prompt's time goes on to the first token. */
static void put_end(nrd_str *o, const nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    const uint64_t now = nrd_now_ns(), first = c->first_ns ? c->first_ns : now;
    nrd_str_printf(o,
                   ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":%llu,"
                   "\"prompt_eval_count\":%lld,\"prompt_eval_duration\":%llu,\"eval_count\":%d,\"eval_duration\":%llu}\n",
                   !strcmp(c->finish, "length") ? "length" : "stop", (unsigned long long)(r->load_ns + now - r->begun_ns),
                   (unsigned long long)r->load_ns, nrd_oai_prompt_tokens(c),
                   (unsigned long long)(first - r->begun_ns), c->n_tokens, (unsigned long long)(now - first));
}

/* Calls as they have them: arguments are an object, and there is no id. */
static void put_calls(nrd_str *o, const nrd_str *calls)
{
    nrd_json_doc *doc = nrd_oai_read_calls(o, calls);
    nrd_str_puts(o, ",\"tool_calls\":[");
    for (size_t i = 0; doc && i < nrd_json_len(nrd_json_root(doc)); i++) {
        const nrd_json *f = nrd_json_get(nrd_json_at(nrd_json_root(doc), i), "function");
        const nrd_json *arguments = nrd_json_get(f, "arguments");
        nrd_str_puts(o, i ? ",{\"function\":{" : "{\"function\":{");
        nrd_oai_put_member(o, "name", nrd_json_get(f, "name"));
        nrd_str_puts(o, ",\"arguments\":");
        nrd_oai_put_arguments(o, nrd_json_str(arguments, ""), arguments ? arguments->n : 0);
        nrd_str_puts(o, "}}");
    }
    nrd_str_putc(o, ']');
    nrd_json_doc_free(doc);
}

/* Those of the tokens that came since the last time. */
static void put_scores(nrd_str *o, nrd_oai_choice *c)
{
    if (c->r->log_probs && c->n_log_probs > c->n_log_sent) {
        nrd_str_puts(o, ",\"logprobs\":");
        nrd_oai_put_log_probs(o, c, c->n_log_sent, false);
        c->n_log_sent = c->n_log_probs;
    }
}

/* What was said, behind the head. */
static void put_said(nrd_str *o, nrd_oai_choice *c, const nrd_oai_delta *d, const nrd_str *calls)
{
    const nrd_oai_request *r = c->r;
    nrd_str_puts(o, is_chat(r) ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    nrd_json_put_string(o, d->content ? d->content : "", d->n_content);
    if (d->n_reasoning > 0) {
        nrd_str_puts(o, ",\"thinking\":");
        nrd_json_put_string(o, d->reasoning, d->n_reasoning);
    }
    if (d->n_calls > 0) {
        put_calls(o, calls);
    }
    nrd_str_puts(o, is_chat(r) ? "}" : "");
    put_scores(o, c);
}

/* Of a prompt that no template made, all of the text is the answer. */
static void next(nrd_oai_choice *c, nrd_str *calls, nrd_oai_delta *d)
{
    if (c->r->chat) {
        nrd_oai_next_delta(c, calls, d);
        return;
    }
    const size_t n = nrd_oai_certain(c);
    memset(d, 0, sizeof *d);
    if (n > c->n_content_sent) {
        d->content = nrd_str_cstr(&c->text) + c->n_content_sent;
        d->n_content = n - c->n_content_sent;
        c->n_content_sent = n;
    }
}

static void put_answer(nrd_oai_request *r)
{
    nrd_oai_choice *c = &r->choices[0];
    nrd_str calls = {0};
    nrd_oai_delta d;

    next(c, &calls, &d); /* the first and only one: all of it */
    put_head(&r->out, r);
    put_said(&r->out, c, &d, &calls);
    put_end(&r->out, c);
    nrd_str_fini(&calls);
}

static void put_chunk(nrd_str *o, nrd_oai_choice *c)
{
    static const nrd_oai_delta nothing;
    nrd_str calls = {0};
    nrd_oai_delta d;

    next(c, &calls, &d);
    if (d.n_content > 0 || d.n_reasoning > 0 || d.n_calls > 0) {
        put_head(o, c->r);
        put_said(o, c, &d, &calls);
        nrd_str_puts(o, ",\"done\":false}\n");
    }
    if (c->done) {
        put_head(o, c->r);
        put_said(o, c, &nothing, &calls);
        put_end(o, c);
    }
    nrd_str_fini(&calls);
}

static void put_last(nrd_str *o, const nrd_oai_request *r)
{
    (void)o; /* the line that is done was the last */
    (void)r;
}

static void put_error(nrd_str *out, int status, const char *message, const char *param, const char *code)
{
    (void)status;
    (void)param; /* the message begins with it */
    (void)code;
    nrd_str_puts(out, "{\"error\":");
    nrd_json_put_cstr(out, message);
    nrd_str_putc(out, '}');
}

static const char *renamed[][2] = {
    {"max_tokens", "options.num_predict"}, {"temperature", "options.temperature"}, {"top_k", "options.top_k"},
    {"top_p", "options.top_p"}, {"min_p", "options.min_p"}, {"seed", "options.seed"}, {"stop", "options.stop"},
    {"repetition_penalty", "options.repeat_penalty"}, {"presence_penalty", "options.presence_penalty"},
    {"frequency_penalty", "options.frequency_penalty"}, {"response_format", "format"}, {NULL, NULL}};

#define LINES                                                                                                         \
    .is_chat = true, .id_prefix = "ollama_", .stream_type = "application/x-ndjson", .before_error = "",              \
    .after_error = "\n", .renamed = renamed, .put_answer = put_answer, .put_chunk = put_chunk, .put_last = put_last, \
    .put_error = put_error

const nrd_oai_form nrd_oai_form_ollama_chat = {LINES, .convert = nrd_oai_ollama_chat};
const nrd_oai_form nrd_oai_form_ollama_generate = {LINES, .convert = nrd_oai_ollama_generate};
