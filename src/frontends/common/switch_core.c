/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/switch_core.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "frontends/common/error.h"
#include "nereid/server.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#pragma weak nrd_server_wait_unloaded /* another core may lack it */

/* ---- the core ---- */

enum { UNLOAD_SECS = 600 };

/* The models that one load brings, by their names in the core. */
typedef struct group {
    char *load;
    char **parts;
    size_t n_parts;
} group;

typedef struct switch_core {
    TRITONSERVER_Server *core;
    nrd_switcher *switcher; /* borrows */
    atomic_size_t n; /* grows by pulls, one at a time */
    pthread_mutex_t adding;
    group groups[NRD_LIMIT_SWITCHED_MODELS];
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
    for (size_t i = 0; g && i < g->n_parts; i++) {
        gone = nrd_server_wait_unloaded(c->core, g->parts[i], UNLOAD_SECS * 1000000000ull) && gone;
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
        for (size_t i = 0; g && i < g->n_parts; i++) {
            bytes += reserved_of(copy, g->parts[i]);
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

static void free_group(group *g)
{
    for (size_t i = 0; i < g->n_parts; i++) {
        free(g->parts[i]);
    }
    free(g->parts);
    free(g->load);
    memset(g, 0, sizeof *g);
}

static nrd_error *read_group(group *g, const nrd_json *v)
{
    const nrd_json *parts = nrd_json_get(v, "parts");
    nrd_error *err = NULL;

    NRD_DUP_GOTO(g->load, nrd_json_get_str(v, "load", ""), err, fail);
    NRD_NEW_GOTO(g->parts, nrd_json_len(parts), err, fail);
    for (size_t i = 0; i < nrd_json_len(parts); i++) {
        NRD_DUP_GOTO(g->parts[i], nrd_json_str(&parts->child[i], ""), err, fail);
        g->n_parts++;
    }
    return NULL;
fail:
    free_group(g);
    return err;
}

/* spec->aliases is the caller's, who frees it; the rest of *spec borrows from v. file: where it is written. */
static nrd_error *read_spec(nrd_switch_spec *spec, const nrd_json *v, const char *file)
{
    const nrd_json *parts = nrd_json_get(v, "parts");
    const int64_t bytes = nrd_json_get_int(v, "memory_bytes", -1), file_bytes = nrd_json_get_int(v, "file_bytes", 0);

    spec->name = nrd_json_get_str(v, "name", "");
    spec->load = nrd_json_get_str(v, "load", "");
    if (!spec->name[0] || !spec->load[0] || bytes < 0 || file_bytes < 0) {
        return bad(file, "a model needs \"name\", \"load\" and \"memory_bytes\"");
    }
    if (parts && !nrd_json_is(parts, NRD_JSON_ARRAY)) {
        return bad(file, "\"parts\" is a list of names");
    }
    spec->bytes = (uint64_t)bytes;
    spec->file_bytes = (uint64_t)file_bytes;
    const char **aliases = calloc(nrd_json_len(parts) + 1, sizeof *aliases);
    if (!aliases) {
        return nrd_error_no_memory();
    }
    spec->aliases = aliases;
    aliases[spec->n_aliases++] = spec->load;
    for (size_t i = 0; i < nrd_json_len(parts); i++) {
        if (!nrd_json_is(&parts->child[i], NRD_JSON_STRING)) {
            return bad(file, "\"parts\" holds names");
        }
        aliases[spec->n_aliases++] = parts->child[i].str;
    }
    return NULL;
}

static void free_aliases(nrd_switch_spec *spec)
{
    free((void *)(uintptr_t)spec->aliases);
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
        for (size_t i = 0; i < c->n; i++) {
            free_group(&c->groups[i]);
        }
        pthread_mutex_destroy(&c->adding);
        free(c);
    }
}

/* What is asked to be there from the start. */
static nrd_error *load_ahead(nrd_switcher *s, bool all)
{
    for (int pass = 0; pass < 2; pass++) { /* pinned ones first: they have to fit */
        for (nrd_switch_model *m = nrd_switcher_next(s, NULL); m; m = nrd_switcher_next(s, m)) {
            nrd_switch_info info;
            nrd_switcher_info(s, m, &info);
            if (info.pinned == (pass == 0) && (info.pinned || (all && nrd_switcher_has_room(s, m)))) {
                NRD_TRY(nrd_switcher_load(s, m));
            }
        }
    }
    return NULL;
}

/* ---- models that come and go by order ---- */

/* What one load brings; a model that was here before has it still. */
static nrd_error *add_group(switch_core *c, const nrd_json *model)
{
    group g = {.load = NULL};

    if (group_of(c, nrd_json_get_str(model, "load", ""))) {
        return NULL;
    }
    if (c->n == NRD_LIMIT_SWITCHED_MODELS) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "this server has had %d models, which is the most", (int)NRD_LIMIT_SWITCHED_MODELS);
    }
    NRD_TRY(read_group(&g, model));
    c->groups[c->n] = g;
    c->n++; /* now others see it */
    return NULL;
}

