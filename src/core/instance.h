/* SPDX-License-Identifier: Apache-2.0
 * core/instance.h - instances of a model.
 *
 * Owner     The model; run by one thread at a time.
 */
#ifndef NRD_CORE_INSTANCE_H
#define NRD_CORE_INSTANCE_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stdint.h>

nrd_error *nrd_instances_new(nrd_model *m) NRD_MUST_USE;
void nrd_instances_free(nrd_model *m);
bool nrd_instances_have_place(const nrd_model *m); /* a host policy says where some of them run */
/* true: every request was released before the backend returned. */
bool nrd_instance_execute(nrd_instance *inst, nrd_request **requests, uint32_t n);

#endif
