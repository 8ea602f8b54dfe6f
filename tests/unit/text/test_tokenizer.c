/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "base/limits.h"
#include "text/internal.h"
#include "text/tokenizer.h"
#include "text/word_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>

#include <cmocka.h>

#define BYTES_DECODER                                                                              \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"          \
    "{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"                \
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"

/* Character BPE over "_ a b c ab abc" with all 256 byte tokens from id 10 on. */
static char *spm_like_json(void)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,"
                     "\"normalized\":false}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                     "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\","
                     "\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
                     "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                     "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
                     "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":"
                     "{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}}," BYTES_DECODER
                     ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
                     "\"byte_fallback\":true,\"merges\":[\"a b\",\"ab c\",\"\xe2\x96\x81 abc\"],"
                     "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"\xe2\x96\x81\":2,\"a\":3,\"b\":4,\"c\":5,"
                     "\"ab\":6,\"abc\":7,\"\xe2\x96\x81"
                     "abc\":8");
    for (int b = 0; b < 256; b++) {
        nrd_str_printf(&s, ",\"<0x%02X>\":%d", (unsigned)b, 10 + b);
    }
    nrd_str_puts(&s, "}}}");
    return nrd_str_steal(&s);
}

/* GPT-2 style: all bytes, and "he", "Gll", "hello"-like merges. */
static char *byte_level_json(void)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"added_tokens\":[{\"id\":300,\"content\":\"<|end|>\",\"special\":true}],"
                     "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                     "\"merges\":[[\"h\",\"e\"],[\"l\",\"l\"],[\"he\",\"ll\"]],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        char c[5] = {0};
        nrd_utf8_put(c, nrd_tok_byte_char((uint8_t)b));
        nrd_json_put_cstr(&s, c);
        nrd_str_printf(&s, ":%d,", b);
    }
    nrd_str_puts(&s, "\"he\":256,\"ll\":257,\"hell\":258}}}");
    return nrd_str_steal(&s);
}

static nrd_tokenizer *from_json(char *json)
{
    nrd_tokenizer *t = nrd_tok_new();
    nrd_error *err = nrd_tok_load_json_text(t, json, strlen(json));
    if (err) {
        print_error("%s\n", nrd_error_message(err));
    }
    assert_null(err);
    free(json);
    return t;
}

static void assert_encodes(const nrd_tokenizer *t, const char *text, uint32_t flags,
                           const int32_t *want, size_t n)
{
    nrd_ids ids = {0};
    assert_null(nrd_tokenizer_encode(t, text, strlen(text), flags, &ids));
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    nrd_ids_fini(&ids);
}

static void test_byte_level_bpe_merges_by_rank(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    assert_encodes(t, "hello", 0, (int32_t[]){258, 'o'}, 2);
    assert_encodes(t, " hello", 0, (int32_t[]){' ', 258, 'o'}, 3);
    assert_encodes(t, "a<|end|>b", NRD_ENCODE_PARSE_SPECIAL, (int32_t[]){'a', 300, 'b'}, 3);
    assert_encodes(t, "<|e", NRD_ENCODE_PARSE_SPECIAL, (int32_t[]){'<', '|', 'e'}, 3);
    assert_string_equal(nrd_tokenizer_kind(t), "byte-level BPE");
    assert_int_equal(nrd_tokenizer_vocab_size(t), 301);
    assert_true(nrd_tokenizer_is_special(t, 300));
    assert_int_equal(nrd_tokenizer_token_id(t, "hell", 4), 258);
    assert_int_equal(nrd_tokenizer_token_id(t, "<|end|>", 7), 300);
    assert_int_equal(nrd_tokenizer_token_id(t, "nope", 4), -1);
    size_t n;
    assert_memory_equal(nrd_tokenizer_token_bytes(t, ' ', &n), " ", 1);
    assert_int_equal(n, 1);
    nrd_tokenizer_token_bytes(t, 300, &n);
    assert_int_equal(n, 0);
    assert_null(nrd_tokenizer_token(t, 299, &n));
    nrd_tokenizer_close(t);
}

static void test_special_text_stays_text_unless_asked(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    assert_encodes(t, "<|end|>", 0, (int32_t[]){'<', '|', 'e', 'n', 'd', '|', '>'}, 7);
    nrd_tokenizer_close(t);
}

