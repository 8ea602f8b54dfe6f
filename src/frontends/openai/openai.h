/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/openai.h - OpenAI's API on the port of the HTTP service, or on one of its own.
 *
 * Purpose   /v1/models, /v1/chat/completions, /v1/completions, /v1/responses, /v1/files, /v1/batches, /tokenize,
 *           /detokenize, Anthropic's /v1/messages, Ollama's /api, llama.cpp's /completion
 *           and others, vLLM's /health and others. Text becomes
 *           tokens here, tokens go through the core to the model that generates (the same as v2's
 *           generate uses, with its statistics), and text comes back.
 * Owner     Handlers run on the loop threads of the HTTP service.
 * Errors    OpenAI's form, {"error": {message, type, param, code}}, with its status codes.
 * Lifetime  new between nrd_http_api_new and nrd_http_api_listen; drain and close as the service is
 *           drained and freed; free after the service is freed.
 * Sources   OpenAI API reference (chat completions, completions, models, errors, streaming); the
 *           names of further sampling fields are those of vLLM's OpenAI-compatible server.
 */
#ifndef NRD_FRONTENDS_OPENAI_OPENAI_H
#define NRD_FRONTENDS_OPENAI_OPENAI_H

#include "frontends/http/api.h"

typedef struct nrd_openai nrd_openai;

nrd_error *nrd_openai_new(nrd_openai **out, nrd_http_api *api) NRD_MUST_USE;
/* With --openai-port: opens it. */
nrd_error *nrd_openai_listen(nrd_openai *o) NRD_MUST_USE;
int nrd_openai_port(const nrd_openai *o); /* 0: none */
/* Once a port is open: batches are worked on. */
nrd_error *nrd_openai_start(nrd_openai *o) NRD_MUST_USE;
/* --batch-file: works through it, until it is done or `interrupted` says so. *out_status: of the program. */
nrd_error *nrd_openai_run_file(nrd_openai *o, bool (*interrupted)(void *arg), void *arg, int *out_status) NRD_MUST_USE;
/* NULL is fine for all below. */
void nrd_openai_drain(nrd_openai *o); /* batches begin no more requests */
size_t nrd_openai_batch_requests(const nrd_openai *o); /* under way */
/* Cancels these; what is not finished is logged. Before the HTTP service is freed. */
void nrd_openai_stop_batches(nrd_openai *o);
size_t nrd_openai_connections(const nrd_openai *o);
void nrd_openai_close(nrd_openai *o); /* the port; no request may be in flight in the core */
void nrd_openai_free(nrd_openai *o);

#endif
