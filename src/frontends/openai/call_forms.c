/* SPDX-License-Identifier: Apache-2.0
 * Tool calls that are not written in JSON: their arguments become JSON here.
 *
 * Formats  <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> (GLM 4.5 and later);
 *          <function=name><parameter=k>v</parameter></function> (Qwen3-Coder, Nemotron 3);
 *          <invoke name="name"><parameter name="k">v</parameter></invoke> (MiniMax-M2);
 *          call:name{k:<escape>text<escape>,n:5} (FunctionGemma), with <|"|> around texts (Gemma 4).
 * Source: the chat templates of these models. */
#include "frontends/openai/internal.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { MAX_NESTING = 32 }; /* of Gemma's values */

typedef struct reader {
    const char *s;
    size_t i, n;
} reader;

static bool take(reader *r, const char *text)
{
    size_t k = strlen(text);
    if (r->n - r->i < k || memcmp(r->s + r->i, text, k) != 0) {
        return false;
    }
    r->i += k;
    return true;
}

static void skip_blank(reader *r)
{
    while (r->i < r->n && isspace((unsigned char)r->s[r->i])) {
        r->i++;
    }
}

/* The text before `end`, which is read too; p NULL: it does not come. */
static nrd_view take_until(reader *r, const char *end)
{
    const char *from = r->s + r->i, *hit = memmem(from, r->n - r->i, end, strlen(end));
    if (!hit) {
        return (nrd_view){NULL, 0};
    }
    r->i += (size_t)(hit - from) + strlen(end);
    return (nrd_view){from, (size_t)(hit - from)};
}

static nrd_view take_name(reader *r)
{
    size_t from = r->i;
    while (r->i < r->n && (isalnum((unsigned char)r->s[r->i]) || memchr("_-.", r->s[r->i], 3))) {
        r->i++;
    }
    return (nrd_view){r->s + from, r->i - from};
}

static nrd_view trimmed(nrd_view v)
{
    while (v.n > 0 && isspace((unsigned char)v.p[0])) {
        v.p++;
        v.n--;
    }
    while (v.n > 0 && isspace((unsigned char)v.p[v.n - 1])) {
        v.n--;
    }
    return v;
}

/* ---- values ---- */

static const nrd_json *member(const nrd_json *object, nrd_view name)
{
    for (size_t i = 0; nrd_json_is(object, NRD_JSON_OBJECT) && i < object->n; i++) {
        if (object->child[i].key_len == name.n && memcmp(object->child[i].key, name.p, name.n) == 0) {
            return &object->child[i];
        }
    }
    return NULL;
}

/* The schemas of a tool's parameters; NULL: no tool of this name, or it has none. */
static const nrd_json *find_properties(const nrd_json *tools, nrd_view name, bool *out_known)
{
    *out_known = false;
    for (size_t i = 0; i < nrd_json_len(tools); i++) {
        const nrd_json *f = nrd_json_get(&tools->child[i], "function"), *known = nrd_json_get(f, "name");
        if (nrd_json_is(known, NRD_JSON_STRING) && known->n == name.n && memcmp(known->str, name.p, name.n) == 0) {
            *out_known = true;
            return nrd_json_get(nrd_json_get(f, "parameters"), "properties");
        }
    }
    return NULL;
}

/* A value that stands in a tag is text where its schema says so, and else what it is as JSON, or text. */
static void put_value(nrd_str *out, const nrd_json *properties, nrd_view key, nrd_view v)
{
    const char *type = nrd_json_get_str(member(properties, key), "type", "");
    const nrd_view bare = trimmed(v);
    nrd_json_doc *doc = NULL;

    if (!strcmp(type, "boolean") && ((bare.n == 4 && !strncasecmp(bare.p, "true", 4)) || (bare.n == 5 && !strncasecmp(bare.p, "false", 5)))) {
        nrd_str_puts(out, bare.n == 4 ? "true" : "false"); /* Python's have capitals */
        return;
    }
    if (strcmp(type, "string") != 0) {
        nrd_error_free(nrd_json_parse(&doc, bare.p, bare.n, NULL));
    }
    if (doc) {
        nrd_json_put(out, nrd_json_root(doc), -1);
    } else {
        nrd_json_put_string(out, v.p, v.n);
    }
    nrd_json_doc_free(doc);
}

static void put_argument(nrd_str *out, const nrd_json *properties, nrd_view key, nrd_view value)
{
    nrd_str_puts(out, out->len > 1 ? "," : "");
    nrd_json_put_string(out, key.p, key.n);
    nrd_str_putc(out, ':');
    put_value(out, properties, key, value);
}

/* One line end on either side belongs to the form. */
static nrd_view without_line_ends(nrd_view v)
{
    if (v.n > 0 && v.p[0] == '\n') {
        v.p++;
        v.n--;
    }
    v.n -= v.n > 0 && v.p[v.n - 1] == '\n';
    return v;
}

/* ---- tags ---- */

