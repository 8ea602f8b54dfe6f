/* SPDX-License-Identifier: Apache-2.0
 * What expressions do with values: elements, length, `in`, [ ], slices, arithmetic; all as Python does. */
#include "text/template/internal.h"

#include "base/utf8.h"

#include <math.h>

/* ---- sequences ---- */

nrd_template_val *nrd_template_iterate(nrd_template_run *r, nrd_template_val v, size_t *out_n)
{
    nrd_template_list *l;
    *out_n = 0;
    switch ((nrd_template_val_type)v.type) {
    case V_UNDEF:
        return NULL;
    case V_STR:
        l = nrd_template_list_new(r, L_LIST, 0);
        for (size_t i = 0, k; i < v.n; i += k) {
            uint32_t cp;
            k = nrd_utf8_next(v.s + i, v.n - i, &cp);
            nrd_template_push(r, l, nrd_template_val_str(v.s + i, k));
        }
        break;
    case V_DICT:
        l = nrd_template_list_new(r, L_LIST, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++) {
            nrd_template_push(r, l, v.dict->e[i].key);
        }
        break;
    case V_LIST:
        l = v.list;
        if (l->kind == L_ITER) {
            if (l->spent) {
                return NULL;
            }
            l->spent = true;
        }
        break;
    default:
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "'%s' object is not iterable",
                          nrd_template_type_name(v));
    }
    nrd_template_step(r, l->n / 8);
    *out_n = l->n;
    return l->v;
}

nrd_template_val nrd_template_to_list(nrd_template_run *r, nrd_template_val v)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, n);
    for (size_t i = 0; i < n; i++) {
        nrd_template_push(r, l, items[i]);
    }
    return nrd_template_val_list(l);
}

nrd_template_list *nrd_template_dict_items(nrd_template_run *r, const nrd_template_dict *d,
                                           nrd_template_list_kind kind)
{
    nrd_template_list *l = nrd_template_list_new(r, kind, d->n);
    for (size_t i = 0; i < d->n; i++) {
        nrd_template_list *pair = nrd_template_list_new(r, L_TUPLE, 2);
        nrd_template_push(r, pair, d->e[i].key);
        nrd_template_push(r, pair, d->e[i].value);
        nrd_template_push(r, l, nrd_template_val_list(pair));
    }
    return l;
}

int64_t nrd_template_length(nrd_template_run *r, nrd_template_val v)
{
    switch ((nrd_template_val_type)v.type) {
    case V_UNDEF:
        return 0;
    case V_STR:
        nrd_template_step(r, v.n / 64);
        return (int64_t)nrd_template_cp_count(v.s, v.n);
    case V_DICT:
        return (int64_t)v.dict->n;
    case V_LIST:
        if (v.list->kind != L_ITER) {
            return (int64_t)v.list->n;
        }
        break;
    default:
        break;
    }
    nrd_template_fail(r, NRD_ERR_INVALID_ARG, "object of type '%s' has no len()",
                      nrd_template_type_name(v));
}

bool nrd_template_contains(nrd_template_run *r, nrd_template_val c, nrd_template_val item)
{
    if (c.type == V_STR) {
        if (item.type != V_STR) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                              "'in <string>' requires string as left operand, not %s",
                              nrd_template_type_name(item));
        }
        nrd_template_step(r, c.n / 64);
        return item.n == 0 || memmem(c.s, c.n, item.s, item.n) != NULL;
    }
    if (c.type == V_DICT) {
        if (!nrd_template_is_hashable(item)) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "unhashable type: '%s'",
                              nrd_template_type_name(item));
        }
        return nrd_template_dict_find(r, c.dict, item) != NULL;
    }
    if (c.type != V_LIST && c.type != V_UNDEF) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "argument of type '%s' is not iterable",
                          nrd_template_type_name(c));
    }
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, c, &n);
    for (size_t i = 0; i < n; i++) {
        if (nrd_template_equal(r, items[i], item)) {
            return true;
        }
    }
    return false;
}

/* Python's rules: negative counts from the end. false: out of range. */
static bool index_of(nrd_template_val key, size_t n, size_t *out)
{
    int64_t i = nrd_template_as_int(key);
    if (i < 0) {
        i += (int64_t)n;
    }
    *out = (size_t)i;
    return i >= 0 && (uint64_t)i < n;
}

static nrd_template_val undef_key(nrd_template_run *r, nrd_template_val key)
{
    nrd_template_val text = nrd_template_to_str(r, key);
    char *name = nrd_template_alloc(r, (size_t)text.n + 1);
    memcpy(name, text.s, text.n);
    name[text.n] = '\0';
    return nrd_template_val_undef(UNDEF_ATTR, name);
}

