/* SPDX-License-Identifier: Apache-2.0
 * hub/pull.h - a model by name into the cache.
 *
 * Purpose   Asks the hub for the files of a revision, fetches those that the model needs and that are not
 *           there, checks them, and links them into their snapshot. Progress goes to stderr.
 * Owner     The main thread of a program. Two pulls of one model wait for each other, also with
 *           huggingface_hub's for a file.
 * Errors    One line with what to do: NOT_FOUND (name, revision, file, type), UNAVAILABLE (connection,
 *           refusals, offline), INVALID_ARG (what the hub sent), INTERNAL (disk).
 */
#ifndef NRD_HUB_PULL_H
#define NRD_HUB_PULL_H

#include "hub/id.h"
#include "hub/listing.h"
#include "hub/settings.h"

/* Who wants to know more than the bar tells: bytes of a file of the hub that are there, from 0 to its size; one file
 * after the other, maybe from another thread. Not for files of other addresses. */
typedef struct nrd_hub_watch {
    void (*file)(void *user, const nrd_hub_file *f, uint64_t done);
    void *user;
} nrd_hub_watch;

/* *out_path: what to open, owned by the caller. watch may be NULL. */
nrd_error *nrd_hub_pull(const nrd_hub_settings *s, const nrd_hub_id *id, bool is_quiet, const nrd_hub_watch *watch,
                        char **out_path) NRD_MUST_USE;

/* The path of `text`: a path that exists is itself; else an id is looked for in the cache, and pulled
 * where it is not there. Owned by the caller. */
nrd_error *nrd_hub_resolve(const char *text, char **out_path) NRD_MUST_USE;

#endif
