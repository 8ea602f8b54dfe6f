/* SPDX-License-Identifier: Apache-2.0
 * tools/load/plugin/messages.h - Triton's messages of gRPC: see tools/load/grpc_plugin.h. */
#ifndef NRD_TOOLS_LOAD_PLUGIN_MESSAGES_H
#define NRD_TOOLS_LOAD_PLUGIN_MESSAGES_H

#include "tools/load/grpc_plugin.h"

char *nrd_grpc_request(const char *model, const nrd_grpc_tensor *inputs, size_t n, bool is_stream, size_t *out_n);
const char *nrd_grpc_read(const char *data, size_t n, bool is_stream,
                          void (*output)(void *arg, const nrd_grpc_output *o), void *arg, char *why, size_t n_why);
char *nrd_grpc_metadata(const char *model, size_t *out_n);
const char *nrd_grpc_read_metadata(const char *data, size_t n, void (*give)(void *arg, const char *name), void *arg);
/* An answer of a stream, after which its request has no other: the mark, or an error. What cannot be read is one. */
bool nrd_grpc_is_last(const uint8_t *data, size_t n);

#endif
