/* SPDX-License-Identifier: Apache-2.0
 * gpu_bench - times every operation of a device plug-in on the shapes of Llama-3.1-8B.
 *
 *   gpu_bench build/lib/nereid_cuda.so [linear|quantized|attention|mixed|rest [ROWS]]
 * Each row is a captured graph of at least 16 calls whose weights or cache lie at different places of
 * a pool of 2 GiB (the L2 of an H200 holds 60 MB), replayed 7 times; the median is printed. The floor
 * is the larger of bytes over 4.42 TB/s and operations over 768 (bf16) or 1,330 (F8) TFLOP/s, both
 * measured on an H200.
 */
#include "gpu.h"

#include <time.h>

#define POOL_BYTES ((size_t)2 << 30)
static char *pool16, *pool8; /* random bf16; random F8 */
static char *x_buf, *y_buf;  /* activations in and out */
static char *noise_buf;      /* activations while kernels are tried */
static float *f_ones, *f_scales; /* the latter are written */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of one call; `call(i, ctx)` enqueues the i-th. */
static double measure(void (*call)(int, void *), void *ctx, int calls)
{
    nrd_graph *g;
    double t[7];

    call(0, ctx);
    OK(dev->ops->stream_sync(st));
    OK(dev->ops->graph_begin(st));
    for (int i = 0; i < calls; i++) {
        call(i, ctx);
    }
    OK(dev->ops->graph_end(st, &g));
    OK(dev->ops->graph_launch(st, g));
    OK(dev->ops->stream_sync(st));
    for (int r = 0; r < 7; r++) {
        const double t0 = now();
        for (int k = 0; k < 3; k++) {
            OK(dev->ops->graph_launch(st, g));
        }
        OK(dev->ops->stream_sync(st));
        t[r] = (now() - t0) / (3 * calls);
    }
    dev->ops->graph_free(g);
    qsort(t, 7, sizeof *t, by_value);
    return t[3];
}

static void row(const char *what, double s, double bytes, double flops, double peak)
{
    const double floor_s = fmax(bytes / 4.42e12, flops / peak);
    printf("%-44s %9.2f us  %6.2f TB/s  %7.1f TFLOP/s  %5.1f %% of floor %8.2f us\n", what, s * 1e6,
           bytes / s * 1e-12, flops / s * 1e-12, 100 * floor_s / s, floor_s * 1e6);
    fflush(stdout);
}

static char *random_pool(nrd_dtype t, size_t bytes)
{
    const size_t chunk = (size_t)8 << 20;
    char *p = dev_new(bytes);
    void *h = random_host(t, chunk / elem(t), 0.5f);
    for (size_t at = 0; at < bytes; at += chunk) {
        OK(dev->ops->copy(st, p + at, h, chunk));
    }
    OK(dev->ops->stream_sync(st));
    free(h);
    return p;
}

/* ---- linear ---- */

typedef struct linear_ctx {
    nrd_linear_args a;
    nrd_weight w[64];
    int n;
} linear_ctx;

static void call_linear(int i, void *p)
{
    linear_ctx *c = p;
    c->a.w[0] = &c->w[i % c->n];
    OK(dev->ops->linear(st, &c->a));
}

