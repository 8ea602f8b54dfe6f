/* SPDX-License-Identifier: Apache-2.0
 * Rank 0's side of an executor's ranks: starts the workers, waits for what they say, watches over them.
 *
 * Each worker has a socket to this process. What it says (loaded, or why not) comes through it, and it closes
 * with the process at the other end: so a worker ends with its server, however that ended, and a worker that
 * died is seen at once. One that was stopped is seen because its signs of life stop, one that hangs in a step because
 * they say so. None of this depends on how long a step takes. Time is counted in looks of the watcher's, so that a machine
 * which stood or was too busy to let it look does not make ranks appear lost. */
#include "executor/ranks/ranks.h"

#include "base/clock.h"
#include "base/mem.h"
#include "executor/ranks/adapters.h"
#include "executor/ranks/far.h"
#include "executor/ranks/launched.h"
#include "executor/ranks/life.h"
#include "executor/ranks/mpi.h"
#include "executor/ranks/reply.h"
#include "executor/ranks/spawn.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WATCH_MS = 250 };

typedef struct worker {
    pid_t pid; /* 0: never started, waited for, or another rank's child (launched.h) */
    int sock;  /* -1: none */
    bool is_far; /* another host's: far.h says what it says */
    nrd_worker_life life; /* the watcher's */
} worker;

struct nrd_ranks {
    nrd_segment *segment;
    int32_t size;
    worker workers[NRD_RANKS_MAX]; /* [0] is not used */
    void (*on_lost)(void *user, const char *reason);
    void *user;
    pthread_t watcher;
    bool watches;
    int wake[2]; /* pipe: ends the watcher */
    nrd_mpi_world world; /* of processes that MPI started */
    nrd_far *far; /* NULL: all ranks are on this host */
};

/* ---- starting ---- */

static nrd_error *open_pair(nrd_ranks *r, int32_t rank, int *theirs)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no socket for rank %d: %s", rank, strerror(errno));
    }
    r->workers[rank].sock = pair[0];
    *theirs = nrd_worker_move_up(pair[1]);
    return NULL;
}

static nrd_error *spawn(nrd_ranks *r, int32_t rank, int segment_fd)
{
    int theirs;

    NRD_TRY(open_pair(r, rank, &theirs));
    if (r->far && nrd_segment_config(r->segment)->hosts.of[rank] > 0) {
        r->workers[rank].is_far = true;
        nrd_far_attach(r->far, rank, theirs);
        return NULL;
    }
    const int32_t launched = nrd_segment_config(r->segment)->launched[rank];
    nrd_error *err = nrd_launched() ? nrd_launched_start(launched, rank, segment_fd, theirs, &r->workers[rank].pid)
                                    : nrd_worker_spawn(rank, segment_fd, theirs, &r->workers[rank].pid);
    close(theirs);
    return err;
}

/* All at once, as MPI starts them. */
static nrd_error *spawn_world(nrd_ranks *r, int segment_fd)
{
    int theirs[NRD_RANKS_MAX];
    int32_t n = 1;
    nrd_error *err = NULL;

    for (; n < r->size && !err; n++) {
        err = open_pair(r, n, &theirs[n]);
        n -= err != NULL;
    }
    err = err ? err : nrd_mpi_start(&r->world, r->size, segment_fd, theirs);
    while (--n >= 1) {
        close(theirs[n]);
    }
    return err;
}

static nrd_error *spawn_all(nrd_ranks *r, int segment_fd)
{
    if (!nrd_launched() && nrd_mpi_is_asked()) {
        return spawn_world(r, segment_fd);
    }
    for (int32_t i = 1; i < r->size; i++) {
        NRD_TRY(spawn(r, i, segment_fd));
    }
    return r->far ? nrd_far_run(r->far) : NULL;
}

nrd_error *nrd_ranks_start(nrd_ranks **out, int32_t size, int32_t n_ahead, size_t comm_bytes,
                           const nrd_rank_config *config,
                           void (*on_lost)(void *user, const char *reason), void *user)
{
    nrd_error *err = NULL;
    nrd_ranks *r = NULL;
    int segment_fd = -1;
    bool over_hosts = false;

    *out = NULL;
    if (size < 2 || size > NRD_RANKS_MAX) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "an engine of %d ranks: the limit is %d", size,
                          (int)NRD_RANKS_MAX);
    }
    NRD_NEW_GOTO(r, 1, err, fail);
    r->size = size;
    r->on_lost = on_lost;
    r->user = user;
    r->wake[0] = r->wake[1] = -1;
    for (int32_t i = 0; i < NRD_RANKS_MAX; i++) {
        r->workers[i].sock = -1;
    }
    NRD_TRY_GOTO(nrd_segment_new(&r->segment, size, n_ahead + 1, comm_bytes, config, &segment_fd), err, fail);
    segment_fd = nrd_worker_move_up(segment_fd);
    NRD_TRY_GOTO(nrd_far_is_needed(size, config, &over_hosts), err, fail);
    if (over_hosts) {
        NRD_TRY_GOTO(nrd_far_open(&r->far, r->segment, size, n_ahead + 1, comm_bytes, config), err, fail);
    }
    NRD_TRY_GOTO(spawn_all(r, segment_fd), err, fail);
    *out = r;
    r = NULL;
