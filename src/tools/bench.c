/* SPDX-License-Identifier: Apache-2.0
 * nereid bench: how fast an engine is on this machine.
 *
 *   nereid bench PATH                  a table: prefill, and decode with 1, 2, 4 … sequences
 *   nereid bench throughput PATH …     many requests at once: tokens and requests a second
 *   nereid bench latency PATH …        one after the other: percentiles of what a user waits
 *   nereid bench steps PATH …          how long steps take, for nereid simulate
 *   nereid bench hw                    what the machine could do at best
 *   nereid bench serve URL …           another verb: a load on a server (bench_serve.c)
 */
#include "tools/bench_inputs.h"
#include "tools/bench_profile.h"
#include "tools/bench_steps.h"
#include "tools/load/arrivals.h"
#include "tools/load/prompts.h"
#include "tools/model_path.h"
#include "tools/plot.h"
#include "tools/tools.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "nereid/executor.h"
#include "nereid/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid bench PATH [options]             table of prefill and decode rates\n"
    "       nereid bench throughput PATH [options]  many requests at a time\n"
    "       nereid bench latency PATH [options]     requests one after the other\n"
    "       nereid bench steps PATH [options]       how long steps take, over sequences and contexts, for nereid simulate\n"
    "       nereid bench hw [options]               limits of the machine: reading, arithmetic\n"
    "       nereid bench serve [URL] [options]      a load on a server (nereid bench serve "
    "--help)\n\n"
    "Prompts are random token ids; the end token is ignored, so lengths are as asked. An encoder is asked for vectors of them, a\n"
    "model that hears for the text of as much random sound as it takes.\n";

typedef struct {
    const char *json, *seed, *trace, *plot, *dataset, *tokenizer;
    int32_t num_requests, input_mean, output_mean, input_stdev, output_stdev, concurrency, warmup;
    int32_t max_sequences, max_context, common_len;
    int32_t profile_every, mixed_context_tokens, runs;
    bool reuse, streaming, max_utilization, profile, steady;
    nrd_exec_options exec;
    uint64_t lora_id; /* 0: no adapter */
    double rate;      /* requests a second; 0: as soon as others have ended */
    nrd_bench_inputs inputs;
    nrd_prompts prompts; /* of a data set; none: made up */
    int32_t most_out;    /* of a row; 0: as it says */
} options;

typedef struct {
    uint64_t id;
    int64_t sent_ns, first_ns, done_ns;
    int64_t last_ns, gap_ns; /* streaming: the last token, the longest time between two */
    int32_t n_in, n_out;
    int32_t n_got; /* tokens that came so far */
    bool cancelled;
} sample;

typedef struct {
    double seconds;
    int64_t n_in, n_out;
    int32_t n;
    sample *samples;
    /* --steady: from the first token of the last of the first requests, so many of which have one,
     * until the last request of all was sent; tokens that came in between */
    int64_t steady_begin_ns, steady_end_ns, steady_out;
    int32_t n_begun;
} outcome;

static int32_t length_of(uint64_t *state, int32_t mean, int32_t stdev, int32_t limit)
{
    double u = 0;
    for (int i = 0; i < 12; i++) { /* sum of uniform numbers: near enough to normal */
        *state = nrd_hash_u64(*state, 1);
        u += (double)(*state >> 11) / 9007199254740992.0;
    }
    double n = (double)mean + (double)stdev * (u - 6);
    int32_t k = (int32_t)lround(n < 1 ? 1 : n);
    return k > limit ? limit : k;
}

/* Lengths and ids of a made-up prompt. The caller frees the ids. */
static int32_t *make_ids(const nrd_exec_info *info, const options *o, uint64_t *state, sample *s, int32_t n_before)
{
    const int32_t room = info->max_seq_len - s->n_out < info->max_input_len
                             ? info->max_seq_len - s->n_out
                             : info->max_input_len;
    s->n_in = length_of(state, o->input_mean, o->input_stdev, room);
    s->n_in = s->n_in + n_before < room ? s->n_in + n_before : room;
    int32_t *ids = nrd_xcalloc((size_t)s->n_in, sizeof *ids);
    for (int32_t i = 0; i < s->n_in; i++) {
        *state = nrd_hash_u64(*state, 2);
        uint64_t random = i < o->common_len ? nrd_hash_u64((uint64_t)i, 3) : *state;
        ids[i] = (int32_t)(random % (uint64_t)info->vocab);
    }
    return ids;
}

