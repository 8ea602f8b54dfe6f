/* SPDX-License-Identifier: Apache-2.0
 * Low-rank pairs of adapters against plain loops: mixed ranks and types, runs of tokens of one adapter, of
 * others, of none; all types of x and y; sizes that are no multiple of a vector. Then a recorded step, whose
 * adapters change between two launches. */
#include "gpu_check.h"

enum { SLOTS = 5 };

typedef struct pairs {
    nrd_lora_pair host[SLOTS * NRD_LORA_MAX_PARTS], *dev;
    void *a[SLOTS * NRD_LORA_MAX_PARTS], *b[SLOTS * NRD_LORA_MAX_PARTS]; /* host copies */
} pairs;

/* Parts of random ranks; the first slot leaves its first part out. */
static void pairs_new(pairs *p, const nrd_lora_args *a, int max_rank)
{
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    memset(p, 0, sizeof *p);
    for (int s = 0; s < SLOTS; s++) {
        for (int i = 0; i < a->n_parts; i++) {
            const int at = s * a->n_parts + i, rank = s + i == 0 ? 0 : s == 1 ? max_rank : rnd(1, max_rank);
            const nrd_dtype t = types[rnd(0, 2)];
            if (rank == 0) {
                continue;
            }
            const size_t na = (size_t)rank * (size_t)a->cols, nb = (size_t)rank * (size_t)a->part[i].n_rows;
            p->a[at] = random_host(t, na, 1.0f / sqrtf((float)a->cols));
            p->b[at] = random_host(t, nb, 1.0f / sqrtf((float)rank));
            p->host[at] = (nrd_lora_pair){.a = dev_put(p->a[at], na * elem(t)), .b = dev_put(p->b[at], nb * elem(t)),
                                          .rank = rank, .dtype = (int32_t)t, .scale = 0.5f * (float)rnd(1, 6)};
        }
    }
    p->dev = dev_put(p->host, sizeof p->host);
}

static void pairs_gone(pairs *p)
{
    for (int i = 0; i < SLOTS * NRD_LORA_MAX_PARTS; i++) {
        if (p->host[i].rank > 0) {
            dev_free((void *)(uintptr_t)p->host[i].a);
            dev_free((void *)(uintptr_t)p->host[i].b);
            free(p->a[i]);
            free(p->b[i]);
        }
    }
    dev_free(p->dev);
}

/* want[n_tokens, y_stride] += what the pairs add. */
static void add_pairs(const nrd_lora_args *a, const pairs *p, const int32_t *slots, const float *x, double *want)
{
    double *h = malloc(NRD_LORA_MAX_RANK * sizeof *h);
    for (int t = 0; t < a->n_tokens; t++) {
        for (int i = 0; i < a->n_parts && slots[t] >= 0; i++) {
            const int at = slots[t] * a->n_parts + i;
            const nrd_lora_pair *w = &p->host[at];
            for (int r = 0; r < w->rank; r++) {
                h[r] = 0;
                for (int64_t k = 0; k < a->cols; k++) {
                    h[r] += (double)get((nrd_dtype)w->dtype, p->a[at], (size_t)(r * a->cols + k)) *
                            (double)x[t * a->cols + k];
                }
            }
            for (int o = 0; o < a->part[i].n_rows; o++) {
                double sum = 0;
                for (int r = 0; r < w->rank; r++) {
                    sum += h[r] * (double)get((nrd_dtype)w->dtype, p->b[at],
                                              (size_t)r * (size_t)a->part[i].n_rows + (size_t)o);
                }
                want[t * a->y_stride + a->part[i].row0 + o] += (double)w->scale * sum;
            }
        }
    }
    free(h);
}

/* Rows of x as the device has them, and as floats; F8 with scales. */
static void *make_x(nrd_dtype t, int n, int64_t cols, float **out_floats, float **out_scale)
{
    const size_t all = (size_t)n * (size_t)cols;
    void *raw = random_host(t, all, 1.0f);
    float *scale = malloc((size_t)n * sizeof *scale + 4), *x = malloc(all * sizeof *x + 4);
    for (int i = 0; i < n; i++) {
        scale[i] = t == NRD_DTYPE_F8_E4M3 ? 0.5f + uniform() : 1.0f;
        for (int64_t k = 0; k < cols; k++) {
            x[i * cols + k] = get(t, raw, (size_t)(i * cols + k)) * scale[i];
        }
    }
    void *d = dev_put(raw, all * elem(t));
    *out_scale = dev_put(scale, (size_t)n * sizeof *scale);
    *out_floats = x;
    free(raw);
    free(scale);
    return d;
}

static void fill_slots(int32_t *slots, int n, bool single)
{
    for (int t = 0; t < n;) {
        const int slot = rnd(-1, SLOTS - 1);
        for (int k = single ? 1 : rnd(1, 40); k > 0 && t < n; k--) {
            slots[t++] = slot;
        }
    }
}

