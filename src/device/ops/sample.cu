/* SPDX-License-Identifier: Apache-2.0
 * sample: one token a row, wholly on the device. Order and ties as sample_ref.c says: bias, penalties,
 * min length, banned, mask, times, temperature, top-k, top-p, min-p; the draw walks the kept in id order.
 * Shapes    logits f32 [n_rows, stride]; rows of nrd_sample_row in device memory.
 * Work      up to 16 rows: a cluster of eight blocks a row. Each keeps an eighth of the adjusted logits in shared memory,
 *           so that memory is read once however many passes follow. More rows, a small or a very large vocabulary, not
 *           Hopper: one block a row, which reads it again in every pass.
 *           A cut (top-k: by count, top-p: by probability mass) is found by a histogram of 2048 bins along the distance
 *           to the best logit, then exactly inside one bin. With a small top-k the histogram is that of each thread's
 *           best token: its cut lies at or behind that of all, and as each thread knows its best three, no second pass
 *           gathers them; in a cluster the best tokens of its warps bound it without a histogram. Where the tokens up to
 *           the bin of the first cut are no more than LIST (nearly always with top-k, and with top-p where the model is
 *           sure), one block sorts them and does the rest.
 *           Probabilities are integers of 2^-40: sums are exact and the same in any order.
 * Bound     memory: 4 * vocab bytes a row, once; few rows: one cluster's share of it, and the meetings of its blocks.
 * Measured  NVIDIA H200, vocabulary 128,256, 1, 16, 64, 256, 1,024 rows (2026-11-29, make gpu-bench; before in brackets):
 *           greedy 5.5, 8.7, 20, 37, 137 us (5.4, 8.4, 19.5, 36, 133); top-k 50 with top-p 12, 16, 29, 46, 171 (17, 22, 33,
 *           50, 187); top-p alone over flat random logits 31, 41, 178, 255, 998 (28, 38, 184, 288, 1,127).
 * Tried     clusters for more rows, of an earlier form: 64 rows 20, 48, 97, 256 rows 76, 165, 325.
 */
#include "device/ops/sample_row.cuh"

enum { SMALL_VOCAB = 4096 };  /* not worth a cluster */
enum { CLUSTER_ROWS = 16 };   /* so many clusters run at once, each on multiprocessors of its own */
enum { FEW = 256 };           /* numbers that are sorted by counting */
enum { WARPS_TOP_K = 96 };    /* of 128 warps */

struct sample_params {
    const float *logits;
    const nrd_sample_row *rows;
    const int32_t *banned_ids;
    uint16_t *counts;
    int32_t *slot_tokens, *out_ids, *out_top_ids;
    float *out_logprob, *out_logprob_norm, *out_top_logprobs;
    int64_t stride;
    int vocab, n_top, vector, share; /* share: tokens a block, a multiple of 32 */
};

/* Where a cut lies: the bin, the sum of the bins before it, and what the sum of all kept must reach. */
struct crossing {
    u64 before, target;
    int bin; /* BINS: there is not so much */
};

/* ---- cuts ---- */

static __device__ __forceinline__ void add_mass(sample_smem *sm, int bin, u64 m)
{
    /* two sums of 32 bits: shared memory adds no 64 at once */
    const unsigned low = (unsigned)m, old = atomicAdd(&sm->low[bin], low);
    const unsigned high = (unsigned)(m >> 32) + (old + low < old ? 1u : 0u);
    if (high) {
        atomicAdd(&sm->high[bin], high);
    }
}

static __device__ void clear_bins(sample_smem *sm)
{
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        sm->low[i] = 0;
        sm->high[i] = 0;
    }
    __syncthreads();
}

