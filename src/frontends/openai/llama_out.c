/* SPDX-License-Identifier: Apache-2.0
 * Answers of llama.cpp's /completion and /infill: whole, as a stream, and errors.
 * Source: the reference of llama.cpp's server (completion, errors). */
#include "frontends/openai/internal.h"

#include "base/clock.h"

#include <string.h>

static void put_timings(nrd_str *o, const nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    const uint64_t now = nrd_now_ns(), first = c->first_ns ? c->first_ns : now;
    const long long cached = nrd_oai_cached_tokens(c);
    const double prompt_n = (double)((long long)c->prompt->n - cached), made = r->llama.silent ? 0 : c->n_tokens;
    const double prompt_ms = (double)(first - r->begun_ns) / 1e6, made_ms = (double)(now - first) / 1e6;

    nrd_str_printf(o, "{\"cache_n\":%lld", cached);
    const struct {
        const char *name;
        double n, ms;
    } rows[] = {{"prompt", prompt_n, prompt_ms}, {"predicted", made, made_ms}};
    for (size_t i = 0; i < 2; i++) {
        nrd_str_printf(o, ",\"%s_n\":%.0f,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", rows[i].name,
                       rows[i].n, rows[i].name, rows[i].ms, rows[i].name, rows[i].n > 0 ? rows[i].ms / rows[i].n : 0,
                       rows[i].name, rows[i].ms > 0 ? rows[i].n * 1e3 / rows[i].ms : 0);
    }
    nrd_str_putc(o, '}');
}

void nrd_oai_llama_put_settings(nrd_str *o, const nrd_sampling *s)
{
    nrd_str_printf(o, "\"temperature\":%.7g,\"top_k\":%d,\"top_p\":%.7g,\"min_p\":%.7g,\"repeat_penalty\":%.7g", s->temperature,
                   s->top_k, s->top_p, s->min_p, s->repetition_penalty);
}

static void put_settings(nrd_str *o, const nrd_oai_request *r)
{
    const nrd_sampling s = {.temperature = (float)r->temperature, .top_k = (int)r->top_k, .top_p = (float)r->top_p,
                            .min_p = (float)r->min_p, .repetition_penalty = (float)r->repetition};
    const long long most = r->llama.silent ? 0 : r->max_tokens == OAI_MAX_NEW_TOKENS ? -1 : (long long)r->max_tokens;
    nrd_str_putc(o, '{');
    nrd_oai_llama_put_settings(o, &s);
    nrd_str_printf(o,
                   ",\"seed\":%llu,\"n_predict\":%lld,\"max_tokens\":%lld,\"presence_penalty\":%.7g,\"frequency_penalty\":%.7g,"
                   "\"ignore_eos\":%s,\"stream\":%s,\"n_probs\":%d,\"stop\":[",
                   (unsigned long long)r->seed, most, most, r->presence, r->frequency, r->ignore_eos ? "true" : "false",
                   r->stream ? "true" : "false", r->n_top);
    for (size_t i = 0; i < r->n_stops; i++) {
        nrd_str_puts(o, i ? "," : "");
        nrd_json_put_string(o, r->stops[i].s, r->stops[i].n);
    }
    nrd_str_puts(o, "]}");
}

static void put_tokens(nrd_str *o, const nrd_oai_choice *c, size_t from)
{
    nrd_str_putc(o, '[');
    for (size_t i = from; i < c->ids.n; i++) {
        nrd_str_printf(o, i > from ? ",%d" : "%d", c->ids.ids[i]);
    }
    nrd_str_putc(o, ']');
}

/* What both have: text and tokens from where the last piece ended. */
static void put_piece(nrd_str *o, const nrd_oai_choice *c, size_t text, size_t n, size_t token, bool tokens)
{
    const nrd_oai_request *r = c->r;
    const bool told = !r->llama.silent;
    nrd_str_printf(o, "{\"index\":%d,\"content\":", c->index);
    nrd_json_put_string(o, nrd_str_cstr(&c->text) + text, told ? n : 0);
    nrd_str_puts(o, ",\"tokens\":");
    put_tokens(o, c, tokens && told ? token : c->ids.n);
    nrd_str_printf(o, ",\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%d,\"tokens_evaluated\":%zu", c->done ? "true" : "false",
                   told ? c->n_tokens : 0, c->prompt->n);
    if (r->log_probs && told) {
        nrd_str_puts(o, ",\"completion_probabilities\":");
        nrd_oai_put_log_probs(o, c, token, true);
    }
}

