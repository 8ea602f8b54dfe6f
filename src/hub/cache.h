/* SPDX-License-Identifier: Apache-2.0
 * hub/cache.h - the cache of the hub's models, shared with huggingface_hub.
 *
 * Purpose   CACHE/models--ORG--NAME has blobs/HASH, refs/REVISION (which hold a commit) and
 *           snapshots/COMMIT/PATH, which are links to blobs. What one program has fetched, the other finds.
 *           Files of other addresses lie in $NEREID_CACHE/files/HOST/PATH.
 * Owner     Stateless; several processes may read and write at once: files appear under their names only
 *           when they are complete. Who writes holds the lock of the model.
 * Errors    INTERNAL with the path and the system's reason.
 * Source    huggingface_hub, "Understand caching".
 */
#ifndef NRD_HUB_CACHE_H
#define NRD_HUB_CACHE_H

#include "hub/id.h"
#include "hub/listing.h"
#include "hub/settings.h"

/* CACHE/models--ORG--NAME; owned. */
char *nrd_hub_repo_dir(const nrd_hub_settings *s, const char *repo);
/* "models--ORG--NAME" -> "ORG/NAME", owned; NULL: another name. */
char *nrd_hub_repo_of_dir(const char *name);
/* Where a file of another address lies; owned. NULL: its path leads out of the folder. */
char *nrd_hub_url_file(const nrd_hub_settings *s, const char *url);

/* The commit that a revision is, as far as the cache knows. */
bool nrd_hub_cached_commit(const char *repo_dir, const char *rev, char out[NRD_HUB_COMMIT + 1]);
/* Path of the model when all that it needs is there (a snapshot, or a GGUF file in one); NULL: it is not.
 * Owned by the caller. */
char *nrd_hub_cached(const nrd_hub_settings *s, const nrd_hub_id *id);
/* Names of the files of a folder and those below it that are there, sorted; free with nrd_names_free. */
void nrd_hub_files_below(const char *dir, char ***out_names, size_t *out_n);

/* snapshots/COMMIT/PATH -> blobs/HASH. */
nrd_error *nrd_hub_link(const char *repo_dir, const char *commit, const nrd_hub_file *f) NRD_MUST_USE;
nrd_error *nrd_hub_set_ref(const char *repo_dir, const char *rev, const char *commit) NRD_MUST_USE;

/* Waits until nobody else has `CACHE/.locks/models--ORG--NAME/NAME.lock`; `what` is told to who waits (NULL:
 * nothing). Gives the lock, to be closed with close(). */
nrd_error *nrd_hub_lock(int *out_fd, const nrd_hub_settings *s, const char *repo_dir, const char *name,
                        const char *what) NRD_MUST_USE;

#endif
