/* SPDX-License-Identifier: Apache-2.0
 * linear on the matrix unit (AMX), for instruction set 4. See amx.h for the words.
 *
 * Block types  Two tiles of 16 rows are unpacked once into L1 as signed bytes - the tile that the
 *              instruction takes, since packed integers lie in groups of four k - and meet panels
 *              of 16 tokens. A block has its own scales, so its dot has K = 32, or two of K = 16
 *              where halves have theirs: 16 x 16 sums go through L1 to the vector unit, which does
 *              the operations of the other forms in their order: the same bits. The steps of all
 *              panels are one pipeline: two dots are under way while older sums are scaled.
 * bfloat16     Packed pairs of k are the unit's tile as they lie. x = high + low, both bfloat16
 *              (what is left out is below 2^-17 of x); for every 32 k the sum takes the products
 *              of high, then of low. Always, with a single token, too: the unit rounds in its own
 *              way, and a token's bits must not depend on others. Blocks of tokens whose panels
 *              stay in L2 meet four tiles at a time, in pieces of columns that L1 holds.
 * Bound        Block types, 1 tile x 16 tokens, 32 k: a dot of 16 rows and the store of its sums,
 *              16 cycles each of different units. While the unit works, one of the two ports of 512
 *              bits has all products and conversions, the other additions only: 32 of a product
 *              and a multiply-add, 48 with a minimum, 16 for int8. What the tiles' instructions take
 *              of both ports included: 50, 58 with a minimum. The AVX-512 form has 64 for its
 *              dots beside the float part. bfloat16, 4 tiles x 16 tokens, 32 k: 8 dots of 16
 *              rows, 128 cycles of the unit; loads 48.
 * Measured     docs/performance/cpu-kernels.md. Cycles of a step out of L1: 60, 70 with a minimum.
 * Tried        Sums in a ring of 2 to 20 places, in case loads wait for stores to leave their
 *              queue: no better from 64 tokens on, up to -24 %. One dot under way -14 %, four
 *              -10 %. Some of the conversions as such: no better, with a minimum -15 %. The float
 *              part around the dot: worse. Panels of 8 tokens -12 %. From 16 tokens on: behind the
 *              AVX-512 form. bfloat16: asking for panels ahead -2 to -13 %; 128 or 320 columns -8
 *              to +4 %; blocks of 32 or 128 tokens -7 to +7 %, of 512 -14 %.
 */
#define MX_OFFSET(type)                                                                            \
    ((type) == NRD_DTYPE_Q4_0         ? 8                                                         \
     : (type) == NRD_DTYPE_Q5_0       ? 16                                                        \
     : (type) == NRD_DTYPE_Q6_K       ? 32                                                        \
     : (type) == NRD_DTYPE_Q3_K       ? 4                                                         \
     : (type) == NRD_DTYPE_MXFP4      ? 12                                                        \
     : IS_8_BIT(type) || IS_IQ4(type) ? 128                                                       \
                                      : 0)

/* Tokens from which on block types use the unit (below, unpacking the weights costs more than it
 * saves), those of 4 and 5 bits sooner; tiles at a time; columns of bfloat16 at a time. */
enum { MX_FROM = 64, MX_FROM_SMALL = 32, MX_PAIR = 2, MX_BF16_COLS = 224 };
enum {
    MX_T = NRD_LINEAR_MX_TOKENS,
    MX_TILE_ROOM = NRD_LINEAR_WIDE_BYTES / MX_PAIR,
    MX_PANEL_STEP = MX_T * PANEL_Q8_BYTES,
};
/* Of a tile, what a step meets: the integers of a block or of half of it, d, m (or places for them). */
#define MX_INTS(halves) ((halves) ? 256 : 512)
#define MX_ROOM_STEP(halves) (MX_INTS(halves) + 128)
_Static_assert(NRD_LINEAR_WIDE_BLOCKS * 2 * MX_ROOM_STEP(1) <= MX_TILE_ROOM, "room of a tile");

