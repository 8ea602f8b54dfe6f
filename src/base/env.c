/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include "base/file.h"
#include "base/mem.h"

const char *nrd_env(const char *name, const char *fallback)
{
    const char *v = getenv(name);
    return v && *v ? v : fallback;
}

char *nrd_env_cache_dir(void)
{
    const char *dir = nrd_env("NEREID_CACHE", NULL);
    return dir ? nrd_xstrdup(dir) : nrd_path_join(nrd_env("HOME", "/tmp"), ".cache/nereid");
}
