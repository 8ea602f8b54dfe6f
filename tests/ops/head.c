/* SPDX-License-Identifier: Apache-2.0
 * linear_sample, on devices that have it: what it chooses is what linear and sample choose on the same device, and
 * it stores no logits that nobody asked for. */
#include "ops/harness.h"

enum { MOST = 70, MAX_VOCAB = 1500 };

typedef struct choices {
    int32_t ids[MOST], slots[MOST];
    float logprob[MOST], norm[MOST];
    uint16_t *counts; /* [n, vocab] */
} choices;

typedef struct head_case {
    nrd_weight w, b;
    int64_t rows, cols;
    int32_t n, vocab, n_top, banned[3], some[9], n_some;
    int32_t most_k; /* 0: any */
    bool biased, plain, alike;
    float *x, *bias, softcap;
    uint32_t *mask;
    nrd_sample_row row[MOST];
} head_case;

/* Rows that a fused choice takes; those that it does not take, with `plain`. */
static nrd_sample_row draw_row(const head_case *c, int32_t slot, bool plain)
{
    nrd_sample_row row = {.slot = slot,
                          .top_k = rnd() % 3 ? rnd_in(0, c->vocab < 129 ? c->vocab - 1 : 128) : 1,
                          .top_p = rnd() % 2 ? 0.1f + 0.85f * rnd_unit() : 0,
                          .min_p = rnd() % 4 == 0 ? 0.05f : 0,
                          .temperature = rnd() % 3 == 0 ? 0 : 0.3f + 1.6f * rnd_unit(),
                          .repetition_penalty = rnd() % 2 ? 1.2f : 1.0f,
                          .presence_penalty = rnd() % 3 ? 0 : 0.5f,
                          .frequency_penalty = rnd() % 3 ? 0 : 0.25f,
                          .seed = rnd(),
                          .draw = rnd() % 100,
                          .flags = (rnd() % 3 ? 0 : NRD_SAMPLE_COUNTS) |
                                   (rnd() % 5 == 0 ? NRD_SAMPLE_NO_UPDATE : 0u) | (slot % 2 ? NRD_SAMPLE_TELLS : 0u),
                          .n_banned = rnd() % 3 ? 0 : 3,
                          .n_suppress_end = rnd() % 2,
                          .end_id = rnd_in(-1, c->vocab - 1),
                          .bias = rnd() % 4 ? NULL : c->bias,
                          .mask = rnd() % 4 ? NULL : c->mask};

    row.top_k = row.top_k < 1 ? 1 : row.top_k;
    if (c->most_k > 0) {
        row.top_k = 1 + row.top_k % c->most_k;
    }
    if (plain) {
        switch (rnd() % 4) {
        case 3:
            row.times = (nrd_sample_times){.first = c->vocab / 2 + 1, .text_end = c->vocab / 2, .time_from = c->vocab / 2 + 1,
                                           .time_end = c->vocab};
            break;
        case 0:
            row.flags |= NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE;
            break;
        case 1:
            row.top_k = 0, row.temperature = 1;
            break;
        default:
            row.top_k = 129, row.temperature = 1;
            break;
        }
    }
    if (row.bias && rnd() % 2) {
        row.bias_ids = c->some, row.n_bias = c->n_some;
    }
    return row;
}

/* Logits that are equal, that are not numbers, infinite, or all forbidden. */
static void odd_logits(head_case *c, int k)
{
    float *b = (float *)(uintptr_t)c->b.data;
    const bool ties = k % 3 == 1;

    c->biased = ties || k % 7 == 6;
    for (int64_t i = 0; ties && i < c->rows; i++) {
        b[i] = roundf(b[i] * 40);
    }
    for (int64_t i = 0; ties && i < c->n * c->cols; i++) {
        c->x[i] = 0;
    }
    for (int i = 0; k % 7 == 6 && i < 2; i++) {
        b[rnd_in(0, (int32_t)c->rows - 1)] = i ? -INFINITY : NAN;
    }
    for (int i = 0; k % 14 == 13 && i < 3; i++) {
        b[rnd_in(0, (int32_t)c->rows - 1)] = INFINITY;
    }
    for (int64_t i = 0; k % 28 == 27 && i < c->rows; i++) {
        b[i] = k % 56 == 55 ? NAN : -INFINITY; /* nothing can be chosen */
    }
}

