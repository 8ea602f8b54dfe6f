/* SPDX-License-Identifier: Apache-2.0
 * What str, dict and list can be asked to do. */
#include "text/template/internal.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <stdio.h>

static nrd_template_val str_arg(nrd_template_run *r, const nrd_template_bound *b, size_t i)
{
    if (!b->has[i] || b->v[i].type != V_STR) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "argument %zu must be str, not %s", i + 1,
                          b->has[i] ? nrd_template_type_name(b->v[i]) : "missing");
    }
    return b->v[i];
}

static nrd_template_val m_strip(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    return nrd_template_strip(r, s, nrd_template_arg(b, 0, nrd_template_val_none()), true, true);
}

static nrd_template_val m_lstrip(nrd_template_run *r, nrd_template_val s,
                                 const nrd_template_bound *b)
{
    return nrd_template_strip(r, s, nrd_template_arg(b, 0, nrd_template_val_none()), true, false);
}

static nrd_template_val m_rstrip(nrd_template_run *r, nrd_template_val s,
                                 const nrd_template_bound *b)
{
    return nrd_template_strip(r, s, nrd_template_arg(b, 0, nrd_template_val_none()), false, true);
}

static nrd_template_val m_title(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_case(r, s, 't');
}

static nrd_template_val m_upper(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_case(r, s, 'u');
}

static nrd_template_val m_lower(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_case(r, s, 'l');
}

static nrd_template_val m_capitalize(nrd_template_run *r, nrd_template_val s,
                                     const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_case(r, s, 'c');
}

static nrd_template_val m_swapcase(nrd_template_run *r, nrd_template_val s,
                                   const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_case(r, s, 's');
}

static bool has_affix(nrd_template_run *r, nrd_template_val s, nrd_template_val affix, bool end)
{
    if (affix.type == V_LIST && affix.list->kind == L_TUPLE) {
        for (size_t i = 0; i < affix.list->n; i++) {
            if (affix.list->v[i].type == V_STR && has_affix(r, s, affix.list->v[i], end)) {
                return true;
            }
        }
        return false;
    }
    if (affix.type != V_STR) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "%s first arg must be str or a tuple of str, not %s",
                          end ? "endswith" : "startswith", nrd_template_type_name(affix));
    }
    return affix.n <= s.n && (affix.n == 0 ||
           memcmp(end ? s.s + s.n - affix.n : s.s, affix.s, affix.n) == 0);
}

/* The part of the string that the optional start and end name. */
static nrd_template_val part(nrd_template_run *r, nrd_template_val s, const nrd_template_bound *b,
                             size_t from)
{
    if (!b->has[from] && !b->has[from + 1]) {
        return s;
    }
    return nrd_template_slice(r, s, nrd_template_arg(b, from, nrd_template_val_none()),
                              nrd_template_arg(b, from + 1, nrd_template_val_none()),
                              nrd_template_val_none());
}

static nrd_template_val m_startswith(nrd_template_run *r, nrd_template_val s,
                                     const nrd_template_bound *b)
{
    return nrd_template_val_bool(
        has_affix(r, part(r, s, b, 1), nrd_template_arg(b, 0, nrd_template_val_none()), false));
}

static nrd_template_val m_endswith(nrd_template_run *r, nrd_template_val s,
                                   const nrd_template_bound *b)
{
    return nrd_template_val_bool(
        has_affix(r, part(r, s, b, 1), nrd_template_arg(b, 0, nrd_template_val_none()), true));
}

static nrd_template_val m_removeprefix(nrd_template_run *r, nrd_template_val s,
                                       const nrd_template_bound *b)
{
    nrd_template_val p = str_arg(r, b, 0);
    return has_affix(r, s, p, false) ? nrd_template_val_str(s.s + p.n, s.n - p.n) : s;
}

static nrd_template_val m_removesuffix(nrd_template_run *r, nrd_template_val s,
                                       const nrd_template_bound *b)
{
    nrd_template_val p = str_arg(r, b, 0);
    return has_affix(r, s, p, true) ? nrd_template_val_str(s.s, s.n - p.n) : s;
}