/* The bin at which the running sum of the row's histogram reaches want(sum of all bins). */
template <int N, typename T> static __device__ crossing find_bin(row_view &r, T want)
{
    constexpr int EACH = N > 1 ? 1 : BINS / THREADS; /* bins; a cluster's block adds up an Nth of all */
    static_assert(N == 1 || BINS / N * 2 == THREADS, "two threads a bin");
    sample_smem *sm = r.sm;
    u64 v[EACH], mine = 0, total;
    int b0;

    meet<N>(); /* the histograms are complete */
    if constexpr (N > 1) {
        b0 = r.rank * (BINS / N) + (int)(threadIdx.x >> 1);
        v[0] = 0;
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            const int block = (int)(threadIdx.x & 1) * (N / 2) + k;
            v[0] += *there<N>(&sm->low[b0], block) + ((u64)*there<N>(&sm->high[b0], block) << 32);
        }
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
        v[0] = threadIdx.x & 1 ? 0 : v[0];
        mine = v[0];
    } else {
        b0 = (int)threadIdx.x * EACH;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            v[i] = sm->low[b0 + i] + ((u64)sm->high[b0 + i] << 32);
            mine += v[i];
        }
    }
    u64 at = sum_before<N>(r, mine, &total);
    crossing c = {total, want(total), BINS};
    if (total < c.target) {
        return c; /* all blocks do */
    }
    if (at < c.target && at + mine >= c.target) {
        int bin = -1;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (bin < 0 && at + v[i] >= c.target) {
                bin = b0 + i;
            }
            at += bin < 0 ? v[i] : 0;
        }
        for (int block = 0; block < N; block++) {
            *there<N>(&sm->crossed, block) = make_ulonglong2((u64)bin, at);
        }
    }
    meet<N>();
    const ulonglong2 x = sm->crossed;
    c.bin = (int)x.x;
    c.before = x.y;
    return c;
}

/* Of the tokens up to a bin: those in it, and all. More than LIST: not listed. */
struct listed {
    int in, all;
};

/* Lists the row's tokens up to `limit` in the bins to `bin` in its first block: those in `bin`, then, if there is room,
 * the others; in no order. best: this thread's. */
template <int N> static __device__ listed gather(row_view &r, int bin, u64 limit, const tops &best)
{
    sample_smem *sm = r.sm;

    if (threadIdx.x < 2) {
        sm->n_found[threadIdx.x] = 0;
    }
    __syncthreads();
    const float from = (float)bin, to = (float)(bin + 1);
    auto take = [&](int id, float v) {
        const float depth = depth_of(r, v);
        if (v != -INFINITY && depth < to && token_of(v, id) >= limit) {
            const bool in = depth >= from;
            const int at = *(volatile int *)&sm->n_found[in] <= LIST ? atomicAdd(&sm->n_found[in], 1) : LIST;
            if (at < LIST) {
                sm->found[in][at] = token_of(v, id);
            }
        }
    };
    const float rest = best.v[3];
    if (rest == -INFINITY || depth_of(r, rest) >= to || token_of(rest, 0) < limit) {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            take(best.id[i], best.v[i]);
        }
    } else {
        each<N>(r, take);
    }
    __syncthreads();
    const int front = sm->n_found[0], in = sm->n_found[1];
    const u64 *slots = exchange<N>(r, (u64)in << 32 | (uint32_t)front);
    u64 total = 0, before = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        before += i < r.rank ? slots[i * WARPS] : 0;
        total += slots[i * WARPS];
    }
    const int all_in = (int)(total >> 32), all = all_in + (int)(uint32_t)total;
    if (all_in <= LIST) {
        u64 *to = there<N>(sm->list, 0) + (before >> 32);
        for (int i = threadIdx.x; i < in; i += THREADS) {
            to[i] = sm->found[1][i];
        }
    }
    if (all <= LIST) {
        u64 *to = there<N>(sm->list, 0) + all_in + (uint32_t)before;
        for (int i = threadIdx.x; i < front; i += THREADS) {
            to[i] = sm->found[0][i];
        }
    }
    meet<N>();
    return {all_in, all};
}

