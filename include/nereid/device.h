/* SPDX-License-Identifier: Apache-2.0
 * nereid/device.h - the device interface: arithmetic.
 *
 * Purpose   What an engine asks of hardware: memory, ordered streams, and the operations of a
 *           decoder, over ragged batches and a paged KV cache. "cpu" is built in; others are shared
 *           objects (nereid_<name>.so) that export nrd_device_plugin.
 * Owner     A device may be opened by many engines. A stream belongs to one thread at a time.
 * Model     Operations are *enqueued* on a stream in order; they may run later, up to stream_sync
 *           (the CPU runs a whole step in one fork-join; CUDA launches kernels). Argument structs
 *           are copied at the call; the arrays that they point to must stay until the stream has
 *           passed the operation. All `void *` and array arguments are device memory unless said.
 * Units     Row-major; shapes beside pointers; n_tokens = packed tokens of all sequences in the
 *           step, no padding. Strides are in elements; 0 = dense.
 * Errors    Enqueue functions return NULL or an error: UNSUPPORTED (this device cannot do this
 *           combination), INVALID_ARG (shape or type against the contract; a broken caller),
 *           UNAVAILABLE (memory), INTERNAL (device fault: the engine is lost). Faults of launched
 *           work surface at stream_sync or event_wait.
 * ABI       A plug-in is of the same tree as the program that opens it: it exports the NRD_DEVICE_ID
 *           that it was compiled with (the build makes it from the version and the text of this header
 *           and nereid/dtype.h), and is opened only where that is the program's own. So there are no
 *           sizes or versions in the structures. A function pointer that is NULL is absent. Errors are
 *           made, read and freed by the program's functions, which the plug-in is given.
 * Sources   Paged attention (Kwon et al., SOSP 2023); rotary embedding (Su et al., 2021);
 *           RMSNorm (Zhang & Sennrich, 2019); min-p (Nguyen et al., 2024); mixture of experts (Shazeer et al.,
 *           2017), groups of experts and corrected scores (DeepSeek-V3, 2024); selective state spaces (Gu & Dao,
 *           Mamba, 2023; Dao & Gu, Mamba-2, 2024); gated delta rule (Yang et al., 2025); alternating updates (Baykal et
 *           al., 2023).
 */
#ifndef NEREID_DEVICE_H
#define NEREID_DEVICE_H

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

/* Type, layout, sizes and data_bytes of a weight in host memory agree. `what` names it. */
nrd_error *nrd_weight_check(const nrd_weight *w, const char *what);
/* dst[cols] = row `row` of a checked weight in host memory, rows or packed for the CPU; per-row and
 * per-tensor scales applied. */
void nrd_weight_row(const nrd_weight *w, int64_t row, float *dst);

/* ---- operations: argument structs ---- */

/* x[n_tokens, hidden] = table[id] * scale (+ pos_table[pos]) (+ type_table[0]).
 * An id < 0 means "the token sampled last for slot -1-id", read from slot_tokens on the device, so
 * that a step can be enqueued before the host has seen the previous one's result. Ids from
 * table->rows upwards take rows of prompt_table (p-tuning), if given, which are scaled too; else id 0
 * is used. */
typedef struct nrd_embed_args {
    int32_t n_tokens, hidden;
    const int32_t *ids;         /* [n_tokens] */
    const int32_t *slot_tokens; /* [n_slots] or NULL */
    const nrd_weight *table;    /* [vocab, hidden] */
    /* n_ids > 0: other ranks have the rest of the table. It begins with id first_id of n_ids; ids of others give zeros, and the sum
     * over ranks is what one with the whole table makes: the one with first_id 0 adds prompt rows, positions and types. */
    int32_t first_id, n_ids;
    float scale;
    const nrd_weight *pos_table; /* [max_positions, hidden] or NULL */
    const int32_t *positions;    /* [n_tokens], needed with pos_table */
    const nrd_weight *type_table; /* [n_types, hidden] or NULL: a row is added too; only with NRD_FEATURE_ENCODER */
    const int32_t *types;        /* [n_tokens] which row; NULL: row 0. Others than there are: the last one */
    const void *const *prompt_table; /* [n_tokens] row pointers in act dtype or NULL entries; NULL */
    void *out;                   /* [n_tokens, hidden] */
    nrd_dtype out_dtype;
} nrd_embed_args;

/* out[i] += the `hidden` numbers of rows[i] from number `skip` on, for tokens that have a row: what a picture adds to the
 * states behind a layer (Meng et al., DeepStack, 2024). */
typedef struct nrd_add_rows_args {
    int32_t n_tokens, hidden;
    const void *const *rows; /* [n_tokens] pointers to numbers of `dtype`, or NULL entries: nothing is added */
    int64_t skip;
    void *out;               /* [n_tokens, hidden] */
    nrd_dtype dtype;         /* an activation type */
} nrd_add_rows_args;

/* out[i] = x[i], but at least `low` and at most `high`: what is around products of Gemma 4's vision tower. out may be x. */
typedef struct nrd_clamp_args {
    int32_t n_tokens, width;
    const void *x;      /* [n_tokens, width] */
    void *out;          /* rows of `width` numbers, out_stride numbers from one to the next */
    int64_t out_stride;
    float low, high;    /* either may be infinite */
    nrd_dtype dtype;    /* an activation type */
} nrd_clamp_args;

typedef enum { NRD_NORM_RMS = 0, NRD_NORM_LAYER = 1 } nrd_norm_kind;

/* The whole joint between two sublayers, any part of which may be absent:
 *   d = delta_weight ? norm(delta, delta_weight) : delta      (post-norm of Gemma)
 *   residual = (residual + d) * sum_scale                      (written back in place)
 *   out = norm(residual[row_ids ? row_ids[i] : i], weight, bias)
 * With delta NULL the residual is only read, and sum_scale has no effect; with weight NULL nothing is written to out.
 * With to_residual out is written back as the residual, too (norms of the sum, as in BERT); weight and no row_ids
 * then, only with NRD_FEATURE_ENCODER.
 * With row_ids only those rows are normed (LM head), but every row gets its delta added. */
typedef struct nrd_norm_args {
    nrd_norm_kind kind;
    float eps;
    int32_t n_tokens, hidden;
    const void *delta;              /* [n_tokens, hidden] act dtype, or NULL */
    const nrd_weight *delta_weight; /* [hidden] or NULL */
    float sum_scale;                /* 0: 1 */
    void *residual;                 /* [n_tokens, hidden] act dtype */
    const nrd_weight *weight, *bias; /* [hidden] or NULL */
    const int32_t *row_ids;         /* [n_rows] or NULL */
    int32_t n_rows;                 /* with row_ids */
    bool to_residual;
    void *out;                      /* [n_tokens or n_rows, row of out_dtype] */
    nrd_dtype out_dtype;            /* act dtype, or what linear_input asked for */
    float *out_row_scale;           /* [rows] for F8 with per-token scales, else NULL */
    nrd_dtype act_dtype;
} nrd_norm_args;

static inline float nrd_norm_sum_scale(const nrd_norm_args *a)
{
    return a->sum_scale == 0 ? 1.0f : a->sum_scale;
}

