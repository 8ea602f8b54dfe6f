/* SPDX-License-Identifier: Apache-2.0
 * sample: one token a row, wholly on the device. Order and ties as sample_ref.c says: bias, penalties,
 * min length, banned, mask, times, temperature, top-k, top-p, min-p; the draw walks the kept in id order.
 * Shapes    logits f32 [n_rows, stride]; rows of nrd_sample_row in device memory.
 * Work      one block of 1024 a row; passes over the row come from L2. Greedy rows need one. A cut
 *           (top-k: by count, top-p: by probability mass) is found by a histogram of 2048 bins along
 *           the distance to the best logit, then exactly inside one bin, so nothing is ever sorted.
 *           Where the tokens up to the bin of the first cut are no more than threads (nearly always
 *           with top-k, and with top-p where the model is sure), they are gathered in shared memory in
 *           the third pass, and all that follows looks at them alone.
 *           Up to 16 rows: a cluster of eight blocks finds the best logit of each.
 *           Probabilities are integers of 2^-40: sums are exact and the same in any order.
 * Bound     memory: 4 * vocab bytes a row for the first pass; few rows: one SM's share of it.
 * Measured  NVIDIA H200, vocabulary 128,256: greedy 4.5 us for one row, 8 for 16, 16 for 64
 *           (one block each), 40 for 256 (73 % of read speed); top-k 50 with top-p 60-63 us to 16 rows, 71 to 132; top-p alone over
 *           flat random logits, whose candidates do not fit, 310 us (2026-11-22, make gpu-bench).
 */
#include "device/ops/cluster.cuh"

typedef unsigned long long u64;

enum { SAMPLE_THREADS = 1024, BINS = 2048, LIST = 1024 };
enum { SAMPLE_FEW_ROWS = 16 }; /* so many clusters of eight run at once */

struct sample_params {
    const float *logits;
    const nrd_sample_row *rows;
    const int32_t *banned_ids;
    uint16_t *counts;
    int32_t *slot_tokens, *out_ids, *out_top_ids;
    float *out_logprob, *out_logprob_norm, *out_top_logprobs;
    int64_t stride;
    int vocab, n_top, vector;
};

/* One row's view of its logits. */
struct row_view {
    const float *logits, *bias;
    const int32_t *bias_ids; /* with n_bias of them `bias` has no others */
    const uint16_t *counts;
    const uint32_t *ban; /* shared memory: bit set = may not be chosen; NULL: all may */
    float rep, presence, frequency, peak, inv_t;
    int vocab, n_bias;
};

/* Kept are the tokens with a larger key, and those with the same one up to an id. */
struct cut {
    uint32_t key;
    int id;
};

struct sample_smem {
    u64 mass[BINS];
    unsigned count[BINS];
    uint32_t list_key[LIST];
    int list_id[LIST];
    u64 list_mass[LIST];
    u64 scan[SAMPLE_THREADS / 32];
    float red[32];
    int red_id[32];
    u64 before;
    unsigned long long total;
    int pick, n_list;
    cut found;
    float2 best[MAX_CLUSTER * SAMPLE_THREADS / 32]; /* of each warp of a row's blocks */
    uint64_t best_full;
};

