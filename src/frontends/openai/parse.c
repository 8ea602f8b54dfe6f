/* SPDX-License-Identifier: Apache-2.0
 * Reasoning and tool calls in the text of an answer.
 *
 * Formats  <think>...</think> before the answer (DeepSeek R1, Qwen3, SmolLM3);
 *          <|channel>thought ... <channel|> there (Gemma 4);
 *          <tool_call>{"name", "arguments"}</tool_call> (Hermes, Qwen, SmolLM3, Granite);
 *          [TOOL_CALLS][{...}] and [TOOL_CALLS]name[ARGS]{...} (Mistral);
 *          the bare object {"name", "parameters"}, maybe behind <|python_tag|> (Llama 3);
 *          functools[{...}] (Phi-4), <|tool_call|>[{...}] (Granite 3);
 *          functions.name:0 between marks and JSON behind them (Kimi K2);
 *          those of call_forms.c, which are not in JSON;
 *          name, a fence and JSON between DeepSeek's marks. */
#include "frontends/openai/internal.h"

#include <ctype.h>
#include <string.h>

/* What stands around reasoning; a prompt may end with the first one's beginning. */
static const struct {
    const char *begin, *end;
} thoughts[] = {{"<think>", "</think>"}, {NRD_OAI_CHANNEL "thought\n", "<channel|>"}};

#define DEEPSEEK_SEP "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>"

static const char *const marks[] = {
    "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>", "functools[",
    "<\xef\xbd\x9ctool\xe2\x96\x81" "calls\xe2\x96\x81" "begin\xef\xbd\x9c>",
    "<function=", "<minimax:tool_call>", "<start_function_call>", "<|tool_call>", "<|tool_calls_section_begin|>",
};
enum { N_MARKS = sizeof marks / sizeof marks[0] };

size_t nrd_oai_partial(const char *text, size_t n, const char *mark, size_t n_mark)
{
    for (size_t k = n_mark - 1 < n ? n_mark - 1 : n; k > 0 && n_mark > 0; k--) {
        if (memcmp(text + n - k, mark, k) == 0) {
            return k;
        }
    }
    return 0;
}

static size_t skip_blank(const char *s, size_t i, size_t n)
{
    while (i < n && isspace((unsigned char)s[i])) {
        i++;
    }
    return i;
}

static size_t trim_blank(const char *s, size_t from, size_t n)
{
    while (n > from && isspace((unsigned char)s[n - 1])) {
        n--;
    }
    return n;
}

