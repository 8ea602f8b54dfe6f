/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill_hopper: the prefill kernel's work on Hopper, where copies, products and softmax
 * overlap.
 * Shapes    rows = new tokens x heads of a KV head; head_dim 64, 96 or 128; cache bf16, fp16 or F8 (turned
 *           into fp16 on its way to the ring) of the activations' type; blocks of 64 tokens.
 *           Ragged batches, window, sinks, softcap.
 * Work      128 rows of a (sequence, KV head) are a piece of work, cut as attention_prefill.cu cuts them.
 *           One block a multiprocessor takes pieces, a sequence's longest first, until none is left. Three
 *           warpgroups: one (attention_prefill_hopper.cuh) finds the pieces and brings their rows of Q and
 *           their tiles of 64 tokens (a block of the cache is the tile: two bulk copies) into a ring of
 *           four, ahead into the next piece; two compute 64 rows each. While a computing warpgroup's
 *           softmax of tile i runs, its products for O of tile i - 1 and S of tile i + 1 are under way.
 * Bound     tensor cores: 4 * rows * context / 2 * head_dim operations; the card's power from 8,192
 *           tokens on (690 W, 1.5 to 1.65 GHz).
 * Measured  NVIDIA H200, one sequence, 32 heads over 8 x 128, causal: 20,000 tokens bf16 593, F8 cache 537
 *           TFLOP/s; 8,192: 577 and 524; 2,048: 463 and 402 (2026-11-22, make gpu-bench).
 * Tried     S of tile i + 1 only behind the softmax of tile i: 523 and 495 TFLOP/s at 20,000 tokens. F8
 *           one tile ahead in registers: 524, and 20 % slower beside kernels that load memory fully. O's
 *           last product beside the next piece's first softmax: the compiler serializes or spills.
 * Sources   FlashAttention-3 (Shah et al. 2024).
 */
#include "device/ops/attention_prefill_hopper.cuh"

/* A computing warpgroup: 64 rows of the piece. */
template <typename T, bool BF, int HD> struct hopper_rows {
    static constexpr int ND = HD / 8, NK = HD / 16, NJ = H_TILE / 8;
    static constexpr float LOG2E = 1.4426950408889634f;
    /* Weights are at most 2^SLACK: o is multiplied anew only where a row's maximum has grown by more. */
    static constexpr float SLACK = 8.0f;
    using sizes = hopper_sizes<HD>;

    const attn_params &a;
    hopper_front *front;
    const uint32_t base;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first_row = (int)(threadIdx.x / 128 - 1) * 64 + (int)(threadIdx.x / 32 % 4) * 16;
    const float s_mul;
    int cur = 0, next_n = 0; /* the piece; pieces whose Q was taken */
    int at = 0;          /* tiles before this one */
    int i, n_tiles, next_tiles;
    uint32_t q[NK][4], p[NJ][2];
    float s[2][NJ * 4], o[ND * 4], top[2], sum[2];

    __device__ __forceinline__ hopper_rows(const attn_params &params, char *smem)
        : a(params), front((hopper_front *)smem), base(smem_u32(smem)),
          s_mul(params.scale * params.k_scale *
                (params.softcap > 0.0f ? fast_div(1.0f, params.softcap) : LOG2E))
    {
    }

    /* The next piece's rows of Q; false: there is none. */
    __device__ __forceinline__ bool take_q()
    {
        const int slot = next_n % H_PIECES;
        mbar_wait(smem_u32(front->found + slot), (uint32_t)(next_n / H_PIECES) & 1);
        next_tiles = front->work[slot].n_tiles;
        if (next_tiles == 0) {
            return false;
        }
        mbar_wait(smem_u32(&front->q_full), (uint32_t)next_n & 1);
        const uint32_t row = base + H_FRONT +
                             (uint32_t)((first_row + (lane & 15)) * sizes::Q_PITCH + (lane >> 4) * 16);
#pragma unroll
        for (int k = 0; k < NK; k++) {
            ldmatrix4(q[k], row + k * 32);
            if constexpr (std::is_same<T, bf16>::value != BF) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    T e[2];
                    memcpy(e, &q[k][x], sizeof e);
                    q[k][x] = pack2<BF>(to_f(e[0]), to_f(e[1]));
                }
            }
        }
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(smem_u32(&front->q_empty));
        }
        next_n++;
        return true;
    }

    __device__ __forceinline__ void begin_piece()
    {
        i = 0;
        n_tiles = next_tiles;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] = 0.0f;
            top[h] = -INFINITY;
        }