static nrd_template_val m_replace(nrd_template_run *r, nrd_template_val s,
                                  const nrd_template_bound *b)
{
    return nrd_template_replace(r, s, str_arg(r, b, 0), str_arg(r, b, 1),
                                nrd_template_int_arg(r, b, 2, -1, "count"));
}

static const char *last_of(const char *s, size_t n, nrd_template_val what)
{
    for (size_t i = n; i + 1 > what.n; i--) {
        if (memcmp(s + i - what.n, what.s, what.n) == 0) {
            return s + i - what.n;
        }
    }
    return NULL;
}

static nrd_template_list *reversed_list(nrd_template_run *r, const nrd_template_list *l)
{
    nrd_template_list *out = nrd_template_list_new(r, L_LIST, l->n);
    for (size_t i = l->n; i > 0; i--) {
        nrd_template_push(r, out, l->v[i - 1]);
    }
    return out;
}

static nrd_template_val split_space(nrd_template_run *r, nrd_template_val s, int64_t max)
{
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
    size_t i = nrd_template_lstrip(s.s, s.n);
    while (i < s.n) {
        size_t end = i, k;
        uint32_t cp;
        if (max >= 0 && (int64_t)l->n == max) {
            nrd_template_push(r, l, nrd_template_val_str(s.s + i, s.n - i));
            break;
        }
        for (; end < s.n; end += k) {
            k = nrd_utf8_next(s.s + end, s.n - end, &cp);
            if (nrd_template_is_space(cp)) {
                break;
            }
        }
        nrd_template_push(r, l, nrd_template_val_str(s.s + i, end - i));
        i = end + nrd_template_lstrip(s.s + end, s.n - end);
    }
    return nrd_template_val_list(l);
}

static nrd_template_val rsplit_space(nrd_template_run *r, nrd_template_val s, int64_t max)
{
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
    size_t n = nrd_template_rstrip(s.s, s.n);
    while (n > 0) {
        size_t from = n;
        if (max >= 0 && (int64_t)l->n == max) {
            from = nrd_template_lstrip(s.s, n);
            nrd_template_push(r, l, nrd_template_val_str(s.s + from, n - from));
            break;
        }
        while (from > 0 && nrd_template_rstrip(s.s, from) == from) {
            from--;
            while (from > 0 && (s.s[from] & 0xc0) == 0x80) {
                from--;
            }
        }
        nrd_template_push(r, l, nrd_template_val_str(s.s + from, n - from));
        n = nrd_template_rstrip(s.s, from);
    }
    return nrd_template_val_list(reversed_list(r, l));
}

