/* linear on the matrix unit (AMX), for instruction set 4. See amx.h for the words.
 *
 * Block types  Up to two tiles of 16 rows are unpacked once into L1 as signed bytes - the tile that the
 *              instruction takes, since packed integers lie in groups of four k - and meet panels of 8 tokens. A
 *              block has its own scales, so its dot has K = 32 (or twice 16): 2 tiles of 8 x 16 sums go through L1
 *              to the vector unit, which does the operations of the other forms in their order: the same bits.
 *              While it does, the unit works on the next step, and the one after that waits in registers.
 * bfloat16     Packed pairs of k are the unit's tile as they lie. x = high + low, both bfloat16 (what is left out
 *              is below 2^-17 of x); for every 32 k the sum takes the products of high, then of low. Always, with a
 *              single token, too: the unit rounds in its own way, and a token's bits must not depend on others.
 * Bound        Block types, 2 tiles x 8 tokens, 32 k: the float part. 16 conversions, 16 products of scales, 16
 *              multiply-adds and 16 for a minimum on two ports: 32 cycles, 24 without a minimum, 16 for int8 (no
 *              products of scales), twice that for types with two scales in 32 k; the AVX-512 form has 64 for dots
 *              beside it. Loads: 16 rows of sums, 16 of weights, 8 of tokens, 8 or 16 numbers for all lanes, 2 or 4
 *              vectors of scales: 25 to 30 cycles on two ports. Stores: 16. The unit: two dots of 8 rows.
 *              bfloat16, 4 tiles x 16 tokens, 32 k: 8 dots of 16 rows, 128 cycles of the unit; loads 48.
 */
#define MX_OFFSET(type)                                                                            \
    ((type) == NRD_DTYPE_Q4_0                             ? 8                                      \
     : (type) == NRD_DTYPE_Q5_0                           ? 16                                     \
     : (type) == NRD_DTYPE_Q3_K                           ? 4                                      \
     : (type) == NRD_DTYPE_Q6_K                           ? 32                                     \
     : (type) == NRD_DTYPE_Q8_0 || (type) == NRD_DTYPE_I8 ? 128                                    \
                                                          : 0)

/* Fewest tokens that use the unit for block types: below, reading the weights is the limit. */
enum { MX_FROM = 8, MX_T = NRD_LINEAR_MX_TOKENS, MX_TILE_ROOM = NRD_LINEAR_WIDE_BYTES / 2 };

/* One tile: a block of 32 k is 512 bytes of integers, then d for each half and m for each half. */
NRD_KERNEL void mx_unpack(const int type, const uint8_t *tile, int64_t ahead, int64_t n_blocks, uint8_t *room)
{
    const int n_half = IS_HALVES(type) ? 2 : 1;
    const vi offset = vi_set1_8(MX_OFFSET(type));
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
        for (int g = 0; g < 8; g++) {
            vi_store(room + g * 64, MX_OFFSET(type) ? _mm512_sub_epi8(q[g], offset) : q[g]);
        }
        room += 512;
        NRD_UNROLL
        for (int h = 0; h < n_half; h++) {
            if (type != NRD_DTYPE_I8) {
                vf_store((float *)(void *)room + h * 16, d[h]);
            }
            if (HAS_MIN(type)) {
                vf_store((float *)(void *)room + (n_half + h) * 16, m[h]);
            }
        }
        room += 64 * n_half * (1 + HAS_MIN(type)); /* int8 has the place, too */
    }
}

/* What the kernel for a step needs to know of a type. */
typedef struct mx_kind {
    bool halves, has_min, has_scale;
} mx_kind;

#define MX_ROOM_STEP(kind) (512 + 64 * ((kind).halves ? 2 : 1) * ((kind).has_min ? 2 : 1))
#define MX_A(kind, panel, step)                                                                    \
    ((kind).halves ? (panel) + (step) / 2 * (MX_T * PANEL_Q8_BYTES) + (step) % 2 * 16 : (panel) + (step) * (MX_T * PANEL_Q8_BYTES))
