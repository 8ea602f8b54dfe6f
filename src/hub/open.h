/* SPDX-License-Identifier: Apache-2.0
 * hub/open.h - the plug-in that goes out: opened at the first question. Any thread.
 * Errors: UNSUPPORTED: it was not built. */
#ifndef NRD_HUB_OPEN_H
#define NRD_HUB_OPEN_H

#include "base/error.h"
#include "hub/plugin.h"

nrd_error *nrd_hub_open(const nrd_hub_ops **out) NRD_MUST_USE;

#endif
