/* SPDX-License-Identifier: Apache-2.0
 * Functions on texts for filters and methods, by characters where Python counts characters. */
#include "text/template/internal.h"

#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <stdio.h>

#ifdef NRD_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

/* str.isspace of Python: White_Space and the four ASCII separators. */
bool nrd_template_is_space(uint32_t cp)
{
    if (cp < 0x80) {
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    }
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t nrd_template_cp_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += (s[i] & 0xc0) != 0x80;
    }
    return count;
}

size_t nrd_template_cp_offset(const char *s, size_t n, size_t index)
{
    size_t i = 0;
    while (i < n) {
        if ((s[i] & 0xc0) != 0x80 && index-- == 0) {
            return i;
        }
        i++;
    }
    return n;
}

size_t nrd_template_lstrip(const char *s, size_t n)
{
    size_t i = 0, k;
    uint32_t cp;
    for (; i < n; i += k) {
        k = nrd_utf8_next(s + i, n - i, &cp);
        if (!nrd_template_is_space(cp)) {
            break;
        }
    }
    return i;
}

size_t nrd_template_rstrip(const char *s, size_t n)
{
    while (n > 0) {
        size_t start = n - 1;
        uint32_t cp;
        while (start > 0 && n - start < 4 && (s[start] & 0xc0) == 0x80) {
            start--;
        }
        if (nrd_utf8_next(s + start, n - start, &cp) != n - start || !nrd_template_is_space(cp)) {
            break;
        }
        n = start;
    }
    return n;
}

/* ---- case ---- */

static uint32_t to_lower(uint32_t cp)
{
#ifdef NRD_HAVE_UTF8PROC
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
#else
    return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
#endif
}

static uint32_t to_upper(uint32_t cp)
{
#ifdef NRD_HAVE_UTF8PROC
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
#else
    return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
#endif
}

static uint32_t to_title(uint32_t cp)
{
#ifdef NRD_HAVE_UTF8PROC
    return (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
#else
    return to_upper(cp);
#endif
}

static void put_upper(nrd_template_run *r, nrd_template_text *out, uint32_t cp, bool title)
{
    if (cp == 0xdf) { /* the expansion that texts have; the other 100 of SpecialCasing are ligatures */
        nrd_template_text_puts(r, out, title ? "Ss" : "SS");
    } else {
        nrd_template_text_put_cp(r, out, title ? to_title(cp) : to_upper(cp));
    }
}

nrd_template_val nrd_template_case(nrd_template_run *r, nrd_template_val s, int how)
{
    nrd_template_text out = {0};
    bool in_word = false, first = true;
    uint32_t cp;

    for (size_t i = 0, k; i < s.n; i += k, first = false) {
        k = nrd_utf8_next(s.s + i, s.n - i, &cp);
        bool cased = to_lower(cp) != cp || to_upper(cp) != cp || cp == 0xdf;
        if (how == 'u') {
            put_upper(r, &out, cp, false);
        } else if (how == 'l') {
            nrd_template_text_put_cp(r, &out, to_lower(cp));
        } else if (how == 's') {
            if (to_lower(cp) != cp) {
                nrd_template_text_put_cp(r, &out, to_lower(cp));
            } else {
                put_upper(r, &out, cp, false);
            }
        } else if (how == 'c' ? first : !in_word) {
            put_upper(r, &out, cp, true);
        } else {
            nrd_template_text_put_cp(r, &out, to_lower(cp));
        }
        in_word = cased;
    }
    return nrd_template_text_val(&out);
}

/* ---- lines, escapes, replacement ---- */

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

nrd_template_list *nrd_template_split_lines(nrd_template_run *r, nrd_template_val s)
{
    nrd_template_list *l = nrd_template_list_new(r, L_LIST, 0);
    size_t from = 0, k;
    uint32_t cp;
    for (size_t i = 0; i < s.n; i += k) {
        k = nrd_utf8_next(s.s + i, s.n - i, &cp);
        if (ends_line(cp)) {
            nrd_template_push(r, l, nrd_template_val_str(s.s + from, i - from));
            k += cp == '\r' && i + 1 < s.n && s.s[i + 1] == '\n';
            from = i + k;
        }
    }
    if (from < s.n) {
        nrd_template_push(r, l, nrd_template_val_str(s.s + from, s.n - from));
    }
    return l;
}

nrd_template_val nrd_template_escape(nrd_template_run *r, nrd_template_val v)
{
    nrd_template_text out = {0};
    if (v.type == V_STR && v.flag) {
        return v;
    }
    nrd_template_val s = nrd_template_to_str(r, v);
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\'') {
            nrd_template_text_puts(r, &out,
                                   c == '&'   ? "&amp;"
                                   : c == '<' ? "&lt;"
                                   : c == '>' ? "&gt;"
                                   : c == '"' ? "&#34;"
                                              : "&#39;");
        } else {
            nrd_template_text_putc(r, &out, c);
        }
    }
    nrd_template_val e = nrd_template_text_val(&out);
    e.flag = 1;
    return e;
}

