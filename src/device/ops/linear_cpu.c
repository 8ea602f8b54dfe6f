/* SPDX-License-Identifier: Apache-2.0
 * linear on the CPU: which tiles meet which tokens, and when.
 *
 * Tokens come in tiles of 16, the rest in 8, 4, 2, 1; each is regrouped into a panel (linear_cpu.h).
 * Where that is cheaper than a barrier every thread makes its own panels; else phase 0 makes
 * them once for all. Phase 1 divides the row tiles of all parts into chunks that fit in L2: a chunk
 * is read from memory once and meets token tile after token tile.
 * Weights in layout ROWS are packed tile by tile on the way: same result, slower. With a matrix unit
 * (linear_amx.h) all tokens are taken in one call for the tiles of a chunk; panels are as it wants them. */
#include "device/ops/linear_parts.h"

#include "base/mem.h"
#include "device/ops/pack.h"

#include <math.h>
#include <string.h>

enum { MAX_T = NRD_LINEAR_MX_TOKENS, CHUNK_BYTES = 160 << 10, CHUNK_MX_BYTES = 512 << 10 };
/* Each thread makes its own panels for up to OWN_TOKENS tokens, and for more where these have at most OWN_BYTES and all
 * threads together lose less than a wait: to make a panel takes as long as its product with 29 rows. Where the matrix unit takes two
 * panels and more, threads make them once, each those of the tokens whose x it has most likely written. */
enum { OWN_TOKENS = 32, OWN_BYTES = 2 << 20, OWN_ROWS = 512 };
enum { ROOM_BYTES = (int)NRD_LINEAR_MX_ROOM > (int)NRD_LINEAR_WIDE_BYTES ? (int)NRD_LINEAR_MX_ROOM : (int)NRD_LINEAR_WIDE_BYTES };
/* Of x at a time, for the matrix unit: with more tokens results whose rows are a multiple of 4096 bytes apart would meet in
 * the same few sets of L2. */
enum { MX_PANEL_BYTES = 832 << 10, MX_BLOCK_TOKENS = 256 };
enum { MX_CHUNKS_FROM = 12 }; /* tokens: with fewer, of floats, chunks are as without the unit */
enum { MX_FINISH = 4 }; /* tiles after which scales and biases meet results that are still in a cache */

/* Parts of one kind can share panels. */
typedef struct panel_kind {
    bool is_float, halves, is_mx, has_low, pads, has_far;
    bool fills; /* a tile of tokens may have places for more than there are */
    int offset;
    int64_t len;            /* blocks or columns, as the tile function takes it */
    size_t bytes_per_token; /* of the panel */
} panel_kind;

static panel_kind kind_of(const nrd_cpu_kernels *kernels, const nrd_linear_args *a, int p)
{
    nrd_dtype t = a->w[p]->dtype;
    int64_t cols = a->w[p]->cols;
    int32_t mx_from = kernels->linear->mx_from ? kernels->linear->mx_from(t) : 0;
    const nrd_tile16_format *f = nrd_tile16_format_of(t);
    panel_kind k = {.is_mx = mx_from > 0 && a->n_tokens >= mx_from && (mx_from == 1 || !a->deterministic)};

    k.is_float = !f || k.is_mx;
    k.len = f ? nrd_act_q8_blocks(cols) : cols;
    if (!k.is_float) {
        k.fills = kernels->linear->fills;
        k.offset = f->offset;
        k.halves = t == NRD_DTYPE_Q2_K || t == NRD_DTYPE_Q3_K || t == NRD_DTYPE_Q6_K;
        k.has_far = a->x_dtype == NRD_DTYPE_F32 && a->n_parts == 1;
        k.bytes_per_token = (size_t)k.len * 52 + (k.has_far ? NRD_LINEAR_FAR_BYTES : 0);
    } else if (k.is_mx) {
        const size_t halves = (size_t)((cols + 31) / 32) * 2;
        k.has_low = !f;
        k.pads = mx_from > 1;
        /* Where rows are padded, one more: of one part never less than fewer tokens have, and of no width a multiple of 4096. */
        k.bytes_per_token = (f ? (size_t)k.len + 1 : halves + k.pads) * 64;
    } else {
        k.bytes_per_token = (size_t)(cols + cols % 2) * 4;
    }
    return k;
}

