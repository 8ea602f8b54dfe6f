/* SPDX-License-Identifier: Apache-2.0
 * base/made_from.h - what a folder of $NEREID_CACHE was made from.
 *
 * Purpose   Engines, tokenizers and repositories carry the path of their model in a file of their own, so that they can go
 *           with it.
 * Owner     Stateless; any thread.
 * Errors    As base/file.h. */
#ifndef NRD_BASE_MADE_FROM_H
#define NRD_BASE_MADE_FROM_H

#include "base/error.h"

#define NRD_MADE_FROM_FILE ".made_from"

/* The model's path is written without links: of a file in the hub's cache the blob. Nothing where it is not there. */
nrd_error *nrd_made_from_write(const char *dir, const char *model) NRD_MUST_USE;
/* Owned by the caller; NULL: it does not say, or cannot be read. */
char *nrd_made_from_read(const char *dir);

#endif
