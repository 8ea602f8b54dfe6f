/* SPDX-License-Identifier: Apache-2.0
 * What the folders of the backends say about themselves. */
#include "core/backend_folder.h"

#include "base/file.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char root[] = "/tmp/nereid-backends-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_null(nrd_mkdirs(path));
    if (text) {
        snprintf(path, sizeof path, "%s/%s/" NRD_BACKEND_FILE, root, name);
        assert_null(nrd_file_write(path, text, strlen(text)));
    }
}

static void check(size_t i, const nrd_backend_folders *f, const char *name, const char *file,
                  bool runs)
{
    assert_true(i < f->n);
    assert_string_equal(f->v[i].name, name);
    assert_string_equal(f->v[i].model_file, file);
    assert_int_equal(f->v[i].runs_backends, runs);
}

/* What makes no sense is left out, and spoils nothing of what stands beside it. */
static void test_read(void **state)
{
    static char large[(64 << 10) + 64];
    nrd_backend_folders f;

    (void)state;
    assert_non_null(mkdtemp(root));
    memset(large, ' ', sizeof large - 1);
    memcpy(large, "{\"default_model_filename\":\"x\"}", 30);
    put("a_runs", "{\"default_model_filename\": \"main.x\", \"runs_backends\": true}");
    put("b_silent", NULL);
    put("c_empty", "{}");
    put("d_broken", "{\"default_model_filename\": \"main.x\"");
    put("e_list", "[1]");
    put("f_type", "{\"default_model_filename\": 5}");
    put("g_folder", "{\"default_model_filename\": \"../main.x\"}");
    put("h_nothing", "{\"default_model_filename\": \"\"}");
    put("i_zero", "{\"default_model_filename\": \"a\\u0000b\"}");
    put("j_runs_type", "{\"default_model_filename\": \"main.x\", \"runs_backends\": \"yes\"}");
    put("k_large", large);
    put("l_plain", "{\"default_model_filename\": \"main.y\", \"later\": [1]}");
    assert_null(nrd_backend_folders_read(&f, root));
    assert_int_equal(f.n, 2);
    check(0, &f, "a_runs", "main.x", true);
    check(1, &f, "l_plain", "main.y", false);
    nrd_backend_folders_fini(&f);
    assert_int_equal(f.n, 0);
}

static void test_no_folder(void **state)
{
    nrd_backend_folders f;

    (void)state;
    assert_null(nrd_backend_folders_read(&f, "/nonexistent/backends"));
    assert_int_equal(f.n, 0);
    nrd_backend_folders_fini(&f);
}

static int remove_root(void **state)
{
    char **names = NULL;
    size_t n = 0;

    (void)state;
    assert_null(nrd_dir_list(&names, &n, root));
    for (size_t i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/" NRD_BACKEND_FILE, root, names[i]);
        remove(path);
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        remove(path);
    }
    nrd_names_free(names, n);
    return remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_read, remove_root),
        cmocka_unit_test(test_no_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
