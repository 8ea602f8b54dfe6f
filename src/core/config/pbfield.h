/* SPDX-License-Identifier: Apache-2.0
 * core/config/pbfield.h - fields of any protobuf-c message by their descriptors.
 *
 * Purpose   What the readers and printers of text and JSON share: where a field's value is, and values put into fields.
 * Owner     Stateless, any thread. A message owns what is put into it.
 * Errors    NO_MEMORY; the message is as it was then, but for an element that has been added.
 */
#ifndef NRD_CORE_CONFIG_PBFIELD_H
#define NRD_CORE_CONFIG_PBFIELD_H

#include "base/error.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

enum { NRD_PB_MAX_DEPTH = 64 }; /* of messages in each other, for the readers */

typedef ProtobufCFieldDescriptor nrd_pb_field;
typedef ProtobufCMessageDescriptor nrd_pb_type;

void *nrd_pb_member_of(const ProtobufCMessage *msg, const nrd_pb_field *f);
/* Of a repeated field its number of elements, of a oneof the id of the field that is set, of an optional one whether it is. */
void *nrd_pb_quantifier_of(const ProtobufCMessage *msg, const nrd_pb_field *f);
bool nrd_pb_is_oneof(const nrd_pb_field *f);
/* protobuf-c turns map<K, V> into a repeated message "…Entry" with the fields key and value. */
bool nrd_pb_is_map(const nrd_pb_field *f);
size_t nrd_pb_size_of_type(ProtobufCType type); /* bytes of one value in a message */

nrd_error *nrd_pb_new_message(ProtobufCMessage **out, const nrd_pb_type *type) NRD_MUST_USE;
/* Each puts a value into the field: as another element where it is repeated, else in place of what was there. */
nrd_error *nrd_pb_put_scalar(ProtobufCMessage *msg, const nrd_pb_field *f, const void *value) NRD_MUST_USE; /* no text, no message */
nrd_error *nrd_pb_put_string_value(ProtobufCMessage *msg, const nrd_pb_field *f, const char *text, size_t n) NRD_MUST_USE;
nrd_error *nrd_pb_put_message(ProtobufCMessage **out, ProtobufCMessage *msg, const nrd_pb_field *f) NRD_MUST_USE; /* a new one */

/* An absent map value message or string must still be a valid object. */
nrd_error *nrd_pb_fill_map_values(ProtobufCMessage *msg) NRD_MUST_USE;

/* Deep copy through the wire format; NULL only when memory runs out. */
ProtobufCMessage *nrd_pb_copy(const ProtobufCMessage *msg);

/* Replaces an owned string field; on NO_MEMORY it stays. */
nrd_error *nrd_pb_set_string(char **field, const char *value) NRD_MUST_USE;

#endif
