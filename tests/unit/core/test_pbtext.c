/* SPDX-License-Identifier: Apache-2.0
 * Text and JSON forms of the model configuration. */
#include "comma_locale.h"
#include "core/config/pbfield.h"
#include "core/config/pbjson.h"
#include "core/config/pbtext.h"
#include "model_config.pb-c.h"

#include "base/mem.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static Inference__ModelConfig *parse(const char *text)
{
    ProtobufCMessage *m = NULL;
    nrd_error *err = nrd_pbtext_parse(&m, &inference__model_config__descriptor, text, strlen(text));
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        fail();
    }
    return (Inference__ModelConfig *)(void *)m;
}

static void refuse(const char *text, const char *expected)
{
    ProtobufCMessage *m = NULL;
    nrd_error *err = nrd_pbtext_parse(&m, &inference__model_config__descriptor, text, strlen(text));
    assert_non_null(err);
    assert_null(m);
    assert_string_equal(nrd_error_message(err), expected);
    nrd_error_free(err);
}

static void free_config(Inference__ModelConfig *c)
{
    inference__model_config__free_unpacked(c, NULL);
}

static void test_every_kind_of_value_is_read(void **state)
{
    (void)state;
    Inference__ModelConfig *c =
        parse("# a comment\n"
              "name: \"a\" 'b\\x21\\n'\n"
              "max_batch_size: 0x10, \n"
              "input [ { name: \"x\", data_type: TYPE_FP32 dims: [ -1, 2 ] optional: true },\n"
              "        < name: 'y' data_type: 9 dims: 3 dims: 4 > ]\n"
              "dynamic_batching { preferred_batch_size: [1, 2]\n"
              "  max_queue_delay_microseconds: 18446744073709551615\n"
              "  priority_queue_policy { key: 2 value: { timeout_action: DELAY } } }\n"
              "parameters: { key: \"k\" value: { string_value: \"v\" } }\n"
              "parameters { key: \"empty\" }\n"
              "model_metrics { metric_control { metric_identifier { family: \"f\" }\n"
              "  histogram_options { buckets: [ 1, 2.5e0, 3f, inf ] } } }\n");
    assert_string_equal(c->name, "ab!\n");
    assert_int_equal(c->max_batch_size, 16);
    assert_int_equal(c->n_input, 2);
    assert_int_equal(c->input[0]->dims[0], -1);
    assert_true(c->input[0]->optional);
    assert_int_equal(c->input[1]->data_type, INFERENCE__DATA_TYPE__TYPE_INT64);
    assert_int_equal(c->input[1]->dims[1], 4);
    assert_int_equal(c->scheduling_choice_case,
                     INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING);
    assert_true(c->dynamic_batching->max_queue_delay_microseconds == UINT64_MAX);
    assert_int_equal(c->dynamic_batching->priority_queue_policy[0]->key, 2);
    assert_int_equal(c->n_parameters, 2);
    assert_string_equal(c->parameters[0]->value->string_value, "v");
    assert_non_null(c->parameters[1]->value);
    assert_true(c->model_metrics->metric_control[0]->histogram_options->buckets[1] == 2.5);
    free_config(c);
}

static void test_errors_name_line_column_and_reason(void **state)
{
    (void)state;
    refuse("name: \"a\"\n  foo: 1\n",
           "2:6: Message type \"inference.ModelConfig\" has no field named \"foo\".");
    refuse("max_batch_size: x", "1:17: Expected integer, got: x");
    refuse("max_batch_size: 2147483648", "1:17: Integer out of range (2147483648)");
    refuse("max_batch_size: -2147483649", "1:18: Integer out of range (2147483649)");
    refuse("name: a", "1:7: Expected string, got: a");
    refuse("name \"a\"", "1:6: Expected \":\", found \"\"a\"\".");
    refuse("name: \"a\" name: \"b\"",
           "1:15: Non-repeated field \"name\" is specified multiple times.");
    refuse("input { data_type: TYPE_X }",
           "1:20: Unknown enumeration value of \"TYPE_X\" for field \"data_type\".");
    refuse("input { optional: maybe }",
           "1:19: Invalid value for boolean field \"optional\". Value: \"maybe\".");
    refuse(
        "dynamic_batching {} ensemble_scheduling {}",
        "1:41: Field \"ensemble_scheduling\" is specified along with field \"dynamic_batching\", "
        "another member of oneof.");
    refuse("name: \"a", "1:7: String literals cannot cross line boundaries.");
    refuse("input { name: \"x\"", "1:18: Expected identifier, got: ");
    refuse("}", "1:1: Expected identifier, got: }");
}