static __device__ __forceinline__ uint32_t key_of(float v)
{
    const uint32_t u = __float_as_uint(v == 0.0f ? 0.0f : v); /* -0 and 0 are one */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The ids rise. */
static __device__ __forceinline__ float sparse_bias(const float *bias, const int32_t *ids, int n, int id)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (ids[mid] < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && ids[lo] == id ? bias[lo] : 0.0f;
}

static __device__ __forceinline__ float adjusted(const row_view &r, int i, float v)
{
    if (r.bias) {
        v += r.bias_ids ? sparse_bias(r.bias, r.bias_ids, r.n_bias, i) : r.bias[i];
    }
    if (r.counts) {
        const unsigned n = r.counts[i];
        if (n) {
            v = v > 0.0f ? v / r.rep : v * r.rep;
            v -= r.presence + r.frequency * (float)n;
        }
    }
    if (r.ban && (r.ban[i >> 5] >> (i & 31) & 1u)) {
        v = -INFINITY;
    }
    return v == v ? v : -INFINITY;
}

static __device__ __forceinline__ u64 mass_of(const row_view &r, float v)
{
    return v == -INFINITY ? 0
                          : (u64)(__expf((v - r.peak) * r.inv_t) * 1099511627776.0f /* 2^40 */);
}

static __device__ __forceinline__ bool inside(cut c, uint32_t key, int id)
{
    return key > c.key || (key == c.key && id <= c.id);
}

/* f(id, adjusted logit) for every id, in no particular order; or for the share of one of n_blocks. */
template <typename F>
static __device__ __forceinline__ void each(const row_view &r, int vector, F f, int block = 0,
                                            int n_blocks = 1)
{
    const int first = block * SAMPLE_THREADS + (int)threadIdx.x, step = n_blocks * SAMPLE_THREADS;
    if (vector) {
        const float4 *p = (const float4 *)r.logits;
        const int n = r.vocab / 4;
        for (int i = first; i < n; i += step * 4) {
            float4 v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (i + k * step < n) {
                    v[k] = p[i + k * step];
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int at = (i + k * step) * 4;
                if (at < r.vocab) {
                    f(at, adjusted(r, at, v[k].x));
                    f(at + 1, adjusted(r, at + 1, v[k].y));
                    f(at + 2, adjusted(r, at + 2, v[k].z));
                    f(at + 3, adjusted(r, at + 3, v[k].w));
                }
            }
        }
    } else {
        for (int i = first; i < r.vocab; i += step) {
            f(i, adjusted(r, i, r.logits[i]));
        }
    }
}

static __device__ __forceinline__ void keep_better(float *v, int *id, float w, int iw)
{
    if (w > *v || (w == *v && iw < *id)) {
        *v = w;
        *id = iw;
    }
}

/* Best (value, lowest id) of a warp's pairs, then of the block's. */
static __device__ __forceinline__ void warp_best(float *v, int *id)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        keep_better(v, id, __shfl_xor_sync(0xffffffffu, *v, o), __shfl_xor_sync(0xffffffffu, *id, o));
    }
}

static __device__ void block_best(float *v, int *id, sample_smem *sm)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    for (int pass = 0; pass < 2; pass++) {
        warp_best(v, id);
        if (pass == 0) {
            __syncthreads();
            if (lane == 0) {
                sm->red[warp] = *v;
                sm->red_id[warp] = *id;
            }
            __syncthreads();
            *v = sm->red[lane];
            *id = sm->red_id[lane];
        }
    }
}

/* Inclusive scan of one number a thread over the block. */
static __device__ u64 block_scan(u64 v, sample_smem *sm)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u64 w = __shfl_up_sync(0xffffffffu, v, o);
        v += lane >= o ? w : 0;
    }
    __syncthreads();
    if (lane == 31) {
        sm->scan[warp] = v;
    }
    __syncthreads();
    u64 base = 0;
    for (int w = 0; w < warp; w++) {
        base += sm->scan[w];
    }
    return v + base;
}

/* The first id, ascending, at which the running sum of weight(id, logit) reaches `target` (> 0);
 * the last id with a weight if it never does. Each thread owns a run of ids; the owner walks it. */