static void test_invalid_utf8_becomes_replacement_characters(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    /* a stray byte; a sequence cut short (one maximal part); a surrogate (three parts) */
    assert_encodes(t, "a\xff", 0, (int32_t[]){'a', 0xef, 0xbf, 0xbd}, 4);
    assert_encodes(t, "\xf0\x9f\x98", 0, (int32_t[]){0xef, 0xbf, 0xbd}, 3);
    assert_encodes(t, "\xed\xa0\x80", 0,
                   (int32_t[]){0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd}, 9);
    nrd_str s = {0};
    nrd_tokenizer_decode(t, (int32_t[]){'a', 0xf0, 0x9f, 'b', 0xff, 300, -5, 4000}, 8, 0, &s);
    assert_string_equal(s.data, "a\xef\xbf\xbd"
                                "b\xef\xbf\xbd<|end|>");
    nrd_str_clear(&s);
    nrd_tokenizer_decode(t, (int32_t[]){'a', 300, 'b'}, 3, NRD_DECODE_SKIP_SPECIAL, &s);
    assert_string_equal(s.data, "ab");
    nrd_str_fini(&s);
    nrd_tokenizer_close(t);
}

static void test_byte_fallback_and_prefix(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(spm_like_json());
    assert_encodes(t, "abc abc", NRD_ENCODE_ADD_SPECIAL, (int32_t[]){1, 8, 8}, 3);
    assert_encodes(t, "ab\xc3\xa9", 0, (int32_t[]){2, 6, 10 + 0xc3, 10 + 0xa9}, 4);
    assert_encodes(t, "", NRD_ENCODE_ADD_SPECIAL, (int32_t[]){1}, 1);
    nrd_str s = {0};
    nrd_tokenizer_decode(t, (int32_t[]){8, 8, 10 + 0xc3, 10 + 0xa9}, 4, 0, &s);
    assert_string_equal(s.data, "abc abc\xc3\xa9");
    nrd_str_fini(&s);
    nrd_tokenizer_close(t);
}

static void test_stream_gives_whole_characters_and_the_same_text(void **state)
{
    (void)state;
    nrd_tokenizer *both[2] = {from_json(spm_like_json()), from_json(byte_level_json())};
    uint64_t seed = 42;
    for (int k = 0; k < 2; k++) {
        const nrd_tokenizer *t = both[k];
        nrd_detok *d = nrd_detok_new(t, 0);
        for (int round = 0; round < 20000; round++) {
            int32_t ids[12];
            nrd_str whole = {0}, stream = {0};
            size_t n = 1 + (size_t)round % 12;
            for (size_t i = 0; i < n; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                ids[i] = (int32_t)(seed >> 33) % nrd_tokenizer_vocab_size(t);
            }
            nrd_tokenizer_decode(t, ids, n, 0, &whole);
            nrd_detok_reset(d);
            for (size_t i = 0; i < n; i++) {
                size_t before = stream.len;
                nrd_detok_push(d, ids[i], &stream);
                for (size_t at = before; at < stream.len;) {
                    uint32_t cp;
                    at += nrd_utf8_next(stream.data + at, stream.len - at, &cp);
                    assert_true(cp != NRD_UTF8_BAD);
                }
            }
            nrd_detok_flush(d, &stream);
            assert_string_equal(nrd_str_cstr(&whole), nrd_str_cstr(&stream));
            nrd_str_fini(&whole);
            nrd_str_fini(&stream);
        }
        nrd_detok_free(d);
    }
    nrd_tokenizer_close(both[0]);
    nrd_tokenizer_close(both[1]);
}

