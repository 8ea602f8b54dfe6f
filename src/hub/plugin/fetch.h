/* SPDX-License-Identifier: Apache-2.0
 * hub/plugin/fetch.h - one file, complete and as it should be, or a beginning of it.
 *
 * Purpose   Pieces come over several connections and are written in their order, so that the file is a
 *           beginning at every moment: a later call goes on with it, whatever ended this one, and the hash is
 *           computed on the way. A server that knows no ranges sends the file over one connection.
 * Owner     One thread calls; up to 8 work.
 * Limits    Pieces of 4 MiB, one in memory for each connection. A piece that breaks off goes on where it
 *           broke, after pauses; five times without a byte, or a thousand times at all, are an error.
 */
#ifndef NRD_HUB_PLUGIN_FETCH_H
#define NRD_HUB_PLUGIN_FETCH_H

#include "base/error.h"
#include "hub/plugin.h"

nrd_error *nrd_hub_fetch(const nrd_hub_access *a, const nrd_hub_part *part, nrd_hub_progress progress, void *user,
                         nrd_hub_reply *reply) NRD_MUST_USE;

#endif
