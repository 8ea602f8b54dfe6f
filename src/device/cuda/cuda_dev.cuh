/* SPDX-License-Identifier: Apache-2.0
 * cuda_dev.cuh - what the files of the CUDA plug-in share: device and stream objects, launches.
 *
 * Purpose   Behind include/nereid/device.h. One nrd_device per opened GPU; each nrd_stream owns its
 *           scratch memory, so that two streams never share a buffer.
 * Owner     Device: shared (its pool list is behind a mutex). Stream: one thread at a time.
 * Errors    CUDA_TRY turns a failed runtime call into INTERNAL (or UNAVAILABLE: no memory).
 * Sources   CUDA C++ Programming Guide 13.0: "Programmatic Dependent Launch", "Graphs".
 */
#ifndef NRD_CUDA_DEV_CUH
#define NRD_CUDA_DEV_CUH

#include <cuda.h>
#include <cuda_runtime.h>

extern "C" {
#include "base/error.h"
}
#include "nereid/device.h"

#include <mutex>
#include <string>
#include <vector>

struct cublas_lt; /* gemm_cublaslt.cu */

struct pool_entry {
    void *p;
    uint64_t bytes;
    nrd_mem_kind kind;
    std::string pool;
};

/* Weights are cut from slabs in load order, so that matrices loaded one after the other (q, k, v or
 * gate, up) lie side by side and linear() can run them as one. */
struct weight_slab {
    char *base;
    size_t cap, used;
    int live; /* weights in it; the slab is freed with the last */
};

typedef CUresult (*tensor_map_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                         const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                         const cuuint32_t *, CUtensorMapInterleave,
                                         CUtensorMapSwizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill);

struct cuda_device {
    nrd_device base; /* first: what callers see */
    int id;
    int n_sm;
    int cc;          /* 10 * major + minor */
    bool hopper;     /* sm_90a kernels may run */
    size_t smem_max; /* opt-in bytes of shared memory a block */
    double mem_rate; /* bytes a second that a kernel reads: an estimate from the data sheet's numbers */
    char name[64];
    uint64_t mem_total;
    std::mutex mu;                   /* guards pools, slabs, lt, comms */
    std::vector<pool_entry> pools;
    std::vector<weight_slab> slabs;  /* matrices */
    std::vector<weight_slab> vslabs; /* scales */
    tensor_map_encode_fn encode;     /* NULL before Hopper */
    cublas_lt *lt;                   /* NULL: library absent, lt_why says why */
    std::string lt_why;
    std::vector<nrd_comm *> comms;
    nrd_device_ops ops;
};

struct nrd_stream {
    cuda_device *dev;
    cudaStream_t s;
    bool capturing;
    bool joined; /* the next kernel follows a wait for another stream: no early start */
    bool tuning; /* products try the library's kernels */
    /* Scratch, taken by reserve() or by the first operation that needs it. */
    char *split_ws; /* SPLIT_WS_BYTES: partial sums of split-K and split-KV */
    int *counters;  /* N_COUNTERS, all zero between kernels */
    void *lt_ws;    /* LT_WS_BYTES */
    char *tmp;      /* rows that wait for quantization */
    size_t tmp_bytes;
    /* Work beside this stream's: a stream with SIDE_WS_BYTES of scratch and counters of its own. */
    nrd_stream *side;
    cudaEvent_t forked, side_done;
};

struct nrd_event {
    cuda_device *dev;
    cudaEvent_t e;
};

struct nrd_graph {
    cuda_device *dev;
    cudaGraph_t g;
    cudaGraphExec_t x;
};

enum : size_t {
    SPLIT_WS_BYTES = (size_t)64 << 20,
    SIDE_WS_BYTES = (size_t)16 << 20,
    LT_WS_BYTES = (size_t)64 << 20, /* cuBLAS documentation: 32 MiB advised on Hopper */
};
enum { N_COUNTERS = 65536 };

nrd_error *nrd_cuda_fail(cudaError_t e, const char *what);
nrd_error *nrd_cuda_usable(void); /* NULL, or why no GPU can be opened in this process any more */
#define CUDA_TRY(expr)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_try_e_ = (expr);                                                          \
        if (cuda_try_e_ != cudaSuccess) {                                                          \
            return nrd_cuda_fail(cuda_try_e_, #expr);                                                  \
        }                                                                                          \
    } while (0)