/* The members of an answer that has ended, and the end of the object. */
static void put_end(nrd_str *o, const nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    const bool word = c->cut && !strcmp(c->finish, "stop");
    nrd_str prompt = {0};

    nrd_tokenizer_decode(r->model->tokenizer, c->prompt->ids, c->prompt->n, 0, &prompt);
    nrd_str_puts(o, ",\"model\":");
    nrd_json_put_cstr(o, r->model->name);
    nrd_str_printf(o, ",\"truncated\":false,\"has_new_line\":%s,\"tokens_cached\":%lld,\"stop_type\":\"%s\",\"stopping_word\":",
                   c->text.len > 0 && memchr(c->text.data, '\n', c->text.len) ? "true" : "false", nrd_oai_cached_tokens(c),
                   word                           ? "word"
                   : !strcmp(c->finish, "length") ? "limit"
                                                  : "eos");
    nrd_json_put_string(o, word ? r->stops[c->stop].s : "", word ? r->stops[c->stop].n : 0);
    nrd_str_puts(o, ",\"prompt\":");
    nrd_json_put_string(o, nrd_str_cstr(&prompt), prompt.len);
    nrd_str_puts(o, ",\"generation_settings\":");
    put_settings(o, r);
    nrd_str_puts(o, ",\"timings\":");
    put_timings(o, c);
    nrd_str_putc(o, '}');
    if (prompt.no_memory) {
        nrd_str_spoil(o);
    }
    nrd_str_fini(&prompt);
}

/* ---- only some of the members ---- */

/* "a/b" is the member b of a, and comes under this name. */
static const nrd_json *look(const nrd_json *root, const nrd_json *name)
{
    const nrd_json *v = root;
    for (const char *p = nrd_json_str(name, ""); v; p++) {
        char part[64];
        const size_t n = strcspn(p, "/");
        if (n >= sizeof part) {
            return NULL;
        }
        memcpy(part, p, n);
        part[n] = '\0';
        v = nrd_json_get(v, part);
        p += n;
        if (!*p) {
            return v;
        }
    }
    return NULL;
}

static void put_chosen(nrd_str *o, const nrd_json *root, const nrd_json *fields)
{
    nrd_str_putc(o, '{');
    for (size_t i = 0; i < fields->n; i++) {
        const nrd_json *name = &fields->child[i], *v = look(root, name);
        if (v) {
            nrd_oai_put_member(o, name->str, v);
        }
    }
    nrd_str_putc(o, '}');
}

/* One choice, whole, with the members that response_fields names. */
static void put_whole(nrd_str *o, const nrd_oai_choice *c, size_t text, size_t token)
{
    const nrd_oai_request *r = c->r;
    nrd_json_doc *root = NULL, *fields = NULL;
    nrd_str all = {0};

    put_piece(&all, c, text, c->text.len - text, token, r->llama.tokens || r->stream);
    put_end(&all, c);
    if (r->llama.fields.len == 0) {
        nrd_str_put(o, &all);
    } else {
        nrd_error *err = nrd_str_error(&all);
        err = err ? err : nrd_json_parse(&root, all.data, all.len, NULL);
        err = err ? err : nrd_json_parse(&fields, r->llama.fields.data, r->llama.fields.len, NULL);
        if (err) {
            nrd_str_spoil(o);
        } else {
            put_chosen(o, nrd_json_root(root), nrd_json_root(fields));
        }
        nrd_error_free(err);
        nrd_json_doc_free(root);
        nrd_json_doc_free(fields);
    }
    nrd_str_fini(&all);
}

static void put_answer(nrd_oai_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        nrd_str_puts(&r->out, r->n_choices == 1 ? "" : i ? "," : "[");
        put_whole(&r->out, &r->choices[i], 0, 0);
    }
    nrd_str_puts(&r->out, r->n_choices == 1 ? "" : "]");
}

static void put_chunk(nrd_str *o, nrd_oai_choice *c)
{
    const size_t n = nrd_oai_certain(c), from = c->n_sent < n ? c->n_sent : n;
    if (!c->done && n <= c->n_sent) {
        return;
    }
    nrd_str_puts(o, "data: ");
    if (c->done) {
        put_whole(o, c, from, c->n_log_sent);
    } else {
        put_piece(o, c, from, n - from, c->n_log_sent, true);
        nrd_str_putc(o, '}');
    }
    nrd_str_puts(o, "\n\n");
    c->n_sent = n;
    c->n_log_sent = c->n_log_probs;
}

static void put_last(nrd_str *out, const nrd_oai_request *r)
{
    (void)out; /* the last piece says that it is that */
    (void)r;
}

static void put_error(nrd_str *out, int status, const char *message, const char *param, const char *code)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 503 ? "unavailable_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error";
    (void)param; /* the message begins with it */
    (void)code;
    nrd_str_printf(out, "{\"error\":{\"code\":%d,\"type\":\"%s\",\"message\":", status, type);
    nrd_json_put_cstr(out, message);
    nrd_str_puts(out, "}}");
}

static const char *renamed[][2] = {
    {"max_tokens", "n_predict"}, {"repetition_penalty", "repeat_penalty"}, {"n", "n_cmpl"}, {"guided_json", "json_schema"},
    {"guided_grammar", "grammar"}, {"logprobs", "n_probs"}, {"max_time", "t_max_predict_ms"}, {NULL, NULL}};

#define ANSWERS                                                                                                      \
    .is_chat = false, .id_prefix = "cmpl-", .stream_type = "text/event-stream; charset=utf-8", .before_error = "data: ", \
    .after_error = "\n\n", .renamed = renamed, .put_answer = put_answer, .put_chunk = put_chunk, .put_last = put_last, \
    .put_error = put_error

const nrd_oai_form nrd_oai_form_llama = {.convert = nrd_oai_llama_completion, ANSWERS};
const nrd_oai_form nrd_oai_form_infill = {.convert = nrd_oai_llama_infill, ANSWERS};
