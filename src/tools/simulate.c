/* SPDX-License-Identifier: Apache-2.0
 * nereid simulate TABLE…: what a load would feel on engines whose steps were measured, and how many it needs.
 *
 * The scheduler is the engine's own (engine/simulate.h); only the time of a step is looked up (step_table.h). Replicas are
 * servers behind a proxy that gives requests to them in turn. */
#include "tools/load/prompts.h"
#include "tools/load/report.h"
#include "tools/step_table.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TABLES = 16, MAX_REPLICAS = 4096, MAX_REQUESTS = 10000000 };

static const char usage[] =
    "Usage: nereid simulate TABLE... --request_rate N [options]\n"
    "Each TABLE is what `nereid bench steps PATH --json TABLE` wrote. Requests come as a Poisson process (or as\n"
    "--arrivals, --trace say), the engine's scheduler plans their steps, and the table says how long these take.\n"
    "With --goodput the least number of replicas that keeps the limits is looked for.\n";

typedef struct options {
    const char *arrivals, *trace, *goodput, *json, *input_len, *output_len;
    double rate, speed, percentile;
    int32_t num_requests, replicas, max_replicas, stages, max_batch_size, max_num_tokens, seed;
    int64_t kv_tokens;
    bool max_utilization, whole_prompts;
} options;

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define INT(name_, field_, min_, max_, def_, help_)                                                                \
    {.name = name_, .form = NRD_OPT_INT, .offset = offsetof(options, field_), .min = min_, .max = max_, .arg = "N", .def = def_, \
     .help = help_}
static const nrd_opt rows[] = {
    OPT(NUM, "request_rate", NULL, rate, "N", NULL, "requests a second, of all replicas together"),
    OPT(STR, "arrivals", NULL, arrivals, "KIND", "poisson", "poisson or constant"),
    OPT(STR, "trace", NULL, trace, "FILE", NULL, "times (and lengths) of requests, as for nereid bench serve"),
    OPT(NUM, "speed", NULL, speed, "X", "1", "of the trace; 2: twice as fast"),
    INT("num_requests", num_requests, 1, MAX_REQUESTS, "1000", "requests, at most"),
    OPT(STR, "input_len", NULL, input_len, "N", "128", "prompt tokens: N, uniform:LOW,HIGH or normal:MEAN,DEVIATION"),
    OPT(STR, "output_len", NULL, output_len, "N", "128", "new tokens, likewise"),
    OPT(STR, "goodput", NULL, goodput, "LIMITS", NULL, "what must be kept, in ms: ttft:500,tpot:50,e2el:3000"),
    OPT(NUM, "percentile", NULL, percentile, "P", "99", "of requests that must keep each limit"),
    INT("replicas", replicas, 1, MAX_REPLICAS, "1, or with --goodput the least", "engines with a copy of the model each"),
    INT("max_replicas", max_replicas, 1, MAX_REPLICAS, "64", "the search ends there"),
    INT("stages", stages, 1, NRD_SCHED_MAX_MICRO, "1", "pipeline stages (pp_size) that take equal shares of the table's steps"),
    INT("max_batch_size", max_batch_size, 1, INT32_MAX, "the table's", "sequences at a time"),
    INT("max_num_tokens", max_num_tokens, 1, INT32_MAX, "the table's", "tokens of a step"),
    {.name = "kv_tokens", .form = NRD_OPT_I64, .offset = offsetof(options, kv_tokens), .min = 1, .max = INT32_MAX, .arg = "N",
     .def = "the table's", .help = "room of the KV cache"},
    OPT(FLAG, "max_utilization", NULL, max_utilization, NULL, NULL, "that scheduler policy"),
    OPT(FLAG, "whole_prompts", NULL, whole_prompts, NULL, NULL, "prompts are not divided over steps (no enable_chunked_context)"),
    INT("seed", seed, 0, INT32_MAX, "0", "of arrivals and lengths"),
    OPT(STR, "json", NULL, json, "FILE", NULL, "write the figures there too"),
};
const nrd_tool_table nrd_simulate_table = NRD_TOOL_TABLE("simulate", usage, rows, MAX_TABLES);

