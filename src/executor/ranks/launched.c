/* SPDX-License-Identifier: Apache-2.0
 * Ranks of a launcher find each other through a socket whose abstract name is made of the user and the launcher's
 * job; the kernel says who is at the other end. Rank 0 listens from the start, so that the others see its end,
 * whatever it does before it opens an engine. */
#include "executor/ranks/launched.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/ranks/handover.h"
#include "executor/ranks/spawn.h"
#include "nereid/ranks.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LAUNCHED = 64, COME_MS = 60 * 1000, MEET_MS = 2000, LOOK_MS = 500, RETRY_MS = 50 };

/* The first thing that a rank says. */
typedef struct hello {
    char build[40];
    int32_t rank, pid;
} hello;

static struct {
    int32_t size; /* 0: started alone */
    int listens;
    pid_t parent;
    pthread_mutex_t mu;
    int socks[MAX_LAUNCHED]; /* guarded by mu; 0: it has not come */
} world = {.mu = PTHREAD_MUTEX_INITIALIZER};

/* ---- what the launcher says ---- */

typedef struct place {
    int32_t rank, size, n_here; /* n_here: ranks of this host; 0: not told */
    char job[64];
} place;

static int32_t number(const char *name, int32_t fallback)
{
    const char *text = nrd_env(name, NULL);
    return text && *text ? (int32_t)strtol(text, NULL, 10) : fallback;
}

