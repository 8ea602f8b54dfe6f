/* SPDX-License-Identifier: Apache-2.0
 * linear and sample in one on the CPU: the logits of a vocabulary are not stored.
 *
 * Slabs     A thread takes a few tiles of the vocabulary against all rows into a slab in L1 or L2, puts
 *           what is among the best k of a row so far on its own list for the row, and forgets the rest.
 *           Then one task a row merges the threads' lists and draws.
 * Same      A token's logits are linear's, what bias and bans make of them sample's; the best k, ties to
 *           the lowest id, are a set that no order of pieces changes. So the choice is the one that
 *           linear and sample make.
 * Two steps With a rough weight the slabs are first those of its products. A row's k-th best lower bound is at most its k-th
 *           best logit, so only tiles with an upper bound as high can have a choice: these alone are then multiplied as
 *           without it. Bias, penalties and bans keep the order of what is lower and higher, so bounds go through
 *           them as logits do; a softcap brings numbers nearer to each other. Any number of tiles may be left: nothing
 *           is given up.
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
enum { ROUGH_TILES = 32 }; /* of the vocabulary for each choice, at least, for two steps */
enum { CHUNK = 0, CAP = 1, THREADS = 2, PANELS = 3 }; /* of nrd_cpu_cmd.i: tiles of a slab, room of a list, threads, tiles of tokens */
enum { AT_SLAB = 1, AT_LISTS = 2, AT_BOUNDS = 3 }; /* of nrd_cpu_cmd.at: in scratch; in shared memory, twice */
enum { BEGIN, ROUGH, LIMITS, EXACT, CHOOSE, UPDATE };

typedef nrd_candidate candidate;

/* A thread's best of a row: all that came before `last`, the worst that can still be chosen, which rises. */
typedef struct best_list {
    int32_t n;
    float above; /* what is not above this comes behind `last` */
    candidate last;
    candidate c[];
} best_list;

/* With a rough weight, of a row: how much what is between x and what the rough weight reads counts; what cannot be chosen is below
 * limit. Behind those of all rows: of each row the highest bound of every tile. */
typedef struct row_bound {
    float by, off, limit;
} row_bound;

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

/* In any order of ids. */
static void keep(best_list *l, int32_t k, int32_t cap, candidate x)
{
    if (!comes_first(&x, &l->last)) {
        return;
    }
    if (k == 1) {
        l->c[0] = x;
    } else {
        l->c[l->n++] = x;
        if (l->n < cap) {
            return;
        }
        select_best(l->c, cap, k);
    }
    l->n = k;
    l->last = l->c[k - 1];
    l->above = nextafterf(l->last.logit, -INFINITY); /* as good, with a lower id, comes before it */
}

/* An odd number of cache lines, so that the rows of one tile do not meet in the same sets. */
static int64_t slab_stride(int32_t chunk)
{
    return (int64_t)(chunk | 1) * 16;
}

static row_bound *bound_of(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t row)
{
    return (row_bound *)(void *)(r->shared + c->at[AT_BOUNDS]) + row;
}

static int64_t n_tiles_of(const nrd_cpu_cmd *c)
{
    return (c->u.linear.w[0]->rows + 15) / 16;
}

static float *tops_of(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t row)
{
    return (float *)(void *)bound_of(r, c, c->u.linear_sample.sample.n_rows) + (size_t)row * (size_t)n_tiles_of(c);
}

/* Puts what comes before the list's last on it, of the n logits of ids from `first` on. */
static void collect(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t row, const float *x, int64_t first, int32_t n, candidate *found)
{
    best_list *l = list_of(r, c, r->thread, row);
    int32_t got = r->k->collect_above(x, n, l->above, &found[0].logit, &found[0].id);

    for (int32_t j = 0; j < got; j++) {
        float v = found[j].logit > NRD_SAMPLE_MAX ? NRD_SAMPLE_MAX : found[j].logit;
        keep(l, wanted(&c->u.linear_sample.sample.rows[row]), c->i[CAP], (candidate){v, found[j].id + (int32_t)first});
    }
}

