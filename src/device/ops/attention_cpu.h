/* SPDX-License-Identifier: Apache-2.0
 * attention of one tile of query rows over a range of the cache; included once per instruction set.
 *
 * Method    Flash attention (Dao et al. 2022): the cache is walked in chunks of 4 groups of 16
 *           tokens; scores, running maximum, exponentials and the weighted sum of V stay in L1. All
 *           heads that share a KV head sit in one tile (rows = tokens x heads, up to 64), so K and V
 *           are read once for them.
 * Order     For each row: dot over d ascending; V over tokens ascending; chunks ascending; every 16
 *           chunks (a split) the state is merged into the total and begun anew. What other rows are
 *           in the tile, whether splits run in one task or in many, and whether a row stops behind
 *           blocks that several sequences share and goes on later, changes no bit.
 * Bound     Decode: reading the cache. Prefill: 2 fma a row and element, plus conversions.
 */
#include "device/cpu/simd.h"
#include "device/ops/ops.h"

#include <stdlib.h>

enum {
    ATTN_ROWS = 16, /* of a vector, and of the narrow form's largest tile */
    ATTN_VECTORS = NRD_ATTN_TILE_ROWS / ATTN_ROWS,
    ATTN_CHUNK = 4,
    ATTN_LANES = ATTN_CHUNK * NRD_KV_GROUP
};

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

#define KV_ELEM(type) ((type) == NRD_DTYPE_F32 ? 4 : (type) == NRD_DTYPE_I8 ? 1 : 2)

typedef struct attn_group { /* 16 tokens of a chunk */
    const uint8_t *k, *v;   /* NULL: dropped block */
    int32_t pos, n;         /* first position, valid lanes */
} attn_group;

/* s[r][lane] = sum over d of k[d][lane] * q[r][d]: one group of 16 tokens. Of few rows the cache is
 * the limit: what is read next (`ahead`: a group's K or V) is asked for meanwhile, into L2: L1 has too few lines
 * under way at a time for the memory's rate (Zen 4: 10 GB/s, through L2 25). */
NRD_KERNEL void scores(const int type, const int R, int32_t dim, const uint8_t *k, const float *q, const uint8_t *ahead,
                       float *s)
{
    vf acc[ATTN_ROWS];

    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        acc[r] = vf_zero();
    }
    for (int32_t d = 0; d < dim; d++) {
        vf v = kv_load(type, k, (int64_t)d * 16);
        __builtin_prefetch(ahead + (int64_t)d * 16 * KV_ELEM(type), 0, 2);
        NRD_UNROLL
        for (int r = 0; r < R; r++) {
            acc[r] = vf_fma(v, vf_set1(q[r * dim + d]), acc[r]);
        }
    }
    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        vf_store(s + r * ATTN_LANES, acc[r]);
    }
}

