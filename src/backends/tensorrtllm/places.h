/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/places.h - where an instance's ranks are: gpu_device_ids and participant_ids.
 *
 * Purpose   Both parameters are lists of numbers, one list for each instance with ';' between them; one list without ';'
 *           is every instance's. An instance without a list of GPUs is on the GPU of its instance group.
 * Owner     Read while an instance is made; the executor keeps neither list, free them then.
 * Errors    INVALID_ARG names the parameter, what is wrong with it and what it needs.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_PLACES_H
#define NRD_BACKENDS_TENSORRTLLM_PLACES_H

#include "triton/core/tritonserver.h"

#include <stdint.h>

enum { NRD_LLM_MAX_PLACES = 64 }; /* of a list: as many ranks as an engine has at most */

typedef struct nrd_llm_places {
    int32_t device_ids[NRD_LLM_MAX_PLACES], participant_ids[NRD_LLM_MAX_PLACES];
    int32_t n_device_ids, n_participant_ids; /* 0: not given */
} nrd_llm_places;

/* List number `instance` of `text`, which may be NULL or empty: *out_n is then 0. */
TRITONSERVER_Error *nrd_llm_place_list(const char *key, const char *text, int32_t instance, int32_t *out, int32_t *out_n);
/* An instance's number: what stands behind the last '_' of its name; 0: nothing of the kind. */
int32_t nrd_llm_instance_number(const char *name);

#endif
