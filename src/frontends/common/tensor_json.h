/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/tensor_json.h - JSON values as tensor bytes and back.
 *
 * Purpose   The two directions of the "data" field of infer, and of the values of generate.
 * Owner     Stateless.
 * Units     count in elements; BYTES elements are a 4-byte little-endian length and the bytes.
 * Errors    INVALID_ARG with Triton's words where it has some; a number that its type cannot hold
 *           is refused (Triton cuts it silently).
 * Sources   Triton's v2 protocol, "tensor data representation"; KServe predict protocol v2.
 */
#ifndef NRD_FRONTENDS_COMMON_TENSOR_JSON_H
#define NRD_FRONTENDS_COMMON_TENSOR_JSON_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "triton/core/tritonserver.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that `count` elements found in `data` (nested arrays or a scalar) take. */
nrd_error *nrd_tensor_json_size(const nrd_json *data, TRITONSERVER_DataType type, size_t count,
                                size_t *out_bytes) NRD_MUST_USE;

/* Writes exactly size_bytes, as nrd_tensor_json_size gave them, in row-major order. `name` is for
 * messages. */
nrd_error *nrd_tensor_json_read(const nrd_json *data, const char *name, TRITONSERVER_DataType type,
                                void *out, size_t size_bytes) NRD_MUST_USE;

/* Appends "[v,v,...]", or the single value without brackets if `unwrap_one` and count is 1. */
nrd_error *nrd_tensor_json_write(nrd_str *out, const char *name, TRITONSERVER_DataType type,
                                 const void *data, size_t size_bytes, size_t count,
                                 bool unwrap_one) NRD_MUST_USE;

/* Product of the dims; false when one is negative or it overflows. */
bool nrd_tensor_count(const int64_t *shape, size_t n_dims, size_t *out);

#endif
