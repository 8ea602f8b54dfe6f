/* SPDX-License-Identifier: Apache-2.0
 * Guides: which texts fit, which guides are refused, and texts drawn at random from the masks. */
#include "base/clock.h"
#include "base/json.h"
#include "guided/guided.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* 256 single bytes, then pieces as tokenizers have them. */
static const char *const pieces[] = {"{\"", "\":", "\": ", "\",", "\"}", "},", "}]", "true", "false", "null",
                                     "ab", "abc", " the", "name", "\":\"", "12", "123", ", ", "[]", "{}",
                                     "\xc3\xa9", "\xe2\x82\xac", "\n  ", "\\n", "\\u00", "-1", "e+", "na\xc3\xafve", "a\"", "\xe2\x82", "\xc3\xa9\xe2\x82\xac ",
                                     "plain words that are longer than any limit of characters", "b\\\"", "x\x7f", "1, 2", "name\":"};
enum { N_PIECES = sizeof pieces / sizeof pieces[0], N_TOKENS = 256 + N_PIECES + 1 };

static const char *get_token(void *user, int32_t id, size_t *out_n)
{
    static char bytes[256];
    (void)user;
    if (id < 256) {
        bytes[id] = (char)id;
        *out_n = 1;
        return &bytes[id];
    }
    *out_n = id < 256 + N_PIECES ? strlen(pieces[id - 256]) : 0; /* the last one ends the text */
    return *out_n ? pieces[id - 256] : NULL;
}

static nrd_guide_vocab *vocab(void)
{
    nrd_guide_vocab *v = NULL;
    assert_null(nrd_guide_vocab_new(&v, N_TOKENS, get_token, NULL));
    return v;
}

typedef struct text_case {
    const char *type, *guide, *yes[6], *no[6];
} text_case;

#define TWO_TOOLS                                                                                                            \
    "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</f>\"},"       \
    "{\"begin\":\"<f=b>\",\"schema\":\"{\\\"enum\\\":[\\\"x\\\"]}\",\"end\":\"</f>\"}],\"triggers\":[\"<f=\"]}"
/* Without its last brace. */
#define TRIGGERED                                                                                                            \
    "{\"type\":\"triggered_tags\",\"triggers\":[\"[a\",\"{\"],\"excludes\":[\"<end>\"],\"tags\":[{\"begin\":\"[a](\",\"content\":{"     \
    "\"type\":\"regex\",\"pattern\":\"1|yes\"},\"end\":\")\"},{\"type\":\"tag\",\"begin\":\"{b}\",\"content\":{\"type\":\"json_schema\"," \
    "\"json_schema\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":9}},\"end\":\"\"}]"

