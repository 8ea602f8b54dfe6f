/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/kernels.h - the kernels of one instruction set, as a table.
 *
 * Purpose   Chosen once when the device opens. Every table computes the same operations.
 * Owner     Constant data.
 */
#ifndef NRD_DEVICE_CPU_KERNELS_H
#define NRD_DEVICE_CPU_KERNELS_H

#include "device/cpu/linear_kernels.h"
#include "device/ops/ops.h"

/* One tile of query rows: n_tokens x n_heads <= NRD_ATTN_TILE_ROWS, with a state or a tree mask 16; heads of
 * one KV head; see attention_cpu.h. R: these rows rounded up to 16, or to whole vectors of 16. With
 * `seqs` the tokens are the only new ones of so many sequences, which have the chunks before
 * shared_chunks in common: their state after these is left in `state`. Without, a tile of one
 * sequence whose state is given goes on behind them. */
enum { NRD_ATTN_CHUNK_TOKENS = 64, NRD_ATTN_SPLIT_CHUNKS = 16, NRD_ATTN_TILE_ROWS = 64 };
/* On a matrix unit: rows of a tile, new tokens of a sequence from which on it takes them, chunks of the cache at a time. */
enum { NRD_ATTN_MX_ROWS = 384, NRD_ATTN_MX_FROM = 32, NRD_ATTN_MX_CHUNKS = 4 };
typedef struct nrd_attn_tile {
    const nrd_attention_args *a;
    int32_t seq, kv_head;
    int32_t head, n_heads;          /* first query head, how many */
    int32_t token, n_tokens;        /* first packed token, how many */
    const int32_t *seqs;            /* [n_tokens], seqs[0] = seq; or NULL */
    int32_t shared_chunks;
    float *state;                   /* [n_seqs, all query heads, 2 * head_dim + 4]; or NULL */
    int32_t from_split, to_split;   /* of the cache */
    float *scratch;                 /* (2 * head_dim + 64 + the larger of head_dim and 64) * R floats; or see below */
    float *total;                   /* [R, head_dim] not yet divided by total_sum */
    float *total_max, *total_sum;   /* [R] */
} nrd_attn_tile;

/* Floats that attention_mx works in: R as above. */
static inline size_t nrd_attn_mx_floats(int32_t head_dim, int32_t rows)
{
    const size_t steps = (size_t)(head_dim + 31) / 32, cols = (size_t)head_dim / 16;
    return 256 * (16 + NRD_ATTN_MX_CHUNKS * (8 * steps + 4 * cols) + (size_t)rows / 16 * (2 * steps + cols + 1)) +
           6 * (32 + 3 * steps + 2 * cols);
}

enum { NRD_LORA_DOT_TOKENS = 4 };

