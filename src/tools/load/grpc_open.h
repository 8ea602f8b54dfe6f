/* SPDX-License-Identifier: Apache-2.0
 * tools/load/grpc_open.h - opens nereid_grpc.so. UNSUPPORTED: it is not there. */
#ifndef NRD_TOOLS_LOAD_GRPC_OPEN_H
#define NRD_TOOLS_LOAD_GRPC_OPEN_H

#include "base/error.h"
#include "tools/load/grpc_plugin.h"

nrd_error *nrd_grpc_plugin(const nrd_grpc_ops **out) NRD_MUST_USE; /* borrowed for ever */

#endif
