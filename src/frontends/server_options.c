/* SPDX-License-Identifier: Apache-2.0
 * The command line as the core's option object. */
#include "base/json.h"
#include "frontends/options.h"
#include "nereid/server.h"

#include <string.h>

#pragma weak nrd_server_options_hide_tables /* another core may lack it */

#define T_TRY(expr)                                                                                \
    do {                                                                                           \
        TRITONSERVER_Error *t_err_ = (expr);                                                       \
        if (t_err_) {                                                                              \
            return t_err_;                                                                         \
        }                                                                                          \
    } while (0)

static TRITONSERVER_Error *set_models(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    for (size_t i = 0; i < o->repositories.n; i++) {
        T_TRY(TRITONSERVER_ServerOptionsSetModelRepositoryPath(t, o->repositories.items[i].name));
    }
    T_TRY(TRITONSERVER_ServerOptionsSetModelControlMode(t, o->control_mode));
    for (size_t i = 0; i < o->startup_models.n; i++) {
        T_TRY(TRITONSERVER_ServerOptionsSetStartupModel(t, o->startup_models.items[i].name));
    }
    T_TRY(TRITONSERVER_ServerOptionsSetModelConfigName(t, o->model_config_name));
    T_TRY(TRITONSERVER_ServerOptionsSetStrictModelConfig(t, o->strict_model_config));
    T_TRY(TRITONSERVER_ServerOptionsSetStrictReadiness(t, o->strict_readiness));
    T_TRY(TRITONSERVER_ServerOptionsSetExitOnError(t, o->exit_on_error));
    T_TRY(TRITONSERVER_ServerOptionsSetExitTimeout(t, (unsigned)o->exit_timeout_secs));
    T_TRY(TRITONSERVER_ServerOptionsSetModelLoadThreadCount(t, (unsigned)o->load_threads));
    T_TRY(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(t, (unsigned)o->load_retries));
    T_TRY(TRITONSERVER_ServerOptionsSetModelNamespacing(t, o->namespacing));
    return TRITONSERVER_ServerOptionsSetEnablePeerAccess(t, o->peer_access);
}

static TRITONSERVER_Error *set_log(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    if (!o->log_tables && nrd_server_options_hide_tables) {
        nrd_server_options_hide_tables(t);
    }
    T_TRY(TRITONSERVER_ServerOptionsSetLogFile(t, o->log_file));
    T_TRY(TRITONSERVER_ServerOptionsSetLogInfo(t, o->log_info));
    T_TRY(TRITONSERVER_ServerOptionsSetLogWarn(t, o->log_warning));
    T_TRY(TRITONSERVER_ServerOptionsSetLogError(t, o->log_error));
    T_TRY(TRITONSERVER_ServerOptionsSetLogVerbose(t, (int)o->log_verbose));
    return TRITONSERVER_ServerOptionsSetLogFormat(t, strcmp(o->log_format, "ISO8601") == 0
                                                         ? TRITONSERVER_LOG_ISO8601
                                                         : TRITONSERVER_LOG_DEFAULT);
}

static TRITONSERVER_Error *set_metrics(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    T_TRY(TRITONSERVER_ServerOptionsSetMetrics(t, o->allow_metrics));
    T_TRY(TRITONSERVER_ServerOptionsSetGpuMetrics(t, o->allow_gpu_metrics));
    T_TRY(TRITONSERVER_ServerOptionsSetCpuMetrics(t, o->allow_cpu_metrics));
    T_TRY(TRITONSERVER_ServerOptionsSetMetricsInterval(t, (uint64_t)o->metrics_interval_ms));
    for (size_t i = 0; i < o->metrics_config.n; i++) {
        const nrd_option_entry *e = &o->metrics_config.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetMetricsConfig(t, e->name, e->setting, e->value));
    }
    return NULL;
}

