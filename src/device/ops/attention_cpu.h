/* attention of one tile of query rows over a range of the cache; included once per instruction set.
 *
 * Method    Flash attention (Dao et al. 2022): the cache is walked in chunks of 4 groups of 16
 *           tokens; scores, running maximum, exponentials and the weighted sum of V stay in L1. All
 *           heads that share a KV head sit in one tile (rows = tokens x heads, up to 16), so K and V
 *           are read once for them.
 * Order     For each row: dot over d ascending; V over tokens ascending; chunks ascending; every 16
 *           chunks (a split) the state is merged into the total and begun anew. What other rows are
 *           in the tile, whether splits run in one task or in many, and whether a row stops behind
 *           blocks that several sequences share and goes on later, changes no bit.
 * Bound     Decode: reading the cache. Prefill: 2 fma a row and element, plus conversions.
 */
#include "device/cpu/simd.h"
#include "device/ops/ops.h"

enum { ATTN_ROWS = 16, ATTN_CHUNK = 4, ATTN_LANES = ATTN_CHUNK * NRD_KV_GROUP };

NRD_INLINE vf kv_load(const int type, const uint8_t *p, int64_t i)
{
    switch (type) {
    case NRD_DTYPE_F32:
        return vf_load((const float *)(const void *)p + i);
    case NRD_DTYPE_F16:
        return vf_load_f16(p + i * 2);
    case NRD_DTYPE_BF16:
        return vf_load_bf16(p + i * 2);
    default:
        return vf_load_i8(p + i);
    }
}

/* s[r][lane] = sum over d of k[d][lane] * q[d][r]: one group of 16 tokens. */
NRD_KERNEL void scores(const int type, const int R, int32_t dim, const uint8_t *k, const float *q, float *s)
{
    vf acc[ATTN_ROWS];

    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        acc[r] = vf_zero();
    }
    for (int32_t d = 0; d < dim; d++, q += R) {
        vf v = kv_load(type, k, (int64_t)d * 16);
        NRD_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = vf_fma(v, vf_set1(q[r]), acc[r]);
        }
    }
    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        vf_store(s + r * ATTN_LANES, acc[r]);
    }
}

/* o[r][0..16) += sum over tokens of p[r][t] * v[t][0..16). */
NRD_KERNEL void weigh(const int type, const int R, int32_t dim, int n, const uint8_t *v, const float *p, float *o)
{
    vf acc[ATTN_ROWS];

    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        acc[r] = vf_load(o + (int64_t)r * dim);
    }
    for (int t = 0; t < n; t++) {
        vf x = kv_load(type, v, (int64_t)t * dim);
        NRD_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = vf_fma(x, vf_set1(p[r * ATTN_LANES + t]), acc[r]);
        }
    }
    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        vf_store(o + (int64_t)r * dim, acc[r]);
    }
}

typedef struct attn_group { /* 16 tokens of the chunk at hand */
    const uint8_t *k, *v;   /* NULL: dropped block */
    int32_t pos, n;         /* first position, valid lanes */
} attn_group;

/* Which lanes of a group may token i see? All of them in the common case. */
NRD_INLINE bool sees_all(const nrd_attention_args *a, int32_t first_new, int32_t pos, const attn_group *g)
{
    int32_t last = g->pos + NRD_KV_GROUP - 1;

    return g->n == NRD_KV_GROUP && last <= pos && (!a->batch->tree_mask || last < first_new) &&
           (a->window <= 0 || g->pos > pos - a->window || last < a->n_sink);
}

static void merge_rows(int R, int32_t dim, float *tm, float *tl, float *t, const float *m, const float *l, const float *o)
{
    float fa[ATTN_ROWS] = {0}, fb[ATTN_ROWS] = {0};

    for (int r = 0; r < R; r++) {
        float top = tm[r] > m[r] ? tm[r] : m[r];
        fa[r] = tm[r] - top;
        fb[r] = m[r] - top;
        if (m[r] == -INFINITY) { /* nothing new */
            fa[r] = 0;
            fb[r] = -INFINITY;
        } else if (tm[r] == -INFINITY) {
            fa[r] = -INFINITY;
            fb[r] = 0;
        }
        tm[r] = top;
    }
    vf_store_n(fa, vf_exp(vf_load_n(fa, R)), R);
    vf_store_n(fb, vf_exp(vf_load_n(fb, R)), R);
    for (int r = 0; r < R; r++) {
        tl[r] = tl[r] * fa[r] + l[r] * fb[r];
        vf x = vf_set1(fa[r]), y = vf_set1(fb[r]);
        for (int32_t d = 0; d < dim; d += 16) {
            int64_t at = (int64_t)r * dim + d;
            vf_store(t + at, vf_fma(vf_load(t + at), x, vf_mul(vf_load(o + at), y)));
        }
    }
}

