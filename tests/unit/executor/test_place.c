/* SPDX-License-Identifier: Apache-2.0
 * Which of a launcher's ranks a process is. */
#include "executor/ranks/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_tasks_of_a_node(void **state)
{
    (void)state;
    assert_int_equal(nrd_place_tasks("2", 0), 2);
    assert_int_equal(nrd_place_tasks("2(x3),1", 2), 2);
    assert_int_equal(nrd_place_tasks("2(x3),1", 3), 1);
    assert_int_equal(nrd_place_tasks("2(x3),1", 4), 0);
    assert_int_equal(nrd_place_tasks("", 0), 0);
    assert_int_equal(nrd_place_tasks("x", 0), 0);
    assert_int_equal(nrd_place_tasks("-1", 0), 0);
    assert_int_equal(nrd_place_tasks("3(x", 0), 0);
}

static void first(const char *list, const char *want)
{
    char out[16];
    if (!want) {
        assert_false(nrd_place_first_node(list, out, sizeof out));
        return;
    }
    assert_true(nrd_place_first_node(list, out, sizeof out));
    assert_string_equal(out, want);
}

static void test_first_node_of_a_list(void **state)
{
    (void)state;
    first("n1", "n1");
    first("n1,n2", "n1");
    first("n[1-2]", "n1");
    first("gpu[01-04,07],x", "gpu01");
    first("a[3]b,c", "a3b");
    first("n[1-2", NULL);
    first("", NULL);
    first("a-name-that-is-too-long", NULL);
}

static void unset_all(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES",
                                        "SLURM_STEP_TASKS_PER_NODE", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "PMI_RANK", "PMI_SIZE",
                                        "NEREID_LAUNCHED"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]);
    }
}

static void test_launchers(void **state)
{
    nrd_place p;
    (void)state;
    unset_all();
    assert_false(nrd_place_find(&p));

    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_true(nrd_place_find(&p));
    assert_true(p.rank == 3 && p.size == 4 && p.n_here == 2 && p.local == 1 && p.by_mpi && !p.is_pod);
    assert_true(nrd_place_is_over_hosts(&p));
    setenv("NEREID_LAUNCHED", "0", 1);
    assert_false(nrd_place_find(&p));

    unset_all();
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "3", 1);
    setenv("SLURM_PROCID", "2", 1);
    setenv("SLURM_LOCALID", "0", 1);
    setenv("SLURM_NODEID", "1", 1);
    setenv("SLURM_STEP_NUM_NODES", "2", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "2,1", 1);
    assert_true(nrd_place_find(&p));
    assert_true(p.rank == 2 && p.size == 3 && p.n_here == 1 && p.local == 0 && !p.by_mpi);
    assert_true(nrd_place_is_over_hosts(&p));

    unset_all();
    setenv("LWS_GROUP_SIZE", "2", 1);
    setenv("LWS_WORKER_INDEX", "1", 1);
    assert_true(nrd_place_find(&p));
    assert_true(p.rank == 1 && p.size == 2 && p.n_here == 1 && p.is_pod && nrd_place_is_over_hosts(&p));

    unset_all();
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "2", 1);
    assert_true(nrd_place_find(&p));
    assert_true(p.rank == 1 && p.size == 2 && p.n_here == 0 && !nrd_place_is_over_hosts(&p));
    unset_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_of_a_node),
        cmocka_unit_test(test_first_node_of_a_list),
        cmocka_unit_test(test_launchers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