bool nrd_linear_cpu_on_unit(const nrd_cpu_kernels *kernels, const nrd_linear_args *a, int p)
{
    return kind_of(kernels, a, p).is_mx;
}

/* How many of `left` tokens the next token tile takes; 1 << *log2: its places. A few empty ones take less than more tiles: 3, 7, 13
 * and 15 tokens 0.65 to 0.81, 0.58 to 0.83, 0.86 to 1.08 and 0.70 to 0.87 of the time, 11 and 12 would take 0.92 to 1.22 (five types,
 * three shapes, VNNI on an Intel Xeon). */
static int tile_tokens(const panel_kind *kind, int32_t left, int *log2)
{
    static const int least[] = {1, 2, 3, 6, 13};
    int n = 4;

    while (left < (kind->fills ? least[n] : 1 << n)) {
        n--;
    }
    *log2 = n;
    return left < 1 << n ? left : 1 << n;
}

/* Places of all tiles of n tokens. */
static size_t tile_places(const panel_kind *kind, int32_t n)
{
    size_t places = 0;
    int log2;

    if (kind->is_mx) {
        return (size_t)(n + MAX_T - 1) / MAX_T * MAX_T;
    }
    for (int32_t left = n; left > 0; left -= tile_tokens(kind, left, &log2), places += (size_t)1 << log2) {
    }
    return places;
}

/* Index of the first part with the same kind of panel as part p. */
static int first_like(const nrd_cpu_kernels *kernels, const nrd_linear_args *a, int p)
{
    panel_kind k = kind_of(kernels, a, p);

    for (int q = 0; q < p; q++) {
        panel_kind o = kind_of(kernels, a, q);
        if (o.is_float == k.is_float && o.halves == k.halves && o.offset == k.offset && o.is_mx == k.is_mx && o.has_low == k.has_low && o.pads == k.pads) {
            return q;
        }
    }
    return p;
}

/* Bytes before part p's panels. */
static size_t panel_start(const nrd_cpu_kernels *kernels, const nrd_linear_args *a, int p)
{
    size_t at = 0;

    for (int q = 0; q < p; q++) {
        if (first_like(kernels, a, q) == q) {
            panel_kind kind = kind_of(kernels, a, q);
            at += (kind.bytes_per_token * tile_places(&kind, a->n_tokens) + 63) & ~(size_t)63;
        }
    }
    return at;
}

/* Where a panel of T tokens has what is multiplied apart. */
static size_t far_at(const panel_kind *kind, int T)
{
    return (size_t)kind->len * 52 * (size_t)T;
}

/* Token t of T has `rest` in column `col`. */
static void add_rest(nrd_linear_far *far, int T, int t, int32_t col, float rest)
{
    int32_t i = 0;

    while (i < far->n && far->col[i] != col) {
        i++;
    }
    if (i == far->n) {
        far->col[far->n++] = col;
        memset(far->rest + i * T, 0, (size_t)T * sizeof far->rest[0]);
    }
    far->rest[i * T + t] = rest;
}

/* Takes the largest number of row x out of its 8 bits; gives its column. The others of its block would have few of the
 * 255 steps beside it. */