static nrd_error *add_made(void *user, const nrd_json *made)
{
    switch_core *c = user;
    const nrd_json *model = nrd_json_get(made, "model");
    const char *repository = nrd_json_get_str(made, "repository", "");
    nrd_switch_spec spec = {.name = NULL};

    nrd_error *err = read_spec(&spec, model, "a pulled model");
    if (!err) {
        pthread_mutex_lock(&c->adding);
        err = add_group(c, model);
        err = err ? err : nrd_from_triton(TRITONSERVER_ServerRegisterModelRepository(c->core, repository, NULL, 0));
        nrd_error *late = err ? NULL : nrd_switcher_add(c->switcher, &spec);
        if (late) {
            nrd_error_free(nrd_from_triton(TRITONSERVER_ServerUnregisterModelRepository(c->core, repository)));
        }
        err = err ? err : late;
        pthread_mutex_unlock(&c->adding);
    }
    free_aliases(&spec);
    return err;
}

typedef struct sleeping {
    nrd_switch_ticket ticket;
    sem_t over;
} sleeping;

static void on_asleep(nrd_switch_ticket *t)
{
    sem_post(&((sleeping *)t->user)->over);
}

/* Waits until its memory is free. */
static nrd_error *put_to_sleep(nrd_switcher *s, nrd_switch_model *m)
{
    sleeping w = {.ticket = {.done = on_asleep, .user = &w}};
    bool now = false;

    sem_init(&w.over, 0, 0);
    nrd_error *err = nrd_switcher_sleep(s, m, &w.ticket, &now);
    if (!err && !now) {
        while (sem_wait(&w.over) != 0) { /* a signal */
        }
        err = w.ticket.err;
    }
    sem_destroy(&w.over);
    return err;
}

static nrd_error *remove_made(void *user, const nrd_json *made)
{
    switch_core *c = user;
    const char *name = nrd_json_get_str(nrd_json_get(made, "model"), "name", "");
    nrd_switch_model *m = nrd_switcher_find(c->switcher, name);

    if (!m) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "The model `%s` does not exist", name);
    }
    nrd_error *err = put_to_sleep(c->switcher, m);
    err = err ? err : nrd_switcher_forget(c->switcher, m);
    if (err) {
        nrd_switcher_wake(c->switcher, m); /* it stays */
        return err;
    }
    return nrd_from_triton(TRITONSERVER_ServerUnregisterModelRepository(c->core, nrd_json_get_str(made, "repository", "")));
}

/* ---- life ---- */

/* The models of the file; specs and c->groups get them. */
static nrd_error *read_models(switch_core *c, nrd_switch_spec *specs, const nrd_json *list, const char *file)
{
    for (size_t i = 0; i < list->n; i++) {
        NRD_TRY(read_spec(&specs[i], &list->child[i], file));
        for (size_t k = 0; k < i; k++) {
            if (!strcmp(specs[k].name, specs[i].name) || !strcmp(specs[k].load, specs[i].load)) {
                return bad(file, "two models of one name");
            }
        }
        NRD_TRY(read_group(&c->groups[i], &list->child[i]));
        c->n = i + 1;
    }
    return NULL;
}

