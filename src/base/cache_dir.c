/* SPDX-License-Identifier: Apache-2.0
 * Apart from env.c, which device plug-ins link without the rest of base. */
#include "base/env.h"

#include "base/file.h"

#include <string.h>

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
