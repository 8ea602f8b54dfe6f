/* SPDX-License-Identifier: Apache-2.0
 * Low-rank pairs of adapters: mixed ranks and types, with gains and without, runs of tokens of one adapter, of others, of none; sizes that
 * are no multiple of a vector. Then a recorded step, whose adapters change between two launches. */
#include "ops/harness.h"

/* ---- the table ---- */

typedef struct lora_row {
    unsigned on;
    int count;
    int32_t most_tokens, most_rows, most_rank;
    int32_t step, most_cols; /* columns: multiples of step */
    bool single;             /* neighbours are tokens of different sequences */
    int32_t n_parts;         /* 0: at random; with it, the sizes are exact */
    int x_type;              /* -1: by turns; else 8 bits or not */
} lora_row;

/* clang-format off */
static const lora_row table[] = {
    {ON_CPU, 40, 40, 900, 70, 1, 1024, false, 0, 0},
    {ON_CPU, 40, 40, 900, 70, 32, 640, false, 0, 1},
    {ON_CUDA, 30, 200, 640, 40, 16, 1920, false, 0, -1},
    {ON_CUDA, 30, 70, 640, 40, 16, 1920, true, 0, -1},
    {ON_CUDA, 12, 200, 90, 200, 1, 300, false, 0, -1}, /* no vectors */
    /* shapes of an 8B model */
    {ON_CUDA | LARGE, 1, 64, 1024, 16, 4096, 4096, true, 3, 0},
    {ON_CUDA | LARGE, 1, 64, 4096, 64, 14336, 14336, true, 1, 1},
    {ON_CUDA | LARGE, 1, 600, 2048, 16, 4096, 4096, false, 2, 0},
};
/* clang-format on */

/* ---- a case ---- */

typedef struct lora_case {
    nrd_lora_args a; /* host pointers */
    int32_t n_slots;
    nrd_lora_pair *pairs;
    int32_t *slots;
    void *x, *y;
    float *x_scale;
    double size; /* of what the pairs add, about */
} lora_case;

static int32_t up_to(int32_t most, bool exact)
{
    return exact ? most : rnd_in(1, most);
}

/* Parts of random ranks, some of which an adapter leaves out. */
static nrd_lora_pair *pairs_new(const nrd_lora_args *a, int32_t n_slots)
{
    static const nrd_dtype types[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16};
    nrd_lora_pair *pairs = host((size_t)(n_slots * a->slot_stride) * sizeof *pairs);

    for (int32_t s = 0; s < n_slots; s++) {
        for (int32_t p = 0; p < a->n_parts; p++) {
            const nrd_dtype t = types[rnd_in(0, 2)];
            const int32_t rank = s == 0 && p > 0 ? a->max_rank
                                 : rnd_in(0, 3)  ? rnd_in(1, a->max_rank)
                                                 : 0;
            pairs[s * a->slot_stride + p] = (nrd_lora_pair){
                .rank = rank,
                .dtype = (int32_t)t,
                .scale = 0.25f * (float)rnd_in(1, 9),
                .a = rank ? host_as(t, rank * a->cols, 1.0f / sqrtf((float)a->cols)) : NULL,
                .b = rank ? host_as(t, (int64_t)rank * a->part[p].n_rows, 1.0f / sqrtf((float)rank))
                          : NULL,
                .gain = rank && rnd_in(0, 2) == 0 ? host_normal(2 * (int64_t)a->part[p].n_rows, 0.7f) : NULL};
        }
    }
    return pairs;
}

/* The same pairs in device memory, as the table that a call takes. */
static nrd_lora_pair *pairs_on(const target *t, const nrd_lora_args *a, int32_t n_slots,
                               const nrd_lora_pair *from)
{
    const size_t bytes = (size_t)(n_slots * a->slot_stride) * sizeof *from;
    nrd_lora_pair *pairs = memcpy(host(bytes), from, bytes);

    for (int32_t s = 0; s < n_slots; s++) {
        for (int32_t p = 0; p < a->n_parts; p++) {
            nrd_lora_pair *w = &pairs[s * a->slot_stride + p];
            const size_t elem = nrd_dtype_block_bytes((nrd_dtype)w->dtype);
            if (w->rank > 0) {
                w->a = dev_put(t, w->a, (size_t)(w->rank * a->cols) * elem);
                w->b = dev_put(t, w->b, (size_t)w->rank * (size_t)a->part[p].n_rows * elem);
                w->gain = w->gain ? dev_put(t, w->gain, 2 * (size_t)a->part[p].n_rows * 4) : NULL;
            }
        }
    }
    return pairs;
}

