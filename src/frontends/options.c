#include "frontends/options.h"

#include "base/file.h"
#include "base/mem.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef enum {
    FORM_NONE,   /* a flag without value */
    FORM_BOOL,   /* true/false/1/0/on/off */
    FORM_INT,    /* within min..max */
    FORM_DOUBLE, /* within min..max */
    FORM_STRING,
    FORM_CUSTOM,  /* `parse` reads the value */
    FORM_REFUSED, /* known, not in this build: `why` says so */
} option_form;

typedef struct option_row {
    const char *group;
    const char *name;
    option_form form;
    size_t offset; /* of the field in nrd_options */
    int64_t min, max;
    const char *arg; /* how --help shows the value */
    nrd_error *(*parse)(nrd_options *o, const char *name, const char *value);
    const char *help; /* one or two sentences; for FORM_REFUSED the reason */
} option_row;

/* ---- small helpers ---- */

static void set_string(char **field, const char *value)
{
    free(*field);
    *field = nrd_xstrdup(value);
}

static nrd_option_entry *list_add(nrd_option_list *list)
{
    list->items = nrd_xrealloc(list->items, (list->n + 1) * sizeof *list->items);
    memset(&list->items[list->n], 0, sizeof *list->items);
    return &list->items[list->n++];
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

static bool list_has(const nrd_option_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static nrd_error *bad(const char *name, const char *fmt, ...) NRD_PRINTF(2, 3);
static nrd_error *bad(const char *name, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    nrd_error *reason = nrd_errorv(NRD_ERR_INVALID_ARG, fmt, args);
    va_end(args);
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "Bad option: \"--%s\".\n%s", name,
                                nrd_error_message(reason));
    nrd_error_free(reason);
    return err;
}

static nrd_error *read_bool(const char *name, const char *value, bool *out)
{
    if (strcasecmp(value, "true") == 0 || strcasecmp(value, "on") == 0 || strcmp(value, "1") == 0) {
        *out = true;
    } else if (strcasecmp(value, "false") == 0 || strcasecmp(value, "off") == 0 ||
               strcmp(value, "0") == 0) {
        *out = false;
    } else {
        return bad(name, "invalid value for bool option: %s", value);
    }
    return NULL;
}

static nrd_error *read_int(const char *name, const char *value, int64_t min, int64_t max,
                           int64_t *out)
{
    long long v;
    if (!nrd_parse_i64(value, &v)) {
        return bad(name, "Invalid option value. Got %s, expected an integer", value);
    }
    if (v < min || v > max) {
        return bad(name, "Invalid option value. Got %s, expected a value between %lld and %lld",
                   value, (long long)min, (long long)max);
    }
    *out = v;
    return NULL;
}

/* ---- values with parts ---- */

/* "<name>,<setting>=<value>"; without the comma the name is "" where that is allowed. */
static nrd_error *add_triple(nrd_option_list *list, const char *opt, const char *value,
                             bool name_required, const char *shape)
{
    const char *eq = strchr(value, '=');
    const char *comma = memchr(value, ',', eq ? (size_t)(eq - value) : strlen(value));
    const char *setting = comma ? comma + 1 : value;
    if (!eq || eq == setting || eq[1] == '\0' || (!comma && name_required) || comma == value) {
        return bad(opt, "--%s option format is '%s'. Got %s", opt, shape, value);
    }
    nrd_option_entry *e = list_add(list);
    e->name = comma ? nrd_xstrndup(value, (size_t)(comma - value)) : nrd_xstrdup("");
    e->setting = nrd_xstrndup(setting, (size_t)(eq - setting));
    e->value = nrd_xstrdup(eq + 1);
    return NULL;
}

static nrd_error *parse_backend_config(nrd_options *o, const char *name, const char *value)
{
    return add_triple(&o->backend_config, name, value, false, "<backend name>,<setting>=<value>");
}

static nrd_error *parse_cache_config(nrd_options *o, const char *name, const char *value)
{
    return add_triple(&o->cache_config, name, value, true, "<cache name>,<setting>=<value>");
}

static nrd_error *parse_host_policy(nrd_options *o, const char *name, const char *value)
{
    return add_triple(&o->host_policies, name, value, true, "<policy name>,<setting>=<value>");
}

static nrd_error *parse_trace_config(nrd_options *o, const char *name, const char *value)
{
    return add_triple(&o->trace_config, name, value, false, "<trace mode>,<setting>=<value>");
}

static nrd_error *parse_metrics_config(nrd_options *o, const char *name, const char *value)
{
    nrd_error *err = add_triple(&o->metrics_config, name, value, false, "<setting>=<value>");
    if (!err && o->metrics_config.items[o->metrics_config.n - 1].name[0]) {
        err = bad(name, "--metrics-config option format is <setting>=<value>. Got %s", value);
    }
    return err;
}

static nrd_error *parse_cache_size(nrd_options *o, const char *name, const char *value)
{
    int64_t n = 0;
    NRD_TRY(read_int(name, value, 0, INT64_MAX, &n));
    o->cache_size_given = true;
    nrd_option_entry *e = list_add(&o->cache_config);
    e->name = nrd_xstrdup("local");
    e->setting = nrd_xstrdup("size");
    e->value = nrd_xasprintf("%lld", (long long)n);
    return NULL;
}

/* "<device>:<number>" */
static nrd_error *add_device_size(nrd_option_list *list, const char *name, const char *value)
{
    const char *colon = strchr(value, ':');
    unsigned long long size;
    int64_t device;
    if (!colon || !nrd_parse_u64(colon + 1, &size)) {
        return bad(name, "invalid option value, expected <integer>:<integer>. Got %s", value);
    }
    char *left = nrd_xstrndup(value, (size_t)(colon - value));
    nrd_error *err = read_int(name, left, 0, INT_MAX, &device);
    free(left);
    if (err) {
        return err;
    }
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].number == device) { /* a later value replaces an earlier one */
            list->items[i].size = size;
            return NULL;
        }
    }
    nrd_option_entry *e = list_add(list);
    e->number = device;
    e->size = size;
    return NULL;
}

