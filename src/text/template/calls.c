/* SPDX-License-Identifier: Apache-2.0
 * Functions that templates have from the start (range, dict, namespace, strftime_now, raise_exception), and how arguments
 * come to the named parameters of filters, tests and methods. */
#include "text/template/internal.h"

static nrd_template_val call_range(nrd_template_run *r, const nrd_template_args *a)
{
    int64_t v[3] = {0, 0, 1};
    if (a->n < 1 || a->n > 3 || a->n_kw > 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "range takes 1 to 3 numbers");
    }
    for (size_t i = 0; i < a->n; i++) {
        if (a->v[i].type != V_INT && a->v[i].type != V_BOOL) {
            if (a->v[i].type == V_UNDEF) {
                nrd_template_fail_undef(r, a->v[i]);
            }
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "range takes whole numbers, not %s",
                              nrd_template_type_name(a->v[i]));
        }
        v[a->n == 1 ? 1 : i] = a->v[i].type == V_BOOL ? a->v[i].b : a->v[i].i;
    }
    if (v[2] == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "range: the step must not be 0");
    }
    nrd_template_list *l = nrd_template_list_new(r, L_RANGE, 0);
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (l->n == TPL_MAX_RANGE) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "range gives more than %d numbers",
                              TPL_MAX_RANGE);
        }
        nrd_template_push(r, l, nrd_template_val_int(i));
        if (__builtin_add_overflow(i, v[2], &i)) {
            break;
        }
    }
    nrd_template_step(r, l->n);
    return nrd_template_val_list(l);
}

static nrd_template_val call_dict(nrd_template_run *r, const nrd_template_args *a, bool ns)
{
    nrd_template_dict *d = nrd_template_dict_new(r, a->n_kw);
    if (a->n > 1) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "%s takes one mapping and keywords",
                          ns ? "namespace" : "dict");
    }
    if (a->n == 1 && (a->v[0].type == V_DICT || a->v[0].type == V_NS)) {
        for (size_t i = 0; i < a->v[0].dict->n; i++) {
            nrd_template_dict_put(r, d, a->v[0].dict->e[i].key, a->v[0].dict->e[i].value);
        }
    } else if (a->n == 1) {
        size_t n, n_pair;
        nrd_template_val *items = nrd_template_iterate(r, a->v[0], &n);
        for (size_t i = 0; i < n; i++) {
            nrd_template_val *pair = nrd_template_iterate(r, items[i], &n_pair);
            if (n_pair != 2) {
                nrd_template_fail(r, NRD_ERR_INVALID_ARG, "dict: element %zu is no pair", i);
            }
            nrd_template_dict_put(r, d, pair[0], pair[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        if (ns && a->kw[i].name[0] == '_') {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "'%s': a namespace takes no such name",
                              a->kw[i].name);
        }
        nrd_template_dict_put(r, d, nrd_template_val_text(a->kw[i].name), a->kw[i].v);
    }
    return (nrd_template_val){.type = ns ? V_NS : V_DICT, .dict = d};
}

static nrd_template_val call_strftime(nrd_template_run *r, const nrd_template_args *a)
{
    char format[256], text[1024];
    struct tm tm;
    if (a->n != 1 || a->n_kw > 0 || a->v[0].type != V_STR || a->v[0].n >= sizeof format) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "strftime_now takes one short format");
    }
    memcpy(format, a->v[0].s, a->v[0].n);
    format[a->v[0].n] = '\0';
    localtime_r(&r->now, &tm);
    size_t n = format[0] ? strftime(text, sizeof text, format, &tm) : 0;
    nrd_template_text out = {0};
    nrd_template_text_put(r, &out, text, n);
    return nrd_template_text_val(&out);
}

nrd_template_val nrd_template_call_builtin(nrd_template_run *r, nrd_template_val f, const nrd_template_args *a)
{
    switch (f.flag) {
    case FUNC_RANGE:
        return call_range(r, a);
    case FUNC_DICT:
        return call_dict(r, a, false);
    case FUNC_NAMESPACE:
        return call_dict(r, a, true);
    case FUNC_STRFTIME:
        return call_strftime(r, a);
    default: {
        nrd_template_text text = {0};
        if (a->n == 1) {
            nrd_template_put(r, &text, a->v[0]);
        } else if (a->n_kw == 1) {
            nrd_template_put(r, &text, a->kw[0].v);
        }
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "%.*s", (int)text.n, text.s ? text.s : "");
    }
    }
}

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

nrd_template_val nrd_template_call_row(nrd_template_run *r, const nrd_template_method_row *row,
                                       nrd_template_val self, const nrd_template_args *a,
                                       const char *what)
{
    nrd_template_bound b = {.all = a};
    if (!row->f) {
        nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "the %s '%s' is not supported", what, row->name);
    }
    nrd_template_step(r, 1);
    if (!row->params) {
        return row->f(r, self, &b);
    }
    const char *names[TPL_MAX_PARAMS];
    size_t lens[TPL_MAX_PARAMS], n = 0;
    for (const char *p = row->params; *p;) {
        names[n] = p;
        lens[n] = strcspn(p, ",");
        p += lens[n++];
        p += *p == ',';
    }
    if (a->n > n) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "the %s '%s' takes at most %zu arguments, got %zu", what, row->name, n,
                          a->n);
    }
    for (size_t i = 0; i < a->n; i++) {
        b.v[i] = a->v[i];
        b.has[i] = true;
    }
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < n && !(strlen(a->kw[k].name) == lens[i] &&
                          memcmp(a->kw[k].name, names[i], lens[i]) == 0)) {
            i++;
        }
        if (i == n || b.has[i]) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "the %s '%s' takes no argument '%s' here",
                              what, row->name, a->kw[k].name);
        }
        b.v[i] = a->kw[k].v;
        b.has[i] = true;
    }
    return row->f(r, self, &b);
}
