/* SPDX-License-Identifier: Apache-2.0
 * moe_tiles.cuh - which pairs of which expert a block of a grid has. How many pairs each expert has only the device knows, so
 * the grid is as large as any routing needs. */
#ifndef NRD_OPS_MOE_TILES_CUH
#define NRD_OPS_MOE_TILES_CUH

#include "device/ops/common.cuh"

struct pair_tile {
    int32_t expert, from, to;
};

/* As many tiles of `size` pairs as any routing needs. */
static inline int64_t most_pair_tiles(int64_t n_pairs, int64_t n_experts, int64_t size)
{
    return n_pairs / size + (n_pairs < n_experts ? n_pairs : n_experts);
}

/* A block's first warp: table[e] = the tiles of `size` pairs that experts up to and with e have. By reference: where these lie in a kernel's
 * parameters they need no registers. */
static __device__ __forceinline__ void count_pair_tiles(const int32_t *const &first, const int32_t &n_experts, int32_t size, int32_t *const &table)
{
    const int lane = threadIdx.x;
    int before = 0;

    for (int e0 = 0; e0 < n_experts; e0 += 32) {
        const int e = e0 + lane;
        int sum = e < n_experts ? (first[e + 1] - first[e] + size - 1) / size : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int v = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? v : 0;
        }
        sum += before;
        if (e < n_experts) {
            table[e] = sum;
        }
        before = __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* Tile `slot` of all experts' pairs; false: there are fewer. All lanes of a warp; every warp comes to the same result. */
static __device__ __forceinline__ bool find_pair_tile(const int32_t *first, int32_t n_experts, int32_t slot, int32_t size, pair_tile *out)
{
    const int lane = threadIdx.x % 32;

    for (int32_t base = 0; base < n_experts; base += 32) {
        const int32_t e = base + lane, lo = e < n_experts ? first[e] : 0, hi = e < n_experts ? first[e + 1] : 0;
        const int32_t n = (hi - lo + size - 1) / size;
        int32_t sum = n; /* of this lane's and those before */
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int32_t v = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? v : 0;
        }
        const uint32_t here = __ballot_sync(0xffffffffu, slot < sum && slot >= sum - n);
        if (here) {
            const int src = __ffs((int)here) - 1;
            const int32_t begin = __shfl_sync(0xffffffffu, lo, src), end = __shfl_sync(0xffffffffu, hi, src);
            const int32_t before = __shfl_sync(0xffffffffu, sum - n, src);
            out->expert = base + src;
            out->from = begin + (slot - before) * size;
            out->to = min(end, out->from + size);
            return true;
        }
        slot -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

#endif
