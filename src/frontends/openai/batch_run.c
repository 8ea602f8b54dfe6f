/* SPDX-License-Identifier: Apache-2.0
 * A flight is a line under way. It keeps where the line stands, not the line: asked again, it is read again. */
#include "frontends/openai/batch_run.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TRIES = 12, FIRST_PAUSE_MS = 50, LAST_PAUSE_MS = 10000 };

typedef struct flight {
    nrd_http_local local; /* first: a pointer to it is one to the flight */
    struct flight *next;  /* of the list that it is in */
    nrd_batch_pool *pool;
    nrd_batch_run *run;
    uint64_t offset;
    size_t n; /* bytes of the line */
    char *custom_id, id[NRD_BATCH_ID];
    int tries, status; /* status 0: cancelled */
    uint64_t again_ns; /* when it may be asked again */
    nrd_str body;
} flight;

struct nrd_batch_pool {
    nrd_batch_asks asks;
    int max_flying;
    uint64_t n_groups;
    flight *waiting; /* to be asked again; the owner's */
    pthread_mutex_t mu; /* guards all below */
    pthread_cond_t cond;
    flight *arrived;
    int n_flying; /* with those that wait */
    bool woken;
};

nrd_error *nrd_batch_pool_new(nrd_batch_pool **out, const nrd_batch_asks *asks, int max_flying)
{
    nrd_batch_pool *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) {
        return nrd_error_no_memory();
    }
    p->asks = *asks;
    p->max_flying = max_flying;
    pthread_mutex_init(&p->mu, NULL);
    nrd_cond_init_steady(&p->cond);
    return NULL;
}

void nrd_batch_pool_free(nrd_batch_pool *p)
{
    if (p) {
        NRD_ASSERT(p->n_flying == 0, "whoever drives a pool waits for its flights");
        pthread_cond_destroy(&p->cond);
        pthread_mutex_destroy(&p->mu);
        free(p);
    }
}

void nrd_batch_pool_wake(nrd_batch_pool *p)
{
    pthread_mutex_lock(&p->mu);
    p->woken = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mu);
}

int nrd_batch_pool_flying(nrd_batch_pool *p)
{
    pthread_mutex_lock(&p->mu);
    const int n = p->n_flying;
    pthread_mutex_unlock(&p->mu);
    return n;
}

void nrd_batch_pool_wait(nrd_batch_pool *p, uint64_t ns)
{
    const uint64_t now = nrd_now_ns();
    for (const flight *f = p->waiting; f; f = f->next) {
        const uint64_t left = f->again_ns > now ? f->again_ns - now : 1;
        ns = left < ns ? left : ns;
    }
    const struct timespec until = nrd_steady_in(ns);
    pthread_mutex_lock(&p->mu);
    while (!p->arrived && !p->woken && pthread_cond_timedwait(&p->cond, &p->mu, &until) == 0) {
    }
    p->woken = false;
    pthread_mutex_unlock(&p->mu);
}

/* ---- asking ---- */

static void on_done(nrd_http_local *l, int status, nrd_str *body)
{
    flight *f = (flight *)(void *)l;
    nrd_batch_pool *p = f->pool;

    f->status = status;
    f->body = *body;
    memset(body, 0, sizeof *body);
    pthread_mutex_lock(&p->mu);
    f->next = p->arrived;
    p->arrived = f;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mu);
}

static void flight_free(flight *f)
{
    nrd_batch_pool *p = f->pool;
    f->run->n_flying--;
    free(f->custom_id);
    nrd_str_fini(&f->body);
    free(f);
    pthread_mutex_lock(&p->mu);
    p->n_flying--;
    pthread_mutex_unlock(&p->mu);
}

static void take_error(nrd_batch_run *r, nrd_error *err)
{
    if (r->err) {
        nrd_error_free(err);
    } else {
        r->err = err;
    }
}

static void put_body(nrd_str *out, const nrd_batch_run *r, const nrd_json *body)
{
    if (!r->model_of) {
        nrd_json_put(out, body, -1);
        return;
    }
    nrd_str_puts(out, "{\"model\":");
    nrd_json_put_cstr(out, r->model_of(r->model_arg, nrd_json_get_str(body, "model", NULL)));
    for (size_t i = 0; i < body->n; i++) {
        const nrd_json *v = &body->child[i];
        if (strcmp(v->key, "model") != 0) {
            nrd_str_putc(out, ',');
            nrd_json_put_string(out, v->key, v->key_len);
            nrd_str_putc(out, ':');
            nrd_json_put(out, v, -1);
        }
    }
    nrd_str_putc(out, '}');
}

