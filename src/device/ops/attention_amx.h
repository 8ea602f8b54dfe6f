/* SPDX-License-Identifier: Apache-2.0
 * attention of a prompt's rows on the matrix unit (AMX), for instruction set 4: a part of device/ops/attention_cpu.h. See amx.h for the words.
 *
 * Method    As the other forms, chunk by chunk of 64 tokens, with up to NRD_ATTN_MX_ROWS rows: a chunk's K and V become tiles of
 *           bfloat16 once for all of them, 16 rows at a time meet them. Queries and weights are high + low, two bfloat16 each, and so
 *           are float32 and float16 caches; the product of both low ones is left out. bfloat16 and int8 are exact. Sums are float32.
 *           Scores count in powers of two (log2(e) is in the scale). The maximum that weights refer to moves only when a
 *           chunk's is MX_SLACK above it, so that sums are seldom scaled.
 * Tiles     Pairs of k are (i, 16 + i) of every 32: queries, keys and values then take the same two vectors each.
 * Order     A row's bits depend neither on the rows beside it nor on splits: what it does not see adds zeros, or is left out.
 *           They are not those of the other forms.
 * Overlap   Products of the next 16 rows are under way while the vector unit weighs these.
 * Bound     head_dim 64, 16 rows and a chunk: 48 dots, 768 cycles; 64 vectors of weights.
 */
enum { MX_TILE = 1024, MX_TILES = NRD_ATTN_MX_ROWS / 16 };
#define MX_SLACK 8.0f
#define MX_LOG2_E 1.44269504f
#define MX_LN_2 0.693147181f

typedef struct mx_work {
    attn_work t; /* its context; not its rows */
    int n_tiles, n_steps, n_cols; /* of 16 rows; 32 and 16 of head_dim */
    int n_parts;                  /* of K and V: high, low */
    int32_t pos[NRD_ATTN_MX_ROWS], low[MX_TILES], high[MX_TILES]; /* the last position that a row sees; range of a tile's */
    float m[NRD_ATTN_MX_ROWS];
    /* scratch, tiles: q [n_tiles][n_steps][2], k [n_steps][4 groups][n_parts], v [2][n_cols][n_parts], p [2][2] of bfloat16;
     * o [n_tiles][n_cols + 1] sums, the last of weights by lane, s [2][4 groups] scores of float */
    uint8_t *q, *k, *v, *p;
    float *o, *s;
} mx_work;

