/* SPDX-License-Identifier: Apache-2.0
 * sample: all ways to choose a token. */
#include "ops/harness.h"

/* ---- the table ---- */

enum { MAX_ROWS = 24, MAX_TOP = 9, N_SOME = 7 };

typedef struct sample_row {
    unsigned on;
    int count;
    int32_t vocab[2], n_rows[2]; /* ranges; a vocabulary of one number: exact */
    float scale;                 /* of the logits */
    bool ties, odd;              /* whole logits; not a number and -inf among them */
} sample_row;

/* clang-format off */
static const sample_row table[] = {
    {ON_CPU, 30, {1, 40}, {1, 5}, 3.0f, false, false},
    {ON_ALL, 20, {41, 5000}, {1, 5}, 3.0f, false, false},
    {ON_ALL, 20, {41, 5000}, {1, 5}, 0.3f, false, false},
    {ON_ALL, 20, {33, 5000}, {1, 5}, 3.0f, true, false},
    {ON_ALL, 12, {2, 5000}, {1, 5}, 3.0f, false, true},
    {ON_CUDA, 4, {33, 33}, {24, 24}, 4.0f, false, false},
    {ON_CUDA, 4, {1000, 1000}, {9, 24}, 4.0f, false, false},
    {ON_CUDA, 4, {5003, 5003}, {24, 24}, 4.0f, false, false},
    {ON_CUDA | LARGE, 3, {50257, 50257}, {24, 24}, 4.0f, true, false},
    {ON_CUDA | LARGE, 4, {128256, 128256}, {24, 24}, 4.0f, false, false},
    {ON_CUDA | LARGE, 2, {151936, 151936}, {24, 24}, 4.0f, false, false},
    /* few: many blocks a row */
    {ON_CUDA, 12, {4099, 9000}, {1, 8}, 4.0f, false, false},
    {ON_CUDA, 12, {4099, 9000}, {1, 24}, 4.0f, false, true},
    {ON_CUDA | LARGE, 12, {37000, 156032}, {1, 8}, 4.0f, false, false},
    /* flat: the cut lies among more tokens than are sorted */
    {ON_CUDA | LARGE, 6, {100000, 130000}, {4, 8}, 0.1f, false, false},
};
/* clang-format on */

/* ---- a case ---- */

typedef struct sample_case {
    int32_t n, vocab, n_top, n_slots, n_some;
    float *logits, *bias;
    uint32_t *mask;
    uint16_t *counts;
    int32_t banned[20], some[N_SOME]; /* some: rising ids */
    nrd_sample_row rows[MAX_ROWS];
} sample_case;

/* What a call gives back. */
typedef struct choices {
    int32_t ids[MAX_ROWS], slots[MAX_ROWS + 2], top_ids[MAX_ROWS * MAX_TOP];
    float logprob[MAX_ROWS], norm[MAX_ROWS], top[MAX_ROWS * MAX_TOP];
} choices;

static void draw_row(const sample_case *c, int32_t r, int k, nrd_sample_row *row)
{
    *row = (nrd_sample_row){.slot = r + 1,
                            .temperature = rnd() % 4 == 0 ? 0 : 0.3f + 1.6f * rnd_unit(),
                            .top_k = k % 3 == 0   ? rnd_in(0, c->vocab + 2)
                                     : r % 3 == 1 ? rnd_in(0, 60)
                                                  : 0,
                            .top_p = rnd() % 2 ? 0.05f + 0.9f * rnd_unit() : 0,
                            .min_p = rnd() % 4 == 0 ? 0.05f : 0,
                            .repetition_penalty = rnd() % 2 ? 1.2f : 1.0f,
                            .presence_penalty = rnd() % 3 ? 0 : 0.5f,
                            .frequency_penalty = rnd() % 3 ? 0 : 0.25f,
                            .seed = rnd(),
                            .draw = rnd() % 100,
                            .flags = NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE |
                                     (rnd() % 2 ? NRD_SAMPLE_COUNTS : 0u) |
                                     (rnd() % 5 == 0 ? NRD_SAMPLE_NO_UPDATE : 0u) |
                                     (rnd() % 3 == 0 ? NRD_SAMPLE_UNMASKED : 0u),
                            .banned_start = rnd_in(0, 9),
                            .n_banned = rnd() % 2 ? rnd_in(1, 10) : 0,
                            .n_suppress_end = rnd() % 2,
                            .end_id = rnd_in(-1, c->vocab - 1),
                            .bias = rnd() % 3 ? NULL : c->bias,
                            .mask = rnd() % 3 ? NULL : c->mask};
    if (rnd() % 3 == 0 && c->vocab > 1) { /* ranges that may be empty */
        const int32_t first = rnd() % 2 ? rnd_in(1, c->vocab - 1) : c->vocab - rnd_in(1, (c->vocab + 3) / 4);
        row->times = (nrd_sample_times){.first = first,
                                        .text_from = rnd() % 2 ? 0 : rnd_in(0, first),
                                        .text_end = first - 1,
                                        .time_from = rnd_in(first, c->vocab),
                                        .time_end = rnd() % 3 ? c->vocab : rnd_in(first, c->vocab)};
    }
    if (row->bias && rnd() % 2) {
        row->bias_ids = c->some;
        row->n_bias = c->n_some;
    }
}

