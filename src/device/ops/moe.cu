/* SPDX-License-Identifier: Apache-2.0
 * Mixture of experts: which experts tokens take, and the sum of what these gave; their products are moe_linear.cu.
 *
 * route_kernel  a warp a token: scores in shared memory, the best one top_k times.
 *               With few tokens its only block sorts the pairs too.
 * sort_kernel   a block an expert: one pass counts the pairs of the experts before it, which says where its own
 *               begin; a second one puts its pairs there in their order. No block waits for another, and
 *               the order is the same in every run.
 * sum_kernel    a block takes 1024 columns of a token; experts in the order of their ranks.
 */
#include "device/ops/common.cuh"

enum { ROUTE_WARPS = 4, SORT_THREADS = 256, SUM_THREADS = 256, SUM_COLS = 1024 };

struct route_params {
    const float *logits, *bias, *expert_scale;
    int64_t stride;
    int32_t n_tokens, n_experts, top_k, n_groups, top_groups;
    bool group_max;
    int32_t score;
    bool normalize;
    float scale, jitter;
    int32_t *expert;
    float *weight;
    int32_t *first, *token, *place;
};

struct candidate {
    float value;
    int32_t id;
};

/* The highest of a warp's candidates, the lowest id where several are; all lanes get it. */
static __device__ __forceinline__ candidate warp_best(candidate c)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float v = __shfl_xor_sync(0xffffffffu, c.value, step);
        const int32_t id = __shfl_xor_sync(0xffffffffu, c.id, step);
        if (v > c.value || (v == c.value && id < c.id)) {
            c = {v, id};
        }
    }
    return c;
}

static __device__ __forceinline__ candidate best_of(const float *x, int32_t n, int lane)
{
    candidate c = {-INFINITY, INT32_MAX};
    for (int32_t i = lane; i < n; i += 32) {
        if (x[i] > c.value) {
            c = {x[i], i};
        }
    }
    return warp_best(c);
}

/* Experts outside of the best groups become -inf. One lane a group: there are few, of few experts. */
static __device__ void keep_groups(const route_params &a, float *rank, float *group, int lane)
{
    const int32_t each = a.n_experts / a.n_groups;

    for (int32_t g = lane; g < a.n_groups; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = g * each; i < (g + 1) * each; i++) {
            second = fmaxf(second, fminf(first, rank[i]));
            first = fmaxf(first, rank[i]);
        }
        group[g] = each > 1 && !a.group_max ? first + second : first;
    }
    __syncwarp();
    for (int32_t j = 0; j < a.top_groups; j++) { /* a group that is taken is +inf from then on */
        candidate c = {-INFINITY, INT32_MAX};
        for (int32_t g = lane; g < a.n_groups; g += 32) {
            if (group[g] < INFINITY && group[g] > c.value) {
                c = {group[g], g};
            }
        }
        c = warp_best(c);
        if (lane == 0 && c.id < a.n_groups) {
            group[c.id] = INFINITY;
        }
        __syncwarp();
    }
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        rank[e] = group[e / each] < INFINITY ? -INFINITY : rank[e];
    }
    __syncwarp();
}

/* A choice's weight is its share of those logits that are near it and not taken yet. rank: room. */
static __device__ void sparsemixer(const route_params &a, int64_t t, const float *x, float *rank, int lane)
{
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        rank[e] = x[e];
    }
    __syncwarp();
    for (int32_t j = 0; j < a.top_k; j++) {
        const candidate c = best_of(rank, a.n_experts, lane);
        const int32_t e = c.id < a.n_experts ? c.id : j;
        const float top = x[e];
        float sum = 0.0f;
        for (int32_t i = lane; i < a.n_experts; i += 32) {
            const bool is_near = (top - x[i]) / fmaxf(fabsf(x[i]), top) <= 2.0f * a.jitter;
            sum += i != e && isfinite(rank[i]) && is_near ? expf(x[i] - top) : 0.0f;
        }
        sum = warp_reduce<op_sum>(sum);
        if (lane == 0) {
            rank[e] = -INFINITY;
            a.expert[t * a.top_k + j] = e;
            a.weight[t * a.top_k + j] = a.scale / (1.0f + sum);
        }
        __syncwarp();
    }
}

