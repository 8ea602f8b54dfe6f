/* SPDX-License-Identifier: Apache-2.0
 * nereid top: what a server does, in the terminal. Asks GET /ui/stats again and again; one loop has
 * the answers, the keys, the clock and the signals. */
#include "tools/tools.h"

#include <stdio.h>

#ifndef NRD_HAVE_EVENT

const nrd_tool_table nrd_top_table = {.verb = "top", .usage = "Usage: nereid top [URL]\n"};

int nrd_tool_top(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr, "nereid %s: this build was made without libevent, which this verb needs\n", argv[0]);
    return 1;
}

#else

#include "base/env.h"
#include "base/mem.h"
#include "tls/tls.h"
#include "tools/top.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { MAX_BODY = 8 << 20, MAX_HEADERS = 64 << 10, ANSWER_SECS = 5 };

static const char usage[] =
    "Usage: nereid top [URL] [options]\n"
    "Shows what a server does: models, requests, tokens, latencies, steps, CPU and GPUs. URL is that of\n"
    "its HTTP service (http or https), by default http://localhost:8000. q ends. Where the output is no terminal, one\n"
    "view is printed as plain text.\n";

typedef struct top {
    struct event_base *base;
    struct evhttp_connection *con; /* of the question that is on its way, or NULL */
    struct event *again, *keys, *signals[4];
    char *url, *host, *path;
    int port;
    const char *header; /* "Name: value" or NULL */
    const char *ca_cert; /* NULL: the system's */
    const nrd_tls_ops *tls; /* NULL: the server is asked by http:// */
    char why[200]; /* of TLS, for the answer that does not come */
    double interval;
    bool once, raw, json;
    struct termios before_raw;
    nrd_top_style style;
    nrd_top_history history;
    nrd_json_doc *before, *now;
    nrd_error *err;
    int n_answers;
} top;

/* ---- the terminal ---- */

static void put_out(const char *text, size_t n)
{
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static void measure(top *t)
{
    struct winsize w;
    t->style.width = 100;
    t->style.height = 0;
    if (!t->once && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 && w.ws_row > 1) {
        t->style.width = w.ws_col;
        t->style.height = w.ws_row - 1; /* the last line is for the keys */
    }
}

static void enter_screen(top *t)
{
    static const char begin[] = "\x1b[?1049h\x1b[?25l";
    if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->before_raw) == 0) {
        struct termios raw = t->before_raw;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        t->raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    put_out(begin, sizeof begin - 1);
}

static void leave_screen(const top *t)
{
    static const char end[] = "\x1b[?25h\x1b[?1049l";
    put_out(end, sizeof end - 1);
    if (t->raw) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->before_raw);
    }
}

static void draw(const top *t)
{
    nrd_str text = {0}, screen = {0};
    const nrd_json *now = nrd_json_root(t->now);

    if (now) {
        nrd_top_draw(&text, &t->style, &t->history, t->url, nrd_json_root(t->before), now);
    }
    if (t->once) {
        put_out(nrd_str_cstr(&text), text.len);
    } else { /* over the old picture, without clearing it first: nothing flickers */
        nrd_str_puts(&screen, "\x1b[H");
        for (const char *p = nrd_str_cstr(&text); *p;) {
            size_t n = strcspn(p, "\n");
            nrd_str_append(&screen, p, n);
            nrd_str_puts(&screen, "\x1b[K\n");
            p += n + 1;
        }
        nrd_str_printf(&screen, "\x1b[J\x1b[%d;1H", t->style.height + 1);
        if (t->err) {
            nrd_str_printf(&screen, "%s%.*s", t->style.color ? "\x1b[31m" : "", t->style.width - 1,
                           nrd_error_message(t->err));
        } else {
            nrd_str_printf(&screen, "%sq quits, every %g s", t->style.color ? "\x1b[2m" : "", t->interval);
        }
        nrd_str_puts(&screen, t->style.color ? "\x1b[0m\x1b[K" : "\x1b[K");
        put_out(screen.data, screen.len);
    }
    nrd_str_fini(&text);
    nrd_str_fini(&screen);
}

/* As docs/ui.md describes the answer of /ui/stats. */
static void put_object(const top *t)
{
    nrd_str text = {0};
    nrd_json_put(&text, nrd_json_root(t->now), 2);
    nrd_str_putc(&text, '\n');
    put_out(nrd_str_cstr(&text), text.len);
    nrd_str_fini(&text);
}

/* ---- asking ---- */

static void wait_for_next(top *t)
{
    struct timeval pause = {(time_t)t->interval,
                            (suseconds_t)((t->interval - floor(t->interval)) * 1e6)};
    evtimer_add(t->again, &pause);
}

static nrd_error *status_error(int status)
{
    switch (status) {
    case 0:
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no answer");
    case 403:
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "statistics are restricted on this server (--header \"NAME: VALUE\")");
    case 404:
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no /ui/stats there: another server, or one with --ui=false");
    default:
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "status %d", status);
    }
}

