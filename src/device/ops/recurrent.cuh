/* SPDX-License-Identifier: Apache-2.0
 * recurrent.cuh - what kernels of layers with a state share: where a sequence begins, gates. */
#ifndef NRD_OPS_RECURRENT_CUH
#define NRD_OPS_RECURRENT_CUH

#include "device/ops/common.cuh"

/* Where a sequence begins and what becomes of its state. */
struct seq_view {
    const int *positions, *q_start, *slot;
};

struct seq_range {
    int first, end, slot;
    bool begins; /* with zeros */
};

static inline seq_view view_of(const nrd_batch_view *b)
{
    return {b->positions, b->q_start, b->state_slot};
}

static __device__ __forceinline__ seq_range range_of(const seq_view &v, int seq)
{
    seq_range r = {v.q_start[seq], v.q_start[seq + 1], v.slot[seq], true};
    if (r.first < r.end) {
        r.begins = r.slot < 0 || v.positions[r.first] == 0;
    }
    return r;
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

static __device__ __forceinline__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(__expf(x));
}

/* recurrent_chunk.cu: sequences with at least RECURRENT_CHUNK_MIN new tokens, in chunks; the others are left alone.
 * *out_done: the kernel runs; false: activations of 32 bits, or more shared memory than there is. */
enum { RECURRENT_CHUNK_MIN = 16 };
nrd_error *nrd_cuda_ssm_chunks(nrd_stream *s, const nrd_ssm_args *a, bool *out_done);
nrd_error *nrd_cuda_delta_chunks(nrd_stream *s, const nrd_delta_rule_args *a, bool *out_done);

#endif
