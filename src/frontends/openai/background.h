/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/background.h - answers of /v1/responses that are made while no client waits for them.
 *
 * Purpose   A job is one such answer: its state, the events that were written so far if they were asked for, and who
 *           reads them. It says nothing of how the answer is made (responses_background.c).
 * Owner     Any thread. A reader belongs to one thread, which attaches, reads and detaches it.
 * Units     Bytes: the objects, the input and the events of all jobs together. Events are counted from 0.
 * Errors    UNAVAILABLE: all places are taken, or the server ends; NOT_FOUND; INVALID_ARG with the field.
 * Lifetime  Jobs are counted: add gives one reference, which release takes back. One that has ended stays until
 *           others need its place; what was completed is in the store of answers by then.
 *
 *   queued --> in_progress --> completed | incomplete | failed
 *      \------------\--------> cancelled
 */
#ifndef NRD_FRONTENDS_OPENAI_BACKGROUND_H
#define NRD_FRONTENDS_OPENAI_BACKGROUND_H

#include "base/error.h"
#include "base/str.h"
#include "frontends/openai/response_store.h"

typedef struct nrd_background nrd_background;
typedef struct nrd_bg_job nrd_bg_job;

typedef struct nrd_bg_reader {
    /* Called when there is something to read, once until it is read; any thread, with locks held: it may only post. */
    void (*wake)(struct nrd_bg_reader *r);
    /* private to background.c */
    nrd_bg_job *job; /* shares; NULL: not attached */
    size_t at;       /* byte of the events */
    size_t skip;     /* events that are still to be passed over */
    bool woken;
    struct nrd_bg_reader *next;
} nrd_bg_reader;

/* A job's events beyond NRD_LIMIT_BACKGROUND_EVENTS, and what is too much for all jobs together, are dropped: its answer
 * goes on. */

/* kept: borrowed, gets completed answers. max_jobs 0: there are none. cancel: ends what makes an answer; it is called
 * with locks held and may only post. */
nrd_error *nrd_background_new(nrd_background **out, nrd_response_store *kept, size_t max_jobs, size_t max_bytes,
                              void (*cancel)(void *handle)) NRD_MUST_USE;
void nrd_background_free(nrd_background *b); /* all references are given back; NULL is fine */
void nrd_background_stop(nrd_background *b); /* no more jobs from here on; those under way are cancelled */
size_t nrd_background_running(nrd_background *b); /* whose requests are not over */

/* object: the response with the status "queued"; input: the items that it answers; both are copied. */
nrd_error *nrd_background_add(nrd_background *b, int key, const char *id, const nrd_str *object, const nrd_str *input,
                              bool with_events, nrd_bg_job **out) NRD_MUST_USE;
void nrd_bg_release(nrd_bg_job *j); /* NULL is fine */
void nrd_bg_forget(nrd_bg_job *j);  /* as if it had not been */
/* Its request runs, with a reference of its own until nrd_bg_over. The handle is what cancel gets. */
void nrd_bg_run(nrd_bg_job *j, void *handle);
void nrd_bg_begun(nrd_bg_job *j);      /* its first token has come; NULL is fine */
void nrd_bg_write(nrd_bg_job *j, const char *events, size_t n); /* whole events */
/* Nothing else will be written. Keeps a completed answer; takes the strings, shares `previous`. One that was cancelled
 * meanwhile is dropped. */
nrd_error *nrd_bg_complete(nrd_bg_job *j, nrd_kept_response *previous, nrd_str *input, nrd_str *answer) NRD_MUST_USE;
void nrd_bg_fail(nrd_bg_job *j, nrd_str *object); /* takes the response with its error */
/* The request that made it is over: what has no end yet was cancelled. */
void nrd_bg_over(nrd_bg_job *j); /* gives the reference back */

/* ---- for the key that asks ---- */

/* Appends the response as it stands; false: there is no such job. */
bool nrd_background_show(nrd_background *b, int key, const char *id, nrd_str *out);
bool nrd_background_input(nrd_background *b, int key, const char *id, nrd_str *out); /* the items that came */
/* Cancels it, and appends the response; false: there is none that is under way or was cancelled. */
bool nrd_background_cancel(nrd_background *b, int key, const char *id, nrd_str *out);
/* Cancels and forgets it; false: there is none. */
bool nrd_background_remove(nrd_background *b, int key, const char *id);
/* Events from number `from` on; the reader is woken at once. *found false: there is no such job. */
nrd_error *nrd_background_attach(nrd_background *b, int key, const char *id, size_t from, nrd_bg_reader *r,
                                 bool *found) NRD_MUST_USE;
/* Appends what is new; true: nothing will follow. */
bool nrd_bg_read(nrd_bg_reader *r, nrd_str *out);
/* true: a wake is still to be answered, which finds nothing. */
bool nrd_bg_detach(nrd_bg_reader *r);

#endif
