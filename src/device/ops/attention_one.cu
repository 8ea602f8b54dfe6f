/* SPDX-License-Identifier: Apache-2.0
 * attention_one: softmax(scale q K^T) V of one sequence's one new token over a short context, in a paged cache of 16 bits; with rope_kv or
 * behind it.
 * Shapes    head_dim 64, contexts declared up to ONE_CTX tokens, blocks of a multiple of 16 tokens. No window, softcap or sinks.
 * Work      Nothing but latency counts: a block a head, a token's key a thread, then a dimension and every few eight tokens' values a thread. The
 *           keys and values of the first 256 tokens but the newest are there before the wait: those were written by steps before, and every
 *           layer has a kernel (attention itself) that lets the next one start only when all in front of it is done. Behind the wait come
 *           the query and the newest token. No tensor cores: a head's products are 256 x 64.
 * Bound     latency: one load, three meetings of the block.
 * Measured  NVIDIA H200, 2026-11-30, a layer with rope_kv in it beside rope_kv and attention_decode.cu: gpt2-medium's 24.5 us and 27.4,
 *           SmolLM2-135M's 19.8 and 21.1, Llama-3.2-1B's 49.2 and 50.1.
 * Tried     heads of 128: 168 registers leave the next kernel no room beside it; Llama-3.1-8B bf16 4.45 ms a token in place of 4.30.
 */
#include "device/ops/attention.cuh"
#include "device/ops/rope_kv.cuh"

enum { ONE_CTX = 512, ONE_THREADS = 256, ONE_WARPS = ONE_THREADS / 32 };