template <typename W> static __device__ int walk(const row_view &r, sample_smem *sm, u64 target, W weight)
{
    const int run = (r.vocab + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
    int lo = 0, width = r.vocab;
    u64 base = 0;

    /* First over 32 spans (a warp each, coalesced), then over the runs of the span found. */
    const int span = (run * 32 + 31) & ~31, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 sum = 0;
    for (int i = warp * span + lane; i < (warp + 1) * span && i < r.vocab; i += 32) {
        sum += weight(i, adjusted(r, i, r.logits[i]));
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    }
    __syncthreads();
    if (lane == 0) {
        sm->scan[warp] = sum;
    }
    if (threadIdx.x == 0) {
        sm->pick = -1;
    }
    __syncthreads();
    {
        int last = 0, found = -1;
        u64 at = 0, before_last = 0;
        for (int w = 0; w < 32; w++) {
            const u64 s = sm->scan[w];
            if (s && found < 0) {
                last = w;
                before_last = at;
                if (at + s >= target) {
                    found = w;
                }
            }
            at += s;
        }
        lo = last * span;
        width = span;
        base = before_last;
    }
    __syncthreads();
    const int each_n = (width + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
    const int from = lo + threadIdx.x * each_n;
    u64 mine = 0;
    for (int i = from; i < from + each_n && i < lo + width && i < r.vocab; i++) {
        mine += weight(i, adjusted(r, i, r.logits[i]));
    }
    const u64 upto = base + block_scan(mine, sm);
    if (mine && upto - mine < target) { /* the crossing is here, or no later one has weight */
        u64 at = upto - mine;
        int pick = -1;
        for (int i = from; i < from + each_n && i < lo + width && i < r.vocab; i++) {
            const u64 w = weight(i, adjusted(r, i, r.logits[i]));
            if (w) {
                pick = i;
                at += w;
                if (at >= target) {
                    break;
                }
            }
        }
        atomicMax(&sm->pick, pick);
    }
    __syncthreads();
    const int pick = sm->pick;
    __syncthreads();
    return pick;
}

static __device__ __forceinline__ int bin_of(const row_view &r, float v)
{
    /* monotone in v: float subtraction and multiplication round monotonically */
    return (int)fminf((r.peak - v) * 64.0f, (float)(BINS - 1));
}

/* Sums the histogram up to the bin where the running count (by_mass: mass) reaches target. Returns
 * the bin; sm->before = sum of the bins before. */
static __device__ int find_bin(sample_smem *sm, u64 target, bool by_mass)
{
    const int b0 = threadIdx.x * (BINS / SAMPLE_THREADS);
    u64 v[BINS / SAMPLE_THREADS], mine = 0;
#pragma unroll
    for (int i = 0; i < BINS / SAMPLE_THREADS; i++) {
        v[i] = by_mass ? sm->mass[b0 + i] : sm->count[b0 + i];
        mine += v[i];
    }
    if (threadIdx.x == 0) {
        sm->pick = -1;
    }
    const u64 upto = block_scan(mine, sm);
    u64 at = upto - mine;
    if (mine && at < target) {
        int pick = -1;
        u64 before = at;
        for (int i = 0; i < BINS / SAMPLE_THREADS && at < target; i++) {
            if (v[i]) {
                pick = b0 + i;
                before = at;
                at += v[i];
            }
        }
        atomicMax(&sm->pick, pick);
        __threadfence_block();
        v[0] = before;
        mine = (u64)pick; /* remembered for below */
    } else {
        mine = ~0ull;
    }
    __syncthreads();
    const int pick = sm->pick;
    if (mine == (u64)pick) {
        sm->before = v[0];
    }
    __syncthreads();
    return pick;
}

static __device__ void clear_bins(sample_smem *sm)
{
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += SAMPLE_THREADS) {
        sm->mass[i] = 0;
        sm->count[i] = 0;
    }
    __syncthreads();
}

/* The cut behind the first token, best first, at which the count (or mass) inside `limit` reaches
 * `target`. */
static __device__ cut select_cut(const row_view &r, int vector, sample_smem *sm, cut limit, u64 target,
                                 bool by_mass)
{
    auto add = [&](int bin, float v) {
        if (by_mass) {
            const u64 m = mass_of(r, v);
            atomicAdd(&sm->mass[bin], m ? m : 1); /* the smallest weigh one unit: order is kept */
        } else {
            atomicAdd(&sm->count[bin], 1u);
        }
    };
    clear_bins(sm);
    each(r, vector, [&](int id, float v) {
        if (v != -INFINITY && inside(limit, key_of(v), id)) {
            add(bin_of(r, v), v);
        }
    });
    __syncthreads();
    const int bin = find_bin(sm, target, by_mass);
    u64 before = sm->before;
    if (threadIdx.x == 0) {
        sm->n_list = 0;
        sm->found = limit; /* fewer than the target: all of them */
    }
    __syncthreads();
    each(r, vector, [&](int id, float v) {
        if (v != -INFINITY && bin_of(r, v) == bin && inside(limit, key_of(v), id)) {
            const int at = atomicAdd(&sm->n_list, 1);
            if (at < LIST) {
                const u64 m = mass_of(r, v);
                sm->list_key[at] = key_of(v);
                sm->list_id[at] = id;
                sm->list_mass[at] = by_mass ? (m ? m : 1) : 1;
            }
        }
    });
    __syncthreads();
    const int n = sm->n_list;
    if (n <= LIST) { /* exact: every token of the bin sums those before it */
        u64 sum = 0;
        uint32_t key = 0;
        int id = 0;
        if ((int)threadIdx.x < n) {
            key = sm->list_key[threadIdx.x];
            id = sm->list_id[threadIdx.x];
            for (int i = 0; i < n; i++) {
                const uint32_t k = sm->list_key[i];
                sum += k > key || (k == key && sm->list_id[i] < id) ? sm->list_mass[i] : 0;
            }
            const u64 at = before + sum, mine = sm->list_mass[threadIdx.x];
            if (at < target && at + mine >= target) {
                sm->found = {key, id};
            }
        }
        __syncthreads();
        const cut c = sm->found;
        __syncthreads();
        return c;
    }
    /* A crowded bin: the bits of the key, 11 + 11 + 10, then ids among equal keys. */
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const uint32_t field = pass == 2 ? 1023 : 2047;
        clear_bins(sm);
        each(r, vector, [&](int id, float v) {
            const uint32_t k = key_of(v);
            if (v != -INFINITY && bin_of(r, v) == bin && inside(limit, k, id) &&
                (k & mask) == prefix) {
                add((int)(field - (k >> shift & field)), v);
            }
        });
        __syncthreads();
        const int b = find_bin(sm, target - before, by_mass);
        before += sm->before;
        prefix |= (field - (uint32_t)b) << shift;
        mask |= field << shift;
        __syncthreads();
    }
    const int id = walk(r, sm, target - before, [&](int i, float v) -> u64 {
        if (v == -INFINITY || key_of(v) != prefix || !inside(limit, prefix, i)) {
            return 0;
        }
        const u64 m = by_mass ? mass_of(r, v) : 1;
        return m ? m : 1;
    });
    return {prefix, id};
}

