/* SPDX-License-Identifier: Apache-2.0
 * core/sched/graph.h - the graph of an ensemble: its steps and the tensors between them.
 *
 * Purpose   The ensemble_scheduling of a configuration with numbers in place of names.
 * Owner     nrd_graph_free ends what nrd_graph_init made. Fixed once made: any thread reads it.
 * Errors    NO_MEMORY; nrd_graph_check: INVALID_ARG for what does not fit together.
 * Lifetime  Borrows the inputs and outputs of the configuration, which must live as long.
 */
#ifndef NRD_CORE_SCHED_GRAPH_H
#define NRD_CORE_SCHED_GRAPH_H

#include "base/error.h"
#include "core/objects.h"

#include <stdint.h>

typedef struct nrd_graph_pin { /* between a model's tensor name and a tensor of the graph */
    char *name;
    uint32_t tensor;
} nrd_graph_pin;

typedef struct nrd_graph_step {
    char *model, *namespace; /* name, namespace */
    int64_t version;
    nrd_graph_pin *in, *out;
    uint32_t n_in, n_out;
} nrd_graph_step;

typedef struct nrd_graph_tensor {
    char *name;
    uint32_t *readers; /* steps */
    uint32_t n_readers;
    const Inference__ModelInput *input;   /* of the ensemble, or NULL; borrowed */
    const Inference__ModelOutput *output; /* likewise */
} nrd_graph_tensor;

typedef struct nrd_graph {
    nrd_graph_step *steps;
    uint32_t n_steps;
    nrd_graph_tensor *tensors;
    uint32_t n_tensors;
} nrd_graph;

/* *g need not be set before; after an error there is nothing to free. */
nrd_error *nrd_graph_init(nrd_graph *g, const nrd_config *cfg) NRD_MUST_USE;
void nrd_graph_free(nrd_graph *g);

#endif
