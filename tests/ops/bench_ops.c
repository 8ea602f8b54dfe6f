/* SPDX-License-Identifier: Apache-2.0
 * Speed of the CPU device's operations beside the machine's limits, measured in the same run.
 *
 *   make build/tests/ops/bench_ops && build/tests/ops/bench_ops [op [isa [threads]]]
 *   op: all, linear, tokens (linear, fewer shapes and shorter), q41, attention, rows, sample, head
 *
 * With one thread, times are those that the process spent on a processor; else wall clock. Best of
 * several repetitions: other work on the machine only makes a number smaller. Weights are
 * rotated through enough copies that decode reads them from memory as a whole model would. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "device/ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nrd_device *dev;
static nrd_stream *stream;
static double peak_read_gb, peak_dot_gop, peak_fma_gop, peak_bf16_gop;
static uint64_t cell_ns = 200000000u; /* at least so long for a number */

static bool cpu_time; /* one thread: time on the processor, so that a busy machine can be measured too */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        exit(1);
    }
}

static float *floats(int64_t n)
{
    float *x = nrd_aligned_zalloc(64, (size_t)n * 4 + 64);
    uint32_t s = 12345;
    for (int64_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)s * 0x1p-31f;
    }
    return x;
}

static void limits(void)
{
    nrd_device_info info;
    nrd_device_limits most;

    dev->ops->get_info(dev, &info);
    die(dev->ops->limits(dev, &most));
    peak_read_gb = most.read_bytes_per_s * 1e-9;
    peak_dot_gop = most.eight_bit_ops_per_s * 1e-9;
    peak_fma_gop = most.float_ops_per_s * 1e-9;
    peak_bf16_gop = most.bf16_ops_per_s * 1e-9;
    printf("%s: read %.1f GB/s, integer dot %.0f GOP/s, float fma %.0f GFLOP/s", info.name, peak_read_gb, peak_dot_gop,
           peak_fma_gop);
    if (peak_bf16_gop > 0) {
        printf(", bfloat16 %.0f GFLOP/s", peak_bf16_gop);
    }
    putchar('\n');
}

/* Seconds of one `enqueue`: best of many runs of about a millisecond each, so that some of them fall
 * between the slices that a busy machine gives to others. */
static double time_op(void (*enqueue)(void *, int), void *user)
{
    double best = 1e9;
    int inner = 1, at = 0;
    uint64_t begin = nrd_now_ns();

    for (int r = 0; r < 4 || (r < 300 && nrd_now_ns() - begin < cell_ns); r++) {
        for (int i = 0; i < inner; i++) {
            enqueue(user, at++);
        }
        uint64_t t = now_ns();
        die(dev->ops->stream_sync(stream));
        double s = (double)(now_ns() - t) * 1e-9;
        if (r > 0 && s / inner < best) {
            best = s / inner;
        }
        if (s < 0.5e-3 && inner < 256) {
            inner *= 2;
        }
    }
    return best;
}

/* ---- linear ---- */

typedef struct linear_bench {
    nrd_weight w[64];
    int n_copies;
    nrd_linear_args a;
} linear_bench;

static void enqueue_linear(void *user, int i)
{
    linear_bench *b = user;
    b->a.w[0] = &b->w[i % b->n_copies];
    die(dev->ops->linear(stream, &b->a));
}

