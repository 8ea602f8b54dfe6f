/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "device/cpu/kernels.h"
#ifdef NRD_AMX_WORDS
#include NRD_AMX_WORDS
#else
#include "device/cpu/amx.h"
#endif

bool nrd_cpu_amx_usable(void) /* before the instruction set is switched on: runs on every machine */
{
    return mx_usable();
}

#define NRD_ISA 4
#define NRD_KERNELS nrd_cpu_kernels_amx
#define NRD_LINEAR_KERNELS nrd_linear_kernels_amx
#define NRD_KERNELS_NAME "amx"
#include "device/cpu/isa.inc.h"
#endif
