/* SPDX-License-Identifier: Apache-2.0
 * norm, act, embed and the formats of weights against plain loops. */
#include "gpu_check.h"

/* ---- norm ---- */

static void check_norm(nrd_dtype t, nrd_dtype out_t, nrd_norm_kind kind, int n, int hidden, bool delta,
                       bool post, bool ids)
{
    const size_t all = (size_t)n * (size_t)hidden;
    const int n_out = ids ? (n + 1) / 2 : n;
    void *res = random_host(t, all, 2.0f), *del = random_host(t, all, 1.0f);
    int32_t *row_ids = malloc((size_t)n * 4);
    test_weight w, b, dw;
    char name[160];

    for (int i = 0; i < n; i++) {
        row_ids[i] = rnd(0, n - 1);
    }
    weight_random(&w, rng() % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&b, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&dw, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    void *d_res = dev_put(res, all * elem(t)), *d_del = dev_put(del, all * elem(t));
    int32_t *d_ids = dev_put(row_ids, (size_t)n * 4);
    void *out = poisoned((size_t)n_out * (size_t)hidden * elem(out_t));
    float *scale = poisoned((size_t)n_out * 4);
    nrd_norm_args a = {.kind = kind, .eps = 1e-5f, .n_tokens = n, .hidden = hidden,
                       .delta = delta ? d_del : NULL, .delta_weight = post ? &dw.dev : NULL,
                       .residual = d_res, .weight = &w.dev,
                       .bias = kind == NRD_NORM_LAYER ? &b.dev : NULL, .row_ids = ids ? d_ids : NULL,
                       .n_rows = n_out, .out = out, .out_dtype = out_t,
                       .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale : NULL, .act_dtype = t};
    OK(dev->ops->norm(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, scale, (size_t)n_out, (size_t)hidden);
    float *got_res = fetch(t, d_res, NULL, (size_t)n, (size_t)hidden);
    double *want = malloc(all * sizeof *want), *want_res = malloc(all * sizeof *want_res);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        const size_t at = (size_t)i * (size_t)hidden;
        for (int c = 0; c < hidden; c++) {
            const double d = (double)get(t, del, at + (size_t)c);
            sum += d * d;
        }
        for (int c = 0; c < hidden; c++) {
            double d = delta ? (double)get(t, del, at + (size_t)c) : 0;
            d *= delta && post ? weight_at(&dw, c, 0) / sqrt(sum / hidden + 1e-5) : 1;
            want_res[at + (size_t)c] = (double)get(t, res, at + (size_t)c) + d;
        }
    }
    for (int i = 0; i < n_out; i++) {
        const size_t from = (size_t)(ids ? row_ids[i] : i) * (size_t)hidden;
        double mean = 0, var = 0;
        for (int c = 0; c < hidden; c++) {
            mean += kind == NRD_NORM_LAYER ? (double)got_res[from + (size_t)c] / hidden : 0;
        }
        for (int c = 0; c < hidden; c++) {
            const double d = (double)got_res[from + (size_t)c] - mean;
            var += d * d / hidden;
        }
        for (int c = 0; c < hidden; c++) {
            want[(size_t)i * (size_t)hidden + (size_t)c] =
                ((double)got_res[from + (size_t)c] - mean) / sqrt(var + 1e-5) * weight_at(&w, c, 0) +
                (kind == NRD_NORM_LAYER ? weight_at(&b, c, 0) : 0);
        }
    }
    snprintf(name, sizeof name, "norm %d %s -> %s, %d x %d%s%s%s", (int)kind, nrd_dtype_name(t),
             nrd_dtype_name(out_t), n, hidden, delta ? " delta" : "", post ? " post" : "",
             ids ? " ids" : "");
    verdict(name, distance(got, want, (size_t)n_out * (size_t)hidden), out_eps(out_t));
    verdict("norm residual", distance(got_res, want_res, all), out_eps(t));
    weight_gone(&w);
    weight_gone(&b);
    weight_gone(&dw);
    dev_free(d_res);
    dev_free(d_del);
    dev_free(d_ids);
    dev_free(out);
    dev_free(scale);
    free(res);
    free(del);
    free(row_ids);
    free(got);
    free(got_res);
    free(want);
    free(want_res);
}

/* Rows alone, by fours and all together: a row's bits are the same. */
static void check_norm_alone(nrd_dtype t, nrd_dtype out_t, nrd_norm_kind kind, int hidden)
{
    enum { N = 19 };
    static const int steps[] = {1, 4, N};
    const size_t all = (size_t)N * (size_t)hidden, out_bytes = all * elem(out_t);
    void *res = random_host(t, all, 2.0f), *d_del, *first = NULL, *raw = malloc(out_bytes + N * 4);
    void *del = random_host(t, all, 1.0f);
    test_weight w, b;
    char name[120];

    weight_random(&w, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&b, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    d_del = dev_put(del, all * elem(t));
    for (int k = 0; k < 3; k++) {
        char *d_res = dev_put(res, all * elem(t)), *out = poisoned(out_bytes);
        float *scale = poisoned(N * 4);
        for (int r = 0; r < N; r += steps[k]) {
            const size_t at = (size_t)r * (size_t)hidden;
            nrd_norm_args a = {.kind = kind, .eps = 1e-5f, .hidden = hidden,
                               .n_tokens = r + steps[k] < N ? steps[k] : N - r,
                               .delta = (char *)d_del + at * elem(t), .residual = d_res + at * elem(t),
                               .weight = &w.dev, .bias = kind == NRD_NORM_LAYER ? &b.dev : NULL,
                               .out = out + at * elem(out_t), .out_dtype = out_t, .act_dtype = t,
                               .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale + r : NULL};
            OK(dev->ops->norm(st, &a));
        }
        OK(dev->ops->stream_sync(st));
        memset(raw, 0, out_bytes + N * 4);
        dev_get(raw, out, out_bytes);
        if (out_t == NRD_DTYPE_F8_E4M3) {
            dev_get((char *)raw + out_bytes, scale, N * 4);
        }
        snprintf(name, sizeof name, "norm %d %s -> %s of %d, rows by %d", (int)kind, nrd_dtype_name(t),
                 nrd_dtype_name(out_t), hidden, steps[k]);
        if (first) {
            verdict(name, memcmp(first, raw, out_bytes + N * 4) ? 1 : 0, 0);
        } else {
            first = malloc(out_bytes + N * 4);
            memcpy(first, raw, out_bytes + N * 4);
        }
        dev_free(d_res);
        dev_free(out);
        dev_free(scale);
    }
    weight_gone(&w);
    weight_gone(&b);
    dev_free(d_del);
    free(res);
    free(del);
    free(raw);
    free(first);
}

void all_norm(void)
{
    static const int hiddens[] = {1, 63, 640, 1024, 2056, 4096, 5120, 16384, 40000};
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};

    for (int i = 0; i < 9; i++) {
        for (int t = 0; t < 3; t++) {
            const int n = i < 7 ? rnd(1, 9) : 2;
            check_norm(types[t], types[t], NRD_NORM_RMS, n, hiddens[i], true, false, false);
            check_norm(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, n, hiddens[i], t != 0, t == 1, false);
            check_norm(types[t], NRD_DTYPE_BF16, NRD_NORM_LAYER, n, hiddens[i], false, false, true);
            check_norm(types[t], types[t], NRD_NORM_LAYER, n, hiddens[i], true, false, true);
            check_norm(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, rnd(1, 8), hiddens[i], true, false, t == 2);
            check_norm(types[t], types[t], NRD_NORM_LAYER, 1, hiddens[i], true, false, true);
            if (i < 8 && t < 2) {
                check_norm_alone(types[t], types[t], NRD_NORM_LAYER, hiddens[i]);
                check_norm_alone(types[t], types[1 - t], NRD_NORM_RMS, hiddens[i]);
                check_norm_alone(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, hiddens[i]);
            }
        }
    }
}

/* ---- act ---- */

static double act_want(nrd_act_kind kind, double x)
{
    switch (kind) {
    case NRD_ACT_SILU:
        return x / (1 + exp(-x));
    case NRD_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case NRD_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    case NRD_ACT_RELU:
        return x > 0 ? x : 0;
    case NRD_ACT_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return x;
    }
}

static void check_act(nrd_dtype t, nrd_dtype out_t, nrd_act_kind kind, bool gated, int n, int inter)
{
    const size_t width = (size_t)inter * (gated ? 2 : 1), all = (size_t)n * (size_t)inter;
    void *x = random_host(t, (size_t)n * width, 2.0f);
    void *dx = dev_put(x, (size_t)n * width * elem(t)), *out = poisoned(all * elem(out_t));
    float *scale = poisoned((size_t)n * 4);
    nrd_act_args a = {.kind = kind, .gated = gated, .n_tokens = n, .inter = inter,
                      .x = dx, .act_dtype = t, .out = out, .out_dtype = out_t,
                      .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale : NULL};
    double *want = malloc(all * sizeof *want);
    char name[120];

    OK(dev->ops->act(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, scale, (size_t)n, (size_t)inter);
    for (size_t r = 0; r < (size_t)n; r++) {
        for (size_t c = 0; c < (size_t)inter; c++) {
            want[r * (size_t)inter + c] = act_want(kind, (double)get(t, x, r * width + c)) *
                                          (gated ? (double)get(t, x, r * width + (size_t)inter + c) : 1);
        }
    }
    snprintf(name, sizeof name, "act %d %s -> %s, %d x %d%s", (int)kind, nrd_dtype_name(t),
             nrd_dtype_name(out_t), n, inter, gated ? " gated" : "");
    verdict(name, distance(got, want, all), out_eps(out_t) + 2e-6);
    free(x);
    free(want);
    free(got);
    dev_free(dx);
    dev_free(out);
    dev_free(scale);
}

void all_act(void)
{
    static const int inters[] = {3, 64, 1000, 4096, 14336, 28672, 40000};
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    for (int i = 0; i < 7; i++) {
        for (int t = 0; t < 3; t++) {
            for (int k = 0; k <= NRD_ACT_RELU2; k++) {
                check_act(types[t], k % 2 ? NRD_DTYPE_F8_E4M3 : types[(t + k) % 3], (nrd_act_kind)k,
                          (k + i) % 2 == 0, rnd(1, 4), inters[i]);
                check_act(types[t], NRD_DTYPE_F8_E4M3, (nrd_act_kind)k, (k + i) % 2 != 0, rnd(1, 9),
                          inters[i]);
            }
        }
    }
    if (!small_only) { /* many long rows */
        check_act(NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_ACT_SILU, true, 700, 14336);
        check_act(NRD_DTYPE_F16, NRD_DTYPE_F8_E4M3, NRD_ACT_GELU_TANH, true, 531, 4104);
        check_act(NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_ACT_RELU2, false, 300, 9000);
        check_act(NRD_DTYPE_F32, NRD_DTYPE_F8_E4M3, NRD_ACT_SILU, true, 297, 2048);
    }
}

/* ---- embed, weights ---- */

void check_embed(nrd_dtype t, nrd_dtype out_t, int n, int vocab, int hidden, bool pos)
{
    test_weight table, pt;
    int32_t *ids = malloc((size_t)n * 4), *positions = malloc((size_t)n * 4), slots[4];
    const void **prompt = calloc((size_t)n, sizeof *prompt);
    void *rows = random_host(out_t, (size_t)n * (size_t)hidden, 1.0f);
    void *d_rows = dev_put(rows, (size_t)n * (size_t)hidden * elem(out_t));
    double *want = malloc((size_t)n * (size_t)hidden * sizeof *want);

    const bool prompts = rng() % 2;
    weight_random(&table, t, vocab, hidden, 1.0f, t == NRD_DTYPE_F8_E4M3); /* integers for linear() are its own */
    weight_random(&pt, NRD_DTYPE_F16, 64, hidden, 1.0f, false);
    for (int i = 0; i < 4; i++) {
        slots[i] = rnd(0, vocab - 1);
    }
    for (int i = 0; i < n; i++) {
        ids[i] = i % 3 == 1 ? -1 - rnd(0, 3) : i % 5 == 4 ? vocab + rnd(0, 9) : rnd(0, vocab - 1);
        positions[i] = rnd(0, 63);
        if (ids[i] >= vocab && i % 2 && prompts) {
            prompt[i] = (const char *)d_rows + (size_t)i * (size_t)hidden * elem(out_t);
        }
        for (int c = 0; c < hidden; c++) {
            const int32_t id = ids[i] < 0 ? slots[-1 - ids[i]] : ids[i] >= vocab ? 0 : ids[i];
            const size_t at = (size_t)i * (size_t)hidden + (size_t)c;
            want[at] = 3.0 * (prompt[i] ? (double)get(out_t, rows, at) : weight_at(&table, id, c)) +
                       (pos ? weight_at(&pt, positions[i], c) : 0);
        }
    }
    int32_t *d_ids = dev_put(ids, (size_t)n * 4), *d_pos = dev_put(positions, (size_t)n * 4);
    int32_t *d_slots = dev_put(slots, sizeof slots);
    const void **d_prompt = dev_put(prompt, (size_t)n * sizeof *prompt);
    void *out = poisoned((size_t)n * (size_t)hidden * elem(out_t));
    nrd_embed_args a = {.n_tokens = n, .hidden = hidden, .ids = d_ids,
                        .slot_tokens = d_slots, .table = &table.dev, .scale = 3.0f,
                        .pos_table = pos ? &pt.dev : NULL, .positions = d_pos,
                        .prompt_table = prompts ? d_prompt : NULL, .out = out, .out_dtype = out_t};
    OK(dev->ops->embed(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, NULL, (size_t)n, (size_t)hidden);
    verdict("embed", distance(got, want, (size_t)n * (size_t)hidden),
            out_eps(out_t) + (t == NRD_DTYPE_I8 ? 4e-3 : 0));
    weight_gone(&table);
    weight_gone(&pt);
    dev_free(d_ids);
    dev_free(d_pos);
    dev_free(d_slots);
    dev_free(d_prompt);
    dev_free(d_rows);
    dev_free(out);
    free(ids);
    free(positions);
    free(prompt);
    free(rows);
    free(got);
    free(want);
}

/* A weight of every format, seen through embed, against base/dtype.c. */
void check_formats(void)
{
    for (int t = NRD_DTYPE_Q4_0; t <= NRD_DTYPE_Q6_K; t++) {
        enum { ROWS = 5, COLS = 512 };
        test_weight w = {.host = {.dtype = (nrd_dtype)t, .rows = ROWS, .cols = COLS}};
        size_t bytes;
        float *x = random_host(NRD_DTYPE_F32, ROWS * COLS, 1.0f), *deq = malloc(ROWS * COLS * 4);
        double *want = malloc(ROWS * COLS * sizeof *want);
        int32_t ids[ROWS] = {0, 1, 2, 3, 4};

        if (!nrd_dtype_bytes((nrd_dtype)t, COLS, &bytes)) {
            verdict(nrd_dtype_name((nrd_dtype)t), NAN, 0);
            continue;
        }
        char *q = malloc(bytes * ROWS);
        for (int r = 0; r < ROWS; r++) {
            if (!nrd_quantize_row((nrd_dtype)t, x + r * COLS, q + (size_t)r * bytes, COLS) ||
                !nrd_dequantize_row((nrd_dtype)t, q + (size_t)r * bytes, deq + r * COLS, COLS)) {
                printf("  FAIL no definition of %s\n", nrd_dtype_name((nrd_dtype)t));
                failures++;
            }
        }
        w.host.data = q;
        weight_up(&w, false);
        int32_t *d_ids = dev_put(ids, sizeof ids);
        void *out = poisoned(ROWS * COLS * 4);
        nrd_embed_args a = {.n_tokens = ROWS, .hidden = COLS, .ids = d_ids,
                            .table = &w.dev, .scale = 1.0f, .out = out, .out_dtype = NRD_DTYPE_F32};
        OK(dev->ops->embed(st, &a));
        float *got = fetch(NRD_DTYPE_F32, out, NULL, ROWS, COLS);
        for (int i = 0; i < ROWS * COLS; i++) {
            want[i] = (double)deq[i];
        }
        verdict(nrd_dtype_name((nrd_dtype)t), distance(got, want, ROWS * COLS), 4e-3);
        weight_gone(&w);
        dev_free(d_ids);
        dev_free(out);
        free(x);
        free(deq);
        free(got);
        free(want);
    }
}
