/* SPDX-License-Identifier: Apache-2.0
 * pool.cu - device and pinned memory with names, and the slabs of the weights. */
#include "device/cuda/cuda_dev.cuh"

#include <algorithm>
#include <atomic>
#include <cstring>

/* The first error after which CUDA does nothing more in this process: "the process must be terminated
 * and relaunched" (CUDA Runtime API, cudaError). Measured with driver 580: cudaDeviceReset then succeeds,
 * but no context, this one or another, can be made again. */
static std::atomic<int> fatal{cudaSuccess};

static bool is_fatal(cudaError_t e)
{
    switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

nrd_error *nrd_cuda_fail(cudaError_t e, const char *what)
{
    const bool ends = is_fatal(e);
    int none = cudaSuccess;

    (void)cudaGetLastError();
    if (ends) {
        (void)fatal.compare_exchange_strong(none, e);
    }
    return nrd_errorf(e == cudaErrorMemoryAllocation ? NRD_ERR_UNAVAILABLE : NRD_ERR_INTERNAL,
                      "cuda: %s (%s) in %.120s%s", cudaGetErrorString(e), cudaGetErrorName(e), what,
                      ends ? "; CUDA no longer works in this process: start it again" : "");
}

nrd_error *nrd_cuda_usable(void)
{
    const cudaError_t e = (cudaError_t)fatal.load();
    return e == cudaSuccess
               ? NULL
               : nrd_errorf(NRD_ERR_UNAVAILABLE,
                            "cuda: CUDA no longer works in this process since an error (%s): start it again",
                            cudaGetErrorName(e));
}

nrd_error *nrd_cuda_pool_alloc(nrd_device *d, void **out, nrd_mem_kind kind, size_t bytes, const char *pool)
{
    cuda_device *dev = (cuda_device *)d;
    void *p = NULL;

    *out = NULL;
    CUDA_TRY(cudaSetDevice(dev->id));
    if (bytes == 0) {
        bytes = 1;
    }
    if (kind == NRD_MEM_HOST) {
        cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
        if (e != cudaSuccess) {
            if (e != cudaErrorMemoryAllocation) {
                return nrd_cuda_fail(e, "cudaHostAlloc");
            }
            (void)cudaGetLastError();
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "cuda: no pinned host memory for %zu bytes of %s", bytes,
                              pool ? pool : "?");
        }
        memset(p, 0, bytes);
    } else {
        cudaError_t e = cudaMalloc(&p, bytes);
        if (e != cudaSuccess) {
            size_t left = 0, total = 0;
            if (e != cudaErrorMemoryAllocation) {
                return nrd_cuda_fail(e, "cudaMalloc");
            }
            (void)cudaGetLastError();
            (void)cudaMemGetInfo(&left, &total);
            return nrd_errorf(NRD_ERR_UNAVAILABLE,
                              "cuda: GPU %d has no memory for %.1f MB of %s: %.1f of %.1f MB are free",
                              dev->id, (double)bytes / 1e6, pool ? pool : "?", (double)left / 1e6,
                              (double)total / 1e6);
        }
        e = cudaMemset(p, 0, bytes);
        if (e == cudaSuccess) {
            e = cudaStreamSynchronize(0); /* streams are non-blocking: zero before anybody reads */
        }
        if (e != cudaSuccess) {
            (void)cudaFree(p);
            return nrd_cuda_fail(e, "zeroing new memory");
        }
    }
    std::lock_guard<std::mutex> lock(dev->mu);
    dev->pools.push_back({p, bytes, kind, pool ? pool : "?"});
    *out = p;
    return NULL;
}

void nrd_cuda_pool_free(nrd_device *d, nrd_mem_kind kind, void *p)
{
    cuda_device *dev = (cuda_device *)d;

    if (!p) {
        return;
    }
    (void)cudaSetDevice(dev->id);
    {
        std::lock_guard<std::mutex> lock(dev->mu);
        for (size_t i = 0; i < dev->pools.size(); i++) {
            if (dev->pools[i].p == p) {
                dev->pools.erase(dev->pools.begin() + (long)i);
                break;
            }
        }
    }
    if (kind == NRD_MEM_HOST) {
        (void)cudaFreeHost(p);
    } else {
        (void)cudaFree(p);
    }
}

