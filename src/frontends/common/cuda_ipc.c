/* SPDX-License-Identifier: Apache-2.0
 * GPU memory of another process: the CUDA driver is opened once with dlopen, its functions are
 * looked up by name, and each call makes the device's primary context current for its own time
 * only. Called by shm.c for regions that clients registered as CUDA shared memory. */
#include "frontends/common/cuda_ipc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define MAX_DEVICES 64
#define LAZY_PEER_ACCESS 1u /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

typedef struct ipc_handle {
    char bytes[NRD_CUDA_HANDLE_BYTES];
} ipc_handle;

/* The driver's functions; 0 is success everywhere. */
static struct {
    bool ok;
    int n_devices;
    int (*init)(unsigned flags);
    int (*device_count)(int *out);
    int (*device_get)(int *out, int ordinal);
    int (*context_retain)(void **out, int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **out);
    int (*ipc_open)(uint64_t *out, ipc_handle handle, unsigned flags);
    int (*ipc_close)(uint64_t address);
    int (*address_range)(uint64_t *base, size_t *size, uint64_t address);
    int (*to_host)(void *to, uint64_t from, size_t n);
    int (*to_device)(uint64_t to, const void *from, size_t n);
    int (*error_string)(int error, const char **out);
    pthread_mutex_t mu;
    void *contexts[MAX_DEVICES]; /* guarded by mu */
} cu = {.mu = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    const struct {
        const char *name;
        void *to;
    } all[] = {{"cuInit", &cu.init},
               {"cuDeviceGetCount", &cu.device_count},
               {"cuDeviceGet", &cu.device_get},
               {"cuDevicePrimaryCtxRetain", &cu.context_retain},
               {"cuCtxPushCurrent_v2", &cu.context_push},
               {"cuCtxPopCurrent_v2", &cu.context_pop},
               {"cuIpcOpenMemHandle_v2", &cu.ipc_open},
               {"cuIpcCloseMemHandle", &cu.ipc_close},
               {"cuMemGetAddressRange_v2", &cu.address_range},
               {"cuMemcpyDtoH_v2", &cu.to_host},
               {"cuMemcpyHtoD_v2", &cu.to_device},
               {"cuGetErrorString", &cu.error_string}};
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        return;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *f = dlsym(lib, all[i].name);
        if (!f) {
            return;
        }
        memcpy(all[i].to, &f, sizeof f); /* ISO C has no cast from object to function pointer */
    }
    cu.ok = cu.init(0) == 0 && cu.device_count(&cu.n_devices) == 0 && cu.n_devices > 0;
}

bool nrd_cuda_ipc_available(void)
{
    pthread_once(&once, load);
    return cu.ok;
}

static nrd_error *failed(const char *what, int rc)
{
    const char *text = NULL;
    (void)cu.error_string(rc, &text);
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s", what, text ? text : "unknown error");
}

/* Makes the device's primary context the current one of this thread, until leave(). */
static nrd_error *enter(int device)
{
    int handle, rc = 0;
    if (!nrd_cuda_ipc_available()) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "GPUs not supported");
    }
    if (device < 0 || device >= cu.n_devices || device >= MAX_DEVICES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "there is no GPU %d", device);
    }
    pthread_mutex_lock(&cu.mu);
    if (!cu.contexts[device]) {
        rc = cu.device_get(&handle, device);
        rc = rc ? rc : cu.context_retain(&cu.contexts[device], handle);
    }
    pthread_mutex_unlock(&cu.mu);
    rc = rc ? rc : cu.context_push(cu.contexts[device]);
    return rc ? failed("CUDA context", rc) : NULL;
}

static void leave(void)
{
    void *popped;
    (void)cu.context_pop(&popped);
}

nrd_error *nrd_cuda_ipc_open(int device, const void *handle, uint64_t *out_address,
                             uint64_t *out_size)
{
    ipc_handle h;
    uint64_t base = 0;
    size_t size = 0;

    memcpy(h.bytes, handle, sizeof h.bytes);
    NRD_TRY(enter(device));
    int rc = cu.ipc_open(out_address, h, LAZY_PEER_ACCESS);
    if (rc == 0) {
        rc = cu.address_range(&base, &size, *out_address);
        if (rc) {
            (void)cu.ipc_close(*out_address);
        }
    }
    leave();
    *out_size = size;
    return rc ? failed("CUDA IPC handle", rc) : NULL;
}

void nrd_cuda_ipc_close(int device, uint64_t address)
{
    nrd_error *err = enter(device);
    if (!err) {
        (void)cu.ipc_close(address);
        leave();
    }
    nrd_error_free(err);
}

nrd_error *nrd_cuda_ipc_read(int device, uint64_t from, void *to, size_t n)
{
    NRD_TRY(enter(device));
    const int rc = n ? cu.to_host(to, from, n) : 0;
    leave();
    return rc ? failed("copy from CUDA shared memory", rc) : NULL;
}

nrd_error *nrd_cuda_ipc_write(int device, uint64_t to, const void *from, size_t n)
{
    NRD_TRY(enter(device));
    const int rc = n ? cu.to_device(to, from, n) : 0;
    leave();
    return rc ? failed("copy to CUDA shared memory", rc) : NULL;
}
