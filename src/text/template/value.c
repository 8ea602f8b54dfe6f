/* SPDX-License-Identifier: Apache-2.0
 * The values of a rendering: numbers, texts, lists, dictionaries. How they are made from JSON, compared,
 * counted, and written as text; all behave as Python's do, since templates rely on it. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>

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

static bool is_hashable(nrd_template_val v)
{
    if (v.type == V_LIST && v.list->kind == L_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++) {
            if (v.list->v[i].type == V_LIST ? v.list->v[i].list->kind != L_RANGE
                                            : !is_hashable(v.list->v[i])) {
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
    if (!is_hashable(key)) {
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

/* ---- text under construction ---- */

void nrd_template_text_put(nrd_template_run *r, nrd_template_text *b, const char *s, size_t n)
{
    if (n > b->cap - b->n) {
        size_t cap = b->cap * 2 > b->n + n ? b->cap * 2 : b->n + n;
        if (cap > UINT32_MAX / 2) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "a string of %zu bytes is too long",
                              b->n + n);
        }
        cap = cap < 64 ? 64 : cap;
        char *grown = nrd_template_alloc(r, cap);
        if (b->n > 0) {
            memcpy(grown, b->s, b->n);
        }
        b->s = grown;
        b->cap = cap;
    }
    if (n > 0) {
        memcpy(b->s + b->n, s, n);
        b->n += n;
        nrd_template_step(r, n / 64);
    }
}

void nrd_template_text_puts(nrd_template_run *r, nrd_template_text *b, const char *s)
{
    nrd_template_text_put(r, b, s, strlen(s));
}

void nrd_template_text_putc(nrd_template_run *r, nrd_template_text *b, char c)
{
    nrd_template_text_put(r, b, &c, 1);
}

void nrd_template_text_put_cp(nrd_template_run *r, nrd_template_text *b, uint32_t cp)
{
    char text[4];
    nrd_template_text_put(r, b, text, nrd_utf8_put(text, cp));
}

/* ---- truth, order, equality ---- */

bool nrd_template_is_number(nrd_template_val v)
{
    return v.type == V_INT || v.type == V_FLOAT || v.type == V_BOOL;
}

double nrd_template_as_double(nrd_template_val v)
{
    return v.type == V_FLOAT ? v.f : v.type == V_BOOL ? (double)v.b : (double)v.i;
}