static void check_case(nrd_dtype xt, nrd_dtype yt, int n, int64_t cols, int n_parts, int rows, int max_rank, bool single)
{
    nrd_lora_args a = {.n_tokens = n, .single_tokens = single, .slot_stride = n_parts, .max_rank = max_rank,
                       .n_parts = n_parts, .x_dtype = xt, .cols = cols, .y_dtype = yt};
    float *x, *scale;
    pairs p;
    char name[160];

    for (int i = 0; i < n_parts; i++) { /* the fourth lies over the others, as all of q, k, v does */
        a.part[i].row0 = i == 3 ? 0 : i * rows;
        a.part[i].n_rows = i == 3 ? 3 * rows : rows;
    }
    a.y_stride = (n_parts > 3 ? 3 : n_parts) * rows;
    const size_t all = (size_t)n * (size_t)a.y_stride;
    int32_t *slots = malloc((size_t)n * sizeof *slots);
    void *y = random_host(yt, all, 1.0f);
    double *want = malloc(all * sizeof *want);
    for (size_t i = 0; i < all; i++) {
        want[i] = (double)get(yt, y, i);
    }
    pairs_new(&p, &a, max_rank);
    void *dx = make_x(xt, n, cols, &x, &scale);
    void *dy = dev_put(y, all * elem(yt));
    fill_slots(slots, n, single);
    int32_t *d_slots = dev_put(slots, (size_t)n * sizeof *slots);
    a.token_slot = d_slots;
    a.pairs = p.dev;
    a.x = dx;
    a.x_row_scale = xt == NRD_DTYPE_F8_E4M3 ? scale : NULL;
    a.y = dy;
    a.hidden = poisoned((size_t)n * (size_t)n_parts * (size_t)max_rank * sizeof(float));
    add_pairs(&a, &p, slots, x, want);
    OK(dev->ops->lora(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(yt, dy, NULL, (size_t)n, (size_t)a.y_stride);
    snprintf(name, sizeof name, "lora %s -> %s, %d tokens%s, %d parts of %d x %lld, rank %d", nrd_dtype_name(xt),
             nrd_dtype_name(yt), n, single ? " (single)" : "", n_parts, rows, (long long)cols, max_rank);
    verdict(name, distance(got, want, all), out_eps(yt));
    pairs_gone(&p);
    dev_free(dx);
    dev_free(dy);
    dev_free(scale);
    dev_free(d_slots);
    dev_free(a.hidden);
    free(slots);
    free(y);
    free(want);
    free(x);
    free(got);
}

/* A graph of one launch: between two replays other adapters lie in the table and tokens have others. */
static void check_recorded(void)
{
    enum { N = 16, COLS = 256, ROWS = 128, RANK = 16 };
    nrd_lora_args a = {.n_tokens = N, .single_tokens = true, .slot_stride = 1, .max_rank = RANK, .n_parts = 1,
                       .part = {{0, ROWS}}, .x_dtype = NRD_DTYPE_BF16, .cols = COLS, .y_dtype = NRD_DTYPE_F32,
                       .y_stride = ROWS};
    int32_t slots[N];
    float *x, *scale;
    nrd_graph *g = NULL;
    pairs first, second;

    pairs_new(&first, &a, RANK);
    pairs_new(&second, &a, RANK);
    void *dx = make_x(NRD_DTYPE_BF16, N, COLS, &x, &scale), *dy = dev_new(N * ROWS * sizeof(float));
    int32_t *d_slots = dev_new(sizeof slots);
    a.token_slot = d_slots;
    a.pairs = first.dev;
    a.x = dx;
    a.y = dy;
    a.hidden = dev_new(N * RANK * sizeof(float));
    OK(dev->ops->graph_begin(st));
    OK(dev->ops->lora(st, &a));
    OK(dev->ops->graph_end(st, &g));
    for (int round = 0; round < 2; round++) {
        double *want = calloc(N * ROWS, sizeof *want);
        fill_slots(slots, N, true);
        OK(dev->ops->copy(st, d_slots, slots, sizeof slots));
        OK(dev->ops->fill(st, dy, 0, N * ROWS * sizeof(float)));
        if (round == 1) {
            OK(dev->ops->copy(st, first.dev, second.host, sizeof second.host));
        }
        OK(dev->ops->graph_launch(st, g));
        OK(dev->ops->stream_sync(st));
        add_pairs(&a, round ? &second : &first, slots, x, want);
        float *got = fetch(NRD_DTYPE_F32, dy, NULL, N, ROWS);
        verdict(round ? "lora recorded, other adapters" : "lora recorded", distance(got, want, N * ROWS), 2e-5);
        free(want);
        free(got);
    }
    dev->ops->graph_free(g);
    pairs_gone(&first);
    pairs_gone(&second);
    dev_free(dx);
    dev_free(dy);
    dev_free(scale);
    dev_free(d_slots);
    dev_free(a.hidden);
    free(x);
}

void all_lora(void)
{
    static const nrd_dtype xs[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32, NRD_DTYPE_F8_E4M3};
    static const nrd_dtype ys[] = {NRD_DTYPE_BF16, NRD_DTYPE_F32, NRD_DTYPE_F16};
    for (int i = 0; i < (small_only ? 12 : 60); i++) {
        const bool odd = i % 5 == 4; /* no vectors */
        const int64_t cols = odd ? rnd(1, 300) : 16 * rnd(1, small_only ? 20 : 120);
        const int rows = odd ? rnd(1, 90) : 8 * rnd(1, small_only ? 20 : 80);
        check_case(xs[i % 4], ys[i % 3], rnd(1, i % 2 ? 70 : 200), cols, rnd(1, NRD_LORA_MAX_PARTS), rows,
                   rnd(1, i % 7 == 6 ? 200 : 40), i % 2);
    }
    if (!small_only) { /* shapes of an 8B model */
        check_case(NRD_DTYPE_BF16, NRD_DTYPE_BF16, 64, 4096, 3, 1024, 16, true);
        check_case(NRD_DTYPE_F8_E4M3, NRD_DTYPE_BF16, 64, 14336, 1, 4096, 64, true);
        check_case(NRD_DTYPE_BF16, NRD_DTYPE_BF16, 600, 4096, 2, 2048, 16, false);
    }
    check_recorded();
}
