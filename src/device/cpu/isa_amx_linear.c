/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#ifdef NRD_AMX_WORDS
#include NRD_AMX_WORDS
#else
#include "device/cpu/amx.h"
#endif

#define NRD_ISA 4
#define NRD_LINEAR_KERNELS nrd_linear_kernels_amx
#include "device/cpu/isa_linear.inc.h"
#endif
