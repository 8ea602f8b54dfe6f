/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/tensor_text.h - long "data" arrays of numbers, read without a JSON tree.
 *
 * Purpose   A tree takes 40 bytes for each number, so a body of 64 MB would need gigabytes. The
 *           long arrays of numbers are cut out of the text first and later read straight into
 *           tensor memory; what is left is parsed as usual.
 * Owner     Stateless.
 * Errors    INVALID_ARG with the words and offsets that the whole text would give.
 * Lifetime  Slices point into the original text.
 */
#ifndef NRD_FRONTENDS_COMMON_TENSOR_TEXT_H
#define NRD_FRONTENDS_COMMON_TENSOR_TEXT_H

#include "base/error.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>

#define NRD_TENSOR_TEXT_MIN 4096 /* shorter arrays stay where they are */
#define NRD_TENSOR_TEXT_MAX 64   /* arrays of one request that can be cut out */

typedef struct nrd_tensor_slice {
    size_t input;     /* which element of "inputs" */
    const char *text; /* the array, brackets included */
    size_t n;
    size_t offset; /* of text in the document */
} nrd_tensor_slice;

/* Looks for inputs[i].data in text[0..n). Returns how many arrays were found; copy[0..n) is then
 * the text with the inside of those arrays blanked, so that offsets stay true. Anything unusual
 * (escaped or repeated keys, deep nesting) is left alone. */
size_t nrd_tensor_text_cut(const char *text, size_t n, char *copy,
                           nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX]);

/* Reads the numbers of a slice, nested in any way, into exactly size_bytes. Not for BYTES. */
nrd_error *nrd_tensor_text_read(const nrd_tensor_slice *s, const char *name,
                                TRITONSERVER_DataType type, void *out,
                                size_t size_bytes) NRD_MUST_USE;

#endif
