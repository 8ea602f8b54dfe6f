/* SPDX-License-Identifier: Apache-2.0
 * backends/bls/steps.h - what the models that tensorrt_llm_bls calls declare.
 *
 * Purpose   Repositories of different releases give their models different tensors: an input goes only to
 *           a model that has it, and in the shape that it declares.
 * Owner     Any thread. A configuration is read at the first request that needs it and then kept.
 * Errors    Those of the server where a model is not there.
 */
#ifndef NRD_BACKENDS_BLS_STEPS_H
#define NRD_BACKENDS_BLS_STEPS_H

#include "backends/util/inner.h"

#include <pthread.h>

typedef enum { NRD_BLS_PRE, NRD_BLS_LLM, NRD_BLS_POST, NRD_BLS_DRAFT, NRD_BLS_ENCODERS, NRD_BLS_N_STEPS } nrd_bls_step;

typedef struct nrd_bls_steps {
    TRITONSERVER_Server *server;
    const char *names[NRD_BLS_N_STEPS]; /* borrows */
    pthread_mutex_t mu;
    nrd_tb_config *configs[NRD_BLS_N_STEPS]; /* guarded by mu while NULL, then immutable */
} nrd_bls_steps;

/* The names must outlive the object. `draft_name` or `encoders_name` NULL: there is none, and its step must not be asked for. */
void nrd_bls_steps_init(nrd_bls_steps *s, TRITONSERVER_Server *server, const char *llm_name,
                        const char *draft_name, const char *encoders_name);
void nrd_bls_steps_fini(nrd_bls_steps *s);

/* *out borrows until fini. */
TRITONSERVER_Error *nrd_bls_steps_get(nrd_bls_steps *s, nrd_bls_step step, const nrd_tb_config **out);

/* The shape in which `config` declares its input `name`, for a tensor that came as `shape`: a model that
 * declares `reshape` sees fewer dimensions than its clients send. `out` has NRD_TB_MAX_DIMS places.
 * Returns the number of dimensions; a tensor that fits no such declaration keeps its shape. */
uint32_t nrd_bls_wire_shape(const nrd_tb_config *config, const char *name, const int64_t *shape,
                            uint32_t n_dims, int64_t *out);

#endif
