/* SPDX-License-Identifier: Apache-2.0
 * OpenAI's vocabularies of Whisper: ids as tiktoken 0.14 has them, tokens that are no text, and files that are none. */
#include "text/whisper.h"

#include "base/base64.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N_BYTES = 256 };
static const char *const words[] = {"th", "he", "the", " t", " the", "in", "aa", "aaa", "\xc3\xa4", " s", "ing", " sing", "hin", "20"};
enum { N_TOKENS = N_BYTES + sizeof words / sizeof *words };

static void put_line(nrd_str *s, const char *bytes, size_t n, int number)
{
    nrd_base64_encode(bytes, n, s);
    nrd_str_printf(s, " %d\n", number);
}

/* All bytes, then the words. */
static nrd_str vocabulary(void)
{
    nrd_str s = {0};
    for (int i = 0; i < N_BYTES; i++) {
        const char byte = (char)i;
        put_line(&s, &byte, 1, i);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put_line(&s, words[i], strlen(words[i]), N_BYTES + (int)i);
    }
    return s;
}

static nrd_tokenizer *open_one(int32_t n_languages)
{
    nrd_tokenizer *t = NULL;
    nrd_str s = vocabulary();
    assert_null(nrd_whisper_tokenizer_open_memory(&t, s.data, s.len, n_languages));
    nrd_str_fini(&s);
    return t;
}

static int32_t id_of(const nrd_tokenizer *t, const char *name)
{
    return nrd_tokenizer_token_id(t, name, strlen(name));
}

static void texts_have_the_ids_of_tiktoken(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[16];
        size_t n;
    } rows[] = {
        {"the thing in the\n  singing", {258, 32, 256, 266, 32, 261, 260, 10, 32, 267, 266}, 11},
        {"aaaaaaaa aaa\xc3\xa4\xc3\xa4\xc3\xa4", {262, 262, 262, 262, 32, 263, 264, 264, 264}, 9},
        {"1207 20it's, then", {49, 269, 55, 32, 269, 105, 116, 39, 115, 44, 260, 110}, 12},
    };
    nrd_tokenizer *t = open_one(99);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nrd_ids ids = {0};
        nrd_str back = {0};
        assert_null(nrd_tokenizer_encode(t, rows[i].text, strlen(rows[i].text), 0, &ids));
        assert_int_equal(ids.n, rows[i].n);
        assert_memory_equal(ids.ids, rows[i].ids, rows[i].n * sizeof *ids.ids);
        nrd_tokenizer_decode(t, ids.ids, ids.n, 0, &back);
        assert_string_equal(nrd_str_cstr(&back), rows[i].text);
        nrd_str_fini(&back);
        nrd_ids_fini(&ids);
    }
    nrd_tokenizer_close(t);
}

/* Multilingual files have 50257 tokens: then these are the ids of openai/whisper, less the difference. */
static void other_tokens_stand_behind_them(void **state)
{
    (void)state;
    enum { LESS = 50257 - N_TOKENS };
    for (int32_t more = 0; more < 2; more++) { /* 128 mels: Cantonese too */
        nrd_tokenizer *t = open_one(99 + more);
        nrd_whisper *w = NULL;
        assert_int_equal(nrd_tokenizer_vocab_size(t), 51865 + more - LESS);
        assert_int_equal(nrd_tokenizer_eos_id(t), 50257 - LESS);
        assert_int_equal(id_of(t, "<|startoftranscript|>"), 50258 - LESS);
        assert_int_equal(id_of(t, "<|en|>"), 50259 - LESS);
        assert_int_equal(id_of(t, "<|su|>"), 50357 - LESS);
        assert_int_equal(id_of(t, "<|yue|>"), more ? 50358 - LESS : -1);
        assert_int_equal(id_of(t, "<|translate|>"), 50358 + more - LESS);
        assert_int_equal(id_of(t, "<|startofprev|>"), 50361 + more - LESS);
        assert_int_equal(id_of(t, "<|nospeech|>"), 50362 + more - LESS);
        assert_int_equal(id_of(t, "<|notimestamps|>"), 50363 + more - LESS);
        assert_int_equal(id_of(t, "<|0.00|>"), 50364 + more - LESS);
        assert_int_equal(id_of(t, "<|1.02|>"), 50415 + more - LESS);
        assert_int_equal(id_of(t, "<|30.00|>"), 51864 + more - LESS);
        assert_null(nrd_whisper_open(&w, t, "/nowhere"));
        assert_non_null(w);
        assert_true(nrd_whisper_is_time(w, id_of(t, "<|30.00|>")));
        assert_false(nrd_whisper_is_time(w, id_of(t, "<|notimestamps|>")));
        nrd_whisper_close(w);
        nrd_tokenizer_close(t);
    }
}

static void other_files_are_refused_by_line(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t n_languages;
        const char *message;
    } rows[] = {
        {"", 99, "no tokens"},
        {"IQ== 0\nIg== 2\n", 99, "line 2: the number is '2', expected 1"},
        {"IQ== 0\n\nIg== 1\n", 99, "line 2: expected a token"},
        {"IQ==\n", 99, "line 1: expected a token"},
        {"?Q== 0\n", 99, "line 1: expected a token"},
        {" 0\n", 99, "line 1: expected a token"},
        {"IQ== 0 \n", 99, "line 1: the number is '0 '"},
        {"{\"model\": {}}", 99, "line 1: expected a token"},
        {"IQ== 0\n", 101, "101 languages"},
        {"IQ== 0\n", 0, "0 languages"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nrd_tokenizer *t = NULL;
        nrd_error *err = nrd_whisper_tokenizer_open_memory(&t, rows[i].text, strlen(rows[i].text), rows[i].n_languages);
        assert_null(t);
        assert_non_null(err);
        if (!strstr(nrd_error_message(err), rows[i].message)) {
            print_error("row %zu: %s\n", i, nrd_error_message(err));
            fail();
        }
        nrd_error_free(err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_the_ids_of_tiktoken),
        cmocka_unit_test(other_tokens_stand_behind_them),
        cmocka_unit_test(other_files_are_refused_by_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