static double bench_linear(const char *name, nrd_dtype t, nrd_dtype y_t, int n, int rows, int cols)
{
    linear_ctx c = {.a = {.n_tokens = n, .x = x_buf, .x_dtype = t, .n_parts = 1,
                          .x_row_scale = t == NRD_DTYPE_F8_E4M3 ? f_ones : NULL, .y = y_buf,
                          .y_dtype = y_t}};
    const size_t bytes = (size_t)rows * (size_t)cols * elem(t);
    char what[120];

    c.n = (int)(POOL_BYTES / bytes);
    c.n = c.n > 64 ? 64 : c.n;
    for (int i = 0; i < c.n; i++) {
        c.w[i] = (nrd_weight){.dtype = t, .rows = rows, .cols = cols, .scale = 1, .data_bytes = bytes,
                              .data = (t == NRD_DTYPE_F8_E4M3 ? pool8 : pool16) + (size_t)i * bytes,
                              .scales = t == NRD_DTYPE_F8_E4M3 ? f_ones : NULL};
    }
    c.a.w[0] = &c.w[0];
    if (dev->ops->linear_tune) {
        OK(dev->ops->linear_tune(st, &c.a, noise_buf, 10));
    }
    const double s = measure(call_linear, &c, c.n < 16 ? 16 : c.n);
    snprintf(what, sizeof what, "%-8s %s %4d x %d -> %d", name, t == NRD_DTYPE_BF16 ? "bf16" : "f8", n,
             cols, rows);
    row(what, s, (double)bytes + (double)n * ((double)cols * (double)elem(t) + (double)rows * (double)elem(y_t)),
        2.0 * n * (double)rows * cols, t == NRD_DTYPE_BF16 ? 768e12 : 1330e12);
    return s;
}

static int rows_only; /* products of so many rows; 0: all */

static void all_linear(void)
{
    static const int tokens[] = {1, 4, 8, 16, 32, 64, 128, 256, 512, 2048};

    for (int t = 0; t < 2; t++) {
        const nrd_dtype type = t ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16;
        for (int i = 0; i < 10; i++) {
            const int n = tokens[i];
            if (rows_only && n != rows_only) {
                continue;
            }
            double s = bench_linear("qkv", type, NRD_DTYPE_BF16, n, 6144, 4096);
            s += bench_linear("o", type, NRD_DTYPE_BF16, n, 4096, 4096);
            s += bench_linear("gate_up", type, NRD_DTYPE_BF16, n, 28672, 4096);
            s += bench_linear("down", type, NRD_DTYPE_BF16, n, 4096, 14336);
            row("  layer", s, 218103808.0 * (double)elem(type), 2.0 * 218103808.0 * n,
                t ? 1330e12 : 768e12);
            if (n <= 512) {
                bench_linear("head", type, NRD_DTYPE_F32, n, 128256, 4096);
            }
        }
    }
}

/* Weights of random bits in a format of blocks; the floor counts their own bytes. Rows beyond 512 MB, eight
 * times the L2, are not needed. */
static double bench_quantized(const char *name, nrd_dtype t, nrd_dtype y_t, const int *tokens, int n_tokens,
                              int rows, int cols, double *sums)
{
    linear_ctx c = {.a = {.x = x_buf, .x_dtype = NRD_DTYPE_BF16, .n_parts = 1, .y = y_buf,
                          .y_dtype = y_t}};
    size_t bytes = 0;
    char what[120];

    if (!nrd_dtype_bytes(t, (uint64_t)rows * (uint64_t)cols, &bytes)) {
        return 0;
    }
    nrd_weight host = {.dtype = t, .rows = rows, .cols = cols, .scale = 1, .data_bytes = bytes};
    float *scales = malloc((size_t)rows * 4);
    for (int i = 0; i < rows; i++) {
        scales[i] = 0.01f;
    }
    host.scales = t == NRD_DTYPE_I8 ? scales : NULL;
    uint64_t *bits = malloc(bytes + 8);
    for (size_t i = 0; i <= bytes / 8; i++) {
        bits[i] = rng();
    }
    host.data = bits;
    c.n = (int)(((size_t)512 << 20) / bytes) + 1;
    c.n = c.n > 64 ? 64 : c.n;
    for (int i = 0; i < c.n; i++) {
        bool owned;
        OK(dev->ops->weight_load(st, &host, true, &c.w[i], &owned));
    }
    for (int i = 0; i < n_tokens; i++) {
        c.a.n_tokens = tokens[i];
        const double s = measure(call_linear, &c, c.n < 16 ? 16 : c.n);
        snprintf(what, sizeof what, "%-8s %s %4d x %d -> %d", name, nrd_dtype_name(t), tokens[i], cols, rows);
        row(what, s, (double)bytes + (double)tokens[i] * ((double)cols * 2 + (double)rows * (double)elem(y_t)),
            2.0 * tokens[i] * (double)rows * cols, 768e12);
        sums[i] += s;
    }
    for (int i = 0; i < c.n; i++) {
        dev->ops->weight_unload(dev, &c.w[i]);
    }
    free(bits);
    free(scales);
    return (double)bytes;
}

