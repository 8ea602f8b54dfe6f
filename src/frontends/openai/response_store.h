/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/response_store.h - answers of /v1/responses that later requests name.
 *
 * Purpose   Keeps what was asked and answered, so that previous_response_id can go on from it. Each
 *           answer refers to the one that it continues; a conversation is kept once, however long.
 * Owner     Any thread. What a kept answer holds does not change any more.
 * Units     Bytes: what all kept answers take, those too that are only part of a later one.
 * Errors    new: out of memory. An answer that finds no room is not kept; the longest unused go first.
 * Lifetime  The store is freed after the last answer that was found in it was given back.
 */
#ifndef NRD_FRONTENDS_OPENAI_RESPONSE_STORE_H
#define NRD_FRONTENDS_OPENAI_RESPONSE_STORE_H

#include "base/error.h"
#include "base/str.h"

typedef struct nrd_response_store nrd_response_store;

typedef struct nrd_kept_response {
    struct nrd_kept_response *previous; /* shares; NULL: nothing came before */
    char id[48];
    int key;        /* who may ask for it: the place of an API key, -1 where there are none */
    nrd_str input;  /* the items that were sent with it: a JSON list */
    nrd_str answer; /* the response: a JSON object */
    /* private to response_store.c */
    struct nrd_kept_response *newer, *older; /* in the order of use */
    struct nrd_kept_response *same_bucket;
    size_t bytes;
    int refs; /* guarded by the store's lock */
} nrd_kept_response;

/* max_count 0: nothing is kept. */
nrd_error *nrd_response_store_new(nrd_response_store **out, size_t max_count, size_t max_bytes) NRD_MUST_USE;
void nrd_response_store_free(nrd_response_store *s); /* NULL is fine */

/* The answer with this id that belongs to this key, now the last used one; NULL: there is none. Shares:
 * the caller gives it back. */
nrd_kept_response *nrd_response_store_find(nrd_response_store *s, int key, const char *id);
void nrd_response_store_give_back(nrd_response_store *s, nrd_kept_response *r); /* NULL is fine */

/* Takes the strings; `previous` is shared, NULL: none. Out of memory: nothing was taken. */
nrd_error *nrd_response_store_add(nrd_response_store *s, int key, const char *id, nrd_kept_response *previous,
                                  nrd_str *input, nrd_str *answer) NRD_MUST_USE;
/* False: there is none. Later answers that continue it still do. */
bool nrd_response_store_remove(nrd_response_store *s, int key, const char *id);

#endif
