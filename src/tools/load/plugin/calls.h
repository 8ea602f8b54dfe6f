/* SPDX-License-Identifier: Apache-2.0
 * tools/load/plugin/calls.h - calls of gRPC with messages that were encoded before: nrd_client_ops of tools/load/client.h. */
#ifndef NRD_TOOLS_LOAD_PLUGIN_CALLS_H
#define NRD_TOOLS_LOAD_PLUGIN_CALLS_H

#include "tools/load/client.h"

bool nrd_grpc_open(void **out, const nrd_client_config *config, char *why, size_t n_why);
void nrd_grpc_free(void *client);
void nrd_grpc_post(void *client, void *tag, const char *body, size_t n);
void nrd_grpc_wait(void *client, uint64_t until_ns);
size_t nrd_grpc_connections(const void *client);

#endif