static void ask(flight *f, const nrd_batch_line *line)
{
    nrd_batch_pool *p = f->pool;
    nrd_str body = {0};

    put_body(&body, f->run, line->body);
    const size_t n = body.len;
    char *text = nrd_str_steal(&body);
    if (!text) {
        on_done(&f->local, 503, &body);
        return;
    }
    f->local.path = nrd_batch_endpoint(line->endpoint);
    f->local.handle = p->asks.handle[line->endpoint];
    f->local.user = p->asks.user;
    f->local.key = f->run->key;
    f->local.group = f->run->group;
    f->local.done = on_done;
    nrd_http_local_start(p->asks.server, &f->local, text, n);
}

/* The line once more, from the file. */
static void ask_again(flight *f)
{
    nrd_batch_line line = {.doc = NULL};
    char *text = malloc(f->n > 0 ? f->n : 1);
    nrd_error *err = NULL;

    if (!text) {
        err = nrd_error_no_memory();
    } else if (pread(f->run->fd, text, f->n, (off_t)f->offset) != (ssize_t)f->n) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot read a file of requests again: %s", strerror(errno));
    } else {
        err = nrd_batch_line_read(&line, &(nrd_batch_text){.text = text, .n = f->n}, f->run->endpoint);
    }
    if (err) {
        take_error(f->run, err);
        flight_free(f);
    } else {
        ask(f, &line);
    }
    nrd_batch_line_fini(&line);
    free(text);
}

/* An answer, or what stands for one, is written once. */
static void put_line(nrd_batch_run *r, const char *custom_id, bool failed, const nrd_str *line)
{
    bool fresh;
    nrd_error *err = r->write(r->arg, failed, line);
    err = err || !custom_id ? err : nrd_batch_ids_add(&r->done, custom_id, &fresh);
    if (err) {
        take_error(r, err);
        return;
    }
    r->n_nameless += !custom_id;
    r->n_completed += !failed;
    r->n_failed += failed;
}

static void put_error(nrd_batch_run *r, const nrd_batch_text *text, const char *custom_id, const char *code, const char *message)
{
    char id[NRD_BATCH_ID];
    nrd_str line = {0};
    nrd_batch_id_of(id, text);
    nrd_error *err = nrd_batch_put_error(&line, r->ids_of_lines ? id : NULL, custom_id, code, message);
    if (err) {
        take_error(r, err);
    } else {
        put_line(r, custom_id, true, &line);
    }
    nrd_str_fini(&line);
}

void nrd_batch_run_begin(nrd_batch_run *r)
{
    r->reader = (nrd_batch_reader){.fd = r->fd};
    r->read_all = false;
    r->nameless = 0;
}

/* The next line that has no answer yet; *out_more false: there is none. What is no request is answered here. */
static nrd_error *next_line(nrd_batch_run *r, nrd_batch_text *text, nrd_batch_line *line, bool *out_more)
{
    for (;;) {
        NRD_TRY(nrd_batch_next(&r->reader, text, NULL, out_more));
        if (!*out_more) {
            return NULL;
        }
        nrd_error *bad = nrd_batch_line_read(line, text, r->endpoint);
        const bool answered = line->custom_id ? nrd_batch_ids_have(&r->done, line->custom_id) : ++r->nameless <= r->n_nameless;
        if (!bad && !answered) {
            return NULL;
        }
        if (bad && !answered) {
            put_error(r, text, line->custom_id, nrd_error_reason(bad), nrd_error_message(bad));
        }
        nrd_error_free(bad);
        nrd_batch_line_fini(line);
        if (r->err) {
            *out_more = false;
            return NULL;
        }
    }
}

/* Takes a place if there is one. */
static bool has_room(nrd_batch_pool *p)
{
    pthread_mutex_lock(&p->mu);
    const bool room = p->n_flying < p->max_flying;
    p->n_flying += room;
    pthread_mutex_unlock(&p->mu);
    return room;
}

bool nrd_batch_run_start_one(nrd_batch_pool *p, nrd_batch_run *r)
{
    nrd_batch_text text;
    nrd_batch_line line = {.doc = NULL};
    bool more = false;

    if (r->err || r->read_all || r->cancelled || !has_room(p)) {
        return false;
    }
    if (r->group == 0) {
        r->group = ++p->n_groups;
    }
    r->n_flying++;
    flight *f = calloc(1, sizeof *f);
    nrd_error *err = f ? next_line(r, &text, &line, &more) : nrd_error_no_memory();
    if (f) {
        f->pool = p;
        f->run = r;
    }
    if (more && !err) {
        f->offset = text.offset;
        f->n = text.n;
        nrd_batch_id_of(f->id, &text);
        f->custom_id = strdup(line.custom_id);
        err = f->custom_id ? NULL : nrd_error_no_memory();
    }
    if (err) {
        take_error(r, err);
        more = false;
    } else {
        r->read_all = !more && !r->err;
    }
    if (more) {
        ask(f, &line);
    } else if (f) {
        flight_free(f);
    } else {
        r->n_flying--;
        pthread_mutex_lock(&p->mu);
        p->n_flying--;
        pthread_mutex_unlock(&p->mu);
    }
    nrd_batch_line_fini(&line);
    return more;
}

