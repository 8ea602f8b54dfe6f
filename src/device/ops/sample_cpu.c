/* SPDX-License-Identifier: Apache-2.0
 * sample on the CPU: one row a task, without sorting the vocabulary.
 *
 * Greedy    One pass for the maximum, one for its first place.
 * top-k     A threshold found by bisection with counting passes leaves k to 4k candidates; only
 *           these are sorted.
 * top-p     Without top-k: weights e^((x - max) / T) are kept for the whole row; bisection over the
 *           threshold weight until few candidates lie between "all kept" and "too few".
 * Draw      A running sum in ascending id order, blocks of 64 first.
 * Bound     Passes over the row: 4 bytes an element from L2, 12 instructions for an exponential. */
#include "device/ops/sample_list.h"

#include <math.h>
#include <string.h>

typedef nrd_candidate candidate;

static bool comes_first(const candidate *x, const candidate *y, bool by_id)
{
    if (by_id || x->logit == y->logit) {
        return x->id < y->id;
    }
    return x->logit > y->logit;
}

/* In place, no memory: heap sort. Lists are short. */
static void sort(candidate *c, int32_t n, bool by_id)
{
    for (int32_t start = n / 2, end = n; end > 1;) {
        candidate x;
        if (start > 0) {
            x = c[--start];
        } else {
            x = c[--end];
            c[end] = c[0];
        }
        int32_t i = start, child;
        while ((child = 2 * i + 1) < end) {
            if (child + 1 < end && comes_first(&c[child], &c[child + 1], by_id)) {
                child++;
            }
            if (!comes_first(&x, &c[child], by_id)) {
                break;
            }
            c[i] = c[child];
            i = child;
        }
        c[i] = x;
    }
}

/* The best k of x[0..n), best first, ties by id. `room` holds n entries. Gives how many (fewer if
 * the row has fewer finite entries). */
static int32_t best_k(const nrd_cpu_kernels *kern, const float *x, int32_t n, int32_t k, float top, candidate *room)
{
    float hi = top, lo = -INFINITY; /* more than lo: at least k (or all); more than hi: fewer than k */
    int32_t limit = k < n / 4 ? 4 * k + 64 : n, have = 0;
    float step = 4.0f;

    for (int i = 0; i < 24; i++) { /* downwards until there are enough */
        float try = top - step;
        int32_t count = kern->count_above(x, n, try);
        if (count >= k) {
            lo = try;
            have = count;
            break;
        }
        hi = try;
        step *= 2;
    }
    while (lo != -INFINITY && have > limit) {
        float mid = lo + (hi - lo) * 0.5f;
        if (!(mid > lo && mid < hi)) {
            break; /* neighbours: what lies between are ties */
        }
        int32_t count = kern->count_above(x, n, mid);
        if (count >= k) {
            lo = mid;
            have = count;
        } else {
            hi = mid;
        }
    }
    int32_t got = kern->collect_above(x, n, lo, &room[0].logit, &room[0].id);
    sort(room, got, false);
    return got < k ? got : k;
}

/* The ids rise: those of [first, end) stand together. */
static void add_sparse_bias(const nrd_sample_row *r, int32_t first, int32_t end, float *room)
{
    int32_t lo = 0, hi = r->n_bias;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (r->bias_ids[mid] < first) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    for (; lo < r->n_bias && r->bias_ids[lo] < end; lo++) {
        room[r->bias_ids[lo] - first] += r->bias[lo];
    }
}

static bool has_times(const nrd_sample_args *a, const nrd_sample_row *r)
{
    return r->times.first > 0 && r->times.first < a->vocab;
}

static void forbid(float *x, int32_t from, int32_t end)
{
    for (int32_t i = from; i < end; i++) {
        x[i] = -INFINITY;
    }
}

/* Of x[from..end) all but [keep_from, keep_end). */
static void forbid_but(float *x, int32_t from, int32_t end, int32_t keep_from, int32_t keep_end)
{
    forbid(x, from, keep_from < end ? keep_from : end);
    forbid(x, keep_end > from ? keep_end : from, end);
}