static nrd_error *parse_cuda_pool(nrd_options *o, const char *name, const char *value)
{
    return add_device_size(&o->cuda_pools, name, value);
}

static nrd_error *parse_cuda_va(nrd_options *o, const char *name, const char *value)
{
    return add_device_size(&o->cuda_va, name, value);
}

static nrd_error *parse_gpu_limit(nrd_options *o, const char *name, const char *value)
{
    const char *colon = strchr(value, ':');
    double fraction;
    int64_t device;
    if (!colon || !nrd_parse_f64(colon + 1, &fraction) || !(fraction >= 0 && fraction <= 1)) {
        return bad(name, "expected <device_id>:<fraction> with a fraction from 0 to 1. Got %s",
                   value);
    }
    char *left = nrd_xstrndup(value, (size_t)(colon - value));
    nrd_error *err = read_int(name, left, 0, INT_MAX, &device);
    free(left);
    if (err) {
        return err;
    }
    nrd_option_entry *e = list_add(&o->gpu_load_limits);
    e->number = device;
    e->fraction = fraction;
    return NULL;
}

/* "<resource>:<count>" or "<resource>:<count>:<device>" */
static nrd_error *parse_rate_resource(nrd_options *o, const char *name, const char *value)
{
    const char *first = strchr(value, ':');
    const char *second = first ? strchr(first + 1, ':') : NULL;
    int64_t count = 0, device = -1;
    if (!first || first == value || (second && strchr(second + 1, ':'))) {
        return bad(name,
                   "--rate-limit-resource option format is "
                   "'<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got %s",
                   value);
    }
    char *text =
        second ? nrd_xstrndup(first + 1, (size_t)(second - first - 1)) : nrd_xstrdup(first + 1);
    nrd_error *err = read_int(name, text, 0, INT_MAX, &count);
    free(text);
    if (!err && second) {
        err = read_int(name, second + 1, -1, INT_MAX, &device);
    }
    if (err) {
        return err;
    }
    nrd_option_entry *e = list_add(&o->rate_resources);
    e->name = nrd_xstrndup(value, (size_t)(first - value));
    for (char *p = e->name; *p; p++) {
        *p = (char)tolower((unsigned char)*p);
    }
    e->size = (uint64_t)count;
    e->number = device;
    return NULL;
}

/* ---- values with a fixed list of words ---- */

static nrd_error *parse_control_mode(nrd_options *o, const char *name, const char *value)
{
    if (strcasecmp(value, "none") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_NONE;
    } else if (strcasecmp(value, "poll") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_POLL;
    } else if (strcasecmp(value, "explicit") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_EXPLICIT;
    } else {
        return bad(name, "invalid argument for --model-control-mode: %s", value);
    }
    return NULL;
}

static nrd_error *parse_rate_limit(nrd_options *o, const char *name, const char *value)
{
    if (strcasecmp(value, "execution_count") == 0) {
        o->rate_limit = TRITONSERVER_RATE_LIMIT_EXEC_COUNT;
    } else if (strcasecmp(value, "off") == 0) {
        o->rate_limit = TRITONSERVER_RATE_LIMIT_OFF;
    } else {
        return bad(name, "invalid argument for --rate-limit: %s", value);
    }
    return NULL;
}

static nrd_error *parse_log_format(nrd_options *o, const char *name, const char *value)
{
    if (strcmp(value, "default") != 0 && strcmp(value, "ISO8601") != 0) {
        return bad(name, "invalid argument for --log-format: %s", value);
    }
    set_string(&o->log_format, value);
    return NULL;
}

static nrd_error *parse_log_verbose(nrd_options *o, const char *name, const char *value)
{
    bool on;
    if (strcasecmp(value, "true") == 0 || strcasecmp(value, "false") == 0) {
        NRD_TRY(read_bool(name, value, &on));
        o->log_verbose = on ? 1 : 0;
        return NULL;
    }
    return read_int(name, value, 0, INT_MAX, &o->log_verbose);
}

static nrd_error *add_name(nrd_option_list *list, const char *name, const char *value)
{
    if (!value[0]) {
        return bad(name, "the value must not be empty");
    }
    if (!list_has(list, value)) {
        list_add(list)->name = nrd_xstrdup(value);
    }
    return NULL;
}