/* y = concat over parts of (x W_p^T + b_p), softcapped if asked. Parts are stacked along the
 * output, each with a dtype of its own (GGUF mixes types inside q, k, v). */
enum { NRD_LINEAR_MAX_PARTS = 4 };
typedef struct nrd_linear_args {
    int32_t n_tokens;
    const void *x;            /* [n_tokens, cols] in x_dtype */
    nrd_dtype x_dtype;
    const float *x_row_scale; /* [n_tokens] for F8 with per-token scales, else NULL */
    int32_t n_parts;
    const nrd_weight *w[NRD_LINEAR_MAX_PARTS];    /* [rows_p, cols] */
    const nrd_weight *bias[NRD_LINEAR_MAX_PARTS]; /* [rows_p] or NULL */
    void *y;                  /* [n_tokens, sum rows] */
    nrd_dtype y_dtype;        /* act dtype; F32 for logits */
    float softcap;            /* > 0: y = softcap * tanh(y / softcap) */
    bool deterministic;       /* same result for a row in every batch composition */
} nrd_linear_args;

/* One low-rank pair of an adapter (Hu et al., LoRA, ICLR 2022): it adds scale * (x A^T) B^T to some rows
 * of a product. */
typedef struct nrd_lora_pair {
    const void *a;    /* [rank, cols], 16-byte aligned */
    const void *b;    /* B transposed: [rank, rows of the part], 16-byte aligned */
    int32_t rank;     /* 0: the adapter leaves this part as it is; a and b are not read */
    int32_t dtype;    /* nrd_dtype of a and b: F32, F16 or BF16 */
    float scale;
    int32_t reserved; /* 0 */
} nrd_lora_pair;

/* y[t, row0_p + i] += the pair of token t's adapter for part p, for all parts and all adapters at once.
 * Parts may overlap (a pair for all of q, k, v beside one for q). A token's result does not depend on
 * the other tokens. */
enum { NRD_LORA_MAX_PARTS = 4, NRD_LORA_MAX_RANK = 512 };
typedef struct nrd_lora_args {
    int32_t n_tokens;
    const int32_t *token_slot;  /* [n_tokens] which adapter; -1: none */
    bool single_tokens;         /* a hint: neighbours are tokens of different sequences */
    const nrd_lora_pair *pairs; /* part p of adapter s is pairs[s * slot_stride + p] */
    int64_t slot_stride;
    int32_t max_rank;           /* of all pairs that may be met, 1 to NRD_LORA_MAX_RANK */
    int32_t n_parts;
    struct {
        int32_t row0, n_rows;   /* columns of y */
    } part[NRD_LORA_MAX_PARTS];
    const void *x;              /* [n_tokens, cols] in x_dtype: the product's own input */
    nrd_dtype x_dtype;
    const float *x_row_scale;   /* [n_tokens] for F8 with per-token scales, else NULL */
    int64_t cols;
    void *y;                    /* [n_tokens, y_stride] */
    nrd_dtype y_dtype;          /* F32, F16, BF16 */
    int64_t y_stride;
    float *hidden;              /* [n_tokens, n_parts, max_rank]: the device's to write */
} nrd_lora_args;

typedef enum {
    NRD_ROPE_NONE = 0,
    NRD_ROPE_NEOX = 1,        /* pairs (i, i + rotary_dim/2) */
    NRD_ROPE_INTERLEAVED = 2, /* pairs (2i, 2i+1) */
} nrd_rope_kind;

enum { NRD_ROPE_AXES = 3 }; /* time, height, width (M-RoPE; Wang et al., Qwen2-VL, 2024) */

/* KV memory of one layer. What lies inside a block is the device's own affair; a block of one
 * layer is kv_block_bytes() long for K and V together, and block b starts at base + b * that.
 * n_kv_heads 0: a cache of latent_kv and latent_attention, one row of head_dim numbers for each token. */
