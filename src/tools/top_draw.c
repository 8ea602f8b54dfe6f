/* SPDX-License-Identifier: Apache-2.0
 * The screen of `nereid top`: lines, bars and tables from two documents of /ui/stats, now and
 * before, whose differences are the rates. Text of the server is cleaned of control characters.
 * Called by top.c for each new document. */
#include "tools/top.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BOLD "\x1b[1m"
#define SOFT "\x1b[2m"
#define PLAIN "\x1b[0m"
#define CYAN "\x1b[36m"
#define GREEN "\x1b[32m"
#define YELLOW "\x1b[33m"
#define RED "\x1b[31m"

enum { BAR = 20, MAX_COLUMNS = 1024 };
#define TIMELINE_MS 10000.0

typedef struct screen {
    nrd_str *out;
    const nrd_top_style *style;
    nrd_str line; /* the one being written */
    int n_lines;
} screen;

/* ---- lines ---- */

static void put(screen *s, const char *fmt, ...) NRD_PRINTF(2, 3);
static void put(screen *s, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    nrd_str_puts(&s->line, text);
}

static void color(screen *s, const char *code)
{
    if (s->style->color) {
        nrd_str_puts(&s->line, code);
    }
}

/* Text of a server: anything that a terminal could obey becomes '?'. Cut and padded to `columns`;
 * 0: as long as it is. */
static void put_foreign(screen *s, const char *text, int columns)
{
    int used = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && (!columns || used < columns);) {
        int n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4; /* JSON was valid UTF-8 */
        bool is_control = *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0);
        if (is_control || (n > 1 && !s->style->unicode)) {
            nrd_str_putc(&s->line, '?');
        } else {
            nrd_str_append(&s->line, p, (size_t)n);
        }
        p += n;
        used++;
    }
    for (; used < columns; used++) {
        nrd_str_putc(&s->line, ' ');
    }
}

/* Ends the line: at most the terminal's width of it, not counting escape sequences. */
static void end_line(screen *s)
{
    const char *p = nrd_str_cstr(&s->line);
    int column = 0;

    if (s->style->height == 0 || s->n_lines < s->style->height) {
        while (*p) {
            size_t n = 1;
            if (*p == '\x1b') {
                n = strcspn(p, "m") + 1;
            } else {
                while (((unsigned char)p[n] & 0xc0) == 0x80) {
                    n++;
                }
                column++;
            }
            if (column <= s->style->width) {
                nrd_str_append(s->out, p, n);
            }
            p += n;
        }
        nrd_str_puts(s->out, s->style->color ? PLAIN "\n" : "\n");
    }
    s->n_lines++;
    nrd_str_clear(&s->line);
}

/* One of nine heights. */
static void put_height(screen *s, double part)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char ascii[] = " ..::||##";
    int k = part >= 1 ? 8 : part > 0 ? 1 + (int)(part * 7.999) : 0;
    if (s->style->unicode) {
        nrd_str_puts(&s->line, blocks[k]);
    } else {
        nrd_str_putc(&s->line, ascii[k]);
    }
}

static void put_bar(screen *s, double part)
{
    int full = isfinite(part) ? (int)lround(fmin(fmax(part, 0), 1) * BAR) : 0;
    color(s, part > 0.9 ? RED : part > 0.7 ? YELLOW : CYAN);
    for (int i = 0; i < BAR; i++) {
        if (i == full) {
            color(s, PLAIN SOFT);
        }
        nrd_str_puts(&s->line, s->style->unicode ? (i < full ? "━" : "─") : (i < full ? "#" : "."));
    }
    color(s, PLAIN);
}

static void put_bytes(screen *s, double n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int k = 0;
    while (n >= 1024 && k < 4) {
        n /= 1024;
        k++;
    }
    put(s, k > 0 && n < 100 ? "%.1f %s" : "%.0f %s", n, units[k]);
}

static void put_ms(screen *s, double ms, int columns)
{
    char text[32];
    if (!isfinite(ms)) {
        snprintf(text, sizeof text, "-");
    } else if (ms >= 10000) {
        snprintf(text, sizeof text, "%.1f s", ms / 1000);
    } else {
        snprintf(text, sizeof text, "%.*f ms", ms < 10 ? 2 : ms < 100 ? 1 : 0, ms);
    }
    put(s, "%*s", columns, text);
}

