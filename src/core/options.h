/* SPDX-License-Identifier: Apache-2.0
 * core/options.h - the server's options.
 *
 * Owner     TRITONSERVER_ServerOptions: its creator. The server has a copy of its own, which does
 *           not change.
 */
#ifndef NRD_CORE_OPTIONS_H
#define NRD_CORE_OPTIONS_H

#include "core/strings.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_setting {
    struct nrd_setting *next;
    char *scope; /* backend, host policy, metrics or cache name; "" = all */
    char *key, *value;
} nrd_setting;

typedef struct nrd_server_options { /* TRITONSERVER_ServerOptions */
    char *server_id;
    nrd_strings repositories, startup_models;
    TRITONSERVER_ModelControlMode control_mode;
    bool strict_config;
    char *config_name;
    TRITONSERVER_RateLimitMode rate_limit;
    uint64_t pinned_pool_bytes;
    double min_compute_capability;
    bool exit_on_error, strict_readiness, hides_tables;
    uint32_t exit_timeout_s, load_threads, load_retries;
    bool namespacing;
    bool peer_access; /* without effect, as the next one and cuda_pools */
    uint32_t buffer_threads;
    bool metrics, gpu_metrics, cpu_metrics;
    uint64_t metrics_interval_ms;
    char *backend_dir, *agent_dir, *cache_dir;
    nrd_setting *backend_config, *host_policy, *metrics_config, *cuda_pools, *cache_config;
    nrd_setting *resources; /* rate limiter: scope device or "all" */
} nrd_server_options;

const char *nrd_setting_find(const nrd_setting *list, const char *scope, const char *key);
void nrd_server_options_copy(nrd_server_options *to, const nrd_server_options *from);
void nrd_server_options_fini(nrd_server_options *o);

#endif
