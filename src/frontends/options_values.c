/* SPDX-License-Identifier: Apache-2.0
 * How the values of options are read. */
#include "frontends/options_table.h"

#include "base/duration.h"
#include "base/mem.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void nrd_option_set_string(char **field, const char *value)
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

static bool list_has(const nrd_option_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

nrd_error *nrd_option_bad(const char *name, const char *fmt, ...)
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
        return nrd_option_bad(name, "invalid value for bool option: %s", value);
    }
    return NULL;
}

static nrd_error *read_int(const char *name, const char *value, int64_t min, int64_t max,
                               int64_t *out)
{
    long long v;
    if (!nrd_parse_i64(value, &v)) {
        return nrd_option_bad(name, "Invalid option value. Got %s, expected an integer", value);
    }
    if (v < min || v > max) {
        return nrd_option_bad(
            name, "Invalid option value. Got %s, expected a value between %lld and %lld", value,
            (long long)min, (long long)max);
    }
    *out = v;
    return NULL;
}

nrd_error *nrd_option_parse_generation_config(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strcmp(value, "auto") != 0 && strcmp(value, "none") != 0) {
        return nrd_option_bad(name, "expected auto or none, got '%s'", value);
    }
    nrd_option_set_string(&o->generation_config, value);
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
        return nrd_option_bad(opt, "--%s option format is '%s'. Got %s", opt, shape, value);
    }
    nrd_option_entry *e = list_add(list);
    e->name = comma ? nrd_xstrndup(value, (size_t)(comma - value)) : nrd_xstrdup("");
    e->setting = nrd_xstrndup(setting, (size_t)(eq - setting));
    e->value = nrd_xstrdup(eq + 1);
    return NULL;
}

nrd_error *nrd_option_parse_backend_config(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_triple(&o->backend_config, name, value, false, "<backend name>,<setting>=<value>");
}

nrd_error *nrd_option_parse_cache_config(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_triple(&o->cache_config, name, value, true, "<cache name>,<setting>=<value>");
}

nrd_error *nrd_option_parse_host_policy(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_triple(&o->host_policies, name, value, true, "<policy name>,<setting>=<value>");
}

nrd_error *nrd_option_parse_trace_config(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_triple(&o->trace_config, name, value, false, "<trace mode>,<setting>=<value>");
}

/* --trace-file and the like, under the names that --trace-config has for them. */
nrd_error *nrd_option_parse_trace_old(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    const char *setting = name + strlen("trace-");
    const bool of_mode = strcmp(setting, "file") == 0 || strcmp(setting, "log-frequency") == 0;
    if (!value[0]) {
        return nrd_option_bad(name, "the value must not be empty");
    }
    nrd_option_entry *e = list_add(&o->trace_old);
    e->name = nrd_xstrdup(of_mode ? "triton" : "");
    e->setting = nrd_xstrdup(setting);
    e->value = nrd_xstrdup(value);
    return NULL;
}

nrd_error *nrd_option_parse_metrics_config(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    nrd_error *err = add_triple(&o->metrics_config, name, value, false, "<setting>=<value>");
    if (!err && o->metrics_config.items[o->metrics_config.n - 1].name[0]) {
        err = nrd_option_bad(name, "--metrics-config option format is <setting>=<value>. Got %s",
                             value);
    }
    return err;
}

nrd_error *nrd_option_parse_cache_size(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
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
        return nrd_option_bad(name, "invalid option value, expected <integer>:<integer>. Got %s",
                              value);
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

nrd_error *nrd_option_parse_cuda_pool(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_device_size(&o->cuda_pools, name, value);
}

nrd_error *nrd_option_parse_cuda_va(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_device_size(&o->cuda_va, name, value);
}

nrd_error *nrd_option_parse_gpu_limit(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    const char *colon = strchr(value, ':');
    double fraction;
    int64_t device;
    if (!colon || !nrd_parse_f64(colon + 1, &fraction) || !(fraction >= 0 && fraction <= 1)) {
        return nrd_option_bad(
            name, "expected <device_id>:<fraction> with a fraction from 0 to 1. Got %s", value);
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
nrd_error *nrd_option_parse_rate_resource(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    const char *first = strchr(value, ':');
    const char *second = first ? strchr(first + 1, ':') : NULL;
    int64_t count = 0, device = -1;
    if (!first || first == value || (second && strchr(second + 1, ':'))) {
        return nrd_option_bad(
            name,
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
    e->size = (uint64_t)count;
    e->number = device;
    return NULL;
}

/* ---- values with a fixed list of words ---- */

nrd_error *nrd_option_parse_control_mode(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strcasecmp(value, "none") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_NONE;
    } else if (strcasecmp(value, "poll") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_POLL;
    } else if (strcasecmp(value, "explicit") == 0) {
        o->control_mode = TRITONSERVER_MODEL_CONTROL_EXPLICIT;
    } else {
        return nrd_option_bad(name, "invalid argument for --model-control-mode: %s", value);
    }
    return NULL;
}

nrd_error *nrd_option_parse_rate_limit(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strcasecmp(value, "execution_count") == 0) {
        o->rate_limit = TRITONSERVER_RATE_LIMIT_EXEC_COUNT;
    } else if (strcasecmp(value, "off") == 0) {
        o->rate_limit = TRITONSERVER_RATE_LIMIT_OFF;
    } else {
        return nrd_option_bad(name, "invalid argument for --rate-limit: %s", value);
    }
    return NULL;
}

nrd_error *nrd_option_parse_log_format(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strcmp(value, "default") != 0 && strcmp(value, "ISO8601") != 0) {
        return nrd_option_bad(name, "invalid argument for --log-format: %s", value);
    }
    nrd_option_set_string(&o->log_format, value);
    return NULL;
}

nrd_error *nrd_option_parse_log_verbose(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
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
        return nrd_option_bad(name, "the value must not be empty");
    }
    if (!list_has(list, value)) {
        list_add(list)->name = nrd_xstrdup(value);
    }
    return NULL;
}

nrd_error *nrd_option_parse_repository(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_name(&o->repositories, name, value);
}

nrd_error *nrd_option_parse_api_key(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (!value[0]) {
        return nrd_option_bad(name, "Error: an empty key.");
    }
    return add_name(&o->api_keys, name, value);
}

nrd_error *nrd_option_parse_cors_origin(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strpbrk(value, "\r\n ")) {
        return nrd_option_bad(name, "Error: an origin has no spaces.");
    }
    return add_name(&o->cors_origins, name, value);
}

