/* SPDX-License-Identifier: Apache-2.0
 * Jinja's filters and tests (value | filter, value is test), as tables of names and functions. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>

/* ---- arguments ---- */

nrd_template_val nrd_template_arg(const nrd_template_bound *b, size_t i, nrd_template_val fallback)
{
    return b->has[i] ? b->v[i] : fallback;
}

bool nrd_template_flag(const nrd_template_bound *b, size_t i)
{
    return b->has[i] && nrd_template_truthy(b->v[i]);
}

int64_t nrd_template_int_arg(nrd_template_run *r, const nrd_template_bound *b, size_t i,
                             int64_t fallback, const char *name)
{
    if (!b->has[i]) {
        return fallback;
    }
    if (b->v[i].type != V_INT && b->v[i].type != V_BOOL) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "%s must be a whole number, not %s", name,
                          nrd_template_type_name(b->v[i]));
    }
    return b->v[i].type == V_BOOL ? b->v[i].b : b->v[i].i;
}

/* item.a.b.0, as the `attribute` parameter of filters names it. */
static nrd_template_val get_path(nrd_template_run *r, nrd_template_val item, nrd_template_val path,
                                 nrd_template_val fallback)
{
    if (path.type != V_STR) {
        return nrd_template_item(r, item, path);
    }
    for (size_t i = 0; i <= path.n;) {
        const char *dot = memchr(path.s + i, '.', path.n - i);
        size_t end = dot ? (size_t)(dot - path.s) : path.n;
        nrd_template_val key = nrd_template_val_str(path.s + i, end - i);
        bool digits = end > i && end - i < 18;
        int64_t number = 0;
        for (size_t k = i; k < end && digits; k++) {
            digits = path.s[k] >= '0' && path.s[k] <= '9';
            number = digits ? number * 10 + (path.s[k] - '0') : 0;
        }
        item = nrd_template_item(r, item, digits ? nrd_template_val_int(number) : key);
        if (item.type == V_UNDEF && fallback.type != V_NONE) {
            return fallback;
        }
        i = end + 1;
    }
    return item;
}

static nrd_template_val sort_key(nrd_template_run *r, nrd_template_val item,
                                 nrd_template_val attribute, bool case_sensitive)
{
    if (attribute.type != V_NONE) {
        item = get_path(r, item, attribute, nrd_template_val_none());
    }
    return item.type == V_STR && !case_sensitive ? nrd_template_case(r, item, 'l') : item;
}

/* Several attributes, "age,name", compare as a tuple. */
static nrd_template_val sort_keys(nrd_template_run *r, nrd_template_val item,
                                  nrd_template_val attribute, bool case_sensitive)
{
    if (attribute.type != V_STR || !memchr(attribute.s, ',', attribute.n)) {
        return sort_key(r, item, attribute, case_sensitive);
    }
    nrd_template_list *l = nrd_template_list_new(r, L_TUPLE, 0);
    for (size_t i = 0; i <= attribute.n;) {
        const char *comma = memchr(attribute.s + i, ',', attribute.n - i);
        size_t end = comma ? (size_t)(comma - attribute.s) : attribute.n;
        nrd_template_push(
            r, l,
            sort_key(r, item, nrd_template_val_str(attribute.s + i, end - i), case_sensitive));
        i = end + 1;
    }
    return nrd_template_val_list(l);
}

typedef struct keyed {
    nrd_template_val key, item;
} keyed;

/* Merge sort: stable, n log n whatever the template sorts. Reverse keeps equals in order too. */
static void sort_items(nrd_template_run *r, keyed *a, keyed *tmp, size_t n, bool reverse)
{
    if (n < 2) {
        return;
    }
    size_t m = n / 2, i = 0, j = m, k = 0;
    sort_items(r, a, tmp, m, reverse);
    sort_items(r, a + m, tmp, n - m, reverse);
    while (i < m && j < n) {
        bool right = reverse ? nrd_template_compare(r, a[i].key, a[j].key, "<") == -1
                             : nrd_template_compare(r, a[j].key, a[i].key, "<") == -1;
        tmp[k++] = right ? a[j++] : a[i++];
    }
    while (i < m) {
        tmp[k++] = a[i++];
    }
    memcpy(a, tmp, k * sizeof *a);
}

