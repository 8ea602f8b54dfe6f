/* SPDX-License-Identifier: Apache-2.0
 * Speed of attention and rope_kv: single tokens and prompts over a cache that lies in memory. */
#include "ops/harness.h"

/* n_single sequences of one token, then n_prompts of q_len; contexts of the singles are ragged where asked. */
typedef struct attn_speed {
    unsigned on;
    int32_t heads, n_kv, dim;
    int32_t n_single, ctx;
    bool ragged;
    int32_t n_prompts, q_len, prompt_ctx;
    int32_t common;     /* tokens at the beginning that all have in the same blocks */
    int32_t first;      /* the first single's context, where it has a longer one of its own */
    bool eight, beside; /* rows of 8 bits out; also told how much each kind of sequence asks */
    bool ints;          /* a cache of int8, and no other */
} attn_speed;

/* clang-format off */
#define SMOL 9, 3, 64
#define GEMMA 4, 1, 256
#define LLAMA 32, 8, 128
static const attn_speed table[] = {
    {ON_CPU, SMOL, 1, 64, .n_prompts = 0},
    {ON_CPU, SMOL, 1, 512, .n_prompts = 0},
    {ON_CPU, SMOL, 1, 8192, .n_prompts = 0},
    {ON_CPU, SMOL, 32, 512, .n_prompts = 0},
    {ON_CPU, SMOL, 32, 512, .common = 448},
    {ON_CPU, SMOL, 8, 2048, .n_prompts = 0},
    {ON_CPU, SMOL, 8, 2048, .common = 1984},
    {ON_CPU, GEMMA, 32, 512, .n_prompts = 0},
    {ON_CPU, GEMMA, 32, 512, .common = 448},
    {ON_CPU, SMOL, .n_prompts = 1, .q_len = 512, .prompt_ctx = 512},
    {ON_CPU, GEMMA, 1, 512, .n_prompts = 0},
    {ON_CPU, GEMMA, .n_prompts = 1, .q_len = 512, .prompt_ctx = 512},
    {ON_CPU, 6, 6, 64, .n_prompts = 1, .q_len = 1500, .prompt_ctx = 1500},
    {ON_CUDA, LLAMA, 1, 100, .n_prompts = 0},
    {ON_CUDA, LLAMA, 1, 100, .eight = true},
    {ON_CUDA, LLAMA, 1, 220, .eight = true},
    {ON_CUDA, LLAMA, 1, 1024, .eight = true},
    {ON_CUDA, LLAMA, 8, 220, .eight = true},
    {ON_CUDA, LLAMA, 1024, 256, true, .eight = true},
    {ON_CUDA, LLAMA, 1, 1024, .n_prompts = 0},
    {ON_CUDA, LLAMA, 1, 32768, .n_prompts = 0},
    {ON_CUDA, LLAMA, 16, 1024, .n_prompts = 0},
    {ON_CUDA, LLAMA, 64, 1024, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 256, 256, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 256, 1500, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 256, 1024, .n_prompts = 0},
    {ON_CUDA, LLAMA, 256, 512, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 256, 2048, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 512, 256, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 512, 1024, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 1024, 192, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 1024, 512, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, 2048, 128, true, .n_prompts = 0},
    {ON_CUDA, LLAMA, .n_prompts = 16, .q_len = 128, .prompt_ctx = 128},
    {ON_CUDA, LLAMA, .n_prompts = 20, .q_len = 101, .prompt_ctx = 107},
    {ON_CUDA, LLAMA, .n_prompts = 64, .q_len = 128, .prompt_ctx = 128},
    {ON_CUDA, LLAMA, .n_prompts = 32, .q_len = 256, .prompt_ctx = 256},
    {ON_CUDA, LLAMA, .n_prompts = 1, .q_len = 2048, .prompt_ctx = 2048},
    {ON_CUDA, LLAMA, .n_prompts = 4, .q_len = 512, .prompt_ctx = 2048},
    {ON_CUDA, LLAMA, .n_prompts = 1, .q_len = 8192, .prompt_ctx = 8192},
    {ON_CUDA, LLAMA, .n_prompts = 1, .q_len = 20000, .prompt_ctx = 20000},
    {ON_CUDA, LLAMA, .n_prompts = 2, .q_len = 1024, .prompt_ctx = 16384},
    {ON_CUDA, 32, 8, 64, .n_prompts = 1, .q_len = 8192, .prompt_ctx = 8192},
    {ON_CUDA, 32, 32, 96, .n_prompts = 1, .q_len = 2048, .prompt_ctx = 2048},
    {ON_CUDA, 16, 8, 256, .n_prompts = 1, .q_len = 2048, .prompt_ctx = 2048},
    {ON_CUDA, SMOL, 600, 256, true, .n_prompts = 0},
    {ON_CUDA, SMOL, 1024, 192, true, .n_prompts = 0},
    {ON_CUDA, SMOL, .n_prompts = 64, .q_len = 128, .prompt_ctx = 128},
    {ON_CUDA, LLAMA, 1, 220, .ints = true},
    {ON_CUDA, LLAMA, 16, 1024, .ints = true},
    {ON_CUDA, LLAMA, 1024, 256, true, .ints = true},
    {ON_CUDA, LLAMA, 512, 1500, true, .ints = true},
    {ON_CUDA, LLAMA, .n_prompts = 64, .q_len = 128, .prompt_ctx = 128, .ints = true},
    {ON_CUDA, LLAMA, .n_prompts = 1, .q_len = 2048, .prompt_ctx = 2048, .ints = true},
    {ON_CUDA, LLAMA, 512, 1500, true, 4, 1000, 1000, .beside = true, .ints = true},
    /* both kinds in one step: one after the other, then as the device likes to run them */
    {ON_CUDA, LLAMA, 340, 5250, true, 2, 4000, 5000, .beside = true},
    {ON_CUDA, LLAMA, 340, 5250, true, 1, 1000, 5000, .beside = true},
    {ON_CUDA, LLAMA, 79, 21000, true, 1, 790, 10000, .beside = true},
    {ON_CUDA, LLAMA, 79, 21000, true, 1, 8000, 8000, .beside = true},
    {ON_CUDA, LLAMA, 300, 2100, true, 4, 2000, 2000, .beside = true},
    {ON_CUDA, LLAMA, 600, 1100, true, 1, 600, 1000, .beside = true},
    {ON_CUDA, LLAMA, 900, 256, true, 8, 128, 128, .beside = true},
    {ON_CUDA, LLAMA, 900, 256, true, 28, 128, 128, .beside = true},
    {ON_CUDA, LLAMA, 900, 256, true, 28, 128, 128, .eight = true, .beside = true},
    {ON_CUDA, LLAMA, 500, 256, true, 56, 128, 128, .beside = true},
    {ON_CUDA, LLAMA, 512, 1500, true, 8, 500, 500, .beside = true},
    {ON_CUDA, LLAMA, 512, 1500, true, 4, 1000, 1000, .beside = true},
    {ON_CUDA, LLAMA, 1024, 128, true, .beside = true},
    {ON_CUDA, LLAMA, 1024, 256, true, .beside = true},
    {ON_CUDA, LLAMA, 512, 1024, true, .beside = true},
    {ON_CUDA, LLAMA, 256, 1024, true, .beside = true},
    {ON_CUDA, LLAMA, 128, 256, true, .beside = true},
    {ON_CUDA, LLAMA, 501, 512, true, .first = 100000, .beside = true},
    {ON_CUDA, LLAMA, 501, 512, true, .beside = true},
    {ON_CUDA, LLAMA, 64, 20000, true, .beside = true},
    {ON_CUDA, LLAMA, 256, 5000, true, .beside = true},
    {ON_CUDA, LLAMA, 16, 20000, true, .beside = true},
};
/* clang-format on */

