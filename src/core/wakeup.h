/* SPDX-License-Identifier: Apache-2.0
 * core/wakeup.h - one thread sleeps with a limit, others wake it early.
 *
 * Owner     The owner of the sleeping thread. Signals from any thread; they are not counted.
 */
#ifndef NRD_CORE_WAKEUP_H
#define NRD_CORE_WAKEUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_wakeup {
    pthread_mutex_t mu; /* a leaf; guards the rest */
    pthread_cond_t cond;
    bool set, stopped;
} nrd_wakeup;

void nrd_wakeup_init(nrd_wakeup *w);
void nrd_wakeup_fini(nrd_wakeup *w);
void nrd_wakeup_signal(nrd_wakeup *w);
void nrd_wakeup_stop(nrd_wakeup *w);
/* Until a signal, at most max_ns. false: stopped. */
bool nrd_wakeup_wait(nrd_wakeup *w, uint64_t max_ns);

#endif
