/* SPDX-License-Identifier: Apache-2.0
 * Log lines: whole, and no thread waits for long where nobody reads them. */
#include "base/clock.h"
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4, LINES = 500, WIDTH = 300 };

static void *write_lines(void *arg)
{
    char text[WIDTH + 1];
    memset(text, *(const char *)arg, WIDTH);
    text[WIDTH] = '\0';
    for (int i = 0; i < LINES; i++) {
        nrd_log_raw(text);
    }
    return NULL;
}

static void test_lines_of_several_threads_stay_whole(void **state)
{
    char path[] = "/tmp/nereid-test-log-XXXXXX", line[WIDTH + 2];
    char letters[THREADS];
    pthread_t threads[THREADS];
    int n[THREADS] = {0};
    (void)state;
    close(mkstemp(path));
    assert_null(nrd_log_set_file(path));
    for (int i = 0; i < THREADS; i++) {
        letters[i] = (char)('a' + i);
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &letters[i]), 0);
    }
    assert_null(nrd_log_set_file(path)); /* another target, while the first is written to */
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_null(nrd_log_set_file(NULL));
    FILE *f = fopen(path, "r");
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(line[WIDTH], '\n');
        for (int k = 1; k < WIDTH; k++) {
            assert_int_equal(line[k], line[0]);
        }
        n[line[0] - 'a']++;
    }
    fclose(f);
    unlink(path);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(n[i], LINES);
    }
}

static void test_a_reader_that_stopped_costs_one_wait_and_the_lost_lines_are_told(void **state)
{
    char path[64], text[4000], buf[8192];
    size_t n_read = 0;
    bool told = false;
    (void)state;
    snprintf(path, sizeof path, "/tmp/nereid-test-log-%d", (int)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_null(nrd_log_set_file(path));
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const uint64_t begin = nrd_now_ns();
    for (int i = 0; i < 200; i++) { /* the pipe takes 64 KB */
        nrd_log_raw(text);
    }
    assert_true(nrd_now_ns() - begin < 20ull * 1000000000u); /* not a second for each */
    for (ssize_t r; (r = read(fd, buf, sizeof buf)) > 0;) {
        n_read += (size_t)r;
    }
    assert_true(n_read > 10 * sizeof text && n_read < 100 * sizeof text);
    nrd_log_raw("again");
    for (ssize_t r; (r = read(fd, buf, sizeof buf - 1)) > 0;) {
        buf[r] = '\0';
        told = told || strstr(buf, "log lines before this were dropped");
    }
    assert_true(told);
    assert_null(nrd_log_set_file(NULL));
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_of_several_threads_stay_whole),
        cmocka_unit_test(test_a_reader_that_stopped_costs_one_wait_and_the_lost_lines_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