/* The block's tokens that may still be chosen, one a thread. */
struct gathered {
    uint32_t key;
    int id;
    u64 mass; /* 0: cut off */
    float v;
};

/* Gathers the tokens up to the bin at which the count (or the mass's share `top_p` of all) is reached.
 * False: they are too many. *target: what the cut must reach. */
static __device__ bool gather(const row_view &r, int vector, sample_smem *sm, int top_k, float top_p,
                              gathered *mine, u64 *target)
{
    const bool by_mass = top_k <= 0;
    u64 all = 0;

    clear_bins(sm);
    each(r, vector, [&](int id, float v) {
        (void)id;
        if (v != -INFINITY) {
            const int bin = bin_of(r, v);
            atomicAdd(&sm->count[bin], 1u);
            if (by_mass) {
                const u64 m = mass_of(r, v);
                atomicAdd(&sm->mass[bin], m ? m : 1);
                all += m ? m : 1;
            }
        }
    });
    *target = (u64)(top_k > 0 ? top_k : 1);
    if (by_mass) {
        const u64 upto = block_scan(all, sm);
        if (threadIdx.x == SAMPLE_THREADS - 1) {
            sm->total = upto;
        }
        __syncthreads();
        const u64 want = (u64)ceil((double)top_p * (double)sm->total);
        *target = want ? want : 1;
    }
    __syncthreads();
    const int bin = find_bin(sm, *target, by_mass);
    const int last = bin < 0 ? BINS - 1 : bin; /* fewer than the target: all of them */
    unsigned n = 0;
    for (int i = threadIdx.x; i <= last; i += SAMPLE_THREADS) {
        n += sm->count[i];
    }
    const u64 sum = block_scan(n, sm);
    if (threadIdx.x == SAMPLE_THREADS - 1) {
        sm->total = sum;
        sm->n_list = 0;
    }
    __syncthreads();
    if (sm->total > LIST) {
        __syncthreads();
        return false;
    }
    each(r, vector, [&](int id, float v) {
        if (v != -INFINITY && bin_of(r, v) <= last) {
            const int at = atomicAdd(&sm->n_list, 1);
            const u64 m = mass_of(r, v);
            sm->list_key[at] = key_of(v);
            sm->list_id[at] = id;
            sm->list_mass[at] = m ? m : 1;
        }
    });
    __syncthreads();
    mine->mass = 0;
    if ((int)threadIdx.x < sm->n_list) {
        mine->key = sm->list_key[threadIdx.x];
        mine->id = sm->list_id[threadIdx.x];
        mine->mass = sm->list_mass[threadIdx.x];
        mine->v = adjusted(r, mine->id, r.logits[mine->id]);
    }
    return true;
}

