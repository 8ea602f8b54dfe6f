/* What str, dict and list can be asked to do. */
#include "text/template/internal.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <stdio.h>

static val str_arg(run *r, const bound *b, size_t i)
{
    if (!b->has[i] || b->v[i].type != V_STR) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "argument %zu must be str, not %s", i + 1,
                     b->has[i] ? nrd_tpl_type_name(b->v[i]) : "missing");
    }
    return b->v[i];
}

static val m_strip(run *r, val s, const bound *b)
{
    return nrd_tpl_strip(r, s, nrd_tpl_arg(b, 0, val_none()), true, true);
}

static val m_lstrip(run *r, val s, const bound *b)
{
    return nrd_tpl_strip(r, s, nrd_tpl_arg(b, 0, val_none()), true, false);
}

static val m_rstrip(run *r, val s, const bound *b)
{
    return nrd_tpl_strip(r, s, nrd_tpl_arg(b, 0, val_none()), false, true);
}

static val m_title(run *r, val s, const bound *b)
{
    (void)b;
    return nrd_tpl_case(r, s, 't');
}

static val m_upper(run *r, val s, const bound *b)
{
    (void)b;
    return nrd_tpl_case(r, s, 'u');
}

static val m_lower(run *r, val s, const bound *b)
{
    (void)b;
    return nrd_tpl_case(r, s, 'l');
}

static val m_capitalize(run *r, val s, const bound *b)
{
    (void)b;
    return nrd_tpl_case(r, s, 'c');
}

static val m_swapcase(run *r, val s, const bound *b)
{
    (void)b;
    return nrd_tpl_case(r, s, 's');
}

static bool has_affix(run *r, val s, val affix, bool end)
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
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "%s first arg must be str or a tuple of str, not %s",
                     end ? "endswith" : "startswith", nrd_tpl_type_name(affix));
    }
    return affix.n <= s.n && (affix.n == 0 ||
           memcmp(end ? s.s + s.n - affix.n : s.s, affix.s, affix.n) == 0);
}

/* The part of the string that the optional start and end name. */
static val part(run *r, val s, const bound *b, size_t from)
{
    if (!b->has[from] && !b->has[from + 1]) {
        return s;
    }
    return nrd_tpl_slice(r, s, nrd_tpl_arg(b, from, val_none()), nrd_tpl_arg(b, from + 1, val_none()), val_none());
}

static val m_startswith(run *r, val s, const bound *b)
{
    return val_bool(has_affix(r, part(r, s, b, 1), nrd_tpl_arg(b, 0, val_none()), false));
}

static val m_endswith(run *r, val s, const bound *b)
{
    return val_bool(has_affix(r, part(r, s, b, 1), nrd_tpl_arg(b, 0, val_none()), true));
}

static val m_removeprefix(run *r, val s, const bound *b)
{
    val p = str_arg(r, b, 0);
    return has_affix(r, s, p, false) ? val_str(s.s + p.n, s.n - p.n) : s;
}

static val m_removesuffix(run *r, val s, const bound *b)
{
    val p = str_arg(r, b, 0);
    return has_affix(r, s, p, true) ? val_str(s.s, s.n - p.n) : s;
}

static val m_replace(run *r, val s, const bound *b)
{
    return nrd_tpl_replace(r, s, str_arg(r, b, 0), str_arg(r, b, 1), nrd_tpl_int_arg(r, b, 2, -1, "count"));
}

static const char *last_of(const char *s, size_t n, val what)
{
    for (size_t i = n; i + 1 > what.n; i--) {
        if (memcmp(s + i - what.n, what.s, what.n) == 0) {
            return s + i - what.n;
        }
    }
    return NULL;
}

static list *reversed_list(run *r, const list *l)
{
    list *out = nrd_tpl_list(r, L_LIST, l->n);
    for (size_t i = l->n; i > 0; i--) {
        nrd_tpl_push(r, out, l->v[i - 1]);
    }
    return out;
}

static val split_space(run *r, val s, int64_t max)
{
    list *l = nrd_tpl_list(r, L_LIST, 0);
    size_t i = nrd_tpl_lstrip(s.s, s.n);
    while (i < s.n) {
        size_t end = i, k;
        uint32_t cp;
        if (max >= 0 && (int64_t)l->n == max) {
            nrd_tpl_push(r, l, val_str(s.s + i, s.n - i));
            break;
        }
        for (; end < s.n; end += k) {
            k = nrd_utf8_next(s.s + end, s.n - end, &cp);
            if (nrd_tpl_is_space(cp)) {
                break;
            }
        }
        nrd_tpl_push(r, l, val_str(s.s + i, end - i));
        i = end + nrd_tpl_lstrip(s.s + end, s.n - end);
    }
    return val_list(l);
}