static bool find_place(place *p)
{
    const char *job = nrd_env("PMIX_NAMESPACE", NULL), *step = nrd_env("SLURM_STEP_ID", NULL);

    *p = (place){.rank = number("OMPI_COMM_WORLD_RANK", -1), .size = number("OMPI_COMM_WORLD_SIZE", 0)};
    if (p->rank >= 0 && p->size > 0) {
        p->n_here = number("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
        snprintf(p->job, sizeof p->job, "ompi-%s", job ? job : nrd_env("OMPI_MCA_ess_base_jobid", "0"));
    } else if (step && nrd_env("SLURM_STEP_NUM_TASKS", NULL)) {
        p->rank = number("SLURM_PROCID", -1);
        p->size = number("SLURM_STEP_NUM_TASKS", 0);
        p->n_here = number("SLURM_STEP_NUM_NODES", 1) > 1 ? 1 : p->size;
        snprintf(p->job, sizeof p->job, "slurm-%s.%s", nrd_env("SLURM_JOB_ID", "0"), step);
    } else {
        p->rank = number("PMI_RANK", -1);
        p->size = number("PMI_SIZE", 0);
        snprintf(p->job, sizeof p->job, "pmi-%d", (int)getppid()); /* the launcher's process of this host */
    }
    return p->size > 1 && p->rank >= 0 && p->rank < p->size && number("NEREID_LAUNCHED", 1) != 0;
}

static socklen_t name_of(const place *p, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "nereid-ranks-%u-%s", (unsigned)getuid(), p->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static _Noreturn void refuse(const place *p, const char *why)
{
    fprintf(stderr, "nereid: rank %d of %d: %s\n", p->rank, p->size, why);
    exit(1);
}

/* ---- ranks above 0 ---- */

/* Also of one whose parent has not asked for its status yet. */
static bool has_ended(int pidfd)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    return poll(&end, 1, 0) != 0;
}

/* Waits until rank 0 listens, and keeps who that is. -1: the launcher has ended, or the rank 0 that was known. */
static int reach_rank_0(const place *p, pid_t parent, int *leader)
{
    const struct timespec pause = {0, RETRY_MS * 1000000};
    struct sockaddr_un name;
    socklen_t n = name_of(p, &name);
    const uint64_t until = nrd_now_ns() + COME_MS * 1000000ull;

    for (;;) {
        int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (sock < 0) {
            refuse(p, strerror(errno));
        }
        if (connect(sock, (const struct sockaddr *)&name, n) == 0 && nrd_rank_peer(sock) > 0) {
            if (*leader < 0) {
                *leader = (int)syscall(SYS_pidfd_open, nrd_rank_peer(sock), 0);
            }
            return sock;
        }
        close(sock);
        if (getppid() != parent || (*leader >= 0 && has_ended(*leader))) {
            return -1;
        }
        if (*leader < 0 && nrd_now_ns() > until) {
            refuse(p, "rank 0 has not come within a minute; it must be the same program in the same job");
        }
        nanosleep(&pause, NULL);
    }
}

static nrd_error *follow(int32_t rank, int fds[2])
{
    pid_t pid;

    for (int i = 0; i < 2; i++) {
        fds[i] = nrd_worker_move_up(fds[i]);
    }
    nrd_error *err = nrd_worker_spawn(rank, fds[0], fds[1], &pid);
    close(fds[0]);
    close(fds[1]);
    return err;
}

static _Noreturn void serve_rank_0(const place *p)
{
    const pid_t parent = getppid();
    int leader = -1;
    char self[16];
    hello h = {.rank = p->rank, .pid = (int32_t)getpid()};
    int32_t rank;
    int fds[2];

    snprintf(self, sizeof self, "%d", (int)getpid());
    setenv(NRD_RANK_PARENT, self, 1);
    signal(SIGCHLD, SIG_IGN); /* rank 0 hears of a worker's end by its socket */
    snprintf(h.build, sizeof h.build, "%s", nrd_device_id());
    int sock = reach_rank_0(p, parent, &leader);
    /* A launcher sends these to all; rank 0 decides when the end has come, and closes the socket. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    /* A server may start again as the same process. */
    for (; sock >= 0; sock = leader >= 0 ? reach_rank_0(p, parent, &leader) : -1) {
        (void)!send(sock, &h, sizeof h, MSG_NOSIGNAL);
        while (nrd_rank_take(sock, &rank, fds)) {
            (void)nrd_rank_say(sock, follow(rank, fds));
        }
        close(sock);
    }
    exit(0);
}

/* ---- rank 0 ---- */

/* Where the launcher is killed nobody else tells this process. */
static void *watch_launcher(void *unused)
{
    const struct timespec pause = {0, LOOK_MS * 1000000};
    (void)unused;
    while (getppid() == world.parent) {
        nanosleep(&pause, NULL);
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

/* Takes in who waits at the door, until `rank` is there or the time is over. With mu held. */
static nrd_error *admit(int32_t rank, uint64_t until_ns)
{
    hello h;

    while (world.socks[rank] == 0) {
        struct pollfd door = {.fd = world.listens, .events = POLLIN};
        if (nrd_now_ns() > until_ns) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %d of %d has not come within %d s; it must be the same "
                              "program in the same job", rank, world.size, COME_MS / 1000);
        }
        int sock = poll(&door, 1, LOOK_MS) > 0 ? accept4(world.listens, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (sock < 0) {
            continue;
        }
        const struct timeval most = {.tv_sec = 5};
        (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        if (nrd_rank_peer(sock) <= 0 || recv(sock, &h, sizeof h, 0) != (ssize_t)sizeof h || h.rank < 1 || h.rank >= world.size ||
            world.socks[h.rank] != 0) {
            close(sock);
            continue;
        }
        if (strncmp(h.build, nrd_device_id(), sizeof h.build - 1) != 0) {
            close(sock);
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "rank %d of %d is of another build; start the same program in "
                              "every rank", h.rank, world.size);
        }
        world.socks[h.rank] = sock;
    }
    return NULL;
}

/* At exit: those that wait for rank 0 must have seen it before it ends, or they would wait for the rest of their
 * minute. Ranks that no model uses have met nobody yet, and a server may end as soon as it has started. */
static void meet_all(void)
{
    const struct timespec pause = {0, RETRY_MS * 1000000};
    const uint64_t until = nrd_now_ns() + MEET_MS * 1000000ull;

    while (pthread_mutex_trylock(&world.mu) != 0) { /* a model that still starts waits for a rank, for longer */
        if (nrd_now_ns() > until) {
            return;
        }
        nanosleep(&pause, NULL);
    }
    for (int32_t rank = 1; rank < world.size; rank++) {
        nrd_error_free(admit(rank, until));
    }
    pthread_mutex_unlock(&world.mu);
}

static void lead(const place *p)
{
    struct sockaddr_un name;
    socklen_t n = name_of(p, &name);
    sigset_t all, before;
    pthread_t thread;

    if (p->size > MAX_LAUNCHED) {
        refuse(p, "at most 64 ranks can be started");
    }
    world.listens = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (world.listens < 0 || bind(world.listens, (const struct sockaddr *)&name, n) != 0 ||
        listen(world.listens, MAX_LAUNCHED) != 0) {
        refuse(p, errno == EADDRINUSE ? "another program of this job is rank 0 already; NEREID_LAUNCHED=0 makes each "
                                        "of them one of its own"
                                      : strerror(errno));
    }
    world.size = p->size;
    world.parent = getppid();
    (void)atexit(meet_all);
    /* A server blocks the signals that it waits for only after this: the thread must not take one and end the process. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch_launcher, NULL) == 0) {
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void enter(bool leads)
{
    place p;
    if (!find_place(&p)) {
        return;
    }
    if (p.n_here > 0 && p.n_here < p.size) {
        refuse(&p, "the ranks are on several hosts; all ranks of an engine must be on one: start them there "
                   "(mpirun --host, srun --nodes=1), or divide the model over fewer");
    }
    if (p.rank > 0) {
        serve_rank_0(&p);
    }
    if (leads) {
        lead(&p);
    }
}

void nrd_ranks_enter(void)
{
    enter(true);
}

void nrd_ranks_enter_above_0(void)
{
    enter(false);
}

bool nrd_launched(void)
{
    return world.size > 1;
}

static nrd_error *check_ids(int32_t n_ranks, const int32_t *ids, int32_t n_ids)
{
    bool seen[MAX_LAUNCHED] = {false};

    if (n_ids != n_ranks) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "participant_ids has %d ranks, but the engine has %d (tp_size x pp_size)", n_ids,
                          n_ranks);
    }
    for (int32_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= world.size) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "participant_ids: rank %d is none of the %d that were started (0 to %d)",
                              ids[i], world.size, world.size - 1);
        }
        if (seen[ids[i]] || (i > 0 && ids[i] == 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "participant_ids: rank %d %s", ids[i],
                              seen[ids[i]] ? "comes twice" : "is the server's own: it can only come first");
        }
        seen[ids[i]] = true;
    }
    return NULL;
}

nrd_error *nrd_launched_check(int32_t n_ranks, const int32_t *ids, int32_t n_ids)
{
    /* With an orchestrator rank 0 is one more, and models take of the others what they need. */
    const bool orchestrates = number("TRTLLM_ORCHESTRATOR", 0) != 0;
    if (!nrd_launched()) {
        return NULL;
    }
    if (n_ranks == world.size || (orchestrates && n_ranks <= world.size)) {
        return n_ids > 0 ? check_ids(n_ranks, ids, n_ids) : NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "the engine has %d rank%s (tp_size x pp_size), but %d were started: start %d (mpirun -n %d, "
                      "--world_size %d), or one, which starts the others itself",
                      n_ranks, n_ranks == 1 ? "" : "s", world.size, n_ranks, n_ranks, n_ranks);
}

nrd_error *nrd_launched_start(int32_t launched, int32_t rank, int segment_fd, int socket_fd)
{
    char gone[96];

    snprintf(gone, sizeof gone, "the process of rank %d of %d has ended; start all ranks again", launched, world.size);
    pthread_mutex_lock(&world.mu);
    nrd_error *err = admit(launched, nrd_now_ns() + COME_MS * 1000000ull);
    if (!err && !nrd_rank_hand(world.socks[launched], rank, segment_fd, socket_fd)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", gone);
    } else if (!err) {
        err = nrd_rank_hear(world.socks[launched], gone);
    }
    pthread_mutex_unlock(&world.mu);
    return err;
}
