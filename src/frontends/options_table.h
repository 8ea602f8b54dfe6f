/* SPDX-License-Identifier: Apache-2.0
 * frontends/options_table.h - the command line from inside: rows, and how values are read.
 *
 * Purpose   options_table.c lists every option, options_values.c reads the values that have parts
 *           or words of their own, options_read.c walks over argv.
 * Owner     As options.h.
 */
#ifndef NRD_FRONTENDS_OPTIONS_TABLE_H
#define NRD_FRONTENDS_OPTIONS_TABLE_H

#include "base/options.h"
#include "frontends/options.h"

extern const nrd_opt nrd_option_rows[];
extern const size_t nrd_option_n_rows;

void nrd_option_set_string(char **field, const char *value);
/* `Bad option: "--name".` and the reason. */
nrd_error *nrd_option_bad(const char *name, const char *fmt, ...) NRD_PRINTF(2, 3);

nrd_opt_parser nrd_option_parse_api_key, nrd_option_parse_cors_origin, nrd_option_parse_allowed_host,
    nrd_option_parse_generation_config, nrd_option_parse_trace_old,
    nrd_option_parse_keep_alive, nrd_option_parse_trusted_proxies, nrd_option_parse_pin;
nrd_opt_parser nrd_option_parse_allow_grpc, nrd_option_parse_allow_pull, nrd_option_parse_backend_config,
    nrd_option_parse_cache_config, nrd_option_parse_cache_size, nrd_option_parse_control_mode,
    nrd_option_parse_cuda_pool, nrd_option_parse_cuda_va, nrd_option_parse_gpu_limit,
    nrd_option_parse_host_policy, nrd_option_parse_port_range, nrd_option_parse_log_format, nrd_option_parse_log_verbose,
    nrd_option_parse_metrics_config, nrd_option_parse_model_config_name,
    nrd_option_parse_no_service, nrd_option_parse_rate_limit, nrd_option_parse_rate_resource,
    nrd_option_parse_repository, nrd_option_parse_restricted_api, nrd_option_parse_startup_model,
    nrd_option_parse_trace_config;
#ifdef NRD_HAVE_GRPC
nrd_opt_parser nrd_option_parse_restricted_protocol, nrd_option_parse_compression;
#endif

#endif
