/* SPDX-License-Identifier: Apache-2.0
 * frontends/grpc/json_message.h - the core's JSON documents as protobuf messages.
 *
 * Purpose   The core answers questions (metadata, configuration, statistics, index) with JSON whose
 *           keys are the field names of the messages; one walk over the descriptors turns any of
 *           them into its message.
 * Owner     Stateless; everything is allocated in the caller's arena.
 * Errors    INTERNAL when a value does not fit its field: core and interface disagree. Unknown keys
 *           are passed over: the core may say more than the interface carries.
 * Sources   The JSON mapping of proto3: 64-bit integers may be strings, enums are names, maps are
 *           objects.
 */
#ifndef NRD_FRONTENDS_GRPC_JSON_MESSAGE_H
#define NRD_FRONTENDS_GRPC_JSON_MESSAGE_H

#include "base/json.h"
#include "base/mem.h"

#include <protobuf-c/protobuf-c.h>

nrd_error *nrd_grpc_message_from_json(nrd_arena *arena, const ProtobufCMessageDescriptor *type,
                                      const nrd_json *object, ProtobufCMessage **out) NRD_MUST_USE;

#endif