static const text_case cases[] = {
    {"regex", "ab*c", {"ac", "abbc"}, {"", "ab", "abcc", "xac"}},
    {"regex", "^(foo|bar)+$", {"foo", "foobar"}, {"", "fo", "fooba"}},
    {"regex", "[a-c]{2,3}x?", {"ab", "abcx"}, {"a", "abca", "xx"}},
    {"regex", "\\d{3}-\\w+", {"123-a_9"}, {"12-a", "123-"}},
    {"regex", "[^a]\\.", {"b.", "\xc3\xa9.", "\xf0\x9f\x99\x82."}, {"a.", "\xc3.", "b"}},
    {"regex", ".*", {"", "x\xe2\x82\xac"}, {"a\nb", "\xff"}},
    {"regex", "(a*)*b", {"b", "aaab"}, {"a"}},
    {"regex", "[\xc3\xa0-\xc3\xbf\xe4\xb8\x80-\xe9\xbe\xa5]", {"\xc3\xa9", "\xe6\xbc\xa2"}, {"e", "\xc4\x80"}},
    {"ebnf_grammar", "root ::= \"a\" b* # remark\nb ::= [x-z] | \"(\" root \")\"", {"a", "axz", "a(ay)z"}, {"x", "a(", "a()"}},
    {"ebnf_grammar", "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]{1,2} | \"(\" expr \")\"",
     {"1+2", "(1+(22))"}, {"+1", "1+", "123"}},
    {"json", NULL, {"{}", "{\"a\": [1, -2.5e+3, true, null, \"x\\n\\u00e9\"]}", "{\"a\":{\"b\":{}}}"},
     {"[]", "{\"a\"}", "{\"a\":01}", "{a:1}", "{\"a\":\"\n\"}", "{} "}},
    {"json_schema", "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
                    "\"required\":[\"a\"],\"additionalProperties\":false}",
     {"{\"a\":1}", "{\"a\": -20, \"b\": \"x\"}"}, {"{}", "{\"b\":\"x\"}", "{\"a\":1.5}", "{\"a\":1,\"c\":2}", "{\"a\":1,}"}},
    {"json_schema", "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{\"type\":\"null\"},\"c\":{\"const\":[1,{\"x\":2}]}}}",
     {"{}", "{\"b\":null}", "{\"a\":true,\"c\":[1,{\"x\":2}]}"}, {"{\"c\":[1],\"a\":true}", "{,\"a\":true}"}},
    {"json_schema", "{\"type\":\"array\",\"items\":{\"enum\":[\"x\",2,null]},\"minItems\":1,\"maxItems\":3}",
     {"[\"x\"]", "[2,null, \"x\"]"}, {"[]", "[2,2,2,2]", "[3]"}},
    {"json_schema", "{\"type\":\"integer\",\"minimum\":-13,\"maximum\":205}", {"-13", "-9", "0", "99", "205", "150"},
     {"-14", "206", "999", "-0", "007"}},
    {"json_schema", "{\"type\":\"integer\",\"exclusiveMinimum\":99}", {"100", "12345"}, {"99", "5", "-100"}},
    {"json_schema", "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", {"0", "1", "0.5", "0.000001", "1.0", "0.0"},
     {"1.1", "-0.1", "2", "1.000001", ".5", "01"}},
    {"json_schema", "{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", {"0.5", "0.001", "0.999"},
     {"0", "1", "0.0", "1.0", "0.000", "1.5"}},
    {"json_schema", "{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":0.75}", {"-1.25", "-1.2", "0.75", "0.749", "-0.3", "0"},
     {"-1.26", "0.751", "0.8", "-2", "1", "-0"}},
    {"json_schema", "{\"type\":\"number\",\"minimum\":2.5,\"exclusiveMaximum\":12.05}", {"2.5", "2.51", "12.049", "12", "9.99", "12.0"},
     {"2.49", "2", "12.05", "12.1", "13", "12.050"}},
    {"json_schema", "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.26}", {"0.25", "0.26", "0.255", "0.250", "0.2600"},
     {"0.2", "0.261", "0.249", "0", "0.3", "0.24"}},
    {"json_schema", "{\"type\":\"number\",\"exclusiveMinimum\":3}", {"3.1", "4", "3.000001", "12345.5"}, {"3", "3.0", "2.9", "-4", "0"}},
    {"json_schema", "{\"type\":\"number\",\"maximum\":-0.5}", {"-0.5", "-0.50", "-0.6", "-17", "-17.25"}, {"-0.4", "0", "1", "-0.49", "-0"}},
    {"json_schema", "{\"type\":\"integer\",\"multipleOf\":7}", {"0", "7", "-14", "98", "1001", "7000000"}, {"1", "71", "-0.7", "07", "99"}},
    {"json_schema", "{\"type\":\"number\",\"multipleOf\":5,\"minimum\":-7,\"exclusiveMaximum\":15}", {"-5", "0", "5", "10"}, {"15", "-10", "3", "5.5"}},
    {"json_schema", "{\"type\":\"integer\",\"multipleOf\":4,\"minimum\":0}", {"0", "4", "12", "100"}, {"-4", "10", "2"}},
    {"json_schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}", {"0", "0.01", "12.5", "99.99"}, {"0.001", "-1", "1.234"}},
    {"json_schema", "{\"type\":\"integer\",\"multipleOf\":0.1,\"maximum\":3}", {"3", "-2"}, {"4", "1.1"}},
    {"json_schema", "{\"type\":\"string\",\"format\":\"ipv6\"}", {"\"1:2:3:4:5:6:7:8\"", "\"fe80:0:0:0:0:0:0:1\""}, {"\"1:2\"", "\"g:2:3:4:5:6:7:8\""}},
    {"json_schema", "{\"type\":\"string\",\"format\":\"uri\"}", {"\"https://a.example/x/y.html\"", "\"http://a.b:8080/\""}, {"\"a.example\"", "\"ftp://a.b\""}},
    {"json_schema", "{\"type\":[\"integer\",\"string\"],\"enum\":[1,\"a\",2.5,null,\"long\",7],\"maxLength\":2,\"maximum\":5}",
     {"1", "\"a\""}, {"2.5", "null", "\"long\"", "7"}},
    {"json_schema", "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", {"\"ab\"", "\"\xc3\xa9\\n\xe2\x82\xac\""}, {"\"a\"", "\"abcd\""}},
    {"json_schema", "{\"type\":\"string\",\"pattern\":\"^[A-Z]\\\"?$\"}", {"\"A\"", "\"B\\\"\""}, {"\"a\"", "\"A\"\""}},
    {"json_schema", "{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\""}, {"\"ac\"", "\"\""}},
    {"json_schema", "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
                    "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"}, {"{\"v\":1}", "{\"v\":1,\"next\":1}"}},
    {"json_schema", "{\"type\":[\"string\",\"null\"]}", {"null", "\"\""}, {"1"}},
    {"json_schema", "{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-28\""}, {"\"2024-02-31\"", "\"24-1-1\""}},
    {"json_schema", "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}]}", {"[1,true]", "[ 1, false]"}, {"[1]", "[true,1]"}},
    {"json_schema", "true", {"1", "[]"}, {""}},
    {"structural_tag", TWO_TOOLS, {"", "free <f text", "a <f=a>12</f> b <f=b>\"x\"</f>!", "<<f=a>0</f>", "</f>\xff"},
     {"<f=", "<f=c>1</f>", "<f=a>x</f>", "a<f=a>1<f=", "<f=b>\"x\"</f", "<f=a>1</f><f="}},
    {"structural_tag", "{\"format\":" TRIGGERED "}}", {"", "b]", "[a](1)", "x[a](yes) y {b}7", "[[a](1)"},
     {"[a", "{b}", "[a](2)", "[a](1){", "no <end>"}},
    {"structural_tag", "{\"format\":" TRIGGERED ",\"at_least_one\":true}}", {"[a](1)", "{b}7 and {b}8"}, {"", "x[a](1)", "{b}7{"}},
    {"structural_tag", "{\"format\":" TRIGGERED ",\"stop_after_first\":true}}", {"", "x", "x[a](1)", "[a](yes)"}, {"[a](1) ", "[a](1){b}7"}},
    {"structural_tag", "{\"format\":" TRIGGERED ",\"at_least_one\":true,\"stop_after_first\":true}}", {"[a](1)", "{b}7"}, {"", "{b}7 "}},
    {"structural_tag", /* one trigger ends within another's text, and what both end with */
     "{\"format\":{\"type\":\"dispatch\",\"rules\":[[\"ab\",{\"type\":\"const_string\",\"value\":\"1\"}],"
     "[\"xab\",{\"type\":\"const_string\",\"value\":\"2\"}]],\"excludes\":[\"!\"]}}",
     {"ab1", "xab1", "xab2", "ab1xab2..", "aab1"}, {"ab", "ab2", "xab3", "!", "ab1!"}},
    {"structural_tag",
     "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"tag\",\"begin\":\"<t>\",\"content\":{\"type\":\"any_text\"},\"end\":"
     "[\"</t>\",\"<x>\"]},{\"type\":\"optional\",\"content\":{\"type\":\"const_string\",\"value\":\" \"}},{\"type\":\"json_schema\","
     "\"json_schema\":{\"type\":\"boolean\"}}]}}",
     {"<t></t>true", "<t>a</</t> false", "<t>a<x>true"}, {"<t>a</t>b</t>true", "true", "<t>true", "<t>a</t>"}},
    {"structural_tag", /* free text within a tag ends where the tag does, and its own tags end there too */
     "{\"format\":{\"type\":\"tag\",\"begin\":\"<\",\"content\":" TRIGGERED "},\"end\":\">\"}}", {"<>", "<x>", "<a[a](1)b>"}, {"<a>b>", "<[a](2)>", "x<>"}},
    {"structural_tag",
     "{\"format\":{\"type\":\"or\",\"elements\":[{\"type\":\"grammar\",\"grammar\":\"root ::= a\\na ::= \\\"g\\\"\"},{\"type\":\"grammar\","
     "\"grammar\":\"root ::= a a\\na ::= \\\"h\\\"\"},{\"type\":\"repeat\",\"min\":2,\"max\":3,\"content\":{\"type\":\"regex\",\"pattern\":\"[0-9]\"}}]}}",
     {"g", "hh", "12", "123"}, {"h", "gg", "1", "1234"}},
    {"structural_tag",
     "{\"format\":{\"type\":\"tags_with_separator\",\"separator\":\", \",\"tags\":[{\"begin\":\"(\",\"content\":{\"type\":\"plus\",\"content\":"
     "{\"type\":\"const_string\",\"value\":\"x\"}},\"end\":\")\"}]}}",
     {"", "(x)", "(xx), (x)"}, {"()", "(x),(x)", "(x), "}},
};

