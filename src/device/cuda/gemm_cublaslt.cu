/* gemm_cublaslt.cu - large matrix products through cuBLASLt, loaded at run time.
 *
 * Purpose   y [n, m] = x [n, k] W^T [k, m] with row scales of both sides for F8 (outer-vector scaling,
 *           Hopper). In column-major words: D (m x n, ld ldy) = op_T(W: k x m) x.
 * Owner     One library handle per process and device; the plan table is behind a mutex.
 * Choice    The first call of a shape class (exact weight shape; tokens rounded up to 1, 2, 4 ... 64,
 *           then multiples of 64 up to 512, of 128 up to 2048, then powers of two) runs the heuristic's
 *           best several times each on the caller's own data, between events that a later call reads:
 *           nobody waits. Until then the heuristic's first is used; graph capture, where nothing can
 *           be timed, begins with settling what is open. A file keeps the choices (gemm_plans.cuh).
 * Sources   cuBLAS 13.0 documentation, "cuBLASLt API".
 */
#include "device/cuda/cuda_dev.cuh"
#include "device/cuda/gemm_plans.cuh"

#include <dlfcn.h>

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

enum { MAX_TIMED = 5, SMALL_TOKENS = 512 };

struct cublas_lt {
    void *dl;
    cublasLtHandle_t handle;
    std::mutex mu; /* guards plans, changed */
    plan_table plans;
    bool changed; /* since the file was read */
    std::string file, machine; /* file: empty if none is kept */
#define X(name) decltype(&::name) name;
    LT_SYMBOLS(X)
#undef X
};

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

static void drop_events(lt_plan *plan)
{
    for (cudaEvent_t e : plan->events) {
        (void)cudaEventDestroy(e);
    }
    plan->events.clear();
}

void nrd_cuda_lt_close(cublas_lt *lt)
{
    if (lt) {
        nrd_cuda_lt_settle(lt);
        if (lt->changed && !lt->file.empty()) {
            nrd_cuda_plans_write(lt->plans, lt->file, lt->machine);
        }
        (void)lt->cublasLtDestroy(lt->handle);
        delete lt; /* the library stays mapped: its kernels may still be registered */
    }
}

static cudaDataType_t cuda_type(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16      ? CUDA_R_16BF
           : t == NRD_DTYPE_F16     ? CUDA_R_16F
           : t == NRD_DTYPE_F8_E4M3 ? CUDA_R_8F_E4M3
                                    : CUDA_R_32F;
}

/* One product's descriptors; freed by the destructor. */
struct lt_op {
    cublas_lt *lt;
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, d = NULL;
    cublasLtMatmulPreference_t pref = NULL;

    explicit lt_op(cublas_lt *l) : lt(l) {}
    ~lt_op()
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

