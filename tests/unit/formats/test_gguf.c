/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/gguf.h"
#include "unit/formats/damage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void put_text(nrd_str *s, const char *text)
{
    put_u64(s, strlen(text));
    nrd_str_puts(s, text);
}

static void put_key(nrd_str *s, const char *key, uint32_t type)
{
    put_text(s, key);
    put_u32(s, type);
}

static void put_tensor(nrd_str *s, const char *name, uint64_t cols, uint64_t rows, uint32_t type,
                       uint64_t offset)
{
    put_text(s, name);
    put_u32(s, rows ? 2 : 1);
    put_u64(s, cols);
    if (rows) {
        put_u64(s, rows);
    }
    put_u32(s, type);
    put_u64(s, offset);
}

static void pad(nrd_str *s, size_t align)
{
    while (s->len % align) {
        put_u8(s, 0);
    }
}

enum { HEADER_COUNTS = 8, N_VALUES_AT = 16 };

/* Seven values of different kinds, three tensors: f32 [4], q4_0 [2][32], q8_k [1][256]. */
static nrd_str small_file(uint32_t version)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "GGUF");
    put_u32(&s, version);
    put_u64(&s, 3);
    put_u64(&s, 7);
    put_key(&s, "general.architecture", NRD_GGUF_STRING);
    put_text(&s, "llama");
    put_key(&s, "llama.block_count", NRD_GGUF_U32);
    put_u32(&s, 30);
    put_key(&s, "negative", NRD_GGUF_I16);
    put_u16(&s, (uint16_t)-7);
    put_key(&s, "flag", NRD_GGUF_BOOL);
    put_u8(&s, 1);
    put_key(&s, "real", NRD_GGUF_F32);
    float f = 2.5f;
    nrd_str_append(&s, &f, sizeof f);
    put_key(&s, "words", NRD_GGUF_ARRAY);
    put_u32(&s, NRD_GGUF_STRING);
    put_u64(&s, 3);
    put_text(&s, "a");
    put_text(&s, "");
    put_text(&s, "ccc");
    put_key(&s, "numbers", NRD_GGUF_ARRAY);
    put_u32(&s, NRD_GGUF_I32);
    put_u64(&s, 2);
    put_u32(&s, 5);
    put_u32(&s, (uint32_t)-6);
    put_tensor(&s, "v", 4, 0, 0, 0);
    put_tensor(&s, "q", 32, 2, 2, 32);
    put_tensor(&s, "z", 256, 1, 15, 96);
    pad(&s, 32);
    for (int i = 0; i < 96 + 292; i++) {
        put_u8(&s, (uint8_t)i);
    }
    return s;
}

static bool open_walk(const void *data, size_t n)
{
    nrd_gguf *g = NULL;
    nrd_error *err = nrd_gguf_open_memory(&g, data, n);
    if (err) {
        nrd_error_free(err);
        return false;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < nrd_gguf_n_values(g); i++) {
        const nrd_gguf_value *v = nrd_gguf_value_at(g, i);
        nrd_gguf_span s;
        sum += touch(v->data, v->data_bytes);
        for (uint64_t k = 0; v->type == NRD_GGUF_ARRAY && k < v->n; k++) {
            if (nrd_gguf_arr_str(v, k, &s)) {
                sum += touch(s.data, s.n);
            }
        }
    }
    for (size_t i = 0; i < nrd_gguf_n_tensors(g); i++) {
        sum += touch(nrd_gguf_tensor_at(g, i)->data, nrd_gguf_tensor_at(g, i)->data_bytes);
    }
    nrd_gguf_close(g);
    return sum != 1; /* keeps the reads */
}

static nrd_gguf *open_or_die(const nrd_str *s)
{
    nrd_gguf *g = NULL;
    nrd_error *err = nrd_gguf_open_memory(&g, s->data, s->len);
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        nrd_error_free(err);
    }
    assert_non_null(g);
    return g;
}

static void test_values_are_found_with_their_types(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        nrd_str s = small_file(version);
        nrd_gguf *g = open_or_die(&s);
        nrd_gguf_span text;
        double num;
        assert_true(nrd_gguf_str(g, "general.architecture", &text));
        assert_int_equal(text.n, 5);
        assert_memory_equal(text.data, "llama", 5);
        assert_int_equal(nrd_gguf_int(g, "llama.block_count", -1), 30);
        assert_int_equal(nrd_gguf_int(g, "negative", 0), -7);
        assert_true(nrd_gguf_bool(g, "flag", false));
        assert_true(nrd_gguf_num(g, "real", 0) == 2.5);
        assert_int_equal(nrd_gguf_int(g, "real", -1), -1);
        assert_int_equal(nrd_gguf_int(g, "absent", 12), 12);
        assert_false(nrd_gguf_str(g, "flag", &text));
        const nrd_gguf_value *words = nrd_gguf_find(g, "words");
        assert_true(nrd_gguf_arr_str(words, 2, &text));
        assert_int_equal(text.n, 3);
        assert_memory_equal(text.data, "ccc", 3);
        assert_true(nrd_gguf_arr_str(words, 1, &text));
        assert_int_equal(text.n, 0);
        assert_false(nrd_gguf_arr_str(words, 3, &text));
        assert_true(nrd_gguf_arr_num(nrd_gguf_find(g, "numbers"), 1, &num));
        assert_true(num == -6);
        nrd_gguf_close(g);
        nrd_str_fini(&s);
    }
}

