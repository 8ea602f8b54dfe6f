/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include <stdlib.h>

bool nrd_env_is_set(const char *name)
{
    return getenv(name) != NULL;
}

const char *nrd_env(const char *name, const char *fallback)
{
    const char *v = getenv(name);
    return v && *v ? v : fallback;
}