/* Rows that differ by about as much as 8 bits are off: which one is best is not to be seen in these. */
static void make_alike(nrd_weight *w)
{
    float *base = host_normal(w->cols, 0.05f);

    for (int64_t i = 0; i < w->rows * w->cols; i++) {
        nrd_store_f32(w->dtype, (void *)(uintptr_t)w->data, i, base[i % w->cols] * (1 + 0.01f * rnd_normal()));
    }
}

static void head_new(head_case *c, int k)
{
    static const int32_t n_rows[] = {1, 2, 5, 8, 16, 17, 33, 64, MOST};
    static const nrd_dtype plain_types[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16};
    const bool large = k % 4 == 1; /* few choices of many: what two steps are for */
    const nrd_dtype type = large ? plain_types[rnd() % 3] : weight_types[rnd_in(0, N_WEIGHT_TYPES - 2)];
    const int block = nrd_dtype_block(type);

    *c = (head_case){.rows = k % 5 == 0 ? rnd_in(1, 60) : rnd_in(61, MAX_VOCAB),
                     .cols = block > 1 ? block : rnd() % 2 ? 32 * rnd_in(1, 9) : rnd_in(1, 40),
                     .n = n_rows[rnd_in(0, 8)],
                     .n_top = k % 16 == 7,
                     .plain = k % 8 == 3,
                     .softcap = k % 4 == 2 ? 2.0f : 0};
    if (large) {
        c->rows = rnd_in(4000, 12000);
        c->cols = 32 * rnd_in(1, 3);
        c->n = rnd_in(1, 5);
        c->most_k = (int32_t)c->rows / 512 / c->n;
    }
    c->alike = large && rnd() % 2;
    c->vocab = rnd() % 3 ? (int32_t)c->rows : rnd_in(1, (int32_t)c->rows);
    c->w = weight_new(type, c->rows, c->cols, 0.05f);
    if (c->alike) {
        make_alike(&c->w);
    }
    if (k % 13 == 5 && type == NRD_DTYPE_F32) { /* a row that says nothing of its products */
        ((float *)(uintptr_t)c->w.data)[rnd_in(0, (int32_t)(c->rows * c->cols) - 1)] = rnd() % 2 ? INFINITY : NAN;
    }
    c->b = weight_new(NRD_DTYPE_F32, c->rows, 1, 0.05f);
    c->x = host_normal(c->n * c->cols, 1);
    c->bias = host_normal(c->vocab, 1);
    c->mask = host((size_t)(c->vocab + 31) / 32 * 4);
    for (int32_t i = 0; i < (c->vocab + 31) / 32; i++) {
        c->mask[i] = k % 9 == 8 ? 0 : (uint32_t)rnd() | (uint32_t)rnd();
    }
    for (int32_t id = rnd_in(0, (c->vocab - 1) / 9); c->n_some < 9 && id < c->vocab;
         id += rnd_in(1, c->vocab / 9 + 1)) {
        c->some[c->n_some++] = id;
    }
    for (int i = 0; i < 3; i++) {
        c->banned[i] = rnd_in(0, c->vocab - 1);
    }
    odd_logits(c, k);
    for (int32_t i = 0; i < c->n; i++) {
        c->row[i] = draw_row(c, i, c->plain && i == c->n / 2);
    }
}

static void choose(const head_case *c, const target *t, const nrd_weight *w, const nrd_rough_weight *rough, float *y,
                   choices *out, bool fused)
{
    int32_t top_ids[MOST];
    float top[MOST];
    nrd_linear_args l = {.n_tokens = c->n,
                         .x = c->x,
                         .x_dtype = NRD_DTYPE_F32,
                         .n_parts = 1,
                         .w = {w},
                         .bias = {c->biased ? &c->b : NULL},
                         .y = y,
                         .y_dtype = NRD_DTYPE_F32,
                         .softcap = c->softcap};
    nrd_sample_args a = {.n_rows = c->n,
                         .vocab = c->vocab,
                         .logits = y,
                         .logits_stride = c->rows,
                         .rows = c->row,
                         .banned_ids = c->banned,
                         .n_top = c->n_top,
                         .out_top_ids = top_ids,
                         .out_top_logprobs = top,
                         .counts = out->counts,
                         .slot_tokens = out->slots,
                         .out_ids = out->ids,
                         .out_logprob = out->logprob,
                         .out_logprob_norm = out->norm};

    if (fused) {
        ok(t->ops->linear_sample(t->s, &l, rough, &a));
    } else {
        ok(t->ops->linear(t->s, &l));
        ok(t->ops->sample(t->s, &a));
    }
    sync(t);
}

