/* SPDX-License-Identifier: Apache-2.0
 * cloud/sign.h - signatures of requests: AWS version 4, Azure's shared key, Google's web tokens.
 *
 * Purpose   Text in, text out: no clock, no network, so that published examples can be checked.
 * Owner     Stateless; any thread. What is returned is the caller's (free).
 * Errors    INVALID_ARG where a key cannot be used; NO_MEMORY.
 * Sources   AWS General Reference, "Signature Version 4"; Azure Storage, "Authorize with Shared Key";
 *           Google Identity, "Using OAuth 2.0 for Server to Server Applications"; RFC 7515.
 */
#ifndef NRD_CLOUD_SIGN_H
#define NRD_CLOUD_SIGN_H

#include "base/error.h"
#include "base/str.h"

#include <time.h>

/* Percent-encoded as AWS wants it; `/` stays where keep_slash. */
void nrd_sign_escape(nrd_str *out, const char *text, bool keep_slash);

typedef struct nrd_sign_field {
    const char *name;  /* of a header: lower case */
    const char *value;
} nrd_sign_field;

typedef struct nrd_sign_request {
    const char *host;             /* as in the request, with its port if it is not the usual one */
    const char *path;             /* escaped, begins with a slash */
    const nrd_sign_field *query;  /* sorted by name, not escaped */
    size_t n_query;
    const nrd_sign_field *fields; /* headers besides host; for AWS sorted, those that are signed */
    size_t n_fields;
} nrd_sign_request;

/* The query as it stands in the address, without `?`. */
void nrd_sign_query(nrd_str *out, const nrd_sign_request *r);
/* Appends the value of `Authorization` of a GET whose body is not signed. `date`: YYYYMMDDThhmmssZ, which
 * must be among the fields as x-amz-date. */
nrd_error *nrd_sign_aws(nrd_str *out, const nrd_sign_request *r, const char *key_id, const char *secret,
                        const char *region, const char *date) NRD_MUST_USE;
/* The same for Azure. path: of the account; `base64_key`: the account's. */
nrd_error *nrd_sign_azure(nrd_str *out, const nrd_sign_request *r, const char *account,
                          const char *base64_key) NRD_MUST_USE;
/* Appends a signed web token for `audience`. */
nrd_error *nrd_sign_token(nrd_str *out, const char *email, const char *pem_key, const char *audience,
                          const char *scope, time_t now) NRD_MUST_USE;

#endif