static void bench_linear(nrd_dtype t, int64_t rows, int64_t cols, const int32_t *tokens, int n_tokens)
{
    linear_bench b = {0};
    uint32_t layout;
    uint64_t bytes;
    float *row = floats(cols), *x = floats(512 * cols), *y = floats(512 * rows);
    size_t row_bytes;
    bool row_scale;
    nrd_weight src = {.dtype = t, .rows = rows, .cols = cols, .scale = 1};

    die(dev->ops->weight_plan(dev, t, rows, cols, true, &layout, &bytes));
    src.data_bytes = nrd_weight_bytes(t, NRD_LAYOUT_ROWS, rows, cols);
    uint8_t *plain = nrd_aligned_zalloc(64, src.data_bytes + 64);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *at = plain + src.data_bytes / (uint64_t)rows * (uint64_t)r;
        if (r > 63) {
            memcpy(at, plain + src.data_bytes / (uint64_t)rows * (uint64_t)(r % 64), src.data_bytes / (uint64_t)rows);
        } else {
            row[r % cols] += 0.1f;
            if (t == NRD_DTYPE_I8) {
                for (int64_t k = 0; k < cols; k++) {
                    at[k] = (uint8_t)(k * 37 + r);
                }
            } else {
                nrd_quantize_row(t, row, at, cols);
            }
        }
    }
    src.scales = t == NRD_DTYPE_I8 ? x : NULL; /* any numbers will do */
    src.data = plain;
    b.n_copies = (int)((128u << 20) / bytes) + 1;
    b.n_copies = b.n_copies > 64 ? 64 : b.n_copies;
    double pack = 1e9;
    for (int i = 0; i < b.n_copies; i++) {
        void *data = NULL;
        die(dev->ops->alloc(dev, &data, NRD_MEM_DEVICE, bytes, "bench"));
        uint64_t t0 = nrd_now_ns();
        die(dev->ops->weight_pack(dev, &src, layout, data));
        double s = (double)(nrd_now_ns() - t0) * 1e-9;
        pack = s < pack ? s : pack;
        b.w[i] = src;
        b.w[i].data = data;
        b.w[i].layout = layout;
        b.w[i].data_bytes = bytes;
    }
    b.a = (nrd_linear_args){.n_parts = 1, .y = y, .y_dtype = NRD_DTYPE_F32};
    b.a.x_dtype = dev->ops->linear_input(dev, &b.w[0], NRD_DTYPE_F32, &row_bytes, &row_scale);
    uint8_t *xq = nrd_aligned_zalloc(64, row_bytes * 512 + 64);
    for (int i = 0; i < 512; i++) {
        nrd_store_row(b.a.x_dtype, xq, i, cols, x + i * cols, NULL);
    }
    b.a.x = xq;
    printf("  %-8s %6lld x %-5lld pack %5.0f MB/s |", nrd_dtype_name(t), (long long)rows, (long long)cols,
           (double)src.data_bytes / pack * 1e-6);
    for (int i = 0; i < n_tokens; i++) {
        int32_t n = b.a.n_tokens = tokens[i];
        double work = 2.0 * (double)rows * (double)cols * n;
        double s = time_op(enqueue_linear, &b);
        double most = !nrd_is_float_dtype(t) ? peak_dot_gop : peak_fma_gop;
        if (t == NRD_DTYPE_BF16 && peak_bf16_gop > 0) {
            most = peak_bf16_gop / 2; /* x is two bfloat16 */
        }
        if (n <= 4) {
            printf(" %d: %.1f GB/s %.0f%%", n, (double)bytes / s * 1e-9, (double)bytes / s * 1e-7 / peak_read_gb);
        } else {
            printf(" %d: %.0f G %.0f%%", n, work / s * 1e-9, work / s * 1e-7 / most);
        }
    }
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < b.n_copies; i++) {
        dev->ops->free(dev, NRD_MEM_DEVICE, (void *)(uintptr_t)b.w[i].data);
    }
    free(plain), free(row), free(x), free(y), free(xq);
}

/* ---- attention ---- */

typedef struct attn_bench {
    nrd_batch_view view;
    nrd_attention_args a;
    nrd_rope_kv_args r;
} attn_bench;

static void enqueue_attention(void *user, int i)
{
    (void)i;
    die(dev->ops->attention(stream, &((attn_bench *)user)->a));
}
static void enqueue_rope(void *user, int i)
{
    (void)i;
    die(dev->ops->rope_kv(stream, &((attn_bench *)user)->r));
}