static nrd_template_val m_split(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    int64_t max = nrd_template_int_arg(r, b, 1, -1, "maxsplit");
    if (!b->has[0] || b->v[0].type == V_NONE) {
        return split_space(r, s, max);
    }
    nrd_template_val sep = str_arg(r, b, 0);
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
    size_t i = 0;
    if (sep.n == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    while (max < 0 || (int64_t)l->n < max) {
        const char *hit = memmem(s.s + i, s.n - i, sep.s, sep.n);
        if (!hit) {
            break;
        }
        nrd_template_step(r, 1);
        nrd_template_push(r, l, nrd_template_val_str(s.s + i, (size_t)(hit - s.s) - i));
        i = (size_t)(hit - s.s) + sep.n;
    }
    nrd_template_push(r, l, nrd_template_val_str(s.s + i, s.n - i));
    nrd_template_step(r, s.n / 64);
    return nrd_template_val_list(l);
}

static nrd_template_val m_rsplit(nrd_template_run *r, nrd_template_val s,
                                 const nrd_template_bound *b)
{
    int64_t max = nrd_template_int_arg(r, b, 1, -1, "maxsplit");
    if (!b->has[0] || b->v[0].type == V_NONE) {
        return rsplit_space(r, s, max);
    }
    nrd_template_val sep = str_arg(r, b, 0);
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
    size_t n = s.n;
    if (sep.n == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    nrd_template_step(r, s.n / 16);
    while (max < 0 || (int64_t)l->n < max) {
        const char *hit = last_of(s.s, n, sep);
        if (!hit) {
            break;
        }
        size_t end = (size_t)(hit - s.s) + sep.n;
        nrd_template_push(r, l, nrd_template_val_str(s.s + end, n - end));
        n = (size_t)(hit - s.s);
    }
    nrd_template_push(r, l, nrd_template_val_str(s.s, n));
    return nrd_template_val_list(reversed_list(r, l));
}

static nrd_template_val m_splitlines(nrd_template_run *r, nrd_template_val s,
                                     const nrd_template_bound *b)
{
    if (nrd_template_flag(b, 0)) {
        nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "splitlines(keepends) is not supported");
    }
    return nrd_template_val_list(nrd_template_split_lines(r, s));
}

static nrd_template_val partition(nrd_template_run *r, nrd_template_val s, nrd_template_val sep,
                                  bool last)
{
    nrd_template_list *l = nrd_template_list_new(r, L_TUPLE, 3);
    if (sep.n == 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    nrd_template_step(r, s.n / 16);
    const char *hit = last ? last_of(s.s, s.n, sep) : memmem(s.s, s.n, sep.s, sep.n);
    size_t at = hit ? (size_t)(hit - s.s) : last ? 0 : s.n;
    size_t end = hit ? at + sep.n : at;
    nrd_template_push(r, l, nrd_template_val_str(s.s, at));
    nrd_template_push(r, l, hit ? sep : nrd_template_val_str("", 0));
    nrd_template_push(r, l, nrd_template_val_str(s.s + end, s.n - end));
    return nrd_template_val_list(l);
}

static nrd_template_val m_partition(nrd_template_run *r, nrd_template_val s,
                                    const nrd_template_bound *b)
{
    return partition(r, s, str_arg(r, b, 0), false);
}

static nrd_template_val m_rpartition(nrd_template_run *r, nrd_template_val s,
                                     const nrd_template_bound *b)
{
    return partition(r, s, str_arg(r, b, 0), true);
}

static int64_t find(nrd_template_run *r, nrd_template_val s, const nrd_template_bound *b, bool last)
{
    nrd_template_val what = str_arg(r, b, 0);
    if (b->has[1] || b->has[2]) {
        nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "find with a range is not supported");
    }
    nrd_template_step(r, s.n / 16);
    const char *hit = last ? last_of(s.s, s.n, what)
                           : what.n == 0 ? s.s : memmem(s.s, s.n, what.s, what.n);
    return hit ? (int64_t)nrd_template_cp_count(s.s, (size_t)(hit - s.s)) : -1;
}

static nrd_template_val m_find(nrd_template_run *r, nrd_template_val s, const nrd_template_bound *b)
{
    return nrd_template_val_int(find(r, s, b, false));
}

static nrd_template_val m_rfind(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    return nrd_template_val_int(find(r, s, b, true));
}

static nrd_template_val m_index(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    int64_t i = find(r, s, b, false);
    if (i < 0) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "substring not found");
    }
    return nrd_template_val_int(i);
}

static nrd_template_val m_count(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    nrd_template_val what = str_arg(r, b, 0);
    int64_t n = 0;
    if (what.n == 0) {
        return nrd_template_val_int((int64_t)nrd_template_cp_count(s.s, s.n) + 1);
    }
    for (size_t i = 0; i < s.n; n++) {
        const char *hit = memmem(s.s + i, s.n - i, what.s, what.n);
        if (!hit) {
            break;
        }
        nrd_template_step(r, 1);
        i = (size_t)(hit - s.s) + what.n;
    }
    return nrd_template_val_int(n);
}

