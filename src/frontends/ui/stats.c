/* SPDX-License-Identifier: Apache-2.0
 * GET /ui/stats: the repository's index, the models' statistics and the registry of metrics, brought
 * into the shape that a live view draws. Counters are cumulative; a viewer takes differences. */
#include "frontends/ui/internal.h"

#include "base/clock.h"
#include "frontends/common/message.h"
#include "frontends/common/registry.h"
#include "nereid/server.h"

#include <math.h>
#include <string.h>

typedef nrd_registry_label label;

/* A thousandth is the finest that a view shows. */
static void put_num(nrd_str *out, double v)
{
    double rounded = round(v * 1e3) / 1e3;
    if (fabs(v) < 1e15 && rounded == floor(rounded)) {
        nrd_str_printf(out, "%lld", (long long)rounded);
    } else {
        nrd_json_put_double(out, rounded); /* null for what is no number */
    }
}

static void put_member(nrd_str *out, const char *name, double v)
{
    nrd_str_printf(out, ",\"%s\":", name);
    put_num(out, v);
}

static void put_string_member(nrd_str *out, const char *name, const char *v)
{
    nrd_str_printf(out, ",\"%s\":", name);
    nrd_json_put_cstr(out, v);
}

/* ---- engines ---- */

typedef struct engine {
    const nrd_json *metrics;
    const char *model, *version;
} engine;

static double gauge(const engine *e, const char *family, const char *name, const char *word)
{
    const label want[] = {{"model", e->model}, {"version", e->version}, {name, word}};
    return nrd_registry_value(nrd_registry_series(e->metrics, family, want, 3));
}

static const nrd_json *observed(const engine *e, const char *family)
{
    const label want[] = {{"model", e->model}, {"version", e->version}};
    return nrd_registry_series(e->metrics, family, want, 2);
}

static void put_gauges(nrd_str *out, const engine *e, const char *as, const char *family,
                       const char *name, const char *const *words, size_t n)
{
    nrd_str_printf(out, ",\"%s\":{", as);
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%s\"%s\":", i ? "," : "", words[i]);
        put_num(out, gauge(e, family, name, words[i]));
    }
    nrd_str_putc(out, '}');
}

/* Quantiles of the last minute, and how many values there ever were. */
static void put_window(nrd_str *out, const char *as, const nrd_json *hist)
{
    static const char *const words[] = {"p50", "p90", "p99"};
    const nrd_json *w = nrd_json_get(hist, "window");

    nrd_str_printf(out, ",\"%s\":{\"total\":%lld,\"n\":%lld", as,
                   (long long)nrd_json_get_int(hist, "count", 0),
                   (long long)nrd_json_get_int(w, "n", 0));
    for (size_t i = 0; i < 3; i++) {
        put_member(out, words[i], nrd_json_get_num(w, words[i], (double)NAN)); /* null: no values */
    }
    nrd_str_putc(out, '}');
}

/* The newest steps, oldest first: parallel lists. They are observed together, but another thread may
 * stand between two of them, so only steps that all four know are shown. */
static void put_steps(nrd_str *out, const engine *e)
{
    static const struct {
        const char *as, *family;
    } columns[] = {{"ms", "nv_llm_step_ms"},
                   {"idle_ms", "nv_llm_step_idle_ms"},
                   {"prompt_tokens", "nv_llm_step_prompt_tokens"},
                   {"generated_tokens", "nv_llm_step_generated_tokens"}};
    enum { N = sizeof columns / sizeof *columns };
    const nrd_json *lists[N];
    int64_t first[N], begin = 0, end = INT64_MAX;

    for (size_t k = 0; k < N; k++) {
        const nrd_json *h = observed(e, columns[k].family);
        int64_t count = nrd_json_get_int(h, "count", 0);
        lists[k] = nrd_json_get(h, "recent");
        first[k] = count - (int64_t)nrd_json_len(lists[k]);
        begin = first[k] > begin ? first[k] : begin;
        end = count < end ? count : end;
    }
    end = end < begin ? begin : end;
    nrd_str_printf(out, ",\"steps\":{\"first\":%lld,\"n\":%lld", (long long)begin,
                   (long long)(end - begin));
    for (size_t k = 0; k < N; k++) {
        nrd_str_printf(out, ",\"%s\":[", columns[k].as);
        for (int64_t i = begin; i < end; i++) {
            nrd_str_puts(out, i > begin ? "," : "");
            put_num(out, nrd_json_num(nrd_json_at(lists[k], (size_t)(i - first[k])), 0));
        }
        nrd_str_putc(out, ']');
    }
    nrd_str_putc(out, '}');
}

