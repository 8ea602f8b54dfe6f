/* SPDX-License-Identifier: Apache-2.0
 * gemm_cublaslt.cu - large matrix products through cuBLASLt, loaded at run time.
 *
 * Purpose   y [n, m] = x [n, k] W^T [k, m] with row scales of both sides for F8 (outer-vector scaling,
 *           Hopper). In column-major words: D (m x n, ld ldy) = op_T(W: k x m) x.
 * Owner     One library handle per process and device; the plan tables are behind a mutex.
 * Choice    Each weight shape and class of token numbers has the kernel that was fastest when the engine
 *           was loaded (gemm_tune.cu). A class that was not tried takes the kernel of the nearest one that
 *           was, and where there is none the library's first guess.
 * Host      A step has the products of all its layers in a few sizes: a stream keeps the descriptors and the kernel of the
 *           last ones, which took longer to make and to find than a launch.
 * Sources   cuBLAS 13.0 documentation, "cuBLASLt API".
 */
#include "device/cuda/gemm_cublaslt.cuh"

#include <cstdlib>
#include <dlfcn.h>
#include <memory>
#include <new>

cublas_lt *nrd_cuda_lt_open(const char *file, const char *gpu, std::string *why)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    cublas_lt *lt = new cublas_lt();

    for (const char *name : names) {
        lt->dl = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (lt->dl) {
            break;
        }
    }
    if (!lt->dl) {
        *why = std::string("cuBLASLt 13 is not installed (") + dlerror() + ")";
        delete lt;
        return NULL;
    }
#define X(name)                                                                                    \
    lt->name = (decltype(lt->name))dlsym(lt->dl, #name);                                           \
    if (!lt->name) {                                                                               \
        *why = "cuBLASLt lacks " #name;                                                            \
        delete lt;                                                                                 \
        return NULL;                                                                               \
    }
    LT_SYMBOLS(X)
#undef X
    if (lt->cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS) {
        *why = "cublasLtCreate failed";
        delete lt;
        return NULL;
    }
    lt->file = file ? file : "";
    lt->machine = std::string(gpu) + ", cuBLASLt " + std::to_string(lt->cublasLtGetVersion());
    nrd_cuda_plans_read(&lt->plans, lt->file, lt->machine);
    return lt;
}

void nrd_cuda_lt_save(cublas_lt *lt)
{
    std::lock_guard<std::mutex> lock(lt->mu);
    if (lt->changed && !lt->file.empty()) {
        nrd_cuda_plans_write(lt->plans, lt->file, lt->machine);
        lt->changed = false;
    }
}

void nrd_cuda_lt_close(cublas_lt *lt)
{
    if (lt) {
        nrd_cuda_lt_save(lt);
        (void)lt->cublasLtDestroy(lt->handle);
        delete lt; /* the library stays mapped: its kernels may still be registered */
    }
}

static cudaDataType_t cuda_type(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16      ? CUDA_R_16BF
           : t == NRD_DTYPE_F16     ? CUDA_R_16F
           : t == NRD_DTYPE_F8_E4M3 || t == NRD_DTYPE_F8_B128 ? CUDA_R_8F_E4M3
                                    : CUDA_R_32F;
}

lt_op::~lt_op()
{
    if (pref) {
        (void)lt->cublasLtMatmulPreferenceDestroy(pref);
    }
    if (d) {
        (void)lt->cublasLtMatrixLayoutDestroy(d);
    }
    if (b) {
        (void)lt->cublasLtMatrixLayoutDestroy(b);
    }
    if (a) {
        (void)lt->cublasLtMatrixLayoutDestroy(a);
    }
    if (desc) {
        (void)lt->cublasLtMatmulDescDestroy(desc);
    }
}