static void sample_new(sample_case *c, const sample_row *row, int k)
{
    *c = (sample_case){.vocab = rnd_in(row->vocab[0], row->vocab[1]),
                       .n = rnd_in(row->n_rows[0], row->n_rows[1])};
    c->n_slots = c->n + 2;
    c->n_top = k % 3 == 1 ? rnd_in(1, c->vocab < MAX_TOP ? c->vocab : MAX_TOP) : 0;
    const int64_t all = (int64_t)c->n * c->vocab;
    c->logits = host_normal(all, row->scale);
    for (int64_t i = 0; row->ties && i < all; i++) {
        c->logits[i] = roundf(c->logits[i]);
    }
    for (int i = 0; row->odd && i < 2; i++) {
        c->logits[rnd_in(0, c->vocab - 1)] = i ? -INFINITY : NAN;
    }
    c->bias = host_normal(c->vocab, 1);
    c->mask = host((size_t)(c->vocab + 31) / 32 * 4);
    for (int32_t i = 0; i < (c->vocab + 31) / 32; i++) {
        c->mask[i] = (uint32_t)rnd() | (uint32_t)rnd();
    }
    c->counts = host((size_t)c->n_slots * (size_t)c->vocab * 2);
    for (int64_t i = 0; i < (int64_t)c->n_slots * c->vocab; i++) {
        c->counts[i] = rnd() % 8 == 0 ? (uint16_t)rnd_in(1, 3) : 0;
    }
    for (int i = 0; i < 20; i++) {
        c->banned[i] = rnd_in(0, c->vocab - 1);
    }
    for (int32_t id = rnd_in(0, (c->vocab - 1) / N_SOME); c->n_some < N_SOME && id < c->vocab;
         id += rnd_in(1, c->vocab / N_SOME + 1)) {
        c->some[c->n_some++] = id;
    }
    for (int32_t r = 0; r < c->n; r++) {
        draw_row(c, r, k, &c->rows[r]);
        c->rows[r].flags |= row->odd && r % 2 == 0 ? NRD_SAMPLE_TELLS : 0u;
    }
    for (int64_t i = 0; row->odd && k % 2 && i < all; i++) { /* no number at all */
        c->logits[i] = i % 3 ? NAN : -INFINITY;
    }
}

static nrd_sample_args args_of(const sample_case *c, choices *out, uint16_t *counts)
{
    return (nrd_sample_args){.n_rows = c->n,
                             .vocab = c->vocab,
                             .logits = c->logits,
                             .rows = c->rows,
                             .banned_ids = c->banned,
                             .counts = counts,
                             .slot_tokens = out->slots,
                             .out_ids = out->ids,
                             .out_logprob = out->logprob,
                             .out_logprob_norm = out->norm,
                             .n_top = c->n_top,
                             .out_top_ids = out->top_ids,
                             .out_top_logprobs = out->top};
}

