/* SPDX-License-Identifier: Apache-2.0
 * Everything but inference: health, metadata, repository, shared memory, log and trace settings,
 * and the table of all methods. */
#include "frontends/grpc/json_message.h"
#include "frontends/grpc/rpc.h"

#include "base/log.h"
#include "frontends/common/cuda_ipc.h"
#include "frontends/common/message.h"
#include "grpc_service.pb-c.h"
#include "health.pb-c.h"

#include <limits.h>
#include <string.h>

/* Declares `name`, a message in the arena of the call, and makes it the answer. */
#define REPLY(call, out, Type, name, init)                                                         \
    Type *name = nrd_arena_alloc(&(call)->arena, sizeof *name);                                    \
    if (!name) {                                                                                   \
        return nrd_error_no_memory();                                                              \
    }                                                                                              \
    init(name);                                                                                    \
    *(out) = &name->base

#define T(expr) NRD_TRY(nrd_from_triton(expr))

/* ---- health ---- */

static nrd_error *is_ready(nrd_grpc_call *call, bool *ready)
{
    *ready = false;
    T(TRITONSERVER_ServerIsReady(call->service->core, ready));
    *ready = *ready && !atomic_load(&call->service->draining);
    return NULL;
}

static nrd_error *on_check(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    bool ready;
    (void)in; /* as in Triton the answer is the server's, whatever service is asked for */
    NRD_TRY(is_ready(call, &ready));
    REPLY(call, out, Grpc__Health__V1__HealthCheckResponse, r,
          grpc__health__v1__health_check_response__init);
    r->status = ready ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                      : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    return NULL;
}

static nrd_error *on_live(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    bool live = false;
    (void)in;
    T(TRITONSERVER_ServerIsLive(call->service->core, &live));
    REPLY(call, out, Inference__ServerLiveResponse, r, inference__server_live_response__init);
    r->live = live;
    return NULL;
}

static nrd_error *on_ready(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    bool ready;
    (void)in;
    NRD_TRY(is_ready(call, &ready));
    REPLY(call, out, Inference__ServerReadyResponse, r, inference__server_ready_response__init);
    r->ready = ready;
    return NULL;
}

static nrd_error *on_model_ready(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__ModelReadyRequest *m = in;
    bool ready = false;
    int64_t version;
    NRD_TRY(nrd_grpc_parse_version(m->version, &version));
    T(TRITONSERVER_ServerModelIsReady(call->service->core, m->name, version, &ready));
    REPLY(call, out, Inference__ModelReadyResponse, r, inference__model_ready_response__init);
    r->ready = ready;
    return NULL;
}

/* ---- answers that the core gives as JSON ---- */

/* Turns the document into a message of `type`; with `wrap`, the document is its one field of that
 * name. Always takes the document. */
static nrd_error *from_document(nrd_grpc_call *call, TRITONSERVER_Message *document,
                                const char *wrap, const ProtobufCMessageDescriptor *type,
                                ProtobufCMessage **out)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_from_message(&doc, NULL, document);
    if (!err) {
        nrd_json root = *nrd_json_root(doc), outer = {.type = NRD_JSON_OBJECT, .n = 1};
        if (wrap) {
            root.key = wrap;
            root.key_len = (uint32_t)strlen(wrap);
            outer.child = &root;
        }
        err = nrd_grpc_message_from_json(&call->arena, type, wrap ? &outer : &root, out);
    }
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *on_server_metadata(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    TRITONSERVER_Message *document = NULL;
    (void)in;
    T(TRITONSERVER_ServerMetadata(call->service->core, &document));
    return from_document(call, document, NULL, &inference__server_metadata_response__descriptor,
                         out);
}

static nrd_error *on_model_metadata(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__ModelMetadataRequest *m = in;
    TRITONSERVER_Message *document = NULL;
    int64_t version;
    NRD_TRY(nrd_grpc_parse_version(m->version, &version));
    T(TRITONSERVER_ServerModelMetadata(call->service->core, m->name, version, &document));
    return from_document(call, document, NULL, &inference__model_metadata_response__descriptor,
                         out);
}