static void all_quantized(void)
{
    static const int tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 2048};
    static const nrd_dtype types[] = {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_K, NRD_DTYPE_Q8_0, NRD_DTYPE_I8};
    enum { N = sizeof tokens / sizeof *tokens };

    for (int t = 0; t < 4; t++) {
        double sums[N] = {0}, head[N] = {0};
        double bytes = bench_quantized("qkv", types[t], NRD_DTYPE_BF16, tokens, N, 6144, 4096, sums);
        bytes += bench_quantized("o", types[t], NRD_DTYPE_BF16, tokens, N, 4096, 4096, sums);
        bytes += bench_quantized("gate_up", types[t], NRD_DTYPE_BF16, tokens, N, 28672, 4096, sums);
        bytes += bench_quantized("down", types[t], NRD_DTYPE_BF16, tokens, N, 4096, 14336, sums);
        for (int i = 0; i < N; i++) {
            char what[60];
            snprintf(what, sizeof what, "  layer %s %d", nrd_dtype_name(types[t]), tokens[i]);
            row(what, sums[i], bytes, 2.0 * 218103808.0 * tokens[i], 768e12);
        }
        bench_quantized("head", types[t], NRD_DTYPE_F32, tokens, 5, 128256, 4096, head);
    }
}

/* ---- attention ---- */

typedef struct attn_ctx {
    nrd_attention_args a;
    nrd_batch_view view;
    size_t layer_bytes;
    char *base;
    int layers;
} attn_ctx;

static void call_attention(int i, void *p)
{
    attn_ctx *c = p;
    c->a.kv.base = c->base + (size_t)(i % c->layers) * c->layer_bytes;
    OK(dev->ops->attention(st, &c->a));
}

typedef struct heads {
    int q, kv, dim;
} heads;
static const heads llama = {32, 8, 128};

