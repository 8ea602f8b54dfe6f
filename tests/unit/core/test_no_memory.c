/* SPDX-License-Identifier: Apache-2.0
 * Configurations whose reading runs out of memory. */
#include "unit/no_memory.h"

#include "core/config/config.h"
#include "core/config/pbtext.h"
#include "core/strings.h"

static nrd_error *complete(nrd_config *c)
{
    static const int32_t gpus[] = {0};
    const nrd_preferred_group preferred = {
        .kind = INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU, .count = 1, .gpus = (int32_t *)(uintptr_t)gpus};
    nrd_error *err = nrd_config_normalize(c);
    err = err ? err : nrd_config_normalize_groups(c, &preferred, 1);
    return err;
}

static nrd_error *read_text(void *user)
{
    const char *text = user;
    ProtobufCMessage *m = NULL;
    nrd_error *err = nrd_pbtext_parse(&m, &inference__model_config__descriptor, text, strlen(text));

    if (!err) {
        nrd_config *c = (nrd_config *)(void *)m;
        err = complete(c);
        if (!err) {
            assert_string_equal(c->name, "a");
            assert_int_equal(c->n_input, 2);
            assert_int_equal(c->input[1]->n_dims, 3);
            assert_int_equal(c->n_instance_group, 1);
            assert_non_null(c->optimization->input_pinned_memory);
        }
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return err;
}

static nrd_error *read_json(void *user)
{
    nrd_config *c = NULL;
    nrd_error *err = nrd_config_from_json(&c, user, strlen(user));

    if (!err) {
        err = complete(c);
        if (!err) {
            assert_string_equal(c->input[0]->name, "x");
            assert_int_equal(c->dynamic_batching->n_preferred_batch_size, 1);
            assert_string_equal(c->parameters[0]->value->string_value, "v");
        }
        inference__model_config__free_unpacked(c, NULL);
    }
    return err;
}

static void test_a_text_file(void **state)
{
    char text[] = "name: \"a\" max_batch_size: 4 dynamic_batching { }\n"
                  "input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] }, { name: \"y\" dims: 1 dims: 2 dims: 3 } ]\n"
                  "parameters { key: \"k\" value { string_value: \"v\" } } parameters { key: \"none\" }\n"
                  "metric_tags { key: \"t\" value: \"u\" } version_policy: { specific { versions: [ 1, 2 ] } }\n";
    (void)state;
    assert_true(each_allocation_fails(read_text, text) > 30);
}

static void test_a_configuration_in_json(void **state)
{
    char text[] = "{\"name\":\"a\",\"max_batch_size\":4,\"dynamic_batching\":{},\"input\":[{\"name\":\"x\",\"dims\":[\"1\"]}],"
                  "\"parameters\":{\"k\":{\"string_value\":\"v\"}},\"instance_group\":[{\"count\":2,\"kind\":\"KIND_CPU\"}]}";
    (void)state;
    assert_true(each_allocation_fails(read_json, text) > 20);
}

static nrd_error *fill(void *user)
{
    nrd_strings list = {0};
    (void)user;
    for (int i = 0; i < 4; i++) {
        nrd_strings_add(&list, "text");
    }
    nrd_error *err = nrd_strings_error(&list);
    assert_true(err ? list.n < 4 : list.n == 4);
    nrd_strings_fini(&list);
    return err;
}

static void test_a_list_that_lacks_something_says_so(void **state)
{
    (void)state;
    assert_int_equal(each_allocation_fails(fill, NULL), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_file),
        cmocka_unit_test(test_a_configuration_in_json),
        cmocka_unit_test(test_a_list_that_lacks_something_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