nrd_template_val nrd_template_item(nrd_template_run *r, nrd_template_val obj, nrd_template_val key)
{
    bool is_index = key.type == V_INT || key.type == V_BOOL;
    size_t i;

    if (obj.type == V_UNDEF) {
        nrd_template_fail_undef(r, obj);
    }
    if (obj.type == V_DICT && nrd_template_is_hashable(key)) {
        nrd_template_val *v = nrd_template_dict_find(r, obj.dict, key);
        if (v) {
            return *v;
        }
    } else if (obj.type == V_LIST && is_index && obj.list->kind <= L_RANGE) {
        if (index_of(key, obj.list->n, &i)) {
            return obj.list->v[i];
        }
    } else if (obj.type == V_STR && is_index) {
        nrd_template_step(r, obj.n / 64);
        if (index_of(key, nrd_template_cp_count(obj.s, obj.n), &i)) {
            size_t at = nrd_template_cp_offset(obj.s, obj.n, i);
            uint32_t cp;
            return nrd_template_val_str(obj.s + at, nrd_utf8_next(obj.s + at, obj.n - at, &cp));
        }
    }
    if (key.type == V_STR && obj.type != V_NONE) {
        nrd_template_val u = undef_key(r, key);
        nrd_template_val v = r->names->attr(r, obj, u.s);
        return v;
    }
    return undef_key(r, key);
}

static bool is_bound(nrd_template_val v)
{
    return v.type == V_NONE || v.type == V_INT || v.type == V_BOOL;
}

static int64_t clamp_index(nrd_template_val v, int64_t fallback, int64_t n, int64_t low,
                           int64_t high)
{
    if (v.type == V_NONE) {
        return fallback;
    }
    int64_t i = nrd_template_as_int(v);
    if (i < 0) {
        i = i < -n ? low : i + n;
    }
    return i < low ? low : i > high ? high : i;
}

nrd_template_val nrd_template_slice(nrd_template_run *r, nrd_template_val obj,
                                    nrd_template_val from, nrd_template_val to,
                                    nrd_template_val step_val)
{
    int64_t step = 1;
    if (obj.type == V_UNDEF) {
        nrd_template_fail_undef(r, obj);
    }
    bool sequence = obj.type == V_STR || (obj.type == V_LIST && obj.list->kind <= L_RANGE);
    if (!sequence || !is_bound(from) || !is_bound(to) || !is_bound(step_val)) {
        return nrd_template_val_undef(UNDEF_OTHER,
                                      "there is no such slice"); /* Jinja swallows the TypeError */
    }
    if (step_val.type != V_NONE) {
        step = nrd_template_as_int(step_val);
        step = step < INT64_MIN / 4 ? INT64_MIN / 4 : step > INT64_MAX / 4 ? INT64_MAX / 4 : step;
    }
    if (step == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "slice step cannot be zero");
    }
    int64_t n = nrd_template_length(r, obj);
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t i = clamp_index(from, step > 0 ? low : high, n, low, high);
    int64_t end = clamp_index(to, step > 0 ? high : low, n, low, high);
    if (obj.type == V_STR && step == 1) {
        size_t a = nrd_template_cp_offset(obj.s, obj.n, (size_t)i),
               b = end > i ? nrd_template_cp_offset(obj.s, obj.n, (size_t)end) : a;
        nrd_template_val v = nrd_template_val_str(obj.s + a, b - a);
        v.flag = obj.flag;
        return v;
    }
    size_t n_items;
    nrd_template_val *items = nrd_template_iterate(r, obj, &n_items);
    nrd_template_list *l =
        nrd_template_list_new(r, obj.type == V_LIST ? obj.list->kind : L_LIST, 0);
    nrd_template_text text = {0};
    for (; step > 0 ? i < end : i > end; i += step) {
        if (obj.type == V_STR) {
            nrd_template_text_put(r, &text, items[i].s, items[i].n);
        } else {
            nrd_template_push(r, l, items[i]);
        }
    }
    return obj.type == V_STR ? nrd_template_text_val(&text) : nrd_template_val_list(l);
}

/* ---- arithmetic ---- */

static nrd_template_val int_binary(nrd_template_run *r, int op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool bad = false;
    switch (op) {
    case T_ADD:
        bad = __builtin_add_overflow(a, b, &c);
        break;
    case T_SUB:
        bad = __builtin_sub_overflow(a, b, &c);
        break;
    case T_MUL:
        bad = __builtin_mul_overflow(a, b, &c);
        break;
    case T_POW:
        if (b < 0) {
            return nrd_template_val_float(pow((double)a, (double)b));
        }
        c = 1;
        while (b > 0 && !bad) {
            if (b & 1) {
                bad = __builtin_mul_overflow(c, a, &c);
            }
            b >>= 1;
            if (b > 0) {
                bad = bad || __builtin_mul_overflow(a, a, &a);
            }
        }
        break;
    default: /* // and % round down, as Python does */
        if (a == INT64_MIN && b == -1) {
            bad = op == T_FLOORDIV;
            break;
        }
        c = op == T_FLOORDIV ? a / b : a % b;
        if (a % b != 0 && (a % b < 0) != (b < 0)) {
            c += op == T_FLOORDIV ? -1 : b;
        }
    }
    if (bad) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "a whole number leaves 64 bits");
    }
    return nrd_template_val_int(c);
}