/* Cuts off what lies behind the token, best first, at which the count (or mass) reaches the target. */
static __device__ void cut_gathered(sample_smem *sm, gathered *mine, u64 target, bool by_mass)
{
    const int n = sm->n_list;
    u64 before = 0;

    __syncthreads();
    if ((int)threadIdx.x < n) {
        sm->list_mass[threadIdx.x] = mine->mass;
    }
    __syncthreads();
    if (mine->mass) {
        for (int i = 0; i < n; i++) {
            const uint32_t k = sm->list_key[i];
            if (k > mine->key || (k == mine->key && sm->list_id[i] < mine->id)) {
                before += by_mass ? sm->list_mass[i] : sm->list_mass[i] != 0;
            }
        }
        if (before >= target) {
            mine->mass = 0;
        }
    }
}

/* Bits of a word of ids that the rule of times forbids. */
static __device__ uint32_t outside_times(const nrd_sample_times &t, int word)
{
    uint32_t bits = 0;
    for (int b = 0; b < 32; b++) {
        const int id = word * 32 + b;
        const bool in = id < t.first ? id >= t.text_from && id < t.text_end : id >= t.time_from && id < t.time_end;
        bits |= in ? 0u : 1u << b;
    }
    return bits;
}

/* Forbids all but times where these are together more probable than the best of the rest. */
static __device__ void weigh_times(const row_view &r, int vector, int first, uint32_t *ban, sample_smem *sm)
{
    float text = -INFINITY, time = -INFINITY, sum = 0.0f;
    int at_text = 0, at_time = 0;

    each(r, vector, [&](int id, float v) {
        if (id < first) {
            text = fmaxf(text, v);
        } else {
            time = fmaxf(time, v);
        }
    });
    block_best(&text, &at_text, sm);
    block_best(&time, &at_time, sm);
    if (time == -INFINITY) {
        return; /* all threads do */
    }
    each(r, vector, [&](int id, float v) { sum += id < first ? 0.0f : expf(v - time); });
    sum = block_reduce<op_sum>(sum, sm->red);
    if (time + logf(sum) > text) {
        for (int i = threadIdx.x; i * 32 < first; i += SAMPLE_THREADS) {
            ban[i] |= first - i * 32 >= 32 ? 0xffffffffu : (1u << (first - i * 32)) - 1;
        }
    }
    __syncthreads();
}

/* The row's logits and what changes them; tokens that may not be chosen as bits in `ban`. */
static __device__ __forceinline__ row_view view_of(const sample_params &a, const nrd_sample_row &q, int row,
                                                   uint32_t *ban, sample_smem *sm)
{
    const int tid = threadIdx.x;
    row_view r;
    r.logits = a.logits + row * a.stride;
    r.bias = q.bias;
    r.bias_ids = q.bias_ids;
    r.n_bias = q.n_bias;
    r.counts = (q.flags & NRD_SAMPLE_COUNTS) && a.counts ? a.counts + (int64_t)q.slot * a.vocab : NULL;
    r.rep = q.repetition_penalty;
    r.presence = q.presence_penalty;
    r.frequency = q.frequency_penalty;
    r.vocab = a.vocab;
    r.ban = NULL;
    const bool no_end = q.n_suppress_end > 0 && q.end_id >= 0 && q.end_id < a.vocab;
    const int n_banned = a.banned_ids ? q.n_banned : 0;
    const bool has_times = q.times.first > 0 && q.times.first < a.vocab;
    if (q.mask || no_end || n_banned > 0 || has_times) {
        const int words = (a.vocab + 31) / 32;
        for (int i = tid; i < words; i += SAMPLE_THREADS) {
            ban[i] = (q.mask ? ~q.mask[i] : 0) | (has_times ? outside_times(q.times, i) : 0);
        }
        __syncthreads();
        if (no_end && tid == 0) {
            atomicOr(&ban[q.end_id >> 5], 1u << (q.end_id & 31));
        }
        for (int i = tid; i < n_banned; i += SAMPLE_THREADS) {
            const int id = a.banned_ids[q.banned_start + i];
            if (id >= 0 && id < a.vocab) {
                atomicOr(&ban[id >> 5], 1u << (id & 31));
            }
        }
        __syncthreads();
        r.ban = ban;
    }
    if (has_times) {
        weigh_times(r, a.vector, q.times.first, ban, sm);
    }
    return r;
}