/* pool.cu */
nrd_error *nrd_cuda_pool_alloc(nrd_device *d, void **out, nrd_mem_kind kind, size_t bytes, const char *pool);
void nrd_cuda_pool_free(nrd_device *d, nrd_mem_kind kind, void *p);
int32_t nrd_cuda_pool_report(nrd_device *d, nrd_mem_report *rows, int32_t max_rows);
nrd_error *nrd_cuda_slab_alloc(cuda_device *dev, std::vector<weight_slab> &slabs, size_t bytes, void **out);
void nrd_cuda_slab_free(cuda_device *dev, std::vector<weight_slab> &slabs, void *p, size_t bytes);

/* stream.cu */
void nrd_cuda_stream_fill_ops(nrd_device_ops *ops);
nrd_error *nrd_cuda_stream_scratch(nrd_stream *s);
nrd_error *nrd_cuda_stream_tmp(nrd_stream *s, size_t bytes, void **out);
/* *side: a stream whose next work follows what is in s; what is in s after stream_join follows both.
 * Also while s is captured, if reserve() was called before. */
nrd_error *nrd_cuda_stream_fork(nrd_stream *s, nrd_stream **side);
nrd_error *nrd_cuda_stream_join(nrd_stream *s);

/* comm.cu, comm_ops.cu: ranks */
void nrd_cuda_comm_fill_ops(nrd_device_ops *ops);
nrd_error *nrd_cuda_comm_health(cuda_device *dev); /* UNAVAILABLE: a rank was lost, what was computed is void */
nrd_error *nrd_cuda_all_reduce(nrd_stream *s, const nrd_all_reduce_args *a);
nrd_error *nrd_cuda_gather(nrd_stream *s, const nrd_gather_args *a);
nrd_error *nrd_cuda_broadcast(nrd_stream *s, const nrd_broadcast_args *a);
/* pipes.cu */
nrd_error *nrd_cuda_send(nrd_stream *s, const nrd_transfer_args *a);
nrd_error *nrd_cuda_receive(nrd_stream *s, const nrd_transfer_args *a);
/* norm_ranks.cu */
nrd_error *nrd_cuda_all_reduce_norm(nrd_stream *s, const nrd_all_reduce_norm_args *a);

/* limits.cu */
bool nrd_cuda_has_code(void); /* the current GPU can run what this file was compiled to */
nrd_error *nrd_cuda_limits(nrd_device *d, nrd_device_limits *out);

/* weight.cu */
void nrd_cuda_weight_fill_ops(nrd_device_ops *ops);

/* gemm_cublaslt.cu: y = x W^T with the scales of both, no bias. UNSUPPORTED: take another way. */
struct lt_problem {
    int64_t m, n, k; /* rows of W, tokens, columns */
    const void *w, *x;
    nrd_dtype in_dtype, y_dtype;
    /* F8_E4M3: a row's, a token's; or both NULL: the numbers alone are multiplied. F8_B128, E4M3 numbers too: of 128 columns, as
     * packed.cuh has them; square_blocks: W's are those of 128 rows. */
    const float *w_scale, *x_scale;
    bool square_blocks;
    void *y;
    int64_t ldy;

    bool is_plain_f8() const { return in_dtype == NRD_DTYPE_F8_E4M3 && !w_scale; }
};
cublas_lt *nrd_cuda_lt_open(const char *file, const char *gpu, std::string *why); /* file: may be NULL */
void nrd_cuda_lt_close(cublas_lt *lt);
void nrd_cuda_lt_save(cublas_lt *lt); /* the choices that are new, to the file */
nrd_error *nrd_cuda_lt_run(nrd_stream *s, const lt_problem *p);
/* gemm_tune.cu: tries kernels for p unless one is chosen, and runs the product; waits. */
nrd_error *nrd_cuda_lt_tune(nrd_stream *s, const lt_problem *p);