/* o[r][0..16) += sum over tokens of p[r][t] * v[t][0..16). */
NRD_KERNEL void weigh(const int type, const int R, int32_t dim, int n, const uint8_t *v, const float *p,
                      const uint8_t *ahead, float *o)
{
    vf acc[ATTN_ROWS];

    NRD_UNROLL
    for (int r = 0; r < R; r++) {
        acc[r] = vf_load(o + (int64_t)r * dim);
    }
    for (int t = 0; t < n; t++) {
        vf x = kv_load(type, v, (int64_t)t * dim);
        __builtin_prefetch(ahead + (int64_t)t * 16 * KV_ELEM(type), 0, 2);
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

/* Which lanes of a group may token i see? All of them in the common case. */
NRD_INLINE bool sees_all(const nrd_attention_args *a, int32_t first_new, int32_t pos, const attn_group *g)
{
    int32_t last = g->pos + NRD_KV_GROUP - 1;

    return g->n == NRD_KV_GROUP && last <= pos && (!a->batch->tree_mask || last < first_new) &&
           (a->window <= 0 || g->pos > nrd_attention_unseen(a, pos) || last < a->n_sink);
}

static void merge_rows(int R, int32_t dim, float *tm, float *tl, float *t, const float *m, const float *l, const float *o)
{
    float fa[NRD_ATTN_TILE_ROWS] = {0}, fb[NRD_ATTN_TILE_ROWS] = {0};

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
    for (int r = 0; r < R; r += 16) {
        vf_store(fa + r, vf_exp(vf_load(fa + r)));
        vf_store(fb + r, vf_exp(vf_load(fb + r)));
    }
    for (int r = 0; r < R; r++) {
        tl[r] = tl[r] * fa[r] + l[r] * fb[r];
        vf x = vf_set1(fa[r]), y = vf_set1(fb[r]);
        for (int32_t d = 0; d < dim; d += 16) {
            int64_t at = (int64_t)r * dim + d;
            vf_store(t + at, vf_fma(vf_load(t + at), x, vf_mul(vf_load(o + at), y)));
        }
    }
}

#include "device/ops/attention_wide_cpu.h"

typedef void (*scores_fn)(int32_t dim, const uint8_t *k, const float *q, const uint8_t *ahead, float *s);
typedef void (*weigh_fn)(int32_t dim, int n, const uint8_t *v, const float *p, const uint8_t *ahead, float *o);

#define ATTN_R(type, n)                                                                            \
    static void scores_##type##_##n(int32_t dim, const uint8_t *k, const float *q, const uint8_t *ahead, float *s) \
    {                                                                                              \
        scores(NRD_DTYPE_##type, n, dim, k, q, ahead, s);                                          \
    }                                                                                              \
    static void weigh_##type##_##n(int32_t dim, int tokens, const uint8_t *v, const float *p,      \
                                   const uint8_t *ahead, float *o)                                 \
    {                                                                                              \
        weigh(NRD_DTYPE_##type, n, dim, tokens, v, p, ahead, o);                                   \
    }
#define ATTN_TYPE(type)                                                                            \
    ATTN_R(type, 1) ATTN_R(type, 2) ATTN_R(type, 3) ATTN_R(type, 4) ATTN_R(type, 5) ATTN_R(type, 6) \
    ATTN_R(type, 7) ATTN_R(type, 8) ATTN_R(type, 16)
ATTN_TYPE(F32)
ATTN_TYPE(F16)
ATTN_TYPE(BF16)
ATTN_TYPE(I8)
/* The numbers of rows that there are forms for. */
static const int narrow_rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};
enum { N_NARROW = sizeof(narrow_rows) / sizeof(narrow_rows[0]) };
#define ATTN_TABLE(what, type)                                                                     \
    {what##_##type##_1, what##_##type##_2, what##_##type##_3, what##_##type##_4, what##_##type##_5, \
     what##_##type##_6, what##_##type##_7, what##_##type##_8, what##_##type##_16}
static const scores_fn scores_table[4][N_NARROW] = {ATTN_TABLE(scores, F32), ATTN_TABLE(scores, F16),
                                             ATTN_TABLE(scores, BF16), ATTN_TABLE(scores, I8)};
static const weigh_fn weigh_table[4][N_NARROW] = {ATTN_TABLE(weigh, F32), ATTN_TABLE(weigh, F16),
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

/* A tile under way: its rows, the context it goes through, and the sums of the split that it is in. Rows are
 * rounded up to R, a number of narrow_rows or, above, whole vectors; the padding repeats the last one. */
typedef struct attn_work {
    const nrd_attn_tile *w;
    const nrd_attention_args *a;
    int32_t dim, rows, R, n_keys, first_new, gpb; /* gpb: groups of a block */
    size_t elem, head_bytes;
    int type_id;
    scores_fn scores_of;
    weigh_fn weigh_of;
    int wide; /* vectors of 16 rows: rows in the lanes; 0: tokens */
    bool goes_on, stops; /* begins, ends at the chunk where a shared part of the context ends */
    bool fresh;          /* nothing is in the total yet */
    /* scratch: q and o [R][dim] or wide [dim][R], s scores, room for wide ones' K, V or sums */
    float *q, *sums, *s, *room;
    float *o; /* the split's: sums, or where the total lies */
    row_state row[NRD_ATTN_TILE_ROWS];
    float pos_f[NRD_ATTN_TILE_ROWS], m[NRD_ATTN_TILE_ROWS], l[NRD_ATTN_TILE_ROWS], row_slope[NRD_ATTN_TILE_ROWS];
    int32_t row_token[NRD_ATTN_TILE_ROWS], row_pos[NRD_ATTN_TILE_ROWS], row_head[NRD_ATTN_TILE_ROWS], min_pos, max_pos;
    /* chunks [start, end), of them those before sink_end and from from_chunk on */
    int32_t last_group, from_chunk, sink_end, start, end;
    attn_group group[ATTN_CHUNK], next[ATTN_CHUNK]; /* next: those after them, of this tile or of the one behind it */
} attn_work;

NRD_INLINE int32_t chunk_at(const attn_work *t, int32_t pos)
{
    int32_t bt = t->a->kv.block_tokens;
    return (pos / bt * t->gpb + pos % bt / NRD_KV_GROUP) / ATTN_CHUNK;
}

static void begin_tile(attn_work *t, const nrd_attn_tile *w)
{
    const nrd_attention_args *a = w->a;
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    const nrd_dtype type = kv->dtype;
    int form = 0;

    t->w = w;
    t->a = a;
    t->dim = kv->head_dim;
    t->gpb = (int32_t)nrd_kv_groups(kv->block_tokens);
    t->rows = w->n_tokens * w->n_heads;
    t->n_keys = b->ctx_len[w->seq];
    t->first_new = t->n_keys - (b->q_start[w->seq + 1] - b->q_start[w->seq]);
    while (narrow_rows[form] < t->rows && form < N_NARROW - 1) {
        form++;
    }
    t->R = t->rows > ATTN_ROWS ? (t->rows + ATTN_ROWS - 1) / ATTN_ROWS * ATTN_ROWS : narrow_rows[form];
    t->elem = type == NRD_DTYPE_F32 ? 4 : type == NRD_DTYPE_I8 ? 1 : 2;
    t->head_bytes = (size_t)nrd_kv_head_elems(kv->block_tokens, t->dim) * t->elem;
    t->type_id = type == NRD_DTYPE_F32 ? 0 : type == NRD_DTYPE_F16 ? 1 : type == NRD_DTYPE_BF16 ? 2 : 3;
    t->scores_of = scores_table[t->type_id][form];
    t->weigh_of = weigh_table[t->type_id][form];
    t->wide = b->tree_mask ? 0 : t->R / ATTN_ROWS;
    t->goes_on = w->state && !w->seqs;
    t->stops = w->state && w->seqs;
    t->q = w->scratch;
    t->sums = t->q + t->R * t->dim;
    t->s = t->sums + t->R * t->dim;
    t->room = t->s + (t->R > ATTN_ROWS ? t->R : ATTN_ROWS) * ATTN_LANES;
}

/* y[d][16 of stride] = 16 rows x[r][d], scaled; dim is a multiple of 16. */
static void turn_rows(int32_t dim, float scale, const float *const *x, float *y, int stride)
{
    for (int32_t d = 0; d < dim; d += 16) {
        vf block[16];
        NRD_UNROLL
        for (int r = 0; r < 16; r++) {
            block[r] = vf_mul(vf_load(x[r] + d), vf_set1(scale));
        }
        vf_transpose(block);
        NRD_UNROLL
        for (int i = 0; i < 16; i++) {
            vf_store(y + (d + i) * stride, block[i]);
        }
    }
}

/* Queries, scaled, and what was summed up before. */
static void load_rows(attn_work *t)
{
    const nrd_attn_tile *w = t->w;
    const nrd_attention_args *a = t->a;
    const nrd_batch_view *b = a->batch;
    const int32_t dim = t->dim, R = t->R;
    const int64_t q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * dim;
    const float scale = a->scale * nrd_kv_scale(&a->kv, w->kv_head, false);
    const float *row_q[NRD_ATTN_TILE_ROWS];
    int32_t at = 0, in = 0; /* token of the tile, head */

    t->min_pos = INT32_MAX;
    t->max_pos = 0;
    for (int r = 0; r < R; r++) {
        int32_t seq = w->seqs ? w->seqs[at] : w->seq, head = w->head + in;
        int32_t token = w->seqs ? b->q_start[seq] : w->token + at;
        int32_t pos = b->positions[token] + a->ahead; /* the last one that it sees */
        const float *x = (const float *)a->q + token * q_stride + (int64_t)head * dim;
        t->row_token[r] = token;
        t->row[r] = w->state ? state_at(w, seq, head) : (row_state){NULL, NULL, NULL};
        t->row_pos[r] = pos;
        t->row_head[r] = head;
        t->pos_f[r] = (float)pos;
        t->row_slope[r] = a->alibi ? a->alibi[head] : 0;
        t->min_pos = pos < t->min_pos ? pos : t->min_pos;
        t->max_pos = pos > t->max_pos ? pos : t->max_pos;
        row_q[r] = x;
        w->total_max[r] = t->goes_on ? t->row[r].rest[0] : -INFINITY;
        w->total_sum[r] = t->goes_on ? t->row[r].rest[1] : 0;
        if (t->goes_on) {
            memcpy(w->total + (int64_t)r * dim, t->row[r].total, (size_t)dim * 4);
        }
        if (r + 1 < t->rows && ++in == w->n_heads) { /* the padding repeats the last row */
            in = 0;
            at++;
        }
    }
    for (int r = 0; t->wide && r < R; r += 16) {
        turn_rows(dim, scale, row_q + r, t->q + r, R);
    }
    for (int r = 0; !t->wide && r < R; r++) {
        for (int32_t d = 0; d < dim; d += 16) {
            vf_store(t->q + r * dim + d, vf_mul(vf_load(row_q[r] + d), vf_set1(scale)));
        }
    }
    t->fresh = !t->goes_on && !t->stops;
    if (t->stops) {
        memset(w->total, 0, (size_t)(R * dim) * 4);
    }
}

/* The last group of 16 tokens that has one before position `end`, which is above 0. */
NRD_INLINE int32_t last_group_of(const attn_work *t, int32_t end)
{
    const int32_t bt = t->a->kv.block_tokens;
    return (end - 1) / bt * t->gpb + (end - 1) % bt / NRD_KV_GROUP;
}

/* Which part of the context the rows see. */
static void find_chunks(attn_work *t)
{
    const nrd_attn_tile *w = t->w;
    const nrd_attention_args *a = t->a;
    int32_t end_pos = a->batch->tree_mask || t->max_pos > t->n_keys - 1 ? t->n_keys - 1 : t->max_pos;
    int32_t from_pos = a->window > 0 ? nrd_attention_unseen(a, t->min_pos) + 1 : 0;

    from_pos = from_pos > 0 ? from_pos : 0;
    if (a->batch->tree_mask && from_pos > t->first_new) {
        from_pos = t->first_new;
    }
    t->last_group = last_group_of(t, end_pos + 1);
    t->from_chunk = chunk_at(t, from_pos);
    t->sink_end = a->n_sink > 0 ? chunk_at(t, a->n_sink - 1) : -1;
    t->end = t->last_group / ATTN_CHUNK + 1;
    if (t->end > w->to_split * NRD_ATTN_SPLIT_CHUNKS) {
        t->end = w->to_split * NRD_ATTN_SPLIT_CHUNKS;
    }
    t->end = t->stops ? w->shared_chunks : t->end;
    t->start = t->goes_on ? w->shared_chunks : w->from_split * NRD_ATTN_SPLIT_CHUNKS;
}

static void begin_split(attn_work *t, int32_t chunk)
{
    const bool midway = t->goes_on && chunk == t->w->shared_chunks && chunk % NRD_ATTN_SPLIT_CHUNKS;

    t->o = t->fresh && !t->wide ? t->w->total : t->sums;
    for (int r = 0; r < t->R; r++) {
        t->m[r] = midway ? t->row[r].rest[2] : -INFINITY;
        t->l[r] = midway ? t->row[r].rest[3] : 0;
        for (int32_t d = 0; midway && d < t->dim; d++) {
            t->o[t->wide ? d * t->R + r : r * t->dim + d] = t->row[r].o[d];
        }
    }
    if (!midway) {
        memset(t->o, 0, (size_t)(t->R * t->dim) * 4);
    }
}

/* The groups of a chunk of one sequence and KV head: their tokens, and where keys and values are; NULL: nowhere. */
static void find_groups(const attn_work *t, int32_t seq, int32_t kv_head, int32_t last_group, int32_t chunk, attn_group *group)
{
    const nrd_attention_args *a = t->a;
    const nrd_kv_layer *kv = &a->kv;
    const int32_t *table = a->batch->block_table + (int64_t)seq * a->batch->block_table_stride;
    const int32_t n_keys = a->batch->ctx_len[seq], bt = kv->block_tokens;
    int32_t at = chunk * ATTN_CHUNK, block = at / t->gpb, in = at % t->gpb;

    for (int g = 0; g < ATTN_CHUNK; g++, at++) {
        attn_group *p = &group[g];
        p->pos = block * bt + in * NRD_KV_GROUP;
        p->n = bt - in * NRD_KV_GROUP < NRD_KV_GROUP ? bt - in * NRD_KV_GROUP : NRD_KV_GROUP;
        p->n = p->pos + p->n > n_keys ? n_keys - p->pos : p->n;
        p->k = NULL;
        p->v = NULL;
        if (at <= last_group && table[block] >= 0 && table[block] < kv->n_blocks) {
            p->k = (const uint8_t *)kv->base + t->head_bytes * 2 * ((size_t)table[block] * (size_t)kv->n_kv_heads + (size_t)kv_head) +
                   (size_t)in * NRD_KV_GROUP * (size_t)t->dim * t->elem;
            p->v = p->k + t->head_bytes;
        }
        if (++in == t->gpb) {
            in = 0;
            block++;
        }
    }
}

/* The chunk after this one that the rows see something of; `end` or more: none. */
NRD_INLINE int32_t chunk_after(const attn_work *t, int32_t chunk)
{
    return chunk + 1 < t->from_chunk && chunk + 1 > t->sink_end ? t->from_chunk : chunk + 1;
}

/* The first groups that are read after the tile: of the next KV head or sequence. */
static void find_next_tile(const attn_work *t, attn_group *group)
{
    const nrd_attention_args *a = t->a;
    const nrd_batch_view *b = a->batch;
    int32_t seq = t->w->seq, kv_head = t->w->kv_head + 1, last_group = t->last_group, chunk = chunk_after(t, t->start - 1);

    if (kv_head == a->kv.n_kv_heads) {
        kv_head = 0;
        seq++;
        if (seq == b->n_seqs || t->w->seqs || b->ctx_len[seq] < 1) {
            memset(group, 0, ATTN_CHUNK * sizeof *group);
            return;
        }
        last_group = last_group_of(t, b->ctx_len[seq]);
        if (a->window > 0) { /* of its last token, which is its only one */
            int32_t from = nrd_attention_unseen(a, b->ctx_len[seq] - 1) + 1;
            chunk = a->n_sink > 0 || from < 0 ? t->start : chunk_at(t, from);
        }
    }
    find_groups(t, seq, kv_head, last_group, chunk, group);
}

/* What each place of a chunk is read for next. Where the tile's last chunk has fewer groups, the one before it asks for
 * the rest of the next tile's first, so that all of them have time to come. */
static void find_next(attn_work *t, int32_t chunk)
{
    const int32_t after = chunk_after(t, chunk);
    const bool is_last = after >= t->end;
    attn_group of_next[ATTN_CHUNK];

    if (is_last) {
        memset(t->next, 0, sizeof t->next);
    } else {
        find_groups(t, t->w->seq, t->w->kv_head, t->last_group, after, t->next);
    }
    if (chunk_after(t, after) < t->end) {
        return;
    }
    find_next_tile(t, of_next);
    for (int g = 0; g < ATTN_CHUNK; g++) {
        if (!t->next[g].k && (!is_last || t->group[g].k || chunk == chunk_after(t, t->start - 1))) {
            t->next[g] = of_next[g];
        }
    }
}

NRD_INLINE void cap_scores(float softcap, float *x, int n, int stride)
{
    vf cap = vf_set1(softcap);
    for (int i = 0; i < n; i++) {
        vf_store(x + i * stride, vf_mul(cap, vf_tanh(vf_div(vf_load(x + i * stride), cap))));
    }
}

/* Takes each row's slope times the distance to the key off; strides of the keys and of the rows in x. row_pos counts `ahead` in. */
NRD_INLINE void add_alibi(const attn_work *t, const attn_group *p, float *x, int key_stride, int row_stride)
{
    const nrd_batch_view *b = t->a->batch;
    const int32_t ahead = t->a->ahead;

    for (int i = 0; i < p->n; i++) {
        int32_t slot = p->pos + i, pos = slot;
        if (b->tree_mask && slot >= t->first_new) { /* two branches may hold the same position */
            pos = b->positions[b->q_start[t->w->seq] + slot - t->first_new];
        }
        for (int r = 0; r < t->rows; r++) {
            x[i * key_stride + r * row_stride] -= t->row_slope[r] * (float)abs(pos + ahead - t->row_pos[r]);
        }
    }
}

/* Adds what each row's head has for the distance of the key; strides as above. */
NRD_INLINE void add_rel_bias(const attn_work *t, const attn_group *p, float *x, int key_stride, int row_stride)
{
    const nrd_attention_args *a = t->a;

    for (int r = 0; r < t->rows; r++) {
        const int32_t pos = t->row_pos[r] - a->ahead;
        for (int i = 0; i < p->n; i++) {
            x[i * key_stride + r * row_stride] += nrd_attention_rel_bias(a, t->row_head[r], p->pos + i - pos);
        }
    }
}

/* Scores of a group, [token][row]; of one that is nowhere: none, and nothing reads them. */
static void wide_group(attn_work *t, int g)
{
    const nrd_attention_args *a = t->a;
    const attn_group *p = &t->group[g];
    const int R = t->R;
    float *x = t->s + g * 16 * R;

    if (!p->k) {
        return;
    }
    wide_scores_table[t->wide - 1](t->dim, R, wide_keys_table[t->type_id](t->dim, p->k, t->room), t->q, x);
    if (a->softcap > 0) {
        cap_scores(a->softcap, x, R, 16);
    }
    if (a->alibi) {
        add_alibi(t, p, x, R, 1);
    }
    if (a->rel_bias) {
        add_rel_bias(t, p, x, R, 1);
    }
    if (!sees_all(a, t->first_new, t->min_pos, p) || !sees_all(a, t->first_new, t->max_pos, p)) {
        for (int r = 0; r < R; r += 16) {
            wide_mask(a, p, R, t->pos_f + r, x + r);
        }
    }
}

static const float attn_lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void mask_row(const attn_work *t, const attn_group *p, int r, float *x)
{
    const nrd_attention_args *a = t->a;

    if (sees_all(a, t->first_new, t->row_pos[r], p)) {
        return;
    }
    if (a->batch->tree_mask) {
        for (int i = 0; i < NRD_KV_GROUP; i++) {
            if (i >= p->n || !nrd_attention_sees(a, t->w->seq, t->row_token[r], p->pos + i)) {
                x[i] = -INFINITY;
            }
        }
        return;
    }
    int32_t lo = a->window > 0 ? nrd_attention_unseen(a, t->row_pos[r]) + 1 - p->pos : 0; /* lanes [lo, hi) */
    int32_t hi = t->row_pos[r] - p->pos + 1, sink = a->n_sink - p->pos;     /* and [0, sink) */
    hi = hi < p->n ? hi : p->n;
    const vf none = vf_set1(-INFINITY), at = vf_load(attn_lane);
    vf y = vf_load(x), rest = vf_gt(vf_set1((float)lo), at, none, y);
    rest = vf_gt(vf_set1((float)sink), at, y, rest);
    vf_store(x, vf_gt(vf_set1((float)hi), at, rest, none));
}

/* What is done to the scores of a group, [row][token], before their exponentials. */
static void narrow_group(attn_work *t, int g)
{
    const attn_group *p = &t->group[g];
    float *x = t->s + g * 16;

    if (t->a->softcap > 0) {
        cap_scores(t->a->softcap, x, t->R, ATTN_LANES);
    }
    if (t->a->alibi) {
        add_alibi(t, p, x, 1, ATTN_LANES);
    }
    if (t->a->rel_bias) {
        add_rel_bias(t, p, x, 1, ATTN_LANES);
    }
    for (int r = 0; r < t->R; r++) {
        mask_row(t, p, r, x + r * ATTN_LANES);
    }
}

/* A chunk's scores become weights; what was summed before is made to fit the new maxima. Groups that are nowhere
 * would add zeros. */
static void narrow_softmax(attn_work *t)
{
    const int32_t dim = t->dim, R = t->R;
    float factor[ATTN_ROWS];

    for (int r = 0; r < R; r++) {
        vf all = vf_set1(-INFINITY);
        for (int g = 0; g < ATTN_CHUNK; g++) {
            all = t->group[g].k ? vf_max(all, vf_load(t->s + r * ATTN_LANES + g * 16)) : all;
        }
        float best = vf_hmax(all), top = best > t->m[r] ? best : t->m[r];
        factor[r] = t->m[r] == -INFINITY ? 0 : t->m[r] - top;
        t->m[r] = top;
    }
    vf_store_n(factor, vf_exp(vf_load_n(factor, R)), R);
    for (int r = 0; r < R; r++) {
        float *x = t->s + r * ATTN_LANES;
        vf sum = vf_zero(), peak = vf_set1(t->m[r]); /* nothing seen yet: differences are no numbers, weights 0 */
        for (int g = 0; g < ATTN_CHUNK; g++) {
            if (t->group[g].k) {
                vf e = vf_exp(vf_sub(vf_load(x + g * 16), peak));
                vf_store(x + g * 16, e);
                sum = vf_add(sum, e);
            }
        }
        t->l[r] = t->l[r] * factor[r] + vf_sum(sum);
        if (factor[r] != 1.0f) {
            vf f = vf_set1(factor[r]);
            for (int32_t d = 0; d < dim; d += 16) {
                float *y = t->o + (int64_t)r * dim + d;
                vf_store(y, vf_mul(vf_load(y), f));
            }
        }
    }
}

static void wide_chunk(attn_work *t, int32_t chunk)
{
    find_groups(t, t->w->seq, t->w->kv_head, t->last_group, chunk, t->group);
    for (int g = 0; g < ATTN_CHUNK; g++) {
        wide_group(t, g);
    }
    for (int r = 0; r < t->R; r += 16) {
        wide_softmax(t->dim, t->R, t->group, t->s + r, t->m + r, t->l + r, t->o + r);
    }
    for (int32_t d = 0; d < t->dim; d += 16) {
        const float *v[ATTN_CHUNK];
        int32_t step;
        wide_values_table[t->type_id](t->dim, t->group, d, t->room, v, &step);
        wide_weigh_table[t->wide - 1](t->R, t->group, v, step, t->s, t->o + d * t->R);
    }
}

NRD_INLINE void ask_for(const uint8_t *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(p + at, 0, 2);
    }
}

static void narrow_chunk(attn_work *t, int32_t chunk)
{
    const size_t bytes = (size_t)t->dim * NRD_KV_GROUP * t->elem;

    find_groups(t, t->w->seq, t->w->kv_head, t->last_group, chunk, t->group);
    find_next(t, chunk);
    for (int g = 0; g < ATTN_CHUNK; g++) {
        const attn_group *p = &t->group[g];
        if (p->k) {
            t->scores_of(t->dim, p->k, t->q, p->v, t->s + g * 16);
            narrow_group(t, g);
        }
    }
    narrow_softmax(t);
    for (int g = 0; g < ATTN_CHUNK; g++) {
        const attn_group *p = &t->group[g];
        const uint8_t *ahead = t->next[g].k;
        if (ahead && (!p->v || p->n < NRD_KV_GROUP)) { /* weigh asks for as many tokens' as it takes */
            ask_for(ahead, bytes);
        }
        ahead = ahead ? ahead : p->v;
        for (int32_t d = 0; p->v && d < t->dim; d += 16) {
            t->weigh_of(t->dim, p->n, p->v + (size_t)d * t->elem, t->s + g * 16, ahead + (size_t)d * 16 * t->elem, t->o + d);
        }
    }
}

/* The split's sums to the total, or, where the shared part ends within it, to the rows' states. */
static void end_split(attn_work *t, int32_t chunk)
{
    const nrd_attn_tile *w = t->w;
    const int32_t dim = t->dim;
    const float *o = t->o;

    if (t->wide) {
        for (int r = 0; r < t->R; r += 16) {
            for (int32_t d = 0; d < dim; d += 16) {
                const float *columns[16];
                for (int i = 0; i < 16; i++) {
                    columns[i] = t->o + (d + i) * t->R + r;
                }
                turn_rows(16, 1.0f, columns, (t->fresh ? w->total : t->room) + r * dim + d, dim);
            }
        }
        o = t->room;
    }
    if (t->fresh) { /* as merging it with nothing */
        memcpy(w->total_max, t->m, (size_t)t->R * 4);
        memcpy(w->total_sum, t->l, (size_t)t->R * 4);
        t->fresh = false;
        return;
    }
    if (!(t->stops && chunk == t->end && chunk % NRD_ATTN_SPLIT_CHUNKS)) {
        merge_rows(t->R, dim, w->total_max, w->total_sum, w->total, t->m, t->l, o);
        return;
    }
    for (int r = 0; r < t->rows; r++) {
        memcpy(t->row[r].o, o + (int64_t)r * dim, (size_t)dim * 4);
        t->row[r].rest[2] = t->m[r];
        t->row[r].rest[3] = t->l[r];
    }
}

/* Total, total_max, total_sum are filled for all R rows. */
static void attention_tile(const nrd_attn_tile *w)
{
    attn_work t;

    begin_tile(&t, w);
    load_rows(&t);
    find_chunks(&t);
    for (int32_t chunk = t.start; chunk < t.end;) {
        int32_t split_end = (chunk / NRD_ATTN_SPLIT_CHUNKS + 1) * NRD_ATTN_SPLIT_CHUNKS;
        split_end = split_end < t.end ? split_end : t.end;
        begin_split(&t, chunk);
        for (; chunk < split_end; chunk++) {
            if (chunk < t.from_chunk && chunk > t.sink_end) {
                continue;
            }
            if (t.wide) {
                wide_chunk(&t, chunk);
            } else {
                narrow_chunk(&t, chunk);
            }
        }
        end_split(&t, chunk);
    }
    if (t.fresh) { /* nothing was seen */
        memset(w->total, 0, (size_t)(t.R * t.dim) * 4);
    }
    for (int r = 0; t.stops && r < t.rows; r++) {
        memcpy(t.row[r].total, w->total + (int64_t)r * t.dim, (size_t)t.dim * 4);
        t.row[r].rest[0] = w->total_max[r];
        t.row[r].rest[1] = w->total_sum[r];
    }
}
