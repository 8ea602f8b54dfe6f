/* SPDX-License-Identifier: Apache-2.0
 * Tokenizers whose loading or use runs out of memory: an error each time, and nothing is read or kept that is not
 * there. */
#include "unit/no_memory.h"

#include "text/internal.h"

typedef struct model {
    const char *data;
    size_t n;
    nrd_error *(*load)(nrd_tokenizer *t, const void *data, size_t n);
    const char *text;
    int32_t ids[8]; /* of the text */
    size_t n_ids;
} model;

static nrd_error *load_json(nrd_tokenizer *t, const void *data, size_t n)
{
    return nrd_tok_load_json_text(t, data, n);
}

static nrd_error *load_and_encode(void *user)
{
    const model *m = user;
    nrd_tokenizer *t = nrd_tok_new();
    nrd_ids ids = {0};

    if (!t) {
        return nrd_error_no_memory();
    }
    nrd_error *err = m->load(t, m->data, m->n);
    err = err ? err : nrd_tokenizer_encode(t, m->text, strlen(m->text), 0, &ids);
    if (!err) {
        assert_int_equal(ids.n, m->n_ids);
        assert_memory_equal(ids.ids, m->ids, m->n_ids * sizeof *m->ids);
    }
    nrd_ids_fini(&ids);
    nrd_tokenizer_close(t);
    return err;
}

#define SPACE "\xe2\x96\x81"

static void test_a_json_file(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE "\"},"
        "\"content\":\" \"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"merges\":[\"a b\",\"" SPACE " ab\"],"
        "\"vocab\":{\"<unk>\":0,\"" SPACE "\":1,\"a\":2,\"b\":3,\"ab\":4,\"" SPACE "ab\":5}}}";
    model m = {json, sizeof json - 1, load_json, "ab ab", {5, 5}, 2};
    (void)state;
    assert_true(each_allocation_fails(load_and_encode, &m) > 20);
}

static void put_field(nrd_str *out, int number, const void *data, size_t n)
{
    assert_true(number < 16 && n < 128);
    nrd_str_putc(out, (char)(number << 3 | 2));
    nrd_str_putc(out, (char)n);
    nrd_str_append(out, data, n);
}

/* A piece of SentencePiece's model: its text, a score, its type. */
static void put_piece(nrd_str *out, const char *text, float score, int type)
{
    nrd_str piece = {0};
    put_field(&piece, 1, text, strlen(text));
    nrd_str_putc(&piece, 2 << 3 | 5);
    nrd_str_append(&piece, &score, sizeof score);
    nrd_str_append(&piece, (char[]){3 << 3, (char)type}, 2);
    put_field(out, 1, piece.data, piece.len);
    nrd_str_fini(&piece);
}

static void test_a_sentencepiece_file(void **state)
{
    static const char trainer[] = {3 << 3, 2}; /* BPE */
    static const char normalizer[] = {3 << 3, 1, 4 << 3, 1, 5 << 3, 1};
    nrd_str file = {0};
    (void)state;
    put_piece(&file, "<unk>", 0, 2);
    put_piece(&file, SPACE, -3, 1);
    put_piece(&file, "a", -2, 1);
    put_piece(&file, SPACE "a", -1, 1);
    put_field(&file, 2, trainer, sizeof trainer);
    put_field(&file, 3, normalizer, sizeof normalizer);
    model m = {file.data, file.len, nrd_tok_load_spm_bytes, "  a a  ", {3, 3}, 2};
    assert_true(each_allocation_fails(load_and_encode, &m) > 20);
    nrd_str_fini(&file);
}

/* In a file's strings \u0000 is a character like others. */
static void test_texts_with_a_nul_are_kept_whole(void **state)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\\u0000bc\"},\"content\":\"\\u0000de\"},"
        "\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"f\\u0000gh\"},\"content\":\"i\\u0000jk\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    nrd_tokenizer *t = nrd_tok_new();
    (void)state;
    assert_null(nrd_tok_load_json_text(t, json, sizeof json - 1));
    assert_int_equal(t->norm[0].pat.n, 4);
    assert_memory_equal(t->norm[0].pat.text, "a\0bc", 5);
    assert_int_equal(t->norm[0].content_n, 3);
    assert_memory_equal(t->norm[0].content, "\0de", 4);
    assert_int_equal(t->dec[0].from_n, 4);
    assert_memory_equal(t->dec[0].from, "f\0gh", 5);
    assert_int_equal(t->dec[0].to_n, 4);
    assert_memory_equal(t->dec[0].to, "i\0jk", 5);
    nrd_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_json_file),
        cmocka_unit_test(test_a_sentencepiece_file),
        cmocka_unit_test(test_texts_with_a_nul_are_kept_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
