/* SPDX-License-Identifier: Apache-2.0
 * core/config/pbtext.h - protobuf messages as text and as JSON, by reflection.
 *
 * Purpose   Reads config.pbtxt (text format) and JSON into any protobuf-c message, and prints a
 *           message as JSON the way the model configuration endpoint does: published field names,
 *           defaults printed, 64-bit integers as numbers, absent messages and oneofs left out.
 * Owner     Stateless, any thread.
 * Errors    INVALID_ARG, NO_MEMORY. Text: "L:C: <reason>" with the reasons that users of the text format know.
 *           JSON: the path of the offending field.
 * Limits    Nesting of NRD_PBTEXT_MAX_DEPTH; the caller limits the size of the text.
 * Lifetime  Messages are freed with protobuf_c_message_free_unpacked(msg, NULL).
 */
#ifndef NRD_CORE_CONFIG_PBTEXT_H
#define NRD_CORE_CONFIG_PBTEXT_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

enum { NRD_PBTEXT_MAX_DEPTH = 64 };

nrd_error *nrd_pbtext_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const char *text, size_t len) NRD_MUST_USE;

nrd_error *nrd_pbjson_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const nrd_json *json) NRD_MUST_USE;
void nrd_pbjson_put(nrd_str *out, const ProtobufCMessage *msg);

/* Deep copy through the wire format; NULL only when memory runs out. */
ProtobufCMessage *nrd_pb_copy(const ProtobufCMessage *msg);

/* Replaces an owned string field; on NO_MEMORY it stays. */
nrd_error *nrd_pb_set_string(char **field, const char *value) NRD_MUST_USE;

#endif