static val rsplit_space(run *r, val s, int64_t max)
{
    list *l = nrd_tpl_list(r, L_LIST, 0);
    size_t n = nrd_tpl_rstrip(s.s, s.n);
    while (n > 0) {
        size_t from = n;
        if (max >= 0 && (int64_t)l->n == max) {
            from = nrd_tpl_lstrip(s.s, n);
            nrd_tpl_push(r, l, val_str(s.s + from, n - from));
            break;
        }
        while (from > 0 && nrd_tpl_rstrip(s.s, from) == from) {
            from--;
            while (from > 0 && (s.s[from] & 0xc0) == 0x80) {
                from--;
            }
        }
        nrd_tpl_push(r, l, val_str(s.s + from, n - from));
        n = nrd_tpl_rstrip(s.s, from);
    }
    return val_list(reversed_list(r, l));
}

static val m_split(run *r, val s, const bound *b)
{
    int64_t max = nrd_tpl_int_arg(r, b, 1, -1, "maxsplit");
    if (!b->has[0] || b->v[0].type == V_NONE) {
        return split_space(r, s, max);
    }
    val sep = str_arg(r, b, 0);
    list *l = nrd_tpl_list(r, L_LIST, 0);
    size_t i = 0;
    if (sep.n == 0) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    while (max < 0 || (int64_t)l->n < max) {
        const char *hit = memmem(s.s + i, s.n - i, sep.s, sep.n);
        if (!hit) {
            break;
        }
        nrd_tpl_step(r, 1);
        nrd_tpl_push(r, l, val_str(s.s + i, (size_t)(hit - s.s) - i));
        i = (size_t)(hit - s.s) + sep.n;
    }
    nrd_tpl_push(r, l, val_str(s.s + i, s.n - i));
    nrd_tpl_step(r, s.n / 64);
    return val_list(l);
}

static val m_rsplit(run *r, val s, const bound *b)
{
    int64_t max = nrd_tpl_int_arg(r, b, 1, -1, "maxsplit");
    if (!b->has[0] || b->v[0].type == V_NONE) {
        return rsplit_space(r, s, max);
    }
    val sep = str_arg(r, b, 0);
    list *l = nrd_tpl_list(r, L_LIST, 0);
    size_t n = s.n;
    if (sep.n == 0) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    nrd_tpl_step(r, s.n / 16);
    while (max < 0 || (int64_t)l->n < max) {
        const char *hit = last_of(s.s, n, sep);
        if (!hit) {
            break;
        }
        size_t end = (size_t)(hit - s.s) + sep.n;
        nrd_tpl_push(r, l, val_str(s.s + end, n - end));
        n = (size_t)(hit - s.s);
    }
    nrd_tpl_push(r, l, val_str(s.s, n));
    return val_list(reversed_list(r, l));
}

static val m_splitlines(run *r, val s, const bound *b)
{
    if (nrd_tpl_flag(b, 0)) {
        nrd_tpl_fail(r, NRD_ERR_UNSUPPORTED, "splitlines(keepends) is not supported");
    }
    return val_list(nrd_tpl_split_lines(r, s));
}

static val partition(run *r, val s, val sep, bool last)
{
    list *l = nrd_tpl_list(r, L_TUPLE, 3);
    if (sep.n == 0) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "empty separator");
    }
    nrd_tpl_step(r, s.n / 16);
    const char *hit = last ? last_of(s.s, s.n, sep) : memmem(s.s, s.n, sep.s, sep.n);
    size_t at = hit ? (size_t)(hit - s.s) : last ? 0 : s.n;
    size_t end = hit ? at + sep.n : at;
    nrd_tpl_push(r, l, val_str(s.s, at));
    nrd_tpl_push(r, l, hit ? sep : val_str("", 0));
    nrd_tpl_push(r, l, val_str(s.s + end, s.n - end));
    return val_list(l);
}

static val m_partition(run *r, val s, const bound *b)
{
    return partition(r, s, str_arg(r, b, 0), false);
}

static val m_rpartition(run *r, val s, const bound *b)
{
    return partition(r, s, str_arg(r, b, 0), true);
}

