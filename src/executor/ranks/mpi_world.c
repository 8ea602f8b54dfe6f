/* SPDX-License-Identifier: Apache-2.0
 * The two programs of a world of MPI processes. `nereid mpi-world N` is an MPI process of its own (a singleton): it has
 * MPI_Comm_spawn start N times `nereid mpi-worker NAME`, hands each the descriptors of a rank through the socket of that
 * name, and stays until rank 0 closes its socket. A worker leaves MPI as soon as it is there: all that ranks say to
 * each other goes through the segment, and no rank's end is then another's.
 *
 * A third, `nereid mpi-meet`, is an MPI process in the place of a launcher's rank for as long as rank 0's card takes to all hosts (meet.h).
 *
 * Open MPI is opened at run time (MPI 4.0 standard, chapter "Process Creation and Management"; the declarations are ours
 * and those of its binary interface, version 40). */
#include "base/env.h"
#include "base/error.h"
#include "executor/ranks/handover.h"
#include "executor/ranks/meet.h"
#include "executor/ranks/reply.h"
#include "executor/ranks/spawn.h"
#include "nereid/executor.h"
#include "nereid/ranks.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LIBRARY "libmpi.so.40"

enum {
    MAX_WORKERS = 64,
    COME_MS = 30 * 1000,
    MAX_VERSION = 4096 /* MPI_MAX_LIBRARY_VERSION_STRING is 256 there */
};

extern char **environ;

static atomic_bool started; /* the workers; the world's end is in order from then on */

typedef struct ompi_communicator *mpi_comm;
typedef struct mpi {
    int (*init)(int *argc, char ***argv);
    int (*finalize)(void);
    int (*comm_spawn)(const char *command, char **argv, int n, void *info, int root, mpi_comm comm, mpi_comm *between, int *errors);
    int (*comm_get_parent)(mpi_comm *parent);
    int (*comm_disconnect)(mpi_comm *comm);
    int (*bcast)(void *data, int n, void *type, int root, mpi_comm comm);
    void *world, *byte, *self, *null, *no_info; /* addresses of predefined objects */
} mpi;

static nrd_error *open_mpi(mpi *m)
{
    /* its parts look up symbols of the library among all that are global */
    void *dl = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    const struct {
        const char *name;
        void **at;
    } rows[] = {
        {"MPI_Init", (void **)&m->init},
        {"MPI_Finalize", (void **)&m->finalize},
        {"MPI_Comm_spawn", (void **)&m->comm_spawn},
        {"MPI_Comm_get_parent", (void **)&m->comm_get_parent},
        {"MPI_Comm_disconnect", (void **)&m->comm_disconnect},
        {"MPI_Bcast", (void **)&m->bcast},
        {"ompi_mpi_comm_world", &m->world},
        {"ompi_mpi_byte", &m->byte},
        {"ompi_mpi_comm_self", &m->self},
        {"ompi_mpi_comm_null", &m->null},
        {"ompi_mpi_info_null", &m->no_info},
    };

    if (!dl) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "Open MPI 4 or 5 is needed (%s); without NEREID_SPAWN=mpi a server starts the ranks of its "
                          "host itself, with NEREID_RANKS_ADDRESS ranks of several hosts meet without MPI", dlerror());
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *rows[i].at = dlsym(dl, rows[i].name);
        if (!*rows[i].at) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "libmpi.so.40 lacks %s", rows[i].name);
        }
    }
    return NULL;
}

void nrd_mpi_describe(char *out, size_t size)
{
    char version[MAX_VERSION] = "";
    int n = 0;
    void *dl = dlopen(LIBRARY, RTLD_LAZY | RTLD_GLOBAL);

    if (!dl) {
        snprintf(out, size, "none (%s)", dlerror());
        return;
    }
    int (*tell)(char *text, int *length) = NULL;
    *(void **)&tell = dlsym(dl, "MPI_Get_library_version"); /* may be called before MPI_Init */
    if (!tell || tell(version, &n) != 0) {
        snprintf(out, size, "none (" LIBRARY " does not tell its version)");
        return;
    }
    snprintf(out, size, "%.*s", (int)strcspn(version, ",\n"), version);
}

static socklen_t name_of(const char *text, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "nereid-world-%s", text);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* ---- the world ---- */

/* Of mpirun, under which the server may run: this process is none of its ranks. */
static void forget_launcher(void)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "SLURM_"};

    if (!nrd_env("OMPI_COMM_WORLD_RANK", NULL) && !nrd_env("PMIX_RANK", NULL)) {
        return; /* what there is are the user's own settings */
    }
    for (size_t i = 0; environ[i];) {
        const char *at = environ[i], *end = strchr(at, '=');
        bool drop = false;
        char name[256];
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
            drop = drop || strncmp(at, prefixes[k], strlen(prefixes[k])) == 0;
        }
        if (!drop || !end || (size_t)(end - at) >= sizeof name) {
            i++;
            continue;
        }
        memcpy(name, at, (size_t)(end - at));
        name[end - at] = '\0';
        unsetenv(name);
    }
}

/* Ranks are bound by Nereid's own means, and there are as many as the engine says. Settings of the user's stay. */
static void set_defaults(void)
{
    (void)setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    (void)setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    (void)setenv("OMPI_MCA_orte_abort_on_non_zero_status", "0", 0);
}

static void *watch_rank_0(void *unused)
{
    struct pollfd end = {.fd = NRD_RANK_SOCKET_FD, .events = POLLRDHUP};
    (void)unused;
    while (poll(&end, 1, -1) < 0 || !(end.revents & (POLLHUP | POLLRDHUP))) {
    }
    if (!started) {
        _exit(0); /* Open MPI's daemon sees it and ends what it has started */
    }
    return NULL;
}

