/* SPDX-License-Identifier: Apache-2.0
 * sample, counts, copy_blocks and graphs against plain loops. */
#include "gpu_check.h"

/* ---- sample, counts, copy_blocks, graphs ---- */

typedef struct candidate {
    float v;
    int id;
} candidate;

static int best_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->v != y->v ? (x->v > y->v ? -1 : 1) : x->id < y->id ? -1 : 1;
}

void check_sample(int n_rows, int vocab, int kind)
{
    const int n_top = kind % 3 == 1 ? 4 : 0, slots = n_rows + 2;
    float *logits = malloc((size_t)n_rows * (size_t)vocab * 4), *bias = malloc((size_t)vocab * 4);
    uint32_t *mask = malloc(((size_t)vocab + 31) / 32 * 4);
    uint16_t *counts = calloc((size_t)slots * (size_t)vocab, 2);
    int32_t banned[20], *ids = malloc((size_t)n_rows * 4), *top = malloc((size_t)n_rows * 16);
    nrd_sample_row *rows = calloc((size_t)n_rows, sizeof *rows);
    float *lp = malloc((size_t)n_rows * 4), *lpn = malloc((size_t)n_rows * 4);
    float *top_lp = malloc((size_t)n_rows * 16);
    candidate *c = malloc((size_t)vocab * sizeof *c), *kept_ids = malloc((size_t)vocab * sizeof *c);

    for (size_t i = 0; i < (size_t)n_rows * (size_t)vocab; i++) {
        logits[i] = normal() * (kind % 4 == 3 ? 0.0f : 4.0f) + (kind % 4 == 3 ? (float)rnd(0, 3) : 0.0f);
    }
    for (int i = 0; i < vocab; i++) {
        bias[i] = normal();
        counts[rnd(0, slots - 1) * vocab + i] = (uint16_t)rnd(1, 3);
    }
    for (int i = 0; i < (vocab + 31) / 32; i++) {
        mask[i] = (uint32_t)rng();
    }
    for (int i = 0; i < 20; i++) {
        banned[i] = rnd(0, vocab - 1);
    }
    float *d_bias = dev_put(bias, (size_t)vocab * 4);
    uint32_t *d_mask = dev_put(mask, ((size_t)vocab + 31) / 32 * 4);
    for (int r = 0; r < n_rows; r++) {
        rows[r] = (nrd_sample_row){.slot = r + 1, .temperature = r % 4 == 0 ? 0 : 0.5f + uniform(),
                                   .top_k = r % 3 == 1 ? rnd(1, 60) : r % 7 == 6 ? vocab / 2 : 0,
                                   .top_p = r % 3 == 2 ? uniform() : 0, .min_p = r % 5 == 4 ? 0.05f : 0,
                                   .repetition_penalty = r % 2 ? 1.3f : 1.0f,
                                   .presence_penalty = r % 4 == 1 ? 0.5f : 0,
                                   .frequency_penalty = r % 4 == 2 ? 0.2f : 0, .seed = rng(),
                                   .draw = rng() % 100, .end_id = 3, .n_suppress_end = r % 6 == 5,
                                   .banned_start = r % 10, .n_banned = r % 3 == 0 ? 10 : 0,
                                   .bias = r % 5 == 1 ? d_bias : NULL, .mask = r % 6 == 2 ? d_mask : NULL,
                                   .flags = NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE |
                                            (r % 2 ? NRD_SAMPLE_COUNTS : 0u) |
                                            (r % 8 == 7 ? NRD_SAMPLE_NO_UPDATE : 0u)};
    }
    float *d_logits = dev_put(logits, (size_t)n_rows * (size_t)vocab * 4);
    nrd_sample_row *d_rows = dev_put(rows, (size_t)n_rows * sizeof *rows);
    int32_t *d_banned = dev_put(banned, sizeof banned), *d_ids = poisoned((size_t)n_rows * 4);
    int32_t *d_slots = poisoned((size_t)slots * 4), *d_top = poisoned((size_t)n_rows * 16);
    uint16_t *d_counts = dev_put(counts, (size_t)slots * (size_t)vocab * 2);
    float *d_lp = poisoned((size_t)n_rows * 4), *d_lpn = poisoned((size_t)n_rows * 4);
    float *d_top_lp = poisoned((size_t)n_rows * 16);
    nrd_sample_args a = {.n_rows = n_rows, .vocab = vocab, .logits = d_logits,
                         .logits_stride = vocab, .rows = d_rows, .banned_ids = d_banned,
                         .counts = d_counts, .slot_tokens = d_slots, .out_ids = d_ids,
                         .out_logprob = d_lp, .out_logprob_norm = d_lpn, .n_top = n_top,
                         .out_top_ids = d_top, .out_top_logprobs = d_top_lp};
    OK(dev->ops->sample(st, &a));
    OK(dev->ops->stream_sync(st));
    dev_get(ids, d_ids, (size_t)n_rows * 4);
    dev_get(lp, d_lp, (size_t)n_rows * 4);
    dev_get(lpn, d_lpn, (size_t)n_rows * 4);
    dev_get(top, d_top, (size_t)n_rows * 16);
    dev_get(top_lp, d_top_lp, (size_t)n_rows * 16);
    int32_t *slot_tokens = malloc((size_t)slots * 4);
    uint16_t *after = malloc((size_t)slots * (size_t)vocab * 2);
    dev_get(slot_tokens, d_slots, (size_t)slots * 4);
    dev_get(after, d_counts, (size_t)slots * (size_t)vocab * 2);
    for (int r = 0; r < n_rows; r++) {
        const nrd_sample_row *q = &rows[r];
        uint16_t *n = counts + (size_t)q->slot * (size_t)vocab;
        char name[100];
        for (int i = 0; i < vocab; i++) {
            float v = logits[(size_t)r * (size_t)vocab + (size_t)i] + (q->bias ? bias[i] : 0);
            if ((q->flags & NRD_SAMPLE_COUNTS) && n[i]) {
                v = v > 0 ? v / q->repetition_penalty : v * q->repetition_penalty;
                v -= q->presence_penalty + q->frequency_penalty * (float)n[i];
            }
            if ((q->mask && !(mask[i / 32] >> (i % 32) & 1)) || (q->n_suppress_end && i == q->end_id)) {
                v = -INFINITY;
            }
            c[i] = (candidate){v, i};
        }
        for (int i = 0; i < q->n_banned; i++) {
            c[banned[q->banned_start + i]].v = -INFINITY;
        }
        const float chosen = c[ids[r] >= 0 && ids[r] < vocab ? ids[r] : 0].v;
        qsort(c, (size_t)vocab, sizeof *c, best_first);
        double total = 0, peak = (double)c[0].v, inv_t;
        int kept = 0;
        while (kept < vocab && c[kept].v != -INFINITY) {
            total += exp((double)c[kept++].v - peak);
        }
        const double log_total = peak + log(total);
        for (int i = 0; i < n_top; i++) {
            /* rounding of the adjusted logits may swap near ties: the values must agree */
            snprintf(name, sizeof name, "sample top %d of row %d", i, r);
            verdict(name, fabs((double)top_lp[r * n_top + i] - ((double)c[i].v - log_total)), 2e-4);
        }
        const bool greedy = q->temperature <= 0 || q->top_k == 1;
        inv_t = greedy ? 1 : 1 / (double)q->temperature;
        kept = greedy ? 1 : q->top_k > 0 && q->top_k < kept ? q->top_k : kept;
        total = 0;
        for (int i = 0; i < kept; i++) {
            total += exp(((double)c[i].v - peak) * inv_t);
        }
        if (q->top_p > 0 && q->top_p < 1) {
            double sum = 0;
            int i = 0;
            while (i < kept && sum < (double)q->top_p * total) {
                sum += exp(((double)c[i++].v - peak) * inv_t);
            }
            kept = i;
        }
        if (q->min_p > 0) {
            int i = 0;
            while (i < kept && exp(((double)c[i].v - peak) * inv_t) >= (double)q->min_p) {
                i++;
            }
            kept = i > 0 ? i : 1;
        }
        total = 0;
        for (int i = 0; i < kept; i++) {
            total += exp(((double)c[i].v - peak) * inv_t);
        }
        /* walk in id order; the device sums integers, so a draw on a border may fall to either side */
        memcpy(kept_ids, c, (size_t)kept * sizeof *c);
        double below = 0, upto = 0;
        bool member = false;
        for (int i = 0; i < kept; i++) {
            const double w = exp(((double)c[i].v - peak) * inv_t);
            below += c[i].id < ids[r] ? w : 0;
            upto += c[i].id <= ids[r] ? w : 0;
            member = member || c[i].id == ids[r];
        }
        const double u = kept == 1 ? 0 : (double)nrd_sample_uniform(q->seed, q->draw) * total;
        const double slack = 2e-5 * total;
        snprintf(name, sizeof name, "sample row %d of %d, vocab %d (k %d p %.2f m %.2f t %.2f)", r, n_rows,
                 vocab, q->top_k, (double)q->top_p, (double)q->min_p, (double)q->temperature);
        verdict(name, member && below <= u + slack && upto >= u - slack ? 0 : 1, 0);
        verdict("sample logprob", fabs((double)lp[r] - ((double)chosen - log_total)), 2e-4);
        verdict("sample logprob_norm",
                fabs((double)lpn[r] - (((double)chosen - peak) * inv_t - log(total))), 2e-4);
        if (!(q->flags & NRD_SAMPLE_NO_UPDATE)) {
            verdict("sample slot", slot_tokens[q->slot] == ids[r] ? 0 : 1, 0);
        }
        if ((q->flags & NRD_SAMPLE_COUNTS) && !(q->flags & NRD_SAMPLE_NO_UPDATE)) {
            n[ids[r]]++;
        }
    }
    verdict("sample counts", memcmp(after, counts, (size_t)slots * (size_t)vocab * 2) ? 1 : 0, 0);

    /* counts: a slot starts anew */
    enum { N = 3000 };
    int32_t list[N];
    for (int i = 0; i < N; i++) {
        list[i] = rnd(0, vocab < 50 ? vocab - 1 : 49);
    }
    int32_t *d_list = dev_put(list, sizeof list);
    nrd_counts_args ca = {.slot = 1, .vocab = vocab, .n = N, .ids = d_list,
                          .counts = d_counts};
    OK(dev->ops->counts(st, &ca));
    dev_get(after, d_counts, (size_t)slots * (size_t)vocab * 2);
    memset(counts + vocab, 0, (size_t)vocab * 2);
    for (int i = 0; i < N; i++) {
        counts[vocab + list[i]]++;
    }
    verdict("counts", memcmp(after, counts, (size_t)slots * (size_t)vocab * 2) ? 1 : 0, 0);

    void *gone[] = {d_bias, d_mask, d_logits, d_rows, d_banned, d_ids, d_slots, d_top, d_counts, d_lp,
                    d_lpn, d_top_lp, d_list};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        dev_free(gone[i]);
    }
    free(logits);
    free(bias);
    free(mask);
    free(counts);
    free(ids);
    free(top);
    free(rows);
    free(lp);
    free(lpn);
    free(top_lp);
    free(c);
    free(kept_ids);
    free(slot_tokens);
    free(after);
}