static int32_t take_out(const nrd_cpu_run *r, const float *x, int64_t cols, uint8_t *row)
{
    const int64_t n = nrd_act_q8_blocks(cols);
    const float *scale = (const float *)(const void *)(row + n * NRD_ACT_BLOCK);
    float block[NRD_ACT_BLOCK];
    int64_t at = 0, top = 0;

    for (int64_t b = 1; b < n; b++) {
        at = scale[b] > scale[at] ? b : at;
    }
    const int64_t len = cols - at * NRD_ACT_BLOCK < NRD_ACT_BLOCK ? cols - at * NRD_ACT_BLOCK : NRD_ACT_BLOCK;
    memcpy(block, x + at * NRD_ACT_BLOCK, (size_t)len * sizeof *block);
    for (int64_t i = 1; i < len; i++) {
        top = fabsf(block[i]) > fabsf(block[top]) ? i : top;
    }
    block[top] = 0;
    r->k->act_q8_part(block, len, at, cols, row);
    return (int32_t)(at * NRD_ACT_BLOCK + top);
}

/* Rows [t0, t0 + n) as the panel of `kind` with T places, or those that `ids` names from there on; `rows` is room for T gathered,
 * converted or empty rows. */
static void make_panel(const nrd_cpu_run *r, const nrd_linear_args *a, const int32_t *ids, const panel_kind *kind,
                       int32_t t0, int n, int T, uint8_t *panel, uint8_t *rows)
{
    int64_t cols = a->w[0]->cols;
    size_t in_bytes = nrd_row_bytes(a->x_dtype, cols);
    const uint8_t *x = (const uint8_t *)a->x + (ids ? 0 : (size_t)t0 * in_bytes);
    nrd_linear_panel p = {x, in_bytes, cols, kind->len, T, kind->offset, kind->halves, kind->is_float, kind->is_mx, kind->has_low,
                          kind->pads, kind->is_mx && a->x_dtype == NRD_DTYPE_ACT_Q8, panel};
    const bool converts = !p.is_q8 && kind->is_float != (a->x_dtype == NRD_DTYPE_F32);
    nrd_linear_far *far = kind->has_far ? (nrd_linear_far *)(void *)(panel + far_at(kind, T)) : NULL;
    const bool copies = converts || ids || T > n;

    if (converts) {
        p.row_bytes = nrd_row_bytes(kind->is_float ? NRD_DTYPE_F32 : NRD_DTYPE_ACT_Q8, cols);
    }
    if (far) {
        far->n = 0;
    }
    for (int t = 0; copies && t < n; t++) {
        const uint8_t *from = x + (size_t)(ids ? ids[t0 + t] : t) * in_bytes;
        uint8_t *to = rows + (size_t)t * p.row_bytes;
        if (!converts) {
            memcpy(to, from, in_bytes);
        } else if (kind->is_float) {
            nrd_act_q8_dequantize(from, cols, (float *)(void *)to);
        } else {
            const float *row = (const float *)(const void *)from;
            r->k->act_q8_row(row, cols, to);
            if (far) {
                const int32_t col = take_out(r, row, cols, to);
                add_rest(far, T, t, col, row[col]);
            }
        }
    }
    memset(rows + (size_t)n * p.row_bytes, 0, (size_t)(T - n) * p.row_bytes);
    p.x = copies ? rows : x;
    r->k->linear->panel(&p);
}

static size_t rows_room(const nrd_linear_args *a)
{
    size_t f = nrd_row_bytes(NRD_DTYPE_F32, a->w[0]->cols), q = nrd_act_q8_row_bytes(a->w[0]->cols);
    return MAX_T * (f > q ? f : q);
}

void nrd_linear_cpu_make_panels(const nrd_cpu_run *r, const nrd_linear_args *a, const int32_t *ids, int32_t t0,
                                int32_t end, uint8_t *panels)
{
    for (int p = 0; p < a->n_parts; p++) {
        if (first_like(r->k, a, p) != p) {
            continue;
        }
        panel_kind kind = kind_of(r->k, a, p);
        uint8_t *base = panels + panel_start(r->k, a, p);
        for (int32_t t = t0; t < end;) {
            int log2 = 0, n = kind.is_mx ? (end - t < MAX_T ? end - t : MAX_T) : tile_tokens(&kind, end - t, &log2);
            make_panel(r, a, ids, &kind, t, n, kind.is_mx ? n : 1 << log2, base + (size_t)t * kind.bytes_per_token, r->scratch);
            t += n;
        }
    }
}

