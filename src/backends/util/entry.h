/* SPDX-License-Identifier: Apache-2.0
 * backends/util/entry.h - entry points of backends whose models are one structure each, which instances share.
 *
 * Purpose   What the interface asks of each such backend in the same words. Each stands once in a backend.
 * Owner     The server owns the structure between ModelInitialize and ModelFinalize.
 */
#ifndef NRD_BACKENDS_UTIL_ENTRY_H
#define NRD_BACKENDS_UTIL_ENTRY_H

#include "backends/util/util.h"

#include <stdlib.h>

/* TRITONSERVER_Error *init(type *, TRITONBACKEND_Model *) fills a structure that is all 0; void release(type *) frees what it has by
 * then, also after an error, and the structure itself. */
#define NRD_TB_MODEL_ENTRIES(type, init, release)                                                                                    \
    TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)                                                     \
    {                                                                                                                                \
        (void)backend;                                                                                                               \
        nrd_tb_use_server_log();                                                                                                     \
        return NULL;                                                                                                                 \
    }                                                                                                                                \
    TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)                                                    \
    {                                                                                                                                \
        type *m = calloc(1, sizeof *m);                                                                                              \
        TRITONSERVER_Error *err = m ? init(m, model) : nrd_tb_error(nrd_error_no_memory());                                          \
        err = err ? err : TRITONBACKEND_ModelSetState(model, m);                                                                     \
        if (err && m) { /* no state was set: ModelFinalize finds nothing to free */                                                  \
            release(m);                                                                                                              \
        }                                                                                                                            \
        return err;                                                                                                                  \
    }                                                                                                                                \
    TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)                                                      \
    {                                                                                                                                \
        type *m = NULL;                                                                                                              \
        NRD_TB_TRY(TRITONBACKEND_ModelState(model, (void **)&m));                                                                    \
        if (m) {                                                                                                                     \
            release(m);                                                                                                              \
        }                                                                                                                            \
        return NULL;                                                                                                                 \
    }                                                                                                                                \
    TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)                                 \
    {                                                                                                                                \
        return nrd_tb_instance_share(instance);                                                                                      \
    }

/* void start(type *, TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *) takes each request. */
#define NRD_TB_EXECUTE_EACH(type, start)                                                                                             \
    TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,  \
                                                           const uint32_t request_count)                                             \
    {                                                                                                                                \
        type *m = NULL;                                                                                                              \
        NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, (void **)&m));                                                         \
        for (uint32_t i = 0; i < request_count; i++) {                                                                               \
            start(m, instance, requests[i]);                                                                                         \
        }                                                                                                                            \
        return NULL;                                                                                                                 \
    }

#endif
