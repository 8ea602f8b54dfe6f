/* SPDX-License-Identifier: Apache-2.0
 * Streaming chats from one thread, any number at a time.
 *
 *   chat_load [options] PORT
 *     --model NAME      ensemble
 *     --clients N       chats at a time, each on a connection of its own (100)
 *     --requests N      chats in all (as many as clients)
 *     --tokens N        of each answer; the model's end is ignored (64)
 *     --prompt TEXT     "the quick brown fox"
 *     --stall N         of the clients stop reading after their first event, for good (0)
 *     --ramp MS         the clients' first requests are spread over this time (0)
 *
 * Prints one line of JSON. A chat is complete when its last event came, its usage counts all tokens,
 * and no event was an error. Exit status 1: some were not (those that stall apart). Times in
 * milliseconds: "first" from the request to the first text, "per_token" of a chat's first text to
 * its end divided by the tokens between, "gap" between two events with text, "delay" from the
 * moment the engine had a chat's last token to that in which its last event was read here,
 * "overhead_per_token" the chat's time here less its time in the engine, divided by its tokens. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 2048, MAX_SAMPLES = 1 << 22 };

typedef struct samples {
    float *v;
    size_t n;
} samples;

typedef struct client {
    int fd;
    bool open, stalls, stalled, done;
    uint64_t arrival, engine_last; /* the engine got it, made its last token; the clock is ours */
    uint64_t sent, first, last; /* ns */
    long tokens, usage;
    size_t n_line;
    char line[LINE];
} client;

static struct {
    int port, n_clients, n_requests, n_tokens, n_stall, ramp_ms;
    const char *model, *prompt;
    char request[4096];
    size_t n_request;
    int epoll, n_first, n_started, n_complete, n_failed, n_stalled, n_running;
    long n_text_events, n_tokens_seen;
    samples first, per_token, gap, delay, overhead;
    char error[256];
} g = {.n_clients = 100, .n_tokens = 64, .model = "ensemble", .prompt = "the quick brown fox"};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "chat_load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void sample(samples *s, uint64_t from, uint64_t to, long n)
{
    if (!s->v && !(s->v = malloc(MAX_SAMPLES * sizeof *s->v))) {
        die("memory");
    }
    if (s->n < MAX_SAMPLES && n > 0) {
        s->v[s->n++] = (float)((double)(to - from) / 1e6 / (double)n);
    }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, samples *s)
{
    const double at[] = {0.5, 0.9, 0.99};
    qsort(s->v, s->n, sizeof(float), by_value);
    printf(",\"%s\":{\"n\":%zu", name, s->n);
    for (int i = 0; i < 3 && s->n > 0; i++) {
        printf(",\"p%g\":%.3f", at[i] * 100, (double)s->v[(size_t)(at[i] * (double)(s->n - 1))]);
    }
    if (s->n > 0) {
        printf(",\"max\":%.3f", (double)s->v[s->n - 1]);
    }
    printf("}");
}

/* ---- one chat ---- */

static void fail(client *c, const char *why, size_t n)
{
    if (g.n_failed++ == 0) {
        snprintf(g.error, sizeof g.error, "%.*s", (int)(n < 200 ? n : 200), why);
        for (char *p = g.error; *p; p++) {
            *p = *p == '"' || *p == '\\' || (unsigned char)*p < ' ' ? '\'' : *p;
        }
    }
    c->done = true;
}

static void connect_client(client *c)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)g.port)};
    int one = 1, small = 4096;

    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        die("socket");
    }
    if (c->stalls) { /* so that what it does not read soon fills up */
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a) < 0) {
        die("connect");
    }
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(g.epoll, EPOLL_CTL_ADD, c->fd, &e) < 0) {
        die("epoll_ctl");
    }
    c->open = true;
}