static keyed *sorted(nrd_template_run *r, nrd_template_val *items, size_t n,
                     nrd_template_val attribute, bool case_sensitive, bool reverse)
{
    keyed *a = nrd_template_alloc(r, (n + 1) * sizeof *a),
          *tmp = nrd_template_alloc(r, (n + 1) * sizeof *a);
    for (size_t i = 0; i < n; i++) {
        a[i] = (keyed){sort_keys(r, items[i], attribute, case_sensitive), items[i]};
    }
    sort_items(r, a, tmp, n, reverse);
    return a;
}

/* ---- filters ---- */

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
        if (!nrd_template_find_method(v, text, &unsafe)) {
            return nrd_template_val_undef(UNDEF_OTHER, "the object has no such attribute");
        }
    }
    char *text = nrd_template_alloc(r, (size_t)name.n + 1);
    memcpy(text, name.s, name.n);
    text[name.n] = '\0';
    return nrd_template_attr(r, v, text);
}

static nrd_template_val f_batch(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    int64_t size = nrd_template_int_arg(r, b, 0, 0, "linecount");
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     fill = nrd_template_arg(b, 1, nrd_template_val_none());
    nrd_template_list *all = nrd_template_list_new(r, L_ITER, 0), *l = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!l || (int64_t)l->n == size) {
            l = nrd_template_list_new(r, L_LIST, 0);
            nrd_template_push(r, all, nrd_template_val_list(l));
        }
        nrd_template_push(r, l, items[i]);
    }
    while (l && fill.type != V_NONE && (int64_t)l->n < size) {
        nrd_template_step(r, 1);
        nrd_template_push(r, l, fill);
    }
    return nrd_template_val_list(all);
}

static nrd_template_val f_slice(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    int64_t slices = nrd_template_int_arg(r, b, 0, 1, "slices");
    size_t n, at = 0;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     fill = nrd_template_arg(b, 1, nrd_template_val_none());
    nrd_template_list *all = nrd_template_list_new(r, L_ITER, 0);
    if (slices < 1) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "slices must be positive");
    }
    for (int64_t s = 0; s < slices; s++) {
        nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
        bool extra = s < (int64_t)n % slices;
        int64_t len = (int64_t)n / slices + extra;
        nrd_template_step(r, 1);
        for (int64_t i = 0; i < len; i++) {
            nrd_template_push(r, l, items[at++]);
        }
        if (fill.type != V_NONE && !extra) {
            nrd_template_push(r, l, fill);
        }
        nrd_template_push(r, all, nrd_template_val_list(l));
    }
    return nrd_template_val_list(all);
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

static nrd_template_val f_dictsort(nrd_template_run *r, nrd_template_val v,
                                   const nrd_template_bound *b)
{
    nrd_template_val by = nrd_template_arg(b, 1, nrd_template_val_text("key"));
    if (v.type != V_DICT) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "dictsort needs a mapping, not %s",
                          nrd_template_type_name(v));
    }
    bool by_key = nrd_template_equal(r, by, nrd_template_val_text("key"));
    if (!by_key && !nrd_template_equal(r, by, nrd_template_val_text("value"))) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "You can only sort by either \"key\" or \"value\"");
    }
    nrd_template_list *pairs = nrd_template_list_new(r, L_LIST, v.dict->n);
    for (size_t i = 0; i < v.dict->n; i++) {
        nrd_template_list *pair = nrd_template_list_new(r, L_TUPLE, 2);
        nrd_template_push(r, pair, v.dict->e[i].key);
        nrd_template_push(r, pair, v.dict->e[i].value);
        nrd_template_push(r, pairs, nrd_template_val_list(pair));
    }
    keyed *k = sorted(r, pairs->v, pairs->n, nrd_template_val_int(by_key ? 0 : 1),
                      nrd_template_flag(b, 0), nrd_template_flag(b, 2));
    for (size_t i = 0; i < pairs->n; i++) {
        pairs->v[i] = k[i].item;
    }
    return nrd_template_val_list(pairs);
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

