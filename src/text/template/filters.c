/* SPDX-License-Identifier: Apache-2.0
 * Jinja's filters (value | filter), but for those of lists, as a table of names and functions. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>

static nrd_template_val f_abs(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    (void)b;
    if (!nrd_template_is_number(v)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "bad operand type for abs(): '%s'",
                          nrd_template_type_name(v));
    }
    if (v.type == V_FLOAT) {
        return nrd_template_val_float(fabs(v.f));
    }
    return v.type == V_INT && v.i < 0 ? nrd_template_binary(r, T_SUB, nrd_template_val_int(0), v)
                                      : nrd_template_val_int(v.type == V_BOOL ? v.b : v.i);
}

static nrd_template_val f_attr(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    nrd_template_val name =
        nrd_template_to_str(r, nrd_template_arg(b, 0, nrd_template_val_text("")));
    if (v.type == V_DICT) { /* an attribute only, never a key */
        bool unsafe;
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)name.n, name.s);
        if (!r->names->find_method(v, text, &unsafe)) {
            return nrd_template_val_undef(UNDEF_OTHER, "the object has no such attribute");
        }
    }
    char *text = nrd_template_alloc(r, (size_t)name.n + 1);
    memcpy(text, name.s, name.n);
    text[name.n] = '\0';
    return r->names->attr(r, v, text);
}

static nrd_template_val f_case(nrd_template_run *r, nrd_template_val v, int how)
{
    return nrd_template_case(r, nrd_template_to_str(r, v), how);
}

static nrd_template_val f_upper(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    (void)b;
    return f_case(r, v, 'u');
}

static nrd_template_val f_lower(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    (void)b;
    return f_case(r, v, 'l');
}

static nrd_template_val f_capitalize(nrd_template_run *r, nrd_template_val v,
                                     const nrd_template_bound *b)
{
    (void)b;
    return f_case(r, v, 'c');
}

