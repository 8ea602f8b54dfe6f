/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/core.h - what all operations speak of: memory, weights, and the tokens of a step.
 * Part of nereid/device.h, which says what holds for all of it. */
#ifndef NEREID_DEVICE_CORE_H
#define NEREID_DEVICE_CORE_H

#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the layouts that devices pack weights into; engine files hold packed weights. */
#define NRD_DEVICE_PACKING 1u

typedef struct nrd_error nrd_error;
typedef struct nrd_device nrd_device;
typedef struct nrd_stream nrd_stream;
typedef struct nrd_event nrd_event;
typedef struct nrd_graph nrd_graph;

/* ---- memory ---- */

typedef enum {
    NRD_MEM_DEVICE = 0, /* where operations read and write */
    NRD_MEM_HOST = 1,   /* pinned where that makes copies asynchronous */
} nrd_mem_kind;

typedef struct nrd_device_info {
    char name[64];            /* "cpu: AVX-512 VNNI, 2 threads", "cuda: NVIDIA H200" */
    bool host_is_device;      /* DEVICE memory can be read and written by the host directly */
    nrd_dtype act_dtype;      /* preferred activation type for a float32 model (CPU: F32) */
    nrd_dtype kv_dtype;       /* preferred KV cache type */
    uint64_t mem_total_bytes;
    uint64_t mem_free_bytes;
    int32_t n_threads;        /* CPU threads; multiprocessors of a GPU */
    int32_t f32_rows;         /* from so many rows on linear loses less from x in float32 than from what linear_input() names; 0: never */
    /* Layers whose products have at most so many bytes of weights, of the activations' type, take less time for one token with
     * linear_joined(); 0: none does. */
    uint64_t joined_layer_bytes;
} nrd_device_info;

/* The highest rates that were measured on a device, each by a loop that does only this. Sums over
 * all threads. */
typedef struct nrd_device_limits {
    double read_bytes_per_s;  /* memory far larger than every cache's share of a core */
    double float_ops_per_s;   /* products and sums counted: of float32 on a CPU, of 16-bit inputs on a GPU */
    double eight_bit_ops_per_s;
    double bf16_ops_per_s;    /* a CPU's matrix unit; 0: none */
} nrd_device_limits;

typedef struct nrd_mem_report {
    const char *name; /* pool name given at alloc */
    uint64_t bytes;
} nrd_mem_report;

/* ---- weights ---- */

typedef enum {
    NRD_LAYOUT_ROWS = 0, /* [rows][cols] in dtype's own blocks: as in GGUF and safetensors */
    /* other values: packed for a device; see nrd_device_ops.weight_plan */
} nrd_layout;

/* One matrix [rows, cols] (cols = input features, contiguous) or a vector (cols = 1). Or a stack of n_stacked
 * matrices with rows / n_stacked rows each: every one is laid out and packed by itself, the next one behind it. */
typedef struct nrd_weight {
    nrd_dtype dtype;
    uint32_t layout;    /* nrd_layout or a device's own number */
    int64_t rows, cols;
    const void *data;   /* device memory (for the CPU: inside the mapped engine file) */
    const void *scales; /* f32 [rows] for I8 and per-channel F8; NULL otherwise */
    float scale;        /* per-tensor scale (F8), else 1 */
    uint64_t data_bytes;
    int32_t n_stacked;  /* 0 and 1: one matrix */
} nrd_weight;

/* What a product of F8 numbers left to who reads its result: element i of token t is still to be multiplied by rows[t], the scale of its
 * row of x, and columns[i], that of W's row. In device memory; rows NULL: nothing is pending. */
typedef struct nrd_pending_scales {
    const float *rows, *columns;
} nrd_pending_scales;

/* Type, layout, sizes and data_bytes of a weight in host memory agree. `what` names it. */
nrd_error *nrd_weight_check(const nrd_weight *w, const char *what);
/* dst[cols] = row `row` of a checked weight in host memory, rows or packed for the CPU; per-row and
 * per-tensor scales applied. */
void nrd_weight_row(const nrd_weight *w, int64_t row, float *dst);

/* ---- the tokens of a step and their cache ---- */

enum { NRD_ROPE_AXES = 3 }; /* time, height, width (M-RoPE; Wang et al., Qwen2-VL, 2024) */

/* KV memory of one layer. What lies inside a block is the device's own affair; a block of one
 * layer is kv_block_bytes() long for K and V together, and block b starts at base + b * that.
 * n_kv_heads 0: a cache of latent_kv and latent_attention, one row of head_dim numbers for each token. */
typedef struct nrd_kv_layer {
    void *base;
    nrd_dtype dtype;      /* F32, F16, BF16, F8_E4M3, I8 */
    int32_t n_blocks, block_tokens;
    int32_t n_kv_heads, head_dim;
    const float *scales;  /* [2, n_kv_heads] of F8 and I8: what a number that is kept is times, by heads of keys, then of values;
                           * above 0, device memory, written before the cache is. NULL: 1 */
} nrd_kv_layer;

/* Which tokens of a step belong to whom. Arrays are device memory, uploaded once a step. */
typedef struct nrd_batch_view {
    int32_t n_tokens, n_seqs;
    int32_t max_q_len, max_ctx_len;  /* over the sequences of this step */
    const int32_t *positions;        /* [n_tokens] absolute position of each token */
    const int32_t *axes;             /* [n_tokens, NRD_ROPE_AXES] where a token is on each axis, for rope_kv with pair_axis; or
                                      * NULL */
    const int32_t *token_seq;        /* [n_tokens] sequence index of each token */
    const int32_t *q_start;          /* [n_seqs + 1] first packed token of each sequence */
    const int32_t *ctx_len;          /* [n_seqs] tokens in the cache after this step */
    const int32_t *block_table;      /* [n_seqs, block_table_stride]; -1 = dropped (out of window) */
    int32_t block_table_stride;
    /* Token tree of speculative decoding: bit j of row i says that token i of the sequence's new
     * tokens may see new token j. NULL: causal. Branches may share a position, so with a tree new
     * token i of a sequence lies in cache slot ctx_len - q_len + i, else at its position. */
    const uint32_t *tree_mask;       /* [n_tokens, tree_mask_words] */
    int32_t tree_mask_words;
    int32_t n_single; /* the first so many sequences have one new token each; 0: not said */
    /* How much the two kinds of sequences ask of attention, for a device that can run them side by side;
     * results do not depend on them but for rounding. 0: not said, one after the other. */
    int64_t single_ctx;   /* sum of ctx_len of those n_single */
    int64_t prompt_pairs; /* (new token, token it sees) of all others */
    /* Where layers with a state keep a sequence's; -1: nowhere, it begins with zeros and nothing is kept. Needed by
     * the operations of such layers only. */
    const int32_t *state_slot;       /* [n_seqs] */
} nrd_batch_view;

#ifdef __cplusplus
}
#endif

#endif