/* ---- the load ---- */

typedef struct load {
    const options *o;
    nrd_load_limits limits;
    nrd_sim_request *requests; /* [n] by time */
    size_t n;
} load;

static nrd_error *make_requests(load *l)
{
    const options *o = l->o;
    nrd_arrivals a = {.rate = o->rate, .is_constant = *o->arrivals == 'c'};
    nrd_random random = {(uint64_t)o->seed + 1};
    nrd_lengths in, out;
    nrd_error *err = NULL;

    NRD_TRY(nrd_lengths_parse(&in, "input_len", o->input_len));
    NRD_TRY(nrd_lengths_parse(&out, "output_len", o->output_len));
    if (o->trace) {
        NRD_TRY(nrd_arrivals_read(&a, o->trace, o->speed));
    }
    nrd_arrivals_start(&a, (uint64_t)o->seed);
    const size_t most = (size_t)o->num_requests;
    l->n = a.trace && a.n_trace < most ? a.n_trace : most;
    NRD_NEW_GOTO(l->requests, l->n, err, done);
    for (size_t i = 0; i < l->n; i++) {
        const nrd_arrival *t = a.trace ? &a.trace[i] : NULL;
        l->requests[i] = (nrd_sim_request){
            .n_in = t && t->n_in > 0 ? t->n_in : nrd_lengths_draw(&in, &random),
            .n_out = t && t->n_out > 0 ? t->n_out : nrd_lengths_draw(&out, &random),
            .at_s = nrd_arrivals_next(&a),
        };
    }
done:
    nrd_arrivals_fini(&a);
    return err;
}

/* ---- one choice ---- */

typedef struct figures {
    int32_t replicas, gpus; /* gpus, or processes: of all ranks */
    double seconds, requests_per_s, tokens_per_s, busy;
    int32_t most_running;
    uint64_t n_pauses;
    nrd_samples first_ms, per_token_ms, end_ms;
    bool keeps;
} figures;

static void figures_fini(figures *f)
{
    nrd_samples_fini(&f->first_ms);
    nrd_samples_fini(&f->per_token_ms);
    nrd_samples_fini(&f->end_ms);
}

static double step_s(void *user, const nrd_sim_step *s)
{
    return nrd_step_table_ms(user, s) / 1e3;
}

static void note(figures *f, const nrd_sim_request *r)
{
    nrd_samples_add(&f->first_ms, (r->first_s - r->at_s) * 1e3);
    nrd_samples_add(&f->end_ms, (r->end_s - r->at_s) * 1e3);
    if (r->n_out > 1) {
        nrd_samples_add(&f->per_token_ms, (r->end_s - r->first_s) * 1e3 / (r->n_out - 1));
    }
}

static bool keeps(const options *o, nrd_samples *s, double limit)
{
    return limit <= 0 || nrd_samples_at(s, o->percentile) <= limit;
}