/* One part's tiles and where their results go. */
typedef struct tiles_of {
    const nrd_linear_args *a;
    const nrd_weight *w, *b;
    float *y; /* the first token's results of tile `first` */
    int64_t first, y_stride;
    bool plain; /* results need no scale, bias or cap */
} tiles_of;

static float *place(const tiles_of *p, int64_t tile, int32_t token)
{
    return p->y + token * p->y_stride + (tile - p->first) * 16;
}

/* The results of n tokens and one tile, `stride` apart in `out`, to their place in y. */
static void finish_tile(const nrd_cpu_run *r, const tiles_of *p, int64_t tile, int32_t t0, int n, const float *out,
                        int64_t stride)
{
    const nrd_linear_args *a = p->a;
    const float *scales = p->w->scales, *tile_bias = NULL;
    int n_rows = p->w->rows - tile * 16 < 16 ? (int)(p->w->rows - tile * 16) : 16;
    float bias[16];

    if (p->b && p->b->dtype == NRD_DTYPE_F32) {
        tile_bias = (const float *)p->b->data + tile * 16;
    } else if (p->b) {
        for (int j = 0; j < n_rows; j++) {
            bias[j] = nrd_weight_at(p->b, tile * 16 + j);
        }
        tile_bias = bias;
    }
    for (int t = 0; t < n; t++) {
        r->k->linear->finish(out + t * stride, scales ? scales + tile * 16 : NULL, tile_bias, a->softcap, n_rows,
                            place(p, tile, t0 + t));
    }
}

/* Adds what a panel of T tokens, n of them present, has apart to the results of n_tiles tiles. */
static void add_far(const nrd_cpu_run *r, const tiles_of *p, const panel_kind *kind, const uint8_t *panel, int T, int n,
                    const uint8_t *tiles, int64_t n_tiles, float *out, int64_t stride)
{
    if (kind->has_far) {
        nrd_linear_far_job j = {(const nrd_linear_far *)(const void *)(panel + far_at(kind, T)), tiles,
                                nrd_tile16_bytes(p->w->dtype, p->w->cols), n_tiles, T, n, out, stride};
        r->k->linear->far(p->w->dtype, &j);
    }
}

/* Tiles [from, to), which lie one after the other from `data` on, against one token tile of 1 << log2 places, n of them taken. */
static void do_token_tile(const nrd_cpu_run *r, const tiles_of *p, const uint8_t *data, int64_t from, int64_t to,
                          const panel_kind *kind, const uint8_t *panel, int32_t t0, int n, int log2)
{
    const int S = nrd_linear_streams(log2), T = 1 << log2;
    nrd_linear_tile_fn fn = r->k->linear->tile(p->w->dtype, log2, false), many = NULL;
    size_t tile_bytes = nrd_tile16_bytes(p->w->dtype, p->w->cols);
    float out[MAX_T * 16];
    int64_t i = from, full = p->w->rows / 16, run = to - from >= S ? (to - from) / S : 0;
    /* What is apart comes last for tiles before this one: in between it would stop the reading ahead. */
    const int64_t late = !p->plain ? from : to < full ? to : full;
    const uint8_t *const all = data;

    if (run > 0) {
        many = r->k->linear->tile(p->w->dtype, log2, true);
    }
    if (many) {
        int64_t step = run * (int64_t)tile_bytes, last = i + run;
        bool plain = p->plain && n == T && i + S * run <= full;
        for (; i < last; i++, data += tile_bytes) {
            if (plain) {
                many(data, step, panel, kind->len, place(p, i, t0), p->y_stride, run * 16);
                continue;
            }
            many(data, step, panel, kind->len, out, S * 16, 16);
            for (int s = 0; s < S; s++) {
                if (i + s * run >= late) {
                    add_far(r, p, kind, panel, T, n, data + s * step, 1, out + s * 16, S * 16);
                }
                finish_tile(r, p, i + s * run, t0, n, out + s * 16, S * 16);
            }
        }
        i += (S - 1) * run;
        data += (S - 1) * step;
    }
    for (; i < to; i++, data += tile_bytes) {
        if (p->plain && n == T && i < full) {
            fn(data, 0, panel, kind->len, place(p, i, t0), p->y_stride, 0);
        } else {
            fn(data, 0, panel, kind->len, out, 16, 0);
            if (i >= late) {
                add_far(r, p, kind, panel, T, n, data, 1, out, 16);
            }
            finish_tile(r, p, i, t0, n, out, 16);
        }
    }
    if (late > from) {
        add_far(r, p, kind, panel, T, n, all, late - from, place(p, from, t0), p->y_stride);
    }
}