static nrd_error *on_config(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__ModelConfigRequest *m = in;
    TRITONSERVER_Message *document = NULL;
    int64_t version;
    NRD_TRY(nrd_grpc_parse_version(m->version, &version));
    T(TRITONSERVER_ServerModelConfig(call->service->core, m->name, version, 1, &document));
    return from_document(call, document, "config", &inference__model_config_response__descriptor,
                         out);
}

static nrd_error *on_statistics(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__ModelStatisticsRequest *m = in;
    TRITONSERVER_Message *document = NULL;
    int64_t version;
    NRD_TRY(nrd_grpc_parse_version(m->version, &version));
    T(TRITONSERVER_ServerModelStatistics(call->service->core, m->name, version, &document));
    return from_document(call, document, NULL, &inference__model_statistics_response__descriptor,
                         out);
}

/* ---- repository ---- */

static nrd_error *check_repository(const char *name)
{
    if (name[0]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'repository_name' specification is not supported");
    }
    return NULL;
}

static nrd_error *on_index(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__RepositoryIndexRequest *m = in;
    TRITONSERVER_Message *document = NULL;
    NRD_TRY(check_repository(m->repository_name));
    T(TRITONSERVER_ServerModelIndex(call->service->core,
                                    m->ready ? TRITONSERVER_INDEX_FLAG_READY : 0, &document));
    return from_document(call, document, "models",
                         &inference__repository_index_response__descriptor, out);
}

#define R_BOOL INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM
#define R_TEXT INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_STRING_PARAM
#define R_BYTES INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_BYTES_PARAM

static nrd_error *load_parameter(const char *name, const Inference__ModelRepositoryParameter *p,
                                 TRITONSERVER_Parameter **out)
{
    if (strcmp(name, "config") == 0) {
        if (!p || p->parameter_choice_case != R_TEXT) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "invalid value type for load parameter '%s', "
                              "expected string_param.",
                              name);
        }
        *out = TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, p->string_param);
    } else if (strncmp(name, "file:", 5) == 0) {
        if (!p || p->parameter_choice_case != R_BYTES) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "invalid value type for load parameter '%s', "
                              "expected bytes_param.",
                              name);
        }
        *out = TRITONSERVER_ParameterBytesNew(name, p->bytes_param.data, p->bytes_param.len);
    } else {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unrecognized load parameter '%s'.", name);
    }
    return *out ? NULL : nrd_error_no_memory();
}

static nrd_error *on_load(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__RepositoryModelLoadRequest *m = in;
    TRITONSERVER_Parameter **list = NULL;
    nrd_error *err = NULL;
    size_t made = 0;

    NRD_TRY(check_repository(m->repository_name));
    nrd_switcher *s = call->service->front->switcher;
    nrd_switch_model *one = s ? nrd_switcher_find(s, m->model_name) : NULL;
    if (one) { /* of several, which come and go by the requests for them */
        NRD_TRY(m->n_parameters > 0 ? nrd_errorf(NRD_ERR_UNSUPPORTED, "model '%s' is one of several, which are loaded as their "
                                                 "files say: without parameters", m->model_name)
                                    : nrd_switcher_load(s, one));
        goto done;
    }
    NRD_NEW_GOTO(list, m->n_parameters, err, done);
    for (; made < m->n_parameters; made++) {
        NRD_TRY_GOTO(
            load_parameter(m->parameters[made]->key, m->parameters[made]->value, &list[made]), err,
            done);
    }
    err = nrd_from_triton(TRITONSERVER_ServerLoadModelWithParameters(
        call->service->core, m->model_name, (const TRITONSERVER_Parameter **)list, made));

done:
    for (size_t i = 0; i < made; i++) {
        TRITONSERVER_ParameterDelete(list[i]);
    }
    free(list);
    if (err) {
        return err;
    }
    REPLY(call, out, Inference__RepositoryModelLoadResponse, r,
          inference__repository_model_load_response__init);
    return NULL;
}

