/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/open.h"

#include "base/file.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static struct {
    pthread_mutex_t mu;
    const nrd_hub_ops *ops; /* guarded by mu */
} plugin = {.mu = PTHREAD_MUTEX_INITIALIZER};

static nrd_error *open_plugin(const nrd_hub_ops **out)
{
    char *dir = nrd_path_exe_dir(), *path = nrd_path_join(dir, "../lib/nereid_hub.so");
    void *lib = dlopen(nrd_path_exists(path) ? path : "nereid_hub.so", RTLD_NOW | RTLD_LOCAL);
    nrd_error *err = NULL;

    free(dir);
    free(path);
    if (!lib) {
        const char *why = dlerror();
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "downloads need nereid_hub.so, which is built where libcurl4-openssl-dev "
                          "and libssl-dev are (%s)", why ? why : "no reason given");
    }
    *out = dlsym(lib, NRD_HUB_SYMBOL);
    if (!*out) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "nereid_hub.so is of another version");
        dlclose(lib);
    }
    return err;
}

nrd_error *nrd_hub_open(const nrd_hub_ops **out)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&plugin.mu);
    if (!plugin.ops) {
        err = open_plugin(&plugin.ops);
    }
    *out = plugin.ops;
    pthread_mutex_unlock(&plugin.mu);
    return err;
}