/* Pairs of full tiles from `from` on against the whole token tiles; gives the first tile left. The
 * columns are taken in pieces whose unpacked weights and panel stay in L1. */
static int64_t do_wide(const nrd_cpu_run *r, const tiles_of *p, const uint8_t *data, int64_t from, int64_t to,
                       const panel_kind *kind, const uint8_t *panels, int32_t n_tokens, uint8_t *room)
{
    nrd_linear_wide wide = r->k->linear->wide(p->w->dtype);
    size_t tile_bytes = nrd_tile16_bytes(p->w->dtype, p->w->cols), panel_bytes = kind->bytes_per_token;
    int64_t i = from, full = p->w->rows / 16 < to ? p->w->rows / 16 : to;
    int64_t most = kind->is_float ? NRD_LINEAR_WIDE_COLS : NRD_LINEAR_WIDE_BLOCKS;
    int64_t n_pieces = (kind->len + most - 1) / most, piece = (kind->len + n_pieces - 1) / n_pieces;
    size_t unit = MAX_T * (kind->is_float ? sizeof(float) : 52); /* of a panel: a column's or a block's */

    if (nrd_dtype_block(p->w->dtype) == 256) {
        piece = NRD_LINEAR_WIDE_BLOCKS / 8 * 8;
    }
    piece += kind->is_float ? piece % 2 : 0; /* bfloat16 lies in pairs */
    for (; wide.run && i + 2 <= full; i += 2, data += 2 * tile_bytes) {
        float *y = place(p, i, 0);
        for (int64_t b = 0; b < kind->len; b += piece) {
            int64_t n = kind->len - b < piece ? kind->len - b : piece;
            wide.unpack(data + nrd_tile16_bytes(p->w->dtype, kind->is_float ? b : b * 32), (int64_t)tile_bytes, n, room);
            for (int32_t t = 0; t < n_tokens; t += MAX_T) {
                wide.run(room, panels + (size_t)t * panel_bytes + (size_t)b * unit, (int64_t)panel_bytes * MAX_T, n,
                         b == 0, y + t * p->y_stride, p->y_stride);
            }
        }
        for (int32_t t = 0; t < n_tokens; t += MAX_T) {
            add_far(r, p, kind, panels + (size_t)t * panel_bytes, MAX_T, MAX_T, data, 2, y + t * p->y_stride, p->y_stride);
        }
        for (int32_t t = 0; !p->plain && t < n_tokens; t += MAX_T) {
            finish_tile(r, p, i, t, MAX_T, y + t * p->y_stride, p->y_stride);
            finish_tile(r, p, i + 1, t, MAX_T, y + t * p->y_stride + 16, p->y_stride);
        }
    }
    return i;
}

/* Tiles [from, to) against all tokens on the matrix unit, in blocks of tokens whose panels stay in L2 beside
 * the tiles. The last tile may have fewer rows. */
