/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/lease.h - a request waits for its model, and keeps it until it ends.
 *
 * Purpose   What HTTP adds to the switcher (common/switcher.h): the way back to the loop, clients that go, and
 *           the lease's end with the request's memory, whoever holds that last.
 * Owner     The request's loop thread.
 */
#ifndef NRD_FRONTENDS_HTTP_LEASE_H
#define NRD_FRONTENDS_HTTP_LEASE_H

#include "frontends/http/api.h"

/* Called once, on the loop: with NULL the request has the lease; else why not (takes err). When the client
 * has gone that is an error too, whose answer is dropped. */
typedef void nrd_http_leased(void *user, nrd_http_request *req, nrd_error *err);

/* At once where the model is loaded, else later. keep_ns: as nrd_switcher_release. */
void nrd_http_lease(nrd_switcher *s, nrd_http_request *req, nrd_switch_model *m, uint64_t keep_ns,
                    nrd_http_leased *then, void *user);
uint64_t nrd_http_lease_waited_ns(const nrd_http_request *req); /* 0 without a lease */

/* For handlers of a path with {m}: false: go on. True: the model is waited for; handler is called again then,
 * or the error is answered. */
bool nrd_http_waits_for_model(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route,
                              nrd_http_handler *handler);

#endif