/* The same call with everything in device memory. */
static void sample_on(const sample_case *c, const target *t, choices *out, uint16_t *counts)
{
    const size_t count_bytes = (size_t)c->n_slots * (size_t)c->vocab * 2;
    choices *d = dev_out(t, sizeof *d);
    nrd_sample_row rows[MAX_ROWS];
    nrd_sample_args a = args_of(c, d, dev_put(t, c->counts, count_bytes));
    const float *bias = dev_put(t, c->bias, (size_t)c->vocab * 4);
    const uint32_t *mask = dev_put(t, c->mask, (size_t)(c->vocab + 31) / 32 * 4);
    const int32_t *some = dev_put(t, c->some, sizeof c->some);

    memcpy(rows, c->rows, sizeof rows);
    for (int32_t r = 0; r < c->n; r++) {
        rows[r].bias = rows[r].bias ? bias : NULL;
        rows[r].mask = rows[r].mask ? mask : NULL;
        rows[r].bias_ids = rows[r].bias_ids ? some : NULL;
    }
    a.rows = dev_put(t, rows, sizeof rows);
    a.logits = dev_put(t, c->logits, (size_t)c->n * (size_t)c->vocab * 4);
    a.banned_ids = dev_put(t, c->banned, sizeof c->banned);
    ok(t->ops->sample(t->s, &a));
    dev_get(t, out, d, sizeof *out);
    dev_get(t, counts, a.counts, count_bytes);
}

/* ---- verdicts ---- */

enum { EDGES_PERCENT = 1 }; /* draws that fall on an edge, on a device of float32 sums */
static int64_t n_drawn, n_edges;

/* Row r's choice, its probabilities and where it was written. */
static void judge_row(const sample_case *c, const target *t, int32_t r, const choices *got,
                      const choices *want)
{
    const nrd_sample_row *row = &c->rows[r];
    const double close = kind->is_exact ? 1e-4 : 2e-4;
    char what[120];

    n_drawn++;
    snprintf(what, sizeof what, "row %d (k %d p %.2f m %.2f t %.2f)", r, row->top_k,
             (double)row->top_p, (double)row->min_p, (double)row->temperature);
    if (got->ids[r] == want->ids[r]) {
        verdict(t, what, true);
        compare(t, "logprob", &got->logprob[r], &want->logprob[r], 1, (limit){close, 1e-5, 0});
        compare(t, "logprob_norm", &got->norm[r], &want->norm[r], 1,
                (limit){kind->is_exact ? 1e-3 : close, 1e-5, 0});
    } else { /* the number drawn lies on an edge */
        choices none;
        nrd_sample_args a = args_of(c, &none, c->counts);
        n_edges++;
        verdict(t, what,
                row->temperature > 0 && row->top_k != 1 &&
                    nrd_sample_may(&a, r, got->ids[r], 2e-5));
    }
    if (!(row->flags & NRD_SAMPLE_NO_UPDATE)) {
        verdict(t, "slot", got->slots[row->slot] == (got->ids[r] == NRD_SAMPLE_NO_NUMBERS ? 0 : got->ids[r]));
    }
}

/* The counts are what they were, and one more of each choice that counts. */
static void judge_counts(const sample_case *c, const target *t, const choices *got,
                         const uint16_t *after)
{
    const size_t bytes = (size_t)c->n_slots * (size_t)c->vocab * 2;
    uint16_t *want = memcpy(host(bytes), c->counts, bytes);

    for (int32_t r = 0; r < c->n; r++) {
        const nrd_sample_row *row = &c->rows[r];
        if ((row->flags & NRD_SAMPLE_COUNTS) && !(row->flags & NRD_SAMPLE_NO_UPDATE) &&
            got->ids[r] >= NRD_SAMPLE_NO_NUMBERS && got->ids[r] < c->vocab) {
            want[(int64_t)row->slot * c->vocab + (got->ids[r] < 0 ? 0 : got->ids[r])]++;
        }
    }
    same_bytes(t, "counts", after, want, bytes);
}

