/* SPDX-License-Identifier: Apache-2.0
 * core/objects.h - the names of the objects inside the server.
 *
 * Purpose   An object that only passes by needs no more than its name. Each has a header of its
 *           own, which says who owns it and what can be done with it. The opaque types of the
 *           Triton headers are these structures: core/api.h changes the type.
 * Lifetime  server > backend > model > instance. A request holds its model from the time it is made
 *           until it is released.
 */
#ifndef NRD_CORE_OBJECTS_H
#define NRD_CORE_OBJECTS_H

#include "model_config.pb-c.h"

typedef struct nrd_server nrd_server;
typedef struct nrd_context nrd_context;
typedef struct nrd_model nrd_model;
typedef struct nrd_instance nrd_instance;
typedef struct nrd_backend nrd_backend;
typedef struct nrd_backends nrd_backends;
typedef struct nrd_request nrd_request;
typedef struct nrd_response nrd_response;
typedef struct nrd_factory nrd_factory;
typedef struct nrd_input nrd_input;
typedef struct nrd_output nrd_output;
typedef struct nrd_trace nrd_trace;
typedef struct nrd_scheduler nrd_scheduler;
typedef struct nrd_batcher nrd_batcher;
typedef struct nrd_cache nrd_cache;
typedef struct nrd_response_order nrd_response_order;
typedef struct nrd_order_entry nrd_order_entry;
typedef struct nrd_strategy nrd_strategy;
typedef struct nrd_sequence_slot nrd_sequence_slot;
typedef struct nrd_sequence_states nrd_sequence_states;
typedef struct nrd_repo nrd_repo;
typedef Inference__ModelConfig nrd_config;
typedef struct nrd_cancel nrd_cancel;
typedef struct nrd_limiter nrd_limiter;
typedef struct nrd_worker_slot nrd_worker_slot;
typedef struct nrd_worker nrd_worker;
typedef struct nrd_stats nrd_stats;
typedef struct nrd_step_sums nrd_step_sums;
typedef struct nrd_model_metrics nrd_model_metrics;
typedef struct nrd_agents nrd_agents;
typedef struct nrd_files nrd_files;

#endif
