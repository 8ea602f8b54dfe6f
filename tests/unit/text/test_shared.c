/* SPDX-License-Identifier: Apache-2.0
 * One tokenizer for all who name the same files. */
#include "base/file.h"
#include "base/mem.h"
#include "text/shared.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nrd-shared-XXXXXX";

static void write_in(const char *folder, const char *name, const char *text)
{
    char *path = nrd_path_join(folder, name);
    assert_null(nrd_file_write(path, text, strlen(text)));
    free(path);
}

/* A vocabulary of the letters up to `last`. */
static void write_tokenizer(const char *folder, char last)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
                     "\"vocab\":{");
    for (char c = 'a'; c <= last; c++) {
        nrd_str_printf(&s, "%s\"%c\":%d", c == 'a' ? "" : ",", c, c - 'a');
    }
    nrd_str_puts(&s, "}}}");
    write_in(folder, "tokenizer.json", s.data);
    nrd_str_fini(&s);
}

static int make_dir(void **state)
{
    (void)state;
    alarm(60);
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    char *command = nrd_xasprintf("rm -r %s", dir);
    int rc = system(command);
    free(command);
    return rc;
}

static char *folder(const char *name)
{
    char *path = nrd_path_join(dir, name);
    mkdir(path, 0700);
    return path;
}

static nrd_text *must_open(const char *path)
{
    nrd_text *t = NULL;
    nrd_error *err = nrd_text_open(&t, path);
    if (err) {
        print_error("%s\n", nrd_error_message(err));
    }
    assert_null(err);
    return t;
}

static void test_the_same_files_are_opened_once(void **state)
{
    char *d = folder("same"), *slash = nrd_xasprintf("%s/../same/", d), *link = nrd_path_join(dir, "link");
    char *file = nrd_path_join(d, "tokenizer.json");
    (void)state;
    write_tokenizer(d, 'e');
    assert_int_equal(symlink(d, link), 0);
    nrd_text *a = must_open(d), *b = must_open(slash), *c = must_open(link), *by_file = must_open(file);
    assert_ptr_equal(a, b);
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, by_file);
    nrd_text_close(a);
    nrd_text_close(b);
    assert_int_equal(nrd_tokenizer_vocab_size(nrd_text_tokenizer(c)), 5);
    nrd_text_close(c);
    nrd_text_close(by_file);
    nrd_text_close(NULL);
    free(file);
    free(link);
    free(slash);
    free(d);
}

static void test_changed_files_are_read_anew_and_earlier_users_keep_theirs(void **state)
{
    char *d = folder("changed");
    (void)state;
    write_tokenizer(d, 'c');
    nrd_text *old = must_open(d);
    write_tokenizer(d, 'f');
    nrd_text *new = must_open(d), *again = must_open(d);
    assert_ptr_not_equal(old, new);
    assert_ptr_equal(new, again);
    assert_int_equal(nrd_tokenizer_vocab_size(nrd_text_tokenizer(old)), 3);
    assert_int_equal(nrd_tokenizer_vocab_size(nrd_text_tokenizer(new)), 6);
    write_in(d, "chat_template.jinja", "{{ 'x' }}"); /* a file beside it */
    nrd_text *with_template = must_open(d);
    assert_ptr_not_equal(new, with_template);
    nrd_text_close(old);
    nrd_text_close(new);
    nrd_text_close(again);
    nrd_text_close(with_template);
    free(d);
}

static void test_the_chat_template_is_compiled_once(void **state)
{
    char *d = folder("chat");
    const nrd_chat *one = NULL, *two = NULL;
    (void)state;
    write_tokenizer(d, 'c');
    nrd_text *without = must_open(d);
    for (int i = 0; i < 2; i++) {
        nrd_error *err = nrd_text_chat(without, &one);
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNSUPPORTED);
        assert_non_null(strstr(nrd_error_message(err), "no chat template"));
        assert_null(one);
        nrd_error_free(err);
    }
    write_in(d, "chat_template.jinja", "{{ messages[0].content }}");
    nrd_text *with = must_open(d), *other = must_open(d);
    assert_null(nrd_text_chat(with, &one));
    assert_null(nrd_text_chat(other, &two));
    assert_non_null(one);
    assert_ptr_equal(one, two);
    nrd_text_close(without);
    nrd_text_close(with);
    nrd_text_close(other);
    free(d);
}

static void test_what_does_not_open_is_tried_again(void **state)
{
    char *d = folder("broken");
    nrd_text *t = NULL;
    (void)state;
    write_in(d, "tokenizer.json", "{");
    nrd_error *err = nrd_text_open(&t, d);
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), "broken/tokenizer.json"));
    assert_null(t);
    nrd_error_free(err);
    write_tokenizer(d, 'c');
    nrd_text_close(must_open(d));
    err = nrd_text_open(&t, "/nowhere/at/all");
    assert_non_null(strstr(nrd_error_message(err), "/nowhere/at/all"));
    nrd_error_free(err);
    free(d);
}

static void *open_blocked(void *path)
{
    nrd_text *t = NULL;
    nrd_error *err = nrd_text_open(&t, path);
    nrd_text_close(t);
    void *failed = err ? path : NULL;
    nrd_error_free(err);
    return failed;
}

/* Its file is a pipe that nobody writes to yet: opening it waits. */
static void test_files_that_are_being_read_hold_up_nobody_else(void **state)
{
    char *slow = folder("slow"), *fast = folder("fast"), *pipe = nrd_path_join(slow, "tokenizer.json");
    pthread_t threads[2];
    void *failed[2];
    (void)state;
    write_tokenizer(fast, 'c');
    assert_int_equal(mkfifo(pipe, 0600), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, open_blocked, slow), 0);
    }
    nrd_text_close(must_open(fast));
    int fd = open(pipe, O_WRONLY); /* waits for a reader: one of the threads is in it now */
    assert_true(fd >= 0);
    nrd_text_close(must_open(fast));
    assert_int_equal(unlink(pipe), 0); /* who comes only now finds nothing to wait for */
    close(fd);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &failed[i]);
        assert_non_null(failed[i]);
    }
    free(pipe);
    free(fast);
    free(slow);
}

static void *open_and_use(void *path)
{
    for (int i = 0; i < 200; i++) {
        nrd_text *t = NULL;
        nrd_ids ids = {0};
        if (nrd_text_open(&t, path) ||
            nrd_tokenizer_encode(nrd_text_tokenizer(t), "abc", 3, 0, &ids) || ids.n != 3) {
            return path;
        }
        nrd_ids_fini(&ids);
        nrd_text_close(t);
    }
    return NULL;
}

static void test_many_threads_open_and_close(void **state)
{
    char *d = folder("many");
    pthread_t threads[4];
    void *failed;
    (void)state;
    write_tokenizer(d, 'c');
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_use, d), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_files_are_opened_once),
        cmocka_unit_test(test_changed_files_are_read_anew_and_earlier_users_keep_theirs),
        cmocka_unit_test(test_the_chat_template_is_compiled_once),
        cmocka_unit_test(test_what_does_not_open_is_tried_again),
        cmocka_unit_test(test_files_that_are_being_read_hold_up_nobody_else),
        cmocka_unit_test(test_many_threads_open_and_close),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
