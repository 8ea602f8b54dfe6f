/* SPDX-License-Identifier: Apache-2.0
 * cluster.cuh - a row over the few blocks of a cluster: what each warp found of it goes to all of them.
 *
 * Purpose   Kernels between two products of one token are nothing but latency: one block brings a long
 *           row in slowly, and several blocks that meet in global memory meet slowly. Here a warp writes
 *           a pair of floats into the shared memory of every block of its cluster, and each block waits
 *           for all of them on a barrier of its own: one trip between multiprocessors, no handshake.
 * Use       share_begin before pdl_wait (the blocks wait for each other's start there), share_put once a
 *           warp, share_wait, then everybody reads all slots, in the same order. Clusters of one block
 *           meet at __syncthreads. Hopper only.
 * Sources   PTX ISA 9.0: "st.async", "mapa", "mbarrier.try_wait", "barrier.cluster".
 */
#ifndef NRD_OPS_CLUSTER_CUH
#define NRD_OPS_CLUSTER_CUH

#include "device/ops/hopper.cuh"

enum { MAX_CLUSTER = 8 }; /* blocks; what every device of sm_90 grants */

/* Kernels for few tokens, up to this many, where nothing else is measured. */
enum { FEW_ROWS = 8 };

/* n: pairs that will arrive in this block, from all. */
static __device__ __forceinline__ void share_begin(uint64_t *bar, int n, int n_blocks)
{
#if __CUDA_ARCH__ >= 900
    if (n_blocks > 1) {
        if (threadIdx.x == 0) {
            mbar_init(smem_u32(bar), 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            mbar_expect(smem_u32(bar), (uint32_t)n * 8);
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
#else
    (void)bar, (void)n, (void)n_blocks;
#endif
}

/* The pair to slot `at` of block `to`. */
static __device__ __forceinline__ void share_send(float2 *slots, uint64_t *bar, int at, float2 v, int to)
{
#if __CUDA_ARCH__ >= 900
    uint32_t there, arrived;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem_u32(slots + at)), "r"(to));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrived) : "r"(smem_u32(bar)), "r"(to));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(there), "f"(v.x), "f"(v.y), "r"(arrived)
                 : "memory");
#else
    (void)slots, (void)bar, (void)at, (void)v, (void)to;
#endif
}

/* The warp's pair (the same in all its lanes) to slot `at` of every block. */
static __device__ __forceinline__ void share_put(float2 *slots, uint64_t *bar, int at, float2 v,
                                                 int n_blocks)
{
    const int lane = threadIdx.x & 31;

    if (n_blocks == 1) {
        if (lane == 0) {
            slots[at] = v;
        }
    } else if (lane < n_blocks) {
        share_send(slots, bar, at, v, lane);
    }
}

/* Nobody may leave before: others write here until then. */
static __device__ __forceinline__ void share_wait(uint64_t *bar, int n_blocks)
{
    if (n_blocks == 1) {
        __syncthreads();
    } else {
        mbar_wait(smem_u32(bar), 0);
    }
}

/* Eight 16-bit elements as they come, and as numbers. */
static __device__ __forceinline__ uint4 load_raw(const void *p)
{
    return *(const uint4 *)p;
}

template <typename T> static __device__ __forceinline__ void raw_to_f(uint4 raw, float *v)
{
    T t[8];
    memcpy(t, &raw, 16);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = to_f(t[k]);
    }
}

/* A launch where n blocks along x are a row and a cluster, rows along y. */
template <typename... P, typename... A>
static inline nrd_error *launch_rows(nrd_stream *s, void (*kernel)(P...), int n, int rows, int threads,
                                     A &&...args)
{
    const dim3 grid((unsigned)n, (unsigned)rows), block((unsigned)threads);
    return n == 1 ? launch(s, kernel, grid, block, 0, args...)
                  : launch_cluster(s, kernel, dim3((unsigned)n), grid, block, 0, args...);
}

/* Blocks for a row of `vecs` vectors, about `threads` of them a block: a power of two. */
static inline int cluster_blocks(int vecs, int threads)
{
    int n = 1;
    while (n < MAX_CLUSTER && n * threads < vecs) {
        n *= 2;
    }
    return n;
}

#endif
