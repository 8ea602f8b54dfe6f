/* SPDX-License-Identifier: Apache-2.0
 * copy_blocks, move_tokens, kv_rows, counts: whole KV blocks from pool to pool; single tokens within a pool; a batch's
 * tokens out of one; a slot's row of token counts.
 * Work      copy_blocks: 16-byte copies, 64 pairs a launch in the kernel's parameters (the pairs are
 *           host memory and copied at the call, so a graph may hold them); move_tokens: a thread has an element of
 *           a token and goes through the pairs in their order, since one may read what another wrote; kv_rows: a block a token; counts: one
 *           block, atomics on 16-bit halves.
 * Bound     memory.
 */
#include "device/cuda/kv_layout.cuh"
#include "device/ops/common.cuh"

enum { PAIRS_A_LAUNCH = 64 };

struct copy_params {
    const char *src;
    char *dst;
    int64_t bytes;
    int32_t pairs[PAIRS_A_LAUNCH][2];
};

static __global__ void copy_blocks_kernel(const __grid_constant__ copy_params a)
{
    pdl_wait();
    pdl_go();
    const uint4 *src = (const uint4 *)(a.src + a.pairs[blockIdx.y][0] * a.bytes);
    uint4 *dst = (uint4 *)(a.dst + a.pairs[blockIdx.y][1] * a.bytes);
    const int64_t n = a.bytes / 16;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        dst[i] = src[i];
    }
}

nrd_error *nrd_cuda_copy_blocks(nrd_stream *s, const nrd_copy_blocks_args *a)
{
    for (int32_t l = 0; l < a->n_layers; l++) {
        const kv_geom g = kv_geom_of(&a->src[l]), gd = kv_geom_of(&a->dst[l]);
        copy_params p;
        p.src = (const char *)a->src[l].base;
        p.dst = (char *)a->dst[l].base;
        p.bytes = g.block_elems * kv_elem_bytes(a->src[l].dtype);
        if (p.bytes == 0 || p.bytes != gd.block_elems * kv_elem_bytes(a->dst[l].dtype)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: copy_blocks: layer %d differs in shape", l);
        }
        for (int32_t i = 0; i < a->n_pairs; i += PAIRS_A_LAUNCH) {
            const int32_t n = a->n_pairs - i < PAIRS_A_LAUNCH ? a->n_pairs - i : PAIRS_A_LAUNCH;
            for (int32_t j = 0; j < n; j++) {
                const int32_t from = a->pairs[2 * (i + j)], to = a->pairs[2 * (i + j) + 1];
                if (from < 0 || from >= a->src[l].n_blocks || to < 0 || to >= a->dst[l].n_blocks) {
                    return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: copy_blocks: pair %d -> %d", from,
                                      to);
                }
                p.pairs[j][0] = from;
                p.pairs[j][1] = to;
            }
            const unsigned width = (unsigned)((p.bytes / 16 + 1023) / 1024);
            NRD_TRY(launch(s, copy_blocks_kernel, dim3(width < 64 ? width : 64, (unsigned)n),
                           dim3(256), 0, p));
        }
    }
    return NULL;
}

struct move_params {
    void *base;
    kv_geom g;
    int bytes, n; /* of an element; pairs */
    int32_t pairs[PAIRS_A_LAUNCH][2];
};

static __device__ __forceinline__ int64_t element_at(const kv_geom &g, int head, int tok, int d, bool is_v)
{
    return g.n_kv == 0 ? (int64_t)tok * g.hd + d : is_v ? kv_v_at(g, head, tok, d) : kv_k_at(g, head, tok, d);
}

template <typename T> static __device__ void move_element(const move_params &a, int head, int d, bool is_v)
{
    T *base = (T *)a.base;
    for (int i = 0; i < a.n; i++) {
        const int from = a.pairs[i][0], to = a.pairs[i][1], f = from % a.g.bt, t = to % a.g.bt;
        base[(int64_t)(to / a.g.bt) * a.g.block_elems + element_at(a.g, head, t, d, is_v)] =
            base[(int64_t)(from / a.g.bt) * a.g.block_elems + element_at(a.g, head, f, d, is_v)];
    }
}

static __global__ void move_tokens_kernel(const __grid_constant__ move_params a)
{
    pdl_wait();
    pdl_go();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = (a.g.n_kv == 0 ? 1 : a.g.n_kv) * a.g.hd;
    if (i >= (a.g.n_kv == 0 ? n : 2 * n)) {
        return;
    }
    const int head = i % n / a.g.hd, d = i % a.g.hd;
    if (a.bytes == 1) {
        move_element<uint8_t>(a, head, d, i >= n);
    } else if (a.bytes == 2) {
        move_element<uint16_t>(a, head, d, i >= n);
    } else {
        move_element<uint32_t>(a, head, d, i >= n);
    }
}

