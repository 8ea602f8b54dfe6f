/* SPDX-License-Identifier: Apache-2.0 */
#define NRD_ISA 0
#define NRD_KERNELS nrd_cpu_kernels_generic
#define NRD_LINEAR_KERNELS nrd_linear_kernels_generic
#define NRD_KERNELS_NAME "generic"
#include "device/cpu/isa.inc.h"
