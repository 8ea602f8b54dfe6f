/* SPDX-License-Identifier: Apache-2.0
 * Defaults and checks of a model configuration. */
#include "core/config/config.h"
#include "core/config/pbtext.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static nrd_config *parse(const char *text)
{
    ProtobufCMessage *m = NULL;
    nrd_error *err = nrd_pbtext_parse(&m, &inference__model_config__descriptor, text, strlen(text));
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        fail();
    }
    return (nrd_config *)(void *)m;
}

/* All checks that need no backend and no other model. */
static nrd_error *check(const char *text)
{
    nrd_config *c = parse(text);
    nrd_error *err = nrd_config_normalize(c);
    if (!err) {
        err = nrd_config_validate(c);
    }
    if (!err) {
        err = nrd_config_normalize_groups(c, NULL, 0);
    }
    if (!err) {
        err = nrd_config_validate_groups(c);
    }
    if (!err) {
        err = nrd_config_validate_io(c);
    }
    inference__model_config__free_unpacked(c, NULL);
    return err;
}

static void test_each_mistake_is_told_in_known_words(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"backend: \"b\"", "model configuration must specify 'name'"},
        {"name: \"m\"", "must specify 'platform' or 'backend' for 'm'"},
        {"name: \"m\" platform: \"x\"", "unexpected platform type 'x' for m"},
        {"name: \"m\" backend: \"b\" max_batch_size: -1",
         "'max_batch_size' must be non-negative value for m"},
        {"name: \"m\" backend: \"b\" max_batch_size: 2 dynamic_batching { preferred_batch_size: 4 "
         "}",
         "dynamic batching preferred size must be <= max batch size for m"},
        {"name: \"m\" backend: \"b\" max_batch_size: 2 dynamic_batching { preferred_batch_size: 0 "
         "}",
         "dynamic batching preferred size must be positive for m"},
        {"name: \"m\" backend: \"b\" max_batch_size: 2 dynamic_batching { priority_levels: 2 }",
         "default priority level must be in range [1, 2] for m"},
        {"name: \"m\" backend: \"b\" max_batch_size: 2 dynamic_batching { priority_levels: 2 "
         "default_priority_level: 1 preserve_ordering: true }",
         "Only one priority level is allowed when 'preserve_ordering' is true for m"},
        {"name: \"m\" backend: \"b\" input { name: \"x\" data_type: TYPE_FP32 }",
         "model input 'x' must specify 'dims' for m"},
        {"name: \"m\" backend: \"b\" input { name: \"x\" dims: 1 }",
         "model input 'x' must specify 'data_type' for m"},
        {"name: \"m\" backend: \"b\" input { data_type: TYPE_FP32 dims: 1 }",
         "model input must specify 'name' for m"},
        {"name: \"m\" backend: \"b\" output { name: \"x\" data_type: TYPE_FP32 dims: 0 }",
         "model output 'x' dimension must be integer >= 1, or -1 to indicate a variable-size "
         "dimension for m"},
        {"name: \"m\" backend: \"b\" input { name: \"x\" data_type: TYPE_FP32 dims: [ 2, 3 ] "
         "reshape "
         "{ shape: [ 5 ] } }",
         "model input 'x' has different size for dims and reshape for m"},
        {"name: \"m\" backend: \"b\" instance_group { kind: KIND_CPU gpus: 0 }",
         "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"},
#define OUTSIDE(field)                                                                             \
    "'" field "' must be a relative path without '..', within the model's folder, for m"
        {"name: \"m\" backend: \"b\" output { name: \"x\" data_type: TYPE_FP32 dims: 1 "
         "label_filename: \"../../etc/passwd\" }",
         OUTSIDE("label_filename")},
        {"name: \"m\" backend: \"b\" default_model_filename: \"/tmp/model.py\"",
         OUTSIDE("default_model_filename")},
        {"name: \"m\" backend: \"b\" cc_model_filenames { key: \"7.5\" value: \"a/../../b\" }",
         OUTSIDE("cc_model_filenames")},
        {"name: \"m\" backend: \"b\" model_warmup { name: \"w\" inputs { key: \"x\" value { data_type: "
         "TYPE_FP32 dims: 1 input_data_file: \"..\" } } }",
         OUTSIDE("input_data_file")},
        {"name: \"m\" backend: \"b\" max_batch_size: 1 sequence_batching { state { input_name: \"i\" "
         "output_name: \"o\" data_type: TYPE_FP32 dims: 1 initial_state { name: \"s\" data_type: "
         "TYPE_FP32 dims: 1 data_file: \"../../x\" } } }",
         OUTSIDE("initial_state.data_file")},
