/* SPDX-License-Identifier: Apache-2.0
 * Small objects of the TRITONSERVER API: versions, data types, errors, parameters, messages,
 * buffer attributes, the log. */
#include "core/types.h"

#include "core/api.h"
#include "core/memory.h"

#include "base/error.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"

#include <stdlib.h>
#include <string.h>

/* ---- versions ---- */

TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = TRITONSERVER_API_VERSION_MAJOR;
    *minor = TRITONSERVER_API_VERSION_MINOR;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = TRITONBACKEND_API_VERSION_MAJOR;
    *minor = TRITONBACKEND_API_VERSION_MINOR;
    return NULL;
}

TRITONSERVER_Error *TRITONCACHE_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = TRITONCACHE_API_VERSION_MAJOR;
    *minor = TRITONCACHE_API_VERSION_MINOR;
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = TRITONREPOAGENT_API_VERSION_MAJOR;
    *minor = TRITONREPOAGENT_API_VERSION_MINOR;
    return NULL;
}

/* ---- data types ---- */

/* Index = TRITONSERVER_DataType. */
static const struct {
    const char *name;
    uint32_t size;
    Inference__DataType config;
} dtypes[] = {
    {"<invalid>", 0, INFERENCE__DATA_TYPE__TYPE_INVALID},
    {"BOOL", 1, INFERENCE__DATA_TYPE__TYPE_BOOL},
    {"UINT8", 1, INFERENCE__DATA_TYPE__TYPE_UINT8},
    {"UINT16", 2, INFERENCE__DATA_TYPE__TYPE_UINT16},
    {"UINT32", 4, INFERENCE__DATA_TYPE__TYPE_UINT32},
    {"UINT64", 8, INFERENCE__DATA_TYPE__TYPE_UINT64},
    {"INT8", 1, INFERENCE__DATA_TYPE__TYPE_INT8},
    {"INT16", 2, INFERENCE__DATA_TYPE__TYPE_INT16},
    {"INT32", 4, INFERENCE__DATA_TYPE__TYPE_INT32},
    {"INT64", 8, INFERENCE__DATA_TYPE__TYPE_INT64},
    {"FP16", 2, INFERENCE__DATA_TYPE__TYPE_FP16},
    {"FP32", 4, INFERENCE__DATA_TYPE__TYPE_FP32},
    {"FP64", 8, INFERENCE__DATA_TYPE__TYPE_FP64},
    {"BYTES", 0, INFERENCE__DATA_TYPE__TYPE_STRING},
    {"BF16", 2, INFERENCE__DATA_TYPE__TYPE_BF16},
};

enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *nrd_datatype_name(TRITONSERVER_DataType t)
{
    return dtypes[(unsigned)t < N_DTYPES ? (unsigned)t : 0].name;
}

uint32_t nrd_datatype_size(TRITONSERVER_DataType t)
{
    return dtypes[(unsigned)t < N_DTYPES ? (unsigned)t : 0].size;
}

TRITONSERVER_DataType nrd_datatype_from_config(Inference__DataType t)
{
    for (unsigned i = 0; i < N_DTYPES; i++) {
        if (dtypes[i].config == t) {
            return (TRITONSERVER_DataType)i;
        }
    }
    return TRITONSERVER_TYPE_INVALID;
}

const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype)
{
    return nrd_datatype_name(datatype);
}

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *dtype)
{
    for (unsigned i = 1; dtype && i < N_DTYPES; i++) {
        if (strcmp(dtypes[i].name, dtype) == 0) {
            return (TRITONSERVER_DataType)i;
        }
    }
    return TRITONSERVER_TYPE_INVALID;
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype)
{
    return nrd_datatype_size(datatype);
}

const char *TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memtype)
{
    static const char *const names[] = {"CPU", "CPU_PINNED", "GPU"};
    return (unsigned)memtype < 3 ? names[memtype] : "<invalid>";
}

const char *TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind)
{
    static const char *const names[] = {"AUTO", "CPU", "GPU", "MODEL"};
    return (unsigned)kind < 4 ? names[kind] : "<invalid>";
}

bool nrd_shape_count(const int64_t *dims, size_t n, uint64_t *out)
{
    uint64_t count = 1;
    for (size_t i = 0; i < n; i++) {
        if (dims[i] < 0 || __builtin_mul_overflow(count, (uint64_t)dims[i], &count) ||
            count > INT64_MAX) {
            return false;
        }
    }
    *out = count;
    return true;
}

void nrd_shape_put(nrd_str *out, const int64_t *dims, size_t n)
{
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%s%lld", i ? "," : "", (long long)dims[i]);
    }
    nrd_str_putc(out, ']');
}

/* ---- errors ---- */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *msg)
{
    return as_api(nrd_errorf((nrd_error_code)code, "%s", msg ? msg : ""));
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error)
{
    nrd_error_free(from_api(error));
}

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *error)
{
    return (TRITONSERVER_Error_Code)nrd_error_triton_code(from_api(error));
}

