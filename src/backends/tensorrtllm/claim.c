/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/llm.h"

#pragma weak nrd_server_claim /* in this server only */
#pragma weak nrd_server_unclaim
#pragma weak nrd_backend_claim_join
#pragma weak nrd_server_count_tokens

void nrd_llm_claim_join(nrd_llm_request *q)
{
    if (nrd_backend_claim_join) {
        nrd_backend_claim_join(&q->claim, q->triton);
    }
}

TRITONSERVER_Error *nrd_llm_claim(nrd_llm_request *q, const nrd_exec_request *e)
{
    return nrd_server_claim ? nrd_server_claim(&q->claim, nrd_exec_request_bytes(q->instance->exec, e), "what the engine keeps for it")
                            : NULL;
}

void nrd_llm_count_tokens(nrd_llm_request *q, int64_t n)
{
    if (nrd_server_count_tokens && n > 0) {
        nrd_server_count_tokens(&q->claim, (uint64_t)n);
    }
}

void nrd_llm_unclaim(nrd_llm_request *q)
{
    if (q->claim.bytes > 0 || q->claim.account) {
        nrd_server_unclaim(&q->claim, NRD_CLAIM_ALL);
    }
}
