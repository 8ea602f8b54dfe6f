/* core/instance.h - instances of a model.
 *
 * Owner     The model; run by one thread at a time.
 */
#ifndef NRD_CORE_INSTANCE_H
#define NRD_CORE_INSTANCE_H

#include "base/error.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/types.h"
#include "triton/core/tritonbackend.h"

#include <stdbool.h>
#include <stdint.h>

struct nrd_instance { /* TRITONBACKEND_ModelInstance */
    nrd_model *model; /* borrowed: inside it */
    char *name;
    TRITONSERVER_InstanceGroupKind kind;
    int32_t device_id;
    bool passive;
    const Inference__ModelInstanceGroup *group; /* borrowed from the model's config */
    nrd_message host_policy;
    void *state;
    bool initialized;
    uint64_t n_executions; /* guarded by the limiter; counted only where it limits */
    nrd_attr **usage;      /* reported memory; guarded by the model's mu */
    uint32_t n_usage;
};

nrd_error *nrd_instances_new(nrd_model *m) NRD_MUST_USE;
void nrd_instances_free(nrd_model *m);
void nrd_instance_execute(nrd_instance *inst, nrd_request **requests, uint32_t n);

#endif
