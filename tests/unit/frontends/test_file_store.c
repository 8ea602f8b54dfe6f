/* SPDX-License-Identifier: Apache-2.0
 * Files of clients: who sees them, what limits hold, what a restart finds again. */
#include "base/file.h"
#include "frontends/openai/file_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/test-file-store-XXXXXX";

static nrd_file_limits limits_of(const char *dir)
{
    return (nrd_file_limits){.dir = dir, .max_files = 4, .max_bytes = 100, .max_file_bytes = 40, .keep_secs = 0};
}

static nrd_file_store *open_store(const char *dir)
{
    const nrd_file_limits limits = limits_of(dir);
    nrd_file_store *s = NULL;
    nrd_error *err = nrd_file_store_new(&s, &limits);
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
    return s;
}

static nrd_file_info add(nrd_file_store *s, const char *owner, const char *text)
{
    nrd_file_draft *d = NULL;
    nrd_file_info f;
    assert_null(nrd_file_draft_new(&d, s, true));
    assert_null(nrd_file_draft_write(d, text, strlen(text)));
    assert_null(nrd_file_draft_commit(d, owner, "name\n\"", "batch", 0, &f));
    return f;
}

static void expect(nrd_error *err, nrd_error_code code, const char *reason)
{
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), code);
    if (reason) {
        assert_string_equal(nrd_error_reason(err), reason);
    }
    nrd_error_free(err);
}

static void test_a_file_is_seen_by_its_owner_alone(void **state)
{
    nrd_file_store *s = open_store("");
    const nrd_file_info f = add(s, "me", "hello");
    nrd_file_info found;
    char text[8] = "";
    int fd;
    (void)state;
    assert_true(nrd_file_is_id(f.id, "file-"));
    assert_int_equal(f.bytes, 5);
    assert_null(nrd_file_store_open(s, "me", f.id, &fd, &found));
    assert_int_equal(read(fd, text, sizeof text), 5);
    assert_string_equal(text, "hello");
    close(fd);
    expect(nrd_file_store_find(s, "you", f.id, &found), NRD_ERR_NOT_FOUND, "file_not_found");
    expect(nrd_file_store_open(s, "you", f.id, &fd, &found), NRD_ERR_NOT_FOUND, "file_not_found");
    expect(nrd_file_store_remove(s, "you", f.id), NRD_ERR_NOT_FOUND, "file_not_found");
    expect(nrd_file_store_find(s, "me", "../secret", &found), NRD_ERR_NOT_FOUND, "file_not_found");
    assert_null(nrd_file_store_remove(s, "me", f.id));
    expect(nrd_file_store_find(s, "me", f.id, &found), NRD_ERR_NOT_FOUND, "file_not_found");
    nrd_file_store_free(s);
}

/* limits: FILES_KEPT, FILE_BYTES, FILES_KEPT_BYTES */
static void test_limits_hold_and_nothing_stays_counted(void **state)
{
    nrd_file_store *s = open_store("");
    nrd_file_draft *d = NULL, *e = NULL;
    char text[64];
    (void)state;
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 3; i++) { /* what is given up counts no longer */
        assert_null(nrd_file_draft_new(&d, s, true));
        assert_null(nrd_file_draft_write(d, text, 40));
        expect(nrd_file_draft_write(d, text, 1), NRD_ERR_INVALID_ARG, NRD_FILE_TOO_LARGE);
        nrd_file_draft_abort(d);
    }
    assert_null(nrd_file_draft_new(&d, s, false)); /* of a batch: no limit of its own */
    assert_null(nrd_file_draft_write(d, text, 64));
    assert_null(nrd_file_draft_new(&e, s, true));
    expect(nrd_file_draft_write(e, text, 37), NRD_ERR_INVALID_ARG, NRD_FILE_NO_ROOM);
    assert_null(nrd_file_draft_write(e, text, 36));
    nrd_file_draft_abort(e);
    nrd_file_draft_abort(d);
    for (int i = 0; i < 4; i++) {
        add(s, "me", "a");
    }
    expect(nrd_file_draft_new(&d, s, true), NRD_ERR_INVALID_ARG, NRD_FILE_NO_ROOM);
    nrd_file_store_free(s);
}

static void test_lists_are_cut_into_pages(void **state)
{
    nrd_file_store *s = open_store("");
    nrd_file_info *v = NULL;
    const nrd_file_info a = add(s, "me", "1"), b = add(s, "you", "2"), c = add(s, "me", "3"), d = add(s, "me", "4");
    size_t n;
    bool more;
    (void)state;
    assert_null(nrd_file_store_list(s, "me", NULL, NULL, false, 2, &v, &n, &more));
    assert_int_equal(n, 2);
    assert_true(more);
    assert_string_equal(v[0].id, d.id);
    assert_string_equal(v[1].id, c.id);
    free(v);
    assert_null(nrd_file_store_list(s, "me", "batch", c.id, false, 2, &v, &n, &more));
    assert_int_equal(n, 1);
    assert_false(more);
    assert_string_equal(v[0].id, a.id);
    free(v);
    assert_null(nrd_file_store_list(s, "me", NULL, a.id, true, 10, &v, &n, &more));
    assert_int_equal(n, 2);
    assert_string_equal(v[0].id, c.id);
    free(v);
    assert_null(nrd_file_store_list(s, "me", "other", NULL, true, 10, &v, &n, &more));
    assert_int_equal(n, 0);
    free(v);
    expect(nrd_file_store_list(s, "me", NULL, b.id, true, 10, &v, &n, &more), NRD_ERR_INVALID_ARG, NULL);
    nrd_file_store_free(s);
}

