/* SPDX-License-Identifier: Apache-2.0
 * gemm_plans.cuh - which library kernel each shape of product runs with, and the file that keeps it.
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

/* rows of W, columns, token class, types of inputs and results, distance of result rows */
typedef std::tuple<int64_t, int64_t, int64_t, int, int, int64_t> plan_key;

enum { OFFERED = 12, CANDIDATES = OFFERED + 14 }; /* by the library; with other tiles */

typedef std::map<plan_key, cublasLtMatmulAlgo_t> plan_table;

/* `machine`: GPU and library, without line breaks. */
void nrd_cuda_plans_read(plan_table *plans, const std::string &path, const std::string &machine);
void nrd_cuda_plans_write(const plan_table &plans, const std::string &path, const std::string &machine);

#endif