/* In the order in which the model registered them, that of their numbers. */
static void put_ranks(nrd_str *out, const engine *e)
{
    const nrd_json *list = nrd_json_get(e->metrics, "nv_llm_rank_info");
    bool first = true;

    nrd_str_puts(out, ",\"ranks\":[");
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *labels = nrd_json_get(&list->child[i], "labels");
        long long rank;
        if (strcmp(nrd_json_get_str(labels, "model", ""), e->model) == 0 &&
            strcmp(nrd_json_get_str(labels, "version", ""), e->version) == 0 &&
            nrd_parse_i64(nrd_json_get_str(labels, "rank", ""), &rank)) {
            nrd_str_printf(out, "%s{\"rank\":%lld,\"host\":", first ? "" : ",", rank);
            nrd_json_put_cstr(out, nrd_json_get_str(labels, "host", ""));
            nrd_str_putc(out, '}');
            first = false;
        }
    }
    nrd_str_putc(out, ']');
}

static void put_engine(nrd_str *out, const engine *e, nrd_models *models)
{
    static const char *const requests[] = {"active", "waiting", "scheduled", "context", "max"};
    static const char *const blocks[] = {"max", "used", "free", "reused", "tokens_per"};
    static const char *const memory[] = {"cpu", "gpu", "pinned", "reserved"};
    nrd_str name = {0};

    nrd_str_puts(out, "{\"model\":");
    nrd_json_put_cstr(out, e->model);
    nrd_str_puts(out, ",\"version\":");
    nrd_json_put_cstr(out, e->version);
    nrd_registry_put_name(&name, models, e->model);
    put_string_member(out, "name", nrd_str_cstr(&name));
    nrd_str_fini(&name);
    put_gauges(out, e, "requests", "nv_trt_llm_request_metrics", "request_type", requests, 5);
    put_gauges(out, e, "kv_blocks", "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", blocks,
               5);
    put_gauges(out, e, "memory_bytes", "nv_trt_llm_runtime_memory_metrics", "memory_type", memory, 4);
    put_member(out, "max_seq_len", nrd_registry_value(observed(e, "nv_llm_max_seq_len")));
    put_member(out, "paused", gauge(e, "nv_trt_llm_inflight_batcher_metrics",
                                    "inflight_batcher_specific_metric", "paused_requests"));
    /* Microseconds of the wall clock as milliseconds: the end of the newest step. */
    put_member(out, "last_step_ms",
               gauge(e, "nv_trt_llm_general_metrics", "general_type", "timestamp") / 1e3);
    put_member(out, "prompt_tokens",
               nrd_json_get_num(observed(e, "nv_llm_step_prompt_tokens"), "sum", 0));
    put_member(out, "generated_tokens",
               nrd_json_get_num(observed(e, "nv_llm_step_generated_tokens"), "sum", 0));
    put_member(out, "busy_ms", nrd_json_get_num(observed(e, "nv_llm_step_ms"), "sum", 0));
    put_window(out, "first_token_ms", observed(e, "nv_llm_time_to_first_token_ms"));
    put_window(out, "inter_token_ms", observed(e, "nv_llm_inter_token_ms"));
    put_window(out, "step_ms", observed(e, "nv_llm_step_ms"));
    put_steps(out, e);
    put_ranks(out, e);
    nrd_str_putc(out, '}');
}