/* Tiles [from, to), a slab at most. */
static void scan(nrd_cpu_run *r, nrd_cpu_cmd *c, int64_t from, int64_t to)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    int64_t stride = slab_stride(c->i[CHUNK]), n = a->vocab - from * 16;
    float *slab = (float *)(void *)(r->scratch + c->at[AT_SLAB]);
    candidate *found = (candidate *)(void *)(slab + stride * (a->n_rows + 1));

    if (n <= 0) {
        return; /* rows of the weight behind the vocabulary */
    }
    nrd_linear_cpu_tiles(r, c, 0, from, to, slab, from, stride);
    n = n < (to - from) * 16 ? n : (to - from) * 16;
    for (int32_t i = 0; i < a->n_rows; i++) {
        float *x = slab + i * stride;
        (void)nrd_sample_adjust(a, &a->rows[i], x, (int32_t)(from * 16), (int32_t)n, x);
        collect(r, c, i, x, from * 16, (int32_t)n, found);
    }
}

/* The same of the rough weight: lower bounds go on the lists, upper ones to their tiles. */
static void scan_rough(nrd_cpu_run *r, nrd_cpu_cmd *c, int64_t from, int64_t to)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    const nrd_rough_weight *rough = &c->u.linear_sample.rough;
    int64_t stride = slab_stride(c->i[CHUNK]), first = from * 16, n = a->vocab - first;
    float *slab = (float *)(void *)(r->scratch + c->at[AT_SLAB]), *hi = slab + stride * a->n_rows;
    candidate *found = (candidate *)(void *)(hi + stride);
    const float cap = c->u.linear.softcap > 0 ? c->u.linear.softcap * 0x1p-16f : 0; /* what a computed tanh may be off */

    if (n <= 0) {
        return;
    }
    nrd_linear_cpu_tiles(r, c, 1, from, to, slab, from, stride);
    n = n < (to - from) * 16 ? n : (to - from) * 16;
    for (int32_t i = 0; i < a->n_rows; i++) {
        const row_bound *b = bound_of(r, c, i);
        float *lo = slab + i * stride;
        r->k->bounds_row(lo, rough->error + first, rough->length + first, b->by, b->off, cap, (int32_t)n, lo, hi);
        (void)nrd_sample_adjust(a, &a->rows[i], lo, (int32_t)first, (int32_t)n, lo);
        (void)nrd_sample_adjust(a, &a->rows[i], hi, (int32_t)first, (int32_t)n, hi);
        r->k->max_of_16(hi, (int32_t)n, tops_of(r, c, i) + from);
        collect(r, c, i, lo, first, (int32_t)n, found);
    }
}

/* |x| and |x - x'| of a row. */
static void measure_row(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t i)
{
    const nrd_linear_args *l = &c->u.linear;
    const int64_t cols = l->w[0]->cols;
    const float *x = (const float *)l->x + i * cols;
    float *back = (float *)(void *)r->scratch;
    double length = 0, off = 0;

    uint8_t *q = r->scratch + nrd_row_bytes(NRD_DTYPE_F32, cols);
    r->k->act_q8_row(x, cols, q);
    nrd_act_q8_dequantize(q, cols, back);
    for (int64_t k = 0; k < cols; k++) {
        const double d = (double)x[k] - (double)back[k];
        length += (double)x[k] * (double)x[k];
        off += d * d;
    }
    *bound_of(r, c, i) = (row_bound){(float)(sqrt(length) * (1 + 0x1p-20)), (float)(sqrt(off) * (1 + 0x1p-20)), 0};
}

/* A row's best k of all threads' lists to the front of scratch; gives how many there are. */
static int32_t merge(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t i)
{
    candidate *all = (candidate *)(void *)r->scratch;
    int32_t n = 0, k = wanted(&c->u.linear_sample.sample.rows[i]);

    for (int t = 0; t < c->i[THREADS]; t++) {
        const best_list *l = list_of(r, c, t, i);
        memcpy(all + n, l->c, (size_t)l->n * sizeof *all);
        n += l->n;
    }
    r->owner = NULL; /* panels that lay there are gone */
    if (n >= k) {
        select_best(all, n, k);
    }
    return n < k ? n : k;
}