/* The row's best token, by n_blocks together; false: this block's part is done. */
static __device__ __forceinline__ bool find_best(const sample_params &a, const row_view &r, sample_smem *sm,
                                                 int rank, int n_blocks, float *best, int *best_id)
{
    const int tid = threadIdx.x;
    *best = -INFINITY;
    *best_id = 0x7fffffff;
    each(r, a.vector, [&](int id, float v) { keep_better(best, best_id, v, id); }, rank, n_blocks);
    if (n_blocks == 1) {
        block_best(best, best_id, sm);
        return true;
    }
    warp_best(best, best_id);
    if (tid % 32 == 0) {
        share_send(sm->best, &sm->best_full, rank * (SAMPLE_THREADS / 32) + tid / 32,
                   make_float2(*best, __int_as_float(*best_id)), 0);
    }
    if (rank > 0) {
        return false;
    }
    share_wait(&sm->best_full, n_blocks);
    for (int i = tid % 32; i < n_blocks * (SAMPLE_THREADS / 32); i += 32) {
        keep_better(best, best_id, sm->best[i].x, __float_as_int(sm->best[i].y));
    }
    warp_best(best, best_id);
    return true;
}

/* The sum of all threads' masses. */
static __device__ __forceinline__ u64 block_total(u64 mass, sample_smem *sm)
{
    const u64 upto = block_scan(mass, sm);
    if (threadIdx.x == SAMPLE_THREADS - 1) {
        sm->total = upto;
    }
    __syncthreads();
    return sm->total;
}

/* Log probability of a choice among those that were kept, whose masses sum up to `total`. */
static __device__ __forceinline__ float kept_log_prob(const row_view &r, int pick, u64 total)
{
    return (adjusted(r, pick, r.logits[pick]) - r.peak) * r.inv_t -
           logf((float)((double)total * (1.0 / 1099511627776.0)));
}

/* A draw among candidates that all lie in shared memory, one a thread. */
static __device__ __forceinline__ int draw_gathered(const nrd_sample_row &q, const row_view &r, sample_smem *sm,
                                                    gathered mine, u64 target, bool some_k, bool some_p,
                                                    float *norm)
{
    const int tid = threadIdx.x;
    cut_gathered(sm, &mine, target, !some_k);
    if (some_k && some_p) {
        target = (u64)ceil((double)q.top_p * (double)block_total(mine.mass, sm));
        cut_gathered(sm, &mine, target ? target : 1, true);
    }
    const float floor_p = q.min_p > 0.0f ? fminf(q.min_p, 1.0f) : 0.0f;
    const bool in = mine.mass && (mine.v == r.peak || __expf((mine.v - r.peak) * r.inv_t) >= floor_p);
    const u64 weight = in ? mass_of(r, mine.v) : 0;
    const u64 upto = block_scan(weight, sm);
    __syncthreads();
    if (tid == SAMPLE_THREADS - 1) {
        sm->total = upto;
        sm->pick = -1;
    }
    if (tid < sm->n_list) {
        sm->list_mass[tid] = weight;
    }
    __syncthreads();
    const u64 total = sm->total;
    target = (u64)((double)nrd_sample_uniform(q.seed, q.draw) * (double)total) + 1;
    if (weight) { /* the walk in id order; the last one if the target is never reached */
        u64 before = 0, behind = 0;
        for (int i = 0; i < sm->n_list; i++) {
            before += sm->list_id[i] < mine.id ? sm->list_mass[i] : 0;
            behind += sm->list_id[i] > mine.id ? sm->list_mass[i] : 0;
        }
        if (before < target && (before + weight >= target || behind == 0)) {
            sm->pick = mine.id;
        }
    }
    __syncthreads();
    *norm = kept_log_prob(r, sm->pick, total);
    return sm->pick;
}

