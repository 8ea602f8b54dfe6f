/* SPDX-License-Identifier: Apache-2.0 */
#include "text/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint32_t next_random(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 20) % n);
}

/* A short text of characters that the expressions tell apart. */
static size_t random_text(char *out, size_t cap)
{
    static const uint32_t chars[] = {
        'a', 'b', 'Z', 's', 't', 'r', 'e', 'v', 'l', 'S', 'L', '\'', ' ', ' ', ' ', '\n', '\r', '\t',
        '1', '2', '9', '.', '!', '$', '_', '/', 0x0, 0x7f, 0xe9, 0x301, 0x4e2d, 0x3042, 0x30ab, 0x661,
        0xa0, 0x3000, 0x2028, 0x1f600, 0x17f, 0xbd, 0x200d, 0x2581, 0x20ac, 0x85, 0x905, 0x93e, 0x1d400};
    size_t n = 0, want = 1 + next_random(14);
    for (size_t i = 0; i < want && n + 4 <= cap; i++) {
        n += nrd_utf8_put(out + n, chars[next_random(sizeof chars / sizeof chars[0])]);
    }
    return n;
}

static void agree(const char *expression)
{
    nrd_tok_pattern hand = {0}, compiled = {0};
    char wrapped[1024], text[64];
    snprintf(wrapped, sizeof wrapped, "(?:%s)", expression);
    assert_null(nrd_pattern_init(&hand, true, expression, strlen(expression)));
    assert_int_not_equal(hand.kind, PATTERN_REGEX);
    nrd_error *err = nrd_pattern_init(&compiled, true, wrapped, strlen(wrapped));
    if (err) { /* built without PCRE2: nothing to compare with */
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNSUPPORTED);
        nrd_error_free(err);
        nrd_pattern_fini(&hand);
        nrd_pattern_fini(&compiled);
        skip();
    }
    for (int round = 0; round < 100000; round++) {
        size_t n = random_text(text, sizeof text), from = 0;
        for (;;) {
            size_t a = 0, b = 0, c = 0, d = 0;
            bool x = nrd_pattern_find(&hand, text, n, from, &a, &b);
            bool y = nrd_pattern_find(&compiled, text, n, from, &c, &d);
            if (x != y || a != c || b != d) {
                print_error("%s\non '%.*s' from %zu: [%zu,%zu) and [%zu,%zu)\n", expression, (int)n,
                            text, from, a, b, c, d);
            }
            assert_true(x == y && a == c && b == d);
            if (!x) {
                break;
            }
            from = b;
        }
    }
    nrd_pattern_fini(&hand);
    nrd_pattern_fini(&compiled);
}

static void test_gpt2_matcher_equals_its_expression(void **state)
{
    (void)state;
    agree(nrd_pattern_text_gpt2);
}

static void test_llama3_matcher_equals_its_expression(void **state)
{
    (void)state;
    agree(nrd_pattern_text_llama3);
}

static void test_qwen2_matcher_equals_its_expression(void **state)
{
    (void)state;
    agree(nrd_pattern_text_qwen2);
}

static void test_deepseek_matchers_equal_their_expressions(void **state)
{
    (void)state;
    agree(nrd_pattern_text_deepseek);
    agree(nrd_pattern_text_cjk);
    agree(nrd_pattern_text_digits3);
}

static void test_what_cannot_be_translated_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"[a-z&&[^aeiou]]", "(", "\\u{41}", "[[a]b]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nrd_tok_pattern p = {0};
        nrd_error *err = nrd_pattern_init(&p, true, bad[i], strlen(bad[i]));
        assert_non_null(err);
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNSUPPORTED);
        assert_non_null(strstr(nrd_error_message(err), bad[i]));
        nrd_error_free(err);
        nrd_pattern_fini(&p);
    }
}

static int setup(void **state)
{
    (void)state;
    nrd_uni_init();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_matcher_equals_its_expression),
        cmocka_unit_test(test_llama3_matcher_equals_its_expression),
        cmocka_unit_test(test_qwen2_matcher_equals_its_expression),
        cmocka_unit_test(test_deepseek_matchers_equal_their_expressions),
        cmocka_unit_test(test_what_cannot_be_translated_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
