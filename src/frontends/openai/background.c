/* SPDX-License-Identifier: Apache-2.0
 * One list, which is never long: an option bounds it. Jobs that have ended make room for others, the first to end first. */
#include "frontends/openai/background.h"

#include "base/limits.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { QUEUED, IN_PROGRESS, COMPLETED, FAILED, CANCELLED } state;

struct nrd_bg_job {
    nrd_background *b;
    struct nrd_bg_job *next; /* of the store */
    char id[48];
    int key;
    int refs;
    state state;
    bool listed;     /* in the store */
    bool with_events, events_lost;
    bool closed;     /* no more events will come */
    uint64_t ended;  /* which end it was; 0: it has none yet */
    void *handle;    /* of what makes the answer; NULL: nothing runs */
    nrd_str object;  /* the response; its status is "queued" unless it failed */
    nrd_str input, events;
    nrd_bg_reader *readers;
};

struct nrd_background {
    nrd_response_store *kept;
    void (*cancel)(void *handle);
    size_t max_jobs, max_bytes;
    pthread_mutex_t mu; /* guards all below, and what jobs and attached readers hold */
    nrd_bg_job *jobs;
    size_t n_jobs, n_running, bytes;
    uint64_t n_ended;
    bool stopped;
};

nrd_error *nrd_background_new(nrd_background **out, nrd_response_store *kept, size_t max_jobs, size_t max_bytes,
                              void (*cancel)(void *handle))
{
    nrd_background *b = calloc(1, sizeof *b);
    *out = b;
    if (!b) {
        return nrd_error_no_memory();
    }
    b->kept = kept;
    b->cancel = cancel;
    b->max_jobs = max_jobs;
    b->max_bytes = max_bytes;
    pthread_mutex_init(&b->mu, NULL);
    return NULL;
}

/* ---- with the lock held ---- */

static size_t bytes_of(const nrd_bg_job *j)
{
    return sizeof *j + j->object.cap + j->input.cap + j->events.cap;
}

static void drop_ref(nrd_bg_job *j)
{
    if (--j->refs == 0) {
        j->b->bytes -= bytes_of(j);
        nrd_str_fini(&j->object);
        nrd_str_fini(&j->input);
        nrd_str_fini(&j->events);
        free(j);
    }
}

static void unlist(nrd_bg_job *j)
{
    nrd_background *b = j->b;
    nrd_bg_job **at = &b->jobs;

    if (!j->listed) {
        return;
    }
    while (*at != j) {
        at = &(*at)->next;
    }
    *at = j->next;
    j->listed = false;
    b->n_jobs--;
    drop_ref(j);
}

/* The place of the job that ended first. false: all are under way. */
static bool evict_one(nrd_background *b)
{
    nrd_bg_job *first = NULL;
    for (nrd_bg_job *j = b->jobs; j; j = j->next) {
        if (j->ended > 0 && !j->readers && (!first || j->ended < first->ended)) {
            first = j;
        }
    }
    if (first) {
        unlist(first);
    }
    return first != NULL;
}

static nrd_bg_job *look_up(nrd_background *b, int key, const char *id)
{
    nrd_bg_job *j = b->jobs;
    while (j && (j->key != key || strcmp(j->id, id) != 0)) {
        j = j->next;
    }
    return j;
}

static void wake_readers(nrd_bg_job *j)
{
    for (nrd_bg_reader *r = j->readers; r; r = r->next) {
        if (!r->woken) {
            r->woken = true;
            r->wake(r);
        }
    }
}

static void end(nrd_bg_job *j, state s)
{
    j->state = s;
    j->ended = ++j->b->n_ended;
    wake_readers(j);
}

static void cancel(nrd_bg_job *j)
{
    if (!j->ended) {
        end(j, CANCELLED);
    }
    if (j->handle) {
        j->b->cancel(j->handle);
    }
}

static void lose_events(nrd_bg_job *j)
{
    j->b->bytes -= j->events.cap;
    nrd_str_fini(&j->events);
    j->events_lost = true;
    wake_readers(j);
}

static void put_object(nrd_str *out, const nrd_bg_job *j)
{
    static const char queued[] = "\"status\":\"queued\"";
    static const char *const names[] = {
        [QUEUED] = "queued", [IN_PROGRESS] = "in_progress", [CANCELLED] = "cancelled"};
    const char *at = j->state == FAILED ? NULL : strstr(nrd_str_cstr(&j->object), queued);
    if (!at) {
        nrd_str_put(out, &j->object);
        return;
    }
    nrd_str_append(out, j->object.data, (size_t)(at - j->object.data));
    nrd_str_printf(out, "\"status\":\"%s\"", names[j->state]);
    nrd_str_puts(out, at + sizeof queued - 1);
}

/* ---- making ---- */

void nrd_background_stop(nrd_background *b)
{
    pthread_mutex_lock(&b->mu);
    b->stopped = true;
    for (nrd_bg_job *j = b->jobs; j; j = j->next) {
        if (!j->ended) {
            cancel(j);
        }
    }
    pthread_mutex_unlock(&b->mu);
}

