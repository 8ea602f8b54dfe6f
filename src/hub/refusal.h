/* SPDX-License-Identifier: Apache-2.0
 * hub/refusal.h - what the hub's refusals mean for the user: one line, with what to do. Stateless. */
#ifndef NRD_HUB_REFUSAL_H
#define NRD_HUB_REFUSAL_H

#include "hub/id.h"
#include "hub/plugin.h"
#include "hub/settings.h"

/* NULL where nothing is wrong. file: what was asked for, or NULL. */
nrd_error *nrd_hub_refusal(const nrd_hub_settings *s, const nrd_hub_id *id, const char *file,
                           const nrd_hub_reply *reply, const nrd_hub_fault *fault) NRD_MUST_USE;

#endif