/* The length of the JSON object or array at s, by its brackets; 0 when it does not end. */
static size_t json_extent(const char *s, size_t n)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\') {
                i++;
            } else if (s[i] == '"') {
                in_string = false;
            }
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
        } else if ((s[i] == '}' || s[i] == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

typedef struct finder {
    const nrd_oai_parse_options *o;
    nrd_str *calls;
    int n_calls;
} finder;

static bool knows_tool(const nrd_json *tools, const char *name, size_t n)
{
    for (size_t i = 0; i < nrd_json_len(tools); i++) {
        const nrd_json *t = nrd_json_get(nrd_json_get(&tools->child[i], "function"), "name");
        if (nrd_json_is(t, NRD_JSON_STRING) && t->n == n && memcmp(t->str, name, n) == 0) {
            return true;
        }
    }
    return false;
}

void nrd_oai_put_call(nrd_str *o, int index, const nrd_oai_parse_options *options, const char *name, size_t n_name,
                      const char *arguments, size_t n_arguments)
{
    nrd_str_puts(o, index ? ",{" : "{");
    if (options->with_index) {
        nrd_str_printf(o, "\"index\":%d,", index);
    }
    nrd_str_printf(o, "\"id\":\"call_%s_%d\",\"type\":\"function\",\"function\":{\"name\":", options->id, index);
    nrd_json_put_string(o, name, n_name);
    nrd_str_puts(o, ",\"arguments\":");
    nrd_json_put_string(o, arguments, n_arguments);
    nrd_str_puts(o, "}}");
}

static void put_call(finder *f, const char *name, size_t n, const nrd_json *arguments)
{
    nrd_str text = {0};
    if (f->n_calls >= f->o->max_calls) {
        return;
    }
    if (nrd_json_is(arguments, NRD_JSON_STRING)) {
        nrd_str_append(&text, arguments->str, arguments->n);
    } else if (arguments) {
        nrd_json_put(&text, arguments, -1);
    } else {
        nrd_str_puts(&text, "{}");
    }
    nrd_oai_put_call(f->calls, f->n_calls, f->o, name, n, nrd_str_cstr(&text), text.len);
    if (text.no_memory) {
        nrd_str_spoil(f->calls);
    }
    f->n_calls++;
    nrd_str_fini(&text);
}

static bool take_value(finder *f, const nrd_json *v)
{
    bool any = false;
    if (nrd_json_is(v, NRD_JSON_ARRAY)) {
        for (size_t i = 0; i < v->n; i++) {
            any = take_value(f, &v->child[i]) || any;
        }
        return any;
    }
    if (nrd_json_is(nrd_json_get(v, "function"), NRD_JSON_OBJECT)) {
        v = nrd_json_get(v, "function");
    }
    const nrd_json *name = nrd_json_get(v, "name"), *arguments = nrd_json_get(v, "arguments");
    arguments = arguments ? arguments : nrd_json_get(v, "parameters");
    if (!nrd_json_is(name, NRD_JSON_STRING) || !knows_tool(f->o->tools, name->str, name->n)) {
        return false;
    }
    put_call(f, name->str, name->n, arguments);
    return true;
}

/* A call that is not in JSON at s[0..n); gives its bytes, or 0. */
static size_t take_form(finder *f, const char *s, size_t n)
{
    nrd_view name;
    nrd_str arguments = {0};
    const size_t len = s[0] == '<' || s[0] == 'c' ? nrd_oai_read_call_form(s, n, f->o->tools, &name, &arguments) : 0;

    if (len > 0 && f->n_calls < f->o->max_calls) {
        nrd_oai_put_call(f->calls, f->n_calls++, f->o, name.p, name.n, nrd_str_cstr(&arguments), arguments.len);
    }
    if (arguments.no_memory) {
        nrd_str_spoil(f->calls);
    }
    nrd_str_fini(&arguments);
    return len;
}

/* Where the name "functions.name:0" at s[0..n) is. */
static size_t trim_kimi(const char *s, size_t n, size_t *out_n)
{
    const size_t from = n > 10 && !memcmp(s, "functions.", 10) ? 10 : 0;
    const char *colon = memchr(s + from, ':', n - from);
    *out_n = (colon ? (size_t)(colon - s) : n) - from;
    return from;
}

/* The calls in text[0..n), which begins with a mark or behind it. */
static void find_calls(finder *f, const char *s, size_t n)
{
    static const char kimi[] = "<|tool_call_begin|>", kimi_sep[] = "<|tool_call_argument_begin|>";
    size_t name = 0, n_name = 0;
    for (size_t i = 0; i < n;) {
        const size_t form = take_form(f, s + i, n - i);
        if (form > 0) {
            i += form;
            continue;
        }
        if (n - i > sizeof kimi && memcmp(s + i, kimi, sizeof kimi - 1) == 0) {
            name = skip_blank(s, i + sizeof kimi - 1, n);
            const char *end = memmem(s + name, n - name, kimi_sep, sizeof kimi_sep - 1);
            const size_t until = end ? (size_t)(end - s) : name;
            i = until + (end ? sizeof kimi_sep - 1 : 0);
            name += trim_kimi(s + name, trim_blank(s, name, until) - name, &n_name);
            continue;
        }
        size_t sep = sizeof DEEPSEEK_SEP - 1;
        if (n - i > sep && memcmp(s + i, DEEPSEEK_SEP, sep) == 0) {
            name = i + sep;
            const char *end = memchr(s + name, '\n', n - name);
            n_name = end ? trim_blank(s, name, (size_t)(end - s)) - name : 0;
            i = name + n_name;
            continue;
        }
        if (n - i > 6 && memcmp(s + i, "[ARGS]", 6) == 0) {
            name = i;
            while (name > 0 && (isalnum((unsigned char)s[name - 1]) || strchr("_-.", s[name - 1]))) {
                name--;
            }
            n_name = i - name;
            i += 6;
            continue;
        }
        size_t len = s[i] == '{' || s[i] == '[' ? json_extent(s + i, n - i) : 0;
        nrd_json_doc *doc = NULL;
        nrd_error *err = len > 0 ? nrd_json_parse(&doc, s + i, len, NULL) : NULL;
        if (doc && n_name > 0 && knows_tool(f->o->tools, s + name, n_name)) {
            put_call(f, s + name, n_name, nrd_json_root(doc));
        } else if (doc) {
            take_value(f, nrd_json_root(doc));
        }
        if (doc) {
            n_name = 0;
        }
        i += doc ? len : 1;
        nrd_error_free(err);
        nrd_json_doc_free(doc);
    }
}

/* Reads the reasoning at the beginning; gives where the rest begins, or SIZE_MAX: not yet. */
static size_t split_reasoning(const char *s, size_t n, const nrd_oai_parse_options *o,
                              nrd_oai_parsed *out)
{
    size_t i = skip_blank(s, 0, n);
    const char *end_mark = o->think_open ? thoughts[0].end : NULL;

    for (size_t k = 0; k < sizeof thoughts / sizeof thoughts[0]; k++) {
        const size_t len = strlen(thoughts[k].begin);
        if (n - i >= len && memcmp(s + i, thoughts[k].begin, len) == 0) {
            i += len;
            end_mark = thoughts[k].end;
            break;
        }
        if (!o->final && n - i < len && memcmp(s + i, thoughts[k].begin, n - i) == 0) {
            return SIZE_MAX; /* "<thi": it shows with the next token */
        }
    }
    if (!end_mark) {
        return 0;
    }
    const size_t end_think = strlen(end_mark);
    i = skip_blank(s, i, n);
    const char *end = memmem(s + i, n - i, end_mark, end_think);
    size_t stop = end ? (size_t)(end - s)
                      : n - (o->final ? 0 : nrd_oai_partial(s + i, n - i, end_mark, end_think));
    out->reasoning = s + i;
    out->n_reasoning = trim_blank(s, i, stop) - i;
    return end ? skip_blank(s, stop + end_think, n) : SIZE_MAX;
}

void nrd_oai_parse(const char *s, size_t n, const nrd_oai_parse_options *o, nrd_str *calls,
                   nrd_oai_parsed *out)
{
    finder f = {.o = o, .calls = calls};
    size_t rest, mark = SIZE_MAX, behind = 0, hold = 0;

    *out = (nrd_oai_parsed){.content = s};
    rest = split_reasoning(s, n, o, out);
    const bool keeps = o->keep_reasoning && out->reasoning;
    out->reasoning = out->reasoning && !keeps ? out->reasoning : s;
    out->n_reasoning = keeps ? 0 : out->n_reasoning;
    if (rest == SIZE_MAX) {
        out->n_content = keeps ? n : 0;
        return;
    }
    const size_t from = keeps ? 0 : rest;
    out->content = s + from;
    out->n_content = n - from;
    if (!o->tools) {
        return;
    }
    for (size_t k = 0; k < N_MARKS; k++) {
        size_t len = strlen(marks[k]);
        const char *hit = memmem(s + rest, n - rest, marks[k], len);
        if (hit && (size_t)(hit - s) < mark) {
            mark = (size_t)(hit - s);
            behind = marks[k][0] == '<' ? mark : mark + (marks[k][len - 1] == '[' ? len - 1 : len);
        }
        size_t partial = nrd_oai_partial(s + rest, n - rest, marks[k], len);
        hold = partial > hold ? partial : hold;
    }
    size_t first = skip_blank(s, rest, n);
    if (mark == SIZE_MAX && first < n && (s[first] == '{' || s[first] == '[')) {
        mark = behind = first; /* maybe a bare call: known at the end */
    }
    if (mark != SIZE_MAX && o->final) {
        find_calls(&f, s + behind, n - behind);
        out->n_calls = f.n_calls;
        if (f.n_calls == 0) {
            return; /* no call: all of it is content */
        }
    }
    if (mark == SIZE_MAX) {
        hold = o->final ? 0 : hold;
        out->n_content -= hold;
        if (!o->final) { /* blanks before a call do not belong to the content */
            out->n_content = trim_blank(s, rest, from + out->n_content) - from;
        }
        return;
    }
    out->pending = !o->final;
    out->n_content = trim_blank(s, rest, mark) - from;
}