size_t nrd_background_running(nrd_background *b)
{
    pthread_mutex_lock(&b->mu);
    const size_t n = b->n_running;
    pthread_mutex_unlock(&b->mu);
    return n;
}

void nrd_background_free(nrd_background *b)
{
    if (!b) {
        return;
    }
    while (b->jobs) {
        unlist(b->jobs);
    }
    NRD_ASSERT(b->n_running == 0 && b->bytes == 0, "what makes answers ends before their store");
    pthread_mutex_destroy(&b->mu);
    free(b);
}

/* Lock held. */
static nrd_error *make_room(nrd_background *b, size_t bytes)
{
    if (b->stopped) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    while (b->n_jobs >= b->max_jobs || b->bytes + bytes > b->max_bytes) {
        if (!evict_one(b)) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE,
                              "background: %zu answers are under way with %zu MB; --openai-background (%zu) and "
                              "--openai-background-mb (%zu) bound them: try again later",
                              b->n_jobs, b->bytes >> 20, b->max_jobs, b->max_bytes >> 20);
        }
    }
    return NULL;
}

nrd_error *nrd_background_add(nrd_background *b, int key, const char *id, const nrd_str *object, const nrd_str *input,
                              bool with_events, nrd_bg_job **out)
{
    nrd_bg_job *j = calloc(1, sizeof *j);
    *out = NULL;
    if (!j) {
        return nrd_error_no_memory();
    }
    j->b = b;
    j->key = key;
    j->refs = 2; /* the store's, the caller's */
    j->with_events = with_events;
    snprintf(j->id, sizeof j->id, "%s", id);
    nrd_str_put(&j->object, object);
    nrd_str_put(&j->input, input);
    nrd_error *err = nrd_str_error(&j->object);
    err = err ? err : nrd_str_error(&j->input);
    pthread_mutex_lock(&b->mu);
    err = err ? err : make_room(b, bytes_of(j));
    if (!err) {
        b->bytes += bytes_of(j);
        b->n_jobs++;
        j->listed = true;
        j->next = b->jobs;
        b->jobs = j;
    }
    pthread_mutex_unlock(&b->mu);
    if (err) {
        nrd_str_fini(&j->object);
        nrd_str_fini(&j->input);
        free(j);
        return err;
    }
    *out = j;
    return NULL;
}

void nrd_bg_release(nrd_bg_job *j)
{
    if (j) {
        nrd_background *b = j->b;
        pthread_mutex_lock(&b->mu);
        drop_ref(j);
        pthread_mutex_unlock(&b->mu);
    }
}

void nrd_bg_forget(nrd_bg_job *j)
{
    nrd_background *b = j->b;
    pthread_mutex_lock(&b->mu);
    unlist(j);
    pthread_mutex_unlock(&b->mu);
}

void nrd_bg_run(nrd_bg_job *j, void *handle)
{
    nrd_background *b = j->b;
    pthread_mutex_lock(&b->mu);
    j->refs++;
    j->handle = handle;
    b->n_running++;
    if (j->ended) { /* cancelled before it ran */
        b->cancel(handle);
    }
    pthread_mutex_unlock(&b->mu);
}

void nrd_bg_begun(nrd_bg_job *j)
{
    if (j) {
        nrd_background *b = j->b;
        pthread_mutex_lock(&b->mu);
        j->state = j->state == QUEUED ? IN_PROGRESS : j->state;
        pthread_mutex_unlock(&b->mu);
    }
}

void nrd_bg_write(nrd_bg_job *j, const char *events, size_t n)
{
    nrd_background *b = j->b;
    pthread_mutex_lock(&b->mu);
    if (j->state != CANCELLED && j->with_events && !j->events_lost) {
        const size_t cap = j->events.cap;
        nrd_str_append(&j->events, events, n);
        b->bytes += j->events.cap - cap;
        while (b->bytes > b->max_bytes && evict_one(b)) {
        }
        if (j->events.no_memory || j->events.len > NRD_LIMIT_BACKGROUND_EVENTS || b->bytes > b->max_bytes) {
            lose_events(j);
        } else {
            wake_readers(j);
        }
    }
    pthread_mutex_unlock(&b->mu);
}

nrd_error *nrd_bg_complete(nrd_bg_job *j, nrd_kept_response *previous, nrd_str *input, nrd_str *answer)
{
    nrd_background *b = j->b;
    nrd_error *err = NULL;

    pthread_mutex_lock(&b->mu);
    if (!j->ended) {
        err = nrd_response_store_add(b->kept, j->key, j->id, previous, input, answer);
        nrd_kept_response *r = err ? NULL : nrd_response_store_find(b->kept, j->key, j->id);
        if (!err && !r) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the answer is larger than --openai-responses-kept-mb");
        }
        if (!err) {
            end(j, COMPLETED);
        }
        nrd_response_store_give_back(b->kept, r);
    }
    pthread_mutex_unlock(&b->mu);
    return err;
}

