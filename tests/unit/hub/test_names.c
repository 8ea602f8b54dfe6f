/* SPDX-License-Identifier: Apache-2.0
 * What ids of models say, and which files of a repository they mean. */
#include "base/mem.h"
#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define HUB "https://hub.example"

static void expect_id(const char *text, const char *repo, const char *rev, const char *quant, const char *file)
{
    nrd_hub_id id;
    assert_null(nrd_hub_id_parse(&id, text, HUB));
    assert_string_equal(id.repo, repo);
    assert_string_equal(id.rev, rev);
    assert_string_equal(id.quant, quant);
    assert_string_equal(id.file, file);
    assert_string_equal(id.url, "");
}

static void test_forms_of_ids(void **state)
{
    (void)state;
    expect_id("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", "", "");
    expect_id("hf:gpt2", "gpt2", "main", "", "");
    expect_id("a/b:Q4_K_M@v1", "a/b", "v1", "Q4_K_M", "");
    expect_id("a/b@refs/pr/1:Q8_0", "a/b", "refs/pr/1", "Q8_0", "");
    expect_id("a/b/c/d.gguf", "a/b", "main", "", "c/d.gguf");
    expect_id(HUB "/a/b", "a/b", "main", "", "");
    expect_id(HUB "/a/b/tree/v2", "a/b", "v2", "", "");
    expect_id(HUB "/a/b/blob/main/x.gguf?download=true", "a/b", "main", "", "x.gguf");
}

static void test_what_is_no_id(void **state)
{
    static const char *const wrong[] = {"a", "a/", "/a/b", "a/b/c", "../a", "a/..", "a/b:", "a/b@", "a/b@../x", "a/b@/x",
                                        "a/b@x//y", "a/b:x/y", "a/b/../c.gguf", "a b/c", "a/b.", "a--b/c", HUB "/a",
                                        HUB "/a/b/resolve/main/x.bin", "https://other.example/x.zip", "a/b/c.gguf:Q8_0"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nrd_hub_id id;
        nrd_error *err = nrd_hub_id_parse(&id, wrong[i], HUB);
        assert_non_null(err);
        nrd_error_free(err);
    }
}

static void test_paths_that_do_not_exist_are_not_taken_for_names(void **state)
{
    (void)state;
    assert_true(nrd_hub_id_is("Qwen/Qwen3-0.6B"));
    assert_true(nrd_hub_id_is("a/b/c.gguf"));
    assert_false(nrd_hub_id_is("models/x.gguf"));
    assert_false(nrd_hub_id_is("./a/b"));
    assert_false(nrd_hub_id_is("/a/b"));
    assert_false(nrd_hub_id_is("a"));
    assert_false(nrd_hub_id_is("a/b/c"));
}

/* The names that are wanted, one after another; or the error. */
static const char *chosen(const char *id_text, const char *const *names, size_t n)
{
    static char out[512];
    bool wanted[16] = {false};
    const char *model = NULL;
    nrd_hub_id id;

    assert_null(nrd_hub_id_parse(&id, id_text, HUB));
    out[0] = '\0';
    nrd_error *err = nrd_hub_choose(&id, names, n, wanted, &model);
    if (err) {
        snprintf(out, sizeof out, "%s", nrd_error_message(err));
        nrd_error_free(err);
        return out;
    }
    for (size_t i = 0, at = 0; i < n; i++) {
        if (wanted[i]) {
            at += (size_t)snprintf(out + at, sizeof out - at, "%s%s%s ", model == names[i] ? "*" : "", names[i], "");
        }
    }
    return out;
}