/* Models that earlier servers pulled. One that cannot be had does not keep this server from starting. */
static void add_pulled(switch_core *c, nrd_puller *p, const nrd_json *list)
{
    for (size_t i = 0; nrd_json_is(list, NRD_JSON_ARRAY) && i < list->n; i++) {
        const nrd_json *made = &list->child[i];
        nrd_error *err = add_made(c, made);
        err = err ? err : nrd_puller_know(p, made);
        if (err) {
            NRD_LOG_WARN("a model that was pulled is not served: %s: %s", nrd_json_get_str(nrd_json_get(made, "model"), "name", "?"),
                         nrd_error_message(err));
            nrd_error_free(err);
        }
    }
}

static nrd_error *new_puller(nrd_puller **out, switch_core *c, const nrd_json *command, const nrd_options *o)
{
    const nrd_puller_ops ops = {.user = c, .add = add_made, .remove = remove_made};
    const bool may = o->allow_pull && nrd_json_is(command, NRD_JSON_ARRAY) && command->n > 0;
    return may ? nrd_puller_new(out, &ops, command) : NULL;
}

nrd_error *nrd_switch_core_new(nrd_switcher **out, nrd_puller **out_puller, TRITONSERVER_Server *core, const nrd_options *o)
{
    enum { MAX_DEPTH = 8, MAX_NODES = 100000 };
    const nrd_json_limits limits = {.max_depth = MAX_DEPTH, .max_nodes = MAX_NODES};
    const char *file = o->models_file;
    nrd_json_doc *doc = NULL;
    nrd_switch_spec *specs = NULL;
    nrd_error *err = NULL;
    switch_core *c = NULL;
    size_t n = 0;

    *out = NULL;
    *out_puller = NULL;
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
    pthread_mutex_init(&c->adding, NULL);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_json_parse_file(&doc, file, &limits), "--models-file"), err, done);
    const nrd_json *root = nrd_json_root(doc), *list = nrd_json_get(root, "models");
    n = nrd_json_is(list, NRD_JSON_ARRAY) ? list->n : 0;
    const int64_t budget = nrd_json_get_int(root, "memory_bytes", 0);
    if (n == 0 || n > NRD_LIMIT_SWITCHED_MODELS || budget < 0) {
        err = bad(file, "expected {\"memory_bytes\": N, \"models\": [1 to 256 models]}");
        goto done;
    }
    NRD_NEW_GOTO(specs, n, err, done);
    NRD_TRY_GOTO(read_models(c, specs, list, file), err, done);
    NRD_TRY_GOTO(pin(specs, n, &o->pins), err, done);
    const nrd_switch_config cfg = {
        .ops = {.user = c, .load = load_model, .unload = unload_model, .size = size_of, .is_ready = is_ready,
                .free_user = core_free},
        .budget_bytes = o->model_memory_gb > 0 ? (uint64_t)(o->model_memory_gb * 1e9) : (uint64_t)budget,
        .keep_ns = o->keep_ns,
        .wait_ns = (uint64_t)o->model_wait_secs * 1000000000u,
    };
    NRD_TRY_GOTO(nrd_switcher_new(out, &cfg, specs, n), err, done);
    c->switcher = *out;
    err = new_puller(out_puller, c, nrd_json_get(root, "pull"), o);
    err = err ? err : load_ahead(*out, o->preload);
    if (!err && *out_puller) {
        add_pulled(c, *out_puller, nrd_json_get(root, "pulled"));
    }
    c = NULL; /* the switcher's */
    if (err) {
        nrd_puller_free(*out_puller);
        nrd_switcher_free(*out);
        *out_puller = NULL;
        *out = NULL;
    }
done:
    for (size_t i = 0; specs && i < n; i++) {
        free_aliases(&specs[i]);
    }
    free(specs);
    core_free(c);
    nrd_json_doc_free(doc);
    return err;
}
