/* SPDX-License-Identifier: Apache-2.0
 * Requests of Triton to messages for the stub, its messages to responses. */
#include "backends/python/backend.h"

#include "base/json.h"
#include "base/str.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

/* ---- requests to messages ---- */

void nrd_py_put_parameter(nrd_str *json, const char *key, TRITONSERVER_ParameterType type, const void *value)
{
    nrd_str_puts(json, json->len > 1 ? "," : "");
    nrd_json_put_cstr(json, key);
    nrd_str_putc(json, ':');
    switch (type) {
    case TRITONSERVER_PARAMETER_INT:
        nrd_str_printf(json, "%lld", (long long)*(const int64_t *)value);
        break;
    case TRITONSERVER_PARAMETER_BOOL:
        nrd_str_puts(json, *(const bool *)value ? "true" : "false");
        break;
    case TRITONSERVER_PARAMETER_DOUBLE:
        nrd_json_put_double(json, *(const double *)value);
        break;
    default:
        nrd_json_put_cstr(json, value);
        break;
    }
}

static void put_parameters(nrd_py_writer *w, TRITONBACKEND_Request *request, uint32_t n)
{
    nrd_str json = {0};
    nrd_str_putc(&json, '{');
    for (uint32_t i = 0; i < n; i++) {
        const char *key = NULL;
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
        const void *value = NULL;
        TRITONSERVER_Error *err = TRITONBACKEND_RequestParameter(request, i, &key, &type, &value);
        if (err) {
            nrd_tb_log_error(err, "reading a request parameter");
            continue;
        }
        nrd_py_put_parameter(&json, key, type, value);
    }
    nrd_str_putc(&json, '}');
    nrd_py_put_str(w, json.data, json.len);
    w->failed = w->failed || json.no_memory;
    nrd_str_fini(&json);
}

static TRITONSERVER_Error *put_input(nrd_py_message *m, TRITONBACKEND_Request *request, uint32_t i)
{
    TRITONBACKEND_Input *input = NULL;
    const char *name = NULL;
    TRITONSERVER_DataType dtype;
    const int64_t *shape = NULL;
    uint32_t n_dims = 0, n_buffers = 0;
    uint64_t bytes = 0, done = 0;

    NRD_TB_TRY(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    NRD_TB_TRY(
        TRITONBACKEND_InputProperties(input, &name, &dtype, &shape, &n_dims, &bytes, &n_buffers));
    if (n_dims > NRD_PY_MAX_DIMS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' has too many dimensions",
                             name);
    }
    nrd_py_message_tensor(m, name, strlen(name), dtype, shape, n_dims, bytes);
    for (uint32_t b = 0; b < n_buffers; b++) {
        const void *buffer = NULL;
        uint64_t part = 0;
        TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
        int64_t place_id = 0;
        NRD_TB_TRY(TRITONBACKEND_InputBuffer(input, b, &buffer, &part, &place, &place_id));
        if (place == TRITONSERVER_MEMORY_GPU) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                                 "input '%s' is in GPU memory, which the Python backend cannot read",
                                 name);
        }
        nrd_py_message_data(m, buffer, part);
        done += part;
    }
    if (done != bytes && !m->w.failed) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "input '%s' has %llu bytes of %llu", name,
                             (unsigned long long)done, (unsigned long long)bytes);
    }
    return NULL;
}

TRITONSERVER_Error *nrd_py_put_request(nrd_py_message *m, const nrd_py_request *r)
{
    TRITONBACKEND_Request *q = r->request;
    nrd_py_writer *w = &m->w;
    const char *text = NULL;
    uint64_t number = 0;
    uint32_t flags = 0, n = 0;

    nrd_py_put_u64(w, r->id);
    NRD_TB_TRY(TRITONBACKEND_RequestId(q, &text));
    nrd_py_put_cstr(w, text);
    TRITONSERVER_Error *err = TRITONBACKEND_RequestCorrelationId(q, &number);
    if (err) {
        TRITONSERVER_ErrorDelete(err);
        NRD_TB_TRY(TRITONBACKEND_RequestCorrelationIdString(q, &text));
        nrd_py_put_u8(w, 1);
        nrd_py_put_cstr(w, text);
    } else {
        nrd_py_put_u8(w, 0);
        nrd_py_put_u64(w, number);
    }
    NRD_TB_TRY(TRITONBACKEND_RequestFlags(q, &flags));
    nrd_py_put_u32(w, flags);
    NRD_TB_TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(q, &number));
    nrd_py_put_u64(w, number);
    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(q, &n));
    put_parameters(w, q, n);
    NRD_TB_TRY(TRITONBACKEND_RequestOutputCount(q, &n));
    nrd_py_put_u32(w, n);
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(TRITONBACKEND_RequestOutputName(q, i, &text));
        nrd_py_put_cstr(w, text);
    }
    text = NULL;
    if (r->trace) {
        TRITONSERVER_Error *no_context = TRITONSERVER_InferenceTraceContext(r->trace, &text);
        if (no_context) {
            TRITONSERVER_ErrorDelete(no_context);
            text = NULL;
        }
    }
    nrd_py_put_u64(w, r->trace ? r->id : 0); /* the number is all that the stub needs */
    nrd_py_put_cstr(w, text);
    NRD_TB_TRY(TRITONBACKEND_RequestInputCount(q, &n));
    nrd_py_put_u32(w, n);
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(put_input(m, q, i));
    }
    return NULL;
}

