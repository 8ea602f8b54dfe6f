/* SPDX-License-Identifier: Apache-2.0
 * The server object. Life: made from its options -> threads start (finalizer, housekeeping) ->
 * models are loaded -> serving -> stop: new requests are refused, running ones get the exit
 * time-out, models are unloaded, threads end. The tables that are logged at the start are here too.
 * Called through api_server.c. */
#include "core/server.h"

#include "core/agent.h"
#include "core/backend.h"
#include "core/cache.h"
#include "core/catalog.h"
#include "core/claim.h"
#include "core/gpu_metrics.h"
#include "core/host_metrics.h"
#include "core/memory.h"
#include "core/model_internal.h"
#include "core/model_load.h"
#include "core/options.h"
#include "core/repo/repository.h"
#include "core/sched/rate_limiter.h"
#include "core/sched/scheduler.h"
#include "core/server_internal.h"
#include "core/strings.h"
#include "core/table.h"
#include "core/trim.h"
#include "core/wakeup.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/queue.h"
#include "base/str.h"
#include "nereid/server.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef NRD_VERSION
#define NRD_VERSION "0"
#endif

const char *const nrd_server_extensions[] = {"classification",
                                             "sequence",
                                             "model_repository",
                                             "model_repository(unload_dependents)",
                                             "schedule_policy",
                                             "model_configuration",
                                             "system_shared_memory",
                                             "cuda_shared_memory",
                                             "binary_tensor_data",
                                             "parameters",
                                             "statistics",
                                             "trace",
                                             "logging",
                                             NULL};

/* ---- the start-up log ---- */

static void print_backends(nrd_server *s)
{
    nrd_strings cells = {0};
    nrd_str table = {0};

    nrd_strings_add(&cells, "Repository Agent");
    nrd_strings_add(&cells, "Path");
    nrd_agents_list(&cells);
    nrd_table_put(&table, (const char *const *)cells.items, cells.n / 2, 2);
    NRD_LOG_INFO_LINES(nrd_str_cstr(&table));
    nrd_str_clear(&table);
    nrd_strings_fini(&cells);
    nrd_strings_add(&cells, "Backend");
    nrd_strings_add(&cells, "Path");
    nrd_strings_add(&cells, "Config");
    nrd_backends_list(s->ctx.backends, &cells);
    nrd_table_put(&table, (const char *const *)cells.items, cells.n / 3, 3);
    NRD_LOG_INFO_LINES(nrd_str_cstr(&table));
    nrd_str_fini(&table);
    nrd_strings_fini(&cells);
}

static void add_option(nrd_strings *cells, const char *name, char *owned_value)
{
    nrd_strings_add(cells, name);
    nrd_strings_add(cells, owned_value);
    free(owned_value);
}

static int by_device_and_name(const void *a, const void *b)
{
    const nrd_setting *x = *(const nrd_setting *const *)a, *y = *(const nrd_setting *const *)b;
    const long long dx = strcmp(x->scope, "all") == 0 ? -1 : strtoll(x->scope, NULL, 10);
    const long long dy = strcmp(y->scope, "all") == 0 ? -1 : strtoll(y->scope, NULL, 10);

    return dx != dy ? (dx > dy) - (dx < dy) : strcmp(x->key, y->key);
}

/* A row for each resource of the rate limiter. The text lacks a comma as Triton's does. */
static void add_resources(nrd_strings *cells, const nrd_setting *list)
{
    const nrd_setting **sorted = NULL;
    char name[64];
    size_t n = 0;

    for (const nrd_setting *p = list; p; p = p->next) {
        sorted = nrd_xrealloc(sorted, (n + 1) * sizeof *sorted);
        sorted[n++] = p;
    }
    if (n > 0) {
        qsort(sorted, n, sizeof *sorted, by_device_and_name);
    }
    for (size_t i = 0; i < n; i++) {
        const char *device = strcmp(sorted[i]->scope, "all") == 0 ? "-1" : sorted[i]->scope;
        snprintf(name, sizeof name, "rate_limit_resource[%zu]", i);
        add_option(cells, name,
                   nrd_xasprintf("{\"name\":\"%s\", \"count\":%s \"device\":%s}", sorted[i]->key,
                                 sorted[i]->value, device));
    }
    free(sorted);
}

