/* SPDX-License-Identifier: Apache-2.0
 * The page with charts: of one level its percentiles and its course, of several how they compare. */
#include "tools/load/report.h"

#include "base/mem.h"
#include "tools/plot.h"

#include <string.h>

enum { N_POINTS = 100 };

typedef struct curve {
    double *x, *y; /* owned */
    int n;
} curve;

static curve curve_of(int n)
{
    return (curve){nrd_xcalloc((size_t)(n > 0 ? n : 1), sizeof(double)),
                   nrd_xcalloc((size_t)(n > 0 ? n : 1), sizeof(double)), n};
}

static curve percentiles_of(nrd_samples *s)
{
    curve c = curve_of(s->n > 0 ? N_POINTS : 0);
    for (int i = 0; i < c.n; i++) {
        c.x[i] = i + 1;
        c.y[i] = nrd_samples_at(s, c.x[i]);
    }
    return c;
}

/* Requests that ended in each hundredth of the run, as a rate. */
static curve course_of(const nrd_load_result *r)
{
    curve c = curve_of(r->seconds > 0 ? N_POINTS : 0);
    const double width = r->seconds / N_POINTS;
    for (int i = 0; i < c.n; i++) {
        c.x[i] = (i + 0.5) * width;
    }
    for (size_t k = 0; k < r->n && c.n > 0; k++) {
        const int i = (int)((r->rows[k].due_s + (double)r->rows[k].end_ms / 1e3) / width);
        c.y[i < 0 ? 0 : i < N_POINTS ? i : N_POINTS - 1] += r->rows[k].is_fine ? 1 / width : 0;
    }
    return c;
}

static curve levels_of(nrd_load_report *r, double (*value)(nrd_load_result *))
{
    curve c = curve_of((int)r->n);
    for (size_t i = 0; i < r->n; i++) {
        c.x[i] = r->levels[i].rate > 0 ? r->levels[i].rate : r->levels[i].concurrency;
        c.y[i] = value(&r->levels[i].result);
    }
    return c;
}

static double median_first(nrd_load_result *r)
{
    return nrd_samples_at(&r->first, 50);
}
static double late_first(nrd_load_result *r)
{
    return nrd_samples_at(&r->first, 99);
}
static double median_end(nrd_load_result *r)
{
    return nrd_samples_at(&r->end, 50);
}
static double late_end(nrd_load_result *r)
{
    return nrd_samples_at(&r->end, 99);
}
static double tokens_a_second(nrd_load_result *r)
{
    return r->seconds > 0 ? (double)r->n_out / r->seconds : 0;
}

static nrd_plot_line line_of(const char *name, const curve *c)
{
    return (nrd_plot_line){name, c->x, c->y, c->n};
}

static nrd_error *compare_levels(nrd_load_report *r, const char *path, const char *text)
{
    curve c[] = {levels_of(r, tokens_a_second),
                 levels_of(r, r->streams ? median_first : median_end),
                 levels_of(r, r->streams ? late_first : late_end)};
    const char *x = r->levels[0].rate > 0 ? "requests/s asked for" : "requests at a time";
    const nrd_plot plots[] = {{.title = "Output tokens a second",
                               .x_label = x,
                               .y_label = "tokens/s",
                               .n_lines = 1,
                               .lines = {line_of("tokens/s", &c[0])}},
                              {.title = r->streams ? "Time to first token" : "End to end",
                               .x_label = x,
                               .y_label = "ms",
                               .n_lines = 2,
                               .lines = {line_of("p50", &c[1]), line_of("p99", &c[2])}}};
    nrd_error *err = nrd_plot_write(path, r->heading, text, plots, 2);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        free(c[i].x);
        free(c[i].y);
    }
    return err;
}

static nrd_error *show_level(nrd_load_report *r, const char *path, const char *text)
{
    nrd_load_result *x = &r->levels[0].result;
    curve c[] = {percentiles_of(&x->first), percentiles_of(&x->end), percentiles_of(&x->per_token),
                 percentiles_of(&x->between), course_of(x)};
    static const char share[] = "percentile";
    const nrd_plot waits = {.title = "How long requests take",
                            .x_label = share,
                            .y_label = "ms",
                            .n_lines = r->streams ? 2 : 1,
                            .lines = {line_of("end to end", &c[1]), line_of("first token", &c[0])}};
    const nrd_plot tokens = {
        .title = "Time of a token",
        .x_label = share,
        .y_label = "ms",
        .n_lines = 2,
        .lines = {line_of("mean of a request", &c[2]), line_of("between two", &c[3])}};
    const nrd_plot course = {.title = "Requests answered",
                             .x_label = "s",
                             .y_label = "a second",
                             .n_lines = 1,
                             .lines = {line_of("requests/s", &c[4])}};
    const nrd_plot with_stream[] = {waits, tokens, course}, without[] = {waits, course};
    nrd_error *err = nrd_plot_write(path, r->heading, text, r->streams ? with_stream : without,
                                    r->streams ? 3 : 2);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        free(c[i].x);
        free(c[i].y);
    }
    return err;
}

nrd_error *nrd_load_report_page(nrd_load_report *r, const char *path, const char *text)
{
    return r->n > 1 ? compare_levels(r, path, text) : show_level(r, path, text);
}
