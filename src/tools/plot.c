/* SPDX-License-Identifier: Apache-2.0
 * Line charts as SVG: axes with round steps, one curve for each series, all in one HTML or SVG
 * file. Called by `nereid bench --plot`. */
#include "tools/plot.h"

#include "base/file.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 300, LEFT = 78, RIGHT = 24, TOP = 40, BOTTOM = 52, TICKS = 5 };

static const char style[] =
    "<style>svg{font:13px sans-serif;fill:#222;background:#fff}.g{stroke:#ddd}.a{stroke:#888}"
    ".t{font-weight:bold;font-size:15px}.l0{stroke:#0072b2}.l1{stroke:#d55e00}.l2{stroke:#009e73}"
    ".l3{stroke:#cc79a7}polyline,.k{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){svg{fill:#ddd;background:#1b1b1b}.g{stroke:#3a3a3a}"
    ".l0{stroke:#56b4e9}.l1{stroke:#e69f00}}</style>\n"; /* colours: Okabe and Ito */

static void put_text(nrd_str *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            nrd_str_puts(out, "&amp;");
            break;
        case '<':
            nrd_str_puts(out, "&lt;");
            break;
        case '>':
            nrd_str_puts(out, "&gt;");
            break;
        default:
            nrd_str_putc(out, *text);
        }
    }
}

/* 1, 2 or 5 times a power of ten: no more than TICKS of them in `range`. */
static double tick_of(double range)
{
    const double power = pow(10, floor(log10(range / TICKS)));
    for (int i = 0; i < 3; i++) {
        const double step = power * (i == 0 ? 1 : i == 1 ? 2 : 5);
        if (range / step <= TICKS) {
            return step;
        }
    }
    return power * 10;
}

typedef struct {
    double low, high, step, pixel, per_unit; /* pixel of `low`, pixels of a unit */
} axis;

static axis axis_of(double low, double high, double from, double to)
{
    axis a = {low, high > low ? high : low + 1, 0, from, 0};
    a.step = tick_of(a.high - a.low);
    a.low = floor(a.low / a.step) * a.step;
    a.high = ceil(a.high / a.step) * a.step;
    a.per_unit = (to - from) / (a.high - a.low);
    return a;
}

static double at(const axis *a, double v)
{
    return a->pixel + (v - a->low) * a->per_unit;
}

static void put_chart(nrd_str *out, const nrd_plot *p, int top)
{
    double x_low = INFINITY, x_high = -INFINITY, y_high = 0;

    for (int l = 0; l < p->n_lines; l++) {
        for (int i = 0; i < p->lines[l].n; i++) {
            x_low = fmin(x_low, p->lines[l].x[i]);
            x_high = fmax(x_high, p->lines[l].x[i]);
            y_high = fmax(y_high, p->lines[l].y[i]);
        }
    }
    if (!isfinite(x_low)) {
        x_low = x_high = 0;
    }
    const double bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
    const axis x = axis_of(x_low, x_high, LEFT, right), y = axis_of(0, y_high, bottom, TOP);
    nrd_str_printf(out, "<g transform=\"translate(0 %d)\">\n<text class=\"t\" x=\"%d\" y=\"22\">",
                   top, LEFT);
    put_text(out, p->title);
    nrd_str_puts(out, "</text>\n");
    for (int i = 0; y.low + i * y.step <= y.high * 1.0001; i++) {
        const double v = y.low + i * y.step;
        nrd_str_printf(out,
                       "<line class=\"g\" x1=\"%d\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>"
                       "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                       LEFT, right, at(&y, v), at(&y, v), LEFT - 8, at(&y, v) + 4, v);
    }
    for (int i = 0; x.low + i * x.step <= x.high * 1.0001; i++) {
        const double v = x.low + i * x.step;
        nrd_str_printf(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n",
                       at(&x, v), bottom + 18, v);
    }
    nrd_str_printf(out, "<line class=\"a\" x1=\"%d\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n", LEFT,
                   right, bottom, bottom);
    nrd_str_printf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", (LEFT + right) / 2,
                   bottom + 40);
    put_text(out, p->x_label);
    nrd_str_printf(
        out, "</text>\n<text transform=\"translate(16 %g) rotate(-90)\" text-anchor=\"middle\">",
        (TOP + bottom) / 2);
    put_text(out, p->y_label);
    nrd_str_puts(out, "</text>\n");
    for (int l = 0; l < p->n_lines; l++) {
        const nrd_plot_line *line = &p->lines[l];
        nrd_str_printf(out, "<polyline class=\"l%d\" points=\"", l);
        for (int i = 0; i < line->n; i++) {
            nrd_str_printf(out, "%s%.1f,%.1f", i ? " " : "", at(&x, line->x[i]),
                           at(&y, line->y[i]));
        }
        nrd_str_puts(out, "\"/>\n");
        if (p->n_lines > 1) { /* the key, from the right */
            const double key = right - 150.0 * (p->n_lines - l);
            nrd_str_printf(out,
                           "<line class=\"k l%d\" x1=\"%g\" x2=\"%g\" y1=\"18\" y2=\"18\"/><text "
                           "x=\"%g\" y=\"22\">",
                           l, key, key + 24, key + 30);
            put_text(out, line->name);
            nrd_str_puts(out, "</text>\n");
        }
    }
    nrd_str_puts(out, "</g>\n");
}

nrd_error *nrd_plot_write(const char *path, const char *heading, const char *text,
                          const nrd_plot *plots, int n)
{
    const bool html = nrd_str_has_suffix(path, ".html") || nrd_str_has_suffix(path, ".htm");
    nrd_str out = {0};

    if (html) {
        nrd_str_puts(&out,
                     "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
        put_text(&out, heading);
        nrd_str_puts(&out, "</title><style>:root{color-scheme:light dark}body{font:15px "
                           "sans-serif;max-width:760px;"
                           "margin:2em auto;padding:0 "
                           "1em}pre{overflow-x:auto}svg{width:100%}</style></head>\n<body><h1>");
        put_text(&out, heading);
        nrd_str_puts(&out, "</h1>\n<pre>");
        put_text(&out, text);
        nrd_str_puts(&out, "</pre>\n");
    }
    nrd_str_printf(
        &out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
        WIDTH, HEIGHT * n);
    put_text(&out, heading);
    nrd_str_printf(&out, "</title>\n%s", style);
    for (int i = 0; i < n; i++) {
        put_chart(&out, &plots[i], i * HEIGHT);
    }
    nrd_str_puts(&out, html ? "</svg>\n</body></html>\n" : "</svg>\n");
    nrd_error *err = nrd_file_write(path, out.data, out.len);
    nrd_str_fini(&out);
    return err;
}
