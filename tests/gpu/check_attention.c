/* SPDX-License-Identifier: Apache-2.0
 * rope_kv and attention over one paged cache against plain loops. */
#include "gpu_check.h"

/* ---- rope_kv and attention over one paged cache ---- */

enum { ATTN_SEQS = 48 };
typedef struct attn_case {
    nrd_dtype act, kv, out;
    int n_heads, n_kv, hd, bt, n_seqs;
    int q_len[ATTN_SEQS], ctx[ATTN_SEQS];
    int n_empty;                      /* the last so many singles have no memory: zero comes out */
    int64_t single_ctx, prompt_pairs; /* hints of the view, with `declare` */
    int window, n_sink;
    float softcap;
    bool tree, deterministic, qk_norm;
    bool declare; /* n_single of the batch view */
    nrd_rope_kind rope;
} attn_case;

static bool is_empty(const attn_case *c, int s)
{
    return c->ctx[s] == 1 && s < c->n_empty;
}

static void check_attention(const attn_case *c)
{
    const int row = (c->n_heads + 2 * c->n_kv) * c->hd, group = c->n_heads / c->n_kv;
    int n_tokens = 0, max_q = 0, max_ctx = 0, total = 0, n_blocks = 1, stride = 0;
    int32_t q_start[ATTN_SEQS + 1] = {0}, first[ATTN_SEQS + 1] = {0};
    const float k_scale = 0.05f, v_scale = 0.04f, scale = 1.0f / sqrtf((float)c->hd);
    const bool scaled = c->kv == NRD_DTYPE_F8_E4M3 || c->kv == NRD_DTYPE_I8;

    for (int s = 0; s < c->n_seqs; s++) {
        n_tokens += c->q_len[s];
        q_start[s + 1] = n_tokens;
        total += c->ctx[s];
        first[s + 1] = total;
        max_q = c->q_len[s] > max_q ? c->q_len[s] : max_q;
        max_ctx = c->ctx[s] > max_ctx ? c->ctx[s] : max_ctx;
        n_blocks += (c->ctx[s] + c->bt - 1) / c->bt;
    }
    stride = (max_ctx + c->bt - 1) / c->bt + 1;
    /* blocks in random order; those wholly out of every window are dropped */
    int32_t *table = malloc((size_t)(c->n_seqs * stride) * 4), *perm = malloc((size_t)n_blocks * 4);
    for (int i = 0; i < n_blocks; i++) {
        const int j = rnd(0, i);
        perm[i] = perm[j];
        perm[j] = i;
    }
    for (int s = 0, next = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < stride; i++) {
            table[s * stride + i] = i * c->bt < c->ctx[s] && !is_empty(c, s) ? perm[next++] : -1;
        }
    }
    const size_t block_bytes = dev->ops->kv_block_bytes(dev, c->kv, c->bt, c->n_kv, c->hd);
    void *cache = poisoned(block_bytes * (size_t)n_blocks);
    float *inv_freq = malloc((size_t)c->hd * 2);
    const int rot = c->rope == NRD_ROPE_INTERLEAVED ? c->hd / 2 / 2 * 2 : c->hd;
    for (int i = 0; i < rot / 2; i++) {
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)rot);
    }
    float *d_freq = dev_put(inv_freq, (size_t)(rot / 2) * 4);
    test_weight qn, kn;
    weight_random(&qn, NRD_DTYPE_F32, c->hd, 1, 1.0f, false);
    weight_random(&kn, NRD_DTYPE_F32, c->hd, 1, 1.0f, false);

    /* Every token of every context passes rope_kv: the old ones in one step, the new ones in another. */
    double *k_all = malloc((size_t)total * (size_t)(c->n_kv * c->hd) * sizeof *k_all);
    double *v_all = malloc((size_t)total * (size_t)(c->n_kv * c->hd) * sizeof *v_all);
    double *q_all = malloc((size_t)n_tokens * (size_t)(c->n_heads * c->hd) * sizeof *q_all);
    nrd_kv_layer kv = {.base = cache, .dtype = c->kv, .n_blocks = n_blocks, .block_tokens = c->bt,
                       .n_kv_heads = c->n_kv, .head_dim = c->hd, .k_scale = k_scale,
                       .v_scale = v_scale};
    int32_t *d_table = dev_put(table, (size_t)(c->n_seqs * stride) * 4);
    uint32_t *tree = malloc((size_t)n_tokens * 4);
    for (int s = 0, t = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < c->q_len[s]; i++, t++) {
            tree[t] = ((uint32_t)rng() & ((1u << i) - 1)) | 1u << i;
        }
    }
    uint32_t *d_tree = dev_put(tree, (size_t)n_tokens * 4);
    void *d_qkv = NULL;
    nrd_batch_view view = {0};
    int32_t *d_pos = NULL, *d_seq = NULL, *d_start = NULL, *d_ctx = NULL, *pos_new = NULL;
    for (int step = 0; step < 2; step++) {
        int n = 0, t = 0;
        int32_t start[ATTN_SEQS + 1] = {0}, ctx[ATTN_SEQS];
        for (int s = 0; s < c->n_seqs; s++) {
            n += step ? c->q_len[s] : c->ctx[s] - c->q_len[s];
            start[s + 1] = n;
            ctx[s] = step ? c->ctx[s] : c->ctx[s] - c->q_len[s];
        }
        if (n == 0) {
            continue;
        }
        int32_t *pos = malloc((size_t)n * 4), *seq = malloc((size_t)n * 4);
        void *qkv = random_host(c->act, (size_t)n * (size_t)row, 1.0f);
        for (int s = 0; s < c->n_seqs; s++) {
            const int old = c->ctx[s] - c->q_len[s];
            for (int i = 0; i < (step ? c->q_len[s] : old); i++, t++) {
                const int slot = step ? old + i : i;
                /* in a tree siblings share a position */
                pos[t] = step && c->tree ? old + i / 2 : slot;
                seq[t] = s;
                for (int h = 0; h < c->n_heads + 2 * c->n_kv; h++) {
                    double x[512], sum = 0;
                    const bool is_q = h < c->n_heads, is_v = h >= c->n_heads + c->n_kv;
                    for (int d = 0; d < c->hd; d++) {
                        x[d] = (double)get(c->act, qkv, (size_t)t * (size_t)row + (size_t)(h * c->hd + d));
                        sum += x[d] * x[d];
                    }
                    if (c->qk_norm && !is_v) {
                        for (int d = 0; d < c->hd; d++) {
                            x[d] *= weight_at(is_q ? &qn : &kn, d, 0) / sqrt(sum / c->hd + 1e-6);
                        }
                    }
                    if (!is_v && c->rope != NRD_ROPE_NONE) {
                        for (int i2 = 0; i2 < rot / 2; i2++) {
                            const int a0 = c->rope == NRD_ROPE_NEOX ? i2 : 2 * i2;
                            const int a1 = c->rope == NRD_ROPE_NEOX ? i2 + rot / 2 : 2 * i2 + 1;
                            const double ang = (double)((float)pos[t] * inv_freq[i2]);
                            const double x0 = x[a0], x1 = x[a1];
                            x[a0] = x0 * cos(ang) - x1 * sin(ang);
                            x[a1] = x1 * cos(ang) + x0 * sin(ang);
                        }
                    }
                    for (int d = 0; d < c->hd; d++) {
                        if (is_q && step) {
                            q_all[(size_t)t * (size_t)(c->n_heads * c->hd) + (size_t)(h * c->hd + d)] =
                                (double)round_to(c->act, (float)x[d]);
                        } else if (!is_q) {
                            const double f = scaled ? (double)(is_v ? v_scale : k_scale) : 1.0;
                            const int kh = h - c->n_heads - (is_v ? c->n_kv : 0);
                            (is_v ? v_all : k_all)[((size_t)(first[s] + slot) * (size_t)c->n_kv +
                                                    (size_t)kh) * (size_t)c->hd + (size_t)d] =
                                (double)round_to(c->kv, (float)(x[d] / f)) * f;
                        }
                    }
                }
            }
        }
        dev_free(d_qkv);
        dev_free(d_pos);
        dev_free(d_seq);
        dev_free(d_start);
        dev_free(d_ctx);
        d_qkv = dev_put(qkv, (size_t)n * (size_t)row * elem(c->act));
        d_pos = dev_put(pos, (size_t)n * 4);
        d_seq = dev_put(seq, (size_t)n * 4);
        d_start = dev_put(start, sizeof start);
        d_ctx = dev_put(ctx, sizeof ctx);
        view = (nrd_batch_view){.n_tokens = n, .n_seqs = c->n_seqs, .max_q_len = step ? max_q : max_ctx,
                                .max_ctx_len = max_ctx, .positions = d_pos, .token_seq = d_seq,
                                .q_start = d_start, .ctx_len = d_ctx, .block_table = d_table,
                                .block_table_stride = stride, .tree_mask = step && c->tree ? d_tree : NULL,
                                .tree_mask_words = 1};
        /* sequences of one token at the front: declared, or for the device to find */
        while (step && c->declare && view.n_single < c->n_seqs && c->q_len[view.n_single] == 1) {
            view.n_single++;
        }
        if (view.n_single > 0) {
            view.single_ctx = c->single_ctx;
            view.prompt_pairs = c->prompt_pairs;
        }
        nrd_rope_kv_args a = {.batch = &view, .qkv = d_qkv, .act_dtype = c->act,
                              .n_heads = c->n_heads, .q_norm = c->qk_norm ? &qn.dev : NULL,
                              .k_norm = c->qk_norm ? &kn.dev : NULL, .norm_eps = 1e-6f, .rope = c->rope,
                              .rotary_dim = rot, .inv_freq = d_freq, .rope_scale = 1.0f, .kv = kv};
        OK(dev->ops->rope_kv(st, &a));
        OK(dev->ops->stream_sync(st));
        free(qkv);
        free(seq);
        free(pos_new);
        pos_new = pos;
    }
    /* now and then blocks before the window are gone */
    const int cols = c->n_heads * c->hd;
    void *out = poisoned((size_t)n_tokens * (size_t)cols * elem(c->out));
    float *out_scale = poisoned((size_t)n_tokens * 4);
    nrd_attention_args a = {.batch = &view, .q = d_qkv, .q_stride = row, .out = out,
                            .act_dtype = c->act, .out_dtype = c->out,
                            .out_row_scale = c->out == NRD_DTYPE_F8_E4M3 ? out_scale : NULL,
                            .n_heads = c->n_heads, .scale = scale, .softcap = c->softcap,
                            .window = c->window, .n_sink = c->n_sink, .kv = kv,
                            .deterministic = c->deterministic};
    OK(dev->ops->attention(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(c->out, out, out_scale, (size_t)n_tokens, (size_t)cols);
    double *want = calloc((size_t)n_tokens * (size_t)cols, sizeof *want);
    double *p = malloc((size_t)max_ctx * sizeof *p);
    for (int s = 0; s < c->n_seqs; s++) {
        const int old = c->ctx[s] - c->q_len[s];
        for (int i = 0; i < c->q_len[s] && !is_empty(c, s); i++) {
            const int t = q_start[s] + i, pos = pos_new[t];
            for (int h = 0; h < c->n_heads; h++) {
                const double *q = q_all + (size_t)t * (size_t)cols + (size_t)(h * c->hd);
                double top = -INFINITY, sum = 0;
                const int end = c->tree ? c->ctx[s] : pos + 1;
                for (int j = 0; j < end; j++) {
                    bool seen = c->window == 0 || j > pos - c->window || j < c->n_sink;
                    if (c->tree && j >= old) {
                        seen = tree[t] >> (j - old) & 1;
                    }
                    const double *k = k_all + ((size_t)(first[s] + j) * (size_t)c->n_kv +
                                               (size_t)(h / group)) * (size_t)c->hd;
                    double dot = 0;
                    for (int d = 0; d < c->hd; d++) {
                        dot += q[d] * k[d];
                    }
                    dot *= (double)scale;
                    if (c->softcap > 0) {
                        dot = (double)c->softcap * tanh(dot / (double)c->softcap);
                    }
                    p[j] = seen ? dot : -INFINITY;
                    top = fmax(top, p[j]);
                }
                for (int j = 0; j < end; j++) {
                    p[j] = exp(p[j] - top);
                    sum += p[j];
                }
                for (int j = 0; j < end; j++) {
                    const double *v = v_all + ((size_t)(first[s] + j) * (size_t)c->n_kv +
                                               (size_t)(h / group)) * (size_t)c->hd;
                    for (int d = 0; d < c->hd; d++) {
                        want[(size_t)t * (size_t)cols + (size_t)(h * c->hd + d)] += p[j] / sum * v[d];
                    }
                }
            }
        }
    }
    char name[200];
    snprintf(name, sizeof name,
             "attention %s kv %s -> %s, heads %d/%d x %d, block %d, %d seqs (%d of %d ..)%s%s%s%s",
             nrd_dtype_name(c->act), nrd_dtype_name(c->kv), nrd_dtype_name(c->out), c->n_heads, c->n_kv,
             c->hd, c->bt, c->n_seqs, c->q_len[0], c->ctx[0], c->window ? " window" : "",
             c->n_sink ? " sink" : "", c->softcap > 0 ? " cap" : "", c->tree ? " tree" : "");
    /* P is rounded to the 16-bit type of the tensor cores */
    const double p_eps = c->act == NRD_DTYPE_F32 ? 1e-4 : 4e-3;
    verdict(name, distance(got, want, (size_t)n_tokens * (size_t)cols), out_eps(c->out) + p_eps);
    dev_free(cache);
    dev_free(d_freq);
    dev_free(d_table);
    dev_free(d_tree);
    dev_free(d_qkv);
    dev_free(d_pos);
    dev_free(d_seq);
    dev_free(d_start);
    dev_free(d_ctx);
    dev_free(out);
    dev_free(out_scale);
    weight_gone(&qn);
    weight_gone(&kn);
    free(table);
    free(perm);
    free(inv_freq);
    free(k_all);
    free(v_all);
    free(q_all);
    free(tree);
    free(pos_new);
    free(got);
    free(want);
    free(p);
}

void all_attention(void)
{
    static const nrd_dtype acts[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    static const int dims[] = {64, 128, 256, 80}, groups[] = {1, 2, 4, 8, 16, 3};
    const int n = small_only ? 40 : 160;

    for (int i = 0; i < n; i++) {
        const nrd_dtype act = acts[i % 10 < 7 ? 0 : i % 10 < 9 ? 1 : 2];
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 3 == 1 ? NRD_DTYPE_F8_E4M3 : i % 17 == 5 ? NRD_DTYPE_I8 : act,
                       .n_kv = rnd(1, 3), .hd = dims[i % 13 == 12 ? 3 : i % 3], .bt = 16 << rnd(0, 2),
                       .n_seqs = rnd(1, 5), .rope = (nrd_rope_kind)(i % 3), .qk_norm = i % 5 == 2};
        const int group = groups[rnd(0, 5)];
        c.n_heads = c.n_kv * group;
        c.softcap = i % 6 == 5 ? 20.0f : 0;
        c.window = i % 7 == 6 ? rnd(1, 150) : 0;
        c.n_sink = c.window && i % 2 ? rnd(1, 5) : 0;
        c.tree = i % 19 == 18;
        c.deterministic = i % 23 == 22;
        c.declare = i % 5 != 0;
        const int mode = i % 4; /* decode, prefill, mixed, few tokens */
        for (int s = 0; s < c.n_seqs; s++) {
            const int long_ctx = s == 0 && i % 8 == 0 ? (small_only ? 700 : 3000) : 300;
            c.ctx[s] = rnd(1, long_ctx);
            c.q_len[s] = mode == 0 || (mode == 2 && (i % 3 ? s % 2 == 0 : s < 2)) ? 1 : mode == 3 ? rnd(1, 6) : c.ctx[s];
            if (mode == 1 && s % 2 == 1) {
                c.q_len[s] = rnd(1, c.ctx[s]); /* a later chunk */
            }
            if (c.tree && c.q_len[s] > 16) {
                c.q_len[s] = 16;
            }
            c.q_len[s] = c.q_len[s] < c.ctx[s] ? c.q_len[s] : c.ctx[s];
            if (c.q_len[s] > 200) {
                c.q_len[s] = 200;
            }
        }
        check_attention(&c);
    }
}

/* Prompts of many tiles, whole and in chunks, alone and beside single tokens. */
void long_prompts(void)
{
    for (int i = 0; i < (small_only ? 12 : 30); i++) {
        const nrd_dtype act = i % 5 == 4 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 2 ? NRD_DTYPE_F8_E4M3 : act, .n_kv = 1 + i % 2,
                       .hd = i % 3 == 2 ? 64 : i % 7 == 3 ? 96 : 128, .bt = i % 6 == 5 ? 32 : 64, .n_seqs = 2 + i % 4,
                       .rope = NRD_ROPE_NEOX, .qk_norm = i % 4 == 1, .declare = i % 3 != 0};
        c.n_heads = c.n_kv * (i % 3 == 1 ? 1 : i % 10 == 2 ? 20 : i % 8 == 4 ? 3 : 4);
        c.window = i % 7 == 6 ? 200 : 0;
        c.n_sink = i % 14 == 6 ? 3 : 0;
        c.softcap = i % 9 == 8 ? 15.0f : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            c.ctx[s] = rnd(1, i == 17 || i == 24 ? 3000 : 900);
            c.q_len[s] = i % 2 && s < 2 ? 1 : i % 4 == 2 ? c.ctx[s] - c.ctx[s] / 3 : c.ctx[s];
        }
        check_attention(&c);
    }
}

