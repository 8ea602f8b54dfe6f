/* SPDX-License-Identifier: Apache-2.0
 * linear_sample in two steps on devices with memory of their own: a greedy choice is one of the best by sums in double, draws
 * are those of the head in one step. */
#include "ops/harness.h"

enum { MOST = 24 };

typedef struct far_case {
    nrd_weight exact, rough; /* on the device */
    nrd_rough_weight bounds;
    int32_t n, vocab;
    int64_t cols;
    void *x;   /* bf16 [n, cols], host */
    nrd_sample_row rows[MOST];
    nrd_linear_args l;
    nrd_sample_args a;
} far_case;

static nrd_weight rows_of_head(const far_case *c, bool alike)
{
    nrd_weight w = {.dtype = NRD_DTYPE_BF16, .rows = c->vocab, .cols = c->cols, .scale = 1};
    float *base = host_normal(c->cols, 0.05f);
    uint16_t *data = host((size_t)c->vocab * (size_t)c->cols * 2);

    for (int64_t i = 0; i < c->vocab * c->cols; i++) {
        const float noise = rnd_normal();
        data[i] = nrd_f32_to_bf16(alike ? base[i % c->cols] * (1 + 0.01f * noise) : 0.05f * noise);
    }
    w.data = data;
    w.data_bytes = (uint64_t)c->vocab * (uint64_t)c->cols * 2;
    return w;
}

static void load(far_case *c, const target *t, const nrd_weight *w)
{
    nrd_weight q = {.dtype = NRD_DTYPE_Q8_0, .rows = w->rows, .cols = w->cols, .scale = 1, .data_bytes = nrd_rough_bytes(w)};
    float *error = host((size_t)w->rows * 4), *length = host((size_t)w->rows * 4);
    void *data = host((size_t)q.data_bytes);

    ok(nrd_rough_make(w, 8, data, error, length));
    q.data = data;
    c->exact = weight_on(t, w, true);
    c->rough = weight_on(t, &q, true);
    c->bounds = (nrd_rough_weight){&c->rough, dev_put(t, error, (size_t)w->rows * 4), dev_put(t, length, (size_t)w->rows * 4)};
}

static void arguments(far_case *c, const target *t, const void *x)
{
    c->l = (nrd_linear_args){.n_tokens = c->n,
                             .x = dev_put(t, x, (size_t)(c->n * c->cols) * 2),
                             .x_dtype = NRD_DTYPE_BF16,
                             .n_parts = 1,
                             .w = {&c->exact},
                             .y = dev_out(t, (size_t)c->n * (size_t)c->vocab * 4),
                             .y_dtype = NRD_DTYPE_F32};
    c->a = (nrd_sample_args){.n_rows = c->n,
                             .vocab = c->vocab,
                             .logits = c->l.y,
                             .logits_stride = c->vocab,
                             .rows = dev_put(t, c->rows, (size_t)c->n * sizeof *c->rows),
                             .slot_tokens = dev_out(t, MOST * 4),
                             .out_ids = dev_out(t, MOST * 4)};
}

/* The product of a row by sums in double, and the sum of its parts' sizes. */
static double product(const far_case *c, const nrd_weight *w, int32_t row, int32_t id, double *size)
{
    double sum = 0;

    *size = 0;
    for (int64_t k = 0; k < c->cols; k++) {
        const double d = (double)nrd_load_f32(NRD_DTYPE_BF16, w->data, id * c->cols + k) *
                         (double)nrd_load_f32(NRD_DTYPE_BF16, c->x, row * c->cols + k);
        sum += d;
        *size += fabs(d);
    }
    return sum;
}

static void check_greedy(const far_case *c, const target *t, const nrd_weight *w, const int32_t *ids)
{
    for (int32_t i = 0; i < c->n; i++) {
        double best = -INFINITY, size, chosen = -INFINITY;
        for (int32_t id = 0; c->rows[i].top_k == 1 && id < c->vocab; id++) {
            const double v = product(c, w, i, id, &size);
            best = fmax(best, v);
            chosen = id == ids[i] ? v : chosen;
        }
        if (c->rows[i].top_k == 1) {
            (void)product(c, w, i, ids[i] >= 0 && ids[i] < c->vocab ? ids[i] : 0, &size);
            verdict(t, "greedy", chosen >= best - size * (double)c->cols * 0x1p-23);
        }
    }
}

void check_head_far(const target *t)
{
    for (int k = 0; k < 12; k++) {
        far_case c = {.n = k % 3 == 0 ? 1 : rnd_in(2, MOST), .vocab = k == 0 ? 300 : rnd_in(1000, 6000), .cols = 128 * rnd_in(1, 6)};
        int32_t one[MOST], two[MOST], off = 0;

        c.x = host_as(NRD_DTYPE_BF16, c.n * c.cols, 1);
        nrd_weight w = rows_of_head(&c, k % 2 == 1);
        for (int32_t i = 0; i < c.n; i++) { /* at last one that gets all tokens */
            c.rows[i] = (nrd_sample_row){.slot = i, .top_k = i % 2 ? rnd_in(2, 64) : 1, .temperature = 0.9f, .repetition_penalty = 1,
                                         .seed = rnd(), .end_id = -1};
            if (i == 5) {
                c.rows[i].top_k = 0;
            }
        }
        load(&c, t, &w);
        arguments(&c, t, c.x);
        case_name("linear_sample in two steps, %d x %lld -> %d, case %d", c.n, (long long)c.cols, c.vocab, k);
        ok(t->ops->linear_sample(t->s, &c.l, NULL, &c.a));
        dev_get(t, one, c.a.out_ids, (size_t)c.n * 4);
        ok(t->ops->linear_sample(t->s, &c.l, &c.bounds, &c.a));
        dev_get(t, two, c.a.out_ids, (size_t)c.n * 4);
        check_greedy(&c, t, &w, two);
        for (int32_t i = 0; i < c.n; i++) {
            off += one[i] != two[i];
        }
        verdict(t, "the choices of one step", off <= c.n / 8); /* sums in another order move a draw that is near a border */
        case_end();
    }
}

/* ---- speed: one step or two ---- */

static void call(const target *t, int i, void *user)
{
    const far_case *c = user;
    ok(t->ops->linear_sample(t->s, &c->l, i < 0 ? NULL : &c->bounds, &c->a));
}

static void call_one(const target *t, int i, void *user)
{
    (void)i;
    call(t, -1, user);
}

void speed_head_far(const target *t)
{
    static const int32_t rows[] = {1, 8, 16};
    far_case c = {.n = MOST, .vocab = 128256, .cols = 4096};
    nrd_weight w = rows_of_head(&c, false);

    c.x = host_as(NRD_DTYPE_BF16, c.n * c.cols, 1);
    load(&c, t, &w);
    for (int i = 0; i < 6; i++) {
        c.n = rows[i / 2];
        for (int32_t k = 0; k < c.n; k++) {
            c.rows[k] = (nrd_sample_row){.slot = k, .top_k = i % 2 ? 50 : 1, .temperature = 0.9f, .repetition_penalty = 1, .end_id = -1};
        }
        arguments(&c, t, c.x);
        const work bytes = {(double)c.exact.data_bytes, 2.0 * c.n * c.vocab * (double)c.cols, PEAK_FLOAT};
        speed_row(measure(t, call_one, &c, 20), bytes, "linear_sample top-k %d, %d rows", i % 2 ? 50 : 1, c.n);
        speed_row(measure(t, call, &c, 20), bytes, "linear_sample in two steps top-k %d, %d rows", i % 2 ? 50 : 1, c.n);
    }
    case_end();
}
