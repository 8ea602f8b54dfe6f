/* SPDX-License-Identifier: Apache-2.0
 * Reads tritonserver's command line: defaults, the table of options_table.c, checks that concern
 * more than one option, and the log settings. A fault becomes one error with the option's name.
 * Called once by main.c, and by `nereid serve` to check options before it builds anything. */
#include "frontends/options_table.h"

#include "base/duration.h"
#include "base/env.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

/* ---- parsing ---- */

/* Faults in the words of Triton's parser, which scripts and tests look for. */
static nrd_error *wrong_value(const nrd_opt_fault *f)
{
    const nrd_opt *row = f->row;
    if (row->form == NRD_OPT_BOOL) {
        return nrd_option_bad(row->name, "invalid value for bool option: %s", f->value);
    }
    if (row->form == NRD_OPT_NUM) {
        return nrd_option_bad(row->name, "Invalid option value. Got %s, expected a number from %lld to %lld",
                              f->value, (long long)row->min, (long long)row->max);
    }
    if (f->kind == NRD_OPT_VALUE_RANGE) {
        return nrd_option_bad(row->name,
                              "Invalid option value. Got %s, expected a value between %lld and %lld",
                              f->value, (long long)row->min, (long long)row->max);
    }
    return nrd_option_bad(row->name, "Invalid option value. Got %s, expected an integer", f->value);
}

static nrd_error *fault_error(const nrd_opt_fault *f)
{
    const bool is_long = f->word && f->n_word > 2 && !strncmp(f->word, "--", 2);

    switch (f->kind) {
    case NRD_OPT_UNKNOWN:
    case NRD_OPT_AMBIGUOUS:
        if (is_long) {
            const char *near = f->kind == NRD_OPT_UNKNOWN && f->nearest ? f->nearest->name : NULL;
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s option '%.*s'%s%s%s", f->kind == NRD_OPT_AMBIGUOUS ? "ambiguous" : "unrecognized",
                              (int)f->n_word, f->word, near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "");
        }
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Unexpected argument: %s", f->word);
    case NRD_OPT_STRAY_WORD:
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Unexpected argument: %s", f->word);
    case NRD_OPT_VALUE_MISSING:
        return nrd_option_bad(f->row->name, "a value is missing");
    case NRD_OPT_VALUE_EXTRA:
        return nrd_option_bad(f->row->name, "this option takes no value");
    case NRD_OPT_VALUE_WRONG:
    case NRD_OPT_VALUE_RANGE:
        return wrong_value(f);
    case NRD_OPT_NOT_SUPPORTED:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "Bad option: \"--%s\".\n%s", f->row->name, f->row->help);
    default:
        return f->error;
    }
}

static nrd_error *check_ports(const nrd_options *o)
{
    struct {
        const char *name, *address;
        int64_t port;
        bool on;
    } s[] = {{"HTTP", o->http_address, o->http_port, o->allow_http},
             {"GRPC", o->grpc_address, o->grpc_port, o->allow_grpc},
             {"metrics", o->metrics_address, o->metrics_port, o->allow_metrics},
             {"OpenAI", o->http_address, o->openai_port, o->allow_openai && o->openai_port >= 0},
             {"SageMaker", o->http_address, o->sagemaker_port, o->allow_sagemaker},
             {"Vertex AI", o->http_address, o->vertex_port, o->allow_vertex}};
    const size_t n = sizeof s / sizeof s[0];
    for (size_t i = 0; i < n; i++) {
        if (s[i].on && o->sagemaker_low >= 0 && (s[i].port < o->sagemaker_low || s[i].port > o->sagemaker_high)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "The server cannot listen to %s requests at port %lld, allowed port range is [%lld, %lld]",
                              s[i].name, (long long)s[i].port, (long long)o->sagemaker_low, (long long)o->sagemaker_high);
        }
        for (size_t j = i + 1; j < n; j++) {
            if (s[i].on && s[j].on && s[i].port != 0 && s[i].port == s[j].port &&
                strcmp(s[i].address, s[j].address) == 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "The server cannot listen to %s requests and %s requests at the "
                                  "same address and port %s:%lld",
                                  s[i].name, s[j].name, s[i].address, (long long)s[i].port);
            }
        }
    }
    return NULL;
}

/* The folder `name` beside the one that the program lies in, else Triton's place. */
static void default_dir(char **field, const char *name)
{
    if ((*field)[0]) {
        return;
    }
    char *exe = nrd_path_exe_dir();
    char *dir = nrd_xasprintf("%s/../%s", exe ? exe : ".", name);
    char *full = realpath(dir, NULL);
    free(*field);
    *field = full && nrd_path_is_dir(full) ? nrd_xstrdup(full)
                                           : nrd_xasprintf("/opt/tritonserver/%s", name);
    free(full);
    free(dir);
    free(exe);
}

