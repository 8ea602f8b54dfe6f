/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/switch_core.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "frontends/common/error.h"
#include "nereid/server.h"

#include <stdlib.h>
#include <string.h>

#pragma weak nrd_server_wait_unloaded /* another core may lack it */

/* ---- the core ---- */

enum { UNLOAD_SECS = 600 };

/* The models that one load brings, by their names in the core. */
typedef struct group {
    const char *load;
    const nrd_json *parts;
} group;

typedef struct switch_core {
    TRITONSERVER_Server *core;
    nrd_json_doc *doc; /* the file; owns what groups borrow */
    size_t n;
    group *groups;
} switch_core;

static const group *group_of(const switch_core *c, const char *load)
{
    for (size_t i = 0; i < c->n; i++) {
        if (!strcmp(c->groups[i].load, load)) {
            return &c->groups[i];
        }
    }
    return NULL;
}

static nrd_error *load_model(void *user, const char *name)
{
    const switch_core *c = user;
    return nrd_from_triton(TRITONSERVER_ServerLoadModel(c->core, name));
}

static nrd_error *unload_model(void *user, const char *name)
{
    const switch_core *c = user;
    const group *g = group_of(c, name);
    bool gone = true;

    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerUnloadModelAndDependents(c->core, name)));
    gone = nrd_server_wait_unloaded(c->core, name, UNLOAD_SECS * 1000000000ull);
    for (size_t i = 0; g && i < nrd_json_len(g->parts); i++) {
        const char *part = nrd_json_str(&g->parts->child[i], "");
        gone = nrd_server_wait_unloaded(c->core, part, UNLOAD_SECS * 1000000000ull) && gone;
    }
    return gone ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' is still there after %d s", name, (int)UNLOAD_SECS);
}

static bool is_ready(void *user, const char *name)
{
    const switch_core *c = user;
    bool ready = false;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerModelIsReady(c->core, name, -1, &ready));
    nrd_error_free(err);
    return ready && !err;
}

/* The value of "FAMILY{…memory_type="reserved"…model="NAME"…} VALUE" in a text of metrics; 0: there is none. */
static double reserved_of(const char *metrics, const char *name)
{
    static const char family[] = "\nnv_trt_llm_runtime_memory_metrics{";
    nrd_str label = {0};
    double v = 0;

    nrd_str_printf(&label, "model=\"%s\"", name);
    for (const char *p = metrics; !label.no_memory && (p = strstr(p, family)) != NULL; p++) {
        const char *end = strchr(p + 1, '\n'), *close = strstr(p, "} ");
        const char *kind = strstr(p, "memory_type=\"reserved\""), *model = strstr(p, nrd_str_cstr(&label));
        if (end && close && kind && model && close < end && kind < close && model < close) {
            char *number = strndup(close + 2, (size_t)(end - close - 2));
            double one = 0;
            v += number && nrd_parse_f64(number, &one) ? one : 0;
            free(number);
        }
    }
    nrd_str_fini(&label);
    return v;
}

/* Weights and caches of the engines; 0 without metrics, or where no part is one. */
static uint64_t size_of(void *user, const char *name)
{
    const switch_core *c = user;
    const group *g = group_of(c, name);
    TRITONSERVER_Metrics *metrics = NULL;
    const char *text = NULL;
    size_t n = 0;
    double bytes = 0;

    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerMetrics(c->core, &metrics));
    err = err ? err : nrd_from_triton(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &text, &n));
    char *copy = err ? NULL : strndup(text, n);
    if (copy) {
        bytes = reserved_of(copy, name);
        for (size_t i = 0; g && i < nrd_json_len(g->parts); i++) {
            bytes += reserved_of(copy, nrd_json_str(&g->parts->child[i], ""));
        }
    }
    free(copy);
    if (metrics) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MetricsDelete(metrics)));
    }
    nrd_error_free(err);
    return bytes > 0 && bytes < 1e18 ? (uint64_t)bytes : 0;
}

/* ---- the file ---- */

static nrd_error *bad(const char *file, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "--models-file: %s: %s", file, what);
}

static nrd_error *read_spec(nrd_switch_spec *spec, group *g, const nrd_json *v, const char *file)
{
    const nrd_json *parts = nrd_json_get(v, "parts");
    const int64_t bytes = nrd_json_get_int(v, "memory_bytes", -1), file_bytes = nrd_json_get_int(v, "file_bytes", 0);

    spec->name = nrd_json_get_str(v, "name", "");
    spec->load = nrd_json_get_str(v, "load", "");
    if (!spec->name[0] || !spec->load[0] || bytes < 0 || file_bytes < 0) {
        return bad(file, "a model needs \"name\", \"load\" and \"memory_bytes\"");
    }
    spec->bytes = (uint64_t)bytes;
    spec->file_bytes = (uint64_t)file_bytes;
    *g = (group){.load = spec->load, .parts = nrd_json_is(parts, NRD_JSON_ARRAY) ? parts : NULL};
    const char **aliases = calloc(nrd_json_len(g->parts) + 1, sizeof *aliases);
    if (!aliases) {
        return nrd_error_no_memory();
    }
    spec->aliases = aliases;
    aliases[spec->n_aliases++] = spec->load;
    for (size_t i = 0; i < nrd_json_len(g->parts); i++) {
        if (!nrd_json_is(&g->parts->child[i], NRD_JSON_STRING)) {
            return bad(file, "\"parts\" holds names");
        }
        aliases[spec->n_aliases++] = g->parts->child[i].str;
    }
    return NULL;
}