#pragma unroll
        for (int x = 0; x < ND * 4; x++) {
            o[x] = 0.0f;
        }
    }

    __device__ __forceinline__ uint32_t stage(int tile) const
    {
        return base + sizes::RING + (uint32_t)(tile % H_STAGES) * 2 * sizes::TILE;
    }

    template <int B> __device__ __forceinline__ void start_s(int tile)
    {
        mbar_wait(smem_u32(front->full + tile % H_STAGES), (uint32_t)(tile / H_STAGES) & 1);
        const uint64_t dk = desc_plain(stage(tile), H_TILE * 16, 128);
        wg_fence();
        wgmma_rs_new<BF>(s[B], q[0], dk);
#pragma unroll
        for (int k = 1; k < NK; k++) { /* two units of 8 dimensions a step */
            wgmma_rs<BF, H_TILE>(s[B], q[k][0], q[k][1], q[k][2], q[k][3], dk + k * (2 * H_TILE * 16 >> 4));
        }
        wg_commit();
    }

    __device__ __forceinline__ void start_o(int tile)
    {
        const uint64_t dv = desc_plain(stage(tile) + sizes::TILE, HD * 16, 128);
        wg_hold<ND * 4>(o);
        wg_fence();
#pragma unroll
        for (int j = 0; j < NJ; j += 2) { /* two units of 8 tokens a step */
            wgmma_rs<BF, HD>(o, p[j][0], p[j][1], p[j + 1][0], p[j + 1][1],
                             dv + j * (HD * 16 >> 4));
        }
        wg_commit();
    }

    /* Within 2^-22 of tanh, which is what counts in an exponent. */
    static __device__ __forceinline__ float tanh_f(float x)
    {
        return 1.0f - 2.0f * fast_div(1.0f, 1.0f + fast_exp2(2.0f * LOG2E * x));
    }
    /* The tile's lower left end of what the rows see. */
    __device__ __forceinline__ void mask(float *x, int tok0) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const hopper_row see = front->rows[cur % H_PIECES][first_row + g + 8 * h];