static int64_t as_int(nrd_template_val v)
{
    return v.type == V_BOOL ? v.b : v.i;
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
                   : as_int(a) == as_int(b);
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
        return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
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

/* ---- str() and repr() ---- */

/* Python's repr: the fewest digits that read back equal, an exponent from 1e16 on and below 1e-4. */
void nrd_template_put_float(nrd_template_run *r, nrd_template_text *out, double f)
{
    char text[40], digits[24];
    double back;
    int precision = 1, exponent;

    if (isnan(f) || isinf(f)) {
        nrd_template_text_puts(r, out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    do {
        nrd_number_print(text, sizeof text, "%.*e", precision - 1, f);
        back = nrd_number_read(text, NULL);
    } while (back < f || back > f ? ++precision <= 17 : false);
    char *e = strchr(text, 'e');
    exponent = (int)strtol(e + 1, NULL, 10);
    int n = 0;
    for (const char *p = text; p < e; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[n++] = *p;
        }
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    if (text[0] == '-') {
        nrd_template_text_putc(r, out, '-');
    }
    if (exponent < -4 || exponent >= 16) {
        nrd_template_text_putc(r, out, digits[0]);
        if (n > 1) {
            nrd_template_text_putc(r, out, '.');
            nrd_template_text_put(r, out, digits + 1, (size_t)n - 1);
        }
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        nrd_template_text_puts(r, out, text);
    } else if (exponent < 0) {
        nrd_template_text_puts(r, out, "0.");
        for (int i = -1; i > exponent; i--) {
            nrd_template_text_putc(r, out, '0');
        }
        nrd_template_text_put(r, out, digits, (size_t)n);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) {
                nrd_template_text_putc(r, out, '.');
            }
            nrd_template_text_putc(r, out, i < n ? digits[i] : '0');
        }
        if (n <= exponent + 1) {
            nrd_template_text_puts(r, out, ".0");
        }
    }
}

static bool is_printable(uint32_t cp)
{
    if (cp < 0x7f) {
        return cp >= 0x20;
    }
    nrd_uni_init();
    return (nrd_uni_class(cp) &
            (NRD_UNI_L | NRD_UNI_N | NRD_UNI_P | NRD_UNI_S | NRD_UNI_M)) != 0;
}

static void repr_string(nrd_template_run *r, nrd_template_text *out, nrd_template_val v)
{
    char quote = memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n) ? '"' : '\'', text[16];
    uint32_t cp;
    nrd_template_text_putc(r, out, quote);
    for (size_t i = 0, k; i < v.n; i += k) {
        k = nrd_utf8_next(v.s + i, v.n - i, &cp);
        if (cp == (uint32_t)quote || cp == '\\') {
            nrd_template_text_putc(r, out, '\\');
            nrd_template_text_putc(r, out, (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            nrd_template_text_puts(r, out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (is_printable(cp)) {
            nrd_template_text_put(r, out, v.s + i, k);
        } else {
            snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x",
                     cp);
            nrd_template_text_puts(r, out, text);
        }
    }
    nrd_template_text_putc(r, out, quote);
}

static void repr_at(nrd_template_run *r, nrd_template_text *out, nrd_template_val v, int level);

static void repr_list(nrd_template_run *r, nrd_template_text *out, const nrd_template_list *l,
                      int level)
{
    static const char *const open[] = {"[", "(", "range(", "<generator", "dict_keys([",
                                       "dict_values([", "dict_items(["},
                      *const close[] = {"]", ")", ")", ">", "])", "])", "])"};
    char text[80];
    nrd_template_text_puts(r, out, open[l->kind]);
    if (l->kind == L_RANGE) {
        int64_t from = l->n ? l->v[0].i : 0, step = l->n > 1 ? l->v[1].i - from : 1;
        snprintf(text, sizeof text, "%lld, %lld", (long long)from,
                 (long long)(l->n ? l->v[l->n - 1].i + (step > 0 ? 1 : -1) : 0));
        nrd_template_text_puts(r, out, text);
        if (step != 1) {
            snprintf(text, sizeof text, ", %lld", (long long)step);
            nrd_template_text_puts(r, out, text);
        }
    } else if (l->kind != L_ITER) {
        for (size_t i = 0; i < l->n; i++) {
            if (i > 0) {
                nrd_template_text_puts(r, out, ", ");
            }
            repr_at(r, out, l->v[i], level + 1);
        }
        if (l->kind == L_TUPLE && l->n == 1) {
            nrd_template_text_putc(r, out, ',');
        }
    }
    nrd_template_text_puts(r, out, close[l->kind]);
}

static void repr_at(nrd_template_run *r, nrd_template_text *out, nrd_template_val v, int level)
{
    char text[32];
    nrd_template_step(r, 1);
    if (level > TPL_MAX_VALUE_DEPTH) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "values nest deeper than %d",
                          TPL_MAX_VALUE_DEPTH);
    }
    switch ((nrd_template_val_type)v.type) {
    case V_UNDEF:
        nrd_template_text_puts(r, out, "Undefined");
        break;
    case V_NONE:
        nrd_template_text_puts(r, out, "None");
        break;
    case V_BOOL:
        nrd_template_text_puts(r, out, v.b ? "True" : "False");
        break;
    case V_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        nrd_template_text_puts(r, out, text);
        break;
    case V_FLOAT:
        nrd_template_put_float(r, out, v.f);
        break;
    case V_STR:
        if (v.flag) {
            nrd_template_text_puts(r, out, "Markup(");
        }
        repr_string(r, out, v);
        if (v.flag) {
            nrd_template_text_putc(r, out, ')');
        }
        break;
    case V_LIST:
        repr_list(r, out, v.list, level);
        break;
    case V_DICT:
    case V_NS:
        nrd_template_text_puts(r, out, v.type == V_NS ? "<Namespace {" : "{");
        for (size_t i = 0; i < v.dict->n; i++) {
            if (i > 0) {
                nrd_template_text_puts(r, out, ", ");
            }
            repr_at(r, out, v.dict->e[i].key, level + 1);
            nrd_template_text_puts(r, out, ": ");
            repr_at(r, out, v.dict->e[i].value, level + 1);
        }
        nrd_template_text_puts(r, out, v.type == V_NS ? "}>" : "}");
        break;
    default:
        nrd_template_text_putc(r, out, '<');
        nrd_template_text_puts(r, out, nrd_template_type_name(v));
        nrd_template_text_putc(r, out, '>');
    }
}

void nrd_template_repr(nrd_template_run *r, nrd_template_text *out, nrd_template_val v)
{
    repr_at(r, out, v, 0);
}

void nrd_template_put(nrd_template_run *r, nrd_template_text *out, nrd_template_val v)
{
    if (v.type == V_STR) {
        nrd_template_text_put(r, out, v.s, v.n);
    } else if (v.type != V_UNDEF) {
        repr_at(r, out, v, 0);
    }
}

nrd_template_val nrd_template_to_str(nrd_template_run *r, nrd_template_val v)
{
    nrd_template_text text = {0};
    if (v.type == V_STR) {
        return v;
    }
    nrd_template_put(r, &text, v);
    return nrd_template_text_val(&text);
}

/* ---- JSON ---- */

static void json_string(nrd_template_run *r, nrd_template_text *out, nrd_template_val v, bool ascii)
{
    char text[16];
    uint32_t cp;
    nrd_template_text_putc(r, out, '"');
    for (size_t i = 0, k; i < v.n; i += k) {
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        k = nrd_utf8_next(v.s + i, v.n - i, &cp);
        const char *known = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        if (known) {
            nrd_template_text_putc(r, out, '\\');
            nrd_template_text_putc(r, out, to[known - from]);
        } else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000 && cp != 0x7f)) {
            snprintf(text, sizeof text, "\\u%04x", cp);
            nrd_template_text_puts(r, out, text);
        } else if (ascii && cp >= 0x10000) {
            cp -= 0x10000;
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
            nrd_template_text_puts(r, out, text);
        } else {
            nrd_template_text_put(r, out, v.s + i, k);
        }
    }
    nrd_template_text_putc(r, out, '"');
}