#undef OUTSIDE
        {"name: \"e\" platform: \"ensemble\"",
         "ensemble scheduling must be set for ensemble e whose platform is ensemble"},
        {"name: \"e\" platform: \"ensemble\" ensemble_scheduling { }",
         "must specify 'step' for ensemble 'e'"},
        {"name: \"e\" platform: \"ensemble\" ensemble_scheduling { step { model_name: \"a\" } }",
         "must specify 'input_map' in step 0 of ensemble 'e'"},
        {"name: \"e\" platform: \"ensemble\" input { name: \"i\" data_type: TYPE_FP32 dims: 1 } "
         "ensemble_scheduling { step { model_name: \"a\" input_map { key: \"x\" value: \"q\" } "
         "output_map { key: \"y\" value: \"q\" } } }",
         "ensemble input 'i' for ensemble e is not used"},
        {"name: \"e\" platform: \"ensemble\" ensemble_scheduling { step { model_name: \"a\" "
         "input_map { key: \"x\" value: \"i\" } output_map { key: \"y\" value: \"o\" } } step { "
         "model_name: \"b\" input_map { key: \"x\" value: \"o\" } output_map { key: \"y\" value: "
         "\"o\" } } }",
         "ensemble tensor 'o' can appear in an output map only once for ensemble 'e' step 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_error *err = check(rows[i].text);
        assert_non_null(err);
        assert_string_equal(nrd_error_message(err), rows[i].message);
        nrd_error_free(err);
    }
}

static void test_defaults_are_filled_in(void **state)
{
    nrd_config *c = parse("name: \"m\" backend: \"b\" max_batch_size: 4 dynamic_batching { }\n"
                          "instance_group [ { kind: KIND_CPU }, { kind: KIND_MODEL count: 3 } ]");
    (void)state;
    assert_null(nrd_config_normalize(c));
    assert_null(nrd_config_normalize_groups(c, NULL, 0));
    assert_int_equal(c->version_policy->latest->num_versions, 1);
    assert_int_equal(c->dynamic_batching->preferred_batch_size[0], 4);
    assert_true(c->optimization->input_pinned_memory->enable);
    assert_string_equal(c->instance_group[0]->name, "m_0");
    assert_int_equal(c->instance_group[0]->count, 1);
    assert_string_equal(c->instance_group[1]->name, "m_1");
    assert_int_equal(c->instance_group[1]->count, 3);
    inference__model_config__free_unpacked(c, NULL);

    const nrd_preferred_group pref = {.kind = INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL,
                                      .count = 2};
    c = parse("name: \"m\" backend: \"b\"");
    assert_null(nrd_config_normalize_groups(c, &pref, 1));
    assert_int_equal(c->n_instance_group, 1);
    assert_string_equal(c->instance_group[0]->name, "m");
    assert_int_equal(c->instance_group[0]->kind, INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL);
    assert_int_equal(c->instance_group[0]->count, 2);
    inference__model_config__free_unpacked(c, NULL);
}

static void test_visible_gpus_are_counted_as_cuda_does(void **state)
{
    static const struct {
        const char *list;
        int n, want;
    } rows[] = {
        {NULL, 8, 8},
        {"", 8, 0},
        {"-1", 8, 0},
        {"2,3", 8, 2},
        {"0", 0, 0},
        {"7,8,1", 8, 1}, /* there is no GPU 8: the list ends there */
        {"0,-1,1", 8, 1},
        {"x", 8, 0},
        {"1,", 8, 1},
        {"0,1,2", 2, 2},
        {"GPU-d9a47cfb-d1f2-d08c-b40e-0812b597ae69,GPU-1", 8, 2},
        {"MIG-41b35014-745c-46ff-b1a3-7d60fa37ba52,MIG-a", 8, 1},
        {"MIG-GPU-d9a47cfb-d1f2-d08c-b40e-0812b597ae69/1/0", 8, 1},
        {"MIG-a", 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(nrd_gpus_visible(rows[i].list, rows[i].n), rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_mistake_is_told_in_known_words),
        cmocka_unit_test(test_defaults_are_filled_in),
        cmocka_unit_test(test_visible_gpus_are_counted_as_cuda_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
