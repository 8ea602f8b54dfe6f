/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch_bin.h"
#include "unit/formats/damage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* ---- writing a zip of stored members ---- */

typedef struct {
    nrd_str file, directory;
    uint16_t n;
} zip;

static void add_member(zip *z, const char *name, const void *data, size_t n, uint16_t method)
{
    uint32_t at = (uint32_t)z->file.len;
    put_u32(&z->file, 0x04034b50u);
    put_u16(&z->file, 20);
    put_u16(&z->file, 0);
    put_u16(&z->file, method);
    put_u32(&z->file, 0); /* time */
    put_u32(&z->file, 0); /* checksum */
    put_u32(&z->file, (uint32_t)n);
    put_u32(&z->file, (uint32_t)n);
    put_u16(&z->file, (uint16_t)strlen(name));
    put_u16(&z->file, 0);
    nrd_str_puts(&z->file, name);
    nrd_str_append(&z->file, data, n);
    put_u32(&z->directory, 0x02014b50u);
    put_u16(&z->directory, 20);
    put_u16(&z->directory, 20);
    put_u16(&z->directory, 0);
    put_u16(&z->directory, method);
    put_u32(&z->directory, 0);
    put_u32(&z->directory, 0);
    put_u32(&z->directory, (uint32_t)n);
    put_u32(&z->directory, (uint32_t)n);
    put_u16(&z->directory, (uint16_t)strlen(name));
    put_u16(&z->directory, 0);
    put_u16(&z->directory, 0);
    put_u16(&z->directory, 0);
    put_u16(&z->directory, 0);
    put_u32(&z->directory, 0);
    put_u32(&z->directory, at);
    nrd_str_puts(&z->directory, name);
    z->n++;
}

static nrd_str finish(zip *z)
{
    uint32_t at = (uint32_t)z->file.len;
    nrd_str_append(&z->file, z->directory.data, z->directory.len);
    put_u32(&z->file, 0x06054b50u);
    put_u32(&z->file, 0);
    put_u16(&z->file, z->n);
    put_u16(&z->file, z->n);
    put_u32(&z->file, (uint32_t)z->directory.len);
    put_u32(&z->file, at);
    put_u16(&z->file, 0);
    nrd_str_fini(&z->directory);
    return z->file;
}

/* ---- writing pickles ---- */

static void put_text(nrd_str *s, const char *text)
{
    put_u8(s, 'X');
    put_u32(s, (uint32_t)strlen(text));
    nrd_str_puts(s, text);
}

/* torch._utils._rebuild_tensor_v2(storage, offset, (rows, cols), (stride, 1), False, OrderedDict()) */
static void put_tensor(nrd_str *s, const char *name, const char *storage_type, const char *key,
                       uint8_t elements, uint8_t offset, uint8_t rows, uint8_t cols, uint8_t stride)
{
    put_text(s, name);
    nrd_str_puts(s, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_text(s, "storage");
    nrd_str_printf(s, "ctorch\n%s\n", storage_type);
    put_text(s, key);
    put_text(s, "cpu");
    put_u8(s, 'K');
    put_u8(s, elements);
    nrd_str_puts(s, "tQK");
    put_u8(s, offset);
    put_u8(s, 'K');
    put_u8(s, rows);
    put_u8(s, 'K');
    put_u8(s, cols);
    put_u8(s, 0x86);
    put_u8(s, 'K');
    put_u8(s, stride);
    nrd_str_puts(s, "K\1");
    put_u8(s, 0x86);
    put_u8(s, 0x89);
    nrd_str_puts(s, "ccollections\nOrderedDict\n)RtR");
}

static nrd_str small_pickle(uint8_t stride, uint8_t rows)
{
    nrd_str p = {0};
    put_u8(&p, 0x80);
    put_u8(&p, 2);
    nrd_str_puts(&p, "ccollections\nOrderedDict\n)Rq");
    put_u8(&p, 0);
    put_u8(&p, '(');
    put_tensor(&p, "w", "FloatStorage", "0", 8, 2, rows, 3, stride);
    put_tensor(&p, "h", "HalfStorage", "1", 4, 0, 1, 4, 4);
    put_text(&p, "epoch");
    nrd_str_puts(&p, "K\5u.");
    return p;
}

static nrd_str small_file(uint8_t stride, uint8_t rows, uint16_t method)
{
    zip z = {0};
    nrd_str p = small_pickle(stride, rows);
    uint8_t data[32];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)i;
    }
    add_member(&z, "archive/data.pkl", p.data, p.len, method);
    add_member(&z, "archive/data/0", data, 32, 0);
    add_member(&z, "archive/data/1", data, 8, 0);
    nrd_str_fini(&p);
    return finish(&z);
}