static nrd_error *send_one(nrd_exec *x, const nrd_exec_info *info, const options *o,
                           uint64_t *state, uint64_t index, sample *s)
{
    nrd_exec_request r;
    int32_t n_before = 0;
    s->n_out = o->inputs.makes_vectors ? 0 : length_of(state, o->output_mean, o->output_stdev, info->max_seq_len - 1);
    if (o->steady &&
        index < (uint64_t)o->concurrency) { /* as far on as in a server that has run on */
        const int32_t all = s->n_out;
        s->n_out = (int32_t)((uint64_t)all * (index + 1) / (uint64_t)o->concurrency);
        s->n_out = s->n_out > 1 ? s->n_out : 1;
        n_before = all - s->n_out; /* what it has generated is in its context */
    }
    int32_t *ids = NULL;
    const nrd_prompt *p = o->prompts.n > 0 ? &o->prompts.v[index % o->prompts.n] : NULL;
    if (p) {
        const int32_t left = info->max_seq_len - p->n_in, most = o->most_out > 0 && o->most_out < left ? o->most_out : left;
        s->n_in = p->n_in;
        s->n_out = o->inputs.makes_vectors ? 0 : p->max_tokens < most ? p->max_tokens : most;
    } else {
        ids = make_ids(info, o, state, s, n_before);
    }
    nrd_exec_request_init(&r);
    r.input_ids = p ? p->ids : ids;
    r.n_input_ids = s->n_in;
    r.max_new_tokens = s->n_out;
    r.streaming = o->streaming || o->steady;
    r.exclude_input_in_output = true;
    r.client_id = index;
    r.lora_task_id = o->lora_id;
    nrd_bench_inputs_put(&o->inputs, &r);
    s->n_in = r.n_input_ids;
    s->sent_ns = (int64_t)nrd_now_ns();
    nrd_error *err = nrd_exec_enqueue(x, &r, &s->id);
    free(ids);
    return err;
}

static void count(outcome *out, sample *s, const nrd_exec_response *got, int32_t concurrency,
                  int64_t now)
{
    const int32_t n = got->n_beams > 0 ? got->beams[0].n_ids : 0;

    if (out->steady_begin_ns > 0 && out->steady_end_ns == 0) {
        out->steady_out += n;
    }
    if (s->n_got == 0 && n > 0 && s - out->samples < concurrency && ++out->n_begun == concurrency) {
        out->steady_begin_ns = now;
    }
    s->n_got += n;
}

static nrd_error *take_some(nrd_exec *x, outcome *out, int32_t concurrency, int64_t timeout_us, int32_t *n_done)
{
    nrd_exec_response *got[64];
    nrd_error *err = NULL;
    int32_t n = 0;
    NRD_TRY(nrd_exec_await(x, got, 64, timeout_us, &n));
    for (int32_t i = 0; i < n; i++) {
        sample *s = &out->samples[got[i]->client_id];
        if (got[i]->error && !err) {
            err = nrd_errorf((nrd_error_code)nrd_exec_error_code(got[i]->error), "%s",
                             nrd_exec_error_message(got[i]->error));
        }
        int64_t now = (int64_t)nrd_now_ns();
        if (s->last_ns > 0 && now - s->last_ns > s->gap_ns) {
            s->gap_ns = now - s->last_ns;
        }
        s->last_ns = now;
        count(out, s, got[i], concurrency, now);
        if (got[i]->is_final) {
            s->first_ns = got[i]->perf.first_token_ns;
            s->done_ns = now;
            s->cancelled =
                got[i]->n_beams > 0 && got[i]->beams[0].finish_reason == NRD_FINISH_CANCELLED;
            if (s->cancelled) {
                s->n_out = s->n_got;
            }
            out->n_in += s->n_in;
            out->n_out += s->n_out;
            (*n_done)++;
        }
        nrd_exec_response_free(got[i]);
    }
    return err;
}

/* Microseconds until the next request of an open loop comes; 0: it is time, below 0: there is none. */
static int64_t until_due(uint64_t start_ns, double at_s, bool is_last)
{
    const double left = (double)start_ns + at_s * 1e9 - (double)nrd_now_ns();
    return is_last ? -1 : left <= 0 ? 0 : (int64_t)(left / 1e3) + 1;
}

/* Sends requests when they come (--request_rate), or keeps `concurrency` under way, until n are done, or with --steady until the
 * last has been sent. The caller frees out->samples. */