static nrd_template_val m_join(nrd_template_run *r, nrd_template_val s, const nrd_template_bound *b)
{
    size_t n;
    nrd_template_val *items =
        nrd_template_iterate(r, nrd_template_arg(b, 0, nrd_template_val_none()), &n);
    nrd_template_text out = {0};
    for (size_t i = 0; i < n; i++) {
        if (items[i].type != V_STR) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                              "sequence item %zu: expected str instance, %s found", i,
                              nrd_template_type_name(items[i]));
        }
        if (i > 0) {
            nrd_template_text_put(r, &out, s.s, s.n);
        }
        nrd_template_text_put(r, &out, items[i].s, items[i].n);
    }
    return nrd_template_text_val(&out);
}

static bool all_in(nrd_template_val s, unsigned classes)
{
    uint32_t cp;
    nrd_uni_init();
    for (size_t i = 0, k; i < s.n; i += k) {
        k = nrd_utf8_next(s.s + i, s.n - i, &cp);
        bool is = classes ? (nrd_uni_class(cp) & classes) != 0 : nrd_template_is_space(cp);
        if (!is) {
            return false;
        }
    }
    return s.n > 0;
}

TPL_TEST(m_isspace, all_in(v, 0))
TPL_TEST(m_isalpha, all_in(v, NRD_UNI_L))
TPL_TEST(m_isdigit, all_in(v, NRD_UNI_N))
TPL_TEST(m_isalnum, all_in(v, NRD_UNI_L | NRD_UNI_N))
TPL_TEST(m_islower, nrd_template_has_case(r, v, 'l'))
TPL_TEST(m_isupper, nrd_template_has_case(r, v, 'u'))

static nrd_template_val pad(nrd_template_run *r, nrd_template_val s, const nrd_template_bound *b,
                            bool left)
{
    int64_t width = nrd_template_int_arg(r, b, 0, 0, "width");
    nrd_template_val fill = nrd_template_arg(b, 1, nrd_template_val_text(" "));
    int64_t missing = width - (int64_t)nrd_template_cp_count(s.s, s.n);
    nrd_template_text out = {0};
    if (fill.type != V_STR || nrd_template_cp_count(fill.s, fill.n) != 1) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "The fill character must be exactly one character long");
    }
    if (left) {
        nrd_template_text_put(r, &out, s.s, s.n);
    }
    for (int64_t i = 0; i < missing; i++) {
        nrd_template_text_put(r, &out, fill.s, fill.n);
    }
    if (!left) {
        nrd_template_text_put(r, &out, s.s, s.n);
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val m_ljust(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    return pad(r, s, b, true);
}

static nrd_template_val m_rjust(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    return pad(r, s, b, false);
}

static nrd_template_val m_zfill(nrd_template_run *r, nrd_template_val s,
                                const nrd_template_bound *b)
{
    nrd_template_bound zeros = {
        .has = {true, true},
        .v = {nrd_template_arg(b, 0, nrd_template_val_int(0)), nrd_template_val_text("0")}};
    if (s.n > 0 && (s.s[0] == '-' || s.s[0] == '+')) {
        zeros.v[0] = nrd_template_val_int(nrd_template_int_arg(r, &zeros, 0, 0, "width") - 1);
        nrd_template_text out = {0};
        nrd_template_text_putc(r, &out, s.s[0]);
        nrd_template_val rest = pad(r, nrd_template_val_str(s.s + 1, s.n - 1), &zeros, false);
        nrd_template_text_put(r, &out, rest.s, rest.n);
        return nrd_template_text_val(&out);
    }
    return pad(r, s, &zeros, false);
}

/* "{} {0} {name} {a.b} {a[b]}"; format specifications are refused. */
static nrd_template_val m_format(nrd_template_run *r, nrd_template_val s,
                                 const nrd_template_bound *b)
{
    const nrd_template_args *a = b->all;
    nrd_template_text out = {0};
    int64_t next = 0;
    bool manual = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        if ((c == '{' || c == '}') && i + 1 < s.n && s.s[i + 1] == c) {
            nrd_template_text_putc(r, &out, c);
            i++;
            continue;
        }
        if (c != '{') {
            nrd_template_text_putc(r, &out, c);
            continue;
        }
        const char *end = memchr(s.s + i, '}', s.n - i);
        size_t stop = end ? (size_t)(end - s.s) : s.n, k = i + 1;
        if (!end || memchr(s.s + i, ':', stop - i) || memchr(s.s + i, '!', stop - i)) {
            nrd_template_fail(r, NRD_ERR_UNSUPPORTED, "format: only plain {} fields are supported");
        }
        while (k < stop && s.s[k] != '.' && s.s[k] != '[') {
            k++;
        }
        nrd_template_val name = nrd_template_val_str(s.s + i + 1, k - i - 1),
                         v = nrd_template_val_none();
        bool has = false;
        int64_t index = 0;
        if (name.n == 0 || nrd_template_parse_int(name, 10, &index)) {
            if (name.n == 0 ? manual : next > 0) {
                nrd_template_fail(r, NRD_ERR_INVALID_ARG, "format: numbered and unnumbered fields");
            }
            manual = name.n > 0;
            index = name.n == 0 ? next++ : index;
            has = index >= 0 && (size_t)index < a->n;
            v = has ? a->v[index] : v;
        }
        for (size_t kw = 0; kw < a->n_kw && !has; kw++) {
            has = strlen(a->kw[kw].name) == name.n && !memcmp(a->kw[kw].name, name.s, name.n);
            v = has ? a->kw[kw].v : v;
        }
        if (!has) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "format: no argument for field '%.*s'",
                              (int)name.n, name.s);
        }
        while (k < stop) {
            size_t from = k + 1, to = from;
            bool item = s.s[k] == '[';
            while (to < stop && (item ? s.s[to] != ']' : s.s[to] != '.' && s.s[to] != '[')) {
                to++;
            }
            nrd_template_val key = nrd_template_val_str(s.s + from, to - from);
            v = nrd_template_item(r, v,
                                  item && nrd_template_parse_int(key, 10, &index)
                                      ? nrd_template_val_int(index)
                                      : key);
            k = to + item;
        }
        nrd_template_put(r, &out, v);
        i = stop;
    }
    return nrd_template_text_val(&out);
}