static void do_mx(const nrd_cpu_run *r, const tiles_of *p, const uint8_t *data, int64_t from, int64_t to,
                  const panel_kind *kind, const uint8_t *panels, int32_t n_tokens, uint8_t *room)
{
    size_t tile_bytes = nrd_tile16_bytes(p->w->dtype, p->w->cols);
    int64_t full = p->w->rows / 16 < to ? p->w->rows / 16 : to, i = from;
    nrd_linear_mx m = {.type = p->w->dtype,
                       .tile_bytes = tile_bytes,
                       .len = kind->len,
                       .panels = panels,
                       .token_bytes = kind->bytes_per_token,
                       .y_stride = p->y_stride,
                       .room = room};
    const int32_t most = (int32_t)(MX_PANEL_BYTES / kind->bytes_per_token) / MAX_T * MAX_T;
    const int32_t fit = most > MX_BLOCK_TOKENS ? MX_BLOCK_TOKENS : most > MAX_T ? most : MAX_T;
    const int32_t n_blocks = (n_tokens + fit - 1) / fit, each = (n_tokens + n_blocks - 1) / n_blocks;
    const int32_t block = (each + MAX_T - 1) / MAX_T * MAX_T;
    float out[MAX_T * 16];

    for (int32_t t = 0; t < n_tokens; t += m.n_tokens) {
        m.n_tokens = n_tokens - t < block ? n_tokens - t : block;
        m.panels = panels + (size_t)t * kind->bytes_per_token;
        for (i = from; i < full; i += m.n_tiles) {
            m.n_tiles = p->plain || full - i < MX_FINISH ? full - i : MX_FINISH;
            m.tiles = data + (size_t)(i - from) * tile_bytes;
            m.y = place(p, i, t);
            r->k->linear->mx(&m);
            for (int64_t k = i; !p->plain && k < i + m.n_tiles; k++) {
                finish_tile(r, p, k, t, m.n_tokens, place(p, k, t), p->y_stride);
            }
        }
    }
    m.n_tiles = 1;
    m.tiles = data + (size_t)(i - from) * tile_bytes;
    m.y = out;
    m.y_stride = 16;
    for (int32_t t = 0; i < to && t < n_tokens; t += MAX_T) {
        m.n_tokens = n_tokens - t < MAX_T ? n_tokens - t : MAX_T;
        m.panels = panels + (size_t)t * kind->bytes_per_token;
        r->k->linear->mx(&m);
        finish_tile(r, p, i, t, m.n_tokens, out, 16);
    }
}

void nrd_linear_cpu_do_tiles(const nrd_cpu_run *r, const nrd_linear_args *a, int p, int64_t from, int64_t to, float *y,
                             int64_t first_tile, int64_t y_stride, const uint8_t *panels)
{
    uint8_t *room = r->scratch + rows_room(a); /* of do_wide or do_mx, behind it a tile packed on the way */
    const nrd_weight *w = a->w[p];
    panel_kind kind = kind_of(r->k, a, p);
    bool packed = w->layout == NRD_LAYOUT_TILE16;
    tiles_of tiles = {a, w, a->bias[p], y, first_tile, y_stride, !w->scales && !a->bias[p] && a->softcap <= 0};
    uint8_t *tile_room = room + ROOM_BYTES;

    panels += panel_start(r->k, a, first_like(r->k, a, p));
    for (int64_t r0 = from; r0 < to; r0 += packed ? to - from : 1) {
        int64_t r1 = packed ? to : r0 + 1, rest = r0; /* ROWS: one tile at a time, packed once */
        int32_t wide_tokens = a->n_tokens / MAX_T * MAX_T;
        size_t tile_bytes = nrd_tile16_bytes(w->dtype, w->cols);
        const uint8_t *data = tile_room;
        if (packed) {
            data = (const uint8_t *)w->data + (size_t)r0 * tile_bytes;
        } else {
            nrd_tile16_pack(w, r0 * 16, tile_room);
        }
        if (kind.is_mx) {
            do_mx(r, &tiles, data, r0, r1, &kind, panels, a->n_tokens, room);
            continue;
        }
        if (packed && wide_tokens >= 2 * MAX_T) {
            rest = do_wide(r, &tiles, data, r0, r1, &kind, panels, wide_tokens, room);
        }
        for (int32_t t0 = 0; t0 < a->n_tokens;) {
            int log2, n = tile_tokens(&kind, a->n_tokens - t0, &log2);
            int64_t first = t0 < wide_tokens ? rest : r0;
            do_token_tile(r, &tiles, data + (size_t)(first - r0) * tile_bytes, first, r1, &kind,
                          panels + (size_t)t0 * kind.bytes_per_token, t0, n, log2);
            t0 += n;
        }
    }
}

