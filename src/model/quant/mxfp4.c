/* SPDX-License-Identifier: Apache-2.0
 * MXFP4 as GPT-OSS's folders have it (quant_method "mxfp4"), of experts' matrices:
 *   STEM_blocks u8 [experts, out, in / 32, 16]  pairs of E2M1, the lower nibble first
 *   STEM_scales u8 [experts, out, in / 32]      E8M0
 * One below the other they are one matrix [experts * out, in]. Other modules are as usual; `modules_to_not_convert`
 * need not be read. Source: Open Compute Project, Microscaling Formats, 2023; the files of the published models. */
#include "model/quant/quant.h"

#include "base/mem.h"

enum { BLOCK = 32, BLOCK_BYTES = 16 };

/* Dimensions in front of the blocks become rows. */
static nrd_error *as_rows(nrd_src_tensor *t, int n_dims, int64_t block)
{
    size_t rows = 1, cols = 0;

    for (int i = 0; t->n_dims == n_dims && i < n_dims; i++) {
        if (t->dims[i] < 1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is empty", t->name);
        }
    }
    if (t->dtype != NRD_DTYPE_U8 || t->n_dims != n_dims || (block > 1 && t->dims[n_dims - 1] != block) ||
        !nrd_size_mul((size_t)t->dims[0], (size_t)t->dims[1], &rows) ||
        !nrd_size_mul((size_t)t->dims[2], (size_t)block, &cols) || rows > INT64_MAX / 64 || cols > INT64_MAX / 64) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has type %s and %d dimensions, expected uint8 [experts, out, in / "
                          "32%s]", t->name, t->type_name, t->n_dims, block > 1 ? ", 16" : "");
    }
    t->n_dims = 2;
    t->dims[0] = (int64_t)rows;
    t->dims[1] = (int64_t)cols;
    return NULL;
}

static nrd_error *weight_mxfp4(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, "_blocks", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, "_scales", w, &w->scales));
    NRD_TRY(as_rows(&w->codes, 4, BLOCK_BYTES));
    NRD_TRY(as_rows(&w->scales, 3, 1));
    NRD_TRY(nrd_quant_take_fp4(w));
    NRD_TRY(nrd_quant_groups(w, BLOCK));
    w->is_mxfp4 = true;
    w->row_group = 1;
    w->scale_group = 1;
    w->scale_row = w->n_groups;
    return nrd_quant_shape(&w->scales, NRD_DTYPE_U8, w->rows, w->n_groups);
}

static nrd_error *open_mxfp4(nrd_quant *q, const nrd_json *config)
{
    (void)q;
    (void)config;
    return NULL;
}

const nrd_quant_reader nrd_quant_mxfp4 = {"mxfp4", {"_blocks"}, open_mxfp4, weight_mxfp4};
