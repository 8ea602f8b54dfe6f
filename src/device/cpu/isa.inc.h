/* The body of every isa_<name>.c: all kernels, then their table. */
#include "device/cpu/kernels.h"
#include "device/cpu/simd.h" /* switches the instruction set on */

#include "device/ops/linear_cpu.h"

const nrd_cpu_kernels NRD_KERNELS = {
    .name = NRD_KERNELS_NAME,
    .linear_panel = linear_panel,
    .linear_tile = linear_tile,
    .linear_finish = linear_finish,
    .act_q8_row = act_q8_row,
};

#if defined(__clang__) && NRD_ISA > 0
#pragma clang attribute pop
#endif