static void json_new_line(nrd_template_run *r, nrd_template_text *out, const char *indent,
                          int level)
{
    if (indent) {
        nrd_template_text_putc(r, out, '\n');
        for (int i = 0; i < level; i++) {
            nrd_template_text_puts(r, out, indent);
        }
    }
}

static void json_number(nrd_template_run *r, nrd_template_text *out, nrd_template_val v)
{
    if (v.type == V_FLOAT && (isnan(v.f) || isinf(v.f))) {
        nrd_template_text_puts(r, out, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
    } else {
        nrd_template_repr(r, out, v);
    }
}

static void json_key(nrd_template_run *r, nrd_template_text *out, nrd_template_val key, bool ascii)
{
    nrd_template_text text = {0};
    switch ((nrd_template_val_type)key.type) {
    case V_STR:
        json_string(r, out, key, ascii);
        return;
    case V_NONE:
    case V_BOOL:
        nrd_template_text_puts(r, out,
                               key.type == V_NONE ? "\"null\""
                               : key.b            ? "\"true\""
                                                  : "\"false\"");
        return;
    case V_INT:
    case V_FLOAT:
        json_number(r, &text, key);
        json_string(r, out, nrd_template_text_val(&text), ascii);
        return;
    default:
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "keys must be str, int, float, bool or None, not %s",
                          nrd_template_type_name(key));
    }
}

/* Stable, by key; what Python's sorted does with the items. */
static nrd_template_dict *sorted_dict(nrd_template_run *r, const nrd_template_dict *d)
{
    nrd_template_dict *s = nrd_template_dict_new(r, d->n);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = s->n++;
        while (k > 0 && nrd_template_compare(r, d->e[i].key, s->e[k - 1].key, "<") == -1) {
            s->e[k] = s->e[k - 1];
            k--;
        }
        s->e[k] = d->e[i];
    }
    return s;
}

void nrd_template_json(nrd_template_run *r, nrd_template_text *out, nrd_template_val v, bool ascii,
                       const char *indent, const char *item_sep, const char *key_sep,
                       bool sort_keys, int level)
{
    nrd_template_step(r, 1);
    if (level > TPL_MAX_VALUE_DEPTH) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "values nest deeper than %d",
                          TPL_MAX_VALUE_DEPTH);
    }
    if (v.type == V_STR) {
        json_string(r, out, v, ascii);
    } else if (v.type == V_NONE || v.type == V_BOOL) {
        nrd_template_text_puts(r, out, v.type == V_NONE ? "null" : v.b ? "true" : "false");
    } else if (v.type == V_INT || v.type == V_FLOAT) {
        json_number(r, out, v);
    } else if (v.type == V_LIST && v.list->kind <= L_TUPLE) {
        nrd_template_text_putc(r, out, '[');
        for (size_t i = 0; i < v.list->n; i++) {
            if (i > 0) {
                nrd_template_text_puts(r, out, item_sep);
            }
            json_new_line(r, out, indent, level + 1);
            nrd_template_json(r, out, v.list->v[i], ascii, indent, item_sep, key_sep, sort_keys,
                              level + 1);
        }
        if (v.list->n > 0) {
            json_new_line(r, out, indent, level);
        }
        nrd_template_text_putc(r, out, ']');
    } else if (v.type == V_DICT) {
        const nrd_template_dict *d = sort_keys ? sorted_dict(r, v.dict) : v.dict;
        nrd_template_text_putc(r, out, '{');
        for (size_t i = 0; i < d->n; i++) {
            if (i > 0) {
                nrd_template_text_puts(r, out, item_sep);
            }
            json_new_line(r, out, indent, level + 1);
            json_key(r, out, d->e[i].key, ascii);
            nrd_template_text_puts(r, out, key_sep);
            nrd_template_json(r, out, d->e[i].value, ascii, indent, item_sep, key_sep, sort_keys,
                              level + 1);
        }
        if (d->n > 0) {
            json_new_line(r, out, indent, level);
        }
        nrd_template_text_putc(r, out, '}');
    } else {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "Object of type %s is not JSON serializable",
                          nrd_template_type_name(v));
    }
}

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
        if (!is_hashable(item)) {
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
    int64_t i = as_int(key);
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
    if (obj.type == V_DICT && is_hashable(key)) {
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
        nrd_template_val v = nrd_template_attr(r, obj, u.s);
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
    int64_t i = as_int(v);
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
        step = as_int(step_val);
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
        return int_binary(r, op, as_int(a), as_int(b));
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
        return a_int ? repeat(r, b, as_int(a)) : repeat(r, a, as_int(b));
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
