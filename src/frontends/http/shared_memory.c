/* Registration of shared memory, of the system and of CUDA. */
#include "frontends/http/handlers.h"

#include "base/mem.h"
#include "frontends/base64.h"

#include <string.h>

#define CUDA_HANDLE_BYTES 64 /* sizeof(cudaIpcMemHandle_t) */

void nrd_http_on_shm_status(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_str out = {0};
    nrd_error *err = nrd_shm_status(api->shm, route->region, &out);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, out.data, out.len);
    }
    nrd_str_fini(&out);
}

static nrd_error *register_shm(nrd_http_api *api, nrd_http_request *req,
                               const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register system shared memory region");
    }
    NRD_TRY(nrd_http_parse_json(&doc, req->body, req->body_n));
    const nrd_json *root = nrd_json_root(doc);
    const nrd_json *size = nrd_json_get(root, "byte_size"), *offset = nrd_json_get(root, "offset");
    const char *key = nrd_json_get_str(root, "key", NULL);
    nrd_error *err;
    if (!key) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "Shared memory register request has no 'key' field");
    } else if (!size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Shared memory register request has no 'byte_size' field");
    } else if (!nrd_json_is(size, NRD_JSON_INT) || size->i < 0 ||
               (offset && (!nrd_json_is(offset, NRD_JSON_INT) || offset->i < 0))) {
        err = nrd_errorf(NRD_ERR_INTERNAL,
                         "attempt to access JSON non-unsigned-integer as unsigned-integer");
    } else {
        err = nrd_shm_register(api->shm, route->region, key, offset ? (uint64_t)offset->i : 0,
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
    nrd_http_api *api = user;
    nrd_http_finish(req, nrd_shm_unregister(api->shm, route->region));
}

void nrd_http_on_cuda_status(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)user;
    if (route->region) {
        nrd_http_fail(req,
                      nrd_errorf(NRD_ERR_NOT_FOUND,
                                 "Unable to find cuda shared memory region: '%s'", route->region));
        return;
    }
    nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, "[]", 2);
}

/* Requests are checked as where there is a GPU; none is registered. */
static nrd_error *register_cuda(const nrd_http_request *req, const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    size_t n;

    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register cuda shared memory region");
    }
    NRD_TRY(nrd_http_parse_json(&doc, req->body, req->body_n));
    const nrd_json *handle = nrd_json_get(nrd_json_root(doc), "raw_handle");
    const nrd_json *b64 = nrd_json_get(handle, "b64");
    char *bytes = nrd_xmalloc((nrd_json_is(b64, NRD_JSON_STRING) ? b64->n : 0) + 1);
    if (!handle) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Shared memory register request has no 'raw_handle' field");
    } else if (!nrd_json_is(b64, NRD_JSON_STRING) ||
               !nrd_base64_decode(b64->str, b64->n, bytes, &n) || n != CUDA_HANDLE_BYTES) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
    } else {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "failed to register CUDA shared memory region: '%s', GPUs not supported",
                         route->region);
    }
    free(bytes);
    nrd_json_doc_free(doc);
    return err;
}

void nrd_http_on_cuda_register(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)user;
    nrd_http_finish(req, register_cuda(req, route));
}

void nrd_http_on_cuda_unregister(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)user;
    (void)route;
    nrd_http_finish(req, NULL); /* there is none, as in Triton */
}
