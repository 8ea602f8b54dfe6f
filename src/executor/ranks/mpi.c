/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/mpi.h"

#include "base/env.h"
#include "executor/ranks/handover.h"
#include "executor/ranks/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_SECS = 60, END_MS = 3000 };

bool nrd_mpi_is_asked(void)
{
    return strcmp(nrd_env("NEREID_SPAWN", ""), "mpi") == 0;
}

static nrd_error *begin(nrd_mpi_world *w, int32_t n_ranks)
{
    const struct timeval most = {.tv_sec = START_SECS};
    int pair[2], null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        nrd_error *err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no socket for a world of MPI processes: %s", strerror(errno));
        if (null_fd >= 0) {
            close(null_fd);
        }
        return err;
    }
    w->sock = pair[0];
    null_fd = nrd_worker_move_up(null_fd);
    pair[1] = nrd_worker_move_up(pair[1]);
    (void)setsockopt(w->sock, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    nrd_error *err = nrd_world_spawn(n_ranks - 1, null_fd, pair[1], &w->pid);
    close(null_fd);
    close(pair[1]);
    return err;
}

nrd_error *nrd_mpi_start(nrd_mpi_world *out, int32_t n_ranks, int segment_fd, const int *sockets)
{
    static const char gone[] = "MPI_Comm_spawn did not start the workers within 60 s, or ended: see what Open MPI wrote above";

    *out = (nrd_mpi_world){.sock = -1};
    nrd_error *err = begin(out, n_ranks);
    for (int32_t i = 1; i < n_ranks && !err; i++) {
        err = nrd_rank_hand(out->sock, i, segment_fd, sockets[i]) ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", gone);
    }
    err = err ? err : nrd_rank_hear(out->sock, gone);
    if (err) {
        nrd_mpi_stop(out);
    }
    return err;
}

void nrd_mpi_stop(nrd_mpi_world *w)
{
    if (w->pid <= 0) {
        return;
    }
    const struct timespec pause = {0, 10 * 1000000};
    close(w->sock); /* it ends, and Open MPI's daemon with it */
    for (int ms = 0; waitpid(w->pid, NULL, WNOHANG) == 0; ms += 10) {
        if (ms == END_MS) {
            kill(w->pid, SIGKILL);
        }
        nanosleep(&pause, NULL);
    }
    *w = (nrd_mpi_world){.sock = -1};
}
