/* SPDX-License-Identifier: Apache-2.0
 * TRITONSERVER API: options, collected before the server starts. */
#include "core/options.h"

#include "core/api.h"
#include "core/strings.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "nereid/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nrd_server_options *of_api(TRITONSERVER_ServerOptions *o)
{
    return (nrd_server_options *)(void *)o;
}

static void set(char **field, const char *value)
{
    char *copy = nrd_xstrdup(value ? value : "");
    free(*field);
    *field = copy;
}

static void add_setting(nrd_setting **list, const char *scope, const char *key, const char *value)
{
    nrd_setting **p = list, *s = nrd_xcalloc(1, sizeof *s);
    s->scope = nrd_xstrdup(scope ? scope : "");
    s->key = nrd_xstrdup(key);
    s->value = nrd_xstrdup(value);
    while (*p) {
        p = &(*p)->next;
    }
    *p = s;
}

static void free_settings(nrd_setting *s)
{
    for (nrd_setting *next; s; s = next) {
        next = s->next;
        free(s->scope);
        free(s->key);
        free(s->value);
        free(s);
    }
}

const char *nrd_setting_find(const nrd_setting *list, const char *scope, const char *key)
{
    const char *found = NULL; /* the last one given wins */
    for (; list; list = list->next) {
        if (strcmp(list->scope, scope) == 0 && strcmp(list->key, key) == 0) {
            found = list->value;
        }
    }
    return found;
}

static void init(nrd_server_options *o)
{
    memset(o, 0, sizeof *o);
    o->server_id = nrd_xstrdup("triton");
    o->control_mode = TRITONSERVER_MODEL_CONTROL_NONE;
    o->strict_config = true;
    o->config_name = nrd_xstrdup("");
    o->pinned_pool_bytes = 1u << 28;
    o->min_compute_capability = 6.0;
    o->exit_on_error = true;
    o->strict_readiness = true;
    o->exit_timeout_s = 30;
    o->load_threads = 4;
    o->peer_access = true;
    o->metrics = true;
    o->gpu_metrics = true;
    o->cpu_metrics = true;
    o->metrics_interval_ms = 2000;
    o->backend_dir = nrd_xstrdup("/opt/tritonserver/backends");
    o->agent_dir = nrd_xstrdup("/opt/tritonserver/repoagents");
    o->cache_dir = nrd_xstrdup("/opt/tritonserver/caches");
}

static void copy_settings(nrd_setting **to, const nrd_setting *from)
{
    *to = NULL;
    for (; from; from = from->next) {
        add_setting(to, from->scope, from->key, from->value);
    }
}

static void copy_strings(nrd_strings *to, const nrd_strings *from)
{
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < from->n; i++) {
        nrd_strings_add(to, from->items[i]);
    }
}

void nrd_server_options_copy(nrd_server_options *to, const nrd_server_options *from)
{
    *to = *from;
    to->server_id = nrd_xstrdup(from->server_id);
    to->config_name = nrd_xstrdup(from->config_name);
    to->backend_dir = nrd_xstrdup(from->backend_dir);
    to->agent_dir = nrd_xstrdup(from->agent_dir);
    to->cache_dir = nrd_xstrdup(from->cache_dir);
    copy_strings(&to->repositories, &from->repositories);
    copy_strings(&to->startup_models, &from->startup_models);
    copy_settings(&to->backend_config, from->backend_config);
    copy_settings(&to->host_policy, from->host_policy);
    copy_settings(&to->metrics_config, from->metrics_config);
    copy_settings(&to->cuda_pools, from->cuda_pools);
    copy_settings(&to->cache_config, from->cache_config);
    copy_settings(&to->resources, from->resources);
}