static nrd_template_val number_binary(nrd_template_run *r, int op, nrd_template_val a,
                                      nrd_template_val b)
{
    double x = nrd_template_as_double(a), y = nrd_template_as_double(b);
    bool zero = !(y < 0) && !(y > 0) && !isnan(y);
    if (zero && (op == T_DIV || op == T_FLOORDIV || op == T_MOD)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "division by zero");
    }
    if (a.type != V_FLOAT && b.type != V_FLOAT && op != T_DIV) {
        return int_binary(r, op, nrd_template_as_int(a), nrd_template_as_int(b));
    }
    switch (op) {
    case T_ADD:
        return nrd_template_val_float(x + y);
    case T_SUB:
        return nrd_template_val_float(x - y);
    case T_MUL:
        return nrd_template_val_float(x * y);
    case T_DIV:
        return nrd_template_val_float(x / y);
    case T_FLOORDIV:
        return nrd_template_val_float(floor(x / y));
    case T_MOD: {
        double m = fmod(x, y);
        bool odd = (m < 0 || m > 0) && (m < 0) != (y < 0);
        return nrd_template_val_float(odd ? m + y : m);
    }
    default:
        return nrd_template_val_float(pow(x, y));
    }
}

static nrd_template_val repeat(nrd_template_run *r, nrd_template_val seq, int64_t times)
{
    if (seq.type == V_STR) {
        nrd_template_text text = {0};
        for (int64_t i = 0; i < times && seq.n > 0; i++) {
            nrd_template_step(r, 1);
            nrd_template_text_put(r, &text, seq.s, seq.n);
        }
        return nrd_template_text_val(&text);
    }
    nrd_template_list *l = nrd_template_list_new(r, seq.list->kind, 0);
    for (int64_t i = 0; i < times && seq.list->n > 0; i++) {
        for (size_t k = 0; k < seq.list->n; k++) {
            nrd_template_step(r, 1);
            nrd_template_push(r, l, seq.list->v[k]);
        }
    }
    return nrd_template_val_list(l);
}

static bool is_list(nrd_template_val v)
{
    return v.type == V_LIST && v.list->kind <= L_TUPLE;
}

static nrd_template_val add_sequences(nrd_template_run *r, nrd_template_val a, nrd_template_val b)
{
    if (a.type == V_STR) {
        nrd_template_text text = {0};
        bool markup = a.flag || b.flag;
        if (markup) { /* what is not marked safe is escaped */
            a = a.flag ? a : nrd_template_escape(r, a);
            b = b.flag ? b : nrd_template_escape(r, b);
        }
        nrd_template_text_put(r, &text, a.s, a.n);
        nrd_template_text_put(r, &text, b.s, b.n);
        nrd_template_val v = nrd_template_text_val(&text);
        v.flag = markup;
        return v;
    }
    nrd_template_list *l = nrd_template_list_new(r, a.list->kind, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n + b.list->n; i++) {
        nrd_template_push(r, l, i < a.list->n ? a.list->v[i] : b.list->v[i - a.list->n]);
    }
    nrd_template_step(r, l->n / 8);
    return nrd_template_val_list(l);
}

nrd_template_val nrd_template_binary(nrd_template_run *r, int op, nrd_template_val a,
                                     nrd_template_val b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    bool a_int = a.type == V_INT || a.type == V_BOOL, b_int = b.type == V_INT || b.type == V_BOOL;

    if (a.type == V_UNDEF || b.type == V_UNDEF) {
        if (op == T_MOD && a.type == V_STR) {
            return nrd_template_printf(r, a, b);
        }
        nrd_template_fail_undef(r, a.type == V_UNDEF ? a : b);
    }
    if (nrd_template_is_number(a) && nrd_template_is_number(b)) {
        return number_binary(r, op, a, b);
    }
    if (op == T_ADD && ((a.type == V_STR && b.type == V_STR) ||
                        (is_list(a) && is_list(b) && a.list->kind == b.list->kind))) {
        return add_sequences(r, a, b);
    }
    if (op == T_MUL && ((a_int && (b.type == V_STR || is_list(b))) ||
                        (b_int && (a.type == V_STR || is_list(a))))) {
        return a_int ? repeat(r, b, nrd_template_as_int(a)) : repeat(r, a, nrd_template_as_int(b));
    }
    if (op == T_MOD && a.type == V_STR) {
        return nrd_template_printf(r, a, b);
    }
    if (op == T_ADD && a.type == V_STR) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "can only concatenate str (not \"%s\") to str",
                          nrd_template_type_name(b));
    }
    nrd_template_fail(r, NRD_ERR_INVALID_ARG, "unsupported operand type(s) for %s: '%s' and '%s'",
                      names[op - T_ADD], nrd_template_type_name(a), nrd_template_type_name(b));
}