void check_copy_blocks(void)
{
    enum { BLOCKS = 200, PAIRS = 90 };
    const size_t bytes = dev->ops->kv_block_bytes(dev, NRD_DTYPE_BF16, 16, 2, 64);
    char *a = malloc(bytes * BLOCKS), *b = malloc(bytes * BLOCKS);
    int32_t pairs[2 * PAIRS];

    for (size_t i = 0; i < bytes * BLOCKS; i++) {
        a[i] = (char)rng();
    }
    char *d = dev_put(a, bytes * BLOCKS);
    nrd_kv_layer kv = {.base = d, .dtype = NRD_DTYPE_BF16, .n_blocks = BLOCKS, .block_tokens = 16,
                       .n_kv_heads = 2, .head_dim = 64};
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i] = i;
        pairs[2 * i + 1] = BLOCKS - 1 - i;
        memcpy(a + (size_t)(BLOCKS - 1 - i) * bytes, a + (size_t)i * bytes, bytes);
    }
    nrd_copy_blocks_args ca = {.n_layers = 1, .n_pairs = PAIRS, .src = &kv, .dst = &kv,
                               .pairs = pairs};
    OK(dev->ops->copy_blocks(st, &ca));
    dev_get(b, d, bytes * BLOCKS);
    verdict("copy_blocks", memcmp(a, b, bytes * BLOCKS) ? 1 : 0, 0);

    void *h = NULL; /* to a pool in host memory, reversed, and back to where they were */
    OK(dev->ops->alloc(dev, &h, NRD_MEM_HOST, bytes * PAIRS, "check"));
    nrd_kv_layer host = kv;
    host.base = h;
    host.n_blocks = PAIRS;
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i] = i;
        pairs[2 * i + 1] = PAIRS - 1 - i;
    }
    ca.dst = &host;
    OK(dev->ops->copy_blocks(st, &ca));
    OK(dev->ops->fill(st, d, 0x5a, bytes * PAIRS));
    ca.src = &host;
    ca.dst = &kv;
    OK(dev->ops->copy_blocks(st, &ca));
    dev_get(b, d, bytes * BLOCKS);
    verdict("copy_blocks to the host and back", memcmp(a, b, bytes * BLOCKS) ? 1 : 0, 0);
    dev->ops->free(dev, NRD_MEM_HOST, h);
    dev_free(d);
    free(a);
    free(b);
}

