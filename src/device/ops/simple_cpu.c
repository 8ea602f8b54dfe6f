/* SPDX-License-Identifier: Apache-2.0
 * Operations that run as one task of their reference. */
#include "device/cpu/cpu.h"

#define SIMPLE(name)                                                                               \
    static void run_##name(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)                \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)phase;                                                                               \
        (void)task;                                                                                \
        nrd_##name##_ref(&c->u.name);                                                              \
    }                                                                                              \
    static const nrd_cpu_op op_##name = {run_##name};                                              \
    nrd_error *nrd_##name##_cpu(nrd_cpu_cmd *c, int n_threads)                                     \
    {                                                                                              \
        (void)n_threads;                                                                           \
        c->op = &op_##name;                                                                        \
        c->n_tasks[0] = 1;                                                                         \
        return NULL;                                                                               \
    }

SIMPLE(counts)
SIMPLE(copy_blocks)
SIMPLE(move_tokens)
