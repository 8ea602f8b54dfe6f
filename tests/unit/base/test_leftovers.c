/* SPDX-License-Identifier: Apache-2.0
 * Unfinished files: a signal removes what is noted, a sweep what others left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "base/unfinished.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[] = "/tmp/nrd-leftovers-XXXXXX";

static char *make(const char *name)
{
    char *path = nrd_path_join(dir, name);
    nrd_error *err = nrd_file_write(path, "half", 4);
    assert_null(err);
    return path;
}

/* The exit status of a child that notes two files and a folder, forgets one file, and gets `sig`. */
static int child(const char *const paths[3], int sig)
{
    pid_t pid = fork();
    if (pid == 0) {
        signal(sig, SIG_DFL); /* nohup hands SIGHUP down as ignored, and it would stay so */
        nrd_unfinished_remove_on_signals();
        nrd_unfinished_note(paths[2]);
        nrd_unfinished_note(paths[0]);
        nrd_unfinished_note(paths[1]);
        nrd_unfinished_forget(paths[1]);
        raise(sig);
        _exit(9);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_a_signal_removes_what_is_noted_and_ends_the_program(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char *sub = nrd_path_join(dir, "sub");
        assert_int_equal(mkdir(sub, 0700), 0);
        char *inside = make("sub/noted"), *kept = make("forgotten");
        const int status = child((const char *const[]){inside, kept, sub}, signals[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_false(nrd_path_exists(inside));
        assert_false(nrd_path_exists(sub));
        assert_true(nrd_path_exists(kept));
        unlink(kept);
        free(inside);
        free(kept);
        free(sub);
    }
}

static void *note_and_forget(void *path)
{
    for (int i = 0; i < 50000; i++) {
        nrd_unfinished_note(path);
        nrd_unfinished_forget(path);
    }
    return NULL;
}

/* Afterwards nothing is noted: a signal leaves the files. */
static void test_threads_note_and_forget_at_once(void **state)
{
    pthread_t threads[4];
    char *paths[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        paths[i] = make(name);
        assert_int_equal(pthread_create(&threads[i], NULL, note_and_forget, paths[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    char *one = make("one");
    child((const char *const[]){one, one, one}, SIGTERM);
    for (int i = 0; i < 4; i++) {
        assert_true(nrd_path_exists(paths[i]));
        unlink(paths[i]);
        free(paths[i]);
    }
    free(one);
}

static void test_a_sweep_takes_only_what_is_old_and_nobodys(void **state)
{
    char name[64];
    pid_t dead = fork();
    (void)state;
    if (dead == 0) {
        _exit(0);
    }
    waitpid(dead, NULL, 0);
    snprintf(name, sizeof name, "a.tmp.%d", (int)dead);
    char *old = make(name);
    snprintf(name, sizeof name, "b.tmp.%d", (int)dead);
    char *fresh = make(name);
    snprintf(name, sizeof name, "c.tmp.%d", (int)getpid());
    char *ours = make(name), *other = make("d.tmp.txt");
    const struct timespec long_ago[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, old, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, ours, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, other, long_ago, 0), 0);
    nrd_leftovers_sweep(dir);
    assert_false(nrd_path_exists(old));
    assert_true(nrd_path_exists(fresh) && nrd_path_exists(ours) && nrd_path_exists(other));
    nrd_leftovers_sweep("/nonexistent/folder");
    free(old);
    free(fresh);
    free(ours);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_removes_what_is_noted_and_ends_the_program),
        cmocka_unit_test(test_threads_note_and_forget_at_once),
        cmocka_unit_test(test_a_sweep_takes_only_what_is_old_and_nobodys),
    };
    if (!mkdtemp(dir)) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nrd_dir_remove(dir);
    return failed;
}
