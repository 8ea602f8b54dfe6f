/* SPDX-License-Identifier: Apache-2.0
 * latent_attention.cuh - what the kernels of latent attention share: their parameters, and which rows a token sees. */
#ifndef NRD_OPS_LATENT_ATTENTION_CUH
#define NRD_OPS_LATENT_ATTENTION_CUH

#include "device/ops/latent.cuh"

enum {
    HEADS = 16, /* of a token, in a block */
    MAX_PARTS = 64,
};

struct latent_params {
    const void *q;
    float *latent;  /* [tokens of the chunk, n_heads, rank]: K_h^T q; becomes the sums of rows */
    float *parts;   /* [tiles, n_parts, HEADS, rank + 2]: sums, maximum, sum of exponentials; or NULL */
    const void *cache;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    const uint32_t *tree;
    nrd_dtype act, kv;
    int32_t tree_words, table_stride, first, n_heads, head_tiles, nope, rope, rank, bt, n_blocks, window, n_sink, keys, n_parts;
    int64_t block_elems;
    float scale;
    bool vectors; /* rows begin at multiples of 16 bytes and are whole groups of 8 */
};

static __device__ __forceinline__ bool sees(const latent_params &a, int seq, int t, int pos)
{
    int at = pos;

    if (a.tree) {
        const int q_len = a.q_start[seq + 1] - a.q_start[seq], j = pos - (a.ctx_len[seq] - q_len);
        if (j >= 0) { /* the bits decide among this step's tokens */
            if (j >= q_len || j / 32 >= a.tree_words || !(a.tree[(int64_t)t * a.tree_words + j / 32] >> (j % 32) & 1u)) {
                return false;
            }
            at = a.positions[a.q_start[seq] + j];
            return a.window <= 0 || at > a.positions[t] - a.window || at < a.n_sink;
        }
    }
    return pos <= a.positions[t] && (a.window <= 0 || at > a.positions[t] - a.window || at < a.n_sink);
}

/* Attention on the matrix unit (latent_matrix.cu): whether this GPU, these types and these sizes are for it; and that of
 * `tiles` blocks of 16 heads, each in p.n_parts. */
bool nrd_cuda_latent_matrix_fits(const nrd_stream *s, const latent_params &p);
nrd_error *nrd_cuda_latent_matrix(nrd_stream *s, const latent_params &p, int tiles);

#endif
