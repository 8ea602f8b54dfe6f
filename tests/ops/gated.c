/* SPDX-License-Identifier: Apache-2.0
 * linear_gated: a gate, what it gates and the activation in one product, for shapes that devices take whole rounds of tiles of. */
#include "ops/harness.h"

typedef struct gated_row {
    int32_t inter, cols, n;
    nrd_act_kind act;
} gated_row;

static const gated_row table[] = {
    {8448, 64, 256, NRD_ACT_SILU},
    {8440, 208, 250, NRD_ACT_GELU_TANH},
    {4216, 1040, 500, NRD_ACT_SILU},
    {2048, 400, 1020, NRD_ACT_SILU}, {4216, 96, 500, NRD_ACT_GELU_TANH},
    {1096, 16, 1900, NRD_ACT_GELU_TANH},
    {8448, 4096, 511, NRD_ACT_SILU},
    /* few columns: also where there are fewer tiles than run at once */
    {1536, 576, 1024, NRD_ACT_SILU}, {264, 1024, 256, NRD_ACT_GELU_TANH}, {1544, 88, 300, NRD_ACT_SILU},
};
enum { N_ROWS = sizeof table / sizeof *table, PICKED = 40 };

/* Edges and some between. */
static int32_t picked(int i, int32_t n)
{
    return i == 0 ? 0 : i == 1 ? n - 1 : rnd_in(0, n - 1);
}

static float *values_of(const nrd_weight *w, const int32_t *rows, int64_t cols)
{
    float *v = host((size_t)(PICKED * cols) * 4);
    for (int i = 0; i < PICKED; i++) {
        nrd_weight_row(w, rows[i], v + i * cols);
    }
    return v;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i] * b[i];
    }
    return sum;
}

static void check_case(const target *t, const gated_row *row, nrd_dtype type)
{
    const nrd_dtype y_type = kind->acts[rnd_in(0, 1)];
    const nrd_weight w[2] = {weight_new(type, row->inter, row->cols, 0.1f), weight_new(type, row->inter, row->cols, 0.1f)};
    const int behind = rnd_in(0, 1); /* which one lies behind the other */
    nrd_weight on[2];
    const size_t row_bytes = nrd_row_bytes(type, row->cols);
    bool done = false, finite = true;

    on[1 - behind] = weight_on(t, &w[1 - behind], true);
    on[behind] = weight_on(t, &w[behind], true);
    const void *x = host_as(type, (int64_t)row->n * row->cols, 1);
    const size_t y_bytes = nrd_row_bytes(y_type, row->inter) * (size_t)row->n;
    int32_t tokens[PICKED], of_y[PICKED];

    nrd_linear_args a = {.n_tokens = row->n, .x_dtype = type, .n_parts = 2, .y_dtype = y_type, .w = {&on[0], &on[1]}};
    a.x = dev_put(t, x, row_bytes * (size_t)row->n);
    a.y = dev_out(t, y_bytes);
    case_name("linear_gated %s -> %s, act %d, %d x 2 x %d x %d", nrd_dtype_name(type), nrd_dtype_name(y_type), (int)row->act, row->n, row->inter,
              row->cols);
    ok(t->ops->linear_gated(t->s, &a, row->act, &done));
    if (done) {
        const float *y = dev_rows(t, y_type, a.y, NULL, row->n, row->inter);
        const float *sent = rows_of(type, x, NULL, row->n, row->cols);
        float *got = host(PICKED * PICKED * 4), *want = host(PICKED * PICKED * 4);
        for (int i = 0; i < PICKED; i++) {
            tokens[i] = picked(i, row->n);
            of_y[i] = picked(i, row->inter);
        }
        const float *gate = values_of(&w[0], of_y, row->cols), *up = values_of(&w[1], of_y, row->cols);
        for (int i = 0; i < PICKED * PICKED; i++) {
            const float *of_x = sent + (int64_t)tokens[i / PICKED] * row->cols;
            const int64_t at = i % PICKED * (int64_t)row->cols;
            got[i] = y[(int64_t)tokens[i / PICKED] * row->inter + of_y[i % PICKED]];
            want[i] = (float)(nrd_act_value(row->act, (float)dot(of_x, gate + at, row->cols)) * dot(of_x, up + at, row->cols));
        }
        for (int64_t i = 0; i < (int64_t)row->n * row->inter; i++) {
            finite = finite && isfinite(y[i]);
        }
        verdict(t, "every element is written", finite);
        compare(t, "", got, want, PICKED * PICKED, (limit){0, 0, rounding(y_type) + 1e-3});
    }
    case_end();
}