static nrd_error *parse_repository(nrd_options *o, const char *name, const char *value)
{
    return add_name(&o->repositories, name, value);
}

static nrd_error *parse_startup_model(nrd_options *o, const char *name, const char *value)
{
    return add_name(&o->startup_models, name, value);
}

static nrd_error *parse_model_config_name(nrd_options *o, const char *name, const char *value)
{
    if (strchr(value, ' ')) {
        return bad(name, "Error: Custom config name should not contain any space character.");
    }
    if (!value[0]) {
        return bad(name, "Error: empty argument for --model-config-name");
    }
    set_string(&o->model_config_name, value);
    return NULL;
}

static nrd_error *parse_allow_grpc(nrd_options *o, const char *name, const char *value)
{
    o->allow_grpc_given = true;
    return read_bool(name, value, &o->allow_grpc);
}

static nrd_error *parse_no_service(nrd_options *o, const char *name, const char *value)
{
    bool on;
    (void)o;
    NRD_TRY(read_bool(name, value, &on));
    if (on) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "Bad option: \"--%s\".\nthis build has no such endpoint", name);
    }
    return NULL;
}

/* "<api>,<api>:<header>=<value>"; `prefix` is put before the header's name. */
static nrd_error *parse_restricted(nrd_option_list *list, const char *name, const char *what,
                                   const char *prefix, const char *value)
{
    static const char *const apis[] = {"health",        "metadata",     "inference",
                                       "shared-memory", "model-config", "model-repository",
                                       "statistics",    "trace",        "logging"};
    const char *colon = strchr(value, ':');
    const char *eq = colon ? strchr(colon + 1, '=') : NULL;
    if (!eq || colon == value || eq == colon + 1 || eq[1] == '\0') {
        return bad(name, "--%s option format is '<config name>:<setting>=<value>'. Got %s", name,
                   value);
    }
    for (const char *p = value; p < colon;) {
        const char *end = memchr(p, ',', (size_t)(colon - p));
        size_t n = (size_t)((end ? end : colon) - p);
        char *api = nrd_xstrndup(p, n);
        bool known = false;
        for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
            known = known || strcmp(apis[i], api) == 0;
        }
        nrd_error *err = NULL;
        if (!known) {
            err = bad(name, "unknown restricted %s '%s'", what, api);
        } else if (list_has(list, api)) {
            err = bad(name, "restricted %s '%s' can not be specified in multiple config groups",
                      what, api);
        }
        if (err) {
            free(api);
            return err;
        }
        nrd_option_entry *e = list_add(list);
        e->name = api;
        e->setting = nrd_xasprintf("%s%.*s", prefix, (int)(eq - colon - 1), colon + 1);
        e->value = nrd_xstrdup(eq + 1);
        p += n + 1;
    }
    return NULL;
}

static nrd_error *parse_restricted_api(nrd_options *o, const char *name, const char *value)
{
    return parse_restricted(&o->http_restricted, name, "api", "", value);
}

#ifdef NRD_HAVE_GRPC
static nrd_error *parse_restricted_protocol(nrd_options *o, const char *name, const char *value)
{
    return parse_restricted(&o->grpc_restricted, name, "protocol", "triton-grpc-protocol-", value);
}

static nrd_error *parse_compression(nrd_options *o, const char *name, const char *value)
{
    static const char *const words[] = {"none", "low", "medium", "high"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            set_string(&o->grpc_compression, words[i]);
            return NULL;
        }
    }
    return bad(name, "invalid argument for --grpc-infer-response-compression-level: %s", value);
}
#endif

/* ---- the table ---- */

#define F(field) offsetof(nrd_options, field)
#define NO_GRPC "refused: this build was made without the gRPC library."
#define NO_SAGEMAKER "refused: this build has no SageMaker endpoint."
#define NO_VERTEX "refused: this build has no Vertex AI endpoint."

