/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/linear_kernels.h - the products of one instruction set, as a table.
 *
 * Purpose   Apart from the other kernels, since they are most of what there is to compile: a change of the device's
 *           interface or of another kernel leaves their files as they are.
 * Owner     Constant data.
 */
#ifndef NRD_DEVICE_CPU_LINEAR_KERNELS_H
#define NRD_DEVICE_CPU_LINEAR_KERNELS_H

#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tokens regrouped for a token tile; see device/ops/linear_cpu.h. */
typedef struct nrd_linear_panel {
    const void *x;      /* first row: ACT_Q8, or float32 with is_float */
    size_t row_bytes;
    int64_t cols;
    int64_t n_blocks;   /* of 32 k, whole super blocks */
    int n_tokens;       /* 1, 2, 4, 8 or 16; for linear_mx: 1 to 16 */
    int offset;
    bool halves, is_float;
    bool is_mx, has_low; /* for linear_mx; has_low: also what is left out of x in bfloat16 */
    bool pads, is_q8;    /* of linear_mx: absent tokens are zeros; x is ACT_Q8 */
    uint8_t *panel;
} nrd_linear_panel;

/* len: blocks of 32 k, or columns for float weights. Writes out[t * out_stride + row], 16 rows.
 * The form for several tiles (nrd_linear_streams) takes those at tile + i * tile_step and writes the
 * rows of tile i to out + i * out_step. */
enum { NRD_LINEAR_MAX_STREAMS = 4 };
static inline int nrd_linear_streams(int log2_tokens)
{
    return log2_tokens <= 2 ? NRD_LINEAR_MAX_STREAMS : log2_tokens == 3 ? 2 : 1; /* 16 sums at most */
}
typedef void (*nrd_linear_tile_fn)(const uint8_t *tile, int64_t tile_step, const uint8_t *panel, int64_t len,
                                   float *out, int64_t out_stride, int64_t out_step);

/* Many tokens: two tiles, `step` bytes apart, are unpacked into `room` (NRD_LINEAR_WIDE_BYTES), which
 * then meets one panel of 16 tokens after the other, panel_step bytes apart: y[t * y_stride + row] of
 * 32 rows, begun (is_first) or gone on with. len: at most NRD_LINEAR_WIDE_BLOCKS of 32 k at a time,
 * whole super blocks for types that have them; float types: at most NRD_LINEAR_WIDE_COLS columns. */
enum { NRD_LINEAR_WIDE_BLOCKS = 20, NRD_LINEAR_WIDE_BYTES = NRD_LINEAR_WIDE_BLOCKS * 1536,
       NRD_LINEAR_WIDE_COLS = NRD_LINEAR_WIDE_BYTES / 128 };
typedef struct nrd_linear_wide {
    void (*unpack)(const uint8_t *tile, int64_t step, int64_t len, uint8_t *room);
    void (*run)(const uint8_t *room, const uint8_t *panel, int64_t panel_step, int64_t len, bool is_first, float *y,
                int64_t y_stride);
} nrd_linear_wide;

/* Matrix unit: whole tiles of 16 rows, which lie one after the other, against all panels of all
 * tokens. A panel is one of NRD_LINEAR_MX_TOKENS tokens, absent ones zero; with bfloat16 weights the
 * last one has what is left. Writes y[t * y_stride + i * 16 + row]; `room`: NRD_LINEAR_MX_ROOM.
 * Bits of its own. A token's are the same for every number of tokens that it is taken for: of bfloat16 any. */
enum { NRD_LINEAR_MX_TOKENS = 16, NRD_LINEAR_MX_ROOM = 40 << 10 };
typedef struct nrd_linear_mx {
    nrd_dtype type;
    const uint8_t *tiles;
    size_t tile_bytes;
    int64_t n_tiles, len; /* len: blocks of 32 k, or columns for floats */
    const uint8_t *panels;
    size_t token_bytes; /* of a panel */
    int32_t n_tokens;
    float *y;
    int64_t y_stride;
    uint8_t *room;
} nrd_linear_mx;

/* What a panel of T tokens has behind its blocks where each token's largest number is multiplied apart: the columns
 * where these are, and rest[i * T + t], a token's number of column i, or 0. */
typedef struct nrd_linear_far {
    int32_t n, col[NRD_LINEAR_MX_TOKENS];
    float rest[];
} nrd_linear_far;
/* A token's share of it, the tokens being 1 to 16. */
enum { NRD_LINEAR_FAR_BYTES = 4 * (1 + NRD_LINEAR_MX_TOKENS) + 4 };

/* Its products with tiles of a block type, which lie one after the other: out[t * stride + i * 16 + row] += of tile i. */
typedef struct nrd_linear_far_job {
    const nrd_linear_far *far;
    const uint8_t *tiles;
    size_t tile_bytes;
    int64_t n_tiles;
    int width, n_tokens; /* T, and how many are present */
    float *out;
    int64_t stride;
} nrd_linear_far_job;

typedef struct nrd_linear_kernels {
    void (*panel)(const nrd_linear_panel *a);
    /* side_by_side: nrd_linear_streams() tiles a call; NULL where there is no such form */
    nrd_linear_tile_fn (*tile)(nrd_dtype type, int log2_tokens, bool side_by_side);
    bool fills; /* a tile of 4, 8 or 16 tokens takes little longer than one of half as many: a few of them may be missing */
    nrd_linear_wide (*wide)(nrd_dtype type); /* NULLs: there is none */
    int32_t (*mx_from)(nrd_dtype type);      /* fewest tokens of mx; 0: there is none. NULL: no matrix unit */
    void (*mx)(const nrd_linear_mx *a);
    void (*far)(nrd_dtype type, const nrd_linear_far_job *j);
    void (*finish)(const float *out, const float *scale, const float *bias, float softcap, int n, float *y);
} nrd_linear_kernels;

extern const nrd_linear_kernels nrd_linear_kernels_generic, nrd_linear_kernels_avx2, nrd_linear_kernels_avx512,
    nrd_linear_kernels_avx512vnni, nrd_linear_kernels_amx;

#endif
