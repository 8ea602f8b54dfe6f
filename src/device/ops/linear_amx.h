/* SPDX-License-Identifier: Apache-2.0
 * linear on the matrix unit (AMX), for instruction set 4. See amx.h for the words.
 *
 * Unpacked     Block types and float16, from MX_FROM tokens on. Two tiles of 16 rows (four of float16) are unpacked into L1 as bfloat16, in
 *              pairs of k as the instruction takes them, and meet two panels of 16 tokens at a time (float16: one), which are read past L1.
 *              Of block types a number of w and one of x are rounded once, to 8 bits; float16 is high + low, and so is x: three dots.
 *              Sums never leave the unit but at the end of a piece of columns.
 * Few          Up to two panels: two tiles (four for one panel) are unpacked block by block into a place of two blocks, each beside the dots
 *              of the block before. Unpacking takes the ports of vectors, which are the limit, and the unit works meanwhile.
 * bfloat16     Packed pairs of k are the unit's tile as they lie. x = high + low, both bfloat16
 *              (what is left out is below 2^-17 of x); for every 32 k the sum takes the products
 *              of high, then of low. Always, with a single token, too: the unit rounds in its own
 *              way, and a token's bits must not depend on others. Blocks of tokens whose panels
 *              stay in L2 meet four tiles at a time, in pieces of columns that L1 holds.
 * Bound        2 tiles x 32 tokens (float16, bfloat16: 4 x 16), 32 k: 4 dots of 16 rows, 64 cycles of the unit (12, 192 of float16;
 *              8, 128 of bfloat16), loads 40.
 * Measured     docs/performance/cpu-kernels.md.
 * Tried        Dots of 8 bits with the scales of every 32 k in float behind them, as the other forms have them: a tile of sums
 *              goes through L1 to the vector unit for each, 60 to 80 cycles instead of 16.
 *              Four tiles against one panel: sums go to memory and back for half as many columns. Asking for panels ahead: slower.
 *              Few: numbers cut to bfloat16, by scales that grow by a 384th, 8 to 15 % faster, but divergence from float32 grows by 7 %.
 *              Few: unpacked in half precision (AVX512-FP16; five operations for 32 numbers, not seven): as fast as now.
 *              Weights asked for past L2 (prefetchnta), so that the cache stays in L3: they come twice, 2.4 times as slow.
 *              bfloat16: 128 or 320 columns -8 to +4 %; blocks of 32 or 128 tokens -7 to +7 %, of 512 -14 %.
 */
#define MX_OFFSET(type)                                                                            \
    ((type) == NRD_DTYPE_Q4_0         ? 8                                                          \
     : (type) == NRD_DTYPE_Q5_0       ? 16                                                         \
     : (type) == NRD_DTYPE_Q6_K       ? 32                                                         \
     : (type) == NRD_DTYPE_Q3_K       ? 4                                                          \
     : (type) == NRD_DTYPE_MXFP4      ? 12                                                         \
     : IS_8_BIT(type) || IS_IQ4(type) ? 128                                                        \
                                      : 0)

/* Numbers of 4 bits that are no places in a table. */
#define IS_NIBBLES(type) ((type) == NRD_DTYPE_Q4_0 || (type) == NRD_DTYPE_Q4_1 || (type) == NRD_DTYPE_Q4_K)

/* Tokens from which on types are unpacked: below, that costs more than the unit saves (most with int8, which has the least to unpack elsewhere).
 * Tiles at a time; columns of bfloat16 at a time. */
enum { MX_FROM = 12, MX_I8_FROM = 13, MX_F16_FROM = 32, MX_TILES = 4, MX_BF16_COLS = 224 };
enum { MX_T = NRD_LINEAR_MX_TOKENS, MX_STEP = 1024 }; /* bytes of 16 rows or tokens and 32 k */

/* Two numbers of each row to the nearest bfloat16, ties away from zero. */
NRD_INLINE vi mx_pairs(vf even, vf odd)
{
    const vi half = vi_set1_32(0x8000);
    return vi_bf16_pairs(vi_add(_mm512_castps_si512(even), half), vi_add(_mm512_castps_si512(odd), half));
}

