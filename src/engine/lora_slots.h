/* SPDX-License-Identifier: Apache-2.0
 * engine/lora_slots.h - the adapters of a rank above 0.
 *
 * Purpose   Which adapter lies in which slot is rank 0's to say (engine/lora.h): here is only the table of pairs that
 *           operations read, and the memory of each slot's adapter. There is no limit: what rank 0 keeps has one.
 * Owner     The thread that follows rank 0's messages.
 * Errors    UNAVAILABLE: no memory. UNSUPPORTED: the device has no adapters.
 * Lifetime  new -> put … -> free, before the device. Borrows the device.
 */
#ifndef NRD_ENGINE_LORA_SLOTS_H
#define NRD_ENGINE_LORA_SLOTS_H

#include "engine/lora.h"

typedef struct nrd_lora_slots nrd_lora_slots;

/* n_layers: of this rank. */
nrd_error *nrd_lora_slots_new(nrd_lora_slots **out, nrd_device *dev, int32_t n_layers) NRD_MUST_USE;
void nrd_lora_slots_free(nrd_lora_slots *s); /* NULL is fine */
/* This rank's share of an adapter (taken always; NULL: none) in the place of what the slot had. No step that is under
 * way reads that any more: rank 0 gives a slot away when the requests of its adapter are over. */
nrd_error *nrd_lora_slots_put(nrd_lora_slots *s, int32_t slot, nrd_lora *l) NRD_MUST_USE;
nrd_lora_bank nrd_lora_slots_bank(const nrd_lora_slots *s);

#endif