static nrd_template_val f_first(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    (void)b;
    if (v.type == V_LIST && v.list->kind == L_ITER) { /* the rest stays there */
        nrd_template_list *l = v.list;
        if (l->spent || l->n == 0) {
            return nrd_template_val_undef(UNDEF_OTHER, "No first item, sequence was empty.");
        }
        nrd_template_val head = l->v[0];
        l->v++;
        l->n--;
        l->cap = l->n;
        return head;
    }
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    return n > 0 ? items[0]
                 : nrd_template_val_undef(UNDEF_OTHER, "No first item, sequence was empty.");
}

static nrd_template_val f_last(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    size_t n;
    (void)b;
    if (v.type == V_LIST && v.list->kind == L_ITER) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "'generator' object is not reversible");
    }
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    return n > 0 ? items[n - 1]
                 : nrd_template_val_undef(UNDEF_OTHER, "No last item, sequence was empty.");
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

bool nrd_template_parse_int(nrd_template_val v, int base, int64_t *out)
{
    char text[80];
    size_t start = nrd_template_lstrip(v.s, v.n), n = nrd_template_rstrip(v.s, v.n), k = 0;
    for (size_t i = start; i < n; i++) {
        if (v.s[i] == '_' && k > 0 && i + 1 < n) {
            continue;
        }
        if (k + 1 >= sizeof text) {
            return false;
        }
        text[k++] = v.s[i];
    }
    text[k] = '\0';
    if (k == 0 || (base == 10 && !nrd_parse_i64(text, (long long *)out))) {
        return false;
    }
    if (base != 10) {
        char *end;
        const char *from = text;
        if (text[0] == '0' && ((text[1] | 32) == 'b' || (text[1] | 32) == 'o')) {
            from += base == 2 || base == 8 ? 2 : 0;
        }
        *out = strtoll(from, &end, base);
        return *end == '\0' && end > from;
    }
    return true;
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

static nrd_template_val f_groupby(nrd_template_run *r, nrd_template_val v,
                                  const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     attribute = nrd_template_arg(b, 0, nrd_template_val_none());
    nrd_template_val fallback = nrd_template_arg(b, 1, nrd_template_val_none());
    bool exact = nrd_template_flag(b, 2);
    keyed *k = nrd_template_alloc(r, (n + 1) * sizeof *k),
          *tmp = nrd_template_alloc(r, (n + 1) * sizeof *k);
    nrd_template_list *out = nrd_template_list_new(r, L_LIST, 0), *members = NULL;

    for (size_t i = 0; i < n; i++) {
        nrd_template_val key = get_path(r, items[i], attribute, fallback);
        k[i] =
            (keyed){key.type == V_STR && !exact ? nrd_template_case(r, key, 'l') : key, items[i]};
    }
    sort_items(r, k, tmp, n, false);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !nrd_template_equal(r, k[i].key, k[i - 1].key)) {
            nrd_template_list *group = nrd_template_list_new(r, L_TUPLE, 2);
            members = nrd_template_list_new(r, L_LIST, 0);
            nrd_template_push(r, group, get_path(r, k[i].item, attribute, fallback));
            nrd_template_push(r, group, nrd_template_val_list(members));
            nrd_template_push(r, out, nrd_template_val_list(group));
        }
        nrd_template_push(r, members, k[i].item);
    }
    return nrd_template_val_list(out);
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

static nrd_template_val f_items(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    (void)b;
    if (v.type == V_UNDEF) {
        return nrd_template_val_list(nrd_template_list_new(r, L_ITER, 0));
    }
    if (v.type != V_DICT) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "Can only get item pairs from a mapping.");
    }
    return nrd_template_val_list(nrd_template_dict_items(r, v.dict, L_ITER));
}

