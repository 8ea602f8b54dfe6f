/* SPDX-License-Identifier: Apache-2.0
 * matmul: c = alpha A B^T, or added to what was there, of matrices that lie as they do
 * Shapes    nrd_matmul_args. In the library's words, whose matrices have their columns side by side: D (n x m) = op(B) op(A).
 * Bound     arithmetic in float32, which tensor cores do not have: 50 to 60 TFLOP/s on Hopper.
 * Sources   cuBLAS 13.0 documentation, "cuBLASLt API".
 */
#include "device/cuda/gemm_cublaslt.cuh"

#include <climits>

namespace {

/* What the library wants to know of a product; freed with it. */
struct description {
    cublas_lt *lt;
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, c = NULL;
    cublasLtMatmulPreference_t pref = NULL;

    explicit description(cublas_lt *l) : lt(l) {}
    ~description()
    {
        for (cublasLtMatrixLayout_t l : {a, b, c}) {
            if (l) {
                (void)lt->cublasLtMatrixLayoutDestroy(l);
            }
        }
        if (pref) {
            (void)lt->cublasLtMatmulPreferenceDestroy(pref);
        }
        if (desc) {
            (void)lt->cublasLtMatmulDescDestroy(desc);
        }
    }
    bool make(const nrd_matmul_args *p);

  private:
    bool set(cublasLtMatmulDescAttributes_t at, cublasOperation_t v)
    {
        return lt->cublasLtMatmulDescSetAttribute(desc, at, &v, sizeof v) == CUBLAS_STATUS_SUCCESS;
    }
    bool set(cublasLtMatmulPreferenceAttributes_t at, const void *v, size_t n)
    {
        return lt->cublasLtMatmulPreferenceSetAttribute(pref, at, v, n) == CUBLAS_STATUS_SUCCESS;
    }
    bool layout(cublasLtMatrixLayout_t *l, cudaDataType_t t, int64_t rows, int64_t cols, int64_t ld)
    {
        return lt->cublasLtMatrixLayoutCreate(l, t, (uint64_t)rows, (uint64_t)cols, ld) == CUBLAS_STATUS_SUCCESS;
    }
};

cudaDataType_t type_of(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16 ? CUDA_R_16BF : t == NRD_DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Of an address, up to 256. */
uint32_t alignment(const void *p)
{
    const uintptr_t v = (uintptr_t)p | 256;
    return (uint32_t)(v & -v);
}

bool description::make(const nrd_matmul_args *p)
{
    const cudaDataType_t t = type_of(p->dtype);
    const uint64_t ws = LT_WS_BYTES;
    const uint32_t for_a = alignment(p->b), for_b = alignment(p->a), for_c = alignment(p->c);

    return lt->cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(CUBLASLT_MATMUL_DESC_TRANSA, p->b_turned ? CUBLAS_OP_N : CUBLAS_OP_T) &&
           set(CUBLASLT_MATMUL_DESC_TRANSB, p->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           layout(&a, t, p->b_turned ? p->n : p->k, p->b_turned ? p->k : p->n, p->b_stride) &&
           layout(&b, t, p->a_turned ? p->m : p->k, p->a_turned ? p->k : p->m, p->a_stride) &&
           layout(&c, CUDA_R_32F, p->n, p->m, p->c_stride) &&
           lt->cublasLtMatmulPreferenceCreate(&pref) == CUBLAS_STATUS_SUCCESS &&
           set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws) &&
           set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &for_a, sizeof for_a) &&
           set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &for_b, sizeof for_b) &&
           set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &for_c, sizeof for_c) &&
           set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &for_c, sizeof for_c);
}

bool is_sound(const nrd_matmul_args *p)
{
    return p->m > 0 && p->n > 0 && p->k > 0 && p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX &&
           p->a_stride >= (p->a_turned ? p->m : p->k) && p->b_stride >= (p->b_turned ? p->n : p->k) && p->c_stride >= p->n &&
           (p->dtype == NRD_DTYPE_F32 || p->dtype == NRD_DTYPE_F16 || p->dtype == NRD_DTYPE_BF16);
}

} // namespace

nrd_error *nrd_cuda_matmul(nrd_stream *s, const nrd_matmul_args *p)
{
    cublas_lt *lt = s->dev->lt;
    const float beta = p->add ? 1.0f : 0.0f;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;

    if (!is_sound(p)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: matmul of %lld x %lld x %lld, dtype %d", (long long)p->m, (long long)p->n,
                          (long long)p->k, (int)p->dtype);
    }
    if (!lt) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s", s->dev->lt_why.c_str());
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    description d(lt);
    if (!d.make(p) || lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, d.desc, d.a, d.b, d.c, d.c, d.pref, 1, &found, &n) !=
                          CUBLAS_STATUS_SUCCESS || n == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt has no kernel for a matmul of %lld x %lld x %lld",
                          (long long)p->m, (long long)p->n, (long long)p->k);
    }
    if (lt->cublasLtMatmul(lt->handle, d.desc, &p->alpha, p->b, d.a, p->a, d.b, &beta, p->c, d.c, p->c, d.c, &found.algo,
                           s->lt_ws, LT_WS_BYTES, s->s) == CUBLAS_STATUS_SUCCESS) {
        return NULL;
    }
    const cudaError_t e = s->capturing ? cudaSuccess : cudaStreamQuery(s->s);
    return e != cudaSuccess && e != cudaErrorNotReady
               ? nrd_cuda_fail(e, "a product")
               : nrd_errorf(NRD_ERR_INTERNAL, "cuda: cuBLASLt failed on a matmul of %lld x %lld x %lld", (long long)p->m,
                            (long long)p->n, (long long)p->k);
}
