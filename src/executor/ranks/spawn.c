/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/spawn.h"

#include "base/env.h"
#include "base/file.h"
#include "executor/ranks/meet.h"
#include "executor/ranks/reply.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Beside the object that this code lies in, or in bin/ next to lib/. */
nrd_error *nrd_worker_program(char **out)
{
    static const char here = 0;
    const char *asked = nrd_env("NEREID_WORKER", NULL);
    Dl_info info;

    if (asked) {
        *out = strdup(asked);
        return *out ? NULL : nrd_error_no_memory();
    }
    char *dir = NULL;
    nrd_error *err = dladdr(&here, &info) && info.dli_fname && strchr(info.dli_fname, '/')
                         ? nrd_path_make_dir(&dir, info.dli_fname)
                         : nrd_path_make_exe_dir(&dir);
    err = err ? err : nrd_path_make(out, dir, "nereid");
    if (!err && !nrd_path_exists(*out)) {
        free(*out);
        err = nrd_path_make(out, dir, "../bin/nereid");
    }
    free(dir);
    return err;
}

int nrd_worker_move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    close(fd);
    return moved;
}

static nrd_error *start(char *const *argv, int fd_3, int fd_4, const char *what, pid_t *out_pid)
{
    char *program = NULL;
    posix_spawn_file_actions_t actions;
    nrd_error *err = NULL;

    *out_pid = 0;
    NRD_TRY(nrd_worker_program(&program));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd_3, NRD_RANK_SEGMENT_FD);
    posix_spawn_file_actions_adddup2(&actions, fd_4, NRD_RANK_SOCKET_FD);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int failed = posix_spawn(out_pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        *out_pid = 0;
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start %s for %s: %s", program, what, strerror(failed));
    }
    free(program);
    return err;
}

nrd_error *nrd_worker_spawn(int32_t rank, int segment_fd, int socket_fd, pid_t *out_pid)
{
    char rank_arg[16], what[32];
    char *argv[] = {(char[]){"nereid"}, (char[]){"worker"}, rank_arg, NULL};

    snprintf(rank_arg, sizeof rank_arg, "%d", rank);
    snprintf(what, sizeof what, "rank %d", rank);
    return start(argv, segment_fd, socket_fd, what, out_pid);
}

nrd_error *nrd_world_spawn(int32_t n_ranks, int null_fd, int socket_fd, pid_t *out_pid)
{
    char n_arg[16];
    char *argv[] = {(char[]){"nereid"}, (char[]){NRD_MPI_WORLD}, n_arg, NULL};

    snprintf(n_arg, sizeof n_arg, "%d", n_ranks);
    return start(argv, null_fd, socket_fd, "a world of MPI processes", out_pid);
}

nrd_error *nrd_meet_spawn(int socket_fd, pid_t *out_pid)
{
    char *argv[] = {(char[]){"nereid"}, (char[]){NRD_MPI_MEET}, NULL};

    return start(argv, socket_fd, socket_fd, "a meeting of MPI processes", out_pid);
}