bool lt_op::make(const lt_problem *p)
{
    const cublasOperation_t trans = CUBLAS_OP_T;
    const cudaDataType_t in = cuda_type(p->in_dtype), out = cuda_type(p->y_dtype);
    const uint64_t ws = LT_WS_BYTES;
    bool ok = lt->cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
                  CUBLAS_STATUS_SUCCESS &&
              set(CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans) &&
              layout(&a, in, p->k, p->m, p->k) && layout(&b, in, p->k, p->n, p->k) &&
              layout(&d, out, p->m, p->n, p->ldy) &&
              lt->cublasLtMatmulPreferenceCreate(&pref) == CUBLAS_STATUS_SUCCESS &&
              lt->cublasLtMatmulPreferenceSetAttribute(
                  pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws) ==
                  CUBLAS_STATUS_SUCCESS;
    if (ok && p->is_plain_f8()) {
        const int8_t fast = 1;
        ok = set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    } else if (ok && (p->in_dtype == NRD_DTYPE_F8_E4M3 || p->in_dtype == NRD_DTYPE_F8_B128)) {
        const bool rows = p->in_dtype == NRD_DTYPE_F8_E4M3;
        const cublasLtMatmulMatrixScale_t x_mode = rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                        : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        const cublasLtMatmulMatrixScale_t w_mode = p->square_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : x_mode;
        const int8_t fast = rows; /* blocks are added up in float32 anyway */
        ok = set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w_mode, sizeof w_mode) &&
             set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x_mode, sizeof x_mode) &&
             set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast) && point_to(p);
    }
    return ok;
}

bool lt_op::point_to(const lt_problem *p)
{
    return (p->in_dtype != NRD_DTYPE_F8_E4M3 && p->in_dtype != NRD_DTYPE_F8_B128) || p->is_plain_f8() ||
           (set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w_scale, sizeof p->w_scale) &&
            set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->x_scale, sizeof p->x_scale));
}

bool lt_op::set(cublasLtMatmulDescAttributes_t at, const void *v, size_t n)
{
    return lt->cublasLtMatmulDescSetAttribute(desc, at, v, n) == CUBLAS_STATUS_SUCCESS;
}

bool lt_op::layout(cublasLtMatrixLayout_t *l, cudaDataType_t t, int64_t rows, int64_t cols, int64_t ld)
{
    return lt->cublasLtMatrixLayoutCreate(l, t, (uint64_t)rows, (uint64_t)cols, ld) ==
           CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t lt_op::run(nrd_stream *s, const lt_problem *p, const cublasLtMatmulAlgo_t *algo) const
{
    const float one = 1.0f, zero = 0.0f;
    return lt->cublasLtMatmul(lt->handle, desc, &one, p->w, a, p->x, b, &zero, p->y, d, p->y, d, algo,
                              s->lt_ws, LT_WS_BYTES, s->s);
}

int lt_op::heuristics(cublasLtMatmulHeuristicResult_t *found, int max) const
{
    int n = 0;
    return lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, desc, a, b, d, d, pref, max, found, &n) ==
                   CUBLAS_STATUS_SUCCESS
               ? n
               : 0;
}

nrd_error *nrd_cuda_product_failed(nrd_stream *s, const lt_problem *p)
{
    const cudaError_t e = s->capturing ? cudaSuccess : cudaStreamQuery(s->s);
    if (e != cudaSuccess && e != cudaErrorNotReady) {
        return nrd_cuda_fail(e, "a product");
    }
    return nrd_errorf(NRD_ERR_INTERNAL, "cuda: cuBLASLt failed on %lldx%lldx%lld", (long long)p->m,
                      (long long)p->n, (long long)p->k);
}

/* The kernel of the class nearest to the key's, of the same product; NULL: none was tried. */
static const cublasLtMatmulAlgo_t *nearest(const plan_table &plans, const plan_key &key)
{
    const auto [m, k, n, in, out, ldy] = key;
    const cublasLtMatmulAlgo_t *best = NULL;
    int64_t distance = INT64_MAX;

    for (auto it = plans.lower_bound(plan_key(m, k, 0, 0, 0, 0)); it != plans.end(); ++it) {
        const auto [m2, k2, n2, in2, out2, ldy2] = it->first;
        if (m2 != m || k2 != k) {
            break;
        }
        const int64_t d = n2 > n ? n2 - n : n - n2;
        if (in2 == in && out2 == out && ldy2 == ldy && d < distance) {
            distance = d;
            best = &it->second;
        }
    }
    return best;
}

/* What the tables say about a product; false: nothing. */
static bool look_up(cublas_lt *lt, const plan_key &key, cublasLtMatmulAlgo_t *algo)
{
    std::lock_guard<std::mutex> lock(lt->mu);
    auto it = lt->plans.find(key);
    if (it == lt->plans.end()) {
        it = lt->guesses.find(key);
        if (it == lt->guesses.end()) {
            const cublasLtMatmulAlgo_t *near = nearest(lt->plans, key);
            *algo = near ? *near : *algo;
            return near != NULL;
        }
    }
    *algo = it->second;
    return true;
}