static nrd_template_val f_join(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     d = nrd_template_to_str(r, nrd_template_arg(b, 0, nrd_template_val_text("")));
    nrd_template_val attribute = nrd_template_arg(b, 1, nrd_template_val_none());
    nrd_template_text out = {0};
    for (size_t i = 0; i < n; i++) {
        nrd_template_step(r, 1);
        if (i > 0) {
            nrd_template_text_put(r, &out, d.s, d.n);
        }
        nrd_template_put(r, &out,
                         attribute.type == V_NONE
                             ? items[i]
                             : get_path(r, items[i], attribute, nrd_template_val_none()));
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val f_length(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_val_int(nrd_template_length(r, v));
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

static nrd_template_val f_list(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_to_list(r, v);
}

/* Calls a filter or test that a template names by a string. */
static nrd_template_val call_named(nrd_template_run *r, bool test, nrd_template_val name,
                                   nrd_template_val item, const nrd_template_args *a, size_t skip)
{
    char text[64];
    nrd_template_args rest = {a->v + skip, a->n - skip, a->kw, a->n_kw};
    if (name.type != V_STR || name.n >= sizeof text) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "no such %s", test ? "test" : "filter");
    }
    memcpy(text, name.s, name.n);
    text[name.n] = '\0';
    const nrd_template_method_row *row =
        test ? nrd_template_find_test(text) : nrd_template_find_filter(text);
    if (!row) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "no %s named '%s'", test ? "test" : "filter",
                          text);
    }
    if (++r->depth > TPL_MAX_DEPTH) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "calls and expressions nest deeper than %d",
                          TPL_MAX_DEPTH);
    }
    nrd_template_val v = nrd_template_call_row(r, row, item, &rest, test ? "test" : "filter");
    r->depth--;
    return v;
}

static nrd_template_val f_map(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    const nrd_template_args *a = b->all;
    nrd_template_list *out = nrd_template_list_new(r, L_ITER, 0);
    nrd_template_val attribute = nrd_template_val_none(), fallback = nrd_template_val_none();
    size_t n;

    for (size_t i = 0; i < a->n_kw && a->n == 0; i++) {
        if (!strcmp(a->kw[i].name, "attribute")) {
            attribute = a->kw[i].v;
        } else if (!strcmp(a->kw[i].name, "default")) {
            fallback = a->kw[i].v;
        } else {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "Unexpected keyword argument '%s'",
                              a->kw[i].name);
        }
    }
    if (!nrd_template_truthy(v)) {
        return nrd_template_val_list(out);
    }
    if (a->n == 0 && attribute.type == V_NONE) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "map requires a filter argument");
    }
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    for (size_t i = 0; i < n; i++) {
        nrd_template_push(r, out,
                          a->n == 0 ? get_path(r, items[i], attribute, fallback)
                                    : call_named(r, false, a->v[0], items[i], a, 1));
    }
    return nrd_template_val_list(out);
}

static nrd_template_val select_items(nrd_template_run *r, nrd_template_val v,
                                     const nrd_template_args *a, bool want, bool by_attr)
{
    nrd_template_list *out = nrd_template_list_new(r, L_ITER, 0);
    size_t n, skip = by_attr;
    if (!nrd_template_truthy(v)) {
        return nrd_template_val_list(out);
    }
    if (a->n < skip) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "Missing parameter for attribute name");
    }
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    for (size_t i = 0; i < n; i++) {
        nrd_template_val x =
            by_attr ? get_path(r, items[i], a->v[0], nrd_template_val_none()) : items[i];
        nrd_template_step(r, 1);
        if (a->n > skip) {
            x = call_named(r, true, a->v[skip], x, a, skip + 1);
        }
        if (nrd_template_truthy(x) == want) {
            nrd_template_push(r, out, items[i]);
        }
    }
    return nrd_template_val_list(out);
}

static nrd_template_val f_select(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    return select_items(r, v, b->all, true, false);
}

static nrd_template_val f_reject(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    return select_items(r, v, b->all, false, false);
}

static nrd_template_val f_selectattr(nrd_template_run *r, nrd_template_val v,
                                     const nrd_template_bound *b)
{
    return select_items(r, v, b->all, true, true);
}

static nrd_template_val f_rejectattr(nrd_template_run *r, nrd_template_val v,
                                     const nrd_template_bound *b)
{
    return select_items(r, v, b->all, false, true);
}

