/* SPDX-License-Identifier: Apache-2.0
 * core/backend_internal.h - what a backend is made of: its entry points and what it said about itself. */
#ifndef NRD_CORE_BACKEND_INTERNAL_H
#define NRD_CORE_BACKEND_INTERNAL_H

#include "core/config/config.h"
#include "core/objects.h"
#include "core/types.h"
#include "triton/core/tritonbackend.h"

#include <stdbool.h>
#include <stddef.h>

typedef TRITONSERVER_Error *(*nrd_backend_fn)(TRITONBACKEND_Backend *);
typedef TRITONSERVER_Error *(*nrd_model_fn)(TRITONBACKEND_Model *);
typedef TRITONSERVER_Error *(*nrd_instance_fn)(TRITONBACKEND_ModelInstance *);
typedef TRITONSERVER_Error *(*nrd_execute_fn)(TRITONBACKEND_ModelInstance *,
                                              TRITONBACKEND_Request **, uint32_t);
typedef TRITONSERVER_Error *(*nrd_attribute_fn)(TRITONBACKEND_Backend *,
                                                TRITONBACKEND_BackendAttribute *);

struct nrd_backend { /* TRITONBACKEND_Backend */
    nrd_backend *next;
    int refs; /* guarded by the lock of all */
    char *name, *dir, *lib_path;
    void *dl;
    nrd_message config; /* {"cmdline": {...}} */
    void *state;
    TRITONBACKEND_ExecutionPolicy policy;
    bool parallel_loading;
    nrd_preferred_group *groups;
    size_t n_groups;
    nrd_backend_fn initialize, finalize;
    nrd_model_fn model_initialize, model_finalize;
    nrd_instance_fn instance_initialize, instance_finalize, instance_ready;
    nrd_execute_fn execute;
    nrd_attribute_fn get_attribute;
    bool (*never_blocks)(TRITONBACKEND_Model *); /* nereid/server.h; NULL: it may block */
};

#endif
