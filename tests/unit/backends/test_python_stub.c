/* SPDX-License-Identifier: Apache-2.0
 * The end of a stub process: when the instance is told to start another. */
#include "backends/python/backend.h"

static nrd_py_conn *conn;
static int n_awaited, n_restarted;

/* What conn.c calls instead. Whoever ends the instance waits for restarts that were counted by then. */
static int unlock_and_look(pthread_mutex_t *mu)
{
    if (conn && mu == &conn->mu && conn->instance) {
        n_awaited = conn->instance->n_restarts;
    }
    return pthread_mutex_unlock(mu);
}

#include "backends/python/ipc.c"
#define pthread_mutex_unlock unlock_and_look
#include "backends/python/conn.c"
#undef pthread_mutex_unlock
#include "backends/python/monitor.c"
#include "backends/python/sandbox.c"
#include "backends/python/stub.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool is_locked(void)
{
    if (pthread_mutex_trylock(&conn->mu) != 0) {
        return true;
    }
    pthread_mutex_unlock(&conn->mu);
    return false;
}

void nrd_py_instance_restart(nrd_py_instance *in)
{
    assert_ptr_equal(in, conn->instance);
    assert_false(is_locked());
    assert_int_equal(n_awaited, n_restarted + 1);
    n_restarted++;
}

/* What the end of a process does not use. */
void *nrd_py_serve(void *c)
{
    return c;
}
void nrd_py_metrics_free(nrd_py_conn *c)
{
    (void)c;
}
void nrd_py_infer_cancel_all(nrd_py_conn *c)
{
    (void)c;
}
TRITONSERVER_Error *nrd_py_infer_allocator(TRITONSERVER_ResponseAllocator **out)
{
    *out = NULL;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *a)
{
    (void)a;
    return NULL;
}
TRITONSERVER_Error *nrd_tb_errorf(TRITONSERVER_Error_Code code, const char *fmt, ...)
{
    (void)code;
    (void)fmt;
    return NULL;
}
TRITONSERVER_Error *nrd_tb_error(nrd_error *err)
{
    nrd_error_free(err);
    return NULL;
}
void nrd_tb_log_error(TRITONSERVER_Error *err, const char *what)
{
    (void)err;
    (void)what;
}
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *err)
{
    (void)err;
    return TRITONSERVER_ERROR_INTERNAL;
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *err)
{
    (void)err;
    return "";
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *err)
{
    (void)err;
}

/* A connection whose process has ended already. */
static void open_conn(nrd_py_instance *in)
{
    conn = nrd_xcalloc(1, sizeof *conn);
    atomic_store(&conn->refs, 1);
    conn->name = nrd_xstrdup("test");
    conn->sock = conn->pidfd = -1;
    conn->instance = in;
    pthread_mutex_init(&conn->mu, NULL);
    pthread_mutex_init(&conn->aux_mu, NULL);
    pthread_cond_init(&conn->changed, NULL);
    int fd = nrd_py_map_create(&conn->map, "test", 64 << 20);
    assert_true(fd >= 0);
    close(fd);
    nrd_py_returner_init(&conn->to_stub, &conn->map.ctl->to_stub);
    conn->pid = fork();
    if (conn->pid == 0) {
        _exit(3);
    }
    n_awaited = n_restarted = 0;
}

static void test_a_restart_begins_without_the_connection_s_lock(void **state)
{
    nrd_py_instance in = {.conn_mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    open_conn(&in);
    ended(conn);
    assert_int_equal(n_restarted, 1);
    assert_true(atomic_load(&conn->dead));
    nrd_py_conn_unref(conn);
}

static void test_a_connection_that_was_given_up_starts_nothing(void **state)
{
    nrd_py_instance in = {.conn_mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    open_conn(&in);
    nrd_py_conn_detach(conn);
    ended(conn);
    assert_int_equal(n_awaited + n_restarted, 0);
    nrd_py_conn_unref(conn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_restart_begins_without_the_connection_s_lock),
        cmocka_unit_test(test_a_connection_that_was_given_up_starts_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