static void test_texts(void **state)
{
    nrd_guide_vocab *v = vocab();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const text_case *c = &cases[i];
        nrd_guide *g = NULL;
        nrd_error *err = nrd_guide_new(&g, v, c->type, c->guide);
        if (err) {
            fail_msg("%s: %s", c->guide, nrd_error_message(err));
        }
        for (int k = 0; k < 6; k++) {
            if (c->yes[k] && !nrd_guide_matches(g, c->yes[k], strlen(c->yes[k]))) {
                fail_msg("%s: '%s' should fit", c->guide, c->yes[k]);
            }
            if (c->no[k] && nrd_guide_matches(g, c->no[k], strlen(c->no[k]))) {
                fail_msg("%s: '%s' should not fit", c->guide, c->no[k]);
            }
        }
        nrd_guide_unref(g);
    }
    nrd_guide_vocab_free(v);
}

static void expect_refused(const nrd_guide_vocab *v, const char *type, const char *guide, const char *part)
{
    nrd_guide *g = NULL;
    nrd_error *err = nrd_guide_new(&g, v, type, guide);
    if (!err) {
        fail_msg("%s %s was accepted", type, guide);
    }
    if (!strstr(nrd_error_message(err), part)) {
        fail_msg("%s: '%s' does not say '%s'", guide, nrd_error_message(err), part);
    }
    nrd_error_free(err);
}

