/* SPDX-License-Identifier: Apache-2.0
 * base/env.h - the environment variables that Nereid reads, in one place.
 * Stateless; the returned text borrows from the process environment. */
#ifndef NRD_BASE_ENV_H
#define NRD_BASE_ENV_H

#include <stdbool.h>

/* Value of a variable; the fallback when it is unset or empty. */
const char *nrd_env(const char *name, const char *fallback);

/* Whether it is there, also where it is empty. */
bool nrd_env_is_set(const char *name);

/* Folder for what can be made again (models, engines): $NEREID_CACHE, else ~/.cache/nereid.
 * Owned by the caller; NULL: no memory. */
char *nrd_env_cache_dir(void);

#endif
