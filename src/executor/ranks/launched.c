/* SPDX-License-Identifier: Apache-2.0
 * Ranks of a launcher find each other through a socket whose abstract name is made of the user and the launcher's
 * job; the kernel says who is at the other end. Rank 0 listens from the start, so that the others see its end,
 * whatever it does before it opens an engine. On a host that rank 0 is not on the first rank takes its place there: the others
 * meet it, and it speaks for all of them (host.h). */
#include "executor/ranks/launched.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/ranks/handover.h"
#include "executor/ranks/host.h"
#include "executor/ranks/others.h"
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

enum { COME_MS = 60 * 1000, POD_COME_MS = 600 * 1000 /* an image may have to be loaded first */, MEET_MS = 2000, LOOK_MS = 500, RETRY_MS = 50 };

/* The first thing that a rank says. */
typedef struct hello {
    char build[40];
    int32_t rank, pid;
} hello;

static struct {
    int32_t size; /* 0: started alone */
    int32_t rank; /* 0, or the first one of a host that rank 0 is not on */
    int32_t n_here; /* ranks on this host; 0: not told */
    bool is_pod;
    int listens;
    pid_t parent;
    pthread_mutex_t mu;
    int socks[NRD_LAUNCHED_MAX]; /* guarded by mu; 0: it has not come */
} world = {.mu = PTHREAD_MUTEX_INITIALIZER};

static socklen_t name_of(const nrd_place *p, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "nereid-ranks-%u-%s", (unsigned)getuid(), p->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static _Noreturn void refuse(const nrd_place *p, const char *why)
{
    fprintf(stderr, "nereid: rank %d of %d: %s\n", p->rank, p->size, why);
    exit(1);
}

int32_t nrd_launched_come_ms(const nrd_place *p)
{
    return p->is_pod ? POD_COME_MS : COME_MS;
}

/* ---- ranks above 0 ---- */

/* Also of one whose parent has not asked for its status yet. */
static bool has_ended(int pidfd)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    return poll(&end, 1, 0) != 0;
}

/* Waits until rank 0 listens, and keeps who that is. -1: the launcher has ended, or the rank 0 that was known. */
static int reach_rank_0(const nrd_place *p, pid_t parent, int *leader)
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

