/* SPDX-License-Identifier: Apache-2.0
 * Regions of shared memory: one in use is not taken away, a name is registered once. */
#include "frontends/common/shm.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 4096 };

typedef struct fixture {
    nrd_shm *shm;
    nrd_shm_region *region; /* in use once */
    char key[64];
} fixture;

static int setup(void **state)
{
    static fixture f;
    void *base = NULL;
    snprintf(f.key, sizeof f.key, "/nereid-test-shm-%d", (int)getpid());
    int fd = shm_open(f.key, O_CREAT | O_RDWR, 0600);
    assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
    close(fd);
    assert_null(nrd_shm_new(&f.shm, true));
    assert_null(nrd_shm_register(f.shm, "r", f.key, 0, BYTES));
    assert_null(nrd_shm_get(f.shm, "r", 0, BYTES, &f.region, &base));
    assert_non_null(base);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    nrd_shm_free(f->shm);
    shm_unlink(f->key);
    return 0;
}

/* Threads that register the same name: one of them does, the others are told. */
static void *register_again(void *arg)
{
    fixture *f = arg;
    nrd_error *err = nrd_shm_register(f->shm, "s", f->key, 0, BYTES);
    const bool ok = err == NULL;
    assert_true(ok || nrd_error_get_code(err) == NRD_ERR_ALREADY_EXISTS);
    nrd_error_free(err);
    return ok ? arg : NULL;
}

static void test_of_many_who_register_a_name_one_does(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 50; round++) {
        pthread_t threads[4];
        int n = 0;
        for (int i = 0; i < 4; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, register_again, f), 0);
        }
        for (int i = 0; i < 4; i++) {
            void *did = NULL;
            pthread_join(threads[i], &did);
            n += did != NULL;
        }
        assert_int_equal(n, 1);
        assert_null(nrd_shm_unregister(f->shm, false, "s"));
    }
    nrd_shm_put(f->shm, f->region);
}

static void test_a_region_that_stays_in_use_is_kept(void **state)
{
    fixture *f = *state;
    nrd_error *err = nrd_shm_unregister(f->shm, false, NULL);
    assert_non_null(err);
    nrd_error_free(err);
    nrd_shm_put(f->shm, f->region);
    assert_null(nrd_shm_unregister(f->shm, false, "r"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_many_who_register_a_name_one_does, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_region_that_stays_in_use_is_kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