static void bench_heads(heads h, nrd_dtype kv, nrd_dtype out, int n_seqs, int q_len, int ctx, bool ragged)
{
    enum { BT = 64 };
    const int stride = (ctx + BT - 1) / BT, n_blocks = stride * n_seqs, n = n_seqs * q_len;
    int32_t *table = malloc((size_t)n_blocks * 4), *pos = malloc((size_t)n * 4), *seq = malloc((size_t)n * 4);
    int32_t *start = malloc((size_t)(n_seqs + 1) * 4), *len = malloc((size_t)n_seqs * 4);
    double tokens = 0, pairs = 0;
    char what[120];

    for (int i = 0; i < n_blocks; i++) {
        const int j = rnd(0, i);
        table[i] = table[j];
        table[j] = i;
    }
    for (int s = 0; s <= n_seqs; s++) {
        start[s] = s * q_len;
        if (s < n_seqs) {
            len[s] = ragged ? rnd(ctx / 2, ctx) : ctx;
            tokens += len[s];
            for (int i = 0; i < q_len; i++) {
                pos[s * q_len + i] = len[s] - q_len + i;
                seq[s * q_len + i] = s;
                pairs += len[s] - q_len + i + 1;
            }
        }
    }
    attn_ctx c = {.base = kv == NRD_DTYPE_F8_E4M3 ? pool8 : pool16,
                  .layer_bytes = dev->ops->kv_block_bytes(dev, kv, BT, h.kv, h.dim) * (size_t)n_blocks};
    c.layers = (int)(POOL_BYTES / c.layer_bytes);
    if (c.layers == 0) {
        return;
    }
    c.view = (nrd_batch_view){.n_tokens = n, .n_seqs = n_seqs, .max_q_len = q_len, .max_ctx_len = ctx,
                              .positions = dev_put(pos, (size_t)n * 4),
                              .token_seq = dev_put(seq, (size_t)n * 4),
                              .q_start = dev_put(start, (size_t)(n_seqs + 1) * 4),
                              .ctx_len = dev_put(len, (size_t)n_seqs * 4),
                              .block_table = dev_put(table, (size_t)n_blocks * 4),
                              .block_table_stride = stride};
    c.a = (nrd_attention_args){.batch = &c.view, .q = x_buf,
                               .q_stride = (h.q + 2 * h.kv) * h.dim, .out = y_buf,
                               .act_dtype = NRD_DTYPE_BF16, .out_dtype = out,
                               .out_row_scale = out == NRD_DTYPE_F8_E4M3 ? f_scales : NULL,
                               .n_heads = h.q, .scale = 1.0f / sqrtf((float)h.dim),
                               .kv = {.dtype = kv, .n_blocks = n_blocks, .block_tokens = BT,
                                      .n_kv_heads = h.kv, .head_dim = h.dim, .k_scale = 1, .v_scale = 1}};
    const double s = measure(call_attention, &c, c.layers < 16 ? 16 : c.layers > 32 ? 32 : c.layers);
    char shape[40] = "";
    if (memcmp(&h, &llama, sizeof h) != 0) {
        snprintf(shape, sizeof shape, " %d/%d x %d", h.q, h.kv, h.dim);
    }
    snprintf(what, sizeof what, "attention kv %s%s%s %d x (%d of %d)%s", kv == NRD_DTYPE_BF16 ? "bf16" : "f8",
             out == NRD_DTYPE_F8_E4M3 ? " -> f8" : "", shape, n_seqs, q_len, ctx, ragged ? " ragged" : "");
    row(what, s, tokens * 2 * h.kv * h.dim * (double)elem(kv) + (double)n * h.q * h.dim * 4,
        pairs * h.q * h.dim * 4, 768e12);
    dev_free((void *)(uintptr_t)c.view.positions);
    dev_free((void *)(uintptr_t)c.view.token_seq);
    dev_free((void *)(uintptr_t)c.view.q_start);
    dev_free((void *)(uintptr_t)c.view.ctx_len);
    dev_free((void *)(uintptr_t)c.view.block_table);
    free(table);
    free(pos);
    free(seq);
    free(start);
    free(len);
}

static void bench_attention(nrd_dtype kv, nrd_dtype out, int n_seqs, int q_len, int ctx, bool ragged)
{
    bench_heads(llama, kv, out, n_seqs, q_len, ctx, ragged);
}

static void call_mixed(int i, void *p)
{
    attn_ctx *c = p;
    (void)i;
    OK(dev->ops->attention(st, &c->a));
}