static void print_options(nrd_server *s)
{
    static const char *const modes[] = {"MODE_NONE", "MODE_POLL", "MODE_EXPLICIT"};
    const nrd_server_options *o = &s->ctx.opt;
    nrd_strings cells = {0};
    nrd_str text = {0};
    char name[64];

    nrd_strings_add(&cells, "Option");
    nrd_strings_add(&cells, "Value");
    add_option(&cells, "server_id", nrd_xstrdup(o->server_id));
    add_option(&cells, "server_version", nrd_xstrdup(NRD_TRITON_VERSION));
    for (size_t i = 0; nrd_server_extensions[i]; i++) {
        nrd_str_puts(&text, i ? " " : "");
        nrd_str_puts(&text, nrd_server_extensions[i]);
    }
    add_option(&cells, "server_extensions", nrd_str_steal(&text));
    for (size_t i = 0; i < o->repositories.n; i++) {
        snprintf(name, sizeof name, "model_repository_path[%zu]", i);
        add_option(&cells, name, nrd_xstrdup(o->repositories.items[i]));
    }
    add_option(&cells, "model_control_mode", nrd_xstrdup(modes[o->control_mode]));
    for (size_t i = 0; i < o->startup_models.n; i++) {
        snprintf(name, sizeof name, "startup_models_%zu", i);
        add_option(&cells, name, nrd_xstrdup(o->startup_models.items[i]));
    }
    add_option(&cells, "strict_model_config", nrd_xasprintf("%d", o->strict_config));
    add_option(&cells, "model_config_name", nrd_xstrdup(o->config_name));
    const bool limited = o->rate_limit == TRITONSERVER_RATE_LIMIT_EXEC_COUNT;
    add_option(&cells, "rate_limit", nrd_xstrdup(limited ? "EXEC_COUNT" : "OFF"));
    add_resources(&cells, o->resources);
    add_option(&cells, "pinned_memory_pool_byte_size",
               nrd_xasprintf("%" PRIu64, o->pinned_pool_bytes));
    for (const nrd_setting *p = o->cuda_pools; p; p = p->next) {
        snprintf(name, sizeof name, "cuda_memory_pool_byte_size{%s}", p->key);
        add_option(&cells, name, nrd_xstrdup(p->value));
    }
    nrd_number_print(name, sizeof name, "%.1f", o->min_compute_capability);
    add_option(&cells, "min_supported_compute_capability", nrd_xstrdup(name));
    add_option(&cells, "strict_readiness", nrd_xasprintf("%d", o->strict_readiness));
    add_option(&cells, "exit_timeout", nrd_xasprintf("%u", o->exit_timeout_s));
    add_option(&cells, "cache_enabled", nrd_xstrdup(o->cache_config ? "1" : "0"));
    nrd_str_fini(&text);
    nrd_table_put(&text, (const char *const *)cells.items, cells.n / 2, 2);
    NRD_LOG_INFO_LINES(nrd_str_cstr(&text));
    nrd_str_fini(&text);
    nrd_strings_fini(&cells);
}

/* ---- threads ---- */

/* Ends models whose last share was given back, and takes failed ones out of the repository. Never a
 * thread of the model itself: it joins them. */
static void *run_finalizer(void *arg)
{
    nrd_server *s = arg;
    nrd_model *m;

    pthread_setname_np(pthread_self(), "finalizer");
    while ((m = nrd_queue_pop(s->ctx.to_finalize, UINT64_MAX)) != NULL) {
        if (m->failed) {
            m->failed = false;
            nrd_repo_remove_failed(s->repo, m);
        } else {
            nrd_model_destroy(m);
        }
    }
    return NULL;
}

