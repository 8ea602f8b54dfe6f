/* core/sched/sequence_batcher.h - requests of one correlation id go to one slot of one instance, in
 * order. */
#ifndef NRD_CORE_SCHED_SEQUENCE_BATCHER_H
#define NRD_CORE_SCHED_SEQUENCE_BATCHER_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

nrd_error *nrd_seq_new(nrd_seq **out, nrd_model *m) NRD_MUST_USE;    /* after the instances */
nrd_error *nrd_seq_enqueue(nrd_seq *s, nrd_request *r) NRD_MUST_USE; /* takes on success */
/* Waits for a batch of the instance; 0: stopped. cap: nrd_seq_max_batch. */
uint32_t nrd_seq_take(nrd_seq *s, uint32_t instance, nrd_hand *h, nrd_request **batch,
                      uint32_t cap);
uint32_t nrd_seq_max_batch(const nrd_seq *s);
/* States as a sequence begins with; NULL: the model has none. */
nrd_seq_states *nrd_seq_first_states(const nrd_seq *s);
/* A request of the batcher was released. *goes_on: it was queued again, hands off. */
nrd_error *nrd_seq_released(nrd_request *r, uint32_t flags, bool *goes_on) NRD_MUST_USE;
void nrd_seq_sweep(nrd_seq *s);  /* ends idle, cancelled and expired sequences */
size_t nrd_seq_live(nrd_seq *s); /* sequences that have begun and not ended */
void nrd_seq_drain(nrd_seq *s);  /* refuses new sequences; those that have begun go on */
/* The model was taken out of service: no sequence goes on beyond what is queued. */
void nrd_seq_abandon(nrd_seq *s);
void nrd_seq_stop(nrd_seq *s); /* ends the takers; no request is queued any more */
void nrd_seq_free(nrd_seq *s);

#endif