void nrd_linear_cpu_panels(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t token_tile)
{
    const nrd_linear_args *a = &c->u.linear;
    int32_t t0 = token_tile * MAX_T;

    nrd_linear_cpu_make_panels(r, a, NULL, t0, t0 + MAX_T < a->n_tokens ? t0 + MAX_T : a->n_tokens, r->shared);
}

void nrd_linear_cpu_tiles(nrd_cpu_run *r, const nrd_cpu_cmd *c, int p, int64_t from, int64_t to, float *y,
                          int64_t first_tile, int64_t y_stride)
{
    const nrd_linear_args *a = &c->u.linear;
    uint8_t *panels = r->shared;

    if (c->at[NRD_LINEAR_AT_PANELS]) {
        panels = r->scratch + c->at[NRD_LINEAR_AT_PANELS];
        if (r->owner != c) {
            nrd_linear_cpu_make_panels(r, a, NULL, 0, a->n_tokens, panels);
            r->owner = c;
        }
    }
    nrd_linear_cpu_do_tiles(r, a, p, from, to, y, first_tile, y_stride, panels);
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_linear_args *a = &c->u.linear;

    if (phase == 0) { /* one token tile of every kind of panel */
        nrd_linear_cpu_panels(r, c, task);
        return;
    }
    int64_t from = (int64_t)task * c->i[0], to = from + c->i[0], base = 0, y0 = 0, y_stride = 0;
    for (int p = 0; p < a->n_parts; p++) {
        y_stride += a->w[p]->rows;
    }
    for (int p = 0; p < a->n_parts; p++) {
        int64_t n = (a->w[p]->rows + 15) / 16;
        int64_t lo = from > base ? from - base : 0, hi = to - base < n ? to - base : n;
        if (lo < hi) {
            nrd_linear_cpu_tiles(r, c, p, lo, hi, (float *)a->y + y0, 0, y_stride);
        }
        base += n;
        y0 += a->w[p]->rows;
    }
}

static const nrd_cpu_op op = {run};

size_t nrd_linear_cpu_panel_bytes(const nrd_cpu_kernels *kernels, const nrd_linear_args *a)
{
    return panel_start(kernels, a, a->n_parts);
}

size_t nrd_linear_cpu_room(const nrd_linear_args *a)
{
    size_t unpacked = 0;

    for (int p = 0; p < a->n_parts; p++) {
        size_t bytes = nrd_tile16_bytes(a->w[p]->dtype, a->w[p]->cols);
        if (a->w[p]->layout != NRD_LAYOUT_TILE16) {
            unpacked = bytes > unpacked ? bytes : unpacked;
        }
    }
    return rows_room(a) + ROOM_BYTES + ((unpacked + 63) & ~(size_t)63);
}

