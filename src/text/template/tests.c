/* SPDX-License-Identifier: Apache-2.0
 * Jinja's tests (value is test), as a table of names and functions. */
#include "text/template/internal.h"

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

TPL_TEST(t_filter, names(v, r->names->find_filter))
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