static nrd_template_val extreme(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b, int want)
{
    size_t n, best = 0;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     attribute = nrd_template_arg(b, 1, nrd_template_val_none()),
                     best_key = nrd_template_val_none();
    if (n == 0) {
        return nrd_template_val_undef(UNDEF_OTHER, "No aggregated item, sequence was empty.");
    }
    for (size_t i = 0; i < n; i++) {
        nrd_template_val key = sort_key(r, items[i], attribute, nrd_template_flag(b, 0));
        if (i == 0 || nrd_template_compare(r, key, best_key, want < 0 ? "<" : ">") == want) {
            best = i;
            best_key = key;
        }
    }
    return items[best];
}

static nrd_template_val f_min(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    return extreme(r, v, b, -1);
}

static nrd_template_val f_max(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    return extreme(r, v, b, 1);
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

static nrd_template_val f_reverse(nrd_template_run *r, nrd_template_val v,
                                  const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    (void)b;
    if (v.type == V_STR) {
        nrd_template_text out = {0};
        while (n-- > 0) {
            nrd_template_text_put(r, &out, items[n].s, items[n].n);
        }
        return nrd_template_text_val(&out);
    }
    nrd_template_list *l =
        nrd_template_list_new(r, v.type == V_LIST && v.list->kind == L_ITER ? L_LIST : L_ITER, n);
    while (n-- > 0) {
        nrd_template_push(r, l, items[n]);
    }
    return nrd_template_val_list(l);
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

static nrd_template_val f_sort(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n);
    keyed *k = sorted(r, items, n, nrd_template_arg(b, 2, nrd_template_val_none()),
                      nrd_template_flag(b, 1), nrd_template_flag(b, 0));
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, n);
    for (size_t i = 0; i < n; i++) {
        nrd_template_push(r, l, k[i].item);
    }
    return nrd_template_val_list(l);
}

static nrd_template_val f_sum(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     attribute = nrd_template_arg(b, 0, nrd_template_val_none());
    nrd_template_val total = nrd_template_arg(b, 1, nrd_template_val_int(0));
    for (size_t i = 0; i < n; i++) {
        nrd_template_step(r, 1);
        total = nrd_template_binary(
            r, T_ADD, total,
            attribute.type == V_NONE ? items[i]
                                     : get_path(r, items[i], attribute, nrd_template_val_none()));
    }
    return total;
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

static bool in_set(nrd_template_val chars, const char *s, size_t n)
{
    for (size_t i = 0, k; i < chars.n; i += k) {
        uint32_t cp;
        k = nrd_utf8_next(chars.s + i, chars.n - i, &cp);
        if (k == n && memcmp(chars.s + i, s, n) == 0) {
            return true;
        }
    }
    return false;
}

nrd_template_val nrd_template_strip(nrd_template_run *r, nrd_template_val s, nrd_template_val chars,
                                    bool left, bool right)
{
    size_t from = 0, to = s.n, k;
    uint32_t cp;
    nrd_template_step(r, s.n / 64);
    if (chars.type == V_NONE) {
        from = left ? nrd_template_lstrip(s.s, s.n) : 0;
        to = right ? from + nrd_template_rstrip(s.s + from, s.n - from) : s.n;
    } else {
        if (chars.type != V_STR) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "strip arg must be None or str");
        }
        for (; left && from < to; from += k) {
            k = nrd_utf8_next(s.s + from, to - from, &cp);
            if (!in_set(chars, s.s + from, k)) {
                break;
            }
        }
        while (right && to > from) {
            size_t start = to - 1;
            while (start > from && (s.s[start] & 0xc0) == 0x80) {
                start--;
            }
            if (!in_set(chars, s.s + start, to - start)) {
                break;
            }
            to = start;
        }
    }
    nrd_template_val v = nrd_template_val_str(s.s + from, to - from);
    v.flag = s.flag;
    return v;
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