static const option_row rows[] = {
    {"", "help", FORM_NONE, F(help), 0, 0, "", NULL, "Print this text and exit."},
    {"", "version", FORM_NONE, F(version), 0, 0, "", NULL, "Print the version and exit."},

    {"Server", "id", FORM_STRING, F(id), 0, 0, "string", NULL,
     "Name of this server in its metadata. Default is triton."},
    {"Server", "exit-timeout-secs", FORM_INT, F(exit_timeout_secs), 0, INT_MAX, "integer", NULL,
     "How long the server waits for requests in flight when it stops; after that it exits all the "
     "same. Default is 30."},

    {"Logging", "log-verbose", FORM_CUSTOM, 0, 0, 0, "integer", parse_log_verbose,
     "Verbose level; 0 turns verbose lines off. Default is 0."},
    {"Logging", "log-info", FORM_BOOL, F(log_info), 0, 0, "boolean", NULL,
     "Write info lines. Default is true."},
    {"Logging", "log-warning", FORM_BOOL, F(log_warning), 0, 0, "boolean", NULL,
     "Write warning lines. Default is true."},
    {"Logging", "log-error", FORM_BOOL, F(log_error), 0, 0, "boolean", NULL,
     "Write error lines. Default is true."},
    {"Logging", "log-format", FORM_CUSTOM, 0, 0, 0, "string", parse_log_format,
     "\"default\": a line begins with LMMDD hh:mm:ss.ssssss; \"ISO8601\": with "
     "YYYY-MM-DDThh:mm:ssZ L. Default is \"default\"."},
    {"Logging", "log-file", FORM_STRING, F(log_file), 0, 0, "string", NULL,
     "File that takes the log lines instead of the console."},

    {"Model Repository", "model-store", FORM_CUSTOM, 0, 0, 0, "string", parse_repository,
     "The same as --model-repository."},
    {"Model Repository", "model-repository", FORM_CUSTOM, 0, 0, 0, "string", parse_repository,
     "Folder with models. May be given several times; a model name found in two repositories is "
     "not served."},
    {"Model Repository", "exit-on-error", FORM_BOOL, F(exit_on_error), 0, 0, "boolean", NULL,
     "End the server when a model cannot be loaded at start. Default is true."},
    {"Model Repository", "disable-auto-complete-config", FORM_NONE, F(disable_auto_complete), 0, 0,
     "", NULL, "Models must bring a complete config.pbtxt; nothing is filled in."},
    {"Model Repository", "strict-readiness", FORM_BOOL, F(strict_readiness), 0, 0, "boolean", NULL,
     "/v2/health/ready answers ready only when every model is available. Default is true."},
    {"Model Repository", "model-control-mode", FORM_CUSTOM, 0, 0, 0, "string", parse_control_mode,
     "\"none\": all models are loaded at start and stay; \"poll\": the repository is looked at "
     "again and again and changes take effect; \"explicit\": only --load-model and the load and "
     "unload calls decide. Default is \"none\"."},
    {"Model Repository", "repository-poll-secs", FORM_INT, F(poll_secs), 1, INT_MAX, "integer",
     NULL,
     "Seconds between two looks at the repository with --model-control-mode=poll. Default "
     "is 15."},
    {"Model Repository", "load-model", FORM_CUSTOM, 0, 0, 0, "string", parse_startup_model,
     "Model to load at start with --model-control-mode=explicit. May be given several times; a "
     "single '*' loads all."},
    {"Model Repository", "model-config-name", FORM_CUSTOM, 0, 0, 0, "string",
     parse_model_config_name,
     "Reads configs/<name>.pbtxt of a model instead of its config.pbtxt where that file exists."},
    {"Model Repository", "model-load-thread-count", FORM_INT, F(load_threads), 1, 1024, "integer",
     NULL, "Models that are loaded at the same time. Default is 4."},
    {"Model Repository", "model-load-retry-count", FORM_INT, F(load_retries), 0, INT_MAX, "integer",
     NULL, "How often a failed load is tried again. Default is 0."},
    {"Model Repository", "model-namespacing", FORM_BOOL, F(namespacing), 0, 0, "boolean", NULL,
     "Models of the same name in different repositories may be served together. Default is "
     "false."},
    {"Model Repository", "enable-peer-access", FORM_BOOL, F(peer_access), 0, 0, "boolean", NULL,
     "Let GPUs read each other's memory where the system can. Default is true."},

    {"HTTP", "allow-http", FORM_BOOL, F(allow_http), 0, 0, "boolean", NULL,
     "Serve HTTP requests. Default is true."},
    {"HTTP", "http-address", FORM_STRING, F(http_address), 0, 0, "string", NULL,
     "Address that the HTTP service binds to. Default is 0.0.0.0."},
    {"HTTP", "http-port", FORM_INT, F(http_port), 0, 65535, "integer", NULL,
     "Port of the HTTP service; 0 takes any free one. Default is 8000."},
    {"HTTP", "reuse-http-port", FORM_BOOL, F(reuse_http_port), 0, 0, "boolean", NULL,
     "Let several servers with this option listen on the same HTTP port. Default is false."},
    {"HTTP", "http-header-forward-pattern", FORM_STRING, F(http_forward_pattern), 0, 0, "string",
     NULL, "Regular expression; HTTP headers whose name matches become request parameters."},
    {"HTTP", "http-thread-count", FORM_INT, F(http_threads), 1, 256, "integer", NULL,
     "Event loop threads of the HTTP service. Default is one per core, at most 8."},
    {"HTTP", "http-restricted-api", FORM_CUSTOM, 0, 0, 0, "string:string=string",
     parse_restricted_api,
     "<api>,<api>:<header>=<value>: these APIs answer only requests whose header has the value. "
     "APIs: health, metadata, inference, shared-memory, model-config, model-repository, "
     "statistics, trace, logging."},
    {"HTTP", "http-max-input-size", FORM_INT, F(http_max_input_bytes), 1, INT64_MAX / 2, "integer",
     NULL, "Largest request body in bytes, before and after decompression. Default is 67108864."},

    {"GRPC", "allow-grpc", FORM_CUSTOM, 0, 0, 0, "boolean", parse_allow_grpc,
     "Serve gRPC requests. Default is true where the build has the gRPC library."},
    {"GRPC", "grpc-address", FORM_STRING, F(grpc_address), 0, 0, "string", NULL,
     "Address of the gRPC service. Default is 0.0.0.0."},
    {"GRPC", "grpc-port", FORM_INT, F(grpc_port), 0, 65535, "integer", NULL,
     "Port of the gRPC service; 0 takes any free one. Default is 8001."},
#ifdef NRD_HAVE_GRPC
    {"GRPC", "reuse-grpc-port", FORM_BOOL, F(reuse_grpc_port), 0, 0, "boolean", NULL,
     "Let several servers with this option listen on the same gRPC port. Default is false."},
    {"GRPC", "grpc-header-forward-pattern", FORM_STRING, F(grpc_forward_pattern), 0, 0, "string",
     NULL, "Regular expression; metadata whose key matches becomes request parameters."},
    {"GRPC", "grpc-infer-thread-count", FORM_INT, F(grpc_infer_threads), 1, 128, "integer", NULL,
     "Threads that take inference calls. Default is 2."},
    {"GRPC", "grpc-infer-allocation-pool-size", FORM_INT, F(grpc_infer_pool), 1, 65536, "integer",
     NULL, "Inference calls that each of these threads keeps prepared. Default is 8."},
    {"GRPC", "grpc-use-ssl", FORM_BOOL, F(grpc_use_ssl), 0, 0, "boolean", NULL,
     "Encrypt; needs --grpc-server-cert and --grpc-server-key. Default is false."},
    {"GRPC", "grpc-use-ssl-mutual", FORM_BOOL, F(grpc_use_ssl_mutual), 0, 0, "boolean", NULL,
     "Encrypt and ask for the client's certificate; needs --grpc-root-cert too. Default is false."},
    {"GRPC", "grpc-server-cert", FORM_STRING, F(grpc_server_cert), 0, 0, "string", NULL,
     "File with the server's certificate chain (PEM)."},
    {"GRPC", "grpc-server-key", FORM_STRING, F(grpc_server_key), 0, 0, "string", NULL,
     "File with the server's private key (PEM)."},
    {"GRPC", "grpc-root-cert", FORM_STRING, F(grpc_root_cert), 0, 0, "string", NULL,
     "File with the certificates that sign clients (PEM)."},
    {"GRPC", "grpc-infer-response-compression-level", FORM_CUSTOM, 0, 0, 0, "string",
     parse_compression,
     "How much inference answers are compressed: none, low, medium or high. Default is none."},
    {"GRPC", "grpc-keepalive-time", FORM_INT, F(grpc_keepalive_ms), 1, INT_MAX, "integer", NULL,
     "Milliseconds after which a quiet connection is pinged. Default is 7200000."},
    {"GRPC", "grpc-keepalive-timeout", FORM_INT, F(grpc_keepalive_timeout_ms), 1, INT_MAX,
     "integer", NULL, "Milliseconds that the answer to such a ping may take. Default is 20000."},
    {"GRPC", "grpc-keepalive-permit-without-calls", FORM_BOOL, F(grpc_keepalive_idle), 0, 0,
     "boolean", NULL, "Ping connections without calls too. Default is false."},
    {"GRPC", "grpc-http2-max-pings-without-data", FORM_INT, F(grpc_max_pings), 0, INT_MAX,
     "integer", NULL, "Pings in a row without data between them; 0: any number. Default is 2."},
    {"GRPC", "grpc-http2-min-recv-ping-interval-without-data", FORM_INT,
     F(grpc_min_ping_interval_ms), 0, INT_MAX, "integer", NULL,
     "Milliseconds that a client leaves between pings without data. Default is 300000."},
    {"GRPC", "grpc-http2-max-ping-strikes", FORM_INT, F(grpc_max_ping_strikes), 0, INT_MAX,
     "integer", NULL,
     "Pings that come too early before the connection is closed; 0: any number. Default is 2."},
    {"GRPC", "grpc-max-connection-age", FORM_INT, F(grpc_max_age_ms), 0, INT_MAX, "integer", NULL,
     "Milliseconds after which a connection is asked to close; 0: never. Default is 0."},
    {"GRPC", "grpc-max-connection-age-grace", FORM_INT, F(grpc_max_age_grace_ms), 0, INT_MAX,
     "integer", NULL,
     "Milliseconds that its calls get then; 0: as long as they take. Default is 0."},
    {"GRPC", "grpc-restricted-protocol", FORM_CUSTOM, 0, 0, 0, "string:string=string",
     parse_restricted_protocol,
     "<protocol>,<protocol>:<key>=<value>: these protocols answer only calls whose metadata "
     "triton-grpc-protocol-<key> has the value. Protocols are named like the APIs of "
     "--http-restricted-api."},
#else
    {"GRPC", "reuse-grpc-port", FORM_REFUSED, 0, 0, 0, "boolean", NULL, NO_GRPC},
    {"GRPC", "grpc-header-forward-pattern", FORM_REFUSED, 0, 0, 0, "string", NULL, NO_GRPC},
    {"GRPC", "grpc-infer-thread-count", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-infer-allocation-pool-size", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-use-ssl", FORM_REFUSED, 0, 0, 0, "boolean", NULL, NO_GRPC},
    {"GRPC", "grpc-use-ssl-mutual", FORM_REFUSED, 0, 0, 0, "boolean", NULL, NO_GRPC},
    {"GRPC", "grpc-server-cert", FORM_REFUSED, 0, 0, 0, "string", NULL, NO_GRPC},
    {"GRPC", "grpc-server-key", FORM_REFUSED, 0, 0, 0, "string", NULL, NO_GRPC},
    {"GRPC", "grpc-root-cert", FORM_REFUSED, 0, 0, 0, "string", NULL, NO_GRPC},
    {"GRPC", "grpc-infer-response-compression-level", FORM_REFUSED, 0, 0, 0, "string", NULL,
     NO_GRPC},
    {"GRPC", "grpc-keepalive-time", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-keepalive-timeout", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-keepalive-permit-without-calls", FORM_REFUSED, 0, 0, 0, "boolean", NULL,
     NO_GRPC},
    {"GRPC", "grpc-http2-max-pings-without-data", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-http2-min-recv-ping-interval-without-data", FORM_REFUSED, 0, 0, 0, "integer",
     NULL, NO_GRPC},
    {"GRPC", "grpc-http2-max-ping-strikes", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-max-connection-age", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-max-connection-age-grace", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_GRPC},
    {"GRPC", "grpc-restricted-protocol", FORM_REFUSED, 0, 0, 0, "string:string=string", NULL,
     NO_GRPC},
#endif

    {"Sagemaker", "allow-sagemaker", FORM_CUSTOM, 0, 0, 0, "boolean", parse_no_service,
     "Serve SageMaker requests; true is refused: this build has no SageMaker endpoint. Default is "
     "false."},
    {"Sagemaker", "sagemaker-port", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_SAGEMAKER},
    {"Sagemaker", "sagemaker-safe-port-range", FORM_REFUSED, 0, 0, 0, "integer-integer", NULL,
     NO_SAGEMAKER},
    {"Sagemaker", "sagemaker-thread-count", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_SAGEMAKER},

    {"Vertex", "allow-vertex-ai", FORM_CUSTOM, 0, 0, 0, "boolean", parse_no_service,
     "Serve Vertex AI requests; true is refused: this build has no Vertex AI endpoint. Default is "
     "false."},
    {"Vertex", "vertex-ai-port", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_VERTEX},
    {"Vertex", "vertex-ai-thread-count", FORM_REFUSED, 0, 0, 0, "integer", NULL, NO_VERTEX},
    {"Vertex", "vertex-ai-default-model", FORM_REFUSED, 0, 0, 0, "string", NULL, NO_VERTEX},

    {"Metrics", "allow-metrics", FORM_BOOL, F(allow_metrics), 0, 0, "boolean", NULL,
     "Serve metrics. Default is true."},
    {"Metrics", "allow-gpu-metrics", FORM_BOOL, F(allow_gpu_metrics), 0, 0, "boolean", NULL,
     "Include GPU metrics; needs --allow-metrics. Default is true."},
    {"Metrics", "allow-cpu-metrics", FORM_BOOL, F(allow_cpu_metrics), 0, 0, "boolean", NULL,
     "Include CPU metrics; needs --allow-metrics. Default is true."},
    {"Metrics", "metrics-address", FORM_STRING, F(metrics_address), 0, 0, "string", NULL,
     "Address of the metrics service. Default is that of --http-address."},
    {"Metrics", "metrics-port", FORM_INT, F(metrics_port), 0, 65535, "integer", NULL,
     "Port of the metrics service; 0 takes any free one. Default is 8002."},
    {"Metrics", "metrics-interval-ms", FORM_DOUBLE, F(metrics_interval_ms), 1, INT_MAX, "float",
     NULL, "Milliseconds between two readings of GPU and CPU metrics. Default is 2000."},
    {"Metrics", "metrics-config", FORM_CUSTOM, 0, 0, 0, "string=string", parse_metrics_config,
     "<setting>=<value>: one setting of the metrics. May be given several times."},

    {"Tracing", "trace-config", FORM_CUSTOM, 0, 0, 0, "string,string=string", parse_trace_config,
     "<setting>=<value> with level, rate, count or mode, or triton,<setting>=<value> with file or "
     "log-frequency. Mode opentelemetry is refused: this build does not have it."},

    {"Backend", "backend-directory", FORM_STRING, F(backend_dir), 0, 0, "string", NULL,
     "Folder with backends. Default is ../backends beside the program's folder, else "
     "/opt/tritonserver/backends."},
    {"Backend", "backend-config", FORM_CUSTOM, 0, 0, 0, "string,string=string",
     parse_backend_config,
     "<backend name>,<setting>=<value>: one setting of a backend; without the name, of all."},

    {"Repository Agent", "repoagent-directory", FORM_STRING, F(agent_dir), 0, 0, "string", NULL,
     "Folder with repository agents. Default is ../repoagents beside the program's folder, else "
     "/opt/tritonserver/repoagents."},

    {"Response Cache", "cache-config", FORM_CUSTOM, 0, 0, 0, "string,string=string",
     parse_cache_config,
     "<cache name>,<setting>=<value>, such as local,size=1048576: turns that response cache on."},
    {"Response Cache", "cache-directory", FORM_STRING, F(cache_dir), 0, 0, "string", NULL,
     "Folder with response caches. Default is ../caches beside the program's folder, else "
     "/opt/tritonserver/caches."},

    {"Rate Limiter", "rate-limit", FORM_CUSTOM, 0, 0, 0, "string", parse_rate_limit,
     "\"execution_count\": instances run when their resources are free, in the order of priority "
     "and use; \"off\": as soon as they are ready. Default is \"off\"."},
    {"Rate Limiter", "rate-limit-resource", FORM_CUSTOM, 0, 0, 0, "string:integer:integer",
     parse_rate_resource,
     "<resource>:<count>:<device>, the device being optional: how much of a resource exists."},

    {"Memory/Device Management", "pinned-memory-pool-byte-size", FORM_INT, F(pinned_pool_bytes), 0,
     INT64_MAX, "integer", NULL,
     "Bytes of pinned host memory for copies to and from GPUs. Default is 268435456."},
    {"Memory/Device Management", "cuda-memory-pool-byte-size", FORM_CUSTOM, 0, 0, 0,
     "integer:integer", parse_cuda_pool,
     "<GPU device>:<bytes>: CUDA memory pool of one GPU. Default is 67108864 each."},
    {"Memory/Device Management", "cuda-virtual-address-size", FORM_CUSTOM, 0, 0, 0,
     "integer:integer", parse_cuda_va,
     "<GPU device>:<bytes>: address range for growing implicit states. Default is 1 GiB."},
    {"Memory/Device Management", "min-supported-compute-capability", FORM_DOUBLE,
     F(min_compute_capability), 0, 1000, "float", NULL,
     "GPUs below this compute capability are not used. Default is 6.0."},
    {"Memory/Device Management", "buffer-manager-thread-count", FORM_INT, F(buffer_threads), 0,
     1024, "integer", NULL, "Threads that help copying tensors. Default is 0."},
    {"Memory/Device Management", "host-policy", FORM_CUSTOM, 0, 0, 0, "string,string=string",
     parse_host_policy,
     "<policy name>,<setting>=<value> with the settings numa-node and cpu-cores."},
    {"Memory/Device Management", "model-load-gpu-limit", FORM_CUSTOM, 0, 0, 0, "device_id:fraction",
     parse_gpu_limit, "No model is loaded on a GPU whose memory is used above this fraction."},

    {"DEPRECATED", "strict-model-config", FORM_BOOL, F(strict_model_config), 0, 0, "boolean", NULL,
     "Use --disable-auto-complete-config."},
    {"DEPRECATED", "response-cache-byte-size", FORM_CUSTOM, 0, 0, 0, "integer", parse_cache_size,
     "Use --cache-config=local,size=<bytes>."},
    {"DEPRECATED", "trace-file", FORM_REFUSED, 0, 0, 0, "string", NULL,
     "refused: use --trace-config=triton,file=<path>."},
    {"DEPRECATED", "trace-level", FORM_REFUSED, 0, 0, 0, "string", NULL,
     "refused: use --trace-config=level=<OFF|TIMESTAMPS|TENSORS>."},
    {"DEPRECATED", "trace-rate", FORM_REFUSED, 0, 0, 0, "integer", NULL,
     "refused: use --trace-config=rate=<n>."},
    {"DEPRECATED", "trace-count", FORM_REFUSED, 0, 0, 0, "integer", NULL,
     "refused: use --trace-config=count=<n>."},
    {"DEPRECATED", "trace-log-frequency", FORM_REFUSED, 0, 0, 0, "integer", NULL,
     "refused: use --trace-config=triton,log-frequency=<n>."},
};
#define N_ROWS (sizeof rows / sizeof *rows)

