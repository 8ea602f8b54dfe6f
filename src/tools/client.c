/* SPDX-License-Identifier: Apache-2.0
 * nereid client: asks a server, one text or many. */
#include "tools/tools.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "tools/load/api.h"
#include "tools/load/connection.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid client generate|chat|completions|infer [URL] [options]\n\n"
    "Asks a server: generate (Triton's generate extension), chat and completions (the OpenAI API), "
    "infer (a\n"
    "request of KServe's protocol from --body). URL is that of its HTTP service, by default\n"
    "http://localhost:8000. Without --prompt each line of the standard input is a prompt; "
    "--concurrency of\n"
    "them are asked at a time, and the answers come in the order of the lines.\n";

enum { MAX_PROMPT = 16 << 20, MAX_PROMPTS = 1000000 };

typedef struct {
    nrd_connection connection; /* first: NRD_CONNECTION_OPTION_ROWS */
    const char *prompt, *body, *system;
    int32_t max_tokens, concurrency;
    bool no_stream, json;
} options;

typedef struct client client;

typedef struct question {
    client *c;
    nrd_str body, answer, error;
    bool is_done;
} question;

struct client {
    const options *o;
    const char *url;
    nrd_api api;
    void *http;
    question *questions; /* [n] */
    size_t n, n_sent, n_open, n_shown;
    nrd_piece piece;
    bool has_failed;
};

/* ---- answers ---- */

static void show_part(const client *c, const nrd_str *text)
{
    if (c->n == 1 && !c->o->json) {
        fwrite(text->data, 1, text->len, stdout);
        fflush(stdout);
    }
}

static void on_piece(void *tag, int status, const char *data, size_t n)
{
    question *q = tag;
    client *c = q->c;

    nrd_api_read(&c->api, data, n, &c->piece);
    if (status != 200 || c->piece.is_error) {
        if (q->error.len == 0) {
            nrd_str_printf(&q->error, "status %d: ", status);
            nrd_str_append(&q->error, c->piece.is_error ? c->piece.text.data : data,
                           c->piece.is_error ? c->piece.text.len : n);
        }
        return;
    }
    nrd_str_append(&q->answer, c->piece.text.data, c->piece.text.len);
    show_part(c, &c->piece.text);
}

static void on_end(void *tag, int status, const char *why)
{
    question *q = tag;
    if (why && q->error.len == 0) {
        nrd_str_printf(&q->error, "%s: %s", q->c->url, why);
    } else if (status != 200 && q->error.len == 0) {
        nrd_str_printf(&q->error, "status %d", status);
    }
    q->is_done = true;
    q->c->n_open--;
}

/* Answers that are complete and whose turn it is. One that was shown as it came gets its end of line. */
static void show_done(client *c)
{
    for (; c->n_shown < c->n && c->questions[c->n_shown].is_done; c->n_shown++) {
        question *q = &c->questions[c->n_shown];
        nrd_str line = {0};
        if (q->error.len > 0) {
            c->has_failed = true;
            fprintf(stderr, "nereid client: prompt %zu: %s\n", c->n_shown + 1,
                    nrd_str_cstr(&q->error));
        }
        if (c->o->json) {
            nrd_str_puts(&line, q->error.len ? "{\"error\": " : "{\"text\": ");
            const nrd_str *text = q->error.len ? &q->error : &q->answer;
            nrd_json_put_string(&line, nrd_str_cstr(text), text->len);
            nrd_str_putc(&line, '}');
        } else if (c->n > 1) {
            nrd_str_put(&line, &q->answer);
        }
        if (c->n > 1 || c->o->json || q->answer.len > 0 || q->error.len == 0) { /* none behind an error alone */
            nrd_str_putc(&line, '\n');
        }
        fwrite(line.data, 1, line.len, stdout);
        fflush(stdout);
        nrd_str_fini(&line);
        nrd_str_fini(&q->answer);
    }
}

static void run_all(client *c)
{
    enum { TICK_NS = 1000000000 };
    while (c->n_shown < c->n) {
        while (c->n_sent < c->n && c->n_open < (size_t)c->o->concurrency) {
            question *q = &c->questions[c->n_sent++];
            c->n_open++;
            nrd_http_carrier.post(c->http, q, nrd_str_cstr(&q->body), q->body.len);
        }
        if (c->n_open > 0) {
            nrd_http_carrier.wait(c->http, nrd_now_ns() + TICK_NS);
        }
        show_done(c);
    }
}

/* ---- questions ---- */

static nrd_error *add_question(client *c, const char *text, size_t n)
{
    const nrd_prompt p = {.text = text, .n_text = n, .max_tokens = c->o->max_tokens};
    if (c->n == MAX_PROMPTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d prompts", MAX_PROMPTS);
    }
    if ((c->n & (c->n - 1)) == 0) {
        c->questions = nrd_xrealloc(c->questions, (c->n > 0 ? 2 * c->n : 1) * sizeof *c->questions);
    }
    question *q = &c->questions[c->n++];
    *q = (question){.c = c};
    return nrd_api_body(&c->api, &p, &q->body);
}