static void test_unknown_elements_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *name;
        nrd_error_code code;
    } rows[] = {
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", "WordLevel", NRD_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"vocab\":{\"a\":0}}}", "unk_token",
         NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"\",\"vocab\":{\"a\":0}}}",
         "continuing_subword_prefix", NRD_ERR_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"Nmt\"},\"model\":{}}", "Nmt",
         NRD_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{}}", "UnicodeScripts",
         NRD_ERR_UNSUPPORTED},
        {"{\"decoder\":{\"type\":\"CTC\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "CTC",
         NRD_ERR_UNSUPPORTED},
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
         "\"content\":\" \"},{\"type\":\"ByteLevel\"}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}",
         "ByteLevel in this place", NRD_ERR_UNSUPPORTED},
        {"{\"post_processor\":{\"type\":\"Odd\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}",
         "Odd", NRD_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0}}}", "dropout",
         NRD_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":\"a b\"}}", "'merges' must be an array, got string", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":null}}", "'merges' must be an array, got null", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"ignore_merges\":\"true\"}}",
         "model: 'ignore_merges' must be a boolean, got string", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"dropout\":\"0.1\"}}", "model: 'dropout' must be a number, got string", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":\"0\"}}", "model: 'unk_id' must be a number, got string", NRD_ERR_INVALID_ARG},
        {"{\"added_tokens\":{},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "'added_tokens' must be an array, got object", NRD_ERR_INVALID_ARG},
        {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\",\"special\":\"yes\"}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}",
         "added_tokens: 'special' must be a boolean, got string", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", "token id -1", NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304}}}", "4194304 is not in [0, 4194304)",
         NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999}}}", "99999999",
         NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 0",
         NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}", "used twice",
         NRD_ERR_INVALID_ARG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "empty", NRD_ERR_INVALID_ARG},
        {"{\"tokenizer_str\":7}", "tokenizer_str must be a string", NRD_ERR_INVALID_ARG},
        {"{\"tokenizer_str\":\"{\"}", "tokenizer_str: ", NRD_ERR_INVALID_ARG},
        {"{\"tokenizer_str\":\"{\\\"tokenizer_str\\\":\\\"{}\\\"}\"}", "tokenizer_str: ", NRD_ERR_INVALID_ARG},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
         "\"x\"}},{\"Sequence\":{}}],\"special_tokens\":{\"x\":{\"ids\":[7]}}},\"model\":{\"type\":"
         "\"BPE\",\"vocab\":{\"a\":0}}}",
         "token id 7", NRD_ERR_INVALID_ARG},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}}],"
         "\"special_tokens\":{}},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}",
         "Missing a comma", NRD_ERR_INVALID_ARG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_tokenizer *t = nrd_tok_new();
        nrd_error *err = nrd_tok_load_json_text(t, rows[i].json, strlen(rows[i].json));
        assert_non_null(err);
        if (!strstr(nrd_error_message(err), rows[i].name)) {
            print_error("row %zu: %s\n", i, nrd_error_message(err));
        }
        assert_int_equal(nrd_error_get_code(err), rows[i].code);
        assert_non_null(strstr(nrd_error_message(err), rows[i].name));
        nrd_error_free(err);
        nrd_tokenizer_close(t);
    }
}

static char *info_of(char *json, const char *stops) /* takes `json` */
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"encoded_vocab\":[],\"stop_token_ids\":");
    nrd_str_printf(&s, "%s,\"tokenizer_str\":", stops);
    nrd_json_put_cstr(&s, json);
    nrd_str_puts(&s, "}");
    free(json);
    return nrd_str_steal(&s);
}

static void test_the_info_of_a_tokenizer_reads_as_the_tokenizer(void **state)
{
    static const struct {
        const char *stops, *error;
    } rows[] = {{"[301]", "stop_token_ids[0] is not a token id in [0, 301)"}, {"[2,-1]", "stop_token_ids[1]"},
                {"[\"x\"]", "stop_token_ids[0]"}};
    size_t n_stops = 0;
    (void)state;
    nrd_tokenizer *t = from_json(info_of(byte_level_json(), "[null,2,3]"));
    assert_encodes(t, "hell", 0, (int32_t[]){258}, 1);
    assert_int_equal(nrd_tokenizer_eos_id(t), 2);
    assert_int_equal(*nrd_tokenizer_stop_ids(t, &n_stops), 3);
    assert_int_equal(n_stops, 1);
    nrd_tokenizer_close(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *json = info_of(byte_level_json(), rows[i].stops);
        t = nrd_tok_new();
        nrd_error *err = nrd_tok_load_json_text(t, json, strlen(json));
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), rows[i].error));
        nrd_error_free(err);
        nrd_tokenizer_close(t);
        free(json);
    }
}