/* ---- parsing ---- */

static const option_row *find_row(const char *name, size_t n, bool *out_ambiguous)
{
    const option_row *found = NULL;
    *out_ambiguous = false;
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strncmp(rows[i].name, name, n) != 0) {
            continue;
        }
        if (rows[i].name[n] == '\0') {
            *out_ambiguous = false;
            return &rows[i];
        }
        *out_ambiguous = found != NULL;
        found = &rows[i];
    }
    return *out_ambiguous ? NULL : found;
}

static nrd_error *apply(nrd_options *o, const option_row *row, const char *value)
{
    char *field = (char *)o + row->offset;
    double d;

    switch (row->form) {
    case FORM_NONE:
        *(bool *)(void *)field = true;
        return NULL;
    case FORM_BOOL:
        return read_bool(row->name, value, (bool *)(void *)field);
    case FORM_INT:
        return read_int(row->name, value, row->min, row->max, (int64_t *)(void *)field);
    case FORM_DOUBLE:
        if (!nrd_parse_f64(value, &d) || !(d >= (double)row->min && d <= (double)row->max)) {
            return bad(row->name,
                       "Invalid option value. Got %s, expected a number from %lld to %lld", value,
                       (long long)row->min, (long long)row->max);
        }
        *(double *)(void *)field = d;
        return NULL;
    case FORM_STRING:
        set_string((char **)(void *)field, value);
        return NULL;
    case FORM_CUSTOM:
        return row->parse(o, row->name, value);
    case FORM_REFUSED:
        break;
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "Bad option: \"--%s\".\n%s", row->name, row->help);
}

