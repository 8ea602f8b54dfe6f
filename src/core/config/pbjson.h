/* SPDX-License-Identifier: Apache-2.0
 * core/config/pbjson.h - protobuf messages from JSON and as JSON.
 *
 * Purpose   Reads any protobuf-c message, and prints one the way the model configuration endpoint does: published field
 *           names, defaults printed, 64-bit integers as numbers, absent messages and oneofs left out.
 * Owner     Stateless, any thread.
 * Errors    INVALID_ARG with the path of the offending field, NO_MEMORY.
 * Limits    Nesting of NRD_PB_MAX_DEPTH.
 * Lifetime  Messages are freed with protobuf_c_message_free_unpacked(msg, NULL).
 */
#ifndef NRD_CORE_CONFIG_PBJSON_H
#define NRD_CORE_CONFIG_PBJSON_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <protobuf-c/protobuf-c.h>

nrd_error *nrd_pbjson_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const nrd_json *json) NRD_MUST_USE;
void nrd_pbjson_put(nrd_str *out, const ProtobufCMessage *msg);

#endif
