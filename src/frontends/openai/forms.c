/* SPDX-License-Identifier: Apache-2.0
 * Which path speaks which API. */
#include "frontends/openai/internal.h"

#include <string.h>

static const struct {
    const char *path; /* and what lies below it */
    const nrd_oai_form *form;
} forms[] = {
    {"/v1/messages", &nrd_oai_form_messages},
    {"/v1/responses", &nrd_oai_form_responses},
    {"/api", &nrd_oai_form_ollama_chat},
    {"/completion", &nrd_oai_form_llama},
    {"/completions", &nrd_oai_form_llama},
    {"/infill", &nrd_oai_form_infill},
    {"/props", &nrd_oai_form_llama},
    {"/slots", &nrd_oai_form_llama},
    {"/apply-template", &nrd_oai_form_llama},
};

const nrd_oai_form *nrd_oai_form_of(const nrd_http_request *req)
{
    const nrd_view path = req->head.path;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const size_t n = strlen(forms[i].path);
        if (path.n >= n && memcmp(path.p, forms[i].path, n) == 0 && (path.n == n || path.p[n] == '/')) {
            return forms[i].form;
        }
    }
    return &nrd_oai_form_chat;
}