static void start(client *c)
{
    c->first = c->last = 0;
    c->tokens = c->usage = 0;
    c->n_line = 0;
    c->done = false;
    c->sent = now_ns();
    if (!c->open) {
        connect_client(c);
    }
    if (send(c->fd, g.request, g.n_request, MSG_NOSIGNAL) != (ssize_t)g.n_request) {
        die("send");
    }
    g.n_started++;
    g.n_running++;
}

static void end(client *c)
{
    g.n_running--;
    if (!c->done && c->usage == g.n_tokens) {
        g.n_complete++;
        g.n_tokens_seen += c->usage;
        sample(&g.per_token, c->first, c->last, c->usage - 1);
        if (c->engine_last > 0 && c->last >= c->engine_last) {
            sample(&g.delay, c->engine_last, c->last, 1);
            sample(&g.overhead, c->engine_last - c->arrival, c->last - c->sent, c->usage);
        }
    } else if (!c->done) {
        fail(c, "the stream was cut", 18);
    }
    c->done = true;
    if (g.n_started + g.n_clients - g.n_first < g.n_requests) { /* those that wait have one each */
        start(c);
    }
}

static bool has(const char *s, size_t n, const char *what)
{
    return memmem(s, n, what, strlen(what)) != NULL;
}

static void event(client *c, const char *s, size_t n, uint64_t now)
{
    const char *usage;
    if (has(s, n, "\"error\":{")) {
        fail(c, s, n);
    } else if (n >= 6 && !memcmp(s, "[DONE]", 6)) {
        end(c);
    } else if (has(s, n, "\"content\":\"") && !has(s, n, "\"content\":\"\"")) {
        if (c->first == 0) {
            c->first = now;
            sample(&g.first, c->sent, now, 1);
        } else {
            sample(&g.gap, c->last, now, 1);
        }
        c->last = now;
        g.n_text_events++;
        if (c->stalls && !c->stalled) {
            c->stalled = true;
            g.n_stalled++;
            g.n_running--;
            epoll_ctl(g.epoll, EPOLL_CTL_DEL, c->fd, NULL);
        }
    } else if ((usage = memmem(s, n, "\"completion_tokens\":", 20)) != NULL) {
        c->usage = strtol(usage + 20, NULL, 10);
        c->first = c->first ? c->first : now;
        c->last = now;
        const char *came = memmem(s, n, "\"arrival_ns\":", 13);
        const char *made = memmem(s, n, "\"last_token_ns\":", 16);
        c->arrival = came ? strtoull(came + 13, NULL, 10) : 0;
        c->engine_last = made ? strtoull(made + 16, NULL, 10) : 0;
    }
}

static void line(client *c, const char *s, size_t n, uint64_t now)
{
    if (n > 9 && !memcmp(s, "HTTP/1.1 ", 9) && memcmp(s + 9, "200", 3) != 0) {
        fail(c, s, n);
        end(c);
    } else if (n > 6 && !memcmp(s, "data: ", 6)) {
        event(c, s + 6, n - 6, now);
    }
}

static void readable(client *c)
{
    static char buf[65536];
    ssize_t n = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT);
    uint64_t now = now_ns();

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        epoll_ctl(g.epoll, EPOLL_CTL_DEL, c->fd, NULL);
        close(c->fd);
        c->open = false;
        if (!c->done) {
            end(c);
        }
        return;
    }
    for (char *p = buf, *stop = buf + n; p < stop;) {
        char *nl = memchr(p, '\n', (size_t)(stop - p));
        size_t k = (size_t)((nl ? nl : stop) - p);
        if (c->n_line == 0 && nl) {
            line(c, p, k, now);
        } else {
            size_t room = LINE - c->n_line, take = k < room ? k : room;
            memcpy(c->line + c->n_line, p, take);
            c->n_line += take;
            if (nl) {
                size_t all = c->n_line;
                c->n_line = 0;
                line(c, c->line, all, now);
            }
        }
        p = nl ? nl + 1 : stop;
    }
}

/* ---- all of them ---- */