/* A whole row of clean logits. */
static void keep_times(const nrd_cpu_kernels *kern, const nrd_sample_times *t, float *x, int32_t n)
{
    int32_t at;

    forbid_but(x, 0, t->first, t->text_from, t->text_end);
    forbid_but(x, t->first, n, t->time_from, t->time_end);
    const float text = kern->max_row(x, t->first, &at), time = kern->max_row(x + t->first, n - t->first, &at);
    if (time != -INFINITY && (double)time + log(kern->exp_row(x + t->first, n - t->first, time, 1.0f, NULL)) > (double)text) {
        forbid(x, 0, t->first);
    }
}

const float *nrd_sample_adjust(const nrd_sample_args *a, const nrd_sample_row *r, const float *x, int32_t first,
                               int32_t n, float *room)
{
    const uint16_t *counts = (r->flags & NRD_SAMPLE_COUNTS) && a->counts
                                 ? a->counts + (int64_t)r->slot * a->vocab + first : NULL;
    bool penal = counts && (r->repetition_penalty != 1.0f || r->presence_penalty != 0 || r->frequency_penalty != 0);
    int32_t end = first + n;

    if (!penal && !r->bias && !r->mask && !(r->n_suppress_end > 0 && r->end_id >= 0) &&
        !(a->banned_ids && r->n_banned > 0) && !has_times(a, r)) {
        return x;
    }
    if (r->bias && !r->bias_ids) {
        for (int32_t i = 0; i < n; i++) {
            room[i] = x[i] + r->bias[first + i];
        }
    } else if (room != x) {
        memcpy(room, x, (size_t)n * 4);
    }
    if (r->bias_ids) {
        add_sparse_bias(r, first, end, room);
    }
    for (int32_t i = 0; penal && i < n; i++) {
        if (counts[i]) {
            float v = room[i];
            v = v > 0 ? v / r->repetition_penalty : v * r->repetition_penalty;
            room[i] = v - (r->presence_penalty + r->frequency_penalty * (float)counts[i]);
        }
    }
    for (int32_t i = first / 32 * 32; r->mask && i < end; i += 32) {
        for (uint32_t bits = ~r->mask[i / 32]; bits; bits &= bits - 1) {
            int32_t id = i + __builtin_ctz(bits);
            if (id >= first && id < end) {
                room[id - first] = -INFINITY;
            }
        }
    }
    if (r->n_suppress_end > 0 && r->end_id >= first && r->end_id < end) {
        room[r->end_id - first] = -INFINITY;
    }
    for (int32_t i = 0; a->banned_ids && i < r->n_banned; i++) {
        int32_t id = a->banned_ids[r->banned_start + i];
        if (id >= first && id < end) {
            room[id - first] = -INFINITY;
        }
    }
    return room;
}

typedef struct choice {
    int32_t id;
    double total; /* of the kept weights */
    bool any;
} choice;

static choice draw_from_list(const nrd_sample_row *r, candidate *c, int32_t n, float top, double inv_t)
{
    double total = 0, sum = 0;

    for (int32_t i = 0; i < n; i++) {
        total += exp(((double)c[i].logit - (double)top) * inv_t);
    }
    if (r->top_p > 0 && r->top_p < 1) {
        int32_t i = 0;
        for (; i < n && sum < (double)r->top_p * total; i++) {
            sum += exp(((double)c[i].logit - (double)top) * inv_t);
        }
        n = i;
    }
    if (r->min_p > 0) {
        int32_t i = 0;
        while (i < n && exp(((double)c[i].logit - (double)top) * inv_t) >= (double)r->min_p) {
            i++;
        }
        n = i > 0 ? i : 1;
    }
    total = 0;
    for (int32_t i = 0; i < n; i++) {
        total += exp(((double)c[i].logit - (double)top) * inv_t);
    }
    choice out = {c[0].id, total, true};
    if (n > 1) {
        double target = (double)nrd_sample_uniform(r->seed, r->draw) * total;
        sort(c, n, true);
        sum = 0;
        for (int32_t i = 0; i < n; i++) {
            sum += exp(((double)c[i].logit - (double)top) * inv_t);
            out.id = c[i].id;
            if (sum > target) {
                break;
            }
        }
    }
    return out;
}