/* Words begin behind white space and - ( { [ <, and nowhere else. */
static nrd_template_val f_title(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    nrd_template_text out = {0};
    bool start = true;
    uint32_t cp;
    (void)b;
    v = nrd_template_to_str(r, v);
    for (size_t i = 0, k; i < v.n; i += k) {
        k = nrd_utf8_next(v.s + i, v.n - i, &cp);
        bool separator = nrd_template_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
        nrd_template_val one =
            nrd_template_case(r, nrd_template_val_str(v.s + i, k), start ? 'u' : 'l');
        nrd_template_text_put(r, &out, one.s, one.n);
        start = separator;
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val f_center(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    nrd_template_val s = nrd_template_to_str(r, v);
    int64_t width = nrd_template_int_arg(r, b, 0, 80, "width"),
            n = (int64_t)nrd_template_cp_count(s.s, s.n);
    int64_t missing = width > n ? width - n : 0, left = missing / 2 + (missing & width & 1);
    nrd_template_text out = {0};
    for (int64_t i = 0; i < left; i++) {
        nrd_template_text_putc(r, &out, ' ');
    }
    nrd_template_text_put(r, &out, s.s, s.n);
    for (int64_t i = left; i < missing; i++) {
        nrd_template_text_putc(r, &out, ' ');
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val f_default(nrd_template_run *r, nrd_template_val v,
                                  const nrd_template_bound *b)
{
    (void)r;
    bool use = v.type == V_UNDEF || (nrd_template_flag(b, 1) && !nrd_template_truthy(v));
    return use ? nrd_template_arg(b, 0, nrd_template_val_text("")) : v;
}

static nrd_template_val f_escape(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_escape(r, v);
}

static nrd_template_val f_forceescape(nrd_template_run *r, nrd_template_val v,
                                      const nrd_template_bound *b)
{
    (void)b;
    v = nrd_template_to_str(r, v);
    v.flag = 0;
    return nrd_template_escape(r, v);
}

static nrd_template_val f_safe(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    (void)b;
    v = nrd_template_to_str(r, v);
    v.flag = 1;
    return v;
}

static nrd_template_val f_string(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_to_str(r, v);
}

static bool parse_number(nrd_template_val v, double *out)
{
    char text[128];
    size_t start = nrd_template_lstrip(v.s, v.n), n = nrd_template_rstrip(v.s, v.n), k = 0;
    for (size_t i = start; i < n; i++) {
        bool between = v.s[i] == '_' && k > 0 && i + 1 < n && v.s[i + 1] >= '0' && v.s[i + 1] <= '9';
        if (between) {
            continue;
        }
        if (k + 1 >= sizeof text || (v.s[i] | 32) == 'x' || (v.s[i] | 32) == 'p') {
            return false;
        }
        text[k++] = v.s[i];
    }
    text[k] = '\0';
    return nrd_parse_f64(text, out) ||
           (sscanf(text, "%lf", out) == 1 && (!strcasecmp(text, "inf") || !strcasecmp(text, "-inf") ||
                                              !strcasecmp(text, "nan")));
}

static nrd_template_val f_float(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    double f;
    if (v.type == V_UNDEF) {
        nrd_template_fail_undef(r, v);
    }
    if (nrd_template_is_number(v)) {
        return nrd_template_val_float(nrd_template_as_double(v));
    }
    return v.type == V_STR && parse_number(v, &f)
               ? nrd_template_val_float(f)
               : nrd_template_arg(b, 0, nrd_template_val_float(0));
}

static nrd_template_val f_int(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    int64_t i, base = nrd_template_int_arg(r, b, 1, 10, "base");
    double f;
    if (v.type == V_UNDEF) {
        nrd_template_fail_undef(r, v);
    }
    if (base < 2 || base > 36) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "int() base must be >= 2 and <= 36");
    }
    if (v.type == V_INT || v.type == V_BOOL) {
        return nrd_template_val_int(v.type == V_BOOL ? v.b : v.i);
    }
    if (v.type == V_STR && nrd_template_parse_int(v, (int)base, &i)) {
        return nrd_template_val_int(i);
    }
    if (v.type == V_FLOAT) {
        f = v.f;
    } else if (v.type != V_STR || !parse_number(v, &f)) {
        return nrd_template_arg(b, 0, nrd_template_val_int(0));
    }
    return f > -9.2e18 && f < 9.2e18 ? nrd_template_val_int((int64_t)f)
                                     : nrd_template_arg(b, 0, nrd_template_val_int(0));
}

static nrd_template_val f_format(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    const nrd_template_args *a = b->all;
    if (a->n > 0 && a->n_kw > 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "can't handle positional and keyword arguments at the same time");
    }
    if (a->n_kw > 0) {
        nrd_template_dict *d = nrd_template_dict_new(r, a->n_kw);
        for (size_t i = 0; i < a->n_kw; i++) {
            nrd_template_dict_put(r, d, nrd_template_val_text(a->kw[i].name), a->kw[i].v);
        }
        return nrd_template_printf(r, nrd_template_to_str(r, v),
                                   (nrd_template_val){.type = V_DICT, .dict = d});
    }
    nrd_template_list *l = nrd_template_list_new(r, L_TUPLE, a->n);
    for (size_t i = 0; i < a->n; i++) {
        nrd_template_push(r, l, a->v[i]);
    }
    return nrd_template_printf(r, nrd_template_to_str(r, v), nrd_template_val_list(l));
}

static nrd_template_val f_indent(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    nrd_template_val width = nrd_template_arg(b, 0, nrd_template_val_int(4));
    bool first = nrd_template_flag(b, 1), blank = nrd_template_flag(b, 2);
    nrd_template_text indent = {0}, out = {0};

    if (v.type != V_STR) {
        if (v.type == V_UNDEF) {
            nrd_template_fail_undef(r, v);
        }
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "indent needs a string, not %s",
                          nrd_template_type_name(v));
    }
    if (width.type == V_STR) {
        nrd_template_put(r, &indent, width);
    } else {
        for (int64_t i = nrd_template_int_arg(r, b, 0, 4, "width"); i > 0; i--) {
            nrd_template_text_putc(r, &indent, ' ');
        }
    }
    nrd_template_text text = {0};
    nrd_template_text_put(r, &text, v.s, v.n);
    nrd_template_text_putc(r, &text, '\n');
    nrd_template_list *lines = nrd_template_split_lines(r, nrd_template_text_val(&text));
    for (size_t i = 0; i < lines->n; i++) {
        if (i > 0) {
            nrd_template_text_putc(r, &out, '\n');
        }
        if (i == 0 ? first : blank || lines->v[i].n > 0) {
            nrd_template_text_put(r, &out, indent.s ? indent.s : "", indent.n);
        }
        nrd_template_text_put(r, &out, lines->v[i].s, lines->v[i].n);
    }
    nrd_template_val s = nrd_template_text_val(&out);
    s.flag = v.flag;
    return s;
}