static void test_a_restart_finds_files_and_drafts(void **state)
{
    char dir[64], id[NRD_FILE_ID], stray[NRD_FILE_ID];
    nrd_file_info f, found;
    nrd_file_draft *d = NULL, *lost = NULL;
    nrd_str text = {0};
    uint64_t secret[2];
    (void)state;
    snprintf(dir, sizeof dir, "%s/stays", folder);
    nrd_file_store *s = open_store(dir), *second = NULL;
    const nrd_file_limits limits = limits_of(dir);
    expect(nrd_file_store_new(&second, &limits), NRD_ERR_UNAVAILABLE, NULL);
    memcpy(secret, nrd_file_store_secret(s), sizeof secret);
    f = add(s, "me", "hello");
    assert_null(nrd_file_draft_new(&d, s, false));
    assert_null(nrd_file_draft_new(&lost, s, false));
    assert_null(nrd_file_draft_write(d, "one\ntwo\nhal", 11));
    snprintf(id, sizeof id, "%s", nrd_file_draft_id(d));
    snprintf(stray, sizeof stray, "%s", nrd_file_draft_id(lost));
    nrd_file_draft_leave(d);
    nrd_file_draft_leave(lost);
    nrd_file_store_free(s);

    s = open_store(dir);
    assert_memory_equal(secret, nrd_file_store_secret(s), sizeof secret);
    assert_null(nrd_file_store_find(s, "me", f.id, &found));
    assert_string_equal(found.name, "name\n\"");
    assert_int_equal(found.bytes, 5);
    assert_int_equal(found.created, f.created);
    assert_null(nrd_file_draft_resume(&d, s, id));
    assert_int_equal(nrd_file_draft_bytes(d), 8);
    nrd_file_store_remove_strays(s);
    expect(nrd_file_draft_resume(&lost, s, stray), NRD_ERR_NOT_FOUND, NULL);
    expect(nrd_file_draft_resume(&lost, s, "file-../../x"), NRD_ERR_NOT_FOUND, NULL);
    assert_null(nrd_file_draft_write(d, "three\n", 6));
    assert_null(nrd_file_draft_commit(d, "me", "out", "batch_output", 0, &found));
    assert_int_equal(found.bytes, 14);
    nrd_str_puts(&text, "{}");
    assert_null(nrd_file_store_write(s, "x.record", &text));
    nrd_file_store_erase(s, "x.record");
    nrd_str_fini(&text);
    nrd_file_store_free(s);
    nrd_dir_remove(dir);
}

static void test_a_folder_that_others_may_enter_is_refused(void **state)
{
    char dir[64];
    nrd_file_store *s = NULL;
    (void)state;
    snprintf(dir, sizeof dir, "%s/open", folder);
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_int_equal(chmod(dir, 0755), 0);
    const nrd_file_limits limits = limits_of(dir);
    expect(nrd_file_store_new(&s, &limits), NRD_ERR_INVALID_ARG, NULL);
    nrd_dir_remove(dir);
}

static void test_files_expire(void **state)
{
    nrd_file_limits limits = limits_of("");
    nrd_file_store *s = NULL;
    nrd_file_draft *d = NULL;
    nrd_file_info f, found;
    (void)state;
    limits.keep_secs = 100;
    assert_null(nrd_file_store_new(&s, &limits));
    assert_null(nrd_file_draft_new(&d, s, true));
    assert_null(nrd_file_draft_commit(d, "me", "a", "batch", 1000, &f));
    assert_int_equal(f.expires - f.created, 100);
    assert_null(nrd_file_draft_new(&d, s, true));
    assert_null(nrd_file_draft_commit(d, "me", "b", "batch", 1, &f));
    assert_int_equal(f.expires - f.created, 1);
    for (int i = 0; i < 300; i++) {
        nrd_error *err = nrd_file_store_find(s, "me", f.id, &found);
        if (err) {
            nrd_error_free(err);
            break;
        }
        assert_in_range(i, 0, 298);
        usleep(10000);
    }
    nrd_file_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_seen_by_its_owner_alone),
        cmocka_unit_test(test_limits_hold_and_nothing_stays_counted),
        cmocka_unit_test(test_lists_are_cut_into_pages),
        cmocka_unit_test(test_a_restart_finds_files_and_drafts),
        cmocka_unit_test(test_a_folder_that_others_may_enter_is_refused),
        cmocka_unit_test(test_files_expire),
    };
    if (!mkdtemp(folder)) {
        return 1;
    }
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return rc;
}
