/* SPDX-License-Identifier: Apache-2.0
 * Memory of the device. An allocation that fails says what to change. */
#include "engine/run/operations.h"

#include "base/mem.h"

#include <string.h>

nrd_error *nrd_run_advised(nrd_error *err, const char *pool)
{
    static const char *const advice[][2] = {
        {"weights", "more quantized weights, a lower gpu_weights_percent, or a device with more memory"},
        {"kv cache", "a lower kv_cache_free_gpu_mem_fraction"},
        {"activations", "a lower max_num_tokens"},
        {"logits", "a lower max_batch_size"},
        {"token counts", "a lower max_batch_size"},
        {"workspace", "a lower max_num_tokens"},
        {"recurrent states", "a lower max_batch_size"},
    };
    for (size_t i = 0; err && i < sizeof advice / sizeof advice[0]; i++) {
        if (nrd_error_get_code(err) == NRD_ERR_UNAVAILABLE && !strcmp(pool, advice[i][0])) {
            return nrd_error_wrap(err,
                                  "no room for the %s; it needs %s, others off this device, or the "
                                  "device \"cpu\"",
                                  pool, advice[i][1]);
        }
    }
    return err;
}

nrd_error *nrd_run_alloc(nrd_runner *r, void **out, size_t n, size_t elem, const char *pool)
{
    size_t bytes = 0;
    if (!nrd_size_mul(n, elem, &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "runner: %s would be too large", pool);
    }
    return nrd_run_advised(
        r->dev->ops->alloc(r->dev, out, NRD_MEM_DEVICE, bytes ? bytes : 64, pool), pool);
}

static bool has_common(const nrd_runner *r)
{
    return r->comm && r->dev->ops->comm_alloc;
}

nrd_error *nrd_run_alloc_common(nrd_runner *r, void **out, size_t n, size_t elem, const char *pool)
{
    size_t bytes = 0;
    if (!has_common(r)) {
        return nrd_run_alloc(r, out, n, elem, pool);
    }
    if (!nrd_size_mul(n, elem, &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "runner: %s would be too large", pool);
    }
    return nrd_run_advised(r->dev->ops->comm_alloc(r->comm, out, bytes ? bytes : 64, pool), pool);
}

void nrd_run_free(nrd_runner *r, void *p)
{
    if (p) {
        r->dev->ops->free(r->dev, NRD_MEM_DEVICE, p);
    }
}

void nrd_run_free_common(nrd_runner *r, void *p)
{
    if (!has_common(r)) {
        nrd_run_free(r, p);
    }
}

void nrd_run_free_host(nrd_runner *r, void *p)
{
    if (p) {
        r->dev->ops->free(r->dev, NRD_MEM_HOST, p);
    }
}

nrd_error *nrd_run_upload(nrd_runner *r, void *dst, const void *src, size_t bytes)
{
    NRD_TRY(r->dev->ops->copy(r->stream, dst, src, bytes));
    return r->dev->ops->stream_sync(r->stream);
}
