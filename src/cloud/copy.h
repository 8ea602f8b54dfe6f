/* SPDX-License-Identifier: Apache-2.0
 * cloud/copy.h - objects into local files, by several threads.
 *
 * Owner     Any thread; returns when all is copied, or after the first fault. Errors as in cloud/plugin.h.
 * Limits    8 threads, pieces of 16 MiB. A piece that breaks off goes on where it broke, after pauses; five
 *           times without a byte, or a thousand times at all, are an error.
 */
#ifndef NRD_CLOUD_COPY_H
#define NRD_CLOUD_COPY_H

#include "cloud/plugin.h"
#include "cloud/store.h"

nrd_error *nrd_cloud_copy(nrd_cloud_store *s, const nrd_cloud_file *files, size_t n) NRD_MUST_USE;

#endif