/* `replicas` engines, each with every so-many-th request. */
static nrd_error *simulate(const load *l, nrd_step_table *t, int32_t replicas, figures *f)
{
    const options *o = l->o;
    const nrd_sched_limits limits = {
        .max_batch_size = o->max_batch_size ? o->max_batch_size : t->max_batch_size,
        .max_beam_width = 1,
        .max_num_tokens = o->max_num_tokens ? o->max_num_tokens : t->max_num_tokens,
        .max_utilization = o->max_utilization,
        .chunked_context = !o->whole_prompts,
        .mixed_context_tokens = t->mixed_context_tokens,
        .even_context_tokens = t->even_context_tokens,
        .n_micro = o->stages > 1 ? o->stages : 0,
    };
    const nrd_sim_config c = {
        .limits = &limits,
        .n_blocks = o->kv_tokens ? (int32_t)((o->kv_tokens + t->block_tokens - 1) / t->block_tokens) : t->n_blocks,
        .block_tokens = t->block_tokens,
        .n_stages = o->stages,
        .step_s = step_s,
        .user = t,
    };
    nrd_sim_request *own = NULL;
    nrd_error *err = NULL;
    int64_t n_tokens = 0;
    double busy_s = 0;

    if (limits.max_num_tokens < limits.max_batch_size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_num_tokens %d is below max_batch_size %d", limits.max_num_tokens,
                          limits.max_batch_size);
    }
    *f = (figures){.replicas = replicas, .gpus = replicas * t->tp_size * o->stages};
    NRD_NEW_GOTO(own, l->n, err, done);
    for (int32_t k = 0; k < replicas; k++) {
        nrd_sim_result r;
        size_t n = 0;
        for (size_t i = (size_t)k; i < l->n; i += (size_t)replicas) {
            own[n++] = l->requests[i];
        }
        NRD_TRY_GOTO(nrd_simulate(&c, own, n, &r), err, done);
        for (size_t i = 0; i < n; i++) {
            note(f, &own[i]);
            n_tokens += own[i].n_out;
        }
        f->seconds = r.end_s > f->seconds ? r.end_s : f->seconds;
        f->most_running = r.most_running > f->most_running ? r.most_running : f->most_running;
        f->n_pauses += r.n_pauses;
        busy_s += r.busy_s;
    }
    f->requests_per_s = (double)l->n / f->seconds;
    f->tokens_per_s = (double)n_tokens / f->seconds;
    f->busy = busy_s / (f->seconds * replicas * o->stages);
    f->keeps = keeps(o, &f->first_ms, l->limits.first_ms) && keeps(o, &f->per_token_ms, l->limits.per_token_ms) &&
               keeps(o, &f->end_ms, l->limits.end_ms);
done:
    free(own);
    return err;
}

/* The least number of replicas that keeps the limits, or max_replicas. More of them never make a request wait longer, but
 * for chance, so halving finds it. */
static nrd_error *least(const load *l, nrd_step_table *t, figures *f)
{
    int32_t fails = 0, most = l->o->max_replicas, n = 1;

    for (;;) {
        figures_fini(f);
        NRD_TRY(simulate(l, t, n, f));
        if (f->keeps) {
            most = n;
        } else {
            fails = n;
        }
        if (f->keeps ? n == fails + 1 : n == l->o->max_replicas) {
            return NULL;
        }
        /* double until one keeps, then between */
        n = most == l->o->max_replicas && !f->keeps && fails * 2 <= most ? fails * 2 : fails + (most - fails + 1) / 2;
        n = n > fails ? n : fails + 1;
    }
}

/* ---- what is said ---- */

static void put_samples(nrd_str *j, const char *name, nrd_samples *s)
{
    static const double parts[] = {50, 90, 95, 99};
    nrd_str_printf(j, ", \"%s_mean\": ", name);
    nrd_json_put_double(j, nrd_samples_mean(s));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        nrd_str_printf(j, ", \"%s_p%g\": ", name, parts[i]);
        nrd_json_put_double(j, nrd_samples_at(s, parts[i]));
    }
}

