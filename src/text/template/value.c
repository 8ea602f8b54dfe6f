/* SPDX-License-Identifier: Apache-2.0
 * The values of a rendering: numbers, texts, lists, dictionaries. How they are made from JSON and compared; all behave as
 * Python's do, since templates rely on it. */
#include "text/template/internal.h"

#include <math.h>

const char *nrd_template_type_name(nrd_template_val v)
{
    static const char *const lists[] = {"list", "tuple", "range", "generator", "dict_keys",
                                        "dict_values", "dict_items"};
    static const char *const names[] = {"Undefined", "NoneType", "bool", "int", "float", "str", "",
                                        "dict", "Namespace", "Macro", "method", "function",
                                        "LoopContext"};
    return v.type == V_LIST ? lists[v.list->kind] : names[v.type];
}

/* ---- containers ---- */

nrd_template_list *nrd_template_list_new(nrd_template_run *r, nrd_template_list_kind kind,
                                         size_t cap)
{
    nrd_template_list *l = nrd_template_alloc(r, sizeof *l);
    *l = (nrd_template_list){.kind = kind, .cap = cap};
    if (cap > 0) {
        l->v = nrd_template_alloc(r, cap * sizeof *l->v);
    }
    return l;
}

void nrd_template_push(nrd_template_run *r, nrd_template_list *l, nrd_template_val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        nrd_template_val *grown = nrd_template_alloc(r, cap * sizeof *grown);
        if (l->n > 0) {
            memcpy(grown, l->v, l->n * sizeof *grown);
        }
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

nrd_template_dict *nrd_template_dict_new(nrd_template_run *r, size_t cap)
{
    nrd_template_dict *d = nrd_template_alloc(r, sizeof *d);
    *d = (nrd_template_dict){.cap = cap};
    if (cap > 0) {
        d->e = nrd_template_alloc(r, cap * sizeof *d->e);
    }
    return d;
}

nrd_template_val *nrd_template_dict_find(nrd_template_run *r, const nrd_template_dict *d,
                                         nrd_template_val key)
{
    nrd_template_step(r,
                      d->n / 4); /* objects of messages are small; large ones pay for the search */
    for (size_t i = 0; i < d->n; i++) {
        const nrd_template_val *k = &d->e[i].key;
        if (k->type == V_STR && key.type == V_STR) {
            if (k->n == key.n && memcmp(k->s, key.s, key.n) == 0) {
                return &d->e[i].value;
            }
        } else if ((k->type == V_STR) == (key.type == V_STR) && nrd_template_equal(r, *k, key)) {
            return &d->e[i].value;
        }
    }
    return NULL;
}

bool nrd_template_is_hashable(nrd_template_val v)
{
    if (v.type == V_LIST && v.list->kind == L_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++) {
            if (v.list->v[i].type == V_LIST ? v.list->v[i].list->kind != L_RANGE
                                            : !nrd_template_is_hashable(v.list->v[i])) {
                return false;
            }
        }
        return true;
    }
    return v.type != V_DICT && !(v.type == V_LIST && v.list->kind == L_LIST);
}

void nrd_template_dict_put(nrd_template_run *r, nrd_template_dict *d, nrd_template_val key,
                           nrd_template_val value)
{
    if (!nrd_template_is_hashable(key)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "unhashable type: '%s'",
                          nrd_template_type_name(key));
    }
    nrd_template_val *old = nrd_template_dict_find(r, d, key);
    if (old) {
        *old = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        nrd_template_entry *grown = nrd_template_alloc(r, cap * sizeof *grown);
        if (d->n > 0) {
            memcpy(grown, d->e, d->n * sizeof *grown);
        }
        d->e = grown;
        d->cap = cap;
    }
    d->e[d->n++] = (nrd_template_entry){key, value};
}

nrd_template_val nrd_template_from_json(nrd_template_run *r, const nrd_json *j)
{
    nrd_template_list *l;
    nrd_template_dict *d;
    nrd_template_step(r, 1);
    switch (j->type) {
    case NRD_JSON_NULL:
        return nrd_template_val_none();
    case NRD_JSON_BOOL:
        return nrd_template_val_bool(j->boolean);
    case NRD_JSON_INT:
        return nrd_template_val_int(j->i);
    case NRD_JSON_UINT:
        return nrd_template_val_float((double)j->u);
    case NRD_JSON_REAL:
        return nrd_template_val_float(j->real);
    case NRD_JSON_STRING:
        if (j->n > UINT32_MAX / 2) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "a string of %zu bytes is too long", j->n);
        }
        return nrd_template_val_str(j->str, j->n);
    case NRD_JSON_ARRAY:
        l = nrd_template_list_new(r, L_LIST, j->n);
        for (size_t i = 0; i < j->n; i++) {
            nrd_template_push(r, l, nrd_template_from_json(r, &j->child[i]));
        }
        return nrd_template_val_list(l);
    default:
        d = nrd_template_dict_new(r, j->n);
        for (size_t i = 0; i < j->n; i++) {
            nrd_template_dict_put(r, d, nrd_template_val_str(j->child[i].key, j->child[i].key_len),
                                  nrd_template_from_json(r, &j->child[i]));
        }
        return (nrd_template_val){.type = V_DICT, .dict = d};
    }
}