/* The same from the row itself, however many are kept. */
static __device__ __forceinline__ int draw_row(const sample_params &a, const nrd_sample_row &q, const row_view &r,
                                               sample_smem *sm, bool some_k, bool some_p, float *norm)
{
    cut kept = {1, 0x7fffffff}; /* key 0 is -NaN: everything finite is inside */
    if (some_k) {
        kept = select_cut(r, a.vector, sm, kept, (u64)q.top_k, false);
    }
    if (some_p) {
        u64 sum = 0;
        each(r, a.vector, [&](int id, float v) {
            if (v != -INFINITY && inside(kept, key_of(v), id)) {
                const u64 m = mass_of(r, v);
                sum += m ? m : 1;
            }
        });
        const u64 target = (u64)ceil((double)q.top_p * (double)block_total(sum, sm));
        kept = select_cut(r, a.vector, sm, kept, target ? target : 1, true);
    }
    const float floor_p = q.min_p > 0.0f ? fminf(q.min_p, 1.0f) : 0.0f;
    auto weight = [&](int id, float v) -> u64 {
        if (v == -INFINITY || !inside(kept, key_of(v), id)) {
            return 0;
        }
        return v == r.peak || __expf((v - r.peak) * r.inv_t) >= floor_p ? mass_of(r, v) : 0;
    };
    u64 sum = 0;
    each(r, a.vector, [&](int id, float v) { sum += weight(id, v); });
    const u64 total = block_total(sum, sm);
    const u64 target = (u64)((double)nrd_sample_uniform(q.seed, q.draw) * (double)total) + 1;
    const int pick = walk(r, sm, target, weight);
    *norm = kept_log_prob(r, pick, total);
    return pick;
}

/* One thread: the choice. base: of log probabilities, the log of the sum of all. */
static __device__ __forceinline__ void store_choice(const sample_params &a, const nrd_sample_row &q,
                                                    const row_view &r, int row, int pick, bool any, float base,
                                                    float norm)
{
    a.out_ids[row] = pick;
    if (a.out_logprob && (q.flags & NRD_SAMPLE_LOGPROB)) {
        a.out_logprob[row] = any ? adjusted(r, pick, r.logits[pick]) - r.peak - base : -INFINITY;
    }
    if (a.out_logprob_norm && (q.flags & NRD_SAMPLE_NORMALIZE)) {
        a.out_logprob_norm[row] = norm;
    }
    if (a.slot_tokens && !(q.flags & NRD_SAMPLE_NO_UPDATE)) {
        a.slot_tokens[q.slot] = pick;
    }
}

/* The best n_top, one pass each: n_top is small. */
static __device__ __forceinline__ void store_top(const sample_params &a, const row_view &r, sample_smem *sm,
                                                 int row, float base)
{
    cut above = {0xffffffffu, -1};
    for (int n = 0; n < a.n_top; n++) {
        float v_best = -INFINITY;
        int id_best = 0x7fffffff;
        each(r, a.vector, [&](int id, float v) {
            if (!inside(above, key_of(v), id) && (v > v_best || (v == v_best && id < id_best))) {
                v_best = v;
                id_best = id;
            }
        });
        block_best(&v_best, &id_best, sm);
        above = {key_of(v_best), id_best};
        if (threadIdx.x == 0) {
            a.out_top_ids[(int64_t)row * a.n_top + n] = id_best;
            a.out_top_logprobs[(int64_t)row * a.n_top + n] =
                v_best == -INFINITY ? -INFINITY : v_best - r.peak - base;
        }
    }
}

/* The log of the sum of the row's weights, less its best logit `best`. Of all logits as they came: their own best one may be
 * another. */
static __device__ __forceinline__ float log_sum(const sample_params &a, row_view r, sample_smem *sm, float best, bool unmasked)
{
    float peak = best, sum = 0.0f;
    if (unmasked) {
        int at = 0x7fffffff;
        r.ban = NULL;
        r.counts = NULL;
        r.bias = NULL;
        peak = -INFINITY;
        each(r, a.vector, [&](int id, float v) { keep_better(&peak, &at, v, id); });
        block_best(&peak, &at, sm);
    }
    each(r, a.vector, [&](int id, float v) {
        (void)id;
        sum += expf(v - peak);
    });
    return (peak - best) + logf(block_reduce<op_sum>(sum, sm->red));
}

