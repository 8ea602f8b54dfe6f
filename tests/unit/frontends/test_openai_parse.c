/* SPDX-License-Identifier: Apache-2.0
 * Reasoning and tool calls found in texts, whole and while they grow. */
#include "frontends/openai/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"properties\":{"
    "\"place\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"now\":{\"type\":\"boolean\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

#define DS(word) "<\xef\xbd\x9ctool\xe2\x96\x81" word "\xef\xbd\x9c>"

typedef struct expected {
    const char *text;
    bool think_open, tools;
    const char *reasoning, *content, *calls; /* calls: names and arguments */
} expected;

static const expected cases[] = {
    {"plain text ", false, false, "", "plain text ", ""},
    {"plain text ", false, true, "", "plain text ", ""},
    {"<think>\nwhy\n</think>\n\nbecause", false, false, "why", "because", ""},
    {"why not\n</think>\n\nyes", true, false, "why not", "yes", ""},
    {"<|channel>thought\nwhy\n<channel|>because", false, false, "why", "because", ""},
    {"<|channel>thought\n<channel|>yes", false, false, "", "yes", ""},
    {"<|channel>thought\nhm<channel|><|tool_call>call:now{}<tool_call|>", false, true, "hm", "",
     "now{}"},
    {"still thinking", true, false, "still thinking", "", ""},
    {"a < b and <thin air", false, false, "", "a < b and <thin air", ""},
    {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"place\": \"Rome }\\\"\"}}\n</tool_call>",
     false, true, "", "", "get_weather{\"place\":\"Rome }\\\"\"}"},
    {"Let me look.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":"
     "\"get_weather\",\"arguments\":{\"place\":\"x\"}}</tool_call>",
     false, true, "", "Let me look.", "now{} get_weather{\"place\":\"x\"}"},
    {"<think>hm</think>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", false, true, "hm",
     "", "now{}"},
    {"[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}, \"id\": \"123456789\"}]", false, true, "", "",
     "now{}"},
    {"[TOOL_CALLS]get_weather[ARGS]{\"place\": \"Oslo\"}[TOOL_CALLS]now[ARGS]{}", false, true, "", "",
     "get_weather{\"place\":\"Oslo\"} now{}"},
    {"{\"name\": \"get_weather\", \"parameters\": {\"place\": \"Rome\"}}", false, true, "", "",
     "get_weather{\"place\":\"Rome\"}"},
    {"<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", false, true, "", "", "now{}"},
    {"functools[{\"name\": \"now\", \"arguments\": {}}]", false, true, "", "", "now{}"},
    {DS("calls\xe2\x96\x81" "begin") DS("call\xe2\x96\x81" "begin") "function" DS("sep")
     "get_weather\n```json\n{\"place\": \"Rome\"}\n```" DS("call\xe2\x96\x81" "end"),
     false, true, "", "", "get_weather{\"place\":\"Rome\"}"},
    {"<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"
     "</arg_value>\n<arg_key>more</arg_key><arg_value>[1, {\"a\": null}]</arg_value></tool_call>\n<tool_call>now\n</tool_call>",
     false, true, "", "", "get_weather{\"place\":\"12\",\"days\":3,\"more\":[1,{\"a\":null}]} now{}"},
    {"<think>x</think>Sure.\n<tool_call>\n<function=get_weather>\n<parameter=place>\nRome\n \"Italy\"\n</parameter>\n"
     "<parameter=now>\nTrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
     false, true, "x", "Sure.", "get_weather{\"place\":\"Rome\\n \\\"Italy\\\"\",\"now\":true} now{}"},
    {"<function=get_weather>\n<parameter=days>\nseven\n</parameter>\n</function>", false, true, "", "",
     "get_weather{\"days\":\"seven\"}"},
    {"<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"place\">Oslo</parameter>\n<parameter name=\"days\">2"
     "</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
     false, true, "", "", "get_weather{\"place\":\"Oslo\",\"days\":2} now{}"},
    {"<start_function_call>call:get_weather{place:<escape>a{b},c<escape>,days:5}<end_function_call>", false, true, "", "",
     "get_weather{\"place\":\"a{b},c\",\"days\":5}"},
    {"<|tool_call>call:get_weather{place:<|\"|>Bern<|\"|>,deep:{list:[1,<|\"|>x<|\"|>,true],e:{}}}<tool_call|><|tool_call>call:now{}"
     "<tool_call|>", false, true, "", "", "get_weather{\"place\":\"Bern\",\"deep\":{\"list\":[1,\"x\",true],\"e\":{}}} now{}"},
    {"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"place\": \"Rome\"}"
     "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     false, true, "", "", "get_weather{\"place\":\"Rome\"} now{}"},
    {"<tool_call>other\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", false, true, "",
     "<tool_call>other\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", ""},
    {"<tool_call>now\n<arg_key>a</arg_key><arg_value>1", false, true, "", "<tool_call>now\n<arg_key>a</arg_key><arg_value>1", ""},
    {"<|tool_call>call:now{a:[1,}", false, true, "", "<|tool_call>call:now{a:[1,}", ""},
    {"{\"name\": \"other\", \"parameters\": {}}", false, true, "",
     "{\"name\": \"other\", \"parameters\": {}}", ""},
    {"{\"answer\": 42}", false, true, "", "{\"answer\": 42}", ""},
    {"<tool_call>{\"name\": \"now\", ", false, true, "", "<tool_call>{\"name\": \"now\", ", ""},
    {"<tool_call>", false, false, "", "<tool_call>", ""},
};

static void expect_span(const char *text, const char *from, size_t n, const char *want)
{
    if (n != strlen(want) || memcmp(from, want, n) != 0) {
        fail_msg("'%s': got '%.*s', want '%s'", text, (int)n, from, want);
    }
}

/* With reasoning that stays in the content. */
static const expected kept[] = {
    {"<think>\nwhy\n</think>\n\nbecause ", false, false, "", "<think>\nwhy\n</think>\n\nbecause ", ""},
    {"why not\n</think>\n\nyes", true, true, "", "why not\n</think>\n\nyes", ""},
    {"still <thinking", true, true, "", "still <thinking", ""},
    {" <thin air", false, true, "", " <thin air", ""},
    {"<think>hm</think>\nOne. <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", false, true, "", "<think>hm</think>\nOne.",
     "now{}"},
    {"<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", false, true, "", "", "now{}"},
};

static void check_case(const expected *c, bool keeps, const nrd_json *tools)
{
    nrd_oai_parse_options o = {.think_open = c->think_open,
                               .keep_reasoning = keeps,
                               .final = true,
                               .tools = c->tools ? tools : NULL,
                               .id = "t",
                               .max_calls = 9};
    nrd_str calls = {0}, list = {0}, got = {0};
    nrd_oai_parsed p, whole;
    size_t n = strlen(c->text);
    nrd_oai_parse(c->text, n, &o, &calls, &whole);
    expect_span(c->text, whole.reasoning, whole.n_reasoning, c->reasoning);
    expect_span(c->text, whole.content, whole.n_content, c->content);

    nrd_json_doc *parsed = NULL;
    nrd_str_printf(&list, "[%s]", nrd_str_cstr(&calls));
    assert_null(nrd_json_parse(&parsed, list.data, list.len, NULL));
    assert_int_equal(nrd_json_len(nrd_json_root(parsed)), whole.n_calls);
    for (size_t k = 0; k < nrd_json_len(nrd_json_root(parsed)); k++) {
        const nrd_json *f = nrd_json_get(nrd_json_at(nrd_json_root(parsed), k), "function");
        nrd_str_printf(&got, "%s%s%s", k ? " " : "", nrd_json_get_str(f, "name", ""),
                       nrd_json_get_str(f, "arguments", ""));
    }
    assert_string_equal(nrd_str_cstr(&got), c->calls);

    /* While it grows, the spans are beginnings of what they become. */
    size_t reasoning = 0, content = 0;
    o.final = false;
    for (size_t k = 0; k <= n; k++) {
        nrd_str_clear(&calls);
        nrd_oai_parse(c->text, k, &o, &calls, &p);
        assert_int_equal(p.n_calls, 0);
        assert_true(p.n_reasoning <= whole.n_reasoning && p.n_content <= whole.n_content);
        assert_true(p.n_reasoning >= reasoning && p.n_content >= content);
        assert_memory_equal(p.reasoning, c->reasoning, p.n_reasoning);
        assert_memory_equal(p.content, c->content, p.n_content);
        reasoning = p.n_reasoning;
        content = p.n_content;
    }
    nrd_json_doc_free(parsed);
    nrd_str_fini(&calls);
    nrd_str_fini(&list);
    nrd_str_fini(&got);
}

static void test_texts(void **state)
{
    nrd_json_doc *doc = NULL;
    (void)state;
    assert_null(nrd_json_parse(&doc, tools_text, sizeof tools_text - 1, NULL));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i], false, nrd_json_root(doc));
    }
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        check_case(&kept[i], true, nrd_json_root(doc));
    }
    nrd_json_doc_free(doc);
}