/* One block: the n numbers of the list, no two equal, largest first. Few are counted; else a bitonic sort (Batcher, 1968). */
static __device__ void sort_list(u64 *list, int n)
{
    const int tid = threadIdx.x;
    int size = 64;

    if (n <= FEW) {
        const u64 mine = tid < n ? list[tid] : 0;
        int place = 0;
        if (tid < n) {
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                place += list[i] > mine;
            }
        }
        __syncthreads();
        if (tid < n) {
            list[place] = mine;
        }
        __syncthreads();
        return;
    }
    while (size < n) {
        size *= 2;
    }
    for (int i = n + tid; i < size; i += THREADS) {
        list[i] = 0;
    }
    __syncthreads();
    for (int k = 2; k <= size; k *= 2) {
        for (int j = k / 2; j > 0; j /= 2) {
            if (tid < size / 2) {
                const int lo = 2 * tid - (tid & (j - 1)), hi = lo + j;
                const u64 x = list[lo], y = list[hi];
                if ((lo & k) == 0 ? x < y : x > y) {
                    list[lo] = y;
                    list[hi] = x;
                }
            }
            if (j > 32 || (j == 1 && k >= 64)) { /* else a warp's numbers are its own, before and behind */
                __syncthreads();
            } else {
                __syncwarp();
            }
        }
    }
}

/* The last token that is kept where the cut lies in this bin, of n tokens up to `limit`: listed, if they are so few. */
template <int N> static __device__ u64 cut_in_bin(row_view &r, crossing c, u64 limit, bool by_mass, int n)
{
    sample_smem *sm = r.sm;
    const int bin = c.bin, tid = threadIdx.x;

    if (n <= LIST) {
        if (r.rank == 0) {
            u64 total;
            sort_list(sm->list, n);
            const u64 t0 = sm->list[2 * tid], t1 = sm->list[2 * tid + 1]; /* the list behind n: not read below */
            const u64 m0 = 2 * tid >= n ? 0 : by_mass ? cut_mass(r, value_of(t0)) : 1;
            const u64 m1 = 2 * tid + 1 >= n ? 0 : by_mass ? cut_mass(r, value_of(t1)) : 1;
            const u64 at = c.before + sum_before<1>(r, m0 + m1, &total);
            if (m0 && at < c.target && at + m0 + m1 >= c.target) {
                const u64 cut = at + m0 >= c.target ? t0 : t1;
                for (int block = 0; block < N; block++) {
                    *there<N>(&sm->cut, block) = cut;
                }
            }
        }
        meet<N>();
        return sm->cut;
    }
    /* A crowded bin: the bits of the key, 11 + 11 + 10, then ids among equal keys. */
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const uint32_t field = pass == 2 ? 1023 : 2047;
        clear_bins(sm);
        each<N>(r, [&](int id, float v) {
            const uint32_t k = key_of(v);
            if (v != -INFINITY && (k & mask) == prefix && bin_of(r, v) == bin && token_of(v, id) >= limit) {
                add_mass(sm, (int)(field - (k >> shift & field)), by_mass ? cut_mass(r, v) : 1);
            }
        });
        const crossing x = find_bin<N>(r, [&](u64 total) { (void)total; return c.target - c.before; });
        c.before += x.before;
        prefix |= (field - (uint32_t)x.bin) << shift;
        mask |= field << shift;
    }
    u64 total, cut;
    const bool is_mine = walk<N>(
        r,
        [&](int id, float v) -> u64 {
            return v == -INFINITY || key_of(v) != prefix || token_of(v, id) < limit ? 0 : by_mass ? cut_mass(r, v) : 1;
        },
        [&](u64 all) { (void)all; return c.target - c.before; }, &total, &cut);
    if (is_mine) {
        for (int block = 0; block < N; block++) {
            *there<N>(&sm->cut, block) = cut;
        }
    }
    meet<N>();
    return sm->cut;
}