#pragma unroll
            for (int j = 0; j < NJ; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int tok = tok0 + 8 * j + 2 * t + c;
                    const bool seen = tok <= see.upto && (tok > see.after || tok < a.n_sink);
                    x[4 * j + 2 * h + c] = seen ? x[4 * j + 2 * h + c] : -INFINITY;
                }
            }
        }
    }

    /* x becomes weights; what o must be multiplied by goes to fix. True: that is not 1 somewhere in the
     * warp. */
    __device__ __forceinline__ bool softmax(float *x, float *fix)
    {
        const hopper_work &w = front->work[cur % H_PIECES];
        const int tok0 = tile_of(w, i) * H_TILE;
        float mul = s_mul, high[2];
        bool grown = false;

        if (a.softcap > 0.0f) {
            mul = 1.0f;
#pragma unroll
            for (int c = 0; c < NJ * 4; c++) {
                x[c] = a.softcap * LOG2E * tanh_f(x[c] * s_mul);
            }
        }
        if (tok0 + H_TILE > w.first_pos + 1 || tok0 <= last_unseen(a, w.last_pos)) {
            mask(x, tok0);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            high[h] = fmaxf(x[2 * h], x[2 * h + 1]);
#pragma unroll
            for (int j = 1; j < NJ; j++) {
                high[h] = fmaxf(high[h], fmaxf(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]));
            }
            high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 1));
            high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 2)) * mul;
            grown = grown || high[h] > top[h] + SLACK;
        }
        grown = __any_sync(0xffffffffu, grown);
        if (grown) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float now = fmaxf(top[h], high[h]);
                fix[h] = now == -INFINITY ? 1.0f : fast_exp2(top[h] - now);
                sum[h] *= fix[h];
                top[h] = now;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float less = top[h] == -INFINITY ? 0.0f : -top[h];
            float two[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                const float e0 = fast_exp2(fmaf(x[4 * j + 2 * h], mul, less));
                const float e1 = fast_exp2(fmaf(x[4 * j + 2 * h + 1], mul, less));
                two[0] += e0;
                two[1] += e1;
                x[4 * j + 2 * h] = e0;
                x[4 * j + 2 * h + 1] = e1;
            }
            sum[h] += two[0] + two[1];
        }
        return grown;
    }

    __device__ __forceinline__ void release(int tile) const
    {
        if (threadIdx.x % 128 == 0) {
            mbar_arrive(smem_u32(front->empty + tile % H_STAGES));
        }
    }

    __device__ __forceinline__ void store_rows()
    {
        const hopper_work &w = front->work[cur % H_PIECES];
        const int n_rows = w.n_rows, row0 = w.row0, q0 = w.q0, head0 = w.kvh * a.group;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
            const int r = first_row + g + 8 * h;
            if (r < n_rows) {
                const int64_t tok = q0 + (row0 + r) / a.group, head = head0 + (row0 + r) % a.group;
                const float inv = sum[h] > 0.0f ? fast_div(a.v_scale, with_sink<true>(a, (int)head, top[h], sum[h])) : 0.0f;
                store_row(h, (tok * a.n_heads + head) * HD + 2 * t, inv);
            }
        }
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(smem_u32(front->taken + cur % H_PIECES));
        }
    }
    __device__ __forceinline__ void store_row(int h, int64_t to, float inv) const
    {
        if (a.o_dtype == NRD_DTYPE_F32) {
#pragma unroll
            for (int d = 0; d < ND; d++) {
                *(float2 *)((float *)a.out + to + 8 * d) =
                    make_float2(o[4 * d + 2 * h] * inv, o[4 * d + 2 * h + 1] * inv);
            }
            return;
        }
        const bool bf = a.o_dtype == NRD_DTYPE_BF16;
#pragma unroll
        for (int d = 0; d < ND; d++) {
            const float x = o[4 * d + 2 * h] * inv, y = o[4 * d + 2 * h + 1] * inv;
            *(uint32_t *)((uint16_t *)a.out + to + 8 * d) = bf ? pack2<true>(x, y) : pack2<false>(x, y);
        }
    }

    /* s[B] becomes the weights p beside the products that are under way: O of the tile before (not for a
     * piece's FIRST), S of the next. */
    template <int B, bool FIRST> __device__ __forceinline__ void weigh()
    {
        float fix[2];
        const bool grown = softmax(s[B], fix);

        wg_wait<0>();
        wg_hold<NJ * 4>(s[B ^ 1]);
        if (!FIRST) {
            wg_hold<ND * 4>(o);
            release(at - 1);
        }
        if (!FIRST && grown) {
#pragma unroll
            for (int x = 0; x < ND * 4; x++) {
                o[x] *= fix[x / 2 % 2];
            }
        }
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            p[j][0] = pack2<BF>(s[B][4 * j], s[B][4 * j + 1]);
            p[j][1] = pack2<BF>(s[B][4 * j + 2], s[B][4 * j + 3]);
        }
        i++;
        at++;
    }

    /* A tile in the middle of a piece. Nothing is under way when it begins or ends: the compiler keeps
     * products asynchronous only where it sees that. */
    template <int B> __device__ __forceinline__ void step()
    {
        start_o(at - 1);
        start_s<B ^ 1>(at + 1);
        weigh<B, false>();
    }
    template <int B> __device__ __forceinline__ void last_step()
    {
        start_o(at - 1);
        weigh<B, false>();
    }

    /* The tiles of a piece, whose first S is in s[0]; its last O is still to be started. */
    __device__ __forceinline__ void piece()
    {
        begin_piece();
        start_s<1>(n_tiles > 1 ? at + 1 : at); /* of a piece of one tile nobody needs it */
        weigh<0, true>();
        while (i + 2 < n_tiles) {
            step<1>();
            step<0>();
        }
        if (i + 1 < n_tiles) {
            step<1>();
            last_step<0>();
        } else if (i < n_tiles) {
            last_step<1>();
        }
    }

    __device__ __forceinline__ void run()
    {
        bool more = take_q();

        if (!more) {
            return;
        }
        start_s<0>(0);
        wg_wait<0>();
        wg_hold<NJ * 4>(s[0]);
        for (; more; cur++) {
            piece();
            more = take_q();
            start_o(at - 1);
            start_s<0>(more ? at : at - 1); /* at the end of all nobody needs it */
            wg_wait<0>();
            wg_hold<ND * 4>(o);
            wg_hold<NJ * 4>(s[0]);
            release(at - 1);
            store_rows();
        }
    }
};

