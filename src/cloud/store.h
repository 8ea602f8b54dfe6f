/* SPDX-License-Identifier: Apache-2.0
 * cloud/store.h - requests to a store, signed as its kind wants them, and what its refusals mean.
 *
 * Owner     A store may be used by several threads, each with a handle of its own.
 * Errors    As cloud/plugin.h says, with the address of the object, the status and the store's own words.
 * Sources   Amazon S3 API Reference; Cloud Storage XML API, which speaks the same language; Azure Blob
 *           Storage REST API, version 2021-08-06.
 */
#ifndef NRD_CLOUD_STORE_H
#define NRD_CLOUD_STORE_H

#include "cloud/http.h"
#include "cloud/place.h"
#include "cloud/sign.h"

typedef struct nrd_cloud_store nrd_cloud_store;

nrd_error *nrd_cloud_store_new(nrd_cloud_store **out, const char *address) NRD_MUST_USE;
void nrd_cloud_store_free(nrd_cloud_store *s); /* NULL is fine */
const nrd_cloud_place *nrd_cloud_store_place(const nrd_cloud_store *s);

typedef struct nrd_cloud_request {
    const char *object;          /* its whole name in the bucket; NULL: the bucket itself */
    const nrd_sign_field *query; /* sorted */
    size_t n_query;
    const char *etag;            /* NULL: any */
    bool has_range;
    uint64_t first, last;        /* bytes, both included */
    nrd_http_sink sink;          /* as in net/http.h */
    void *user;
    size_t max_body;
} nrd_cloud_request;

/* Once. *out_again: asking again later may help. The reply as in net/http.h. */
nrd_error *nrd_cloud_ask_once(nrd_cloud_store *s, nrd_http_handle *h, const nrd_cloud_request *r,
                              nrd_http_reply *reply, bool *out_again) NRD_MUST_USE;
/* Up to five times, with pauses. */
nrd_error *nrd_cloud_ask(nrd_cloud_store *s, nrd_http_handle *h, const nrd_cloud_request *r,
                         nrd_http_reply *reply) NRD_MUST_USE;

#endif
