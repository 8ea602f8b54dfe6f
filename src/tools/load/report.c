/* SPDX-License-Identifier: Apache-2.0
 * Figures of loads: see report.h. */
#include "tools/load/report.h"

#include "base/json.h"
#include "nereid/executor.h"

#include <string.h>

nrd_error *nrd_load_limits_parse(nrd_load_limits *out, const char *text)
{
    for (const char *p = text; *p;) {
        char word[64];
        const size_t n = strcspn(p, ", ");
        double *to = nrd_str_has_prefix(p, "ttft:")   ? &out->first_ms
                     : nrd_str_has_prefix(p, "tpot:") ? &out->per_token_ms
                     : nrd_str_has_prefix(p, "e2el:") ? &out->end_ms
                                                      : NULL;
        if (n < sizeof word) {
            memcpy(word, p, n);
            word[n] = '\0';
        }
        if (!to || n >= sizeof word || !nrd_parse_f64(word + 5, to) || !(*to > 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "--goodput: expected ttft:MS, tpot:MS or e2el:MS, got '%.*s'", (int)n,
                              p);
        }
        p += n + strspn(p + n, ", ");
    }
    return NULL;
}

/* ---- figures ---- */

enum { FIRST, PER_TOKEN, BETWEEN, END, DELAY, N_FIGURES };

static const struct {
    const char *key, *name;
    bool of_streams;
} figures[N_FIGURES] = {
    [FIRST] = {"ttft_ms", "Time to first token (ms)", true},
    [PER_TOKEN] = {"tpot_ms", "Time per output token (ms)", true},
    [BETWEEN] = {"itl_ms", "Between tokens (ms)", true},
    [END] = {"e2el_ms", "End to end (ms)", false},
    [DELAY] = {"send_delay_ms", "Sent after due (ms)", false},
};
static const double percents[] = {50, 75, 90, 95, 99, 99.9, 100};
static const char *const percent_names[] = {"p50", "p75", "p90", "p95", "p99", "p99.9", "max"};
enum { N_PERCENTS = sizeof percents / sizeof *percents };

static nrd_samples *samples_of(nrd_load_result *r, int figure)
{
    switch (figure) {
    case FIRST:
        return &r->first;
    case PER_TOKEN:
        return &r->per_token;
    case BETWEEN:
        return &r->between;
    case END:
        return &r->end;
    default:
        return &r->delay;
    }
}

static bool is_shown(const nrd_load_report *r, int figure)
{
    return r->streams || !figures[figure].of_streams;
}

/* Requests that keep every limit. */
static size_t count_good(const nrd_load_result *r, const nrd_load_limits *l)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const nrd_load_row *row = &r->rows[i];
        n += row->is_fine && (l->first_ms <= 0 || (double)row->first_ms <= l->first_ms) &&
             (l->per_token_ms <= 0 || (double)row->per_token_ms <= l->per_token_ms) &&
             (l->end_ms <= 0 || (double)row->end_ms <= l->end_ms);
    }
    return n;
}

static bool has_limits(const nrd_load_report *r)
{
    return r->limits.first_ms > 0 || r->limits.per_token_ms > 0 || r->limits.end_ms > 0;
}

static double a_second(double n, const nrd_load_result *r)
{
    return r->seconds > 0 ? n / r->seconds : 0;
}

/* ---- text ---- */

static void put_level(const nrd_load_level *l, nrd_str *out)
{
    if (l->rate > 0) {
        nrd_str_printf(out, "%g requests/s", l->rate);
        if (l->concurrency > 0) {
            nrd_str_printf(out, ", at most %d at a time", l->concurrency);
        }
    } else if (l->concurrency > 0) {
        nrd_str_printf(out, "%d at a time", l->concurrency);
    } else {
        nrd_str_puts(out, "arrivals of a trace");
    }
}

void nrd_load_report_text(nrd_load_report *r, size_t level, nrd_str *out)
{
    nrd_load_level *l = &r->levels[level];
    nrd_load_result *x = &l->result;

    nrd_str_puts(out, "== ");
    put_level(l, out);
    nrd_str_puts(out, " ==\n");
    nrd_str_printf(out, "%-30s %zu\n", "Requests answered", x->n_fine);
    nrd_str_printf(out, "%-30s %zu\n", "Requests failed", x->n_failed);
    nrd_str_printf(out, "%-30s %.2f\n", "Duration (s)", x->seconds);
    nrd_str_printf(out, "%-30s %.2f\n", "Requests/s", a_second((double)x->n_fine, x));
    nrd_str_printf(out, "%-30s %.2f\n", "Input tokens/s", a_second((double)x->n_in, x));
    nrd_str_printf(out, "%-30s %.2f\n", "Output tokens/s", a_second((double)x->n_out, x));
    nrd_str_printf(out, "%-30s %.1f + %.1f\n", "Tokens of a request, in + out",
                   x->n_fine ? (double)x->n_in / (double)x->n_fine : 0,
                   x->n_fine ? (double)x->n_out / (double)x->n_fine : 0);
    nrd_str_printf(out, "%-30s %d\n", "Most at a time", x->most_at_once);
    if (has_limits(r)) {
        const double good = (double)count_good(x, &r->limits);
        nrd_str_printf(out, "%-30s %.2f (%.1f %%)\n", "Good requests/s", a_second(good, x),
                       x->n ? 100 * good / (double)x->n : 0);
    }
    nrd_str_printf(out, "%-30s %10s", "", "mean");
    for (int p = 0; p < N_PERCENTS; p++) {
        nrd_str_printf(out, " %10s", percent_names[p]);
    }
    nrd_str_putc(out, '\n');
    for (int f = 0; f < N_FIGURES; f++) {
        nrd_samples *s = samples_of(x, f);
        if (!is_shown(r, f) || s->n == 0) {
            continue;
        }
        nrd_str_printf(out, "%-30s %10.2f", figures[f].name, nrd_samples_mean(s));
        for (int p = 0; p < N_PERCENTS; p++) {
            nrd_str_printf(out, " %10.2f", nrd_samples_at(s, percents[p]));
        }
        nrd_str_putc(out, '\n');
    }
    if (x->n_failed > 0) {
        nrd_str_printf(out, "First failure: %s\n", nrd_str_cstr(&x->error));
    }
    if (x->was_stopped) {
        nrd_str_puts(out, "Stopped before its end.\n");
    }
}