/* Single tokens as the kernel for few multiprocessors takes them: alone, beside prompts with few or many
 * of the multiprocessors, filled up with sequences of no memory. What the step says about its work is
 * not true: that must change the way only. */
void ring(void)
{
    static const int groups[] = {4, 1, 8, 5, 2};
    for (int i = 0; i < 30; i++) {
        const nrd_dtype act = i % 3 == 2 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = NRD_DTYPE_F8_E4M3, .n_kv = rnd(1, 3), .hd = 128, .bt = 64,
                       .n_seqs = i % 5 == 4 ? rnd(20, ATTN_SEQS) : rnd(1, 8),
                       .rope = NRD_ROPE_NEOX, .declare = true, .deterministic = i == 20};
        const int prompts = i % 2 == 0 ? 0 : c.n_seqs == 1 ? 0 : rnd(1, c.n_seqs > 3 ? 3 : c.n_seqs - 1);
        c.n_heads = c.n_kv * groups[i % 5];
        c.single_ctx = (int64_t)1 << 34;
        c.prompt_pairs = prompts == 0 ? 0 : (int64_t)1 << (i % 6 == 1 ? 34 : i % 6 == 3 ? 38 : 36);
        c.n_empty = i % 7 == 3 && c.n_seqs - prompts > 1 ? c.n_seqs - prompts : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            const bool prompt = s >= c.n_seqs - prompts;
            c.ctx[s] = s == 0 && i % 3 == 0 ? rnd(1500, 3000) : rnd(1, prompt ? 500 : 300);
            c.ctx[s] = c.n_empty && !prompt && s % 3 == 1 ? 1 : c.ctx[s];
            c.q_len[s] = !prompt ? 1 : c.ctx[s] < 30 ? c.ctx[s] : rnd(20, c.ctx[s]);
        }
        check_attention(&c);
    }
}