/* common: tokens at the beginning that all sequences have in the same blocks */
static void bench_attention(int32_t heads, int32_t n_kv, int32_t dim, int32_t n_seqs, int32_t q_len, int32_t ctx, int32_t common)
{
    int32_t bt = 32, per = (ctx + bt - 1) / bt, n = n_seqs * q_len;
    int32_t *ints = nrd_xcalloc((size_t)(2 * n + 2 * n_seqs + 1 + per * n_seqs), 4);
    int32_t *pos = ints, *seq = pos + n, *q_start = seq + n, *ctx_len = q_start + n_seqs + 1, *table = ctx_len + n_seqs;
    size_t block = dev->ops->kv_block_bytes(dev, NRD_DTYPE_F16, bt, n_kv, dim);
    int64_t width = (int64_t)(heads + 2 * n_kv) * dim;
    void *base = NULL;
    float *q = floats(n * width), *out = floats((int64_t)n * heads * dim), *inv = floats(dim / 2);

    die(dev->ops->alloc(dev, &base, NRD_MEM_DEVICE, block * (size_t)(per * n_seqs), "bench"));
    for (int32_t s = 0; s < n_seqs; s++) {
        q_start[s + 1] = (s + 1) * q_len;
        ctx_len[s] = ctx;
        for (int32_t k = 0; k < per; k++) {
            table[s * per + k] = k * n_seqs + (k < common / bt ? 0 : s);
        }
        for (int32_t k = 0; k < q_len; k++) {
            pos[s * q_len + k] = ctx - q_len + k;
            seq[s * q_len + k] = s;
        }
    }
    attn_bench b = {.view = {n, n_seqs, q_len, ctx, pos, seq, q_start, ctx_len, table, per, NULL, 0, 0, 0, 0}};
    nrd_kv_layer kv = {base, NRD_DTYPE_F16, per * n_seqs, bt, n_kv, dim, 1, 1};
    b.a = (nrd_attention_args){.batch = &b.view, .q = q, .q_stride = width, .out = out, .act_dtype = NRD_DTYPE_F32,
                               .out_dtype = NRD_DTYPE_F32, .n_heads = heads, .scale = 0.125f, .kv = kv};
    b.r = (nrd_rope_kv_args){.batch = &b.view, .qkv = q, .act_dtype = NRD_DTYPE_F32, .n_heads = heads,
                             .rope = NRD_ROPE_NEOX, .rotary_dim = dim, .inv_freq = inv, .rope_scale = 1, .kv = kv};
    double pairs = 0;
    for (int32_t k = 0; k < n; k++) {
        pairs += pos[k] + 1;
    }
    double flop = 4.0 * pairs * heads * dim, bytes = (double)block * per * n_seqs;
    double s = time_op(enqueue_attention, &b), sr = time_op(enqueue_rope, &b);
    printf("  %d/%d heads of %d, %2d x %3d new, context %5d, %4d in common: %8.1f us, %5.0f GFLOP/s %3.0f%% of fma, cache %5.1f GB/s; rope_kv %.1f us\n",
           heads, n_kv, dim, n_seqs, q_len, ctx, common, s * 1e6, flop / s * 1e-9, flop / s * 1e-7 / peak_fma_gop, bytes / s * 1e-9, sr * 1e6);
    fflush(stdout);
    dev->ops->free(dev, NRD_MEM_DEVICE, base);
    free(ints), free(q), free(out), free(inv);
}

/* ---- rows and sampling ---- */

static void enqueue_norm(void *user, int i)
{
    (void)i;
    die(dev->ops->norm(stream, user));
}
static void enqueue_act(void *user, int i)
{
    (void)i;
    die(dev->ops->act(stream, user));
}
static void enqueue_sample(void *user, int i)
{
    (void)i;
    die(dev->ops->sample(stream, user));
}

static void bench_rows(int32_t n, int32_t hidden, int32_t inter)
{
    float *w = floats(hidden), *res = floats((int64_t)n * hidden), *delta = floats((int64_t)n * hidden), *x = floats((int64_t)n * 2 * inter);
    void *out = nrd_aligned_zalloc(64, nrd_act_q8_row_bytes(inter > hidden ? inter : hidden) * (size_t)n);
    nrd_weight weight = {.dtype = NRD_DTYPE_F32, .rows = hidden, .cols = 1, .data = w, .scale = 1, .data_bytes = (uint64_t)hidden * 4};
    nrd_norm_args a = {.eps = 1e-5f, .n_tokens = n, .hidden = hidden, .delta = delta, .residual = res, .weight = &weight,
                       .out = out, .out_dtype = NRD_DTYPE_ACT_Q8, .act_dtype = NRD_DTYPE_F32};
    nrd_act_args g = {.kind = NRD_ACT_SILU, .gated = true, .n_tokens = n, .inter = inter, .x = x,
                      .act_dtype = NRD_DTYPE_F32, .out = out, .out_dtype = NRD_DTYPE_ACT_Q8};
    memset(delta, 0, (size_t)n * (size_t)hidden * 4);
    double sn = time_op(enqueue_norm, &a), sa = time_op(enqueue_act, &g);
    printf("  %4d tokens: norm+quantize of %d %7.2f us (%.1f GB/s), silu*gate+quantize of %d %7.2f us (%.1f GB/s)\n", n, hidden, sn * 1e6,
           n * hidden * 13.25 / sn * 1e-9, inter, sa * 1e6, n * inter * 9.25 / sa * 1e-9);
    free(w), free(res), free(delta), free(x), free(out);
}

