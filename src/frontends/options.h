/* SPDX-License-Identifier: Apache-2.0
 * frontends/options.h - the command line of tritonserver.
 *
 * Purpose   One table holds every option of Triton 2.51: its group, form, default, range and one
 *           sentence. An option is used, or refused with a sentence that says why, or, where nothing
 *           depends on it here, named in a warning at the start.
 * Owner     The main thread, before any other thread runs; read-only afterwards.
 * Units     As the field names say; ports 0..65535 (0: any free port).
 * Errors    INVALID_ARG: `Bad option: "--x".` and the reason; UNSUPPORTED: known but not in this
 *           build.
 * Lifetime  nrd_options_init, parse, use, nrd_options_fini.
 * Sources   Option names and defaults: Triton Inference Server 2.51 `tritonserver --help`.
 */
#ifndef NRD_FRONTENDS_OPTIONS_H
#define NRD_FRONTENDS_OPTIONS_H

#include "base/error.h"
#include "base/log.h"
#include "base/str.h"
#include "frontends/common/network.h"
#include "triton/core/tritonserver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One occurrence of a repeatable option; which fields count depends on the option's form. */
typedef struct nrd_option_entry {
    char *name;    /* owns; "" where the form allows none */
    char *setting; /* owns */
    char *value;   /* owns */
    int64_t number;
    double fraction;
    uint64_t size;
} nrd_option_entry;

typedef struct nrd_option_list {
    nrd_option_entry *items; /* owns */
    size_t n;
} nrd_option_list;

