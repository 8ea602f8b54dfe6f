/* SPDX-License-Identifier: Apache-2.0
 * core/request_check.h - whether a request suits its model.
 *
 * Errors    INVALID_ARG with the words that clients know.
 */
#ifndef NRD_CORE_REQUEST_CHECK_H
#define NRD_CORE_REQUEST_CHECK_H

#include "base/error.h"
#include "core/objects.h"

/* Completes a raw input, finds the batch size and the shapes that the backend is to see. */
nrd_error *nrd_request_check(nrd_request *r) NRD_MUST_USE;

#endif
