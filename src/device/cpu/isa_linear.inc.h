/* SPDX-License-Identifier: Apache-2.0
 * The body of every isa_<name>_linear.c: the products, then their table. */
#include "device/cpu/simd.h" /* switches the instruction set on */

#include "device/ops/linear_cpu.h"
#include "device/ops/linear_wide_cpu.h"
#if NRD_ISA >= 4
#include "device/ops/linear_amx.h"
#endif

const nrd_linear_kernels NRD_LINEAR_KERNELS = {
    .panel = linear_panel,
    .tile = linear_tile,
    .fills = NRD_ISA >= 3,
    .wide = linear_wide,
#if NRD_ISA >= 4
    .mx_from = linear_mx_from,
    .mx = linear_mx,
#endif
    .far = linear_far,
    .finish = linear_finish,
};

#if defined(__clang__) && NRD_ISA > 0
#pragma clang attribute pop
#endif