static nrd_error *listen_at(const char *text, int *out)
{
    struct sockaddr_un name;
    const socklen_t n = name_of(text, &name);

    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*out < 0 || bind(*out, (const struct sockaddr *)&name, n) != 0 || listen(*out, MAX_WORKERS) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no socket for MPI processes: %s", strerror(errno));
    }
    return NULL;
}

static nrd_error *give_next(int listener, int32_t rank, const int fds[2])
{
    struct pollfd come = {.fd = listener, .events = POLLIN};

    for (;;) {
        const int sock = poll(&come, 1, COME_MS) > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (sock < 0) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "a process that MPI_Comm_spawn started did not come within %d s; ranks must be "
                              "on this host", COME_MS / 1000);
        }
        const bool given = nrd_rank_peer(sock) > 0 && nrd_rank_hand(sock, rank, fds[0], fds[1]);
        close(sock);
        if (given) {
            return NULL;
        }
    }
}

static nrd_error *spawn(const mpi *m, int32_t n)
{
    mpi_comm between = NULL;
    char text[64], *program = NULL;
    char *argv[] = {(char[]){NRD_MPI_WORKER}, text, NULL};
    int32_t ranks[MAX_WORKERS];
    int fds[MAX_WORKERS][2], listener, code = 0;

    for (int32_t i = 0; i < n; i++) {
        if (!nrd_rank_take(NRD_RANK_SOCKET_FD, &ranks[i], fds[i])) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank 0 is gone");
        }
    }
    snprintf(text, sizeof text, "%u-%d", (unsigned)getuid(), (int)getpid());
    NRD_TRY(nrd_worker_program(&program));
    NRD_TRY(listen_at(text, &listener));
    if (m->init(NULL, NULL) != 0 ||
        (code = m->comm_spawn(program, argv, n, m->no_info, 0, (mpi_comm)m->self, &between, NULL)) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "MPI_Comm_spawn of %d processes failed (%d)", n, code);
    }
    (void)m->comm_disconnect(&between);
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(give_next(listener, ranks[i], fds[i]));
        close(fds[i][0]);
        close(fds[i][1]); /* or the worker's end would not be seen */
    }
    return NULL;
}

static void ignore_signals(void)
{
    /* These go to all processes of a terminal or service; rank 0 decides when the end has come. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

int nrd_mpi_world_main(int32_t n)
{
    pthread_t thread;
    mpi m;

    ignore_signals();
    forget_launcher();
    set_defaults();
    if (n < 1 || n > MAX_WORKERS || pthread_create(&thread, NULL, watch_rank_0, NULL) != 0) {
        return 1;
    }
    nrd_error *err = open_mpi(&m);
    err = err ? err : spawn(&m, n);
    started = !err;
    if (!nrd_rank_say(NRD_RANK_SOCKET_FD, err) || !started) {
        _exit(1);
    }
    pthread_join(thread, NULL);
    (void)m.finalize(); /* it removes Open MPI's files; the workers end by themselves */
    return 0;
}

/* ---- a worker ---- */

static nrd_error *leave_mpi(void)
{
    mpi m;
    mpi_comm parent = NULL;

    NRD_TRY(open_mpi(&m));
    if (m.init(NULL, NULL) != 0 || m.comm_get_parent(&parent) != 0 || (void *)parent == m.null) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this program is started by MPI_Comm_spawn");
    }
    (void)m.comm_disconnect(&parent);
    (void)m.finalize();
    return NULL;
}

static nrd_error *take_place(const char *text, int32_t *rank)
{
    struct sockaddr_un name;
    const socklen_t n = name_of(text, &name);
    const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int fds[2];

    if (sock < 0 || connect(sock, (const struct sockaddr *)&name, n) != 0 || nrd_rank_peer(sock) <= 0 ||
        !nrd_rank_take(sock, rank, fds)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank 0 is gone, or on another host");
    }
    close(sock);
    fds[0] = nrd_worker_move_up(fds[0]);
    fds[1] = nrd_worker_move_up(fds[1]);
    if (dup2(fds[0], NRD_RANK_SEGMENT_FD) < 0 || dup2(fds[1], NRD_RANK_SOCKET_FD) < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no descriptors: %s", strerror(errno));
    }
    return NULL;
}

int nrd_mpi_worker_main(const char *name)
{
    int32_t rank = 0;

    ignore_signals();
    nrd_error *err = leave_mpi();
    err = err ? err : take_place(name, &rank);
    if (err) {
        fprintf(stderr, "nereid mpi-worker: %s\n", nrd_error_message(err));
        nrd_error_free(err);
        return 1;
    }
    return nrd_exec_worker_main(rank);
}

/* ---- meeting ---- */

static nrd_error *pass_card(nrd_card *card)
{
    mpi m;

    NRD_TRY(open_mpi(&m));
    (void)setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* ranks do not come at the same time */
    if (m.init(NULL, NULL) != 0 || m.bcast(card, (int)sizeof *card, m.byte, 0, (mpi_comm)m.world) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "MPI_Bcast of where rank 0 is failed");
    }
    (void)m.finalize();
    return NULL;
}

int nrd_mpi_meet_main(void)
{
    nrd_card card;

    if (!nrd_tcp_receive(NRD_RANK_SOCKET_FD, &card, sizeof card)) {
        return 1;
    }
    nrd_error *err = pass_card(&card);
    if (err) {
        fprintf(stderr, "nereid mpi-meet: %s\n", nrd_error_message(err));
        nrd_error_free(err);
        return 1;
    }
    return nrd_tcp_send(NRD_RANK_SOCKET_FD, &card, sizeof card) ? 0 : 1;
}
