/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/batch_run.h - works through files of requests, some requests at a time.
 *
 * Purpose   A run is one file: its lines become requests of the server to itself (http/local.h), its answers lines of
 *           others. A pool bounds how many are under way, for all runs together. Answers that only say "not now" (429,
 *           503) are asked for again, later.
 * Owner     One thread drives a pool and its runs; loop threads only hand it answers. wake: any thread.
 * Units     Lines; steady nanoseconds.
 * Errors    Of the run: the file cannot be read, an answer cannot be written, out of memory. Answers with an error
 *           are no error of the run.
 * Lifetime  A run ends when n_flying is 0; runs end before the pool, the pool before the HTTP server.
 *
 *   begin -> [start_one ...] <-> take -> is_through      all lines were asked and answered
 *                 \ cancel -> take ... n_flying 0 -> give_up   each line that has no answer gets an error
 */
#ifndef NRD_FRONTENDS_OPENAI_BATCH_RUN_H
#define NRD_FRONTENDS_OPENAI_BATCH_RUN_H

#include "frontends/http/local.h"
#include "frontends/openai/batch_line.h"

typedef struct nrd_batch_pool nrd_batch_pool;

/* How an endpoint is asked: handle gets `user`. */
typedef struct nrd_batch_asks {
    nrd_http_server *server; /* borrows */
    void (*handle[4])(void *user, nrd_http_request *req); /* as nrd_batch_endpoint counts them */
    void *user;
} nrd_batch_asks;

typedef struct nrd_batch_run {
    /* of the caller */
    int fd;         /* the requests; borrows */
    int endpoint;   /* -1: any */
    int key;        /* nrd_http_local */
    /* A line of answers; borrows it. */
    nrd_error *(*write)(void *arg, bool failed, const nrd_str *line);
    void *arg;
    bool ids_of_lines; /* answers have nrd_batch_id_of's ids, else random ones */
    /* The model that a line is asked of instead of `asked` (NULL: it names none); NULL: as the line says. */
    const char *(*model_of)(void *arg, const char *asked);
    void *model_arg;
    nrd_batch_ids done; /* those that have an answer, from the beginning or since; owns */
    int64_t n_nameless; /* so many lines whose custom_id cannot be read have their error already */

    /* to be read */
    int64_t n_completed, n_failed; /* the caller may count earlier ones in */
    nrd_batch_usage usage;
    int n_flying; /* under way, or waiting to be asked again */
    nrd_error *err; /* owns; what ended it */

    /* private to batch_run.c */
    nrd_batch_reader reader;
    bool read_all, cancelled;
    uint64_t group;
    int64_t nameless; /* such lines since begin */
} nrd_batch_run;

nrd_error *nrd_batch_pool_new(nrd_batch_pool **out, const nrd_batch_asks *asks, int max_flying) NRD_MUST_USE;
void nrd_batch_pool_free(nrd_batch_pool *p); /* nothing flies; NULL is fine */
/* Waits for an answer, nrd_batch_pool_wake, or until an answer that said "not now" may be asked for again; at most so
 * long. */
void nrd_batch_pool_wait(nrd_batch_pool *p, uint64_t ns);
void nrd_batch_pool_wake(nrd_batch_pool *p);
int nrd_batch_pool_flying(nrd_batch_pool *p); /* any thread */
/* Writes the answers that have come. */
void nrd_batch_pool_take(nrd_batch_pool *p);

void nrd_batch_run_begin(nrd_batch_run *r); /* before the first of the others */
/* Asks the next line. false: there is none, or no room in the pool, or the run has an error. */
bool nrd_batch_run_start_one(nrd_batch_pool *p, nrd_batch_run *r);
bool nrd_batch_run_is_through(const nrd_batch_run *r);
void nrd_batch_run_cancel(nrd_batch_pool *p, nrd_batch_run *r);
/* Nothing flies: an error for each line that has no answer. */
void nrd_batch_run_give_up(nrd_batch_run *r, const char *code, const char *message);
void nrd_batch_run_fini(nrd_batch_run *r); /* nothing flies */

#endif