static nrd_error *drive(nrd_exec *x, const options *o, int32_t n, int32_t concurrency, outcome *out)
{
    nrd_exec_info info = {.size = sizeof info};
    nrd_error *err = NULL;
    unsigned long long seed = 0;
    int32_t n_sent = 0, n_done = 0;

    *out = (outcome){.n = n};
    if (o->seed && !nrd_parse_u64(o->seed, &seed)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--seed: '%s' is no number", o->seed);
    }
    uint64_t state = seed;
    nrd_arrivals arrivals = {.rate = o->rate};
    nrd_arrivals_start(&arrivals, seed);
    double at_s = o->rate > 0 ? nrd_arrivals_next(&arrivals) : 0;
    nrd_exec_get_info(x, &info);
    NRD_NEW_GOTO(out->samples, n, err, done);
    uint64_t start = nrd_now_ns();
    while (n_done < n) {
        while (n_sent < n && (o->rate > 0 ? until_due(start, at_s, false) == 0 : n_sent - n_done < concurrency)) {
            NRD_TRY_GOTO(send_one(x, &info, o, &state, (uint64_t)n_sent, &out->samples[n_sent]),
                         err, done);
            if (o->rate > 0) { /* what is sent late has waited */
                out->samples[n_sent].sent_ns = (int64_t)start + (int64_t)(at_s * 1e9);
                at_s = nrd_arrivals_next(&arrivals);
            }
            n_sent++;
        }
        if (o->steady && n_sent == n && out->steady_end_ns == 0) {
            out->steady_end_ns = (int64_t)nrd_now_ns();
            for (int32_t i = 0; i < n; i++) {
                if (out->samples[i].done_ns == 0) {
                    nrd_exec_cancel(x, out->samples[i].id);
                }
            }
        }
        NRD_TRY_GOTO(take_some(x, out, concurrency, until_due(start, at_s, o->rate <= 0 || n_sent == n), &n_done), err, done);
    }
    out->seconds = (double)(nrd_now_ns() - start) / 1e9;
    if (o->steady) { /* what follows looks at the requests that came to their end */
        out->n = 0;
        for (int32_t i = 0; i < n; i++) {
            if (!out->samples[i].cancelled) {
                out->samples[out->n++] = out->samples[i];
            }
        }
    }
done:
    return err;
}

static nrd_error *warm_up(nrd_exec *x, const options *o)
{
    outcome out;
    options small = *o;
    small.output_mean = small.output_mean < 4 ? small.output_mean : 4;
    small.most_out = 4;
    small.steady = false;
    small.rate = 0;
    nrd_error *err = o->warmup > 0 ? drive(x, &small, o->warmup, 1, &out) : NULL;
    if (o->warmup > 0) {
        free(out.samples);
    }
    return err;
}

static void json_member(nrd_str *j, const char *name, double v)
{
    nrd_str_printf(j, "%s\n  \"%s\": ", j->len > 2 ? "," : "", name);
    nrd_json_put_double(j, v);
}

/* A steady part exists between the first token of every first request and the sending of the last. */
static nrd_error *check_steady(const outcome *out, const options *o)
{
    const bool seen = out->steady_begin_ns > 0 && out->steady_end_ns > out->steady_begin_ns;
    if (!o->steady || (seen && out->n > 0)) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "--steady: the last of %d requests was sent before all %d places were taken and one had "
                      "ended; give more --num_requests or a smaller --concurrency",
                      o->num_requests, o->concurrency);
}

/* Tokens a second, with --steady of the part with all places taken. */
static double output_rate(const outcome *out, const options *o)
{
    return o->steady ? (double)out->steady_out * 1e9 / (double)(out->steady_end_ns - out->steady_begin_ns)
                     : (double)out->n_out / out->seconds;
}

/* All requests `runs` times, the last time into *out. What the first run lacks of the others is what a
 * server lacks just after its start. */
static nrd_error *drive_runs(nrd_exec *x, const options *o, outcome *out, nrd_str *j, nrd_str *text)
{
    for (int32_t i = 0; i < o->runs; i++) {
        free(out->samples);
        NRD_TRY(drive(x, o, o->num_requests, o->concurrency, out));
        NRD_TRY(check_steady(out, o));
        const double rate = output_rate(out, o);
        if (o->runs > 1) {
            nrd_str_printf(text, "run %-15d %.1f tokens/s%s\n", i + 1, rate, i ? "" : ", cold");
        }
        if (i == 0) {
            json_member(j, "first_run_output_tokens_per_s", rate);
        }
    }
    return NULL;
}

/* ---- percentiles ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef enum { TTFT, TPOT, TOTAL, GAP } figure;

static double value_of(const sample *s, figure f)
{
    switch (f) {
    case TTFT:
        return (double)(s->first_ns - s->sent_ns) / 1e6;
    case TPOT:
        return s->n_out > 1 ? (double)(s->done_ns - s->first_ns) / 1e6 / (s->n_out - 1) : 0;
    case GAP:
        return (double)s->gap_ns / 1e6;
    default:
        return (double)(s->done_ns - s->sent_ns) / 1e6;
    }
}

static void percentiles(const outcome *out, figure f, double p[4]) /* mean, 50, 95, 99 */
{
    double *v = nrd_xcalloc((size_t)out->n, sizeof *v), sum = 0;
    for (int32_t i = 0; i < out->n; i++) {
        v[i] = value_of(&out->samples[i], f);
        sum += v[i];
    }
    qsort(v, (size_t)out->n, sizeof *v, by_value);
    p[0] = sum / out->n;
    p[1] = v[(out->n - 1) * 50 / 100];
    p[2] = v[(out->n - 1) * 95 / 100];
    p[3] = v[(out->n - 1) * 99 / 100];
    free(v);
}

