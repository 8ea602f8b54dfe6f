/* SPDX-License-Identifier: Apache-2.0
 * core/response.h - responses, and the factories that make them.
 *
 * Owner     nrd_factory: counted; it outlives the request while responses may still come.
 *           nrd_response: the last function that took it as an argument.
 */
#ifndef NRD_CORE_RESPONSE_H
#define NRD_CORE_RESPONSE_H

#include "base/error.h"
#include "core/objects.h"
#include "core/types.h"

#include <stdbool.h>
#include <stdint.h>

nrd_factory *nrd_factory_new(const nrd_request *r); /* NULL: no memory */
nrd_factory *nrd_factory_ref(nrd_factory *f);
void nrd_factory_unref(nrd_factory *f); /* NULL is fine */
void nrd_factory_send_flags(nrd_factory *f, uint32_t flags);
/* A response with this error, which is taken; it needs no memory. */
void nrd_factory_send_error(nrd_factory *f, uint32_t flags, nrd_error *err);
/* Its responses come in the place of its request among those of o (NULL: none), unless they have
 * one already. */
nrd_error *nrd_factory_join_order(nrd_factory *f, nrd_response_order *o) NRD_MUST_USE;
void nrd_factory_leave_order(nrd_factory *f); /* they need not wait for others */
/* nrd_deliver_fn: calls the response callback. */
void nrd_factory_deliver(nrd_factory *f, nrd_response *r, uint32_t flags);

nrd_response *nrd_response_new(nrd_factory *f); /* NULL: no memory */
/* The same; without memory one that carries that error whatever is put into it, once for a factory. */
nrd_response *nrd_response_new_or_reserve(nrd_factory *f);
void nrd_response_free(nrd_response *r);
nrd_error *nrd_response_add_output(nrd_output **out, nrd_response *r, const char *name,
                                   TRITONSERVER_DataType dtype, const int64_t *dims,
                                   uint32_t n) NRD_MUST_USE;
/* memory type: wish on entry, fact on return. */
nrd_error *nrd_output_alloc(nrd_output *o, size_t byte_size, TRITONSERVER_MemoryType *type,
                            int64_t *type_id) NRD_MUST_USE;
/* NRD_SERVER_TIMED_OUT. */
nrd_error *nrd_response_set_timed_out(nrd_response *r) NRD_MUST_USE;
bool nrd_response_is_timed_out(const nrd_response *r);
void nrd_response_send(nrd_response *r, uint32_t flags, nrd_error *err); /* always takes both */

#endif
