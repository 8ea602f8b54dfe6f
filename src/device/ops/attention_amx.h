/* SPDX-License-Identifier: Apache-2.0
 * attention of a prompt's rows on the matrix unit (AMX), for instruction set 4: a part of device/ops/attention_cpu.h. See amx.h for the words.
 *
 * Method    As the other forms, chunk by chunk of 64 tokens, with up to NRD_ATTN_MX_ROWS rows: K and V of NRD_ATTN_MX_CHUNKS chunks
 *           become tiles of bfloat16 in L2 once for all of them, and 16 rows at a time go through these. Queries are high + low, two
 *           bfloat16 each. So are float16 caches and the weights that meet them; the product of both low ones is left out.
 *           bfloat16 and int8 caches are one; weights that meet them are cut to one, and so is their sum. Sums are float32.
 *           float32 caches, which encoders have, would lose digits: they keep the other forms.
 *           Scores count in powers of two (log2(e) is in the scale). The maximum that weights refer to moves only when a
 *           chunk's is MX_SLACK above it, so that sums are seldom scaled.
 * Tiles     Pairs of k are (i, 16 + i) of every 32: queries, keys and values then take the same two vectors each.
 * Order     A row's bits depend neither on the rows beside it nor on splits: what it does not see adds zeros, or is left out.
 *           They are not those of the other forms.
 * Bound     head_dim 64, 16 rows and a chunk: 48 dots of 16 cycles, beside which the vector unit makes 64 vectors of weights.
 * Measured  docs/performance/cpu-kernels.md. A store that misses L1 costs as much as six loads from L2 that hit: what is written
 *           (scores, weights, sums) stays in L1, K and V are streamed past it. New rows cost most of a dot: both parts of them
 *           take turns with the tile that they meet.
 */
enum { MX_TILE = 1024, MX_TILES = NRD_ATTN_MX_ROWS / 16 };
#define MX_SLACK 8.0f
#define MX_LOG2_E 1.44269504f
#define MX_LN_2 0.693147181f

typedef struct mx_step { /* 16 rows meet a chunk */
    int8_t tile, at, n_groups; /* at: of the chunks in hand; groups: 2 or 4 */
    bool is_first;             /* of the tile's in a split */
} mx_step;

typedef struct mx_work {
    attn_work t; /* its context; not its rows */
    int n_tiles, n_steps, n_cols;  /* of 16 rows; 32 and 16 of head_dim */
    int n_parts;                   /* of K, V and weights: high, low */
    int32_t pos[NRD_ATTN_MX_ROWS], low[MX_TILES], high[MX_TILES]; /* the last position that a row sees; range of a tile's */
    float m[NRD_ATTN_MX_ROWS];
    bool has_begun[MX_TILES];                 /* anything is in o */
    attn_group group[NRD_ATTN_MX_CHUNKS][ATTN_CHUNK]; /* of the chunks in hand */
    int n_chunks;
    mx_step step[MX_TILES * NRD_ATTN_MX_CHUNKS];
    /* scratch, tiles: q [n_tiles][n_steps][2], k [chunks][n_steps][4 groups][n_parts], v [chunks][2][n_cols][n_parts],
     * p [2][2][n_parts] of bfloat16; sums [rows][dim], l [rows][16] of weights by lane,
     * s [2][16][64] scores of float; o: sums, or where the total lies */
    uint8_t *q, *k, *v, *p;
    float *o, *sums, *l, *s;
    struct mx_job *job; /* what the unit does beside the weights of a step */
    int n_jobs, next;
} mx_work;