static nrd_template_val f_unique(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items = nrd_template_iterate(r, v, &n),
                     attribute = nrd_template_arg(b, 1, nrd_template_val_none());
    nrd_template_list *out = nrd_template_list_new(r, L_ITER, 0);
    nrd_template_dict *seen = nrd_template_dict_new(r, 0);
    for (size_t i = 0; i < n; i++) {
        nrd_template_val key = sort_key(r, items[i], attribute, nrd_template_flag(b, 0));
        if (!nrd_template_dict_find(r, seen, key)) {
            nrd_template_dict_put(r, seen, key, nrd_template_val_none());
            nrd_template_push(r, out, items[i]);
        }
    }
    return nrd_template_val_list(out);
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
        {"batch", "linecount,fill_with", f_batch},
        {"capitalize", "", f_capitalize},
        {"center", "width", f_center},
        {"count", "", f_length},
        {"d", "default_value,boolean", f_default},
        {"default", "default_value,boolean", f_default},
        {"dictsort", "case_sensitive,by,reverse", f_dictsort},
        {"e", "", f_escape},
        {"escape", "", f_escape},
        {"filesizeformat", NULL, NULL},
        {"first", "", f_first},
        {"float", "default", f_float},
        {"forceescape", "", f_forceescape},
        {"format", NULL, f_format},
        {"groupby", "attribute,default,case_sensitive", f_groupby},
        {"indent", "width,first,blank", f_indent},
        {"int", "default,base", f_int},
        {"items", "", f_items},
        {"join", "d,attribute", f_join},
        {"last", "", f_last},
        {"length", "", f_length},
        {"list", "", f_list},
        {"lower", "", f_lower},
        {"map", NULL, f_map},
        {"max", "case_sensitive,attribute", f_max},
        {"min", "case_sensitive,attribute", f_min},
        {"pprint", NULL, NULL},
        {"random", NULL, NULL},
        {"reject", NULL, f_reject},
        {"rejectattr", NULL, f_rejectattr},
        {"replace", "old,new,count", f_replace},
        {"reverse", "", f_reverse},
        {"round", "precision,method", f_round},
        {"safe", "", f_safe},
        {"select", NULL, f_select},
        {"selectattr", NULL, f_selectattr},
        {"slice", "slices,fill_with", f_slice},
        {"sort", "reverse,case_sensitive,attribute", f_sort},
        {"string", "", f_string},
        {"striptags", NULL, NULL},
        {"sum", "attribute,start", f_sum},
        {"title", "", f_title},
        {"tojson", "ensure_ascii,indent,separators,sort_keys", f_tojson},
        {"trim", "chars", f_trim},
        {"truncate", "length,killwords,end,leeway", f_truncate},
        {"unique", "case_sensitive,attribute", f_unique},
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
    return NULL;
}

/* ---- tests ---- */

TPL_TEST(t_boolean, v.type == V_BOOL)
TPL_TEST(t_callable, v.type == V_MACRO || v.type == V_METHOD || v.type == V_FUNC)
TPL_TEST(t_defined, v.type != V_UNDEF)
TPL_TEST(t_undefined, v.type == V_UNDEF)
TPL_TEST(t_escaped, v.type == V_STR && v.flag)
TPL_TEST(t_false, v.type == V_BOOL && !v.b)
TPL_TEST(t_true, v.type == V_BOOL && v.b)
TPL_TEST(t_float, v.type == V_FLOAT)
TPL_TEST(t_integer, v.type == V_INT)
TPL_TEST(t_iterable, v.type == V_STR || v.type == V_LIST || v.type == V_DICT || v.type == V_UNDEF)
TPL_TEST(t_mapping, v.type == V_DICT)
TPL_TEST(t_none, v.type == V_NONE)
TPL_TEST(t_number, nrd_template_is_number(v))
TPL_TEST(t_sequence, v.type == V_STR || v.type == V_DICT || v.type == V_UNDEF ||
                     (v.type == V_LIST && v.list->kind <= L_RANGE))
TPL_TEST(t_string, v.type == V_STR)
TPL_TEST(t_eq, nrd_template_equal(r, v, nrd_template_arg(b, 0, nrd_template_val_none())))
TPL_TEST(t_ne, !nrd_template_equal(r, v, nrd_template_arg(b, 0, nrd_template_val_none())))
TPL_TEST(t_lt,
         nrd_template_compare(r, v, nrd_template_arg(b, 0, nrd_template_val_none()), "<") == -1)
TPL_TEST(t_gt,
         nrd_template_compare(r, v, nrd_template_arg(b, 0, nrd_template_val_none()), ">") == 1)
