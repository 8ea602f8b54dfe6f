/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define NRD_ISA 1
#define NRD_KERNELS nrd_cpu_kernels_avx2
#define NRD_LINEAR_KERNELS nrd_linear_kernels_avx2
#define NRD_KERNELS_NAME "avx2"
#include "device/cpu/isa.inc.h"
#endif