/* ROPE: the query, and the newest token's key and value, are as a product left them: rope_kv is the block's own, too. */
template <typename T, int HD, bool ROPE> struct one_head {
    static constexpr int UNITS = HD / 8, GROUPS = ONE_THREADS / HD, VALUES = ONE_THREADS / 8 / GROUPS;

    struct shared {
        __align__(16) float p[ONE_CTX];
        float q[HD];
        __align__(16) T key[HD]; /* the newest */
        float top[ONE_WARPS], sum[ONE_WARPS], part[GROUPS][HD];
    };

    const attn_params &a;
    const rope_params &r;
    shared &sh;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, head = blockIdx.x, kvh, ctx;
    const int d = tid % HD, g = tid / HD; /* of values: this thread's dimension, and which of every GROUPS eights of tokens */
    const T *const cache;

    __device__ __forceinline__ one_head(const attn_params &params, const rope_params &rope, shared &s)
        : a(params), r(rope), sh(s), kvh((int)blockIdx.x / params.group), ctx(min(params.ctx_len[0], (int)ONE_CTX)), cache((const T *)params.cache)
    {
    }

    /* The block of a token in the cache; NULL: it has none. */
    __device__ __forceinline__ const T *block_of(int tok) const
    {
        const int block = a.block_table[tok / a.g.bt];
        return block < 0 || (ROPE && block >= r.n_blocks) ? NULL : cache + block * a.g.block_elems;
    }

    __device__ __forceinline__ void load_key(int tok, bool wanted, uint4 *k) const
    {
        const T *at = wanted ? block_of(tok) : NULL;
        at = at ? at + ((int64_t)(kvh * UNITS) * a.g.bt + tok % a.g.bt) * 8 : NULL;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            k[u] = at ? __ldcg((const uint4 *)(at + (int64_t)u * a.g.bt * 8)) : make_uint4(0, 0, 0, 0);
        }
    }

    /* Eight tokens of this thread's dimension, from token 8 eight on. */
    __device__ __forceinline__ uint4 load_value(int eight, bool wanted) const
    {
        const int tok = eight * 8;
        const T *at = wanted ? block_of(tok) : NULL;
        return at ? __ldcg((const uint4 *)(at + (int64_t)a.g.n_kv * a.g.bt * HD + ((int64_t)(kvh * (a.g.bt / 8) + tok % a.g.bt / 8) * HD + d) * 8))
                  : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ float score(const uint4 *k) const
    {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            float x[8], y[8];
            raw_to_f<T>(k[u], x);
            if constexpr (ROPE) {
                load8(sh.q + 8 * u, y);
            } else {
                raw_to_f<T>(__ldcg((const uint4 *)((const T *)a.q + head * HD + 8 * u)), y);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                s = fmaf(x[i], y[i], s);
            }
        }
        return s;
    }

    /* acc += weights times the values of eight tokens; what lies behind the context's end may be anything. */
    __device__ __forceinline__ float add_values(int eight, uint4 raw, float acc) const
    {
        float v[8];
        raw_to_f<T>(raw, v);
        const float4 lo = *(const float4 *)&sh.p[eight * 8], hi = *(const float4 *)&sh.p[eight * 8 + 4];
        const float w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            acc = fmaf(w[i], eight * 8 + i < ctx ? v[i] : 0.0f, acc);
        }
        return acc;
    }

    /* ---- ROPE ---- */

    /* Before the wait: how far this thread's pair is turned, of q's or of the newest key's. */
    __device__ __forceinline__ void angle(float *c, float *s) const
    {
        *c = 1.0f;
        *s = 0.0f;
        if (r.rope != NRD_ROPE_NONE && tid < HD) {
            const int i = tid % (HD / 2);
            sincosf(place_of(r, 0, r.positions[0], i) * r.inv_freq[i], s, c);
            *c *= r.rope_scale;
            *s *= r.rope_scale;
        }
    }

    __device__ __forceinline__ void turn(float c, float s) const
    {
        if (tid < HD) {
            const int i = tid % (HD / 2);
            const uint16_t *x = (const uint16_t *)a.q + (tid < HD / 2 ? head : r.n_heads + kvh) * HD + i;
            const uint16_t raw[2] = {__ldcg(x), __ldcg(x + HD / 2)};
            T e[2];
            memcpy(e, raw, 4);
            const T lo = from_f<T>(to_f(e[0]) * c - to_f(e[1]) * s), hi = from_f<T>(to_f(e[1]) * c + to_f(e[0]) * s);
            if (tid < HD / 2) {
                sh.q[i] = to_f(lo);
                sh.q[i + HD / 2] = to_f(hi);
            } else {
                sh.key[i] = lo;
                sh.key[i + HD / 2] = hi;
            }
        }
        __syncthreads();
    }

    /* The newest token's number of this thread's dimension. */
    __device__ __forceinline__ uint32_t newest_value() const
    {
        return __ldcg((const uint16_t *)a.q + (r.n_heads + a.g.n_kv + kvh) * HD + d);
    }

    __device__ __forceinline__ static uint4 with_number(uint4 v, int at, uint32_t bits)
    {
        uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = at / 2 != i ? w[i] : at % 2 ? (w[i] & 0xffffu) | bits << 16 : (w[i] & 0xffff0000u) | bits;
        }
        return make_uint4(w[0], w[1], w[2], w[3]);
    }

    __device__ __forceinline__ void newest_key(bool is_there, uint4 *k) const
    {
        if constexpr (ROPE) {
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                k[u] = is_there ? *(const uint4 *)&sh.key[8 * u] : make_uint4(0, 0, 0, 0);
            }
        } else {
            load_key(ctx - 1, true, k);
        }
    }

    /* The eight tokens that the newest is among, of which the others are `v` with ROPE. */
    __device__ __forceinline__ uint4 newest_values(uint4 v, int newest, uint32_t bits) const
    {
        return ROPE ? with_number(v, newest % 8, bits) : load_value(newest / 8, true);
    }

    /* By the first head of each KV head. */
    __device__ __forceinline__ void keep(int newest, uint32_t value) const
    {
        T *block = (T *)block_of(newest);
        if (block && head % a.group == 0 && tid < HD) {
            block[kv_k_at(a.g, kvh, newest % a.g.bt, tid)] = sh.key[tid];
            const uint16_t bits = (uint16_t)value;
            memcpy(block + kv_v_at(a.g, kvh, newest % a.g.bt, tid), &bits, 2);
        }
    }

    __device__ __forceinline__ void run()
    {
        constexpr float LOG2E = 1.4426950408889634f;
        const int newest = ctx - 1, eights = (ctx + 7) / 8;
        uint4 key[UNITS], value[VALUES];
        float s[2], top = -INFINITY, sum = 0.0f, acc = 0.0f, cosine, sine;
        uint32_t mine = 0;

        load_key(tid, tid < newest, key);
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const int eight = g + i * GROUPS;
            value[i] = load_value(eight, eight < eights && (ROPE || eight != newest / 8));
        }
        if constexpr (ROPE) {
            angle(&cosine, &sine);
        }
        const bool has_newest = block_of(newest) != NULL;
        pdl_wait();
        pdl_go();
        if constexpr (ROPE) {
            mine = has_newest ? newest_value() : 0;
            turn(cosine, sine);
        }
        if (tid == newest) {
            newest_key(has_newest, key);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const int eight = g + i * GROUPS;
            if (eight == newest / 8) {
                value[i] = newest_values(value[i], newest, mine);
            }
        }
        s[0] = tid < ctx ? score(key) * (a.scale * LOG2E) : -INFINITY;
        s[1] = -INFINITY;
        if (ctx > ONE_THREADS) { /* the same for all */
            load_key(tid + ONE_THREADS, tid + ONE_THREADS < (ROPE ? newest : ctx), key);
            if (ROPE && tid + ONE_THREADS == newest) {
                newest_key(has_newest, key);
            }
            s[1] = tid + ONE_THREADS < ctx ? score(key) * (a.scale * LOG2E) : -INFINITY;
        }
        top = warp_reduce<op_max>(fmaxf(s[0], s[1]));
        if (lane == 0) {
            sh.top[warp] = top;
        }
        __syncthreads();
        top = sh.top[0];