void check_sample(void)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        for (int k = 0; is_here(table[i].on) && k < table[i].count; k++) {
            sample_case c;
            choices want, got;
            sample_new(&c, &table[i], k);
            const size_t bytes = (size_t)c.n_slots * (size_t)c.vocab * 2;
            uint16_t *counts = host(bytes), *after = host(bytes);
            nrd_sample_args a = args_of(&c, &want, memcpy(counts, c.counts, bytes));
            ok(nrd_sample_check(&a));
            nrd_sample_ref(&a);
            case_name("sample %d rows of %d, case %d", c.n, c.vocab, k);
            for (int x = 0; x < n_targets; x++) {
                const target *t = &targets[x];
                sample_on(&c, t, &got, after);
                for (int32_t r = 0; r < c.n; r++) {
                    judge_row(&c, t, r, &got, &want);
                }
                /* rounding of the adjusted logits may swap near ties: then the values must agree */
                compare(t, "best", got.top, want.top, (int64_t)c.n * c.n_top,
                        (limit){2e-4, 1e-5, 0});
                judge_counts(&c, t, &got, after);
            }
            case_end();
        }
    }
    printf("  %lld of %lld draws fell on an edge\n", (long long)n_edges, (long long)n_drawn);
    case_name("draws on an edge");
    verdict(&targets[0], "too many", !kind->is_exact || n_edges * 100 <= n_drawn * EDGES_PERCENT);
}

/* ---- speed ---- */

static const struct sample_speed {
    unsigned on;
    const char *name;
    int32_t vocabs[2], counts[6];
    float temperature, top_p;
    int32_t top_k;
} speeds[] = {
    {ON_CPU, "greedy", {49152, 262144}, {1}, 0, 0, 0},
    {ON_CPU, "temperature", {49152, 262144}, {1}, 0.8f, 0, 0},
    {ON_CPU, "top-k 50", {49152, 262144}, {1}, 0.8f, 0, 50},
    {ON_CPU, "top-p .95", {49152, 262144}, {1}, 0.8f, 0.95f, 0},
    {ON_CPU, "k 50 p .95", {49152, 262144}, {1}, 0.8f, 0.95f, 50},
    {ON_CUDA, "greedy", {128256}, {1, 8, 16, 64, 256, 1024}, 0, 0, 0},
    {ON_CUDA, "k 50 p .95", {128256}, {1, 8, 16, 64, 256, 1024}, 0.8f, 0.95f, 50},
    {ON_CUDA, "top-p .95", {128256}, {1, 8, 16, 64, 256, 1024}, 0.8f, 0.95f, 0},
};

static void sample_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->sample(t->s, user));
}

static void speed_one(const target *t, const struct sample_speed *s, int32_t vocab, int32_t n)
{
    nrd_sample_row *rows = host((size_t)n * sizeof *rows);
    float *logits = host_normal((int64_t)vocab + 1024, 2.5f);
    float *d = dev_out(t, (size_t)n * (size_t)vocab * 4);

    for (int32_t r = 0; r < n; r++) {
        ok(t->ops->copy(t->s, d + (int64_t)r * vocab, logits + r, (size_t)vocab * 4));
        rows[r] = (nrd_sample_row){.slot = r,
                                   .temperature = s->temperature,
                                   .top_k = s->top_k,
                                   .top_p = s->top_p,
                                   .repetition_penalty = 1,
                                   .seed = rnd(),
                                   .end_id = -1};
    }
    sync(t);
    nrd_sample_args a = {.n_rows = n,
                         .vocab = vocab,
                         .logits = d,
                         .rows = dev_put(t, rows, (size_t)n * sizeof *rows),
                         .slot_tokens = dev_out(t, (size_t)n * 4),
                         .out_ids = dev_out(t, (size_t)n * 4)};
    speed_row(measure(t, sample_call, &a, 16), (work){(double)n * vocab * 4, 0, PEAK_FLOAT},
              "sample %s %d x %d", s->name, n, vocab);
    case_end();
}

void speed_sample(void)
{
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
        for (int v = 0; is_here(speeds[i].on) && v < 2 && speeds[i].vocabs[v]; v++) {
            for (int k = 0; k < 6 && speeds[i].counts[k]; k++) {
                speed_one(&targets[0], &speeds[i], speeds[i].vocabs[v], speeds[i].counts[k]);
            }
        }
    }
}