NRD_KERNEL void mx_unpack(const int type, const uint8_t *tile, int64_t ahead, int64_t n_blocks,
                          uint8_t *room)
{
    const vi offset = vi_set1_8(MX_OFFSET(type));
    const int halves = IS_HALVES(type), n_half = halves ? 2 : 1, n_groups = halves ? 4 : 8;
    tile_stream s = {tile, vf_zero(), vf_zero()};

    for (int64_t b = 0; b < n_blocks; b++) {
        vf d[2], m[2];
        vi q[8];
        load_scales(type, b, &s, d, m);
        for (int at = 0; at < BLOCK_BYTES(type); at += 64) {
            __builtin_prefetch(s.w + ahead + at, 0, 2);
        }
        s.w = load_ints(type, s.w, q);
        NRD_UNROLL
        for (int h = 0; h < n_half; h++, room += MX_ROOM_STEP(halves)) {
            float *scales = (float *)(void *)(room + MX_INTS(halves));
            NRD_UNROLL
            for (int g = 0; g < n_groups; g++) {
                vi v = q[h * 4 + g];
                vi_store(room + g * 64, MX_OFFSET(type) ? _mm512_sub_epi8(v, offset) : v);
            }
            if (type != NRD_DTYPE_I8) {
                vf_store(scales, d[h]);
            }
            if (HAS_MIN(type)) {
                vf_store(scales + 16, m[h]);
            }
        }
    }
}

/* What the kernel for a step needs to know of a type. */
typedef struct mx_kind {
    bool has_min, has_scale, halves; /* halves: two steps a block, of 16 k each */
} mx_kind;

/* Unpacked tiles, MX_TILE_ROOM apart, against all panels. */
typedef struct mx_job {
    const uint8_t *room, *panels;
    size_t panel_bytes;
    int64_t n_blocks;
    int32_t n_tiles, n_tokens;
    bool is_first;
    float *y;
    int64_t y_stride;
} mx_job;

/* A run is one tile and one panel, a step one block of it or half a block. Runs go through tiles, then panels. */
typedef struct mx_place {
    const uint8_t *panel, *room;
    int32_t tile, token;
} mx_place;

NRD_INLINE void mx_next(mx_place *at, const mx_job *j)
{
    at->room += MX_TILE_ROOM;
    if (++at->tile == j->n_tiles) {
        at->tile = 0;
        at->room = j->room;
        at->panel += j->panel_bytes;
        at->token += MX_T;
    }
}

/* Exact below 2^22, which 32 products of signed bytes are. While the unit works, and some hundred cycles after, the second
 * port of 512 bits takes additions only, and a conversion would wait for the first one, which has all multiplications. */
NRD_INLINE vf mx_to_float(vi sum)
{
    enum { BITS = 0x4b400000 }; /* of 1.5 x 2^23, whose last digit counts 1 */
    return vf_sub(_mm512_castsi512_ps(vi_add(sum, vi_set1_32(BITS))), vf_set1(12582912.0f));
}

/* The float part of a step, of half h of a block. */
NRD_KERNEL void mx_scale(const mx_kind kind, const int h, const uint8_t *panel, const uint8_t *room, const int32_t *sum,
                         vf *acc)
{
    const float *xd = (const float *)(const void *)(panel + MX_T * 32), *xs = xd + (1 + h) * MX_T;
    const float *scales = (const float *)(const void *)(room + MX_INTS(kind.halves));
    const vf d = kind.has_scale ? vf_load(scales) : vf_zero();
    const vf m = kind.has_min ? vf_load(scales + 16) : vf_zero();

    NRD_UNROLL
    for (int t = 0; t < MX_T; t++) {
        vf dot = mx_to_float(vi_load(sum + t * 16)), v = vf_set1(xd[t]);
        if (kind.has_min) { /* before the dots, as in tile_q() */
            acc[t] = vf_fma(m, vf_set1(xs[t]), acc[t]);
        }
        acc[t] = vf_fma(dot, kind.has_scale ? vf_mul(d, v) : v, acc[t]); /* int8: d is 1 */
    }
}

/* n: tokens that are present. */
NRD_KERNEL void mx_begin(const mx_job *j, float *y, int32_t n, vf *acc)
{
    const int64_t step = j->y_stride;

    NRD_UNROLL
    for (int t = 0; t < MX_T; t++) {
        acc[t] = j->is_first || t >= n ? vf_zero() : vf_load(y + t * step);
    }
    if (j->is_first) { /* results come in 16 lines, which would be waited for one after the other */
        for (int t = 0; t < n; t++, y += step) {
            __builtin_prefetch(y, 0, 2);
        }
    }
}

NRD_KERNEL void mx_end(float *y, int64_t step, int32_t n, const vf *acc)
{
    NRD_UNROLL
    for (int t = 0; t < MX_T; t++) {
        if (t < n) {
            vf_store(y + t * step, acc[t]);
        }
    }
}