/* ops */
nrd_error *nrd_cuda_embed(nrd_stream *s, const nrd_embed_args *a);
nrd_error *nrd_cuda_add_rows(nrd_stream *s, const nrd_add_rows_args *a);
nrd_error *nrd_cuda_sum_spans(nrd_stream *s, const nrd_sum_spans_args *a);
nrd_error *nrd_cuda_clamp(nrd_stream *s, const nrd_clamp_args *a);
nrd_error *nrd_cuda_matmul(nrd_stream *s, const nrd_matmul_args *a);
nrd_error *nrd_cuda_norm(nrd_stream *s, const nrd_norm_args *a);
nrd_error *nrd_cuda_linear(nrd_stream *s, const nrd_linear_args *a);
nrd_error *nrd_cuda_linear_tune(nrd_stream *s, const nrd_linear_args *a, void *x, double seconds);
nrd_error *nrd_cuda_linear_gated(nrd_stream *s, const nrd_linear_args *a, nrd_act_kind act, bool *done);
nrd_error *nrd_cuda_linear_joined(nrd_stream *s, const nrd_joined_args *a, bool *done);
nrd_error *nrd_cuda_moe_linear_gated(nrd_stream *s, const nrd_moe_linear_args *a, nrd_act_kind act, bool *done);
nrd_error *nrd_cuda_rope_kv(nrd_stream *s, const nrd_rope_kv_args *a);
nrd_error *nrd_cuda_attention(nrd_stream *s, const nrd_attention_args *a);
nrd_error *nrd_cuda_act(nrd_stream *s, const nrd_act_args *a);
nrd_error *nrd_cuda_sample(nrd_stream *s, const nrd_sample_args *a);
nrd_error *nrd_cuda_linear_sample(nrd_stream *s, const nrd_linear_args *l, const nrd_rough_weight *rough,
                                  const nrd_sample_args *a);
nrd_error *nrd_cuda_counts(nrd_stream *s, const nrd_counts_args *a);
nrd_error *nrd_cuda_copy_blocks(nrd_stream *s, const nrd_copy_blocks_args *a);
nrd_error *nrd_cuda_move_tokens(nrd_stream *s, const nrd_move_tokens_args *a);
nrd_error *nrd_cuda_lora(nrd_stream *s, const nrd_lora_args *a);
nrd_error *nrd_cuda_moe_route(nrd_stream *s, const nrd_moe_route_args *a);
nrd_error *nrd_cuda_moe_linear(nrd_stream *s, const nrd_moe_linear_args *a);
nrd_error *nrd_cuda_moe_sum(nrd_stream *s, const nrd_moe_sum_args *a);
nrd_error *nrd_cuda_latent_kv(nrd_stream *s, const nrd_latent_kv_args *a);
nrd_error *nrd_cuda_latent_attention(nrd_stream *s, const nrd_latent_attention_args *a);
nrd_error *nrd_cuda_short_conv(nrd_stream *s, const nrd_short_conv_args *a);
nrd_error *nrd_cuda_ssm(nrd_stream *s, const nrd_ssm_args *a);
nrd_error *nrd_cuda_delta_rule(nrd_stream *s, const nrd_delta_rule_args *a);
nrd_error *nrd_cuda_gated_norm(nrd_stream *s, const nrd_gated_norm_args *a);
nrd_error *nrd_cuda_rg_lru(nrd_stream *s, const nrd_rg_lru_args *a);
nrd_error *nrd_cuda_altup_predict(nrd_stream *s, const nrd_altup_predict_args *a);
nrd_error *nrd_cuda_altup_correct(nrd_stream *s, const nrd_altup_correct_args *a);
nrd_error *nrd_cuda_altup_match(nrd_stream *s, const nrd_altup_match_args *a);
/* moe_linear_hopper.cu. The parts' columns of y begin at y_off of rows y_stride apart. *done = false: not for this shape. */
nrd_error *nrd_cuda_moe_linear_hopper(nrd_stream *s, const nrd_moe_linear_args *a, int64_t y_stride, int64_t y_off, bool *done);
/* linear_hopper.cu: the same with many rows an expert. */
nrd_error *nrd_cuda_moe_linear_wide(nrd_stream *s, const nrd_moe_linear_args *a, nrd_act_kind act, int64_t y_stride, int64_t y_off, bool *done);
/* x sorted by pair, in the stream's scratch memory; row_bytes a multiple of 16. */
nrd_error *nrd_cuda_moe_sort_rows(nrd_stream *s, const nrd_moe_linear_args *a, size_t row_bytes, const void **x);

