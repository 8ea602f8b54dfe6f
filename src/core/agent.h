/* SPDX-License-Identifier: Apache-2.0
 * core/agent.h - repository agents: libraries that look at a model's folder, or put another in its
 * place, before it is loaded.
 *
 * Purpose   nrd_agents is the row of agents that one load of a model named, each told what happens
 *           to it: LOAD, then LOAD_COMPLETE or LOAD_FAIL, then UNLOAD and UNLOAD_COMPLETE.
 * Owner     Counted: the versions that were loaded share it. Made by the thread that loads.
 * Errors    A refusal of LOAD or LOAD_COMPLETE fails the load; later ones are logged.
 * Lifetime  With the last share the remaining actions follow, then folders that agents acquired are
 *           removed and libraries that nothing uses are closed.
 */
#ifndef NRD_CORE_AGENT_H
#define NRD_CORE_AGENT_H

#include "base/error.h"
#include "core/objects.h"
#include "core/strings.h"

/* Asks the agents that the configuration names. *out NULL: it names none. */
nrd_error *nrd_agents_load(nrd_agents **out, nrd_context *ctx, const nrd_config *cfg,
                           const char *dir) NRD_MUST_USE;
const char *nrd_agents_dir(const nrd_agents *a);          /* where to load from; borrowed */
nrd_error *nrd_agents_loaded(nrd_agents *a) NRD_MUST_USE; /* NULL is fine */
void nrd_agents_unloading(nrd_agents *a);                 /* NULL is fine; told once */
nrd_agents *nrd_agents_ref(nrd_agents *a);                /* NULL is fine */
void nrd_agents_unref(nrd_agents *a);                     /* NULL is fine */
/* Rows "name, path" of the libraries that are open. */
void nrd_agents_list(nrd_strings *cells);

/* Removes a folder and what is in it; links are removed, not followed. */
void nrd_remove_tree(const char *dir);

#endif