static nrd_error *read_lines(client *c)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    nrd_error *err = NULL;

    while (!err && (n = getline(&line, &cap, stdin)) >= 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
            n--;
        }
        if (n > MAX_PROMPT) {
            err =
                nrd_errorf(NRD_ERR_INVALID_ARG, "line %zu: a prompt of more than 16 MiB", c->n + 1);
        } else if (n > 0) {
            err = add_question(c, line, (size_t)n);
        }
    }
    free(line);
    if (!err && c->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "no prompt: --prompt TEXT, or lines on the standard input");
    }
    return err;
}

static nrd_error *read_questions(client *c)
{
    enum { MAX_BODY = 64 << 20 };
    if (c->o->body) {
        char *text = NULL;
        size_t n = 0;
        NRD_TRY(nrd_file_read(&text, &n, c->o->body, MAX_BODY));
        c->questions = nrd_xcalloc(1, sizeof *c->questions);
        c->questions[0] = (question){.c = c, .body = {.data = text, .len = n, .cap = n + 1}};
        c->n = 1;
        return NULL;
    }
    return c->o->prompt ? add_question(c, c->o->prompt, strlen(c->o->prompt)) : read_lines(c);
}

static nrd_error *set_up(client *c, const char *verb, const char *url)
{
    const options *o = c->o;
    nrd_api_kind kind;
    nrd_str path = {0};

    if (!nrd_api_find(&kind, verb) || kind == NRD_API_RAW || kind == NRD_API_GENERATE_STREAM) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "expected generate, chat, completions or infer, got '%s'", verb);
    }
    if ((kind == NRD_API_INFER) != (o->body != NULL)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "infer and --body FILE belong together");
    }
    kind = kind == NRD_API_GENERATE && !o->no_stream ? NRD_API_GENERATE_STREAM : kind;
    c->api = (nrd_api){.kind = kind,
                       .model = o->connection.model,
                       .path = o->connection.path,
                       .is_plain = o->no_stream,
                       .sampling = o->connection.sampling,
                       .system = o->system};
    if (o->system && kind != NRD_API_CHAT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--system is of chat, not of %s", verb);
    }
    NRD_TRY(read_questions(c));
    nrd_api_path(&c->api, &path);
    if (kind == NRD_API_INFER) { /* its answer is shown as it is */
        c->api.kind = NRD_API_RAW;
    }
    nrd_client_config h = nrd_connection_config(&o->connection, url, nrd_str_cstr(&path));
    h.piece = on_piece;
    h.end = on_end;
    char why[256] = "";
    const bool is_open = nrd_http_carrier.open(&c->http, &h, why, sizeof why);
    nrd_str_fini(&path);
    return is_open ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", why);
}

static nrd_error *ask(const options *o, const char *verb, const char *url, bool *out_failed)
{
    client c = {.o = o, .url = url};
    nrd_error *err = set_up(&c, verb, url);
    if (!err) {
        run_all(&c);
    }
    *out_failed = c.has_failed;
    if (c.http) {
        nrd_http_carrier.free(c.http);
    }
    for (size_t i = 0; i < c.n; i++) {
        nrd_str_fini(&c.questions[i].body);
        nrd_str_fini(&c.questions[i].answer);
        nrd_str_fini(&c.questions[i].error);
    }
    free(c.questions);
    nrd_str_fini(&c.piece.text);
    return err;
}

/* ---- options ---- */

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "prompt", "-p --text", prompt, "TEXT", "lines of the standard input", "what is asked"),
    OPT(STR, "system", NULL, system, "TEXT", NULL, "chat: the message before it"),
    {.name = "max_tokens",
     .form = NRD_OPT_INT,
     .offset = offsetof(options, max_tokens),
     .min = 1,
     .max = INT_MAX,
     .arg = "N",
     .alias = "-n --output_len",
     .def = "128",
     .help = "of an answer"},
    OPT(STR, "body", NULL, body, "FILE", NULL, "infer: the request, JSON"),
    OPT(FLAG, "no_stream", NULL, no_stream, NULL, NULL,
        "ask for the whole answer at once; models that are not decoupled need it"),
    OPT(FLAG, "json", NULL, json, NULL, NULL,
        "a line {\"text\": …} or {\"error\": …} for each prompt"),
    {.name = "concurrency",
     .form = NRD_OPT_INT,
     .offset = offsetof(options, concurrency),
     .min = 1,
     .max = 65536,
     .arg = "N",
     .alias = "-c",
     .def = "1",
     .help = "prompts that are asked at a time"},
    NRD_CONNECTION_OPTION_ROWS(options),
};
const nrd_tool_table nrd_client_table = NRD_TOOL_TABLE("client", usage, rows, 2);

int nrd_tool_client(int argc, char **argv)
{
    options o = {.connection = NRD_CONNECTION_DEFAULTS, .max_tokens = 128, .concurrency = 1};
    const char *words[2] = {NULL, "http://localhost:8000"};
    bool has_failed = false;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_client_table, argc, argv, &o, words, &n);
    if (status < 0 && n == 0) {
        fputs("nereid client: generate, chat, completions or infer is needed (see --help)\n",
              stderr);
        status = 2;
    }
    if (status < 0) {
        status = nrd_tool_finish("client", ask(&o, words[0], words[1], &has_failed));
        status = status == 0 && has_failed ? 1 : status;
    }
    nrd_connection_fini(&o.connection);
    return status;
}