/* ---- truth, order, equality ---- */

bool nrd_template_is_number(nrd_template_val v)
{
    return v.type == V_INT || v.type == V_FLOAT || v.type == V_BOOL;
}

int64_t nrd_template_as_int(nrd_template_val v)
{
    return v.type == V_BOOL ? v.b : v.i;
}

double nrd_template_as_double(nrd_template_val v)
{
    return v.type == V_FLOAT ? v.f : v.type == V_BOOL ? (double)v.b : (double)v.i;
}

bool nrd_template_truthy(nrd_template_val v)
{
    switch ((nrd_template_val_type)v.type) {
    case V_UNDEF:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.n > 0;
    case V_LIST:
        return v.list->kind == L_ITER || v.list->n > 0;
    case V_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

static bool equal_at(nrd_template_run *r, nrd_template_val a, nrd_template_val b, int level)
{
    nrd_template_step(r, 1);
    if (level > TPL_MAX_VALUE_DEPTH) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "values nest deeper than %d",
                          TPL_MAX_VALUE_DEPTH);
    }
    if (nrd_template_is_number(a) && nrd_template_is_number(b)) {
        return a.type == V_FLOAT || b.type == V_FLOAT
                   ? !(nrd_template_as_double(a) < nrd_template_as_double(b)) &&
                         !(nrd_template_as_double(a) > nrd_template_as_double(b)) &&
                         !isnan(nrd_template_as_double(a)) && !isnan(nrd_template_as_double(b))
                   : nrd_template_as_int(a) == nrd_template_as_int(b);
    }
    if (a.type != b.type) {
        return false;
    }
    switch ((nrd_template_val_type)a.type) {
    case V_UNDEF:
    case V_NONE:
        return true;
    case V_STR:
        nrd_template_step(r, a.n / 64);
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    case V_LIST:
        if (a.list == b.list) {
            return true;
        }
        if (a.list->kind != b.list->kind || a.list->n != b.list->n || a.list->kind == L_ITER ||
            a.list->kind == L_VALUES) {
            return false;
        }
        for (size_t i = 0; i < a.list->n; i++) {
            if (!equal_at(r, a.list->v[i], b.list->v[i], level + 1)) {
                return false;
            }
        }
        return true;
    case V_DICT:
        if (a.dict->n != b.dict->n) {
            return false;
        }
        for (size_t i = 0; i < a.dict->n; i++) {
            nrd_template_val *other = nrd_template_dict_find(r, b.dict, a.dict->e[i].key);
            if (!other || !equal_at(r, a.dict->e[i].value, *other, level + 1)) {
                return false;
            }
        }
        return true;
    case V_NS:
        return a.dict == b.dict;
    case V_MACRO:
        return a.macro == b.macro;
    case V_METHOD:
        return a.method->row == b.method->row && equal_at(r, a.method->self, b.method->self, level + 1);
    case V_FUNC:
        return a.flag == b.flag;
    default:
        return a.loop == b.loop;
    }
}

bool nrd_template_equal(nrd_template_run *r, nrd_template_val a, nrd_template_val b)
{
    return equal_at(r, a, b, 0);
}

enum { UNORDERED = 2 }; /* NaN */

static int compare_at(nrd_template_run *r, nrd_template_val a, nrd_template_val b, const char *op,
                      int level)
{
    nrd_template_step(r, 1);
    if (nrd_template_is_number(a) && nrd_template_is_number(b)) {
        if (a.type == V_FLOAT || b.type == V_FLOAT) {
            double x = nrd_template_as_double(a), y = nrd_template_as_double(b);
            return isnan(x) || isnan(y) ? UNORDERED : x < y ? -1 : x > y;
        }
        return nrd_template_as_int(a) < nrd_template_as_int(b) ? -1 : nrd_template_as_int(a) > nrd_template_as_int(b);
    }
    if (a.type == V_STR && b.type == V_STR) { /* the order of UTF-8 is that of code points */
        uint32_t n = a.n < b.n ? a.n : b.n;
        int c = n > 0 ? memcmp(a.s, b.s, n) : 0;
        nrd_template_step(r, n / 64);
        return c < 0 || (c == 0 && a.n < b.n) ? -1 : c > 0 || a.n > b.n;
    }
    if (a.type == V_LIST && b.type == V_LIST && a.list->kind == b.list->kind &&
        a.list->kind <= L_TUPLE && level < TPL_MAX_VALUE_DEPTH) {
        size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
        for (size_t i = 0; i < n; i++) {
            if (!nrd_template_equal(r, a.list->v[i], b.list->v[i])) {
                return compare_at(r, a.list->v[i], b.list->v[i], op, level + 1);
            }
        }
        return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    if (a.type == V_UNDEF || b.type == V_UNDEF) {
        nrd_template_fail_undef(r, a.type == V_UNDEF ? a : b);
    }
    nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                      "'%s' not supported between instances of '%s' and '%s'", op,
                      nrd_template_type_name(a), nrd_template_type_name(b));
}

int nrd_template_compare(nrd_template_run *r, nrd_template_val a, nrd_template_val b,
                         const char *op)
{
    return compare_at(r, a, b, op, 0);
}