template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(H_THREADS, 1)
    attention_prefill_hopper_kernel(attn_params a, int s0, int n_slots, int *counters)
{
#ifdef NRD_SM90A
    constexpr int REGS = sizeof(C) == 1 ? 72 : 40; /* of a thread that brings */
    extern __shared__ __align__(1024) char raw[];
    hopper_front *front = (hopper_front *)raw;

    if (threadIdx.x == 0) {
        for (int i = 0; i < H_STAGES; i++) {
            mbar_init(smem_u32(front->full + i), 1);
            mbar_init(smem_u32(front->empty + i), 2);
        }
        for (int i = 0; i < H_PIECES; i++) {
            mbar_init(smem_u32(front->found + i), 1);
            mbar_init(smem_u32(front->taken + i), H_WARPS);
        }
        mbar_init(smem_u32(&front->q_full), 1);
        mbar_init(smem_u32(&front->q_empty), H_WARPS);
        mbar_init(smem_u32(&front->alone), 1);
        for (int i = 0; i < H_RAW; i++) {
            mbar_init(smem_u32(front->raw + i), 1);
        }
        mbar_fence_init();
    }
    __syncthreads();
    pdl_wait();
    pdl_go();
    if (threadIdx.x < 128) {
        /* with twice the others' 3 x 168, what the launch took */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGS));
        hopper_bringer<T, C, HD>(a, raw).run(s0, n_slots, counters);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((504 - REGS) / 2));
        hopper_rows<T, std::is_same<C, bf16>::value, HD>(a, raw).run();
    }
#else
    (void)a, (void)s0, (void)n_slots, (void)counters;
#endif
}

template <typename T, typename C, int HD>
static nrd_error *hopper_launch(nrd_stream *s, const attn_params &p, int n_tokens, int s0,
                                int n_blocks)
{
    const int slots = (int)((int64_t)(n_tokens - s0) * p.group / H_ROWS) + (p.n_seqs - s0);
    const int64_t pieces = (int64_t)slots * p.g.n_kv;
    const size_t smem = hopper_sizes<HD>::template all<C>();
    NRD_TRY(nrd_cuda_stream_scratch(s)); /* the counters */
    return launch(s, attention_prefill_hopper_kernel<T, C, HD>,
                  dim3((unsigned)(pieces < n_blocks ? pieces : n_blocks)), dim3(H_THREADS), smem, p, s0,
                  slots, s->counters);
}

template <typename T, typename C>
static nrd_error *hopper_dim(nrd_stream *s, const attn_params &p, int n_tokens, int s0, int n_blocks)
{
    return p.g.hd == 64   ? hopper_launch<T, C, 64>(s, p, n_tokens, s0, n_blocks)
           : p.g.hd == 96 ? hopper_launch<T, C, 96>(s, p, n_tokens, s0, n_blocks)
                          : hopper_launch<T, C, 128>(s, p, n_tokens, s0, n_blocks);
}

nrd_error *nrd_cuda_attention_prefill_hopper(nrd_stream *s, const nrd_attention_args *a, void *out,
                                    nrd_dtype o_dtype, int n_single, int n_blocks, bool *done)
{
    const attn_params p = attn_params_of(a, out, o_dtype);
    const int n = a->batch->n_tokens;

    *done = false;
    if (!s->dev->hopper || a->ahead > 0 || a->alibi || a->rel_bias || a->kv.block_tokens != H_TILE || (p.g.hd != 64 && p.g.hd != 96 && p.g.hd != 128) ||
        !aligned16(a->kv.base) || !aligned16(p.q) || p.q_stride % 8 != 0) {
        return NULL;
    }
    n_blocks = n_blocks > 0 ? n_blocks : s->dev->n_sm;
    *done = true;
    if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_BF16) {
        return hopper_dim<bf16, bf16>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        return hopper_dim<bf16, f8>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F16) {
        return hopper_dim<f16, f16>(s, p, n, n_single, n_blocks);
    }
    if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        return hopper_dim<f16, f8>(s, p, n, n_single, n_blocks);
    }
    *done = false;
    return NULL;
}