static nrd_error *pin(nrd_switch_spec *specs, size_t n, const nrd_option_list *pins)
{
    for (size_t i = 0; i < pins->n; i++) {
        bool found = false;
        for (size_t k = 0; k < n; k++) {
            if (!strcmp(specs[k].name, pins->items[i].name)) {
                specs[k].pinned = found = true;
            }
        }
        if (!found) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--pin: no model of this server is called '%s'", pins->items[i].name);
        }
    }
    return NULL;
}

static void core_free(void *user)
{
    switch_core *c = user;
    if (c) {
        nrd_json_doc_free(c->doc);
        free(c->groups);
        free(c);
    }
}

/* What is asked to be there from the start. */
static nrd_error *load_ahead(nrd_switcher *s, bool all)
{
    for (int pass = 0; pass < 2; pass++) { /* pinned ones first: they have to fit */
        for (size_t i = 0; i < nrd_switcher_n(s); i++) {
            nrd_switch_model *m = nrd_switcher_at(s, i);
            nrd_switch_info info;
            nrd_switcher_info(s, m, &info);
            if (info.pinned == (pass == 0) && (info.pinned || (all && nrd_switcher_has_room(s, m)))) {
                NRD_TRY(nrd_switcher_load(s, m));
            }
        }
    }
    return NULL;
}

nrd_error *nrd_switch_core_new(nrd_switcher **out, TRITONSERVER_Server *core, const nrd_options *o)
{
    enum { MAX_DEPTH = 8, MAX_NODES = 100000 };
    const nrd_json_limits limits = {.max_depth = MAX_DEPTH, .max_nodes = MAX_NODES};
    const char *file = o->models_file;
    nrd_switch_spec *specs = NULL;
    nrd_error *err = NULL;
    switch_core *c = NULL;
    size_t n = 0;

    *out = NULL;
    if (!file[0]) {
        return NULL;
    }
    if (!nrd_server_wait_unloaded) {
        return bad(file, "this libtritonserver.so cannot tell when a model is gone");
    }
    if (o->control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
        return bad(file, "needs --model-control-mode=explicit");
    }
    NRD_NEW_GOTO(c, 1, err, done);
    c->core = core;
    NRD_TRY_GOTO(nrd_error_wrap(nrd_json_parse_file(&c->doc, file, &limits), "--models-file"), err, done);
    const nrd_json *root = nrd_json_root(c->doc), *list = nrd_json_get(root, "models");
    n = nrd_json_is(list, NRD_JSON_ARRAY) ? list->n : 0;
    const int64_t budget = nrd_json_get_int(root, "memory_bytes", 0);
    if (n == 0 || n > NRD_LIMIT_SWITCHED_MODELS || budget < 0) {
        err = bad(file, "expected {\"memory_bytes\": N, \"models\": [1 to 256 models]}");
        goto done;
    }
    NRD_NEW_GOTO(c->groups, n, err, done);
    NRD_NEW_GOTO(specs, n, err, done);
    c->n = n;
    for (size_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(read_spec(&specs[i], &c->groups[i], &list->child[i], file), err, done);
        for (size_t k = 0; k < i; k++) {
            if (!strcmp(specs[k].name, specs[i].name) || !strcmp(specs[k].load, specs[i].load)) {
                err = bad(file, "two models of one name");
                goto done;
            }
        }
    }
    NRD_TRY_GOTO(pin(specs, n, &o->pins), err, done);
    const nrd_switch_config cfg = {
        .ops = {.user = c, .load = load_model, .unload = unload_model, .size = size_of, .is_ready = is_ready,
                .free_user = core_free},
        .budget_bytes = o->model_memory_gb > 0 ? (uint64_t)(o->model_memory_gb * 1e9) : (uint64_t)budget,
        .keep_ns = o->keep_ns,
        .wait_ns = (uint64_t)o->model_wait_secs * 1000000000u,
    };
    NRD_TRY_GOTO(nrd_switcher_new(out, &cfg, specs, n), err, done);
    c = NULL; /* the switcher's */
    err = load_ahead(*out, o->preload);
    if (err) {
        nrd_switcher_free(*out);
        *out = NULL;
    }
done:
    for (size_t i = 0; specs && i < n; i++) {
        free((void *)(uintptr_t)specs[i].aliases);
    }
    free(specs);
    core_free(c);
    return err;
}
