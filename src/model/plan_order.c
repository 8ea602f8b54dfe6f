/* SPDX-License-Identifier: Apache-2.0
 * Weights that are multiplied by another input than the one that comes: its columns are sorted (nrd_quant_order) or multiplied
 * (nrd_quant_input_scale). Which products can have that, and the tensors that say so. Products can whose input is made by the
 * runner, and whose parts, which read the same input, want the same. Which products' inputs may be rounded to int8, where not all
 * int8 weights are made for that. Called by plan.c. */
#include "base/dtype.h"
#include "model/needs.h"
#include "model/plan_internal.h"
#include "model/quant/quant.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WEIGHTS = 3 };

static const struct {
    const char *order, *scale, *int8_input;
    const char *weights[MAX_WEIGHTS];
} products[] = {
    {NRD_ORDER_QKV, NRD_COLUMNS_QKV, NRD_INT8_INPUT_QKV, {"attention.qkv.weight"}},
    {NRD_ORDER_QKV, NRD_COLUMNS_QKV, NRD_INT8_INPUT_QKV, {"attention.q.weight", "attention.k.weight", "attention.v.weight"}},
    {NRD_ORDER_DENSE, NRD_COLUMNS_DENSE, NRD_INT8_INPUT_DENSE, {"attention.dense.weight"}},
    {NRD_ORDER_UP, NRD_COLUMNS_UP, NRD_INT8_INPUT_UP, {"mlp.fc.weight", "mlp.gate.weight"}},
    {NRD_ORDER_DOWN, NRD_COLUMNS_DOWN, NRD_INT8_INPUT_DOWN, {"mlp.proj.weight"}},
};
enum { N_PRODUCTS = (int)(sizeof products / sizeof products[0]) };

static const int32_t *order_of(const nrd_src_tensor *t)
{
    return t && t->packed ? nrd_quant_order(t->packed) : NULL;
}

static const float *scale_of(const nrd_src_tensor *t)
{
    return t && t->packed ? nrd_quant_input_scale(t->packed) : NULL;
}

static bool is_one_of_them(const char *name)
{
    for (int i = 0; i < N_PRODUCTS; i++) {
        for (int k = 0; k < MAX_WEIGHTS && products[i].weights[k]; k++) {
            if (!strcmp(name, products[i].weights[k])) {
                return true;
            }
        }
    }
    return false;
}

nrd_dtype nrd_plan_own_type(const nrd_plan *p, const nrd_need *need, const nrd_src_tensor *t)
{
    if (!nrd_quant_has_own_input(t->packed)) {
        return t->dtype;
    }
    /* a rank's columns are not the first or last of an order */
    const bool is_apart = order_of(t) && need && need->shard == NRD_SHARD_COLS && p->spec.tp_size > 1;
    return !p->spec.picture_rows && !is_apart && need && is_one_of_them(need->name) ? t->dtype : p->spec.dtype;
}

/* Whether rows of the tensor would be for an input of their own. */
static bool wants_own_input(const nrd_plan_tensor *t)
{
    for (int i = 0; i < t->n_parts; i++) {
        const nrd_src_tensor *s = t->parts[i].src;
        if (s && nrd_quant_has_own_input(s->packed) && s->dtype == t->dtype) {
            return true;
        }
    }
    return false;
}

static bool is_same(const void *a, const void *b, size_t bytes)
{
    return a && b ? memcmp(a, b, bytes) == 0 : a == b;
}

/* Whether all parts are packed in the tensor's type, for the input of `first`, a part of a tensor as wide. */
static bool has_input_of(const nrd_plan_tensor *t, const nrd_plan_part *first)
{
    const size_t n = (size_t)t->cols;

    for (int i = 0; i < t->n_parts; i++) {
        const nrd_plan_part *part = &t->parts[i];
        const nrd_src_tensor *s = part->src;
        if (!s || !nrd_quant_has_own_input(s->packed) || s->dtype != t->dtype || (order_of(s) && s->dims[1] != t->cols) ||
            s->dims[1] != first->src->dims[1] || part->col0 != first->col0 || part->col0 + t->cols > s->dims[1] ||
            !is_same(order_of(s), order_of(first->src), n * sizeof(int32_t))) {
            return false;
        }
        const float *own = scale_of(s), *other = scale_of(first->src);
        if (!is_same(own ? own + part->col0 : NULL, other ? other + part->col0 : NULL, n * sizeof *own)) {
            return false;
        }
    }
    return true;
}