/* Drops from w[0..n) all but the shortest best-first prefix whose sum reaches p * total. */
static void keep_top_p(const nrd_cpu_kernels *kern, const float *x, float *w, int32_t n, double p, double total,
                       candidate *room)
{
    double want = p * total, kept = 0;
    float lo = 0, hi = 1; /* sum above lo >= want; sum above hi < want */

    for (int i = 0; i < 40; i++) {
        float mid = i < 4 ? hi * 0.0625f : lo + (hi - lo) * 0.5f; /* most weights are tiny */
        if (!(mid > lo && mid < hi)) {
            break;
        }
        double sum = kern->sum_above(w, n, mid);
        if (sum >= want) {
            lo = mid;
        } else {
            hi = mid;
            kept = sum;
            continue;
        }
        if (kern->count_above(w, n, lo) - kern->count_above(w, n, hi) <= 64) {
            break;
        }
    }
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (w[i] > hi) {
            continue;
        }
        if (w[i] > lo) {
            room[m++] = (candidate){x[i], i}; /* at the edge */
        } else {
            w[i] = 0;
        }
    }
    sort(room, m, false);
    for (int32_t i = 0; i < m; i++) {
        if (kept >= want) {
            w[room[i].id] = 0;
        } else {
            kept += (double)w[room[i].id];
        }
    }
}

static choice draw_from_row(const nrd_cpu_run *r, const nrd_sample_args *a, const nrd_sample_row *row, const float *x,
                            float top, float inv_t, float *w, candidate *room)
{
    int32_t n = a->vocab;
    double total = r->k->exp_row(x, n, top, inv_t, w), sum = 0;
    choice out = {0, 0, true};

    if (row->top_p > 0 && row->top_p < 1) {
        keep_top_p(r->k, x, w, n, (double)row->top_p, total, room);
    }
    if (row->min_p > 0) {
        for (int32_t i = 0; i < n; i++) {
            w[i] = w[i] >= row->min_p || (row->min_p > 1 && x[i] == top) ? w[i] : 0;
        }
    }
    out.total = r->k->sum_above(w, n, 0);
    double target = (double)nrd_sample_uniform(row->seed, row->draw) * out.total;
    int32_t i = 0;
    for (; i < n; i += 64) { /* whole blocks, then one by one */
        int32_t len = n - i < 64 ? n - i : 64;
        double block = r->k->sum_above(w + i, len, 0);
        if (sum + block > target) {
            break;
        }
        sum += block;
    }
    if (i >= n) { /* rounding left the target behind the last block: the last kept token */
        for (i = n - 1; i > 0 && !(w[i] > 0); i--) {
        }
        out.id = i;
        return out;
    }
    out.id = i;
    for (int32_t end = i + 64 < n ? i + 64 : n; i < end; i++) {
        if (w[i] > 0) {
            out.id = i;
            sum += (double)w[i];
            if (sum > target) {
                break;
            }
        }
    }
    return out;
}

/* NaN or infinity: a clean copy in `room`, as the definition does; else x itself. The best logit and where it is. */
static const float *cleaned(const nrd_cpu_kernels *kern, const float *x, int32_t n, float *room, float *top, int32_t *first)
{
    *top = kern->max_row(x, n, first);
    if (*top <= NRD_SAMPLE_MAX && *top != -INFINITY) {
        return x;
    }
    if (x != room) {
        memcpy(room, x, (size_t)n * 4);
    }
    for (int32_t k = 0; k < n; k++) {
        room[k] = room[k] != room[k] ? -INFINITY : room[k] > NRD_SAMPLE_MAX ? NRD_SAMPLE_MAX : room[k];
    }
    *top = kern->max_row(room, n, first);
    return room;
}

static double log_sum(const nrd_cpu_kernels *kern, const float *x, int32_t n, float top)
{
    return (double)top + log(kern->exp_row(x, n, top, 1.0f, NULL));
}

