/* SPDX-License-Identifier: Apache-2.0
 * The body of every isa_<name>.c: all kernels but those of isa_linear.inc.h, then their table. */
#include "device/cpu/kernels.h"
#include "device/cpu/simd.h" /* switches the instruction set on */

#include "device/ops/attention_cpu.h"
#if NRD_ISA >= 4
#include "device/ops/attention_amx.h"
#endif
#include "device/ops/lora_cpu.h"
#include "device/ops/peak_cpu.h"
#include "device/ops/rows_cpu.h"
#include "device/ops/recurrent_cpu.h"
#include "device/ops/sample_cpu.h"

const nrd_cpu_kernels NRD_KERNELS = {
    .name = NRD_KERNELS_NAME,
    .linear = &NRD_LINEAR_KERNELS,
#if NRD_ISA >= 4
    .attention_mx = attention_mx,
    .peak_bf16 = peak_bf16,
    .bf16_ops = PEAK_BF16_OPS,
#endif
    .act_q8_row = act_q8_row,
    .act_q8_part = act_q8_part,
    .add_row = add_row,
    .scale_row = scale_row,
    .gain_row = gain_row,
    .norm_row = norm_row,
    .act_row = act_row,
    .xielu_row = xielu_row,
    .row_moments = row_moments,
    .above_row = above_row,
    .rope_angles = rope_angles,
    .rope_head = rope_head,
    .kv_store_head = kv_store_head,
    .lora_dots = lora_dots,
    .lora_add = lora_add,
    .attention_tile = attention_tile,
    .attention_merge = merge_rows,
    .short_conv = short_conv_part,
    .ssm = ssm_head,
    .delta_rule = delta_head,
    .gated_norm = gated_norm_row,
    .rg_lru = rg_lru_head,
    .max_row = max_row,
    .count_above = count_above,
    .collect_above = collect_above,
    .bounds_row = bounds_row,
    .max_of_16 = max_of_16,
    .exp_row = exp_row,
    .sum_above = sum_above,
    .peak_dot = peak_dot,
    .peak_fma = peak_fma,
    .peak_read = peak_read,
    .dot_ops = PEAK_DOT_OPS,
    .fma_ops = PEAK_FMA_OPS,
};

#if defined(__clang__) && NRD_ISA > 0
#pragma clang attribute pop
#endif