#define CHOSEN(id, ...)                                                                            \
    chosen(id, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void test_one_rule_chooses_files(void **state)
{
    (void)state;
    assert_string_equal(CHOSEN("a/b", "config.json", "model.safetensors", "m.gguf", "tf_model.h5", "tokenizer.json"),
                        "config.json model.safetensors tokenizer.json ");
    assert_string_equal(CHOSEN("a/b", "config.json", "hf_quant_config.json", "model.safetensors", "quant_config.json", "other.json"),
                        "config.json hf_quant_config.json model.safetensors quant_config.json "); /* what says how weights are quantized */
    assert_string_equal(CHOSEN("a/b", "config.json", "pytorch_model.bin", "training_args.bin"),
                        "config.json pytorch_model.bin ");
    assert_string_equal(CHOSEN("a/b", "config.json", "llm/config.json", "llm/model-00001-of-00002.safetensors", "llm/tokenizer.model", "x/config.json",
                               "vision_tower/model.safetensors", "vision_tower/preprocessor_config.json", "mm_projector/a/config.json"),
                        "config.json llm/config.json llm/model-00001-of-00002.safetensors llm/tokenizer.model vision_tower/model.safetensors "
                        "vision_tower/preprocessor_config.json ");
    assert_string_equal(CHOSEN("a/b", "m.Q8_0.gguf", "m.Q4_0.gguf", "mmproj-Q4_K_M.gguf"),
                        "*m.Q4_0.gguf mmproj-Q4_K_M.gguf ");
    assert_string_equal(CHOSEN("a/b:q8_0", "mmproj-F32.gguf", "m.Q8_0.gguf", "m-mmproj-f16.gguf", "x/mmproj-F16.gguf"),
                        "*m.Q8_0.gguf m-mmproj-f16.gguf ");
    assert_string_equal(CHOSEN("a/b:q8_0", "m.Q8_0.gguf", "m.Q4_0.gguf"), "*m.Q8_0.gguf ");
    assert_string_equal(CHOSEN("a/b:Q4_K", "m-Q4_K_M.gguf", "m-Q4_K.gguf"), "*m-Q4_K.gguf ");
    assert_string_equal(CHOSEN("a/b:F16", "m-BF16.gguf", "m-F16.gguf"), "*m-F16.gguf ");
    assert_string_equal(CHOSEN("a/b", "strange.gguf", "config.json"), "*strange.gguf ");
    assert_string_equal(CHOSEN("a/b", "x-Q8_0-00002-of-00002.gguf", "x-Q8_0-00001-of-00002.gguf"),
                        "x-Q8_0-00002-of-00002.gguf *x-Q8_0-00001-of-00002.gguf ");
    assert_string_equal(CHOSEN("a/b", "x-Q8_0-00001-of-00002.gguf"),
                        "'x-Q8_0-00001-of-00002.gguf' has 2 parts, of which there are 1");
    assert_string_equal(CHOSEN("a/b:Q2_K", "m-Q8_0.gguf"), "a/b has no GGUF file of type Q2_K; it has Q8_0");
    assert_string_equal(CHOSEN("a/b", "README.md"), "a/b has no model: neither config.json with safetensors or "
                                                    "pytorch_model.bin, nor a GGUF file");
}

static void test_folders_of_the_cache_are_named_as_huggingface_hub_names_them(void **state)
{
    const nrd_hub_settings s = {.cache = (char[]){"/c"}, .own = (char[]){"/o"}};
    char *dir = nrd_hub_repo_dir(&s, "a/b-c"), *one = nrd_hub_repo_dir(&s, "gpt2");
    char *repo = nrd_hub_repo_of_dir("models--a--b-c"), *file = nrd_hub_url_file(&s, "https://h:1/x/y.gguf?z=../..");
    (void)state;
    assert_string_equal(dir, "/c/models--a--b-c");
    assert_string_equal(one, "/c/models--gpt2");
    assert_string_equal(repo, "a/b-c");
    assert_string_equal(file, "/o/files/h:1/x/y.gguf");
    assert_null(nrd_hub_repo_of_dir("datasets--a--b"));
    assert_null(nrd_hub_url_file(&s, "https://h/../../y.gguf"));
    free(dir);
    free(one);
    free(repo);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_of_ids),
        cmocka_unit_test(test_what_is_no_id),
        cmocka_unit_test(test_paths_that_do_not_exist_are_not_taken_for_names),
        cmocka_unit_test(test_one_rule_chooses_files),
        cmocka_unit_test(test_folders_of_the_cache_are_named_as_huggingface_hub_names_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
