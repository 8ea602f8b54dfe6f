/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/together.h - several layers at a time on a device with memory of its own.
 *
 * Purpose   A layer is a few thousand short turns of the processor and the device, each waiting for the other: one alone keeps a
 *           third of 16 cores busy. Layers know nothing of each other, so that one computes while another waits.
 * Owner     One thread calls; each math is used by one thread at a time.
 * Errors    Of several layers' the first one's.
 */
#ifndef NRD_TOOLS_QUANTIZE_TOGETHER_H
#define NRD_TOOLS_QUANTIZE_TOGETHER_H

#include "tools/quantize/math.h"

enum { NRD_QTOGETHER_MAX = 4 };

typedef struct nrd_qtogether {
    nrd_qmath *maths[NRD_QTOGETHER_MAX]; /* of n layers, each with its share of the threads */
    int n;
} nrd_qtogether;

/* Of the device's memory for a layer whose widest input has cols columns, about. */
double nrd_qtogether_bytes(int64_t cols);
/* How many layers of so many bytes have room. 1: one after the other, as on a CPU. */
int nrd_qtogether_room(const nrd_qmath *m, double each, double bytes);
nrd_error *nrd_qtogether_open(nrd_qtogether *t, const char *device, int32_t n_threads, int n) NRD_MUST_USE;
void nrd_qtogether_close(nrd_qtogether *t);
/* fn for each of [from, to), n at a time. */
nrd_error *nrd_qtogether_each(nrd_qtogether *t, int32_t from, int32_t to, nrd_error *(*fn)(void *user, nrd_qmath *m, int32_t i),
                              void *user) NRD_MUST_USE;

#endif