static nrd_error *on_unload(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__RepositoryModelUnloadRequest *m = in;
    bool dependents = false;

    NRD_TRY(check_repository(m->repository_name));
    for (size_t i = 0; i < m->n_parameters; i++) {
        const Inference__ModelRepositoryParameter *p = m->parameters[i]->value;
        if (strcmp(m->parameters[i]->key, "unload_dependents") != 0) {
            continue;
        }
        if (!p || p->parameter_choice_case != R_BOOL) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "invalid value type for 'unload_dependents' parameter, expected "
                              "bool_param.");
        }
        dependents = p->bool_param != 0;
    }
    nrd_switcher *s = call->service->front->switcher;
    nrd_switch_model *one = s ? nrd_switcher_find(s, m->model_name) : NULL;
    if (one) {
        NRD_TRY(nrd_switcher_drop(s, one));
        REPLY(call, out, Inference__RepositoryModelUnloadResponse, r,
              inference__repository_model_unload_response__init);
        return NULL;
    }
    T(dependents ? TRITONSERVER_ServerUnloadModelAndDependents(call->service->core, m->model_name)
                 : TRITONSERVER_ServerUnloadModel(call->service->core, m->model_name));
    REPLY(call, out, Inference__RepositoryModelUnloadResponse, r,
          inference__repository_model_unload_response__init);
    return NULL;
}

/* ---- shared memory ---- */

/* A list of regions becomes a map by name: each member gets its name as the key. */
static nrd_error *shm_status(nrd_grpc_call *call, bool cuda, const char *name,
                             const ProtobufCMessageDescriptor *type, ProtobufCMessage **out)
{
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};
    nrd_error *err = nrd_shm_status(call->service->front->shm, cuda, name[0] ? name : NULL, &text);
    err = err ? err : nrd_str_error(&text);
    if (!err) {
        err = nrd_json_parse(&doc, text.data, text.len, NULL);
    }
    nrd_str_fini(&text);
    if (err) {
        return err;
    }
    const nrd_json *root = nrd_json_root(doc);
    nrd_json map = {.type = NRD_JSON_OBJECT, .key = "regions", .key_len = 7};
    nrd_json outer = {.type = NRD_JSON_OBJECT, .n = 1};
    outer.child = &map;
    map.n = root->n;
    map.child = nrd_arena_alloc(&call->arena, (root->n + 1) * sizeof *map.child);
    if (!map.child) {
        nrd_json_doc_free(doc);
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < root->n; i++) {
        map.child[i] = root->child[i];
        map.child[i].key = nrd_json_get_str(&root->child[i], "name", "");
        map.child[i].key_len = (uint32_t)strlen(map.child[i].key);
    }
    err = nrd_grpc_message_from_json(&call->arena, type, &outer, out);
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *on_shm_status(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__SystemSharedMemoryStatusRequest *m = in;
    return shm_status(call, false, m->name,
                      &inference__system_shared_memory_status_response__descriptor, out);
}

static nrd_error *on_shm_register(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__SystemSharedMemoryRegisterRequest *m = in;
    NRD_TRY(nrd_shm_register(call->service->front->shm, m->name, m->key, m->offset, m->byte_size));
    REPLY(call, out, Inference__SystemSharedMemoryRegisterResponse, r,
          inference__system_shared_memory_register_response__init);
    return NULL;
}

static nrd_error *on_shm_unregister(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__SystemSharedMemoryUnregisterRequest *m = in;
    NRD_TRY(nrd_shm_unregister(call->service->front->shm, false, m->name[0] ? m->name : NULL));
    REPLY(call, out, Inference__SystemSharedMemoryUnregisterResponse, r,
          inference__system_shared_memory_unregister_response__init);
    return NULL;
}

static nrd_error *on_cuda_status(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__CudaSharedMemoryStatusRequest *m = in;
    return shm_status(call, true, m->name,
                      &inference__cuda_shared_memory_status_response__descriptor, out);
}

static nrd_error *on_cuda_register(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__CudaSharedMemoryRegisterRequest *m = in;
    char handle[NRD_CUDA_HANDLE_BYTES] = "";
    if (nrd_cuda_ipc_available() && m->raw_handle.len != sizeof handle) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'raw_handle' must hold a cudaIpcMemHandle_t, %zu "
                          "bytes",
                          sizeof handle);
    }
    if (m->raw_handle.len == sizeof handle) {
        memcpy(handle, m->raw_handle.data, sizeof handle);
    }
    NRD_TRY(nrd_shm_register_cuda(call->service->front->shm, m->name, handle, m->device_id, m->byte_size));
    REPLY(call, out, Inference__CudaSharedMemoryRegisterResponse, r,
          inference__cuda_shared_memory_register_response__init);
    return NULL;
}

