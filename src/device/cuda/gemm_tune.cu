/* SPDX-License-Identifier: Apache-2.0
 * gemm_tune.cu - which of the library's kernels a product takes, by trying them.
 *
 * Purpose   The library's first guess is up to twice as slow as its best kernel. Trials belong to the
 *           start of an engine: a request never waits for one.
 * Choice    Every candidate once (that also loads it), then once timed; the best six of those five times more,
 *           in turns, each with W out of the L2 as in a step; their sums decide, since at full power the
 *           fastest run is not the usual one. Long products: half of the candidates, and the L2 as it is.
 *           A file keeps the choices (gemm_plans.cuh).
 * Measured  NVIDIA H200, Llama-3.1-8B shapes, 1 to 8192 tokens: see docs/performance/gpu-engine.md
 */
#include "device/cuda/gemm_cublaslt.cuh"

#include <algorithm>

enum { SMALL_TOKENS = 512, MEDIUM_TOKENS = 1024, FINALISTS = 6, FINAL_RUNS = 5, LONG_RUNS = 3 };

/* So long that a trial of each candidate would take more than it can save. */
static bool is_long(const lt_problem *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k > 4e11;
}

/* Tiles (rows of W x tokens) for products that are too small to fill the GPU with the usual ones. With a
 * scale for each row of F8 the library offers one kernel, and for 64 to 256 tokens it is up to twice as slow
 * as the same one with another tile and another way of sharing tiles (NVIDIA H200, 14336 -> 4096, 128 tokens:
 * 38 us, with 64 x 64 tiles 20). */
enum { N_TILES = 7 };
static const cublasLtMatmulTile_t small_tiles[N_TILES] = {
    CUBLASLT_MATMUL_TILE_64x32,  CUBLASLT_MATMUL_TILE_64x64,   CUBLASLT_MATMUL_TILE_128x32,
    CUBLASLT_MATMUL_TILE_64x128, CUBLASLT_MATMUL_TILE_128x64,  CUBLASLT_MATMUL_TILE_192x64,
    CUBLASLT_MATMUL_TILE_128x128};
static const cublasLtClusterShape_t small_clusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1,
                                                        CUBLASLT_CLUSTER_SHAPE_1x2x1};

/* Others, with which F8 fills it where 128 x 128 do not (14336 -> 4096, 640 tokens with a scale for each row: 85 us, with 192 x 64 tiles 74;
 * without scales 62 with 128 x 160). */
static const cublasLtMatmulTile_t medium_tiles[N_TILES] = {
    CUBLASLT_MATMUL_TILE_192x64,  CUBLASLT_MATMUL_TILE_128x96,  CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x160,
    CUBLASLT_MATMUL_TILE_192x128, CUBLASLT_MATMUL_TILE_128x192, CUBLASLT_MATMUL_TILE_192x192};