/* Workers end with this process, which a launcher's signals do not end: rank 0 decides when the end has come. */
static void become_rank_above_0(void)
{
    char self[16];

    snprintf(self, sizeof self, "%d", (int)getpid());
    setenv(NRD_RANK_PARENT, self, 1);
    signal(SIGCHLD, SIG_IGN); /* a worker's end is heard by its socket */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

static _Noreturn void serve_rank_0(const nrd_place *p)
{
    const pid_t parent = getppid();
    int leader = -1;
    hello h = {.rank = p->rank, .pid = (int32_t)getpid()};
    int32_t rank;
    int fds[2];

    snprintf(h.build, sizeof h.build, "%s", nrd_device_id());
    int sock = reach_rank_0(p, parent, &leader);
    become_rank_above_0();
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
    if (world.rank > 0) {
        _exit(1);
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

static uint64_t come_until(void)
{
    return nrd_now_ns() + (world.is_pod ? POD_COME_MS : COME_MS) * 1000000ull;
}

static bool has_come(int32_t rank)
{
    return rank == world.rank || world.socks[rank] != 0 || nrd_others_host_of(rank) > 0;
}

/* Takes in one of this host that waits at the listener. With mu held, as below. */
static nrd_error *take_local(void)
{
    const struct timeval most = {.tv_sec = 5};
    hello h;
    const int sock = accept4(world.listens, NULL, NULL, SOCK_CLOEXEC);

    if (sock < 0) {
        return NULL;
    }
    (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (nrd_rank_peer(sock) <= 0 || recv(sock, &h, sizeof h, 0) != (ssize_t)sizeof h || h.rank < 1 || h.rank >= world.size ||
        world.socks[h.rank] != 0) {
        close(sock);
        return NULL;
    }
    if (strncmp(h.build, nrd_device_id(), sizeof h.build - 1) != 0) {
        close(sock);
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rank %d of %d is of another build; start the same program in "
                          "every rank", h.rank, world.size);
    }
    world.socks[h.rank] = sock;
    return NULL;
}

/* Takes in who comes to the listeners next. */
static nrd_error *admit_next(uint64_t until_ns, bool *in_time)
{
    struct pollfd listeners[2] = {{.fd = world.listens, .events = POLLIN}, {.fd = nrd_others_listener(), .events = POLLIN}};

    *in_time = nrd_now_ns() <= until_ns;
    const bool some = *in_time && poll(listeners, 2, LOOK_MS) > 0;
    NRD_TRY(nrd_others_take());
    return some && listeners[0].revents ? take_local() : NULL;
}

/* Until `rank` is there or the time is over. */
static nrd_error *admit(int32_t rank, uint64_t until_ns)
{
    bool in_time;

    NRD_TRY(nrd_others_take());
    while (!has_come(rank)) {
        NRD_TRY(admit_next(until_ns, &in_time));
        if (!in_time) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %d of %d has not come within %d s; it must be the same "
                              "program in the same job", rank, world.size, (world.is_pod ? POD_COME_MS : COME_MS) / 1000);
        }
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
    nrd_others_end();
    pthread_mutex_unlock(&world.mu);
}

static void open_listener(const nrd_place *p)
{
    struct sockaddr_un name;
    socklen_t n = name_of(p, &name);

    if (p->size > NRD_LAUNCHED_MAX) {
        refuse(p, "at most 64 ranks can be started");
    }
    world.listens = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (world.listens < 0 || bind(world.listens, (const struct sockaddr *)&name, n) != 0 ||
        listen(world.listens, NRD_LAUNCHED_MAX) != 0) {
        refuse(p, errno == EADDRINUSE ? "another program of this job is rank 0 already; NEREID_LAUNCHED=0 makes each "
                                        "of them one of its own"
                                      : strerror(errno));
    }
    world.size = p->size;
    world.rank = p->rank;
    world.n_here = p->n_here;
    world.is_pod = p->is_pod;
    world.parent = getppid();
}

static void watch_over_launcher(void)
{
    sigset_t all, before;
    pthread_t thread;

    /* A server blocks the signals that it waits for only after this: the thread must not take one and end the process. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch_launcher, NULL) == 0) {
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static _Noreturn void end_with(const nrd_place *p, nrd_error *err)
{
    if (err) {
        refuse(p, nrd_error_message(err));
    }
    exit(0);
}

static void meet_hosts(const nrd_place *p, nrd_card *card)
{
    int listener;
    nrd_error *err = nrd_meet(p, card, &listener);

    if (err) {
        end_with(p, err);
    }
    if (p->rank == 0) {
        nrd_others_begin(listener, card, p->size);
    }
}

/* The first rank of another host: waits for the others of its host, and does what rank 0 says. */
static _Noreturn void speak_for_host(const nrd_place *p, const nrd_card *card)
{
    int32_t ranks[NRD_LAUNCHED_MAX] = {p->rank}, n = 1;

    become_rank_above_0();
    open_listener(p);
    watch_over_launcher();
    /* A launcher numbers the ranks of a host in turn or deals them out: who is here says so. */
    const uint64_t until = come_until();
    while (n < p->n_here) {
        bool in_time;
        nrd_error *err = admit_next(until, &in_time);
        if (err || !in_time) {
            end_with(p, err ? err : nrd_errorf(NRD_ERR_UNAVAILABLE, "%d of the %d ranks of this host came", n, p->n_here));
        }
        n = 1;
        for (int32_t r = 1; r < p->size; r++) {
            if (world.socks[r] != 0) {
                ranks[n++] = r;
            }
        }
    }
    end_with(p, nrd_host_serve(p, card, ranks, n));
}

static void enter(bool leads)
{
    nrd_place p;
    nrd_card card;

    if (!nrd_place_find(&p) || (p.rank == 0 && !leads)) {
        return;
    }
    if (nrd_place_is_over_hosts(&p)) {
        meet_hosts(&p, &card);
    }
    if (p.rank > 0 && nrd_place_is_over_hosts(&p) && p.local == 0) {
        speak_for_host(&p, &card);
    }
    if (p.rank > 0) {
        serve_rank_0(&p);
    }
    open_listener(&p);
    (void)atexit(meet_all);
    watch_over_launcher();
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
    bool seen[NRD_LAUNCHED_MAX] = {false};

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
    const bool orchestrates = nrd_place_number("TRTLLM_ORCHESTRATOR", 0) != 0;
    if (!nrd_launched()) {
        return NULL;
    }
    if (world.is_pod) {
        return n_ranks % world.size == 0
                   ? NULL
                   : nrd_errorf(NRD_ERR_INVALID_ARG, "the engine has %d ranks (tp_size x pp_size), which %d pods "
                                "(LWS_GROUP_SIZE) cannot share evenly", n_ranks, world.size);
    }
    if (n_ranks == world.size || (orchestrates && n_ranks <= world.size)) {
        return n_ids > 0 ? check_ids(n_ranks, ids, n_ids) : NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "the engine has %d rank%s (tp_size x pp_size), but %d were started: start %d (mpirun -n %d, "
                      "--world_size %d), or one, which starts the others itself",
                      n_ranks, n_ranks == 1 ? "" : "s", world.size, n_ranks, n_ranks, n_ranks);
}

int32_t nrd_launched_of(int32_t rank, int32_t n_ranks)
{
    return world.is_pod ? rank / (n_ranks / world.size) : rank;
}

int32_t nrd_launched_here(int32_t n_ranks)
{
    if (world.is_pod && n_ranks >= world.size) {
        return n_ranks / world.size;
    }
    return world.n_here > 0 && world.n_here < n_ranks ? world.n_here : n_ranks;
}

bool nrd_launched_over_hosts(void)
{
    return nrd_others_listener() >= 0;
}

nrd_error *nrd_launched_host(int32_t launched, int32_t *out)
{
    pthread_mutex_lock(&world.mu);
    nrd_error *err = admit(launched, come_until());
    pthread_mutex_unlock(&world.mu);
    *out = err || launched == world.rank ? 0 : nrd_others_host_of(launched);
    return err;
}

nrd_error *nrd_launched_start(int32_t launched, int32_t rank, int segment_fd, int socket_fd, pid_t *out_pid)
{
    char gone[96];

    *out_pid = 0;
    if (launched == world.rank) {
        return nrd_worker_spawn(rank, segment_fd, socket_fd, out_pid);
    }
    snprintf(gone, sizeof gone, "the process of rank %d of %d has ended; start all ranks again", launched, world.size);
    pthread_mutex_lock(&world.mu);
    nrd_error *err = admit(launched, come_until());
    if (!err && !nrd_rank_hand(world.socks[launched], rank, segment_fd, socket_fd)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", gone);
    } else if (!err) {
        err = nrd_rank_hear(world.socks[launched], gone);
    }
    pthread_mutex_unlock(&world.mu);
    return err;
}