static void test_one_call_only(void **state)
{
    static const char text[] = "[TOOL_CALLS][{\"name\":\"now\",\"arguments\":{}},{\"name\":\"now\"}]";
    nrd_json_doc *doc = NULL;
    nrd_str calls = {0};
    nrd_oai_parsed p;
    (void)state;
    assert_null(nrd_json_parse(&doc, tools_text, sizeof tools_text - 1, NULL));
    const nrd_oai_parse_options o = {
        .final = true, .with_index = true, .tools = nrd_json_root(doc), .id = "t", .max_calls = 1};
    nrd_oai_parse(text, sizeof text - 1, &o, &calls, &p);
    assert_int_equal(p.n_calls, 1);
    assert_non_null(strstr(nrd_str_cstr(&calls), "\"index\":0"));
    nrd_str_fini(&calls);
    nrd_json_doc_free(doc);
}

static void test_partial(void **state)
{
    (void)state;
    assert_int_equal(nrd_oai_partial("abc", 3, "cde", 3), 1);
    assert_int_equal(nrd_oai_partial("abcd", 4, "cde", 3), 2);
    assert_int_equal(nrd_oai_partial("abcde", 5, "cde", 3), 0);
    assert_int_equal(nrd_oai_partial("", 0, "cde", 3), 0);
    assert_int_equal(nrd_oai_partial("aa", 2, "aaa", 3), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_one_call_only),
        cmocka_unit_test(test_partial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
