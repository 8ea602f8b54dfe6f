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
#include <sys/file.h>
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

/* The exit status of a child that notes two files and a folder that has one more, forgets one file, and gets `sig`. */
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
        char *inside = make("sub/noted"), *other = make("sub/other"), *kept = make("forgotten");
        const int status = child((const char *const[]){inside, kept, sub}, signals[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_false(nrd_path_exists(inside));
        assert_false(nrd_path_exists(sub));
        assert_true(nrd_path_exists(kept));
        unlink(kept);
        free(inside);
        free(other);
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

static void test_a_sweep_takes_only_what_nobody_writes(void **state)
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
    snprintf(name, sizeof name, "e.tmp.%d", (int)dead);
    char *held = make(name); /* by a program of another container */
    const int fd = open(held, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    snprintf(name, sizeof name, "f.tmp.%d", (int)dead);
    char *folder = nrd_path_join(dir, name);
    assert_int_equal(mkdir(folder, 0700), 0);
    const struct timespec long_ago[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, old, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, ours, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, other, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, held, long_ago, 0), 0);
    nrd_leftovers_sweep(dir);
    assert_false(nrd_path_exists(old) || nrd_path_exists(fresh));
    assert_true(nrd_path_exists(ours) && nrd_path_exists(other) && nrd_path_exists(held) && nrd_path_exists(folder));
    close(fd);
    assert_int_equal(utimensat(AT_FDCWD, folder, long_ago, 0), 0);
    nrd_leftovers_sweep(dir);
    assert_false(nrd_path_exists(held) || nrd_path_exists(folder));
    nrd_leftovers_sweep("/nonexistent/folder");
    free(old);
    free(fresh);
    free(ours);
    free(other);
    free(held);
    free(folder);
}

static char *make_dir(const char *name, int *out_lock)
{
    char *path = nrd_path_join(dir, name);
    assert_null(nrd_leftovers_make_dir(path, out_lock));
    char *file = nrd_path_join(path, "rank0.engine");
    assert_null(nrd_file_write(file, "half", 4));
    free(file);
    return path;
}

/* It has a folder and a file in it. */
static void make_old(const char *path)
{
    const struct timespec long_ago[2] = {{1, 0}, {1, 0}};
    char *file = nrd_path_join(path, "rank0.engine");
    assert_int_equal(utimensat(AT_FDCWD, file, long_ago, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    free(file);
}

static void test_a_sweep_takes_only_folders_whose_program_is_gone(void **state)
{
    int locks[4];
    char *used = make_dir("engine-XXXXXX", &locks[0]), *left = make_dir("engine-XXXXXX", &locks[1]);
    char *fresh = make_dir("engine-XXXXXX", &locks[2]), *other = make_dir("others-XXXXXX", &locks[3]);
    char *any = nrd_path_join(dir, "engine-XXXXXX"), *target = nrd_path_join(dir, "target"), *link = nrd_path_join(dir, "engine-linked");
    (void)state;
    for (int i = 1; i < 4; i++) { /* as the kernel does when their programs end */
        close(locks[i]);
    }
    assert_int_equal(mkdir(target, 0700), 0);
    char *file = make("target/rank0.engine");
    assert_int_equal(symlink(target, link), 0);
    make_old(used);
    make_old(left);
    make_old(other);
    make_old(target);
    nrd_leftovers_sweep_dirs(any);
    assert_true(nrd_path_exists(used) && nrd_path_exists(fresh) && nrd_path_exists(other) && nrd_path_exists(file));
    assert_false(nrd_path_exists(left));
    close(locks[0]);
    nrd_leftovers_sweep_dirs(any);
    assert_false(nrd_path_exists(used));
    nrd_leftovers_sweep_dirs("/nonexistent/engine-XXXXXX");
    char *const all[] = {used, left, fresh, other, any, target, link, file};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
}

static void test_a_file_is_locked_until_it_has_its_name(void **state)
{
    char *path = nrd_path_join(dir, "written"), tmp[64];
    nrd_file_writer *w = NULL;
    (void)state;
    assert_null(nrd_file_writer_open(&w, path));
    snprintf(tmp, sizeof tmp, "%s.tmp.%d", path, (int)getpid());
    const int fd = open(tmp, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0);
    assert_null(nrd_file_writer_commit(w));
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_removes_what_is_noted_and_ends_the_program),
        cmocka_unit_test(test_threads_note_and_forget_at_once),
        cmocka_unit_test(test_a_file_is_locked_until_it_has_its_name),
        cmocka_unit_test(test_a_sweep_takes_only_what_nobody_writes),
        cmocka_unit_test(test_a_sweep_takes_only_folders_whose_program_is_gone),
    };
    if (!mkdtemp(dir)) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nrd_dir_remove(dir);
    return failed;
}
