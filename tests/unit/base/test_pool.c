/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_blocks_are_aligned_and_do_not_overlap(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 1024, 1025, 4096, 4160, 4161, 100000};
    enum { N = sizeof sizes / sizeof sizes[0], EACH = 100 };
    unsigned char *p[N][EACH];
    (void)state;

    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < N; i++) {
            for (int k = 0; k < EACH; k++) {
                p[i][k] = nrd_pool_get(sizes[i]);
                assert_int_equal((uintptr_t)p[i][k] % 64, 0);
                memset(p[i][k], (int)(i * 7 + (size_t)k), sizes[i]);
            }
        }
        for (size_t i = 0; i < N; i++) {
            for (int k = 0; k < EACH; k++) {
                for (size_t b = 0; b < sizes[i]; b++) {
                    assert_int_equal(p[i][k][b], (unsigned char)(i * 7 + (size_t)k));
                }
                nrd_pool_put(p[i][k], sizes[i]);
            }
        }
    }
    nrd_pool_put(NULL, 10);
    nrd_pool_strput(NULL);
}

static void test_zeroes_grows_and_copies(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 8192; n *= 2) {
        unsigned char *p = nrd_pool_get(n);
        memset(p, 0xff, n);
        nrd_pool_put(p, n);
        p = nrd_pool_zget(n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i], 0);
            p[i] = (unsigned char)i;
        }
        p = nrd_pool_grow(p, n, n * 3);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i], (unsigned char)i);
        }
        nrd_pool_put(p, n * 3);
    }
    int *first = nrd_pool_grow(NULL, 0, sizeof *first);
    nrd_pool_put(first, sizeof *first);
    char *s = nrd_pool_strdup(""), *t = nrd_pool_strdup("a name");
    assert_string_equal(s, "");
    assert_string_equal(t, "a name");
    nrd_pool_strput(s);
    nrd_pool_strput(t);
}

/* One side takes, the other gives back; threads come and go meanwhile. */
enum { RING = 64, PASSES = 20000, PAIRS = 3 };

typedef struct pipe_ {
    _Atomic(uint64_t *) slot[RING];
    int seed;
    atomic_bool wrong;
} pipe_;

static size_t words(int i)
{
    return 1 + ((unsigned)i * 2654435761u >> 20) % 600;
}

static void *take(void *arg)
{
    pipe_ *p = arg;
    for (int i = 0; i < PASSES; i++) {
        uint64_t *b = nrd_pool_get(words(i) * sizeof *b);
        for (size_t k = 0; k < words(i); k++) {
            b[k] = (uint64_t)(i + p->seed);
        }
        while (atomic_load(&p->slot[i % RING])) {
            sched_yield();
        }
        atomic_store(&p->slot[i % RING], b);
    }
    return NULL;
}

static void *give(void *arg)
{
    pipe_ *p = arg;
    for (int i = 0; i < PASSES; i++) {
        uint64_t *b;
        while ((b = atomic_exchange(&p->slot[i % RING], NULL)) == NULL) {
            sched_yield();
        }
        for (size_t k = 0; k < words(i); k++) {
            if (b[k] != (uint64_t)(i + p->seed)) {
                atomic_store(&p->wrong, true);
            }
        }
        nrd_pool_put(b, words(i) * sizeof *b);
    }
    return NULL;
}

static size_t resident_pages(void)
{
    size_t all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu %zu", &all, &resident), 2);
    fclose(f);
    return resident;
}

static void test_blocks_travel_between_threads_and_come_back(void **state)
{
    size_t after_first = 0;
    (void)state;

    for (int round = 0; round < 4; round++) {
        static pipe_ p[PAIRS];
        pthread_t t[2 * PAIRS];
        for (int i = 0; i < PAIRS; i++) {
            p[i].seed = round * 100 + i;
            assert_int_equal(pthread_create(&t[2 * i], NULL, take, &p[i]), 0);
            assert_int_equal(pthread_create(&t[2 * i + 1], NULL, give, &p[i]), 0);
        }
        for (int i = 0; i < 2 * PAIRS; i++) {
            pthread_join(t[i], NULL);
        }
        for (int i = 0; i < PAIRS; i++) {
            assert_false(atomic_load(&p[i].wrong));
        }
        if (round == 0) {
            after_first = resident_pages();
        }
    }
    /* Each round takes and gives back 150 MB; nothing of it may be lost. The address sanitizer
     * keeps what was freed, and finds leaks by itself. */
#ifndef __SANITIZE_ADDRESS__
    assert_true(resident_pages() < after_first + (32u << 20) / (size_t)sysconf(_SC_PAGESIZE));
#else
    (void)after_first;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_aligned_and_do_not_overlap),
        cmocka_unit_test(test_zeroes_grows_and_copies),
        cmocka_unit_test(test_blocks_travel_between_threads_and_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
