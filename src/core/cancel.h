/* SPDX-License-Identifier: Apache-2.0
 * core/cancel.h - what a request and those made on its behalf share: a flag that says "the answer is not
 * needed any more" (setting a parent's flag sets it too), and their account of memory.
 * Counted; any thread. */
#ifndef NRD_CORE_CANCEL_H
#define NRD_CORE_CANCEL_H

#include "core/claim.h"
#include "core/objects.h"

#include <stdbool.h>

nrd_cancel *nrd_cancel_new(nrd_cancel *parent); /* shares parent (may be NULL); NULL: no memory */
nrd_cancel *nrd_cancel_ref(nrd_cancel *c);
void nrd_cancel_unref(nrd_cancel *c);
void nrd_cancel_set(nrd_cancel *c);
bool nrd_cancel_is_set(const nrd_cancel *c);
/* Of the outermost request; made when it is first asked for. NULL: no memory. Borrows. */
nrd_account *nrd_cancel_account(nrd_cancel *c);
/* Shares; before others see c, which has none yet. */
void nrd_cancel_set_account(nrd_cancel *c, nrd_account *a);

#endif