/* On a CPU: the bits of the product and the activation one after the other, wherever a matrix unit takes both in one. */
static void check_bits(const target *t, const gated_row *row, nrd_dtype type)
{
    const nrd_weight w[2] = {weight_new(type, row->inter, row->cols, 0.1f), weight_new(type, row->inter, row->cols, 0.1f)};
    const nrd_weight on[2] = {weight_on(t, &w[0], true), weight_on(t, &w[1], true)};
    const size_t y_bytes = (size_t)row->n * (size_t)row->inter * 4;
    const bool wanted = has_unit(t) && row->inter % 16 == 0;
    char *got = host(y_bytes), *want = host(y_bytes);
    bool done = false;

    nrd_linear_args a = {.n_tokens = row->n, .x_dtype = NRD_DTYPE_F32, .n_parts = 2, .y_dtype = NRD_DTYPE_F32, .w = {&on[0], &on[1]}};
    a.x = dev_put(t, host_normal((int64_t)row->n * row->cols, 1), (size_t)row->n * (size_t)row->cols * 4);
    a.y = dev_out(t, y_bytes);
    case_name("linear_gated %s, act %d, %d x 2 x %d x %d", nrd_dtype_name(type), (int)row->act, row->n, row->inter, row->cols);
    ok(t->ops->linear_gated(t->s, &a, row->act, &done));
    verdict(t, "whether it is taken in one", done == wanted);
    if (done) {
        dev_get(t, got, a.y, y_bytes);
        nrd_act_args act = {.kind = row->act, .gated = true, .n_tokens = row->n, .inter = row->inter, .act_dtype = NRD_DTYPE_F32, .out = a.y,
                            .out_dtype = NRD_DTYPE_F32};
        a.y = dev_out(t, 2 * y_bytes);
        act.x = a.y;
        ok(t->ops->linear(t->s, &a));
        ok(t->ops->act(t->s, &act));
        dev_get(t, want, act.out, y_bytes);
        same_bytes(t, "as one after the other", got, want, y_bytes);
    }
    case_end();
}

static void check_cpu(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_Q8_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q4_K};
    static const gated_row small[] = {{80, 256, 66, NRD_ACT_SILU}, {16, 512, 64, NRD_ACT_GELU_TANH}, {40, 256, 65, NRD_ACT_SILU}};

    for (int i = 0; i < n_targets; i++) {
        for (size_t k = 0; targets[i].ops->linear_gated && k < sizeof small / sizeof *small * 5; k++) {
            check_bits(&targets[i], &small[k / 5], types[k % 5]);
        }
    }
}

void check_gated(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16};

    if (kind->is_exact) {
        check_cpu();
        return;
    }
    for (int i = 0; targets[0].ops->linear_gated && i < N_ROWS; i++) {
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            check_case(&targets[0], &table[i], types[k]);
        }
    }
}

/* ---- speed ---- */

typedef struct gated_call {
    nrd_linear_args a;
    nrd_weight w[2];
    bool done;
} gated_call;

static void call(const target *t, int i, void *user)
{
    gated_call *c = user;
    (void)i;
    ok(t->ops->linear_gated(t->s, &c->a, NRD_ACT_SILU, &c->done));
}

static void speed_shape(const target *t, const char *model, int64_t inter, int64_t cols, int32_t n)
{
    const nrd_dtype type = NRD_DTYPE_BF16;
    const nrd_weight w = weight_new(type, inter, cols, 0.05f);
    const size_t row_bytes = nrd_row_bytes(type, cols);
    gated_call c = {.a = {.n_tokens = n, .n_parts = 2, .x_dtype = type, .y_dtype = type}, .w = {weight_on(t, &w, true), weight_on(t, &w, true)}};

    c.a.w[0] = &c.w[0];
    c.a.w[1] = &c.w[1];
    c.a.x = dev_pool(t, type, row_bytes * (size_t)n);
    c.a.y = dev_out(t, nrd_row_bytes(NRD_DTYPE_BF16, inter) * (size_t)n);
    call(t, 0, &c);
    if (c.done) {
        speed_row(measure(t, call, &c, 16),
                  (work){2.0 * (double)nrd_weight_bytes(type, NRD_LAYOUT_ROWS, inter, cols) + (double)row_bytes * n + 2.0 * (double)inter * n,
                         4.0 * n * (double)(inter * cols), PEAK_FLOAT},
                  "%s %4d tokens, gated", model, n);
    }
    case_end();
}

void speed_gated(void)
{
    static const int32_t counts[] = {512, 1024, 2048, 8192};

    for (int i = 0; targets[0].ops->linear_gated && i < 4; i++) {
        speed_shape(&targets[0], "Llama-3.1-8B", 14336, 4096, counts[i]);
        speed_shape(&targets[0], "Qwen2-7B", 18944, 3584, counts[i]);
        speed_shape(&targets[0], "SmolLM2-135M", 1536, 576, counts[i]);
    }
}