/* Single tokens and prompts in one step: one after the other, then as the device likes to run them. */
static void bench_mixed(int n_single, int ctx, int n_prompts, int q_len, int prompt_ctx)
{
    enum { BT = 64, HEADS = 32, KV = 8, HD = 128 };
    const int n_seqs = n_single + n_prompts, n = n_single + n_prompts * q_len;
    const int most = ctx * 3 / 2 > prompt_ctx ? ctx * 3 / 2 : prompt_ctx, stride = (most + BT - 1) / BT;
    const size_t block = dev->ops->kv_block_bytes(dev, NRD_DTYPE_F8_E4M3, BT, KV, HD);
    const int n_blocks = (int)(POOL_BYTES / block);
    int32_t *table = malloc((size_t)(n_seqs * stride) * 4), *pos = malloc((size_t)n * 4);
    int32_t *seq = malloc((size_t)n * 4), *start = malloc((size_t)(n_seqs + 1) * 4);
    int32_t *len = malloc((size_t)n_seqs * 4);
    double tokens = 0, pairs = 0;
    char what[120];

    for (int i = 0; i < n_seqs * stride; i++) {
        table[i] = rnd(0, n_blocks - 1);
    }
    start[0] = 0;
    for (int s = 0, t = 0; s < n_seqs; s++) {
        const int q = s < n_single ? 1 : q_len;
        len[s] = s < n_single ? rnd(ctx / 2, ctx * 3 / 2) : prompt_ctx;
        start[s + 1] = start[s] + q;
        for (int i = 0; i < q; i++, t++) {
            pos[t] = len[s] - q + i;
            seq[t] = s;
            pairs += s < n_single ? 0 : pos[t] + 1;
        }
        tokens += s < n_single ? len[s] : 0;
    }
    attn_ctx c = {0};
    c.view = (nrd_batch_view){.n_tokens = n, .n_seqs = n_seqs, .max_q_len = n_prompts ? q_len : 1,
                              .max_ctx_len = most, .n_single = n_single,
                              .positions = dev_put(pos, (size_t)n * 4),
                              .token_seq = dev_put(seq, (size_t)n * 4),
                              .q_start = dev_put(start, (size_t)(n_seqs + 1) * 4),
                              .ctx_len = dev_put(len, (size_t)n_seqs * 4),
                              .block_table = dev_put(table, (size_t)(n_seqs * stride) * 4),
                              .block_table_stride = stride};
    c.a = (nrd_attention_args){.batch = &c.view, .q = x_buf,
                               .q_stride = (HEADS + 2 * KV) * HD, .out = y_buf,
                               .act_dtype = NRD_DTYPE_BF16, .out_dtype = NRD_DTYPE_BF16,
                               .n_heads = HEADS, .scale = 0.0883883f,
                               .kv = {.base = pool8, .dtype = NRD_DTYPE_F8_E4M3, .n_blocks = n_blocks,
                                      .block_tokens = BT, .n_kv_heads = KV, .head_dim = HD,
                                      .k_scale = 1, .v_scale = 1}};
    for (int said = 0; said < 2; said++) {
        c.view.single_ctx = said ? (int64_t)tokens : 0;
        c.view.prompt_pairs = said ? (int64_t)pairs : 0;
        snprintf(what, sizeof what, "%d x %d + %d x (%d of %d)%s", n_single, ctx, n_prompts, q_len,
                 prompt_ctx, said ? " beside" : "");
        row(what, measure(call_mixed, &c, 4), tokens * 2 * KV * HD, pairs * HEADS * HD * 4, 768e12);
    }
    dev_free((void *)(uintptr_t)c.view.positions);
    dev_free((void *)(uintptr_t)c.view.token_seq);
    dev_free((void *)(uintptr_t)c.view.q_start);
    dev_free((void *)(uintptr_t)c.view.ctx_len);
    dev_free((void *)(uintptr_t)c.view.block_table);
    free(table);
    free(pos);
    free(seq);
    free(start);
    free(len);
}

static void all_mixed(void)
{
    bench_mixed(340, 5250, 2, 4000, 5000);
    bench_mixed(340, 5250, 1, 1000, 5000);
    bench_mixed(79, 21000, 1, 790, 10000);
    bench_mixed(79, 21000, 1, 8000, 8000);
    bench_mixed(300, 2100, 4, 2000, 2000);
    bench_mixed(600, 1100, 1, 600, 1000);
    bench_mixed(64, 20000, 0, 1, 1);
    bench_mixed(256, 5000, 0, 1, 1);
    bench_mixed(16, 20000, 0, 1, 1);
}