#define MX_B(kind, room, step)                                                                     \
    ((kind).halves ? (room) + (step) / 2 * MX_ROOM_STEP(kind) + (step) % 2 * 256 : (room) + (step) * MX_ROOM_STEP(kind))

/* Tiles of registers: sums 0, 1 of even steps and 2, 3 of odd ones; tokens 4; weights 5 and 6. */
#define MX_STEP(c0, c1, step)                                                                      \
    do {                                                                                           \
        mx_zero(c0);                                                                               \
        mx_load(4, MX_A(kind, panel, step), 32);                                                   \
        mx_load(5, MX_B(kind, room, step), 64);                                                    \
        mx_dot_i8(c0, 4, 5);                                                                       \
        if (S == 2) {                                                                              \
            mx_zero(c1);                                                                           \
            mx_load(6, MX_B(kind, room + MX_TILE_ROOM, step), 64);                                 \
            mx_dot_i8(c1, 4, 6);                                                                   \
        }                                                                                          \
    } while (0)
#define MX_KEEP(c0, c1, to)                                                                        \
    do {                                                                                           \
        mx_store(c0, to, 64);                                                                      \
        if (S == 2) {                                                                              \
            mx_store(c1, (to) + MX_T * 16, 64);                                                    \
        }                                                                                          \
    } while (0)

/* The float part of a step: S tiles, 8 tokens. */
NRD_KERNEL void mx_scale(const mx_kind kind, const int S, int64_t step, const int32_t *sum, const uint8_t *room,
                         const uint8_t *panel, vf *acc)
{
    const int64_t b = kind.halves ? step / 2 : step, h = kind.halves ? step % 2 : 0, n_half = kind.halves ? 2 : 1;
    const float *xd = (const float *)(const void *)(panel + b * (MX_T * PANEL_Q8_BYTES) + MX_T * 32);
    const float *xs = xd + MX_T + h * MX_T;
    const float *scales = (const float *)(const void *)(room + b * MX_ROOM_STEP(kind) + 512);
    vf d[2], m[2];

    NRD_UNROLL
    for (int i = 0; i < S; i++) {
        const float *at = scales + i * (MX_TILE_ROOM / (int)sizeof(float)) + h * 16;
        d[i] = kind.has_scale ? vf_load(at) : vf_zero();
        m[i] = kind.has_min ? vf_load(at + n_half * 16) : vf_zero();
    }
    NRD_UNROLL
    for (int t = 0; t < MX_T; t++) {
        vf v = vf_set1(xd[t]), v_sum = kind.has_min ? vf_set1(xs[t]) : vf_zero();
        NRD_UNROLL
        for (int i = 0; i < S; i++) {
            vf dot = vf_from_vi(vi_load(sum + (i * MX_T + t) * 16));
            vf *at = &acc[i * MX_T + t];
            *at = vf_fma(dot, kind.has_scale ? vf_mul(d[i], v) : v, *at); /* int8: d is 1 */
            if (kind.has_min) {
                *at = vf_fma(m[i], v_sum, *at);
            }
        }
    }
}

