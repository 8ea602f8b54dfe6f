/* SPDX-License-Identifier: Apache-2.0
 * tools/plot.h - line charts as SVG, alone or in a page of HTML with the text they belong to.
 *
 * Purpose   What `nereid bench --plot FILE` writes: a file that any browser opens, in its light or
 * dark colours, with nothing loaded from elsewhere.
 */
#ifndef NRD_TOOLS_PLOT_H
#define NRD_TOOLS_PLOT_H

#include "base/error.h"

enum { NRD_PLOT_MAX_LINES = 4 };

typedef struct nrd_plot_line {
    const char *name;
    const double *x, *y; /* [n], x ascending */
    int n;
} nrd_plot_line;

typedef struct nrd_plot {
    const char *title, *x_label, *y_label;
    nrd_plot_line lines[NRD_PLOT_MAX_LINES];
    int n_lines;
} nrd_plot;

/* Writes the charts below each other to `path`: .html with `heading` and `text` (shown as it is, in
 * lines), anything else as SVG. Errors: those of writing. */
nrd_error *nrd_plot_write(const char *path, const char *heading, const char *text,
                          const nrd_plot *plots, int n) NRD_MUST_USE;

#endif