static nrd_template_val d_keys(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    nrd_template_list *l = nrd_template_list_new(r, L_KEYS, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        nrd_template_push(r, l, v.dict->e[i].key);
    }
    return nrd_template_val_list(l);
}

static nrd_template_val d_values(nrd_template_run *r, nrd_template_val v,
                                 const nrd_template_bound *b)
{
    nrd_template_list *l = nrd_template_list_new(r, L_VALUES, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        nrd_template_push(r, l, v.dict->e[i].value);
    }
    return nrd_template_val_list(l);
}

static nrd_template_val d_items(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_val_list(nrd_template_dict_items(r, v.dict, L_ITEMS));
}

static nrd_template_val d_get(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    nrd_template_val *found =
        nrd_template_dict_find(r, v.dict, nrd_template_arg(b, 0, nrd_template_val_none()));
    return found ? *found : nrd_template_arg(b, 1, nrd_template_val_none());
}

static nrd_template_val d_copy(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    nrd_template_dict *d = nrd_template_dict_new(r, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        d->e[d->n++] = v.dict->e[i];
    }
    return (nrd_template_val){.type = V_DICT, .dict = d};
}

static nrd_template_val l_index(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    for (size_t i = 0; i < v.list->n; i++) {
        if (nrd_template_equal(r, v.list->v[i], nrd_template_arg(b, 0, nrd_template_val_none()))) {
            return nrd_template_val_int((int64_t)i);
        }
    }
    nrd_template_fail(r, NRD_ERR_INVALID_ARG, "the value is not in the list");
}

static nrd_template_val l_count(nrd_template_run *r, nrd_template_val v,
                                const nrd_template_bound *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.list->n; i++) {
        n += nrd_template_equal(r, v.list->v[i], nrd_template_arg(b, 0, nrd_template_val_none()));
    }
    return nrd_template_val_int(n);
}