    bool make(const lt_problem *p)
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
        if (ok && p->in_dtype == NRD_DTYPE_F8_E4M3) {
            const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            const int8_t fast = 1;
            ok = set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode) &&
                 set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode) &&
                 set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w_scale, sizeof p->w_scale) &&
                 set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->x_scale, sizeof p->x_scale) &&
                 set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
        }
        return ok;
    }

    bool set(cublasLtMatmulDescAttributes_t at, const void *v, size_t n)
    {
        return lt->cublasLtMatmulDescSetAttribute(desc, at, v, n) == CUBLAS_STATUS_SUCCESS;
    }

    bool layout(cublasLtMatrixLayout_t *l, cudaDataType_t t, int64_t rows, int64_t cols, int64_t ld)
    {
        return lt->cublasLtMatrixLayoutCreate(l, t, (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS;
    }
};

static cublasStatus_t multiply(nrd_stream *s, const lt_op &op, const lt_problem *p,
                               const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1.0f, zero = 0.0f;
    cublas_lt *lt = op.lt;
    return lt->cublasLtMatmul(lt->handle, op.desc, &one, p->w, op.a, p->x, op.b, &zero, p->y, op.d,
                              p->y, op.d, algo, s->lt_ws, LT_WS_BYTES, s->s);
}

/* So long that a trial of each candidate would take more than it can save. */
static bool is_long(const lt_problem *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k > 4e11;
}

static int64_t token_class(int64_t n)
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

/* Reads a trial that the stream has passed, or (wait) is to pass now. */
static void settle(lt_plan *plan, bool wait)
{
    float best = 1e30f;

    if (plan->events.empty()) {
        return;
    }
    const cudaError_t e =
        wait ? cudaEventSynchronize(plan->events.back()) : cudaEventQuery(plan->events.back());
    if (e == cudaErrorNotReady) {
        return;
    }
    for (int i = 0; i < plan->n && e == cudaSuccess; i++) {
        for (int r = 0; r < plan->timed; r++) {
            const size_t at = (size_t)(i * plan->timed + r) * 2;
            float ms = 0.0f;
            if (cudaEventElapsedTime(&ms, plan->events[at], plan->events[at + 1]) == cudaSuccess &&
                ms < best) {
                best = ms;
                plan->algo = plan->tried[i];
            }
        }
    }
    (void)cudaGetLastError(); /* a fault of the device shows where the step is waited for */
    drop_events(plan);
}

void nrd_cuda_lt_settle(cublas_lt *lt)
{
    if (lt) {
        std::lock_guard<std::mutex> lock(lt->mu);
        for (auto &entry : lt->plans) {
            settle(&entry.second, true);
        }
    }
}

/* Tiles (rows of W x tokens) for products that are too small to fill the GPU with the usual ones. With a
 * scale for each row of F8 the library offers one kernel, and for 64 to 256 tokens it is up to twice as slow
 * as the same one with another tile and another way of sharing tiles (NVIDIA H200, 14336 -> 4096, 128 tokens:
 * 38 us, with 64 x 64 tiles 20). */
static const cublasLtMatmulTile_t small_tiles[] = {
    CUBLASLT_MATMUL_TILE_64x32,  CUBLASLT_MATMUL_TILE_64x64,   CUBLASLT_MATMUL_TILE_128x32,
    CUBLASLT_MATMUL_TILE_64x128, CUBLASLT_MATMUL_TILE_128x64,  CUBLASLT_MATMUL_TILE_192x64,
    CUBLASLT_MATMUL_TILE_128x128};
static const cublasLtClusterShape_t small_clusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1,
                                                        CUBLASLT_CLUSTER_SHAPE_1x2x1};

/* Adds the first candidate with those tiles; returns how many there are then. */
static int add_tiles(const lt_op &op, cublasLtMatmulHeuristicResult_t *found, int n_found)
{
    cublas_lt *lt = op.lt;

    for (cublasLtMatmulTile_t tile : small_tiles) {
        for (cublasLtClusterShape_t cluster : small_clusters) {
            const uint32_t tile_id = (uint32_t)tile;
            const uint16_t cluster_id = (uint16_t)cluster;
            cublasLtMatmulHeuristicResult_t *r = &found[n_found];
            cublasLtMatmulAlgo_t algo = found[0].algo;
            if (n_found < CANDIDATES &&
                lt->cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile_id,
                                                         sizeof tile_id) == CUBLAS_STATUS_SUCCESS &&
                lt->cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                                         &cluster_id,
                                                         sizeof cluster_id) == CUBLAS_STATUS_SUCCESS &&
                lt->cublasLtMatmulAlgoCheck(lt->handle, op.desc, op.a, op.b, op.d, op.d, &algo, r) ==
                    CUBLAS_STATUS_SUCCESS) {
                r->algo = algo;
                r->state = CUBLAS_STATUS_SUCCESS;
                n_found++;
            }
        }
    }
    return n_found;
}

/* Enqueues every candidate once, then timed, each with W out of the L2 as in a step. The result is there
 * afterwards, whatever comes of the times. n == 0 in the plan: none of them runs. */