/* One to nine sequences of one token: what a server with one user runs. */
void few_tokens(void)
{
    static const int groups[] = {4, 1, 8, 5, 2}, contexts[] = {40, 300, 100, 2500, 700};
    for (int i = 0; i < (small_only ? 15 : 40); i++) {
        const nrd_dtype act = i % 3 == 2 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 5 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 2 ? act : NRD_DTYPE_F8_E4M3, .n_kv = i % 4 ? rnd(1, 9) : 8,
                       .hd = i % 3 == 1 ? 64 : i % 13 == 12 ? 256 : 128, .bt = i % 4 == 1 ? 16 : 64,
                       .n_seqs = i % 2 ? 1 : rnd(1, 9), .rope = i % 11 == 10 ? NRD_ROPE_NONE : NRD_ROPE_NEOX,
                       .qk_norm = i % 6 == 5, .declare = i % 7 != 0};
        c.n_heads = c.n_kv * groups[rnd(0, 4)];
        c.window = i % 8 == 7 ? rnd(1, 400) : 0;
        c.n_sink = c.window ? rnd(0, 5) : 0;
        c.softcap = i % 9 == 8 ? 20.0f : 0;
        c.n_empty = i % 5 == 3 ? c.n_seqs : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            c.ctx[s] = c.n_empty && s > 0 ? 1 : rnd(1, contexts[rnd(0, 4)]);
            c.ctx[s] = small_only && c.ctx[s] > 700 ? 700 : c.ctx[s];
            c.q_len[s] = 1;
        }
        check_attention(&c);
    }
}

/* Many (sequence, KV head) pairs: the kernel that gives each a single warp. */
void many_pairs(void)
{
    for (int i = 0; i < 6; i++) {
        attn_case c = {.act = NRD_DTYPE_BF16, .out = NRD_DTYPE_BF16,
                       .kv = i % 2 ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16, .n_kv = 220, .n_heads = 220 * (1 + i / 3),
                       .hd = i % 3 == 1 ? 128 : 64, .bt = 16 << (i % 3), .n_seqs = 8,
                       .rope = NRD_ROPE_NEOX, .window = i == 5 ? 70 : 0};
        c.declare = i % 2;
        for (int s = 0; s < 8; s++) {
            c.ctx[s] = rnd(1, 250);
            c.q_len[s] = i == 4 && s == 3 ? (c.ctx[s] < 30 ? c.ctx[s] : 30) : 1;
        }
        check_attention(&c);
    }
}