/* A product that ran: its descriptors, and the kernel it ran with. */
struct lt_recent {
    lt_problem p;
    lt_op op;
    cublasLtMatmulAlgo_t algo = {};
    bool is_known = false;  /* algo is: by the tables, or it has run */
    uint32_t n_choices = 0; /* when it was looked up */
    uint64_t used = 0;

    lt_recent(cublas_lt *lt, const lt_problem &of) : p(of), op(lt) {}
    bool is_like(const lt_problem *q) const
    {
        return p.m == q->m && p.n == q->n && p.k == q->k && p.ldy == q->ldy && p.in_dtype == q->in_dtype && p.y_dtype == q->y_dtype &&
               p.square_blocks == q->square_blocks && p.is_plain_f8() == q->is_plain_f8();
    }
};

/* As many as a step has sizes of products, a mixture of experts' with them. */
struct lt_recents {
    std::unique_ptr<lt_recent> list[16];
    uint64_t now = 0;
};

void nrd_cuda_lt_forget(cublas_lt *lt, const nrd_stream *s)
{
    if (lt) {
        std::lock_guard<std::mutex> lock(lt->mu);
        const auto at = lt->recents.find(s);
        if (at != lt->recents.end()) {
            delete at->second;
            lt->recents.erase(at);
        }
    }
}

/* NULL: no memory. */
static lt_recents *recents_of(cublas_lt *lt, const nrd_stream *s)
{
    std::lock_guard<std::mutex> lock(lt->mu);
    lt_recents *&r = lt->recents[s];
    r = r ? r : new (std::nothrow) lt_recents();
    return r;
}

static nrd_error *no_kernel(const char *what, const lt_problem *p)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt %s %lldx%lldx%lld", what, (long long)p->m, (long long)p->n, (long long)p->k);
}

/* The product's descriptors and kernel in place of those unused for longest, unless they are there. */
static nrd_error *recent_of(nrd_stream *s, const lt_problem *p, lt_recent **out)
{
    cublas_lt *lt = s->dev->lt;
    const uint32_t n_choices = lt->n_choices;

    lt_recents *recents = recents_of(lt, s);
    if (!recents) {
        return nrd_error_no_memory();
    }
    std::unique_ptr<lt_recent> *at = &recents->list[0];
    for (std::unique_ptr<lt_recent> &r : recents->list) {
        if (r && r->is_like(p) && r->n_choices == n_choices) {
            r->used = ++recents->now;
            *out = r.get();
            return r->op.point_to(p) ? NULL : no_kernel("refuses the scales of", p);
        }
        at = *at && (!r || r->used < (*at)->used) ? &r : at;
    }
    std::unique_ptr<lt_recent> made(new (std::nothrow) lt_recent(lt, *p));
    if (!made) {
        return nrd_error_no_memory();
    }
    if (!made->op.make(p)) {
        return no_kernel("refuses the description of", p);
    }
    made->is_known = look_up(lt, nrd_cuda_plan_key(p), &made->algo);
    made->n_choices = n_choices;
    made->used = ++recents->now;
    *at = std::move(made);
    *out = at->get();
    return NULL;
}

nrd_error *nrd_cuda_lt_run(nrd_stream *s, const lt_problem *p)
{
    cublas_lt *lt = s->dev->lt;
    cublasLtMatmulHeuristicResult_t found;
    lt_recent *r = NULL;

    if (!lt) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s", s->dev->lt_why.c_str());
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    NRD_TRY(recent_of(s, p, &r));
    if (r->is_known && r->op.run(s, p, &r->algo) == CUBLAS_STATUS_SUCCESS) {
        return NULL;
    }
    if (r->op.heuristics(&found, 1) == 0) {
        return no_kernel("has no kernel for", p);
    }
    {
        std::lock_guard<std::mutex> lock(lt->mu);
        lt->guesses[nrd_cuda_plan_key(p)] = found.algo;
    }
    r->algo = found.algo;
    r->is_known = true;
    return r->op.run(s, p, &r->algo) == CUBLAS_STATUS_SUCCESS ? NULL : nrd_cuda_product_failed(s, p);
}
