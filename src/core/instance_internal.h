/* SPDX-License-Identifier: Apache-2.0
 * core/instance_internal.h - what an instance is made of. */
#ifndef NRD_CORE_INSTANCE_INTERNAL_H
#define NRD_CORE_INSTANCE_INTERNAL_H

#include "core/host_policy.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/types.h"

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
    nrd_host_policy place; /* what of it is done here: where its threads run */
    void *state;
    bool initialized;
    uint64_t n_executions; /* guarded by the limiter; counted only where it limits */
    nrd_attr **usage;      /* reported memory; guarded by the model's mu */
    uint32_t n_usage;
};

#endif
