/* SPDX-License-Identifier: Apache-2.0
 * The table of formats, and of those that others make and we do not. */
#include "tools/quantize/scheme.h"

#include <stddef.h>
#include <string.h>

#define PACKED "pack-quantized"
#define ROWS NRD_QGRID_ROWS
#define FLOATS(n) .bits = n, .is_float = true, .symmetric = true
static const nrd_qscheme schemes[] = {
    {"full_prec", "a copy", NRD_QMETHOD_COPY, {0}, NRD_QROUND_NOT, NULL, false},
    {"int8_wo", "8-bit weights, a scale for each row", NRD_QMETHOD_RTN, {.bits = 8, .symmetric = true, .group = ROWS},
     NRD_QROUND_NOT, PACKED, false},
    {"int4_wo", "4-bit weights in groups, rounded to nearest", NRD_QMETHOD_RTN, {.bits = 4, .symmetric = true},
     NRD_QROUND_NOT, PACKED, false},
    {"int4_awq", "4-bit weights in groups, AWQ", NRD_QMETHOD_AWQ, {.bits = 4, .symmetric = true}, NRD_QROUND_NOT, PACKED, false},
    {"w4a8_awq", "4-bit weights in groups, AWQ; activations E4M3", NRD_QMETHOD_AWQ, {.bits = 4, .symmetric = true},
     NRD_QROUND_E4M3, PACKED, false},
    {"int4_gptq", "4-bit weights in groups, GPTQ", NRD_QMETHOD_GPTQ, {.bits = 4, .symmetric = true}, NRD_QROUND_NOT, PACKED,
     false},
    {"int8_sq", "8-bit weights and activations, SmoothQuant", NRD_QMETHOD_SMOOTH,
     {.bits = 8, .symmetric = true, .group = ROWS}, NRD_QROUND_INT8, "int-quantized", false},
    {"fp8", "E4M3 weights, a scale for each row; activations, a scale for each token", NRD_QMETHOD_RTN,
     {FLOATS(8), .group = ROWS}, NRD_QROUND_E4M3, "float-quantized", false},
    {"fp8_pc_pt", "the same as fp8", NRD_QMETHOD_RTN, {FLOATS(8), .group = ROWS}, NRD_QROUND_E4M3, "float-quantized", false},
    {"fp8_pb_wo", "E4M3 weights, a scale for 128 x 128", NRD_QMETHOD_RTN, {FLOATS(8), .group = 128, .row_group = 128},
     NRD_QROUND_NOT, "float-quantized", false},
    {"mxfp8", "E4M3 weights, powers of two for 32 columns", NRD_QMETHOD_RTN,
     {FLOATS(8), .group = 32, .scale_dtype = NRD_DTYPE_U8}, NRD_QROUND_NOT, "mxfp8-quantized", false},
    {"mxfp4", "E2M1 weights, powers of two for 32 columns", NRD_QMETHOD_RTN,
     {FLOATS(4), .group = 32, .scale_dtype = NRD_DTYPE_U8}, NRD_QROUND_NOT, "mxfp4-pack-quantized", false},
    {"nvfp4", "E2M1 weights, E4M3 scales for 16 columns", NRD_QMETHOD_RTN,
     {FLOATS(4), .group = 16, .scale_dtype = NRD_DTYPE_F8_E4M3}, NRD_QROUND_NOT, "nvfp4-pack-quantized", false},
};
enum { N_SCHEMES = sizeof schemes / sizeof *schemes };

/* Names of the published quantize.py. */
static const struct {
    const char *name, *instead;
} missing[] = {
    {"w4a8_nvfp4_fp8", "nvfp4"}, {"w4a8_mxfp4_fp8", "mxfp4"}, {"w4a8_awq_beta", "w4a8_awq"}, {"int4_awq_lite", "int4_awq"},
    {"fp8_2d_blockwise_weight_only", "fp8_pb_wo"},
};
enum { N_MISSING = sizeof missing / sizeof *missing };

nrd_error *nrd_qscheme_find(const char *name, nrd_qscheme *out)
{
    for (int i = 0; i < N_SCHEMES; i++) {
        if (!strcmp(schemes[i].name, name)) {
            *out = schemes[i];
            return NULL;
        }
    }
    for (int i = 0; i < N_MISSING; i++) {
        if (!strcmp(missing[i].name, name)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "--qformat '%s' is not supported; nearest to it is %s", name,
                              missing[i].instead);
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "--qformat '%s' is not supported; known are full_prec, int8_wo, int4_wo, "
                      "int4_awq, int4_gptq, w4a8_awq, int8_sq, fp8, fp8_pc_pt, fp8_pb_wo, mxfp8, mxfp4, nvfp4", name);
}
