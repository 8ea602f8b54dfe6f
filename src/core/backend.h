/* core/backend.h - backend libraries: found, opened and shared by the models that name them.
 *
 * Owner     Counted: the server keeps one share, each model another.
 */
#ifndef NRD_CORE_BACKEND_H
#define NRD_CORE_BACKEND_H

#include "base/error.h"
#include "base/str.h"
#include "core/config/config.h"
#include "core/objects.h"
#include "core/strings.h"
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
};

/* Finds the library for the model, opening it unless another model has it open. */
nrd_error *nrd_backend_get(nrd_backend **out, nrd_context *ctx, const char *name,
                           const char *model_dir, int64_t version) NRD_MUST_USE;
void nrd_backend_put(nrd_backends *all, nrd_backend *b);
/* The backend's cmdline settings with defaults, as JSON. */
void nrd_backend_config_json(nrd_context *ctx, const char *name, nrd_str *out);

/* All backends of a server. */
nrd_backends *nrd_backends_new(void);
void nrd_backends_free(nrd_backends *all); /* gives the server's shares back; NULL is fine */
/* Rows "name, path, settings" of the libraries that are open. */
void nrd_backends_list(nrd_backends *all, nrd_strings *cells);

#endif