static void put_rate(screen *s, double v)
{
    if (isfinite(v)) {
        put(s, "%9.1f tokens/s", v);
    } else {
        put(s, "%9s tokens/s", "-");
    }
}

/* ---- figures ---- */

static double num(const nrd_json *o, const char *name)
{
    return nrd_json_get_num(o, name, (double)NAN);
}

static double count(const nrd_json *o, const char *name)
{
    return nrd_json_get_num(o, name, 0);
}

static const nrd_json *same_engine(const nrd_json *before, const nrd_json *e)
{
    const nrd_json *list = nrd_json_get(before, "engines");
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *o = &list->child[i];
        if (!strcmp(nrd_json_get_str(o, "model", ""), nrd_json_get_str(e, "model", "")) &&
            !strcmp(nrd_json_get_str(o, "version", ""), nrd_json_get_str(e, "version", ""))) {
            return o;
        }
    }
    return NULL;
}

/* NaN: not known yet, or the engine began anew. */
static double per_second(const nrd_json *before, const nrd_json *now, const nrd_json *e, const char *name)
{
    const nrd_json *o = same_engine(before, e);
    double seconds = (num(now, "time_ms") - num(before, "time_ms")) / 1000;
    double more = num(e, name) - num(o, name);
    return o && seconds > 0 && more >= 0 ? more / seconds : (double)NAN;
}

void nrd_top_remember(nrd_top_history *h, const nrd_json *before, const nrd_json *now)
{
    const nrd_json *list = nrd_json_get(now, "engines");
    if (h->n == NRD_TOP_HISTORY) {
        h->n--;
        for (int i = 0; i < NRD_TOP_MAX_ENGINES; i++) {
            memmove(h->rate[i], h->rate[i] + 1, (NRD_TOP_HISTORY - 1) * sizeof h->rate[i][0]);
        }
    }
    for (size_t i = 0; i < NRD_TOP_MAX_ENGINES; i++) {
        double v = per_second(before, now, nrd_json_at(list, i), "generated_tokens");
        h->rate[i][h->n] = isfinite(v) ? v : 0;
    }
    h->n++;
}

/* ---- parts of the screen ---- */

static void draw_head(screen *s, const char *url, const nrd_json *now)
{
    const nrd_json *models = nrd_json_get(now, "models"), *cpu = nrd_json_get(now, "cpu");
    const nrd_json *gpus = nrd_json_get(now, "gpus");
    size_t ready = 0;
    long long up = (long long)fmin(fmax(count(now, "uptime_ms") / 1000, 0), 1e12);

    for (size_t i = 0; i < nrd_json_len(models); i++) {
        ready += !strcmp(nrd_json_get_str(&models->child[i], "state", ""), "READY");
    }
    color(s, BOLD);
    put(s, "Nereid ");
    put_foreign(s, nrd_json_get_str(now, "version", ""), 0);
    color(s, PLAIN);
    put(s, "  ");
    put_foreign(s, url, 0);
    put(s, "  up %lld:%02lld:%02lld  %zu of %zu models ready", up / 3600, up / 60 % 60, up % 60, ready,
        nrd_json_len(models));
    end_line(s);
    if (nrd_json_is(cpu, NRD_JSON_OBJECT)) {
        put(s, "%-10s", "CPU");
        put_bar(s, num(cpu, "load"));
        put(s, " %5.1f %%   memory ", 100 * count(cpu, "load"));
        put_bytes(s, count(cpu, "memory_used_bytes"));
        put(s, " of ");
        put_bytes(s, count(cpu, "memory_total_bytes"));
        end_line(s);
    }
    for (size_t i = 0; i < nrd_json_len(gpus); i++) {
        const nrd_json *g = &gpus->child[i];
        put(s, "GPU %-6zu", i);
        put_bar(s, num(g, "load"));
        put(s, " %5.1f %%   memory ", 100 * count(g, "load"));
        put_bytes(s, count(g, "memory_used_bytes"));
        put(s, " of ");
        put_bytes(s, count(g, "memory_total_bytes"));
        if (isfinite(num(g, "power_watts"))) {
            put(s, "   %.0f W", num(g, "power_watts"));
        }
        end_line(s);
    }
}

