/* SPDX-License-Identifier: Apache-2.0
 * core/config/pbtext.h - protobuf messages from text.
 *
 * Purpose   Reads config.pbtxt (text format) into any protobuf-c message.
 * Owner     Stateless, any thread.
 * Errors    INVALID_ARG, NO_MEMORY: "L:C: <reason>" with the reasons that users of the text format know.
 * Limits    Nesting of NRD_PB_MAX_DEPTH; the caller limits the size of the text.
 * Lifetime  Messages are freed with protobuf_c_message_free_unpacked(msg, NULL).
 */
#ifndef NRD_CORE_CONFIG_PBTEXT_H
#define NRD_CORE_CONFIG_PBTEXT_H

#include "base/error.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

nrd_error *nrd_pbtext_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const char *text, size_t len) NRD_MUST_USE;

#endif