static void sweep_model(void *user, nrd_model *m)
{
    (void)user;
    nrd_scheduler_sweep(m->scheduler);
}

/* Sweeps queues (cancelled, expired and idle requests), also while all workers are busy, and
 * refreshes the metrics of the machine. */
static void *run_housekeeping(void *arg)
{
    const uint64_t sweep_ns = 50 * 1000000u; /* how late a queue time-out may be noticed */
    nrd_server *s = arg;
    nrd_repo_room room = {0}; /* the sweep takes memory only where there are more models than ever */
    nrd_trim trim = {0};
    uint64_t next_update = 0;

    pthread_setname_np(pthread_self(), "housekeeping");
    while (nrd_wakeup_wait(&s->ctx.housekeeping, sweep_ns)) {
        nrd_error_free(nrd_repo_each_in(s->repo, NULL, &room, sweep_model, NULL)); /* else the next time */
        nrd_trim_look(&trim, nrd_now_ns(), nrd_server_claimed());
        if (nrd_now_ns() >= next_update) {
            nrd_host_metrics_update(s->host_metrics);
            nrd_gpu_metrics_update(s->gpu_metrics);
            next_update = nrd_now_ns() + s->ctx.opt.metrics_interval_ms * 1000000u;
        }
    }
    free(room.models);
    return NULL;
}

/* Options of the published server that have no effect here: setting one is logged as a warning. */
static void warn_of_idle_options(const nrd_server_options *o)
{
    if (o->buffer_threads > 0) {
        NRD_LOG_WARN("buffer-manager-thread-count=%u has no effect: tensors are passed on without "
                     "being copied together",
                     o->buffer_threads);
    }
    if (!o->peer_access) {
        NRD_LOG_WARN("enable-peer-access=false has no effect: the server copies nothing between "
                     "GPUs, backends do as they like");
    }
    for (const nrd_setting *p = o->cuda_pools; p; p = p->next) {
        NRD_LOG_WARN("cuda-memory-pool-byte-size=%s:%s has no effect: the server keeps no GPU "
                     "memory, backends take their own",
                     p->key, p->value);
    }
}

/* ---- life ---- */

static nrd_error *open_cache(nrd_server *s)
{
    const nrd_setting *c = s->ctx.opt.cache_config;

    if (!c) {
        return NULL;
    }
    if (c->next) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "found multiple cache configurations, but only a "
                                               "single cache is currently supported");
    }
    return nrd_cache_open(&s->ctx.cache, c->scope, s->ctx.opt.cache_dir, c->value);
}

static nrd_error *start_threads(nrd_server *s)
{
    if (pthread_create(&s->finalizer, NULL, run_finalizer, s) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start the server's threads");
    }
    s->has_finalizer = true;
    if (pthread_create(&s->housekeeping, NULL, run_housekeeping, s) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start the server's threads");
    }
    s->has_housekeeping = true;
    return NULL;
}

static bool shows_tables(const nrd_server_options *opt)
{
    return !opt->hides_tables || nrd_log_verbose() > 0;
}