/* linear_skinny.cu: 1..64 rows at memory speed on Hopper. *done = false: not for this shape. */
nrd_error *nrd_cuda_linear_skinny(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt, bool *done);
/* head_norm.cu: the norm of rope_kv where it is of all heads together; in place */
nrd_error *nrd_cuda_head_norm(nrd_stream *s, const nrd_rope_kv_args *a);
nrd_error *nrd_cuda_head_squares(nrd_stream *s, const nrd_head_squares_args *a);
nrd_error *nrd_cuda_kv_rows(nrd_stream *s, const nrd_kv_rows_args *a);
/* act.cu: rows of act dtype -> F8 with a scale each */
nrd_error *nrd_cuda_row_quant(nrd_stream *s, const void *x, nrd_dtype dtype, int32_t n_rows, int32_t cols,
                     void *out, float *out_scale);
/* attention_*.cu write rows of o_dtype (an activation type) to out. *done = false: not for this shape.
 * decode takes the sequences whose new tokens x heads of a KV head fit 16 rows, prefill the others.
 * With n_single > 0 decode takes just the first so many, of one token each, prefill all behind.
 * decode may write a->out in F8 itself (*quantized; NULL: it must not).
 * ring takes the first n_seqs, of one token each, on n_blocks multiprocessors; prefill_hopper keeps
 * to n_blocks of them (0: all). */
enum { DECODE_ROWS = 16 };
nrd_error *nrd_cuda_attention_decode(nrd_stream *s, const nrd_attention_args *a, void *out, nrd_dtype o_dtype,
                            int n_single, bool *done, bool *quantized);
nrd_error *nrd_cuda_attention_prefill_hopper(nrd_stream *s, const nrd_attention_args *a, void *out,
                                    nrd_dtype o_dtype, int n_single, int n_blocks, bool *done);
/* attention_one.cu: one token of one sequence, to an activation type. *done = false: not for this shape. */
nrd_error *nrd_cuda_attention_one(nrd_stream *s, const nrd_attention_args *a, bool *done);
nrd_error *nrd_cuda_rope_attention(nrd_stream *s, const nrd_rope_kv_args *k, const nrd_attention_args *a, bool *done);
bool nrd_cuda_attention_ring_fits(const nrd_stream *s, const nrd_attention_args *a, nrd_dtype o_dtype,
                         int n_seqs);
nrd_error *nrd_cuda_attention_ring(nrd_stream *s, const nrd_attention_args *a, void *out, nrd_dtype o_dtype,
                          int n_seqs, int n_blocks);
nrd_error *nrd_cuda_attention_prefill(nrd_stream *s, const nrd_attention_args *a, void *out,
                             nrd_dtype o_dtype, int n_single, bool *done);

/* Launches with programmatic stream serialization on Hopper: the kernel may start while its predecessor drains;
 * it must execute pdl_wait() before it touches anything a kernel wrote. cluster: of blocks; NULL: none. */
template <typename... P, typename... A>
static inline nrd_error *launch_with(nrd_stream *s, void (*kernel)(P...), const dim3 *cluster, dim3 grid,
                                     dim3 block, size_t smem, A &&...args)
{
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute attr[2];
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = s->s;
    cfg.attrs = attr;
    if (cluster) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[cfg.numAttrs].val.clusterDim.x = cluster->x;
        attr[cfg.numAttrs].val.clusterDim.y = cluster->y;
        attr[cfg.numAttrs].val.clusterDim.z = cluster->z;
        cfg.numAttrs++;
    }
    if (s->dev->cc >= 90 && !s->joined) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[cfg.numAttrs].val.programmaticStreamSerializationAllowed = 1;
        cfg.numAttrs++;
    }
    s->joined = false;
    if (smem > 48 * 1024) {
        CUDA_TRY(cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    }
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, P(args)...));
    return NULL;
}

/* In clusters, of one block too: that is not a launch without clusters. Blocks of some 100 KB that follow a kernel
 * which still drains are placed otherwise then (docs/performance/gpu-kernels.md). */
template <typename... P, typename... A>
static inline nrd_error *launch_cluster(nrd_stream *s, void (*kernel)(P...), dim3 cluster, dim3 grid,
                                        dim3 block, size_t smem, A &&...args)
{
    return launch_with(s, kernel, &cluster, grid, block, smem, args...);
}

template <typename... P, typename... A>
static inline nrd_error *launch(nrd_stream *s, void (*kernel)(P...), dim3 grid, dim3 block,
                                size_t smem, A &&...args)
{
    return launch_with(s, kernel, (const dim3 *)NULL, grid, block, smem, args...);
}

#endif
