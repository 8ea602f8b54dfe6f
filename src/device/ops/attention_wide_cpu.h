/* SPDX-License-Identifier: Apache-2.0
 * attention of sixteen query rows side by side in a vector, up to four vectors: prefill. A part of device/ops/attention_cpu.h.
 *
 * Scores, weights and sums lie as [token][R] and [dim][R], R = 16 W rows: the softmax needs no reductions
 * across a vector, and a number of K or V is converted and spread once for W vectors. Every row still
 * sees the operations above in the same order, so all forms give the same bits. AVX2 has too few
 * registers for more than four sums at a time, so it takes one vector after the other. */
#define WIDE_STEP(W) (NRD_ISA <= 1 ? (NRD_ISA == 1 ? 4 : 16) : (W) == 1 ? 16 : (W) == 4 ? 4 : 8)

/* K of a group as floats, [dim][16]; room: for as many. */
NRD_KERNEL const float *wide_keys(const int type, int32_t dim, const uint8_t *k, float *room)
{
    if (type == NRD_DTYPE_F32) {
        return (const float *)(const void *)k;
    }
    for (int32_t d = 0; d < dim; d++) {
        vf_store(room + d * 16, kv_load(type, k, (int64_t)d * 16));
    }
    return room;
}

/* V of a chunk as floats, 16 d from `at` on: v[g] is of group g, *step floats a token; room: for [64][16]. */
NRD_KERNEL void wide_values(const int type, int32_t dim, const attn_group *group, int32_t at, float *room, const float **v,
                            int32_t *step)
{
    *step = type == NRD_DTYPE_F32 ? dim : 16;
    for (int g = 0; g < ATTN_CHUNK; g++) {
        v[g] = type == NRD_DTYPE_F32 ? (const float *)(const void *)group[g].v + at : room + g * 256;
        for (int t = 0; type != NRD_DTYPE_F32 && group[g].v && t < group[g].n; t++) {
            vf_store(room + g * 256 + t * 16, kv_load(type, group[g].v, (int64_t)t * dim + at));
        }
    }
}

/* s[t][16 W of R] = sum over d of k[d][t] * q[d][16 W of R] for the 16 tokens of a group. */
NRD_KERNEL void wide_scores(const int W, int32_t dim, int R, const float *k, const float *q, float *s)
{
    enum { MOST = 24 };
    const int step = WIDE_STEP(W);

    for (int t0 = 0; t0 < 16; t0 += step) {
        vf acc[MOST], x[ATTN_VECTORS];
        NRD_UNROLL
        for (int i = 0; i < step; i++) {
            NRD_UNROLL
            for (int w = 0; w < W; w++) {
                acc[i * W + w] = vf_zero();
            }
        }
        for (int32_t d = 0; d < dim; d++) {
            NRD_UNROLL
            for (int w = 0; w < W; w++) {
                x[w] = vf_load(q + d * R + w * 16);
            }
            NRD_UNROLL
            for (int t = 0; t < step; t++) {
                vf one = vf_set1(k[d * 16 + t0 + t]);
                NRD_UNROLL
                for (int w = 0; w < W; w++) {
                    acc[t * W + w] = vf_fma(one, x[w], acc[t * W + w]);
                }
            }
        }
        NRD_UNROLL
        for (int i = 0; i < step; i++) {
            NRD_UNROLL
            for (int w = 0; w < W; w++) {
                vf_store(s + (t0 + i) * R + w * 16, acc[i * W + w]);
            }
        }
    }
}

/* o[d][16 W of R] += sum over the tokens of a chunk of v[t][d] * p[t][16 W of R], 16 d. The sums stay in registers
 * for the whole chunk: to store 64 bytes takes as long as two multiply-adds. */
NRD_KERNEL void wide_weigh(const int W, int R, const attn_group *group, const float *const *v, int32_t stride, const float *p,
                           float *o)
{
    enum { MOST = 24 };
    const int step = WIDE_STEP(W);

    for (int d0 = 0; d0 < 16; d0 += step) {
        vf acc[MOST], weight[ATTN_VECTORS];
        NRD_UNROLL
        for (int i = 0; i < step; i++) {
            NRD_UNROLL
            for (int w = 0; w < W; w++) {
                acc[i * W + w] = vf_load(o + (d0 + i) * R + w * 16);
            }
        }
        for (int g = 0; g < ATTN_CHUNK; g++) {
            const float *x = v[g] + d0;
            for (int t = 0; group[g].v && t < group[g].n; t++, x += stride) {
                NRD_UNROLL
                for (int w = 0; w < W; w++) {
                    weight[w] = vf_load(p + (g * 16 + t) * R + w * 16);
                }
                NRD_UNROLL
                for (int d = 0; d < step; d++) {
                    vf one = vf_set1(x[d]);
                    NRD_UNROLL
                    for (int w = 0; w < W; w++) {
                        acc[d * W + w] = vf_fma(one, weight[w], acc[d * W + w]);
                    }
                }
            }
        }
        NRD_UNROLL
        for (int i = 0; i < step; i++) {
            NRD_UNROLL
            for (int w = 0; w < W; w++) {
                vf_store(o + (d0 + i) * R + w * 16, acc[i * W + w]);
            }
        }
    }
}

/* One chunk's softmax step on 16 rows of s[64][R]; m, l: running maximum and sum; o is [dim][R]. Groups that are
 * nowhere would add zeros. */