static nrd_error *check_ssl(const nrd_options *o)
{
    const bool on = o->http_use_ssl || o->http_use_ssl_mutual;

    if (on && (!o->http_server_cert[0] || !o->http_server_key[0])) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--http-use-ssl needs --http-server-cert and --http-server-key");
    }
    if (o->http_use_ssl_mutual && !o->http_root_cert[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--http-use-ssl-mutual needs --http-root-cert");
    }
    if (!on && (o->http_server_cert[0] || o->http_server_key[0] || o->http_root_cert[0])) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--http-server-cert, --http-server-key and --http-root-cert have an effect only "
                          "with --http-use-ssl or --http-use-ssl-mutual");
    }
    return NULL;
}

static nrd_error *finish(nrd_options *o)
{
    NRD_TRY(check_ssl(o));
    if (o->cache_salt_per_key && o->api_keys.n == 0 && !o->api_key_file[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--cache-salt-per-key needs --api-key or --api-key-file");
    }
    if (!o->batch_file[0] != !o->batch_output[0] || (o->batch_file[0] && !o->allow_openai)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--batch-file and --batch-output need each other, and --allow-openai");
    }
    if (o->control_mode != TRITONSERVER_MODEL_CONTROL_POLL) {
        o->poll_secs = 0;
    }
    if (o->startup_models.n > 0 && o->control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Error: Use of '--load-model' requires setting "
                                               "'--model-control-mode=explicit' as well.");
    }
    if (o->cache_size_given && o->cache_config.n > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Error: Incompatible flags --response-cache-byte-size and --cache-config "
                          "both provided. Please provide one or the other.");
    }
    if (o->disable_auto_complete) {
        o->strict_model_config = true;
    }
    o->allow_gpu_metrics = o->allow_gpu_metrics && o->allow_metrics;
    o->allow_cpu_metrics = o->allow_cpu_metrics && o->allow_metrics;
    if (!o->metrics_address[0]) {
        nrd_option_set_string(&o->metrics_address, o->http_address);
    }
    default_dir(&o->backend_dir, "backends");
    default_dir(&o->agent_dir, "repoagents");
    default_dir(&o->cache_dir, "caches");
    return check_ports(o);
}

nrd_error *nrd_options_parse(nrd_options *o, int argc, char *const *argv)
{
    const nrd_opt_set set = {.rows = nrd_option_rows, .n = nrd_option_n_rows, .takes_prefixes = true};
    nrd_opt_fault f = nrd_opts_read(&set, o, argc, argv, NULL, NULL);
    NRD_TRY(fault_error(&f));
    return finish(o);
}

/* ---- defaults, hand-over ---- */
static int64_t default_http_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 8 ? 8 : n; /* Triton starts 8; more loops than cores only wait */
}

/* What Vertex AI says in the environment of its containers. */
static void init_hosted(nrd_options *o)
{
    long long port = 0;

    o->sagemaker_port = 8080;
    o->sagemaker_low = o->sagemaker_high = -1;
    o->sagemaker_threads = o->vertex_threads = default_http_threads();
    o->vertex_model = nrd_xstrdup("");
    o->vertex_port = nrd_parse_i64(nrd_env("AIP_HTTP_PORT", ""), &port) && port >= 0 && port <= 65535 ? port : 8080;
    if (strcmp(nrd_env("AIP_MODE", ""), "PREDICTION") == 0) {
        o->allow_vertex = true;
        o->allow_http = o->allow_grpc = false;
    }
}