/* ---- sixteen query rows side by side in a vector: prefill ----
 * Scores, weights and sums lie as [token][16 rows] and [dim][16 rows]: the softmax needs no reductions
 * across a vector. Every row still sees the operations above in the same order, so both forms give
 * the same bits. AVX2 has too few registers for more than four sums at a time. */
enum { WIDE_STEP = NRD_ISA == 1 ? 4 : 16 };

/* s[t][16] = sum over d of k[d][t] * q[d][16] for the 16 tokens of a group; kf: room for [dim][16]. */
NRD_KERNEL void wide_scores(const int type, int32_t dim, const uint8_t *k, const float *q, float *kf, float *s)
{
    for (int32_t d = 0; d < dim; d++) {
        vf_store(kf + d * 16, kv_load(type, k, (int64_t)d * 16));
    }
    for (int t0 = 0; t0 < 16; t0 += WIDE_STEP) {
        vf acc[WIDE_STEP];
        NRD_UNROLL
        for (int t = 0; t < WIDE_STEP; t++) {
            acc[t] = vf_zero();
        }
        for (int32_t d = 0; d < dim; d++) {
            vf x = vf_load(q + d * 16);
            NRD_UNROLL
            for (int t = 0; t < WIDE_STEP; t++) {
                acc[t] = vf_fma(vf_set1(kf[d * 16 + t0 + t]), x, acc[t]);
            }
        }
        NRD_UNROLL
        for (int t = 0; t < WIDE_STEP; t++) {
            vf_store(s + (t0 + t) * 16, acc[t]);
        }
    }
}

/* o[d][16] += sum over tokens of v[t][d] * p[t][16], one group, 16 d from `v` on. */
NRD_KERNEL void wide_weigh(const int type, int32_t dim, int n, const uint8_t *v, const float *p, float *vf32, float *o)
{
    for (int t = 0; t < n; t++) {
        vf_store(vf32 + t * 16, kv_load(type, v, (int64_t)t * dim));
    }
    for (int d0 = 0; d0 < 16; d0 += WIDE_STEP) {
        vf acc[WIDE_STEP];
        NRD_UNROLL
        for (int d = 0; d < WIDE_STEP; d++) {
            acc[d] = vf_load(o + (d0 + d) * 16);
        }
        for (int t = 0; t < n; t++) {
            vf w = vf_load(p + t * 16);
            NRD_UNROLL
            for (int d = 0; d < WIDE_STEP; d++) {
                acc[d] = vf_fma(vf_set1(vf32[t * 16 + d0 + d]), w, acc[d]);
            }
        }
        NRD_UNROLL
        for (int d = 0; d < WIDE_STEP; d++) {
            vf_store(o + (d0 + d) * 16, acc[d]);
        }
    }
}

/* One chunk's softmax step on s[64][16]; m, l: running maximum and sum. o is [dim][16]. */
static void wide_softmax(int32_t dim, float *s, float *m, float *l, float *o)
{
    vf top = vf_load(m), old = top, lane[16];

    for (int t = 0; t < ATTN_LANES; t++) {
        top = vf_max(top, vf_load(s + t * 16));
    }
    vf factor = vf_exp(vf_sub(old, top)); /* nothing seen yet: -inf, or no number: 0, and o is 0 too */
    for (int t = 0; t < 16; t++) {
        lane[t] = vf_zero();
    }
    for (int t = 0; t < ATTN_LANES; t++) {
        vf e = vf_exp(vf_sub(vf_load(s + t * 16), top));
        vf_store(s + t * 16, e);
        lane[t % 16] = vf_add(lane[t % 16], e);
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
            vf_store(o + d * 16, vf_mul(vf_load(o + d * 16), factor));
        }
    }
}