typedef struct attn_run {
    nrd_batch_view view;
    nrd_attention_args a;
    nrd_rope_kv_args r;
    char *pool;
    size_t layer_bytes;
    int n_layers;
} attn_run;

static void attention_call(const target *t, int i, void *user)
{
    attn_run *r = user;
    r->a.kv.base = r->pool + (size_t)(i % r->n_layers) * r->layer_bytes;
    ok(t->ops->attention(t->s, &r->a));
}

static void rope_call(const target *t, int i, void *user)
{
    attn_run *r = user;
    r->r.kv.base = r->pool + (size_t)(i % r->n_layers) * r->layer_bytes;
    ok(t->ops->rope_kv(t->s, &r->r));
}

static void both_call(const target *t, int i, void *user)
{
    rope_call(t, i, user);
    attention_call(t, i, user);
}

/* The step's view in device memory; *work: the cache that it reads, products of q and k and of p and v. */
static void make_view(const attn_speed *s, const target *t, int32_t bt, attn_run *r, work *w,
                      int64_t *n_blocks)
{
    const int32_t n_seqs = s->n_single + s->n_prompts, n = s->n_single + s->n_prompts * s->q_len;
    const int32_t usual = s->ctx > s->prompt_ctx ? s->ctx : s->prompt_ctx, most = s->first > usual ? s->first : usual;
    const int32_t per_seq = (usual + bt - 1) / bt, stride = (most + bt - 1) / bt;
    int32_t *table_of = host((size_t)(n_seqs * stride) * 4), *pos = host((size_t)n * 4),
            *seq = host((size_t)n * 4);
    int32_t *start = host((size_t)(n_seqs + 1) * 4), *len = host((size_t)n_seqs * 4);
    double cached = 0, pairs = 0, prompt_pairs = 0;

    *n_blocks = (int64_t)n_seqs * per_seq + stride - per_seq;
    for (int32_t q = 0; q < n_seqs; q++) {
        const int32_t fresh = q < s->n_single ? 1 : s->q_len,
                      ctx = q < s->n_single ? s->ctx : s->prompt_ctx;
        len[q] = s->first && q == 0 ? s->first : s->ragged && q < s->n_single ? rnd_in(ctx / 2, ctx) : ctx;
        for (int32_t k = 0; k < stride; k++) { /* neighbours in a sequence lie apart */
            table_of[q * stride + k] = k < per_seq ? k * n_seqs + (k < s->common / bt ? 0 : q)
                                       : q == 0    ? n_seqs * per_seq + k - per_seq
                                                   : -1;
        }
        start[q + 1] = start[q] + fresh;
        cached += len[q] - (q > 0 ? s->common : 0);
        for (int32_t k = 0; k < fresh; k++) {
            pos[start[q] + k] = len[q] - fresh + k;
            seq[start[q] + k] = q;
            pairs += len[q] - fresh + k + 1;
            prompt_pairs += q < s->n_single ? 0 : len[q] - fresh + k + 1;
        }
    }
    r->view = (nrd_batch_view){.n_tokens = n,
                               .n_seqs = n_seqs,
                               .max_q_len = s->n_prompts ? s->q_len : 1,
                               .max_ctx_len = most,
                               .positions = dev_put(t, pos, (size_t)n * 4),
                               .token_seq = dev_put(t, seq, (size_t)n * 4),
                               .q_start = dev_put(t, start, (size_t)(n_seqs + 1) * 4),
                               .ctx_len = dev_put(t, len, (size_t)n_seqs * 4),
                               .block_table = dev_put(t, table_of, (size_t)(n_seqs * stride) * 4),
                               .block_table_stride = stride};
    const bool told = s->beside || s->n_prompts == 0;
    r->view.n_single = told ? s->n_single : 0;
    *w = (work){cached * 2 * s->n_kv * s->dim, pairs * 4 * s->heads * s->dim, PEAK_FLOAT};
    r->view.single_ctx = told ? (int64_t)(pairs - prompt_pairs) : 0;
    r->view.prompt_pairs = told ? (int64_t)prompt_pairs : 0;
}