const char *TRITONSERVER_ErrorCodeString(TRITONSERVER_Error *error)
{
    static const char *const names[] = {"Unknown",          "Internal",    "Not found",
                                        "Invalid argument", "Unavailable", "Unsupported",
                                        "Already exists",   "Cancelled"};
    unsigned code = (unsigned)nrd_error_triton_code(from_api(error));
    return code < 8 ? names[code] : "<invalid code>";
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error)
{
    return nrd_error_message(from_api(error));
}

/* ---- parameters ---- */

static void param_fini(nrd_param *p)
{
    free(p->name);
    free(p->str);
}

/* false: no memory, and p is empty. */
static bool param_init(nrd_param *p, const char *name, TRITONSERVER_ParameterType type,
                    const void *value)
{
    memset(p, 0, sizeof *p);
    p->name = strdup(name);
    p->type = type;
    switch (type) {
    case TRITONSERVER_PARAMETER_STRING:
        p->str = strdup(value ? value : "");
        break;
    case TRITONSERVER_PARAMETER_INT:
        p->i = *(const int64_t *)value;
        break;
    case TRITONSERVER_PARAMETER_BOOL:
        p->b = *(const bool *)value;
        break;
    case TRITONSERVER_PARAMETER_DOUBLE:
        p->d = *(const double *)value;
        break;
    case TRITONSERVER_PARAMETER_BYTES:
        p->bytes = value;
        break;
    }
    if (!p->name || (type == TRITONSERVER_PARAMETER_STRING && !p->str)) {
        param_fini(p);
        memset(p, 0, sizeof *p);
        return false;
    }
    return true;
}

const void *nrd_param_value(const nrd_param *p)
{
    switch (p->type) {
    case TRITONSERVER_PARAMETER_STRING:
        return p->str;
    case TRITONSERVER_PARAMETER_INT:
        return &p->i;
    case TRITONSERVER_PARAMETER_BOOL:
        return &p->b;
    case TRITONSERVER_PARAMETER_DOUBLE:
        return &p->d;
    case TRITONSERVER_PARAMETER_BYTES:
        return p->bytes;
    }
    return NULL;
}

nrd_error *nrd_params_set(nrd_params *l, const char *name, TRITONSERVER_ParameterType type,
                          const void *value)
{
    nrd_param fresh, *p = NULL;

    for (uint32_t i = 0; i < l->n; i++) {
        p = strcmp(l->items[i].name, name) == 0 ? &l->items[i] : p;
    }
    if (!p && l->n >= NRD_LIMIT_PARAMETERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d parameters", NRD_LIMIT_PARAMETERS);
    }
    if (!p && l->n == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : 4;
        nrd_param *items = realloc(l->items, cap * sizeof *items);
        if (!items) {
            return nrd_error_no_memory();
        }
        l->items = items;
        l->cap = cap;
    }
    if (!param_init(&fresh, name, type, value)) {
        return nrd_error_no_memory();
    }
    if (p) {
        param_fini(p);
    } else {
        p = &l->items[l->n++];
    }
    *p = fresh;
    return NULL;
}

nrd_error *nrd_params_copy(nrd_params *to, const nrd_params *from)
{
    for (uint32_t i = 0; i < from->n; i++) {
        NRD_TRY(nrd_params_set(to, from->items[i].name, from->items[i].type,
                               nrd_param_value(&from->items[i])));
    }
    return NULL;
}

void nrd_params_fini(nrd_params *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        param_fini(&l->items[i]);
    }
    free(l->items);
    memset(l, 0, sizeof *l);
}

const char *TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType paramtype)
{
    static const char *const names[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
    return (unsigned)paramtype < 5 ? names[paramtype] : "<invalid>";
}

nrd_error *nrd_params_check(const nrd_param *const *params, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!params[i]) {
            return nrd_error_no_memory();
        }
    }
    return NULL;
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name,
                                                  const TRITONSERVER_ParameterType type,
                                                  const void *value)
{
    if (type == TRITONSERVER_PARAMETER_BYTES) {
        return NULL; /* bytes need a length: ParameterBytesNew */
    }
    nrd_param *p = malloc(sizeof *p);
    if (p && !param_init(p, name, type, value)) {
        free(p);
        p = NULL;
    }
    return (TRITONSERVER_Parameter *)(void *)p;
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *byte_ptr,
                                                       const uint64_t size)
{
    nrd_param *p = malloc(sizeof *p);
    if (p && !param_init(p, name, TRITONSERVER_PARAMETER_BYTES, byte_ptr)) {
        free(p);
        p = NULL;
    }
    if (p) {
        p->n_bytes = size;
    }
    return (TRITONSERVER_Parameter *)(void *)p;
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter)
{
    if (parameter) {
        nrd_param *p = (nrd_param *)(void *)parameter;
        param_fini(p);
        free(p);
    }
}