/* As PyTorch wrote before 1.6; version: the low byte of its number, 0xe9. last: the key of the second storage. */
static nrd_str old_file(uint8_t version, char last)
{
    static const char magic[] = "\x80\2\x8a\x0al\xfc\x9c"
                                "F\xf9 j\xa8P\x19.";
    nrd_str f = {0}, p = small_pickle(3, 2);
    const uint8_t sizes[2][8] = {{8}, {4}};

    nrd_str_append(&f, magic, sizeof magic - 1);
    nrd_str_append(&f, "\x80\2M", 3);
    put_u8(&f, version);
    nrd_str_append(&f, "\3.\x80\2}.", 6);
    nrd_str_append(&f, p.data, p.len);
    nrd_str_append(&f, "\x80\2](X\1\0\0\0", 9);
    put_u8(&f, '0');
    nrd_str_append(&f, "X\1\0\0\0", 5);
    put_u8(&f, (uint8_t)last);
    nrd_str_append(&f, "e.", 2);
    for (int i = 0; i < 2; i++) {
        nrd_str_append(&f, (const char *)sizes[i], 8);
        for (int k = 0; k < (i ? 8 : 32); k++) {
            put_u8(&f, (uint8_t)k);
        }
    }
    nrd_str_fini(&p);
    return f;
}

static nrd_str file_of_pickle(const char *code, size_t n)
{
    zip z = {0};
    add_member(&z, "a/data.pkl", code, n, 0);
    return finish(&z);
}

static bool open_walk(const void *data, size_t n)
{
    nrd_torch_bin *t = NULL;
    nrd_error *err = nrd_torch_bin_open_memory(&t, data, n);
    if (err) {
        nrd_error_free(err);
        return false;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < nrd_torch_bin_n(t); i++) {
        const nrd_torch_tensor *e = nrd_torch_bin_at(t, i);
        sum += touch(e->data, e->data_bytes) + touch(e->name, strlen(e->name));
    }
    nrd_torch_bin_close(t);
    return sum != 1;
}

static void test_tensors_are_views_of_their_storages(void **state)
{
    (void)state;
    nrd_torch_bin *t = NULL;
    nrd_str f = small_file(3, 2, 0);
    assert_null(nrd_torch_bin_open_memory(&t, f.data, f.len));
    assert_int_equal(nrd_torch_bin_n(t), 2); /* the epoch is no tensor */
    const nrd_torch_tensor *w = nrd_torch_bin_at(t, 0), *h = nrd_torch_bin_at(t, 1);
    assert_string_equal(w->name, "w");
    assert_int_equal(w->dtype, NRD_DTYPE_F32);
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->dims[0], 2);
    assert_int_equal(w->dims[1], 3);
    assert_int_equal(w->data_bytes, 24);
    assert_int_equal(((const uint8_t *)w->data)[0], 8); /* two floats behind the start */
    assert_string_equal(h->name, "h");
    assert_int_equal(h->dtype, NRD_DTYPE_F16);
    nrd_torch_bin_close(t);
    nrd_str_fini(&f);
}

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    nrd_str f = small_file(3, 2, 0);
    assert_true(open_walk(f.data, f.len));
    assert_int_equal(try_truncations(&f, open_walk), 0);
    nrd_str_fini(&f);
}

static void test_flipped_bits_never_read_outside(void **state)
{
    (void)state;
    nrd_str f = small_file(3, 2, 0);
    assert_true(try_bit_flips(&f, f.len, open_walk) > 100);
    nrd_str_fini(&f);
}

static void test_tensors_that_cannot_be_mapped_are_refused(void **state)
{
    (void)state;
    nrd_torch_bin *t = NULL;
    nrd_str turned = small_file(1, 2, 0), outside = small_file(3, 3, 0), packed = small_file(3, 2, 8);
    assert_true(is_error(nrd_torch_bin_open_memory(&t, turned.data, turned.len), "contiguous"));
    assert_true(is_error(nrd_torch_bin_open_memory(&t, outside.data, outside.len), "storage of 8"));
    assert_true(is_error(nrd_torch_bin_open_memory(&t, packed.data, packed.len), "compressed"));
    assert_true(is_error(nrd_torch_bin_open_memory(&t, "\x80\2..........................", 28), "no end of a zip directory"));
    nrd_str_fini(&turned);
    nrd_str_fini(&outside);
    nrd_str_fini(&packed);
}

static void test_files_before_pytorch_1_6_are_read(void **state)
{
    (void)state;
    nrd_torch_bin *t = NULL;
    nrd_str f = old_file(0xe9, '1'), newer = old_file(0xea, '1'), lost = old_file(0xe9, '2');

    assert_null(nrd_torch_bin_open_memory(&t, f.data, f.len));
    assert_int_equal(nrd_torch_bin_n(t), 2);
    assert_int_equal(((const uint8_t *)nrd_torch_bin_at(t, 0)->data)[0], 8); /* two floats behind the start */
    assert_string_equal(nrd_torch_bin_at(t, 1)->name, "h");
    assert_int_equal(nrd_torch_bin_at(t, 1)->data_bytes, 8);
    nrd_torch_bin_close(t);
    assert_true(is_error(nrd_torch_bin_open_memory(&t, newer.data, newer.len), "expected 1001"));
    assert_true(is_error(nrd_torch_bin_open_memory(&t, lost.data, lost.len), "storage 1 is none that the pickle names"));
    assert_int_equal(try_truncations(&f, open_walk), 0);
    assert_true(try_bit_flips(&f, f.len, open_walk) > 100);
    nrd_str_fini(&f);
    nrd_str_fini(&newer);
    nrd_str_fini(&lost);
}

