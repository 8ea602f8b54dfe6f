/* SPDX-License-Identifier: Apache-2.0
 * cloud/place.h - an address of a model repository, where its store is, and as whom it is asked.
 *
 * Purpose   s3://BUCKET/PATH, s3://[http://|https://]HOST:PORT/BUCKET/PATH, gs://BUCKET/PATH and
 *           as://ACCOUNT/CONTAINER/PATH, with the credentials that Triton documents: the file that
 *           TRITON_CLOUD_CREDENTIAL_PATH names (the longest beginning of the address counts), else the
 *           variables of each store and, for S3, the files of its own tools.
 * Owner     Read-only once it is made; any thread.
 * Errors    INVALID_ARG with what is wrong; no secret is ever part of a text.
 */
#ifndef NRD_CLOUD_PLACE_H
#define NRD_CLOUD_PLACE_H

#include "base/error.h"

#include <stdbool.h>

typedef enum { NRD_CLOUD_S3, NRD_CLOUD_GCS, NRD_CLOUD_AZURE } nrd_cloud_kind;

typedef struct nrd_cloud_place { /* all owned */
    nrd_cloud_kind kind;
    char *address;  /* as it was given */
    char *origin;   /* scheme://host[:port] */
    char *host;     /* host[:port] */
    char *root;     /* before the bucket: "", or what an Azure emulator has there */
    char *bucket;
    char *prefix;   /* "" or "PATH/" */
    char *region;
    char *key_id, *secret, *session; /* S3, GCS with HMAC keys; Azure: account and its key. "": none */
    char *credentials;               /* GCS: path of a JSON file; "": none */
} nrd_cloud_place;

nrd_error *nrd_cloud_place_new(nrd_cloud_place **out, const char *address) NRD_MUST_USE;
void nrd_cloud_place_free(nrd_cloud_place *p); /* NULL is fine */

#endif