/* Tokens of all requests in `n` equal pieces of the run, each request's taken to come evenly. */
static void rate_over_time(const outcome *out, int n, double *x, double *y)
{
    int64_t begin = INT64_MAX;
    for (int32_t i = 0; i < out->n; i++) {
        begin = out->samples[i].sent_ns < begin ? out->samples[i].sent_ns : begin;
    }
    const double piece = out->seconds / n;
    for (int k = 0; k < n; k++) {
        x[k] = (k + 0.5) * piece;
        y[k] = 0;
        for (int32_t i = 0; i < out->n; i++) {
            const sample *s = &out->samples[i];
            const double from = (double)(s->first_ns - begin) / 1e9,
                         to = (double)(s->done_ns - begin) / 1e9;
            const double a = from > k * piece ? from : k * piece;
            const double b = to < (k + 1) * piece ? to : (k + 1) * piece;
            y[k] += b > a && to > from ? s->n_out * (b - a) / (to - from) / piece : 0;
        }
    }
}

/* Sorted values over their percentile. */
static void sorted_values(const outcome *out, figure f, double *x, double *y)
{
    for (int32_t i = 0; i < out->n; i++) {
        x[i] = 100.0 * (i + 1) / out->n;
        y[i] = value_of(&out->samples[i], f);
    }
    qsort(y, (size_t)out->n, sizeof *y, by_value);
}

static nrd_error *plot(const outcome *out, const options *o, const char *heading, const char *text)
{
    enum { PIECES = 60 };
    static const char *const titles[] = {"Time to first token", "Time per output token", "Latency",
                                         "Longest gap between two tokens"};
    const int n_figures = o->streaming ? GAP + 1 : GAP;
    double time[PIECES], rate[PIECES];
    double *v = nrd_xcalloc((size_t)out->n * (size_t)n_figures * 2, sizeof *v);
    nrd_plot p[GAP + 2] = {{.title = "Output",
                            .x_label = "seconds",
                            .y_label = "tokens/s",
                            .n_lines = 1,
                            .lines = {{"output", time, rate, PIECES}}}};
    rate_over_time(out, PIECES, time, rate);
    for (int f = 0; f < n_figures; f++) {
        double *x = v + (size_t)f * 2 * (size_t)out->n, *y = x + out->n;
        sorted_values(out, (figure)f, x, y);
        p[f + 1] = (nrd_plot){.title = titles[f],
                              .x_label = "percentile of requests",
                              .y_label = "ms",
                              .n_lines = 1,
                              .lines = {{titles[f], x, y, out->n}}};
    }
    nrd_error *err = nrd_plot_write(o->plot, heading, text, p, n_figures + 1);
    free(v);
    return err;
}

static void report(const outcome *out, const options *o, nrd_str *j, nrd_str *text)
{
    static const char *const names[] = {"time_to_first_token_ms", "time_per_output_token_ms",
                                        "latency_ms", "longest_gap_ms"};
    static const char *const parts[] = {"mean", "p50", "p95", "p99"};
    if (o->rate > 0) {
        nrd_str_printf(text, "requests            %d, %g a second, %.2f s\n", out->n, o->rate, out->seconds);
        json_member(j, "request_rate", o->rate);
    } else {
        nrd_str_printf(text, "requests            %d, %d at a time, %.2f s\n", out->n, o->concurrency, out->seconds);
    }
    nrd_str_printf(text, "request throughput  %.3f requests/s\n", (double)out->n / out->seconds);
    if (o->inputs.n_frames > 0) {
        const double rate = out->n * nrd_bench_inputs_seconds(&o->inputs) / out->seconds;
        nrd_str_printf(text, "sound               %.1f seconds a second\n", rate);
        json_member(j, "sound_s_per_s", rate);
    }
    nrd_str_printf(text, "%-20s%.1f tokens/s\n", o->inputs.makes_vectors ? "input throughput" : "output throughput",
                   (double)(o->inputs.makes_vectors ? out->n_in : out->n_out) / out->seconds);
    nrd_str_printf(text, "total throughput    %.1f tokens/s\n",
                   (double)(out->n_in + out->n_out) / out->seconds);
    if (o->steady) {
        const double s = (double)(out->steady_end_ns - out->steady_begin_ns) / 1e9;
        const double rate = output_rate(out, o);
        nrd_str_printf(text,
                       "steady throughput   %.1f tokens/s in the %.2f s with all places taken\n",
                       rate, s);
        json_member(j, "steady_s", s);
        json_member(j, "steady_output_tokens_per_s", rate);
    }
    json_member(j, "num_requests", out->n);
    json_member(j, "concurrency", o->concurrency);
    json_member(j, "seconds", out->seconds);
    json_member(j, "requests_per_s", (double)out->n / out->seconds);
    json_member(j, "output_tokens_per_s", (double)out->n_out / out->seconds);
    json_member(j, "total_tokens_per_s", (double)(out->n_in + out->n_out) / out->seconds);
    nrd_str_printf(text, "%-26s %10s %10s %10s %10s\n", "", parts[0], parts[1], parts[2], parts[3]);
    for (int f = o->inputs.makes_vectors ? TOTAL : TTFT; f <= (o->streaming ? GAP : TOTAL); f++) {
        double p[4];
        percentiles(out, (figure)f, p);
        nrd_str_printf(text, "%-26s %10.2f %10.2f %10.2f %10.2f\n", names[f], p[0], p[1], p[2],
                       p[3]);
        for (int k = 0; k < 4; k++) {
            char name[64];
            snprintf(name, sizeof name, "%s_%s", names[f], parts[k]);
            json_member(j, name, p[k]);
        }
    }
}

