/* SPDX-License-Identifier: Apache-2.0
 * What tests of the executor ask of it again and again. */
#ifndef NRD_TEST_EXEC_CHECKS_H
#define NRD_TEST_EXEC_CHECKS_H

#include "executor/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static inline void must(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_exec_error_message(err));
    }
}

static inline void must_fail(nrd_error *err, int code, const char *part)
{
    assert_non_null(err);
    if (nrd_exec_error_code(err) != code || !strstr(nrd_exec_error_message(err), part)) {
        fail_msg("got %d: %s\nwant %d: %s", (int)nrd_exec_error_code(err), nrd_exec_error_message(err), code, part);
    }
    nrd_exec_error_free(err);
}

/* Everything is given back: blocks, slots, sequences, deadlines. */
static inline void close_empty(nrd_exec *x)
{
    nrd_kv_stats kv;
    must(nrd_exec_shutdown(x, -1));
    nrd_kv_get_stats(x->kv, &kv);
    assert_int_equal(kv.n_held, 0);
    nrd_sched_check(x->sched);
    assert_true(nrd_sched_is_empty(x->sched));
    assert_null(x->due_head);
    assert_int_equal(x->n_active, 0);
    assert_int_equal(x->n_waiting, 0);
    nrd_exec_close(x);
}

#endif
