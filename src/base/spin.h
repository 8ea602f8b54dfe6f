/* SPDX-License-Identifier: Apache-2.0
 * base/spin.h - what a thread does that looks at a number again and again until another thread has changed it. */
#ifndef NRD_BASE_SPIN_H
#define NRD_BASE_SPIN_H

#include <stdatomic.h>

/* Leaves the other thread of the core its time; elsewhere only the compiler is told. */
static inline void nrd_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
