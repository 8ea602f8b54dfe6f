/* SPDX-License-Identifier: Apache-2.0
 * The TRITONBACKEND entry points of the Python backend. */
#include "backends/python/backend.h"

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <dlfcn.h>
#include <string.h>

enum { MIN_SHM_BYTES = 1 << 20, MAX_TIMEOUT_S = 86400 };

/* ---- backend ---- */

/* A whole number of the command line; `min` with the sentence of Triton for smaller ones. */
static TRITONSERVER_Error *option(const nrd_json *cmdline, const char *key, long long min,
                                  const char *too_small, long long *out)
{
    const char *text = nrd_json_get_str(cmdline, key, NULL);
    long long v = 0;
    if (!text) {
        return NULL;
    }
    if (!nrd_parse_i64(text, &v)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be a whole number, not '%s'",
                             key, text);
    }
    if (v < min) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s %s", key, too_small);
    }
    *out = v;
    return NULL;
}

static TRITONSERVER_Error *read_options(nrd_py_backend *b, const nrd_json *cmdline)
{
    long long unused = 0, timeout = 30;
    /* The shared memory is sparse and grows by itself: sizes are checked and not needed. */
    NRD_TB_TRY(option(cmdline, "shm-growth-byte-size", 1, "can't be smaller than or equal to zero.",
                      &unused));
    NRD_TB_TRY(option(cmdline, "shm-default-byte-size", MIN_SHM_BYTES,
                      "can't be smaller than 4 MiBs", &unused));
    NRD_TB_TRY(option(cmdline, "thread-pool-size", 1, "can't be less than 1.", &unused));
    NRD_TB_TRY(option(cmdline, "shm_message_queue_size", 1, "can't be less than 1.", &unused));
    NRD_TB_TRY(option(cmdline, "stub-timeout-seconds", 1,
                      "can't be smaller than or equal to zero.", &timeout));
    b->timeout_s = (int)(timeout > MAX_TIMEOUT_S ? MAX_TIMEOUT_S : timeout);
    const char *prefix = nrd_json_get_str(cmdline, "shm-region-prefix-name", NULL);
    if (prefix && !*prefix) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "shm-region-prefix-name must at least contain one character.");
    }
    nrd_str own = {0};
    nrd_str_printf(&own, "triton_%s_backend_shm_region_", b->name);
    b->prefix = prefix ? strndup(prefix, 200) : nrd_str_steal(&own);
    nrd_str_fini(&own);
    b->python = strdup(nrd_json_get_str(cmdline, "python-interpreter", "python3"));
    if (!b->prefix || !b->python) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    const char *sandbox = nrd_json_get_str(cmdline, "sandbox", "false");
    b->sandbox = strcmp(sandbox, "true") == 0;
    if (!b->sandbox && strcmp(sandbox, "false") != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "--backend-config=python,sandbox: true or false, not '%s'",
                             sandbox);
    }
    return NULL;
}

/* The stub's files lie beside this library. A backend whose own folder is another one (it has a
 * model.py there) is served by this library with that model for all its models. */
static TRITONSERVER_Error *find_folders(nrd_py_backend *b, TRITONBACKEND_Backend *backend)
{
    Dl_info info = {0};
    TRITONBACKEND_ArtifactType type;
    const char *location = NULL;

    if (!dladdr((void *)(uintptr_t)&TRITONBACKEND_ModelInstanceExecute, &info) || !info.dli_fname) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot find the folder of the backend");
    }
    char *folder = NULL, *model = NULL;
    NRD_TB_TRY(nrd_tb_error(nrd_path_make_dir(&folder, info.dli_fname)));
    b->folder = realpath(folder, NULL);
    free(folder);
    NRD_TB_TRY(TRITONBACKEND_BackendArtifacts(backend, &type, &location));
    NRD_TB_TRY(nrd_tb_error(nrd_path_make(&model, location, "model.py")));
    char *own = realpath(location, NULL);
    if (b->folder && own && strcmp(own, b->folder) != 0 && nrd_path_exists(model)) {
        b->model_folder = own;
        own = NULL;
    }
    free(own);
    free(model);
    const char *files[] = {"triton_python_backend_stub.py", "triton_python_backend_utils.py",
                           "c_python_backend_utils.abi3.so"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *path = NULL;
        NRD_TB_TRY(nrd_tb_error(nrd_path_make(&path, b->folder ? b->folder : "", files[i])));
        bool found = nrd_path_exists(path);
        free(path);
        if (!found) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_NOT_FOUND, "%s is not found. Searched paths: %s",
                                 files[i], b->folder ? b->folder : info.dli_fname);
        }
    }
    return NULL;
}