/* Adds the first candidate with such tiles; returns how many there are then. */
static int add_tiles(const lt_op &op, const cublasLtMatmulTile_t (&tiles)[N_TILES], cublasLtMatmulHeuristicResult_t *found, int n_found)
{
    cublas_lt *lt = op.lt;

    for (cublasLtMatmulTile_t tile : tiles) {
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

struct candidate {
    cublasLtMatmulAlgo_t algo;
    float ms; /* all its runs of the last round */
};

/* Two events for each of up to MOST timed runs; destroyed with it. */
struct stopwatch {
    enum { MOST = CANDIDATES + FINALISTS * FINAL_RUNS };
    cudaEvent_t events[2 * MOST] = {};
    ~stopwatch()
    {
        for (cudaEvent_t e : events) {
            if (e) {
                (void)cudaEventDestroy(e);
            }
        }
    }
};

/* A round: each candidate `runs` times, in turns; waits. */
static nrd_error *time_each(nrd_stream *s, const lt_op &op, const lt_problem *p, int runs, stopwatch *w,
                            candidate *list, int n)
{
    for (int i = 0; i < runs * n; i++) {
        if (!is_long(p)) {
            CUDA_TRY(cudaMemsetAsync(s->lt_ws, 0, LT_WS_BYTES, s->s));
        }
        for (int e = 0; e < 2; e++) {
            cudaEvent_t *at = &w->events[2 * i + e];
            if (!*at) {
                CUDA_TRY(cudaEventCreate(at));
            }
            CUDA_TRY(cudaEventRecord(*at, s->s));
            if (e == 0 && op.run(s, p, &list[i % n].algo) != CUBLAS_STATUS_SUCCESS) {
                return nrd_cuda_product_failed(s, p);
            }
        }
    }
    CUDA_TRY(cudaStreamSynchronize(s->s));
    for (int i = 0; i < runs * n; i++) {
        float ms = 0.0f;
        CUDA_TRY(cudaEventElapsedTime(&ms, w->events[2 * i], w->events[2 * i + 1]));
        list[i % n].ms = (i < n ? 0.0f : list[i % n].ms) + ms;
    }
    return NULL;
}

static bool faster(const candidate &a, const candidate &b)
{
    return a.ms < b.ms;
}

/* The candidates that run at all, each run once. */
static int runnable(nrd_stream *s, const lt_op &op, const lt_problem *p, candidate *list)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    const int most = is_long(p) ? OFFERED / 2 : CANDIDATES;
    int n_found = op.heuristics(found, OFFERED), n = 0;

    if (n_found > 0 && p->n <= SMALL_TOKENS) {
        n_found = add_tiles(op, small_tiles, found, n_found);
    } else if (n_found > 0 && p->n <= MEDIUM_TOKENS && p->in_dtype == NRD_DTYPE_F8_E4M3 && nrd_cuda_tiles_idle(s->dev, p->m, p->n)) {
        n_found = add_tiles(op, medium_tiles, found, n_found);
    }
    for (int i = 0; i < n_found && n < most; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= LT_WS_BYTES &&
            op.run(s, p, &found[i].algo) == CUBLAS_STATUS_SUCCESS) {
            list[n++] = {found[i].algo, 0.0f};
        }
    }
    return n;
}

/* Runs what is chosen already, so that the kernel is loaded; false: nothing is. */
static bool run_chosen(nrd_stream *s, const lt_op &op, const lt_problem *p)
{
    cublasLtMatmulAlgo_t algo;
    {
        std::lock_guard<std::mutex> lock(op.lt->mu);
        auto it = op.lt->plans.find(nrd_cuda_plan_key(p));
        if (it == op.lt->plans.end()) {
            return false;
        }
        algo = it->second;
    }
    return op.run(s, p, &algo) == CUBLAS_STATUS_SUCCESS;
}

nrd_error *nrd_cuda_lt_tune(nrd_stream *s, const lt_problem *p)
{
    cublas_lt *lt = s->dev->lt;
    candidate list[CANDIDATES];
    stopwatch watch;

    if (!lt) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s", s->dev->lt_why.c_str());
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    lt_op op(lt);
    if (!op.make(p)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt refuses a product");
    }
    if (run_chosen(s, op, p)) {
        return NULL;
    }
    const int n = runnable(s, op, p, list);
    if (n == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: cuBLASLt has no kernel for a product");
    }
    NRD_TRY(time_each(s, op, p, 1, &watch, list, n));
    std::sort(list, list + n, faster);
    const int left = std::min(n, (int)FINALISTS);
    NRD_TRY(time_each(s, op, p, is_long(p) ? LONG_RUNS : FINAL_RUNS, &watch, list, left));
    std::lock_guard<std::mutex> lock(lt->mu);
    lt->plans[nrd_cuda_plan_key(p)] = std::min_element(list, list + left, faster)->algo;
    lt->changed = true;
    lt->n_choices++;
    return NULL;
}
