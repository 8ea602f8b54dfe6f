/* SPDX-License-Identifier: Apache-2.0
 * Jinja's filters of what has items: lists, dicts, text by its characters. */
#include "text/template/internal.h"

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
        (test ? r->names->find_test : r->names->find_filter)(text);
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

const nrd_template_method_row *nrd_template_find_list_filter(const char *name)
{
    static const nrd_template_method_row rows[] = {
        {"batch", "linecount,fill_with", f_batch},
        {"count", "", f_length},
        {"dictsort", "case_sensitive,by,reverse", f_dictsort},
        {"first", "", f_first},
        {"groupby", "attribute,default,case_sensitive", f_groupby},
        {"items", "", f_items},
        {"join", "d,attribute", f_join},
        {"last", "", f_last},
        {"length", "", f_length},
        {"list", "", f_list},
        {"map", NULL, f_map},
        {"max", "case_sensitive,attribute", f_max},
        {"min", "case_sensitive,attribute", f_min},
        {"reject", NULL, f_reject},
        {"rejectattr", NULL, f_rejectattr},
        {"reverse", "", f_reverse},
        {"select", NULL, f_select},
        {"selectattr", NULL, f_selectattr},
        {"slice", "slices,fill_with", f_slice},
        {"sort", "reverse,case_sensitive,attribute", f_sort},
        {"sum", "attribute,start", f_sum},
        {"unique", "case_sensitive,attribute", f_unique},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!strcmp(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return NULL;
}
