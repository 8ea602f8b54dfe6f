/* SPDX-License-Identifier: Apache-2.0
 * Registration of shared memory, of the system and of CUDA. */
#include "frontends/http/handlers.h"

#include "base/mem.h"
#include "base/base64.h"
#include "frontends/common/cuda_ipc.h"

#include <string.h>

static void reply_status(void *user, nrd_http_request *req, const nrd_http_route *route, bool cuda)
{
    const nrd_http_api *api = user;
    nrd_str out = {0};
    nrd_error *err = nrd_shm_status(api->front->shm, cuda, route->region, &out);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply_str(req, 200, NRD_HTTP_JSON, NULL, &out);
    }
    nrd_str_fini(&out);
}

void nrd_http_on_shm_status(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    reply_status(user, req, route, false);
}

void nrd_http_on_cuda_status(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    reply_status(user, req, route, true);
}

static nrd_error *register_shm(nrd_http_api *api, nrd_http_request *req,
                               const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register system shared memory region");
    }
    NRD_TRY(nrd_http_order_json(req, &doc));
    const nrd_json *root = nrd_json_root(doc);
    const nrd_json *size = nrd_json_get(root, "byte_size"), *offset = nrd_json_get(root, "offset");
    const nrd_json *key = nrd_json_get(root, "key");
    nrd_error *err;
    if (key && !nrd_json_is(key, NRD_JSON_STRING)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-string as string");
    } else if (!key) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "Shared memory register request has no 'key' field");
    } else if (!size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Shared memory register request has no 'byte_size' field");
    } else if (!nrd_json_is(size, NRD_JSON_INT) || size->i < 0 ||
               (offset && (!nrd_json_is(offset, NRD_JSON_INT) || offset->i < 0))) {
        err = nrd_errorf(NRD_ERR_INTERNAL,
                         "attempt to access JSON non-unsigned-integer as unsigned-integer");
    } else {
        err = nrd_shm_register(api->front->shm, route->region, key->str, offset ? (uint64_t)offset->i : 0,
                               (uint64_t)size->i);
    }
    nrd_json_doc_free(doc);
    return err;
}

void nrd_http_on_shm_register(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_http_finish(req, register_shm(api, req, route));
}

void nrd_http_on_shm_unregister(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    const nrd_http_api *api = user;
    nrd_http_finish(req, nrd_shm_unregister(api->front->shm, false, route->region));
}

void nrd_http_on_cuda_unregister(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    const nrd_http_api *api = user;
    nrd_http_finish(req, nrd_shm_unregister(api->front->shm, true, route->region));
}

static nrd_error *member_u64(const nrd_json *root, const char *key, uint64_t *out)
{
    const nrd_json *v = nrd_json_get(root, key);
    if (!v) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access non-existing object member '%s'",
                          key);
    }
    if (!nrd_json_is(v, NRD_JSON_INT) || v->i < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "attempt to access JSON non-unsigned-integer as unsigned-integer");
    }
    *out = (uint64_t)v->i;
    return NULL;
}

static nrd_error *read_handle(const nrd_json *root, char handle[NRD_CUDA_HANDLE_BYTES])
{
    const nrd_json *member = nrd_json_get(root, "raw_handle");
    const nrd_json *b64 = nrd_json_get(member, "b64");
    size_t n = 0;

    if (!member) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Shared memory register request has no 'raw_handle' field");
    }
    char *bytes = malloc((nrd_json_is(b64, NRD_JSON_STRING) ? b64->n : 0) + 1);
    if (!bytes) {
        return nrd_error_no_memory();
    }
    const bool ok = nrd_json_is(b64, NRD_JSON_STRING) &&
                    nrd_base64_decode(b64->str, b64->n, bytes, &n) && n == NRD_CUDA_HANDLE_BYTES;
    if (ok) {
        memcpy(handle, bytes, NRD_CUDA_HANDLE_BYTES);
    }
    free(bytes);
    return ok ? NULL
              : nrd_errorf(NRD_ERR_INVALID_ARG,
                           "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
}

static nrd_error *register_cuda(const nrd_http_api *api, nrd_http_request *req,
                                const nrd_http_route *route)
{
    char handle[NRD_CUDA_HANDLE_BYTES];
    nrd_json_doc *doc = NULL;
    uint64_t size = 0, device = 0;

    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register cuda shared memory region");
    }
    NRD_TRY(nrd_http_order_json(req, &doc));
    const nrd_json *root = nrd_json_root(doc);
    nrd_error *err = read_handle(root, handle);
    if (!err) {
        err = member_u64(root, "byte_size", &size);
    }
    if (!err) {
        err = member_u64(root, "device_id", &device);
    }
    if (!err) {
        err = nrd_shm_register_cuda(api->front->shm, route->region, handle, (int64_t)device, size);
    }
    nrd_json_doc_free(doc);
    return err;
}

void nrd_http_on_cuda_register(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_finish(req, register_cuda(user, req, route));
}
