/* SPDX-License-Identifier: Apache-2.0 */
#include "caches/util/figures.h"

/* To the server's log. Takes `err`; NULL: nothing. */
static void drop_error(TRITONSERVER_Error *err)
{
    if (err) {
        TRITONSERVER_ErrorDelete(
            TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(err)));
        TRITONSERVER_ErrorDelete(err);
    }
}

void nrd_cache_figures_make(nrd_cache_figures *out, const nrd_cache_figure *rows, int n)
{
    out->n = n;
    for (int i = 0; i < n; i++) {
        TRITONSERVER_Error *err =
            TRITONSERVER_MetricFamilyNew(&out->families[i], TRITONSERVER_METRIC_KIND_GAUGE, rows[i].name, rows[i].help);
        if (!err) {
            err = TRITONSERVER_MetricNew(&out->metrics[i], out->families[i], NULL, 0);
        }
        drop_error(err);
    }
}

void nrd_cache_figures_show(nrd_cache_figures *f, const double *values)
{
    for (int i = 0; i < f->n; i++) {
        if (f->metrics[i]) {
            drop_error(TRITONSERVER_MetricSet(f->metrics[i], values[i]));
        }
    }
}

void nrd_cache_figures_free(nrd_cache_figures *f)
{
    for (int i = 0; i < f->n; i++) {
        if (f->metrics[i]) {
            drop_error(TRITONSERVER_MetricDelete(f->metrics[i]));
        }
        if (f->families[i]) {
            drop_error(TRITONSERVER_MetricFamilyDelete(f->families[i]));
        }
    }
}
