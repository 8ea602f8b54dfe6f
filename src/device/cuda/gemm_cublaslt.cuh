/* SPDX-License-Identifier: Apache-2.0
 * gemm_cublaslt.cuh - the library handle and one product's descriptors, for the files that run products
 * and choose kernels for them. */
#ifndef NRD_CUDA_GEMM_CUBLASLT_CUH
#define NRD_CUDA_GEMM_CUBLASLT_CUH

#include "device/cuda/cuda_dev.cuh"
#include "device/cuda/gemm_plans.cuh"

#include <atomic>

#define LT_SYMBOLS(X)                                                                              \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)

struct lt_recents; /* gemm_cublaslt.cu */

struct cublas_lt {
    void *dl;
    cublasLtHandle_t handle;
    std::mutex mu; /* guards plans, guesses, changed, recents */
    std::atomic<uint32_t> n_choices; /* made so far: a kernel that was looked up before is looked up again behind a new one */
    plan_table plans, guesses; /* tried; the library's own choices, not kept */
    bool changed; /* since the file was read or written */
    std::map<const nrd_stream *, lt_recents *> recents; /* what each stream keeps, which alone uses it */
    std::string file, machine; /* file: empty if none is kept */
#define X(name) decltype(&::name) name;
    LT_SYMBOLS(X)
#undef X
};

/* Descriptors of p, whose pointers are taken over. Freed by the destructor. */
struct lt_op {
    cublas_lt *const lt;
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, d = NULL;
    cublasLtMatmulPreference_t pref = NULL;

    explicit lt_op(cublas_lt *l) : lt(l) {}
    lt_op(const lt_op &) = delete;
    ~lt_op();
    bool make(const lt_problem *p);
    /* Of another product of the same sizes and types: takes its scales over. */
    bool point_to(const lt_problem *p);
    cublasStatus_t run(nrd_stream *s, const lt_problem *p, const cublasLtMatmulAlgo_t *algo) const;
    /* Up to `max` kernels, the library's best guess first; their number. */
    int heuristics(cublasLtMatmulHeuristicResult_t *found, int max) const;

  private:
    bool set(cublasLtMatmulDescAttributes_t at, const void *v, size_t n);
    bool layout(cublasLtMatrixLayout_t *l, cudaDataType_t t, int64_t rows, int64_t cols, int64_t ld);
};

/* Numbers of tokens that share a kernel: up to 64 the powers of two, then multiples of 64 up to 512, of
 * 128 up to 2048, then powers of two. The class is its largest member. */
static inline int64_t nrd_cuda_token_class(int64_t n)
{
    if (n <= 64 || n > 2048) {
        int64_t c = 1;
        while (c < n) {
            c *= 2;
        }
        return c;
    }
    return n <= 512 ? (n + 63) / 64 * 64 : (n + 127) / 128 * 128;
}

/* Whether tiles of 128 x 128, which F8 with a scale for each row has, keep less than four fifths of the multiprocessors busy. */
static inline bool nrd_cuda_tiles_idle(const cuda_device *dev, int64_t m, int64_t n)
{
    const int64_t tiles = (m + 127) / 128 * ((n + 127) / 128), waves = (tiles + dev->n_sm - 1) / dev->n_sm;
    return tiles * 5 < waves * dev->n_sm * 4;
}

static inline plan_key nrd_cuda_plan_key(const lt_problem *p)
{
    /* scales of a row each, of square blocks and none are taken by different kernels */
    const int form = p->square_blocks ? 1 : p->is_plain_f8() ? 2 : 0;
    return plan_key(p->m, p->k, nrd_cuda_token_class(p->n), p->in_dtype + form * NRD_DTYPE_COUNT_, p->y_dtype, p->ldy);
}

/* A stream ends, before the library is closed; lt may be NULL. */
void nrd_cuda_lt_forget(cublas_lt *lt, const nrd_stream *s);

/* The library's own error does not say that the device is lost; the stream does. */
nrd_error *nrd_cuda_product_failed(nrd_stream *s, const lt_problem *p);

#endif
