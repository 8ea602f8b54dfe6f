/* SPDX-License-Identifier: Apache-2.0
 * clamp on the CPU: a task is some tokens. Bound: memory. */
#include "device/cpu/cpu.h"

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_clamp_args *a = &c->u.clamp;
    const int32_t from = task * c->i[0], to = from + c->i[0] < a->n_tokens ? from + c->i[0] : a->n_tokens;
    const float low = a->low, high = a->high;

    (void)r;
    (void)phase;
    for (int32_t i = from; i < to; i++) {
        const float *x = (const float *)a->x + (int64_t)i * a->width;
        float *out = (float *)a->out + (int64_t)i * a->out_stride;
        for (int32_t k = 0; k < a->width; k++) {
            const float v = x[k] < low ? low : x[k];
            out[k] = v > high ? high : v;
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_clamp_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_clamp_args *a = &c->u.clamp;

    if (a->dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: clamp of %s", nrd_dtype_name(a->dtype));
    }
    c->op = &op;
    c->i[0] = a->n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = (a->n_tokens + c->i[0] - 1) / c->i[0];
    return NULL;
}
