/* SPDX-License-Identifier: Apache-2.0
 * Tokens for filling in the middle: by their names, as a GGUF file numbers them, and after saving. */
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/test-fim-XXXXXX";
static char path[64];

static void write_file(const char *name, const void *data, size_t n)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A tokenizer of the letters a and b, and of these special tokens from id 2 on. */
static nrd_tokenizer *open_with(const char *const *names)
{
    nrd_str s = {0};
    nrd_tokenizer *t = NULL;
    nrd_str_puts(&s, "{\"added_tokens\":[");
    for (int i = 0; names[i]; i++) {
        nrd_str_printf(&s, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", 2 + i, names[i]);
    }
    nrd_str_puts(&s, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                     "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    write_file("tokenizer.json", s.data, s.len);
    nrd_str_fini(&s);
    assert_null(nrd_tokenizer_open(&t, path));
    return t;
}

static void test_families_are_known_by_their_names(void **state)
{
    static const char *const qwen[] = {"<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>",
                                       "<|endoftext|>", NULL};
    static const char *const mistral[] = {"[SUFFIX]", "[PREFIX]", NULL};
    static const char *const half[] = {"<fim_prefix>", "<fim_suffix>", "[PREFIX]", NULL};
    nrd_fim_tokens f;
    (void)state;

    nrd_tokenizer *t = open_with(qwen);
    assert_true(nrd_tokenizer_fim(t, &f));
    assert_int_equal(f.prefix, 3);
    assert_int_equal(f.suffix, 4);
    assert_int_equal(f.middle, 2);
    assert_int_equal(f.repo, 5);
    assert_int_equal(f.file, 6);
    assert_int_equal(f.n_ends, 6);
    assert_int_equal(f.ends[5], 7);
    assert_false(f.suffix_first);
    nrd_tokenizer_close(t);

    t = open_with(mistral);
    assert_true(nrd_tokenizer_fim(t, &f));
    assert_true(f.suffix_first);
    assert_int_equal(f.prefix, 3);
    assert_int_equal(f.suffix, 2);
    assert_int_equal(f.middle, -1);
    nrd_tokenizer_close(t);

    t = open_with(half);
    assert_false(nrd_tokenizer_fim(t, &f));
    nrd_tokenizer_close(t);
}

/* ---- a GGUF file ---- */

static void put_number(nrd_str *s, uint64_t v, size_t bytes)
{
    nrd_str_append(s, &v, bytes); /* little-endian, as the machines that this runs on */
}

static void put_text(nrd_str *s, const char *text)
{
    put_number(s, strlen(text), 8);
    nrd_str_puts(s, text);
}

static void put_texts(nrd_str *s, const char *key, const char *const *v, size_t n)
{
    put_text(s, key);
    put_number(s, 9, 4); /* a list */
    put_number(s, 8, 4); /* of strings */
    put_number(s, n, 8);
    for (size_t i = 0; i < n; i++) {
        put_text(s, v[i]);
    }
}

static void test_a_gguf_file_numbers_them_and_saving_keeps_them(void **state)
{
    static const char *const tokens[] = {"a", "b", "<before>", "<behind>", "<between>", "ab"}, *const merges[] = {"a b"};
    static const char *const keys[] = {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.suffix_token_id",
                                       "tokenizer.ggml.fim_mid_token_id"};
    nrd_tokenizer *t = NULL;
    nrd_fim_tokens f;
    nrd_str s = {0};
    (void)state;

    nrd_str_puts(&s, "GGUF");
    put_number(&s, 3, 4);
    put_number(&s, 0, 8);
    put_number(&s, 7, 8);
    put_text(&s, "tokenizer.ggml.model");
    put_number(&s, 8, 4);
    put_text(&s, "gpt2");
    put_texts(&s, "tokenizer.ggml.tokens", tokens, 6);
    put_texts(&s, "tokenizer.ggml.merges", merges, 1);
    put_text(&s, "tokenizer.ggml.token_type");
    put_number(&s, 9, 4);
    put_number(&s, 5, 4);
    put_number(&s, 6, 8);
    for (int i = 0; i < 6; i++) {
        put_number(&s, i >= 2 && i <= 4 ? 3 : 1, 4); /* control, normal */
    }
    for (uint64_t i = 0; i < 3; i++) {
        put_text(&s, keys[i]);
        put_number(&s, 4, 4);
        put_number(&s, 2 + i, 4);
    }
    write_file("tokens.gguf", s.data, s.len);
    nrd_str_fini(&s);
    nrd_error *err = nrd_tokenizer_open(&t, path);
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
    for (int turn = 0; turn < 2; turn++) {
        assert_true(nrd_tokenizer_fim(t, &f));
        assert_int_equal(f.prefix, 2);
        assert_int_equal(f.suffix, 3);
        assert_int_equal(f.middle, 4);
        assert_int_equal(f.repo, -1);
        if (turn == 0) {
            assert_null(nrd_tokenizer_save(t, folder));
            nrd_tokenizer_close(t);
            t = NULL;
            assert_null(nrd_tokenizer_open(&t, folder));
        }
    }
    nrd_tokenizer_close(t);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    static const char *const names[] = {"tokens.gguf", "tokenizer.json", "tokenizer_config.json", "generation_config.json"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_are_known_by_their_names),
        cmocka_unit_test(test_a_gguf_file_numbers_them_and_saving_keeps_them),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