#pragma unroll
        for (int w = 1; w < ONE_WARPS; w++) {
            top = fmaxf(top, sh.top[w]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float p = fast_exp2(s[i] - top); /* behind the end 0 */
            sh.p[tid + i * ONE_THREADS] = p;
            sum += p;
        }
        sum = warp_reduce<op_sum>(sum);
        if (lane == 0) {
            sh.sum[warp] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if (g + i * GROUPS < eights) {
                acc = add_values(g + i * GROUPS, value[i], acc);
            }
        }
        for (int eight = g + VALUES * GROUPS; eight < eights; eight += GROUPS) {
            const uint4 v = load_value(eight, true);
            acc = add_values(eight, ROPE && eight == newest / 8 ? with_number(v, newest % 8, mine) : v, acc);
        }
        sh.part[g][d] = acc;
        __syncthreads();
        if (tid < HD) {
            sum = 0.0f;
            acc = 0.0f;
#pragma unroll
            for (int w = 0; w < ONE_WARPS; w++) {
                sum += sh.sum[w];
            }
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                acc += sh.part[i][tid];
            }
            attn_store(a, (int64_t)head * HD + tid, sum > 0.0f ? fast_div(acc, sum) : 0.0f);
        }
        if constexpr (ROPE) {
            keep(newest, mine);
        }
    }
};

template <typename T, int HD, bool ROPE>
static __global__ void __launch_bounds__(HD == 64 ? ONE_THREADS : 384, HD == 64 ? 2 : 1) attention_one_kernel(const attn_params a, const rope_params r)
{
    __shared__ typename one_head<T, HD, ROPE>::shared sh;
    one_head<T, HD, ROPE> h(a, r, sh);
    h.run();
}

static bool fits(const nrd_stream *s, const nrd_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int hd = a->kv.head_dim;

    return s->dev->hopper && !a->deterministic && b->n_tokens == 1 && b->n_seqs == 1 && !b->tree_mask && b->max_ctx_len <= ONE_CTX && a->window <= 0 &&
           a->softcap <= 0.0f && !a->sink_logits && !a->alibi && !a->rel_bias && a->ahead == 0 &&
           (a->act_dtype == NRD_DTYPE_BF16 || a->act_dtype == NRD_DTYPE_F16) && is_act_dtype(a->out_dtype) && a->kv.dtype == a->act_dtype &&
           hd == 64 && a->kv.n_kv_heads > 0 && a->n_heads % a->kv.n_kv_heads == 0 && a->kv.block_tokens > 0 &&
           a->kv.block_tokens % 16 == 0 && aligned16(a->kv.base) && aligned16(a->q);
}

template <bool ROPE> static nrd_error *one_launch(nrd_stream *s, const nrd_attention_args *a, const rope_params &r)
{
    const attn_params p = attn_params_of(a, a->out, a->out_dtype);
    const dim3 grid((unsigned)a->n_heads), block(ONE_THREADS);

    return launch(s, a->act_dtype == NRD_DTYPE_BF16 ? attention_one_kernel<bf16, 64, ROPE> : attention_one_kernel<f16, 64, ROPE>, grid, block, 0, p, r);
}

nrd_error *nrd_cuda_attention_one(nrd_stream *s, const nrd_attention_args *a, bool *done)
{
    *done = fits(s, a);
    return *done ? one_launch<false>(s, a, rope_params()) : NULL;
}

nrd_error *nrd_cuda_rope_attention(nrd_stream *s, const nrd_rope_kv_args *k, const nrd_attention_args *a, bool *done)
{
    rope_params r;

    *done = fits(s, a) && k->batch->n_tokens == 1 && k->qkv == a->q && k->act_dtype == a->act_dtype && k->n_heads == a->n_heads &&
            k->kv.base == a->kv.base && !k->q_norm && !k->k_norm && k->clip <= 0.0f && !k->v_norm && !k->q_only && k->q_scale_beta <= 0.0f &&
            (k->rope == NRD_ROPE_NONE || (k->rope == NRD_ROPE_NEOX && k->rotary_dim == k->kv.head_dim));
    if (!*done) {
        return NULL;
    }
    NRD_TRY(nrd_cuda_rope_params(k, &r));
    return one_launch<true>(s, a, r);
}