/* A warp's token. s: room for two floats an expert and one a group. */
static __device__ void route_token(const route_params &a, int64_t t, float *s, int lane)
{
    const float *x = a.logits + t * a.stride;
    float *rank = s + a.n_experts, *group = rank + a.n_experts;
    float top = -INFINITY, sum = 0.0f;

    if (a.score == NRD_MOE_SPARSEMIXER) {
        sparsemixer(a, t, x, rank, lane);
        return;
    }
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        top = fmaxf(top, x[e]);
    }
    top = warp_best({top, lane}).value;
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        s[e] = a.score == NRD_MOE_SIGMOID ? 1.0f / (1.0f + expf(-x[e])) : expf(x[e] - top);
        sum += s[e];
    }
    sum = warp_reduce<op_sum>(sum);
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        s[e] = a.score == NRD_MOE_SIGMOID ? s[e] : s[e] / sum;
        rank[e] = s[e] + (a.bias ? a.bias[e] : 0.0f);
    }
    __syncwarp();
    if (a.n_groups > 1) {
        keep_groups(a, rank, group, lane);
    }
    sum = 0.0f;
    for (int32_t j = 0; j < a.top_k; j++) {
        const candidate c = best_of(rank, a.n_experts, lane);
        const int32_t e = c.id < a.n_experts ? c.id : j; /* no number among the logits: any expert */
        sum += s[e];
        if (lane == 0) {
            rank[e] = -INFINITY;
            a.expert[t * a.top_k + j] = e;
            a.weight[t * a.top_k + j] = s[e];
        }
        __syncwarp();
    }
    for (int32_t j = lane; j < a.top_k; j += 32) { /* behind a __syncwarp: what lane 0 wrote is seen */
        float *w = a.weight + t * a.top_k + j;
        *w = (a.normalize ? *w / sum : *w) * a.scale * (a.expert_scale ? a.expert_scale[a.expert[t * a.top_k + j]] : 1.0f);
    }
}

/* What sort_kernel does, for no more pairs than the block has threads, whose experts the block has written. */
static __device__ void sort_few(const route_params &a, int32_t *expert)
{
    const int32_t n_pairs = a.n_tokens * a.top_k, i = threadIdx.x;

    __syncthreads();
    if (i < n_pairs) {
        expert[i] = a.expert[i];
    }
    __syncthreads();
    for (int32_t e = i; e <= a.n_experts; e += blockDim.x) {
        int32_t before = 0;
        for (int32_t k = 0; k < n_pairs; k++) {
            before += expert[k] < e;
        }
        a.first[e] = before;
    }
    if (i < n_pairs) {
        int32_t before = 0;
        for (int32_t k = 0; k < n_pairs; k++) {
            before += expert[k] < expert[i] || (expert[k] == expert[i] && k < i);
        }
        a.token[before] = i / a.top_k;
        a.place[i] = before;
    }
}

static __global__ void __launch_bounds__(ROUTE_WARPS * 32) route_kernel(route_params a)
{
    extern __shared__ float room[];
    __shared__ int32_t expert[ROUTE_WARPS * 32];
    const int warp = threadIdx.x / 32;
    const int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + warp;

    pdl_wait();
    pdl_go();
    if (t < a.n_tokens) {
        route_token(a, t, room + warp * (2 * a.n_experts + a.n_groups), threadIdx.x % 32);
    }
    if (gridDim.x == 1) {
        sort_few(a, expert);
    }
}

/* How many of the block's threads before this one say yes; *all: of the block. */
static __device__ __forceinline__ int32_t rank_in_block(bool yes, int32_t *warps, int32_t *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t votes = __ballot_sync(0xffffffffu, yes);
    int32_t before = 0;

    if (lane == 0) {
        warps[warp] = __popc(votes);
    }
    __syncthreads();
    *all = 0;
    for (int w = 0; w < SORT_THREADS / 32; w++) {
        before += w < warp ? warps[w] : 0;
        *all += warps[w];
    }
    __syncthreads();
    return before + __popc(votes & ((1u << lane) - 1));
}