nrd_template_val nrd_template_replace(nrd_template_run *r, nrd_template_val s,
                                      nrd_template_val from, nrd_template_val to, int64_t count)
{
    nrd_template_text out = {0};
    size_t i = 0;
    while (i <= s.n && count != 0) {
        if (from.n == 0) { /* between all characters and at both ends */
            uint32_t cp;
            nrd_template_text_put(r, &out, to.s, to.n);
            count--;
            if (i == s.n) {
                break;
            }
            size_t k = nrd_utf8_next(s.s + i, s.n - i, &cp);
            nrd_template_text_put(r, &out, s.s + i, k);
            i += k;
            continue;
        }
        const char *hit = memmem(s.s + i, s.n - i, from.s, from.n);
        if (!hit) {
            break;
        }
        nrd_template_step(r, 1);
        nrd_template_text_put(r, &out, s.s + i, (size_t)(hit - s.s) - i);
        nrd_template_text_put(r, &out, to.s, to.n);
        i = (size_t)(hit - s.s) + from.n;
        count--;
    }
    if (i < s.n) {
        nrd_template_text_put(r, &out, s.s + i, s.n - i);
    }
    nrd_template_val v = nrd_template_text_val(&out);
    v.flag = s.flag;
    return v;
}

/* ---- printf-style formatting ---- */

static nrd_template_val next_arg(nrd_template_run *r, nrd_template_val a, size_t *used)
{
    bool tuple = a.type == V_LIST && a.list->kind == L_TUPLE;
    size_t n = tuple ? a.list->n : 1;
    if (*used >= n) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "not enough arguments for format string");
    }
    nrd_template_val v = tuple ? a.list->v[*used] : a;
    ++*used;
    return v;
}

static void put_padded(nrd_template_run *r, nrd_template_text *out, nrd_template_val s,
                       int64_t width, bool left, char fill)
{
    int64_t missing = width - (int64_t)nrd_template_cp_count(s.s, s.n);
    bool sign = fill == '0' && s.n > 0 && (s.s[0] == '-' || s.s[0] == '+');
    if (sign) {
        nrd_template_text_putc(r, out, s.s[0]);
        s = nrd_template_val_str(s.s + 1, s.n - 1);
    }
    if (left) {
        nrd_template_text_put(r, out, s.s, s.n);
    }
    for (int64_t i = 0; i < missing; i++) {
        nrd_template_text_putc(r, out, left ? ' ' : fill);
    }
    if (!left) {
        nrd_template_text_put(r, out, s.s, s.n);
    }
}