nrd_error *nrd_linear_cpu_types(const nrd_linear_args *a)
{
    if (a->x_dtype != NRD_DTYPE_F32 && a->x_dtype != NRD_DTYPE_ACT_Q8) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: linear from %s", nrd_dtype_name(a->x_dtype));
    }
    if (a->y_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: linear to %s", nrd_dtype_name(a->y_dtype));
    }
    for (int p = 0; p < a->n_parts; p++) {
        if (nrd_tile16_bytes(a->w[p]->dtype, a->w[p]->cols) == 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: linear with weights of type %s",
                              nrd_dtype_name(a->w[p]->dtype));
        }
    }
    return NULL;
}

/* The chunk near `about` tiles, at most `most` and a multiple of `unit`, that leaves the thread with most work the least of it. */
static int64_t even_chunk(int64_t tiles, int64_t about, int64_t most, int64_t unit, int n_threads)
{
    const int64_t from = about + about / 2 < most ? about + about / 2 : about;
    int64_t best = about, least = INT64_MAX;

    for (int64_t chunk = from / unit * unit; chunk > 0 && chunk >= about / 2; chunk -= unit) {
        int64_t tasks = (tiles + chunk - 1) / chunk, work = (tasks + n_threads - 1) / n_threads * chunk;
        if (work < least) {
            least = work;
            best = chunk;
        }
    }
    return best;
}

/* Tiles that meet n tokens together: of do_mx one panel's or two panels', of do_wide, or side by side. */
static int64_t tiles_at_once(int32_t n_tokens, bool is_mx)
{
    if (is_mx) {
        return n_tokens <= MAX_T ? 4 : 2;
    }
    return n_tokens >= 2 * MAX_T || (n_tokens >= 8 && n_tokens < MAX_T) ? 2 : 1;
}

nrd_error *nrd_linear_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_linear_args *a = &c->u.linear;
    int64_t tiles = 0;
    size_t tile_max = 0;
    bool is_mx = a->n_tokens >= MX_CHUNKS_FROM; /* which reads panels once a chunk */

    NRD_TRY(nrd_linear_cpu_types(a));
    for (int p = 0; p < a->n_parts; p++) {
        size_t bytes = nrd_tile16_bytes(a->w[p]->dtype, a->w[p]->cols);
        tile_max = bytes > tile_max ? bytes : tile_max;
        tiles += (a->w[p]->rows + 15) / 16;
        panel_kind kind = kind_of(c->k, a, p);
        is_mx = is_mx && kind.is_mx;
    }
    /* Chunks: at most CHUNK_BYTES, at least four a thread where there is enough. */
    const int64_t most = (is_mx ? CHUNK_MX_BYTES : CHUNK_BYTES) / (int64_t)tile_max, fair = tiles / (n_threads * 4);
    int64_t unit = tiles_at_once(a->n_tokens, is_mx), chunk = most < fair ? most : fair;
    chunk = chunk < 1 ? 1 : chunk;
    chunk = (chunk + unit - 1) / unit * unit;
    if (n_threads > 1 && a->n_tokens >= 8) { /* fewer take more tiles side by side */
        chunk = even_chunk(tiles, chunk, most, unit, n_threads);
    }
    c->op = &op;
    c->i[0] = (int32_t)chunk;
    c->n_tasks[1] = a->n_tokens ? (int32_t)((tiles + chunk - 1) / chunk) : 0;
    size_t panels = panel_start(c->k, a, a->n_parts);
    const bool many = is_mx && n_threads > 1 && a->n_tokens > MAX_T;
    const bool own = !many && (a->n_tokens <= OWN_TOKENS || (panels <= OWN_BYTES && tiles * 16 >= (int64_t)(n_threads - 1) * OWN_ROWS));
    c->n_tasks[0] = own ? 0 : (a->n_tokens + MAX_T - 1) / MAX_T;
    c->scratch_bytes = nrd_linear_cpu_room(a);
    if (!own) {
        c->at[NRD_LINEAR_AT_PANELS] = 0;
        c->shared_bytes = panels;
    } else {
        c->at[NRD_LINEAR_AT_PANELS] = c->scratch_bytes;
        c->scratch_bytes += panels;
    }
    return NULL;
}