static void fill_slots(int32_t *slots, int32_t n, int32_t n_slots, int32_t most)
{
    for (int32_t t = 0; t < n;) {
        const int32_t slot = rnd_in(-1, n_slots - 1);
        for (int32_t k = rnd_in(1, most); k > 0 && t < n; k--) {
            slots[t++] = slot;
        }
    }
}

static void lora_new(lora_case *c, const lora_row *row, int k)
{
    const bool exact = row->n_parts > 0, eight = row->x_type < 0 ? k % 4 == 3 : row->x_type > 0;
    nrd_lora_args *a = &c->a;
    int32_t at = 0;

    *c = (lora_case){.n_slots = rnd_in(1, 5)};
    a->n_tokens = exact ? row->most_tokens : rnd_in(kind->is_exact ? 0 : 1, row->most_tokens);
    a->cols = row->step * up_to(row->most_cols / row->step, exact);
    a->n_parts = exact ? row->n_parts : rnd_in(1, NRD_LORA_MAX_PARTS);
    a->max_rank = up_to(row->most_rank, exact);
    a->single_tokens = row->single;
    a->slot_stride = a->n_parts + rnd_in(0, 3);
    for (int32_t p = 0; p < a->n_parts; p++) { /* the fourth may lie over the others */
        const int32_t n = up_to(row->most_rows, exact);
        a->part[p].n_rows = row->step % 16 == 0 ? (n + 7) / 8 * 8 : n;
        a->part[p].row0 = p == 3 ? 0 : at;
        at += p == 3 ? 0 : a->part[p].n_rows;
        const int64_t end = a->part[p].row0 + a->part[p].n_rows;
        a->y_stride = end > a->y_stride ? end : a->y_stride;
    }
    a->y_stride += kind->is_exact ? rnd_in(0, 9) : 0;
    a->x_dtype = eight ? kind->eight : kind->acts[k % kind->n_acts];
    a->y_dtype = kind->acts[(k + 2) % kind->n_acts];
    c->pairs = pairs_new(a, c->n_slots);
    c->slots = host((size_t)(a->n_tokens + 1) * 4);
    fill_slots(c->slots, a->n_tokens, c->n_slots, row->single ? 1 : row->most_tokens / 5 + 1);
    const size_t x_row = nrd_row_bytes(a->x_dtype, a->cols);
    float *x = host_normal(a->n_tokens * a->cols, 1);
    c->x = host(x_row * (size_t)(a->n_tokens + 1));
    c->x_scale = a->x_dtype == NRD_DTYPE_F8_E4M3 ? host((size_t)(a->n_tokens + 1) * 4) : NULL;
    for (int32_t t = 0; t < a->n_tokens; t++) {
        nrd_store_row(a->x_dtype, c->x, t, a->cols, x + t * a->cols, c->x_scale);
    }
    c->y = host_as(a->y_dtype, a->n_tokens * a->y_stride, 1);
    c->size = 2.25 * 4 * 4;
}

static size_t y_bytes(const lora_case *c)
{
    return nrd_row_bytes(c->a.y_dtype, c->a.y_stride) * (size_t)c->a.n_tokens;
}

/* Also each token alone where a device promises that: the same bits as in the batch. */
static void lora_target(const lora_case *c, const target *t, const float *want)
{
    const int64_t all = c->a.n_tokens * c->a.y_stride;
    const size_t y_row = nrd_row_bytes(c->a.y_dtype, c->a.y_stride),
                 x_row = nrd_row_bytes(c->a.x_dtype, c->a.cols);
    const nrd_lora_pair *pairs = pairs_on(t, &c->a, c->n_slots, c->pairs);
    nrd_lora_args a = c->a;
    char *together = host(y_bytes(c)), *alone = host(y_bytes(c));

    a.x = dev_put(t, c->x, x_row * (size_t)a.n_tokens);
    a.x_row_scale = c->x_scale ? dev_put(t, c->x_scale, (size_t)a.n_tokens * 4) : NULL;
    a.y = dev_put(t, c->y, y_bytes(c));
    a.token_slot = dev_put(t, c->slots, (size_t)a.n_tokens * 4);
    a.pairs = dev_put(t, pairs, (size_t)(c->n_slots * a.slot_stride) * sizeof *pairs);
    a.hidden = dev_out(t, (size_t)(a.n_tokens * a.n_parts * a.max_rank) *
                              4); /* what lies there does not count */
    ok(t->ops->lora(t->s, &a));
    dev_get(t, together, a.y, y_bytes(c));
    compare(t, "", rows_of(a.y_dtype, together, NULL, a.n_tokens, a.y_stride), want, all,
            kind->is_exact ? (limit){1e-5 + 2e-6 * c->size, 1e-5, 0}
                           : (limit){0, 0, rounding(a.y_dtype)});
    if (!kind->rows_alone) {
        return;
    }
    a.y = dev_put(t, c->y, y_bytes(c));
    for (int32_t i = 0; i < c->a.n_tokens; i++) {
        nrd_lora_args one = a;
        one.n_tokens = 1;
        one.token_slot = a.token_slot + i;
        one.x = (const char *)a.x + (size_t)i * x_row;
        one.y = (char *)a.y + (size_t)i * y_row;
        ok(t->ops->lora(t->s, &one));
        sync(t);
    }
    dev_get(t, alone, a.y, y_bytes(c));
    same_bytes(t, "tokens alone", alone, together, y_bytes(c));
}