/* 2^x, relative error below 3e-6; 0 below 2^-126 and for NaN; x at most 127. */
NRD_INLINE vf mx_exp2(vf x)
{
    const vf magic = vf_set1(0x1.8p23f), t = vf_add(x, magic), f = vf_sub(x, vf_sub(t, magic));
    vf p = vf_fma(vf_set1(9.582852945e-3f), f, vf_set1(5.590642616e-2f));
    p = vf_fma(p, f, vf_set1(2.4024099112e-1f));
    p = vf_fma(p, f, vf_set1(6.9312417507e-1f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(_mm512_cmp_ps_mask(x, vf_set1(-126.0f), _CMP_GT_OQ), _mm512_castps_si512(p),
                                                      _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* The bfloat16 above two vectors' numbers, the first below the second, and with has_low what that leaves, rounded. */
NRD_INLINE void mx_split(const bool has_low, vf a, vf b, uint8_t *at)
{
    const vi upper = vi_set1_32((int)0xffff0000u), half = vi_set1_32(0x8000);

    vi_store(at, vi_bf16_pairs(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    if (has_low) {
        const vf x = vf_sub(a, _mm512_castsi512_ps(vi_and(_mm512_castps_si512(a), upper)));
        const vf y = vf_sub(b, _mm512_castsi512_ps(vi_and(_mm512_castps_si512(b), upper)));
        vi_store(at + MX_TILE, vi_bf16_pairs(vi_add(_mm512_castps_si512(x), half), vi_add(_mm512_castps_si512(y), half)));
    }
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
    static void mx_chunk_##type(const mx_work *x)                                                  \
    {                                                                                              \
        const int32_t dim = x->t.dim;                                                              \
        for (int g = 0; g < ATTN_CHUNK; g++) {                                                     \
            mx_keys(NRD_DTYPE_##type, has_low, dim, x->t.group[g].k, x->k + g * x->n_parts * MX_TILE, \
                    ATTN_CHUNK * x->n_parts * MX_TILE);                                            \
        }                                                                                          \
        for (int g = 0; g < ATTN_CHUNK; g += 2) {                                                  \
            mx_values(NRD_DTYPE_##type, has_low, dim, x->t.group + g, x->v + g / 2 * x->n_cols * x->n_parts * MX_TILE); \
        }                                                                                          \
    }
MX_TYPE(F32, true)
MX_TYPE(F16, true)
MX_TYPE(BF16, false)
MX_TYPE(I8, false)
static void (*const mx_chunk_table[4])(const mx_work *x) = {mx_chunk_F32, mx_chunk_F16, mx_chunk_BF16, mx_chunk_I8};

/* ---- products: sums 0 to 3, high of the rows 4, low 5, tiles 6 and 7 ---- */

/* Rows in register a with S tiles `step` bytes apart. Sums take turns: one is ready 52 cycles after a dot, the next dot after 16. */
#define MX_MEET(a, w)                                                                              \
    do {                                                                                           \
        mx_load(6, w, 64);                                                                         \
        mx_dot_bf16(0, a, 6);                                                                      \
        if (S > 1) {                                                                               \
            mx_load(7, (w) + step, 64);                                                            \
            mx_dot_bf16(1, a, 7);                                                                  \
        }                                                                                          \
        if (S > 2) {                                                                               \
            mx_load(6, (w) + 2 * step, 64);                                                        \
            mx_dot_bf16(2, a, 6);                                                                  \
            mx_load(7, (w) + 3 * step, 64);                                                        \
            mx_dot_bf16(3, a, 7);                                                                  \
        }                                                                                          \
    } while (0)
#define MX_EACH(word, at)                                                                          \
    do {                                                                                           \
        word(0, at, 64);                                                                           \
        if (S > 1) {                                                                               \
            word(1, (at) + 256, 64);                                                               \
        }                                                                                          \
        if (S > 2) {                                                                               \
            word(2, (at) + 512, 64);                                                               \
            word(3, (at) + 768, 64);                                                               \
        }                                                                                          \
    } while (0)
#define MX_ZERO(c, at, step) mx_zero(c)

/* y[S][16][16] (+)= rows of n steps, high and low, times tiles [n][n_tiles of step bytes]. */
NRD_KERNEL void mx_meet(const int S, const bool has_low, const bool is_first, const uint8_t *rows, const uint8_t *tile, int n_tiles, int n,
                        float *y)
{
    const int64_t step = has_low ? 2 * MX_TILE : MX_TILE;

    if (is_first) {
        MX_EACH(MX_ZERO, y);
    } else {
        MX_EACH(mx_load, y);
    }
    for (int j = 0; j < n; j++, rows += 2 * MX_TILE, tile += n_tiles * step) {
        mx_load(4, rows, 64);
        MX_MEET(4, tile);
        mx_load(5, rows + MX_TILE, 64);
        MX_MEET(5, tile);
        if (has_low) {
            MX_MEET(4, tile + MX_TILE);
        }
    }
    MX_EACH(mx_store, y);
}

#define MX_FORM(S, name, has_low)                                                                  \
    static void mx_scores_##name##_##S(const mx_work *x, const uint8_t *q, float *s)               \
    {                                                                                              \
        mx_meet(S, has_low, true, q, x->k, ATTN_CHUNK, x->n_steps, s);                             \
    }                                                                                              \
    static void mx_weigh_##name##_##S(const mx_work *x, int n, const uint8_t *v, float *o)         \
    {                                                                                              \
        mx_meet(S, has_low, false, x->p, v, x->n_cols, n, o);                                      \
    }
MX_FORM(1, exact, false)
MX_FORM(2, exact, false)
MX_FORM(4, exact, false)
MX_FORM(1, both, true)
MX_FORM(2, both, true)
MX_FORM(4, both, true)
typedef void (*mx_scores_fn)(const mx_work *x, const uint8_t *q, float *s);
typedef void (*mx_weigh_fn)(const mx_work *x, int n, const uint8_t *v, float *o);
static const mx_scores_fn mx_scores_table[2][3] = {{mx_scores_exact_1, mx_scores_exact_2, mx_scores_exact_4},
                                                   {mx_scores_both_1, mx_scores_both_2, mx_scores_both_4}};
static const mx_weigh_fn mx_weigh_table[2][3] = {{mx_weigh_exact_1, mx_weigh_exact_2, mx_weigh_exact_4},
                                                 {mx_weigh_both_1, mx_weigh_both_2, mx_weigh_both_4}};

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

static void mx_mask(const mx_work *x, int tile, int n_groups, float *s)
{
    for (int g = 0; g < n_groups; g++) {
        for (int r = 0; r < 16; r++) {
            const __mmask16 lanes = (__mmask16)mx_lanes(x->t.a, &x->t.group[g], x->pos[tile * 16 + r]);
            float *at = s + (g * 16 + r) * 16;
            vf_store(at, _mm512_mask_blend_ps(lanes, vf_set1(-INFINITY), vf_load(at)));
        }
    }
}

/* What rows summed up with weights that refer to another maximum. */
static void mx_rescale(const mx_work *x, int tile, uint32_t rows, vf factor)
{
    float by[16], *o = x->o + tile * (x->n_cols + 1) * 256;

    vf_store(by, factor);
    for (; rows; rows &= rows - 1) {
        const int r = __builtin_ctz(rows);
        const vf f = vf_set1(by[r]);
        for (int c = 0; c <= x->n_cols; c++) {
            vf_store(o + c * 256 + r * 16, vf_mul(vf_load(o + c * 256 + r * 16), f));
        }
    }
}

/* Scores of 16 rows and G groups become weights, in x->p. */
NRD_KERNEL void mx_softmax(const int G, mx_work *x, int tile, const float *s)
{
    float *m = x->m + tile * 16, *sum = x->o + (tile * (x->n_cols + 1) + x->n_cols) * 256;
    vf best[16];

    NRD_UNROLL
    for (int r = 0; r < 16; r++) {
        best[r] = vf_max(vf_load(s + r * 16), vf_load(s + (16 + r) * 16));
        if (G > 2) {
            best[r] = vf_max(best[r], vf_max(vf_load(s + (32 + r) * 16), vf_load(s + (48 + r) * 16)));
        }
    }
    const vf old = vf_load(m), top = vf_hmax_16(best), limit = vf_add(old, vf_set1(MX_SLACK));
    const uint32_t rows = vf_gt_bits(top, limit);
    if (rows) { /* nothing seen before: -inf */
        const vf now = vf_gt(top, limit, top, old);
        vf_store(m, now);
        mx_rescale(x, tile, rows, mx_exp2(vf_sub(old, now)));
    }
    for (int r = 0; r < 16; r++) {
        const vf peak = vf_set1(m[r]); /* nothing seen yet: differences are no numbers, weights 0 */
        vf e[4], all;
        NRD_UNROLL
        for (int g = 0; g < G; g++) {
            e[g] = mx_exp2(vf_sub(vf_load(s + (g * 16 + r) * 16), peak));
        }
        all = vf_add(e[0], e[1]);
        mx_split(true, e[0], e[1], x->p + r * 64);
        if (G > 2) {
            all = vf_add(all, vf_add(e[2], e[3]));
            mx_split(true, e[2], e[3], x->p + 2 * MX_TILE + r * 64);
        }
        vf_store(sum + r * 16, vf_add(vf_load(sum + r * 16), all));
    }
}

/* ---- a tile ---- */

/* The groups of the chunk, in pairs, up to the last that a row of the tile sees; 0: none. */
static int mx_groups(const mx_work *x, int tile)
{
    const nrd_attention_args *a = x->t.a;
    const attn_group *g = x->t.group;
    const int32_t end = g[ATTN_CHUNK - 1].pos + g[ATTN_CHUNK - 1].n; /* groups that are nowhere have positions, too */

    if (g[0].pos > x->high[tile] || (a->window > 0 && end <= nrd_attention_unseen(a, x->low[tile]) + 1 && g[0].pos >= a->n_sink)) {
        return 0;
    }
    return g[2].pos > x->high[tile] ? 2 : 4;
}

/* Scores that were begun become weights, and their share of V is added. */
static void mx_go_on(mx_work *x, int tile, int n_groups, float *s)
{
    const nrd_attention_args *a = x->t.a;
    const bool has_low = x->n_parts > 1;
    bool all = true;

    for (int g = 0; g < n_groups; g++) {
        const attn_group *p = &x->t.group[g];
        all = all && p->k && sees_all(a, x->t.first_new, x->low[tile], p) && sees_all(a, x->t.first_new, x->high[tile], p);
    }
    if (a->softcap > 0) {
        cap_scores(a->softcap * MX_LOG2_E, s, n_groups * 16, 16);
    }
    if (!all) {
        mx_mask(x, tile, n_groups, s);
    }
    if (n_groups > 2) {
        mx_softmax(4, x, tile, s);
    } else {
        mx_softmax(2, x, tile, s);
    }
    for (int c = 0, S; c < x->n_cols; c += S) {
        S = x->n_cols - c >= 4 ? 4 : x->n_cols - c >= 2 ? 2 : 1;
        mx_weigh_table[has_low][S / 2](x, n_groups / 2, x->v + c * x->n_parts * MX_TILE, x->o + (tile * (x->n_cols + 1) + c) * 256);
    }
}

static void mx_chunk(mx_work *x, int32_t chunk)
{
    const bool has_low = x->n_parts > 1;
    int before = -1, n_before = 0, flip = 0;

    find_groups(&x->t, x->t.w->seq, x->t.w->kv_head, x->t.last_group, chunk, x->t.group);
    mx_chunk_table[x->t.type_id](x);
    for (int i = 0; i <= x->n_tiles; i++) {
        const int n = i < x->n_tiles ? mx_groups(x, i) : 0;
        if (n == 0 && i < x->n_tiles) {
            continue;
        }
        if (n > 0) {
            mx_scores_table[has_low][n / 2](x, x->q + i * x->n_steps * 2 * MX_TILE, x->s + flip * 1024);
        }
        if (before >= 0) {
            mx_go_on(x, before, n_before, x->s + (1 - flip) * 1024);
        }
        before = i;
        n_before = n;
        flip = 1 - flip;
    }
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
    for (int r = 0; r < x->n_tiles * 16; r++) {
        const int row = r < t->rows ? r : t->rows - 1, tile = r / 16, token = w->token + row / w->n_heads;
        const int32_t pos = a->batch->positions[token] + a->ahead;
        const float *q = (const float *)a->q + token * q_stride + (int64_t)(w->head + row % w->n_heads) * dim;
        uint8_t *at = x->q + tile * x->n_steps * 2 * MX_TILE + r % 16 * 64;
        x->pos[r] = pos;
        x->low[tile] = r % 16 == 0 || pos < x->low[tile] ? pos : x->low[tile];
        x->high[tile] = r % 16 == 0 || pos > x->high[tile] ? pos : x->high[tile];
        t->min_pos = pos < t->min_pos ? pos : t->min_pos;
        t->max_pos = pos > t->max_pos ? pos : t->max_pos;
        for (int32_t d = 0; d < dim; d += 32, at += 2 * MX_TILE) {
            mx_split(true, vf_mul(vf_load(q + d), scale), d + 16 < dim ? vf_mul(vf_load(q + d + 16), scale) : vf_zero(), at);
        }
    }
}

static void mx_end_split(mx_work *x)
{
    const nrd_attn_tile *w = x->t.w;
    const int32_t dim = x->t.dim;
    float m[16], l[16], *room = (float *)(void *)x->k; /* the next chunk's */

    for (int i = 0; i < x->n_tiles; i++) {
        const float *o = x->o + i * (x->n_cols + 1) * 256;
        float *y = x->t.fresh ? w->total + i * 16 * dim : room;
        for (int r = 0; r < 16; r++) {
            m[r] = x->m[i * 16 + r] * MX_LN_2;
            l[r] = vf_sum(vf_load(o + x->n_cols * 256 + r * 16));
            for (int c = 0; c < x->n_cols; c++) {
                vf_store(y + r * dim + c * 16, vf_load(o + c * 256 + r * 16));
            }
        }
        if (x->t.fresh) {
            memcpy(w->total_max + i * 16, m, sizeof m);
            memcpy(w->total_sum + i * 16, l, sizeof l);
        } else {
            merge_rows(16, dim, w->total_max + i * 16, w->total_sum + i * 16, w->total + i * 16 * dim, m, l, room);
        }
    }
    x->t.fresh = false;
}

/* As attention_tile, of a sequence's rows without a state, tree or biases. */
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
    x.n_parts = t->type_id < 2 ? 2 : 1;
    x.s = w->scratch;
    x.p = (uint8_t *)(x.s + 2 * 1024);
    x.k = x.p + 4 * MX_TILE;
    x.v = x.k + 4 * x.n_steps * 2 * MX_TILE;
    x.q = x.v + 4 * x.n_cols * MX_TILE;
    x.o = (float *)(void *)(x.q + x.n_tiles * x.n_steps * 2 * MX_TILE);
    mx_rows(&x);
    find_chunks(t);
    t->fresh = true;
    mx_configure(&config);
    for (int32_t chunk = t->start; chunk < t->end;) {
        int32_t split_end = (chunk / NRD_ATTN_SPLIT_CHUNKS + 1) * NRD_ATTN_SPLIT_CHUNKS;
        split_end = split_end < t->end ? split_end : t->end;
        memset(x.o, 0, (size_t)(x.n_tiles * (x.n_cols + 1)) * MX_TILE);
        for (int r = 0; r < x.n_tiles * 16; r++) {
            x.m[r] = -INFINITY;
        }
        for (; chunk < split_end; chunk++) {
            if (chunk >= t->from_chunk || chunk <= t->sink_end) {
                mx_chunk(&x, chunk);
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
