/* SPDX-License-Identifier: Apache-2.0
 * Helpers of all backends: logs through the hosting server, the model's configuration,
 * inputs of a request as contiguous arrays, single values of tensors. Called on the threads of
 * the core that run an instance. */
#include "backends/util/util.h"

#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static void server_sink(void *user, nrd_log_level level, const char *file, int line,
                        const char *message)
{
    static const TRITONSERVER_LogLevel levels[] = {TRITONSERVER_LOG_ERROR, TRITONSERVER_LOG_WARN,
                                                   TRITONSERVER_LOG_INFO, TRITONSERVER_LOG_VERBOSE};
    (void)user;
    if (level == NRD_LOG_LEVEL_VERBOSE && !TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE)) {
        return;
    }
    TRITONSERVER_Error *err = TRITONSERVER_LogMessage(levels[level], file, line, message);
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
}

void nrd_tb_use_server_log(void)
{
    nrd_log_set_sink(server_sink, NULL);
    nrd_log_set_verbose(1); /* the server says whether verbose lines are wanted, at any time */
}

void nrd_tb_log_error(TRITONSERVER_Error *err, const char *what)
{
    if (err) {
        NRD_LOG_ERROR("%s: %s", what, TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(err);
    }
}

/* ---- configuration ---- */

TRITONSERVER_Error *nrd_tb_config_load(nrd_tb_config *out, TRITONBACKEND_Model *model)
{
    TRITONSERVER_Message *message = NULL;
    TRITONSERVER_Error *err = NULL;
    const char *name = NULL, *text = NULL;
    size_t n = 0;

    memset(out, 0, sizeof *out);
    NRD_TB_TRY(TRITONBACKEND_ModelName(model, &name));
    NRD_TB_TRY(TRITONBACKEND_ModelVersion(model, &out->version));
    NRD_TB_TRY(TRITONBACKEND_ModelServer(model, &out->server));
    NRD_TB_TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    err = TRITONSERVER_MessageSerializeToJson(message, &text, &n);
    if (!err) {
        err = nrd_tb_error(nrd_json_parse(&out->doc, text, n, NULL));
    }
    if (!err) {
        out->root = nrd_json_root(out->doc);
        out->name = strdup(name);
        err = out->name ? NULL : nrd_tb_error(nrd_error_no_memory());
        out->max_batch_size = nrd_json_get_int(out->root, "max_batch_size", 0);
        out->decoupled = nrd_json_get_bool(nrd_json_get(out->root, "model_transaction_policy"),
                                           "decoupled", false);
    }
    TRITONSERVER_MessageDelete(message);
    return err;
}

void nrd_tb_config_fini(nrd_tb_config *c)
{
    free(c->name);
    nrd_json_doc_free(c->doc);
    memset(c, 0, sizeof *c);
}

const char *nrd_tb_config_param(const nrd_tb_config *c, const char *key)
{
    const nrd_json *p = nrd_json_get(nrd_json_get(c->root, "parameters"), key);
    const char *v = nrd_json_get_str(p, "string_value", NULL);
    return v && *v && !nrd_str_has_prefix(v, "${") ? v : NULL;
}

static bool has_tensor(const nrd_json *tensors, const char *name)
{
    for (size_t i = 0; i < nrd_json_len(tensors); i++) {
        if (!strcmp(nrd_json_get_str(nrd_json_at(tensors, i), "name", ""), name)) {
            return true;
        }
    }
    return false;
}

bool nrd_tb_config_has_input(const nrd_tb_config *c, const char *name)
{
    return has_tensor(nrd_json_get(c->root, "input"), name);
}

bool nrd_tb_config_has_output(const nrd_tb_config *c, const char *name)
{
    return has_tensor(nrd_json_get(c->root, "output"), name);
}

TRITONSERVER_Error *nrd_tb_instance_share(TRITONBACKEND_ModelInstance *instance)
{
    TRITONBACKEND_Model *model = NULL;
    void *state = NULL;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    return TRITONBACKEND_ModelInstanceSetState(instance, state);
}

/* ---- inputs ---- */

static TRITONSERVER_Error *read_input(nrd_tb_inputs *in, TRITONBACKEND_Input *input,
                                      nrd_tb_tensor *t)
{
    uint32_t n_buffers = 0;
    uint64_t bytes = 0, done = 0;

    NRD_TB_TRY(TRITONBACKEND_InputProperties(input, &t->name, &t->dtype, &t->shape, &t->n_dims,
                                             &bytes, &n_buffers));
    t->bytes = bytes;
    t->n_elements = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        t->n_elements *= t->shape[d];
    }
    uint8_t *whole = NULL;
    if (n_buffers > 1) {
        whole = nrd_arena_alloc(&in->arena, bytes);
        if (!whole) {
            return nrd_tb_error(nrd_error_no_memory());
        }
        t->data = whole;
    }
    for (uint32_t b = 0; b < n_buffers; b++) {
        const void *buffer = NULL;
        uint64_t n = 0;
        TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
        int64_t type_id = 0;
        NRD_TB_TRY(TRITONBACKEND_InputBuffer(input, b, &buffer, &n, &type, &type_id));
        if (type == TRITONSERVER_MEMORY_GPU) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                                 "input '%s' is in GPU memory, this model takes host memory",
                                 t->name);
        }
        if (whole) {
            if (n > bytes - done) {
                return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                     "input '%s' has more bytes than it says", t->name);
            }
            memcpy(whole + done, buffer, n);
        } else {
            t->data = buffer;
        }
        done += n;
    }
    if (done != bytes) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "input '%s' has %llu bytes of %llu",
                             t->name, (unsigned long long)done, (unsigned long long)bytes);
    }
    /* A BYTES element has at least its length; other types have a fixed width. */
    size_t width = TRITONSERVER_DataTypeByteSize(t->dtype);
    if (width && (t->n_elements < 0 || (uint64_t)t->n_elements != bytes / width)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input '%s' has %llu bytes, its shape needs %lld", t->name,
                             (unsigned long long)bytes,
                             (long long)(t->n_elements * (int64_t)width));
    }
    return NULL;
}