static void test_refusals(void **state)
{
    nrd_guide_vocab *v = vocab();
    (void)state;
    expect_refused(v, "regex", "a(b", "')' is missing");
    expect_refused(v, "regex", "[z-a]", "backwards");
    expect_refused(v, "regex", "(?=a)b", "look around");
    expect_refused(v, "regex", "\\bfoo", "escape");
    expect_refused(v, "regex", "a^b", "anchors");
    expect_refused(v, "regex", "((((a{1000}){1000}){1000}){1000}){1000000}", "repetition");
    expect_refused(v, "regex", "*a", "nothing to repeat");
    expect_refused(v, "ebnf_grammar", "root ::= root \"a\"", "left recursion");
    expect_refused(v, "ebnf_grammar", "root ::= b", "not defined");
    expect_refused(v, "ebnf_grammar", "a ::= \"x\"", "no rule 'root'");
    expect_refused(v, "ebnf_grammar", "root ::= \"x", "not closed");
    expect_refused(v, "json_schema", "{\"type\":\"strin\"}", "no type");
    expect_refused(v, "json_schema", "{\"not\":{}}", "'not' is not supported");
    expect_refused(v, "json_schema", "{\"type\":5}", "'type' must be a type");
    expect_refused(v, "json_schema", "{\"type\":[\"string\",5]}", "'type' must be a type");
    expect_refused(v, "json_schema", "{\"type\":\"object\",\"properties\":[]}", "'properties' must be an object");
    expect_refused(v, "json_schema", "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":\"a\"}", "'required' must be a list of names");
    expect_refused(v, "json_schema", "{\"type\":\"object\",\"additionalProperties\":\"no\"}", "'additionalProperties' must be a schema");
    expect_refused(v, "json_schema", "{\"type\":\"array\",\"items\":[{\"type\":\"null\"}]}", "'items' must be one schema");
    expect_refused(v, "json_schema", "{\"type\":\"array\",\"prefixItems\":{}}", "'prefixItems' must be a list");
    expect_refused(v, "json_schema", "{\"enum\":\"a\"}", "'enum' must be a list");
    expect_refused(v, "json_schema", "{\"type\":\"string\",\"pattern\":5}", "'pattern' must be a string");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"minimum\":\"5\"}", "'minimum' must be a number");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "'exclusiveMinimum' must be a number");
    expect_refused(v, "json_schema", "{\"type\":\"string\",\"nullable\":\"yes\"}", "'nullable' must be true or false");
    expect_refused(v, "json_schema", "{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems");
    expect_refused(v, "json_schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf");
    expect_refused(v, "json_schema", "{\"$ref\":\"#/x\"}", "leads nowhere");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no whole number");
    expect_refused(v, "json_schema", "{\"type\":\"number\",\"exclusiveMinimum\":1,\"maximum\":1}", "no number");
    expect_refused(v, "json_schema", "{\"type\":\"number\",\"multipleOf\":0.3}", "multipleOf");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"multipleOf\":0}", "above 0");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"multipleOf\":3,\"minimum\":5}", "beside these bounds");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"multipleOf\":30,\"minimum\":1,\"maximum\":9}", "no multiple of 30");
    expect_refused(v, "json_schema", "{\"type\":\"number\",\"minimum\":0.5,\"maximum\":0.3}", "no number");
    expect_refused(v, "json_schema", "{\"type\":\"integer\",\"enum\":[\"a\"]}", "no value of 'enum'");
    expect_refused(v, "json_schema", "{\"const\":3,\"type\":\"string\"}", "'const' does not fit");
    expect_refused(v, "json_schema", "{\"enum\":[\"a\"],\"pattern\":\"b\"}", "'pattern' beside 'enum'");
    expect_refused(v, "json_schema", "{", "schema");
    expect_refused(v, "json_schema", "{\"$ref\":\"#\"}", "left recursion");
    expect_refused(v, "poem", "", "guide type");
    static const struct {
        const char *format, *part;
    } tags[] = {
        {"{\"type\":\"poem\"}", "format.type 'poem' is not supported"},
        {"7", "format must be a format"},
        {"{\"type\":\"const_string\"}", "format.value must be a string"},
        {"{\"type\":\"any_text\",\"max_tokens\":3}", "format.max_tokens is not supported"},
        {"{\"type\":\"any_text\",\"excludes\":[\"\"]}", "format.excludes must be"},
        {"{\"type\":\"json_schema\",\"json_schema\":{\"not\":{}}}", "format.json_schema: schema: 'not'"},
        {"{\"type\":\"json_schema\",\"json_schema\":{},\"style\":\"qwen_xml\"}", "format.style 'qwen_xml'"},
        {"{\"type\":\"or\",\"elements\":[{\"type\":\"regex\",\"pattern\":\"a\"},{\"type\":\"regex\",\"pattern\":\"(\"}]}",
         "format.elements[1].pattern: "},
        {"{\"type\":\"sequence\",\"elements\":[]}", "format.elements must not be empty"},
        {"{\"type\":\"repeat\",\"min\":3,\"max\":2,\"content\":{}}", "format.max must be"},
        {"{\"type\":\"tag\",\"begin\":\"a\",\"content\":{\"type\":\"any_text\"}}", "format.end must be"},
        {"{\"type\":\"triggered_tags\",\"triggers\":[],\"tags\":[{}]}", "format.triggers must not be empty"},
        {"{\"type\":\"triggered_tags\",\"triggers\":[\"a\",\"ab\"],\"tags\":[{\"begin\":\"abc\"}]}", "format.tags[0].begin begins with more"},
        {"{\"type\":\"triggered_tags\",\"triggers\":[\"a\"],\"tags\":[{\"begin\":\"ba\"}]}", "format.tags[0].begin begins with none"},
        {"{\"type\":\"triggered_tags\",\"triggers\":[\"a\",\"b\"],\"tags\":[{\"begin\":\"a\",\"content\":{\"type\":\"any_text\"},\"end\":\"z\"}]}",
         "format.triggers[1] is what no tag begins with"},
        {"{\"type\":\"triggered_tags\",\"triggers\":[\"c\",\"xay\"],\"excludes\":[\"a\"],\"tags\":[{\"begin\":\"xay\",\"content\":{\"type\":"
         "\"any_text\"},\"end\":\"z\"},{\"begin\":\"c\",\"content\":{\"type\":\"any_text\"},\"end\":\"z\"}]}", "format.triggers[1] cannot come"},
        {"{\"type\":\"dispatch\",\"rules\":[[\"a\"]]}", "format.rules[0] must be"},
        {"{\"type\":\"tags_with_separator\",\"tags\":[{}],\"separator\":7}", "format.separator must be a string"},
    };
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        nrd_str guide = {0};
        nrd_str_printf(&guide, "{\"type\":\"structural_tag\",\"format\":%s}", tags[i].format);
        expect_refused(v, "structural_tag", nrd_str_cstr(&guide), tags[i].part);
        nrd_str_fini(&guide);
    }
    expect_refused(v, "structural_tag", "{", "structural tag: ");
    expect_refused(v, "structural_tag", "{\"type\":\"x\",\"format\":{}}", "type must be structural_tag");
    expect_refused(v, "structural_tag", "{}", "format is missing");
    expect_refused(v, "structural_tag", "{\"structures\":[{\"begin\":\"ab\",\"end\":\"\"}],\"triggers\":[\"a\"]}", "structures[0].schema is missing");
    nrd_guide_vocab_free(v);
}