static void bench_sample(int32_t vocab)
{
    float *logits = floats(vocab);
    int32_t id, slot;
    for (int32_t i = 0; i < vocab; i++) {
        logits[i] = logits[i] * 4 + (i % 1000 == 0 ? 6.0f : 0.0f);
    }
    static const struct {
        const char *name;
        nrd_sample_row row;
    } kinds[] = {
        {"greedy", {.repetition_penalty = 1}},
        {"temperature", {.temperature = 0.8f, .repetition_penalty = 1}},
        {"top-k 50", {.temperature = 0.8f, .top_k = 50, .repetition_penalty = 1}},
        {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f, .repetition_penalty = 1}},
        {"top-k 50, top-p 0.95", {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .repetition_penalty = 1}},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        nrd_sample_args a = {.n_rows = 1, .vocab = vocab, .logits = logits, .rows = &kinds[k].row,
                             .slot_tokens = &slot, .out_ids = &id};
        double s = time_op(enqueue_sample, &a);
        printf("  %-22s vocabulary %6d: %7.1f us, %.1f GB/s\n", kinds[k].name, vocab, s * 1e6, vocab * 4.0 / s * 1e-9);
    }
    free(logits);
}

/* ---- head: linear and sample, two commands or one ---- */

typedef struct head_bench {
    nrd_linear_args l;
    nrd_sample_args a;
    bool fused;
} head_bench;

static void enqueue_head(void *user, int i)
{
    head_bench *b = user;
    (void)i;
    if (b->fused) {
        die(dev->ops->linear_sample(stream, &b->l, &b->a));
    } else {
        die(dev->ops->linear(stream, &b->l));
        die(dev->ops->sample(stream, &b->a));
    }
}

static void bench_head(nrd_dtype t, int32_t vocab, int64_t cols)
{
    enum { MOST = 64 };
    nrd_weight plain = {.dtype = t, .rows = vocab, .cols = cols, .scale = 1}, w = plain;
    nrd_sample_row rows[MOST];
    int32_t ids[MOST], slots[MOST];
    float *row = floats(cols), *x = floats(MOST * cols);
    void *data = NULL, *y = NULL;
    size_t row_bytes;
    bool row_scale;
    uint32_t s = 1;

    plain.data_bytes = nrd_weight_bytes(t, NRD_LAYOUT_ROWS, vocab, cols);
    uint8_t *bytes = nrd_aligned_zalloc(64, plain.data_bytes + 64);
    for (int64_t r = 0; r < vocab; r++) {
        for (int64_t k = 0; k < cols; k++) {
            s = s * 1664525u + 1013904223u;
            row[k] = (float)(int32_t)s * 0x1p-31f;
        }
        nrd_quantize_row(t, row, bytes + plain.data_bytes / (uint64_t)vocab * (uint64_t)r, cols);
    }
    plain.data = bytes;
    die(dev->ops->weight_plan(dev, t, vocab, cols, true, &w.layout, &w.data_bytes));
    die(dev->ops->alloc(dev, &data, NRD_MEM_DEVICE, w.data_bytes, "bench"));
    die(dev->ops->weight_pack(dev, &plain, w.layout, data));
    w.data = data;
    free(bytes);
    die(dev->ops->alloc(dev, &y, NRD_MEM_DEVICE, (size_t)vocab * MOST * 4, "logits"));
    nrd_dtype in = dev->ops->linear_input(dev, &w, NRD_DTYPE_F32, &row_bytes, &row_scale);
    uint8_t *xq = nrd_aligned_zalloc(64, row_bytes * MOST + 64);
    for (int i = 0; i < MOST; i++) {
        nrd_store_row(in, xq, i, cols, x + i * cols, NULL);
    }
    for (int32_t n = 1; n <= 32; n = n == 1 ? 8 : n * 2) {
        for (int k = 1; k <= 50; k += 49) {
            double best[2] = {1e9, 1e9};
            for (int i = 0; i < n; i++) {
                rows[i] = (nrd_sample_row){.slot = i, .top_k = k, .temperature = 0.8f, .repetition_penalty = 1};
            }
            for (int round = 0; round < 8; round++) { /* by turns */
                head_bench b = {.fused = round % 2};
                b.l = (nrd_linear_args){.n_tokens = n, .x = xq, .x_dtype = in, .n_parts = 1, .w = {&w},
                                        .y = y, .y_dtype = NRD_DTYPE_F32};
                b.a = (nrd_sample_args){.n_rows = n, .vocab = vocab, .logits = y, .rows = rows,
                                        .slot_tokens = slots, .out_ids = ids};
                double sec = time_op(enqueue_head, &b);
                best[round % 2] = sec < best[round % 2] ? sec : best[round % 2];
            }
            printf("  %-8s %6d x %-4lld %2d rows, %-8s: linear, sample %8.0f us; in one %8.0f us, %.3f of it\n", nrd_dtype_name(t),
                   vocab, (long long)cols, n, k == 1 ? "greedy" : "top-k 50", best[0] * 1e6, best[1] * 1e6, best[1] / best[0]);
        }
    }
    dev->ops->free(dev, NRD_MEM_DEVICE, data);
    dev->ops->free(dev, NRD_MEM_DEVICE, y);
    free(row), free(x), free(xq);
}