typedef struct nrd_options {
    /* what to do instead of serving */
    bool help, version;
    /* server */
    char *id;
    int64_t exit_timeout_secs;
    char *ready_message; /* "" without */
    char *crash_dir;     /* "": the default */
    int64_t crash_keep;  /* reports; 0: none is written */
    /* log */
    int64_t log_verbose;
    bool log_tables;
    bool log_info, log_warning, log_error;
    char *log_format; /* "default" or "ISO8601" */
    char *log_file;
    /* models */
    nrd_option_list repositories;   /* name */
    nrd_option_list startup_models; /* name */
    bool exit_on_error, restart_on_failure, disable_auto_complete, strict_model_config, strict_readiness;
    TRITONSERVER_ModelControlMode control_mode;
    int64_t poll_secs; /* 0 unless the mode is poll */
    char *model_config_name;
    int64_t load_threads, load_retries;
    bool namespacing, peer_access;
    /* several models, of which some are loaded (common/switch_core.h) */
    char *models_file;      /* "" without */
    double model_memory_gb; /* 10^9 bytes; 0: as the file says */
    uint64_t keep_ns;       /* how long an unused model stays; UINT64_MAX: until its memory is needed */
    int64_t model_wait_secs;
    nrd_option_list pins; /* name */
    bool preload;
    bool allow_pull, allow_pull_given; /* clients may bring and remove models of the hub */
    /* HTTP */
    bool allow_http, reuse_http_port;
    /* Descriptors that listen already (passed_sockets.h); 0: the server opens the port. */
    int http_socket, grpc_socket, metrics_socket;
    char *http_address;
    int64_t http_port, http_threads;
    char *http_forward_pattern;
    nrd_option_list http_restricted; /* name: api, setting: header, value */
    int64_t http_max_input_bytes;
    bool http_use_ssl, http_use_ssl_mutual, metrics_use_ssl; /* the last: only with one of the others */
    char *http_server_cert, *http_server_key, *http_root_cert; /* paths; "" without */
    /* OpenAI's API */
    bool allow_openai;
    nrd_option_list api_keys;     /* name */
    char *api_key_file;           /* "" without */
    bool cache_salt_per_key;
    int64_t key_rate_limit, key_token_limit; /* a minute, of each key; 0: any number */
    int64_t key_max_concurrent;              /* requests under way of each key; 0: any number */
    nrd_option_list cors_origins; /* name */
    nrd_option_list allowed_hosts; /* name: without port; "*": any */
    nrd_networks trusted_proxies;
    int64_t openai_port;          /* a port of their own besides; -1: none */
    int64_t openai_responses_kept, openai_responses_kept_mb; /* answers of /v1/responses; megabytes */
    int64_t openai_background, openai_background_mb; /* of them without a client; megabytes */
    char *openai_files_dir; /* "": a temporary one */
    int64_t openai_files_kept, openai_files_mb, openai_file_mb, openai_files_days; /* limits of /v1/files */
    int64_t openai_batch_requests; /* of batches, at a time */
    char *batch_file, *batch_output; /* "": none */
    bool batch_json;                 /* its end is told as an object on stdout */
    bool strict_model_names;      /* /v1: also where one model is served */
    bool allow_lora_loading;      /* /v1/load_lora_adapter and its counterpart */
    char *generation_config;      /* "auto": sampling defaults of the model; "none": OpenAI's */
    bool ui;                      /* the page at / */
    /* gRPC */
    bool allow_grpc, allow_grpc_given;
    bool reuse_grpc_port;
    char *grpc_address;
    int64_t grpc_port, grpc_infer_threads, grpc_infer_pool;
    int64_t grpc_max_message_bytes; /* of a request */
    int64_t grpc_max_response_pool; /* answers waiting in one stream; 0: no limit */
    char *grpc_forward_pattern;
    bool grpc_use_ssl, grpc_use_ssl_mutual;
    char *grpc_server_cert, *grpc_server_key, *grpc_root_cert; /* paths; "" without */
    char *grpc_compression;                                    /* "none", "low", "medium", "high" */
    int64_t grpc_keepalive_ms, grpc_keepalive_timeout_ms;
    bool grpc_keepalive_idle; /* pings without calls */
    int64_t grpc_max_pings, grpc_min_ping_interval_ms, grpc_max_ping_strikes;
    int64_t grpc_max_age_ms, grpc_max_age_grace_ms; /* of a connection; 0: no limit */
    int64_t grpc_idle_secs;                         /* of a connection without calls; 0: no limit */
    nrd_option_list grpc_restricted;                /* name: protocol, setting: header, value */
    bool allow_client_shm;
    /* limits of both protocols; 0: none */
    int64_t http_max_connections, http_idle_secs, max_inflight_requests;
    int64_t inflight_memory_mb, request_memory_mb; /* 0: by the machine's memory */
    int64_t worker_threads; /* 0: by the processors */
    /* SageMaker, Vertex AI */
    bool allow_sagemaker, allow_vertex;
    int64_t sagemaker_port, sagemaker_threads, vertex_port, vertex_threads;
    int64_t sagemaker_low, sagemaker_high; /* ports that may be used; -1: any */
    char *vertex_model;                    /* "" without */
    /* metrics */
    bool allow_metrics, allow_gpu_metrics, allow_cpu_metrics;
    char *metrics_address; /* "" becomes http_address */
    int64_t metrics_port;
    double metrics_interval_ms;
    nrd_option_list metrics_config; /* name "", setting, value */
    /* trace */
    nrd_option_list trace_old;    /* the same from the options that came before it */
    nrd_option_list trace_config; /* name: "", "triton", "opentelemetry"; setting, value */
    /* plug-ins */
    char *backend_dir, *agent_dir, *cache_dir; /* "" becomes the folder beside the program */
    nrd_option_list backend_config;            /* name may be "", setting, value */
    nrd_option_list cache_config;              /* name, setting, value */
    bool cache_size_given;
    /* rate limiter */
    TRITONSERVER_RateLimitMode rate_limit;
    nrd_option_list rate_resources; /* name, size: count, number: device or -1 */
    /* memory and devices */
    int64_t pinned_pool_bytes;
    nrd_option_list cuda_pools;      /* number: device, size */
    nrd_option_list cuda_va;         /* number: device, size */
    nrd_option_list gpu_load_limits; /* number: device, fraction */
    double min_compute_capability;
    int64_t buffer_threads;
    nrd_option_list host_policies; /* name, setting, value */
} nrd_options;

void nrd_options_init(nrd_options *o); /* every default */
void nrd_options_fini(nrd_options *o);

/* Reads argv[1..argc). `--name=value`, `--name value`, unique beginnings of names as getopt_long
 * takes them. Also checks what depends on several options, and port collisions. */
nrd_error *nrd_options_parse(nrd_options *o, int argc, char *const *argv) NRD_MUST_USE;

/* The text of --help, in groups. */
void nrd_options_help(nrd_str *out);

/* Applies the log options to this program's own log. */
nrd_error *nrd_options_apply_log(const nrd_options *o) NRD_MUST_USE;

/* Builds the core's option object; the caller deletes it. */
TRITONSERVER_Error *nrd_options_build(const nrd_options *o, TRITONSERVER_ServerOptions **out);

#endif