static void make_request(void)
{
    char body[2048];
    int n = snprintf(body, sizeof body,
                     "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],"
                     "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":%d,"
                     "\"ignore_eos\":true,\"return_timings\":true}",
                     g.model, g.prompt, g.n_tokens);
    int all = snprintf(g.request, sizeof g.request,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                       "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n, body);
    if (n < 0 || (size_t)n >= sizeof body || all < 0 || (size_t)all >= sizeof g.request) {
        die("the prompt is too long");
    }
    g.n_request = (size_t)all;
}

static int number(const char *s)
{
    char *end_of = NULL;
    long v = strtol(s ? s : "", &end_of, 10);
    if (!s || *end_of || v < 0 || v > 100000000) {
        fprintf(stderr, "chat_load: '%s' is no number\n", s ? s : "");
        exit(2);
    }
    return (int)v;
}

static void read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        int *n = !strcmp(argv[i], "--clients")    ? &g.n_clients
                 : !strcmp(argv[i], "--requests") ? &g.n_requests
                 : !strcmp(argv[i], "--tokens")   ? &g.n_tokens
                 : !strcmp(argv[i], "--stall")    ? &g.n_stall
                 : !strcmp(argv[i], "--ramp")     ? &g.ramp_ms
                                                  : NULL;
        const char **s = !strcmp(argv[i], "--model")    ? &g.model
                         : !strcmp(argv[i], "--prompt") ? &g.prompt
                                                        : NULL;
        if (n || s) {
            i++;
            if (n) {
                *n = number(next);
            } else if (next) {
                *s = next;
            }
        } else {
            g.port = number(argv[i]);
        }
    }
    g.n_requests = g.n_requests > g.n_clients ? g.n_requests : g.n_clients;
    if (g.port < 1 || g.port > 65535 || g.n_clients < 1 || g.n_stall > g.n_clients) {
        fprintf(stderr, "usage: chat_load [options] PORT\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;
    struct epoll_event events[256];

    read_options(argc, argv);
    make_request();
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    client *clients = calloc((size_t)g.n_clients, sizeof *clients);
    if (g.epoll < 0 || !clients) {
        die("start");
    }
    for (int i = 0; i < g.n_clients; i++) {
        clients[i].stalls = i < g.n_stall;
        connect_client(&clients[i]);
    }
    uint64_t begin = now_ns();
    for (int next = 0; next < g.n_clients || g.n_running > 0;) {
        uint64_t passed = (now_ns() - begin) / 1000000u;
        while (next < g.n_clients &&
               (g.ramp_ms == 0 || passed * (uint64_t)g.n_clients >= (uint64_t)next * (uint64_t)g.ramp_ms)) {
            g.n_first++;
            start(&clients[next++]);
        }
        int n = epoll_wait(g.epoll, events, 256, next < g.n_clients ? 1 : 30000);
        if (n == 0 && next == g.n_clients) {
            fprintf(stderr, "chat_load: nothing came for 30 s; %d chats are open\n", g.n_running);
            g.n_failed += g.n_running;
            break;
        }
        for (int i = 0; i < n; i++) {
            readable(events[i].data.ptr);
        }
    }
    double seconds = (double)(now_ns() - begin) / 1e9;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("{\"clients\":%d,\"requests\":%d,\"complete\":%d,\"failed\":%d,\"stalled\":%d,\"seconds\":%.3f,"
           "\"tokens\":%ld,\"tokens_per_s\":%.0f,\"text_events\":%ld,\"client_cpu_s\":%.3f",
           g.n_clients, g.n_started, g.n_complete, g.n_failed, g.n_stalled, seconds, g.n_tokens_seen,
           (double)g.n_tokens_seen / seconds, g.n_text_events,
           (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
    print_samples("first", &g.first);
    print_samples("per_token", &g.per_token);
    print_samples("gap", &g.gap);
    print_samples("delay", &g.delay);
    print_samples("overhead_per_token", &g.overhead);
    printf(",\"error\":\"%s\"}\n", g.error);
    return g.n_failed > 0 || g.n_complete + g.n_stalled < g.n_requests;
}