static __device__ __forceinline__ u64 share_of(float top_p, u64 total)
{
    const u64 want = (u64)ceil((double)top_p * (double)total);
    return want ? want : 1;
}

/* The histogram of the tokens up to `limit`, and where the first top_k of them (0: the share top_p of their mass) end.
 * Tokens so light that all together are far less than is cut off are only added up. */
template <int N> static __device__ crossing find_cut(row_view &r, u64 limit, int top_k, float top_p)
{
    const u64 light = (u64)((1.0 - (double)top_p) * 274877906944.0 /* 2^38 */ / r.vocab);
    u64 rest = 0;

    clear_bins(r.sm);
    each<N>(r, [&](int id, float v) {
        if (v != -INFINITY && (!limit || token_of(v, id) >= limit)) {
            const u64 m = top_k > 0 ? 0 : cut_mass(r, v);
            if (top_k > 0) {
                atomicAdd(&r.sm->low[bin_of(r, v)], 1u);
            } else if (m < light) {
                rest += m;
            } else {
                add_mass(r.sm, bin_of(r, v), m);
            }
        }
    });
    rest = warp_sum(rest);
    if (rest && (threadIdx.x & 31) == 0) {
        add_mass(r.sm, BINS - 1, rest);
    }
    return find_bin<N>(r, [&](u64 total) { return top_k > 0 ? (u64)top_k : share_of(top_p, total); });
}

/* The bin behind which none of the first top_k is: as many threads have their best token up to there. */
template <int N> static __device__ int find_few(row_view &r, float best, int top_k)
{
    clear_bins(r.sm);
    if (best != -INFINITY) {
        atomicAdd(&r.sm->low[bin_of(r, best)], 1u);
    }
    return find_bin<N>(r, [&](u64 total) { (void)total; return (u64)top_k; }).bin;
}

/* Right behind all_max of tokens: the top_k-th best of the warps' best ones. None of the first top_k is behind it, and not
 * many more are in front. 0: not so many warps have one. */
template <int N> static __device__ __forceinline__ u64 warps_bound(const row_view &r, int top_k)
{
    const u64 *slots = r.sm->slots[r.turn ^ 1];
    const int tid = threadIdx.x;

    if (tid == 0) {
        r.sm->bound = 0;
    }
    __syncthreads();
    if (tid < N * WARPS) {
        const u64 mine = slots[tid];
        int before = 0;
#pragma unroll 8
        for (int i = 0; i < N * WARPS; i++) {
            before += slots[i] > mine;
        }
        if (before == top_k - 1 && value_of(mine) != -INFINITY) {
            r.sm->bound = mine;
        }
    }
    __syncthreads();
    return r.sm->bound;
}

/* ---- a row ---- */

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

/* Forbids all but times where these are together more probable than the best of the rest; true: it did. */
template <int N> static __device__ bool weigh_times(row_view &r, int first)
{
    float text = -INFINITY, time = -INFINITY, sum = 0.0f;

    each<N>(r, [&](int id, float v) {
        if (id < first) {
            text = fmaxf(text, v);
        } else {
            time = fmaxf(time, v);
        }
    });
    text = value_of(all_max<N>(r, token_of(text, 0)));
    time = value_of(all_max<N>(r, token_of(time, 0)));
    if (time == -INFINITY) {
        return false; /* all threads do */
    }
    each<N>(r, [&](int id, float v) { sum += id < first ? 0.0f : expf(v - time); });
    sum = all_sum<N>(r, sum);
    if (!(time + logf(sum) > text)) {
        return false;
    }
    if constexpr (N > 1) {
        for (int i = (int)threadIdx.x * 4; i < r.n_held; i += THREADS * 4) {
            for (int k = i; k < i + 4 && r.first + k < first; k++) {
                r.held[k] = -INFINITY;
            }
        }
    } else {
        for (int i = threadIdx.x; i * 32 < first; i += THREADS) {
            r.ban[i] |= first - i * 32 >= 32 ? 0xffffffffu : (1u << (first - i * 32)) - 1;
        }
        __syncthreads();
    }
    return true;
}

