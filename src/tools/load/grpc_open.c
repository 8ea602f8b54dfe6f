/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/grpc_open.h"

#include "base/plugin.h"

static nrd_plugin plugin = NRD_PLUGIN(.file = "nereid_grpc.so", .symbol = NRD_GRPC_SYMBOL, .need = "calls over gRPC need",
                                      .built_with = "libgrpc-dev, libprotobuf-c-dev and protobuf-c-compiler");

nrd_error *nrd_grpc_plugin(const nrd_grpc_ops **out)
{
    const void *table = NULL;
    nrd_error *err = nrd_plugin_open(&plugin, &table);
    *out = table;
    return err;
}