/* A captured chain of dependent operations must give the same numbers as the calls, every time. */
void check_graph(void)
{
    enum { N = 5, H = 1024, LAYERS = 6 };
    test_weight w[LAYERS], norm;
    void *x = random_host(NRD_DTYPE_BF16, N * H, 1.0f);
    void *res = dev_put(x, N * H * 2), *h = poisoned(N * H * 2), *y = poisoned(N * H * 2);
    nrd_graph *graph = NULL;

    weight_random(&norm, NRD_DTYPE_F32, H, 1, 1.0f, false);
    for (int i = 0; i < LAYERS; i++) {
        weight_random(&w[i], NRD_DTYPE_BF16, H, H, 0.03f, true);
    }
    OK(dev->ops->reserve(st, 64, 8, H, 1024, 1000));
    float *first = NULL;
    for (int round = 0; round < 12; round++) {
        OK(dev->ops->copy(st, res, x, N * H * 2));
        if (round < 2) {
            if (round == 1) {
                OK(dev->ops->stream_sync(st));
                OK(dev->ops->graph_begin(st));
            }
            for (int i = 0; i < LAYERS; i++) {
                nrd_norm_args na = {.eps = 1e-5f, .n_tokens = N, .hidden = H,
                                    .delta = i ? y : NULL, .residual = res, .weight = &norm.dev, .out = h,
                                    .out_dtype = NRD_DTYPE_BF16, .act_dtype = NRD_DTYPE_BF16};
                nrd_linear_args la = {.n_tokens = N, .x = h, .x_dtype = NRD_DTYPE_BF16,
                                      .n_parts = 1, .w = {&w[i].dev}, .y = y, .y_dtype = NRD_DTYPE_BF16};
                OK(dev->ops->norm(st, &na));
                OK(dev->ops->linear(st, &la));
            }
        }
        if (round == 1) {
            OK(dev->ops->graph_end(st, &graph));
        }
        if (round >= 1) {
            OK(dev->ops->graph_launch(st, graph));
        }
        float *got = fetch(NRD_DTYPE_BF16, y, NULL, N, H);
        if (first) {
            verdict("graph replay", memcmp(first, got, N * H * 4) ? 1 : 0, 0);
            free(got);
        } else {
            first = got;
        }
    }
    dev->ops->graph_free(graph);
    for (int i = 0; i < LAYERS; i++) {
        weight_gone(&w[i]);
    }
    weight_gone(&norm);
    dev_free(res);
    dev_free(h);
    dev_free(y);
    free(x);
    free(first);
}