nrd_error *nrd_server_new(nrd_server **out, const nrd_server_options *opt)
{
    nrd_server *s = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    s = nrd_xcalloc(1, sizeof *s);
    nrd_server_options_copy(&s->ctx.opt, opt);
    atomic_store(&s->state, NRD_SERVER_STARTING);
    atomic_store(&s->exit_timeout_s, opt->exit_timeout_s);
    s->ctx.server = s;
    s->ctx.backends = nrd_backends_new();
    nrd_wakeup_init(&s->ctx.housekeeping);
    NRD_TRY_GOTO(nrd_strings_error(&s->ctx.opt.repositories), err, fail);
    NRD_TRY_GOTO(nrd_strings_error(&s->ctx.opt.startup_models), err, fail);
    if (opt->repositories.n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--model-repository must be specified");
        goto fail;
    }
    warn_of_idle_options(opt);
    nrd_pinned_pool_set_size(opt->pinned_pool_bytes);
    if (opt->rate_limit == TRITONSERVER_RATE_LIMIT_EXEC_COUNT) {
        s->ctx.limiter = nrd_limiter_new(s->ctx.opt.resources);
    }
    NRD_TRY_GOTO(nrd_queue_new(&s->ctx.to_finalize, 0), err, fail);
    NRD_TRY_GOTO(open_cache(s), err, fail);
    NRD_TRY_GOTO(nrd_repo_new(&s->repo, &s->ctx), err, fail);
    s->ctx.catalog = (nrd_catalog){
        .get = nrd_repo_get, .get_step = nrd_repo_get_step, .fail = nrd_repo_fail, .repo = s->repo};
    if (opt->metrics) {
        NRD_TRY_GOTO(nrd_host_metrics_new(&s->host_metrics, opt->cpu_metrics), err, fail);
        if (opt->gpu_metrics) {
            NRD_TRY_GOTO(nrd_gpu_metrics_new(&s->gpu_metrics), err, fail);
        }
    }
    NRD_TRY_GOTO(start_threads(s), err, fail);
    NRD_TRY_GOTO(nrd_repo_check_paths(s->repo), err, fail);
    err = nrd_repo_load_startup(s->repo);
    const bool models_failed = err && nrd_error_get_code(err) == NRD_ERR_INTERNAL;
    const bool tables = shows_tables(opt);
    if (tables && (!err || models_failed)) {
        print_backends(s);
        nrd_repo_print_models(s->repo);
    }
    if (err && (!models_failed || opt->exit_on_error)) {
        goto fail;
    }
    if (opt->metrics && opt->cpu_metrics) {
        NRD_LOG_INFO("Collecting CPU metrics");
    }
    if (tables) {
        print_options(s);
    }
    if (err) {
        NRD_LOG_ERROR("Internal: %s", nrd_error_message(err));
        nrd_error_free(err);
    }
    atomic_store(&s->state, NRD_SERVER_READY);
    *out = s;
    return NULL;

fail:
    if (shows_tables(opt)) {
        print_options(s); /* they help to find the fault */
    }
    nrd_server_free(s);
    return err;
}

typedef struct busy_models {
    int n;
    bool tell;
} busy_models;

static void count_busy(void *user, nrd_model *m)
{
    busy_models *b = user;
    nrd_scheduler *sched = m->scheduler;
    const int64_t n =
        sched->ops->n_live ? (int64_t)sched->ops->n_live(sched) : atomic_load(&m->n_in_flight);

    b->n += n > 0;
    if (n > 0 && b->tell) {
        NRD_LOG_INFO("Model '%s' (version %" PRId64 ") has %" PRId64 " in-flight inferences",
                     m->name, m->version, n);
    }
}

static int busy_count(nrd_server *s, bool tell)
{
    busy_models b = {.tell = tell};
    nrd_error *err = nrd_repo_each(s->repo, NULL, count_busy, &b);
    if (err) { /* not known: ask again */
        nrd_error_free(err);
        return 1;
    }
    return b.n;
}

static void drain_model(void *user, nrd_model *m)
{
    (void)user;
    nrd_scheduler_drain(m->scheduler);
}

/* What is left, rounded up: the first line shows the whole time-out. */
static uint64_t whole_seconds(uint64_t now, uint64_t deadline)
{
    return now < deadline ? (deadline - now + 999999999u) / 1000000000u : 0;
}

static nrd_error *timed_out(void)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "Exit timeout expired. Exiting immediately.");
}

/* Requests end, and sequences that have begun, before any model is unloaded: a request may still
 * need other models (a backend's own requests). Then the models go. */