static void all_attention(void)
{
    for (int t = 0; t < 2; t++) {
        const nrd_dtype kv = t ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16;
        bench_attention(kv, NRD_DTYPE_BF16, 1, 1, 100, false);
        bench_attention(kv, NRD_DTYPE_F8_E4M3, 1, 1, 100, false);
        bench_attention(kv, NRD_DTYPE_F8_E4M3, 1, 1, 220, false);
        bench_attention(kv, NRD_DTYPE_F8_E4M3, 1, 1, 1024, false);
        bench_attention(kv, NRD_DTYPE_F8_E4M3, 8, 1, 220, false);
        bench_attention(kv, NRD_DTYPE_BF16, 1, 1, 1024, false);
        bench_attention(kv, NRD_DTYPE_BF16, 1, 1, 32768, false);
        bench_attention(kv, NRD_DTYPE_BF16, 16, 1, 1024, false);
        bench_attention(kv, NRD_DTYPE_BF16, 64, 1, 1024, true);
        bench_attention(kv, NRD_DTYPE_BF16, 256, 1, 256, true);
        bench_attention(kv, NRD_DTYPE_BF16, 256, 1, 1500, true);
        bench_attention(kv, NRD_DTYPE_BF16, 256, 1, 1024, false);
        bench_attention(kv, NRD_DTYPE_BF16, 16, 128, 128, false);
        bench_attention(kv, NRD_DTYPE_BF16, 1, 2048, 2048, false);
        bench_attention(kv, NRD_DTYPE_BF16, 4, 512, 2048, false);
        bench_attention(kv, NRD_DTYPE_BF16, 1, 8192, 8192, false);
        bench_attention(kv, NRD_DTYPE_BF16, 1, 20000, 20000, false);
        bench_attention(kv, NRD_DTYPE_BF16, 2, 1024, 16384, false);
        bench_heads((heads){32, 8, 64}, kv, NRD_DTYPE_BF16, 1, 8192, 8192, false);
        bench_heads((heads){32, 32, 96}, kv, NRD_DTYPE_BF16, 1, 2048, 2048, false);
        bench_heads((heads){16, 8, 256}, kv, NRD_DTYPE_BF16, 1, 2048, 2048, false);
    }
}

/* ---- the rest ---- */

typedef struct rest_ctx {
    nrd_norm_args norm;
    nrd_act_args act;
    nrd_rope_kv_args rope;
    nrd_batch_view view;
    nrd_sample_args sample;
    nrd_embed_args embed;
    nrd_weight vec, table;
    int rows;
} rest_ctx;

/* Inputs move through the pool so that large ones come from memory. */
static void *place(int i, size_t bytes)
{
    const size_t n = POOL_BYTES / bytes;
    return pool16 + (size_t)i % (n > 32 ? 32 : n) * bytes;
}

static void call_norm(int i, void *p)
{
    rest_ctx *c = p;
    const size_t bytes = (size_t)c->rows * 4096 * 2;
    c->norm.residual = place(2 * i, bytes);
    c->norm.delta = place(2 * i + 1, bytes);
    OK(dev->ops->norm(st, &c->norm));
}

static void call_act(int i, void *p)
{
    rest_ctx *c = p;
    c->act.x = place(i, (size_t)c->rows * 28672 * 2);
    OK(dev->ops->act(st, &c->act));
}

static void call_rope(int i, void *p)
{
    rest_ctx *c = p;
    c->rope.qkv = place(i, (size_t)c->rows * 6144 * 2);
    OK(dev->ops->rope_kv(st, &c->rope));
}

static void call_sample(int i, void *p)
{
    rest_ctx *c = p;
    (void)i;
    OK(dev->ops->sample(st, &c->sample));
}

static void call_embed(int i, void *p)
{
    rest_ctx *c = p;
    (void)i;
    OK(dev->ops->embed(st, &c->embed));
}