/* Byte i of every 4, times 256, as a float plus 2^23: below a one of that exponent. One shuffle: while the unit works, only one port shifts
 * and multiplies. */
NRD_INLINE vf mx_byte(vi q, const int i)
{
    const vi to = _mm512_broadcast_i32x4(_mm_setr_epi32(i << 8, (4 + i) << 8, (8 + i) << 8, (12 + i) << 8));
    return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(vi_set1_32(0x4b000000), 0x2222222222222222u, q, to));
}

/* Blocks [b, b + n) of a tile. */
NRD_KERNEL void mx_unpack(const int type, tile_stream *s, int64_t b, int64_t n, int64_t ahead, uint8_t *room)
{
    tile_stream at = {s->w, IS_K(type) ? s->head_d : vf_zero(), IS_K(type) ? s->head_m : vf_zero()};

    for (const int64_t end = b + n; b < end; b++, room += MX_STEP) {
        vf d[2], m[2], base[2];
        vi q[8];

        load_scales(type, b, &at, d, m);
        for (int i = 0; i < BLOCK_BYTES(type); i += 64) {
            __builtin_prefetch(at.w + ahead + i, 0, 2);
        }
        if (IS_NIBBLES(type)) { /* the upper four bits of a byte count 16 where they are */
            NRD_UNROLL
            for (int g = 0; g < 8; g++) {
                q[g] = vi_and(vi_load(at.w + g % 4 * 64), vi_set1_8(g < 4 ? 0xf : 0xf0));
            }
            at.w += 256;
        } else {
            at.w = load_ints(type, at.w, q);
        }
        NRD_UNROLL
        for (int h = 1; h >= 0; h--) {
            const int from = IS_HALVES(type) ? h : 0;
            const float one = IS_NIBBLES(type) && h ? 1.0f / 4096 : 1.0f / 256; /* what an integer counts one as a float */
            base[h] = vf_fma(vf_set1(-0x1p23f * one - MX_OFFSET(type)), d[from], HAS_MIN(type) ? m[from] : vf_zero());
            d[h] = vf_mul(d[from], vf_set1(one));
        }
        NRD_UNROLL
        for (int g = 0; g < 8; g++) {
            const int h = IS_HALVES(type) || IS_NIBBLES(type) ? g / 4 : 0;
            vf w[4];
            NRD_UNROLL
            for (int i = 0; i < 4; i++) {
                w[i] = vf_fma(mx_byte(q[g], i), d[h], base[h]);
            }
            vi_store(room + g * 128, mx_pairs(w[0], w[1]));
            vi_store(room + g * 128 + 64, mx_pairs(w[2], w[3]));
        }
    }
    s->w = at.w;
    if (IS_K(type)) {
        s->head_d = at.head_d;
        s->head_m = at.head_m;
    }
}

/* 32 columns a step, of which n_cols are there: high, then low. */
static void mx_unpack_F16(const uint8_t *tile, int64_t ahead, int64_t n_cols, uint8_t *room)
{
    const vi half = vi_set1_32(0x8000), upper = vi_set1_32((int)0xffff0000u);

    for (int64_t k = 0; k < n_cols; k += 32, room += 2 * MX_STEP) {
        NRD_UNROLL
        for (int i = 0; i < 16; i++, tile += 64) {
            const int64_t left = n_cols - k - 2 * i;
            vf w[2] = {vf_zero(), vf_zero()}, low[2];
            __builtin_prefetch(tile + ahead, 0, 2);
            NRD_UNROLL
            for (int j = 0; j < 2; j++) {
                if (left > j) {
                    w[j] = vf_load_f16(tile + j * 32);
                }
                vi high = _mm512_and_si512(vi_add(_mm512_castps_si512(w[j]), half), upper);
                low[j] = vf_sub(w[j], _mm512_castsi512_ps(high));
            }
            vi_store(room + i * 64, mx_pairs(w[0], w[1]));
            vi_store(room + MX_STEP + i * 64, mx_pairs(low[0], low[1]));
        }
    }
}

