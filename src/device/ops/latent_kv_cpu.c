/* SPDX-License-Identifier: Apache-2.0
 * latent_kv on the CPU: a task is some neighbouring tokens. Bound: memory. */
#include "device/cpu/cpu.h"

#include <string.h>

enum { TASK_TOKENS = 16 };

/* Scratch: cos and sin [rope_dim / 2], the norm's weight and a row. */
static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_latent_kv_args *a = &c->u.latent_kv;
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    const int32_t half = a->rope_dim / 2, rank = kv->head_dim - a->rope_dim, width = a->nope_dim + a->rope_dim;
    const int32_t from = task * c->i[0], to = from + c->i[0] < b->n_tokens ? from + c->i[0] : b->n_tokens;
    float *cs = (float *)(void *)r->scratch, *sn = cs + half, *weight = sn + half, *x = weight + rank;

    (void)phase;
    for (int32_t i = 0; i < rank; i++) {
        weight[i] = nrd_weight_at(a->norm, i);
    }
    for (int32_t t = from; t < to; t++) {
        const int32_t slot = nrd_kv_slot(b, t);
        const int32_t block = b->block_table[(int64_t)b->token_seq[t] * b->block_table_stride + slot / kv->block_tokens];
        float *q = (float *)a->q + (int64_t)t * a->n_heads * width + a->nope_dim;
        r->k->rope_angles(b->positions[t], a->inv_freq, half, a->rope_scale, cs, sn);
        for (int32_t h = 0; h < a->n_heads; h++) {
            r->k->rope_head(q + (int64_t)h * width, a->rope, half, cs, sn);
        }
        if (block < 0 || block >= kv->n_blocks) {
            continue;
        }
        memcpy(x, (const float *)a->latent + (int64_t)t * kv->head_dim, (size_t)kv->head_dim * sizeof *x);
        r->k->norm_row(NRD_NORM_RMS, a->norm_eps, rank, x, weight, NULL, x);
        r->k->rope_head(x + rank, a->rope, half, cs, sn);
        const int64_t row = (int64_t)block * kv->block_tokens + slot % kv->block_tokens;
        r->k->kv_store_head(kv->dtype, x, kv->head_dim, 1.0f, kv->base, row * kv->head_dim, 1);
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_latent_kv_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_latent_kv_args *a = &c->u.latent_kv;
    const int32_t n = a->batch->n_tokens;

    c->op = &op;
    if (n == 0) {
        return NULL;
    }
    if (a->act_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: latent_kv on %s", nrd_dtype_name(a->act_dtype));
    }
    c->i[0] = n / (n_threads * 4) + 1 < TASK_TOKENS ? n / (n_threads * 4) + 1 : TASK_TOKENS;
    c->n_tasks[0] = (n + c->i[0] - 1) / c->i[0];
    c->scratch_bytes = (size_t)(a->rope_dim + 2 * a->kv.head_dim + 64) * sizeof(float);
    return NULL;
}
