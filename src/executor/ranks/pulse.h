/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/pulse.h - whether the threads that compute for an engine get on.
 *
 * Purpose   Tells a rank that hangs from one that is slow, however long its step takes. A thread that computes on a processor runs,
 *           or would if it were given one, or waits for a disk; one that waits for other ranks looks up many times a
 *           second. A rank of which no thread does any of this hangs: it waits for what does not come.
 * Owner     The one thread that looks; the threads looked at do nothing for it.
 * Limits    Threads that wait for a GPU look the same whether it works or hangs: not for these. A thread that runs round
 *           in circles runs. Where the system does not say what its threads do, all count as running.
 * Source    proc_pid_status(5): State, voluntary_ctxt_switches, nonvoluntary_ctxt_switches.
 */
#ifndef NRD_EXECUTOR_RANKS_PULSE_H
#define NRD_EXECUTOR_RANKS_PULSE_H

#include <stdbool.h>
#include <stdint.h>

/* A rank whose threads have stood still for so long hangs. */
enum { NRD_PULSE_HANGS_MS = 3000 };

/* All zero but `thread` to begin with. */
typedef struct nrd_pulse {
    int32_t thread; /* of this process: the one that runs steps; those of the CPU device's pools and of guides come on top */
    uint64_t seen, seen_others; /* how often they had been given a processor */
    int64_t looked_ms, still_ms;
} nrd_pulse;

/* For how long nothing has run, by the looks: one that comes late, because the whole machine stood, adds a second at most. */
int64_t nrd_pulse_look(nrd_pulse *p, int64_t now_ms);

/* Whether a thread of some process runs, or would if it were given a processor or its memory from a disk. */
bool nrd_pulse_would_run(int32_t process, int32_t thread);

#endif