/* ---- the table ---- */

/* Decode rate of n sequences at once, from their first to their last tokens. */
static nrd_error *table_row(nrd_exec *x, const options *o, int32_t n, nrd_str *j, double rates[2])
{
    outcome out;
    double decode_s = 0;
    int64_t first = INT64_MAX, last = 0, first_done = 0;
    nrd_error *err = drive(x, o, n, n, &out);
    if (err) {
        free(out.samples);
        return err;
    }
    for (int32_t i = 0; i < n; i++) {
        const sample *s = &out.samples[i];
        first = s->sent_ns < first ? s->sent_ns : first;
        first_done = s->first_ns > first_done ? s->first_ns : first_done;
        last = s->done_ns > last ? s->done_ns : last;
    }
    decode_s = (double)(last - first_done) / 1e9;
    double prefill = (double)out.n_in / ((double)(first_done - first) / 1e9);
    double decode = (double)(out.n_out - n) / decode_s;
    rates[0] = prefill;
    rates[1] = decode;
    nrd_str_printf(j, "%s\n    {\"sequences\": %d, \"prefill_tokens_per_s\": ",
                   nrd_str_has_suffix(nrd_str_cstr(j), "[") ? "" : ",", n);
    nrd_json_put_double(j, prefill);
    nrd_str_puts(j, ", \"decode_tokens_per_s\": ");
    nrd_json_put_double(j, decode);
    nrd_str_putc(j, '}');
    free(out.samples);
    return NULL;
}

static nrd_error *table(nrd_exec *x, const options *o, const char *heading, nrd_str *j)
{
    enum { MAX_ROWS = 32 };
    double n_at[MAX_ROWS], prefill[MAX_ROWS], decode[MAX_ROWS], rates[2];
    nrd_str text = {0};
    nrd_error *err = NULL;
    int rows = 0;

    nrd_str_puts(j, ",\n  \"rows\": [");
    nrd_str_printf(&text, "%10s %16s %16s %16s\n", "sequences", "prefill tok/s", "decode tok/s",
                   "each tok/s");
    fputs(nrd_str_cstr(&text), stdout);
    for (int32_t n = 1; n > 0 && n <= o->max_sequences; n *= 2, rows++) {
        const size_t before = text.len;
        NRD_TRY_GOTO(table_row(x, o, n, j, rates), err, done);
        nrd_str_printf(&text, "%10d %16.1f %16.1f %16.1f\n", n, rates[0], rates[1], rates[1] / n);
        fputs(nrd_str_cstr(&text) + before, stdout);
        n_at[rows] = n;
        prefill[rows] = rates[0];
        decode[rows] = rates[1];
    }
    nrd_str_puts(j, "\n  ]");
    if (o->plot) {
        const nrd_plot p = {
            .title = "Tokens a second",
            .x_label = "sequences at a time",
            .y_label = "tokens/s",
            .n_lines = 2,
            .lines = {{"prefill", n_at, prefill, rows}, {"decode", n_at, decode, rows}}};
        err = nrd_plot_write(o->plot, heading, nrd_str_cstr(&text), &p, 1);
    }
done:
    nrd_str_fini(&text);
    return err;
}

