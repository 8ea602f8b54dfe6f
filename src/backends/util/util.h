/* SPDX-License-Identifier: Apache-2.0
 * backends/util/util.h - what every backend of ours needs around the TRITONBACKEND interface.
 *
 * Purpose   Errors from nrd_error, the inputs of a request as plain arrays, outputs in one call,
 *           parameters of the model configuration, logs through the hosting server.
 * Owner     Stateless helpers; nrd_tb_inputs belongs to the thread that reads a request.
 * Errors    As in the interface: NULL or a TRITONSERVER_Error that the receiver deletes.
 */
#ifndef NRD_BACKENDS_UTIL_UTIL_H
#define NRD_BACKENDS_UTIL_UTIL_H

#include "backends/util/error.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "triton/core/tritonbackend.h"

#include <stdbool.h>
#include <stdint.h>

/* Logs go to the server that hosts us from now on. */
void nrd_tb_use_server_log(void);
/* For calls whose failure can only be noted. Takes `err` always. */
void nrd_tb_log_error(TRITONSERVER_Error *err, const char *what);

/* ---- configuration ---- */

typedef struct nrd_tb_config {
    char *name;
    uint64_t version;
    TRITONSERVER_Server *server;
    nrd_json_doc *doc;
    const nrd_json *root; /* the model configuration */
    bool decoupled;
    int64_t max_batch_size;
} nrd_tb_config;

TRITONSERVER_Error *nrd_tb_config_load(nrd_tb_config *out, TRITONBACKEND_Model *model);
void nrd_tb_config_fini(nrd_tb_config *c);
/* parameters[key].string_value; NULL when absent, empty or still a "${…}" of a template. */
const char *nrd_tb_config_param(const nrd_tb_config *c, const char *key);
bool nrd_tb_config_has_input(const nrd_tb_config *c, const char *name);
bool nrd_tb_config_has_output(const nrd_tb_config *c, const char *name);

/* The instance's state is its model's. */
TRITONSERVER_Error *nrd_tb_instance_share(TRITONBACKEND_ModelInstance *instance);

/* ---- inputs ---- */

enum { NRD_TB_MAX_DIMS = 8 };

typedef struct nrd_tb_tensor {
    const char *name; /* borrows from the request */
    TRITONSERVER_DataType dtype;
    const int64_t *shape; /* batch dimension first */
    uint32_t n_dims;
    const uint8_t *data; /* contiguous, in host memory; may be unaligned */
    size_t bytes;
    int64_t n_elements;
} nrd_tb_tensor;

typedef struct nrd_tb_inputs {
    nrd_tb_tensor *t; /* present inputs, in the request's order */
    uint32_t n;
    nrd_arena arena;  /* holds `t` and inputs that came in several buffers */
} nrd_tb_inputs;

TRITONSERVER_Error *nrd_tb_inputs_read(nrd_tb_inputs *out, TRITONBACKEND_Request *request);
void nrd_tb_inputs_fini(nrd_tb_inputs *in);
const nrd_tb_tensor *nrd_tb_find(const nrd_tb_inputs *in, const char *name); /* NULL: absent */

/* Element i of a numeric or bool tensor, whatever its width; false when out of range. */
bool nrd_tb_get_i64(const nrd_tb_tensor *t, int64_t i, int64_t *out);
bool nrd_tb_get_f64(const nrd_tb_tensor *t, int64_t i, double *out);

/* Walks the length-prefixed strings of a BYTES tensor: start with *offset = 0; false at the end or
 * when the tensor is malformed (then *out_bad is set). */
bool nrd_tb_next_string(const nrd_tb_tensor *t, size_t *offset, const char **out_s, size_t *out_n,
                        bool *out_bad);

/* ---- outputs ---- */

bool nrd_tb_wants(TRITONBACKEND_Request *request, const char *output);
/* Adds an output and gives its host buffer of `bytes` (NULL for 0 bytes). */
TRITONSERVER_Error *nrd_tb_output(TRITONBACKEND_Response *response, const char *name,
                                  TRITONSERVER_DataType dtype, const int64_t *shape, uint32_t n_dims,
                                  size_t bytes, void **out_buffer);
/* Sends an error as the (final) response of a request that is still ours. Takes `err` always. */
void nrd_tb_send_error(TRITONBACKEND_Request *request, TRITONSERVER_Error *err);
void nrd_tb_release(TRITONBACKEND_Request *request); /* it is the core's again */
void nrd_tb_refuse(TRITONBACKEND_Request *request, TRITONSERVER_Error *err); /* both */
/* The last answer of a factory's request: a response with err, which may be NULL, or, where there is no memory
 * for one, the flag alone. Without it the client would wait for ever: what a factory keeps for an answer
 * without memory may be gone with an earlier one. Takes `err` always. */
void nrd_tb_send_last(TRITONBACKEND_ResponseFactory *factory, TRITONSERVER_Error *err);

#endif