static nrd_template_val format_one(nrd_template_run *r, char kind, nrd_template_val v,
                                   int64_t precision, bool plus)
{
    char text[400];
    nrd_template_text out = {0};
    switch (kind) {
    case 's':
        v = nrd_template_to_str(r, v);
        return precision >= 0
                   ? nrd_template_val_str(v.s, nrd_template_cp_offset(v.s, v.n, (size_t)precision))
                   : v;
    case 'r':
        nrd_template_repr(r, &out, v);
        return nrd_template_text_val(&out);
    case 'd':
    case 'i':
    case 'x':
    case 'X':
    case 'o':
        if (v.type == V_FLOAT && (kind == 'd' || kind == 'i') && v.f > -9e18 && v.f < 9e18) {
            v = nrd_template_val_int((int64_t)v.f);
        }
        if (v.type != V_INT && v.type != V_BOOL) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "%%%c format: a number is required, not %s",
                              kind, nrd_template_type_name(v));
        }
        {
            int64_t i = v.type == V_BOOL ? v.b : v.i;
            unsigned long long u = i < 0 ? 0ULL - (unsigned long long)i : (unsigned long long)i;
            const char *sign = i < 0 ? "-" : plus ? "+" : "";
            snprintf(text, sizeof text,
                     kind == 'x' ? "%s%llx" : kind == 'X' ? "%s%llX" : kind == 'o' ? "%s%llo" : "%s%llu",
                     sign, u);
        }
        break;
    default: {
        if (!nrd_template_is_number(v)) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "must be real number, not %s",
                              nrd_template_type_name(v));
        }
        int p = precision < 0 ? 6 : precision > 60 ? 60 : (int)precision;
        double f = nrd_template_as_double(v);
        const char *sign = plus && f >= 0 ? "+" : "";
        nrd_number_print(text, sizeof text,
                         kind == 'e'   ? "%s%.*e"
                         : kind == 'g' ? "%s%.*g"
                                       : "%s%.*f",
                         sign, p, f);
    }
    }
    nrd_template_text_puts(r, &out, text);
    return nrd_template_text_val(&out);
}

nrd_template_val nrd_template_printf(nrd_template_run *r, nrd_template_val f, nrd_template_val a)
{
    nrd_template_text out = {0};
    size_t used = 0;
    bool named = false;

    for (size_t i = 0; i < f.n; i++) {
        if (f.s[i] != '%') {
            nrd_template_text_putc(r, &out, f.s[i]);
            continue;
        }
        nrd_template_val v = nrd_template_val_none();
        bool has = false, left = false, zero = false, plus = false;
        int64_t width = 0, precision = -1;
        i++;
        if (i < f.n && f.s[i] == '(') {
            const char *end = memchr(f.s + i, ')', f.n - i);
            if (!end || a.type != V_DICT) {
                nrd_template_fail(r, NRD_ERR_INVALID_ARG, "format requires a mapping");
            }
            nrd_template_val *found = nrd_template_dict_find(
                r, a.dict, nrd_template_val_str(f.s + i + 1, (size_t)(end - f.s) - i - 1));
            if (!found) {
                nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                                  "the format names a key that is not there");
            }
            v = *found;
            has = named = true;
            i = (size_t)(end - f.s) + 1;
        }
        for (; i < f.n && f.s[i] && strchr("-0+ #", f.s[i]); i++) {
            left = left || f.s[i] == '-';
            zero = zero || f.s[i] == '0';
            plus = plus || f.s[i] == '+';
        }
        for (; i < f.n && f.s[i] >= '0' && f.s[i] <= '9' && width < 100000; i++) {
            width = width * 10 + (f.s[i] - '0');
        }
        if (i < f.n && f.s[i] == '.') {
            precision = 0;
            for (i++; i < f.n && f.s[i] >= '0' && f.s[i] <= '9' && precision < 100000; i++) {
                precision = precision * 10 + (f.s[i] - '0');
            }
        }
        if (i >= f.n || !f.s[i] || !strchr("sdirxXofFeg%", f.s[i])) {
            nrd_template_fail(r, NRD_ERR_INVALID_ARG, "unsupported format character");
        }
        if (f.s[i] == '%') {
            nrd_template_text_putc(r, &out, '%');
            continue;
        }
        if (!has) {
            v = next_arg(r, a, &used);
        }
        char kind = f.s[i] == 'F' ? 'f' : f.s[i];
        put_padded(r, &out, format_one(r, kind, v, precision, plus), width, left,
                   zero && kind != 's' && kind != 'r' ? '0' : ' ');
    }
    bool tuple = a.type == V_LIST && a.list->kind == L_TUPLE;
    if (!named && a.type != V_DICT && used < (tuple ? a.list->n : 1)) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "not all arguments converted during string formatting");
    }
    return nrd_template_text_val(&out);
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

/* islower, isupper: all that has case is so, and something has. */
bool nrd_template_has_case(nrd_template_run *r, nrd_template_val s, int how)
{
    nrd_template_val same = nrd_template_case(r, s, how),
                     other = nrd_template_case(r, s, how == 'u' ? 'l' : 'u');
    return nrd_template_equal(r, s, same) && !nrd_template_equal(r, s, other);
}