static __global__ void __launch_bounds__(SORT_THREADS) sort_kernel(nrd_moe_pairs p, int32_t n_pairs)
{
    __shared__ int32_t warps[SORT_THREADS / 32];
    const int32_t e = blockIdx.x;
    int32_t first = 0, all;

    pdl_wait();
    pdl_go();
    for (int32_t i = 0; i < n_pairs; i += SORT_THREADS) {
        const int32_t at = i + threadIdx.x;
        first += __syncthreads_count(at < n_pairs && p.expert[at] < e);
    }
    if (threadIdx.x == 0) {
        p.first[e] = first;
        if (e == p.n_experts - 1) {
            p.first[p.n_experts] = n_pairs;
        }
    }
    for (int32_t i = 0; i < n_pairs; i += SORT_THREADS) {
        const int32_t at = i + threadIdx.x;
        const bool mine = at < n_pairs && p.expert[at] == e;
        const int32_t place = first + rank_in_block(mine, warps, &all);
        if (mine) {
            p.token[place] = at / p.top_k;
            p.place[at] = place;
        }
        first += all;
    }
}

nrd_error *nrd_cuda_moe_route(nrd_stream *s, const nrd_moe_route_args *a)
{
    const nrd_moe_pairs *p = &a->pairs;
    const route_params r = {a->logits, a->bias, a->expert_scale, a->logits_stride, a->n_tokens, p->n_experts, p->top_k, a->n_groups,
                            a->top_groups, a->group_max, (int32_t)a->score, a->normalize, a->scale, a->jitter, p->expert, p->weight,
                            p->first, p->token, p->place};
    const size_t room = (size_t)ROUTE_WARPS * (size_t)(2 * p->n_experts + a->n_groups) * sizeof(float);

    if (p->n_experts < 1 || p->n_experts > NRD_MOE_MAX_EXPERTS || p->top_k < 1 || p->top_k > p->n_experts || p->top_k > NRD_MOE_MAX_TOP_K ||
        a->n_groups < 1 || p->n_experts % a->n_groups || a->score > NRD_MOE_SPARSEMIXER || room > 48 << 10) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: moe_route: %d of %d experts in %d groups, score %d", p->top_k,
                          p->n_experts, a->n_groups, (int)a->score);
    }
    if (a->n_tokens <= 0) {
        return NULL;
    }
    const dim3 grid((unsigned)((a->n_tokens + ROUTE_WARPS - 1) / ROUTE_WARPS));
    NRD_TRY(launch(s, route_kernel, grid, dim3(ROUTE_WARPS * 32), room, r));
    if (grid.x == 1) {
        return NULL;
    }
    return launch(s, sort_kernel, dim3((unsigned)p->n_experts), dim3(SORT_THREADS), 0, *p, a->n_tokens * p->top_k);
}

/* ---- sum ---- */

template <typename T> static __global__ void __launch_bounds__(SUM_THREADS) sum_kernel(nrd_moe_sum_args a)
{
    const int64_t t = blockIdx.x;
    const nrd_moe_pairs &p = a.pairs;

    pdl_wait();
    pdl_go();
    const float gate = a.shared_gate ? 1.0f / (1.0f + expf(-a.shared_gate[t * a.gate_stride])) : 1.0f;
    const int32_t first = p.first[0], end = p.first[p.n_experts];
    for (int i = threadIdx.x; i < SUM_COLS; i += SUM_THREADS) {
        const int64_t c = (int64_t)blockIdx.y * SUM_COLS + i;
        if (c >= a.hidden) {
            return;
        }
        float sum = a.shared ? gate * to_f(((const T *)a.shared)[t * a.hidden + c]) : 0.0f;
        for (int32_t j = 0; j < p.top_k; j++) {
            const int64_t pair = p.place[t * p.top_k + j];
            if (pair < first || pair >= end) {
                continue; /* another rank's */
            }
            sum += (p.weight ? p.weight[t * p.top_k + j] : 1.0f) * to_f(((const T *)a.y)[pair * a.hidden + c]);
        }
        ((T *)a.out)[t * a.hidden + c] = from_f<T>(sum);
    }
}

nrd_error *nrd_cuda_moe_sum(nrd_stream *s, const nrd_moe_sum_args *a)
{
    if (a->hidden <= 0 || !is_act_dtype(a->act_dtype)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: moe_sum: %d columns of dtype %d", a->hidden, (int)a->act_dtype);
    }
    if (a->n_tokens <= 0) {
        return NULL;
    }
    const dim3 grid((unsigned)a->n_tokens, (unsigned)((a->hidden + SUM_COLS - 1) / SUM_COLS));
    ACT_TYPE(a->act_dtype, return launch(s, sum_kernel<T>, grid, dim3(SUM_THREADS), 0, *a));
}
