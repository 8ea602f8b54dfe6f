/* SPDX-License-Identifier: Apache-2.0
 * The thread pool of the CPU device. Each call of nrd_threads_run gives all threads one function;
 * threads that have nothing to do first spin, then sleep on a futex. Also which processors they are
 * pinned to, and how many the process may use (affinity mask, quota of the control group). */
#include "device/cpu/threads.h"

#include "base/mem.h"
#include "base/numa.h"
#include "base/spin.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Life of a run: the caller writes fn and user, raises `generation`, works as thread 0. Everybody
 * ends in one last barrier, so when the caller leaves it the workers touch nothing of this run.
 * `arrived` only grows: a barrier is passed when it has reached the thread's next multiple of n. */
struct nrd_threads {
    int n, spins;
    pthread_t *workers;
    cpu_set_t taken;          /* processors of the workers, and of other shares; empty: no worker is pinned */
    pthread_mutex_t run_lock; /* one run at a time */
    nrd_threads_fn fn;           /* guarded by the order of generation */
    void *user;
    uint32_t start;           /* value of `arrived` when the run began */
    _Atomic uint32_t stop;
    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
};

typedef struct worker_start {
    nrd_threads *pool;
    int id, cpu;
} worker_start;

enum { SPINS = 2000 /* pauses, about 50-90 us: longer than the host's work between two steps */ };

static void futex_wait(_Atomic uint32_t *at, uint32_t seen)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Waits until *at differs from `old` (until_target: until it has reached `old`). */
static uint32_t wait_for(nrd_threads *p, _Atomic uint32_t *at, uint32_t old, int until_target)
{
    uint32_t v;

    for (int i = 0;; i++) {
        v = atomic_load(at);
        if (until_target ? (int32_t)(v - old) >= 0 : v != old) {
            return v;
        }
        if (i < p->spins) {
            nrd_spin_pause();
            continue;
        }
        atomic_fetch_add(&p->sleepers, 1); /* before the last look: the waker looks after its write */
        v = atomic_load(at);
        if (!(until_target ? (int32_t)(v - old) >= 0 : v != old)) {
            futex_wait(at, v);
        }
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

void nrd_threads_barrier(nrd_thread *self)
{
    nrd_threads *p = self->pool;

    if (p->n == 1) {
        return;
    }
    self->target += (uint32_t)p->n;
    if (atomic_fetch_add(&p->arrived, 1) + 1 == self->target) {
        if (atomic_load(&p->sleepers)) {
            futex_wake_all(&p->arrived);
        }
        return;
    }
    wait_for(p, &p->arrived, self->target, 1);
}

bool nrd_threads_finish(nrd_thread *self, _Atomic uint32_t *count, uint32_t n, uint32_t target)
{
    if (n == 0) {
        return atomic_load(count) == target;
    }
    if (atomic_fetch_add(count, n) + n != target) {
        return false;
    }
    if (atomic_load(&self->pool->sleepers)) {
        futex_wake_all(count);
    }
    return true;
}

void nrd_threads_wait(nrd_thread *self, _Atomic uint32_t *count, uint32_t target)
{
    wait_for(self->pool, count, target, 1);
}

static void *worker(void *arg)
{
    worker_start w = *(worker_start *)arg;
    nrd_threads *p = w.pool;
    char name[16];
    uint32_t seen = 0;

    free(arg);
    snprintf(name, sizeof name, "nrd-cpu-%d", w.id);
    pthread_setname_np(pthread_self(), name);
    if (w.cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)w.cpu, &set);
        (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* a wish, not a need */
    }
    for (;;) {
        seen = wait_for(p, &p->generation, seen, 0);
        if (atomic_load(&p->stop)) {
            return NULL;
        }
        nrd_thread self = {p, w.id, p->n, p->start};
        p->fn(p->user, &self);
        nrd_threads_barrier(&self);
    }
}

/* The caller is not pinned: it may be a thread of the program, which others inherit the mask of. But where it happens to
 * be on a worker's processor the two take turns there for a while, and others stay idle: then it is sent away once. */
static void leave_taken(const nrd_threads *p)
{
    const int cpu = sched_getcpu();
    cpu_set_t own, others;

    if (cpu < 0 || !CPU_ISSET((size_t)cpu, &p->taken) || sched_getaffinity(0, sizeof own, &own) != 0) {
        return;
    }
    CPU_XOR(&others, &own, &p->taken);
    CPU_AND(&others, &others, &own);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) {
        (void)sched_setaffinity(0, sizeof own, &own);
    }
}

void nrd_threads_run(nrd_threads *p, nrd_threads_fn fn, void *user)
{
    pthread_mutex_lock(&p->run_lock);
    leave_taken(p);
    p->fn = fn;
    p->user = user;
    p->start = atomic_load(&p->arrived);
    nrd_thread self = {p, 0, p->n, p->start};
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers)) {
        futex_wake_all(&p->generation);
    }
    fn(user, &self);
    nrd_threads_barrier(&self);
    pthread_mutex_unlock(&p->run_lock);
}

int nrd_threads_size(const nrd_threads *p)
{
    return p->n;
}

