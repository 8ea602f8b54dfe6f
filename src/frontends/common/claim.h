/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/claim.h - the front ends' side of the account of requests' memory (nereid/server.h).
 *
 * Purpose   Claims with errors of this program; with a core that has no such account they cost nothing.
 * Owner     Any thread.
 * Errors    INVALID_ARG (400): more than one request may have; UNAVAILABLE (503): than all may have.
 */
#ifndef NRD_FRONTENDS_COMMON_CLAIM_H
#define NRD_FRONTENDS_COMMON_CLAIM_H

#include "base/error.h"
#include "nereid/server.h"

#include <stddef.h>

/* As nrd_server_claim and nrd_server_unclaim. */
nrd_error *nrd_claim_bytes(nrd_claim *c, size_t bytes, const char *what) NRD_MUST_USE;
void nrd_claim_give(nrd_claim *c, size_t bytes);
void nrd_claim_give_all(nrd_claim *c);
/* As nrd_server_claim_join, where the whole has something already; nrd_claim_open: where it will. */
void nrd_claim_join(nrd_claim *part, nrd_claim *whole);
void nrd_claim_open(nrd_claim *whole);
/* What the core and backends claim for this request counts with the claim, if that has anything. */
void nrd_claim_join_core(nrd_claim *c, TRITONSERVER_InferenceRequest *request);
/* The claim counts with a request that runs. */
void nrd_claim_follow(nrd_claim *c, TRITONSERVER_InferenceRequest *request);
/* Tokens that were counted for it, and for what has joined it; it must be open before it runs. */
uint64_t nrd_claim_tokens(const nrd_claim *c);
/* What a JSON document of these n bytes takes: its values can be many times as large as their text. */
nrd_error *nrd_claim_json(nrd_claim *c, const char *text, size_t n, size_t max_values) NRD_MUST_USE;

/* Sets what one request and all may have, in MB. all 0: half of the machine's memory; one 0: a quarter of
 * what all may have. */
void nrd_claim_set_limits(uint64_t all_mb, uint64_t one_mb);
uint64_t nrd_claim_limit_of_all(void); /* what was set, bytes */

#endif
