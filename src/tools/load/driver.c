/* SPDX-License-Identifier: Apache-2.0
 * The load: see driver.h. */
#include "tools/load/driver.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct driver driver;

typedef struct call {
    driver *d;
    struct call *next_free, *next; /* next: of all that were made */
    const nrd_prompt *prompt;
    uint64_t due_ns, sent_ns, first_ns, last_ns; /* first, last: token */
    int32_t n_pieces, n_out, n_in;               /* n_out, n_in: what the server counted */
    bool has_failed;
    nrd_str text; /* where a tokenizer is to count it */
} call;

struct driver {
    const nrd_load *l;
    nrd_load_result *r;
    void *client; /* of l->carrier */
    nrd_piece piece;
    call *free_calls, *all_calls;
    size_t n_sent, n_open;
    uint64_t start_ns, next_ns, stop_ns, last_end_ns, tick_ns; /* next_ns: due in an open loop */
    bool is_over;                                              /* nothing more is sent */
};

static volatile sig_atomic_t was_stopped;

static void on_signal(int sig)
{
    (void)sig;
    was_stopped = 1;
}

/* ---- one request ---- */

static double ms(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e6 : 0;
}

static void fail(call *c, const char *why, size_t n)
{
    if (!c->has_failed && c->d->r->error.len == 0) {
        nrd_str_append(&c->d->r->error, why, n < 500 ? n : 500);
    }
    c->has_failed = true;
}

static void on_piece(void *tag, int status, const char *data, size_t n)
{
    call *c = tag;
    driver *d = c->d;
    nrd_piece *p = &d->piece;
    const uint64_t now = nrd_now_ns();

    if (status != 200 || d->l->api->kind != NRD_API_RAW) { /* a raw answer is not looked at */
        nrd_api_read(d->l->api, data, n, p);
    } else {
        p->has_tokens = true;
    }
    if (status != 200 || p->is_error) {
        char line[32];
        snprintf(line, sizeof line, "status %d: ", status);
        nrd_str text = {0};
        nrd_str_puts(&text, status != 200 ? line : "");
        nrd_str_append(&text, p->is_error ? nrd_str_cstr(&p->text) : data,
                       p->is_error ? p->text.len : n);
        fail(c, nrd_str_cstr(&text), text.len);
        nrd_str_fini(&text);
        return;
    }
    c->n_out = p->n_tokens > 0 ? p->n_tokens : c->n_out;
    c->n_in = p->n_in > 0 ? p->n_in : c->n_in;
    if (!p->has_tokens) {
        return;
    }
    if (d->l->tokenizer) {
        nrd_str_append(&c->text, p->text.data, p->text.len);
    }
    if (c->n_pieces++ == 0) {
        c->first_ns = now;
    } else {
        nrd_samples_add(&d->r->between, ms(c->last_ns, now));
    }
    c->last_ns = now;
}

/* What the server did not count: tokens of the text, events of a stream; else as many as were asked for. */
static int32_t count_out(const call *c)
{
    if (c->n_out > 0) {
        return c->n_out;
    }
    if (c->d->l->tokenizer) {
        return nrd_prompt_tokens(c->d->l->tokenizer, nrd_str_cstr(&c->text), c->text.len);
    }
    return nrd_api_streams(c->d->l->api) ? c->n_pieces
           : c->n_pieces > 0             ? c->prompt->max_tokens
                                         : 0;
}

static void record(call *c, uint64_t now)
{
    nrd_load_result *r = c->d->r;
    nrd_load_row row = {.due_s = (double)(c->due_ns - c->d->start_ns) / 1e9,
                        .delay_ms = (float)ms(c->due_ns, c->sent_ns),
                        .end_ms = (float)ms(c->due_ns, now),
                        .n_in = c->n_in > 0 ? c->n_in : c->prompt->n_in,
                        .is_fine = !c->has_failed};

    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 1024;
        r->rows = nrd_xrealloc(r->rows, r->cap * sizeof *r->rows);
    }
    if (row.is_fine) {
        row.n_out = count_out(c);
        r->n_fine++;
        r->n_in += row.n_in;
        r->n_out += row.n_out;
        nrd_samples_add(&r->end, (double)row.end_ms);
        nrd_samples_add(&r->delay, (double)row.delay_ms);
        if (c->n_pieces > 0 && nrd_api_streams(c->d->l->api)) {
            row.first_ms = (float)ms(c->due_ns, c->first_ns);
            nrd_samples_add(&r->first, (double)row.first_ms);
            if (row.n_out > 1) {
                row.per_token_ms = (float)(ms(c->first_ns, c->last_ns) / (row.n_out - 1));
                nrd_samples_add(&r->per_token, (double)row.per_token_ms);
            }
        }
    } else {
        r->n_failed++;
    }
    r->rows[r->n++] = row;
}

/* The request is what is wrong, not the server, the way to it, or who asks. Triton says 500 of a model's refusal, and a
 * stream has begun with 200 before it is told. */
static bool is_refusal(int status, const char *why)
{
    return (status == NRD_CLIENT_FINE && !why) || status == NRD_CLIENT_REFUSED || status == 413 || status == 422 ||
           status == 500;
}

