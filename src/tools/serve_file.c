/* SPDX-License-Identifier: Apache-2.0
 * The file of `nereid serve --config FILE`: options in the form that vLLM's --config has, a small part of YAML. Its words
 * stand before those of the command line, which so win; those of --extra_llm_api_options behind it, as in the original. */
#include "tools/serve_internal.h"

#include "tools/llm_api.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20 };

/* "a \" b", 'a '' b', or a text up to its comment: as it is meant. Owned by the caller; NULL: a quote is not closed. */
static char *value_of(const char *s, size_t n)
{
    nrd_str out = {0};
    const char quote = n > 0 && (*s == '"' || *s == '\'') ? *s : '\0';
    bool is_closed = !quote;

    for (size_t i = quote ? 1 : 0; i < n && !(quote && is_closed); i++) {
        const bool doubled = quote && i + 1 < n && (quote == '"' ? s[i] == '\\' : s[i] == '\'' && s[i + 1] == '\'');
        if (!quote && s[i] == '#' && (i == 0 || s[i - 1] == ' ' || s[i - 1] == '\t')) {
            break;
        }
        if (quote && !doubled && s[i] == quote) {
            is_closed = true;
            continue;
        }
        i += doubled;
        nrd_str_putc(&out, s[i]);
    }
    while (!quote && out.len > 0 && strchr(" \t", out.data[out.len - 1])) {
        out.data[--out.len] = '\0';
    }
    char *text = is_closed ? nrd_xstrdup(nrd_str_cstr(&out)) : NULL;
    nrd_str_fini(&out);
    return text;
}

typedef struct reader {
    nrd_serve_words *out;
    char *name; /* of the newest option; owned */
    enum { CLOSED, OPEN, LIST } state; /* it had a value; it stands alone so far; it has values on lines of their own */
} reader;

static nrd_error *add(reader *r, bool is_item, char *value)
{
    nrd_error *err = NULL;

    if (!value || *value == '[' || (is_item && !*value)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, !value         ? "a quote is not closed"
                                              : *value == '[' ? "a list has its values on lines of their own, behind '- '"
                                                              : "a value is missing behind '-'");
    } else {
        if (r->state == OPEN && is_item) { /* what stood alone is a list */
            free(r->out->v[--r->out->n]);
        }
        r->state = is_item ? LIST : *value ? CLOSED : OPEN;
        err = nrd_serve_add_word(r->out, *value ? nrd_xasprintf("--%s=%s", r->name, value) : nrd_xasprintf("--%s", r->name));
    }
    free(value);
    return err;
}

/* name: value, or - value of the list that began with name:. */
static nrd_error *read_line(reader *r, const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const char *item = s + strspn(s, " ");
    const bool is_item = *item == '-' && (item[1] == ' ' || item[1] == '\0');
    const char *rest = is_item ? item + 1 : s + strspn(s, letters);

    if (is_item ? r->state == CLOSED : rest == s || *rest != ':' || (rest[1] != ' ' && rest[1] != '\0')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected 'option: value', or '- value' below 'option:'");
    }
    if (!is_item) {
        free(r->name);
        r->name = nrd_xstrndup(s, (size_t)(rest - s));
        r->state = CLOSED;
        rest++;
    }
    rest += strspn(rest, " ");
    return add(r, is_item, value_of(rest, strlen(rest)));
}

nrd_error *nrd_serve_read_text(nrd_serve_words *out, char *text)
{
    reader r = {.out = out};
    size_t line = 0;
    nrd_error *err = NULL;

    for (char *s = text; !err && *s;) {
        char *end = s + strcspn(s, "\n"), *next = *end ? end + 1 : end;
        while (end > s && strchr(" \t\r", end[-1])) {
            end--;
        }
        *end = '\0';
        line++;
        const char *first = s + strspn(s, " \t");
        if (*first && *first != '#' && strcmp(s, "---") != 0) {
            err = nrd_error_wrap(read_line(&r, s), "line %zu", line);
        }
        s = next;
    }
    free(r.name);
    return err;
}

nrd_error *nrd_serve_read_file(nrd_serve_words *out, const char *path, nrd_error *(*read)(nrd_serve_words *out, char *text))
{
    char *text = NULL;
    size_t n = 0;

    NRD_TRY(nrd_file_read(&text, &n, path, MAX_BYTES));
    nrd_error *err = strlen(text) == n ? read(out, text)
                                       : nrd_errorf(NRD_ERR_INVALID_ARG, "holds the character NUL, so it is no text");
    free(text);
    return nrd_error_wrap(err, "%s", path);
}

/* Whether a word is this option; *out_value: what stands behind its "=", or NULL. */
static bool names_file(const char *word, const char *option, const char **out_value)
{
    const size_t n = strlen(option);

    if (strncmp(word, "--", 2) != 0 || nrd_opts_distance(word + 2, strcspn(word + 2, "="), option) != 0) {
        return false;
    }
    *out_value = word[2 + n] ? word + 2 + n + 1 : NULL;
    return true;
}

/* The place in argv of the first such option, 0: there is none; *out_words: how many of argv it takes. */
static int find_file(int argc, char **argv, const char *option, const char **out_path, int *out_words)
{
    const char *value = NULL;

    *out_path = NULL;
    for (int i = 1; i < argc; i++) {
        if (names_file(argv[i], option, &value)) {
            *out_path = value ? value : argv[i + 1]; /* NULL at the end: reading the options says that it is missing */
            *out_words = value ? 1 : 2;
            return *out_path ? i : 0;
        }
    }
    return 0;
}

static nrd_error *read_llm_api(nrd_serve_words *out, char *text)
{
    return nrd_llm_api_read(out, &(nrd_llm_api_reader){.program = "nereid serve"}, text);
}

nrd_error *nrd_serve_with_file(nrd_serve_words *out, int argc, char **argv)
{
    static const char llm_api[] = "extra_llm_api_options";
    const char *path, *api_path;
    int n = 0, n_api = 0;
    const int given = find_file(argc, argv, "config", &path, &n), api_given = find_file(argc, argv, llm_api, &api_path, &n_api);

    NRD_TRY(nrd_serve_add_word(out, nrd_xstrdup(argv[0])));
    NRD_TRY(path ? nrd_error_wrap(nrd_serve_read_file(out, path, nrd_serve_read_text), "--config") : NULL);
    for (int i = 1; i < argc; i++) {
        if ((!given || i < given || i >= given + n) && (!api_given || i < api_given || i >= api_given + n_api)) {
            NRD_TRY(nrd_serve_add_word(out, nrd_xstrdup(argv[i])));
        }
    }
    return api_path ? nrd_error_wrap(nrd_serve_read_file(out, api_path, read_llm_api), "--%s", llm_api) : NULL;
}