static void test_a_saved_tokenizer_reads_back_equal(void **state)
{
    (void)state;
    char dir[] = "/tmp/nrd-tok-XXXXXX";
    assert_non_null(mkdtemp(dir));
    nrd_tokenizer *t = from_json(spm_like_json()), *again = NULL;
    t->eos_id = 0;
    nrd_tok_add_stop(t, 5);
    t->chat_template = nrd_xstrdup("{{ \"x\" }}\n");
    assert_null(nrd_tokenizer_save(t, dir));
    assert_null(nrd_tokenizer_open(&again, dir));
    assert_encodes(again, "abc abc\xc3\xa9<s>", 3,
                   (int32_t[]){1, 8, 8, 10 + 0xc3, 10 + 0xa9, 1}, 6);
    assert_int_equal(nrd_tokenizer_eos_id(again), 0);
    assert_string_equal(nrd_tokenizer_chat_template(again), "{{ \"x\" }}\n");
    size_t n;
    assert_int_equal(nrd_tokenizer_stop_ids(again, &n)[0], 5);
    assert_int_equal(n, 1);
    nrd_tokenizer_close(t);
    nrd_tokenizer_close(again);
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    for (int i = 0; i < 3; i++) {
        char *path = nrd_path_join(dir, names[i]);
        assert_int_equal(unlink(path), 0);
        free(path);
    }
    nrd_error *err = nrd_tokenizer_open(&again, dir);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_NOT_FOUND);
    nrd_error_free(err);
    rmdir(dir);
}

static void *encode_much(void *arg)
{
    const nrd_tokenizer *t = arg;
    for (int i = 0; i < 2000; i++) {
        nrd_ids ids = {0};
        nrd_str text = {0};
        if (nrd_tokenizer_encode(t, "hello hello there\n", 18, 0, &ids)) {
            return arg;
        }
        nrd_tokenizer_decode(t, ids.ids, ids.n, 0, &text);
        bool same = strcmp(text.data, "hello hello there\n") == 0;
        nrd_str_fini(&text);
        nrd_ids_fini(&ids);
        if (!same) {
            return arg;
        }
    }
    return NULL;
}

static void test_many_threads_share_one_tokenizer(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_much, t), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    nrd_tokenizer_close(t);
}

static void test_the_words_of_a_closed_tokenizer_are_forgotten(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        nrd_tokenizer *t = from_json(i % 2 ? spm_like_json() : byte_level_json());
        if (i % 2) {
            assert_encodes(t, "abc", 0, (int32_t[]){8}, 1);
        } else {
            assert_encodes(t, "abc", 0, (int32_t[]){'a', 'b', 'c'}, 3);
        }
        nrd_tokenizer_close(t);
    }
}

static void test_long_words_take_no_quadratic_time(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    size_t n = 4 << 20;
    char *text = nrd_xmalloc(n);
    memset(text, 'l', n);
    nrd_ids ids = {0};
    assert_null(nrd_tokenizer_encode(t, text, n, 0, &ids));
    assert_int_equal(ids.n, n / 2);
    nrd_ids_fini(&ids);
    free(text);
    nrd_tokenizer_close(t);
}

/* limits: TOKENIZER_SCRATCH */
static void test_a_long_text_leaves_no_large_memory_behind(void **state)
{
    nrd_tokenizer *t = from_json(byte_level_json());
    const size_t n = 4 << 20;
    char *text = nrd_xmalloc(n);
    nrd_ids ids = {0};

    (void)state;
    memset(text, 'l', n);
    assert_null(nrd_tokenizer_encode(t, text, n, 0, &ids));
    const nrd_tok_scratch *sc = nrd_tok_scratch_get();
    assert_in_range(sc->clean.cap + sc->norm[0].cap + sc->norm[1].cap + sc->pre[0].cap + sc->pre[1].cap, 0,
                    NRD_LIMIT_TOKENIZER_SCRATCH);
    assert_in_range(sc->cap_sym * sizeof *sc->sym + sc->cap_heap * sizeof *sc->heap, 0,
                    NRD_LIMIT_TOKENIZER_SCRATCH);
    ids.n = 0;
    assert_null(nrd_tokenizer_encode(t, "hello", 5, 0, &ids));
    assert_true(ids.n > 0);
    nrd_ids_fini(&ids);
    free(text);
    nrd_tokenizer_close(t);
}

