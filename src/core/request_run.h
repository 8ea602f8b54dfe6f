/* SPDX-License-Identifier: Apache-2.0
 * core/request_run.h - sending a request on its way.
 *
 * Errors    The client's: INVALID_ARG; the model's or the server's: UNAVAILABLE.
 */
#ifndef NRD_CORE_REQUEST_RUN_H
#define NRD_CORE_REQUEST_RUN_H

#include "base/error.h"
#include "core/objects.h"

/* Checks the request against its model and makes it ready to be queued. */
nrd_error *nrd_request_prepare(nrd_request *r) NRD_MUST_USE;
/* Prepares and queues. On error the request stays with the caller, no callback was made. */
nrd_error *nrd_request_run(nrd_request *r) NRD_MUST_USE;

#endif
