/* SPDX-License-Identifier: Apache-2.0
 * add_rows on the CPU: a task is some tokens. Bound: memory. */
#include "device/cpu/cpu.h"

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_add_rows_args *a = &c->u.add_rows;
    const int32_t from = task * c->i[0], to = from + c->i[0] < a->n_tokens ? from + c->i[0] : a->n_tokens;

    (void)phase;
    for (int32_t i = from; i < to; i++) {
        if (a->rows[i]) {
            r->k->add_row((float *)a->out + (int64_t)i * a->hidden, (const float *)a->rows[i] + a->skip, a->hidden);
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_add_rows_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_add_rows_args *a = &c->u.add_rows;

    if (a->dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: add_rows of %s", nrd_dtype_name(a->dtype));
    }
    c->op = &op;
    c->i[0] = a->n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = (a->n_tokens + c->i[0] - 1) / c->i[0];
    return NULL;
}
