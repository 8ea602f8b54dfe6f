/* SPDX-License-Identifier: Apache-2.0
 * Speed of latent attention: single tokens and prompts, rows of 512 + 64 in a cache that lies in memory. */
#include "ops/harness.h"

enum { LATENT = 512, ROPE = 64, NOPE = 128, V = 128, WIDTH = LATENT + ROPE };

typedef struct latent_speed {
    unsigned on;
    int32_t heads, n_seqs, q_len, ctx;
} latent_speed;

/* 16 heads: DeepSeek-V2-Lite; 128: V2 and V3 */
static const latent_speed table[] = {
    {ON_CPU, 16, 1, 1, 512},     {ON_CPU, 16, 8, 1, 512},      {ON_CPU, 16, 1, 64, 64},
    {ON_CUDA, 16, 1, 1, 100},    {ON_CUDA, 16, 1, 1, 2048},    {ON_CUDA, 16, 1, 1, 32768},
    {ON_CUDA, 16, 16, 1, 2048},  {ON_CUDA, 16, 256, 1, 192},   {ON_CUDA, 16, 256, 1, 2048},
    {ON_CUDA, 16, 1, 512, 512},  {ON_CUDA, 16, 1, 2048, 2048}, {ON_CUDA, 128, 1, 1, 2048},
    {ON_CUDA, 128, 64, 1, 2048},
};

typedef struct latent_run {
    nrd_batch_view view;
    nrd_latent_attention_args a;
    char *pool;
    size_t layer_bytes;
    int n_layers;
} latent_run;

static void latent_call(const target *t, int i, void *user)
{
    latent_run *r = user;
    r->a.kv.base = r->pool + (size_t)(i % r->n_layers) * r->layer_bytes;
    ok(t->ops->latent_attention(t->s, &r->a));
}

/* The step's view in device memory; returns how many pairs of a token and one that it sees there are. */
static double make_view(const latent_speed *s, const target *t, int32_t block_tokens, latent_run *r)
{
    const int32_t stride = (s->ctx + block_tokens - 1) / block_tokens, n = s->n_seqs * s->q_len;
    int32_t *blocks = host((size_t)(s->n_seqs * stride) * 4), *pos = host((size_t)n * 4),
            *seq = host((size_t)n * 4);
    int32_t *start = host((size_t)(s->n_seqs + 1) * 4), *len = host((size_t)s->n_seqs * 4);
    double pairs = 0;

    for (int32_t q = 0; q < s->n_seqs; q++) {
        len[q] = s->ctx;
        start[q + 1] = start[q] + s->q_len;
        for (int32_t k = 0; k < stride; k++) { /* neighbours in a sequence lie apart */
            blocks[q * stride + k] = k * s->n_seqs + q;
        }
        for (int32_t k = 0; k < s->q_len; k++) {
            pos[start[q] + k] = s->ctx - s->q_len + k;
            seq[start[q] + k] = q;
            pairs += pos[start[q] + k] + 1;
        }
    }
    r->view = (nrd_batch_view){.n_tokens = n,
                               .n_seqs = s->n_seqs,
                               .max_q_len = s->q_len,
                               .max_ctx_len = s->ctx,
                               .positions = dev_put(t, pos, (size_t)n * 4),
                               .token_seq = dev_put(t, seq, (size_t)n * 4),
                               .q_start = dev_put(t, start, (size_t)(s->n_seqs + 1) * 4),
                               .ctx_len = dev_put(t, len, (size_t)s->n_seqs * 4),
                               .block_table = dev_put(t, blocks, (size_t)(s->n_seqs * stride) * 4),
                               .block_table_stride = stride};
    return pairs;
}

static nrd_kv_layer cache_on(const latent_speed *s, const target *t, nrd_dtype type,
                             int32_t block_tokens, latent_run *r)
{
    const int32_t n_blocks = s->n_seqs * ((s->ctx + block_tokens - 1) / block_tokens);

    r->layer_bytes =
        t->ops->kv_block_bytes(t->dev, type, block_tokens, 0, WIDTH) * (size_t)n_blocks;
    r->n_layers = kind->is_exact ? 1 : (int)(((size_t)1 << 30) / r->layer_bytes);
    r->n_layers = r->n_layers < 1 ? 1 : r->n_layers > 32 ? 32 : r->n_layers;
    r->pool = dev_pool(t, type, r->layer_bytes * (size_t)r->n_layers);
    return (nrd_kv_layer){.base = r->pool,
                          .dtype = type,
                          .n_blocks = n_blocks,
                          .block_tokens = block_tokens,
                          .head_dim = WIDTH};
}

static void speed_one(const latent_speed *s, const target *t)
{
    const nrd_dtype act = kind->is_exact ? NRD_DTYPE_F32 : NRD_DTYPE_BF16,
                    kv = kind->is_exact ? NRD_DTYPE_F16 : act;
    const size_t elem = nrd_dtype_block_bytes(act);
    latent_run r = {0};
    const double pairs = make_view(s, t, kind->is_exact ? 32 : 64, &r), n = r.view.n_tokens,
                 heads = s->heads;
    const nrd_weight host_k = weight_new(NRD_DTYPE_BF16, (int64_t)s->heads * NOPE, LATENT, 0.04f),
                     host_v = weight_new(NRD_DTYPE_BF16, (int64_t)s->heads * V, LATENT, 0.04f);
    const nrd_weight k_b = weight_on(t, &host_k, false), v_b = weight_on(t, &host_v, false);
    const size_t q_row = (size_t)s->heads * (NOPE + ROPE) * elem,
                 out_row = (size_t)s->heads * V * elem;

    r.a = (nrd_latent_attention_args){.batch = &r.view,
                                      .q = dev_pool(t, act, q_row * (size_t)r.view.n_tokens),
                                      .out = dev_out(t, out_row * (size_t)r.view.n_tokens),
                                      .act_dtype = act,
                                      .out_dtype = act,
                                      .n_heads = s->heads,
                                      .nope_dim = NOPE,
                                      .rope_dim = ROPE,
                                      .v_dim = V,
                                      .scale = 0.07f,
                                      .k_b = &k_b,
                                      .v_b = &v_b,
                                      .kv = cache_on(s, t, kv, kind->is_exact ? 32 : 64, &r)};
    const double maps = heads * (NOPE + V) * LATENT;
    speed_row(measure(t, latent_call, &r, r.n_layers < 8 ? 8 : r.n_layers),
              (work){(double)s->n_seqs * s->ctx * WIDTH * (double)nrd_dtype_block_bytes(kv) +
                         maps * 2 + n * (double)(q_row + out_row),
                     2 * (pairs * heads * (WIDTH + LATENT) + n * maps), PEAK_FLOAT},
              "latent %d heads: %d x (%d of %d)", s->heads, s->n_seqs, s->q_len, s->ctx);
    case_end();
}

void speed_latent(void)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (is_here(table[i].on)) {
            speed_one(&table[i], &targets[0]);
        }
    }
}
