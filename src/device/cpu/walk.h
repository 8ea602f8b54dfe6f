/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/walk.h - how threads go through a list of commands.
 *
 * Purpose   Tasks of a phase are divided into shares of neighbours, one a thread (with many threads one for several). A thread takes
 *           its share's in order, then what is left of others': so it reads on where its last task ended, what it asks for ahead
 *           is its own, and places of results stay in its cache from step to step. A thread that is late finds nothing left to
 *           take and delays no other.
 * Owner     Belongs to a stream; one run at a time.
 */
#ifndef NRD_DEVICE_CPU_WALK_H
#define NRD_DEVICE_CPU_WALK_H

#include "device/cpu/cpu.h"

typedef struct nrd_cpu_walk nrd_cpu_walk;

nrd_error *nrd_cpu_walk_new(nrd_cpu_walk **out, int n_threads, int32_t max_commands) NRD_MUST_USE;
void nrd_cpu_walk_free(nrd_cpu_walk *w);
/* All phases of the n commands of `list`, one after the other. scratch: each thread's. */
void nrd_cpu_walk_run(nrd_cpu_walk *w, nrd_threads *threads, nrd_cpu_cmd *list, int32_t n, uint8_t **scratch, uint8_t *shared);

#endif
