/* SPDX-License-Identifier: Apache-2.0
 * engine/run/rough_head.h - the LM head once more, in 8 bits.
 *
 * Purpose   A step whose choices need no log probabilities finds with it which tokens can be chosen, and multiplies only those by
 *           the head's own numbers (linear_sample of nereid/device.h): half the bytes of a 16-bit head, the same choices.
 * Owner     The runner; the engine loop thread.
 * Lifetime  Made behind the weights, unloaded before them.
 */
#ifndef NRD_ENGINE_RUN_ROUGH_HEAD_H
#define NRD_ENGINE_RUN_ROUGH_HEAD_H

#include "nereid/device.h"

struct nrd_runner;
struct nrd_batch;

typedef struct nrd_rough_head {
    nrd_weight w;
    float *error, *length; /* [rows], device memory */
    void *host;            /* the rows, where the device uses them as they are; or NULL */
    bool owned;            /* w by the device */
} nrd_rough_head;

/* Makes it of the engine's head, which takes a second for 500 million numbers. UNSUPPORTED: this head or this device has no two
 * steps; the message says why. */
nrd_error *nrd_run_init_rough_head(struct nrd_runner *r);
void nrd_run_fini_rough_head(struct nrd_runner *r);
/* Whether there is one that finds the candidates of all the batch's rows (nrd_rough_is_plain; on the host's memory the device looks for
 * itself). */
bool nrd_run_takes_two_steps(const struct nrd_runner *r, const struct nrd_batch *b);

#endif