/* The dots of the next step go into the sums of register c. Behind the last run they are of the first one, for nothing. */
#define MX_DOTS(c, a, b)                                                                           \
    do {                                                                                           \
        mx_zero(c);                                                                                \
        mx_load(b, next_room, 64);                                                                 \
        mx_load(a, next_panel, 32);                                                                \
        mx_dot_i8(c, a, b);                                                                        \
        next_room += MX_ROOM_STEP(kind.halves);                                                    \
        next_panel += !kind.halves ? MX_PANEL_STEP : c == 0 ? 16 : MX_PANEL_STEP - 16;             \
        if (--next_steps == 0) {                                                                   \
            mx_next(&next, j);                                                                     \
            if (next.token >= j->n_tokens) {                                                       \
                next = (mx_place){.panel = j->panels, .room = j->room};                            \
            }                                                                                      \
            next_room = next.room;                                                                 \
            next_panel = next.panel;                                                               \
            next_steps = n_steps;                                                                  \
        }                                                                                          \
    } while (0)
/* A step's sums leave their register, which then takes the dots of the step after the next one. Of halves, register 0 has
 * the first ones. */
#define MX_STEP(c, a, b)                                                                           \
    do {                                                                                           \
        mx_store(c, sums, 64);                                                                     \
        MX_DOTS(c, a, b);                                                                          \
        mx_scale(kind, kind.halves ? c : 0, panel, room, sums, acc);                               \
        panel += kind.halves && c == 0 ? 0 : MX_PANEL_STEP;                                        \
        room += MX_ROOM_STEP(kind.halves);                                                         \
    } while (0)

NRD_KERNEL void mx_run(const mx_kind kind, const mx_job *j)
{
    _Alignas(64) int32_t sums[MX_T * 16];
    const int64_t n_steps = j->n_blocks * (kind.halves ? 2 : 1);
    mx_place at = {.panel = j->panels, .room = j->room}, next = at;
    const uint8_t *next_room = next.room, *next_panel = next.panel;
    int64_t next_steps = n_steps;
    bool is_second = false; /* the run begins with sums in register 1 */

    MX_DOTS(0, 4, 6);
    MX_DOTS(1, 5, 7);
    while (at.token < j->n_tokens) {
        float *y = j->y + at.token * j->y_stride + at.tile * 16;
        const int32_t n = j->n_tokens - at.token < MX_T ? j->n_tokens - at.token : MX_T;
        const uint8_t *panel = at.panel, *room = at.room;
        int64_t left = n_steps;
        vf acc[MX_T];

        mx_begin(j, y, n, acc);
        if (is_second) {
            MX_STEP(1, 5, 7);
            left--;
        }
        for (; left >= 2; left -= 2) {
            MX_STEP(0, 4, 6);
            MX_STEP(1, 5, 7);
        }
        is_second = left > 0;
        if (is_second) {
            MX_STEP(0, 4, 6);
        }
        mx_end(y, j->y_stride, n, acc);
        mx_next(&at, j);
    }
}

typedef void (*mx_unpack_fn)(const uint8_t *tile, int64_t ahead, int64_t n_blocks, uint8_t *room);
typedef void (*mx_run_fn)(const mx_job *j);

#define MX_RUN(name, ...)                                                                          \
    static void mx_run_##name(const mx_job *j)                                                     \
    {                                                                                              \
        mx_run((mx_kind){__VA_ARGS__}, j);                                                         \
    }
MX_RUN(min, .has_min = true, .has_scale = true)
MX_RUN(plain, .has_scale = true)
MX_RUN(int8, .has_scale = false)
MX_RUN(min_halves, .has_min = true, .has_scale = true, .halves = true)
MX_RUN(plain_halves, .has_scale = true, .halves = true)