static void backend_free(nrd_py_backend *b)
{
    nrd_py_monitor_stop(b);
    nrd_py_env_free_all(b);
    pthread_mutex_destroy(&b->mu);
    free(b->name);
    free(b->folder);
    free(b->model_folder);
    free(b->prefix);
    free(b->python);
    free(b);
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    TRITONSERVER_Message *message = NULL;
    const char *name = NULL, *text = NULL;
    size_t n = 0;
    nrd_json_doc *doc = NULL;

    nrd_tb_use_server_log();
    NRD_TB_TRY(TRITONBACKEND_BackendName(backend, &name));
    NRD_TB_TRY(TRITONBACKEND_BackendConfig(backend, &message));
    NRD_TB_TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &n));
    nrd_py_backend *b = calloc(1, sizeof *b);
    if (!b) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    b->epoll = b->stop_fd = -1;
    pthread_mutex_init(&b->mu, NULL);
    b->name = strdup(name);
    TRITONSERVER_Error *err = !b->name ? nrd_tb_error(nrd_error_no_memory()) : n ? nrd_tb_error(nrd_json_parse(&doc, text, n, NULL)) : NULL;
    if (!err) {
        err = read_options(b, nrd_json_get(nrd_json_root(doc), "cmdline"));
    }
    if (!err) {
        err = find_folders(b, backend);
    }
    if (!err) {
        err = nrd_py_monitor_start(b);
    }
    if (!err) {
        err = TRITONBACKEND_BackendSetState(backend, b);
    }
    nrd_json_doc_free(doc);
    if (err) {
        backend_free(b);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_Finalize(TRITONBACKEND_Backend *backend)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_BackendState(backend, &state));
    if (state) {
        backend_free(state);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend *backend,
                                                      TRITONBACKEND_BackendAttribute *attributes)
{
    (void)backend;
    NRD_TB_TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 0, NULL, 0));
    return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

/* ---- model ---- */

static void model_free(nrd_py_model *m)
{
    nrd_tb_config_fini(&m->config);
    free(m->folder);
    free(m->config_text);
    free(m->env_folder);
    free(m);
}

static TRITONSERVER_Error *read_config(nrd_py_model *m)
{
    TRITONSERVER_Message *message = NULL;
    const char *text = NULL;
    size_t n = 0;

    nrd_tb_config_fini(&m->config);
    free(m->config_text);
    m->config_text = NULL;
    NRD_TB_TRY(nrd_tb_config_load(&m->config, m->model));
    NRD_TB_TRY(TRITONBACKEND_ModelConfig(m->model, 1, &message));
    TRITONSERVER_Error *err = TRITONSERVER_MessageSerializeToJson(message, &text, &n);
    if (!err) {
        m->config_text = strndup(text, n);
        err = m->config_text ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    nrd_tb_log_error(TRITONSERVER_MessageDelete(message), "model configuration");
    return err;
}

static TRITONSERVER_Error *read_parameters(nrd_py_model *m)
{
    static const char keyword[] = "$$TRITON_MODEL_DIRECTORY";
    const char *env = nrd_tb_config_param(&m->config, "EXECUTION_ENV_PATH");
    const char *cpu = nrd_tb_config_param(&m->config, "FORCE_CPU_ONLY_INPUT_TENSORS");
    const char *folder = NULL, *at;

    if (cpu && strcmp(cpu, "yes") != 0 && strcmp(cpu, "no") != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                             "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: %s'", cpu);
    }
    if (!env) {
        return NULL;
    }
    at = strstr(env, keyword);
    nrd_str path = {0};
    nrd_str_append(&path, env, at ? (size_t)(at - env) : strlen(env));
    nrd_str_puts(&path, at ? m->folder : "");
    nrd_str_puts(&path, at ? at + sizeof keyword - 1 : "");
    NRD_LOG_INFO("Using Python execution env %s", nrd_str_cstr(&path));
    TRITONSERVER_Error *err = nrd_tb_error(nrd_str_error(&path));
    err = err ? err : nrd_py_env_get(m->backend, nrd_str_cstr(&path), &folder);
    if (!err) {
        m->env_folder = strdup(folder);
        err = m->env_folder ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    nrd_str_fini(&path);
    return err;
}

/* Runs auto_complete_config() in a process of its own, which ends before instances start. */
static TRITONSERVER_Error *auto_complete(nrd_py_model *m)
{
    nrd_py_conn *c = NULL;
    char *text = NULL;
    TRITONSERVER_Message *message = NULL;

    NRD_TB_TRY(nrd_py_conn_start(&c, m, m->config.name));
    TRITONSERVER_Error *err = nrd_py_conn_text(c, NRD_PY_CMD_AUTOCOMPLETE, m->config_text, &text);
    if (err) {
        NRD_LOG_INFO("Failed to initialize Python stub for auto-complete: %s",
                     TRITONSERVER_ErrorMessage(err));
    }
    nrd_py_conn_stop(c);
    if (!err) {
        err = TRITONSERVER_MessageNewFromSerializedJson(&message, text, strlen(text));
    }
    if (!err) {
        err = TRITONBACKEND_ModelSetConfig(m->model, 1, message);
        nrd_tb_log_error(TRITONSERVER_MessageDelete(message), "completed configuration");
    }
    free(text);
    return err ? err : read_config(m);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    TRITONBACKEND_Backend *backend = NULL;
    TRITONBACKEND_ArtifactType type;
    const char *location = NULL;
    void *state = NULL;
    bool complete = false;

    NRD_TB_TRY(TRITONBACKEND_ModelBackend(model, &backend));
    NRD_TB_TRY(TRITONBACKEND_BackendState(backend, &state));
    NRD_TB_TRY(TRITONBACKEND_ModelRepository(model, &type, &location));
    NRD_TB_TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &complete));
    if (type != TRITONBACKEND_ARTIFACT_FILESYSTEM) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                             "unsupported artifact type for a Python model");
    }
    nrd_py_model *m = calloc(1, sizeof *m);
    if (!m) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    m->backend = state;
    m->model = model;
    m->folder = strdup(location);
    TRITONSERVER_Error *err = m->folder ? read_config(m) : nrd_tb_error(nrd_error_no_memory());
    if (!err) {
        err = read_parameters(m);
    }
    if (!err && complete) {
        err = auto_complete(m);
    }
    if (!err) {
        err = TRITONBACKEND_ModelSetState(model, m);
    }
    if (err) {
        model_free(m);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    if (state) {
        model_free(state);
    }
    return NULL;
}

