/* SPDX-License-Identifier: Apache-2.0
 * Prompts from files: see nrd_prompts_read. */
#include "tools/load/prompts_internal.h"

#include "base/file.h"
#include "base/json.h"

#include <string.h>

enum { MAX_BYTES = 1 << 30, MAX_TOKENS = 10000000 };

static const nrd_json *string_at(const nrd_json *row, const char *name)
{
    const nrd_json *v = nrd_json_get(row, name);
    return nrd_json_is(v, NRD_JSON_STRING) && v->n > 0 ? v : NULL;
}

/* The first two turns of a conversation: what is asked, and the answer it had. */
static bool from_turns(const nrd_json *turns, nrd_str *prompt, nrd_str *answer)
{
    for (size_t i = 0; i < nrd_json_len(turns); i++) {
        const nrd_json *turn = nrd_json_at(turns, i);
        const char *who = nrd_json_get_str(turn, "from", nrd_json_get_str(turn, "role", ""));
        const nrd_json *text = string_at(turn, "value");
        text = text ? text : string_at(turn, "content");
        const bool is_user = !strcmp(who, "human") || !strcmp(who, "user");
        if (text && is_user && prompt->len == 0) {
            nrd_str_append(prompt, text->str, text->n);
        } else if (text && !is_user && prompt->len > 0) {
            nrd_str_append(answer, text->str, text->n);
            break;
        }
    }
    return prompt->len > 0;
}

static bool from_object(const nrd_json *row, nrd_str *prompt, nrd_str *answer)
{
    static const char *const names[] = {"prompt", "text_input", "text", "input"};
    const nrd_json *turns = nrd_json_get(row, "conversations"), *out = string_at(row, "output");

    if (!turns) {
        turns = nrd_json_get(row, "messages");
    }
    if (out) {
        nrd_str_append(answer, out->str, out->n);
    }
    if (nrd_json_is(turns, NRD_JSON_ARRAY)) {
        return from_turns(turns, prompt, answer);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && prompt->len == 0; i++) {
        const nrd_json *text = string_at(row, names[i]);
        if (text) {
            nrd_str_append(prompt, text->str, text->n);
        }
    }
    const nrd_json *more = string_at(row, "instruction");
    if (more) { /* behind the input: the published data sets are joined in this order */
        nrd_str_puts(prompt, prompt->len ? " " : "");
        nrd_str_append(prompt, more->str, more->n);
    }
    return prompt->len > 0;
}

static int32_t tokens_asked(const nrd_json *row)
{
    static const char *const names[] = {"max_tokens", "output_length", "output_len",
                                        "output_tokens"};
    int64_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && n <= 0; i++) {
        n = nrd_json_get_int(row, names[i], 0);
    }
    return n > 0 && n <= MAX_TOKENS ? (int32_t)n : 0;
}

/* The ids of a row that has them instead of text; false: it has none. */
static bool ids_of(const nrd_json *row, nrd_ids *ids)
{
    const nrd_json *list = nrd_json_get(row, "input_ids");

    for (size_t i = 0; nrd_json_is(list, NRD_JSON_ARRAY) && i < list->n; i++) {
        const int64_t id = nrd_json_int(&list->child[i], -1);
        if (id < 0 || id > INT32_MAX) {
            return false;
        }
        nrd_ids_push(ids, (int32_t)id);
    }
    return ids->n > 0;
}

static nrd_error *add_row(nrd_prompts *p, const nrd_prompts_config *c, nrd_random *r,
                          const nrd_json *row)
{
    nrd_str prompt = {0}, answer = {0};
    nrd_ids ids = {0};
    nrd_error *err = NULL;
    nrd_prompt out = {.max_tokens = tokens_asked(row)};

    if (nrd_json_is(row, NRD_JSON_STRING) && row->n > 0) {
        nrd_str_append(&prompt, row->str, row->n);
    } else if (c->wants_ids && ids_of(row, &ids)) {
        out.ids = ids.ids;
        out.n_in = (int32_t)ids.n;
    } else if (!from_object(row, &prompt, &answer)) {
        if (nrd_json_get(row, "conversations")) {
            goto done; /* published sets have some that nobody began */
        }
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "no text in \"prompt\", \"text_input\", \"text\", \"input\", "
                         "\"messages\" or \"conversations\"");
        goto done;
    }
    if (c->wants_ids && !out.ids) {
        if (!c->tokenizer) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "there is no tokenizer for its text");
            goto done;
        }
        NRD_TRY_GOTO(nrd_tokenizer_encode(c->tokenizer, prompt.data, prompt.len, 0, &ids), err,
                     done);
        out.ids = ids.ids;
        out.n_in = (int32_t)ids.n;
    } else if (!out.ids) {
        out.text = prompt.data;
        out.n_text = prompt.len;
        out.n_in = nrd_prompt_tokens(c->tokenizer, prompt.data, prompt.len);
    }
    if (c->out_is_given || (out.max_tokens == 0 && answer.len == 0)) {
        out.max_tokens = nrd_lengths_draw(&c->out, r);
    } else if (out.max_tokens == 0) {
        out.max_tokens = nrd_prompt_tokens(c->tokenizer, answer.data, answer.len);
        out.max_tokens = out.max_tokens > 0 ? out.max_tokens : 1;
    }
    out.reference = answer.len ? nrd_str_cstr(&answer) : NULL;
    if ((c->max_in <= 0 || out.n_in <= c->max_in) && out.n_in > 0) {
        err = nrd_prompts_add(p, out);
    }
done:
    nrd_str_fini(&prompt);
    nrd_str_fini(&answer);
    nrd_ids_fini(&ids);
    return err;
}

static nrd_error *read_lines(nrd_prompts *p, const nrd_prompts_config *c, nrd_random *r,
                             const char *text, size_t n)
{
    size_t line_no = 0;
    nrd_error *err = NULL;

    for (const char *at = text; at < text + n && !err && (c->n == 0 || p->n < c->n);) {
        const char *end = memchr(at, '\n', (size_t)(text + n - at));
        end = end ? end : text + n;
        line_no++;
        if (strspn(at, " \t\r") < (size_t)(end - at)) {
            nrd_json_doc *doc = NULL;
            err = nrd_json_parse(&doc, at, (size_t)(end - at), NULL);
            err = err ? err : add_row(p, c, r, nrd_json_root(doc));
            nrd_json_doc_free(doc);
        }
        at = end + 1;
    }
    return nrd_error_wrap(err, "line %zu", line_no);
}

nrd_error *nrd_prompts_read(nrd_prompts *p, const char *path, const nrd_prompts_config *c)
{
    nrd_random r = {c->seed};
    nrd_json_doc *doc = NULL;
    char *text = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    NRD_TRY(nrd_file_read(&text, &n, path, MAX_BYTES));
    if (text[strspn(text, " \t\r\n")] != '[') {
        err = read_lines(p, c, &r, text, n);
    } else {
        err = nrd_json_parse(&doc, text, n, NULL);
        const nrd_json *list = nrd_json_root(doc);
        for (size_t i = 0; i < nrd_json_len(list) && !err && (c->n == 0 || p->n < c->n); i++) {
            err = nrd_error_wrap(add_row(p, c, &r, nrd_json_at(list, i)), "entry %zu", i);
        }
    }
    nrd_json_doc_free(doc);
    free(text);
    if (!err && p->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "no prompt (of at most %d tokens)", c->max_in);
    }
    return nrd_error_wrap(err, "%s", path);
}
