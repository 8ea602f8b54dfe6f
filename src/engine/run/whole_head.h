/* SPDX-License-Identifier: Apache-2.0
 * engine/run/whole_head.h - the LM head of a model over several ranks, whole on rank 0.
 *
 * Purpose   Each rank has some rows of the LM head, and a step's logits are put together from all of them. Heads that guess
 *           (extra_heads.h, eagle_net.h) work on rank 0 alone and may share the model's LM head: here are all its rows, those of
 *           the other ranks read from their engines.
 * Owner     As extra_product.h; the runner outlives it.
 * Errors    UNSUPPORTED: more ranks than a product has parts. NOT_FOUND: an engine of another rank is not here. UNAVAILABLE.
 */
#ifndef NRD_ENGINE_RUN_WHOLE_HEAD_H
#define NRD_ENGINE_RUN_WHOLE_HEAD_H

#include "engine/run/extra_product.h"

typedef struct nrd_whole_head { /* zero-initialised: none */
    nrd_engine *engines[NRD_LINEAR_MAX_PARTS]; /* of the ranks above 0 */
    nrd_extra_product others;                  /* its first part is the runner's */
} nrd_whole_head;

/* *out: the product [vocab, hidden], with rows of zeros behind where vocab is no multiple of tp_size. The runner's own where there
 * is one rank. Its memory is that of h and the runner. */
nrd_error *nrd_whole_head_open(nrd_whole_head *h, nrd_runner *r, const nrd_product **out) NRD_MUST_USE;
void nrd_whole_head_close(nrd_whole_head *h, nrd_runner *r); /* also after an error, and of none */
uint64_t nrd_whole_head_bytes(const nrd_whole_head *h);      /* beside the runner's */

#endif