static nrd_error *on_cuda_unregister(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__CudaSharedMemoryUnregisterRequest *m = in;
    NRD_TRY(nrd_shm_unregister(call->service->front->shm, true, m->name[0] ? m->name : NULL));
    REPLY(call, out, Inference__CudaSharedMemoryUnregisterResponse, r,
          inference__cuda_shared_memory_unregister_response__init);
    return NULL;
}

/* ---- trace settings ---- */

/* The tracer speaks JSON: {"trace_level":["OFF"],"trace_rate":"1000",...}; null goes back to the
 * outer setting, as an empty list of values does here. */
static nrd_error *update_trace(nrd_tracer *tracer, const char *model,
                               const Inference__TraceSettingRequest *m)
{
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};

    for (size_t i = 0; i < m->n_settings; i++) {
        const Inference__TraceSettingRequest__SettingsEntry *e = m->settings[i];
        const size_t n = e->value ? e->value->n_value : 0;
        const bool is_list = strcmp(e->key, "trace_level") == 0;
        nrd_str_putc(&text, i ? ',' : '{');
        nrd_json_put_cstr(&text, e->key);
        nrd_str_puts(&text, n == 0 ? ":null" : is_list ? ":[" : ":");
        if (n > 1 && !is_list) {
            nrd_str_fini(&text);
            return nrd_errorf(NRD_ERR_INVALID_ARG, "expect only 1 value for setting '%s'", e->key);
        }
        for (size_t k = 0; k < n; k++) {
            nrd_str_puts(&text, k ? "," : "");
            nrd_json_put_cstr(&text, e->value->value[k]);
        }
        nrd_str_puts(&text, n > 0 && is_list ? "]" : "");
    }
    nrd_str_putc(&text, '}');
    nrd_error *err = nrd_str_error(&text);
    if (!err) {
        err = nrd_json_parse(&doc, text.data, text.len, NULL);
    }
    if (!err) {
        err = nrd_tracer_update(tracer, model, nrd_json_root(doc));
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *trace_reply(nrd_grpc_call *call, const char *model, ProtobufCMessage **out)
{
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};
    nrd_error *err;

    nrd_tracer_put_settings(call->service->front->tracer, model, &text);
    err = nrd_str_error(&text);
    if (!err) {
        err = nrd_json_parse(&doc, text.data, text.len, NULL);
    }
    nrd_str_fini(&text);
    if (err) {
        return err;
    }
    /* {"name":value or [values]} becomes {"name":{"value":[values]}}. */
    nrd_str_puts(&text, "{\"settings\":{");
    const nrd_json *root = nrd_json_root(doc);
    for (size_t i = 0; i < root->n; i++) {
        nrd_str_puts(&text, i ? "," : "");
        nrd_json_put_cstr(&text, root->child[i].key);
        const bool is_list = nrd_json_is(&root->child[i], NRD_JSON_ARRAY);
        nrd_str_puts(&text, is_list ? ":{\"value\":" : ":{\"value\":[");
        nrd_json_put(&text, &root->child[i], -1);
        nrd_str_puts(&text, is_list ? "}" : "]}");
    }
    nrd_str_puts(&text, "}}");
    nrd_json_doc_free(doc);
    doc = NULL;
    err = nrd_str_error(&text);
    if (!err) {
        err = nrd_json_parse(&doc, text.data, text.len, NULL);
    }
    if (!err) {
        err = nrd_grpc_message_from_json(
            &call->arena, &inference__trace_setting_response__descriptor, nrd_json_root(doc), out);
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *on_trace(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__TraceSettingRequest *m = in;
    const char *model = m->model_name[0] ? m->model_name : NULL;
    if (model) {
        bool ready = false;
        nrd_error *err = nrd_from_triton(
            TRITONSERVER_ServerModelIsReady(call->service->core, model, -1, &ready));
        const bool unknown = err || !ready;
        nrd_error_free(err);
        if (unknown) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "Request for unknown model : %s", model);
        }
    }
    if (m->n_settings > 0) {
        NRD_TRY(update_trace(call->service->front->tracer, model, m));
    }
    return trace_reply(call, model, out);
}

