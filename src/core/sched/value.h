/* SPDX-License-Identifier: Apache-2.0
 * core/sched/value.h - one value of a tensor on its way through an ensemble.
 *
 * Purpose   Type, shape and bytes, with what the response that made it said about its sequence.
 *           The bytes are shares of the buffers they came in.
 * Owner     Whoever holds it frees it; one thread at a time.
 * Errors    NULL or false: no memory.
 */
#ifndef NRD_CORE_SCHED_VALUE_H
#define NRD_CORE_SCHED_VALUE_H

#include "base/error.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/types.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_value {
    struct nrd_value *next;
    uint32_t iteration, readers_left;
    bool present; /* false: optional and not given */
    TRITONSERVER_DataType dtype;
    uint32_t n_dims, batch_size;
    int64_t dims[NRD_MAX_RANK];
    nrd_segment *segments; /* owners shared */
    uint32_t n_segments;
    bool from_step;
    uint64_t corr_id;
    char *corr_str;
    uint32_t flags;
} nrd_value;

nrd_value *nrd_value_new(void); /* not present */
nrd_value *nrd_value_copy(const nrd_value *v);
/* The segments of an input are borrowed: its request must live longer. */
nrd_value *nrd_value_of_input(const nrd_input *in, uint32_t batch_size);
nrd_value *nrd_value_of_output(const nrd_output *o, uint32_t batch_size);
void nrd_value_free(nrd_value *v); /* NULL: nothing */

/* The shape of v where [n_want] dimensions are wanted: a batching model and one that does not batch
 * may follow each other when the shapes allow it. out: [NRD_MAX_RANK]; returns its length. */
uint32_t nrd_value_shape(const nrd_value *v, const int64_t *want, size_t n_want, bool batching,
                         int64_t *out);

/* What a response says about sequences goes on with its tensors, and out again. */
bool nrd_value_read_sequence(nrd_value *v, const nrd_response *r) NRD_MUST_USE;
nrd_error *nrd_value_write_sequence(nrd_response *r, const nrd_value *v) NRD_MUST_USE;

/* Replaces *field by a copy of the text, or by NULL. */
bool nrd_value_set_text(char **field, const char *text) NRD_MUST_USE;

#endif
