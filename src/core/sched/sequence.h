/* SPDX-License-Identifier: Apache-2.0
 * core/sched/sequence.h - the parts of the sequence batcher: controls and implicit state.
 *
 * Purpose   Tensors that the core adds to requests of a sequence model: START, END, READY and
 *           CORRID as the configuration asks for, and the state that one request leaves for the
 *           next of its sequence.
 * Owner     nrd_sequence_controls: fixed once made, any thread. nrd_sequence_states: counted; used
 *           by one request at a time, which the batcher sees to.
 * Errors    INVALID_ARG for a configuration or a backend that names what is not there.
 * Lifetime  Controls and the plan of states live with the batcher; states until the last request of
 *           their sequence is released.
 */
#ifndef NRD_CORE_SCHED_SEQUENCE_H
#define NRD_CORE_SCHED_SEQUENCE_H

#include "base/error.h"
#include "core/memory.h"
#include "core/objects.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef Inference__ModelSequenceBatching__Control nrd_control;
typedef Inference__ModelSequenceBatching__Control__Kind nrd_control_kind;

typedef struct nrd_sequence_controls nrd_sequence_controls;
nrd_sequence_controls *nrd_sequence_controls_new(const nrd_config *cfg); /* NULL: no memory */
void nrd_sequence_controls_free(nrd_sequence_controls *c);
/* By the request's flags and correlation id; a null request gets "not ready". */
void nrd_sequence_controls_apply(const nrd_sequence_controls *c, nrd_request *r);

typedef struct nrd_sequence_plan
    nrd_sequence_plan; /* what a sequence's states look like at its start */
nrd_error *nrd_sequence_plan_new(nrd_sequence_plan **out, const nrd_model *m) NRD_MUST_USE;
void nrd_sequence_plan_free(nrd_sequence_plan *p);
bool nrd_sequence_plan_is_empty(const nrd_sequence_plan *p);
nrd_sequence_states *nrd_sequence_states_new(const nrd_sequence_plan *p); /* NULL: no memory */
nrd_sequence_states *
nrd_sequence_states_new_null(const nrd_sequence_states *like); /* same shapes, zero data;
                                                               NULL: no memory */
nrd_sequence_states *nrd_sequence_states_ref(nrd_sequence_states *s);
void nrd_sequence_states_unref(nrd_sequence_states *s); /* NULL is fine */
/* The tensor that the next request of the sequence is to read; valid until a state is updated. */
typedef struct nrd_sequence_state_input {
    const char *name;
    TRITONSERVER_DataType dtype;
    uint32_t n_dims;
    const int64_t *dims;
    nrd_buf *data; /* borrowed */
} nrd_sequence_state_input;
/* The i-th of them; false: there are no more. */
bool nrd_sequence_states_input(const nrd_sequence_states *s, size_t i,
                               nrd_sequence_state_input *out);
/* Adds the current input states to the request, about to be executed. */
void nrd_sequence_states_apply(nrd_request *r);

#endif
