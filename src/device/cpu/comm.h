/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/comm.h - collective operations of CPU ranks on one host, over shared memory.
 *
 * Purpose   nrd_device_ops.comm_* and what makes the commands of all_reduce, gather, send and receive.
 * Owner     A comm belongs to one stream. Commands of all its calls run in the order of the calls.
 */
#ifndef NRD_DEVICE_CPU_COMM_H
#define NRD_DEVICE_CPU_COMM_H

#include "device/cpu/cpu.h"

enum { NRD_CPU_MAX_RANKS = 64 };

size_t nrd_cpu_comm_bytes(nrd_device *dev, const nrd_comm_config *config);
nrd_error *nrd_cpu_comm_open(nrd_device *dev, const nrd_comm_config *config,
                             nrd_comm **out) NRD_MUST_USE;
void nrd_cpu_comm_close(nrd_comm *c);
/* UNAVAILABLE, with the rank's number, once a rank is lost. */
nrd_error *nrd_cpu_comm_health(const nrd_comm *c) NRD_MUST_USE;

/* One call becomes several commands where the ranks' room in shared memory is too small for it. Each
 * takes from `done` on what fits (elements; rows and columns), makes a command of it and moves `done` on;
 * false: nothing was left. */
typedef struct nrd_cpu_comm_part {
    int64_t at;         /* all_reduce: elements done */
    int32_t row, col;   /* gather: where the next tile begins; transfers: the next row */
    int64_t byte;       /* transfers: of that row the next byte */
} nrd_cpu_comm_part;

bool nrd_all_reduce_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, int n_threads);
bool nrd_gather_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, int n_threads);
/* send or receive of c->u.transfer. */
bool nrd_transfer_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, bool sends);

#endif