void nrd_options_init(nrd_options *o)
{
    memset(o, 0, sizeof *o);
    o->id = nrd_xstrdup("triton");
    o->exit_timeout_secs = 30;
    o->crash_keep = 8;
    o->crash_dir = nrd_xstrdup("");
    o->ready_message = nrd_xstrdup("");
    o->log_info = o->log_warning = o->log_error = o->log_tables = true;
    o->log_format = nrd_xstrdup("default");
    o->log_file = nrd_xstrdup("");
    o->exit_on_error = o->strict_readiness = o->peer_access = true;
    o->control_mode = TRITONSERVER_MODEL_CONTROL_NONE;
    o->poll_secs = 15;
    o->model_config_name = nrd_xstrdup("");
    o->load_threads = 4;
    o->models_file = nrd_xstrdup("");
    o->keep_ns = NRD_DURATION_FOREVER;
    o->model_wait_secs = 300;
    o->allow_pull = true;
    o->allow_http = true;
    o->allow_openai = o->ui = true;
    o->generation_config = nrd_xstrdup("auto");
    o->api_key_file = nrd_xstrdup("");
    o->http_address = nrd_xstrdup("0.0.0.0");
    o->http_port = 8000;
    o->openai_port = -1;
    o->openai_responses_kept = NRD_LIMIT_RESPONSES_KEPT;
    o->openai_responses_kept_mb = NRD_LIMIT_RESPONSES_KEPT_BYTES >> 20;
    o->openai_background = NRD_LIMIT_BACKGROUND;
    o->openai_background_mb = NRD_LIMIT_BACKGROUND_BYTES >> 20;
    o->openai_files_dir = nrd_xstrdup("");
    o->batch_file = nrd_xstrdup("");
    o->batch_output = nrd_xstrdup("");
    o->openai_files_kept = NRD_LIMIT_FILES_KEPT;
    o->openai_files_mb = NRD_LIMIT_FILES_KEPT_BYTES >> 20;
    o->openai_file_mb = NRD_LIMIT_FILE_BYTES >> 20;
    o->openai_files_days = 30;
    o->openai_batch_requests = 16;
    o->http_threads = default_http_threads();
    o->http_forward_pattern = nrd_xstrdup("");
    o->http_max_input_bytes = 64 << 20;
    o->http_idle_secs = 300;
    o->http_server_cert = nrd_xstrdup("");
    o->http_server_key = nrd_xstrdup("");
    o->http_root_cert = nrd_xstrdup("");
    o->metrics_use_ssl = true;
    o->grpc_address = nrd_xstrdup("0.0.0.0");
    o->grpc_port = 8001;
#ifdef NRD_HAVE_GRPC
    o->allow_grpc = true;
#endif
    o->grpc_max_message_bytes = 64 << 20;
    o->grpc_idle_secs = 300;
    o->grpc_infer_threads = 2;
    o->grpc_infer_pool = 8;
    o->allow_client_shm = true;
    o->grpc_forward_pattern = nrd_xstrdup("");
    o->grpc_server_cert = nrd_xstrdup("");
    o->grpc_server_key = nrd_xstrdup("");
    o->grpc_root_cert = nrd_xstrdup("");
    o->grpc_compression = nrd_xstrdup("none");
    o->grpc_keepalive_ms = 7200000;
    o->grpc_keepalive_timeout_ms = 20000;
    o->grpc_max_pings = 2;
    o->grpc_min_ping_interval_ms = 300000;
    o->grpc_max_ping_strikes = 2;
    o->allow_metrics = o->allow_gpu_metrics = o->allow_cpu_metrics = true;
    o->metrics_address = nrd_xstrdup("");
    o->metrics_port = 8002;
    o->metrics_interval_ms = 2000;
    o->backend_dir = nrd_xstrdup("");
    o->agent_dir = nrd_xstrdup("");
    o->cache_dir = nrd_xstrdup("");
    o->rate_limit = TRITONSERVER_RATE_LIMIT_OFF;
    o->pinned_pool_bytes = 1 << 28;
    o->min_compute_capability = 6.0;
    init_hosted(o);
}

static void list_fini(nrd_option_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].name);
        free(list->items[i].setting);
        free(list->items[i].value);
    }
    free(list->items);
    list->items = NULL;
    list->n = 0;
}

void nrd_options_fini(nrd_options *o)
{
    char **strings[] = {&o->id,
                        &o->log_format,
                        &o->log_file,
                        &o->crash_dir,
                        &o->models_file,
                        &o->backend_dir,
                        &o->agent_dir,
                        &o->cache_dir,
                        &o->http_address,
                        &o->grpc_address,
                        &o->grpc_forward_pattern,
                        &o->grpc_server_cert,
                        &o->grpc_server_key,
                        &o->grpc_root_cert,
                        &o->http_server_cert,
                        &o->http_server_key,
                        &o->http_root_cert,
                        &o->grpc_compression,
                        &o->metrics_address,
                        &o->http_forward_pattern,
                        &o->model_config_name,
                        &o->api_key_file,
                        &o->openai_files_dir,
                        &o->batch_file,
                        &o->batch_output,
                        &o->generation_config,
                        &o->ready_message,
                        &o->vertex_model};
    nrd_option_list *lists[] = {
        &o->repositories,    &o->startup_models, &o->pins, &o->http_restricted, &o->grpc_restricted,
        &o->metrics_config,  &o->trace_config,   &o->trace_old,       &o->backend_config,
        &o->cache_config,    &o->rate_resources, &o->cuda_pools,      &o->cuda_va,
        &o->gpu_load_limits, &o->host_policies,  &o->api_keys,        &o->cors_origins,
        &o->allowed_hosts};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        free(*strings[i]);
        *strings[i] = NULL;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        list_fini(lists[i]);
    }
    nrd_networks_fini(&o->trusted_proxies);
}

nrd_error *nrd_options_apply_log(const nrd_options *o)
{
    nrd_log_enable(NRD_LOG_LEVEL_INFO, o->log_info);
    nrd_log_enable(NRD_LOG_LEVEL_WARNING, o->log_warning);
    nrd_log_enable(NRD_LOG_LEVEL_ERROR, o->log_error);
    nrd_log_set_verbose((int)o->log_verbose);
    nrd_log_set_format(strcmp(o->log_format, "ISO8601") == 0 ? NRD_LOG_FORMAT_ISO8601
                                                             : NRD_LOG_FORMAT_DEFAULT);
    return nrd_log_set_file(o->log_file);
}