/* The row's logits and what changes them; tokens that may not be chosen as bits in `ban`. */
template <int N>
static __device__ __forceinline__ row_view view_of(const sample_params &a, const nrd_sample_row &q, int row, int rank,
                                                   char *raw)
{
    const int tid = threadIdx.x;
    row_view r = {};
    r.sm = (sample_smem *)raw;
    r.rank = rank;
    r.vocab = a.vocab;
    r.first = rank * a.share;
    r.n = max(0, min(a.share, a.vocab - r.first));
    r.n_held = (r.n + 31) & ~31;
    r.vector = a.vector;
    r.held = (float *)(raw + sizeof(sample_smem));
    r.logits = a.logits + row * a.stride;
    r.bias = q.bias;
    r.bias_ids = q.bias_ids;
    r.n_bias = q.n_bias;
    r.counts = (q.flags & NRD_SAMPLE_COUNTS) && a.counts ? a.counts + (int64_t)q.slot * a.vocab : NULL;
    r.rep = q.repetition_penalty;
    r.presence = q.presence_penalty;
    r.frequency = q.frequency_penalty;
    const bool no_end = q.n_suppress_end > 0;
    const int n_banned = a.banned_ids ? q.n_banned : 0;
    const bool has_times = q.times.first > 0 && q.times.first < a.vocab;
    if (q.mask || no_end || n_banned > 0 || has_times) {
        r.ban = (uint32_t *)(r.held + (N > 1 ? a.share : 0));
        for (int i = tid; i < r.n_held / 32; i += THREADS) {
            const int word = r.first / 32 + i;
            r.ban[i] = (q.mask ? ~q.mask[word] : 0) | (has_times ? outside_times(q.times, word) : 0);
        }
        __syncthreads();
        for (int i = tid - 1; i < n_banned; i += THREADS) { /* -1: the end */
            const int id = i >= 0 ? a.banned_ids[q.banned_start + i] : no_end ? q.end_id : -1;
            if (id >= r.first && id < r.first + r.n) {
                atomicOr(&r.ban[(id - r.first) >> 5], 1u << (id & 31));
            }
        }
        __syncthreads();
    }
    return r;
}

/* This thread's best tokens; the block's part of the row into shared memory, if it has a place there. */
template <int N> static __device__ __forceinline__ tops load_row(const row_view &r, bool many, bool keep)
{
    tops best = NO_TOPS;
    each_read<N>(r, [&](int id, float4 v) {
        if (N > 1 && keep) {
            *(float4 *)(r.held + (id - r.first)) = v;
        }
        add_tops(&best, id, v, many);
    });
    const int tail = (r.n + 3) & ~3;
    if (N > 1 && tail + (int)threadIdx.x < r.n_held) {
        r.held[tail + threadIdx.x] = -INFINITY;
    }
    return best;
}

/* One thread: the choice. base: of log probabilities, the log of the sum of all. pick may be NRD_SAMPLE_NO_NUMBERS. */
static __device__ __forceinline__ void store_choice(const sample_params &a, const nrd_sample_row &q,
                                                    const row_view &r, int row, int pick, float v, float base,
                                                    float norm)
{
    a.out_ids[row] = pick;
    if (a.out_logprob && (q.flags & NRD_SAMPLE_LOGPROB)) {
        a.out_logprob[row] = v == -INFINITY ? -INFINITY : v - r.peak - base;
    }
    if (a.out_logprob_norm && (q.flags & NRD_SAMPLE_NORMALIZE)) {
        a.out_logprob_norm[row] = norm;
    }
    if (a.slot_tokens && !(q.flags & NRD_SAMPLE_NO_UPDATE)) {
        a.slot_tokens[q.slot] = max(pick, 0);
    }
}