static nrd_error *check_ports(const nrd_options *o)
{
    struct {
        const char *name, *address;
        int64_t port;
        bool on;
    } s[] = {{"HTTP", o->http_address, o->http_port, o->allow_http},
             {"GRPC", o->grpc_address, o->grpc_port, o->allow_grpc},
             {"metrics", o->metrics_address, o->metrics_port, o->allow_metrics}};
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = i + 1; j < 3; j++) {
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

static nrd_error *finish(nrd_options *o)
{
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
        set_string(&o->metrics_address, o->http_address);
    }
    default_dir(&o->backend_dir, "backends");
    default_dir(&o->agent_dir, "repoagents");
    default_dir(&o->cache_dir, "caches");
    return check_ports(o);
}

nrd_error *nrd_options_parse(nrd_options *o, int argc, char *const *argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0') {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "Unexpected argument: %s", arg);
        }
        const char *name = arg + 2;
        const char *eq = strchr(name, '=');
        size_t n = eq ? (size_t)(eq - name) : strlen(name);
        bool ambiguous;
        const option_row *row = n ? find_row(name, n, &ambiguous) : NULL;
        if (!row) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s option '--%.*s'",
                              n && ambiguous ? "ambiguous" : "unrecognized", (int)n, name);
        }
        const char *value = eq ? eq + 1 : NULL;
        if (row->form == FORM_NONE && value) {
            return bad(row->name, "this option takes no value");
        }
        if (row->form != FORM_NONE && !value) {
            if (i + 1 >= argc) {
                return bad(row->name, "a value is missing");
            }
            value = argv[++i];
        }
        NRD_TRY(apply(o, row, value ? value : ""));
    }
    return finish(o);
}