/* Rows that are too long for the model are left out; the lengths become the means of the others. */
static nrd_error *read_dataset(options *o, const char *tokenizer, const nrd_exec_info *info)
{
    nrd_tokenizer *t = NULL;
    double n_in = 0, n_out = 0;

    nrd_error_free(nrd_tokenizer_open(&t, tokenizer)); /* token ids need none */
    const nrd_prompts_config c = {.tokenizer = t, .wants_ids = true, .out = {NRD_LENGTH_FIXED, o->output_mean, 0},
                                  .max_in = info->max_input_len < info->max_seq_len ? info->max_input_len : info->max_seq_len - 1};
    nrd_error *err = nrd_prompts_read(&o->prompts, o->dataset, &c);
    nrd_tokenizer_close(t);
    for (size_t i = 0; i < o->prompts.n && !err; i++) {
        const nrd_prompt *p = &o->prompts.v[i];
        for (int32_t k = 0; k < p->n_in && !err; k++) {
            err = p->ids[k] < info->vocab ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has the token id %d, the model %d tokens", o->dataset,
                                                              p->ids[k], info->vocab);
        }
        n_in += p->n_in;
        n_out += p->max_tokens;
    }
    if (!err) {
        o->input_mean = (int32_t)lround(n_in / (double)o->prompts.n);
        o->output_mean = (int32_t)lround(n_out / (double)o->prompts.n);
        o->num_requests = o->num_requests != -1 ? o->num_requests : o->prompts.n < INT32_MAX ? (int32_t)o->prompts.n : INT32_MAX;
        o->concurrency = o->concurrency < o->num_requests ? o->concurrency : o->num_requests;
    }
    return err;
}

/* What does not fit is cut, and said: figures of other lengths than those that were asked for would mislead.
 * has_own: the verb chooses them, as sound does. */
static void fit_lengths(options *o, const nrd_exec_info *info, bool has_own)
{
    const int32_t in = o->input_mean, n_out = o->output_mean;
    const int32_t most_out = info->max_seq_len > 1 ? info->max_seq_len - 1 : 1;

    if (has_own || o->inputs.n_frames > 0) {
        return;
    }
    o->output_mean = o->inputs.makes_vectors || n_out <= most_out ? n_out : most_out;
    const int32_t left = info->max_seq_len - (o->inputs.makes_vectors ? 0 : o->output_mean);
    const int32_t most_in = left < info->max_input_len ? left : info->max_input_len;
    o->input_mean = in <= most_in ? in : most_in;
    if (o->input_mean != in || o->output_mean != n_out) {
        fprintf(stderr, "nereid bench: input %d and output %d do not fit: the model takes %d tokens (input %d); input %d and output %d are measured\n",
                in, n_out, info->max_seq_len, info->max_input_len, o->input_mean, o->output_mean);
    }
}

static void put_begin(nrd_str *j, const options *o, const nrd_exec_info *info, double load_s)
{
    nrd_str_puts(j, "{\n  \"device\": ");
    nrd_json_put_cstr(j, info->device);
    nrd_str_puts(j, ",\n  \"version\": ");
    nrd_json_put_cstr(j, nrd_version());
    json_member(j, "load_s", load_s);
    json_member(j, "input_mean", o->input_mean);
    json_member(j, "output_mean", o->output_mean);
}