nrd_error *nrd_option_parse_allowed_host(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strpbrk(value, "/ \r\n")) {
        return nrd_option_bad(name, "Error: a host is a name or an address, without scheme and port.");
    }
    return add_name(&o->allowed_hosts, name, value);
}

nrd_error *nrd_option_parse_trusted_proxies(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    nrd_error *err = NULL;
    char *copy = nrd_xstrdup(value), *before = NULL;

    for (char *word = strtok_r(copy, ", ", &before); word && !err; word = strtok_r(NULL, ", ", &before)) {
        if (!nrd_networks_add(&o->trusted_proxies, word)) {
            err = nrd_option_bad(name, "Error: expected addresses or networks such as 10.0.0.0/8, without bits behind the prefix, got '%s'.", word);
        }
    }
    free(copy);
    return err;
}

nrd_error *nrd_option_parse_pin(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_name(&o->pins, name, value);
}

nrd_error *nrd_option_parse_keep_alive(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return nrd_parse_duration(value, &o->keep_ns)
               ? NULL
               : nrd_option_bad(name, "Error: expected seconds, a time such as 5m or 1h30m, 0 or -1, got '%s'.", value);
}

nrd_error *nrd_option_parse_startup_model(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return add_name(&o->startup_models, name, value);
}

nrd_error *nrd_option_parse_model_config_name(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    if (strchr(value, ' ')) {
        return nrd_option_bad(name,
                              "Error: Custom config name should not contain any space character.");
    }
    if (!value[0]) {
        return nrd_option_bad(name, "Error: empty argument for --model-config-name");
    }
    nrd_option_set_string(&o->model_config_name, value);
    return NULL;
}

nrd_error *nrd_option_parse_allow_grpc(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    o->allow_grpc_given = true;
    return read_bool(name, value, &o->allow_grpc);
}

nrd_error *nrd_option_parse_allow_pull(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    o->allow_pull_given = true;
    return read_bool(name, value, &o->allow_pull);
}

/* "<low>-<high>" */
nrd_error *nrd_option_parse_port_range(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    const char *dash = strchr(value, '-');
    if (!dash || dash == value) {
        return nrd_option_bad(name, "--%s option format is '<low>-<high>'. Got %s", name, value);
    }
    char *low = nrd_xstrndup(value, (size_t)(dash - value));
    nrd_error *err = read_int(name, low, 0, 65535, &o->sagemaker_low);
    free(low);
    if (err) {
        return err;
    }
    return read_int(name, dash + 1, o->sagemaker_low, 65535, &o->sagemaker_high);
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
        return nrd_option_bad(
            name, "--%s option format is '<config name>:<setting>=<value>'. Got %s", name, value);
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
            err = nrd_option_bad(name, "unknown restricted %s '%s'", what, api);
        } else if (list_has(list, api)) {
            err = nrd_option_bad(
                name, "restricted %s '%s' can not be specified in multiple config groups", what,
                api);
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

nrd_error *nrd_option_parse_restricted_api(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return parse_restricted(&o->http_restricted, name, "api", "", value);
}

#ifdef NRD_HAVE_GRPC
nrd_error *nrd_option_parse_restricted_protocol(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    return parse_restricted(&o->grpc_restricted, name, "protocol", "triton-grpc-protocol-", value);
}

nrd_error *nrd_option_parse_compression(void *values, const char *name, const char *value)
{
    nrd_options *o = values;
    static const char *const words[] = {"none", "low", "medium", "high"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            nrd_option_set_string(&o->grpc_compression, words[i]);
            return NULL;
        }
    }
    return nrd_option_bad(name, "invalid argument for --grpc-infer-response-compression-level: %s",
                          value);
}
#endif