TPL_TEST(t_in, nrd_template_contains(r, nrd_template_arg(b, 0, nrd_template_val_none()), v))

static nrd_template_val t_le(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    int c = nrd_template_compare(r, v, nrd_template_arg(b, 0, nrd_template_val_none()), "<=");
    return nrd_template_val_bool(c == -1 || c == 0);
}

static nrd_template_val t_ge(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    int c = nrd_template_compare(r, v, nrd_template_arg(b, 0, nrd_template_val_none()), ">=");
    return nrd_template_val_bool(c == 1 || c == 0);
}

static bool remainder_is(nrd_template_run *r, nrd_template_val v, nrd_template_val by, int64_t want)
{
    return nrd_template_equal(r, nrd_template_binary(r, T_MOD, v, by), nrd_template_val_int(want));
}

TPL_TEST(t_even, remainder_is(r, v, nrd_template_val_int(2), 0))
TPL_TEST(t_odd, remainder_is(r, v, nrd_template_val_int(2), 1))
TPL_TEST(t_divisibleby, remainder_is(r, v, nrd_template_arg(b, 0, nrd_template_val_none()), 0))

static nrd_template_val t_sameas(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    nrd_template_val o = nrd_template_arg(b, 0, nrd_template_val_none());
    if (v.type != o.type) {
        return nrd_template_val_bool(false);
    }
    if (v.type == V_LIST || v.type == V_DICT || v.type == V_NS) {
        return nrd_template_val_bool(v.list == o.list);
    }
    return nrd_template_val_bool(nrd_template_equal(r, v, o));
}

/* islower, isupper: all that has case is so, and something has. */
bool nrd_template_has_case(nrd_template_run *r, nrd_template_val s, int how)
{
    nrd_template_val same = nrd_template_case(r, s, how),
                     other = nrd_template_case(r, s, how == 'u' ? 'l' : 'u');
    return nrd_template_equal(r, s, same) && !nrd_template_equal(r, s, other);
}

TPL_TEST(t_lower, nrd_template_has_case(r, nrd_template_to_str(r, v), 'l'))
TPL_TEST(t_upper, nrd_template_has_case(r, nrd_template_to_str(r, v), 'u'))

static bool names(nrd_template_val v, const nrd_template_method_row *(*find)(const char *))
{
    char text[64];
    if (v.type != V_STR || v.n >= sizeof text) {
        return false;
    }
    memcpy(text, v.s, v.n);
    text[v.n] = '\0';
    return find(text) != NULL;
}

TPL_TEST(t_filter, names(v, nrd_template_find_filter))
TPL_TEST(t_test, names(v, nrd_template_find_test))

const nrd_template_method_row *nrd_template_find_test(const char *name)
{
    static const nrd_template_method_row rows[] = {
        {"boolean", "", t_boolean},    {"callable", "", t_callable},
        {"defined", "", t_defined},    {"divisibleby", "num", t_divisibleby},
        {"eq", "other", t_eq},         {"equalto", "other", t_eq},
        {"==", "other", t_eq},         {"escaped", "", t_escaped},
        {"even", "", t_even},          {"false", "", t_false},
        {"filter", "", t_filter},      {"float", "", t_float},
        {"ge", "other", t_ge},         {">=", "other", t_ge},
        {"gt", "other", t_gt},         {"greaterthan", "other", t_gt},
        {">", "other", t_gt},          {"in", "seq", t_in},
        {"integer", "", t_integer},    {"iterable", "", t_iterable},
        {"le", "other", t_le},         {"<=", "other", t_le},
        {"lower", "", t_lower},        {"lt", "other", t_lt},
        {"lessthan", "other", t_lt},   {"<", "other", t_lt},
        {"mapping", "", t_mapping},    {"ne", "other", t_ne},
        {"!=", "other", t_ne},         {"none", "", t_none},
        {"number", "", t_number},      {"odd", "", t_odd},
        {"sameas", "other", t_sameas}, {"sequence", "", t_sequence},
        {"string", "", t_string},      {"test", "", t_test},
        {"true", "", t_true},          {"undefined", "", t_undefined},
        {"upper", "", t_upper},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!strcmp(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return NULL;
}
