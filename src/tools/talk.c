/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/talk.h"

#include "tools/line.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20 };

static const char commands[] =
    "  /help            these lines\n"
    "  /set NAME VALUE  temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens; alone: what is set\n"
    "  /system TEXT     another system prompt and a new conversation; alone: the one there is\n"
    "  /image FILE      a picture before the next message, for models that see\n"
    "  /regen           another answer to the last message\n"
    "  /save FILE       keep the conversation in a file; /load FILE goes on with one\n"
    "  /clear           a new conversation\n"
    "  /exit            the end (also Ctrl-D)\n"
    "  \"\"\"              begins and ends a message of several lines\n";

typedef struct {
    const char *role; /* static */
    char *text, *json; /* the whole message as JSON */
} message;

typedef struct {
    const nrd_talk *t;
    nrd_line *line;
    message *list;
    size_t n, cap;
    bool told_to_leave;
} talk;

/* ---- messages ---- */

static void add(talk *k, const char *role, const char *text, size_t n)
{
    nrd_str json = {0};
    if (k->n == k->cap) {
        k->cap = k->cap ? 2 * k->cap : 16;
        k->list = nrd_xrealloc(k->list, k->cap * sizeof *k->list);
    }
    nrd_str_printf(&json, "{\"role\":\"%s\",\"content\":", role);
    k->t->put_content(k->t->user, &json, text, n, !strcmp(role, "user"));
    nrd_str_putc(&json, '}');
    char *copy = nrd_xcalloc(n + 1, 1);
    memcpy(copy, text, n);
    k->list[k->n++] = (message){.role = role, .text = copy, .json = nrd_str_steal(&json)};
}

static void drop(talk *k, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        free(k->list[i].text);
        free(k->list[i].json);
    }
    memmove(k->list + first, k->list + first + n, (k->n - first - n) * sizeof *k->list);
    k->n -= n;
}

static bool is_by(const talk *k, size_t i, const char *role)
{
    return i < k->n && !strcmp(k->list[i].role, role);
}

static void begin(talk *k, const char *system)
{
    drop(k, 0, k->n);
    k->t->forget_pictures(k->t->user);
    if (system && system[0]) {
        add(k, "system", system, strlen(system));
    }
}

static void tell(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        nrd_error_free(err);
    }
}

/* The oldest message and what answers it go, never the last one. Pictures belong to places in the text: then none goes. */
static bool drop_oldest(talk *k)
{
    const size_t first = is_by(k, 0, "system");
    size_t n = 1;
    while (first + n < k->n && !is_by(k, first + n, "user")) {
        n++;
    }
    if (first + n >= k->n || k->t->has_pictures(k->t->user)) {
        return false;
    }
    drop(k, first, n);
    return true;
}

/* The last message was not answered: as if it had not come, nor its pictures. */
static void take_back(talk *k)
{
    drop(k, k->n - 1, 1);
    k->t->take_back_pictures(k->t->user);
}

/* Answers the last message, which is the user's. What a request is refused for is told. */
static nrd_error *answer(talk *k)
{
    nrd_error *err = NULL;
    nrd_str text = {0}, list = {0};
    size_t too_many = 0;
    bool dropped = false;

    do {
        nrd_str_clear(&list);
        nrd_str_putc(&list, '[');
        for (size_t i = 0; i < k->n; i++) {
            nrd_str_printf(&list, "%s%s", i > 0 ? "," : "", k->list[i].json);
        }
        nrd_str_putc(&list, ']');
        err = k->t->answer(k->t->user, &list, &text, &too_many);
        dropped = dropped || too_many > 0;
    } while (!err && too_many > 0 && drop_oldest(k));
    if (!err && too_many > 0) {
        fprintf(stderr, "%zu tokens; the model takes %d%s\n", too_many, k->t->max_prompt,
                k->n > 2 ? ": /clear begins anew" : "");
        take_back(k);
    } else if (err && (nrd_error_get_code(err) == NRD_ERR_INVALID_ARG || nrd_error_get_code(err) == NRD_ERR_UNSUPPORTED)) {
        tell(err);
        err = NULL;
        take_back(k);
    } else if (!err) {
        add(k, "assistant", nrd_str_cstr(&text), text.len);
        if (dropped) {
            fprintf(stderr, "(the model takes %d tokens: the oldest messages were left out)\n", k->t->max_prompt);
        }
    }
    nrd_str_fini(&text);
    nrd_str_fini(&list);
    return err;
}