/* S unpacked tiles against one panel of 8 tokens, n_tokens of which are written. */
NRD_KERNEL void mx_run(const mx_kind kind, const int S, const uint8_t *room, const uint8_t *panel, int64_t n_blocks,
                       bool is_first, float *y, int64_t y_stride, int n_tokens)
{
    _Alignas(64) int32_t sum[2][2 * MX_T * 16];
    const int64_t n = kind.halves ? n_blocks * 2 : n_blocks;
    vf acc[2 * MX_T];

    NRD_UNROLL
    for (int t = 0; t < S * MX_T; t++) {
        acc[t] = is_first || t % MX_T >= n_tokens ? vf_zero() : vf_load(y + t % MX_T * y_stride + t / MX_T * 16);
    }
    MX_STEP(0, 1, 0);
    if (n > 1) {
        MX_STEP(2, 3, 1);
    }
    MX_KEEP(0, 1, sum[0]);
    for (int64_t k = 0; k < n; k += 2) {
        if (k + 1 < n) {
            MX_KEEP(2, 3, sum[1]);
        }
        if (k + 2 < n) {
            MX_STEP(0, 1, k + 2);
        }
        mx_scale(kind, S, k, sum[0], room, panel, acc);
        if (k + 1 == n) {
            break;
        }
        if (k + 2 < n) {
            MX_KEEP(0, 1, sum[0]);
        }
        if (k + 3 < n) {
            MX_STEP(2, 3, k + 3);
        }
        mx_scale(kind, S, k + 1, sum[1], room, panel, acc);
    }
    NRD_UNROLL
    for (int t = 0; t < S * MX_T; t++) {
        if (t % MX_T < n_tokens) {
            vf_store(y + t % MX_T * y_stride + t / MX_T * 16, acc[t]);
        }
    }
}

typedef void (*mx_unpack_fn)(const uint8_t *tile, int64_t ahead, int64_t n_blocks, uint8_t *room);
typedef void (*mx_run_fn)(const uint8_t *room, const uint8_t *panel, int64_t n_blocks, bool is_first, float *y,
                          int64_t y_stride, int n_tokens);

#define MX_RUN(name, S, ...)                                                                       \
    static void mx_run_##name##_##S(const uint8_t *room, const uint8_t *panel, int64_t n_blocks, bool is_first, \
                                    float *y, int64_t y_stride, int n_tokens)                      \
    {                                                                                              \
        mx_run((mx_kind){__VA_ARGS__}, S, room, panel, n_blocks, is_first, y, y_stride, n_tokens); \
    }
#define MX_RUNS(name, ...) MX_RUN(name, 1, __VA_ARGS__) MX_RUN(name, 2, __VA_ARGS__)
MX_RUNS(min, false, true, true)
MX_RUNS(min_halves, true, true, true)
MX_RUNS(plain, false, false, true)
MX_RUNS(plain_halves, true, false, true)
MX_RUNS(int8, false, false, false)