static void draw_latencies(screen *s, const nrd_json *e)
{
    static const struct {
        const char *text, *name;
    } rows[] = {{"first token", "first_token_ms"}, {"between tokens", "inter_token_ms"}, {"step", "step_ms"}};

    color(s, SOFT);
    put(s, "  %-16s%10s%10s%10s%10s", "last minute", "p50", "p90", "p99", "count");
    end_line(s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const nrd_json *w = nrd_json_get(e, rows[i].name);
        put(s, "  %-16s", rows[i].text);
        put_ms(s, num(w, "p50"), 10);
        put_ms(s, num(w, "p90"), 10);
        put_ms(s, num(w, "p99"), 10);
        put(s, "%10.0f", count(w, "n"));
        end_line(s);
    }
}

static int column(double v, int columns)
{
    return (int)fmin(fmax(v, 0), columns);
}

/* The last ten seconds: a column is as high as the logarithm of the largest step in it. */
static void draw_steps(screen *s, const nrd_json *e, double now_ms)
{
    const nrd_json *steps = nrd_json_get(e, "steps");
    const nrd_json *ms = nrd_json_get(steps, "ms"), *idle = nrd_json_get(steps, "idle_ms");
    const nrd_json *prompt = nrd_json_get(steps, "prompt_tokens");
    const nrd_json *generated = nrd_json_get(steps, "generated_tokens");
    int columns = s->style->width - 10;
    double height[MAX_COLUMNS] = {0}, top = log2(1 + 16), end = count(e, "last_step_ms");
    bool has_prompt[MAX_COLUMNS] = {false};

    columns = columns < 10 ? 10 : columns > 100 ? 100 : columns;
    now_ms = fmax(now_ms, end);
    for (size_t i = nrd_json_len(ms); i-- > 0 && end > now_ms - TIMELINE_MS;) {
        double p = nrd_json_num(nrd_json_at(prompt, i), 0);
        double h = log2(1 + fmax(0, p + nrd_json_num(nrd_json_at(generated, i), 0)));
        double from = end - fmax(0, nrd_json_num(nrd_json_at(ms, i), 0));
        double per = TIMELINE_MS / columns, begin = now_ms - TIMELINE_MS;
        int first = column((from - begin) / per, columns), last = column((end - begin) / per, columns);
        for (int k = first; k <= last && k < columns; k++) {
            height[k] = fmax(height[k], h);
            has_prompt[k] = has_prompt[k] || p > 0;
        }
        top = fmax(top, h);
        end = from - fmax(0, nrd_json_num(nrd_json_at(idle, i), 0));
    }
    put(s, "  steps ");
    for (int k = 0; k < columns; k++) {
        color(s, has_prompt[k] ? YELLOW : CYAN);
        put_height(s, height[k] / top);
    }
    end_line(s);
    color(s, SOFT);
    put(s, "        %-*s%4s", columns - 4, "10 s ago", "now");
    end_line(s);
}

/* Ranks next to each other on one host are one entry: "0-1 on one, 2-3 on two (10.0.0.2)". */
static void draw_ranks(screen *s, const nrd_json *e)
{
    const nrd_json *ranks = nrd_json_get(e, "ranks");
    const size_t n = nrd_json_len(ranks);

    if (n == 0) {
        return;
    }
    put(s, "  ranks     ");
    for (size_t i = 0, last; i < n; i = last + 1) {
        const char *host = nrd_json_get_str(nrd_json_at(ranks, i), "host", "?");
        for (last = i; last + 1 < n &&
                       !strcmp(nrd_json_get_str(nrd_json_at(ranks, last + 1), "host", "?"), host);
             last++) {
        }
        put(s, "%s%.0f", i > 0 ? ", " : "", count(nrd_json_at(ranks, i), "rank"));
        if (last > i) {
            put(s, "-%.0f", count(nrd_json_at(ranks, last), "rank"));
        }
        put(s, " on ");
        put_foreign(s, host, 0);
    }
    end_line(s);
}