/* What stands for a weight in 8 bits. */
typedef struct rough_on {
    nrd_weight w;
    nrd_rough_weight rough;
} rough_on;

static void rough_new(rough_on *o, const target *t, const nrd_weight *from)
{
    nrd_weight rows = {.dtype = NRD_DTYPE_Q8_0, .rows = from->rows, .cols = from->cols, .scale = 1, .data_bytes = nrd_rough_bytes(from)};
    float *error = host((size_t)from->rows * 4), *length = host((size_t)from->rows * 4);
    void *data = host((size_t)rows.data_bytes + 64);

    ok(nrd_rough_make(from, rnd_in(1, 3), data, error, length));
    rows.data = data;
    o->w = weight_on(t, &rows, true);
    o->rough = (nrd_rough_weight){&o->w, dev_put(t, error, (size_t)from->rows * 4), dev_put(t, length, (size_t)from->rows * 4)};
}

static void head_target(const head_case *c, const target *t, bool packed)
{
    const size_t count_bytes = (size_t)(c->n * c->vocab) * 2,
                 y_bytes = (size_t)(c->n * c->rows) * 4;
    choices *want = host(sizeof *want), *got = host(sizeof *got);
    nrd_weight w = weight_on(t, &c->w, packed);
    float *y = host(y_bytes);
    const bool is_rough = nrd_rough_is_for(&c->w);
    rough_on rough;
    bool fits = !c->plain && c->n_top == 0; /* top_k of the whole vocabulary is for sample, too */
    uint32_t first;

    if (is_rough) {
        rough_new(&rough, t, &c->w);
    }
    want->counts = host(count_bytes);
    got->counts = host(count_bytes);
    for (int32_t i = 0; i < c->n * c->vocab; i++) {
        want->counts[i] = got->counts[i] = rnd() % 8 == 0 ? (uint16_t)rnd_in(1, 3) : 0;
    }
    for (int32_t i = 0; i < c->n; i++) {
        fits = fits &&
               (c->row[i].temperature <= 0 || c->row[i].top_k == 1 || c->row[i].top_k < c->vocab);
    }
    choose(c, t, &w, NULL, y, want, false);
    memset(y, 0xff, y_bytes);
    choose(c, t, &w, is_rough ? &rough.rough : NULL, y, got, true);
    same_bytes(t, "ids", got->ids, want->ids, sizeof want->ids);
    same_bytes(t, "slots", got->slots, want->slots, sizeof want->slots);
    same_bytes(t, "logprob", got->logprob, want->logprob, sizeof want->logprob);
    same_bytes(t, "logprob_norm", got->norm, want->norm, sizeof want->norm);
    same_bytes(t, "counts", got->counts, want->counts, count_bytes);
    memcpy(&first, y, 4);
    verdict(t, "logits that are not needed", (first == UINT32_MAX) == fits);
}

/* Whether the device's operations read the host's memory. */
static bool is_near(const target *t)
{
    nrd_device_info info;
    t->ops->get_info(t->dev, &info);
    return info.host_is_device;
}

void check_head(void)
{
    if (targets[0].ops->linear_sample && !is_near(&targets[0])) {
        check_head_far(&targets[0]);
        return;
    }
    for (int k = 0; targets[0].ops->linear_sample && k < 112; k++) {
        head_case c;
        head_new(&c, k);
        const bool packed = rnd() % 2;
        case_name("linear_sample %s, %d x %lld -> %lld, vocabulary %d, case %d",
                  nrd_dtype_name(c.w.dtype), c.n, (long long)c.cols, (long long)c.rows, c.vocab, k);
        for (int i = 0; i < n_targets; i++) {
            head_target(&c, &targets[i], packed);
        }
        case_end();
    }
}