/* ---- JSON ---- */

static void put_number(nrd_str *out, const char *name, double v)
{
    nrd_str_printf(out, ", \"%s\": ", name);
    nrd_json_put_double(out, v);
}

static void put_word(nrd_str *out, const char *name, const char *v)
{
    nrd_str_printf(out, "\"%s\": ", name);
    nrd_json_put_cstr(out, v);
}

static void put_figure(nrd_str *out, const char *name, nrd_samples *s)
{
    nrd_str_printf(out, ",\n     \"%s\": {\"n\": %zu", name, s->n);
    put_number(out, "mean", nrd_samples_mean(s));
    put_number(out, "std", nrd_samples_deviation(s));
    put_number(out, "min", nrd_samples_at(s, 0));
    for (int p = 0; p < N_PERCENTS; p++) {
        put_number(out, percent_names[p], nrd_samples_at(s, percents[p]));
    }
    nrd_str_putc(out, '}');
}

void nrd_load_report_json(nrd_load_report *r, nrd_str *out)
{
    nrd_str_puts(out, "{");
    put_word(out, "version", nrd_version());
    nrd_str_puts(out, ", ");
    put_word(out, "url", r->url);
    nrd_str_puts(out, ", ");
    put_word(out, "model", r->model);
    nrd_str_puts(out, ", ");
    put_word(out, "api", r->api);
    nrd_str_puts(out, ",\n \"levels\": [");
    for (size_t i = 0; i < r->n; i++) {
        nrd_load_level *l = &r->levels[i];
        nrd_load_result *x = &l->result;
        nrd_str_printf(out, "%s\n    {\"concurrency\": %d, \"request_rate\": ", i ? "," : "",
                       l->concurrency);
        if (l->rate > 0) {
            nrd_json_put_double(out, l->rate);
        } else {
            nrd_str_puts(out, "null");
        }
        put_number(out, "completed", (double)x->n_fine);
        put_number(out, "failed", (double)x->n_failed);
        put_number(out, "duration_s", x->seconds);
        put_number(out, "input_tokens", (double)x->n_in);
        put_number(out, "output_tokens", (double)x->n_out);
        put_number(out, "requests_per_s", a_second((double)x->n_fine, x));
        put_number(out, "input_tokens_per_s", a_second((double)x->n_in, x));
        put_number(out, "output_tokens_per_s", a_second((double)x->n_out, x));
        put_number(out, "max_concurrent", x->most_at_once);
        put_number(out, "connections", (double)x->n_connections);
        if (has_limits(r)) {
            put_number(out, "good_requests_per_s", a_second((double)count_good(x, &r->limits), x));
        }
        for (int f = 0; f < N_FIGURES; f++) {
            if (is_shown(r, f)) {
                put_figure(out, figures[f].key, samples_of(x, f));
            }
        }
        if (x->n_failed > 0) {
            nrd_str_puts(out, ",\n     ");
            put_word(out, "error", nrd_str_cstr(&x->error));
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_puts(out, "\n]}\n");
}

void nrd_load_report_csv(nrd_load_report *r, nrd_str *out)
{
    nrd_str_puts(out, "level,request,due_s,send_delay_ms,ttft_ms,tpot_ms,e2el_ms,input_tokens,"
                      "output_tokens,ok\n");
    for (size_t i = 0; i < r->n; i++) {
        const nrd_load_result *x = &r->levels[i].result;
        for (size_t k = 0; k < x->n; k++) {
            const nrd_load_row *row = &x->rows[k];
            nrd_str_printf(out, "%zu,%zu,%.6f,%.3f,%.3f,%.3f,%.3f,%d,%d,%d\n", i, k, row->due_s,
                           (double)row->delay_ms, (double)row->first_ms, (double)row->per_token_ms,
                           (double)row->end_ms, row->n_in, row->n_out, row->is_fine);
        }
    }
}