static const float *lora_want(const lora_case *c)
{
    nrd_lora_args a = c->a;
    a.x = c->x;
    a.x_row_scale = c->x_scale;
    a.token_slot = c->slots;
    a.pairs = c->pairs;
    a.hidden = host((size_t)(a.n_tokens * a.n_parts * a.max_rank) * 4);
    a.y = memcpy(host(y_bytes(c)), c->y, y_bytes(c));
    ok(nrd_lora_check(&a));
    nrd_lora_ref(&a);
    return rows_of(a.y_dtype, a.y, NULL, a.n_tokens, a.y_stride);
}

/* A graph of one launch: between two replays other adapters lie in the table and tokens have others. */
static void check_recorded(const target *t)
{
    static const lora_row row = {ON_ALL, 1, 16, 128, 16, 256, 256, true, 1, 0};
    nrd_graph *g = NULL;
    lora_case c;

    lora_new(&c, &row, 0);
    nrd_lora_args a = c.a;
    const size_t table_bytes = (size_t)(c.n_slots * a.slot_stride) * sizeof *c.pairs;
    nrd_lora_pair *pairs = dev_out(t, table_bytes);
    int32_t *slots = dev_out(t, (size_t)a.n_tokens * 4);
    a.x = dev_put(t, c.x, nrd_row_bytes(a.x_dtype, a.cols) * (size_t)a.n_tokens);
    a.y = dev_out(t, y_bytes(&c));
    a.token_slot = slots;
    a.pairs = pairs;
    a.hidden = dev_out(t, (size_t)(a.n_tokens * a.n_parts * a.max_rank) * 4);
    ok(t->ops->graph_begin(t->s));
    ok(t->ops->lora(t->s, &a));
    ok(t->ops->graph_end(t->s, &g));
    case_name("lora recorded");
    for (int round = 0; round < 2; round++) {
        c.pairs = pairs_new(&c.a, c.n_slots);
        fill_slots(c.slots, a.n_tokens, c.n_slots, 1);
        ok(t->ops->copy(t->s, pairs, pairs_on(t, &c.a, c.n_slots, c.pairs), table_bytes));
        ok(t->ops->copy(t->s, slots, c.slots, (size_t)a.n_tokens * 4));
        ok(t->ops->copy(t->s, a.y, c.y, y_bytes(&c)));
        ok(t->ops->graph_launch(t->s, g));
        compare(t, round ? "other adapters" : "",
                dev_rows(t, a.y_dtype, a.y, NULL, a.n_tokens, a.y_stride), lora_want(&c),
                a.n_tokens * a.y_stride, (limit){0, 0, rounding(a.y_dtype)});
    }
    t->ops->graph_free(g);
    case_end();
}

void check_lora(void)
{
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        for (int k = 0;
             is_here(table[r].on) && k < (small_only ? table[r].count / 4 + 1 : table[r].count);
             k++) {
            lora_case c;
            lora_new(&c, &table[r], k);
            const float *want = lora_want(&c);
            case_name("lora %s -> %s, %d tokens%s, %d parts x %lld, rank %d",
                      nrd_dtype_name(c.a.x_dtype), nrd_dtype_name(c.a.y_dtype), c.a.n_tokens,
                      c.a.single_tokens ? " (single)" : "", c.a.n_parts, (long long)c.a.cols,
                      c.a.max_rank);
            for (int i = 0; i < n_targets; i++) {
                lora_target(&c, &targets[i], want);
            }
            case_end();
        }
    }
    if (targets[0].ops->graph_begin) {
        check_recorded(&targets[0]);
    }
}
