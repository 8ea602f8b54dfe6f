/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/claim.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "frontends/common/error.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#pragma weak nrd_server_claim /* another core may lack them */
#pragma weak nrd_server_unclaim
#pragma weak nrd_server_limit_memory
#pragma weak nrd_server_claim_join
#pragma weak nrd_server_request_join
#pragma weak nrd_server_claim_join_request
#pragma weak nrd_server_tokens

nrd_error *nrd_claim_bytes(nrd_claim *c, size_t bytes, const char *what)
{
    return bytes >= NRD_CLAIM_LEAST && nrd_server_claim ? nrd_from_triton(nrd_server_claim(c, bytes, what)) : NULL;
}

void nrd_claim_give(nrd_claim *c, size_t bytes)
{
    if (bytes >= NRD_CLAIM_LEAST && nrd_server_unclaim) {
        nrd_server_unclaim(c, bytes);
    }
}

void nrd_claim_give_all(nrd_claim *c)
{
    if (c->bytes > 0 || c->account) {
        nrd_server_unclaim(c, NRD_CLAIM_ALL);
    }
}

void nrd_claim_join(nrd_claim *part, nrd_claim *whole)
{
    if (whole->bytes > 0 || whole->account) {
        nrd_server_claim_join(part, whole);
    }
}

void nrd_claim_open(nrd_claim *whole)
{
    if (nrd_server_claim_join) {
        nrd_server_claim_join(whole, whole);
    }
}

void nrd_claim_join_core(nrd_claim *c, TRITONSERVER_InferenceRequest *request)
{
    if (c->bytes > 0 || c->account) {
        nrd_server_request_join(request, c);
    }
}

void nrd_claim_follow(nrd_claim *c, TRITONSERVER_InferenceRequest *request)
{
    if (!c->account && nrd_server_claim_join_request) {
        nrd_server_claim_join_request(c, request);
    }
}

uint64_t nrd_claim_tokens(const nrd_claim *c)
{
    return nrd_server_tokens ? nrd_server_tokens(c) : 0;
}

nrd_error *nrd_claim_json(nrd_claim *c, const char *text, size_t n, size_t max_values)
{
    size_t values = 1;

    if (n < NRD_CLAIM_LEAST) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) { /* each but the first of a container stands behind a comma */
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    }
    values = values < max_values ? values : max_values;
    /* the text is copied, and values wait on a stack before they are in their place */
    return nrd_claim_bytes(c, n + 2 * values * sizeof(nrd_json), "its JSON");
}

/* A control group may allow less than the machine has. */
static uint64_t machine_bytes(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    static const char *const files[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        FILE *f = fopen(files[i], "re");
        unsigned long long most = 0;
        if (f && fscanf(f, "%llu", &most) == 1 && most > 0 && most < bytes) {
            bytes = most;
        }
        if (f) {
            fclose(f);
        }
    }
    return bytes;
}

static uint64_t limit_of_all; /* written once, before there are services */

uint64_t nrd_claim_limit_of_all(void)
{
    return limit_of_all;
}

void nrd_claim_set_limits(uint64_t all_mb, uint64_t one_mb)
{
    const uint64_t all = all_mb ? all_mb << 20 : machine_bytes() / 100 * NRD_LIMIT_INFLIGHT_MEMORY;
    const uint64_t one = one_mb ? one_mb << 20 : all / 100 * NRD_LIMIT_REQUEST_MEMORY;

    limit_of_all = all;
    if (nrd_server_limit_memory) {
        nrd_server_limit_memory(all, one < all ? one : all);
    }
}
