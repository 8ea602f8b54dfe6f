/* SPDX-License-Identifier: Apache-2.0
 * When the server asks the C library to give freed memory back, and that it comes back. */
#include "host.h"

#include "core/trim.h"

#define SECOND 1000000000ull

/* Size and time decide; whether memory comes back is the allocator's: those of sanitizers keep it on purpose. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GIVES_BACK true
#else
#define GIVES_BACK false
#endif

static uint64_t resident(void)
{
    unsigned long long whole = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &whole, &pages), 2);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void freed_memory_goes_back_when_requests_are_few(void **state)
{
    enum { N = 65536, EACH = 1 << 10 }; /* small enough to stay with the C library when freed */
    nrd_trim t = {0};
    char **pieces = malloc(N * sizeof *pieces);
    uint64_t now = SECOND;
    (void)state;

    assert_non_null(pieces);
    assert_false(nrd_trim_look(&t, now, 0));
    (void)nrd_trim_look(&t, now += 3 * SECOND, 0); /* what the start took is no growth */
    const uint64_t before = resident();
    for (int i = 0; i < N; i++) {
        pieces[i] = malloc(EACH);
        assert_non_null(pieces[i]);
        memset(pieces[i], 1, EACH);
    }
    for (int i = 0; i < N - 1; i++) { /* the last one keeps the top of the heap */
        free(pieces[i]);
    }
    assert_true(resident() > before + (48u << 20)); /* 64 MB were taken, and are kept */
    assert_false(nrd_trim_look(&t, now += 3 * SECOND, 64u << 20)); /* requests still have much */
    assert_false(nrd_trim_look(&t, now += SECOND, 0));
    assert_false(nrd_trim_look(&t, now += SECOND, 0)); /* too short a while ago */
    assert_true(nrd_trim_look(&t, now += 3 * SECOND, 0));
    assert_true(!GIVES_BACK || resident() < before + (16u << 20));
    assert_false(nrd_trim_look(&t, now += 3 * SECOND, 0)); /* and once is enough */
    free(pieces[N - 1]);
    free(pieces);
}

/* Behind a request threads may go on for seconds with what it asked for. */
static void memory_that_is_freed_later_goes_back_too(void **state)
{
    enum { N = 65536, EACH = 1 << 10 };
    nrd_trim t = {0};
    char **pieces = malloc(N * sizeof *pieces);
    uint64_t now = SECOND;
    int times = 0;
    (void)state;

    assert_non_null(pieces);
    assert_false(nrd_trim_look(&t, now, 0));
    (void)nrd_trim_look(&t, now += 3 * SECOND, 0);
    const uint64_t before = resident();
    for (int i = 0; i < N; i++) {
        pieces[i] = malloc(EACH);
        assert_non_null(pieces[i]);
        memset(pieces[i], 1, EACH);
    }
    const bool grew = resident() > before + (48u << 20);
    assert_true(grew || !GIVES_BACK); /* a sanitizer's allocator may use again what it has kept */
    assert_false(nrd_trim_look(&t, now += SECOND, 64u << 20));
    assert_false(nrd_trim_look(&t, now += SECOND, 0));
    assert_true(nrd_trim_look(&t, now += 3 * SECOND, 0) || !grew); /* nothing was free yet */
    for (int i = 0; i < N - 1; i++) {
        free(pieces[i]);
    }
    for (int i = 0; i < 120; i++) {
        times += nrd_trim_look(&t, now += SECOND, 0);
        assert_true(!GIVES_BACK || i < 8 || resident() < before + (16u << 20));
    }
    assert_in_range(times, grew, 4); /* not for ever, where nothing comes back */
    free(pieces[N - 1]);
    free(pieces);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freed_memory_goes_back_when_requests_are_few),
        cmocka_unit_test(memory_that_is_freed_later_goes_back_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