/* ---- log settings ---- */

typedef Inference__LogSettingsRequest__SettingsEntry log_entry;

#define L_BOOL INFERENCE__LOG_SETTINGS_REQUEST__SETTING_VALUE__PARAMETER_CHOICE_BOOL_PARAM
#define L_UINT INFERENCE__LOG_SETTINGS_REQUEST__SETTING_VALUE__PARAMETER_CHOICE_UINT32_PARAM
#define L_TEXT INFERENCE__LOG_SETTINGS_REQUEST__SETTING_VALUE__PARAMETER_CHOICE_STRING_PARAM

static nrd_error *bad_log_type(const log_entry *e, const char *want)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "expect value type of setting '%s' is %s", e->key, want);
}

static nrd_error *set_level(const log_entry *e, nrd_log_level level,
                            TRITONSERVER_Error *(*set)(TRITONSERVER_ServerOptions *, bool))
{
    if (e->value->parameter_choice_case != L_BOOL) {
        return bad_log_type(e, "bool");
    }
    nrd_log_enable(level, e->value->bool_param != 0);
    return nrd_from_triton(set(NULL, e->value->bool_param != 0));
}

#define L_NONE INFERENCE__LOG_SETTINGS_REQUEST__SETTING_VALUE__PARAMETER_CHOICE__NOT_SET

static nrd_error *set_log(const log_entry *e)
{
    if (!e->value || e->value->parameter_choice_case == L_NONE) {
        return NULL; /* a name without a value changes nothing */
    }
    if (strcmp(e->key, "log_info") == 0) {
        return set_level(e, NRD_LOG_LEVEL_INFO, TRITONSERVER_ServerOptionsSetLogInfo);
    }
    if (strcmp(e->key, "log_warning") == 0) {
        return set_level(e, NRD_LOG_LEVEL_WARNING, TRITONSERVER_ServerOptionsSetLogWarn);
    }
    if (strcmp(e->key, "log_error") == 0) {
        return set_level(e, NRD_LOG_LEVEL_ERROR, TRITONSERVER_ServerOptionsSetLogError);
    }
    if (strcmp(e->key, "log_verbose_level") == 0) {
        if (e->value->parameter_choice_case != L_UINT || e->value->uint32_param > INT_MAX) {
            return bad_log_type(e, "uint32");
        }
        nrd_log_set_verbose((int)e->value->uint32_param);
        return nrd_from_triton(
            TRITONSERVER_ServerOptionsSetLogVerbose(NULL, (int)e->value->uint32_param));
    }
    if (strcmp(e->key, "log_format") == 0) {
        if (e->value->parameter_choice_case != L_TEXT) {
            return bad_log_type(e, "string");
        }
        const bool iso = strcmp(e->value->string_param, "ISO8601") == 0;
        if (!iso && strcmp(e->value->string_param, "default") != 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid argument for log_format, got: %s",
                              e->value->string_param);
        }
        nrd_log_set_format(iso ? NRD_LOG_FORMAT_ISO8601 : NRD_LOG_FORMAT_DEFAULT);
        return nrd_from_triton(TRITONSERVER_ServerOptionsSetLogFormat(
            NULL, iso ? TRITONSERVER_LOG_ISO8601 : TRITONSERVER_LOG_DEFAULT));
    }
    if (strcmp(e->key, "log_file") == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "log file location can not be updated through network protocol");
    }
    return NULL; /* others are ignored, as in Triton */
}