static __global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(sample_params a, int n_blocks)
{
    extern __shared__ char raw[];
    sample_smem *sm = (sample_smem *)raw;
    /* few rows: n_blocks share the first pass over one, then the first goes on alone */
    const int row = n_blocks > 1 ? blockIdx.y : blockIdx.x;
    const int rank = n_blocks > 1 ? (int)blockIdx.x : 0;
    float best, log_total = 0.0f;
    int best_id;

    share_begin(&sm->best_full, rank == 0 ? n_blocks * (SAMPLE_THREADS / 32) : 0, n_blocks);
    pdl_wait();
    pdl_go();
    const nrd_sample_row q = a.rows[row];
    row_view r = view_of(a, q, row, (uint32_t *)(raw + sizeof(sample_smem)), sm);
    if (!find_best(a, r, sm, rank, n_blocks, &best, &best_id)) {
        return;
    }
    r.peak = best;
    const bool any = best != -INFINITY;
    const bool greedy = q.temperature <= 0.0f || q.top_k == 1 || !any;
    r.inv_t = greedy ? 1.0f : 1.0f / q.temperature;
    if (any && ((q.flags & NRD_SAMPLE_LOGPROB) || a.n_top > 0)) {
        log_total = log_sum(a, r, sm, best, (q.flags & NRD_SAMPLE_UNMASKED) != 0);
    }

    int pick = any ? best_id : 0;
    float norm = any ? 0.0f : -INFINITY;
    const bool some_k = q.top_k > 0 && q.top_k < a.vocab, some_p = q.top_p > 0.0f && q.top_p < 1.0f;
    gathered mine = {};
    u64 target = 0;
    if (!greedy && (some_k ? q.top_k <= LIST : some_p) &&
        gather(r, a.vector, sm, some_k ? q.top_k : 0, q.top_p, &mine, &target)) {
        pick = draw_gathered(q, r, sm, mine, target, some_k, some_p, &norm);
    } else if (!greedy) {
        pick = draw_row(a, q, r, sm, some_k, some_p, &norm);
    }
    if (threadIdx.x == 0) {
        store_choice(a, q, r, row, pick, any, log_total, norm);
    }
    store_top(a, r, sm, row, log_total);
}

/* After all rows: rows of one slot must not see each other's tokens in this step. */
static __global__ void sample_counts_kernel(sample_params a, int n_rows)
{
    pdl_wait();
    pdl_go();
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n_rows) {
        return;
    }
    const nrd_sample_row *q = &a.rows[row];
    if ((q->flags & NRD_SAMPLE_COUNTS) && !(q->flags & NRD_SAMPLE_NO_UPDATE)) {
        unsigned short *n = (unsigned short *)a.counts + (int64_t)q->slot * a.vocab + a.out_ids[row];
        unsigned short old = *n, seen;
        do {
            seen = old;
            old = seen == 0xffff ? seen : atomicCAS(n, seen, (unsigned short)(seen + 1));
        } while (old != seen);
    }
}

nrd_error *nrd_cuda_sample(nrd_stream *s, const nrd_sample_args *a)
{
    sample_params p = {};

    if (a->vocab <= 0 || a->n_top < 0 || a->n_top > a->vocab ||
        (a->logits_stride && a->logits_stride < a->vocab)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: sample: vocabulary %d, stride %lld, %d best",
                          a->vocab, (long long)a->logits_stride, a->n_top);
    }
    if (a->n_rows <= 0) {
        return NULL;
    }
    const size_t smem = sizeof(sample_smem) + ((size_t)a->vocab + 31) / 32 * 4;
    if (smem > s->dev->smem_max) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: sample: a vocabulary of %d", a->vocab);
    }
    p.logits = a->logits;
    p.rows = a->rows;
    p.banned_ids = a->banned_ids;
    p.counts = a->counts;
    p.slot_tokens = a->slot_tokens;
    p.out_ids = a->out_ids;
    p.out_top_ids = a->out_top_ids;
    p.out_logprob = a->out_logprob;
    p.out_logprob_norm = a->out_logprob_norm;
    p.out_top_logprobs = a->out_top_logprobs;
    p.stride = a->logits_stride ? a->logits_stride : a->vocab;
    p.vocab = a->vocab;
    p.n_top = a->n_top;
    p.vector = a->vocab % 4 == 0 && p.stride % 4 == 0 && aligned16(a->logits);
    if (a->n_rows <= SAMPLE_FEW_ROWS && s->dev->hopper && a->vocab >= 4 * SAMPLE_THREADS) {
        NRD_TRY(launch_cluster(s, sample_kernel, dim3(MAX_CLUSTER),
                               dim3(MAX_CLUSTER, (unsigned)a->n_rows), SAMPLE_THREADS, smem, p,
                               (int)MAX_CLUSTER));
    } else {
        NRD_TRY(launch(s, sample_kernel, dim3((unsigned)a->n_rows), dim3(SAMPLE_THREADS), smem, p, 1));
    }
    if (a->counts) {
        return launch(s, sample_counts_kernel, dim3((unsigned)(a->n_rows + 127) / 128), dim3(128), 0,
                      p, (int)a->n_rows);
    }
    return NULL;
}