static nrd_error *take(top *t, struct evhttp_request *req)
{
    const nrd_json_limits limits = {.max_bytes = MAX_BODY, .max_nodes = 1000000};
    nrd_json_doc *doc = NULL;
    int status = req ? evhttp_request_get_response_code(req) : 0;

    if (status != 200) {
        return status_error(status);
    }
    struct evbuffer *body = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(body);
    const char *text = (const char *)evbuffer_pullup(body, -1);
    NRD_TRY(nrd_json_parse(&doc, text ? text : "", n, &limits));
    if (!nrd_json_is(nrd_json_root(doc), NRD_JSON_OBJECT) ||
        !nrd_json_get(nrd_json_root(doc), "models")) {
        nrd_json_doc_free(doc);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the answer is not that of /ui/stats");
    }
    nrd_json_doc_free(t->before);
    t->before = t->now;
    t->now = doc;
    nrd_top_remember(&t->history, nrd_json_root(t->before), nrd_json_root(t->now));
    return NULL;
}

static void on_answer(struct evhttp_request *req, void *arg)
{
    top *t = arg;
    nrd_error_free(t->err);
    if (t->tls && t->con && !t->why[0]) {
        t->tls->client_why(evhttp_connection_get_bufferevent(t->con), t->why, sizeof t->why);
    }
    t->err = t->why[0] ? nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: %s", t->url, t->why)
                       : nrd_error_wrap(take(t, req), "%s", t->url);
    t->n_answers++;
    if (t->once && (t->err || t->json || t->n_answers == 2)) { /* rates need two answers */
        if (!t->err && t->json) {
            put_object(t);
        } else if (!t->err) {
            draw(t);
        }
        event_base_loopbreak(t->base);
        return;
    }
    if (!t->once) {
        draw(t);
    }
    wait_for_next(t);
}

/* Nonzero: a field that cannot be sent. */
static int add_fields(const top *t, struct evhttp_request *req)
{
    struct evkeyvalq *fields = evhttp_request_get_output_headers(req);
    nrd_str host = {0};
    nrd_str_put_host(&host, t->host);
    int bad = evhttp_add_header(fields, "Host", nrd_str_cstr(&host)) | evhttp_add_header(fields, "Connection", "close");
    nrd_str_fini(&host);
    if (t->header) {
        const char *colon = strchr(t->header, ':');
        char *name = nrd_xstrndup(t->header, (size_t)(colon - t->header));
        bad |= evhttp_add_header(fields, name, colon + 1 + strspn(colon + 1, " "));
        free(name);
    }
    return bad;
}

static void ask(evutil_socket_t fd, short what, void *arg)
{
    top *t = arg;
    (void)fd;
    (void)what;
    if (t->con) {
        evhttp_connection_free(t->con);
    }
    /* Only the first address of a name is tried, which for this one may be that of IPv6. */
    const char *address = strcmp(t->host, "localhost") == 0 ? "127.0.0.1" : t->host;
    struct bufferevent *bev = NULL;
    t->why[0] = '\0';
    if (t->tls && !(bev = t->tls->client_new(t->base, t->host, t->ca_cert, t->why, sizeof t->why))) {
        t->con = NULL;
    } else { /* without bev one is made */
        t->con = evhttp_connection_base_bufferevent_new(t->base, NULL, bev, address, (unsigned short)t->port);
    }
    struct evhttp_request *req = t->con ? evhttp_request_new(on_answer, t) : NULL;
    if (req) {
        evhttp_connection_set_timeout(t->con, ANSWER_SECS);
        evhttp_connection_set_max_body_size(t->con, MAX_BODY);
        evhttp_connection_set_max_headers_size(t->con, MAX_HEADERS);
        if (add_fields(t, req) == 0) {
            /* From here on the connection owns the question, and an error comes to on_answer. */
            (void)evhttp_make_request(t->con, req, EVHTTP_REQ_GET, t->path);
            return;
        }
        evhttp_request_free(req);
    }
    on_answer(NULL, t);
}

static void on_key(evutil_socket_t fd, short what, void *arg)
{
    top *t = arg;
    char c[16];
    ssize_t n = read(fd, c, sizeof c);
    (void)what;
    for (ssize_t i = 0; i < n; i++) {
        if (c[i] == 'q' || c[i] == 'Q' || c[i] == 4) { /* Ctrl-D */
            event_base_loopbreak(t->base);
        }
    }
    if (n <= 0) {
        event_del(t->keys); /* nobody can type any more */
    }
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    top *t = arg;
    (void)what;
    if (sig == SIGWINCH) {
        measure(t);
        draw(t);
    } else {
        event_base_loopbreak(t->base);
    }
}

/* ---- start ---- */

