/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/messages, as Anthropic has it. */
#include "frontends/openai/internal.h"

void nrd_oai_on_messages(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_messages);
}