static void draw_engine(screen *s, const nrd_top_history *h, const nrd_json *before, const nrd_json *now,
                        size_t i)
{
    const nrd_json *e = nrd_json_at(nrd_json_get(now, "engines"), i);
    const nrd_json *r = nrd_json_get(e, "requests"), *kv = nrd_json_get(e, "kv_blocks");
    double top = 10, used = count(kv, "used"), max = count(kv, "max");

    end_line(s);
    color(s, BOLD);
    put_foreign(s, nrd_json_get_str(e, "name", nrd_json_get_str(e, "model", "")), 0);
    color(s, PLAIN);
    put(s, "  (");
    put_foreign(s, nrd_json_get_str(e, "model", ""), 0);
    put(s, " version ");
    put_foreign(s, nrd_json_get_str(e, "version", ""), 0);
    put(s, ")");
    end_line(s);
    put(s, "  generated ");
    put_rate(s, per_second(before, now, e, "generated_tokens"));
    put(s, "%12.0f in total  ", count(e, "generated_tokens"));
    for (int k = 0; k < h->n && i < NRD_TOP_MAX_ENGINES; k++) {
        top = fmax(top, h->rate[i][k]);
    }
    color(s, CYAN);
    for (int k = h->n > 32 ? h->n - 32 : 0; k < h->n && i < NRD_TOP_MAX_ENGINES && before; k++) {
        put_height(s, h->rate[i][k] / top);
    }
    end_line(s);
    put(s, "  prompts   ");
    put_rate(s, per_second(before, now, e, "prompt_tokens"));
    put(s, "%12.0f in total", count(e, "prompt_tokens"));
    end_line(s);
    put(s, "  requests  %9.0f running %12.0f waiting   at most %.0f",
        fmax(0, count(r, "active") - count(r, "waiting")), count(r, "waiting"), count(r, "max"));
    end_line(s);
    put(s, "  KV cache  ");
    put_bar(s, max > 0 ? used / max : 0);
    put(s, " %5.1f %%   %.0f of %.0f blocks", max > 0 ? 100 * used / max : 0.0, used, max);
    end_line(s);
    draw_ranks(s, e);
    draw_latencies(s, e);
    draw_steps(s, e, count(now, "time_ms"));
}

static void draw_models(screen *s, const nrd_json *now)
{
    const nrd_json *models = nrd_json_get(now, "models");

    end_line(s);
    color(s, SOFT);
    put(s, "%-24s %-7s %-12s%9s%9s%9s%11s", "model", "version", "state", "requests", "failed", "pending",
        "mean time");
    end_line(s);
    for (size_t i = 0; i < nrd_json_len(models); i++) {
        const nrd_json *m = &models->child[i];
        const char *state = nrd_json_get_str(m, "state", ""), *reason = nrd_json_get_str(m, "reason", "");
        double n = count(m, "succeeded");
        put_foreign(s, nrd_json_get_str(m, "name", ""), 24);
        put(s, " ");
        put_foreign(s, nrd_json_get_str(m, "version", ""), 7);
        put(s, " ");
        color(s, !strcmp(state, "READY") ? GREEN : !strcmp(state, "UNAVAILABLE") ? RED : SOFT);
        put_foreign(s, state[0] ? state : "not loaded", 12);
        color(s, PLAIN);
        put(s, "%9.0f%9.0f%9.0f", n, count(m, "failed"), count(m, "pending"));
        put_ms(s, n > 0 ? count(m, "request_ms_sum") / n : (double)NAN, 11);
        if (reason[0]) {
            put(s, "  ");
            put_foreign(s, reason, 0);
        }
        end_line(s);
    }
}

void nrd_top_draw(nrd_str *out, const nrd_top_style *style, const nrd_top_history *h, const char *url,
                  const nrd_json *before, const nrd_json *now)
{
    screen s = {.out = out, .style = style};
    size_t n = nrd_json_len(nrd_json_get(now, "engines"));

    draw_head(&s, url, now);
    if (!nrd_json_get_bool(now, "metrics", false)) {
        put(&s, "metrics are off (--allow-metrics=false): only the models are shown");
        end_line(&s);
    }
    for (size_t i = 0; i < n; i++) {
        draw_engine(&s, h, before, now, i);
    }
    draw_models(&s, now);
    nrd_str_fini(&s.line);
}