/* ---- messages ---- */

nrd_error *nrd_message_new(nrd_message **out, nrd_str *json)
{
    nrd_message *m = calloc(1, sizeof *m);
    const size_t n = json->len;
    char *text = nrd_str_steal(json);

    *out = NULL;
    if (!m || !text) {
        free(m);
        free(text);
        return nrd_error_no_memory();
    }
    m->len = n;
    m->text = text;
    *out = m;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message **message,
                                                              const char *base, size_t byte_size)
{
    nrd_json_doc *doc = NULL;
    nrd_str s = {0};

    NRD_API_TRY(nrd_json_parse(&doc, base, byte_size, NULL));
    nrd_json_doc_free(doc);
    nrd_str_append(&s, base, byte_size);
    return as_api(nrd_message_new((nrd_message **)(void *)message, &s));
}

TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message)
{
    if (message) {
        nrd_message *m = (nrd_message *)(void *)message;
        free(m->text);
        free(m);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message,
                                                        const char **base, size_t *byte_size)
{
    const nrd_message *m = (const nrd_message *)(void *)message;
    *base = m->text;
    *byte_size = m->len;
    return NULL;
}

/* ---- buffer attributes ---- */

static nrd_attr *attr_of(TRITONSERVER_BufferAttributes *a)
{
    return (nrd_attr *)(void *)a;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes **buffer_attributes)
{
    nrd_attr *a = calloc(1, sizeof *a);
    if (!a) {
        return as_api(nrd_error_no_memory());
    }
    *buffer_attributes = (TRITONSERVER_BufferAttributes *)(void *)a;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes *buffer_attributes)
{
    free(attr_of(buffer_attributes));
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesSetMemoryTypeId(TRITONSERVER_BufferAttributes *buffer_attributes,
                                             int64_t memory_type_id)
{
    attr_of(buffer_attributes)->memory_type_id = memory_type_id;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesSetMemoryType(TRITONSERVER_BufferAttributes *buffer_attributes,
                                           TRITONSERVER_MemoryType memory_type)
{
    attr_of(buffer_attributes)->memory_type = memory_type;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesSetCudaIpcHandle(TRITONSERVER_BufferAttributes *buffer_attributes,
                                              void *cuda_ipc_handle)
{
    attr_of(buffer_attributes)->cuda_ipc_handle = cuda_ipc_handle;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesSetByteSize(TRITONSERVER_BufferAttributes *buffer_attributes,
                                         size_t byte_size)
{
    attr_of(buffer_attributes)->byte_size = byte_size;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesMemoryTypeId(TRITONSERVER_BufferAttributes *buffer_attributes,
                                          int64_t *memory_type_id)
{
    *memory_type_id = attr_of(buffer_attributes)->memory_type_id;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesMemoryType(TRITONSERVER_BufferAttributes *buffer_attributes,
                                        TRITONSERVER_MemoryType *memory_type)
{
    *memory_type = attr_of(buffer_attributes)->memory_type;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesCudaIpcHandle(TRITONSERVER_BufferAttributes *buffer_attributes,
                                           void **cuda_ipc_handle)
{
    *cuda_ipc_handle = attr_of(buffer_attributes)->cuda_ipc_handle;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes *buffer_attributes,
                                      size_t *byte_size)
{
    *byte_size = attr_of(buffer_attributes)->byte_size;
    return NULL;
}

/* ---- log ---- */

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level)
{
    switch (level) {
    case TRITONSERVER_LOG_INFO:
        return nrd_log_is_enabled(NRD_LOG_LEVEL_INFO);
    case TRITONSERVER_LOG_WARN:
        return nrd_log_is_enabled(NRD_LOG_LEVEL_WARNING);
    case TRITONSERVER_LOG_ERROR:
        return nrd_log_is_enabled(NRD_LOG_LEVEL_ERROR);
    case TRITONSERVER_LOG_VERBOSE:
        return nrd_log_verbose() >= 1;
    }
    return false;
}

TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char *filename,
                                            const int line, const char *msg)
{
    static const nrd_log_level levels[] = {NRD_LOG_LEVEL_INFO, NRD_LOG_LEVEL_WARNING,
                                           NRD_LOG_LEVEL_ERROR, NRD_LOG_LEVEL_VERBOSE};
    if ((unsigned)level > TRITONSERVER_LOG_VERBOSE) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "unknown logging level"));
    }
    const bool wanted = level == TRITONSERVER_LOG_VERBOSE ? nrd_log_verbose() >= 1
                                                          : nrd_log_is_enabled(levels[level]);
    if (wanted) {
        nrd_log_write(levels[level], filename, line, "%s", msg);
    }
    return NULL;
}
