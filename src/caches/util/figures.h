/* SPDX-License-Identifier: Apache-2.0
 * caches/util/figures.h - what a response cache tells of itself through the server's metrics.
 *
 * Purpose   Gauges under their published names.
 * Owner     The cache. Calls may come from several threads: the server guards its metrics.
 * Errors    A gauge that cannot be made or set is logged; the cache goes on without it.
 */
#ifndef NRD_CACHES_UTIL_FIGURES_H
#define NRD_CACHES_UTIL_FIGURES_H

#include "triton/core/tritonserver.h"

enum { NRD_CACHE_MAX_FIGURES = 8 };

typedef struct nrd_cache_figures {
    int n;
    TRITONSERVER_MetricFamily *families[NRD_CACHE_MAX_FIGURES];
    TRITONSERVER_Metric *metrics[NRD_CACHE_MAX_FIGURES];
} nrd_cache_figures;

typedef struct nrd_cache_figure {
    const char *name, *help;
} nrd_cache_figure;

void nrd_cache_figures_make(nrd_cache_figures *out, const nrd_cache_figure *rows, int n);
void nrd_cache_figures_show(nrd_cache_figures *f, const double *values); /* [n] */
void nrd_cache_figures_free(nrd_cache_figures *f);

#endif
