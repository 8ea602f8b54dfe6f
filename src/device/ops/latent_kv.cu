/* SPDX-License-Identifier: Apache-2.0
 * latent_kv: rotary embedding of the queries' last parts; norm and rotary embedding of a token's row, into the cache.
 * Shapes    q [n_tokens, n_heads, nope_dim + rope_dim], latent [n_tokens, kv_rank + rope_dim] act dtype; norm f32.
 * Work      a block has a token.
 * Bound     memory.
 */
#include "device/ops/latent.cuh"

enum { THREADS = 256 };

struct latent_kv_params {
    void *q, *cache;
    const void *latent;
    const float *norm, *inv_freq;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    nrd_dtype act, kv;
    int32_t table_stride, n_heads, nope, rope, rank, bt, n_blocks;
    int64_t block_elems;
    float eps, rope_scale;
    bool tree, split_pairs;
};

/* The pair i of x, rotated. */
static __device__ __forceinline__ void rotated(const latent_kv_params &a, const void *x, int64_t at, int i, float c, float s,
                                               int *p, int *q, float *u, float *v)
{
    const int half = a.rope / 2;
    *p = a.split_pairs ? i : 2 * i;
    *q = a.split_pairs ? i + half : 2 * i + 1;
    const float x0 = load_any(a.act, x, at + *p), x1 = load_any(a.act, x, at + *q);
    *u = x0 * c - x1 * s;
    *v = x0 * s + x1 * c;
}

static __global__ void __launch_bounds__(THREADS) latent_kv_kernel(const __grid_constant__ latent_kv_params a)
{
    __shared__ float red[32], cs[NRD_LATENT_MAX_ROPE_DIM / 2], sn[NRD_LATENT_MAX_ROPE_DIM / 2];
    const int t = blockIdx.x, half = a.rope / 2, width = a.nope + a.rope, row = a.rank + a.rope;
    int p, q;
    float u, v;

    pdl_wait();
    pdl_go();
    for (int i = threadIdx.x; i < half; i += THREADS) {
        float s, c;
        sincosf((float)a.positions[t] * a.inv_freq[i], &s, &c);
        cs[i] = c * a.rope_scale;
        sn[i] = s * a.rope_scale;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < a.n_heads * half; k += THREADS) {
        const int i = k % half;
        const int64_t at = ((int64_t)t * a.n_heads + k / half) * width + a.nope;
        rotated(a, a.q, at, i, cs[i], sn[i], &p, &q, &u, &v);
        store_any(a.act, a.q, at + p, u);
        store_any(a.act, a.q, at + q, v);
    }
    const int seq = a.token_seq[t];
    const int slot = a.tree ? a.ctx_len[seq] - a.q_start[seq + 1] + t : a.positions[t];
    const int block = a.block_table[(int64_t)seq * a.table_stride + slot / a.bt];
    if (block < 0 || block >= a.n_blocks) {
        return; /* the whole block of threads */
    }
    const int64_t from = (int64_t)t * row, to = block * a.block_elems + (int64_t)(slot % a.bt) * row;
    float square = 0.0f;
    for (int i = threadIdx.x; i < a.rank; i += THREADS) {
        const float x = load_any(a.act, a.latent, from + i);
        square += x * x;
    }
    const float scale = rsqrtf(block_reduce<op_sum>(square, red) / (float)a.rank + a.eps);
    for (int i = threadIdx.x; i < a.rank; i += THREADS) {
        store_any(a.kv, a.cache, to + i, load_any(a.act, a.latent, from + i) * scale * a.norm[i]);
    }
    for (int i = threadIdx.x; i < half; i += THREADS) {
        rotated(a, a.latent, from + a.rank, i, cs[i], sn[i], &p, &q, &u, &v);
        store_any(a.kv, a.cache, to + a.rank + p, u);
        store_any(a.kv, a.cache, to + a.rank + q, v);
    }
}

nrd_error *nrd_cuda_latent_kv(nrd_stream *s, const nrd_latent_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    const kv_geom g = kv_geom_of(&a->kv);

    NRD_TRY(latent_sizes_check("latent_kv", &a->kv, a->n_heads, a->nope_dim, a->rope_dim, 1));
    if (!is_act_dtype(a->act_dtype) || !a->norm || a->norm->dtype != NRD_DTYPE_F32 || !a->inv_freq ||
        (a->rope != NRD_ROPE_NEOX && a->rope != NRD_ROPE_INTERLEAVED)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: latent_kv on dtype %d, rope %d", (int)a->act_dtype, (int)a->rope);
    }
    if (b->n_tokens <= 0) {
        return NULL;
    }
    latent_kv_params p = {};
    p.q = a->q;
    p.cache = a->kv.base;
    p.latent = a->latent;
    p.norm = (const float *)a->norm->data;
    p.inv_freq = a->inv_freq;
    p.positions = b->positions;
    p.token_seq = b->token_seq;
    p.q_start = b->q_start;
    p.ctx_len = b->ctx_len;
    p.block_table = b->block_table;
    p.act = a->act_dtype;
    p.kv = a->kv.dtype;
    p.table_stride = b->block_table_stride;
    p.n_heads = a->n_heads;
    p.nope = a->nope_dim;
    p.rope = a->rope_dim;
    p.rank = a->kv.head_dim - a->rope_dim;
    p.bt = a->kv.block_tokens;
    p.n_blocks = a->kv.n_blocks;
    p.block_elems = g.block_elems;
    p.eps = a->norm_eps;
    p.rope_scale = a->rope_scale;
    p.tree = b->tree_mask != NULL;
    p.split_pairs = a->rope == NRD_ROPE_NEOX;
    return launch(s, latent_kv_kernel, dim3((unsigned)b->n_tokens), dim3(THREADS), 0, p);
}
