/* SPDX-License-Identifier: Apache-2.0
 * embed: out[i] = table[id_i] * scale (+ pos_table[position_i]) (+ type_table[type_i]). Bound: memory. */
#include "device/ops/ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int64_t nrd_embed_source(const nrd_embed_args *a, int32_t i, const void **prompt)
{
    const int64_t n_ids = a->n_ids > 0 ? a->n_ids : a->table->rows;
    int64_t id = a->ids[i];

    if (id < 0) {
        id = a->slot_tokens ? a->slot_tokens[-1 - id] : 0;
    }
    *prompt = id >= n_ids && a->prompt_table ? a->prompt_table[i] : NULL;
    if (*prompt) {
        if (!nrd_embed_adds(a)) {
            *prompt = NULL;
            return -1;
        }
        return 0;
    }
    if (id >= n_ids && a->first_col > 0) {
        return -1;
    }
    id = (id < 0 || id >= n_ids ? 0 : id) - a->first_id;
    return id < 0 || id >= a->table->rows ? -1 : id;
}

int64_t nrd_embed_type(const nrd_embed_args *a, int32_t i)
{
    const int64_t type = a->types ? a->types[i] : 0, last = a->type_table->rows - 1;
    return type >= 0 && type < last ? type : type < 0 ? 0 : last;
}

nrd_error *nrd_embed_check(const nrd_embed_args *a)
{
    const int64_t cols = a->table ? a->table->cols : 0;

    if (a->n_tokens < 0 || a->hidden <= 0 || a->first_col < 0 || cols <= 0 || cols > a->hidden - a->first_col ||
        (cols < a->hidden && a->n_ids == 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: %d tokens of %d from a table of %lld columns, from %d on", a->n_tokens,
                          a->hidden, (long long)cols, a->first_col);
    }
    if (a->table->rows <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: empty table");
    }
    if (a->first_id < 0 || a->n_ids < 0 || (a->first_id > 0 && a->n_ids == 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: table from id %d of %d on", a->first_id, a->n_ids);
    }
    if (a->n_tokens > 0 && (!a->ids || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: ids and out are needed");
    }
    if (!nrd_is_float_dtype(a->out_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "embed: output type %s", nrd_dtype_name(a->out_dtype));
    }
    NRD_TRY(nrd_weight_check(a->table, "embed"));
    if (a->pos_table) {
        if (a->pos_table->cols != a->hidden || a->pos_table->rows <= 0 || !a->positions) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: position table of %lld columns",
                              (long long)a->pos_table->cols);
        }
        NRD_TRY(nrd_weight_check(a->pos_table, "embed positions"));
    }
    if (a->type_table) {
        if (a->type_table->cols != a->hidden || a->type_table->rows <= 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "embed: type table of %lld columns", (long long)a->type_table->cols);
        }
        NRD_TRY(nrd_weight_check(a->type_table, "embed types"));
    }
    return NULL;
}

void nrd_embed_ref(const nrd_embed_args *a)
{
    float *row = nrd_xmalloc((size_t)a->hidden * 8), *pos = row + a->hidden;

    for (int32_t i = 0; i < a->n_tokens; i++) {
        const void *prompt;
        const int64_t id = nrd_embed_source(a, i, &prompt), to = a->out_rows ? a->out_rows[i] : i;
        if (prompt) {
            for (int32_t k = 0; k < a->hidden; k++) {
                row[k] = nrd_load_f32(a->out_dtype, prompt, k);
            }
        } else {
            memset(row, 0, (size_t)a->hidden * sizeof *row);
            if (id >= 0) {
                nrd_weight_row(a->table, id, row + a->first_col);
            }
        }
        for (int32_t k = 0; k < a->hidden; k++) {
            row[k] *= a->scale;
        }
        if (a->pos_table && nrd_embed_adds(a)) {
            int64_t p = a->positions[i];
            p = p < 0 ? 0 : p >= a->pos_table->rows ? a->pos_table->rows - 1 : p;
            nrd_weight_row(a->pos_table, p, pos);
            for (int32_t k = 0; k < a->hidden; k++) {
                row[k] += pos[k];
            }
        }
        if (a->type_table && nrd_embed_adds(a)) {
            nrd_weight_row(a->type_table, nrd_embed_type(a, i), pos);
            for (int32_t k = 0; k < a->hidden; k++) {
                row[k] += pos[k];
            }
        }
        for (int32_t k = 0; k < a->hidden; k++) {
            nrd_store_f32(a->out_dtype, a->out, to * a->hidden + k, row[k]);
        }
    }
    free(row);
}