/* Blocks [b, b + n) of a tile that `s` reads, from its first one on. Asks for what is `ahead` bytes behind. */
typedef void (*mx_block_fn)(tile_stream *s, int64_t b, int64_t n, int64_t ahead, uint8_t *room);
/* Unpacked tiles, `step` bytes apart, against one panel. */
typedef void (*mx_run_fn)(const uint8_t *room, int64_t step, const uint8_t *panel, int64_t n_steps, bool is_first, float *y,
                          int64_t y_stride);

/* The products of panel register a with the tiles at w. */
#define MX_DOTS(a, w)                                                                              \
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
#define MX_EACH(word, ...)                                                                         \
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
#define MX_BEGIN(c, i, ...) mx_zero(c)
#define MX_GO_ON(c, i, at, apart, stride) mx_load(c, (at) + (i) * (apart), (stride) * 4)
#define MX_STORE(c, i, at, apart, stride) mx_store(c, (at) + (i) * (apart), (stride) * 4)

/* The products of two tiles with both halves of a panel (registers 4, 5) into sums c0 and c1. */
#define MX_DOTS_LOW(c0, c1, w)                                                                     \
    do {                                                                                           \
        mx_load(6, w, 64);                                                                         \
        mx_load(7, (w) + step, 64);                                                                \
        mx_dot_bf16(c0, 4, 6);                                                                     \
        mx_dot_bf16(c1, 4, 7);                                                                     \
        mx_dot_bf16(c0, 5, 6);                                                                     \
        mx_dot_bf16(c1, 5, 7);                                                                     \
    } while (0)

/* has_low: of x and w there is high and low; the product of both low ones is left out. */
NRD_KERNEL void mx_run(const int S, const bool has_low, const uint8_t *room, int64_t step, const uint8_t *panel, int64_t n_steps, bool is_first,
                       float *y, int64_t y_stride)
{
    if (is_first) {
        MX_EACH(MX_BEGIN, 0);
    } else {
        MX_EACH(MX_GO_ON, y, 16, y_stride);
    }
    for (int64_t k = 0; k < n_steps; k++, room += MX_STEP, panel += MX_STEP) {
        mx_stream(4, panel, 64);
        if (has_low) {
            panel += MX_STEP;
            mx_stream(5, panel, 64);
            if (S == 1) {
                MX_DOTS(4, room);
                MX_DOTS(5, room);
            } else {
                MX_DOTS_LOW(0, 1, room);
            }
            if (S > 2) {
                MX_DOTS_LOW(2, 3, room + 2 * step);
            }
            room += MX_STEP;
        }
        MX_DOTS(4, room);
    }
    MX_EACH(MX_STORE, y, 16, y_stride);
}

#define MX_RUN(S, name, has_low)                                                                   \
    static void mx_run_##name##_##S(const uint8_t *room, int64_t step, const uint8_t *panel, int64_t n_steps, bool is_first, \
                                    float *y, int64_t y_stride)                                    \
    {                                                                                              \
        mx_run(S, has_low, room, step, panel, n_steps, is_first, y, y_stride);                     \
    }
MX_RUN(1, high, false)
MX_RUN(2, high, false)
MX_RUN(1, both, true)
MX_RUN(2, both, true)
MX_RUN(4, both, true)

/* Where the results of a panel of 16 tokens go. */
typedef struct mx_place {
    float *y;
    int64_t stride;
} mx_place;