int32_t nrd_cuda_pool_report(nrd_device *d, nrd_mem_report *rows, int32_t max_rows)
{
    /* Names live as long as the process: a report row borrows them. */
    static std::vector<std::string *> names;
    static std::mutex names_mu;
    cuda_device *dev = (cuda_device *)d;
    std::lock_guard<std::mutex> lock(dev->mu);
    std::lock_guard<std::mutex> names_lock(names_mu);
    int32_t n = 0;

    for (const pool_entry &e : dev->pools) {
        int32_t i = 0;
        while (i < n && e.pool != rows[i].name) {
            i++;
        }
        if (i == n) {
            std::string *name = NULL;
            if (n == max_rows) {
                continue;
            }
            for (std::string *known : names) {
                if (*known == e.pool) {
                    name = known;
                }
            }
            if (!name) {
                name = new std::string(e.pool);
                names.push_back(name);
            }
            rows[n].name = name->c_str();
            rows[n].bytes = 0;
            n++;
        }
        rows[i].bytes += e.bytes;
    }
    return n;
}

static size_t slab_bytes(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Large slabs keep neighbours together, and lose less at their ends, where the next matrix does not fit: a quarter of what
 * there is, so that a small model's last one does not cost the cache much. On a full card none may. */
static size_t slab_cap(cuda_device *dev, const std::vector<weight_slab> &slabs, size_t left)
{
    size_t all = 0;

    if (&slabs == &dev->vslabs || left <= ((size_t)32 << 30)) {
        return &slabs == &dev->vslabs ? (size_t)1 << 20 : (size_t)32 << 20;
    }
    std::lock_guard<std::mutex> lock(dev->mu);
    for (const weight_slab &slab : slabs) {
        all += slab.cap;
    }
    return std::min(std::max(all / 4, (size_t)512 << 20), (size_t)4 << 30);
}

nrd_error *nrd_cuda_slab_alloc(cuda_device *dev, std::vector<weight_slab> &slabs, size_t bytes, void **out)
{
    const size_t need = slab_bytes(bytes);

    {
        std::lock_guard<std::mutex> lock(dev->mu);
        if (!slabs.empty() && slabs.back().cap - slabs.back().used >= need) {
            weight_slab &slab = slabs.back();
            *out = slab.base + slab.used;
            slab.used += need;
            slab.live++;
            return NULL;
        }
    }
    size_t left = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&left, &total));
    size_t cap = std::max(slab_cap(dev, slabs, left), need);
    void *p = NULL;
    NRD_TRY(nrd_cuda_pool_alloc(&dev->base, &p, NRD_MEM_DEVICE, cap, "weights"));
    std::lock_guard<std::mutex> lock(dev->mu);
    slabs.push_back({(char *)p, cap, need, 1});
    *out = p;
    return NULL;
}

/* What was taken last can be taken again. */
void nrd_cuda_slab_free(cuda_device *dev, std::vector<weight_slab> &slabs, void *p, size_t bytes)
{
    const size_t need = slab_bytes(bytes);
    void *gone = NULL;
    {
        std::lock_guard<std::mutex> lock(dev->mu);
        for (size_t i = 0; i < slabs.size(); i++) {
            if ((char *)p >= slabs[i].base && (char *)p < slabs[i].base + slabs[i].cap) {
                if ((char *)p + need == slabs[i].base + slabs[i].used) {
                    slabs[i].used -= need;
                }
                if (--slabs[i].live == 0) {
                    gone = slabs[i].base;
                    slabs.erase(slabs.begin() + (long)i);
                }
                break;
            }
        }
    }
    nrd_cuda_pool_free(&dev->base, NRD_MEM_DEVICE, gone);
}