/* Draws tokens from the masks; JSON must come out. */
static void test_random_walks(void **state)
{
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":\"integer\","
        "\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5},"
        "\"maxItems\":4},\"x\":{\"type\":\"number\"}},\"required\":[\"name\",\"age\"]}",
        "{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":3}]}",
    };
    nrd_guide_vocab *v = vocab();
    uint64_t seed = 88172645463325252u;
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        nrd_guide *g = NULL;
        assert_null(nrd_guide_new(&g, v, "json_schema", schemas[i]));
        for (int walk = 0; walk < 200; walk++) {
            nrd_guide_state *s = nrd_guide_state_new(g);
            nrd_str text = {0};
            for (int n = 0; !nrd_guide_is_final(s) && n < 4000; n++) {
                size_t n_words = 0;
                const uint32_t *mask = nrd_guide_mask(s, &n_words);
                assert_int_equal(n_words, (N_TOKENS + 31) / 32);
                int32_t allowed[N_TOKENS], n_allowed = 0;
                for (int32_t t = 0; t < N_TOKENS; t++) {
                    if (mask[t / 32] >> (t % 32) & 1) {
                        allowed[n_allowed++] = t;
                    }
                }
                assert_true(n_allowed > 0);
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                int32_t t = allowed[seed % (uint64_t)n_allowed];
                size_t len = 0;
                const char *p = get_token(NULL, t, &len);
                nrd_str_append(&text, p, len);
                assert_true(nrd_guide_accept(s, t));
            }
            assert_true(nrd_guide_is_complete(s));
            assert_false(nrd_guide_accept(s, N_TOKENS - 1));
            assert_true(nrd_guide_matches(g, text.data, text.len));
            nrd_json_doc *doc = NULL;
            nrd_error *err = nrd_json_parse(&doc, text.data, text.len, NULL);
            if (err) {
                fail_msg("%s: %s", text.data, nrd_error_message(err));
            }
            nrd_json_doc_free(doc);
            nrd_str_fini(&text);
            nrd_guide_state_free(s);
        }
        nrd_guide_unref(g);
    }
    nrd_guide_vocab_free(v);
}