int main(int argc, char **argv)
{
    static const int32_t tokens[] = {1, 4, 8, 16, 32, 64, 512}, few[] = {1, 4, 8, 16, 32};
    static const nrd_dtype types[] = {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q5_0, NRD_DTYPE_Q8_0, NRD_DTYPE_I8, NRD_DTYPE_BF16, NRD_DTYPE_F16,
                                      NRD_DTYPE_IQ4_NL};
    static const nrd_dtype k_types[] = {NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K, NRD_DTYPE_Q4_K, NRD_DTYPE_Q5_K, NRD_DTYPE_Q6_K,
                                        NRD_DTYPE_IQ4_XS};
    const char *what = argc > 1 ? argv[1] : "all";
    nrd_device_config config = {.isa = argc > 2 ? argv[2] : ""};
    long long threads = 0;

    if (argc > 3 && nrd_parse_i64(argv[3], &threads)) {
        config.n_threads = (int32_t)threads;
    }
    die(nrd_device_open(&dev, "cpu", &config));
    cpu_time = config.n_threads == 1;
    die(dev->ops->stream_new(dev, &stream));
    limits();
    bool all = strcmp(what, "all") == 0;
    if (all || strcmp(what, "linear") == 0) {
        printf("linear: tokens: packed bytes read, or operations, and %% of the limit\n");
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            bench_linear(types[i], 960, 576, tokens, 7);    /* SmolLM2 q, k, v */
            bench_linear(types[i], 3072, 576, tokens, 7);   /* gate, up */
            bench_linear(types[i], 576, 1536, tokens, 7);   /* down */
        }
        bench_linear(NRD_DTYPE_Q4_1, 49152, 576, few, 5);
        bench_linear(NRD_DTYPE_Q8_0, 49152, 576, few, 5);
        bench_linear(NRD_DTYPE_Q8_0, 262144, 640, few, 5); /* Gemma 3 270M */
        for (size_t i = 0; i < sizeof k_types / sizeof k_types[0]; i++) {
            bench_linear(k_types[i], 2048, 2048, tokens, 7);
        }
    }
    if (strcmp(what, "tokens") == 0) { /* how many tokens a form needs: every kind of type, one shape */
        static const nrd_dtype kinds[] = {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q8_0, NRD_DTYPE_I8,
                                          NRD_DTYPE_Q4_K, NRD_DTYPE_Q6_K, NRD_DTYPE_BF16};
        cell_ns = 60000000;
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            bench_linear(kinds[i], 3072, 2048, tokens, 7);
        }
    }
    if (strcmp(what, "q41") == 0) {
        bench_linear(NRD_DTYPE_Q4_1, 3072, 576, tokens, 7);
        bench_linear(NRD_DTYPE_Q4_1, 576, 1536, tokens, 7);
        bench_linear(NRD_DTYPE_Q4_1, 49152, 576, few, 5);
    }
    if (all || strcmp(what, "attention") == 0) {
        printf("attention, float16 cache\n");
        bench_attention(9, 3, 64, 1, 1, 64, 0);
        bench_attention(9, 3, 64, 1, 1, 512, 0);
        bench_attention(9, 3, 64, 1, 1, 8192, 0);
        bench_attention(9, 3, 64, 32, 1, 512, 0);
        bench_attention(9, 3, 64, 32, 1, 512, 448);
        bench_attention(9, 3, 64, 8, 1, 2048, 0);
        bench_attention(9, 3, 64, 8, 1, 2048, 1984);
        bench_attention(4, 1, 256, 32, 1, 512, 0);
        bench_attention(4, 1, 256, 32, 1, 512, 448);
        bench_attention(9, 3, 64, 1, 512, 512, 0);
        bench_attention(4, 1, 256, 1, 1, 512, 0);
        bench_attention(4, 1, 256, 1, 512, 512, 0);
    }
    if (all || strcmp(what, "rows") == 0) {
        printf("rows\n");
        bench_rows(1, 576, 1536);
        bench_rows(32, 576, 1536);
        bench_rows(512, 576, 1536);
    }
    if (all || strcmp(what, "sample") == 0) {
        printf("sample\n");
        bench_sample(49152);
        bench_sample(262144);
    }
    if (all || strcmp(what, "head") == 0) {
        printf("head\n");
        bench_head(NRD_DTYPE_Q8_0, 49152, 576);
        bench_head(NRD_DTYPE_Q8_0, 262144, 640);
    }
    dev->ops->stream_free(stream);
    dev->ops->close(dev);
    return 0;
}