fail:
    if (segment_fd >= 0) {
        close(segment_fd);
    }
    nrd_ranks_stop(r);
    nrd_ranks_free(r);
    return err;
}

/* ---- what workers say ---- */

/* How an ended worker ended, in words. */
static void describe_end(worker *w, char *out, size_t size)
{
    int status = 0;
    pid_t pid = w->pid, got;
    nrd_rank_reply last;

    if (w->is_far) {
        const bool is_said = recv(w->sock, &last, sizeof last, MSG_DONTWAIT) == (ssize_t)sizeof last;
        snprintf(out, size, "%.*s", (int)strnlen(last.text, sizeof last.text), is_said ? last.text : "its host is gone");
        return;
    }
    if (pid <= 0) {
        snprintf(out, size, "ended");
        return;
    }
    for (int i = 0; (got = waitpid(pid, &status, WNOHANG)) == 0 && i < 100; i++) {
        const struct timespec pause = {0, 1000000}; /* its socket closes a little before it has ended */
        nanosleep(&pause, NULL);
    }
    w->pid = got == 0 ? pid : 0;
    if (got == pid && WIFSIGNALED(status)) {
        snprintf(out, size, "process %d was ended by signal %d", (int)pid, WTERMSIG(status));
    } else {
        snprintf(out, size, "process %d ended with status %d", (int)pid,
                 got == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
}

static nrd_error *read_reply(nrd_ranks *r, int32_t rank, nrd_rank_reply *out)
{
    char how[160];
    ssize_t n;

    do {
        n = recv(r->workers[rank].sock, out, sizeof *out, 0);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *out) {
        describe_end(&r->workers[rank], how, sizeof how);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %d of %d was lost while it loaded: %s", rank, r->size, how);
    }
    out->text[sizeof out->text - 1] = '\0';
    return out->failed ? nrd_errorf((nrd_error_code)out->code, "rank %d of %d: %s", rank, r->size, out->text)
                       : NULL;
}

static nrd_error *read_replies(nrd_ranks *r, uint64_t *least_free)
{
    nrd_rank_reply reply;
    for (int32_t i = 1; i < r->size; i++) {
        NRD_TRY(read_reply(r, i, &reply));
        *least_free = reply.free_bytes < *least_free ? reply.free_bytes : *least_free;
    }
    return NULL;
}

/* ---- watching ---- */

static void lose(nrd_ranks *r, int32_t rank, const char *how)
{
    char reason[224];
    snprintf(reason, sizeof reason, "rank %d of %d was lost: %s", rank, r->size, how);
    nrd_segment_stop(r->segment, rank);
    nrd_far_end(r->far);
    r->on_lost(r->user, reason);
}

static bool look(nrd_ranks *r, const struct pollfd *fds, int64_t ms)
{
    char how[160];

    for (int32_t i = 1; i < r->size; i++) {
        if (fds[i].revents) { /* nothing more is said after loading: it closed */
            describe_end(&r->workers[i], how, sizeof how);
            lose(r, i, how);
            return false;
        }
        const nrd_rank_life life = nrd_segment_life(r->segment, i);
        if (!r->workers[i].is_far && nrd_worker_stands_still(&r->workers[i].life, &life, ms, how, sizeof how)) {
            if (life.process > 0) {
                (void)kill(life.process, SIGKILL); /* one that was stopped, and is another's child, would stay */
            }
            lose(r, i, how);
            return false;
        }
    }
    return true;
}

static void *watch(void *user)
{
    nrd_ranks *r = user;
    struct pollfd fds[NRD_RANKS_MAX];

    pthread_setname_np(pthread_self(), "nrd-ranks");
    fds[0] = (struct pollfd){.fd = r->wake[0], .events = POLLIN};
    for (int32_t i = 1; i < r->size; i++) {
        fds[i] = (struct pollfd){.fd = r->workers[i].sock, .events = POLLIN};
    }
    for (int64_t looked_ms = (int64_t)(nrd_now_ns() / 1000000);;) {
        int n = poll(fds, (nfds_t)r->size, WATCH_MS);
        const int64_t now_ms = (int64_t)(nrd_now_ns() / 1000000), ms = now_ms - looked_ms;
        if (n < 0 && errno != EINTR) {
            return NULL;
        }
        if (n < 0) {
            continue;
        }
        looked_ms = now_ms;
        if (fds[0].revents || !look(r, fds, ms < 2 * WATCH_MS ? ms : 2 * WATCH_MS)) {
            return NULL;
        }
    }
}

nrd_error *nrd_ranks_wait_loaded(nrd_ranks *r, uint64_t *least_free)
{
    *least_free = UINT64_MAX;
    return read_replies(r, least_free);
}

nrd_error *nrd_ranks_ask_kv(nrd_ranks *r, int32_t n_blocks, int32_t n_host_blocks)
{
    const nrd_rank_kv kv = {n_blocks, n_host_blocks};
    void *mem = NULL;

    NRD_TRY(nrd_segment_begin(r->segment, &mem));
    memcpy(mem, &kv, sizeof kv);
    nrd_segment_end(r->segment, NRD_MESSAGE_ALLOC_KV, sizeof kv);
    return NULL;
}

nrd_error *nrd_ranks_wait_kv(nrd_ranks *r)
{
    uint64_t least_free = UINT64_MAX;

    NRD_TRY(read_replies(r, &least_free));
    if (pipe(r->wake) != 0 || pthread_create(&r->watcher, NULL, watch, r) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot watch over the ranks: %s", strerror(errno));
    }
    r->watches = true;
    return NULL;
}

/* ---- taking part, ending ---- */

static nrd_error *begin_step(void *user, void **out)
{
    return nrd_segment_begin(((nrd_ranks *)user)->segment, out);
}

static void end_step(void *user, size_t bytes)
{
    nrd_segment_end(((nrd_ranks *)user)->segment, NRD_MESSAGE_STEP, bytes);
}

void nrd_ranks_give_up(nrd_ranks *r)
{
    if (r) {
        nrd_segment_stop(r->segment, 0);
        nrd_far_end(r->far);
    }
}

nrd_error *nrd_ranks_place_adapter(nrd_ranks *r, int32_t slot, const nrd_lora *l)
{
    return nrd_rank_send_adapter(r->segment, slot, l);
}

nrd_error *nrd_ranks_give_blocks(nrd_ranks *r, const nrd_parcel_place *place, const int32_t *blocks,
                                 int32_t n_blocks)
{
    const size_t bytes = sizeof(nrd_give_order) + (size_t)n_blocks * sizeof *blocks;
    void *mem = NULL;

    if (bytes > NRD_RANKS_MESSAGE_BYTES) {
        return nrd_errorf(
            NRD_ERR_UNSUPPORTED,
            "a prompt of %d blocks is handed over, the limit of an engine of several ranks is %zu",
            n_blocks, (NRD_RANKS_MESSAGE_BYTES - sizeof(nrd_give_order)) / sizeof *blocks);
    }
    NRD_TRY(nrd_segment_begin(r->segment, &mem));
    nrd_give_order *order = mem;
    order->place = *place;
    order->n_blocks = n_blocks;
    memcpy(order->blocks, blocks, (size_t)n_blocks * sizeof *blocks);
    nrd_segment_end(r->segment, NRD_MESSAGE_GIVE, bytes);
    return NULL;
}

nrd_error *nrd_ranks_wait_given(nrd_ranks *r, const nrd_parcel_place *place)
{
    NRD_TRY(nrd_segment_drain(r->segment));
    for (int32_t i = 1; i < r->size; i++) {
        NRD_TRY(nrd_parcel_place_check(place, i));
    }
    return NULL;
}

const char *nrd_ranks_far_host(const nrd_ranks *r, int32_t rank)
{
    return r->far ? nrd_far_host_name(r->far, rank) : NULL;
}

nrd_runner_rank nrd_ranks_runner(nrd_ranks *r)
{
    return (nrd_runner_rank){
        .rank = 0,
        .size = r->size,
        .shared = nrd_segment_comm(r->segment),
        .far = nrd_segment_far(r->segment),
        .sink = {.begin = begin_step, .end = end_step, .user = r, .max_bytes = NRD_RANKS_MESSAGE_BYTES},
    };
}

void nrd_ranks_stop(nrd_ranks *r)
{
    if (!r) {
        return;
    }
    if (r->watches) {
        close(r->wake[1]); /* the watcher's poll returns */
        r->wake[1] = -1;
        pthread_join(r->watcher, NULL);
        r->watches = false;
    }
    if (r->segment) {
        nrd_segment_stop(r->segment, 0);
    }
    nrd_far_end(r->far);
    for (int32_t i = 1; i < r->size; i++) {
        if (r->workers[i].sock >= 0) {
            close(r->workers[i].sock);
            r->workers[i].sock = -1;
        }
        if (r->workers[i].pid > 0) {
            kill(r->workers[i].pid, SIGKILL); /* it holds nothing that must be put away */
            while (waitpid(r->workers[i].pid, NULL, 0) < 0 && errno == EINTR) {
            }
            r->workers[i].pid = 0;
        }
    }
    nrd_mpi_stop(&r->world);
}

void nrd_ranks_free(nrd_ranks *r)
{
    if (!r) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (r->wake[i] >= 0) {
            close(r->wake[i]);
        }
    }
    nrd_far_free(r->far); /* its threads write to the segment */
    nrd_segment_free(r->segment);
    free(r);
}