/* Two unpacked tiles, `step` bytes apart, against two panels, `apart` bytes apart, which come from L2 and leave the tiles in L1. */
static void mx_run_pair(const uint8_t *room, int64_t step, const uint8_t *panel, int64_t apart, int64_t n_steps, bool is_first, mx_place p,
                        mx_place q)
{
    if (is_first) {
        mx_zero(0);
        mx_zero(1);
        mx_zero(2);
        mx_zero(3);
    } else {
        mx_load(0, p.y, p.stride * 4);
        mx_load(1, p.y + 16, p.stride * 4);
        mx_load(2, q.y, q.stride * 4);
        mx_load(3, q.y + 16, q.stride * 4);
    }
    for (int64_t k = 0; k < n_steps; k++, room += MX_STEP, panel += MX_STEP) {
        mx_stream(4, panel, 64);
        mx_load(6, room, 64);
        mx_dot_bf16(0, 4, 6);
        mx_stream(5, panel + apart, 64);
        mx_dot_bf16(2, 5, 6);
        mx_load(7, room + step, 64);
        mx_dot_bf16(3, 5, 7);
        mx_dot_bf16(1, 4, 7);
    }
    mx_store(0, p.y, p.stride * 4);
    mx_store(1, p.y + 16, p.stride * 4);
    mx_store(2, q.y, q.stride * 4);
    mx_store(3, q.y + 16, q.stride * 4);
}

/* What S unpacked tiles add to the results of all panels. The last panel may lack tokens: its sums have a place of their own. */
static void mx_all_panels(const nrd_linear_mx *a, const int64_t S, const bool has_low, int64_t step, const uint8_t *panels, int64_t n_steps,
                          bool is_first, float *y, float *last)
{
    static const mx_run_fn runs[2][3] = {{mx_run_high_1, mx_run_high_2, NULL}, {mx_run_both_1, mx_run_both_2, mx_run_both_4}};
    const int64_t apart = (int64_t)a->token_bytes * MX_T;

    for (int32_t t = 0; t < a->n_tokens; t += MX_T, panels += apart) {
        mx_place at[2];
        for (int i = 0; i < 2; i++) {
            const int32_t from = t + i * MX_T;
            at[i] = a->n_tokens - from >= MX_T ? (mx_place){y + from * a->y_stride, a->y_stride} : (mx_place){last, MX_TILES * 16};
        }
        if (S == 2 && !has_low && a->n_tokens - t > MX_T) {
            mx_run_pair(a->room, n_steps * step, panels, apart, n_steps, is_first, at[0], at[1]);
            t += MX_T;
            panels += apart;
        } else {
            runs[has_low][S / 2](a->room, n_steps * step, panels, n_steps, is_first, at[0].y, at[0].stride);
        }
    }
}

