/* SPDX-License-Identifier: Apache-2.0
 * frontends/hosted/models.h - models that SageMaker loads and unloads one by one (multi-model endpoints).
 *
 * Purpose   SageMaker names a model by a hash and the folder that it has put it in; what is served is
 *           called after the header X-Amzn-SageMaker-Target-Model, or the hash without one.
 * Owner     Any thread. Loading and unloading run on threads of their own and answer from there.
 * Errors    Answered: 404 not loaded, 409 loaded already, 507 no memory for it, else 400 with the reason.
 */
#ifndef NRD_FRONTENDS_HOSTED_MODELS_H
#define NRD_FRONTENDS_HOSTED_MODELS_H

#include "frontends/http/api.h"

typedef struct nrd_hosted_models nrd_hosted_models;

nrd_error *nrd_hosted_models_new(nrd_hosted_models **out, TRITONSERVER_Server *server) NRD_MUST_USE;
void nrd_hosted_models_free(nrd_hosted_models *m); /* NULL is fine; no load may be running */

void nrd_hosted_models_list(nrd_hosted_models *m, nrd_http_request *req);
void nrd_hosted_models_show(nrd_hosted_models *m, nrd_http_request *req, const char *name);
void nrd_hosted_models_load(nrd_hosted_models *m, nrd_http_request *req);
void nrd_hosted_models_unload(nrd_hosted_models *m, nrd_http_request *req, const char *name);
/* The name under which a model is served: owned; NULL: it is not loaded, which is answered. */
char *nrd_hosted_models_target(nrd_hosted_models *m, nrd_http_request *req, const char *name);

#endif
