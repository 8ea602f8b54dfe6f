/* SPDX-License-Identifier: Apache-2.0
 * linear and sample in one on the CPU: the logits of a vocabulary are not stored.
 *
 * Slabs     A thread takes a few tiles of the vocabulary against all rows into a slab in L1 or L2, puts
 *           what is among the best k of a row so far on its own list for the row, and forgets the rest.
 *           Then one task a row merges the threads' lists and draws.
 * Same      A token's logits are linear's, what bias and bans make of them sample's; the best k, ties to
 *           the lowest id, are a set that no order of pieces changes. So the choice is the one that
 *           linear and sample make.
 * Which     Greedy rows and those with top_k up to MAX_K. Log probabilities, rules of times and draws from the whole
 *           vocabulary need a sum over the row: then the command does not fit.
 * Measured  262,144 x 640 in 8 bits, 32 rows, one thread: 36.3 ms as two operations, 33.5 in one (greedy);
 *           39.7 and 35.4 with top-k 50 (make bench OP=head THREADS=1; docs/performance/cpu-engine.md). */
#include "device/ops/linear_parts.h"
#include "device/ops/pack.h"
#include "device/ops/sample_list.h"

#include <math.h>
#include <string.h>

enum { MAX_K = 128, SLAB_BYTES = 128 << 10 };
enum { CHUNK = 0, CAP = 1, THREADS = 2 }; /* of nrd_cpu_cmd.i: tiles of a slab, room of a list, threads */
enum { AT_SLAB = 1, AT_LISTS = 2 };       /* of nrd_cpu_cmd.at: in scratch; in shared memory */

typedef nrd_candidate candidate;

/* A thread's best of a row: all that were above `limit`, which rises. */
typedef struct best_list {
    int32_t n;
    float limit;
    candidate c[];
} best_list;

static int32_t wanted(const nrd_sample_row *row)
{
    return row->temperature <= 0 || row->top_k == 1 ? 1 : row->top_k;
}

static size_t list_bytes(const nrd_cpu_cmd *c)
{
    return sizeof(best_list) + (size_t)c->i[CAP] * sizeof(candidate);
}

static best_list *list_of(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int thread, int32_t row)
{
    size_t i = (size_t)thread * (size_t)c->u.linear_sample.sample.n_rows + (size_t)row;

    return (best_list *)(void *)(r->shared + c->at[AT_LISTS] + i * list_bytes(c));
}

static bool comes_first(const candidate *x, const candidate *y)
{
    return x->logit != y->logit ? x->logit > y->logit : x->id < y->id;
}

/* Moves the best k of c[0..n) to the front, in no order, the last of them to c[k - 1]. No two are
 * equal: every id is there once. (Hoare's selection.) */
static void select_best(candidate *c, int32_t n, int32_t k)
{
    for (int32_t lo = 0, hi = n - 1; lo < hi;) {
        candidate pivot = c[lo + (hi - lo) / 2];
        int32_t i = lo, j = hi;
        while (i <= j) {
            while (comes_first(&c[i], &pivot)) {
                i++;
            }
            while (comes_first(&pivot, &c[j])) {
                j--;
            }
            if (i <= j) {
                candidate t = c[i];
                c[i++] = c[j];
                c[j--] = t;
            }
        }
        if (k - 1 <= j) {
            hi = j;
        } else if (k - 1 >= i) {
            lo = i;
        } else {
            return;
        }
    }
}

static void keep(best_list *l, int32_t k, int32_t cap, candidate x)
{
    if (!(x.logit > l->limit)) { /* it rose since x was collected; as good as the last comes later */
        return;
    }
    if (k == 1) {
        l->c[0] = x;
        l->n = 1;
        l->limit = x.logit;
        return;
    }
    l->c[l->n++] = x;
    if (l->n == cap) {
        select_best(l->c, cap, k);
        l->n = k;
        l->limit = l->c[k - 1].logit;
    }
}

/* An odd number of cache lines, so that the rows of one tile do not meet in the same sets. */
static int64_t slab_stride(int32_t chunk)
{
    return (int64_t)(chunk | 1) * 16;
}