static void mx_blocks(const nrd_linear_mx *a, mx_unpack_fn unpack, const mx_run_fn run[2], bool halves)
{
    const uint8_t k_bytes = halves ? 16 : 32, k_rows = k_bytes / 4;
    const mx_config config = {.palette = 1,
                              .rows = {MX_T, MX_T, MX_T, MX_T, MX_T, k_rows, k_rows},
                              .row_bytes = {64, 64, 64, 64, k_bytes, 64, 64}};
    const int64_t most = NRD_LINEAR_WIDE_BLOCKS, n_pieces = (a->len + most - 1) / most;
    const int64_t piece = IS_K(a->type) ? most / 8 * 8 : (a->len + n_pieces - 1) / n_pieces;
    const size_t panel_bytes = a->token_bytes * MX_T;

    mx_configure(&config);
    for (int64_t i = 0; i < a->n_tiles; i += 2) {
        const int S = a->n_tiles - i < 2 ? 1 : 2;
        for (int64_t b = 0; b < a->len; b += piece) {
            const int64_t n = a->len - b < piece ? a->len - b : piece;
            const uint8_t *tile = a->tiles + (size_t)i * a->tile_bytes + nrd_tile16_bytes(a->type, b * 32);
            for (int s = 0; s < S; s++) {
                unpack(tile + (size_t)s * a->tile_bytes, 2 * (int64_t)a->tile_bytes, n, a->room + s * MX_TILE_ROOM);
            }
            const uint8_t *panel = a->panels + b * (MX_T * PANEL_Q8_BYTES);
            for (int32_t t = 0; t < a->n_tokens; t += MX_T, panel += panel_bytes) {
                run[S - 1](a->room, panel, n, b == 0, a->y + t * a->y_stride + i * 16, a->y_stride,
                           a->n_tokens - t < MX_T ? a->n_tokens - t : MX_T);
            }
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
#define MX_BF16_GO_ON(c, i, ...) mx_load(c, y + (i) * y_step, y_stride * 4)
#define MX_BF16_STORE(c, i, ...) mx_store(c, y + (i) * y_step, y_stride * 4)

/* S tiles, `step` bytes apart, against one panel of n tokens; columns [0, n_cols) of the piece. */
NRD_KERNEL void mx_bf16_run(const int S, const uint8_t *tile, int64_t step, const uint8_t *panel, int n, int64_t n_cols,
                            bool is_first, float *y, int64_t y_stride, int64_t y_step)
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
        NRD_UNROLL
        for (int i = 0; i < S; i++) {
            for (int at = 0; at < 1024; at += 64) {
                __builtin_prefetch(tile + i * step + PREFETCH_BYTES + at);
            }
        }
        MX_BF16_DOT(0, 6, tile, 64);
        if (S > 1) {
            MX_BF16_DOT(1, 7, tile + step, 64);
        }
        if (S > 2) {
            MX_BF16_DOT(2, 6, tile + 2 * step, 64);
            MX_BF16_DOT(3, 7, tile + 3 * step, 64);
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

#define MX_BF16_RUN(S)                                                                             \
    static void mx_bf16_##S(const uint8_t *tile, int64_t step, const uint8_t *panel, int n, int64_t n_cols, \
                            bool is_first, float *y, int64_t y_stride, int64_t y_step)             \
    {                                                                                              \
        mx_bf16_run(S, tile, step, panel, n, n_cols, is_first, y, y_stride, y_step);               \
    }
MX_BF16_RUN(1)
MX_BF16_RUN(2)
MX_BF16_RUN(4)

typedef void (*mx_bf16_fn)(const uint8_t *tile, int64_t step, const uint8_t *panel, int n, int64_t n_cols, bool is_first,
                           float *y, int64_t y_stride, int64_t y_step);

/* All tiles against n_panels panels of n tokens. One panel: four tiles from four places of memory, as in tile_f.
 * Several: four neighbours, in pieces of columns whose weights stay in L1. */
static void mx_bf16_panels(const nrd_linear_mx *a, int32_t token, int64_t n_panels, int n)
{
    enum { PIECE_COLS = 320 };
    const uint8_t rows = (uint8_t)n;
    const mx_config config = {.palette = 1,
                              .rows = {rows, rows, rows, rows, rows, rows, 16, 16},
                              .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    const int64_t steps = (a->len + 31) / 32, n_pieces = n_panels > 1 ? (steps * 32 + PIECE_COLS - 1) / PIECE_COLS : 1;
    const int64_t piece = (steps + n_pieces - 1) / n_pieces * 32;
    const int64_t fours = a->n_tiles / 4, apart = n_panels > 1 ? 1 : fours;
    const uint8_t *panels = a->panels + (size_t)token * a->token_bytes;
    float *y = a->y + token * a->y_stride;

    mx_configure(&config);
    for (int64_t i = 0; i < a->n_tiles;) {
        const bool is_four = i < fours * 4;
        const int64_t S = is_four ? 4 : a->n_tiles - i >= 2 ? 2 : 1, next = is_four ? apart : 1;
        const int64_t first = is_four && apart > 1 ? i / 4 : i; /* of those that lie `next` tiles apart */
        const mx_bf16_fn run = S == 4 ? mx_bf16_4 : S == 2 ? mx_bf16_2 : mx_bf16_1;
        const uint8_t *tile = a->tiles + (size_t)first * a->tile_bytes;
        for (int64_t k = 0; k < a->len; k += piece) {
            const int64_t n_cols = a->len - k < piece ? a->len - k : piece;
            for (int64_t p = 0; p < n_panels; p++) {
                run(tile + k * 32, next * (int64_t)a->tile_bytes, panels + (size_t)p * a->token_bytes * (size_t)n + k * 4 * n, n,
                    n_cols, k == 0, y + p * n * a->y_stride + first * 16, a->y_stride, next * 16);
            }
        }
        i += S;
    }
    mx_release();
}

static void mx_bf16(const nrd_linear_mx *a)
{
    enum { P = NRD_LINEAR_MX_BF16_TOKENS };
    const int32_t rest = a->n_tokens % P, whole = a->n_tokens - rest;

    if (whole) {
        mx_bf16_panels(a, 0, whole / P, P);
    }
    if (rest) {
        mx_bf16_panels(a, whole, 1, rest);
    }
}

/* Nearest bfloat16, ties to even; a NaN stays one. In the upper half of every lane. */
NRD_INLINE vi mx_round_bf16(vf x)
{
    vi u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    vi up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

    up = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
}

/* For 32 k: high[n][32], low[n][32]. Columns behind the last are zero. */
static void mx_panel_bf16(const nrd_linear_panel *a)
{
    const int n = a->n_tokens;

    for (int64_t k = 0; k < a->cols; k += 32) {
        uint8_t *p = a->panel + k * 4 * n;
        for (int t = 0; t < n; t++) {
            const float *x = (const float *)(const void *)((const uint8_t *)a->x + (size_t)t * a->row_bytes) + k;
            NRD_UNROLL
            for (int i = 0; i < 2; i++) {
                int64_t left = a->cols - k - i * 16;
                vf v = left >= 16 ? vf_load(x + i * 16) : left > 0 ? vf_load_n(x + i * 16, (int)left) : vf_zero();
                vi high = mx_round_bf16(v), low = mx_round_bf16(vf_sub(v, _mm512_castsi512_ps(high)));
                uint8_t *at = p + t * 64 + i * 32;
                _mm256_storeu_si256((__m256i *)(void *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
                _mm256_storeu_si256((__m256i *)(void *)(at + n * 64), _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)));
            }
        }
    }
}

/* ---- by type ---- */

#define MX_UNPACK(type)                                                                            \
    static void mx_unpack_##type(const uint8_t *tile, int64_t ahead, int64_t n_blocks, uint8_t *room) \
    {                                                                                              \
        mx_unpack(NRD_DTYPE_##type, tile, ahead, n_blocks, room);                                  \
    }
MX_UNPACK(Q4_0)
MX_UNPACK(Q4_1)
MX_UNPACK(Q5_0)
MX_UNPACK(Q5_1)
MX_UNPACK(Q8_0)
MX_UNPACK(I8)
MX_UNPACK(Q2_K)
MX_UNPACK(Q3_K)
MX_UNPACK(Q4_K)
MX_UNPACK(Q5_K)
MX_UNPACK(Q6_K)

#define MX_ROW(type, name, halves)                                                                 \
    case NRD_DTYPE_##type:                                                                         \
        mx_blocks(a, mx_unpack_##type, (const mx_run_fn[2]){mx_run_##name##_1, mx_run_##name##_2}, halves); \
        return;
static void linear_mx(const nrd_linear_mx *a)
{
    switch (a->type) {
        MX_ROW(Q4_0, plain, false)
        MX_ROW(Q4_1, min, false)
        MX_ROW(Q5_0, plain, false)
        MX_ROW(Q5_1, min, false)
        MX_ROW(Q8_0, plain, false)
        MX_ROW(I8, int8, false)
        MX_ROW(Q2_K, min_halves, true)
        MX_ROW(Q3_K, plain_halves, true)
        MX_ROW(Q4_K, min, false)
        MX_ROW(Q5_K, min, false)
        MX_ROW(Q6_K, plain_halves, true)
    default:
        mx_bf16(a);
    }
}

static int32_t linear_mx_from(nrd_dtype type)
{
    return type == NRD_DTYPE_BF16 ? 1 : type == NRD_DTYPE_F32 || type == NRD_DTYPE_F16 ? 0 : MX_FROM;
}