static nrd_error *read_url(top *t, const char *text)
{
    nrd_str full = {0}, path = {0};
    nrd_error *err = NULL;

    if (!strstr(text, "://")) {
        nrd_str_puts(&full, "http://");
    }
    nrd_str_puts(&full, text);
    struct evhttp_uri *uri = evhttp_uri_parse(nrd_str_cstr(&full));
    const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL, *host = uri ? evhttp_uri_get_host(uri) : NULL;
    if (!scheme || !host || !host[0]) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no URL", text);
    } else if (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s': only http:// and https:// are spoken here", text);
    } else if (strcmp(scheme, "https") == 0 && (err = nrd_tls_load(&t->tls))) {
        /* no TLS in this build */
    } else {
        const char *prefix = evhttp_uri_get_path(uri) ? evhttp_uri_get_path(uri) : "";
        size_t n = strlen(prefix);
        while (n > 0 && prefix[n - 1] == '/') {
            n--;
        }
        nrd_str_append(&path, prefix, n);
        nrd_str_puts(&path, "/ui/stats");
        t->path = nrd_str_steal(&path);
        t->host = host[0] == '[' && host[strlen(host) - 1] == ']' ? nrd_xstrndup(host + 1, strlen(host) - 2)
                                                                 : nrd_xstrdup(host);
        t->port = evhttp_uri_get_port(uri) > 0 ? evhttp_uri_get_port(uri) : t->tls ? 443 : 80;
        t->url = nrd_str_steal(&full);
    }
    if (uri) {
        evhttp_uri_free(uri);
    }
    nrd_str_fini(&full);
    nrd_str_fini(&path);
    return err;
}

static nrd_error *start(top *t)
{
    static const int signals[] = {SIGWINCH, SIGINT, SIGTERM, SIGHUP};
    t->base = event_base_new();
    t->again = t->base ? evtimer_new(t->base, ask, t) : NULL;
    if (!t->again) {
        return nrd_error_no_memory();
    }
    if (!t->once) {
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
            t->signals[i] = evsignal_new(t->base, signals[i], on_signal, t);
            if (!t->signals[i] || evsignal_add(t->signals[i], NULL) != 0) {
                return nrd_error_no_memory();
            }
        }
        t->keys = event_new(t->base, STDIN_FILENO, EV_READ | EV_PERSIST, on_key, t);
        if (t->keys) { /* a file as input cannot be watched; then only signals end */
            (void)event_add(t->keys, NULL);
        }
    }
    return NULL;
}

static void fini(top *t)
{
    for (size_t i = 0; i < sizeof t->signals / sizeof *t->signals; i++) {
        if (t->signals[i]) {
            event_free(t->signals[i]);
        }
    }
    if (t->keys) {
        event_free(t->keys);
    }
    if (t->again) {
        event_free(t->again);
    }
    if (t->con) {
        evhttp_connection_free(t->con);
    }
    if (t->base) {
        event_base_free(t->base);
    }
    nrd_json_doc_free(t->before);
    nrd_json_doc_free(t->now);
    free(t->url);
    free(t->host);
    free(t->path);
}

static nrd_error *check(const top *t, double interval)
{
    if (!(interval >= 0.1 && interval <= 3600)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--interval must be between 0.1 and 3600 seconds");
    }
    if (t->header && (!strchr(t->header, ':') || t->header[0] == ':')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--header must be \"NAME: VALUE\"");
    }
    return NULL;
}

#define OPT(...) NRD_OPT_ROW(top, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(NUM, "interval", "-i", interval, "SECONDS", "1", "Time between two looks."),
    OPT(FLAG, "once", NULL, once, NULL, NULL, "One view as plain text, after one interval."),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "What the server tells now, as an object."),
    OPT(STR, "ca_cert", NULL, ca_cert, "FILE", "those of the system",
        "Certificates (PEM) that sign the server's, for https."),
    OPT(STR, "header", NULL, header, "\"NAME: VALUE\"", NULL,
        "What --http-restricted-api asks for at \"statistics\"."),
};
const nrd_tool_table nrd_top_table = NRD_TOOL_TABLE("top", usage, rows, 1);

int nrd_tool_top(int argc, char **argv)
{
    top t = {.interval = 1};
    const char *url = "http://localhost:8000";
    size_t n = 0;

    int rc = nrd_tool_parse(&nrd_top_table, argc, argv, &t, &url, &n);
    if (rc >= 0) {
        return rc;
    }
    nrd_error *err = check(&t, t.interval);
    if (!err) {
        err = read_url(&t, url);
    }
    setlocale(LC_CTYPE, ""); /* which characters the terminal shows; numbers stay as they are */
    t.once = t.once || t.json || !isatty(STDOUT_FILENO);
    t.style.unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    t.style.color = !t.once && !nrd_env("NO_COLOR", NULL);
    measure(&t);
    if (!err) {
        err = start(&t);
    }
    if (!err) {
        if (!t.once) {
            enter_screen(&t);
        }
        ask(-1, 0, &t);
        event_base_dispatch(t.base);
        if (!t.once) {
            leave_screen(&t);
        }
        if (t.once) {
            err = t.err;
            t.err = NULL;
        }
    }
    nrd_error_free(t.err);
    fini(&t);
    return nrd_tool_finish("top", err);
}

#endif