static void mx_blocks(const nrd_linear_mx *a, mx_unpack_fn unpack, mx_run_fn run)
{
    const uint8_t groups = IS_HALVES(a->type) ? 4 : 8, bytes = (uint8_t)(groups * 4);
    const mx_config config = {.palette = 1,
                              .rows = {MX_T, MX_T, MX_T, MX_T, MX_T, MX_T, groups, groups},
                              .row_bytes = {64, 64, 64, 64, bytes, bytes, 64, 64}};
    const int64_t most = NRD_LINEAR_WIDE_BLOCKS, n_pieces = (a->len + most - 1) / most;
    const int64_t piece = IS_K(a->type) ? most / 8 * 8 : (a->len + n_pieces - 1) / n_pieces;
    mx_job j = {.room = a->room,
                .panel_bytes = a->token_bytes * MX_T,
                .n_tokens = a->n_tokens,
                .y_stride = a->y_stride};

    mx_configure(&config);
    for (int64_t i = 0; i < a->n_tiles; i += MX_PAIR) {
        j.n_tiles = a->n_tiles - i < MX_PAIR ? 1 : MX_PAIR;
        j.y = a->y + i * 16;
        for (int64_t b = 0; b < a->len; b += piece) {
            const uint8_t *tile =
                a->tiles + (size_t)i * a->tile_bytes + nrd_tile16_bytes(a->type, b * 32);
            j.n_blocks = a->len - b < piece ? a->len - b : piece;
            for (int s = 0; s < j.n_tiles; s++) {
                unpack(tile + (size_t)s * a->tile_bytes, MX_PAIR * (int64_t)a->tile_bytes,
                       j.n_blocks, a->room + s * MX_TILE_ROOM);
            }
            j.panels = a->panels + b * MX_PANEL_STEP;
            j.is_first = b == 0;
            run(&j);
        }
    }
    mx_release();
}

/* ---- bfloat16 ---- */

/* Tiles of registers: sums 0 to 3; high 4, low 5; weights 6 and 7. */
#define MX_BF16_DOT(c, b, tile, step)                                                              \
    do {                                                                                           \
        mx_load(b, tile, step);                                                                    \
        mx_dot_bf16(c, 4, b);                                                                      \
        mx_dot_bf16(c, 5, b);                                                                      \
    } while (0)
#define MX_BF16_DOTS(c0, c1, tile0, tile1)                                                         \
    do {                                                                                           \
        mx_load(6, tile0, 64);                                                                     \
        mx_load(7, tile1, 64);                                                                     \
        mx_dot_bf16(c0, 4, 6);                                                                     \
        mx_dot_bf16(c1, 4, 7);                                                                     \
        mx_dot_bf16(c0, 5, 6);                                                                     \
        mx_dot_bf16(c1, 5, 7);                                                                     \
    } while (0)
#define MX_BF16_EACH(word, ...)                                                                    \
    do {                                                                                           \
        word(0, 0, __VA_ARGS__);                                                                   \
        if (S > 1) {                                                                               \
            word(1, 1, __VA_ARGS__);                                                               \
        }                                                                                          \
        if (S > 2) {                                                                               \
            word(2, 2, __VA_ARGS__);                                                               \
            word(3, 3, __VA_ARGS__);                                                               \
        }                                                                                          \
    } while (0)
#define MX_BF16_BEGIN(c, i, ...) mx_zero(c)
#define MX_BF16_GO_ON(c, i, ...) mx_load(c, y + (i)*y_step, y_stride * 4)
#define MX_BF16_STORE(c, i, ...) mx_store(c, y + (i)*y_step, y_stride * 4)

/* S tiles, `step` bytes apart, against one panel of n tokens; columns [0, n_cols) of the piece. */
NRD_KERNEL void mx_bf16_run(const int S, const bool is_near, const uint8_t *tile, int64_t step,
                            const uint8_t *panel, int n, int64_t n_cols, bool is_first, float *y,
                            int64_t y_stride, int64_t y_step)
{
    _Alignas(64) uint8_t last[4][1024];
    int64_t k = 0;

    if (is_first) {
        MX_BF16_EACH(MX_BF16_BEGIN, 0);
    } else {
        MX_BF16_EACH(MX_BF16_GO_ON, 0);
    }
    for (; k + 32 <= n_cols; k += 32, tile += 1024, panel += n * 128) {
        mx_load(4, panel, 64);
        mx_load(5, panel + n * 64, 64);
        if (!is_near) {
            NRD_UNROLL
            for (int i = 0; i < S; i++) {
                for (int at = 0; at < 1024; at += 64) {
                    __builtin_prefetch(tile + i * step + PREFETCH_BYTES + at);
                }
            }
        }
        if (S == 1) {
            MX_BF16_DOT(0, 6, tile, 64);
        } else {
            MX_BF16_DOTS(0, 1, tile, tile + step);
        }
        if (S > 2) {
            MX_BF16_DOTS(2, 3, tile + 2 * step, tile + 3 * step);
        }
    }
    if (k < n_cols) { /* the rest of the columns, zeros behind it */
        const size_t bytes = (size_t)(n_cols - k + 1) / 2 * 64;
        for (int i = 0; i < S; i++) {
            memcpy(last[i], tile + i * step, bytes);
            memset(last[i] + bytes, 0, sizeof last[i] - bytes);
        }
        mx_load(4, panel, 64);
        mx_load(5, panel + n * 64, 64);
        MX_BF16_DOT(0, 6, last[0], 64);
        if (S > 1) {
            MX_BF16_DOT(1, 7, last[1], 64);
        }
        if (S > 2) {
            MX_BF16_DOT(2, 6, last[2], 64);
            MX_BF16_DOT(3, 7, last[3], 64);
        }
    }
    MX_BF16_EACH(MX_BF16_STORE, 0);
}