/* ---- commands ---- */

static nrd_error *save(const talk *k, const char *path)
{
    nrd_str out = {0};
    nrd_str_puts(&out, "[");
    for (size_t i = 0; i < k->n; i++) {
        nrd_str_printf(&out, "%s\n  {\"role\": \"%s\", \"content\": ", i > 0 ? "," : "", k->list[i].role);
        nrd_json_put_cstr(&out, k->list[i].text);
        nrd_str_putc(&out, '}');
    }
    nrd_str_puts(&out, "\n]\n");
    nrd_error *err = nrd_file_write(path, out.data, out.len);
    nrd_str_fini(&out);
    return err;
}

static const char *known_role(const char *role)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++) {
        if (!strcmp(role, roles[i])) {
            return roles[i];
        }
    }
    return NULL;
}

/* A list of messages as OpenAI's clients send it; the page exports and imports such lists too. */
static nrd_error *load(talk *k, const char *path)
{
    nrd_json_doc *doc = NULL;
    char *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_file_read(&text, &n, path, MAX_FILE_BYTES);

    NRD_TRY_GOTO(err, err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, text, n, NULL), err, done);
    const nrd_json *list = nrd_json_root(doc);
    if (!nrd_json_is(list, NRD_JSON_ARRAY)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected a list of messages", path);
        goto done;
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *m = nrd_json_at(list, i);
        if (!known_role(nrd_json_get_str(m, "role", NULL)) || !nrd_json_get_str(m, "content", NULL)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: message %zu: expected a role (system, user, assistant) and a content, a text",
                             path, i + 1);
            goto done;
        }
    }
    begin(k, NULL);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *m = nrd_json_at(list, i);
        const char *content = nrd_json_get_str(m, "content", "");
        add(k, known_role(nrd_json_get_str(m, "role", NULL)), content, strlen(content));
    }
    fprintf(stderr, "%zu messages\n", k->n);
done:
    nrd_json_doc_free(doc);
    free(text);
    return err;
}

static nrd_error *set(const talk *k, char *words)
{
    char *value = words ? words + strcspn(words, " ") : NULL;
    if (!words) {
        nrd_str out = {0};
        k->t->put_settings(k->t->user, &out);
        fputs(nrd_str_cstr(&out), stderr);
        nrd_str_fini(&out);
        return NULL;
    }
    if (!*value) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "/set %s: a value is missing", words);
    }
    *value++ = '\0';
    return k->t->set(k->t->user, words, value);
}

static nrd_error *regenerate(talk *k)
{
    if (k->n == 0 || !is_by(k, k->n - 1, "assistant")) {
        fputs("there is no answer yet\n", stderr);
        return NULL;
    }
    drop(k, k->n - 1, 1);
    if (k->n == 0 || !is_by(k, k->n - 1, "user")) {
        fputs("there is no message to answer\n", stderr);
        return NULL;
    }
    return answer(k);
}

static void on_system(talk *k, const char *text)
{
    if (text) {
        begin(k, text);
    } else {
        fprintf(stderr, "%s\n", is_by(k, 0, "system") ? k->list[0].text : "there is no system prompt");
    }
}

/* With the system prompt that there is. */
static void clear(talk *k)
{
    char *system = is_by(k, 0, "system") ? nrd_xstrdup(k->list[0].text) : NULL;
    begin(k, system);
    free(system);
}

/* "/usr/bin has what?" is a message: a command is letters alone. */
static bool is_command(const char *line)
{
    size_t n = 1;
    while (line[0] == '/' && (isalpha((unsigned char)line[n]) || line[n] == '?')) {
        n++;
    }
    return n > 1 && (line[n] == '\0' || line[n] == ' ');
}

