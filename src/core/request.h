/* SPDX-License-Identifier: Apache-2.0
 * core/request.h - requests.
 *
 * Purpose   A request's life: NEW (its creator builds it) - PREPARED (checked) - PENDING (queued) -
 *           RUNNING (with a backend or an ensemble) - NEW again through the release callback.
 * Owner     Its creator; lent to the core from ServerInferAsync until the release callback. One
 *           thread at a time, except where a field says otherwise.
 * Units     Times in nanoseconds of the steady clock unless the name says otherwise.
 * Errors    For the client: INVALID_ARG with Triton's words.
 */
#ifndef NRD_CORE_REQUEST_H
#define NRD_CORE_REQUEST_H

#include "base/error.h"
#include "core/memory.h"
#include "core/model_metrics.h"
#include "core/objects.h"
#include "core/types.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_MAX_INPUT_SEGMENTS = 1 << 20 }; /* buffers of one input */

nrd_request *nrd_request_new(nrd_model *m, int64_t version); /* shares m; NULL: no memory */
void nrd_request_free(nrd_request *r);
/* The memory stays until one more nrd_request_free: backends report figures of requests that they
 * have released. */
nrd_request *nrd_request_keep(nrd_request *r);
nrd_error *nrd_request_add_input(nrd_input **out, nrd_request *r, const char *name,
                                 TRITONSERVER_DataType dtype, const int64_t *dims,
                                 uint64_t n) NRD_MUST_USE;
nrd_error *nrd_input_append(nrd_input *in, const void *base, const nrd_attr *attr,
                            nrd_buf *owner) NRD_MUST_USE; /* shares owner */
void nrd_input_drop_data(nrd_input *in);
void nrd_request_remove_input(nrd_request *r, uint32_t index);
nrd_input *nrd_request_find_input(const nrd_request *r, const char *name);
nrd_error *nrd_request_add_output(nrd_request *r, const char *name) NRD_MUST_USE;
bool nrd_request_wants(const nrd_request *r, const char *output);
/* Adds an input that the client did not send; it hides one of the same name. Dropped before the
 * request goes back to its creator. dims include the batch dimension. Shares data (NULL: there was
 * no memory for it). Without memory the request is marked: it fails where it would be executed. */
void nrd_request_override(nrd_request *r, const char *name, TRITONSERVER_DataType dtype,
                          const int64_t *dims, uint32_t n_dims, nrd_buf *data, size_t byte_size);
void nrd_request_drop_overrides(nrd_request *r);
/* A request with inputs of the same shapes, all zero, whose answers go nowhere. NULL: no memory. */
nrd_request *nrd_request_new_null(const nrd_request *like);
/* Same inputs and, except for ragged ones, the same shapes behind the batch dimension. */
bool nrd_request_same_shapes(const nrd_request *a, const nrd_request *b);
void nrd_request_set_running(nrd_request *r); /* left the queue */
/* Only a sequence batcher's refusal to run the request again is an error: it stays running. */
nrd_error *nrd_request_try_release(nrd_request *r, uint32_t flags) NRD_MUST_USE;
void nrd_request_release(nrd_request *r, uint32_t flags);
/* Answers with the error, counts the failure, releases. Always takes err. */
void nrd_request_fail(nrd_request *r, nrd_error *err, nrd_fail_reason reason);
bool nrd_request_is_cancelled(const nrd_request *r);
/* Shares the account; NULL: as it is. Before the request runs. */
void nrd_request_set_account(nrd_request *r, nrd_account *a);
/* When its timeout, counted from its arrival, is over: steady clock, in nanoseconds; 0: it has none. */
uint64_t nrd_request_end_by(const nrd_request *r);
/* What is left of its timeout for a request made on its behalf: at least a microsecond; 0: it has none. */
uint64_t nrd_request_time_left_us(const nrd_request *r);
/* "[request id: X] " in front of a message, as clients know it. */
nrd_error *nrd_request_errorf(const nrd_request *r, nrd_error_code code, const char *fmt, ...)
    NRD_PRINTF(3, 4) NRD_MUST_USE;

#endif