static void sample_row(nrd_cpu_run *r, const nrd_sample_args *a, int32_t i)
{
    const nrd_sample_row *row = &a->rows[i];
    int64_t stride = a->logits_stride ? a->logits_stride : a->vocab;
    size_t n = ((size_t)a->vocab + 15) & ~(size_t)15;
    float *room = (float *)(void *)r->scratch, *weights = room + n;
    candidate *list = (candidate *)(void *)(weights + n);
    const float *x = nrd_sample_adjust(a, row, a->logits + i * stride, 0, a->vocab, room);
    int32_t first;
    float top;

    x = cleaned(r->k, x, a->vocab, room, &top, &first);
    if (has_times(a, row)) { /* x is room */
        keep_times(r->k, &row->times, room, a->vocab);
        top = r->k->max_row(x, a->vocab, &first);
    }
    bool any = top != -INFINITY, greedy = row->temperature <= 0 || row->top_k == 1 || !any;
    bool want_logprob = a->n_top > 0 || (a->out_logprob && (row->flags & NRD_SAMPLE_LOGPROB));
    double log_total = 0;
    if (any && want_logprob && row->flags & NRD_SAMPLE_UNMASKED) {
        int32_t at;
        float peak;
        const float *all = cleaned(r->k, a->logits + i * stride, a->vocab, weights, &peak, &at);
        log_total = log_sum(r->k, all, a->vocab, peak);
    } else if (any && want_logprob) {
        log_total = log_sum(r->k, x, a->vocab, top);
    }
    choice c = {any ? first : 0, 1, any};
    double inv_t = greedy ? 1.0 : 1.0 / (double)row->temperature;

    if (a->n_top > 0) {
        int32_t got = any ? best_k(r->k, x, a->vocab, a->n_top, top, list) : 0;
        for (int32_t k = 0; k < a->n_top; k++) {
            int64_t at = (int64_t)i * a->n_top + k;
            a->out_top_ids[at] = k < got ? list[k].id : k;
            a->out_top_logprobs[at] = k < got ? (float)((double)list[k].logit - log_total) : -INFINITY;
        }
    }
    if (!greedy && row->top_k > 0 && row->top_k < a->vocab) {
        int32_t got = best_k(r->k, x, a->vocab, row->top_k, top, list);
        c = draw_from_list(row, list, got, top, inv_t);
    } else if (!greedy) {
        c = draw_from_row(r, a, row, x, top, (float)inv_t, weights, list);
    }
    const bool tells = !any && (row->flags & NRD_SAMPLE_TELLS) && nrd_sample_no_numbers(a->logits + i * stride, a->vocab);
    a->out_ids[i] = tells ? (int32_t)NRD_SAMPLE_NO_NUMBERS : c.id;
    if (a->out_logprob && (row->flags & NRD_SAMPLE_LOGPROB)) {
        a->out_logprob[i] = any ? (float)((double)x[c.id] - log_total) : -INFINITY;
    }
    if (a->out_logprob_norm && (row->flags & NRD_SAMPLE_NORMALIZE)) {
        a->out_logprob_norm[i] = any ? (float)(((double)x[c.id] - (double)top) * inv_t - log(c.total)) : -INFINITY;
    }
}

int32_t nrd_sample_from_list(const nrd_sample_row *row, nrd_candidate *list, int32_t n)
{
    sort(list, n, false);
    return draw_from_list(row, list, n, list[0].logit, 1.0 / (double)row->temperature).id;
}

bool nrd_sample_no_numbers(const float *x, int64_t n)
{
    int64_t i = 0;

    while (i < n && !(x[i] > -INFINITY)) {
        i++;
    }
    return i == n;
}

void nrd_sample_update(const nrd_sample_args *a)
{
    for (int32_t i = 0; i < a->n_rows; i++) {
        const nrd_sample_row *row = &a->rows[i];
        const int32_t id = a->out_ids[i] == NRD_SAMPLE_NO_NUMBERS ? 0 : a->out_ids[i];
        if (row->flags & NRD_SAMPLE_NO_UPDATE) {
            continue;
        }
        if (a->slot_tokens) {
            a->slot_tokens[row->slot] = id;
        }
        if ((row->flags & NRD_SAMPLE_COUNTS) && a->counts) {
            uint16_t *n = &a->counts[(int64_t)row->slot * a->vocab + id];
            *n = (uint16_t)(*n < UINT16_MAX ? *n + 1 : *n);
        }
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_sample_args *a = &c->u.sample;

    if (phase == 0) {
        sample_row(r, a, task);
    } else {
        nrd_sample_update(a); /* after all rows: they must not see each other's choice */
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_sample_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_sample_args *a = &c->u.sample;

    (void)n_threads;
    c->op = &op;
    c->n_tasks[0] = a->n_rows;
    c->n_tasks[1] = a->n_rows > 0;
    c->scratch_bytes = (((size_t)a->vocab + 15) & ~(size_t)15) * (2 * sizeof(float) + sizeof(candidate));
    return NULL;
}