static void test_word_lists(void **state)
{
    (void)state;
    nrd_tokenizer *t = from_json(byte_level_json());
    nrd_ids ids = {0}, ends = {0};
    const char *const words[] = {"hell", "", "ab"};
    const size_t lengths[] = {4, 0, 2};
    size_t n;
    assert_null(nrd_word_list_encode(t, words, lengths, 3, &ids, &ends));
    assert_int_equal(ids.n, 3);
    assert_int_equal(ends.n, 2);
    assert_int_equal(ends.ids[0], 1);
    assert_int_equal(ends.ids[1], 3);
    assert_null(nrd_word_list_check("stop_words_list", (int32_t[]){258, 97, 98, 1, 3, -1}, 6, &n));
    assert_int_equal(n, 2);
    assert_null(nrd_word_list_check("stop_words_list", NULL, 0, &n));
    assert_int_equal(n, 0);
    static const struct {
        int32_t v[6];
        size_t n;
    } bad[] = {{{1, 2, 3, 1, 4, -1}, 6}, {{1, 2, 3, 2, 1, -1}, 6}, {{1, 2, 3, -1, 2, -1}, 6},
               {{1, 2, 3}, 3}, {{1, 2, 3, 0, -1, -1}, 6}, {{1, 2, 3, 1, -2, -1}, 6}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nrd_error *err = nrd_word_list_check("bad_words_list", bad[i].v, bad[i].n, &n);
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), "bad_words_list"));
        nrd_error_free(err);
    }
    nrd_ids_fini(&ids);
    nrd_ids_fini(&ends);
    nrd_tokenizer_close(t);
}

/* Letters, two special tokens, and a post-processor. */
static nrd_tokenizer *with_post_processor(const char *post)
{
    nrd_str s = {0};
    char path[] = "/tmp/test-pair-XXXXXX", *dir = mkdtemp(path);
    nrd_tokenizer *t = NULL;
    nrd_str_printf(&s, "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true},{\"id\":1,\"content\":\"</s>\","
                       "\"special\":true}],\"post_processor\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,"
                       "\"</s>\":1,\"a\":2,\"b\":3},\"merges\":[]}}", post);
    assert_non_null(dir);
    char *file = nrd_path_join(dir, "tokenizer.json");
    assert_null(nrd_file_write(file, s.data, s.len));
    nrd_error *err = nrd_tokenizer_open(&t, file);
    unlink(file);
    rmdir(dir);
    free(file);
    nrd_str_fini(&s);
    if (err) {
        print_error("%s\n", nrd_error_message(err));
    }
    assert_null(err);
    return t;
}

#define SPECIAL(name, type) "{\"SpecialToken\":{\"id\":\"" name "\",\"type_id\":" #type "}}"
#define TEXT(name, type) "{\"Sequence\":{\"id\":\"" name "\",\"type_id\":" #type "}}"
#define TEMPLATE(pair)                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[" SPECIAL("<s>", 0) "," TEXT("A", 0) "],\"pair\":[" pair               \
    "],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[0]},\"</s>\":{\"id\":\"</s>\",\"ids\":[1]}}}"

static void check_pair(nrd_tokenizer *t, const int32_t *want, size_t n, size_t from)
{
    nrd_ids a = {0}, b = {0}, out = {0};
    size_t second_from = 99;
    assert_null(nrd_tokenizer_encode(t, "ab", 2, 0, &a));
    assert_null(nrd_tokenizer_encode(t, "bba", 3, 0, &b));
    assert_null(nrd_tokenizer_frame(t, &a, &b, &out, &second_from));
    assert_int_equal(out.n, n);
    assert_memory_equal(out.ids, want, n * sizeof *want);
    assert_int_equal(second_from, from);
    assert_int_equal(nrd_tokenizer_n_special(t, true), n - 5);
    nrd_ids_fini(&a);
    nrd_ids_fini(&b);
    nrd_ids_fini(&out);
}