static void on_end(void *tag, int status, const char *why)
{
    call *c = tag;
    driver *d = c->d;
    const uint64_t now = nrd_now_ns();

    if (why) {
        fail(c, why, strlen(why));
    } else if (status != 200) {
        static const char no_text[] = "a status other than 200";
        fail(c, no_text, sizeof no_text - 1);
    }
    d->r->n_refused += c->has_failed && is_refusal(status, why);
    record(c, now);
    d->n_open--;
    d->last_end_ns = now;
    c->next_free = d->free_calls;
    d->free_calls = c;
}

static void send_one(driver *d, uint64_t due_ns)
{
    const nrd_load *l = d->l;
    const size_t i = (l->first_prompt + d->n_sent++) % l->n_prompts;
    call *c = d->free_calls;
    nrd_str text = {0};

    if (c) {
        d->free_calls = c->next_free;
        text = c->text;
        nrd_str_clear(&text);
    } else {
        c = nrd_xcalloc(1, sizeof *c);
        c->next = d->all_calls;
        d->all_calls = c;
    }
    *c = (call){.d = d,
                .next = c->next,
                .prompt = &l->prompts[i],
                .due_ns = due_ns,
                .sent_ns = nrd_now_ns(),
                .text = text};
    d->n_open++;
    if ((int32_t)d->n_open > d->r->most_at_once) {
        d->r->most_at_once = (int32_t)d->n_open;
    }
    l->carrier->post(d->client, c, l->bodies[i].data, l->bodies[i].len);
}

/* ---- all of them ---- */

static bool has_place(const driver *d)
{
    return d->l->concurrency <= 0 || d->n_open < (size_t)d->l->concurrency;
}

static bool is_over(const driver *d, uint64_t due_ns)
{
    return was_stopped || (d->l->n_requests > 0 && d->n_sent >= d->l->n_requests) ||
           due_ns >= d->stop_ns;
}

static uint64_t next_due(driver *d)
{
    const double s = nrd_arrivals_next(d->l->arrivals);
    return isfinite(s) ? d->start_ns + (uint64_t)(s * 1e9) : UINT64_MAX;
}

static void send_due(driver *d)
{
    uint64_t now = nrd_now_ns();
    while (!d->is_over && has_place(d)) {
        const uint64_t due = d->l->arrivals ? d->next_ns : now;
        d->is_over = is_over(d, due);
        if (d->is_over || due > now) {
            return;
        }
        send_one(d, due);
        if (d->l->arrivals) {
            d->next_ns = next_due(d);
        }
        now = nrd_now_ns();
    }
}

static void show(driver *d, uint64_t now)
{
    const nrd_load_result *r = d->r;
    const double s = (double)(now - d->start_ns) / 1e9;
    fprintf(stderr, "\r%6.0f s  %zu done, %zu open, %zu failed, %.1f requests/s, %.1f tokens/s  ",
            s, r->n, d->n_open, r->n_failed, (double)r->n / s, (double)r->n_out / s);
    fflush(stderr);
}

static void drive(driver *d)
{
    enum { TICK_NS = 1000000000 };
    d->start_ns = nrd_now_ns();
    d->tick_ns = d->start_ns + TICK_NS;
    d->stop_ns =
        d->l->duration_s > 0 ? d->start_ns + (uint64_t)(d->l->duration_s * 1e9) : UINT64_MAX;
    d->last_end_ns = d->start_ns;
    if (d->l->arrivals) {
        nrd_arrivals_start(d->l->arrivals, d->l->seed);
        d->next_ns = next_due(d);
    }
    for (;;) {
        send_due(d);
        if (was_stopped || (d->is_over && d->n_open == 0)) {
            break;
        }
        const bool is_waiting = d->l->arrivals && !d->is_over && has_place(d);
        const uint64_t until = is_waiting && d->next_ns < d->tick_ns ? d->next_ns : d->tick_ns;
        d->l->carrier->wait(d->client, until);
        const uint64_t now = nrd_now_ns();
        if (now >= d->tick_ns) {
            d->tick_ns = now + TICK_NS;
            if (d->l->shows_progress) {
                show(d, now);
            }
        }
    }
    if (d->l->shows_progress) {
        fputs("\r\x1b[K", stderr);
    }
    d->r->seconds = (double)(d->last_end_ns - d->start_ns) / 1e9;
    d->r->was_stopped = was_stopped != 0;
}

nrd_error *nrd_load_run(const nrd_load *l, nrd_load_result *out)
{
    driver d = {.l = l, .r = out};
    nrd_client_config c = l->server;
    char why[512];
    struct sigaction stop = {.sa_handler = on_signal}, before;

    *out = (nrd_load_result){0};
    c.piece = on_piece;
    c.end = on_end;
    if (!l->carrier->open(&d.client, &c, why, sizeof why)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", why);
    }
    sigemptyset(&stop.sa_mask);
    sigaction(SIGINT, &stop, &before);
    drive(&d);
    sigaction(SIGINT, &before, NULL);
    out->n_connections = l->carrier->connections(d.client);
    l->carrier->free(d.client);
    while (d.all_calls) {
        call *last = d.all_calls;
        d.all_calls = last->next;
        nrd_str_fini(&last->text);
        free(last);
    }
    nrd_str_fini(&d.piece.text);
    return NULL;
}

void nrd_load_result_fini(nrd_load_result *r)
{
    free(r->rows);
    nrd_samples_fini(&r->first);
    nrd_samples_fini(&r->between);
    nrd_samples_fini(&r->per_token);
    nrd_samples_fini(&r->end);
    nrd_samples_fini(&r->delay);
    nrd_str_fini(&r->error);
    *r = (nrd_load_result){0};
}