/* Hides from each row what it may not see of a group; positions are whole numbers below 2^24. */
static void wide_mask(const nrd_attention_args *a, const attn_group *g, const float *pos, float *s)
{
    vf none = vf_set1(-INFINITY), p = vf_load(pos), first = vf_sub(p, vf_set1((float)(a->window - 1)));

    for (int t = 0; t < NRD_KV_GROUP; t++) {
        vf at = vf_set1((float)(g->pos + t)), x = vf_load(s + t * 16);
        x = t < g->n ? vf_gt(at, p, none, x) : none;
        if (a->window > 0 && g->pos + t >= a->n_sink) {
            x = vf_gt(first, at, none, x);
        }
        vf_store(s + t * 16, x);
    }
}

#define WIDE_TYPE(type)                                                                            \
    static void wide_scores_##type(int32_t dim, const uint8_t *k, const float *q, float *kf, float *s) \
    {                                                                                              \
        wide_scores(NRD_DTYPE_##type, dim, k, q, kf, s);                                           \
    }                                                                                              \
    static void wide_weigh_##type(int32_t dim, int n, const uint8_t *v, const float *p, float *vf32, float *o) \
    {                                                                                              \
        wide_weigh(NRD_DTYPE_##type, dim, n, v, p, vf32, o);                                       \
    }
WIDE_TYPE(F32)
WIDE_TYPE(F16)
WIDE_TYPE(BF16)
WIDE_TYPE(I8)
typedef void (*wide_scores_fn)(int32_t dim, const uint8_t *k, const float *q, float *kf, float *s);
typedef void (*wide_weigh_fn)(int32_t dim, int n, const uint8_t *v, const float *p, float *vf32, float *o);
static const wide_scores_fn wide_scores_table[4] = {wide_scores_F32, wide_scores_F16, wide_scores_BF16, wide_scores_I8};
static const wide_weigh_fn wide_weigh_table[4] = {wide_weigh_F32, wide_weigh_F16, wide_weigh_BF16, wide_weigh_I8};

typedef void (*scores_fn)(int32_t dim, const uint8_t *k, const float *q, float *s);
typedef void (*weigh_fn)(int32_t dim, int n, const uint8_t *v, const float *p, float *o);

#define ATTN_R(type, n)                                                                            \
    static void scores_##type##_##n(int32_t dim, const uint8_t *k, const float *q, float *s)       \
    {                                                                                              \
        scores(NRD_DTYPE_##type, n, dim, k, q, s);                                                 \
    }                                                                                              \
    static void weigh_##type##_##n(int32_t dim, int tokens, const uint8_t *v, const float *p, float *o) \
    {                                                                                              \
        weigh(NRD_DTYPE_##type, n, dim, tokens, v, p, o);                                          \
    }
#define ATTN_TYPE(type)                                                                            \
    ATTN_R(type, 1) ATTN_R(type, 2) ATTN_R(type, 4) ATTN_R(type, 8) ATTN_R(type, 16)
ATTN_TYPE(F32)
ATTN_TYPE(F16)
ATTN_TYPE(BF16)
ATTN_TYPE(I8)
#define ATTN_TABLE(what, type)                                                                     \
    {what##_##type##_1, what##_##type##_2, what##_##type##_4, what##_##type##_8, what##_##type##_16}
static const scores_fn scores_table[4][5] = {ATTN_TABLE(scores, F32), ATTN_TABLE(scores, F16),
                                             ATTN_TABLE(scores, BF16), ATTN_TABLE(scores, I8)};
static const weigh_fn weigh_table[4][5] = {ATTN_TABLE(weigh, F32), ATTN_TABLE(weigh, F16),
                                           ATTN_TABLE(weigh, BF16), ATTN_TABLE(weigh, I8)};

/* A row between two parts of the context: the merged total, and the split that is under way. */
typedef struct row_state {
    float *total, *o; /* [dim] */
    float *rest;      /* total_max, total_sum, m, l */
} row_state;

NRD_INLINE row_state state_at(const nrd_attn_tile *w, int32_t seq, int32_t head)
{
    int32_t dim = w->a->kv.head_dim;
    float *at = w->state + ((int64_t)seq * w->a->n_heads + head) * (2 * dim + 4);
    return (row_state){at, at + dim, at + 2 * dim};
}

/* Rows are rounded up to a power of two; total, total_max, total_sum are filled for them. */
static void attention_tile(const nrd_attn_tile *w)
{
    const nrd_attention_args *a = w->a;
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    const int32_t dim = kv->head_dim, bt = kv->block_tokens, gpb = (int32_t)nrd_kv_groups(bt);
    const nrd_dtype type = kv->dtype;
    const int32_t rows = w->n_tokens * w->n_heads, n_keys = b->ctx_len[w->seq];
    const int32_t first_new = n_keys - (b->q_start[w->seq + 1] - b->q_start[w->seq]);
    const int32_t *table = b->block_table + (int64_t)w->seq * b->block_table_stride;
    const int64_t q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * dim;
    int log2_rows = 0;
    while ((1 << log2_rows) < rows) {
        log2_rows++;
    }
    const int R = 1 << log2_rows;
    const size_t elem = type == NRD_DTYPE_F32 ? 4 : type == NRD_DTYPE_I8 ? 1 : 2;
    const size_t head_bytes = (size_t)nrd_kv_head_elems(bt, dim) * elem, block_bytes = head_bytes * 2 * (size_t)kv->n_kv_heads;
    const bool wide = R == ATTN_ROWS && !b->tree_mask;
    const bool goes_on = w->state && !w->seqs, stops = w->state && w->seqs;
    row_state row[ATTN_ROWS];
    float *q = w->scratch, *o = q + R * dim, *s = o + R * dim;
    float *kf = s + ATTN_ROWS * ATTN_LANES, *vf32 = kf + ATTN_ROWS * dim, pos_f[ATTN_ROWS];
    float m[ATTN_ROWS], l[ATTN_ROWS], factor[ATTN_ROWS];
    int32_t row_token[ATTN_ROWS], row_pos[ATTN_ROWS], min_pos = INT32_MAX, max_pos = 0;
    const int type_id = type == NRD_DTYPE_F32 ? 0 : type == NRD_DTYPE_F16 ? 1 : type == NRD_DTYPE_BF16 ? 2 : 3;
    const scores_fn scores_of = scores_table[type_id][log2_rows];
    const weigh_fn weigh_of = weigh_table[type_id][log2_rows];
    float scale = type == NRD_DTYPE_I8 ? a->scale * kv->k_scale : a->scale;

    for (int r = 0; r < R; r++) {
        int32_t used = r < rows ? r : rows - 1; /* padding repeats the last row */
        int32_t seq = w->seqs ? w->seqs[used / w->n_heads] : w->seq, head = w->head + used % w->n_heads;
        int32_t token = w->seqs ? b->q_start[seq] : w->token + used / w->n_heads;
        const float *x = (const float *)a->q + token * q_stride + (int64_t)head * dim;
        row_token[r] = token;
        row[r] = w->state ? state_at(w, seq, head) : (row_state){NULL, NULL, NULL};
        row_pos[r] = b->positions[token];
        pos_f[r] = (float)row_pos[r];
        min_pos = row_pos[r] < min_pos ? row_pos[r] : min_pos;
        max_pos = row_pos[r] > max_pos ? row_pos[r] : max_pos;
        for (int32_t d = 0; d < dim; d++) {
            q[d * R + r] = x[d] * scale;
        }
        w->total_max[r] = goes_on ? row[r].rest[0] : -INFINITY;
        w->total_sum[r] = goes_on ? row[r].rest[1] : 0;
        if (goes_on) {
            memcpy(w->total + (int64_t)r * dim, row[r].total, (size_t)dim * 4);
        }
    }
    if (!goes_on) {
        memset(w->total, 0, (size_t)(R * dim) * 4);
    }

    int32_t end_pos = b->tree_mask ? n_keys - 1 : max_pos < n_keys - 1 ? max_pos : n_keys - 1;
    int32_t last_group = end_pos / bt * gpb + end_pos % bt / NRD_KV_GROUP;
    int32_t from_pos = a->window > 0 && min_pos - a->window + 1 > 0 ? min_pos - a->window + 1 : 0;
    if (b->tree_mask && from_pos > first_new) {
        from_pos = first_new;
    }
    int32_t from_chunk = (from_pos / bt * gpb + from_pos % bt / NRD_KV_GROUP) / ATTN_CHUNK;
    int32_t sink_end = a->n_sink > 0 ? a->n_sink - 1 : -1; /* last chunk with sink tokens */
    sink_end = sink_end < 0 ? -1 : (sink_end / bt * gpb + sink_end % bt / NRD_KV_GROUP) / ATTN_CHUNK;
    int32_t chunk = w->from_split * NRD_ATTN_SPLIT_CHUNKS, end = last_group / ATTN_CHUNK + 1;
    if (end > w->to_split * NRD_ATTN_SPLIT_CHUNKS) {
        end = w->to_split * NRD_ATTN_SPLIT_CHUNKS;
    }
    chunk = goes_on ? w->shared_chunks : chunk;
    end = stops ? w->shared_chunks : end;

    while (chunk < end) {
        int32_t split_end = (chunk / NRD_ATTN_SPLIT_CHUNKS + 1) * NRD_ATTN_SPLIT_CHUNKS;
        split_end = split_end < end ? split_end : end;
        bool midway = goes_on && chunk == w->shared_chunks && chunk % NRD_ATTN_SPLIT_CHUNKS;
        for (int r = 0; r < R; r++) {
            m[r] = midway ? row[r].rest[2] : -INFINITY;
            l[r] = midway ? row[r].rest[3] : 0;
            for (int32_t d = 0; midway && d < dim; d++) {
                o[wide ? d * 16 + r : r * dim + d] = row[r].o[d];
            }
        }
        if (!midway) {
            memset(o, 0, (size_t)(R * dim) * 4);
        }
        for (; chunk < split_end; chunk++) {
            attn_group group[ATTN_CHUNK];
            if (chunk < from_chunk && chunk > sink_end) {
                continue;
            }
            for (int g = 0; g < ATTN_CHUNK; g++) {
                int32_t at = chunk * ATTN_CHUNK + g, block = at / gpb, in = at % gpb;
                attn_group *p = &group[g];
                p->pos = block * bt + in * NRD_KV_GROUP;
                p->n = bt - in * NRD_KV_GROUP < NRD_KV_GROUP ? bt - in * NRD_KV_GROUP : NRD_KV_GROUP;
                p->k = NULL;
                p->v = NULL;
                if (at <= last_group && table[block] >= 0 && table[block] < kv->n_blocks) {
                    const uint8_t *base = (const uint8_t *)kv->base + (size_t)table[block] * block_bytes +
                                          head_bytes * 2 * (size_t)w->kv_head;
                    p->k = base + (size_t)in * NRD_KV_GROUP * (size_t)dim * elem;
                    p->v = p->k + head_bytes;
                    if (p->pos + p->n > n_keys) {
                        p->n = n_keys - p->pos;
                    }
                }
                if (wide) { /* [token][row] */
                    float *x = s + g * 16 * ATTN_ROWS;
                    if (!p->k) {
                        for (int t = 0; t < 16; t++) {
                            vf_store(x + t * 16, vf_set1(-INFINITY));
                        }
                        continue;
                    }
                    wide_scores_table[type_id](dim, p->k, q, kf, x);
                    for (int t = 0; a->softcap > 0 && t < 16; t++) {
                        vf cap = vf_set1(a->softcap);
                        vf_store(x + t * 16, vf_mul(cap, vf_tanh(vf_div(vf_load(x + t * 16), cap))));
                    }
                    if (!sees_all(a, first_new, min_pos, p) || !sees_all(a, first_new, max_pos, p)) {
                        wide_mask(a, p, pos_f, x);
                    }
                    continue;
                }
                if (!p->k) {
                    for (int r = 0; r < R; r++) {
                        vf_store(s + r * ATTN_LANES + g * 16, vf_set1(-INFINITY));
                    }
                    continue;
                }
                scores_of(dim, p->k, q, s + g * 16);
                if (a->softcap > 0) {
                    vf cap = vf_set1(a->softcap);
                    for (int r = 0; r < R; r++) {
                        float *x = s + r * ATTN_LANES + g * 16;
                        vf_store(x, vf_mul(cap, vf_tanh(vf_div(vf_load(x), cap))));
                    }
                }
                for (int r = 0; r < R; r++) {
                    if (sees_all(a, first_new, row_pos[r], p)) {
                        continue;
                    }
                    float *x = s + r * ATTN_LANES + g * 16;
                    if (b->tree_mask) {
                        for (int i = 0; i < NRD_KV_GROUP; i++) {
                            if (i >= p->n || !nrd_attention_sees(a, w->seq, row_token[r], p->pos + i)) {
                                x[i] = -INFINITY;
                            }
                        }
                        continue;
                    }
                    int32_t lo = a->window > 0 ? row_pos[r] - a->window + 1 - p->pos : 0; /* lanes [lo, hi) */
                    int32_t hi = row_pos[r] - p->pos + 1, sink = a->n_sink - p->pos;     /* and [0, sink) */
                    hi = hi < p->n ? hi : p->n;
                    for (int i = 0; i < NRD_KV_GROUP; i++) {
                        if (i >= hi || (i < lo && i >= sink)) {
                            x[i] = -INFINITY;
                        }
                    }
                }
            }
            if (wide) {
                wide_softmax(dim, s, m, l, o);
                for (int32_t d = 0; d < dim; d += 16) {
                    for (int g = 0; g < ATTN_CHUNK; g++) {
                        if (group[g].v) {
                            wide_weigh_table[type_id](dim, group[g].n, group[g].v + (size_t)d * elem, s + g * 16 * ATTN_ROWS,
                                                      vf32, o + d * 16);
                        }
                    }
                }
                continue;
            }
            float top[ATTN_ROWS];
            for (int r = 0; r < R; r++) {
                const float *x = s + r * ATTN_LANES;
                float best = vf_hmax(vf_max(vf_max(vf_load(x), vf_load(x + 16)), vf_max(vf_load(x + 32), vf_load(x + 48))));
                top[r] = best > m[r] ? best : m[r];
                factor[r] = m[r] == -INFINITY ? 0 : m[r] - top[r];
                m[r] = top[r];
            }
            vf_store_n(factor, vf_exp(vf_load_n(factor, R)), R);
            for (int r = 0; r < R; r++) {
                float *x = s + r * ATTN_LANES;
                if (m[r] == -INFINITY) {
                    for (int g = 0; g < ATTN_CHUNK; g++) {
                        vf_store(x + g * 16, vf_zero());
                    }
                    continue;
                }
                vf sum = vf_zero(), peak = vf_set1(m[r]);
                for (int g = 0; g < ATTN_CHUNK; g++) {
                    vf e = vf_exp(vf_sub(vf_load(x + g * 16), peak));
                    vf_store(x + g * 16, e);
                    sum = vf_add(sum, e);
                }
                l[r] = l[r] * factor[r] + vf_sum(sum);
                if (factor[r] != 1.0f) {
                    vf f = vf_set1(factor[r]);
                    for (int32_t d = 0; d < dim; d += 16) {
                        float *y = o + (int64_t)r * dim + d;
                        vf_store(y, vf_mul(vf_load(y), f));
                    }
                }
            }
            for (int g = 0; g < ATTN_CHUNK; g++) {
                if (!group[g].v) {
                    continue;
                }
                for (int32_t d = 0; d < dim; d += 16) {
                    weigh_of(dim, group[g].n, group[g].v + (size_t)d * elem, s + g * 16, o + d);
                }
            }
        }
        if (wide) {
            for (int r = 0; r < R; r++) {
                for (int32_t d = 0; d < dim; d++) {
                    kf[r * dim + d] = o[d * 16 + r];
                }
            }
        }
        if (stops && chunk == end && chunk % NRD_ATTN_SPLIT_CHUNKS) {
            for (int r = 0; r < rows; r++) {
                memcpy(row[r].o, (wide ? kf : o) + (int64_t)r * dim, (size_t)dim * 4);
                row[r].rest[2] = m[r];
                row[r].rest[3] = l[r];
            }
            break;
        }
        merge_rows(R, dim, w->total_max, w->total_sum, w->total, m, l, wide ? kf : o);
    }
    for (int r = 0; stops && r < rows; r++) {
        memcpy(row[r].total, w->total + (int64_t)r * dim, (size_t)dim * 4);
        row[r].rest[0] = w->total_max[r];
        row[r].rest[1] = w->total_sum[r];
    }
}