/* ---- answers ---- */

static void count_tokens(nrd_batch_run *r, const nrd_str *body)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, nrd_str_cstr(body), body->len, NULL);
    if (!err) {
        nrd_batch_add_usage(&r->usage, nrd_json_root(doc));
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
}

/* true: it waits to be asked again. */
static bool put_off(flight *f)
{
    uint64_t pause_ms = (uint64_t)FIRST_PAUSE_MS << f->tries;
    if (f->tries + 1 >= MAX_TRIES || f->run->err) {
        return false;
    }
    pause_ms = pause_ms < LAST_PAUSE_MS ? pause_ms : LAST_PAUSE_MS;
    f->tries++;
    f->again_ns = nrd_now_ns() + pause_ms * 1000000u;
    nrd_str_fini(&f->body);
    f->next = f->pool->waiting;
    f->pool->waiting = f;
    return true;
}

static void land(flight *f)
{
    nrd_batch_run *r = f->run;
    nrd_str line = {0};

    const bool not_now = f->status == 503 || f->status == 429;
    if (f->status == 0 || (not_now && r->cancelled)) { /* it has no answer: give_up finds it again */
        flight_free(f);
        return;
    }
    if (not_now && put_off(f)) {
        return;
    }
    nrd_error *err = nrd_batch_put_answer(&line, r->ids_of_lines ? f->id : NULL, f->custom_id, f->status, &f->body);
    if (err) {
        take_error(r, err);
    } else if (!r->err) {
        if (f->status == 200) {
            count_tokens(r, &f->body);
        }
        put_line(r, f->custom_id, f->status != 200, &line);
    }
    nrd_str_fini(&line);
    flight_free(f);
}

void nrd_batch_pool_take(nrd_batch_pool *p)
{
    pthread_mutex_lock(&p->mu);
    flight *arrived = p->arrived, *in_order = NULL;
    p->arrived = NULL;
    pthread_mutex_unlock(&p->mu);
    while (arrived) {
        flight *next = arrived->next;
        arrived->next = in_order;
        in_order = arrived;
        arrived = next;
    }
    while (in_order) {
        flight *f = in_order;
        in_order = f->next;
        land(f);
    }
    const uint64_t now = nrd_now_ns();
    for (flight **at = &p->waiting; *at;) {
        flight *f = *at;
        if (f->again_ns > now) {
            at = &f->next;
        } else {
            *at = f->next;
            ask_again(f);
        }
    }
}

bool nrd_batch_run_is_through(const nrd_batch_run *r)
{
    return r->read_all && r->n_flying == 0;
}

void nrd_batch_run_cancel(nrd_batch_pool *p, nrd_batch_run *r)
{
    r->cancelled = true;
    for (flight **at = &p->waiting; *at;) {
        flight *f = *at;
        if (f->run == r) {
            *at = f->next;
            flight_free(f);
        } else {
            at = &f->next;
        }
    }
    if (r->n_flying > 0) { /* without memory they end by themselves */
        nrd_error_free(nrd_http_local_cancel(p->asks.server, r->group));
    }
}

void nrd_batch_run_give_up(nrd_batch_run *r, const char *code, const char *message)
{
    nrd_batch_text text;
    bool more = true;

    NRD_ASSERT(r->n_flying == 0, "what flies may still be answered");
    nrd_batch_reader_fini(&r->reader);
    nrd_batch_run_begin(r);
    while (more && !r->err) {
        nrd_batch_line line = {.doc = NULL};
        nrd_error *err = next_line(r, &text, &line, &more);
        if (err) {
            take_error(r, err);
        } else if (more) {
            put_error(r, &text, line.custom_id, code, message);
        }
        nrd_batch_line_fini(&line);
    }
    r->read_all = true;
}

void nrd_batch_run_fini(nrd_batch_run *r)
{
    nrd_batch_reader_fini(&r->reader);
    nrd_batch_ids_fini(&r->done);
    nrd_error_free(r->err);
    r->err = NULL;
}
