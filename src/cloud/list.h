/* SPDX-License-Identifier: Apache-2.0
 * cloud/list.h - what lies below an address, page by page.
 *
 * Owner     Any thread. Errors and the visitor as in cloud/plugin.h.
 * Limits    32 MiB a page; a list of pages that never ends is refused after a million of them.
 */
#ifndef NRD_CLOUD_LIST_H
#define NRD_CLOUD_LIST_H

#include "cloud/plugin.h"
#include "cloud/store.h"

/* folders: only their names, one level deep; else all objects. */
nrd_error *nrd_cloud_list(nrd_cloud_store *s, bool folders, nrd_cloud_visit visit, void *user) NRD_MUST_USE;

#endif