/* ---- messages to responses ---- */

static TRITONSERVER_Error *read_remote(const nrd_py_conn *c, void *to, uint64_t address,
                                       uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        struct iovec dst = {.iov_base = (uint8_t *)to + done, .iov_len = bytes - done};
        struct iovec src = {.iov_base = (void *)(uintptr_t)(address + done),
                            .iov_len = bytes - done};
        ssize_t n = process_vm_readv(c->pid, &dst, 1, &src, 1, 0);
        if (n <= 0) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                 "Failed to copy the output tensor to buffer: %s", strerror(errno));
        }
        done += (uint64_t)n;
    }
    return NULL;
}

static TRITONSERVER_Error *write_output(nrd_py_conn *c, TRITONBACKEND_Response *response,
                                        const nrd_py_tensor *t)
{
    void *buffer = NULL;
    TRITONSERVER_Error *err = nrd_tb_output(response, t->name, (TRITONSERVER_DataType)t->dtype,
                                            t->dims, t->n_dims, t->bytes, &buffer);
    if (!err && t->bytes && buffer) {
        if (t->how == NRD_PY_DATA_REMOTE) {
            err = read_remote(c, buffer, t->where, t->bytes);
        } else {
            memcpy(buffer, c->map.base + t->where, t->bytes);
        }
    }
    return err;
}

static TRITONSERVER_Error *set_parameters(TRITONBACKEND_Response *response, const char *text,
                                          size_t n)
{
    nrd_json_doc *doc = NULL;
    TRITONSERVER_Error *err = NULL;
    if (n <= 2) { /* {} */
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_error(nrd_json_parse(&doc, text, n, NULL)));
    const nrd_json *root = nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(root) && !err; i++) {
        const nrd_json *v = nrd_json_at(root, i);
        switch (v->type) {
        case NRD_JSON_BOOL:
            err = TRITONBACKEND_ResponseSetBoolParameter(response, v->key, v->boolean);
            break;
        case NRD_JSON_INT:
            err = TRITONBACKEND_ResponseSetIntParameter(response, v->key, v->i);
            break;
        case NRD_JSON_STRING:
            err = TRITONBACKEND_ResponseSetStringParameter(response, v->key, v->str);
            break;
        default:
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                "Unsupported value type on parameters");
            break;
        }
    }
    nrd_json_doc_free(doc);
    return err;
}

TRITONSERVER_Error *nrd_py_read_response(nrd_py_conn *c, nrd_py_reader *r, uint64_t data_at,
                                         uint8_t kind, TRITONBACKEND_Response *response)
{
    TRITONSERVER_Error *err = NULL;
    size_t n = 0;

    if (kind == NRD_PY_RESPONSE_ERROR) {
        uint32_t code = nrd_py_get_u32(r);
        const char *text = nrd_py_get_str(r, NULL);
        return TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)(code > 7 ? 1 : code), text);
    }
    const char *parameters = nrd_py_get_str(r, &n);
    if (response) {
        err = set_parameters(response, parameters, n);
    }
    uint32_t n_outputs = nrd_py_get_u32(r);
    for (uint32_t i = 0; i < n_outputs; i++) {
        nrd_py_tensor t;
        if (!nrd_py_get_tensor(r, &c->map, data_at, &t)) {
            break;
        }
        if (response && !err) {
            err = write_output(c, response, &t);
        }
        if (t.how == NRD_PY_DATA_BLOCK) {
            nrd_py_return(&c->to_stub, t.where);
        }
    }
    if (r->bad && !err) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "A message of stub '%s' cannot be read.",
                            c->name);
    }
    return err;
}