static void put_engines(nrd_str *out, const nrd_json *metrics, nrd_models *models)
{
    const nrd_json *list = nrd_json_get(metrics, "nv_trt_llm_general_metrics");
    bool first = true;

    nrd_str_puts(out, ",\"engines\":[");
    for (size_t i = 0; i < nrd_json_len(list); i++) { /* one such series for each engine */
        const nrd_json *labels = nrd_json_get(&list->child[i], "labels");
        const engine e = {metrics, nrd_json_get_str(labels, "model", ""),
                          nrd_json_get_str(labels, "version", "")};
        if (!strcmp(nrd_json_get_str(labels, "general_type", ""), "timestamp")) {
            nrd_str_puts(out, first ? "" : ",");
            put_engine(out, &e, models);
            first = false;
        }
    }
    nrd_str_putc(out, ']');
}

/* ---- models ---- */

static const nrd_json *stats_of(const nrd_json *all, const char *name, const char *version)
{
    const nrd_json *list = nrd_json_get(all, "model_stats");
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *m = &list->child[i];
        if (!strcmp(nrd_json_get_str(m, "name", ""), name) &&
            !strcmp(nrd_json_get_str(m, "version", ""), version)) {
            return m;
        }
    }
    return NULL;
}

static void put_model(nrd_str *out, const nrd_json *row, const nrd_json *stats, const nrd_json *metrics)
{
    const char *name = nrd_json_get_str(row, "name", "");
    const char *version = nrd_json_get_str(row, "version", "");
    const nrd_json *s = stats_of(stats, name, version);
    const nrd_json *times = nrd_json_get(s, "inference_stats");
    const nrd_json *success = nrd_json_get(times, "success"), *queue = nrd_json_get(times, "queue");
    const label want[] = {{"model", name}, {"version", version}};

    nrd_str_puts(out, "{\"name\":");
    nrd_json_put_cstr(out, name);
    put_string_member(out, "version", version);
    put_string_member(out, "state", nrd_json_get_str(row, "state", "")); /* "": never loaded */
    put_string_member(out, "reason", nrd_json_get_str(row, "reason", ""));
    put_member(out, "succeeded", nrd_json_get_num(success, "count", 0));
    put_member(out, "failed", nrd_json_get_num(nrd_json_get(times, "fail"), "count", 0));
    put_member(out, "executions", nrd_json_get_num(s, "execution_count", 0));
    put_member(out, "request_ms_sum", nrd_json_get_num(success, "ns", 0) / 1e6);
    put_member(out, "queue_ms_sum", nrd_json_get_num(queue, "ns", 0) / 1e6);
    put_member(out, "pending",
               nrd_registry_value(nrd_registry_series(metrics, "nv_inference_pending_request_count", want, 2)));
    nrd_str_putc(out, '}');
}

static nrd_error *put_models(nrd_str *out, TRITONSERVER_Server *server, const nrd_json *metrics)
{
    nrd_json_doc *index = NULL, *stats = NULL;
    TRITONSERVER_Message *m = NULL;
    nrd_error *err = NULL;

    TRITONSERVER_Error *e = TRITONSERVER_ServerModelIndex(server, 0, &m);
    NRD_TRY_GOTO(nrd_from_message(&index, e, m), err, done);
    m = NULL;
    e = TRITONSERVER_ServerModelStatistics(server, "", -1, &m);
    NRD_TRY_GOTO(nrd_from_message(&stats, e, m), err, done);
    const nrd_json *rows = nrd_json_root(index);
    nrd_str_puts(out, ",\"models\":[");
    for (size_t i = 0; i < nrd_json_len(rows); i++) {
        nrd_str_puts(out, i ? "," : "");
        put_model(out, &rows->child[i], nrd_json_root(stats), metrics);
    }
    nrd_str_putc(out, ']');

done:
    nrd_json_doc_free(index);
    nrd_json_doc_free(stats);
    return err;
}

/* ---- the machine ---- */

