/* SPDX-License-Identifier: Apache-2.0
 * The tensors of a plan: one more, or another type for one. */
#include "model/plan_internal.h"

#include "base/dtype.h"

#include <stdlib.h>
#include <string.h>

/* What its type makes of its bytes. */
static nrd_error *size_of(nrd_plan_tensor *t)
{
    t->has_row_scales = !t->is_vector && nrd_plan_has_row_scales(t->dtype);
    if (!nrd_dtype_bytes(t->dtype, (uint64_t)t->cols, &t->data_bytes) ||
        !nrd_size_mul(t->data_bytes, (size_t)t->rows, &t->data_bytes)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "%s: rows of %lld elements cannot be kept as %s (blocks of %d)", t->name,
                          (long long)t->cols, nrd_dtype_name(t->dtype), nrd_dtype_block(t->dtype));
    }
    return NULL;
}

static uint64_t all_bytes(const nrd_plan_tensor *t)
{
    return t->data_bytes + (t->has_row_scales ? (uint64_t)t->rows * 4 : 0);
}

nrd_error *nrd_plan_retype(nrd_plan *p, nrd_plan_tensor *t, nrd_dtype dtype)
{
    p->total_bytes -= all_bytes(t);
    t->dtype = dtype;
    NRD_TRY(size_of(t));
    p->total_bytes += all_bytes(t);
    return NULL;
}

nrd_error *nrd_plan_add(nrd_plan *p, nrd_plan_tensor *t, const char *name)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 256;
        nrd_plan_tensor *grown = realloc(p->tensors, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        p->tensors = grown;
        p->cap = cap;
    }
    t->name = nrd_arena_strndup(&p->arena, name, strlen(name));
    if (!t->name) {
        return nrd_error_no_memory();
    }
    t->rows = 0;
    for (int i = 0; i < t->n_parts; i++) {
        t->rows += t->parts[i].n_rows;
    }
    NRD_TRY(size_of(t));
    const nrd_need *need = nrd_need_of_full(name);
    if (need) {
        NRD_TRY(nrd_plan_multiply(&p->spec, need->name, t));
    }
    p->total_bytes += all_bytes(t);
    p->tensors[p->n++] = *t;
    return NULL;
}
