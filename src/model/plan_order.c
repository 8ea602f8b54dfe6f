/* SPDX-License-Identifier: Apache-2.0
 * Weights whose columns were sorted (nrd_quant_order): which products can follow, and the tensors that say so. Products can
 * whose input is gathered by the runner, and whose parts, which read the same input, have the same order. Called by plan.c. */
#include "base/dtype.h"
#include "model/needs.h"
#include "model/plan_internal.h"
#include "model/quant/quant.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WEIGHTS = 3 };

static const struct {
    const char *order;
    const char *weights[MAX_WEIGHTS];
} products[] = {
    {NRD_ORDER_QKV, {"attention.qkv.weight"}},
    {NRD_ORDER_QKV, {"attention.q.weight", "attention.k.weight", "attention.v.weight"}},
    {NRD_ORDER_DENSE, {"attention.dense.weight"}},
    {NRD_ORDER_UP, {"mlp.fc.weight", "mlp.gate.weight"}},
    {NRD_ORDER_DOWN, {"mlp.proj.weight"}},
};
enum { N_PRODUCTS = (int)(sizeof products / sizeof products[0]) };

static const int32_t *order_of(const nrd_src_tensor *t)
{
    return t && t->packed ? nrd_quant_order(t->packed) : NULL;
}

static bool can_follow(const nrd_plan *p, const nrd_need *need)
{
    if (p->spec.picture_rows || (need->shard == NRD_SHARD_COLS && p->spec.tp_size > 1)) { /* a rank's columns are not the first or last of the order */
        return false;
    }
    for (int i = 0; i < N_PRODUCTS; i++) {
        for (int k = 0; k < MAX_WEIGHTS && products[i].weights[k]; k++) {
            if (!strcmp(need->name, products[i].weights[k])) {
                return true;
            }
        }
    }
    return false;
}

nrd_dtype nrd_plan_order_type(const nrd_plan *p, const nrd_need *need, const nrd_src_tensor *t)
{
    return order_of(t) && !can_follow(p, need) ? p->spec.dtype : t->dtype;
}

/* Whether rows of the tensor would have sorted columns. */
static bool wants_order(const nrd_plan_tensor *t)
{
    for (int i = 0; i < t->n_parts; i++) {
        if (order_of(t->parts[i].src) && t->parts[i].src->dtype == t->dtype) {
            return true;
        }
    }
    return false;
}

/* Whether all parts are packed in the tensor's type, in this order. */
static bool has_order(const nrd_plan_tensor *t, const int32_t *order)
{
    for (int i = 0; i < t->n_parts; i++) {
        const nrd_src_tensor *s = t->parts[i].src;
        const int32_t *own = order_of(s);
        if (!own || s->dtype != t->dtype || s->dims[1] != t->cols || memcmp(own, order, (size_t)t->cols * sizeof *order) != 0) {
            return false;
        }
    }
    return true;
}

static nrd_error *add_order(nrd_plan *p, const char *name, const int32_t *order, int64_t n, int32_t layer)
{
    nrd_src_tensor *s = nrd_arena_alloc(&p->arena, sizeof *s);
    float *numbers = nrd_arena_alloc(&p->arena, (size_t)n * sizeof *numbers);
    char full[NRD_PLAN_MAX_NAME];

    if (!s || !numbers) {
        return nrd_error_no_memory();
    }
    for (int64_t c = 0; c < n; c++) {
        numbers[c] = (float)order[c];
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", layer, name);
    *s = (nrd_src_tensor){.name = name, .dtype = NRD_DTYPE_F32, .type_name = "F32", .n_dims = 1, .dims = {n, 0, 0, 0},
                          .data = numbers, .data_bytes = (size_t)n * sizeof *numbers};
    nrd_plan_tensor t = {.dtype = NRD_DTYPE_F32, .cols = 1, .is_vector = true, .n_parts = 1, .parts = {{.src = s, .n_rows = n}}};
    return nrd_plan_add(p, &t, full);
}

/* The tensors of a product's parts among those of a layer, in out[]. */
static int find_parts(nrd_plan *p, size_t first, int32_t layer, const char *const *weights, nrd_plan_tensor **out)
{
    char name[NRD_PLAN_MAX_NAME];
    int n = 0;

    for (int k = 0; k < MAX_WEIGHTS && weights[k]; k++) {
        snprintf(name, sizeof name, NRD_LAYER_PREFIX "%s", layer, weights[k]);
        for (size_t i = first; i < p->n; i++) {
            if (!strcmp(p->tensors[i].name, name)) {
                out[n++] = &p->tensors[i];
            }
        }
    }
    return n;
}

nrd_error *nrd_plan_add_orders(nrd_plan *p, size_t first, int32_t layer)
{
    for (int i = 0; i < N_PRODUCTS; i++) {
        nrd_plan_tensor *parts[MAX_WEIGHTS];
        const int n = find_parts(p, first, layer, products[i].weights, parts);
        const int32_t *order = n > 0 ? order_of(parts[0]->parts[0].src) : NULL;
        bool any = false, all = order && parts[0]->cols < 1 << 24;
        for (int k = 0; k < n; k++) {
            any = any || wants_order(parts[k]);
            all = all && has_order(parts[k], order);
        }
        for (int k = 0; k < n && any; k++) {
            parts[k]->is_sorted = all;
            if (!all && wants_order(parts[k]) && p->opt.quantize == NRD_DTYPE_NONE) {
                NRD_TRY(nrd_plan_retype(p, parts[k], nrd_plan_plain_dtype(p, p->spec.dtype)));
            }
        }
        if (any && all) {
            NRD_TRY(add_order(p, products[i].order, order, parts[0]->cols, layer));
        }
    }
    return NULL;
}

void nrd_plan_note_orders(nrd_plan *p)
{
    double bytes = 0, packed = 0;
    nrd_dtype to = NRD_DTYPE_NONE;
    size_t n = 0;

    for (size_t i = 0; i < p->n && p->opt.quantize == NRD_DTYPE_NONE; i++) {
        const nrd_plan_tensor *t = &p->tensors[i];
        const nrd_src_tensor *s = t->parts[0].stack ? t->parts[0].stack[0] : t->parts[0].src;
        if (order_of(s) && nrd_plan_is_float(t->dtype)) {
            to = t->dtype;
            n++;
            bytes += (double)t->data_bytes;
            packed += (double)(t->rows * t->cols) / nrd_dtype_block(s->dtype) * (double)nrd_dtype_block_bytes(s->dtype);
        }
    }
    if (n > 0) {
        nrd_str_printf(&p->notes, "%s%zu matrices are unpacked to %s, because their columns are in another order (desc_act, actorder) "
                       "than those of matrices with the same input, or experts or ranks divide them: %.1f MB instead of %.1f MB; "
                       "--quantize q8_0 takes about half", p->notes.len ? "; " : "", n, nrd_dtype_name(to), bytes / 1e6, packed / 1e6);
    }
}