/* All tiles against all panels. block: NULL for float16. */
static void mx_unpacked(const nrd_linear_mx *a, mx_block_fn block)
{
    static const mx_config config = {.palette = 1,
                                     .rows = {16, 16, 16, 16, 16, 16, 16, 16},
                                     .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
    _Alignas(64) float last[MX_T * MX_TILES * 16];
    const bool has_low = !block;
    const int64_t unit = has_low ? 32 : 1; /* of a->len, a step's */
    const int64_t at_once = has_low ? MX_TILES : 2, step = has_low ? 2 * MX_STEP : MX_STEP, all = (a->len + unit - 1) / unit;
    const int64_t most = NRD_LINEAR_MX_ROOM / at_once / step, n_pieces = (all + most - 1) / most;
    const int64_t piece = IS_K(a->type) ? most / 8 * 8 : (all + n_pieces - 1) / n_pieces;
    const int32_t rest = a->n_tokens % MX_T;

    mx_configure(&config);
    for (int64_t i = 0, S; i < a->n_tiles; i += S) {
        S = a->n_tiles - i >= at_once ? at_once : a->n_tiles - i >= 2 ? 2 : 1;
        for (int64_t b = 0; b < all; b += piece) {
            const uint8_t *tile = a->tiles + (size_t)i * a->tile_bytes + nrd_tile16_bytes(a->type, b * 32);
            const int64_t n = all - b < piece ? all - b : piece, left = a->len - b * unit;
            for (int64_t t = 0; t < S; t++) {
                const uint8_t *from = tile + (size_t)t * a->tile_bytes;
                if (has_low) {
                    mx_unpack_F16(from, S * (int64_t)a->tile_bytes, n * unit < left ? n * unit : left, a->room + t * n * step);
                } else {
                    tile_stream s = {from, vf_zero(), vf_zero()};
                    block(&s, 0, n, S * (int64_t)a->tile_bytes, a->room + t * n * step);
                }
            }
            mx_all_panels(a, S, has_low, step, a->panels + b * step, n, b == 0, a->y + i * 16, last);
        }
        for (int32_t t = 0; t < rest; t++) {
            memcpy(a->y + (a->n_tokens - rest + t) * a->y_stride + i * 16, last + t * MX_TILES * 16, (size_t)S * 64);
        }
    }
    mx_release();
}

/* ---- up to two panels: a block is unpacked while the unit multiplies the one before ---- */

/* Where the unpacked blocks of S tiles come from: all blocks of S tiles, then of the next S. */
typedef struct mx_source {
    mx_block_fn block;
    tile_stream tiles[MX_TILES];
    const uint8_t *group; /* the next S tiles */
    int64_t left, b, len, tile_bytes; /* groups behind these; the next block of len */
} mx_source;

static void mx_begin(mx_source *s, const int S)
{
    for (int t = 0; t < S; t++) {
        s->tiles[t] = (tile_stream){s->group + t * s->tile_bytes, vf_zero(), vf_zero()};
    }
    s->b = 0;
}

/* To the next block; behind the last one comes the last group's first, so that no loop needs to know. */
static void mx_next(mx_source *s, const int S)
{
    if (++s->b == s->len) {
        s->group += s->left > 0 ? S * s->tile_bytes : 0;
        s->left--;
        mx_begin(s, S);
    }
}

static void mx_take(mx_source *s, int t, uint8_t *slot)
{
    s->block(&s->tiles[t], s->b, 1, MX_TILES * s->tile_bytes, slot + t * MX_STEP);
}

/* Asks for the places of results of n tokens from t on: where another processor read or wrote them last, they come late, and behind stores
 * that wait for them wait those of the unpacking. */
NRD_KERNEL void mx_ask(const int S, float *y, int64_t y_stride, int32_t t, int32_t n, int32_t n_tokens)
{
    for (const int32_t end = t + n < n_tokens ? t + n : n_tokens; t < end; t++) {
        NRD_UNROLL
        for (int i = 0; i < S; i++) {
            mx_ask_to_write(y + t * y_stride + i * 16);
        }
    }
}

/* Groups of S tiles: four against one panel, two against two. Sums of the second panel are 2 and 3. The order is measured: the unit is
 * late when rows (registers 4, 5) and a tile (6, 7) are both new. */
NRD_KERNEL void mx_few(const int S, const nrd_linear_mx *a, mx_block_fn block, int64_t n_groups)
{
    mx_source s = {.block = block, .group = a->tiles, .left = n_groups - 1, .len = a->len, .tile_bytes = (int64_t)a->tile_bytes};
    uint8_t *full = a->room, *empty = a->room + MX_TILES * MX_STEP;
    const uint8_t *second = a->panels + MX_T * a->token_bytes;
    float *y = a->y, *y2 = a->y + MX_T * a->y_stride;
    const int32_t n_ask = (int32_t)(a->n_tokens * 4 / 3 / a->len) + 1; /* a block: done some blocks before the stores */

    mx_begin(&s, S);
    for (int t = 0; t < S; t++) {
        mx_take(&s, t, full);
    }
    for (int64_t i = 0; i < n_groups; i++, y += S * 16, y2 += S * 16) {
        mx_zero(0);
        mx_zero(1);
        mx_zero(2);
        mx_zero(3);
        for (int64_t b = 0; b < a->len; b++) {
            mx_next(&s, S);
            mx_ask(S, y, a->y_stride, (int32_t)b * n_ask, n_ask, a->n_tokens);
            if (S == 4) {
                mx_take(&s, 0, empty);
                mx_load(4, a->panels + b * MX_STEP, 64);
                mx_load(6, full, 64);
                mx_dot_bf16(0, 4, 6);
                mx_take(&s, 1, empty);
                mx_load(7, full + MX_STEP, 64);
                mx_dot_bf16(1, 4, 7);
                mx_take(&s, 2, empty);
                mx_load(6, full + 2 * MX_STEP, 64);
                mx_dot_bf16(2, 4, 6);
                mx_take(&s, 3, empty);
                mx_load(7, full + 3 * MX_STEP, 64);
                mx_dot_bf16(3, 4, 7);
            } else {
                mx_load(4, a->panels + b * MX_STEP, 64);
                mx_load(6, full, 64);
                mx_dot_bf16(0, 4, 6);
                mx_take(&s, 0, empty);
                mx_load(5, second + b * MX_STEP, 64);
                mx_dot_bf16(2, 5, 6);
                mx_load(7, full + MX_STEP, 64);
                mx_dot_bf16(3, 5, 7);
                mx_take(&s, 1, empty);
                mx_dot_bf16(1, 4, 7);
            }
            uint8_t *const other = full;
            full = empty;
            empty = other;
        }
        mx_store(0, y, a->y_stride * 4);
        mx_store(1, y + 16, a->y_stride * 4);
        mx_store(2, S == 4 ? y + 32 : y2, a->y_stride * 4);
        mx_store(3, S == 4 ? y + 48 : y2 + 16, a->y_stride * 4);
    }
}

/* All groups of tiles against one panel or two. Gives the tiles done. */
static int64_t mx_groups(const nrd_linear_mx *a, mx_block_fn block)
{
    const bool is_two = a->n_tokens > MX_T;
    const int64_t S = is_two ? 2 : MX_TILES, n_groups = a->n_tiles / S;
    const uint8_t last = (uint8_t)(is_two ? a->n_tokens - MX_T : a->n_tokens), first = is_two ? MX_T : last;
    const mx_config config = {.palette = 1,
                              .rows = {first, first, last, last, first, last, 16, 16},
                              .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};

    mx_configure(&config);
    if (n_groups > 0 && is_two) {
        mx_few(2, a, block, n_groups);
    } else if (n_groups > 0) {
        mx_few(4, a, block, n_groups);
    }
    mx_release();
    return n_groups * S;
}

static void mx_blocks(const nrd_linear_mx *a, mx_block_fn block)
{
    nrd_linear_mx rest = *a;

    if (a->n_tokens <= 2 * MX_T) {
        const int64_t done = mx_groups(a, block);
        rest.tiles += (size_t)done * a->tile_bytes;
        rest.y += done * 16;
        rest.n_tiles -= done;
    }
    mx_unpacked(&rest, block);
}

/* ---- bfloat16 ---- */

/* Tiles of registers: sums 0 to 3; high 4, low 5; weights 6 and 7. */
#define MX_BF16_DOT(c, b, tile, step)                                                              \
    do {                                                                                           \
        mx_load(b, tile, step);                                                                    \
        mx_dot_bf16(c, 4, b);                                                                      \
        mx_dot_bf16(c, 5, b);                                                                      \
    } while (0)
/* S tiles, `step` bytes apart, against one panel of n tokens; columns [0, n_cols) of the piece. */
NRD_KERNEL void mx_bf16_run(const int S, const bool is_near, const uint8_t *tile, int64_t step,
                            const uint8_t *panel, int n, int64_t n_cols, bool is_first, float *y,
                            int64_t y_stride, int64_t y_step)
{
    _Alignas(64) uint8_t last[4][1024];
    int64_t k = 0;

    if (is_first) {
        MX_EACH(MX_BEGIN, 0);
    } else {
        MX_EACH(MX_GO_ON, y, y_step, y_stride);
    }
    for (; k + 32 <= n_cols; k += 32, tile += 1024, panel += n * 128) {
        mx_stream(4, panel, 64);
        mx_stream(5, panel + n * 64, 64);
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
            MX_DOTS_LOW(0, 1, tile);
        }
        if (S > 2) {
            MX_DOTS_LOW(2, 3, tile + 2 * step);
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
    MX_EACH(MX_STORE, y, y_step, y_stride);
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

/* Numbers [k, k + 16) of row t, zeros behind the last one. */
NRD_INLINE vf mx_numbers(const nrd_linear_panel *a, int t, int64_t k)
{
    const uint8_t *row = (const uint8_t *)a->x + (size_t)t * a->row_bytes;
    const int64_t left = a->cols - k;

    if (left <= 0) {
        return vf_zero();
    }
    if (a->is_q8) { /* rows have whole blocks */
        const float *d = (const float *)(const void *)(row + nrd_act_q8_blocks(a->cols) * NRD_ACT_BLOCK);
        return vf_mul(vf_load_i8(row + k), vf_set1(d[k / NRD_ACT_BLOCK]));
    }
    const float *x = (const float *)(const void *)row + k;
    return left >= 16 ? vf_load(x) : vf_load_n(x, (int)left);
}

/* For 32 k: high[n][32], then, where weights are floats, low[n][32]. What is behind the last column, or token with `pads`, is zero. */
static void mx_panel(const nrd_linear_panel *a)
{
    const int T = a->pads ? MX_T : a->n_tokens, step = T * (a->has_low ? 128 : 64);
    const int64_t end = a->has_low ? a->cols : a->n_blocks * 32;

    for (int t = 0; t < T; t++) {
        uint8_t *p = a->panel + t * 64;
        int64_t k = 0;
        if (!a->has_low && !a->is_q8 && t < a->n_tokens) {
            const float *x = (const float *)(const void *)((const uint8_t *)a->x + (size_t)t * a->row_bytes);
            for (; k + 32 <= a->cols; k += 32, p += step) {
                mx_round_32(p, x + k);
            }
        }
        for (; k < end; k += 32, p += step) {
            vf v[2];
            vi high[2];
            NRD_UNROLL
            for (int i = 0; i < 2; i++) {
                v[i] = t < a->n_tokens ? mx_numbers(a, t, k + i * 16) : vf_zero();
                high[i] = mx_round_bf16(v[i]);
                _mm256_storeu_si256((__m256i *)(void *)(p + i * 32), _mm512_cvtepi32_epi16(_mm512_srli_epi32(high[i], 16)));
            }
            for (int i = 0; a->has_low && i < 2; i++) {
                vi low = mx_round_bf16(vf_sub(v[i], _mm512_castsi512_ps(high[i])));
                _mm256_storeu_si256((__m256i *)(void *)(p + T * 64 + i * 32),
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)));
            }
        }
    }
}

/* ---- by type ---- */

#define MX_UNPACK(type)                                                                            \
    static void mx_unpack_##type(tile_stream *s, int64_t b, int64_t n, int64_t ahead, uint8_t *room) \
    {                                                                                              \
        mx_unpack(NRD_DTYPE_##type, s, b, n, ahead, room);                                         \
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

#define MX_ROW(type)                                                                               \
    case NRD_DTYPE_##type:                                                                         \
        mx_blocks(a, mx_unpack_##type);                                                          \
        return;
static void linear_mx(const nrd_linear_mx *a)
{
    switch (a->type) {
        MX_ROW(Q4_0)
        MX_ROW(Q4_1)
        MX_ROW(Q5_0)
        MX_ROW(Q5_1)
        MX_ROW(Q8_0)
        MX_ROW(Q8_1)
        MX_ROW(I8)
        MX_ROW(Q2_K)
        MX_ROW(Q3_K)
        MX_ROW(Q4_K)
        MX_ROW(Q5_K)
        MX_ROW(Q6_K)
        MX_ROW(IQ4_NL)
        MX_ROW(IQ4_XS)
        MX_ROW(MXFP4)
    case NRD_DTYPE_F16:
        mx_unpacked(a, NULL);
        return;
    default:
        mx_bf16(a);
    }
}

static int32_t linear_mx_from(nrd_dtype type)
{
    switch (type) {
    case NRD_DTYPE_BF16: return 1;
    case NRD_DTYPE_F16: return MX_F16_FROM;
    case NRD_DTYPE_I8: return MX_I8_FROM;
    default: return nrd_tile16_format_of(type) ? MX_FROM : 0;
    }
}