static int64_t find(run *r, val s, const bound *b, bool last)
{
    val what = str_arg(r, b, 0);
    if (b->has[1] || b->has[2]) {
        nrd_tpl_fail(r, NRD_ERR_UNSUPPORTED, "find with a range is not supported");
    }
    nrd_tpl_step(r, s.n / 16);
    const char *hit = last ? last_of(s.s, s.n, what)
                           : what.n == 0 ? s.s : memmem(s.s, s.n, what.s, what.n);
    return hit ? (int64_t)nrd_tpl_cp_count(s.s, (size_t)(hit - s.s)) : -1;
}

static val m_find(run *r, val s, const bound *b)
{
    return val_int(find(r, s, b, false));
}

static val m_rfind(run *r, val s, const bound *b)
{
    return val_int(find(r, s, b, true));
}

static val m_index(run *r, val s, const bound *b)
{
    int64_t i = find(r, s, b, false);
    if (i < 0) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "substring not found");
    }
    return val_int(i);
}

static val m_count(run *r, val s, const bound *b)
{
    val what = str_arg(r, b, 0);
    int64_t n = 0;
    if (what.n == 0) {
        return val_int((int64_t)nrd_tpl_cp_count(s.s, s.n) + 1);
    }
    for (size_t i = 0; i < s.n; n++) {
        const char *hit = memmem(s.s + i, s.n - i, what.s, what.n);
        if (!hit) {
            break;
        }
        nrd_tpl_step(r, 1);
        i = (size_t)(hit - s.s) + what.n;
    }
    return val_int(n);
}

static val m_join(run *r, val s, const bound *b)
{
    size_t n;
    val *items = nrd_tpl_iterate(r, nrd_tpl_arg(b, 0, val_none()), &n);
    sb out = {0};
    for (size_t i = 0; i < n; i++) {
        if (items[i].type != V_STR) {
            nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "sequence item %zu: expected str instance, %s found", i,
                         nrd_tpl_type_name(items[i]));
        }
        if (i > 0) {
            nrd_sb_put(r, &out, s.s, s.n);
        }
        nrd_sb_put(r, &out, items[i].s, items[i].n);
    }
    return nrd_sb_val(&out);
}

static bool all_in(val s, unsigned classes)
{
    uint32_t cp;
    nrd_uni_init();
    for (size_t i = 0, k; i < s.n; i += k) {
        k = nrd_utf8_next(s.s + i, s.n - i, &cp);
        bool is = classes ? (nrd_uni_class(cp) & classes) != 0 : nrd_tpl_is_space(cp);
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
TPL_TEST(m_islower, nrd_tpl_has_case(r, v, 'l'))
TPL_TEST(m_isupper, nrd_tpl_has_case(r, v, 'u'))

static val pad(run *r, val s, const bound *b, bool left)
{
    int64_t width = nrd_tpl_int_arg(r, b, 0, 0, "width");
    val fill = nrd_tpl_arg(b, 1, val_text(" "));
    int64_t missing = width - (int64_t)nrd_tpl_cp_count(s.s, s.n);
    sb out = {0};
    if (fill.type != V_STR || nrd_tpl_cp_count(fill.s, fill.n) != 1) {
        nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "The fill character must be exactly one character long");
    }
    if (left) {
        nrd_sb_put(r, &out, s.s, s.n);
    }
    for (int64_t i = 0; i < missing; i++) {
        nrd_sb_put(r, &out, fill.s, fill.n);
    }
    if (!left) {
        nrd_sb_put(r, &out, s.s, s.n);
    }
    return nrd_sb_val(&out);
}

static val m_ljust(run *r, val s, const bound *b)
{
    return pad(r, s, b, true);
}

static val m_rjust(run *r, val s, const bound *b)
{
    return pad(r, s, b, false);
}

static val m_zfill(run *r, val s, const bound *b)
{
    bound zeros = {.has = {true, true}, .v = {nrd_tpl_arg(b, 0, val_int(0)), val_text("0")}};
    if (s.n > 0 && (s.s[0] == '-' || s.s[0] == '+')) {
        zeros.v[0] = val_int(nrd_tpl_int_arg(r, &zeros, 0, 0, "width") - 1);
        sb out = {0};
        nrd_sb_putc(r, &out, s.s[0]);
        val rest = pad(r, val_str(s.s + 1, s.n - 1), &zeros, false);
        nrd_sb_put(r, &out, rest.s, rest.n);
        return nrd_sb_val(&out);
    }
    return pad(r, s, &zeros, false);
}

/* "{} {0} {name} {a.b} {a[b]}"; format specifications are refused. */
static val m_format(run *r, val s, const bound *b)
{
    const args *a = b->all;
    sb out = {0};
    int64_t next = 0;
    bool manual = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        if ((c == '{' || c == '}') && i + 1 < s.n && s.s[i + 1] == c) {
            nrd_sb_putc(r, &out, c);
            i++;
            continue;
        }
        if (c != '{') {
            nrd_sb_putc(r, &out, c);
            continue;
        }
        const char *end = memchr(s.s + i, '}', s.n - i);
        size_t stop = end ? (size_t)(end - s.s) : s.n, k = i + 1;
        if (!end || memchr(s.s + i, ':', stop - i) || memchr(s.s + i, '!', stop - i)) {
            nrd_tpl_fail(r, NRD_ERR_UNSUPPORTED, "format: only plain {} fields are supported");
        }
        while (k < stop && s.s[k] != '.' && s.s[k] != '[') {
            k++;
        }
        val name = val_str(s.s + i + 1, k - i - 1), v = val_none();
        bool has = false;
        int64_t index = 0;
        if (name.n == 0 || nrd_tpl_parse_int(name, 10, &index)) {
            if (name.n == 0 ? manual : next > 0) {
                nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "format: numbered and unnumbered fields");
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
            nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "format: no argument for field '%.*s'", (int)name.n,
                         name.s);
        }
        while (k < stop) {
            size_t from = k + 1, to = from;
            bool item = s.s[k] == '[';
            while (to < stop && (item ? s.s[to] != ']' : s.s[to] != '.' && s.s[to] != '[')) {
                to++;
            }
            val key = val_str(s.s + from, to - from);
            v = nrd_tpl_item(r, v, item && nrd_tpl_parse_int(key, 10, &index) ? val_int(index) : key);
            k = to + item;
        }
        nrd_tpl_put(r, &out, v);
        i = stop;
    }
    return nrd_sb_val(&out);
}

