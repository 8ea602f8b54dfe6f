/* SPDX-License-Identifier: Apache-2.0 */
#define NRD_ISA 0
#define NRD_LINEAR_KERNELS nrd_linear_kernels_generic
#include "device/cpu/isa_linear.inc.h"
