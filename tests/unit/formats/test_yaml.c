/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/yaml.h"
#include "unit/formats/damage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#ifdef NRD_HAVE_YAML
/* PyYAML 6.0.4 reads the same, but for hexadecimal numbers, which stay texts here, and numbers with an exponent and no dot. */
static const struct {
    const char *yaml, *json;
} pairs[] = {
    {"", "null"},
    {"# nothing\n---\n", "null"},
    {"a: 1\nb: x y\n", "{\"a\":1,\"b\":\"x y\"}"},
    {"a:\n  b:\n    c: -3\n  d: 2.5\ne: 1.0e-05\n", "{\"a\":{\"b\":{\"c\":-3},\"d\":2.5},\"e\":0.00001}"},
    {"a: ~\nb: null\nc:\nd: yes\ne: False\nf: 'yes'\n", "{\"a\":null,\"b\":null,\"c\":null,\"d\":true,\"e\":false,\"f\":\"yes\"}"},
    {"a:\n- 1\n- b\nc:\n  - x: 1\n    y: 2\n  - - 3\n    - 4\n", "{\"a\":[1,\"b\"],\"c\":[{\"x\":1,\"y\":2},[3,4]]}"},
    {"- a\n-\n  b: 1\n- []\n", "[\"a\",{\"b\":1},[]]"},
    {"a: [1, 'b, c', {d: 2, \"e\": [ ]}]\nf: {}\n", "{\"a\":[1,\"b, c\",{\"d\":2,\"e\":[]}],\"f\":{}}"},
    {"a: [1,\n  2] # two\nb: 3 # three\nc: x#y\n", "{\"a\":[1,2],\"b\":3,\"c\":\"x#y\"}"},
    {"a: one\n  two\n\n  three\nb: 'it''s\n  long'\n", "{\"a\":\"one two\\nthree\",\"b\":\"it's long\"}"},
    {"a: \"x\\ty\\u00e9\\\n  z \\\\\"\n", "{\"a\":\"x\\ty\xc3\xa9z \\\\\"}"},
    {"a: |\n  x\n   y\nb: >\n  x\n  y\nc: 1\n", "{\"a\":\"x\\n y\\n\",\"b\":\"x y\\n\",\"c\":1}"},
    {"\"a b\": 1\nc:d: 2\nurl: http://x/y\n", "{\"a b\":1,\"c:d\":2,\"url\":\"http://x/y\"}"},
    {"a: 1\r\nb: 2\r\n", "{\"a\":1,\"b\":2}"},
    {"a: 1.22.0\nb: 900,50,50\nc: 0x10\ne: .5\n", "{\"a\":\"1.22.0\",\"b\":\"900,50,50\",\"c\":\"0x10\",\"e\":0.5}"},
};

static void test_values_are_those_of_pyyaml(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        nrd_str out = {0};
        nrd_error *err = nrd_yaml_to_json(&out, pairs[i].yaml, strlen(pairs[i].yaml));
        assert_null(err);
        assert_string_equal(nrd_str_cstr(&out), pairs[i].json);
        nrd_str_fini(&out);
    }
}

static void test_what_is_wrong_is_named_with_its_line(void **state)
{
    static const struct {
        const char *yaml, *words;
    } bad[] = {
        {"a: 1\n  b: 2\n", "line 2: mapping values are not allowed"},
        {"a: 1\nc 3\n", "while scanning a simple key"},
        {"a: []\n  b: 1\n", "line 2: while parsing a block mapping"},
        {"a: 1\nb: \"x\n", "found unexpected end of stream"},
        {"a: [1,\n", "while parsing a flow"},
        {"a: [1 2}\n", "line 1: while parsing a flow sequence"},
        {"a: 'x' y\n", "line 1: while parsing a block mapping"},
        {"a: \"\\q\"\n", "line 1: while parsing a quoted scalar, found unknown escape"},
        {"a: \"\\ud800\"\n", "invalid Unicode character escape code"},
        {"a: &x 1\n", "line 1: anchors, aliases and tags"},
        {"a:\n  - *x\n", "line 2: anchors, aliases and tags"},
        {"a: &x [1]\n", "line 1: anchors, aliases and tags"},
        {"a: !!python/object x\n", "line 1: anchors, aliases and tags"},
        {"a: !!map {}\n", "line 1: anchors, aliases and tags"},
        {"b: 1\n? [a]\n: 1\n", "line 2: a key that is no plain text"},
        {"{{a: 1}: 2}\n", "line 1: a key that is no plain text"},
        {"a: 1\n- b\n", "line 2: while parsing a block mapping"},
        {"  a: 1\nb: 2\n", "line 2: did not find expected <document start>"},
        {"d: -\n", "line 1: block sequence entries are not allowed"},
        {"a: 1\n---\nb: 2\n", "line 2: more than one document"},
        {"a: \x01\n", "byte 3: control characters are not allowed"},
        {"a: \xff\n", "byte 3: invalid leading UTF-8 octet"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nrd_str out = {0};
        nrd_error *err = nrd_yaml_to_json(&out, bad[i].yaml, strlen(bad[i].yaml));
        if (!err || !strstr(nrd_error_message(err), bad[i].words)) {
            fail_msg("case %zu: '%s', expected '%s'", i, err ? nrd_error_message(err) : nrd_str_cstr(&out), bad[i].words);
        }
        nrd_error_free(err);
        nrd_str_fini(&out);
    }
}

static void test_depth_is_limited(void **state)
{
    nrd_str deep = {0}, out = {0};
    (void)state;
    for (int i = 0; i < 100; i++) {
        nrd_str_puts(&deep, i ? "[" : "a: [");
    }
    assert_true(is_error(nrd_yaml_to_json(&out, deep.data, deep.len), "too deep"));
    nrd_str_clear(&deep);
    for (int i = 0; i < 100; i++) {
        nrd_str_puts(&deep, "- ");
    }
    nrd_str_clear(&out);
    assert_true(is_error(nrd_yaml_to_json(&out, deep.data, deep.len), "too deep"));
    nrd_str_fini(&deep);
    nrd_str_fini(&out);
}

static bool open_yaml(const void *data, size_t n)
{
    nrd_str out = {0};
    nrd_error *err = nrd_yaml_to_json(&out, data, n);
    const bool taken = !err;
    nrd_error_free(err);
    nrd_str_fini(&out);
    return taken;
}

static void test_damaged_texts_are_read_within_their_bounds(void **state)
{
    nrd_str all = {0};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        nrd_str_puts(&all, pairs[i].yaml);
    }
    assert_true(try_truncations(&all, open_yaml) < SIZE_MAX);
    assert_true(try_bit_flips(&all, all.len, open_yaml) > 0);
    nrd_str_fini(&all);
}

#else
static void test_a_build_without_libyaml_says_so(void **state)
{
    nrd_str out = {0};
    (void)state;
    assert_true(is_error(nrd_yaml_to_json(&out, "a: 1", 4), "this build has no libyaml"));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef NRD_HAVE_YAML
        cmocka_unit_test(test_values_are_those_of_pyyaml),
        cmocka_unit_test(test_what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(test_depth_is_limited),
        cmocka_unit_test(test_damaged_texts_are_read_within_their_bounds),
#else
        cmocka_unit_test(test_a_build_without_libyaml_says_so),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