static void test_pairs_of_texts(void **state)
{
    (void)state;
    static const struct {
        const char *post;
        int32_t ids[12];
        size_t n, from;
    } cases[] = {
        {"null", {2, 3, 3, 3, 2}, 5, 0},
        {"{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",0],\"sep\":[\"</s>\",1]}", {0, 2, 3, 1, 3, 3, 2, 1}, 8, 4},
        {"{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",0],\"sep\":[\"</s>\",1]}", {0, 2, 3, 1, 1, 3, 3, 2, 1}, 9, 0},
        {TEMPLATE(TEXT("A", 0) "," TEXT("B", 1)), {2, 3, 3, 3, 2}, 5, 2},
        {TEMPLATE(SPECIAL("<s>", 0) "," TEXT("A", 0) "," SPECIAL("<s>", 1) "," TEXT("B", 1)), {0, 2, 3, 0, 3, 3, 2}, 7, 3},
        {TEMPLATE(""), {0, 2, 3, 0, 3, 3, 2}, 7, 0}, /* as two texts */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nrd_tokenizer *t = with_post_processor(cases[i].post), *again = NULL;
        char dir[] = "/tmp/test-pair-XXXXXX";
        check_pair(t, cases[i].ids, cases[i].n, cases[i].from);
        assert_non_null(mkdtemp(dir)); /* what is saved joins them likewise */
        assert_null(nrd_tokenizer_save(t, dir));
        assert_null(nrd_tokenizer_open(&again, dir));
        check_pair(again, cases[i].ids, cases[i].n, i == 5 ? 0 : cases[i].from);
        nrd_tokenizer_close(again);
        nrd_tokenizer_close(t);
        const char *files[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
        for (size_t k = 0; k < 3; k++) {
            char *file = nrd_path_join(dir, files[k]);
            unlink(file);
            free(file);
        }
        rmdir(dir);
    }
    const char *strange[] = {TEMPLATE(TEXT("B", 0) "," TEXT("A", 1)), TEMPLATE(TEXT("A", 1) "," TEXT("B", 0)),
                             TEMPLATE(TEXT("A", 0)), TEMPLATE(TEXT("A", 0) "," TEXT("B", 2))};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        nrd_tokenizer *t = with_post_processor(strange[i]); /* texts alone still work */
        nrd_ids a = {0}, out = {0};
        size_t from;
        nrd_error *err = nrd_tokenizer_frame(t, &a, &a, &out, &from);
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNSUPPORTED);
        nrd_error_free(err);
        assert_null(nrd_tokenizer_frame(t, &a, NULL, &out, &from));
        assert_int_equal(out.n, 1);
        nrd_ids_fini(&out);
        nrd_tokenizer_close(t);
    }
}

static void test_the_longer_text_is_cut_first(void **state)
{
    (void)state;
    static const size_t cases[][5] = { /* both, room, what stays: as tokenizers 0.22 cuts them */
        {5, 9, 14, 5, 9}, {5, 9, 12, 5, 7}, {9, 5, 12, 7, 5}, {5, 9, 10, 5, 5}, {5, 9, 9, 4, 5}, {9, 5, 9, 5, 4},
        {5, 9, 1, 0, 1}, {5, 5, 7, 3, 4}, {0, 9, 4, 0, 4}, {9, 0, 4, 4, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t a = cases[i][0], b = cases[i][1];
        nrd_tokenizer_cut_longest(&a, &b, cases[i][2]);
        assert_int_equal(a, cases[i][3]);
        assert_int_equal(b, cases[i][4]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_bpe_merges_by_rank),
        cmocka_unit_test(test_special_text_stays_text_unless_asked),
        cmocka_unit_test(test_invalid_utf8_becomes_replacement_characters),
        cmocka_unit_test(test_byte_fallback_and_prefix),
        cmocka_unit_test(test_stream_gives_whole_characters_and_the_same_text),
        cmocka_unit_test(test_unknown_elements_are_refused_by_name),
        cmocka_unit_test(test_the_info_of_a_tokenizer_reads_as_the_tokenizer),
        cmocka_unit_test(test_a_saved_tokenizer_reads_back_equal),
        cmocka_unit_test(test_many_threads_share_one_tokenizer),
        cmocka_unit_test(test_the_words_of_a_closed_tokenizer_are_forgotten),
        cmocka_unit_test(test_long_words_take_no_quadratic_time),
        cmocka_unit_test(test_a_long_text_leaves_no_large_memory_behind),
        cmocka_unit_test(test_pairs_of_texts),
        cmocka_unit_test(test_the_longer_text_is_cut_first),
        cmocka_unit_test(test_word_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
