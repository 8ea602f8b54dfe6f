/* SPDX-License-Identifier: Apache-2.0
 * Ranks of a launcher find each other through a socket whose abstract name is made of the user and the launcher's
 * job; the kernel says who is at the other end. Rank 0 listens from the start, so that the others see its end,
 * whatever it does before it opens an engine. On a host that rank 0 is not on the first rank takes its place there: the others
 * meet it, and it speaks for all of them (host.h). */
#include "executor/ranks/launched_internal.h"

#include "base/clock.h"
#include "device/device.h"
#include "executor/ranks/handover.h"
#include "executor/ranks/others.h"
#include "executor/ranks/spawn.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MEET_MS = 2000, LOOK_MS = 500, RETRY_MS = 50 };

static struct {
    int32_t size; /* 0: started alone */
    int32_t rank; /* 0, or the first one of a host that rank 0 is not on */
    int32_t n_here; /* ranks on this host; 0: not told */
    bool is_pod;
    int listens;
    pthread_mutex_t mu;
    int socks[NRD_LAUNCHED_MAX]; /* guarded by mu; 0: it has not come */
} world = {.mu = PTHREAD_MUTEX_INITIALIZER};

socklen_t nrd_launched_name(const nrd_place *p, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "nereid-ranks-%u-%s", (unsigned)getuid(), p->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

_Noreturn void nrd_launched_refuse(const nrd_place *p, const char *why)
{
    fprintf(stderr, "nereid: rank %d of %d: %s\n", p->rank, p->size, why);
    exit(1);
}

int32_t nrd_launched_come_ms(const nrd_place *p)
{
    return p->is_pod ? POD_COME_MS : COME_MS;
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
    nrd_launched_hello h;
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

void nrd_launched_meet_all(void)
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

void nrd_launched_listen(const nrd_place *p)
{
    struct sockaddr_un name;
    socklen_t n = nrd_launched_name(p, &name);

    if (p->size > NRD_LAUNCHED_MAX) {
        nrd_launched_refuse(p, "at most 64 ranks can be started");
    }
    world.listens = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (world.listens < 0 || bind(world.listens, (const struct sockaddr *)&name, n) != 0 ||
        listen(world.listens, NRD_LAUNCHED_MAX) != 0) {
        nrd_launched_refuse(p, errno == EADDRINUSE ? "another program of this job is rank 0 already; NEREID_LAUNCHED=0 makes each "
                                        "of them one of its own"
                                      : strerror(errno));
    }
    world.size = p->size;
    world.rank = p->rank;
    world.n_here = p->n_here;
    world.is_pod = p->is_pod;
}

nrd_error *nrd_launched_gather(const nrd_place *p, int32_t *ranks, int32_t *out_n)
{
    int32_t n = 1;

    /* A launcher numbers the ranks of a host in turn or deals them out: who is here says so. */
    const uint64_t until = come_until();
    ranks[0] = p->rank;
    while (n < p->n_here) {
        bool in_time;
        NRD_TRY(admit_next(until, &in_time));
        if (!in_time) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "%d of the %d ranks of this host came", n, p->n_here);
        }
        n = 1;
        for (int32_t r = 1; r < p->size; r++) {
            if (world.socks[r] != 0) {
                ranks[n++] = r;
            }
        }
    }
    *out_n = n;
    return NULL;
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
