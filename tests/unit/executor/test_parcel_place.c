/* SPDX-License-Identifier: Apache-2.0
 * The memory of a prompt's cache that ranks reach: what one process writes another reads, a rank has its own part, and what is
 * not this memory opens nothing. */
#include "exec_checks.h"

#include "engine/run/parcel_place.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 * 4096 + 5, INVALID = 3, UNAVAILABLE = 4 };

static void write_share(const nrd_parcel_place *p, int32_t rank)
{
    uint8_t *mem = NULL;
    must(nrd_parcel_place_map(p, rank, BYTES, true, &mem));
    memset(mem, 'a' + rank, BYTES);
    munmap(mem, BYTES);
    nrd_parcel_place_tell(p, rank, NULL);
}

static void test_other_processes_write_and_read_their_parts(void **state)
{
    nrd_parcel_place p;
    uint8_t *mem = NULL;
    (void)state;
    must(nrd_parcel_place_new(&p));
    for (int32_t rank = 1; rank <= 2; rank++) {
        must_fail(nrd_parcel_place_check(&p, rank), UNAVAILABLE, "cannot reach the memory");
        const pid_t child = fork();
        if (child == 0) {
            close(p.file); /* it has the maker's only */
            write_share(&p, rank);
            _exit(0);
        }
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    for (int32_t rank = 1; rank <= 2; rank++) {
        must(nrd_parcel_place_check(&p, rank));
        must(nrd_parcel_place_map(&p, rank, BYTES, false, &mem));
        for (int i = 0; i < BYTES; i++) {
            assert_int_equal(mem[i], 'a' + rank);
        }
        munmap(mem, BYTES);
    }
    must_fail(nrd_parcel_place_check(&p, 3), UNAVAILABLE, "rank 3 cannot reach");
    nrd_parcel_place_free(&p);
    nrd_parcel_place_free(&p);
}

static void test_a_rank_says_why_its_share_is_not_there(void **state)
{
    nrd_parcel_place p;
    uint8_t *mem = NULL;
    (void)state;
    must(nrd_parcel_place_new(&p));
    nrd_error *err = nrd_parcel_place_map(&p, 5, SIZE_MAX / 2, true, &mem);
    assert_non_null(err);
    assert_null(mem);
    nrd_parcel_place_tell(&p, 5, err);
    must_fail(nrd_parcel_place_check(&p, 5), UNAVAILABLE, "rank 5: no memory for");
    nrd_parcel_place_free(&p);
}

static void test_what_is_not_this_memory_opens_nothing(void **state)
{
    nrd_parcel_place p, other;
    uint8_t *mem = NULL;
    (void)state;
    must(nrd_parcel_place_new(&p));
    must(nrd_parcel_place_new(&other));
    nrd_parcel_place wrong = p;
    wrong.file = other.file;
    must_fail(nrd_parcel_place_map(&wrong, 1, BYTES, false, &mem), UNAVAILABLE,
              "is not the memory");
    wrong = p;
    wrong.id[3] ^= 1;
    must_fail(nrd_parcel_place_map(&wrong, 1, BYTES, false, &mem), UNAVAILABLE,
              "is not the memory");
    wrong = p;
    wrong.file = 1 << 20;
    must_fail(nrd_parcel_place_map(&wrong, 1, BYTES, false, &mem), UNAVAILABLE, "cannot open");
    nrd_parcel_place_tell(&wrong, 1, NULL); /* goes nowhere */
    wrong = p;
    nrd_parcel_place_free(&p);
    must_fail(nrd_parcel_place_map(&wrong, 1, BYTES, false, &mem), UNAVAILABLE, "/proc");
    nrd_parcel_place_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_processes_write_and_read_their_parts),
        cmocka_unit_test(test_a_rank_says_why_its_share_is_not_there),
        cmocka_unit_test(test_what_is_not_this_memory_opens_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