static void empty_lists(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t i)
{
    for (int t = 0; t < c->i[THREADS]; t++) {
        *list_of(r, c, t, i) = (best_list){0, -INFINITY, {-INFINITY, INT32_MAX}};
    }
}

/* Where the second step begins. With fewer than k numbers nothing is below it. */
static void set_limit(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t i)
{
    const int32_t k = wanted(&c->u.linear_sample.sample.rows[i]), n = merge(r, c, i);

    bound_of(r, c, i)->limit = n < k ? -INFINITY : ((const candidate *)(const void *)r->scratch)[k - 1].logit;
    empty_lists(r, c, i);
}

static bool can_win(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int64_t tile)
{
    for (int32_t i = 0; i < c->u.linear_sample.sample.n_rows; i++) {
        const float top = tops_of(r, c, i)[tile];
        if (top >= bound_of(r, c, i)->limit && top > -INFINITY) { /* minus infinity: all are forbidden */
            return true;
        }
    }
    return false;
}

static void scan_winners(nrd_cpu_run *r, nrd_cpu_cmd *c, int64_t from, int64_t to)
{
    const int64_t end = ((int64_t)c->u.linear_sample.sample.vocab + 15) / 16;

    to = to < end ? to : end; /* the others have no bounds */
    for (int64_t t = from; t < to; t++) {
        const int64_t first = t;
        while (t < to && can_win(r, c, t)) {
            t++;
        }
        if (t > first) {
            scan(r, c, first, t);
        }
    }
}

/* Of a row of which no logit was kept: what they were without the row's rules is computed again. */
static int32_t nothing(nrd_cpu_run *r, nrd_cpu_cmd *c, int32_t i)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    const int64_t stride = slab_stride(c->i[CHUNK]), end = ((int64_t)a->vocab + 15) / 16;
    float *slab = (float *)(void *)(r->scratch + c->at[AT_SLAB]);

    if (!(a->rows[i].flags & NRD_SAMPLE_TELLS)) {
        return 0;
    }
    for (int64_t from = 0; from < end; from += c->i[CHUNK]) {
        const int64_t to = from + c->i[CHUNK] < end ? from + c->i[CHUNK] : end, n = a->vocab - from * 16;
        nrd_linear_cpu_tiles(r, c, 0, from, to, slab, from, stride);
        if (!nrd_sample_no_numbers(slab + i * stride, n < (to - from) * 16 ? n : (to - from) * 16)) {
            return 0;
        }
    }
    return NRD_SAMPLE_NO_NUMBERS;
}

static void choose(nrd_cpu_run *r, nrd_cpu_cmd *c, int32_t i)
{
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    candidate *all = (candidate *)(void *)r->scratch;
    const int32_t n = merge(r, c, i);

    a->out_ids[i] = n == 0                     ? nothing(r, c, i)
                    : wanted(&a->rows[i]) == 1 ? all[0].id
                                            : nrd_sample_from_list(&a->rows[i], all, n);
}