static val d_keys(run *r, val v, const bound *b)
{
    list *l = nrd_tpl_list(r, L_KEYS, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        nrd_tpl_push(r, l, v.dict->e[i].key);
    }
    return val_list(l);
}

static val d_values(run *r, val v, const bound *b)
{
    list *l = nrd_tpl_list(r, L_VALUES, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        nrd_tpl_push(r, l, v.dict->e[i].value);
    }
    return val_list(l);
}

static val d_items(run *r, val v, const bound *b)
{
    (void)b;
    return val_list(nrd_tpl_dict_items(r, v.dict, L_ITEMS));
}

static val d_get(run *r, val v, const bound *b)
{
    val *found = nrd_tpl_dict_find(r, v.dict, nrd_tpl_arg(b, 0, val_none()));
    return found ? *found : nrd_tpl_arg(b, 1, val_none());
}

static val d_copy(run *r, val v, const bound *b)
{
    dict *d = nrd_tpl_dict(r, v.dict->n);
    (void)b;
    for (size_t i = 0; i < v.dict->n; i++) {
        d->e[d->n++] = v.dict->e[i];
    }
    return (val){.type = V_DICT, .dict = d};
}

static val l_index(run *r, val v, const bound *b)
{
    for (size_t i = 0; i < v.list->n; i++) {
        if (nrd_tpl_equal(r, v.list->v[i], nrd_tpl_arg(b, 0, val_none()))) {
            return val_int((int64_t)i);
        }
    }
    nrd_tpl_fail(r, NRD_ERR_INVALID_ARG, "the value is not in the list");
}

static val l_count(run *r, val v, const bound *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.list->n; i++) {
        n += nrd_tpl_equal(r, v.list->v[i], nrd_tpl_arg(b, 0, val_none()));
    }
    return val_int(n);
}

static val l_copy(run *r, val v, const bound *b)
{
    (void)b;
    return nrd_tpl_to_list(r, v);
}

const method_row *nrd_tpl_find_method(val self, const char *name, bool *out_unsafe)
{
    static const method_row of_str[] = {
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
    static const method_row of_dict[] = {
        {"keys", "", d_keys}, {"values", "", d_values},    {"items", "", d_items},
        {"copy", "", d_copy}, {"get", "key,default", d_get}, {"fromkeys", NULL, NULL},
    };
    static const method_row of_list[] = {
        {"index", "value", l_index}, {"count", "value", l_count}, {"copy", "", l_copy}};
    static const char *const changes_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const changes_list[] = {"append", "clear",  "pop",  "reverse",
                                               "insert", "sort",   "extend", "remove"};
    const method_row *rows = NULL;
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