static void all_rest(void)
{
    enum { V = 128256, MAX = 2048, BT = 64 };
    static const int tokens[] = {1, 8, 16, 64, 256, 1024, 2048};
    int32_t *zeros = calloc(MAX + 1, 4), *iota = malloc((MAX + 1) * 4);
    nrd_sample_row *rows = calloc(256, sizeof *rows);
    char what[120];

    for (int i = 0; i <= MAX; i++) {
        iota[i] = i;
    }
    int32_t *d_zeros = dev_put(zeros, (MAX + 1) * 4), *d_iota = dev_put(iota, (MAX + 1) * 4);
    float *logits = dev_new((size_t)256 * V * 4);
    float *h_logits = random_host(NRD_DTYPE_F32, V + 1024, 2.5f);
    for (int r = 0; r < 256; r++) {
        OK(dev->ops->copy(st, logits + (size_t)r * V, h_logits + r, (size_t)V * 4));
    }
    float *freq = random_host(NRD_DTYPE_F32, 64, 0.3f), *d_freq = dev_put(freq, 64 * 4);
    const size_t block = dev->ops->kv_block_bytes(dev, NRD_DTYPE_BF16, BT, 8, 128);
    void *cache = dev_new(block * (MAX / BT));
    int32_t *d_ctx = dev_put(iota + MAX, 4);
    float *scale = dev_new(MAX * 4);
    int32_t *late = malloc(MAX * 4);
    for (int i = 0; i < MAX; i++) {
        late[i] = rng() % BT;
    }
    int32_t *d_late = dev_put(late, MAX * 4);

    for (int t = 0; t < 7; t++) {
        const int n = tokens[t];
        rest_ctx c = {.rows = n, .vec = {.dtype = NRD_DTYPE_F32, .rows = 4096, .cols = 1, .data = f_ones},
                      .table = {.dtype = NRD_DTYPE_BF16, .rows = V, .cols = 4096, .data = pool16}};
        for (int q = 0; q < 2; q++) {
            c.norm = (nrd_norm_args){.eps = 1e-5f, .n_tokens = n, .hidden = 4096,
                                     .weight = &c.vec, .out = y_buf, .act_dtype = NRD_DTYPE_BF16,
                                     .out_dtype = q ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16,
                                     .out_row_scale = q ? scale : NULL};
            snprintf(what, sizeof what, "norm + residual -> %s %d x 4096", q ? "f8" : "bf16", n);
            row(what, measure(call_norm, &c, 32), (double)n * 4096 * (q ? 7 : 8), 0, 1);
            c.act = (nrd_act_args){.kind = NRD_ACT_SILU, .gated = true, .n_tokens = n,
                                   .inter = 14336, .act_dtype = NRD_DTYPE_BF16, .out = y_buf,
                                   .out_dtype = q ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16,
                                   .out_row_scale = q ? scale : NULL};
            snprintf(what, sizeof what, "silu * up -> %s %d x 14336", q ? "f8" : "bf16", n);
            row(what, measure(call_act, &c, 32), (double)n * 14336 * (q ? 5 : 6), 0, 1);
        }
        c.view = (nrd_batch_view){.n_tokens = n, .n_seqs = 1, .max_q_len = n, .max_ctx_len = MAX,
                                  .positions = d_iota, .token_seq = d_zeros, .q_start = d_zeros,
                                  .ctx_len = d_ctx, .block_table = d_iota, .block_table_stride = MAX / BT};
        c.rope = (nrd_rope_kv_args){.batch = &c.view, .act_dtype = NRD_DTYPE_BF16,
                                    .n_heads = 32, .rope = NRD_ROPE_NEOX, .rotary_dim = 128,
                                    .inv_freq = d_freq, .rope_scale = 1,
                                    .kv = {.base = cache, .dtype = NRD_DTYPE_BF16, .n_blocks = MAX / BT,
                                           .block_tokens = BT, .n_kv_heads = 8, .head_dim = 128,
                                           .k_scale = 1, .v_scale = 1}};
        snprintf(what, sizeof what, "rope_kv %d tokens", n);
        row(what, measure(call_rope, &c, 32), (double)n * (6144 + 4096 + 2048) * 2, 0, 1);
        if (n > 1) { /* each token of a sequence of its own */
            c.view.max_q_len = 1;
            c.view.n_seqs = n;
            c.view.token_seq = d_iota;
            c.view.positions = d_late;
            c.view.block_table_stride = 1;
            c.rope.kv.base = pool16;
            c.rope.kv.n_blocks = MAX;
            c.rope.kv.dtype = NRD_DTYPE_F8_E4M3;
            snprintf(what, sizeof what, "rope_kv %d single tokens, f8 cache", n);
            row(what, measure(call_rope, &c, 32), (double)n * (6144 + 4096 + 1024) * 2, 0, 1);
        }
        c.embed = (nrd_embed_args){.n_tokens = n, .hidden = 4096, .ids = d_iota,
                                   .table = &c.table, .scale = 1, .out = y_buf,
                                   .out_dtype = NRD_DTYPE_BF16};
        snprintf(what, sizeof what, "embed %d tokens", n);
        row(what, measure(call_embed, &c, 32), (double)n * 4096 * 4, 0, 1);
        if (n > 256) {
            continue;
        }
        for (int mode = 0; mode < 3; mode++) {
            for (int r = 0; r < n; r++) {
                rows[r] = (nrd_sample_row){.slot = r, .temperature = mode ? 0.8f : 0,
                                           .top_k = mode == 1 ? 50 : 0, .top_p = mode ? 0.95f : 0,
                                           .repetition_penalty = 1, .seed = rng(), .end_id = -1};
            }
            nrd_sample_row *d_rows = dev_put(rows, (size_t)n * sizeof *rows);
            c.sample = (nrd_sample_args){.n_rows = n, .vocab = V, .logits = logits,
                                         .logits_stride = V, .rows = d_rows,
                                         .slot_tokens = (int32_t *)(void *)scale,
                                         .out_ids = (int32_t *)(void *)y_buf};
            snprintf(what, sizeof what, "sample %s %d rows",
                     mode == 0 ? "greedy" : mode == 1 ? "k 50 p .95" : "p .95", n);
            row(what, measure(call_sample, &c, 16), (double)n * V * 4, 0, 1);
            dev_free(d_rows);
        }
    }
    free(zeros);
    free(iota);
    free(late);
    free(rows);
    free(h_logits);
    free(freq);
}