static void say(const load *l, const char *path, const nrd_step_table *t, figures *f, nrd_str *j)
{
    const bool limited = l->limits.first_ms > 0 || l->limits.per_token_ms > 0 || l->limits.end_ms > 0;
    printf("%s: %s, tp %d, %d stage%s\n", path, t->device, t->tp_size, l->o->stages, l->o->stages == 1 ? "" : "s");
    printf("  %d replica%s of %d rank%s, %.1f %% busy, at most %d sequences at a time%s\n", f->replicas,
           f->replicas == 1 ? "" : "s", f->gpus / f->replicas, f->gpus == f->replicas ? "" : "s", f->busy * 100, f->most_running,
           !limited ? "" : f->keeps ? "; the limits are kept" : "; THE LIMITS ARE NOT KEPT");
    printf("  %.3f requests/s, %.1f output tokens/s\n", f->requests_per_s, f->tokens_per_s);
    printf("  %-26s %10s %10s %10s %10s\n", "", "mean", "p50", "p95", "p99");
    nrd_samples *const all[] = {&f->first_ms, &f->per_token_ms, &f->end_ms};
    static const char *const names[] = {"time_to_first_token_ms", "time_per_output_token_ms", "latency_ms"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("  %-26s %10.2f %10.2f %10.2f %10.2f\n", names[i], nrd_samples_mean(all[i]), nrd_samples_at(all[i], 50),
               nrd_samples_at(all[i], 95), nrd_samples_at(all[i], 99));
    }
    nrd_str_puts(j, j->len > 1 ? ",\n  {\"table\": " : "\n  {\"table\": ");
    nrd_json_put_cstr(j, path);
    nrd_str_printf(j, ", \"tp_size\": %d, \"stages\": %d, \"replicas\": %d, \"ranks\": %d, \"limits_kept\": %s", t->tp_size,
                   l->o->stages, f->replicas, f->gpus, f->keeps ? "true" : "false");
    const struct {
        const char *name;
        double v;
    } one[] = {{"seconds", f->seconds}, {"requests_per_s", f->requests_per_s}, {"output_tokens_per_s", f->tokens_per_s},
               {"busy", f->busy}, {"most_running", f->most_running}, {"pauses", (double)f->n_pauses}};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        nrd_str_printf(j, ", \"%s\": ", one[i].name);
        nrd_json_put_double(j, one[i].v);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        put_samples(j, names[i], all[i]);
    }
    nrd_str_putc(j, '}');
}

static nrd_error *one_table(const load *l, const char *path, nrd_str *j)
{
    const options *o = l->o;
    figures f = {0};
    nrd_error *err = NULL;
    nrd_step_table *t = NULL;

    NRD_NEW_GOTO(t, 1, err, done);
    NRD_TRY_GOTO(nrd_step_table_read(t, path), err, done);
    if (t->pp_size > 1) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s was measured with %d pipeline stages, whose steps overlap: measure the engine "
                         "of one stage, and give --stages %d", path, t->pp_size, t->pp_size);
        goto done;
    }
    err = o->goodput && o->replicas == 0 ? least(l, t, &f) : simulate(l, t, o->replicas ? o->replicas : 1, &f);
    if (!err) {
        say(l, path, t, &f, j);
    } else {
        err = nrd_error_wrap(err, "%s", path);
    }
done:
    figures_fini(&f);
    free(t);
    return err;
}

static nrd_error *run(const options *o, const char *const *paths, size_t n)
{
    load l = {.o = o};
    nrd_error *err = NULL;
    nrd_str j = {0};

    if (strcmp(o->arrivals, "poisson") != 0 && strcmp(o->arrivals, "constant") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--arrivals: expected poisson or constant, got '%s'", o->arrivals);
    }
    if (o->goodput) {
        NRD_TRY(nrd_load_limits_parse(&l.limits, o->goodput));
    }
    if (!(o->percentile > 0 && o->percentile <= 100) || !(o->speed > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--percentile must be above 0 and at most 100, --speed above 0");
    }
    NRD_TRY(make_requests(&l));
    nrd_str_putc(&j, '[');
    for (size_t i = 0; i < n && !err; i++) {
        err = one_table(&l, paths[i], &j);
    }
    nrd_str_puts(&j, "\n]\n");
    if (!err && o->json) {
        err = nrd_file_write(o->json, j.data, j.len);
    }
    nrd_str_fini(&j);
    free(l.requests);
    return err;
}

int nrd_tool_simulate(int argc, char **argv)
{
    options o = {.arrivals = "poisson", .input_len = "128", .output_len = "128", .speed = 1, .percentile = 99,
                 .num_requests = 1000, .max_replicas = 64, .stages = 1};
    const char *words[MAX_TABLES];
    size_t n = 0;
    const int status = nrd_tool_parse(&nrd_simulate_table, argc, argv, &o, words, &n);
    if (status >= 0) {
        return status;
    }
    if (n == 0 || (o.rate <= 0 && !o.trace)) {
        fputs("nereid simulate: a TABLE, and --request_rate or --trace, are needed (see --help)\n", stderr);
        return 2;
    }
    return nrd_tool_finish("simulate", run(&o, words, n));
}
