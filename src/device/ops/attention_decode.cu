/* SPDX-License-Identifier: Apache-2.0
 * attention_decode: softmax(scale q K^T + mask) V for sequences with few new tokens, over paged KV.
 * Shapes    rows = new tokens x heads of a KV head, in groups of at most 16; head_dim 64, 128, 256; cache bf16, fp16, F8, int8;
 *           block_tokens a power of two >= 16. Ragged contexts, window, first tokens, sink logits, softcap, token trees.
 * Work      one block (4 warps, 1 where sequences are many) a (sequence, group, KV head, split); a warp takes tiles of 32 (16-bit) or 64
 *           (8-bit) tokens, of which it reads what is in the context, with an online softmax of its own, straight from memory into the
 *           operands of mma.sync: a lane's 16 bytes are 8 or 16 elements along the reduction dimension, and the
 *           other operand is arranged to match (any order of a sum is right). P changes lanes by a
 *           4 x 4 transposition inside each quad. Where eight rows are enough the products are turned
 *           round (S^T = K Q^T, O^T = V^T P^T), so that tokens and dimensions fill the 16 and rows the
 *           8 of an instruction. Splits are merged by the last block to arrive, in order.
 *           Up to eight sequences of one token come out as F8 at once: the KV heads of a sequence are a
 *           cluster and share the row's largest magnitude.
 * Bound     memory: context x 2 x n_kv_heads x head_dim x size bytes a sequence.
 * Measured  NVIDIA H200, 256 sequences x 1,024 tokens, 32 heads over 8 x 128: bf16 4.44 TB/s (100 % of
 *           read speed), F8 4.24 (96 %); 256 x 128..256: 87 and 71 % (2026-11-30, make gpu-bench OP=attention).
 * Tried     three blocks an SM with values in two batches: registers spill, 77 % instead of 86 %; four
 *           warps a pair for short contexts: 45 % instead of 67 %. Eight rows in the 16 of an
 *           instruction, values' products one dimension after the other: bf16 92 %, F8 87 %.
 *           1,024 sequences x 96..192 tokens, 3 KV heads of 64, bf16 (35.3 us, 73 %): 16 warps an SM where it stays at two rounds
 *           36.5 (34.1 without what is behind the end); warps that stay and bring two or three tiles ahead to
 *           shared memory by cp.async of 16 bytes 63 to 67, 2.0 TB/s whatever the depth or number of warps.
 * Sources   FlashAttention-2 (Dao 2023), Flash-Decoding (Dao et al. 2023).
 */
#include "device/ops/attention_decode.cuh"
#include "device/ops/attention_decode_warp.cuh"

#include <algorithm>
#include <limits.h>

/* Rows of a sequence that are cut into groups, each of which reads its keys again (from the L2 cache): a draft's, and a
 * tree's, which no other fast kernel knows. */
enum { DRAFT_ROWS = 128, DRAFT_STEP_ROWS = 4096, TREE_ROWS = 1024 };

/* Blocks of four warps an SM: what the registers allow (65536 / (128 x 128, 168 or 255)). */
static constexpr __host__ __device__ int decode_resident(int hd, int rows, bool lean)
{
    return lean ? 4 : hd > 64 || rows == 16 ? 2 : 3;
}

/* A finished row of a.out, written by other blocks, as F8. */
template <typename T> static __device__ void quant_row(const decode_params &p, int64_t row, float *red)
{
    const int cols = p.a.n_heads * p.a.g.hd;
    const T *x = (const T *)p.a.out + row * cols;
    float v[8], amax = 0.0f;

    for (int i = (int)threadIdx.x * 8; i < cols; i += (int)blockDim.x * 8) {
        raw_to_f<T>(__ldcg((const uint4 *)(x + i)), v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            amax = fmaxf(amax, fabsf(v[k]));
        }
    }
    const float scale = f8_scale(block_reduce<op_max>(amax, red)), q = 1.0f / scale;
    if (threadIdx.x == 0) {
        p.q_scale[row] = scale;
    }
    for (int i = (int)threadIdx.x * 8; i < cols; i += (int)blockDim.x * 8) {
        raw_to_f<T>(__ldcg((const uint4 *)(x + i)), v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] *= q;
        }
        store8(p.q_out + row * cols + i, v);
    }
}

/* WARPS 4 share a (sequence, KV head); where there are plenty of those each has 1, and nothing to merge. LEAN: all of it, never split.
 * QUANT: the result is F8; the KV heads of a sequence of one token are a cluster. */