/* Log probability of a choice among those that were kept, whose masses sum up to `total`. */
static __device__ __forceinline__ float kept_log_prob(const row_view &r, float v, u64 total)
{
    return (v - r.peak) * r.inv_t - logf((float)((double)total * (1.0 / 1099511627776.0)));
}

static __device__ __forceinline__ bool min_p_keeps(const nrd_sample_row &q, const row_view &r, float v)
{
    return q.min_p <= 0.0f || v == r.peak || __expf((v - r.peak) * r.inv_t) >= fminf(q.min_p, 1.0f);
}

static __device__ __forceinline__ u64 drawn(const nrd_sample_row &q, u64 total)
{
    return (u64)((double)nrd_sample_uniform(q.seed, q.draw) * (double)total) + 1;
}

/* One block: a draw among the n listed tokens. target: of a cut by mass alone. */
static __device__ __forceinline__ void draw_listed(const sample_params &a, const nrd_sample_row &q, row_view &r, int row,
                                                   int n, u64 target, bool some_k, bool some_p, float base)
{
    u64 *list = r.sm->list, total;
    const int tid = threadIdx.x;

    sort_list(list, n);
    n = some_k ? min(q.top_k, n) : n;
    const int i0 = 2 * tid, i1 = i0 + 1;
    u64 t0 = i0 < n ? list[i0] : 0, t1 = i1 < n ? list[i1] : 0;
    bool in0 = i0 < n && min_p_keeps(q, r, value_of(t0)), in1 = i1 < n && min_p_keeps(q, r, value_of(t1));
    if (some_p) {
        const u64 m0 = i0 < n ? cut_mass(r, value_of(t0)) : 0, m1 = i1 < n ? cut_mass(r, value_of(t1)) : 0;
        const u64 before = sum_before<1>(r, m0 + m1, &total);
        target = some_k ? share_of(q.top_p, total) : target;
        in0 = in0 && before < target;
        in1 = in1 && before + m0 < target;
    }
    n = __syncthreads_count(in0) + __syncthreads_count(in1); /* all cuts keep the first of the list */
    if (in0) {
        list[i0] = t0 << 32 | t0 >> 32;
    }
    if (in1) {
        list[i1] = t1 << 32 | t1 >> 32;
    }
    __syncthreads();
    sort_list(list, n); /* by id */
    t0 = i0 < n ? list[i0] << 32 | list[i0] >> 32 : 0;
    t1 = i1 < n ? list[i1] << 32 | list[i1] >> 32 : 0;
    const u64 w0 = i0 < n ? mass_of(r, value_of(t0)) : 0, w1 = i1 < n ? mass_of(r, value_of(t1)) : 0;
    const u64 before = sum_before<1>(r, w0 + w1, &total), want = drawn(q, total);
    if (before < want && before + w0 + w1 >= want) {
        const u64 pick = before + w0 >= want ? t0 : t1;
        const float v = value_of(pick);
        store_choice(a, q, r, row, id_of(pick), v, base, kept_log_prob(r, v, total));
    }
}