/* ---- instance ---- */

static void instance_free(nrd_py_instance *in)
{
    pthread_mutex_lock(&in->mu);
    in->ending = true;
    pthread_mutex_unlock(&in->mu);
    pthread_mutex_lock(&in->conn_mu); /* readiness may still be asked for */
    nrd_py_conn *c = in->conn;
    in->conn = NULL;
    pthread_mutex_unlock(&in->conn_mu);
    if (c) {
        nrd_py_conn_detach(c); /* every restart that it has caused is counted now */
    }
    pthread_mutex_lock(&in->conn_mu);
    while (in->n_restarts) {
        pthread_cond_wait(&in->restarted, &in->conn_mu);
    }
    pthread_mutex_unlock(&in->conn_mu);
    if (c) {
        nrd_py_conn_stop(c);
    }
    pthread_mutex_destroy(&in->mu);
    pthread_mutex_destroy(&in->conn_mu);
    pthread_cond_destroy(&in->restarted);
    free(in->name);
    free(in);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)
{
    TRITONBACKEND_Model *model = NULL;
    TRITONSERVER_InstanceGroupKind kind;
    const char *name = NULL;
    void *state = NULL;
    int32_t device = 0;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceName(instance, &name));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    NRD_LOG_INFO("TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)", name,
                 TRITONSERVER_InstanceGroupKindString(kind), (int)device);
    nrd_py_instance *in = calloc(1, sizeof *in);
    if (!in) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    in->model = state;
    in->handle = instance;
    in->name = strdup(name);
    in->kind = TRITONSERVER_InstanceGroupKindString(kind);
    in->device = device;
    pthread_mutex_init(&in->mu, NULL);
    pthread_mutex_init(&in->conn_mu, NULL);
    pthread_cond_init(&in->restarted, NULL);
    TRITONSERVER_Error *err = in->name ? nrd_py_instance_start(in) : nrd_tb_error(nrd_error_no_memory());
    if (!err) {
        err = TRITONBACKEND_ModelInstanceSetState(instance, in);
    }
    if (err) {
        instance_free(in);
    }
    return err;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
    if (state) {
        instance_free(state);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
    return nrd_py_execute(state, requests, request_count);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *instance)
{
    void *state = NULL;
    bool ready = true;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
    nrd_py_instance *in = state;
    pthread_mutex_lock(&in->conn_mu);
    nrd_py_conn *c = in->conn && !atomic_load(&in->conn->dead) ? in->conn : NULL;
    if (c) {
        nrd_py_conn_ref(c);
    }
    pthread_mutex_unlock(&in->conn_mu);
    if (!c) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "Stub process '%s' is not healthy.",
                             in->name);
    }
    TRITONSERVER_Error *err = c->has_ready ? nrd_py_conn_ready(c, &ready) : NULL;
    nrd_py_conn_unref(c);
    if (!err && !ready) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE,
                            "Model '%s' is not ready (user-defined check failed).", in->name);
    }
    return err;
}
