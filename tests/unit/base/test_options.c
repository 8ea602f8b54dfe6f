/* SPDX-License-Identifier: Apache-2.0
 * Command lines from tables: names, values, faults, what was probably meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/options.h"

#include <stdlib.h>
#include <string.h>

typedef struct values {
    const char *text, *word;
    char *owned;
    int32_t n;
    int64_t big;
    double x;
    bool flag, boolean, on;
    int n_custom;
} values;

static nrd_error *parse_custom(void *v, const char *name, const char *value)
{
    ((values *)v)->n_custom++;
    return strcmp(value, "bad") != 0 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: bad", name);
}

#define ROW(...) NRD_OPT_ROW(values, __VA_ARGS__)
static const nrd_opt rows[] = {
    ROW(STR, "the_text", "-t --text", text, "TEXT", NULL, "some text"),
    ROW(WORD, "plugin", NULL, word, "enable", NULL, "a word"),
    ROW(OWNED, "owned-text", NULL, owned, "TEXT", NULL, "kept"),
    ROW(INT, "max_batch_size", "-b", n, "N", "8", "a number"),
    {.name = "big", .form = NRD_OPT_I64, .offset = offsetof(values, big), .min = 1, .max = 10, .help = "1 to 10"},
    ROW(NUM, "x", NULL, x, "X", NULL, "a number"),
    ROW(FLAG, "flag", NULL, flag, NULL, NULL, "a flag"),
    ROW(BOOL, "boolean", NULL, boolean, NULL, NULL, "true or false"),
    ROW(SWITCH, "switch", NULL, on, NULL, NULL, "on or off"),
    {.name = "custom", .form = NRD_OPT_CUSTOM, .parse = parse_custom, .help = "own", .env = "NRD_TEST_CUSTOM"},
    {.name = "single", .form = NRD_OPT_STR, .offset = offsetof(values, text), .help = "once", .once = true},
    NRD_OPT_WITHOUT_EFFECT("ignored", NULL, "does nothing"),
    NRD_OPT_REFUSAL("refused", "-r", "because"),
};
enum { N = sizeof rows / sizeof *rows, MAX_ARGS = 12 };

static const nrd_opt *last_ignored;

static void on_ignored(const nrd_opt *row)
{
    last_ignored = row;
}

static nrd_opt_fault read_args(values *v, bool prefixes, const char *const *args, const char **words, size_t *n)
{
    char *argv[MAX_ARGS] = {(char *)(uintptr_t) "program"};
    int argc = 1;
    const nrd_opt_set set = {.rows = rows, .n = N, .max_words = words ? 2 : 0, .has_help = true,
                             .takes_prefixes = prefixes, .ignored = on_ignored};
    while (*args) {
        argv[argc++] = (char *)(uintptr_t)*args++;
    }
    memset(v, 0, sizeof *v);
    return nrd_opts_read(&set, v, argc, argv, words, n);
}

#define READ(v, ...) read_args((v), false, (const char *const[]){__VA_ARGS__, NULL}, NULL, NULL)

static void test_every_form_is_stored(void **state)
{
    values v;
    (void)state;
    assert_int_equal(READ(&v, "--the_text", "a", "--plugin", "--owned-text=b", "-b", "-3", "--big=7").kind, NRD_OPT_FINE);
    assert_string_equal(v.text, "a");
    assert_string_equal(v.word, "enable");
    assert_string_equal(v.owned, "b");
    assert_int_equal(v.n, -3);
    assert_int_equal(v.big, 7);
    free(v.owned);
    assert_int_equal(READ(&v, "--x=.5", "--flag", "--boolean=off", "--switch", "--custom", "c").kind, NRD_OPT_FINE);
    assert_true(v.x == 0.5 && v.flag && !v.boolean && v.on && v.n_custom == 1);
    assert_int_equal(READ(&v, "--switch", "disable").kind, NRD_OPT_FINE);
    assert_false(v.on);
}

static void test_hyphens_and_underscores_are_the_same(void **state)
{
    values v;
    (void)state;
    assert_int_equal(READ(&v, "--max-batch_size", "4", "--owned_text", "x").kind, NRD_OPT_FINE);
    assert_int_equal(v.n, 4);
    free(v.owned);
}

static void test_words_are_collected_up_to_their_limit(void **state)
{
    values v;
    const char *words[2];
    size_t n = 0;
    (void)state;
    assert_int_equal(read_args(&v, false, (const char *const[]){"a", "--flag", "-5", NULL}, words, &n).kind, NRD_OPT_FINE);
    assert_int_equal(n, 2);
    assert_string_equal(words[1], "-5");
    assert_int_equal(read_args(&v, false, (const char *const[]){"a", "b", "c", NULL}, words, &n).kind, NRD_OPT_STRAY_WORD);
}

static void test_faults_are_told_apart(void **state)
{
    static const struct {
        const char *arg;
        nrd_opt_fault_kind kind;
    } t[] = {
        {"--nothing", NRD_OPT_UNKNOWN},       {"--the_text", NRD_OPT_VALUE_MISSING},
        {"--flag=1", NRD_OPT_VALUE_EXTRA},    {"-b=x", NRD_OPT_VALUE_WRONG},
        {"--x=", NRD_OPT_VALUE_WRONG},        {"--big=11", NRD_OPT_VALUE_RANGE},
        {"-b=9999999999", NRD_OPT_VALUE_RANGE}, {"--boolean=yes", NRD_OPT_VALUE_WRONG},
        {"--refused", NRD_OPT_NOT_SUPPORTED}, {"-r", NRD_OPT_NOT_SUPPORTED},
        {"--help", NRD_OPT_HELP},             {"-h", NRD_OPT_HELP},
        {"--fla", NRD_OPT_UNKNOWN},           {"--ignored=5", NRD_OPT_FINE},
    };
    values v;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(READ(&v, t[i].arg).kind, t[i].kind);
    }
    assert_string_equal(last_ignored->name, "ignored");
    assert_int_equal(READ(&v, "--single=a", "--single=b").kind, NRD_OPT_TWICE);
    nrd_opt_fault f = READ(&v, "--custom=bad");
    assert_int_equal(f.kind, NRD_OPT_FAILED);
    assert_string_equal(nrd_error_message(f.error), "custom: bad");
    nrd_error_free(f.error);
}

static void test_beginnings_of_names_only_where_asked_for(void **state)
{
    values v;
    (void)state;
    assert_int_equal(read_args(&v, true, (const char *const[]){"--fl", NULL}, NULL, NULL).kind, NRD_OPT_FINE);
    assert_true(v.flag);
    assert_int_equal(read_args(&v, true, (const char *const[]){"--b", NULL}, NULL, NULL).kind, NRD_OPT_AMBIGUOUS);
}

static void test_the_environment_stands_in(void **state)
{
    values v;
    (void)state;
    setenv("NRD_TEST_CUSTOM", "bad", 1);
    nrd_opt_fault f = READ(&v, "--flag");
    assert_int_equal(f.kind, NRD_OPT_FAILED);
    nrd_error_free(f.error);
    assert_int_equal(READ(&v, "--custom=c").kind, NRD_OPT_FINE);
    assert_int_equal(v.n_custom, 1);
    unsetenv("NRD_TEST_CUSTOM");
}

static void test_what_was_meant(void **state)
{
    static const struct {
        const char *typed, *meant;
    } t[] = {{"--max-bach-size", "max_batch_size"}, {"--falg", "flag"}, {"--bolean", "boolean"},
             {"--refuse", NULL}, {"--something-else", NULL}, {"--y", "x"}};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const nrd_opt *row = nrd_opts_nearest(rows, N, t[i].typed, strlen(t[i].typed));
        if (t[i].meant) {
            assert_non_null(row);
            assert_string_equal(row->name, t[i].meant);
        } else {
            assert_null(row);
        }
    }
    assert_int_equal(nrd_opts_distance("abcd", 4, "acbd"), 1);
    assert_int_equal(nrd_opts_distance("", 0, "abc"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_is_stored),
        cmocka_unit_test(test_hyphens_and_underscores_are_the_same),
        cmocka_unit_test(test_words_are_collected_up_to_their_limit),
        cmocka_unit_test(test_faults_are_told_apart),
        cmocka_unit_test(test_beginnings_of_names_only_where_asked_for),
        cmocka_unit_test(test_the_environment_stands_in),
        cmocka_unit_test(test_what_was_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