void nrd_bg_fail(nrd_bg_job *j, nrd_str *object)
{
    nrd_background *b = j->b;
    pthread_mutex_lock(&b->mu);
    if (!j->ended && !object->no_memory) {
        b->bytes += object->cap - j->object.cap;
        nrd_str_fini(&j->object);
        j->object = *object;
        memset(object, 0, sizeof *object);
        end(j, FAILED);
    }
    pthread_mutex_unlock(&b->mu);
}

void nrd_bg_over(nrd_bg_job *j)
{
    nrd_background *b = j->b;
    pthread_mutex_lock(&b->mu);
    j->handle = NULL;
    j->closed = true;
    b->n_running--;
    if (!j->ended) {
        end(j, CANCELLED);
    }
    wake_readers(j);
    if (j->state == COMPLETED && !j->with_events && !j->readers) {
        unlist(j); /* nothing is left to be asked here */
    }
    drop_ref(j);
    pthread_mutex_unlock(&b->mu);
}

/* ---- asking ---- */

bool nrd_background_show(nrd_background *b, int key, const char *id, nrd_str *out)
{
    pthread_mutex_lock(&b->mu);
    const nrd_bg_job *j = look_up(b, key, id);
    const bool found = j && j->state != COMPLETED;
    if (found) {
        put_object(out, j);
    }
    pthread_mutex_unlock(&b->mu);
    return found;
}

bool nrd_background_input(nrd_background *b, int key, const char *id, nrd_str *out)
{
    pthread_mutex_lock(&b->mu);
    const nrd_bg_job *j = look_up(b, key, id);
    const bool found = j && j->state != COMPLETED;
    if (found) {
        nrd_str_put(out, &j->input);
    }
    pthread_mutex_unlock(&b->mu);
    return found;
}

bool nrd_background_cancel(nrd_background *b, int key, const char *id, nrd_str *out)
{
    pthread_mutex_lock(&b->mu);
    nrd_bg_job *j = look_up(b, key, id);
    const bool found = j && (!j->ended || j->state == CANCELLED);
    if (found) {
        cancel(j);
        put_object(out, j);
    }
    pthread_mutex_unlock(&b->mu);
    return found;
}

bool nrd_background_remove(nrd_background *b, int key, const char *id)
{
    pthread_mutex_lock(&b->mu);
    nrd_bg_job *j = look_up(b, key, id);
    const bool found = j != NULL;
    if (found) {
        if (!j->ended) {
            cancel(j);
        }
        unlist(j);
    }
    pthread_mutex_unlock(&b->mu);
    return found;
}

/* ---- reading events ---- */

nrd_error *nrd_background_attach(nrd_background *b, int key, const char *id, size_t from, nrd_bg_reader *r, bool *found)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&b->mu);
    nrd_bg_job *j = look_up(b, key, id);
    *found = j != NULL;
    if (j && (!j->with_events || j->events_lost)) {
        const char *why = j->with_events ? "the events of this answer took too much memory and are not kept"
                                         : "this answer was not asked for as a stream";
        err = nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "stream: %s", why), "stream");
    } else if (j) {
        *r = (nrd_bg_reader){.wake = r->wake, .job = j, .skip = from, .woken = true, .next = j->readers};
        j->readers = r;
        j->refs++;
        r->wake(r);
    }
    pthread_mutex_unlock(&b->mu);
    return err;
}

/* Passes over events: each ends with an empty line. */
static void pass_over(nrd_bg_reader *r, const nrd_str *events)
{
    while (r->skip > 0 && r->at < events->len) {
        const char *from = events->data + r->at, *stop = memmem(from, events->len - r->at, "\n\n", 2);
        if (!stop) {
            return;
        }
        r->at += (size_t)(stop - from) + 2;
        r->skip--;
    }
}

bool nrd_bg_read(nrd_bg_reader *r, nrd_str *out)
{
    nrd_bg_job *j = r->job;
    pthread_mutex_lock(&j->b->mu);
    const bool lost = j->events_lost, closed = j->closed || lost;
    r->woken = false;
    pass_over(r, &j->events);
    if (lost) {
        nrd_str_puts(out, "event: error\ndata: {\"type\":\"error\",\"code\":\"events_lost\",\"message\":\"the events of "
                          "this answer took too much memory; the answer itself goes on\",\"param\":null}\n\n");
    } else if (r->skip == 0 && r->at < j->events.len) {
        nrd_str_append(out, j->events.data + r->at, j->events.len - r->at);
        r->at = j->events.len;
    }
    pthread_mutex_unlock(&j->b->mu);
    return closed;
}

bool nrd_bg_detach(nrd_bg_reader *r)
{
    nrd_background *b = r->job->b;
    pthread_mutex_lock(&b->mu);
    nrd_bg_reader **at = &r->job->readers;
    while (*at != r) {
        at = &(*at)->next;
    }
    *at = r->next;
    const bool woken = r->woken;
    drop_ref(r->job);
    r->job = NULL;
    pthread_mutex_unlock(&b->mu);
    return woken;
}
