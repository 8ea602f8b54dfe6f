/* SPDX-License-Identifier: Apache-2.0
 * Values as text: str(), repr() and JSON, as Python writes them, since templates rely on it. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>

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

/* ---- str() and repr() ---- */

/* Python's repr: the fewest digits that read back equal, an exponent from 1e16 on and below 1e-4. */
static void put_float(nrd_template_run *r, nrd_template_text *out, double f)
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
        put_float(r, out, v.f);
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