static void speed_one(const attn_speed *s, const target *t, nrd_dtype kv, bool f8_products)
{
    const nrd_dtype act = kind->acts[0], out = s->eight ? kind->eight : act;
    const int32_t bt = kind->is_exact ? 32 : 64;
    const int64_t width = (int64_t)s->heads * s->dim, row = width + 2 * (int64_t)s->n_kv * s->dim;
    const size_t block = t->ops->kv_block_bytes(t->dev, kv, bt, s->n_kv, s->dim);
    attn_run r = {0};
    work w;
    int64_t n_blocks;

    make_view(s, t, bt, &r, &w, &n_blocks);
    const size_t act_bytes = nrd_dtype_block_bytes(act);
    w.bytes = w.bytes * (double)nrd_dtype_block_bytes(kv) +
              (double)r.view.n_tokens * (double)width * 2 * (double)act_bytes;
    r.layer_bytes = block * (size_t)n_blocks;
    r.n_layers = kind->is_exact ? 1 : (int)(((size_t)2 << 30) / r.layer_bytes);
    r.n_layers = r.n_layers < 1 ? 1 : r.n_layers > 32 ? 32 : r.n_layers;
    r.pool = dev_pool(t, kv, r.layer_bytes * (size_t)r.n_layers);
    const nrd_kv_layer layer = {.base = r.pool,
                                .dtype = kv,
                                .n_blocks = (int32_t)n_blocks,
                                .block_tokens = bt,
                                .n_kv_heads = s->n_kv,
                                .head_dim = s->dim};
    void *qkv = dev_pool(t, act, (size_t)(r.view.n_tokens * row) * act_bytes);
    const float *freq = host_normal(s->dim / 2, 0.3f);
    r.a = (nrd_attention_args){
        .batch = &r.view,
        .q = qkv,
        .q_stride = row,
        .act_dtype = act,
        .out_dtype = out,
        .out = dev_out(t, nrd_row_bytes(out, width) * (size_t)r.view.n_tokens),
        .out_row_scale = out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)r.view.n_tokens * 4) : NULL,
        .n_heads = s->heads,
        .scale = 1.0f / sqrtf((float)s->dim),
        .kv = layer,
        .f8_products = f8_products};
    r.r = (nrd_rope_kv_args){.batch = &r.view,
                             .qkv = qkv,
                             .act_dtype = act,
                             .n_heads = s->heads,
                             .rope = NRD_ROPE_NEOX,
                             .rotary_dim = s->dim,
                             .inv_freq = dev_put(t, freq, (size_t)s->dim * 2),
                             .rope_scale = 1,
                             .kv = layer};
    const int calls = r.n_layers < 16 && w.ops < 1e12 ? 16 : r.n_layers;
    char shape[80];
    int at = snprintf(shape, sizeof shape, "kv %s%s%s %d/%d x %d:", nrd_dtype_name(kv), f8_products ? " as it is" : "",
                      s->eight ? " -> 8 bits" : "", s->heads, s->n_kv, s->dim);
    if (s->n_single) {
        at += snprintf(shape + at, sizeof shape - (size_t)at, " %d x %d%s", s->n_single, s->ctx,
                       s->ragged   ? " ragged"
                       : s->common ? " shared"
                                   : "");
        if (s->first) {
            at += snprintf(shape + at, sizeof shape - (size_t)at, ", one %d", s->first);
        }
    }
    if (s->n_prompts) {
        snprintf(shape + at, sizeof shape - (size_t)at, " %d x (%d of %d)", s->n_prompts, s->q_len,
                 s->prompt_ctx);
    }
    if (s->beside && s->n_prompts) {
        const nrd_batch_view told = r.view;
        r.view.single_ctx = r.view.prompt_pairs = 0;
        speed_row(measure(t, attention_call, &r, calls), w, "attention in turn, %s", shape);
        r.view = told;
    }
    speed_row(measure(t, attention_call, &r, calls), w, "attention %s", shape);
    if (!s->beside && !s->eight && !f8_products) { /* new tokens' q, k, v read; q and the cache written */
        const double n = (double)r.view.n_tokens;
        speed_row(measure(t, rope_call, &r, calls),
                  (work){n * ((double)(row + width) * (double)act_bytes +
                              2.0 * s->n_kv * s->dim * (double)nrd_dtype_block_bytes(kv)),
                         0, PEAK_FLOAT},
                  "rope_kv %s", shape);
        if (s->n_prompts == 0) { /* one reads what the other wrote */
            speed_row(measure(t, both_call, &r, calls), w, "rope_kv, attention %s", shape);
        }
    }
    case_end();
}

void speed_attention(void)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const attn_speed *s = &table[i];
        if (!is_here(s->on) || (small_only && s->n_prompts)) {
            continue;
        }
        if (s->ints) {
            speed_one(s, &targets[0], NRD_DTYPE_I8, false);
        } else if (kind->is_exact || s->beside) {
            speed_one(s, &targets[0], kind->is_exact ? NRD_DTYPE_F16 : NRD_DTYPE_F8_E4M3, false);
            if (kind->is_exact && s->n_prompts) { /* as encoders have it */
                speed_one(s, &targets[0], NRD_DTYPE_F32, false);
            }
        } else {
            speed_one(s, &targets[0], NRD_DTYPE_BF16, false);
            speed_one(s, &targets[0], NRD_DTYPE_F8_E4M3, false);
            if (s->n_prompts) {
                speed_one(s, &targets[0], NRD_DTYPE_F8_E4M3, true);
            }
        }
    }
}
