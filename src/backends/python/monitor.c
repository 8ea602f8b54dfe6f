/* SPDX-License-Identifier: Apache-2.0
 * The thread that waits for ends of stub processes, and starts those again whose end nobody expected. */
#include "backends/python/backend.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

static void ended(nrd_py_conn *c)
{
    nrd_py_instance *in = nrd_py_conn_died(c);
    if (in) {
        nrd_py_instance_restart(in);
    }
}

static void *monitor(void *arg)
{
    nrd_py_backend *b = arg;
    prctl(PR_SET_NAME, "nrd_py_monitor");
    for (;;) {
        struct epoll_event e;
        int n = epoll_wait(b->epoll, &e, 1, -1);
        if (n <= 0) {
            continue;
        }
        nrd_py_conn *c = e.data.ptr;
        if (!c) {
            return NULL; /* stop_fd */
        }
        epoll_ctl(b->epoll, EPOLL_CTL_DEL, c->pidfd >= 0 ? c->pidfd : c->sock, NULL);
        ended(c);
        nrd_py_conn_unref(c);
    }
}

TRITONSERVER_Error *nrd_py_monitor_start(nrd_py_backend *b)
{
    struct epoll_event e = {.events = EPOLLIN, .data = {.ptr = NULL}};
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    b->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (b->epoll < 0 || b->stop_fd < 0 || epoll_ctl(b->epoll, EPOLL_CTL_ADD, b->stop_fd, &e) != 0 ||
        pthread_create(&b->monitor, NULL, monitor, b) != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot watch stub processes: %s",
                             strerror(errno));
    }
    b->monitor_runs = true;
    return NULL;
}

void nrd_py_monitor_stop(nrd_py_backend *b)
{
    if (b->monitor_runs) {
        uint64_t one = 1;
        ssize_t n = write(b->stop_fd, &one, sizeof one);
        (void)n;
        pthread_join(b->monitor, NULL);
    }
    if (b->epoll >= 0) {
        close(b->epoll);
    }
    if (b->stop_fd >= 0) {
        close(b->stop_fd);
    }
}
