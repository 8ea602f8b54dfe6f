/* SPDX-License-Identifier: Apache-2.0
 * What a process is that a launcher started: rank 0, which goes on as what it was started as; the first one of a host that
 * rank 0 is not on, which speaks for that host; or one of the others, which start workers for the two. */
#include "executor/ranks/launched_internal.h"

#include "base/clock.h"
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 500, RETRY_MS = 50 };

/* Of the thread that watches the launcher, which is made once. */
static struct {
    pid_t parent;
    int32_t rank;
} watched;

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
    socklen_t n = nrd_launched_name(p, &name);
    const uint64_t until = nrd_now_ns() + COME_MS * 1000000ull;

    for (;;) {
        int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (sock < 0) {
            nrd_launched_refuse(p, strerror(errno));
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
            nrd_launched_refuse(p, "rank 0 has not come within a minute; it must be the same program in the same job");
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
    nrd_launched_hello h = {.rank = p->rank, .pid = (int32_t)getpid()};
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

/* Where the launcher is killed nobody else tells this process. */
static void *watch_launcher(void *unused)
{
    const struct timespec pause = {0, LOOK_MS * 1000000};
    (void)unused;
    while (getppid() == watched.parent) {
        nanosleep(&pause, NULL);
    }
    if (watched.rank > 0) {
        _exit(1);
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

static void watch_over_launcher(const nrd_place *p)
{
    sigset_t all, before;
    pthread_t thread;

    watched.parent = getppid();
    watched.rank = p->rank;

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
        nrd_launched_refuse(p, nrd_error_message(err));
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
    int32_t ranks[NRD_LAUNCHED_MAX], n = 0;

    become_rank_above_0();
    nrd_launched_listen(p);
    watch_over_launcher(p);
    nrd_error *err = nrd_launched_gather(p, ranks, &n);
    end_with(p, err ? err : nrd_host_serve(p, card, ranks, n));
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
    nrd_launched_listen(&p);
    (void)atexit(nrd_launched_meet_all);
    watch_over_launcher(&p);
}

void nrd_ranks_enter(void)
{
    enter(true);
}

void nrd_ranks_enter_above_0(void)
{
    enter(false);
}
