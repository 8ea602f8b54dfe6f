/* SPDX-License-Identifier: Apache-2.0
 * hub/record.h - which files of the shared cache this program has fetched, and when they were last used.
 *
 * Purpose   $NEREID_CACHE/pulled has a text file for each snapshot, with a line for each file; its date is
 *           the last use. What others have fetched is not in it: `nereid prune` leaves it alone.
 * Owner     Who pulls holds the model's lock. These are best efforts: without a record a model counts as others'.
 */
#ifndef NRD_HUB_RECORD_H
#define NRD_HUB_RECORD_H

#include "hub/settings.h"

#include <stddef.h>
#include <time.h>

/* Adds files of a snapshot. */
void nrd_hub_record_add(const nrd_hub_settings *s, const char *repo_dir, const char *commit, const char *const *files,
                        size_t n);
/* Is the file in it? *out_used: the last use. */
bool nrd_hub_record_has(const nrd_hub_settings *s, const char *repo_dir, const char *commit, const char *file,
                        time_t *out_used);
/* The snapshot was used now. */
void nrd_hub_record_use(const nrd_hub_settings *s, const char *repo_dir, const char *commit);
/* The snapshot is gone. */
void nrd_hub_record_drop(const nrd_hub_settings *s, const char *repo_dir, const char *commit);

#endif
