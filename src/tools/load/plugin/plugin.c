/* SPDX-License-Identifier: Apache-2.0
 * The table of nereid_grpc.so: see tools/load/grpc_plugin.h. */
#include "tools/load/plugin/calls.h"
#include "tools/load/plugin/messages.h"

__attribute__((visibility("default"))) const nrd_grpc_ops nrd_grpc_ops_2 = {
    .calls = {nrd_grpc_open, nrd_grpc_free, nrd_grpc_post, nrd_grpc_wait, nrd_grpc_connections},
    .request = nrd_grpc_request,
    .read = nrd_grpc_read,
    .metadata = nrd_grpc_metadata,
    .read_metadata = nrd_grpc_read_metadata,
};
