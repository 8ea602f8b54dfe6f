/* SPDX-License-Identifier: Apache-2.0
 * cloud/token.h - Google's access tokens: got with a credentials file or from the machine, renewed in time.
 *
 * Owner     Any thread.
 * Errors    INVALID_ARG: the file cannot be used, with its path; UNAVAILABLE, INTERNAL: the token's server.
 * Sources   Google Identity, "Using OAuth 2.0 for Server to Server Applications" and "Refreshing an access
 *           token"; Compute Engine metadata server.
 */
#ifndef NRD_CLOUD_TOKEN_H
#define NRD_CLOUD_TOKEN_H

#include "cloud/http.h"

typedef struct nrd_cloud_token nrd_cloud_token;

/* path "": the service account of the machine, where there is one, else nobody in particular. Those of
 * one file are one until it changes; they live as long as the process, as tokens last an hour. */
nrd_error *nrd_cloud_token_get(nrd_cloud_token **out, const char *path) NRD_MUST_USE;
/* Appends "Bearer TOKEN", or sets *out_has to false. */
nrd_error *nrd_cloud_token_put(nrd_cloud_token *t, nrd_http_handle *h, nrd_str *out, bool *out_has) NRD_MUST_USE;

#endif