static int quota_of(const char *path, const char *period_path)
{
    FILE *f = fopen(path, "re");
    long long quota = -1, period = 100000;

    if (!f) {
        return 0;
    }
    int got = fscanf(f, "%19lld %19lld", &quota, &period); /* "max 100000" gives none */
    fclose(f);
    if (period_path) {
        f = fopen(period_path, "re");
        if (f) {
            if (fscanf(f, "%19lld", &period) != 1) {
                period = 100000;
            }
            fclose(f);
        }
    }
    if (got < 1 || quota <= 0 || period <= 0) {
        return 0;
    }
    long long n = (quota + period - 1) / period;
    return n > 4096 ? 4096 : (int)n;
}

/* Number of the lowest processor of cpu's core. */
static int core_of(const char *topology, int cpu)
{
    char path[256];
    int first = cpu;

    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", topology, cpu);
    FILE *f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%9d", &first) != 1 || first < 0 || first >= CPU_SETSIZE) { /* "0,64" or "0-1" */
            first = cpu;
        }
        fclose(f);
    }
    return first;
}

/* The first of every node, then the second of every node, ... */
static void spread(const char *topology, int *cpus, int n)
{
    int rank[CPU_SETSIZE], sorted[CPU_SETSIZE], seen[64] = {0}, at = 0;

    for (int i = 0; i < n; i++) {
        rank[i] = seen[nrd_numa_node_of(topology, cpus[i])]++;
    }
    for (int r = 0; at < n; r++) {
        for (int i = 0; i < n; i++) {
            if (rank[i] == r) {
                sorted[at++] = cpus[i];
            }
        }
    }
    memcpy(cpus, sorted, (size_t)n * sizeof *cpus);
}

int nrd_threads_order_cpus(const char *topology, const cpu_set_t *set, int out[CPU_SETSIZE],
                           int *out_n_cores)
{
    cpu_set_t seen, later;
    int n = 0;

    CPU_ZERO(&seen);
    CPU_ZERO(&later);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, set)) {
            continue;
        }
        size_t core = (size_t)core_of(topology, cpu);
        if (CPU_ISSET(core, &seen)) {
            CPU_SET((size_t)cpu, &later);
        } else {
            CPU_SET(core, &seen);
            out[n++] = cpu;
        }
    }
    *out_n_cores = n;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &later)) {
            out[n++] = cpu;
        }
    }
    spread(topology, out, *out_n_cores);
    spread(topology, out + *out_n_cores, n - *out_n_cores);
    return n;
}

static const char topology[] = NRD_NUMA_CPUS;

int nrd_threads_default(void)
{
    cpu_set_t set;
    int cpus[CPU_SETSIZE], n = 1;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        (void)nrd_threads_order_cpus(topology, &set, cpus, &n);
    }
    int quota = quota_of("/sys/fs/cgroup/cpu.max", NULL);
    if (quota == 0) {
        quota = quota_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    }
    return quota > 0 && quota < n ? quota : n > 0 ? n : 1;
}

nrd_error *nrd_threads_new(nrd_threads **out, int n_threads, int share, int n_shares)
{
    nrd_error *err = NULL;
    cpu_set_t set;
    int started = 0, n_cpus = 0, n_cores = 0, cpus[CPU_SETSIZE];

    *out = NULL;
    nrd_threads *p = nrd_aligned_zalloc(64, sizeof *p);
    if (!p) {
        return nrd_error_no_memory();
    }
    if (n_threads == 0) {
        n_threads = nrd_threads_default() / n_shares;
        n_threads = n_threads > 0 ? n_threads : 1;
    }
    p->n = n_threads;
    pthread_mutex_init(&p->run_lock, NULL);
    NRD_NEW_GOTO(p->workers, n_threads, err, fail);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n_cpus = nrd_threads_order_cpus(topology, &set, cpus, &n_cores);
    }
    bool fits = n_threads * n_shares <= n_cpus;
    int first = fits ? share * n_threads : 0; /* beside the other shares' */
    for (int i = 0; fits && n_threads > 1 && i < n_threads * n_shares; i++) {
        if (i != first) {
            CPU_SET((size_t)cpus[i], &p->taken);
        }
    }
    p->spins = fits ? SPINS : 0; /* with fewer processors a spinner blocks a worker */
    for (int i = 1; i < n_threads; i++) {
        worker_start *w;
        NRD_NEW_GOTO(w, 1, err, fail);
        w->pool = p;
        w->id = i;
        w->cpu = fits ? cpus[first + i] : -1; /* thread 0 stays the caller's */
        if (pthread_create(&p->workers[i], NULL, worker, w) != 0) {
            free(w);
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "cpu: no thread %d of %d", i + 1, n_threads);
            goto fail;
        }
        started = i;
    }
    *out = p;
    return NULL;

fail:
    p->n = started + 1;
    nrd_threads_free(p);
    return err;
}

void nrd_threads_free(nrd_threads *p)
{
    if (!p) {
        return;
    }
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->generation, 1);
    futex_wake_all(&p->generation);
    for (int i = 1; p->workers && i < p->n; i++) {
        pthread_join(p->workers[i], NULL);
    }
    pthread_mutex_destroy(&p->run_lock);
    free(p->workers);
    free(p);
}