/* The draw of a row that is not greedy. bound: none of the first top_k is behind it; 0: not known. */
template <int N>
static __device__ __forceinline__ void draw_row(const sample_params &a, const nrd_sample_row &q, row_view &r, int row,
                                                const tops &best, u64 bound, float base)
{
    const bool some_k = q.top_k > 0 && q.top_k < a.vocab, some_p = q.top_p > 0.0f && q.top_p < 1.0f;
    crossing c = {0, 0, BINS};
    listed n = {LIST + 1, LIST + 1};
    u64 kept = 0, total, pick;

    const bool few = some_k && (bound || q.top_k <= N * THREADS / 8);
    if (bound) {
        c.bin = BINS - 1;
    } else if (few) {
        c.bin = find_few<N>(r, best.v[0], q.top_k);
    } else if (some_k || some_p) {
        c = find_cut<N>(r, 0, some_k ? q.top_k : 0, q.top_p);
    }
    if ((some_k || some_p) && !(few && c.bin == BINS)) {
        n = gather<N>(r, min(c.bin, BINS - 1), bound, best);
    }
    if (n.all <= LIST) {
        if (r.rank == 0) {
            draw_listed(a, q, r, row, n.all, c.target, some_k, some_p, base);
        }
        return;
    }
    if (few) { /* too many are as good as these */
        c = find_cut<N>(r, 0, q.top_k, 0.0f);
        n = gather<N>(r, min(c.bin, BINS - 1), 0, best);
    }
    if ((some_k || some_p) && c.bin < BINS) {
        kept = cut_in_bin<N>(r, c, 0, !some_k, n.in);
    }
    if (some_k && some_p) {
        c = find_cut<N>(r, kept, 0, q.top_p);
        if (c.bin < BINS) {
            kept = cut_in_bin<N>(r, c, kept, true, gather<N>(r, c.bin, kept, best).in);
        }
    }
    const bool is_mine = walk<N>(
        r,
        [&](int id, float v) -> u64 {
            return v == -INFINITY || token_of(v, id) < kept || !min_p_keeps(q, r, v) ? 0 : mass_of(r, v);
        },
        [&](u64 all) { return drawn(q, all); }, &total, &pick);
    if (is_mine) {
        const float v = value_of(pick);
        store_choice(a, q, r, row, id_of(pick), v, base, kept_log_prob(r, v, total));
    }
}

/* The best n_top, one pass each: n_top is small. */
template <int N>
static __device__ __forceinline__ void store_top(const sample_params &a, row_view &r, int row, float base)
{
    u64 above = ~0ull;
    for (int n = 0; n < a.n_top; n++) {
        u64 best = 0;
        each<N>(r, [&](int id, float v) {
            const u64 token = token_of(v, id);
            best = token < above && token > best ? token : best;
        });
        above = all_max<N>(r, best);
        if (r.rank == 0 && threadIdx.x == 0) {
            const float v = value_of(above);
            a.out_top_ids[(int64_t)row * a.n_top + n] = id_of(above);
            a.out_top_logprobs[(int64_t)row * a.n_top + n] = v == -INFINITY ? -INFINITY : v - r.peak - base;
        }
    }
}

/* The row's logits as they came: without what changes them. */
static __device__ __forceinline__ row_view raw_view(const row_view &r)
{
    row_view raw = r;
    raw.ban = NULL;
    raw.counts = NULL;
    raw.bias = NULL;
    return raw;
}

/* The best of them; what is no number does not count. */
template <int N> static __device__ __forceinline__ float raw_peak(row_view &r)
{
    float peak = -INFINITY;
    each_read<N>(raw_view(r), [&](int id, float4 v) { (void)id; peak = fmaxf(fmaxf(peak, fmaxf(v.x, v.y)), fmaxf(v.z, v.w)); });
    return value_of(all_max<N>(r, token_of(peak, 0)));
}

/* The log of the sum of the row's weights, less its best logit. Of all logits as they came (unmasked): their own best one
 * may be another. */
template <int N> static __device__ __forceinline__ float log_sum(row_view &r, bool unmasked)
{
    float peak = r.peak, sum = 0.0f;
    if (!unmasked) {
        each<N>(r, [&](int id, float v) { (void)id; sum += expf(v - peak); });
        return logf(all_sum<N>(r, sum));
    }
    peak = raw_peak<N>(r);
    each_read<N>(raw_view(r), [&](int id, float4 v) {
        (void)id;
        sum += expf(v.x - peak) + expf(v.y - peak) + expf(v.z - peak) + expf(v.w - peak);
    });
    return (peak - r.peak) + logf(all_sum<N>(r, sum));
}