nrd_error *nrd_cuda_move_tokens(nrd_stream *s, const nrd_move_tokens_args *a)
{
    for (int32_t l = 0; l < a->n_layers; l++) {
        const nrd_kv_layer *kv = &a->kv[l];
        const int64_t places = (int64_t)kv->n_blocks * kv->block_tokens;
        move_params p;
        p.base = kv->base;
        p.g = kv_geom_of(kv);
        p.bytes = kv_elem_bytes(kv->dtype);
        if (p.bytes == 0 || !kv->base) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: move_tokens: the cache of layer %d has no memory or type", l);
        }
        for (int32_t i = 0; i < a->n_pairs; i += PAIRS_A_LAUNCH) {
            p.n = a->n_pairs - i < PAIRS_A_LAUNCH ? a->n_pairs - i : PAIRS_A_LAUNCH;
            for (int32_t j = 0; j < 2 * p.n; j++) {
                const int32_t place = a->pairs[2 * i + j];
                if (place < 0 || place >= places) {
                    return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: move_tokens: place %d of %lld", place, (long long)places);
                }
                p.pairs[j / 2][j % 2] = place;
            }
            const unsigned n = (p.g.n_kv == 0 ? 1u : 2u * (unsigned)p.g.n_kv) * (unsigned)p.g.hd;
            NRD_TRY(launch(s, move_tokens_kernel, dim3((n + 127) / 128), dim3(128), 0, p));
        }
    }
    return NULL;
}

struct kv_rows_params {
    const void *cache;
    const float *scales;
    kv_geom g;
    int n_blocks, table_stride;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    bool tree;
    float *out;
};

template <typename C> static __global__ void __launch_bounds__(256) kv_rows_kernel(kv_rows_params a)
{
    const int t = blockIdx.x, seq = a.token_seq[t], row = a.g.n_kv * a.g.hd;
    const int slot = a.tree ? a.ctx_len[seq] - a.q_start[seq + 1] + t : a.positions[t];

    pdl_wait();
    pdl_go();
    const int64_t block = a.block_table[(int64_t)seq * a.table_stride + slot / a.g.bt];
    const bool there = block >= 0 && block < a.n_blocks;
    const C *cache = (const C *)a.cache + (there ? block : 0) * a.g.block_elems;
    for (int i = threadIdx.x; i < 2 * row; i += blockDim.x) {
        const int head = i / a.g.hd, d = i % a.g.hd;
        const bool is_v = i >= row;
        const int64_t at = element_at(a.g, is_v ? head - a.g.n_kv : head, slot % a.g.bt, d, is_v);
        a.out[(int64_t)t * 2 * row + i] = there ? to_f(cache[at]) * kv_scale_at(a.scales, head) : 0.0f;
    }
}

nrd_error *nrd_cuda_kv_rows(nrd_stream *s, const nrd_kv_rows_args *a)
{
    const nrd_batch_view *b = a->batch;
    const kv_rows_params p = {a->kv.base, kv_scales_of(&a->kv), kv_geom_of(&a->kv), a->kv.n_blocks, b->block_table_stride, b->positions,
                              b->token_seq, b->q_start, b->ctx_len, b->block_table, b->tree_mask != NULL, a->out};
    const dim3 grid((unsigned)b->n_tokens), block(256);

    if (b->n_tokens == 0) {
        return NULL;
    }
    if (a->kv.n_kv_heads > 0) {
        switch (a->kv.dtype) {
        case NRD_DTYPE_F32: return launch(s, kv_rows_kernel<float>, grid, block, 0, p);
        case NRD_DTYPE_F16: return launch(s, kv_rows_kernel<f16>, grid, block, 0, p);
        case NRD_DTYPE_BF16: return launch(s, kv_rows_kernel<bf16>, grid, block, 0, p);
        case NRD_DTYPE_F8_E4M3: return launch(s, kv_rows_kernel<f8>, grid, block, 0, p);
        case NRD_DTYPE_I8: return launch(s, kv_rows_kernel<int8_t>, grid, block, 0, p);
        default: break;
        }
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: kv_rows of %d heads of dtype %d", a->kv.n_kv_heads, (int)a->kv.dtype);
}

static __global__ void counts_kernel(const int32_t *ids, int n, uint16_t *row, int vocab)
{
    pdl_wait();
    pdl_go();
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        row[i] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int id = ids[i];
        if (id >= 0 && id < vocab) {
            /* 16-bit compare-and-swap: saturates, and never touches the neighbour's row */
            unsigned short old = row[id], seen;
            do {
                seen = old;
                old = seen == 0xffff ? seen
                                     : atomicCAS((unsigned short *)&row[id], seen,
                                                 (unsigned short)(seen + 1));
            } while (old != seen);
        }
    }
}

nrd_error *nrd_cuda_counts(nrd_stream *s, const nrd_counts_args *a)
{
    if (a->vocab <= 0) {
        return NULL;
    }
    return launch(s, counts_kernel, dim3(1), dim3(1024), 0, a->ids, (int)a->n,
                  a->counts + (int64_t)a->slot * a->vocab, (int)a->vocab);
}