#define MX_BF16_RUN(S, name, is_near)                                                              \
    static void mx_bf16_##name##_##S(const uint8_t *tile, int64_t step, const uint8_t *panel,      \
                                     int n, int64_t n_cols, bool is_first, float *y,               \
                                     int64_t y_stride, int64_t y_step)                             \
    {                                                                                              \
        mx_bf16_run(S, is_near, tile, step, panel, n, n_cols, is_first, y, y_stride, y_step);      \
    }
MX_BF16_RUN(1, far, false)
MX_BF16_RUN(2, far, false)
MX_BF16_RUN(4, far, false)
MX_BF16_RUN(1, near, true)
MX_BF16_RUN(2, near, true)
MX_BF16_RUN(4, near, true)

typedef void (*mx_bf16_fn)(const uint8_t *tile, int64_t step, const uint8_t *panel, int n,
                           int64_t n_cols, bool is_first, float *y, int64_t y_stride,
                           int64_t y_step);

/* All tiles against n_panels panels of n tokens. One panel: four tiles from four places of memory,
 * as in tile_f. Several: four neighbours, in pieces of columns whose weights stay in L1 while panel
 * after panel comes from L2. */
static void mx_bf16_panels(const nrd_linear_mx *a, int32_t token, int64_t n_panels, int n)
{
    static const mx_bf16_fn runs[2][3] = {{mx_bf16_far_1, mx_bf16_far_2, mx_bf16_far_4},
                                          {mx_bf16_near_1, mx_bf16_near_2, mx_bf16_near_4}};
    const uint8_t rows = (uint8_t)n;
    const mx_config config = {.palette = 1,
                              .rows = {rows, rows, rows, rows, rows, rows, 16, 16},
                              .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    const int64_t steps = (a->len + 31) / 32;
    const int64_t n_pieces = n_panels > 1 ? (steps * 32 + MX_BF16_COLS - 1) / MX_BF16_COLS : 1;
    const int64_t piece = (steps + n_pieces - 1) / n_pieces * 32;
    const int64_t fours = a->n_tiles / 4, apart = n_panels > 1 ? 1 : fours;
    const uint8_t *panels = a->panels + (size_t)token * a->token_bytes;
    float *y = a->y + token * a->y_stride;

    mx_configure(&config);
    for (int64_t i = 0; i < a->n_tiles;) {
        const bool is_four = i < fours * 4;
        const int64_t S = is_four ? 4 : a->n_tiles - i >= 2 ? 2 : 1, next = is_four ? apart : 1;
        /* of those that lie `next` tiles apart */
        const int64_t first = is_four && apart > 1 ? i / 4 : i;
        const uint8_t *tile = a->tiles + (size_t)first * a->tile_bytes;
        for (int64_t k = 0; k < a->len; k += piece) {
            const int64_t n_cols = a->len - k < piece ? a->len - k : piece;
            for (int64_t p = 0; p < n_panels; p++) {
                runs[p > 0][S / 2](tile + k * 32, next * (int64_t)a->tile_bytes,
                                   panels + (size_t)p * a->token_bytes * (size_t)n + k * 4 * n, n,
                                   n_cols, k == 0, y + p * n * a->y_stride + first * 16,
                                   a->y_stride, next * 16);
            }
        }
        i += S;
    }
    mx_release();
}

static void mx_bf16(const nrd_linear_mx *a)
{
    const int32_t rest = a->n_tokens % MX_T, whole = a->n_tokens - rest;

    if (whole) {
        mx_bf16_panels(a, 0, whole / MX_T, MX_T);
    }
    if (rest) {
        mx_bf16_panels(a, whole, 1, rest);
    }
}

/* Nearest bfloat16, ties to even; a NaN stays one. In the upper half of every lane. */
NRD_INLINE vi mx_round_bf16(vf x)
{
    vi u = _mm512_castps_si512(x);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    vi up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

    up = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                              _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
}

/* For 32 k: high[n][32], low[n][32]. Columns behind the last are zero. */
static void mx_panel_bf16(const nrd_linear_panel *a)
{
    const int n = a->n_tokens;

    for (int64_t k = 0; k < a->cols; k += 32) {
        uint8_t *p = a->panel + k * 4 * n;
        for (int t = 0; t < n; t++) {
            const float *x =
                (const float *)(const void *)((const uint8_t *)a->x + (size_t)t * a->row_bytes) + k;
            NRD_UNROLL
            for (int i = 0; i < 2; i++) {
                int64_t left = a->cols - k - i * 16;
                vf v = vf_zero();
                if (left > 0) {
                    v = left >= 16 ? vf_load(x + i * 16) : vf_load_n(x + i * 16, (int)left);
                }
                vi high = mx_round_bf16(v);
                vi low = mx_round_bf16(vf_sub(v, _mm512_castsi512_ps(high)));
                uint8_t *at = p + t * 64 + i * 32;
                _mm256_storeu_si256((__m256i *)(void *)at,
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
                _mm256_storeu_si256((__m256i *)(void *)(at + n * 64),
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)));
            }
        }
    }
}

