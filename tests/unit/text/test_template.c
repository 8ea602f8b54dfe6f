/* SPDX-License-Identifier: Apache-2.0
 * Templates against what Jinja made of them (tests/text/make_template_goldens.py), and the sandbox. */
#include "base/file.h"
#include "base/json.h"
#include "comma_locale.h"
#include "text/template/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static nrd_error *render(const char *text, size_t n, const nrd_json *vars, time_t now,
                         const nrd_template_limits *limits, nrd_str *out)
{
    nrd_template *t = NULL;
    nrd_error *err = nrd_template_compile(&t, text, n);
    if (!err) {
        err = nrd_template_render(t, vars, now, limits, out);
    }
    nrd_template_free(t);
    return err;
}

static bool check_case(const nrd_json *root, const nrd_json *c, time_t now)
{
    const nrd_json *text = nrd_json_at(nrd_json_get(root, "templates"),
                                       (size_t)nrd_json_get_int(c, "template", 0));
    const nrd_json *vars =
        nrd_json_at(nrd_json_get(root, "vars"), (size_t)nrd_json_get_int(c, "vars", 0));
    const nrd_json *want = nrd_json_get(c, "text");
    const char *name = nrd_json_get_str(c, "name", "");
    nrd_str out = {0};
    nrd_error *err = render(text->str, text->n, vars, now, NULL, &out);
    bool fine = want ? !err && out.len == want->n && memcmp(nrd_str_cstr(&out), want->str, want->n) == 0
                     : err != NULL;
    if (!fine) {
        fprintf(stderr, "%s\n  template: %.300s\n  want: %s\n  got:  %s%s\n", name, text->str,
                want ? want->str : nrd_json_get_str(c, "fails", ""), err ? "ERROR " : "",
                err ? nrd_error_message(err) : nrd_str_cstr(&out));
    }
    nrd_error_free(err);
    nrd_str_fini(&out);
    return fine;
}

static void test_goldens(void **state)
{
    nrd_json_doc *doc = NULL;
    int bad = 0;
    (void)state;
    assert_null(nrd_json_parse_file(&doc, "tests/text/template_goldens.json", NULL));
    const nrd_json *root = nrd_json_root(doc), *cases = nrd_json_get(root, "cases"),
                   *at = nrd_json_get(root, "now");
    struct tm tm = {.tm_isdst = -1};
    int *const fields[] = {&tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec};
    for (size_t i = 0; i < 6; i++) {
        *fields[i] = (int)nrd_json_int(nrd_json_at(at, i), 0);
    }
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    time_t now = mktime(&tm);
    for (size_t i = 0; i < nrd_json_len(cases); i++) {
        bad += !check_case(root, nrd_json_at(cases, i), now);
    }
    assert_true(nrd_json_len(cases) > 500);
    nrd_json_doc_free(doc);
    assert_int_equal(bad, 0);
}

static void expect_error(const char *text, const char *part)
{
    static const nrd_template_limits small = {200000, 64 << 20, 1 << 16};
    nrd_str out = {0};
    nrd_error *err = render(text, strlen(text), NULL, 0, &small, &out);
    assert_non_null(err);
    if (!strstr(nrd_error_message(err), part)) {
        fail_msg("'%.60s': '%s' does not say '%s'", text, nrd_error_message(err), part);
    }
    assert_int_equal(out.len, 0);
    nrd_error_free(err);
    nrd_str_fini(&out);
}

/* limits: TEMPLATE_STEPS */
static void test_limits(void **state)
{
    (void)state;
    expect_error("{% for i in range(3000) %}{% for j in 'abcdefghijklmnopqrstuvwxyz' %}{% if j %}{% endif %}{% endfor %}{% endfor %}",
                 "steps");
    expect_error("{{ 'aaaaaaaaaaaaaaaa' * 1000000000 }}", "more than");
    expect_error("{% for i in range(9000) %}{{ 'aaaaaaaaaaaaaaaa' }}{% endfor %}", "bytes");
    expect_error("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
                 "{% endfor %}", "more than");
    expect_error("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "deeper");
    expect_error("{% set ns = namespace(l=[1]) %}{% for i in range(900) %}{% set ns.l = [ns.l] %}"
                 "{% endfor %}{{ ns.l }}", "deeper");
    expect_error("{{ 'x' | center(999999999) }}", "more than");
    expect_error("{{ '%99999d' % 5 ~ ('%99999s' % 1) * 99 }}", "more than");
    expect_error("{{ 2 ** 99 }}", "64 bits");

    nrd_str deep = {0};
    nrd_template *t = NULL;
    nrd_str_puts(&deep, "{{ ");
    for (int i = 0; i < 100000; i++) {
        nrd_str_putc(&deep, '(');
    }
    nrd_error *err = nrd_template_compile(&t, deep.data, deep.len);
    assert_non_null(err);
    nrd_error_free(err);
    nrd_str_fini(&deep);
}

static void test_messages(void **state)
{
    (void)state;
    expect_error("a\n\n{% if x %}\n", "line 3: {% endif %} is missing");
    expect_error("{{ a }}\n{{ b.c }}", "line 2: 'b' is undefined");
    expect_error("\n\n\n{{ raise_exception('no such role') }}", "line 4: no such role");
    expect_error("{{ 1 | nothing }}", "no filter named 'nothing'");
    expect_error("{% extends 'x' %}", "the tag 'extends' is not supported");
    expect_error("{{ [1] | pprint }}", "the filter 'pprint' is not supported");
    expect_error("{{ [1].append(2) }}", "access to attribute 'append' is unsafe");
}

static void test_mentions(void **state)
{
    nrd_template *t = NULL;
    (void)state;
    assert_null(nrd_template_compile(&t, "{% if tools %}{{ m.role }}{% endif %}", 37));
    assert_true(nrd_template_mentions(t, "tools"));
    assert_true(nrd_template_mentions(t, "role"));
    assert_false(nrd_template_mentions(t, "documents"));
    nrd_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_mentions),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("with a decimal comma", tests, comma_locale_setup,
                                                comma_locale_teardown);
}