static void test_hostile_nesting_is_refused(void **state)
{
    (void)state;
    nrd_str s = {0};
    for (int i = 0; i < 100000; i++) {
        nrd_str_puts(&s, "optimization { cuda { graph_spec { ");
    }
    ProtobufCMessage *m = NULL;
    nrd_error *err = nrd_pbtext_parse(&m, &inference__model_config__descriptor, s.data, s.len);
    assert_non_null(err);
    nrd_error_free(err);
    nrd_str_fini(&s);
}

static char *to_json(const Inference__ModelConfig *c)
{
    nrd_str s = {0};
    nrd_pbjson_put(&s, &c->base);
    return nrd_str_steal(&s);
}

static void test_json_prints_defaults_and_reads_back_equal(void **state)
{
    (void)state;
    Inference__ModelConfig *c =
        parse("name: \"m\\\"\" backend: \"b\" max_batch_size: 3\n"
              "input { name: \"x\" data_type: TYPE_STRING dims: [ -1 ] }\n"
              "version_policy { specific { versions: [ 1, 9007199254740993 ] } }\n"
              "instance_group { count: 2 kind: KIND_CPU }\n"
              "parameters { key: \"k\" value { string_value: \"é\" } }\n");
    char *json = to_json(c);
    assert_non_null(strstr(json, "\"name\":\"m\\\"\",\"platform\":\"\",\"backend\":\"b\""));
    assert_non_null(strstr(json, "\"versions\":[1,9007199254740993]"));
    assert_non_null(
        strstr(json, "\"data_type\":\"TYPE_STRING\",\"format\":\"FORMAT_NONE\",\"dims\":[-1],"));
    assert_non_null(strstr(json, "\"kind\":\"KIND_CPU\",\"count\":2"));
    assert_non_null(strstr(json, "\"parameters\":{\"k\":{\"string_value\":\"é\"}}"));
    assert_null(strstr(json, "optimization")); /* absent messages and choices are left out */
    assert_null(strstr(json, "dynamic_batching"));

    nrd_json_doc *doc = NULL;
    ProtobufCMessage *back = NULL;
    assert_null(nrd_json_parse(&doc, json, strlen(json), NULL));
    assert_null(nrd_pbjson_parse(&back, &inference__model_config__descriptor, nrd_json_root(doc)));
    char *again = to_json((Inference__ModelConfig *)(void *)back);
    assert_string_equal(json, again);
    free(again);
    nrd_json_doc_free(doc);
    free_config((Inference__ModelConfig *)(void *)back);
    free(json);

    ProtobufCMessage *copy = nrd_pb_copy(&c->base);
    char *a = to_json(c), *b = to_json((Inference__ModelConfig *)(void *)copy);
    assert_string_equal(a, b);
    free(a);
    free(b);
    protobuf_c_message_free_unpacked(copy, NULL);
    free_config(c);
}

static void refuse_json(const char *json, const char *part)
{
    nrd_json_doc *doc = NULL;
    ProtobufCMessage *m = NULL;
    assert_null(nrd_json_parse(&doc, json, strlen(json), NULL));
    nrd_error *err = nrd_pbjson_parse(&m, &inference__model_config__descriptor, nrd_json_root(doc));
    assert_non_null(err);
    if (!strstr(nrd_error_message(err), part)) {
        print_error("'%s' lacks '%s'\n", nrd_error_message(err), part);
        fail();
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
}

static void test_wrong_json_is_refused(void **state)
{
    (void)state;
    refuse_json("{\"nope\":1}", "nope: Cannot find field.");
    refuse_json("{\"max_batch_size\":\"x\"}", "max_batch_size: expected an integer, got string");
    refuse_json("{\"max_batch_size\":4294967296}", "max_batch_size: integer out of range");
    refuse_json("{\"input\":{}}", "input: expected an array, got object");
    refuse_json("{\"input\":[{\"data_type\":\"TYPE_Q\"}]}", "data_type: invalid value TYPE_Q");
    refuse_json("{\"parameters\":[]}", "parameters: expected an object");
    refuse_json("{\"dynamic_batching\":{},\"ensemble_scheduling\":{}}", "choice is already set");
    refuse_json("[]", "expected an object, got array");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_value_is_read),
        cmocka_unit_test(test_errors_name_line_column_and_reason),
        cmocka_unit_test(test_hostile_nesting_is_refused),
        cmocka_unit_test(test_json_prints_defaults_and_reads_back_equal),
        cmocka_unit_test(test_wrong_json_is_refused),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("with a decimal comma", tests, comma_locale_setup,
                                                comma_locale_teardown);
}
