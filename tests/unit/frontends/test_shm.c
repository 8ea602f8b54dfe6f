/* Regions of shared memory: one in use is waited for, not taken away. */
#include "frontends/common/shm.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
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

static void *put_soon(void *arg)
{
    fixture *f = arg;
    struct timespec t = {.tv_nsec = 5000000};
    nanosleep(&t, NULL);
    nrd_shm_put(f->shm, f->region);
    return NULL;
}

static void test_unregister_waits_for_the_last_user(void **state)
{
    fixture *f = *state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, put_soon, f), 0);
    assert_null(nrd_shm_unregister(f->shm, false, "r"));
    pthread_join(thread, NULL);
    assert_null(nrd_shm_register(f->shm, "r", f->key, 0, BYTES));
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
        cmocka_unit_test_setup_teardown(test_unregister_waits_for_the_last_user, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_region_that_stays_in_use_is_kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