template <typename T, typename C, int HD, int ROWS, bool WHOLE, int WARPS, bool QUANT, bool LEAN>
static __global__ void __launch_bounds__(WARPS * 32, decode_resident(HD, ROWS, LEAN) * 4 / WARPS)
    attention_decode_kernel(const decode_params p)
{
    typedef decode_warp<T, C, HD, ROWS, WHOLE, WARPS, LEAN> warp_of;
    __shared__ typename warp_of::shared sh;
    __shared__ float2 slots[QUANT ? MAX_CLUSTER * WARPS : 1];
    __shared__ uint64_t bar;
    warp_of w(p, sh);

    if (!w.find_work()) {
        pdl_wait();
        return;
    }
    w.find_q();
    if constexpr (QUANT) {
        share_begin(&bar, p.a.g.n_kv * WARPS, p.a.g.n_kv);
    }
    /* everything above was there before; keys and queries are the kernel's in front of us */
    pdl_wait();
    pdl_go();
    w.load_first();
    w.clear_sums();
    for (int idx = w.begin + w.warp; idx < w.end; idx += WARPS) {
        if constexpr (LEAN) {
            w.add_tile_lean(idx);
        } else {
            w.add_tile(idx);
        }
    }
    w.share_sums();
    if (LEAN || w.used == 1) {
        if constexpr (QUANT) {
            w.store_f8(slots, &bar);
        } else {
            w.store();
        }
        return;
    }
    w.put_part();
    if (!w.is_last(&p.counters[(int64_t)blockIdx.z * p.a.g.n_kv + w.kvh], w.used)) {
        return;
    }
    w.merge_parts();
    if constexpr (QUANT) {
        if (w.is_last(&p.counters[(int64_t)p.a.n_seqs * p.a.g.n_kv + w.seq], p.a.g.n_kv)) {
            quant_row<T>(p, w.q0, sh.red);
        }
    }
}

template <typename T, typename C, int HD, int ROWS, int WARPS>
static nrd_error *decode_launch(nrd_stream *s, decode_params p, int max_ctx)
{
    constexpr int TILE = 4 * 16 / (int)sizeof(C);
    const int64_t pairs = (int64_t)p.a.n_seqs * p.n_groups * p.a.g.n_kv;
    const int64_t resident = (int64_t)s->dev->n_sm * decode_resident(HD, ROWS, false);
    const int64_t fit = (int64_t)(SPLIT_WS_BYTES / (sizeof(float) * ROWS * (HD + 2))) / pairs;
    int64_t splits;

    /* Starting and merging cost about what four tiles a warp do. Few pairs: one round of blocks, as
     * long as a warp has a tile. Many: only long contexts are cut. */
    if (pairs < resident) {
        splits = resident / pairs;
        p.min_tiles = WARPS;
        p.alone = (p.q_out ? 3 : 2) * WARPS;
    } else {
        p.min_tiles = 64;
        splits = (max_ctx + TILE * p.min_tiles - 1) / (TILE * p.min_tiles);
    }
    splits = std::min(splits, (int64_t)(max_ctx + TILE * p.min_tiles - 1) / (TILE * p.min_tiles));
    splits = std::max<int64_t>(1, std::min(std::min<int64_t>(splits, MAX_SPLITS), fit));
    p.n_splits = (int)splits;
    const dim3 grid((unsigned)splits, (unsigned)p.a.g.n_kv, (unsigned)(p.a.n_seqs * p.n_groups));
    if constexpr (ROWS == 8 && WARPS == 4 && HD <= 128) {
        if (p.q_out) {
            return launch_cluster(s, p.a.g.bt >= TILE
                                         ? attention_decode_kernel<T, C, HD, ROWS, true, WARPS, true, false>
                                         : attention_decode_kernel<T, C, HD, ROWS, false, WARPS, true, false>,
                                  dim3(1, (unsigned)p.a.g.n_kv), grid, WARPS * 32, 0, p);
        }
    }
    return launch(s, p.a.g.bt >= TILE ? attention_decode_kernel<T, C, HD, ROWS, true, WARPS, false, false>
                                      : attention_decode_kernel<T, C, HD, ROWS, false, WARPS, false, false>,
                  grid, dim3(WARPS * 32), 0, p);
}

template <typename T, typename C, int HD>
static nrd_error *decode_lean(nrd_stream *s, decode_params p)
{
    p.n_splits = 1;
    p.min_tiles = 1;
    p.alone = INT_MAX;
    return launch(s, attention_decode_kernel<T, C, HD, 8, true, 1, false, true>,
                  dim3(1, (unsigned)p.a.g.n_kv, (unsigned)p.a.n_seqs), dim3(32), 0, p);
}

template <typename T, typename C, int HD>
static nrd_error *decode_rows(nrd_stream *s, const decode_params &p, int max_ctx, bool small, bool plain)
{
    const int64_t pairs = (int64_t)p.a.n_seqs * p.a.g.n_kv, n_sm = s->dev->n_sm;
    const int64_t slots = n_sm * 4 * decode_resident(HD, 8, false), lean_slots = n_sm * 4 * decode_resident(HD, 8, true);
    constexpr int TILE = 4 * 16 / (int)sizeof(C);
    const bool is_short = max_ctx <= 16 * TILE;

    /* Sixteen warps an SM where that makes one round of what would be two, and where a warp's start and end count most; with 64
     * dimensions, where the others are twelve, only the former (1,024 x 96..192 tokens bf16: 36.5 us, 34.1). */
    if constexpr (HD <= 128) {
        const bool pays = pairs > slots && (pairs <= lean_slots ? is_short : HD == 128 && max_ctx <= 256);
        if (small && plain && !p.q_out && p.a.g.bt >= TILE && pays) {
            return decode_lean<T, C, HD>(s, p);
        }
    }
    /* Eight warps an SM and nearly two rounds of them; not where ragged long contexts would make the last round uneven (512 x
     * 512..1,024 tokens bf16: 383 us, with four warps a pair 368). With other sizes than 128 not measured below 36 tiles. */
    const bool single = pairs >= n_sm * 12 && (HD == 128 ? is_short : max_ctx <= 36 * TILE);
    if (small) {
        return single ? decode_launch<T, C, HD, 8, 1>(s, p, max_ctx)
                      : decode_launch<T, C, HD, 8, 4>(s, p, max_ctx);
    }
    return decode_launch<T, C, HD, 16, 4>(s, p, max_ctx);
}