static void put_machine(nrd_str *out, const nrd_json *metrics)
{
    static const struct {
        const char *as, *family;
    } gpu[] = {{"load", "nv_gpu_utilization"},
               {"memory_used_bytes", "nv_gpu_memory_used_bytes"},
               {"memory_total_bytes", "nv_gpu_memory_total_bytes"},
               {"power_watts", "nv_gpu_power_usage"},
               {"power_limit_watts", "nv_gpu_power_limit"}};
    const nrd_json *cpu = nrd_json_get(metrics, "nv_cpu_utilization");
    const nrd_json *gpus = nrd_json_get(metrics, "nv_gpu_memory_total_bytes");

    nrd_str_puts(out, ",\"cpu\":");
    if (nrd_json_len(cpu) > 0) {
        nrd_str_puts(out, "{\"load\":");
        put_num(out, nrd_registry_value(nrd_json_at(cpu, 0)));
        put_member(out, "memory_used_bytes",
                   nrd_registry_value(nrd_registry_series(metrics, "nv_cpu_memory_used_bytes", NULL, 0)));
        put_member(out, "memory_total_bytes",
                   nrd_registry_value(nrd_registry_series(metrics, "nv_cpu_memory_total_bytes", NULL, 0)));
        nrd_str_putc(out, '}');
    } else {
        nrd_str_puts(out, "null");
    }
    nrd_str_puts(out, ",\"gpus\":[");
    for (size_t i = 0; i < nrd_json_len(gpus); i++) {
        const label uuid = {"gpu_uuid", nrd_json_get_str(nrd_json_get(&gpus->child[i], "labels"),
                                                         "gpu_uuid", "")};
        nrd_str_puts(out, i ? ",{\"uuid\":" : "{\"uuid\":");
        nrd_json_put_cstr(out, uuid.value);
        for (size_t k = 0; k < sizeof gpu / sizeof *gpu; k++) {
            const nrd_json *one = nrd_registry_series(metrics, gpu[k].family, &uuid, 1);
            put_member(out, gpu[k].as, one ? nrd_registry_value(one) : (double)NAN); /* null: it has no such */
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, ']');
}

/* The threads that take long work off the event loops. */
static void put_workers(nrd_str *out, const nrd_front *front)
{
    const nrd_workers_stats w = nrd_workers_look(front->workers);
    nrd_str_printf(out, ",\"workers\":{\"waiting\":%zu,\"running\":%zu,\"done\":%llu", w.n_waiting,
                   w.n_running, (unsigned long long)w.n_done);
    put_member(out, "wait_ms", (double)w.wait_ns / 1e6);
    put_member(out, "run_ms", (double)w.run_ns / 1e6);
    nrd_str_putc(out, '}');
}

nrd_error *nrd_ui_put_stats(nrd_str *out, const nrd_http_api *api, uint64_t since_ns)
{
    static const char *const modes[] = {[TRITONSERVER_MODEL_CONTROL_NONE] = "none",
                                        [TRITONSERVER_MODEL_CONTROL_POLL] = "poll",
                                        [TRITONSERVER_MODEL_CONTROL_EXPLICIT] = "explicit"};
    const nrd_options *o = api->options;
    nrd_json_doc *doc = NULL;

    NRD_TRY(nrd_registry_read(&doc, api->server));
    const nrd_json *metrics = nrd_json_root(doc);
    nrd_str_puts(out, "{\"server\":");
    nrd_json_put_cstr(out, o->id);
    put_string_member(out, "version", NRD_VERSION);
    put_member(out, "time_ms", (double)(nrd_wall_us() / 1000u));
    put_member(out, "uptime_ms", (double)((nrd_now_ns() - since_ns) / 1000000u));
    put_string_member(out, "control", modes[o->control_mode]);
    nrd_str_printf(out, ",\"openai\":%s,\"needs_key\":%s,\"metrics\":%s,\"pull\":%s",
                   o->allow_openai ? "true" : "false",
                   o->api_keys.n > 0 || o->api_key_file[0] ? "true" : "false",
                   doc ? "true" : "false", api->front->puller ? "true" : "false");
    nrd_error *err = put_models(out, api->server, metrics);
    put_engines(out, metrics, api->front->models);
    put_machine(out, metrics);
    put_workers(out, api->front);
    nrd_str_putc(out, '}');
    nrd_json_doc_free(doc);
    return err;
}