/* 2^x, relative error below 2e-7; 0 below 2^-126 and for NaN; x at most 127. */
NRD_INLINE vf mx_exp2(vf x)
{
    const vf magic = vf_set1(0x1.8p23f), t = vf_add(x, magic), f = vf_sub(x, vf_sub(t, magic));
    vf p = vf_fma(vf_set1(1.3264724e-3f), f, vf_set1(9.6715130e-3f));
    p = vf_fma(p, f, vf_set1(5.5507336e-2f));
    p = vf_fma(p, f, vf_set1(2.4022242e-1f));
    p = vf_fma(p, f, vf_set1(6.9314700e-1f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(_mm512_cmp_ps_mask(x, vf_set1(-126.0f), _CMP_GT_OQ), _mm512_castps_si512(p),
                                                      _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* Two vectors' numbers as bfloat16, the first below the second. has_low: rounded, and what that leaves, too; else they are exact. */
NRD_INLINE void mx_split(const bool has_low, vf a, vf b, uint8_t *at)
{
    const vi upper = vi_set1_32((int)0xffff0000u), half = vi_set1_32(0x8000);

    if (!has_low) {
        vi_store(at, vi_bf16_pairs(_mm512_castps_si512(a), _mm512_castps_si512(b)));
        return;
    }
    const vi x = vi_add(_mm512_castps_si512(a), half), y = vi_add(_mm512_castps_si512(b), half);
    const vf c = vf_sub(a, _mm512_castsi512_ps(vi_and(x, upper))), d = vf_sub(b, _mm512_castsi512_ps(vi_and(y, upper)));
    vi_store(at, vi_bf16_pairs(x, y));
    vi_store(at + MX_TILE, vi_bf16_pairs(vi_add(_mm512_castps_si512(c), half), vi_add(_mm512_castps_si512(d), half)));
}

/* ---- a chunk's tiles ---- */

/* K of group g, which may be nowhere. */
NRD_KERNEL void mx_keys(const int type, const bool has_low, int32_t dim, const uint8_t *k, uint8_t *tile, int64_t step)
{
    for (int32_t d = 0; d < dim; d += 32, tile += step) {
        const bool both = d + 16 < dim;
        NRD_UNROLL
        for (int i = 0; i < 16; i++) {
            const vf a = k ? kv_load(type, k, (int64_t)(d + i) * 16) : vf_zero();
            const vf b = k && both ? kv_load(type, k, (int64_t)(d + 16 + i) * 16) : vf_zero();
            mx_split(has_low, a, b, tile + i * 64);
        }
    }
}

/* V of two groups; what is not there is zero, for what is in memory may be no number. */
NRD_KERNEL void mx_values(const int type, const bool has_low, int32_t dim, const attn_group *group, uint8_t *tile)
{
    const int n0 = group[0].v ? group[0].n : 0, n1 = group[1].v ? group[1].n : 0, step = has_low ? 2 * MX_TILE : MX_TILE;

    for (int i = 0; i < 16; i++, tile += 64) {
        for (int32_t d = 0; d < dim; d += 16) {
            const vf a = i < n0 ? kv_load(type, group[0].v, (int64_t)i * dim + d) : vf_zero();
            const vf b = i < n1 ? kv_load(type, group[1].v, (int64_t)i * dim + d) : vf_zero();
            mx_split(has_low, a, b, tile + d / 16 * step);
        }
    }
}

#define MX_TYPE(type, has_low)                                                                     \
    static void mx_chunk_##type(const mx_work *x, const attn_group *group, uint8_t *k, uint8_t *v) \
    {                                                                                              \
        const int32_t dim = x->t.dim;                                                              \
        for (int g = 0; g < ATTN_CHUNK; g++) {                                                     \
            mx_keys(NRD_DTYPE_##type, has_low, dim, group[g].k, k + g * x->n_parts * MX_TILE,      \
                    ATTN_CHUNK * x->n_parts * MX_TILE);                                            \
        }                                                                                          \
        for (int g = 0; g < ATTN_CHUNK; g += 2) {                                                  \
            mx_values(NRD_DTYPE_##type, has_low, dim, group + g, v + g / 2 * x->n_cols * x->n_parts * MX_TILE); \
        }                                                                                          \
    }
MX_TYPE(F16, true)
MX_TYPE(BF16, false)
MX_TYPE(I8, false)
static void (*const mx_chunk_table[3])(const mx_work *x, const attn_group *group, uint8_t *k, uint8_t *v) = {
    mx_chunk_F16, mx_chunk_BF16, mx_chunk_I8}; /* by type_id - 1 */

/* ---- products: sums 0 to 3, rows 4 (high) and 5 (low), tiles 6 and 7 ---- */

/* The unit works beside the vector unit if its instructions come in small portions between those of the weights: the processor looks
 * some 500 steps ahead, of which loading a tile takes eight. A sum is ready 52 cycles after a dot, and the next dot can begin after 16,
 * so sums take turns. */
enum { MX_ZERO, MX_LOAD = 3, MX_STORE = 6, MX_HIGH = 9, /* rows' high parts meet tiles; and 0, 1, 2 for S = 1, 2, 4 */
       MX_BOTH = 12 };                                  /* high and low; 0: sum 0; 1: 0 and 1; 2: 2 and 3 */
typedef struct mx_job {
    const uint8_t *rows; /* of MX_HIGH, MX_BOTH; NULL: they are in their registers */
    uint8_t *at;         /* the first of the tiles that the rows meet, or of sums */
    int32_t kind, step;  /* bytes from tile to tile, or of sums from row to row */
} mx_job;

NRD_INLINE void mx_zeros(const int S)
{
    mx_zero(0);
    if (S > 1) {
        mx_zero(1);
    }
    if (S > 2) {
        mx_zero(2);
        mx_zero(3);
    }
}

#define MX_EACH(word, j)                                                                           \
    do {                                                                                           \
        word(0, (j)->at, (j)->step);                                                               \
        if (S > 1) {                                                                               \
            word(1, (j)->at + 64, (j)->step);                                                      \
        }                                                                                          \
        if (S > 2) {                                                                               \
            word(2, (j)->at + 128, (j)->step);                                                     \
            word(3, (j)->at + 192, (j)->step);                                                     \
        }                                                                                          \
    } while (0)

NRD_INLINE void mx_loads(const int S, const mx_job *j)
{
    MX_EACH(mx_load, j);
}

NRD_INLINE void mx_stores(const int S, const mx_job *j)
{
    MX_EACH(mx_store, j);
}

NRD_INLINE void mx_meet(const int S, const mx_job *j)
{
    if (j->rows) {
        mx_load(4, j->rows, 64);
    }
    mx_stream(6, j->at, 64);
    mx_dot_bf16(0, 4, 6);
    if (S > 1) {
        mx_stream(7, j->at + j->step, 64);
        mx_dot_bf16(1, 4, 7);
    }
    if (S > 2) {
        mx_stream(6, j->at + 2 * j->step, 64);
        mx_dot_bf16(2, 4, 6);
        mx_stream(7, j->at + 3 * j->step, 64);
        mx_dot_bf16(3, 4, 7);
    }
}

NRD_INLINE void mx_meet_both(const int S, const mx_job *j)
{
    if (j->rows) {
        mx_load(4, j->rows, 64);
        mx_load(5, j->rows + MX_TILE, 64);
    }
    mx_stream(6, j->at, 64);
    if (S < 4) {
        mx_dot_bf16(0, 4, 6);
        if (S > 1) {
            mx_stream(7, j->at + j->step, 64);
            mx_dot_bf16(1, 4, 7);
        }
        mx_dot_bf16(0, 5, 6);
        if (S > 1) {
            mx_dot_bf16(1, 5, 7);
        }
    } else {
        mx_dot_bf16(2, 4, 6);
        mx_stream(7, j->at + j->step, 64);
        mx_dot_bf16(3, 4, 7);
        mx_dot_bf16(2, 5, 6);
        mx_dot_bf16(3, 5, 7);
    }
}

#define MX_CASES(kind, call, ...)                                                                  \
    case kind:                                                                                     \
        call(1, ##__VA_ARGS__);                                                                    \
        break;                                                                                     \
    case kind + 1:                                                                                 \
        call(2, ##__VA_ARGS__);                                                                    \
        break;                                                                                     \
    case kind + 2:                                                                                 \
        call(4, ##__VA_ARGS__);                                                                    \
        break
/* Goes on with what the unit has to do, up to job `end`. */
NRD_INLINE void mx_go_on(mx_work *x, int end)
{
    for (; x->next < end; x->next++) {
        const mx_job *j = &x->job[x->next];
        switch (j->kind) {
            MX_CASES(MX_ZERO, mx_zeros);
            MX_CASES(MX_LOAD, mx_loads, j);
            MX_CASES(MX_STORE, mx_stores, j);
            MX_CASES(MX_HIGH, mx_meet, j);
            MX_CASES(MX_BOTH, mx_meet_both, j);
        }
    }
}

/* Sums += rows of n steps times tiles, which are `apart` from step to step. form: 0, 1, 2 for 1, 2, 4 sums. */
static void mx_add_meetings(mx_work *x, int form, const uint8_t *rows, int row_parts, uint8_t *at, int n, int64_t apart)
{
    const int32_t step = x->n_parts * MX_TILE;

    for (int j = 0; j < n; j++, rows += row_parts * MX_TILE, at += apart) {
        if (row_parts > 1) {
            x->job[x->n_jobs++] = (mx_job){rows, at, MX_BOTH + (form > 0), step};
        } else {
            x->job[x->n_jobs++] = (mx_job){rows, at, MX_HIGH + form, step};
        }
        if (row_parts > 1 && form == 2) {
            x->job[x->n_jobs++] = (mx_job){NULL, at + 2 * step, MX_BOTH + 2, step};
        }
        if (x->n_parts > 1) {
            x->job[x->n_jobs++] = (mx_job){NULL, at + MX_TILE, MX_HIGH + form, step};
        }
    }
}

/* The scores of a step. */
static void mx_add_scores(mx_work *x, const mx_step *i, float *s)
{
    const int form = i->n_groups / 2;
    const int64_t apart = ATTN_CHUNK * x->n_parts * MX_TILE;

    x->job[x->n_jobs++] = (mx_job){NULL, NULL, MX_ZERO + form, 0};
    mx_add_meetings(x, form, x->q + i->tile * x->n_steps * 2 * MX_TILE, 2, x->k + i->at * x->n_steps * apart, x->n_steps, apart);
    x->job[x->n_jobs++] = (mx_job){NULL, (uint8_t *)s, MX_STORE + form, ATTN_LANES * 4};
}

/* What a step's weights make of V. */
static void mx_add_values(mx_work *x, const mx_step *i, const uint8_t *p)
{
    const int64_t apart = x->n_cols * x->n_parts * MX_TILE;

    for (int c = 0, S; c < x->n_cols; c += S) {
        uint8_t *o = (uint8_t *)(x->o + i->tile * 16 * x->t.dim + c * 16);
        S = x->n_cols - c >= 4 ? 4 : x->n_cols - c >= 2 ? 2 : 1;
        x->job[x->n_jobs++] = (mx_job){NULL, o, (i->is_first ? MX_ZERO : MX_LOAD) + S / 2, x->t.dim * 4};
        mx_add_meetings(x, S / 2, p, x->n_parts, x->v + i->at * 2 * apart + c * x->n_parts * MX_TILE, i->n_groups / 2, apart);
        x->job[x->n_jobs++] = (mx_job){NULL, o, MX_STORE + S / 2, x->t.dim * 4};
    }
}

/* ---- weights ---- */

/* The lanes of a group that a row sees. */
NRD_INLINE uint32_t mx_lanes(const nrd_attention_args *a, const attn_group *g, int32_t pos)
{
    int32_t n = pos - g->pos + 1, from, sink;

    n = n < g->n ? n : g->n;
    if (!g->k || n <= 0) {
        return 0;
    }
    if (a->window <= 0) {
        return (1u << n) - 1;
    }
    from = nrd_attention_unseen(a, pos) + 1 - g->pos;
    from = from < 0 ? 0 : from < 16 ? from : 16;
    sink = a->n_sink - g->pos;
    sink = sink < 0 ? 0 : sink < 16 ? sink : 16;
    return ((1u << n) - 1) & (~((1u << from) - 1) | ((1u << sink) - 1));
}

static void mx_mask(const mx_work *x, int tile, const attn_group *group, int n_groups, float *s)
{
    for (int g = 0; g < n_groups; g++) {
        for (int r = 0; r < 16; r++) {
            const __mmask16 lanes = (__mmask16)mx_lanes(x->t.a, &group[g], x->pos[tile * 16 + r]);
            float *at = s + r * ATTN_LANES + g * 16;
            vf_store(at, _mm512_mask_blend_ps(lanes, vf_set1(-INFINITY), vf_load(at)));
        }
    }
}

/* What rows summed up with weights that refer to another maximum. */
static void mx_rescale(const mx_work *x, int tile, uint32_t rows, vf factor)
{
    float by[16];

    vf_store(by, factor);
    for (; rows; rows &= rows - 1) {
        const int r = tile * 16 + __builtin_ctz(rows);
        const vf f = vf_set1(by[r % 16]);
        vf_store(x->l + r * 16, vf_mul(vf_load(x->l + r * 16), f));
        for (float *o = x->o + r * x->t.dim, *end = o + x->t.dim; o < end; o += 16) {
            vf_store(o, vf_mul(vf_load(o), f));
        }
    }
}

/* Scores of 16 rows and G groups become weights, while the unit goes through its jobs. */
NRD_KERNEL void mx_softmax(const int G, const bool has_low, mx_work *x, int tile, const float *s, uint8_t *p)
{
    float *m = x->m + tile * 16, *sum = x->l + tile * 256;
    vf best[16];

    NRD_UNROLL
    for (int r = 0; r < 16; r++) {
        const float *at = s + r * ATTN_LANES;
        best[r] = vf_max(vf_load(at), vf_load(at + 16));
        if (G > 2) {
            best[r] = vf_max(best[r], vf_max(vf_load(at + 32), vf_load(at + 48)));
        }
    }
    mx_go_on(x, (x->n_jobs + 16) / 17);
    const vf old = vf_load(m), top = vf_hmax_16(best), limit = vf_add(old, vf_set1(MX_SLACK));
    const uint32_t rows = vf_gt_bits(top, limit);
    if (rows) {
        const vf now = vf_gt(top, limit, top, old);
        const uint32_t summed = rows & vf_gt_bits(old, vf_set1(-INFINITY));
        vf_store(m, now);
        if (summed) { /* when what came before is in */
            mx_go_on(x, x->n_jobs);
            mx_rescale(x, tile, summed, mx_exp2(vf_sub(old, now)));
        }
    }
    for (int r = 0; r < 16; r++) {
        const vf peak = vf_set1(m[r]); /* nothing seen yet: differences are no numbers, weights 0 */
        vf e[4], all;
        NRD_UNROLL
        for (int g = 0; g < G; g++) {
            e[g] = mx_exp2(vf_sub(vf_load(s + r * ATTN_LANES + g * 16), peak));
        }
        if (!has_low) { /* cut, and so is their sum */
            NRD_UNROLL
            for (int g = 0; g < G; g++) {
                e[g] = _mm512_castsi512_ps(vi_and(_mm512_castps_si512(e[g]), vi_set1_32((int)0xffff0000u)));
            }
        }
        all = vf_add(e[0], e[1]);
        mx_split(has_low, e[0], e[1], p + r * 64);
        if (G > 2) {
            all = vf_add(all, vf_add(e[2], e[3]));
            mx_split(has_low, e[2], e[3], p + (has_low ? 2 : 1) * MX_TILE + r * 64);
        }
        vf_store(sum + r * 16, vf_add(vf_load(sum + r * 16), all));
        mx_go_on(x, (x->n_jobs * (r + 2) + 16) / 17);
    }
}

/* ---- a tile ---- */

/* The groups of a chunk, in pairs, up to the last that a row of the tile sees; 0: none. */
static int mx_groups(const mx_work *x, const attn_group *g, int tile)
{
    const nrd_attention_args *a = x->t.a;
    const int32_t end = g[ATTN_CHUNK - 1].pos + g[ATTN_CHUNK - 1].n; /* groups that are nowhere have positions, too */

    if (g[0].pos > x->high[tile] || (a->window > 0 && end <= nrd_attention_unseen(a, x->low[tile]) + 1 && g[0].pos >= a->n_sink)) {
        return 0;
    }
    return g[2].pos > x->high[tile] ? 2 : 4;
}

/* A step's scores become weights. */
static void mx_weights(mx_work *x, const mx_step *i, float *s, uint8_t *p)
{
    const nrd_attention_args *a = x->t.a;
    const attn_group *group = x->group[i->at];
    const int tile = i->tile, G = i->n_groups;
    bool all = true;

    for (int g = 0; g < G; g++) {
        all = all && group[g].k && sees_all(a, x->t.first_new, x->low[tile], &group[g]) &&
              sees_all(a, x->t.first_new, x->high[tile], &group[g]);
    }
    if (a->softcap > 0) {
        cap_scores(a->softcap * MX_LOG2_E, s, 16 * ATTN_CHUNK, 16);
    }
    if (!all) {
        mx_mask(x, tile, group, G, s);
    }
    if (x->n_parts > 1) {
        if (G > 2) {
            mx_softmax(4, true, x, tile, s, p);
        } else {
            mx_softmax(2, true, x, tile, s, p);
        }
    } else if (G > 2) {
        mx_softmax(4, false, x, tile, s, p);
    } else {
        mx_softmax(2, false, x, tile, s, p);
    }
}

/* Goes through the chunks in hand. While a step's scores become weights, the unit takes the next one's scores, and V for the one before. */
static void mx_go_through(mx_work *x)
{
    int n = 0;

    for (int tile = 0; tile < x->n_tiles; tile++) {
        for (int at = 0; at < x->n_chunks; at++) {
            const int groups = mx_groups(x, x->group[at], tile);
            if (groups > 0) {
                x->step[n++] = (mx_step){(int8_t)tile, (int8_t)at, (int8_t)groups, !x->has_begun[tile]};
                x->has_begun[tile] = true;
            }
        }
    }
    for (int i = -1; n > 0 && i <= n; i++) {
        x->n_jobs = x->next = 0;
        if (i + 1 < n) {
            mx_add_scores(x, &x->step[i + 1], x->s + (i + 1) % 2 * 1024);
        }
        if (i > 0) {
            mx_add_values(x, &x->step[i - 1], x->p + (i - 1) % 2 * 4 * MX_TILE);
        }
        if (i >= 0 && i < n) {
            mx_weights(x, &x->step[i], x->s + i % 2 * 1024, x->p + i % 2 * 4 * MX_TILE);
        }
        mx_go_on(x, x->n_jobs);
    }
    x->n_chunks = 0;
}

/* Where rows are, and their queries, scaled. The padding repeats the last row. */
static void mx_rows(mx_work *x)
{
    attn_work *t = &x->t;
    const nrd_attn_tile *w = t->w;
    const nrd_attention_args *a = t->a;
    const int32_t dim = t->dim;
    const int64_t q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * dim;
    const vf scale = vf_set1(a->scale * nrd_kv_scale(&a->kv, w->kv_head, false) * MX_LOG2_E);

    t->min_pos = INT32_MAX;
    t->max_pos = 0;
    for (int r = 0, token = w->token, head = w->head; r < x->n_tiles * 16; r++) {
        const int tile = r / 16;
        const int32_t pos = a->batch->positions[token] + a->ahead;
        const float *q = (const float *)a->q + token * q_stride + (int64_t)head * dim;
        uint8_t *at = x->q + tile * x->n_steps * 2 * MX_TILE + r % 16 * 64;
        x->pos[r] = pos;
        x->low[tile] = r % 16 == 0 || pos < x->low[tile] ? pos : x->low[tile];
        x->high[tile] = r % 16 == 0 || pos > x->high[tile] ? pos : x->high[tile];
        t->min_pos = pos < t->min_pos ? pos : t->min_pos;
        t->max_pos = pos > t->max_pos ? pos : t->max_pos;
        for (int32_t d = 0; d < dim; d += 32, at += 2 * MX_TILE) {
            mx_split(true, vf_mul(vf_load(q + d), scale), d + 16 < dim ? vf_mul(vf_load(q + d + 16), scale) : vf_zero(), at);
        }
        if (r + 1 < t->rows && ++head == w->head + w->n_heads) {
            head = w->head;
            token++;
        }
    }
}

/* The first split's sums are the total. */
static void mx_begin_split(mx_work *x)
{
    x->o = x->t.fresh ? x->t.w->total : x->sums;
    memset(x->has_begun, 0, sizeof x->has_begun);
    memset(x->l, 0, (size_t)x->n_tiles * MX_TILE);
    for (int r = 0; r < x->n_tiles * 16; r++) {
        x->m[r] = -INFINITY;
    }
}

static void mx_end_split(mx_work *x)
{
    const nrd_attn_tile *w = x->t.w;
    const int32_t dim = x->t.dim;
    float l[16];

    for (int i = 0; i < x->n_tiles; i++) {
        float *m = x->m + i * 16, *o = x->o + i * 16 * dim;
        if (!x->has_begun[i]) {
            memset(o, 0, (size_t)(16 * dim) * 4);
        }
        for (int r = 0; r < 16; r++) {
            l[r] = vf_sum(vf_load(x->l + (i * 16 + r) * 16));
        }
        vf_store(m, vf_mul(vf_load(m), vf_set1(MX_LN_2)));
        if (x->t.fresh) {
            memcpy(w->total_max + i * 16, m, sizeof l);
            memcpy(w->total_sum + i * 16, l, sizeof l);
        } else {
            merge_rows(16, dim, w->total_max + i * 16, w->total_sum + i * 16, w->total + i * 16 * dim, m, l, o);
        }
    }
    x->t.fresh = false;
}

/* As attention_tile, of a sequence's rows without a state, tree or biases, over a cache that is not float32. */
static void attention_mx(const nrd_attn_tile *w)
{
    static const mx_config config = {.palette = 1,
                                     .rows = {16, 16, 16, 16, 16, 16, 16, 16},
                                     .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    const int32_t dim = w->a->kv.head_dim;
    mx_work x;
    attn_work *t = &x.t;

    begin_tile(t, w);
    x.n_tiles = (t->rows + 15) / 16;
    x.n_steps = (dim + 31) / 32;
    x.n_cols = dim / 16;
    x.n_parts = t->type_id == 1 ? 2 : 1;
    x.n_chunks = 0;
    x.s = w->scratch;
    x.p = (uint8_t *)(x.s + 2 * 1024);
    x.k = x.p + 8 * MX_TILE;
    x.v = x.k + NRD_ATTN_MX_CHUNKS * ATTN_CHUNK * x.n_steps * 2 * MX_TILE;
    x.q = x.v + NRD_ATTN_MX_CHUNKS * 4 * x.n_cols * MX_TILE;
    x.l = (float *)(void *)(x.q + x.n_tiles * x.n_steps * 2 * MX_TILE);
    x.sums = x.l + x.n_tiles * 256;
    x.job = (mx_job *)(void *)(x.sums + x.n_tiles * x.n_cols * 256);
    mx_rows(&x);
    find_chunks(t);
    t->fresh = true;
    mx_configure(&config);
    for (int32_t chunk = t->start; chunk < t->end;) {
        int32_t split_end = (chunk / NRD_ATTN_SPLIT_CHUNKS + 1) * NRD_ATTN_SPLIT_CHUNKS;
        split_end = split_end < t->end ? split_end : t->end;
        mx_begin_split(&x);
        for (; chunk < split_end; chunk++) {
            if (chunk >= t->from_chunk || chunk <= t->sink_end) {
                attn_group *group = x.group[x.n_chunks];
                find_groups(t, w->seq, w->kv_head, t->last_group, chunk, group);
                mx_chunk_table[t->type_id - 1](&x, group, x.k + x.n_chunks * x.n_steps * ATTN_CHUNK * x.n_parts * MX_TILE,
                                           x.v + x.n_chunks * 2 * x.n_cols * x.n_parts * MX_TILE);
                x.n_chunks++;
            }
            if (x.n_chunks == NRD_ATTN_MX_CHUNKS || chunk + 1 == split_end) {
                mx_go_through(&x);
            }
        }
        mx_end_split(&x);
    }
    mx_release();
    for (int r = 0; t->fresh && r < x.n_tiles * 16; r++) { /* nothing was seen */
        w->total_max[r] = -INFINITY;
        w->total_sum[r] = 0;
        memset(w->total + r * dim, 0, (size_t)dim * 4);
    }
}