/* A vector beside the weights of a layer: takes the [n] numbers, which live as long as the plan. */
static nrd_error *add_vector(nrd_plan *p, const char *name, const float *numbers, int64_t n, int32_t layer)
{
    nrd_src_tensor *s = nrd_arena_alloc(&p->arena, sizeof *s);
    char full[NRD_PLAN_MAX_NAME];

    if (!s) {
        return nrd_error_no_memory();
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", layer, name);
    *s = (nrd_src_tensor){.name = name, .dtype = NRD_DTYPE_F32, .type_name = "F32", .n_dims = 1, .dims = {n, 0, 0, 0},
                          .data = numbers, .data_bytes = (size_t)n * sizeof *numbers};
    nrd_plan_tensor t = {.dtype = NRD_DTYPE_F32, .cols = 1, .is_vector = true, .n_parts = 1, .parts = {{.src = s, .n_rows = n}}};
    return nrd_plan_add(p, &t, full);
}

static nrd_error *add_order(nrd_plan *p, const char *name, const int32_t *order, int64_t n, int32_t layer)
{
    float *numbers = nrd_arena_alloc(&p->arena, (size_t)n * sizeof *numbers);

    if (!numbers) {
        return nrd_error_no_memory();
    }
    for (int64_t c = 0; c < n; c++) {
        numbers[c] = (float)order[c];
    }
    return add_vector(p, name, numbers, n, layer);
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

/* Whether parts are int8 and all of those were made for an input in int8. */
static bool has_int8_input(const nrd_plan *p, nrd_plan_tensor *const *parts, int n)
{
    bool any = false, all = p->opt.quantize == NRD_DTYPE_NONE && !nrd_source_int8_inputs(p->src);

    for (int k = 0; k < n; k++) {
        for (int i = 0; parts[k]->dtype == NRD_DTYPE_I8 && i < parts[k]->n_parts; i++) {
            const nrd_src_tensor *s = parts[k]->parts[i].src;
            any = true;
            all = all && s && nrd_quant_int8_input(s->packed);
        }
    }
    return any && all;
}

static nrd_error *add_int8_input(nrd_plan *p, const char *name, int32_t layer)
{
    static const float one = 1;
    return add_vector(p, name, &one, 1, layer);
}

nrd_error *nrd_plan_add_inputs(nrd_plan *p, size_t first, int32_t layer)
{
    for (int i = 0; i < N_PRODUCTS; i++) {
        nrd_plan_tensor *parts[MAX_WEIGHTS];
        const int n = find_parts(p, first, layer, products[i].weights, parts);
        const nrd_plan_part part = n > 0 ? parts[0]->parts[0] : (nrd_plan_part){0};
        const int64_t cols = n > 0 ? parts[0]->cols : 0;
        bool any = false, all = part.src && !(order_of(part.src) && cols >= 1 << 24);
        for (int k = 0; k < n; k++) {
            any = any || wants_own_input(parts[k]);
            all = all && has_input_of(parts[k], &part);
        }
        for (int k = 0; k < n && any; k++) {
            parts[k]->has_own_input = all;
            if (!all && wants_own_input(parts[k]) && p->opt.quantize == NRD_DTYPE_NONE) {
                NRD_TRY(nrd_plan_retype(p, parts[k], nrd_plan_plain_dtype(p, p->spec.dtype)));
            }
        }
        if (has_int8_input(p, parts, n)) {
            NRD_TRY(add_int8_input(p, products[i].int8_input, layer));
        }
        if (!any || !all) {
            continue;
        }
        if (order_of(part.src)) {
            NRD_TRY(add_order(p, products[i].order, order_of(part.src), cols, layer));
        }
        if (scale_of(part.src)) {
            NRD_TRY(add_vector(p, products[i].scale, scale_of(part.src) + part.col0, cols, layer));
        }
    }
    return NULL;
}

static bool is_made_of(const nrd_plan_tensor *t, const nrd_quant_weight *w)
{
    for (int i = 0; i < t->n_parts; i++) {
        const nrd_plan_part *part = &t->parts[i];
        for (int32_t k = 0; part->stack && k < t->n_stacked; k++) {
            if (part->stack[k]->packed == w) {
                return true;
            }
        }
        if (part->src && part->src->packed == w) {
            return true;
        }
    }
    return false;
}

nrd_dtype nrd_plan_kept_type(const nrd_plan *p, const nrd_src_tensor *t)
{
    for (size_t i = 0; nrd_quant_has_own_input(t->packed) && i < p->n; i++) {
        if (is_made_of(&p->tensors[i], t->packed)) {
            return p->tensors[i].dtype;
        }
    }
    return t->dtype;
}

/* Matrices that were unpacked though their source's type could hold them, because of their order or of their input's numbers. */
static void note_unpacked(nrd_plan *p, bool of_order, const char *why)
{
    double bytes = 0, packed = 0;
    nrd_dtype to = NRD_DTYPE_NONE;
    size_t n = 0;

    for (size_t i = 0; i < p->n && p->opt.quantize == NRD_DTYPE_NONE; i++) {
        const nrd_plan_tensor *t = &p->tensors[i];
        const nrd_src_tensor *s = t->parts[0].stack ? t->parts[0].stack[0] : t->parts[0].src;
        if (s && nrd_quant_has_own_input(s->packed) && (order_of(s) != NULL) == of_order && nrd_plan_is_float(t->dtype) &&
            !nrd_plan_is_float(s->dtype) && (p->opt.keep_packed || !nrd_dtype_is_packed(s->dtype))) {
            to = t->dtype;
            n++;
            bytes += (double)t->data_bytes;
            packed += (double)(t->rows * t->cols) / nrd_dtype_block(s->dtype) * (double)nrd_dtype_block_bytes(s->dtype);
        }
    }
    if (n > 0) {
        nrd_str_printf(&p->notes, "%s%zu matrices are unpacked to %s, because %s: %.1f MB instead of %.1f MB; "
                       "--quantize q8_0 takes about half", p->notes.len ? "; " : "", n, nrd_dtype_name(to), why, bytes / 1e6, packed / 1e6);
    }
}

void nrd_plan_note_inputs(nrd_plan *p)
{
    note_unpacked(p, true, "their columns are in another order (desc_act, actorder) than those of matrices with the same input, or experts "
                           "or ranks divide them");
    note_unpacked(p, false, "their input is multiplied by other numbers (pre_quant_scale) than that of matrices with the same input, or is "
                            "that of experts");
}