/* One JSON object of strings for each cache that is named. */
static TRITONSERVER_Error *set_caches(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    if (o->cache_config.n == 0) {
        return NULL;
    }
    T_TRY(TRITONSERVER_ServerOptionsSetCacheDirectory(t, o->cache_dir));
    for (size_t i = 0; i < o->cache_config.n; i++) {
        const char *cache = o->cache_config.items[i].name;
        bool seen = false;
        for (size_t j = 0; j < i; j++) {
            seen = seen || strcmp(o->cache_config.items[j].name, cache) == 0;
        }
        if (seen) {
            continue;
        }
        nrd_str json = {0};
        for (size_t j = i; j < o->cache_config.n; j++) {
            const nrd_option_entry *e = &o->cache_config.items[j];
            if (strcmp(e->name, cache) != 0) {
                continue;
            }
            nrd_str_putc(&json, json.len ? ',' : '{');
            nrd_json_put_cstr(&json, e->setting);
            nrd_str_putc(&json, ':');
            nrd_json_put_cstr(&json, e->value);
        }
        nrd_str_putc(&json, '}');
        TRITONSERVER_Error *err =
            TRITONSERVER_ServerOptionsSetCacheConfig(t, cache, nrd_str_cstr(&json));
        nrd_str_fini(&json);
        T_TRY(err);
    }
    return NULL;
}

static TRITONSERVER_Error *set_devices(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    T_TRY(TRITONSERVER_ServerOptionsSetRateLimiterMode(t, o->rate_limit));
    for (size_t i = 0; i < o->rate_resources.n; i++) {
        const nrd_option_entry *e = &o->rate_resources.items[i];
        T_TRY(TRITONSERVER_ServerOptionsAddRateLimiterResource(t, e->name, (size_t)e->size,
                                                               (int)e->number));
    }
    T_TRY(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(t, (uint64_t)o->pinned_pool_bytes));
    for (size_t i = 0; i < o->cuda_pools.n; i++) {
        const nrd_option_entry *e = &o->cuda_pools.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(t, (int)e->number, e->size));
    }
    for (size_t i = 0; i < o->cuda_va.n; i++) {
        const nrd_option_entry *e = &o->cuda_va.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(t, (int)e->number,
                                                                  (size_t)e->size));
    }
    for (size_t i = 0; i < o->gpu_load_limits.n; i++) {
        const nrd_option_entry *e = &o->gpu_load_limits.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
            t, TRITONSERVER_INSTANCEGROUPKIND_GPU, (int)e->number, e->fraction));
    }
    T_TRY(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(t, o->min_compute_capability));
    T_TRY(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(t, (unsigned)o->buffer_threads));
    for (size_t i = 0; i < o->host_policies.n; i++) {
        const nrd_option_entry *e = &o->host_policies.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetHostPolicy(t, e->name, e->setting, e->value));
    }
    return NULL;
}

static TRITONSERVER_Error *set_all(TRITONSERVER_ServerOptions *t, const nrd_options *o)
{
    T_TRY(TRITONSERVER_ServerOptionsSetServerId(t, o->id));
    T_TRY(set_models(t, o));
    T_TRY(set_log(t, o));
    T_TRY(set_metrics(t, o));
    T_TRY(set_caches(t, o));
    T_TRY(set_devices(t, o));
    T_TRY(TRITONSERVER_ServerOptionsSetBackendDirectory(t, o->backend_dir));
    for (size_t i = 0; i < o->backend_config.n; i++) {
        const nrd_option_entry *e = &o->backend_config.items[i];
        T_TRY(TRITONSERVER_ServerOptionsSetBackendConfig(t, e->name, e->setting, e->value));
    }
    return TRITONSERVER_ServerOptionsSetRepoAgentDirectory(t, o->agent_dir);
}

TRITONSERVER_Error *nrd_options_build(const nrd_options *o, TRITONSERVER_ServerOptions **out)
{
    *out = NULL;
    TRITONSERVER_ServerOptions *t = NULL;
    T_TRY(TRITONSERVER_ServerOptionsNew(&t));
    TRITONSERVER_Error *err = set_all(t, o);
    if (err) {
        TRITONSERVER_ServerOptionsDelete(t);
        return err;
    }
    *out = t;
    return NULL;
}