/* ---- speed: two commands or one ---- */

typedef struct head_run {
    nrd_linear_args l;
    nrd_sample_args a;
    const nrd_rough_weight *rough;
    bool fused;
} head_run;

static void head_call(const target *t, int i, void *user)
{
    head_run *r = user;
    (void)i;
    if (r->fused) {
        ok(t->ops->linear_sample(t->s, &r->l, r->rough, &r->a));
    } else {
        ok(t->ops->linear(t->s, &r->l));
        ok(t->ops->sample(t->s, &r->a));
    }
}

static void speed_vocab(const target *t, nrd_dtype type, int32_t vocab, int64_t cols)
{
    enum { N = 32 };
    nrd_weight rows = weight_new(type, vocab, cols, 1);
    for (int64_t i = 0; nrd_rough_is_for(&rows) && i < vocab * cols; i++) { /* all rows differ: equal ones are all candidates */
        nrd_store_f32(type, (void *)(uintptr_t)rows.data, i, rnd_normal());
    }
    nrd_weight w = weight_on(t, &rows, true);
    nrd_sample_row row[N];
    int32_t ids[N], slots[N];
    size_t row_bytes;
    bool row_scale;
    const nrd_dtype in = t->ops->linear_input(t->dev, &w, NRD_DTYPE_F32, &row_bytes, &row_scale);
    float *x = host_normal(N * cols, 1), *y = dev_out(t, (size_t)vocab * N * 4);
    const int ways = nrd_rough_is_for(&rows) ? 3 : 2;
    static const char *const names[] = {"linear, sample", "linear_sample", "linear_sample in two steps"};
    rough_on rough;
    char *xq = host(row_bytes * N);

    for (int32_t i = 0; i < N; i++) {
        nrd_store_row(in, xq, i, cols, x + i * cols, NULL);
    }
    if (ways == 3) {
        rough_new(&rough, t, &rows);
    }
    for (int32_t n = 1; n <= N; n = n == 1 ? 8 : n * 2) {
        for (int k = 1; k <= 50; k += 49) {
            double best[3] = {1e9, 1e9, 1e9};
            for (int32_t i = 0; i < n; i++) {
                row[i] = (nrd_sample_row){
                    .slot = i, .top_k = k, .temperature = 0.8f, .repetition_penalty = 1};
            }
            for (int round = 0; round < 4 * ways; round++) { /* by turns */
                head_run r = {.fused = round % ways > 0, .rough = round % ways == 2 ? &rough.rough : NULL};
                r.l = (nrd_linear_args){.n_tokens = n,
                                        .x = xq,
                                        .x_dtype = in,
                                        .n_parts = 1,
                                        .w = {&w},
                                        .y = y,
                                        .y_dtype = NRD_DTYPE_F32};
                r.a = (nrd_sample_args){.n_rows = n,
                                        .vocab = vocab,
                                        .logits = y,
                                        .rows = row,
                                        .slot_tokens = slots,
                                        .out_ids = ids};
                best[round % ways] = fmin(best[round % ways], measure(t, head_call, &r, 1));
            }
            for (int way = 0; way < ways; way++) {
                speed_row(best[way],
                          (work){(double)w.data_bytes, 2.0 * n * vocab * (double)cols, PEAK_EIGHT},
                          "%s %s %d, %d x %lld -> %d", names[way], k == 1 ? "greedy" : "top-k", k, n, (long long)cols, vocab);
            }
        }
    }
    case_end();
}

void speed_head(void)
{
    if (targets[0].ops->linear_sample && !is_near(&targets[0])) {
        speed_head_far(&targets[0]);
    } else if (targets[0].ops->linear_sample) {
        speed_vocab(&targets[0], NRD_DTYPE_BF16, 49152, 576);
        speed_vocab(&targets[0], NRD_DTYPE_Q8_0, 49152, 576);
        speed_vocab(&targets[0], NRD_DTYPE_Q8_0, 262144, 640);
    }
}