template <int N> static __device__ __forceinline__ void sample_row(const sample_params &a)
{
    extern __shared__ __align__(16) char raw[];
    const int row = N > 1 ? blockIdx.y : blockIdx.x, rank = N > 1 ? (int)blockIdx.x : 0;
    float base = 0.0f;

    if constexpr (N > 1) {
        meet<N>(); /* nobody writes to a block that has not begun */
    }
    pdl_wait();
    pdl_go();
    const nrd_sample_row q = a.rows[row];
    row_view r = view_of<N>(a, q, row, rank, raw);
    const bool has_times = q.times.first > 0 && q.times.first < a.vocab;
    const bool want_sum = (q.flags & NRD_SAMPLE_LOGPROB) || a.n_top > 0;
    const bool one = q.temperature <= 0.0f || q.top_k == 1;
    tops mine = load_row<N>(r, !one, !one || has_times || want_sum);
    if (has_times && weigh_times<N>(r, q.times.first)) {
        mine = NO_TOPS;
        each_four<N>(r, [&](int id, float4 v) { add_tops(&mine, id, v, !one); });
    }
    const u64 best = all_max<N>(r, token_of(mine.v[0], mine.id[0]));
    r.peak = value_of(best);
    const bool any = r.peak != -INFINITY, greedy = one || !any;
    u64 bound = 0;
    if (N > 1 && !greedy && q.top_k > 0 && q.top_k <= WARPS_TOP_K) {
        bound = warps_bound<N>(r, q.top_k);
    }
    r.inv_t = greedy ? 1.0f : 1.0f / q.temperature;
    if (any && want_sum) {
        base = log_sum<N>(r, (q.flags & NRD_SAMPLE_UNMASKED) != 0);
    }
    int first = any ? id_of(best) : 0;
    if (!any && (q.flags & NRD_SAMPLE_TELLS) && raw_peak<N>(r) == -INFINITY) { /* the row is read again only here */
        first = NRD_SAMPLE_NO_NUMBERS;
    }
    if (!greedy) {
        draw_row<N>(a, q, r, row, mine, bound, base);
    } else if (rank == 0 && threadIdx.x == 0) {
        store_choice(a, q, r, row, first, r.peak, base, any ? 0.0f : -INFINITY);
    }
    store_top<N>(a, r, row, base);
}

template <int N> static __global__ void __launch_bounds__(THREADS, 2) sample_kernel(sample_params a)
{
    if constexpr (N == 1 || HAS_CLUSTERS) {
        sample_row<N>(a);
    }
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
        unsigned short *n = (unsigned short *)a.counts + (int64_t)q->slot * a.vocab + max(a.out_ids[row], 0);
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
    const int share = ((a->vocab + MAX_CLUSTER - 1) / MAX_CLUSTER + 31) & ~31;
    const size_t words = ((size_t)a->vocab + 31) / 32;
    const size_t held = sizeof(sample_smem) + (size_t)share * 4 + (size_t)share / 8;
    const bool cluster = s->dev->hopper && a->n_rows <= CLUSTER_ROWS && a->vocab >= SMALL_VOCAB && held <= s->dev->smem_max;
    const size_t smem = cluster ? held : sizeof(sample_smem) + words * 4;
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
    p.share = cluster ? share : (int)words * 32;
    if (cluster) {
        NRD_TRY(launch_cluster(s, sample_kernel<MAX_CLUSTER>, dim3(MAX_CLUSTER), dim3(MAX_CLUSTER, (unsigned)a->n_rows),
                               dim3(THREADS), smem, p));
    } else {
        NRD_TRY(launch(s, sample_kernel<1>, dim3((unsigned)a->n_rows), dim3(THREADS), smem, p));
    }
    if (a->counts) {
        return launch(s, sample_counts_kernel, dim3((unsigned)(a->n_rows + 127) / 128), dim3(128), 0,
                      p, (int)a->n_rows);
    }
    return NULL;
}
