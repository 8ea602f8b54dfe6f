/* SPDX-License-Identifier: Apache-2.0
 * Opening the plug-in, and the state that the files of a program share. */
#include "gpu.h"

#include <dlfcn.h>

nrd_device *dev;
nrd_stream *st;
uint64_t rng_state = 1;

static nrd_error *error_new(int code, const char *message)
{
    return nrd_errorf((nrd_error_code)code, "%s", message);
}

static int error_code(const nrd_error *err)
{
    return (int)nrd_error_get_code(err);
}

void gpu_open(const char *path)
{
    void *dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    nrd_device_plugin_fn open_fn = NULL;
    static const nrd_device_host host = {error_new, nrd_error_no_memory, error_code, nrd_error_message,
                                         nrd_error_free};
    nrd_device_config config = {0};
    nrd_device_info info;

    if (!dl) {
        fprintf(stderr, "FAILED %s\n", dlerror());
        exit(1);
    }
    *(void **)&open_fn = dlsym(dl, NRD_DEVICE_PLUGIN_SYMBOL);
    if (!open_fn) {
        fprintf(stderr, "FAILED %s exports no %s\n", path, NRD_DEVICE_PLUGIN_SYMBOL);
        exit(1);
    }
    OK(open_fn(&host, &config, &dev));
    OK(dev->ops->stream_new(dev, &st));
    dev->ops->get_info(dev, &info);
    printf("%s, %d multiprocessors, %.1f of %.1f GB free\n", info.name, info.n_threads,
           (double)info.mem_free_bytes / 1e9, (double)info.mem_total_bytes / 1e9);
}
