/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define NRD_ISA 2
#define NRD_LINEAR_KERNELS nrd_linear_kernels_avx512
#include "device/cpu/isa_linear.inc.h"
#endif