int main(int argc, char **argv)
{
    const char *only = argc > 2 ? argv[2] : "";
    float *ones = malloc((size_t)262144 * 4);

    if (argc < 2) {
        fprintf(stderr, "usage: gpu_bench nereid_cuda.so [linear|quantized|attention|mixed|rest [ROWS]]\n");
        return 2;
    }
    rows_only = argc > 3 ? atoi(argv[3]) : 0;
    gpu_open(argv[1]);
    OK(dev->ops->reserve(st, 8192, 256, 28672, 32768, 128256));
    for (int i = 0; i < 262144; i++) {
        ones[i] = 1.0f;
    }
    f_ones = dev_put(ones, (size_t)262144 * 4);
    f_scales = dev_put(ones, (size_t)262144 * 4);
    pool16 = random_pool(NRD_DTYPE_BF16, POOL_BYTES);
    pool8 = random_pool(NRD_DTYPE_F8_E4M3, POOL_BYTES);
    x_buf = random_pool(NRD_DTYPE_BF16, (size_t)256 << 20);
    y_buf = dev_new((size_t)512 << 20);
    noise_buf = dev_new((size_t)64 << 20);
    if (!*only || strcmp(only, "rest") == 0) {
        all_rest();
    }
    if (!*only || strcmp(only, "attention") == 0) {
        all_attention();
    }
    if (!*only || strcmp(only, "mixed") == 0) {
        all_mixed();
    }
    if (!*only || strcmp(only, "linear") == 0) {
        all_linear();
    }
    if (!*only || strcmp(only, "quantized") == 0) {
        all_quantized();
    }
    free(ones);
    return 0;
}