static nrd_template_val f_replace(nrd_template_run *r, nrd_template_val v,
                                  const nrd_template_bound *b)
{
    nrd_template_val from =
                         nrd_template_to_str(r, nrd_template_arg(b, 0, nrd_template_val_text(""))),
                     to = nrd_template_to_str(r, nrd_template_arg(b, 1, nrd_template_val_text("")));
    if (!b->has[0] || !b->has[1]) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "replace needs two strings");
    }
    int64_t count =
        b->has[2] && b->v[2].type == V_NONE ? -1 : nrd_template_int_arg(r, b, 2, -1, "count");
    return nrd_template_replace(r, nrd_template_to_str(r, v), from, to, count);
}

static nrd_template_val f_round(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    int64_t precision = nrd_template_int_arg(r, b, 0, 0, "precision");
    nrd_template_val how = nrd_template_arg(b, 1, nrd_template_val_text("common"));
    bool ceil_it = nrd_template_equal(r, how, nrd_template_val_text("ceil")),
         floor_it = nrd_template_equal(r, how, nrd_template_val_text("floor"));
    char text[512];

    if (!nrd_template_is_number(v) || precision < -300 || precision > 300) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "round needs a number, not %s",
                          nrd_template_type_name(v));
    }
    if (ceil_it || floor_it) {
        double scale = pow(10, (double)precision), f = nrd_template_as_double(v) * scale;
        return nrd_template_val_float((ceil_it ? ceil(f) : floor(f)) / scale);
    }
    if (!nrd_template_equal(r, how, nrd_template_val_text("common"))) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "method must be common, ceil or floor");
    }
    if (v.type != V_FLOAT && precision >= 0) {
        return nrd_template_val_int(v.type == V_BOOL ? v.b : v.i);
    }
    double f = nrd_template_as_double(v);
    if (precision >= 0) { /* the decimal form rounds half to even on the exact value, as Python */
        nrd_number_print(text, sizeof text, "%.*f", (int)precision, f);
        return nrd_template_val_float(nrd_number_read(text, NULL));
    }
    double scale = pow(10, (double)-precision);
    f = nearbyint(f / scale) * scale;
    return v.type == V_FLOAT ? nrd_template_val_float(f) : nrd_template_val_int((int64_t)f);
}

static nrd_template_val f_tojson(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    nrd_template_val indent = nrd_template_arg(b, 1, nrd_template_val_none()),
                     separators = nrd_template_arg(b, 2, nrd_template_val_none());
    const char *item_sep = indent.type == V_NONE ? ", " : ",", *key_sep = ": ";
    char *pad = NULL;
    nrd_template_text out = {0};

    if (indent.type == V_STR) {
        pad = nrd_template_alloc(r, (size_t)indent.n + 1);
        memcpy(pad, indent.s, indent.n);
        pad[indent.n] = '\0';
    } else if (indent.type != V_NONE) {
        int64_t n = nrd_template_int_arg(r, b, 1, 0, "indent");
        n = n < 0 ? 0 : n > 1000 ? 1000 : n;
        pad = nrd_template_alloc(r, (size_t)n + 1);
        memset(pad, ' ', (size_t)n);
        pad[n] = '\0';
    }
    if (separators.type != V_NONE) {
        size_t n;
        nrd_template_val *s = nrd_template_iterate(r, separators, &n);
        if (n != 2 || s[0].type != V_STR || s[1].type != V_STR) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "separators must be two strings");
        }
        char *text[2];
        for (int i = 0; i < 2; i++) {
            text[i] = nrd_template_alloc(r, (size_t)s[i].n + 1);
            memcpy(text[i], s[i].s, s[i].n);
            text[i][s[i].n] = '\0';
        }
        item_sep = text[0];
        key_sep = text[1];
    }
    nrd_template_json(r, &out, v, nrd_template_flag(b, 0), pad, item_sep, key_sep,
                      nrd_template_flag(b, 3), 0);
    return nrd_template_text_val(&out);
}