static nrd_template_val l_copy(nrd_template_run *r, nrd_template_val v, const nrd_template_bound *b)
{
    (void)b;
    return nrd_template_to_list(r, v);
}

const nrd_template_method_row *nrd_template_find_method(nrd_template_val self, const char *name,
                                                        bool *out_unsafe)
{
    static const nrd_template_method_row of_str[] = {
        {"strip", "chars", m_strip},
        {"lstrip", "chars", m_lstrip},
        {"rstrip", "chars", m_rstrip},
        {"split", "sep,maxsplit", m_split},
        {"rsplit", "sep,maxsplit", m_rsplit},
        {"splitlines", "keepends", m_splitlines},
        {"startswith", "prefix,start,end", m_startswith},
        {"endswith", "suffix,start,end", m_endswith},
        {"removeprefix", "prefix", m_removeprefix},
        {"removesuffix", "suffix", m_removesuffix},
        {"replace", "old,new,count", m_replace},
        {"upper", "", m_upper},
        {"lower", "", m_lower},
        {"casefold", "", m_lower},
        {"title", "", m_title},
        {"capitalize", "", m_capitalize},
        {"swapcase", "", m_swapcase},
        {"partition", "sep", m_partition},
        {"rpartition", "sep", m_rpartition},
        {"find", "sub,start,end", m_find},
        {"rfind", "sub,start,end", m_rfind},
        {"index", "sub,start,end", m_index},
        {"count", "sub", m_count},
        {"join", "iterable", m_join},
        {"isspace", "", m_isspace},
        {"isalpha", "", m_isalpha},
        {"isdigit", "", m_isdigit},
        {"isnumeric", "", m_isdigit},
        {"isdecimal", "", m_isdigit},
        {"isalnum", "", m_isalnum},
        {"islower", "", m_islower},
        {"isupper", "", m_isupper},
        {"ljust", "width,fillchar", m_ljust},
        {"rjust", "width,fillchar", m_rjust},
        {"zfill", "width", m_zfill},
        {"format", NULL, m_format},
        {"center", NULL, NULL},
        {"encode", NULL, NULL},
        {"expandtabs", NULL, NULL},
        {"format_map", NULL, NULL},
        {"isascii", NULL, NULL},
        {"isidentifier", NULL, NULL},
        {"isprintable", NULL, NULL},
        {"istitle", NULL, NULL},
        {"maketrans", NULL, NULL},
        {"rindex", NULL, NULL},
        {"translate", NULL, NULL},
    };
    static const nrd_template_method_row of_dict[] = {
        {"keys", "", d_keys}, {"values", "", d_values},      {"items", "", d_items},
        {"copy", "", d_copy}, {"get", "key,default", d_get}, {"fromkeys", NULL, NULL},
    };
    static const nrd_template_method_row of_list[] = {
        {"index", "value", l_index}, {"count", "value", l_count}, {"copy", "", l_copy}};
    static const char *const changes_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const changes_list[] = {"append", "clear",  "pop",  "reverse",
                                               "insert", "sort",   "extend", "remove"};
    const nrd_template_method_row *rows = NULL;
    size_t n = 0;

    *out_unsafe = false;
    if (self.type == V_STR) {
        rows = of_str;
        n = sizeof of_str / sizeof of_str[0];
    } else if (self.type == V_DICT) {
        rows = of_dict;
        n = sizeof of_dict / sizeof of_dict[0];
        for (size_t i = 0; i < sizeof changes_dict / sizeof changes_dict[0]; i++) {
            *out_unsafe = *out_unsafe || !strcmp(name, changes_dict[i]);
        }
    } else if (self.type == V_LIST && self.list->kind <= L_RANGE) {
        rows = of_list;
        n = sizeof of_list / sizeof of_list[0] - (self.list->kind != L_LIST);
        for (size_t i = 0; i < sizeof changes_list / sizeof changes_list[0]; i++) {
            *out_unsafe = *out_unsafe ||
                          (self.list->kind == L_LIST && !strcmp(name, changes_list[i]));
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return NULL;
}
