/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

const char *nrd_env(const char *name, const char *fallback)
{
    const char *v = getenv(name);
    return v && *v ? v : fallback;
}

char *nrd_env_cache_dir(void)
{
    const char *dir = nrd_env("NEREID_CACHE", NULL);
    char *own = NULL;
    if (dir) {
        return strdup(dir);
    }
    nrd_error_free(nrd_path_make(&own, nrd_env("HOME", "/tmp"), ".cache/nereid"));
    return own;
}