/* Every bit of every mask on the way of a random text, against trying the token. */
static void test_masks_allow_what_can_be_accepted(void **state)
{
    static const struct {
        const char *type, *guide;
    } guides[] = {
        {"json", NULL},
        {"regex", ".*"},
        {"regex", "[^,]{0,9}"},
        {"regex", "(.{3}|[a-c]*)x.*"},
        {"json_schema", "{\"type\":\"string\",\"maxLength\":7}"},
        {"json_schema", "{\"type\":\"string\",\"minLength\":3,\"maxLength\":4}"},
        {"json_schema", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"}},"
                        "\"required\":[\"name\"]}"},
        {"ebnf_grammar", "root ::= [a-z ]* \"|\" ([^\"] | \"\\\"\" [0-9]){0,5}"},
        {"structural_tag", TWO_TOOLS},
        {"structural_tag", "{\"format\":" TRIGGERED ",\"at_least_one\":true}}"},
    };
    nrd_guide_vocab *v = vocab();
    uint64_t seed = 271828182845904523u;
    (void)state;
    for (size_t i = 0; i < sizeof guides / sizeof guides[0]; i++) {
        nrd_guide *g = NULL;
        assert_null(nrd_guide_new(&g, v, guides[i].type, guides[i].guide));
        for (int walk = 0; walk < 40; walk++) {
            int32_t path[24], n = 0;
            for (; n < 24; n++) {
                nrd_guide_state *s = nrd_guide_state_new(g);
                int32_t picked = -1, allowed = 0;
                size_t words = 0;
                for (int32_t k = 0; k < n; k++) {
                    assert_true(nrd_guide_accept(s, path[k]));
                }
                const uint32_t *mask = nrd_guide_mask(s, &words);
                assert_true(nrd_guide_has_mask(s));
                for (int32_t t = 0; t < N_TOKENS; t++) {
                    nrd_guide_state *next = nrd_guide_state_copy(s);
                    bool bit = mask[t / 32] >> (t % 32) & 1;
                    if (nrd_guide_accept(next, t) != bit) {
                        fail_msg("%s: token %d behind %d others: mask says %d", guides[i].guide, t, n, bit);
                    }
                    nrd_guide_state_free(next);
                    if (bit) {
                        seed = seed * 6364136223846793005u + 1442695040888963407u;
                        picked = (seed >> 33) % (uint64_t)++allowed == 0 ? t : picked;
                    }
                }
                nrd_guide_state_free(s);
                if (picked < 0) {
                    break;
                }
                path[n] = picked;
            }
        }
        nrd_guide_unref(g);
    }
    nrd_guide_vocab_free(v);
}

/* Cuts a text into the longest pieces, from the left. */
static size_t encode_longest(void *user, const char *text, size_t n, int32_t *out, size_t cap)
{
    size_t at = 0, k = 0;
    (void)user;
    while (at < n && k < cap) {
        size_t best = 1;
        int32_t id = (uint8_t)text[at];
        for (int32_t p = 0; p < N_PIECES; p++) {
            size_t len = strlen(pieces[p]);
            if (len > best && len <= n - at && memcmp(text + at, pieces[p], len) == 0) {
                best = len;
                id = 256 + p;
            }
        }
        out[k++] = id;
        at += best;
    }
    return k;
}

static int32_t piece(const char *s)
{
    for (int32_t p = 0; p < N_PIECES; p++) {
        if (strcmp(pieces[p], s) == 0) {
            return 256 + p;
        }
    }
    fail_msg("no piece '%s'", s);
    return -1;
}

static void test_forced_text_comes_as_tokens(void **state)
{
    nrd_guide_vocab *v = vocab();
    nrd_guide *g = NULL;
    nrd_guide_state *s;
    int32_t ids[64], before[1];
    char text[64];
    bool final;
    (void)state;
    assert_null(nrd_guide_new(&g, v, "regex", "abcname(true|null)"));
    s = nrd_guide_state_new(g);
    assert_int_equal(nrd_guide_forced(s, text, sizeof text, &final), 7);
    assert_memory_equal(text, "abcname", 7);
    assert_false(final);
    assert_int_equal(nrd_guide_forced(s, text, 3, &final), 3);
    assert_int_equal(nrd_guide_jump(s, NULL, 0, ids, 64), 0); /* no tokenizer to ask */
    nrd_guide_vocab_set_encode(v, encode_longest, NULL);
    /* "name" may yet be the beginning of a longer token: it is left to be chosen. */
    assert_int_equal(nrd_guide_jump(s, NULL, 0, ids, 64), 1);
    assert_int_equal(ids[0], piece("abc"));
    assert_true(nrd_guide_accept(s, 'a'));
    before[0] = 'a'; /* the text's own tokens would be "abc", "name": what is left is cut by itself */
    assert_int_equal(nrd_guide_jump(s, before, 1, ids, 64), 2);
    assert_int_equal(ids[0], 'b');
    assert_int_equal(ids[1], 'c');
    nrd_guide_state_free(s);
    s = nrd_guide_state_new(g);
    assert_true(nrd_guide_accept(s, piece("abc")));
    assert_true(nrd_guide_accept(s, piece("name")));
    assert_int_equal(nrd_guide_jump(s, before, 1, ids, 64), 0); /* true or null */
    assert_true(nrd_guide_accept(s, 't'));
    before[0] = 't'; /* nothing can follow "rue": all of it */
    assert_int_equal(nrd_guide_jump(s, before, 1, ids, 64), 3);
    for (int i = 0; i < 3; i++) {
        assert_true(nrd_guide_accept(s, ids[i]));
    }
    assert_true(nrd_guide_is_final(s));
    assert_int_equal(nrd_guide_jump(s, before, 1, ids, 64), 0);
    nrd_guide_state_free(s);
    nrd_guide_unref(g);
    assert_null(nrd_guide_new(&g, v, "regex", "(ab)?ab")); /* complete or not: nothing is forced behind ab */
    s = nrd_guide_state_new(g);
    assert_int_equal(nrd_guide_forced(s, text, sizeof text, &final), 2);
    assert_false(final);
    nrd_guide_state_free(s);
    nrd_guide_unref(g);
    nrd_guide_vocab_free(v);
}

