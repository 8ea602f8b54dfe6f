/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "unit/formats/damage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

static nrd_str file_of(const char *header, size_t data_bytes)
{
    nrd_str s = {0};
    put_u64(&s, strlen(header));
    nrd_str_puts(&s, header);
    for (size_t i = 0; i < data_bytes; i++) {
        put_u8(&s, (uint8_t)i);
    }
    return s;
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"b\":\"q4_0 2 32\"},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"b\":{\"dtype\":\"U8\",\"shape\":[2,18],\"data_offsets\":[24,60]},"
    "\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[60,62]}}";

static bool open_walk(const void *data, size_t n)
{
    nrd_safetensors *s = NULL;
    nrd_error *err = nrd_safetensors_open_memory(&s, data, n);
    if (err) {
        nrd_error_free(err);
        return false;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < nrd_safetensors_n(s); i++) {
        const nrd_safetensor *t = nrd_safetensors_at(s, i);
        sum += touch(t->data, t->data_bytes);
    }
    nrd_safetensors_close(s);
    return sum != 1;
}

static void test_tensors_are_read_and_block_types_restored(void **state)
{
    (void)state;
    nrd_safetensors *s = NULL;
    nrd_str f = file_of(good, 62);
    assert_null(nrd_safetensors_open_memory(&s, f.data, f.len));
    assert_int_equal(nrd_safetensors_n(s), 3);
    const nrd_safetensor *a = nrd_safetensors_find(s, "a"), *b = nrd_safetensors_find(s, "b");
    assert_int_equal(a->dtype, NRD_DTYPE_F32);
    assert_int_equal(a->dims[1], 3);
    assert_int_equal(b->dtype, NRD_DTYPE_Q4_0);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->dims[1], 32);
    assert_int_equal(((const uint8_t *)b->data)[0], 24);
    assert_int_equal(nrd_safetensors_find(s, "s")->n_dims, 0);
    assert_null(nrd_safetensors_find(s, "zz"));
    assert_string_equal(nrd_safetensors_metadata(s, "format"), "pt");
    nrd_safetensors_close(s);
    nrd_str_fini(&f);
}

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    nrd_str f = file_of(good, 62);
    assert_true(open_walk(f.data, f.len));
    assert_int_equal(try_truncations(&f, open_walk), 0);
    nrd_str_fini(&f);
}

static void test_flipped_bits_never_read_outside(void **state)
{
    (void)state;
    nrd_str f = file_of(good, 62);
    size_t refused = try_bit_flips(&f, f.len, open_walk);
    assert_true(refused > 8 * 8); /* the header's length at least */
    nrd_str_fini(&f);
}

static void test_each_kind_of_lie_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header, *message;
    } rows[] = {
        {"[]", "must be an object"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", "F31"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
         "2^48"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "need 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[60,64]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":\"x\"}}", "'data_offsets' must be two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}", "must be two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}",
         "tensors 'b' and 'a' share bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "twice"},
        {"{\"__metadata__\":{\"a\":\"q4_0 1 33\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1,18],\"data_offsets\":[0,18]}}",
         "q4_0 1 33"},
        {"{\"__metadata__\":{\"a\":\"q4_0 2 32\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1,18],\"data_offsets\":[0,18]}}",
         "need"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_safetensors *s = NULL;
        nrd_str f = file_of(rows[i].header, 62);
        nrd_error *err = nrd_safetensors_open_memory(&s, f.data, f.len);
        if (err && !strstr(nrd_error_message(err), rows[i].message)) {
            print_error("row %zu: %s\n", i, nrd_error_message(err));
        }
        assert_true(is_error(err, rows[i].message));
        nrd_str_fini(&f);
    }
}

/* Also in another order than they lie in, empty ones among them. */
static void test_tensors_side_by_side_are_taken(void **state)
{
    (void)state;
    nrd_safetensors *s = NULL;
    nrd_str f = file_of("{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                        "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}", 12);
    assert_null(nrd_safetensors_open_memory(&s, f.data, f.len));
    assert_int_equal(nrd_safetensors_find(s, "b")->data_bytes, 8);
    assert_int_equal(nrd_safetensors_find(s, "e")->data_bytes, 0);
    nrd_safetensors_close(s);
    nrd_str_fini(&f);
}

static void test_what_is_written_is_read_back(void **state)
{
    (void)state;
    char path[] = "/tmp/nereid-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    uint8_t bytes[24 + 36 + 8];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 7);
    }
    nrd_safetensors_writer *w = NULL;
    assert_null(nrd_safetensors_writer_open(&w, path));
    assert_null(nrd_safetensors_writer_add(w, "x \"quoted\"", NRD_DTYPE_F32,
                                           (const int64_t[]){2, 3}, 2));
    assert_null(nrd_safetensors_writer_add(w, "q", NRD_DTYPE_Q4_0, (const int64_t[]){2, 32}, 2));
    assert_null(nrd_safetensors_writer_add(w, "v", NRD_DTYPE_BF16, (const int64_t[]){4}, 1));
    assert_true(is_error(nrd_safetensors_writer_add(w, "odd", NRD_DTYPE_Q4_0,
                                                    (const int64_t[]){2, 33}, 2), "block"));
    assert_null(nrd_safetensors_writer_begin(w));
    assert_null(nrd_safetensors_writer_write(w, bytes, 30)); /* pieces need not be tensors */
    assert_null(nrd_safetensors_writer_write(w, bytes + 30, sizeof bytes - 30));
    assert_null(nrd_safetensors_writer_commit(w));

    nrd_safetensors *s = NULL;
    assert_null(nrd_safetensors_open(&s, path));
    assert_int_equal(nrd_safetensors_n(s), 3);
    assert_memory_equal(nrd_safetensors_find(s, "x \"quoted\"")->data, bytes, 24);
    const nrd_safetensor *q = nrd_safetensors_find(s, "q");
    assert_int_equal(q->dtype, NRD_DTYPE_Q4_0);
    assert_int_equal(q->dims[1], 32);
    assert_memory_equal(q->data, bytes + 24, 36);
    assert_memory_equal(nrd_safetensors_find(s, "v")->data, bytes + 60, 8);
    nrd_safetensors_close(s);
    unlink(path);
}

static void test_an_aborted_file_leaves_nothing(void **state)
{
    (void)state;
    char dir[] = "/tmp/nereid-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = nrd_path_join(dir, "x.safetensors");
    nrd_safetensors_writer *w = NULL;
    assert_null(nrd_safetensors_writer_open(&w, path));
    assert_null(nrd_safetensors_writer_begin(w));
    nrd_safetensors_writer_abort(w);
    char **names;
    size_t n;
    assert_null(nrd_dir_list(&names, &n, dir));
    assert_int_equal(n, 0);
    nrd_names_free(names, n);
    rmdir(dir);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_are_read_and_block_types_restored),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_flipped_bits_never_read_outside),
        cmocka_unit_test(test_each_kind_of_lie_is_refused),
        cmocka_unit_test(test_tensors_side_by_side_are_taken),
        cmocka_unit_test(test_what_is_written_is_read_back),
        cmocka_unit_test(test_an_aborted_file_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
