/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/attention.h - what reads and writes the KV cache: rotary embedding, attention, moves.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_ATTENTION_H
#define NEREID_DEVICE_ATTENTION_H

#include "nereid/device/core.h"

typedef enum {
    NRD_ROPE_NONE = 0,
    NRD_ROPE_NEOX = 1,        /* pairs (i, i + rotary_dim/2) */
    NRD_ROPE_INTERLEAVED = 2, /* pairs (2i, 2i+1) */
} nrd_rope_kind;

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
    bool center_norm;                /* a head's mean is taken off first: layer norms */
    const nrd_weight *q_norm_bias, *k_norm_bias; /* with center_norm: as long as the norms' weights, added behind them (Persimmon);
                                      * or NULL */
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

/* What rope_kv has put into the cache for the tokens of a batch, as attention reads it; for calibration, it is not fast. */
typedef struct nrd_kv_rows_args {
    const nrd_batch_view *batch; /* host struct, copied */
    nrd_kv_layer kv;             /* with heads */
    float *out;                  /* [n_tokens, 2 n_kv_heads * head_dim]: keys, then values; 0 where the table has no block */
} nrd_kv_rows_args;

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
 * ahead > 0, only with NRD_FEATURE_ENCODER and without a tree: an encoder's tokens also see those that follow, as far as
 * they are in the cache. */
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
    const float *alibi;              /* [n_heads] or NULL: slope * |position of the key - of the query| is taken off
                                      * (Press et al., 2022), on both sides alike; only with NRD_FEATURE_ALIBI */
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

#endif