/* One slab: a thread meets them in ascending order of their ids. */
static void scan(nrd_cpu_run *r, nrd_cpu_cmd *c, int32_t task)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    const nrd_weight *w = c->u.linear.w[0];
    int64_t from = (int64_t)task * c->i[CHUNK], to = from + c->i[CHUNK], n_tiles = (w->rows + 15) / 16;
    int64_t stride = slab_stride(c->i[CHUNK]), n = a->vocab - from * 16;
    float *slab = (float *)(void *)(r->scratch + c->at[AT_SLAB]);
    candidate *found = (candidate *)(void *)(slab + stride * a->n_rows);

    if (n <= 0) {
        return; /* rows of the weight behind the vocabulary */
    }
    nrd_linear_cpu_tiles(r, c, 0, from, to < n_tiles ? to : n_tiles, slab, from, stride);
    n = n < (to - from) * 16 ? n : (to - from) * 16;
    for (int32_t i = 0; i < a->n_rows; i++) {
        const nrd_sample_row *row = &a->rows[i];
        best_list *l = list_of(r, c, r->thread, i);
        float *x = slab + i * stride;
        (void)nrd_sample_adjust(a, row, x, (int32_t)(from * 16), (int32_t)n, x);
        int32_t got = r->k->collect_above(x, (int32_t)n, l->limit, &found[0].logit, &found[0].id);
        for (int32_t j = 0; j < got; j++) {
            float v = found[j].logit > NRD_SAMPLE_MAX ? NRD_SAMPLE_MAX : found[j].logit;
            keep(l, wanted(row), c->i[CAP], (candidate){v, found[j].id + (int32_t)(from * 16)});
        }
    }
}

static void choose(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t i)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    candidate *all = (candidate *)(void *)r->scratch;
    int32_t n = 0, k = wanted(&a->rows[i]);

    for (int t = 0; t < c->i[THREADS]; t++) {
        const best_list *l = list_of(r, c, t, i);
        memcpy(all + n, l->c, (size_t)l->n * sizeof *all);
        n += l->n;
    }
    if (n > k) {
        select_best(all, n, k);
        n = k;
    }
    a->out_ids[i] = n == 0 ? 0 : k == 1 ? all[0].id : nrd_sample_from_list(&a->rows[i], all, n);
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;

    switch (phase) {
    case 0:
        for (int32_t i = 0; task == 0 && i < c->i[THREADS] * a->n_rows; i++) {
            *list_of(r, c, 0, i) = (best_list){0, -INFINITY};
        }
        if (c->at[AT_LISTS] > 0) {
            nrd_linear_cpu_panels(r, c, task);
        }
        break;
    case 1:
        scan(r, c, task);
        break;
    case 2:
        choose(r, c, task);
        break;
    default:
        nrd_sample_update(a); /* after all rows: they must not see each other's choice */
    }
}

static const nrd_cpu_op op = {run};

static bool fits(const nrd_linear_args *l, const nrd_sample_args *a)
{
    if (l->n_parts != 1 || a->n_top > 0 || a->n_rows == 0) {
        return false;
    }
    for (int32_t i = 0; i < a->n_rows; i++) {
        int32_t k = wanted(&a->rows[i]);
        if ((a->rows[i].flags & (NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE)) || k <= 0 || k > MAX_K ||
            a->rows[i].times.first > 0 || (k > 1 && k >= a->vocab)) {
            return false;
        }
    }
    return true;
}

static size_t align(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

nrd_error *nrd_linear_sample_cpu(nrd_cpu_cmd *c, int n_threads, bool *out_fits)
{
    const nrd_linear_args *l = &c->u.linear_sample.linear;
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    int32_t k = 1;

    *out_fits = fits(l, a);
    if (!*out_fits) {
        return NULL;
    }
    NRD_TRY(nrd_linear_cpu(c, n_threads));
    for (int32_t i = 0; i < a->n_rows; i++) {
        k = wanted(&a->rows[i]) > k ? wanted(&a->rows[i]) : k;
    }
    int32_t chunk = c->i[CHUNK], most = SLAB_BYTES / 64 / a->n_rows / 2 * 2;
    most = most < 2 ? 2 : most;
    chunk = chunk < most ? chunk : most;
    size_t slab = (size_t)slab_stride(chunk) * ((size_t)a->n_rows * sizeof(float) + sizeof(candidate));
    c->op = &op;
    c->i[CHUNK] = chunk;
    c->i[CAP] = k == 1 ? 1 : 2 * k;
    c->i[THREADS] = n_threads;
    c->n_tasks[0] = c->n_tasks[0] > 0 ? c->n_tasks[0] : 1;
    c->n_tasks[1] = (int32_t)((l->w[0]->rows + 16 * (int64_t)chunk - 1) / (16 * (int64_t)chunk));
    c->n_tasks[2] = a->n_rows;
    c->n_tasks[3] = 1;
    c->at[AT_SLAB] = align(c->scratch_bytes);
    c->scratch_bytes = c->at[AT_SLAB] + slab;
    size_t merged = (size_t)n_threads * (size_t)c->i[CAP] * sizeof(candidate);
    c->scratch_bytes = merged > c->scratch_bytes ? merged : c->scratch_bytes;
    c->at[AT_LISTS] = align(c->shared_bytes);
    c->shared_bytes = c->at[AT_LISTS] + (size_t)n_threads * (size_t)a->n_rows * list_bytes(c);
    return NULL;
}
