/* SPDX-License-Identifier: Apache-2.0
 * core/cancel.h - a flag that says "the answer is not needed any more"; setting a parent's
 * flag sets it too.
 * Counted; any thread. */
#ifndef NRD_CORE_CANCEL_H
#define NRD_CORE_CANCEL_H

#include "core/objects.h"

#include <stdbool.h>

nrd_cancel *nrd_cancel_new(nrd_cancel *parent); /* shares parent (may be NULL); NULL: no memory */
nrd_cancel *nrd_cancel_ref(nrd_cancel *c);
void nrd_cancel_unref(nrd_cancel *c);
void nrd_cancel_set(nrd_cancel *c);
bool nrd_cancel_is_set(const nrd_cancel *c);

#endif