static nrd_error *bench(const char *verb, const char *path, options *o)
{
    nrd_error *err = NULL;
    nrd_model_path m = {0};
    nrd_exec *x = NULL;
    nrd_exec_config c;
    nrd_exec_info info = {.size = sizeof info};
    outcome out = {0};
    nrd_str j = {0}, heading = {0}, text = {0};
    nrd_device_limits limits = {0};
    const bool steps = !strcmp(verb, "steps"), is_table = !strcmp(verb, "table") || steps;

    if (o->profile) {
        NRD_TRY_GOTO(nrd_bench_limits(&o->exec, &limits), err, done);
    }
    nrd_ranks_enter();
    NRD_TRY_GOTO(nrd_exec_options_open(&o->exec, path, &m), err, done);
    uint64_t start_ns = nrd_now_ns();
    nrd_exec_config_init(&c);
    NRD_TRY_GOTO(nrd_exec_options_apply(&o->exec, &c), err, done);
    c.tokenizer_dir = m.tokenizer; /* a draft model's is compared with it */
    c.enable_chunked_context = true;
    if (o->profile || o->profile_every > 0) {
        c.profile_every = o->profile_every > 0 ? o->profile_every : 16;
    } else if (o->trace) {
        c.profile_every = INT32_MAX; /* whole steps only */
    }
    c.profile_spans = o->trace ? NRD_BENCH_MAX_SPANS : 0;
    c.mixed_context_tokens = o->mixed_context_tokens;
    c.enable_kv_cache_reuse = o->reuse;
    c.policy = o->max_utilization ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
    c.max_beam_width = 1;
    int32_t at_once = is_table ? o->max_sequences : o->concurrency;
    c.max_batch_size = c.max_batch_size ? c.max_batch_size : at_once;
    NRD_TRY_GOTO(nrd_exec_open(&x, m.engine, &c), err, done);
    NRD_TRY_GOTO(nrd_exec_options_adapter(&o->exec, x, &o->lora_id), err, done);
    double load_s = (double)(nrd_now_ns() - start_ns) / 1e9;
    nrd_exec_get_info(x, &info);
    NRD_TRY_GOTO(nrd_bench_inputs_of(m.engine, &info, &o->inputs), err, done);
    if (is_table && (o->inputs.makes_vectors || o->inputs.n_frames > 0)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: models that make vectors or hear are measured by `throughput` and `latency`",
                         steps ? "steps" : "the table");
        goto done;
    }
    if (o->inputs.makes_vectors && (o->streaming || o->steady || o->plot)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--streaming, --steady, --plot: this model makes a vector of a text, no tokens");
        goto done;
    }
    if (o->dataset) {
        NRD_TRY_GOTO(read_dataset(o, o->tokenizer ? o->tokenizer : m.tokenizer, &info), err, done);
    }
    fit_lengths(o, &info, steps || o->dataset);
    nrd_str_printf(&heading, "%s, %s, input %d, output %d", info.architecture, info.device,
                   o->input_mean, o->output_mean);
    puts(nrd_str_cstr(&heading));
    put_begin(&j, o, &info, load_s);
    NRD_TRY_GOTO(warm_up(x, o), err, done);
    if (c.profile_every > 0) {
        nrd_profile_row row;
        int32_t n = 0;
        NRD_TRY_GOTO(nrd_exec_profile(x, &row, 1, &n, true), err, done);
    }
    if (steps) {
        nrd_step_table t;
        NRD_TRY_GOTO(nrd_bench_steps(x, o->max_sequences, o->max_context, &t), err, done);
        nrd_str_puts(&j, ",\n  \"steps\": ");
        nrd_step_table_put(&t, &j);
    } else if (is_table) {
        NRD_TRY_GOTO(table(x, o, nrd_str_cstr(&heading), &j), err, done);
    } else {
        nrd_str_printf(&text, "load                %.2f s\n", load_s);
        NRD_TRY_GOTO(drive_runs(x, o, &out, &j, &text), err, done);
        report(&out, o, &j, &text);
        fputs(nrd_str_cstr(&text), stdout);
        if (o->plot) {
            NRD_TRY_GOTO(plot(&out, o, nrd_str_cstr(&heading), nrd_str_cstr(&text)), err, done);
        }
    }
    if (o->trace) {
        NRD_TRY_GOTO(nrd_bench_trace(x, o->trace), err, done);
    }
    if (o->profile || o->profile_every > 0) {
        NRD_TRY_GOTO(nrd_bench_profile(x, &limits, &j), err, done);
    }
    nrd_str_puts(&j, "\n}\n");
    if (o->json) {
        err = nrd_file_write(o->json, j.data, j.len);
    }
done:
    free(out.samples);
    nrd_bench_inputs_free(&o->inputs);
    nrd_prompts_fini(&o->prompts);
    nrd_str_fini(&j);
    nrd_str_fini(&heading);
    nrd_str_fini(&text);
    nrd_exec_close(x);
    nrd_model_path_close(&m);
    return err;
}

static nrd_error *hw(const options *o)
{
    nrd_str j = {0};
    nrd_str_puts(&j, "{");
    nrd_error *err = nrd_bench_hw(&o->exec, &j);
    nrd_str_puts(&j, "\n}\n");
    if (!err && o->json) {
        err = nrd_file_write(o->json, j.data, j.len);
    }
    nrd_str_fini(&j);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(INT, "num_requests", NULL, num_requests, "N", "32; latency: 10; --dataset: its rows", "requests"),
    OPT(STR, "dataset", NULL, dataset, "FILE", NULL, "throughput, latency: prompts and output lengths from a file of JSON, one a line: prompt or input_ids, output_tokens"),
    OPT(STR, "tokenizer", "--tokenizer_dir", tokenizer, "PATH", "PATH's", "of the texts of --dataset"),
    OPT(INT, "input_mean", "--input_len", input_mean, "N", "128", "prompt tokens"),
    OPT(INT, "output_mean", "--output_len", output_mean, "N", "128", "new tokens"),
    OPT(INT, "common_len", NULL, common_len, "N", "0",
        "first tokens that all prompts have in common"),
    OPT(INT, "input_stdev", NULL, input_stdev, "N", "0", "spread of prompt lengths"),
    OPT(INT, "output_stdev", NULL, output_stdev, "N", "0", "spread of output lengths"),
    OPT(INT, "concurrency", NULL, concurrency, "N", "8", "requests at a time"),
    OPT(NUM, "request_rate", NULL, rate, "N", "all are there",
        "throughput: requests come as a Poisson process, so many a second, and --concurrency are in a step"),
    OPT(INT, "runs", NULL, runs, "N", "1", "the same so many times; the figures are the last one's"),
    OPT(INT, "max_sequences", NULL, max_sequences, "N", "8", "last row of the table"),
    OPT(INT, "max_context", NULL, max_context, "N", "what fits", "steps: longest context"),
    OPT(INT, "warmup", NULL, warmup, "N", "1", "requests before measuring"),
    OPT(STR, "seed", "--random_seed", seed, "N", "0", "of prompts and lengths"),
    OPT(FLAG, "streaming", NULL, streaming, NULL, NULL, "one response a token"),
    OPT(FLAG, "steady", NULL, steady, NULL, NULL,
        "throughput: start as if long under way, stop at the last request"),
    OPT(FLAG, "enable_kv_cache_reuse", NULL, reuse, NULL, NULL, "share blocks of equal prefixes"),
    OPT(FLAG, "max_utilization", NULL, max_utilization, NULL, NULL, "that scheduler policy"),
    OPT(INT, "mixed_context_tokens", NULL, mixed_context_tokens, "N", "cpu: 256, gpu: by the model",
        "prompt tokens of a step that also generates; -1: no limit"),
    OPT(FLAG, "profile", NULL, profile, NULL, NULL, "where the time of steps goes"),
    OPT(INT, "profile_every", NULL, profile_every, "N", "16",
        "every so-many-th step operation by operation"),
    OPT(STR, "trace", NULL, trace, "FILE", NULL,
        "timeline of the steps, for Perfetto or chrome://tracing"),
    OPT(STR, "plot", NULL, plot, "FILE", ".svg", "charts: a page (.html) or a picture"),
    OPT(STR, "json", "--report_json", json, "FILE", NULL, "write the figures there too"),
    NRD_EXEC_OPTION_ROWS(options, exec),
};
const nrd_tool_table nrd_bench_table = NRD_TOOL_TABLE("bench", usage, rows, 2);

