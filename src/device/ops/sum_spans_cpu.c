/* SPDX-License-Identifier: Apache-2.0
 * sum_spans on the CPU: a task is a span. Bound: memory. */
#include "device/cpu/cpu.h"

#include <string.h>

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t s)
{
    const nrd_sum_spans_args *a = &c->u.sum_spans;
    const int32_t last = a->first + a->n_rows, end = a->starts[s + 1] < last ? a->starts[s + 1] : last;
    double *out = a->out + (int64_t)s * a->hidden;

    (void)r;
    (void)phase;
    for (int32_t i = a->starts[s] > a->first ? a->starts[s] : a->first; i < end; i++) {
        const float *x = a->x + (int64_t)(i - a->first) * a->hidden;
        if (i == a->starts[s]) {
            memset(out, 0, (size_t)a->hidden * sizeof *out);
        }
        for (int32_t k = 0; k < a->hidden; k++) {
            out[k] += (double)x[k];
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_sum_spans_cpu(nrd_cpu_cmd *c, int n_threads)
{
    (void)n_threads;
    c->op = &op;
    c->n_tasks[0] = c->u.sum_spans.n_spans;
    return NULL;
}
