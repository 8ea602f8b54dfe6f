/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/puller.h - models that clients order while the server runs: fetched, built and added; removed.
 *
 * Purpose   A pull is a process (`nereid serve --prepare-only`), which fetches a model of the hub and builds its engine, and a
 *           thread that reads what it says (tools/report.h). Whoever asks for the same model meanwhile watches the
 *           same pull. It ends with its process, or when nobody watches any more; what was fetched stays, and the next
 *           pull goes on with it. What did not come by a pull is not removed. A pull of a model that came by one asks the
 *           hub for its newest revision, which takes its place.
 * Owner     Any thread. One lock; processes and ops run without it.
 * Errors    INVALID_ARG, NOT_FOUND, UNAVAILABLE: what the process says; too many pulls; stopping.
 * Lifetime  new, stop (ends what is under way), free when no watcher is left. The models that were added are the
 *           switcher's.
 */
#ifndef NRD_FRONTENDS_COMMON_PULLER_H
#define NRD_FRONTENDS_COMMON_PULLER_H

#include "base/error.h"
#include "base/json.h"

typedef struct nrd_puller nrd_puller;

/* Called by the thread of a pull; `made`: {"model": {…}, "repository": FOLDER, "fetched": BOOL, "record": FILE}. record:
 * what makes the next server have the model too; it goes with it. */
typedef struct nrd_puller_ops {
    void *user; /* borrows */
    nrd_error *(*add)(void *user, const nrd_json *made);    /* it can be asked for */
    nrd_error *(*remove)(void *user, const nrd_json *made); /* returns when its memory is free */
} nrd_puller_ops;

/* The caller's, zeroed but for the functions, until end was called or leave said true. Both functions are called
 * with the puller's lock held, on any thread: they take note and return. */
typedef struct nrd_pull_watcher {
    void (*tell)(struct nrd_pull_watcher *w, const char *line, size_t n); /* a JSON object with "status" */
    void (*end)(struct nrd_pull_watcher *w, nrd_error *err);              /* once; takes err, NULL: it is done */

    /* private */
    struct nrd_pull_watcher *next;
    struct nrd_pull_job *job;
} nrd_pull_watcher;

/* command: words of the process, to which what is pulled is added; a list of strings, copied. */
nrd_error *nrd_puller_new(nrd_puller **out, const nrd_puller_ops *ops, const nrd_json *command) NRD_MUST_USE;
/* Nothing begins any more; what is under way ends with an error. Any number of times. */
void nrd_puller_stop(nrd_puller *p);
void nrd_puller_free(nrd_puller *p); /* waits for what is under way; NULL is fine */

/* A model that an earlier server pulled, and that can be asked for already. Copies made. */
nrd_error *nrd_puller_know(nrd_puller *p, const nrd_json *made) NRD_MUST_USE;
bool nrd_puller_has(nrd_puller *p, const char *name); /* it came by a pull, and may be removed */

/* ORG/NAME, also with :QUANT, @REVISION or /FILE.gguf; nothing else, so that no address can be named. */
bool nrd_puller_is_name(const char *name);
/* An error: neither function is called. */
nrd_error *nrd_puller_pull(nrd_puller *p, const char *name, nrd_pull_watcher *w) NRD_MUST_USE;
/* Of a model that was pulled: it goes out of the server and, where its files came with the pull, out of the cache. */
nrd_error *nrd_puller_remove(nrd_puller *p, const char *name, nrd_pull_watcher *w) NRD_MUST_USE;
/* True: the functions are not called any more; a pull that nobody else watches ends. False: end was called. */
bool nrd_puller_leave(nrd_puller *p, nrd_pull_watcher *w);

#endif