/* Arguments of GLM, behind the name. */
static bool read_pairs(reader *r, const nrd_json *properties, nrd_str *out)
{
    for (skip_blank(r); take(r, "<arg_key>"); skip_blank(r)) {
        const nrd_view key = take_until(r, "</arg_key>");
        skip_blank(r);
        const nrd_view value = key.p && take(r, "<arg_value>") ? take_until(r, "</arg_value>") : (nrd_view){NULL, 0};
        if (!value.p) {
            return false;
        }
        put_argument(out, properties, trimmed(key), value);
    }
    return take(r, "</tool_call>");
}

/* Arguments of Qwen3-Coder and MiniMax-M2, behind the name. */
static bool read_parameters(reader *r, const nrd_json *properties, const char *begin, const char *behind_key, const char *end, nrd_str *out)
{
    for (skip_blank(r); take(r, begin); skip_blank(r)) {
        const nrd_view key = take_until(r, behind_key);
        const nrd_view value = key.p ? take_until(r, "</parameter>") : (nrd_view){NULL, 0};
        if (!value.p) {
            return false;
        }
        put_argument(out, properties, trimmed(key), without_line_ends(value));
    }
    return take(r, end);
}

/* ---- Gemma ---- */

static const char *const quotes[] = {"<escape>", "<|\"|>"};

static bool put_quoted(reader *r, nrd_str *out, bool *out_is)
{
    *out_is = false;
    for (size_t k = 0; k < sizeof quotes / sizeof quotes[0]; k++) {
        if (take(r, quotes[k])) {
            const nrd_view text = take_until(r, quotes[k]);
            *out_is = true;
            if (text.p) {
                nrd_json_put_string(out, text.p, text.n);
            }
            return text.p;
        }
    }
    return true;
}

/* A number or a word. */
static bool put_word(reader *r, nrd_str *out)
{
    const size_t from = r->i;
    while (r->i < r->n && !memchr(",}]", r->s[r->i], 3)) {
        r->i++;
    }
    const nrd_view word = trimmed((nrd_view){r->s + from, r->i - from});
    if (word.n > 0) {
        put_value(out, NULL, (nrd_view){"", 0}, word);
    }
    return word.n > 0 && r->i < r->n;
}

static bool put_gemma(reader *r, int depth, nrd_str *out)
{
    const bool object = take(r, "{");
    bool quoted;

    if (!object && !take(r, "[")) {
        return put_quoted(r, out, &quoted) && (quoted || put_word(r, out));
    }
    const char *end = object ? "}" : "]";
    nrd_str_putc(out, object ? '{' : '[');
    for (skip_blank(r); !take(r, end); skip_blank(r)) {
        if (depth == MAX_NESTING || r->i == r->n) {
            return false;
        }
        if (object) {
            if (!put_quoted(r, out, &quoted)) {
                return false;
            }
            const nrd_view key = quoted ? (nrd_view){"", 0} : trimmed(take_until(r, ":"));
            if (!quoted && key.n == 0) {
                return false;
            }
            if (!quoted) {
                nrd_json_put_string(out, key.p, key.n);
            } else if (!take(r, ":")) {
                return false;
            }
            nrd_str_putc(out, ':');
            skip_blank(r);
        }
        if (!put_gemma(r, depth + 1, out)) {
            return false;
        }
        skip_blank(r);
        if (take(r, ",")) {
            nrd_str_putc(out, ',');
        } else if (r->i == r->n || r->s[r->i] != end[0]) {
            return false;
        }
    }
    nrd_str_putc(out, object ? '}' : ']');
    return true;
}

/* ---- whatever it is ---- */

size_t nrd_oai_read_call_form(const char *s, size_t n, const nrd_json *tools, nrd_view *name, nrd_str *arguments)
{
    reader r = {s, 0, n};
    const bool glm = take(&r, "<tool_call>"), qwen = !glm && take(&r, "<function=");
    const bool minimax = !glm && !qwen && take(&r, "<invoke name="), gemma = !glm && !qwen && !minimax && take(&r, "call:");
    bool known = false, whole = false;

    if (!glm && !qwen && !minimax && !gemma) {
        return 0;
    }
    if (glm) {
        skip_blank(&r);
    } else if (minimax) {
        take(&r, "\"");
    }
    *name = take_name(&r);
    const nrd_json *properties = find_properties(tools, *name, &known);
    nrd_str_clear(arguments);
    if (!known) {
        return 0;
    }
    if (gemma) {
        whole = r.i < n && s[r.i] == '{' && put_gemma(&r, 0, arguments);
    } else {
        nrd_str_putc(arguments, '{');
        if (glm) {
            whole = read_pairs(&r, properties, arguments);
        } else if (qwen) {
            whole = take(&r, ">") && read_parameters(&r, properties, "<parameter=", ">", "</function>", arguments);
        } else {
            take(&r, "\"");
            whole = take(&r, ">") && read_parameters(&r, properties, "<parameter name=\"", "\">", "</invoke>", arguments);
        }
        nrd_str_putc(arguments, '}');
    }
    return whole ? r.i : 0;
}