TRITONSERVER_Error *nrd_tb_inputs_read(nrd_tb_inputs *out, TRITONBACKEND_Request *request)
{
    uint32_t n = 0;
    memset(out, 0, sizeof *out);
    nrd_arena_init(&out->arena);
    NRD_TB_TRY(TRITONBACKEND_RequestInputCount(request, &n));
    out->t = nrd_arena_alloc(&out->arena, (size_t)n * sizeof *out->t);
    if (!out->t) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    memset(out->t, 0, (size_t)n * sizeof *out->t);
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        TRITONBACKEND_Input *input = NULL;
        NRD_TB_TRY(TRITONBACKEND_RequestInputByIndex(request, i, &input));
        NRD_TB_TRY(read_input(out, input, &out->t[i]));
    }
    return NULL;
}

void nrd_tb_inputs_fini(nrd_tb_inputs *in)
{
    nrd_arena_fini(&in->arena);
    in->t = NULL;
    in->n = 0;
}

const nrd_tb_tensor *nrd_tb_find(const nrd_tb_inputs *in, const char *name)
{
    for (uint32_t i = 0; i < in->n; i++) {
        if (!strcmp(in->t[i].name, name)) {
            return &in->t[i];
        }
    }
    return NULL;
}

#define READ_AS(type)                                                                              \
    do {                                                                                           \
        type v_;                                                                                   \
        memcpy(&v_, p, sizeof v_);                                                                 \
        *out = (int64_t)v_;                                                                        \
        return true;                                                                               \
    } while (0)

