/* SPDX-License-Identifier: Apache-2.0
 * tools/load/grpc_plugin.h - what nereid_grpc.so does for `nereid bench serve`: Triton's messages, and calls.
 *
 * Purpose   `nereid` is not linked with the gRPC C-core library: only who puts a load on gRPC opens it.
 * Owner     One thread.
 * Errors    Texts; the two sides share no error objects.
 */
#ifndef NRD_TOOLS_LOAD_GRPC_PLUGIN_H
#define NRD_TOOLS_LOAD_GRPC_PLUGIN_H

#include "tools/load/client.h"

typedef struct nrd_grpc_tensor {
    const char *name, *type; /* "INT32", "BYTES" … */
    int64_t n;               /* shape [1, n] */
    const void *data;        /* raw; BYTES: one element, without its length */
    size_t n_data;
} nrd_grpc_tensor;

typedef struct nrd_grpc_output {
    const char *name, *type;
    const uint8_t *data; /* raw: elements of BYTES have their length before them */
    size_t n_data;
} nrd_grpc_output;

typedef struct nrd_grpc_ops {
    nrd_client_ops calls;
    /* A ModelInferRequest; free() it. NULL: no memory. is_stream: its last answer is to be marked. */
    char *(*request)(const char *model, const nrd_grpc_tensor *inputs, size_t n, bool is_stream, size_t *out_n);
    /* Reads what `piece` got, a ModelInferResponse, or of streams a ModelStreamInferResponse, and gives each of its
     * outputs to `output`. NULL, or what went wrong (in `why`). */
    const char *(*read)(const char *data, size_t n, bool is_stream, void (*output)(void *arg, const nrd_grpc_output *o),
                        void *arg, char *why, size_t n_why);
    /* A ModelMetadataRequest; free() it. NULL: no memory. */
    char *(*metadata)(const char *model, size_t *out_n);
    /* Reads its answer and gives the name of each input to `input`. NULL, or what went wrong. */
    const char *(*read_metadata)(const char *data, size_t n, void (*input)(void *arg, const char *name), void *arg);
} nrd_grpc_ops;

/* The one symbol of the plug-in; changes its name with the table. */
#define NRD_GRPC_SYMBOL "nrd_grpc_ops_2"

#endif
