/* SPDX-License-Identifier: Apache-2.0
 * core/claim.h - how much memory the requests in flight may take.
 *
 * Purpose   One sum of the process, and an account for each request that claims anything. Who is about to take memory whose size a request decides claims
 *           it before, and gives it back afterwards, so that no sum of requests takes all there is.
 * Owner     Any thread. What others use of it is in nereid/server.h; this is for the core.
 * Units     Bytes. Pieces below NRD_CLAIM_LEAST are not counted.
 * Errors    INVALID_ARG: one request asks for more than one may have; UNAVAILABLE: all together would.
 */
#ifndef NRD_CORE_CLAIM_H
#define NRD_CORE_CLAIM_H

#include "base/error.h"
#include "nereid/server.h"

/* NULL: the bytes are counted for all requests alone. what: for the message. */
nrd_error *nrd_claim_take(nrd_claim *c, uint64_t bytes, const char *what) NRD_MUST_USE;

/* NULL on no memory, as in nrd_account_of. */
nrd_account *nrd_account_new(void);
nrd_account *nrd_account_ref(nrd_account *a);
void nrd_account_unref(nrd_account *a); /* NULL is fine */
/* The account that the claim has joined, or now has as its first. The claim's; borrows. */
nrd_account *nrd_account_of(nrd_claim *c);
/* As nrd_server_claim_join; a NULL: no effect. */
void nrd_claim_enter(nrd_claim *c, nrd_account *a);

/* Logs what has not been given back; when no request is in flight any more. */
void nrd_claim_check_end(void);

#endif
