/* SPDX-License-Identifier: Apache-2.0
 * engine/run/mask_worker.h - masks of new guide states, made while the device computes.
 *
 * Purpose   A choice needs its mask only when the logits are there. States whose mask is not known yet
 *           go to a thread of their own, so that the step does not wait for the vocabulary's walk
 *           unless that takes longer than the step. What takes longer than the step may wait goes on
 *           to a second thread of lower priority, which works at all such guides in turn.
 * Owner     The runner's thread calls all functions. From begin on the guides of the states are lent
 *           (guided/guided.h) until their masks are made, perhaps long after wait.
 * Life      of a guide: begin -> lent -> wait -> given back; or wait (time is up) -> lent, slow ->
 *           given back, and on_ready is called.
 * Lifetime  The threads start with the first work and end with free.
 */
#ifndef NRD_ENGINE_RUN_MASK_WORKER_H
#define NRD_ENGINE_RUN_MASK_WORKER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_mask_worker nrd_mask_worker;
struct nrd_guide_state;

/* At most max_states in one begin. on_ready, which may be NULL, is called from the worker's threads, with
 * no lock held, when a guide is given back that a wait has left behind. */
nrd_error *nrd_mask_worker_new(nrd_mask_worker **out, size_t max_states, void (*on_ready)(void *user),
                               void *user) NRD_MUST_USE;
void nrd_mask_worker_free(nrd_mask_worker *w); /* gives everything back first */
/* Lends the states' guides. A job before this one is waited for, but for what is slow. */
void nrd_mask_worker_begin(nrd_mask_worker *w, struct nrd_guide_state *const *states, size_t n);
/* Until all masks are made or so much time is over: then nrd_guide_is_lent tells which guides are not
 * ready. Nothing begun: returns at once. */
void nrd_mask_worker_wait(nrd_mask_worker *w, uint64_t timeout_ns);

#endif