static nrd_error *on_log(nrd_grpc_call *call, const void *in, ProtobufCMessage **out)
{
    const Inference__LogSettingsRequest *m = in;
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};

    for (size_t i = 0; i < m->n_settings; i++) {
        NRD_TRY(set_log(m->settings[i]));
    }
    nrd_str_puts(&text, "{\"settings\":{\"log_file\":{\"string_param\":");
    nrd_json_put_cstr(&text, call->service->options->log_file);
    nrd_str_printf(&text,
                   "},\"log_info\":{\"bool_param\":%s},\"log_warning\":{\"bool_param\":%s},"
                   "\"log_error\":{\"bool_param\":%s},\"log_verbose_level\":{\"uint32_param\":%d},"
                   "\"log_format\":{\"string_param\":\"%s\"}}}",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_INFO) ? "true" : "false",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_WARNING) ? "true" : "false",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_ERROR) ? "true" : "false", nrd_log_verbose(),
                   nrd_log_get_format() == NRD_LOG_FORMAT_ISO8601 ? "ISO8601" : "default");
    nrd_error *err = nrd_str_error(&text);
    if (!err) {
        err = nrd_json_parse(&doc, text.data, text.len, NULL);
    }
    if (!err) {
        err = nrd_grpc_message_from_json(
            &call->arena, &inference__log_settings_response__descriptor, nrd_json_root(doc), out);
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

/* ---- the table ---- */

#define S "/inference.GRPCInferenceService/"
#define IN(x) &inference__##x##_request__descriptor

const nrd_grpc_method nrd_grpc_methods[] = {
    {S "ModelInfer", "inference", NRD_GRPC_INFER, NULL, NULL},
    {S "ModelStreamInfer", "inference", NRD_GRPC_STREAM, NULL, NULL},
    {"/grpc.health.v1.Health/Check", "health", NRD_GRPC_ADMIN,
     &grpc__health__v1__health_check_request__descriptor, on_check},
    {"/grpc.health.v1.Health/Watch", "health", NRD_GRPC_WATCH,
     &grpc__health__v1__health_check_request__descriptor, NULL},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "metadata", NRD_GRPC_TALK, NULL,
     NULL},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "metadata", NRD_GRPC_TALK,
     NULL, NULL},
    {S "ServerLive", "health", NRD_GRPC_ADMIN, IN(server_live), on_live},
    {S "ServerReady", "health", NRD_GRPC_ADMIN, IN(server_ready), on_ready},
    {S "ModelReady", "health", NRD_GRPC_ADMIN, IN(model_ready), on_model_ready},
    {S "ServerMetadata", "metadata", NRD_GRPC_ADMIN, IN(server_metadata), on_server_metadata},
    {S "ModelMetadata", "metadata", NRD_GRPC_ADMIN, IN(model_metadata), on_model_metadata},
    {S "ModelConfig", "model-config", NRD_GRPC_ADMIN, IN(model_config), on_config},
    {S "ModelStatistics", "statistics", NRD_GRPC_ADMIN, IN(model_statistics), on_statistics},
    {S "RepositoryIndex", "model-repository", NRD_GRPC_ADMIN, IN(repository_index), on_index},
    {S "RepositoryModelLoad", "model-repository", NRD_GRPC_SLOW, IN(repository_model_load),
     on_load},
    {S "RepositoryModelUnload", "model-repository", NRD_GRPC_SLOW, IN(repository_model_unload),
     on_unload},
    {S "SystemSharedMemoryStatus", "shared-memory", NRD_GRPC_ADMIN, IN(system_shared_memory_status),
     on_shm_status},
    {S "SystemSharedMemoryRegister", "shared-memory", NRD_GRPC_ADMIN,
     IN(system_shared_memory_register), on_shm_register},
    {S "SystemSharedMemoryUnregister", "shared-memory", NRD_GRPC_ADMIN,
     IN(system_shared_memory_unregister), on_shm_unregister},
    {S "CudaSharedMemoryStatus", "shared-memory", NRD_GRPC_ADMIN, IN(cuda_shared_memory_status),
     on_cuda_status},
    {S "CudaSharedMemoryRegister", "shared-memory", NRD_GRPC_ADMIN, IN(cuda_shared_memory_register),
     on_cuda_register},
    {S "CudaSharedMemoryUnregister", "shared-memory", NRD_GRPC_ADMIN,
     IN(cuda_shared_memory_unregister), on_cuda_unregister},
    {S "TraceSetting", "trace", NRD_GRPC_ADMIN, IN(trace_setting), on_trace},
    {S "LogSettings", "logging", NRD_GRPC_ADMIN, IN(log_settings), on_log},
};
const size_t nrd_grpc_n_methods = sizeof nrd_grpc_methods / sizeof *nrd_grpc_methods;
