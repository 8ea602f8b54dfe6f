/* SPDX-License-Identifier: Apache-2.0
 * embed on the CPU: a task is some tokens; tables in any layout (an embedding tied to the LM head is
 * read from its packed tiles). Bound: memory latency. */
#include "device/cpu/cpu.h"

#include <string.h>

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_embed_args *a = &c->u.embed;
    int32_t from = task * c->i[0], to = from + c->i[0] < a->n_tokens ? from + c->i[0] : a->n_tokens;
    float *room = (float *)(void *)r->scratch;

    (void)phase;
    for (int32_t i = from; i < to; i++) {
        const void *prompt;
        const int64_t id = nrd_embed_source(a, i, &prompt);
        float *out = (float *)a->out + (int64_t)(a->out_rows ? a->out_rows[i] : i) * a->hidden;
        const float *add = NULL;
        if (prompt) {
            memcpy(out, prompt, (size_t)a->hidden * 4);
        } else {
            if (id < 0 || a->table->cols < a->hidden) {
                memset(out, 0, (size_t)a->hidden * 4);
            }
            if (id >= 0) {
                nrd_weight_row(a->table, id, out + a->first_col);
            }
        }
        if (a->pos_table && nrd_embed_adds(a)) {
            int64_t p = a->positions[i];
            p = p < 0 ? 0 : p >= a->pos_table->rows ? a->pos_table->rows - 1 : p;
            nrd_weight_row(a->pos_table, p, room);
            add = room;
        }
        if (add || a->scale != 1.0f) {
            r->k->scale_row(out, a->scale, add, a->hidden);
        }
        if (a->type_table && nrd_embed_adds(a)) {
            nrd_weight_row(a->type_table, nrd_embed_type(a, i), room);
            r->k->add_row(out, room, a->hidden);
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_embed_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_embed_args *a = &c->u.embed;

    if (a->out_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: embed to %s", nrd_dtype_name(a->out_dtype));
    }
    c->op = &op;
    c->i[0] = a->n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = (a->n_tokens + c->i[0] - 1) / c->i[0];
    c->scratch_bytes = (size_t)a->hidden * 4;
    return NULL;
}
