/* SPDX-License-Identifier: Apache-2.0
 * The table of formats, and of those that others make and we do not. */
#include "tools/quantize/scheme.h"

#include <stddef.h>
#include <string.h>

#define PACKED "pack-quantized"
#define ROWS NRD_QGRID_ROWS
static const nrd_qscheme schemes[] = {
    {"full_prec", "a copy", NRD_QMETHOD_COPY, {0}, false, NULL},
    {"int8_wo", "8-bit weights, a scale for each row", NRD_QMETHOD_RTN, {.bits = 8, .symmetric = true, .group = ROWS}, false,
     PACKED},
    {"int4_wo", "4-bit weights in groups, rounded to nearest", NRD_QMETHOD_RTN, {.bits = 4, .symmetric = true}, false, PACKED},
    {"int4_awq", "4-bit weights in groups, AWQ", NRD_QMETHOD_AWQ, {.bits = 4, .symmetric = true}, false, PACKED},
    {"int4_gptq", "4-bit weights in groups, GPTQ", NRD_QMETHOD_GPTQ, {.bits = 4, .symmetric = true}, false, PACKED},
    {"int8_sq", "8-bit weights and activations, SmoothQuant", NRD_QMETHOD_SMOOTH,
     {.bits = 8, .symmetric = true, .group = ROWS}, true, "int-quantized"},
    {"fp8", "E4M3 weights, a scale for each row; activations, a scale for each token", NRD_QMETHOD_RTN,
     {.bits = 8, .is_float = true, .symmetric = true, .group = ROWS}, true, "float-quantized"},
};
enum { N_SCHEMES = sizeof schemes / sizeof *schemes };

/* Names of the published quantize.py. */
static const struct {
    const char *name, *instead;
} missing[] = {
    {"w4a8_awq", "int4_awq"},   {"nvfp4", "int4_awq"},    {"w4a8_nvfp4_fp8", "fp8"},  {"w4a8_mxfp4_fp8", "fp8"},
    {"w4a8_awq_beta", "int4_awq"}, {"int4_awq_lite", "int4_awq"}, {"fp8_pc_pt", "fp8"}, {"fp8_pb_wo", "fp8"},
    {"fp8_2d_blockwise_weight_only", "fp8"}, {"mxfp4", "int4_awq"}, {"mxfp8", "fp8"},
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
                      "int4_awq, int4_gptq, int8_sq, fp8", name);
}
