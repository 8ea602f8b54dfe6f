/* SPDX-License-Identifier: Apache-2.0
 * Which thread takes which task, and when a phase is done. */
#include "device/cpu/walk.h"

#include "base/mem.h"

enum { MAX_SHARES = 16, CACHE_LINE = 64 };

/* Counters of a share lie together, for no other thread writes there unless it helps out. A counter is of run `counter >> 32`, or of an
 * earlier one and then begins anew: so nobody has to clear what lies in another processor's cache. */
struct nrd_cpu_walk {
    int n_shares, n_threads;
    uint32_t run;
    size_t n_counters; /* of a share */
    _Atomic uint64_t *taken; /* [n_shares][n_counters] */
    /* of the run */
    nrd_cpu_cmd *list;
    const nrd_cpu_cmd *end;
    uint8_t **scratch, *shared;
};

nrd_error *nrd_cpu_walk_new(nrd_cpu_walk **out, int n_threads, int32_t max_commands)
{
    nrd_error *err = NULL;
    nrd_cpu_walk *w = NULL;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    w->n_threads = n_threads;
    w->n_shares = n_threads < MAX_SHARES ? n_threads : MAX_SHARES;
    w->n_counters = ((size_t)max_commands * NRD_CPU_MAX_PHASES + 7) / 8 * 8; /* whole cache lines */
    w->taken = nrd_aligned_zalloc(CACHE_LINE, (size_t)w->n_shares * w->n_counters * sizeof *w->taken);
    if (!w->taken) {
        err = nrd_error_no_memory();
        goto fail;
    }
    *out = w;
    return NULL;

fail:
    nrd_cpu_walk_free(w);
    return err;
}

void nrd_cpu_walk_free(nrd_cpu_walk *w)
{
    if (w) {
        free(w->taken);
        free(w);
    }
}

/* The next of `n` that nobody took, or -1. */
static int32_t take(_Atomic uint64_t *counter, uint32_t run, int32_t n)
{
    uint64_t seen = atomic_load_explicit(counter, memory_order_relaxed), next;

    do {
        next = (seen >> 32 == run ? seen : (uint64_t)run << 32) + 1;
        if ((uint32_t)next > (uint32_t)n) {
            return -1;
        }
    } while (!atomic_compare_exchange_weak_explicit(counter, &seen, next, memory_order_relaxed, memory_order_relaxed));
    return (int32_t)((uint32_t)next - 1);
}

/* The first of n tasks that is share s's; the first share has the odd one. */
static int32_t share_begin(const nrd_cpu_walk *w, int32_t n, int s)
{
    return (int32_t)(((int64_t)n * s + w->n_shares - 1) / w->n_shares);
}

static void run_phase(nrd_cpu_walk *w, nrd_thread *self, nrd_cpu_run *r, nrd_cpu_cmd *c, int phase)
{
    const int32_t n = c->n_tasks[phase];
    const int own = (int)((int64_t)self->id * w->n_shares / w->n_threads);
    _Atomic uint64_t *counter = w->taken + (size_t)(c - w->list) * NRD_CPU_MAX_PHASES + phase;
    bool is_done = false;

    for (int i = 0; i < w->n_shares && !is_done; i++) {
        const int s = own + i < w->n_shares ? own + i : own + i - w->n_shares;
        const int32_t from = share_begin(w, n, s), to = share_begin(w, n, s + 1);
        int32_t task, n_done = 0;
        while ((task = take(counter + (size_t)s * w->n_counters, w->run, to - from)) >= 0) {
            c->op->run(r, c, phase, from + task);
            n_done++;
        }
        is_done = nrd_threads_finish(self, &c->done[phase], (uint32_t)n_done, (uint32_t)n);
    }
    if (!is_done) {
        nrd_threads_wait(self, &c->done[phase], (uint32_t)n);
    }
}

static void walk(void *user, nrd_thread *self)
{
    nrd_cpu_walk *w = user;
    nrd_cpu_run r = {w->list->k, self->id, w->scratch[self->id], w->shared, NULL};

    for (nrd_cpu_cmd *c = w->list; c < w->end; c++) {
        for (size_t at = 0; at < sizeof *c; at += CACHE_LINE) { /* another processor wrote the next command */
            __builtin_prefetch((const char *)(c + 1) + at);
        }
        for (int p = 0; p < NRD_CPU_MAX_PHASES; p++) {
            if (c->n_tasks[p] > 0) {
                run_phase(w, self, &r, c, p);
            }
        }
    }
}

void nrd_cpu_walk_run(nrd_cpu_walk *w, nrd_threads *threads, nrd_cpu_cmd *list, int32_t n, uint8_t **scratch, uint8_t *shared)
{
    if (++w->run == 0) { /* no counter may look as if it were of this run */
        memset((void *)w->taken, 0, (size_t)w->n_shares * w->n_counters * sizeof *w->taken);
        w->run = 1;
    }
    w->list = list;
    w->end = list + n;
    w->scratch = scratch;
    w->shared = shared;
    nrd_threads_run(threads, walk, w);
}