/* ---- defaults, help, hand-over ---- */

static int64_t default_http_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 8 ? 8 : n; /* Triton starts 8; more loops than cores only wait */
}

void nrd_options_init(nrd_options *o)
{
    memset(o, 0, sizeof *o);
    o->id = nrd_xstrdup("triton");
    o->exit_timeout_secs = 30;
    o->log_info = o->log_warning = o->log_error = true;
    o->log_format = nrd_xstrdup("default");
    o->log_file = nrd_xstrdup("");
    o->exit_on_error = o->strict_readiness = o->peer_access = true;
    o->control_mode = TRITONSERVER_MODEL_CONTROL_NONE;
    o->poll_secs = 15;
    o->model_config_name = nrd_xstrdup("");
    o->load_threads = 4;
    o->allow_http = true;
    o->http_address = nrd_xstrdup("0.0.0.0");
    o->http_port = 8000;
    o->http_threads = default_http_threads();
    o->http_forward_pattern = nrd_xstrdup("");
    o->http_max_input_bytes = 64 << 20;
    o->grpc_address = nrd_xstrdup("0.0.0.0");
    o->grpc_port = 8001;
#ifdef NRD_HAVE_GRPC
    o->allow_grpc = true;
#endif
    o->grpc_infer_threads = 2;
    o->grpc_infer_pool = 8;
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
}

