/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/batches.h - batches: what /v1/batches makes, shows and cancels.
 *
 * Purpose   Each batch is a file of requests that is worked through beside what clients ask. One thread looks through
 *           the files, drives the requests (batch_run.h) and ends batches; batches take turns.
 * Owner     create, list, find, cancel: any thread.
 * Units     Seconds since 1970.
 * Errors    INVALID_ARG with the field; NOT_FOUND: no such batch of this owner.
 * Lifetime  new, then start once the HTTP server runs; stop before it is freed. Batches that have not ended go on at
 *           the next start where the folder of the files stays; else they are named in the log.
 *
 *   validating --> in_progress --> finalizing --> completed
 *      |  \            |  |  \--------------------> failed      (no room for its answers)
 *      |   \-> failed  |  \-> expired                           (its time is over)
 *      \---------------\----> cancelling --> cancelled
 *
 * Sources   OpenAI API reference: batches.
 */
#ifndef NRD_FRONTENDS_OPENAI_BATCHES_H
#define NRD_FRONTENDS_OPENAI_BATCHES_H

#include "frontends/common/keys.h"
#include "frontends/openai/batch_run.h"
#include "frontends/openai/file_store.h"

typedef struct nrd_batches nrd_batches;

/* Borrows both until free. */
nrd_error *nrd_batches_new(nrd_batches **out, nrd_file_store *files, const nrd_keys *keys, int max_flying) NRD_MUST_USE;
/* Goes on with what the folder holds; more may be created from here on. */
nrd_error *nrd_batches_start(nrd_batches *b, const nrd_batch_asks *asks) NRD_MUST_USE;
/* No more requests are begun. NULL is fine here and below. */
void nrd_batches_drain(nrd_batches *b);
int nrd_batches_flying(nrd_batches *b); /* requests under way */
void nrd_batches_stop(nrd_batches *b);  /* cancels them and ends the thread */
void nrd_batches_free(nrd_batches *b);  /* stops */

/* The owner of what a key brings: NRD_FILE_OWNER bytes. key -1: there are no keys. */
void nrd_batches_owner(const nrd_file_store *files, const nrd_keys *keys, int key, char out[NRD_FILE_OWNER]);

/* From the body of POST /v1/batches; the batch as JSON is appended. */
nrd_error *nrd_batches_create(nrd_batches *b, const char *owner, const nrd_json *body, nrd_str *out) NRD_MUST_USE;
nrd_error *nrd_batches_show(nrd_batches *b, const char *owner, const char *id, nrd_str *out) NRD_MUST_USE;
nrd_error *nrd_batches_cancel(nrd_batches *b, const char *owner, const char *id, nrd_str *out) NRD_MUST_USE;
/* The newest first, behind `after` ("": from the first). */
nrd_error *nrd_batches_list(nrd_batches *b, const char *owner, const char *after, size_t max, nrd_str *out) NRD_MUST_USE;

#endif