void nrd_server_options_fini(nrd_server_options *o)
{
    free(o->server_id);
    free(o->config_name);
    free(o->backend_dir);
    free(o->agent_dir);
    free(o->cache_dir);
    nrd_strings_fini(&o->repositories);
    nrd_strings_fini(&o->startup_models);
    free_settings(o->backend_config);
    free_settings(o->host_policy);
    free_settings(o->metrics_config);
    free_settings(o->cuda_pools);
    free_settings(o->cache_config);
    free_settings(o->resources);
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsNew(TRITONSERVER_ServerOptions **options)
{
    nrd_server_options *o = nrd_xmalloc(sizeof *o);
    init(o);
    *options = (TRITONSERVER_ServerOptions *)(void *)o;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsDelete(TRITONSERVER_ServerOptions *options)
{
    if (options) {
        nrd_server_options_fini(of_api(options));
        free(options);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetServerId(TRITONSERVER_ServerOptions *options,
                                                          const char *server_id)
{
    set(&of_api(options)->server_id, server_id);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelRepositoryPath(TRITONSERVER_ServerOptions *options,
                                                 const char *model_repository_path)
{
    return as_api(nrd_strings_push(&of_api(options)->repositories, model_repository_path));
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelControlMode(TRITONSERVER_ServerOptions *options,
                                              TRITONSERVER_ModelControlMode mode)
{
    if ((unsigned)mode > TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "unknown control mode '%d'", (int)mode));
    }
    of_api(options)->control_mode = mode;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetStartupModel(TRITONSERVER_ServerOptions *options,
                                                              const char *model_name)
{
    return as_api(nrd_strings_push(&of_api(options)->startup_models, model_name));
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetStrictModelConfig(TRITONSERVER_ServerOptions *options, bool strict)
{
    of_api(options)->strict_config = strict;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelConfigName(TRITONSERVER_ServerOptions *options,
                                             const char *model_config_name)
{
    if (strchr(model_config_name, '/')) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "model config name '%s' must not contain a path",
                                 model_config_name));
    }
    set(&of_api(options)->config_name, model_config_name);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetRateLimiterMode(TRITONSERVER_ServerOptions *options,
                                             TRITONSERVER_RateLimitMode mode)
{
    if (mode != TRITONSERVER_RATE_LIMIT_OFF && mode != TRITONSERVER_RATE_LIMIT_EXEC_COUNT) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "unknown rate limit mode '%d'", (int)mode));
    }
    of_api(options)->rate_limit = mode;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsAddRateLimiterResource(TRITONSERVER_ServerOptions *options,
                                                 const char *resource_name,
                                                 const size_t resource_count, const int device)
{
    char count[32], scope[16] = "all"; /* device -1: every device */

    snprintf(count, sizeof count, "%zu", resource_count);
    if (device >= 0) {
        snprintf(scope, sizeof scope, "%d", device);
    }
    for (nrd_setting *p = of_api(options)->resources; p; p = p->next) {
        if (strcmp(p->scope, scope) == 0 && strcmp(p->key, resource_name) == 0) {
            if (strtoull(p->value, NULL, 10) > resource_count) { /* given twice: the smaller holds */
                free(p->value);
                p->value = nrd_xstrdup(count);
            }
            return NULL;
        }
    }
    add_setting(&of_api(options)->resources, scope, resource_name, count);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(TRITONSERVER_ServerOptions *options,
                                                      uint64_t size)
{
    of_api(options)->pinned_pool_bytes = size;
    return NULL;
}

static void add_pool(nrd_server_options *o, int device, uint64_t size)
{
    char key[16], value[32];
    snprintf(key, sizeof key, "%d", device);
    snprintf(value, sizeof value, "%" PRIu64, size);
    for (nrd_setting *p = o->cuda_pools; p; p = p->next) {
        if (strcmp(p->key, key) == 0) {
            set(&p->value, value);
            return;
        }
    }
    add_setting(&o->cuda_pools, "", key, value);
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(TRITONSERVER_ServerOptions *options,
                                                    int gpu_device, uint64_t size)
{
    /* Shown in the option table; the core itself keeps no tensors on devices. */
    add_pool(of_api(options), gpu_device, size);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(
    TRITONSERVER_ServerOptions *options, int gpu_device, size_t cuda_virtual_address_size)
{
    (void)options, (void)gpu_device, (void)cuda_virtual_address_size;
    return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED,
                             "CUDA virtual address space is for growable sequence state, which is "
                             "not supported"));
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetResponseCacheByteSize(TRITONSERVER_ServerOptions *options,
                                                   uint64_t size)
{
    char text[32];

    if (size == 0) { /* naming a cache turns it on, so none is named */
        return NULL;
    }
    snprintf(text, sizeof text, "{\"size\": %llu}", (unsigned long long)size);
    return TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", text);
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCacheConfig(TRITONSERVER_ServerOptions *options,
                                                             const char *cache_name,
                                                             const char *config_json)
{
    for (nrd_setting *p = of_api(options)->cache_config; p; p = p->next) {
        if (strcmp(p->scope, cache_name) == 0) {
            set(&p->value, config_json);
            return NULL;
        }
    }
    add_setting(&of_api(options)->cache_config, cache_name, "config", config_json);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCacheDirectory(TRITONSERVER_ServerOptions *options,
                                                                const char *cache_dir)
{
    set(&of_api(options)->cache_dir, cache_dir);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(TRITONSERVER_ServerOptions *options,
                                                           double cc)
{
    of_api(options)->min_compute_capability = cc;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetExitOnError(TRITONSERVER_ServerOptions *options,
                                                             bool exit)
{
    of_api(options)->exit_on_error = exit;
    return NULL;
}

void nrd_server_options_hide_tables(TRITONSERVER_ServerOptions *options)
{
    of_api(options)->hides_tables = true;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetStrictReadiness(TRITONSERVER_ServerOptions *options, bool strict)
{
    of_api(options)->strict_readiness = strict;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetExitTimeout(TRITONSERVER_ServerOptions *options,
                                                             unsigned int timeout)
{
    of_api(options)->exit_timeout_s = timeout;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(TRITONSERVER_ServerOptions *options,
                                                      unsigned int thread_count)
{
    of_api(options)->buffer_threads = thread_count;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelLoadThreadCount(TRITONSERVER_ServerOptions *options,
                                                  unsigned int thread_count)
{
    of_api(options)->load_threads = thread_count;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelLoadRetryCount(TRITONSERVER_ServerOptions *options,
                                                 unsigned int retry_count)
{
    of_api(options)->load_retries = retry_count;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelNamespacing(TRITONSERVER_ServerOptions *options,
                                              bool enable_namespace)
{
    of_api(options)->namespacing = enable_namespace;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetEnablePeerAccess(TRITONSERVER_ServerOptions *options,
                                              bool enable_peer_access)
{
    of_api(options)->peer_access = enable_peer_access;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogFile(TRITONSERVER_ServerOptions *options,
                                                         const char *file)
{
    (void)options; /* the log belongs to the process, so log settings act at once */
    return as_api(nrd_log_set_file(file));
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogInfo(TRITONSERVER_ServerOptions *options,
                                                         bool log)
{
    (void)options;
    nrd_log_enable(NRD_LOG_LEVEL_INFO, log);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogWarn(TRITONSERVER_ServerOptions *options,
                                                         bool log)
{
    (void)options;
    nrd_log_enable(NRD_LOG_LEVEL_WARNING, log);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogError(TRITONSERVER_ServerOptions *options,
                                                          bool log)
{
    (void)options;
    nrd_log_enable(NRD_LOG_LEVEL_ERROR, log);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogFormat(TRITONSERVER_ServerOptions *options,
                                                           const TRITONSERVER_LogFormat format)
{
    (void)options;
    nrd_log_set_format(format == TRITONSERVER_LOG_ISO8601 ? NRD_LOG_FORMAT_ISO8601
                                                          : NRD_LOG_FORMAT_DEFAULT);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogVerbose(TRITONSERVER_ServerOptions *options,
                                                            int level)
{
    (void)options;
    nrd_log_set_verbose(level);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMetrics(TRITONSERVER_ServerOptions *options,
                                                         bool metrics)
{
    of_api(options)->metrics = metrics;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetGpuMetrics(TRITONSERVER_ServerOptions *options,
                                                            bool gpu_metrics)
{
    of_api(options)->gpu_metrics = gpu_metrics;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCpuMetrics(TRITONSERVER_ServerOptions *options,
                                                            bool cpu_metrics)
{
    of_api(options)->cpu_metrics = cpu_metrics;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetMetricsInterval(TRITONSERVER_ServerOptions *options,
                                             uint64_t metrics_interval_ms)
{
    of_api(options)->metrics_interval_ms = metrics_interval_ms;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetBackendDirectory(TRITONSERVER_ServerOptions *options,
                                              const char *backend_dir)
{
    set(&of_api(options)->backend_dir, backend_dir);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetRepoAgentDirectory(TRITONSERVER_ServerOptions *options,
                                                const char *repoagent_dir)
{
    set(&of_api(options)->agent_dir, repoagent_dir);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(TRITONSERVER_ServerOptions *options,
                                                  const TRITONSERVER_InstanceGroupKind kind,
                                                  const int device_id, const double fraction)
{
    (void)options, (void)device_id, (void)fraction;
    return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED,
                             "model load limits for %s devices are not supported",
                             TRITONSERVER_InstanceGroupKindString(kind)));
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetBackendConfig(TRITONSERVER_ServerOptions *options,
                                                               const char *backend_name,
                                                               const char *setting,
                                                               const char *value)
{
    add_setting(&of_api(options)->backend_config, backend_name, setting, value);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetHostPolicy(TRITONSERVER_ServerOptions *options,
                                                            const char *policy_name,
                                                            const char *setting, const char *value)
{
    add_setting(&of_api(options)->host_policy, policy_name, setting, value);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMetricsConfig(TRITONSERVER_ServerOptions *options,
                                                               const char *name,
                                                               const char *setting,
                                                               const char *value)
{
    add_setting(&of_api(options)->metrics_config, name, setting, value);
    return NULL;
}