void nrd_options_fini(nrd_options *o)
{
    char **strings[] = {&o->id,
                        &o->log_format,
                        &o->log_file,
                        &o->backend_dir,
                        &o->agent_dir,
                        &o->cache_dir,
                        &o->http_address,
                        &o->grpc_address,
                        &o->grpc_forward_pattern,
                        &o->grpc_server_cert,
                        &o->grpc_server_key,
                        &o->grpc_root_cert,
                        &o->grpc_compression,
                        &o->metrics_address,
                        &o->http_forward_pattern,
                        &o->model_config_name};
    nrd_option_list *lists[] = {&o->repositories,    &o->startup_models, &o->http_restricted,
                                &o->grpc_restricted, &o->metrics_config, &o->trace_config,
                                &o->backend_config,  &o->cache_config,   &o->rate_resources,
                                &o->cuda_pools,      &o->cuda_va,        &o->gpu_load_limits,
                                &o->host_policies};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        free(*strings[i]);
        *strings[i] = NULL;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        list_fini(lists[i]);
    }
}

static void put_wrapped(nrd_str *out, const char *text)
{
    const size_t width = 72;
    while (strlen(text) > width) {
        size_t n = width;
        while (n > 0 && text[n] != ' ') {
            n--;
        }
        n = n ? n : width;
        nrd_str_printf(out, "        %.*s\n", (int)n, text);
        text += n + (text[n] == ' ');
    }
    nrd_str_printf(out, "        %s\n", text);
}

void nrd_options_help(nrd_str *out)
{
    const char *group = "";
    nrd_str_puts(out, "Usage: tritonserver [options]\n\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(group, rows[i].group) != 0) {
            group = rows[i].group;
            nrd_str_printf(out, "\n%s:\n", group);
        }
        if (rows[i].arg[0]) {
            nrd_str_printf(out, "  --%s <%s>\n", rows[i].name, rows[i].arg);
        } else {
            nrd_str_printf(out, "  --%s\n", rows[i].name);
        }
        put_wrapped(out, rows[i].help);
    }
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