static void begin(nrd_cpu_run *r, nrd_cpu_cmd *c, int32_t task)
{
    const int32_t n_rows = c->u.linear_sample.sample.n_rows;

    if (task < n_rows) {
        empty_lists(r, c, task);
        if (c->u.linear_sample.rough.w) {
            measure_row(r, c, task);
        }
    }
    if (task < c->i[PANELS]) {
        nrd_linear_cpu_panels(r, c, task);
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    int64_t from = (int64_t)task * c->i[CHUNK], to = from + c->i[CHUNK];

    to = to < n_tiles_of(c) ? to : n_tiles_of(c);
    switch (phase) {
    case BEGIN:
        begin(r, c, task);
        break;
    case ROUGH:
        scan_rough(r, c, from, to);
        break;
    case LIMITS:
        set_limit(r, c, task);
        break;
    case EXACT:
        if (c->u.linear_sample.rough.w) {
            scan_winners(r, c, from, to);
        } else {
            scan(r, c, from, to);
        }
        break;
    case CHOOSE:
        choose(r, c, task);
        break;
    default:
        nrd_sample_update(&c->u.linear_sample.sample); /* after all rows: they must not see each other's choice */
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

/* Whether the rough weight says something of these rows: a penalty that turns the order around makes its bounds wrong. And whether
 * enough tiles will be left out: of each choice wanted, some ten have a bound as high (measured: SmolLM2's head, 7 to 13 % of 3,072
 * tiles for a top-k of 50, 0.4 % for the best). */
static bool rough_fits(const nrd_linear_args *l, const nrd_sample_args *a)
{
    int64_t k = 0;

    if (l->bias[0] || l->x_dtype != NRD_DTYPE_F32) {
        return false;
    }
    for (int32_t i = 0; i < a->n_rows; i++) {
        k += wanted(&a->rows[i]);
        if (!(a->rows[i].repetition_penalty > 0)) {
            return false;
        }
    }
    return k * ROUGH_TILES <= l->w[0]->rows / 16;
}

static size_t align(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static void set_memory(nrd_cpu_cmd *c, int32_t n_threads)
{
    const size_t n_rows = (size_t)c->u.linear_sample.sample.n_rows;
    const size_t slab = (size_t)slab_stride(c->i[CHUNK]) * ((n_rows + 1) * sizeof(float) + sizeof(candidate));
    const size_t merged = (size_t)n_threads * (size_t)c->i[CAP] * sizeof(candidate);

    c->at[AT_SLAB] = align(c->scratch_bytes);
    c->scratch_bytes = c->at[AT_SLAB] + slab;
    c->scratch_bytes = merged > c->scratch_bytes ? merged : c->scratch_bytes;
    c->at[AT_LISTS] = align(c->shared_bytes);
    c->shared_bytes = c->at[AT_LISTS] + (size_t)n_threads * n_rows * list_bytes(c);
    if (c->u.linear_sample.rough.w) {
        c->at[AT_BOUNDS] = align(c->shared_bytes);
        c->shared_bytes = c->at[AT_BOUNDS] + n_rows * (sizeof(row_bound) + (size_t)n_tiles_of(c) * sizeof(float));
    }
}

nrd_error *nrd_linear_sample_cpu(nrd_cpu_cmd *c, int n_threads, bool *out_fits)
{
    nrd_linear_args *l = &c->u.linear_sample.linear;
    const nrd_sample_args *a = &c->u.linear_sample.sample;
    nrd_rough_weight *rough = &c->u.linear_sample.rough;
    int32_t k = 1;

    *out_fits = fits(l, a);
    if (!*out_fits) {
        return NULL;
    }
    if (rough->w && rough_fits(l, a)) {
        l->n_parts = 2; /* a second part, of which no result is stored */
        l->w[1] = rough->w;
        l->bias[1] = NULL;
        l->deterministic = true; /* the bounds are those of its products in 8 bits */
    } else {
        rough->w = NULL;
    }
    NRD_TRY(nrd_linear_cpu(c, n_threads));
    for (int32_t i = 0; i < a->n_rows; i++) {
        k = wanted(&a->rows[i]) > k ? wanted(&a->rows[i]) : k;
    }
    int32_t chunk = c->i[CHUNK], most = SLAB_BYTES / 64 / a->n_rows / 2 * 2;
    most = most < 2 ? 2 : most;
    chunk = chunk < most ? chunk : most;
    const int32_t n_chunks = (int32_t)((n_tiles_of(c) + chunk - 1) / chunk);
    c->op = &op;
    c->i[CHUNK] = chunk;
    c->i[CAP] = k == 1 ? 1 : 2 * k;
    c->i[THREADS] = n_threads;
    c->i[PANELS] = c->n_tasks[0];
    c->n_tasks[BEGIN] = c->i[PANELS] > a->n_rows ? c->i[PANELS] : a->n_rows;
    c->n_tasks[ROUGH] = rough->w ? n_chunks : 0;
    c->n_tasks[LIMITS] = rough->w ? a->n_rows : 0;
    c->n_tasks[EXACT] = n_chunks;
    c->n_tasks[CHOOSE] = a->n_rows;
    c->n_tasks[UPDATE] = 1;
    set_memory(c, n_threads);
    return NULL;
}