/* ---- by type ---- */

#define MX_UNPACK(type)                                                                            \
    static void mx_unpack_##type(const uint8_t *tile, int64_t ahead, int64_t n_blocks,             \
                                 uint8_t *room)                                                    \
    {                                                                                              \
        mx_unpack(NRD_DTYPE_##type, tile, ahead, n_blocks, room);                                  \
    }
MX_UNPACK(Q4_0)
MX_UNPACK(Q4_1)
MX_UNPACK(Q5_0)
MX_UNPACK(Q5_1)
MX_UNPACK(Q8_0)
MX_UNPACK(Q8_1)
MX_UNPACK(I8)
MX_UNPACK(Q2_K)
MX_UNPACK(Q3_K)
MX_UNPACK(Q4_K)
MX_UNPACK(Q5_K)
MX_UNPACK(Q6_K)
MX_UNPACK(IQ4_NL)
MX_UNPACK(IQ4_XS)
MX_UNPACK(MXFP4)

#define MX_ROW(type, name)                                                                         \
    case NRD_DTYPE_##type:                                                                         \
        mx_blocks(a, mx_unpack_##type, mx_run_##name);                                             \
        return;
static void linear_mx(const nrd_linear_mx *a)
{
    switch (a->type) {
        MX_ROW(Q4_0, plain)
        MX_ROW(Q4_1, min)
        MX_ROW(Q5_0, plain)
        MX_ROW(Q5_1, min)
        MX_ROW(Q8_0, plain)
        MX_ROW(Q8_1, min)
        MX_ROW(I8, int8)
        MX_ROW(Q2_K, min_halves)
        MX_ROW(Q3_K, plain_halves)
        MX_ROW(Q4_K, min)
        MX_ROW(Q5_K, min)
        MX_ROW(Q6_K, plain_halves)
        MX_ROW(IQ4_NL, plain)
        MX_ROW(IQ4_XS, plain)
        MX_ROW(MXFP4, plain)
    default:
        mx_bf16(a);
    }
}

static int32_t linear_mx_from(nrd_dtype type)
{
    switch (type) {
    case NRD_DTYPE_BF16:
        return 1;
    case NRD_DTYPE_Q4_0:
    case NRD_DTYPE_Q4_1:
    case NRD_DTYPE_Q5_0:
    case NRD_DTYPE_Q5_1:
    case NRD_DTYPE_Q4_K:
    case NRD_DTYPE_Q5_K:
    case NRD_DTYPE_IQ4_NL:
    case NRD_DTYPE_IQ4_XS:
    case NRD_DTYPE_MXFP4:
        return MX_FROM_SMALL;
    case NRD_DTYPE_Q8_0:
    case NRD_DTYPE_Q8_1:
    case NRD_DTYPE_I8:
    case NRD_DTYPE_Q2_K:
    case NRD_DTYPE_Q3_K:
    case NRD_DTYPE_Q6_K:
        return MX_FROM;
    default:
        return 0;
    }
}