static void wide_softmax(int32_t dim, int R, const attn_group *group, float *s, float *m, float *l, float *o)
{
    vf top = vf_load(m), old = top, lane[16];

    for (int t = 0; t < ATTN_LANES; t++) {
        top = group[t / 16].k ? vf_max(top, vf_load(s + t * R)) : top;
    }
    vf factor = vf_exp(vf_sub(old, top)); /* nothing seen yet: -inf, or no number: 0, and o is 0 too */
    for (int t = 0; t < 16; t++) {
        lane[t] = vf_zero();
    }
    for (int g = 0; g < ATTN_CHUNK; g++) {
        float *x = s + g * 16 * R;
        for (int t = 0; group[g].k && t < 16; t++, x += R) {
            vf e = vf_exp(vf_sub(vf_load(x), top));
            vf_store(x, e);
            lane[t] = vf_add(lane[t], e);
        }
    }
    for (int n = 8; n > 0; n /= 2) { /* the order of vf_sum */
        for (int t = 0; t < n; t++) {
            lane[t] = vf_add(lane[t], lane[t + n]);
        }
    }
    vf_store(m, top);
    vf_store(l, vf_add(vf_mul(vf_load(l), factor), lane[0]));
    if (vf_gt_bits(vf_set1(1.0f), factor)) {
        for (int32_t d = 0; d < dim; d++) {
            vf_store(o + d * R, vf_mul(vf_load(o + d * R), factor));
        }
    }
}

/* Hides from each of 16 rows what it may not see of a group; positions are whole numbers below 2^24. */
static void wide_mask(const nrd_attention_args *a, const attn_group *g, int R, const float *pos, float *s)
{
    vf none = vf_set1(-INFINITY), p = vf_load(pos), first = vf_sub(p, vf_set1((float)(a->window - 1)));

    if (a->chunked) {
        float own[16];
        for (int i = 0; i < 16; i++) {
            own[i] = (float)(nrd_attention_unseen(a, (int32_t)pos[i]) + 1);
        }
        first = vf_load(own);
    }
    for (int t = 0; t < NRD_KV_GROUP; t++) {
        vf at = vf_set1((float)(g->pos + t)), x = vf_load(s + t * R);
        x = t < g->n ? vf_gt(at, p, none, x) : none;
        if (a->window > 0 && g->pos + t >= a->n_sink) {
            x = vf_gt(first, at, none, x);
        }
        vf_store(s + t * R, x);
    }
}

#define WIDE_TYPE(type)                                                                            \
    static const float *wide_keys_##type(int32_t dim, const uint8_t *k, float *room)               \
    {                                                                                              \
        return wide_keys(NRD_DTYPE_##type, dim, k, room);                                          \
    }                                                                                              \
    static void wide_values_##type(int32_t dim, const attn_group *group, int32_t at, float *room, const float **v, \
                                   int32_t *step)                                                  \
    {                                                                                              \
        wide_values(NRD_DTYPE_##type, dim, group, at, room, v, step);                              \
    }
WIDE_TYPE(F32)
WIDE_TYPE(F16)
WIDE_TYPE(BF16)
WIDE_TYPE(I8)
#define WIDE_ROWS(n)                                                                               \
    static void wide_scores_##n(int32_t dim, int R, const float *k, const float *q, float *s)      \
    {                                                                                              \
        for (int w = 0; w < n; w += WIDE_AT_ONCE(n)) {                                             \
            wide_scores(WIDE_AT_ONCE(n), dim, R, k, q + w * 16, s + w * 16);                       \
        }                                                                                          \
    }                                                                                              \
    static void wide_weigh_##n(int R, const attn_group *group, const float *const *v, int32_t stride, const float *p, \
                               float *o)                                                           \
    {                                                                                              \
        for (int w = 0; w < n; w += WIDE_AT_ONCE(n)) {                                             \
            wide_weigh(WIDE_AT_ONCE(n), R, group, v, stride, p + w * 16, o + w * 16);              \
        }                                                                                          \
    }
#define WIDE_AT_ONCE(n) (NRD_ISA <= 1 ? 1 : (n))
WIDE_ROWS(1)
WIDE_ROWS(2)
WIDE_ROWS(3)
WIDE_ROWS(4)
typedef const float *(*wide_keys_fn)(int32_t dim, const uint8_t *k, float *room);
typedef void (*wide_values_fn)(int32_t dim, const attn_group *group, int32_t at, float *room, const float **v, int32_t *step);
typedef void (*wide_scores_fn)(int32_t dim, int R, const float *k, const float *q, float *s);
typedef void (*wide_weigh_fn)(int R, const attn_group *group, const float *const *v, int32_t stride, const float *p, float *o);
static const wide_keys_fn wide_keys_table[4] = {wide_keys_F32, wide_keys_F16, wide_keys_BF16, wide_keys_I8};
static const wide_values_fn wide_values_table[4] = {wide_values_F32, wide_values_F16, wide_values_BF16, wide_values_I8};
static const wide_scores_fn wide_scores_table[ATTN_VECTORS] = {wide_scores_1, wide_scores_2, wide_scores_3, wide_scores_4};
static const wide_weigh_fn wide_weigh_table[ATTN_VECTORS] = {wide_weigh_1, wide_weigh_2, wide_weigh_3, wide_weigh_4};