/* false: one is not, and stderr says which. */
static bool counts_are_possible(const options *o)
{
    const struct {
        const char *name;
        int32_t value, least;
    } counts[] = {{"num_requests", o->dataset && o->num_requests == -1 ? 1 : o->num_requests, 1}, {"concurrency", o->concurrency, 1}, {"input_len", o->input_mean, 1},
                   {"output_len", o->output_mean, 1},    {"max_sequences", o->max_sequences, 1}, {"runs", o->runs, 1},
                   {"input_stdev", o->input_stdev, 0},   {"output_stdev", o->output_stdev, 0}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].value < counts[i].least) {
            fprintf(stderr, "nereid bench: --%s must be at least %d, not %d\n", counts[i].name, counts[i].least, counts[i].value);
            return false;
        }
    }
    return true;
}

int nrd_tool_bench(int argc, char **argv)
{
    options o = {
        .num_requests = -1, .concurrency = -1, .input_mean = 128, .output_mean = 128, .warmup = 1, .max_sequences = 8, .runs = 1};
    const char *words[2] = {NULL, NULL}, *verb = "table";
    if (argc > 1 && !strcmp(argv[1], "serve")) {
        return nrd_tool_bench_serve(argc - 1, argv + 1);
    }
    size_t n = 0;
    int status =
        nrd_tool_parse(&nrd_bench_table, argc, argv, &o, words, &n);
    if (status >= 0) {
        return status;
    }
    if (n == 1 && !strcmp(words[0], "hw")) {
        return nrd_tool_finish("bench", hw(&o));
    }
    if (n == 2) {
        verb = words[0];
        words[0] = words[1];
    }
    bool latency = !strcmp(verb, "latency");
    if (n == 0 || (n == 2 && !latency && strcmp(verb, "throughput") != 0 && strcmp(verb, "steps") != 0)) {
        fprintf(stderr, "nereid bench: expected [throughput|latency|steps] PATH, hw, or serve URL%s%s%s (see --help)\n",
                n > 0 ? ", got '" : "", n > 0 ? verb : "", n > 0 ? "'" : "");
        return 2;
    }
    o.concurrency = latency ? 1 : o.concurrency != -1 ? o.concurrency : 8;
    if (o.dataset && (o.steady || (!latency && strcmp(verb, "throughput") != 0))) {
        fputs("nereid bench: --dataset is of `throughput` and `latency`, without --steady\n", stderr);
        return 2;
    }
    o.num_requests = o.num_requests != -1 || o.dataset ? o.num_requests : latency ? 10 : 32;
    if (!counts_are_possible(&o)) {
        return 2;
    }
    if (o.rate < 0 || (o.rate > 0 && (o.steady || strcmp(verb, "throughput") != 0))) {
        fputs("nereid bench: --request_rate is a positive number, of `throughput` without --steady\n", stderr);
        return 2;
    }
    if (o.steady && o.num_requests <= o.concurrency) {
        fprintf(stderr, "nereid bench: --steady needs more than --concurrency %d requests, got --num_requests %d\n",
                o.concurrency, o.num_requests);
        return 2;
    }
    return nrd_tool_finish("bench", bench(verb, words[0], &o));
}