template <typename T, typename C>
static nrd_error *decode_dim(nrd_stream *s, const decode_params &p, int max_ctx, bool small, bool plain, bool *done)
{
    *done = true;
    switch (p.a.g.hd) {
    case 64:
        return decode_rows<T, C, 64>(s, p, max_ctx, small, plain);
    case 128:
        return decode_rows<T, C, 128>(s, p, max_ctx, small, plain);
    case 256:
        return decode_rows<T, C, 256>(s, p, max_ctx, small, plain);
    default:
        *done = false;
        return NULL;
    }
}

int nrd_cuda_attention_decode_rows(const nrd_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int rows = b->max_q_len * (a->n_heads / a->kv.n_kv_heads);
    const bool takes = b->tree_mask ? rows <= TREE_ROWS : rows <= DRAFT_ROWS && (int64_t)b->n_seqs * rows <= DRAFT_STEP_ROWS;
    return takes && rows > DECODE_ROWS ? rows : DECODE_ROWS;
}

nrd_error *nrd_cuda_attention_decode(nrd_stream *s, const nrd_attention_args *a, void *out, nrd_dtype o_dtype,
                            int n_single, bool *done, bool *quantized)
{
    const nrd_batch_view *b = a->batch;
    decode_params p = {};

    *done = false;
    if (quantized) {
        *quantized = false;
    }
    p.a = attn_params_of(a, out, o_dtype);
    p.a.n_seqs = n_single > 0 ? n_single : b->n_seqs;
    p.max_rows = n_single > 0 ? DECODE_ROWS : nrd_cuda_attention_decode_rows(a);
    p.n_groups = (p.max_rows + DECODE_ROWS - 1) / DECODE_ROWS;
    const int bt = a->kv.block_tokens;
    if (a->act_dtype == NRD_DTYPE_F32 || bt < 16 || (bt & (bt - 1)) != 0 || p.a.n_seqs * p.n_groups > 65535 ||
        (int64_t)p.a.n_seqs * p.n_groups * a->kv.n_kv_heads > N_COUNTERS || !aligned16(a->kv.base) ||
        !aligned16(a->q) || p.a.q_stride % 8 != 0) {
        return NULL;
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    p.bt_shift = __builtin_ctz((unsigned)bt);
    p.ws = (float *)s->split_ws;
    p.counters = s->counters;
    /* a mixed step may have sequences of up to 16 rows */
    const bool eight = !b->tree_mask && (n_single > 0 ? 1 : b->max_q_len) * p.a.group <= 8;
    const bool plain = !b->tree_mask && (n_single > 0 || b->max_q_len == 1) && a->window <= 0 && a->softcap <= 0.0f;
    /* few tokens: the kernel writes F8 itself */
    if (quantized && a->out_dtype == NRD_DTYPE_F8_E4M3 && o_dtype == a->act_dtype && s->dev->hopper &&
        b->max_q_len == 1 && p.a.n_seqs <= FEW_ROWS && eight && a->kv.n_kv_heads <= MAX_CLUSTER &&
        (a->kv.head_dim == 64 || a->kv.head_dim == 128) && kv_elem_bytes(a->kv.dtype) <= 2 &&
        aligned16(a->out)) {
        p.q_out = (f8 *)a->out;
        p.q_scale = a->out_row_scale;
        *quantized = true;
    }
    if (a->act_dtype == NRD_DTYPE_BF16) {
        switch (a->kv.dtype) {
        case NRD_DTYPE_BF16:
            return decode_dim<bf16, bf16>(s, p, b->max_ctx_len, eight, plain, done);
        case NRD_DTYPE_F8_E4M3:
            return decode_dim<bf16, f8>(s, p, b->max_ctx_len, eight, plain, done);
        case NRD_DTYPE_I8:
            return decode_dim<bf16, int8_t>(s, p, b->max_ctx_len, eight, plain, done);
        default:
            return NULL;
        }
    }
    switch (a->kv.dtype) {
    case NRD_DTYPE_F16:
        return decode_dim<f16, f16>(s, p, b->max_ctx_len, eight, plain, done);
    case NRD_DTYPE_F8_E4M3:
        return decode_dim<f16, f8>(s, p, b->max_ctx_len, eight, plain, done);
    case NRD_DTYPE_I8:
        return decode_dim<f16, int8_t>(s, p, b->max_ctx_len, eight, plain, done);
    default:
        return NULL;
    }
}