static nrd_error *wait_until_empty(nrd_server *s, uint64_t deadline)
{
    const struct timespec pause = {.tv_nsec = 2 * 1000000};
    uint64_t next_note = 0;

    for (;;) {
        uint64_t now = nrd_now_ns(), left = whole_seconds(now, deadline);
        const bool tell = now >= next_note;
        const int n = busy_count(s, false);
        if (tell) {
            NRD_LOG_INFO("Timeout %" PRIu64
                         ": Found %d model versions that have in-flight inferences",
                         left, n);
            busy_count(s, true);
            next_note = now + 1000000000u;
        }
        if (n == 0 && atomic_load(&s->ctx.n_in_flight) == 0) {
            break;
        }
        if (now >= deadline) {
            return timed_out();
        }
        nanosleep(&pause, NULL);
    }
    NRD_LOG_INFO("All models are stopped, unloading models");
    nrd_repo_unload_all(s->repo);
    next_note = 0;
    for (;;) {
        uint64_t now = nrd_now_ns(), left = whole_seconds(now, deadline);
        const int64_t n = atomic_load(&s->ctx.n_live_models);
        if (now >= next_note) {
            NRD_LOG_INFO("Timeout %" PRIu64 ": Found %" PRId64
                         " live models and 0 in-flight non-inference requests",
                         left, n);
            next_note = now + 1000000000u;
        }
        if (n == 0) {
            return NULL;
        }
        if (now >= deadline) {
            return timed_out();
        }
        nanosleep(&pause, NULL);
    }
}

nrd_error *nrd_server_stop(nrd_server *s)
{
    int was = atomic_exchange(&s->state, NRD_SERVER_EXITING);

    if (was == NRD_SERVER_STOPPED) {
        atomic_store(&s->state, NRD_SERVER_STOPPED);
        return NULL;
    }
    if (!s->repo || !s->has_finalizer) {
        return NULL;
    }
    uint64_t deadline = nrd_now_ns() + atomic_load(&s->exit_timeout_s) * 1000000000ull;
    nrd_error *err;
    NRD_LOG_INFO("Waiting for in-flight requests to complete.");
    while ((err = nrd_repo_each(s->repo, NULL, drain_model, NULL)) != NULL && nrd_now_ns() < deadline) {
        const struct timespec pause = {.tv_nsec = 10000000};
        nrd_error_free(err);
        nanosleep(&pause, NULL);
    }
    nrd_error_free(err);
    NRD_TRY(wait_until_empty(s, deadline));
    atomic_store(&s->state, NRD_SERVER_STOPPED);
    return NULL;
}

void nrd_server_free(nrd_server *s)
{
    if (!s) {
        return;
    }
    nrd_error *err = nrd_server_stop(s);
    if (err) {
        /* Requests are still out there with pointers into the server: it must stay. */
        NRD_LOG_ERROR("%s", nrd_error_message(err));
        nrd_error_free(err);
        return;
    }
    if (s->has_housekeeping) {
        nrd_wakeup_stop(&s->ctx.housekeeping);
        pthread_join(s->housekeeping, NULL);
    }
    if (s->has_finalizer) {
        nrd_queue_close(s->ctx.to_finalize);
        pthread_join(s->finalizer, NULL);
    }
    nrd_claim_check_end();
    nrd_backends_free(s->ctx.backends);
    if (s->ctx.to_finalize) {
        nrd_queue_free(s->ctx.to_finalize);
    }
    nrd_host_metrics_free(s->host_metrics);
    nrd_gpu_metrics_free(s->gpu_metrics);
    nrd_limiter_free(s->ctx.limiter);
    nrd_cache_close(s->ctx.cache);
    nrd_repo_free(s->repo);
    nrd_wakeup_fini(&s->ctx.housekeeping);
    nrd_server_options_fini(&s->ctx.opt);
    free(s);
}

nrd_context *nrd_server_context(nrd_server *s)
{
    return &s->ctx;
}

nrd_server_state nrd_server_get_state(const nrd_server *s)
{
    return (nrd_server_state)atomic_load(&s->state);
}

nrd_error *nrd_server_require_ready(nrd_server *s)
{
    return atomic_load(&s->state) == NRD_SERVER_READY
               ? NULL
               : nrd_errorf(NRD_ERR_UNAVAILABLE, "Server not ready");
}