/* A schema of 10 kB must not hold up its request. */
static void test_compile_time(void **state)
{
    nrd_guide_vocab *v = vocab();
    nrd_str schema = {0};
    nrd_guide *g = NULL;
    (void)state;
    nrd_str_puts(&schema, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; schema.len < 10000; i++) {
        nrd_str_printf(&schema, "%s\"member_%d\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"minimum\":%d},"
                       "\"label\":{\"type\":\"string\",\"maxLength\":40},\"kind\":{\"enum\":[\"a\",\"b\",\"c\"]}},"
                       "\"required\":[\"id\"]}", i ? "," : "", i, i);
    }
    nrd_str_puts(&schema, "}}");
    uint64_t begin = nrd_now_ns();
    assert_null(nrd_guide_new(&g, v, "json_schema", schema.data));
    double ms = (double)(nrd_now_ns() - begin) / 1e6;
    print_message("a schema of %zu bytes: %.1f ms\n", schema.len, ms);
    assert_true(ms < 1000); /* sanitizers and busy machines; the aim is 50 */
    assert_true(nrd_guide_matches(g, "{\"member_3\":{\"id\":7}}", 21));
    nrd_guide_unref(g);
    nrd_str_fini(&schema);
    nrd_guide_vocab_free(v);
}

/* Text of `name`s with a number each, one after the other. */
static void put_numbered(nrd_str *out, const char *format, int n)
{
    for (int i = 0; i < n; i++) {
        nrd_str_puts(out, i ? "," : "");
        nrd_str_printf(out, format, i, i);
    }
}

/* Processor time of a schema of 15,000 members, in seconds; required: each is named there twice, which is as long as a guide's text may be. */
static double compile_members(bool required)
{
    nrd_guide_vocab *v = vocab();
    nrd_str schema = {0};
    nrd_guide *g = NULL;

    nrd_str_puts(&schema, "{\"type\":\"object\",\"properties\":{");
    put_numbered(&schema, "\"m%d\":{\"type\":\"null\"}", 15000);
    nrd_str_puts(&schema, "},\"required\":[");
    put_numbered(&schema, "\"m%d\",\"m%d\"", required ? 15000 : 0);
    nrd_str_puts(&schema, "]}");
    const clock_t begin = clock();
    assert_null(nrd_guide_new(&g, v, "json_schema", nrd_str_cstr(&schema)));
    const double s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    nrd_guide_unref(g);
    nrd_str_fini(&schema);
    nrd_guide_vocab_free(v);
    return s;
}

static void test_members_are_not_looked_for_one_by_one(void **state)
{
    (void)state;
    const double without = compile_members(false), with = compile_members(true);
    print_message("15,000 members: %.0f ms, required: %.0f\n", without * 1e3, with * 1e3);
    assert_true(with < 8 * without); /* one by one it was 25 times as much */
}

static time_t skew_s; /* what the clock goes ahead with each look at it */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    static time_t ahead;
    const int status = __real_clock_gettime(clock, out);
    ahead += skew_s;
    out->tv_sec += ahead;
    return status;
}

/* limits: GUIDE_TEXT, GUIDE_NODES, GUIDE_MARKS, GUIDE_COMPILE_MS */
static void test_a_guide_over_a_limit_is_refused(void **state)
{
    nrd_guide_vocab *v = vocab();
    nrd_str text = {0};
    (void)state;

    while (text.len <= NRD_LIMIT_GUIDE_TEXT) {
        nrd_str_puts(&text, "abcdefgh");
    }
    expect_refused(v, "regex", nrd_str_cstr(&text), "GUIDE_TEXT");
    nrd_str_fini(&text);
    nrd_str_printf(&text, "{\"format\":{\"type\":\"any_text\",\"excludes\":[\"%0*d\",\"a\"]}}", NRD_LIMIT_GUIDE_MARKS, 0);
    expect_refused(v, "structural_tag", nrd_str_cstr(&text), "GUIDE_MARKS");
    nrd_str_fini(&text);
    expect_refused(v, "regex", "[ab]{99999}[ab]{99999}[ab]{99999}[ab]{99999}[ab]{99999}[ab]{99999}", "GUIDE_NODES");
    skew_s = 1;
    expect_refused(v, "regex", "([a-z]{3}x){20000}", "GUIDE_COMPILE_MS");
    /* Few nodes, but many names among which those of the alternatives are looked for. */
    nrd_str_puts(&text, "{\"oneOf\":[{\"$ref\":\"#/$defs/m0\"},{\"$ref\":\"#/$defs/m1\"}],\"$defs\":{");
    put_numbered(&text, "\"m%d\":{\"const\":\"%d\"}", 3000);
    nrd_str_puts(&text, "}}");
    expect_refused(v, "json_schema", nrd_str_cstr(&text), "GUIDE_COMPILE_MS");
    skew_s = 0;
    nrd_str_fini(&text);
    nrd_guide_vocab_free(v);
}