/* Changes `line`. *out_end: the conversation is over. */
static nrd_error *command(talk *k, char *line, bool *out_end)
{
    char *rest = line + strcspn(line, " ");
    const bool more = *rest != '\0';
    *rest = '\0';
    rest = more ? rest + 1 + strspn(rest + 1, " ") : NULL;
    rest = rest && *rest ? rest : NULL;
#define IS(word) (!strcmp(line, word))
    if (IS("/exit") || IS("/quit") || IS("/bye")) {
        *out_end = true;
    } else if (IS("/help") || IS("/?")) {
        fputs(commands, stderr);
    } else if (IS("/clear")) {
        clear(k);
    } else if (IS("/system")) {
        on_system(k, rest);
    } else if (IS("/set")) {
        tell(set(k, rest));
    } else if (IS("/regen")) {
        return regenerate(k);
    } else if (IS("/image") || IS("/save") || IS("/load")) {
        tell(!rest         ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a file is missing", line)
             : IS("/image") ? k->t->add_picture(k->t->user, rest)
             : IS("/save")  ? save(k, rest)
                            : load(k, rest));
    } else {
        fprintf(stderr, "unknown command %s; /help lists them\n", line);
    }
#undef IS
    return NULL;
}

/* ---- lines ---- */

/* The lines up to the next """ behind the one in *text. */
static nrd_line_result read_rest(talk *k, nrd_str *text)
{
    nrd_str whole = {0}, line = {0};
    const char *end = NULL;
    nrd_line_result r = NRD_LINE_TEXT;

    nrd_str_append(&line, text->data + 3, text->len - 3);
    while (r == NRD_LINE_TEXT && !(end = strstr(nrd_str_cstr(&line), "\"\"\""))) {
        if (whole.len > 0 || line.len > 0) {
            nrd_str_printf(&whole, "%s\n", nrd_str_cstr(&line));
        }
        r = nrd_line_read(k->line, "... ", &line);
    }
    if (end) {
        nrd_str_append(&whole, line.data, (size_t)(end - line.data));
    }
    nrd_str_fini(&line);
    nrd_str_fini(text);
    *text = whole;
    return r;
}

/* Ctrl-C throws away what was typed; where there was nothing, it tells how to leave, and the second one leaves. */
static bool leaves(talk *k, const nrd_str *line)
{
    if (!nrd_line_is_terminal(k->line)) {
        return true;
    }
    if (line->len > 0) {
        return false;
    }
    if (!k->told_to_leave) {
        fputs("Ctrl-C again, Ctrl-D or /exit ends.\n", stderr);
        k->told_to_leave = true;
        return false;
    }
    return true;
}

nrd_error *nrd_talk_run(const nrd_talk *t)
{
    talk k = {.t = t, .line = nrd_line_new()};
    nrd_str line = {0};
    nrd_error *err = NULL;
    bool end = false;

    begin(&k, t->system);
    if (nrd_line_is_terminal(k.line)) {
        fprintf(stderr, "%s, %d tokens; /help lists the commands\n", t->name, t->max_tokens);
    }
    while (!err && !end) {
        nrd_line_result r = nrd_line_read(k.line, "> ", &line);
        if (r == NRD_LINE_TEXT && nrd_str_has_prefix(nrd_str_cstr(&line), "\"\"\"")) {
            r = read_rest(&k, &line);
        }
        if (r == NRD_LINE_INTERRUPTED) {
            end = leaves(&k, &line);
            continue;
        }
        end = r == NRD_LINE_END;
        k.told_to_leave = false;
        if (!end && is_command(nrd_str_cstr(&line))) {
            err = command(&k, line.data, &end);
        } else if (!end && line.len > 0) {
            add(&k, "user", line.data, line.len);
            err = answer(&k);
        }
    }
    drop(&k, 0, k.n);
    free(k.list);
    nrd_line_free(k.line);
    nrd_str_fini(&line);
    return err;
}