typedef struct nrd_kv_layer {
    void *base;
    nrd_dtype dtype;      /* F32, F16, BF16, F8_E4M3, I8 */
    int32_t n_blocks, block_tokens;
    int32_t n_kv_heads, head_dim;
    float k_scale, v_scale; /* F8, I8 */
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

/* Norm of q and k heads (optional), bounds, rotary embedding, scale of q, write of K and V into the cache.
 * apart_norm, center_norm, late_norm (none of them with wide_norm), clip and q_scale_beta only with
 * NRD_FEATURE_QUERY_FORMS. */
typedef struct nrd_rope_kv_args {
    const nrd_batch_view *batch;     /* host struct, copied */
    void *qkv;                       /* [n_tokens, (n_heads + 2 n_kv_heads) * head_dim]; q in place */
    nrd_dtype act_dtype;
    int32_t n_heads;                 /* 0: keys and values only, without rotation (of an encoder's states, or a picture's) */
    const nrd_weight *q_norm, *k_norm; /* [head_dim] RMS, or NULL */
    float norm_eps;
    bool wide_norm;                  /* q_norm [n_heads * head_dim], k_norm [n_kv_heads * head_dim]: all heads
                                      * together; only with NRD_FEATURE_WIDE_QK_NORM */
    const float *wide_squares;       /* with wide_norm: [n_tokens, 2] sums of squares of q and of k over the heads of
                                      * wide_ranks ranks (head_squares, all_reduce); NULL: this one's are all */
    int32_t wide_ranks;
    bool apart_norm;                 /* weights as with wide_norm, but each head is normed by itself (Command R+) */
    bool center_norm;                /* a head's mean is taken off first: layer norms without a bias */
    bool late_norm;                  /* behind the rotation (Hunyuan) */
    float clip;                      /* > 0: q, k and v become at least -clip and at most clip, behind the norm and
                                      * before the rotation (DBRX); not with late_norm */
    nrd_rope_kind rope;
    int32_t rotary_dim;
    const float *inv_freq;           /* [rotary_dim / 2], scaling applied; NULL with ROPE_NONE */
    const uint8_t *pair_axis;        /* [rotary_dim / 2] which of the view's axes turns a pair, below NRD_ROPE_AXES; NULL: all
                                      * turn by the position. Only with NRD_FEATURE_ROPE_AXES */
    float rope_scale;                /* factor on cos and sin (YaRN, LongRoPE), else 1 */
    bool v_norm;                     /* each head of v is divided by its root mean square (with norm_eps), too */
    bool q_only;                     /* rows of qkv are [n_heads * head_dim], only q: another layer with the same cache has
                                      * written the keys and values. No wide_norm. Both only with NRD_FEATURE_SHARED_KV */
    float q_scale_beta;              /* > 0: q is multiplied by 1 + beta ln(1 + floor((position + offset) / length))
                                      * in the end (Nakanishi, Scalable-Softmax, 2025; Llama 4) */
    int32_t q_scale_length, q_scale_offset;
    nrd_kv_layer kv;
} nrd_rope_kv_args;

/* out[t, 0] = the sum of squares of token t's q, out[t, 1] of its k, before rope_kv: what a norm over all heads needs where
 * ranks share them. */
typedef struct nrd_head_squares_args {
    const void *qkv; /* [n_tokens, (n_heads + 2 n_kv_heads) * head_dim] */
    nrd_dtype act_dtype;
    int32_t n_tokens, n_heads, n_kv_heads, head_dim;
    float *out; /* [n_tokens, 2] */
} nrd_head_squares_args;

/* out[t] = softmax(softcap(scale * q K^T) + mask) V over the sequence's cached tokens.
 * Token at position p sees positions (p - window, p + ahead] (window 0: all behind it) and the first n_sink ones.
 * chunked, only with NRD_FEATURE_CHUNKS, with a window and without ahead: positions fall into chunks of `window`, and a
 * token sees those of its own chunk instead (Llama 4).
 * ahead > 0, only with NRD_FEATURE_ENCODER, without a tree and without alibi: an encoder's tokens also see those that
 * follow, as far as they are in the cache. */
enum { NRD_ATTENTION_MAX_AHEAD = 1 << 23 };
typedef struct nrd_attention_args {
    const nrd_batch_view *batch;     /* host struct, copied */
    const void *q;                   /* [n_tokens, q_stride], heads first in each row */
    int64_t q_stride;
    void *out;                       /* [n_tokens, n_heads * head_dim] */
    nrd_dtype act_dtype, out_dtype;  /* out_dtype: what linear_input asked for, or act dtype */
    float *out_row_scale;
    int32_t n_heads;
    float scale, softcap;
    const float *alibi;              /* [n_heads] or NULL: slope * (position of the key - of the query) is added
                                      * (Press et al., 2022); only with NRD_FEATURE_ALIBI */
    /* [n_heads, rel_back + rel_ahead + 1] or NULL: a number for each distance from the query to the key, from -rel_back to
     * rel_ahead, is added to the score; distances beyond have the last one's (Raffel et al., 2020: T5's buckets, written
     * out). Not beside alibi or a tree; only with NRD_FEATURE_REL_BIAS. */
    const float *rel_bias;
    int32_t rel_back, rel_ahead;
    const float *sink_logits;        /* [n_heads] or NULL: e^this is added to the softmax's denominator, a key that
                                      * everybody sees and that has no value (GPT-OSS); only with
                                      * NRD_FEATURE_SINK_LOGITS */
    int32_t window, n_sink, ahead;
    bool chunked;
    nrd_kv_layer kv;
    bool deterministic;
    bool f8_products;                /* over a cache of F8_E4M3 prompts' queries and weights may be rounded to it too */
} nrd_attention_args;

/* ---- latent attention (DeepSeek-V2, 2024) ----
 * A token's row in the cache is c = norm(its latent row), kv_rank wide, and behind it r, a key's rotated part of
 * rope_dim that all heads share. Head h's key is (K_h c, r), its value V_h c. A query's product with K_h c is that of
 * K_h^T q with c, so that neither keys nor values need ever be made. Caches are of float types. */
enum { NRD_LATENT_MAX_RANK = 1024, NRD_LATENT_MAX_ROPE_DIM = 256, NRD_LATENT_MAX_HEAD_DIM = 512 };

/* Rotates the last rope_dim numbers of each head's query; norms and rotates a token's row and writes it into the cache. */
typedef struct nrd_latent_kv_args {
    const nrd_batch_view *batch;     /* host struct, copied */
    void *q;                         /* [n_tokens, n_heads, nope_dim + rope_dim], in place */
    const void *latent;              /* [n_tokens, kv_rank + rope_dim] */
    nrd_dtype act_dtype;
    int32_t n_heads, nope_dim, rope_dim;
    const nrd_weight *norm;          /* [kv_rank] RMS */
    float norm_eps;
    nrd_rope_kind rope;
    const float *inv_freq;           /* [rope_dim / 2], scaling applied */
    float rope_scale;                /* factor on cos and sin */
    nrd_kv_layer kv;                 /* head_dim = kv_rank + rope_dim */
} nrd_latent_kv_args;

/* out[t, h] = V_h of the sum of c over the sequence's cached tokens, weighed by softmax(scale q key^T + mask). */
typedef struct nrd_latent_attention_args {
    const nrd_batch_view *batch;     /* host struct, copied */
    const void *q;                   /* [n_tokens, n_heads, nope_dim + rope_dim], of latent_kv */
    void *out;                       /* [n_tokens, n_heads * v_dim] */
    nrd_dtype act_dtype, out_dtype;  /* out_dtype: what linear_input asked for, or act dtype */
    float *out_row_scale;
    int32_t n_heads, nope_dim, rope_dim, v_dim;
    float scale;
    const nrd_weight *k_b;           /* K: [n_heads * nope_dim, kv_rank], of a float type, loaded as no linear one */
    const nrd_weight *v_b;           /* V: [n_heads * v_dim, kv_rank], likewise */
    int32_t window, n_sink;          /* as in nrd_attention_args */
    nrd_kv_layer kv;
    bool deterministic;
} nrd_latent_attention_args;

typedef enum {
    NRD_ACT_NONE = 0,
    NRD_ACT_SILU = 1,
    NRD_ACT_GELU_TANH = 2,
    NRD_ACT_GELU_ERF = 3,
    NRD_ACT_RELU = 4,
    NRD_ACT_RELU2 = 5,
    /* Only gated (GPT-OSS): g sigmoid(alpha g) (u + 1), g = min(x[i], limit), u = x[inter + i] within limit of 0. */
    NRD_ACT_CLAMPED_SWIGLU = 6,
    /* Only not gated, with NRD_FEATURE_XIELU (Huang and Schlag, 2024; Apertus): x / 2 + p x^2 above 0, below
     * x / 2 + n (e^min(x, eps) - 1 - x). */
    NRD_ACT_XIELU = 7,
    NRD_ACT_QUICK_GELU = 8, /* x sigmoid(alpha x) (CLIP) */
} nrd_act_kind;
#define NRD_QUICK_GELU_ALPHA 1.702f
#define NRD_XIELU_EPS (-1e-6f)
#define NRD_SWIGLU_LIMIT 7.0f
#define NRD_SWIGLU_ALPHA 1.702f

/* gated: out[i] = act(x[i]) * x[inter + i]; else out[i] = act(x[i]). With in_scale, only with
 * NRD_FEATURE_INPUT_SCALE, row t of x is multiplied by in_scale[in_scale_id[t]] first.
 * Only with NRD_FEATURE_ALTUP, gated and without in_scale:
 *   up      the other factors are up[t * up_stride + i], and x is [n_tokens, inter];
 *   cutoff  > 0: x[i] becomes max(x[i] - c, 0) before the function, where c is the mean of the row's `inter` numbers plus
 *           `cutoff` times their standard deviation (Gemma 3n: of normally distributed numbers a fixed share stays). */
typedef struct nrd_act_args {
    nrd_act_kind kind;
    bool gated;
    int32_t n_tokens, inter;
    const void *x;        /* [n_tokens, gated ? 2*inter : inter] act dtype */
    nrd_dtype act_dtype;
    void *out;            /* [n_tokens, row of out_dtype] */
    nrd_dtype out_dtype;
    float *out_row_scale;
    const float *in_scale;      /* or NULL */
    const int32_t *in_scale_id; /* [n_tokens], with in_scale */
    float xielu_p, xielu_n;     /* with NRD_ACT_XIELU */
    const void *up;             /* act dtype, or NULL */
    int64_t up_stride;
    float cutoff;               /* 0: none */
} nrd_act_args;

/* ---- several states of a token (Baykal et al., Alternating Updates, 2023; Gemma 3n) ----
 * states [n_states, n_tokens, hidden]. Layers read and write the first; before a layer all are predicted, behind it all are
 * corrected by what the layer made of the first. How much goes from which to which is made of
 *   m(x)[k] = tanh(sum over i of router[k, i] * x[i] / rms(x) * norm[i] / hidden), k < n_states. */
enum { NRD_ALTUP_MAX_STATES = 8 };

typedef struct nrd_altup_router {
    const float *norm;   /* [hidden] */
    const float *router; /* [n_states, hidden] */
    float eps;           /* of the root mean square */
} nrd_altup_router;

/* states[q] += sum over p of (coefs[q * n_states + p] . m(states[0])) * states[p], of the states before; then active = states[0]. */
typedef struct nrd_altup_predict_args {
    int32_t n_tokens, hidden, n_states;
    void *states;
    nrd_altup_router router;
    const float *coefs; /* [n_states * n_states, n_states] */
    void *active;       /* [n_tokens, hidden] */
    nrd_dtype act_dtype;
} nrd_altup_predict_args;

/* a = x * x_scale + delta / rms(delta) * delta_weight; states[q] += (1 + coefs[q] . m(a)) * (a - states[0]), of the states
 * before; then out = states[0] * scale. */
typedef struct nrd_altup_correct_args {
    int32_t n_tokens, hidden, n_states;
    void *states;
    const void *x, *delta;     /* [n_tokens, hidden] */
    float x_scale;
    const float *delta_weight; /* [hidden] */
    nrd_altup_router router;   /* its eps is also that of the delta's norm */
    const float *coefs;        /* [n_states, n_states] */
    const float *scale;        /* [hidden] */
    void *out;                 /* [n_tokens, hidden]; may be x or delta */
    nrd_dtype act_dtype;
} nrd_altup_correct_args;

/* Rows of x get the root mean square of those of `like`: x[j, t] *= rms(like[t]) / max(rms(x[j, t]), sqrt(floor)). With `mean` it
 * gets the mean of like and of the n rows of each token. */
typedef struct nrd_altup_match_args {
    int32_t n_tokens, hidden, n;
    const void *like; /* [n_tokens, hidden] */
    void *x;          /* [n, n_tokens, hidden], in place */
    float floor;
    void *mean;       /* [n_tokens, hidden], or NULL; may be `like` */
    nrd_dtype act_dtype;
} nrd_altup_match_args;

/* ---- mixture of experts ----
 * Of many MLPs a layer runs a few for each token. moe_route chooses them and sorts the pairs (token, chosen expert) by
 * expert; moe_linear is a product whose matrix depends on the pair; act() takes pairs as it takes tokens; moe_sum
 * adds up what a token's experts gave. Which expert has how many pairs is known on the device only, so a recorded
 * step serves every routing. */

enum { NRD_MOE_MAX_EXPERTS = 1024, NRD_MOE_MAX_TOP_K = 32 };

typedef enum {
    NRD_MOE_SOFTMAX = 0,
    NRD_MOE_SIGMOID = 1,
    NRD_MOE_SPARSEMIXER = 2, /* needs nrd_moe_route_args.jitter */
} nrd_moe_score;

/* What moe_route writes and the others read. Device memory; n_pairs = n_tokens * top_k.
 * Where ranks divide the list of experts (GShard, Lepikhin et al., 2020), each gives moe_linear and moe_sum a window of what
 * moe_route wrote: first moved up to its first expert, n_experts its own. They leave out pairs of other experts, whose
 * rows of x and y may hold anything. */
typedef struct nrd_moe_pairs {
    int32_t n_experts, top_k;
    int32_t *expert; /* [n_tokens, top_k] chosen experts, best first */
    float *weight;   /* [n_tokens, top_k] what each is multiplied by */
    int32_t *first;  /* [n_experts + 1] the sorted pairs of expert e are first[e] to first[e + 1] - 1 */
    int32_t *token;  /* [n_pairs] of each sorted pair; ascending within an expert */
    int32_t *place;  /* [n_tokens, top_k] which sorted pair each is */
} nrd_moe_pairs;

/* Scores s = softmax or sigmoid of a token's logits; those chosen have the highest s + bias. With n_groups > 1
 * experts form as many groups of neighbours, and only the best top_groups of them may be chosen from; a group's
 * score is the sum of its two highest s + bias, or with group_max its highest. Weights are the chosen s, divided by their sum (normalize),
 * times scale and what expert_scale has for the expert. Ties: lowest id.
 * SPARSEMIXER (Liu et al., 2024) takes the highest logit x_1, then the highest of the others, and so on; the weight
 * of choice j is its share of a softmax over what is left and has (x_j - x) / max(|x|, x_j) <= 2 jitter. No bias, groups,
 * normalize or expert_scale there. */
typedef struct nrd_moe_route_args {
    int32_t n_tokens;
    const float *logits;   /* [n_tokens, logits_stride], the experts' first */
    int64_t logits_stride;
    nrd_moe_score score;
    const float *bias;     /* [n_experts] or NULL */
    int32_t n_groups, top_groups; /* 1, 1: no groups */
    bool group_max;
    bool normalize;
    float scale;
    const float *expert_scale; /* [n_experts] or NULL */
    float jitter;
    nrd_moe_pairs pairs;
} nrd_moe_route_args;

/* y[i] = concat over parts of W_p,e x (+ b_p,e) for each sorted pair i, e its expert. A pair's result does not depend on the
 * other pairs where `deterministic` asks for it. */
typedef struct nrd_moe_linear_args {
    int32_t n_tokens;
    nrd_moe_pairs pairs;      /* first and token are read */
    const void *x;            /* [n_tokens, cols] in x_dtype, or with x_sorted [n_pairs, cols] */
    bool x_sorted;
    nrd_dtype x_dtype;
    const float *x_row_scale; /* of each row of x for F8 with per-token scales, else NULL */
    int32_t n_parts;
    const nrd_weight *w[NRD_LINEAR_MAX_PARTS]; /* [n_experts * rows_p, cols], stacked */
    const nrd_weight *bias[NRD_LINEAR_MAX_PARTS]; /* vectors of n_experts * rows_p, or NULL */
    void *y;                  /* [n_pairs, sum of rows_p]; rows of pairs outside of the window stay as they are */
    nrd_dtype y_dtype;        /* act dtype */
    bool deterministic;
} nrd_moe_linear_args;

/* out[t] = sum over j with first[0] <= place[t, j] < first[n_experts] of weight[t, j] * y[place[t, j]], j ascending, + shared[t] * (shared_gate ? sigmoid of
 * shared_gate[t * gate_stride] : 1). */
typedef struct nrd_moe_sum_args {
    int32_t n_tokens, hidden;
    nrd_moe_pairs pairs;      /* first, weight and place are read; weight NULL, only with NRD_FEATURE_INPUT_SCALE: all are 1 */
    const void *y;            /* [n_pairs, hidden] act dtype */
    const void *shared;       /* [n_tokens, hidden] act dtype, or NULL; may be out */
    const float *shared_gate; /* logits, or NULL */
    int64_t gate_stride;
    void *out;                /* [n_tokens, hidden] act dtype */
    nrd_dtype act_dtype;
} nrd_moe_sum_args;

/* Choice of tokens. One row = one sampled position. Array in device memory. */
enum {
    NRD_SAMPLE_LOGPROB = 1u,    /* fill out_logprob */
    NRD_SAMPLE_COUNTS = 2u,     /* penalties apply: read and update this slot's row of counts */
    NRD_SAMPLE_NORMALIZE = 4u,  /* out_logprob_norm: relative to the candidate set */
    NRD_SAMPLE_NO_UPDATE = 8u,  /* do not write slot_tokens (scoring) */
    NRD_SAMPLE_UNMASKED = 16u,  /* log probabilities are relative to all logits as they came: what may not be chosen has its share */
};
/* Tokens that tell times (Whisper), ids from `first` on. Of the others those of [text_from, text_end) may be chosen, of these those of
 * [time_from, time_end); and none of the others where all times together are more probable than the best of the others. */
typedef struct nrd_sample_times {
    int32_t first;              /* 0: no rule */
    int32_t text_from, text_end;
    int32_t time_from, time_end;
} nrd_sample_times;

typedef struct nrd_sample_row {
    int32_t slot;               /* index into slot_tokens and counts */
    int32_t top_k;              /* <= 0: all; 1: greedy */
    float top_p;                /* <= 0 or >= 1: all */
    float min_p;                /* <= 0: off */
    float temperature;          /* <= 0: greedy */
    float repetition_penalty;   /* 1: off. logit > 0 ? /p : *p for seen tokens */
    float presence_penalty;     /* 0: off */
    float frequency_penalty;    /* 0: off */
    uint64_t seed;
    uint64_t draw;              /* counter of draws of this request: same (seed, draw), same number */
    uint32_t flags;
    int32_t banned_start, n_banned; /* into banned_ids */
    int32_t n_suppress_end;     /* 1: end_id may not be chosen (min_length) */
    int32_t end_id;             /* -1: none */
    const float *bias;          /* device memory or NULL; [vocab], or [n_bias] with bias_ids */
    const int32_t *bias_ids;    /* [n_bias] rising ids, device memory; NULL: every token has a bias */
    int32_t n_bias;
    const uint32_t *mask;       /* [(vocab+31)/32] bit set = allowed, device memory, or NULL */
    nrd_sample_times times;
} nrd_sample_row;

/* Order: bias, penalties, min length, banned, mask, times, temperature, top-k, top-p, min-p, draw.
 * Uniform draw: nrd_sample_uniform(seed, draw), the same on every device. Ties: lowest id. The draw
 * walks the kept ids in ascending order; the first whose cumulated probability exceeds it wins. */
typedef struct nrd_sample_args {
    int32_t n_rows, vocab;
    const float *logits;         /* [n_rows, logits_stride] */
    int64_t logits_stride;
    const nrd_sample_row *rows;  /* [n_rows] */
    const int32_t *banned_ids;
    uint16_t *counts;            /* [n_slots, vocab] occurrences so far (prompt included), or NULL */
    int32_t *slot_tokens;        /* [n_slots] */
    int32_t *out_ids;            /* [n_rows] */
    float *out_logprob;          /* [n_rows] log p of the choice under the unfiltered distribution */
    float *out_logprob_norm;     /* [n_rows] or NULL */
    int32_t n_top;               /* > 0: also the best n_top candidates, best first */
    int32_t *out_top_ids;        /* [n_rows, n_top] */
    float *out_top_logprobs;     /* [n_rows, n_top] unfiltered log-softmax (after penalties) */
} nrd_sample_args;

/* Starts a slot's row of counts: zero it, then count ids[0..n). */
typedef struct nrd_counts_args {
    int32_t slot, vocab, n;
    const int32_t *ids;
    uint16_t *counts;
} nrd_counts_args;

/* Copies whole KV blocks of every given layer: pairs (src, dst) of block ids, each pool. */
typedef struct nrd_copy_blocks_args {
    int32_t n_layers, n_pairs;
    const nrd_kv_layer *src, *dst; /* [n_layers] host arrays, copied; may be the same pool */
    const int32_t *pairs;          /* [n_pairs, 2] host array, copied */
} nrd_copy_blocks_args;

/* Copies the keys and values of single tokens within each layer's cache, one pair after the other: a pair may read
 * what one before it wrote. A place is block * block_tokens + token in the block, below 2^31. */
typedef struct nrd_move_tokens_args {
    int32_t n_layers, n_pairs;
    const nrd_kv_layer *kv; /* [n_layers] host array, copied */
    const int32_t *pairs;   /* [n_pairs, 2] places (from, to); host array, copied */
} nrd_move_tokens_args;

/* ---- layers that remember a sequence in a state of fixed size ----
 *
 * The new tokens of a sequence are taken in their order, beginning with the state in its slot, which is then that behind
 * the last one. A sequence whose first new token is at position 0 begins with zeros, whatever is in the slot. Sequences
 * of a step have different slots. No token trees. States are float32. All only with NRD_FEATURE_RECURRENT. */

/* A causal convolution along the tokens, each channel by itself: with u = x (* in_gate),
 *   out[t, c] = act(bias[c] + sum over k of weight[c, k] * u[t - kernel + 1 + k, c]) (* out_gate[t, c]). */
enum { NRD_SHORT_CONV_MAX = 16 };
typedef struct nrd_short_conv_args {
    const nrd_batch_view *batch;    /* host struct, copied */
    const void *x;                  /* [n_tokens, x_stride], the first `channels` of each row */
    const void *in_gate, *out_gate; /* rows as x's; or NULL */
    int64_t x_stride;
    int32_t channels, kernel;       /* kernel: 2 to NRD_SHORT_CONV_MAX */
    const float *weight;            /* [channels, kernel] */
    const float *bias;              /* [channels] or NULL */
    nrd_act_kind act;               /* NONE or SILU */
    float *state;                   /* [n_slots, kernel - 1, channels]: u of the last tokens, the newest last */
    void *out;                      /* [n_tokens, channels] */
    nrd_dtype act_dtype;
} nrd_short_conv_args;

/* The selective scan of Mamba and Mamba-2: with step = clamp(softplus(dt + dt_bias), dt_min, dt_max),
 *   h[p, n] = exp(step * a) * h[p, n] + step * x[p] * b[n],   out[p] = sum over n of c[n] * h[p, n] + d * x[p]
 * for each head; n_heads / n_groups heads share b and c. Mamba: a channel is a head of one number. */
enum { NRD_SSM_MAX_STATE = 256 };
typedef struct nrd_ssm_args {
    const nrd_batch_view *batch; /* host struct, copied */
    const void *x;               /* [n_tokens, x_stride], heads first in each row */
    const void *b, *c;           /* [n_tokens, bc_stride], groups first in each row */
    const void *dt;              /* [n_tokens, dt_stride], heads first in each row */
    int64_t x_stride, bc_stride, dt_stride;
    int32_t n_heads, head_dim, n_groups, n_state; /* n_state: up to NRD_SSM_MAX_STATE */
    const float *a;              /* [n_heads], or with a_of_states [n_heads, n_state]; negative */
    bool a_of_states;
    const float *d, *dt_bias;    /* [n_heads] */
    float dt_min, dt_max;
    float *state;                /* [n_slots, n_heads, head_dim, n_state] */
    void *out;                   /* [n_tokens, n_heads * head_dim] */
    nrd_dtype act_dtype;
} nrd_ssm_args;

/* The gated delta rule: with q and k of length 1 (x / sqrt(sum of x^2 + 1e-6)), q also divided by sqrt(k_dim),
 *   S *= exp(a * softplus(alpha + dt_bias)),   S += k (v - k S)^T sigmoid(beta),   out = q S
 * for each value head; n_heads / n_k_heads value heads share q and k: neighbours, or with keys_by_turns heads i, i + n_k_heads,
 * i + 2 n_k_heads, … those of key head i. */
enum { NRD_DELTA_MAX_DIM = 256 };
typedef struct nrd_delta_rule_args {
    const nrd_batch_view *batch;  /* host struct, copied */
    const void *q, *k, *v;        /* [n_tokens, qkv_stride], heads first in each row */
    const void *alpha, *beta;     /* [n_tokens, gate_stride], value heads first in each row */
    int64_t qkv_stride, gate_stride;
    int32_t n_k_heads, n_heads, k_dim, v_dim; /* dims: up to NRD_DELTA_MAX_DIM */
    bool keys_by_turns;
    const float *a, *dt_bias;     /* [n_heads] */
    float *state;                 /* [n_slots, n_heads, k_dim, v_dim] */
    void *out;                    /* [n_tokens, n_heads * v_dim] */
    nrd_dtype act_dtype;
} nrd_delta_rule_args;

static inline int32_t nrd_delta_key_head(const nrd_delta_rule_args *a, int32_t head)
{
    return a->keys_by_turns ? head % a->n_k_heads : head / (a->n_heads / a->n_k_heads);
}

/* The real-gated linear recurrent unit (De et al., Griffin, 2024). Heads are blocks of channels with matrices of their own:
 *   i = sigmoid(x W_in + b_in),   log a = -8 * sigmoid(x W_decay + b_decay) * softplus(decay),
 *   h = a * h + (sqrt(1 - a^2), or 1 at position 0) * i * x,   out = h * gelu(gate)   (its approximation by tanh). */
enum { NRD_RG_LRU_MAX_DIM = 1024 };
typedef struct nrd_rg_lru_args {
    const nrd_batch_view *batch;         /* host struct, copied */
    const void *x;                       /* [n_tokens, n_heads * head_dim] */
    const void *gate;                    /* [n_tokens, gate_stride], as many first in each row */
    int64_t gate_stride;
    int32_t n_heads, head_dim;           /* head_dim: up to NRD_RG_LRU_MAX_DIM */
    const float *in_weight, *decay_weight; /* [n_heads, head_dim, head_dim]: a row for each number of x */
    const float *in_bias, *decay_bias, *decay; /* [n_heads, head_dim] */
    float *state;                        /* [n_slots, n_heads, head_dim] */
    void *out;                           /* [n_tokens, n_heads * head_dim] */
    nrd_dtype act_dtype;
} nrd_rg_lru_args;

/* An RMS norm of each of n_groups parts of a row, with a gate: out = norm(x * silu(gate)) * weight with gate_first, else
 * norm(x) * weight * silu(gate). With weight NULL there is no norm: out = x * sigmoid(gate), or with gate_silu
 * x * silu(gate). out may be x. */
typedef struct nrd_gated_norm_args {
    int32_t n_tokens, width, n_groups;
    const void *x;        /* [n_tokens, width] */
    const void *gate;     /* [n_tokens, gate_stride], the first `width` of each row */
    int64_t gate_stride;
    const float *weight;  /* [width], or with shared_weight [width / n_groups] for every group */
    bool shared_weight, gate_first;
    bool gate_silu;       /* with weight NULL */
    float eps;
    void *out;            /* [n_tokens, width] */
    nrd_dtype act_dtype;
} nrd_gated_norm_args;

/* ---- ranks: devices that compute one step together ---- */

/* Each rank has a process (or a thread), a device and a stream of its own, and enqueues the same collective
 * operations in the same order with the same sizes. */
typedef struct nrd_comm nrd_comm;

/* Ranks on other hosts, which do not see nrd_comm_config.shared but one of the same layout. */
typedef struct nrd_comm_far {
    const uint8_t *host_of; /* [size]: the host of each rank; outlives the comm. NULL: all are on one, and the rest has no meaning */
    /* What this rank has written to `shared` is written on the hosts of ranks first … first + n - 1 as well: `bytes` at `data`,
     * and behind them `value` into the word at `mark`, whose futex is woken. What one rank writes keeps its order. Any thread. */
    void (*wrote)(void *user, int32_t first, int32_t n, const void *data, size_t bytes, const void *mark, uint32_t value);
    void *user;
} nrd_comm_far;

typedef struct nrd_comm_config {
    int32_t rank, size; /* rank: 0 .. size - 1 */
    /* Ranks g * group to (g + 1) * group - 1 share their layers: all_reduce and gather are theirs alone. 0, or
     * size: all ranks do. */
    int32_t group;
    /* With several groups: the longest message of send in one piece, and how many may be under way to a rank. */
    size_t piece_bytes;
    int32_t n_pieces;
    /* all_reduce, gather and broadcast through the maker's library (CUDA: NCCL), also where ranks reach each other's memory; the
     * same in every rank. comm_open says UNSUPPORTED where the library is not found. The CPU has no other way: no effect. */
    bool by_library;
    /* comm_bytes() of this configuration, of memory that all ranks of this host see, zero before the first one opens, 64-byte
     * aligned; outlives the comm. Its first word is the stop word. */
    void *shared;
    nrd_comm_far far;
} nrd_comm_config;

/* Whoever stores a number other than 0 into the stop word of `shared` (the lost rank + 1) ends all waits of
 * all ranks: what their streams compute from then on is void, and stream_sync says UNAVAILABLE. */
static inline uint32_t *nrd_comm_stop_word(void *shared)
{
    return (uint32_t *)shared;
}

/* x becomes the sum of all ranks' x, added in the order of the ranks: the same bits in every rank. */
typedef struct nrd_all_reduce_args {
    nrd_comm *comm;
    void *x; /* [n], of comm_alloc where there is one */
    int64_t n;
    nrd_dtype dtype;
} nrd_all_reduce_args;

/* all_reduce() of norm.delta and then norm(). The ranks may divide the rows among them: then a rank has the
 * residual of its own rows only, until an operation with as many tokens asks for all of it again. What is in
 * norm.delta afterwards has no meaning. No row_ids; all arrays but the weights are of comm_alloc. */
typedef struct nrd_all_reduce_norm_args {
    nrd_comm *comm;
    nrd_norm_args norm;
    bool whole_residual; /* every rank gets all rows of the residual */
} nrd_all_reduce_norm_args;

/* Columns of all ranks side by side: out[row, rank * cols + c] = that rank's x[row, c], in the group's first. */
typedef struct nrd_gather_args {
    nrd_comm *comm;
    const float *x; /* [n_rows, cols], of comm_alloc where there is one */
    float *out;     /* [n_rows, size * cols]; not read or written by other ranks */
    int32_t n_rows, cols;
} nrd_gather_args;

/* x of rank 0 becomes that of every rank. */
typedef struct nrd_broadcast_args {
    nrd_comm *comm;
    void *x; /* [bytes], of comm_alloc */
    int64_t bytes;
} nrd_broadcast_args;

/* Rows from one rank to another; both name the same numbers. Messages of two ranks arrive in the order in which
 * they were sent. A sender waits only where n_pieces are under way to the same rank. */
typedef struct nrd_transfer_args {
    nrd_comm *comm;
    int32_t peer; /* to whom, or from whom */
    void *x;      /* n_rows rows of row_bytes, `stride` bytes apart; send does not write to it */
    int64_t row_bytes, stride;
    int32_t n_rows;
} nrd_transfer_args;

/* ---- the vtable ---- */

/* Modes of operations that a device may lack. */
typedef enum {
    NRD_FEATURE_WIDE_QK_NORM = 0, /* rope_kv */
    NRD_FEATURE_ALIBI = 1,        /* attention */
    NRD_FEATURE_EXPERTS = 2,      /* moe_route, moe_linear, moe_sum */
    NRD_FEATURE_ENCODER = 3,      /* embed, norm, attention */
    NRD_FEATURE_SINK_LOGITS = 4,  /* attention */
    NRD_FEATURE_QUERY_FORMS = 5,  /* rope_kv */
    NRD_FEATURE_CHUNKS = 6,       /* attention */
    NRD_FEATURE_XIELU = 7,        /* act */
    NRD_FEATURE_INPUT_SCALE = 8,  /* act, moe_sum */
    NRD_FEATURE_LATENT = 9,       /* latent_kv, latent_attention, and their cache in the others */
    NRD_FEATURE_REL_BIAS = 10,    /* attention; rope_kv with n_heads 0 */
    NRD_FEATURE_RECURRENT = 11,   /* short_conv, ssm, delta_rule, gated_norm, rg_lru */
    NRD_FEATURE_ROPE_AXES = 12,   /* rope_kv */
    NRD_FEATURE_ALTUP = 13,       /* altup_predict, altup_correct, altup_match; act */
    NRD_FEATURE_SHARED_KV = 14,   /* rope_kv */
} nrd_feature;

typedef struct nrd_device_ops {
    void (*close)(nrd_device *dev);
    void (*get_info)(nrd_device *dev, nrd_device_info *info); /* fresh free-memory figure */

    nrd_error *(*alloc)(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes,
                        const char *pool_name); /* zeroed, 256-byte aligned */
    void (*free)(nrd_device *dev, nrd_mem_kind kind, void *p);
    int32_t (*mem_report)(nrd_device *dev, nrd_mem_report *rows, int32_t max_rows);

    nrd_error *(*stream_new)(nrd_device *dev, nrd_stream **out);
    void (*stream_free)(nrd_stream *s);
    nrd_error *(*stream_sync)(nrd_stream *s); /* all enqueued work is done */
    nrd_error *(*event_new)(nrd_device *dev, nrd_event **out);
    void (*event_free)(nrd_event *e);
    nrd_error *(*event_record)(nrd_stream *s, nrd_event *e);
    nrd_error *(*event_wait)(nrd_event *e);                  /* host waits */
    nrd_error *(*stream_wait)(nrd_stream *s, nrd_event *e);  /* stream waits */
    nrd_error *(*graph_begin)(nrd_stream *s);                /* NULL pointer: no graphs */
    nrd_error *(*graph_end)(nrd_stream *s, nrd_graph **out);
    nrd_error *(*graph_launch)(nrd_stream *s, nrd_graph *g);
    void (*graph_free)(nrd_graph *g);

    nrd_error *(*copy)(nrd_stream *s, void *dst, const void *src, size_t bytes); /* any direction */
    nrd_error *(*fill)(nrd_stream *s, void *dst, int byte, size_t bytes);

    /* How this device wants a weight kept: its layout number and byte count; layout ROWS means "as
     * it is". Asked at build (packed bytes go into the engine file) and at load (a file with another
     * layout is converted). `is_linear`: used by linear(), else only by embed(). Of a stack: one of its
     * matrices. */
    nrd_error *(*weight_plan)(nrd_device *dev, nrd_dtype dtype, int64_t rows, int64_t cols,
                              bool is_linear, uint32_t *out_layout, uint64_t *out_bytes);
    /* Packs host rows into host memory `dst` of the planned size. */
    nrd_error *(*weight_pack)(nrd_device *dev, const nrd_weight *src_rows, uint32_t layout, void *dst);
    /* Makes a host weight usable: maps in place when it can (CPU), else uploads, converting the
     * layout. `out->data` borrows `src->data` if *out_owned is false. */
    nrd_error *(*weight_load)(nrd_stream *s, const nrd_weight *src, bool is_linear, nrd_weight *out,
                              bool *out_owned);
    void (*weight_unload)(nrd_device *dev, nrd_weight *w); /* only owned ones */

    /* The input type that linear() wants for this weight, and the bytes of one row of `cols`. */
    nrd_dtype (*linear_input)(nrd_device *dev, const nrd_weight *w, nrd_dtype act_dtype,
                              size_t *out_row_bytes, bool *out_row_scale);
    size_t (*kv_block_bytes)(nrd_device *dev, nrd_dtype dtype, int32_t block_tokens,
                             int32_t n_kv_heads, int32_t head_dim);
    /* Tells the device the largest shapes so that it can take its scratch memory now. */
    nrd_error *(*reserve)(nrd_stream *s, int32_t max_tokens, int32_t max_seqs, int32_t max_hidden,
                          int32_t max_ctx_len, int32_t vocab);

    nrd_error *(*embed)(nrd_stream *s, const nrd_embed_args *a);
    nrd_error *(*norm)(nrd_stream *s, const nrd_norm_args *a);
    nrd_error *(*linear)(nrd_stream *s, const nrd_linear_args *a);
    nrd_error *(*rope_kv)(nrd_stream *s, const nrd_rope_kv_args *a);
    nrd_error *(*attention)(nrd_stream *s, const nrd_attention_args *a);
    nrd_error *(*act)(nrd_stream *s, const nrd_act_args *a);
    nrd_error *(*sample)(nrd_stream *s, const nrd_sample_args *a);
    nrd_error *(*counts)(nrd_stream *s, const nrd_counts_args *a);
    nrd_error *(*copy_blocks)(nrd_stream *s, const nrd_copy_blocks_args *a);

    /* Time between two recorded events that the stream has passed. NULL pointer: not measured. */
    nrd_error *(*event_elapsed)(nrd_event *from, nrd_event *to, double *out_seconds);

    /* Measures for about a second, with nothing else running (a GPU: in 2 GiB of its memory). NULL pointer: not measured. */
    nrd_error *(*limits)(nrd_device *dev, nrd_device_limits *out);

    /* linear() and then sample() of its results, which no other operation reads: the device need
     * not write l->y (= a->logits). Same choices as of the two calls. The rows, and what they
     * point to, must be there at the call. NULL pointer: the two calls. */
    nrd_error *(*linear_sample)(nrd_stream *s, const nrd_linear_args *l, const nrd_sample_args *a);

    /* Settles which kernels linear() takes for these weights with 1 to a->n_tokens rows, by trying those
     * of which nothing is known yet for about `seconds` at most; waits. x (a->x, writable), a->x_row_scale
     * and a->y are filled with something else. Without it, and beyond that time, linear() estimates. Not
     * while a graph is recorded. NULL pointer: there is nothing to settle. */
    nrd_error *(*linear_tune)(nrd_stream *s, const nrd_linear_args *a, void *x, double seconds);

    /* Collective operations; these five NULL: this device works alone. comm_open waits for nobody. A comm is
     * closed when its last operation is over. */
    size_t (*comm_bytes)(nrd_device *dev, const nrd_comm_config *config);
    nrd_error *(*comm_open)(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out);
    void (*comm_close)(nrd_comm *c); /* NULL is fine */
    nrd_error *(*all_reduce)(nrd_stream *s, const nrd_all_reduce_args *a);
    nrd_error *(*gather)(nrd_stream *s, const nrd_gather_args *a);

    /* NULL pointer: no adapters on this device. */
    nrd_error *(*lora)(nrd_stream *s, const nrd_lora_args *a);

    /* Where ranks reach into each other's memory; NULL pointers: they need not, any memory will do.
     * comm_alloc: device memory for what collective operations read and write; zeroed, 256-byte aligned, freed
     * with the comm. Every rank asks for the same sizes in the same order. Behind that comm_meet, before the first
     * operation: waits for ranks that have not asked yet. */
    nrd_error *(*comm_alloc)(nrd_comm *c, void **out, size_t bytes, const char *pool_name);
    nrd_error *(*comm_meet)(nrd_comm *c);
    /* Needed where steps are enqueued ahead: only rank 0 chooses tokens. NULL pointer: they are not. */
    nrd_error *(*broadcast)(nrd_stream *s, const nrd_broadcast_args *a);
    /* NULL pointer: the two calls. */
    nrd_error *(*all_reduce_norm)(nrd_stream *s, const nrd_all_reduce_norm_args *a);
    /* Between groups. A rank hears from one other only. NULL pointers: no pipeline stages on this device. */
    nrd_error *(*send)(nrd_stream *s, const nrd_transfer_args *a);
    nrd_error *(*receive)(nrd_stream *s, const nrd_transfer_args *a);

    /* Asked before a model's weights are loaded. NULL pointer: none of them. */
    bool (*has_feature)(nrd_device *dev, nrd_feature feature);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_EXPERTS. */
    nrd_error *(*moe_route)(nrd_stream *s, const nrd_moe_route_args *a);
    nrd_error *(*moe_linear)(nrd_stream *s, const nrd_moe_linear_args *a);
    nrd_error *(*moe_sum)(nrd_stream *s, const nrd_moe_sum_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_LATENT. */
    nrd_error *(*latent_kv)(nrd_stream *s, const nrd_latent_kv_args *a);
    nrd_error *(*latent_attention)(nrd_stream *s, const nrd_latent_attention_args *a);

    /* What holds of a token tree moves together (nrd_batch_view.tree_mask). NULL pointer: no token trees. */
    nrd_error *(*move_tokens)(nrd_stream *s, const nrd_move_tokens_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_RECURRENT. */
    nrd_error *(*short_conv)(nrd_stream *s, const nrd_short_conv_args *a);
    nrd_error *(*ssm)(nrd_stream *s, const nrd_ssm_args *a);
    nrd_error *(*delta_rule)(nrd_stream *s, const nrd_delta_rule_args *a);
    nrd_error *(*gated_norm)(nrd_stream *s, const nrd_gated_norm_args *a);
    nrd_error *(*rg_lru)(nrd_stream *s, const nrd_rg_lru_args *a);

    /* NULL pointer: not on this device. */
    nrd_error *(*add_rows)(nrd_stream *s, const nrd_add_rows_args *a);

    /* With NRD_FEATURE_WIDE_QK_NORM. NULL pointer: heads of such a norm are not shared by ranks. */
    nrd_error *(*head_squares)(nrd_stream *s, const nrd_head_squares_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_ALTUP. */
    nrd_error *(*altup_predict)(nrd_stream *s, const nrd_altup_predict_args *a);
    nrd_error *(*altup_correct)(nrd_stream *s, const nrd_altup_correct_args *a);
    nrd_error *(*altup_match)(nrd_stream *s, const nrd_altup_match_args *a);

    /* NULL pointer: not on this device. */
    nrd_error *(*clamp)(nrd_stream *s, const nrd_clamp_args *a);
} nrd_device_ops;

/* First member of every device object. */
struct nrd_device {
    const nrd_device_ops *ops;
};

typedef struct nrd_device_config {
    int32_t device_id;      /* GPU number */
    int32_t n_threads;      /* CPU; 0: as many cores as this process may use, divided by n_shares */
    int32_t share, n_shares; /* CPU: of the processors of this process the share-th of so many parts; 0, 0: all */
    const char *isa;        /* CPU: "" best, or "generic", "avx2", "avx512", "avx512vnni", "amx" */
    const char *timing_cache; /* file that keeps the choice of kernels from run to run; or NULL */
} nrd_device_config;

/* How a plug-in makes and reads errors: functions of the program that opens it. */
typedef struct nrd_device_host {
    nrd_error *(*error_new)(int code, const char *message); /* code: an nrd_error_code */
    nrd_error *(*error_no_memory)(void);
    int (*error_code)(const nrd_error *err);
    const char *(*error_message)(const nrd_error *err); /* borrows */
    void (*error_free)(nrd_error *err);
} nrd_device_host;

/* What a plug-in exports. The first is a string, looked at before anything is called; the second opens
 * a device or says in one line why not. `host` stays as long as the process. */
#define NRD_DEVICE_ID_SYMBOL "nrd_device_plugin_id"
#define NRD_DEVICE_PLUGIN_SYMBOL "nrd_device_plugin"
typedef nrd_error *(*nrd_device_plugin_fn)(const nrd_device_host *host,
                                           const nrd_device_config *config, nrd_device **out);

/* Uniform number in [0, 1) of draw `draw` under `seed`: Philox4x32-10 (Salmon et al., SC 2011) with
 * key = seed and counter = draw; the top 24 bits of the first output word. Pure integer arithmetic,
 * so that every device draws the same. */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline float nrd_sample_uniform(uint64_t seed, uint64_t draw)
{
    uint32_t c0 = (uint32_t)draw, c1 = (uint32_t)(draw >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c0 >> 8) * (1.0f / 16777216.0f);
}

#ifdef __cplusplus
}
#endif
#endif