static void test_an_objects_state_is_a_dictionary(void **state)
{
    (void)state;
    /* {"args": Namespace(wide=True, name="x", none=None), "model": {}} */
    static const char code[] = "\x80\2}(X\4\0\0\0argscargparse\nNamespace\n)\x81}(X\4\0\0\0wide\x88X\4\0\0\0nameX\1\0\0\0x"
                               "X\4\0\0\0noneNubX\5\0\0\0model}u.";
    nrd_torch_bin *t = NULL;
    nrd_str f = file_of_pickle(code, sizeof code - 1);
    int64_t n = 0;
    assert_null(nrd_torch_bin_open_memory(&t, f.data, f.len));
    assert_true(nrd_torch_bin_int(t, "args/wide", &n));
    assert_int_equal(n, 1);
    assert_string_equal(nrd_torch_bin_text(t, "args/name"), "x");
    assert_null(nrd_torch_bin_text(t, "args/none"));
    assert_null(nrd_torch_bin_text(t, "args/wide"));
    nrd_torch_bin_close(t);
    nrd_str_fini(&f);
}

static void test_numbers_beside_the_tensors_are_told(void **state)
{
    (void)state;
    /* {"dims": {"n_mels": 80, "name": "x", "deep": {}}, "epoch": 5, "model_state_dict": {}} */
    static const char code[] = "\x80\2}(X\4\0\0\0dims}(X\6\0\0\0n_melsKPX\4\0\0\0nameX\1\0\0\0xX\4\0\0\0deep}u"
                               "X\5\0\0\0epochK\5X\x10\0\0\0model_state_dict}u.";
    nrd_torch_bin *t = NULL;
    nrd_str f = file_of_pickle(code, sizeof code - 1);
    int64_t n = 0;
    assert_null(nrd_torch_bin_open_memory(&t, f.data, f.len));
    assert_true(nrd_torch_bin_int(t, "dims/n_mels", &n));
    assert_int_equal(n, 80);
    assert_false(nrd_torch_bin_int(t, "dims/name", &n));
    assert_false(nrd_torch_bin_int(t, "dims/deep", &n));
    assert_false(nrd_torch_bin_int(t, "epoch", &n)); /* of no dictionary */
    nrd_torch_bin_close(t);
    nrd_str_fini(&f);
}

static void test_names_in_a_pickle_are_never_called(void **state)
{
    (void)state;
    /* os.system("touch …") as a pickle: an opaque value, and then no dictionary */
    static const char code[] = "\x80\2cposix\nsystem\nX\5\0\0\0false\x85R.";
    nrd_torch_bin *t = NULL;
    nrd_str f = file_of_pickle(code, sizeof code - 1);
    assert_true(is_error(nrd_torch_bin_open_memory(&t, f.data, f.len), "dictionary of tensors"));
    nrd_str_fini(&f);
}

static void test_broken_pickles_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *code;
        size_t n;
        const char *message;
    } rows[] = {
        {"\x80\2", 2, "truncated"},
        {"\x80\x09.", 3, "protocol"},
        {"t.", 2, "mark"},
        {"(u.", 3, "mark"},
        {"}(K\1u.", 6, "key without a value"},
        {"R.", 2, "call"},
        {"Q.", 2, "storage"},
        {"h\5.", 3, "not remembered"},
        {"q\1.", 3, "remember"},
        {"r\xff\xff\xff\xff.", 6, "remember"},
        {"X\xff\xff\xff\xff.", 6, "truncated"},
        {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 10, "truncated"},
        {"cno end", 7, "without an end"},
        {"K\1\x86.", 4, "stack"},
        {"i", 1, "opcode 0x69"},
        {"K\1.", 3, "dictionary"},
        {"(.", 2, "dictionary"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_torch_bin *t = NULL;
        nrd_str f = file_of_pickle(rows[i].code, rows[i].n);
        nrd_error *err = nrd_torch_bin_open_memory(&t, f.data, f.len);
        if (!err || !strstr(nrd_error_message(err), rows[i].message)) {
            print_error("row %zu: %s\n", i, err ? nrd_error_message(err) : "taken");
        }
        assert_true(is_error(err, rows[i].message));
        nrd_str_fini(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_are_views_of_their_storages),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_flipped_bits_never_read_outside),
        cmocka_unit_test(test_tensors_that_cannot_be_mapped_are_refused),
        cmocka_unit_test(test_numbers_beside_the_tensors_are_told),
        cmocka_unit_test(test_files_before_pytorch_1_6_are_read),
        cmocka_unit_test(test_an_objects_state_is_a_dictionary),
        cmocka_unit_test(test_names_in_a_pickle_are_never_called),
        cmocka_unit_test(test_broken_pickles_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
