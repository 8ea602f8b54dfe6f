/* SPDX-License-Identifier: Apache-2.0
 * hub/remove.h - models out of the cache.
 *
 * Purpose   Removes the links of a model, then the blobs that no snapshot links to any more, so that what
 *           other revisions and types share stays. Files that another program is fetching stay.
 * Owner     One thread, which waits for pulls of the same model.
 * Errors    INTERNAL with the path and the system's reason.
 */
#ifndef NRD_HUB_REMOVE_H
#define NRD_HUB_REMOVE_H

#include "hub/inventory.h"

/* One entry of an inventory. Of a folder of weights also the other small files of its snapshot. */
nrd_error *nrd_hub_remove_entry(const nrd_hub_settings *s, const nrd_hub_entry *e) NRD_MUST_USE;
/* A whole repository, with all revisions and what is incomplete. */
nrd_error *nrd_hub_remove_repo(const nrd_hub_settings *s, const char *repo_dir) NRD_MUST_USE;
/* A folder with all that is in it; links are removed, not followed. */
nrd_error *nrd_hub_remove_tree(const char *dir) NRD_MUST_USE;
uint64_t nrd_hub_tree_bytes(const char *dir);

#endif
