/* SPDX-License-Identifier: Apache-2.0
 * config.json of a tower in a folder of its own: what is taken, and what is refused by its name. */
#include "model/vision_folder.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BUILT(fields) "{\"builder_config\": {\"model_type\": \"llava\"" fields "}}"

static nrd_error *read_text(const char *text, nrd_vision_folder *out)
{
    char dir[] = "/tmp/nereid-vision-XXXXXX", path[64];

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_null(nrd_file_write(path, text, strlen(text)));
    nrd_error *err = nrd_vision_folder_read(dir, out);
    unlink(path);
    rmdir(dir);
    return err;
}

static void what_the_builder_wrote_is_read(void **state)
{
    nrd_vision_folder f;
    (void)state;
    assert_null(read_text(BUILT(",\"precision\":\"bfloat16\",\"hidden_size\":2560,\"embedding_scale\":50.5,\"max_batch_size\":8,"
                                "\"max_hw_dims\":64"), &f));
    assert_string_equal(f.model_type, "llava");
    assert_int_equal(f.hidden, 2560);
    assert_true(f.embed_scale > 50 && f.embed_scale < 51);
    assert_int_equal(f.dtype, NRD_DTYPE_BF16);
    assert_int_equal(f.max_batch_size, 8);
    assert_int_equal(f.max_patches, 64);
    assert_null(read_text(BUILT(",\"hidden_size\":1"), &f)); /* as another program would leave it */
    assert_int_equal(f.dtype, NRD_DTYPE_F16);
    assert_int_equal(f.max_patches, NRD_VISION_MAX_PATCHES);
    assert_true(f.embed_scale >= 0 && f.embed_scale <= 0);
}

static void what_is_out_of_range_is_named(void **state)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"{", "config.json"},
        {"{}", "hidden_size is 0"},
        {BUILT(""), "hidden_size is 0"},
        {BUILT(",\"hidden_size\":-4"), "hidden_size is -4"},
        {BUILT(",\"hidden_size\":99999999999"), "hidden_size"},
        {BUILT(",\"hidden_size\":64,\"precision\":\"q4_0\""), "precision is 'q4_0'"},
        {BUILT(",\"hidden_size\":64,\"precision\":\"half a float\""), "precision is 'half a float'"},
        {BUILT(",\"hidden_size\":64,\"embedding_scale\":-1"), "embedding_scale"},
        {BUILT(",\"hidden_size\":64,\"embedding_scale\":1e30"), "embedding_scale"},
        {BUILT(",\"hidden_size\":64,\"max_hw_dims\":0"), "max_hw_dims is 0"},
        {BUILT(",\"hidden_size\":64,\"max_hw_dims\":16385"), "max_hw_dims is 16385"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_vision_folder f;
        nrd_error *err = read_text(rows[i].text, &f);
        if (!err || !strstr(nrd_error_message(err), rows[i].part)) {
            fail_msg("row %zu: '%s', expected '%s'", i, err ? nrd_error_message(err) : "no error", rows[i].part);
        }
        nrd_error_free(err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_builder_wrote_is_read),
        cmocka_unit_test(what_is_out_of_range_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