typedef struct nrd_cpu_kernels {
    const char *name; /* as nrd_device_config.isa */
    const nrd_linear_kernels *linear;
    void (*act_q8_row)(const float *x, int64_t cols, void *row);
    void (*act_q8_part)(const float *x, int64_t n, int64_t block, int64_t row_cols, void *row);
    void (*add_row)(float *x, const float *d, int64_t n);
    void (*scale_row)(float *x, float scale, const float *add, int64_t n);
    void (*gain_row)(float *x, const float *gain, const float *add, int64_t n); /* x = gain * x + add */
    void (*norm_row)(nrd_norm_kind kind, float eps, int64_t n, const float *x, const float *w, const float *b, float *y);
    /* next: floats from x, and from gate, to what is read after them, which is asked for meanwhile; 0: unknown. */
    void (*act_row)(nrd_act_kind kind, const float *x, const float *gate, int64_t n, int64_t next, float *y);
    void (*xielu_row)(const float *x, float above, float below, int64_t n, float *y);
    void (*row_moments)(const float *x, int64_t n, float *out_mean, float *out_deviation); /* of all n, not of n - 1 */
    void (*above_row)(const float *x, float limit, int64_t n, float *y); /* y = max(x - limit, 0) */
    void (*rope_angles)(int32_t pos, const float *inv_freq, int32_t n, float scale, float *cos_out, float *sin_out);
    void (*rope_head)(float *x, nrd_rope_kind kind, int32_t half, const float *c, const float *s);
    void (*kv_store_head)(nrd_dtype t, const float *x, int32_t dim, float scale, void *dst, int64_t first, int64_t step);
    /* Low-rank pairs. dots: out[t * out_stride + r] = row r of a [rank, cols] (F32, F16, BF16) times row t
     * of x, for n_tokens of 1 to NRD_LORA_DOT_TOKENS. add: y[t * y_stride + i] += sum over r of h[t * h_stride + r] *
     * b[r * b_stride + i], for i < n and t < n_tokens; a row's bits are those of it alone. */
    void (*lora_dots)(nrd_dtype t, const void *a, int32_t rank, int64_t cols, const float *x, int64_t x_stride,
                      int32_t n_tokens, float *out, int64_t out_stride);
    void (*lora_add)(nrd_dtype t, const void *b, int64_t b_stride, int32_t rank, const float *h, int64_t h_stride,
                     int32_t n_tokens, int64_t n, float *y, int64_t y_stride);
    void (*attention_tile)(const nrd_attn_tile *w);
    /* The same of up to NRD_ATTN_MX_ROWS rows, without a state, tree, alibi or rel_bias, of no float32 cache. Bits of its own. NULL: no matrix unit. */
    void (*attention_mx)(const nrd_attn_tile *w);
    void (*attention_merge)(int rows, int32_t dim, float *tm, float *tl, float *t, const float *m, const float *l,
                            const float *o);
    /* Layers with a state: channels [from, from + n), n up to 16, of one sequence that has tokens; a head of one; a token.
     * room: as much as one sequence's part of the state. */
    void (*short_conv)(const nrd_short_conv_args *a, int32_t seq, int32_t from, int32_t n, float *room);
    void (*ssm)(const nrd_ssm_args *a, int32_t seq, int32_t head, float *room);
    void (*delta_rule)(const nrd_delta_rule_args *a, int32_t seq, int32_t head, float *room);
    void (*gated_norm)(const nrd_gated_norm_args *a, int32_t token);
    void (*rg_lru)(const nrd_rg_lru_args *a, int32_t seq, int32_t head, float *room); /* room: 10 * head_dim floats */
    float (*max_row)(const float *x, int32_t n, int32_t *out_first);
    int32_t (*count_above)(const float *x, int32_t n, float limit);
    int32_t (*collect_above)(const float *x, int32_t n, float limit, float *out, int32_t *out_ids);
    /* lo, hi = x -+ (error * by + length * off + more), hi infinite where that is no number; lo may be x. */
    void (*bounds_row)(const float *x, const float *error, const float *length, float by, float off, float more, int32_t n,
                       float *lo, float *hi);
    void (*max_of_16)(const float *x, int32_t n, float *out); /* of each 16 numbers, the last may be fewer; not of NaN */
    double (*exp_row)(const float *x, int32_t n, float top, float inv_t, float *w);
    double (*sum_above)(const float *w, int32_t n, float limit);
    int64_t (*peak_dot)(int64_t n); /* limits of the machine, see peak_cpu.h */
    float (*peak_fma)(int64_t n);
    float (*peak_bf16)(int64_t n); /* NULL: no such instruction */
    int32_t dot_ops, fma_ops, bf16_ops; /* products and sums of one n */
    float (*peak_read)(const float *x, int64_t n);
} nrd_cpu_kernels;

/* Weak: a build may have been told to leave some out (ISAS). */
extern const nrd_cpu_kernels nrd_cpu_kernels_generic __attribute__((weak)),
    nrd_cpu_kernels_avx2 __attribute__((weak)), nrd_cpu_kernels_avx512 __attribute__((weak)),
    nrd_cpu_kernels_avx512vnni __attribute__((weak)), nrd_cpu_kernels_amx __attribute__((weak));

bool nrd_cpu_amx_usable(void) __attribute__((weak));

/* Best table that this machine runs; `name` ("" or NULL: best) asks for one. */
nrd_error *nrd_cpu_kernels_choose(const nrd_cpu_kernels **out, const char *name) NRD_MUST_USE;

#endif