enum { N_WORDS = 26 + 26 * 26 };

/* All words of one or two letters. */
static const char *letters(void *user, int32_t id, size_t *out_n)
{
    static char word[2];
    (void)user;
    *out_n = id < 26 ? 1 : 2;
    word[0] = (char)('a' + (id < 26 ? id : (id - 26) / 26));
    word[1] = (char)('a' + id % 26);
    return word;
}

/* Follows a text that is drawn anew each time until the guide has come to its end. */
static void expect_limit(const nrd_guide_vocab *v, const char *pattern, const char *name)
{
    nrd_guide *g = NULL;
    nrd_error *err = nrd_guide_new(&g, v, "regex", pattern);

    if (err) {
        fail_msg("%s: %s", pattern, nrd_error_message(err));
    }
    srand(7);
    for (int round = 0; round < 100 && !nrd_guide_limit(g); round++) {
        nrd_guide_state *s = nrd_guide_state_new(g);
        for (int i = 0; i < 2000 && nrd_guide_accept(s, rand() % 2); i++) {
        }
        nrd_guide_state_free(s);
    }
    assert_non_null(nrd_guide_limit(g));
    if (!strstr(nrd_guide_limit(g), name)) {
        fail_msg("%s: expected %s, got %s", pattern, name, nrd_guide_limit(g));
    }
    nrd_guide_unref(g);
}

/* limits: GUIDE_STATES, GUIDE_PLACES, GUIDE_BYTES */
static void test_a_guide_that_grows_over_a_limit_ends(void **state)
{
    nrd_guide_vocab *v = NULL;
    (void)state;

    assert_null(nrd_guide_vocab_new(&v, N_WORDS, letters, NULL));
    expect_limit(v, "[ab]*a[ab]{17}", "GUIDE_STATES");
    expect_refused(v, "regex", "(a?b?){20000}", "GUIDE_PLACES"); /* already the first one */
    expect_limit(v, "[ab](a?b?){20000}", "GUIDE_PLACES");
    expect_limit(v, "[ab]*a[ab]{8000}", "GUIDE_BYTES");
    nrd_guide_vocab_free(v);
}

/* limits: GUIDE_WORK */
static void test_a_mask_that_takes_too_long_ends_the_guide(void **state)
{
    nrd_guide_vocab *v = NULL;
    nrd_guide *g = NULL;
    nrd_str text = {0};
    size_t n;

    (void)state;
    assert_null(nrd_guide_vocab_new(&v, N_WORDS, letters, NULL));
    nrd_str_puts(&text, "(");
    for (char c = 'a'; c <= 'x'; c++) {
        nrd_str_printf(&text, "[%c-%c]?", c, c + 2);
    }
    nrd_str_puts(&text, "){300}");
    assert_null(nrd_guide_new(&g, v, "regex", text.data));
    nrd_guide_state *s = nrd_guide_state_new(g);
    assert_null(nrd_guide_limit(g));
    assert_null(nrd_guide_mask(s, &n));
    assert_non_null(strstr(nrd_guide_limit(g), "GUIDE_WORK"));
    assert_in_range(nrd_guide_bytes(g), 1, NRD_LIMIT_GUIDE_BYTES);
    nrd_guide_state_free(s);
    nrd_guide_unref(g);
    nrd_guide_vocab_free(v);
    nrd_str_fini(&text);
}

static void test_a_grammar_of_many_rules_is_compiled(void **state)
{
    nrd_guide_vocab *v = vocab();
    nrd_guide *g = NULL;
    nrd_str text = {0};

    (void)state;
    nrd_str_puts(&text, "root ::= \"a\"");
    for (int i = 0; i < 10000; i++) {
        nrd_str_printf(&text, " | r%d", i);
    }
    for (int i = 0; i < 10000; i++) {
        nrd_str_printf(&text, "\nr%d ::= \"x%d\"", i, i);
    }
    assert_null(nrd_guide_new(&g, v, "ebnf_grammar", text.data));
    assert_true(nrd_guide_matches(g, "x777", 4));
    assert_false(nrd_guide_matches(g, "x10000", 6));
    nrd_guide_unref(g);
    nrd_guide_vocab_free(v);
    nrd_str_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_random_walks),
        cmocka_unit_test(test_masks_allow_what_can_be_accepted),
        cmocka_unit_test(test_forced_text_comes_as_tokens),
        cmocka_unit_test(test_compile_time),
        cmocka_unit_test(test_members_are_not_looked_for_one_by_one),
        cmocka_unit_test(test_a_guide_over_a_limit_is_refused),
        cmocka_unit_test(test_a_guide_that_grows_over_a_limit_ends),
        cmocka_unit_test(test_a_mask_that_takes_too_long_ends_the_guide),
        cmocka_unit_test(test_a_grammar_of_many_rules_is_compiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
