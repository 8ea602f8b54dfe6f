/* gemm_plans.cuh - which library kernel each shape of product runs with, and the file that keeps it.
 *
 * Purpose   So that a start does not repeat the trials of the one before. The file is text: a line with
 *           its version, the GPU and the library's version, then a line a plan. Another GPU's or library's
 *           file is left as it is until it is written anew: the choices are made again.
 * Errors    None: what cannot be read is not used, what cannot be written is lost with the process.
 */
#ifndef NRD_CUDA_GEMM_PLANS_CUH
#define NRD_CUDA_GEMM_PLANS_CUH

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

/* rows of W, columns, token class, types of inputs and results, distance of result rows */
typedef std::tuple<int64_t, int64_t, int64_t, int, int, int64_t> plan_key;

enum { OFFERED = 12, CANDIDATES = OFFERED + 14 }; /* by the library; with other tiles */

/* What a shape class runs with; while events are there, a trial whose times are not read yet. */
struct lt_plan {
    cublasLtMatmulAlgo_t algo;
    int n, timed; /* candidates and timed runs of each */
    cublasLtMatmulAlgo_t tried[CANDIDATES];
    std::vector<cudaEvent_t> events; /* [n][timed][before, after] */
};

typedef std::map<plan_key, lt_plan> plan_table;

/* `machine`: GPU and library, without line breaks. */
void nrd_cuda_plans_read(plan_table *plans, const std::string &path, const std::string &machine);
void nrd_cuda_plans_write(const plan_table &plans, const std::string &path, const std::string &machine);

#endif