static void test_tensors_have_shape_type_and_span(void **state)
{
    (void)state;
    nrd_str s = small_file(3);
    nrd_gguf *g = open_or_die(&s);
    const nrd_gguf_tensor *q = nrd_gguf_find_tensor(g, "q"), *z = nrd_gguf_find_tensor(g, "z");
    assert_int_equal(q->dtype, NRD_DTYPE_Q4_0);
    assert_int_equal(q->dims[0], 32);
    assert_int_equal(q->dims[1], 2);
    assert_int_equal(q->data_bytes, 36);
    assert_int_equal(((const uint8_t *)q->data)[0], 32);
    assert_int_equal(z->dtype, NRD_DTYPE_NONE); /* listed, so that a message can name it */
    assert_string_equal(nrd_gguf_tensor_type_name(z->type), "Q8_K");
    assert_null(nrd_gguf_find_tensor(g, "nothing"));
    nrd_gguf_close(g);
    nrd_str_fini(&s);
}

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    nrd_str s = small_file(3);
    assert_true(open_walk(s.data, s.len));
    assert_int_equal(try_truncations(&s, open_walk), 0);
    nrd_str_fini(&s);
}

static void test_flipped_bits_never_read_outside(void **state)
{
    (void)state;
    nrd_str s = small_file(3);
    size_t refused = try_bit_flips(&s, s.len, open_walk);
    assert_true(refused > 8 * 24); /* magic, version and the counts at least */
    nrd_str_fini(&s);
}

static void test_counts_beyond_the_file_are_refused_by_name(void **state)
{
    (void)state;
    nrd_gguf *g = NULL;
    nrd_str s = small_file(3);
    uint64_t huge = UINT64_MAX;
    memcpy(s.data + HEADER_COUNTS, &huge, 8);
    assert_true(is_error(nrd_gguf_open_memory(&g, s.data, s.len), "tensor count"));
    memcpy(s.data + HEADER_COUNTS, &(uint64_t){3}, 8);
    memcpy(s.data + N_VALUES_AT, &huge, 8);
    assert_true(is_error(nrd_gguf_open_memory(&g, s.data, s.len), "metadata count"));
    assert_null(g);
    nrd_str_fini(&s);
}

static void test_other_files_are_named(void **state)
{
    (void)state;
    nrd_gguf *g = NULL;
    const char big_endian[8] = {'G', 'G', 'U', 'F', 0, 0, 0, 3};
    assert_true(is_error(nrd_gguf_open_memory(&g, "PK\3\4....", 8), "not a GGUF file"));
    assert_true(is_error(nrd_gguf_open_memory(&g, big_endian, 8), "big-endian"));
    assert_true(is_error(nrd_gguf_open(&g, "/nonexistent.gguf"), "/nonexistent.gguf"));
}

static void test_a_key_or_tensor_that_appears_twice_is_refused(void **state)
{
    (void)state;
    nrd_gguf *g = NULL;
    nrd_str s = {0};
    nrd_str_puts(&s, "GGUF");
    put_u32(&s, 3);
    put_u64(&s, 0);
    put_u64(&s, 2);
    for (int i = 0; i < 2; i++) {
        put_key(&s, "k", NRD_GGUF_U8);
        put_u8(&s, 1);
    }
    assert_true(is_error(nrd_gguf_open_memory(&g, s.data, s.len), "'k' appears twice"));
    nrd_str_fini(&s);
    nrd_str_puts(&s, "GGUF");
    put_u32(&s, 3);
    put_u64(&s, 2);
    put_u64(&s, 0);
    put_tensor(&s, "t", 1, 0, 0, 0);
    put_tensor(&s, "t", 1, 0, 0, 0);
    pad(&s, 32);
    put_u64(&s, 0);
    assert_true(is_error(nrd_gguf_open_memory(&g, s.data, s.len), "'t' appears twice"));
    nrd_str_fini(&s);
}

static void test_sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    nrd_gguf *g = NULL;
    nrd_str s = {0};
    nrd_str_puts(&s, "GGUF");
    put_u32(&s, 3);
    put_u64(&s, 1);
    put_u64(&s, 0);
    put_tensor(&s, "t", (uint64_t)1 << 40, (uint64_t)1 << 40, 0, 0);
    assert_true(is_error(nrd_gguf_open_memory(&g, s.data, s.len), "2^48"));
    nrd_str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_found_with_their_types),
        cmocka_unit_test(test_tensors_have_shape_type_and_span),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_flipped_bits_never_read_outside),
        cmocka_unit_test(test_counts_beyond_the_file_are_refused_by_name),
        cmocka_unit_test(test_other_files_are_named),
        cmocka_unit_test(test_a_key_or_tensor_that_appears_twice_is_refused),
        cmocka_unit_test(test_sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
