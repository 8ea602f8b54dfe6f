/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/pack_gptq.h - a quantized module as tensors of GPTQ.
 *
 * Purpose   qweight int32 [in * bits / 32, out] (codes along a weight's columns from the lowest bits of a word up), qzeros
 *           int32 [groups, out * bits / 32], each zero point less one, scales float16 [groups, out], g_idx int32 [in], the group of
 *           each column: what checkpoint_format "gptq" means to GPTQModel, AutoGPTQ, transformers and vLLM.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG names a module whose rows or columns do not fill words.
 * Sources   ModelCloud/GPTQModel, AutoGPTQ (facts of the format).
 */
#ifndef NRD_TOOLS_QUANTIZE_PACK_GPTQ_H
#define NRD_TOOLS_QUANTIZE_PACK_GPTQ_H

#include "tools/quantize/pack.h"

#define NRD_QPACK_GPTQ "gptq" /* as nrd_qscheme.format */

/* Whether all modules can be packed; before any of them is quantized. */
nrd_error *nrd_qpack_gptq_check(const nrd_qmodules *q, int bits) NRD_MUST_USE;
/* As nrd_qpack. The grid's zero points are 1 or more: others' kernels add one without cutting it to `bits` bits. */
nrd_error *nrd_qpack_gptq(const nrd_qresult_module *y, nrd_qtensor *t, int *n) NRD_MUST_USE;
/* The member quantization_config of config.json, as nrd_qpack_config. */
void nrd_qpack_gptq_config(nrd_str *out, const nrd_qgrid *g, const char *const *ignored, size_t n_ignored, bool with_head);

#endif
