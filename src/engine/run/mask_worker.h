/* SPDX-License-Identifier: Apache-2.0
 * engine/run/mask_worker.h - masks of new guide states, made while the device computes.
 *
 * Purpose   A choice needs its mask only when the logits are there. States whose mask is not known yet
 *           go to a thread of their own, so that the step does not wait for the vocabulary's walk
 *           unless that takes longer than the step.
 * Owner     The runner. Between begin and wait the states, and all others of their guides, belong to
 *           the worker; otherwise to the caller.
 * Lifetime  The thread starts with the first work and ends with free.
 */
#ifndef NRD_ENGINE_RUN_MASK_WORKER_H
#define NRD_ENGINE_RUN_MASK_WORKER_H

#include "base/error.h"

#include <stddef.h>

typedef struct nrd_mask_worker nrd_mask_worker;
struct nrd_guide_state;

nrd_error *nrd_mask_worker_new(nrd_mask_worker **out) NRD_MUST_USE;
void nrd_mask_worker_free(nrd_mask_worker *w); /* waits first */
/* Borrows `states` until wait. When no thread can be had it makes them at once. */
void nrd_mask_worker_begin(nrd_mask_worker *w, struct nrd_guide_state *const *states, size_t n);
void nrd_mask_worker_wait(nrd_mask_worker *w); /* nothing begun: returns at once */

#endif