static nrd_error *trial(nrd_stream *s, const lt_op &op, const lt_problem *p,
                        const cublasLtMatmulHeuristicResult_t *found, int n_found, lt_plan *plan)
{
    plan->n = 0;
    plan->timed = is_long(p) ? 1 : MAX_TIMED;
    for (int i = 0; i < n_found && plan->n < (is_long(p) ? OFFERED / 2 : CANDIDATES); i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > LT_WS_BYTES ||
            multiply(s, op, p, &found[i].algo) != CUBLAS_STATUS_SUCCESS) {
            continue;
        }
        for (int r = 0; r < plan->timed; r++) {
            if (!is_long(p)) {
                CUDA_TRY(cudaMemsetAsync(s->lt_ws, 0, LT_WS_BYTES, s->s));
            }
            for (int e = 0; e < 2; e++) {
                cudaEvent_t at = NULL;
                CUDA_TRY(cudaEventCreate(&at));
                plan->events.push_back(at);
                CUDA_TRY(cudaEventRecord(at, s->s));
                if (e == 0) {
                    (void)multiply(s, op, p, &found[i].algo);
                }
            }
        }
        plan->tried[plan->n++] = found[i].algo;
    }
    plan->algo = plan->tried[0];
    return NULL;
}

/* The library's own error does not say that the device is lost; the stream does. */
static nrd_error *product_failed(nrd_stream *s, const lt_problem *p)
{
    const cudaError_t e = s->capturing ? cudaSuccess : cudaStreamQuery(s->s);
    if (e != cudaSuccess && e != cudaErrorNotReady) {
        return nrd_cuda_fail(e, "a product");
    }
    return nrd_errorf(NRD_ERR_INTERNAL, "cuda: cuBLASLt failed on %lldx%lldx%lld", (long long)p->m,
                      (long long)p->n, (long long)p->k);
}

nrd_error *nrd_cuda_lt_run(nrd_stream *s, const lt_problem *p)
{
    cublas_lt *lt = s->dev->lt;
    const plan_key key(p->m, p->k, token_class(p->n), p->in_dtype, p->y_dtype, p->ldy);
    cublasLtMatmulAlgo_t algo;
    bool have = false;

    if (!lt) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s", s->dev->lt_why.c_str());
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    lt_op op(lt);
    if (!op.make(p)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt refuses the description of %lldx%lldx%lld",
                          (long long)p->m, (long long)p->n, (long long)p->k);
    }
    {
        std::lock_guard<std::mutex> lock(lt->mu);
        auto it = lt->plans.find(key);
        if (it != lt->plans.end()) {
            if (!s->capturing) {
                settle(&it->second, false);
            }
            algo = it->second.algo;
            have = true;
        }
    }
    if (have && multiply(s, op, p, &algo) == CUBLAS_STATUS_SUCCESS) {
        return NULL;
    }
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n_found = 0;
    if (lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, op.desc, op.a, op.b, op.d, op.d, op.pref,
                                           OFFERED, found, &n_found) != CUBLAS_STATUS_SUCCESS ||
        n_found == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt has no kernel for %lldx%lldx%lld",
                          (long long)p->m, (long long)p->n, (long long)p->k);
    }
    if (!s->capturing && !have) {
        lt_plan plan = {};
        n_found = p->n <= SMALL_TOKENS ? add_tiles(op, found, n_found) : n_found;
        nrd_error *err = trial(s, op, p, found, n_found, &plan);
        if (err || plan.n == 0) {
            drop_events(&plan);
            return err ? err : product_failed(s, p);
        }
        std::lock_guard<std::mutex> lock(lt->mu);
        if (!lt->plans.emplace(key, plan).second) {
            drop_events(&plan); /* another stream was faster */
        }
        lt->changed = true;
        return NULL;
    }
    return multiply(s, op, p, &found[0].algo) == CUBLAS_STATUS_SUCCESS ? NULL : product_failed(s, p);
}
