/* SPDX-License-Identifier: Apache-2.0
 * core/types.h - data types, shapes, parameters and messages of the interfaces.
 *
 * Purpose   What TRITONSERVER_Parameter and TRITONSERVER_Message are inside, and what data types
 *           mean.
 * Owner     Their holder, one thread at a time.
 */
#ifndef NRD_CORE_TYPES_H
#define NRD_CORE_TYPES_H

#include "base/error.h"
#include "base/limits.h"
#include "base/str.h"
#include "model_config.pb-c.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_MAX_RANK = NRD_LIMIT_TENSOR_RANK }; /* dimensions of a tensor */

uint32_t nrd_datatype_size(TRITONSERVER_DataType t); /* 0 for BYTES */
TRITONSERVER_DataType nrd_datatype_from_config(Inference__DataType t);
const char *nrd_datatype_name(TRITONSERVER_DataType t);
/* Product of dims; false: a dimension is negative or the product overflows. */
bool nrd_shape_count(const int64_t *dims, size_t n, uint64_t *out);
void nrd_shape_put(nrd_str *out, const int64_t *dims, size_t n); /* "[1,-1]" */

typedef struct nrd_param { /* TRITONSERVER_Parameter */
    char *name;
    TRITONSERVER_ParameterType type;
    char *str;
    int64_t i;
    double d;
    bool b;
    const void *bytes;
    uint64_t n_bytes;
} nrd_param;

typedef struct nrd_params {
    nrd_param *items;
    uint32_t n, cap;
} nrd_params;

/* NO_MEMORY where one is NULL: who could not make a parameter hands that on. */
nrd_error *nrd_params_check(const nrd_param *const *params, size_t n) NRD_MUST_USE;
const void *nrd_param_value(const nrd_param *p); /* as the API gives it out */
nrd_error *nrd_params_set(nrd_params *l, const char *name, TRITONSERVER_ParameterType type,
                          const void *value) NRD_MUST_USE; /* replaces */
nrd_error *nrd_params_copy(nrd_params *to, const nrd_params *from) NRD_MUST_USE;
void nrd_params_fini(nrd_params *l);

typedef struct nrd_message { /* TRITONSERVER_Message */
    char *text;
    size_t len;
} nrd_message;

nrd_error *nrd_message_new(nrd_message **out, nrd_str *json) NRD_MUST_USE; /* always takes the text */

#endif