bool nrd_tb_get_i64(const nrd_tb_tensor *t, int64_t i, int64_t *out)
{
    size_t width = TRITONSERVER_DataTypeByteSize(t->dtype);
    if (i < 0 || i >= t->n_elements || !width || ((size_t)i + 1) * width > t->bytes) {
        return false;
    }
    const uint8_t *p = t->data + (size_t)i * width;
    switch (t->dtype) {
    case TRITONSERVER_TYPE_BOOL:
    case TRITONSERVER_TYPE_UINT8:
        READ_AS(uint8_t);
    case TRITONSERVER_TYPE_INT8:
        READ_AS(int8_t);
    case TRITONSERVER_TYPE_UINT16:
        READ_AS(uint16_t);
    case TRITONSERVER_TYPE_INT16:
        READ_AS(int16_t);
    case TRITONSERVER_TYPE_UINT32:
        READ_AS(uint32_t);
    case TRITONSERVER_TYPE_INT32:
        READ_AS(int32_t);
    case TRITONSERVER_TYPE_UINT64:
        READ_AS(uint64_t);
    case TRITONSERVER_TYPE_INT64:
        READ_AS(int64_t);
    default:
        return false;
    }
}

bool nrd_tb_get_f64(const nrd_tb_tensor *t, int64_t i, double *out)
{
    int64_t whole;
    if (t->dtype == TRITONSERVER_TYPE_FP32 || t->dtype == TRITONSERVER_TYPE_FP64) {
        size_t width = TRITONSERVER_DataTypeByteSize(t->dtype);
        if (i < 0 || i >= t->n_elements || ((size_t)i + 1) * width > t->bytes) {
            return false;
        }
        const uint8_t *p = t->data + (size_t)i * width;
        if (width == 4) {
            float v;
            memcpy(&v, p, sizeof v);
            *out = (double)v;
        } else {
            memcpy(out, p, sizeof *out);
        }
        return true;
    }
    if (!nrd_tb_get_i64(t, i, &whole)) {
        return false;
    }
    *out = (double)whole;
    return true;
}

bool nrd_tb_next_string(const nrd_tb_tensor *t, size_t *offset, const char **out_s, size_t *out_n,
                        bool *out_bad)
{
    uint32_t n;
    if (*offset == t->bytes) {
        return false;
    }
    if (t->bytes - *offset < sizeof n) {
        *out_bad = true;
        return false;
    }
    memcpy(&n, t->data + *offset, sizeof n);
    *offset += sizeof n;
    if (n > t->bytes - *offset) {
        *out_bad = true;
        return false;
    }
    *out_s = (const char *)t->data + *offset;
    *out_n = n;
    *offset += n;
    return true;
}

/* ---- outputs ---- */

bool nrd_tb_wants(TRITONBACKEND_Request *request, const char *output)
{
    uint32_t n = 0;
    TRITONSERVER_Error *err = TRITONBACKEND_RequestOutputCount(request, &n);
    for (uint32_t i = 0; !err && i < n; i++) {
        const char *name = NULL;
        err = TRITONBACKEND_RequestOutputName(request, i, &name);
        if (!err && !strcmp(name, output)) {
            return true;
        }
    }
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
    return false;
}

TRITONSERVER_Error *nrd_tb_output(TRITONBACKEND_Response *response, const char *name,
                                  TRITONSERVER_DataType dtype, const int64_t *shape, uint32_t n_dims,
                                  size_t bytes, void **out_buffer)
{
    TRITONBACKEND_Output *output = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;

    *out_buffer = NULL;
    NRD_TB_TRY(TRITONBACKEND_ResponseOutput(response, &output, name, dtype, shape, n_dims));
    NRD_TB_TRY(TRITONBACKEND_OutputBuffer(output, out_buffer, bytes, &type, &type_id));
    if (type == TRITONSERVER_MEMORY_GPU) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                             "output '%s' was asked for in GPU memory, this model writes host memory",
                             name);
    }
    return NULL;
}