static nrd_template_val f_trim(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    return nrd_template_strip(r, nrd_template_to_str(r, v),
                              nrd_template_arg(b, 0, nrd_template_val_none()), true, true);
}

static nrd_template_val f_truncate(nrd_template_run *r, nrd_template_val v,
                                   const nrd_template_bound *b)
{
    nrd_template_val s = nrd_template_to_str(r, v),
                     end = nrd_template_to_str(
                         r, nrd_template_arg(b, 2, nrd_template_val_text("...")));
    int64_t length = nrd_template_int_arg(r, b, 0, 255, "length"),
            leeway = nrd_template_int_arg(r, b, 3, 5, "leeway");
    int64_t n_end = (int64_t)nrd_template_cp_count(end.s, end.n);
    nrd_template_text out = {0};
    if (length < n_end || leeway < 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "truncate: expected length >= %lld",
                          (long long)n_end);
    }
    if ((int64_t)nrd_template_cp_count(s.s, s.n) <= length + leeway) {
        return s;
    }
    size_t cut = nrd_template_cp_offset(s.s, s.n, (size_t)(length - n_end));
    const char *space = nrd_template_flag(b, 1) ? NULL : memrchr(s.s, ' ', cut);
    nrd_template_text_put(r, &out, s.s, space ? (size_t)(space - s.s) : cut);
    nrd_template_text_put(r, &out, end.s, end.n);
    return nrd_template_text_val(&out);
}

static nrd_template_val f_urlencode(nrd_template_run *r, nrd_template_val v,
                                    const nrd_template_bound *b)
{
    nrd_template_text out = {0};
    char text[8];
    (void)b;
    if (v.type == V_DICT || v.type == V_LIST) {
        nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "urlencode of %s is not supported",
                          nrd_template_type_name(v));
    }
    v = nrd_template_to_str(r, v);
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.s[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c && strchr("-._~/", c));
        snprintf(text, sizeof text, plain ? "%c" : "%%%02X", c);
        nrd_template_text_puts(r, &out, text);
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val f_wordcount(nrd_template_run *r, nrd_template_val v,
                                    const nrd_template_bound *b)
{
    int64_t n = 0;
    bool in_word = false;
    uint32_t cp;
    (void)b;
    v = nrd_template_to_str(r, v);
    nrd_uni_init();
    for (size_t i = 0, k; i < v.n; i += k) {
        k = nrd_utf8_next(v.s + i, v.n - i, &cp);
        bool word = cp == '_' || (nrd_uni_class(cp) & (NRD_UNI_L | NRD_UNI_N)) != 0;
        n += word && !in_word;
        in_word = word;
    }
    return nrd_template_val_int(n);
}

const nrd_template_method_row *nrd_template_find_filter(const char *name)
{
    static const nrd_template_method_row rows[] = {
        {"abs", "", f_abs},
        {"attr", "name", f_attr},
        {"capitalize", "", f_capitalize},
        {"center", "width", f_center},
        {"d", "default_value,boolean", f_default},
        {"default", "default_value,boolean", f_default},
        {"e", "", f_escape},
        {"escape", "", f_escape},
        {"filesizeformat", NULL, NULL},
        {"float", "default", f_float},
        {"forceescape", "", f_forceescape},
        {"format", NULL, f_format},
        {"indent", "width,first,blank", f_indent},
        {"int", "default,base", f_int},
        {"lower", "", f_lower},
        {"pprint", NULL, NULL},
        {"random", NULL, NULL},
        {"replace", "old,new,count", f_replace},
        {"round", "precision,method", f_round},
        {"safe", "", f_safe},
        {"string", "", f_string},
        {"striptags", NULL, NULL},
        {"title", "", f_title},
        {"tojson", "ensure_ascii,indent,separators,sort_keys", f_tojson},
        {"trim", "chars", f_trim},
        {"truncate", "length,killwords,end,leeway", f_truncate},
        {"upper", "", f_upper},
        {"urlencode", "", f_urlencode},
        {"urlize", NULL, NULL},
        {"wordcount", "", f_wordcount},
        {"wordwrap", NULL, NULL},
        {"xmlattr", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!strcmp(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return nrd_template_find_list_filter(name);
}
