/* SPDX-License-Identifier: Apache-2.0
 * compressed-tensors' weights of which two of four columns are zero (2:4), and the others alone are kept:
 *   "sparse-24-bitmask"  compressed [out, in / 2] floats, E4M3 or int8: the numbers that are kept, along the columns
 *                        bitmask U8 [out, in / 8]: which they are, the lowest bit first
 *                        shape I64 [2, 1]: rows and columns; weight_scale of E4M3 and int8 as of weights that are whole
 *   "marlin-24"          integers of 4 or 8 bits plus 2^(bits - 1), in the order of a GPU's product:
 *                        weight_packed I32 [in / 32, out * bits / 2], scale_packed [groups, out], meta I16 [in / 32, out * 2]: for each four
 *                        columns two places of two bits, in CUTLASS' order
 * A device has no product of such weights here: integers and E4M3 become whole with zeros between.
 * Source: compressed-tensors 0.9.4, compressors/sparse_compressors/sparse_24_bitmask.py, sparse_quantized_compressors/marlin_24.py,
 * utils/permutations_24.py and utils/semi_structured_conversions.py. */
#include "base/dtype.h"
#include "model/quant/quant.h"

#include <string.h>

/* weight->more */
enum { MASK, META = MASK };

/* ---- with a mask ---- */

bool nrd_quant_fill(const nrd_quant_weight *w, int64_t row, uint8_t *out)
{
    const size_t size = nrd_dtype_block_bytes(w->codes.dtype), kept = (size_t)w->cols / 2;
    const uint8_t *mask = (const uint8_t *)w->more[MASK].data + row * (w->cols / 8);
    const uint8_t *src = (const uint8_t *)w->codes.data + (size_t)row * kept * size;
    size_t n = 0;

    memset(out, 0, (size_t)w->cols * size);
    for (int64_t c = 0; c < w->cols; c++) {
        if (mask[c / 8] >> (c % 8) & 1) {
            if (n == kept) {
                return false;
            }
            memcpy(out + (size_t)c * size, src + n++ * size, size);
        }
    }
    return n == kept;
}

bool nrd_quant_mask_fits(const nrd_quant_weight *w, int64_t row)
{
    const uint8_t *mask = (const uint8_t *)w->more[MASK].data + row * (w->cols / 8);
    int64_t n = 0;

    for (int64_t i = 0; i < w->cols / 8; i++) {
        n += __builtin_popcount(mask[i]);
    }
    return n == w->cols / 2;
}

/* Numbers as wide as F32 are filled in in their place, narrower ones at the row's end, from where they grow. */
static void values_masked(const nrd_quant_weight *w, int64_t row, float *out)
{
    const size_t size = nrd_dtype_block_bytes(w->codes.dtype);
    uint8_t *raw = (uint8_t *)out + (size_t)w->cols * (sizeof *out - size);
    uint8_t one[sizeof *out];

    nrd_quant_fill(w, row, raw); /* rows.c has seen that the mask is whole */
    for (int64_t c = 0; c < w->cols; c++) {
        memcpy(one, raw + (size_t)c * size, size);
        nrd_dequantize_row(w->codes.dtype, one, out + c, 1);
    }
}

static void codes_masked(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t r = 0; r < n; r++, out += w->cols) {
        nrd_quant_fill(w, row0 + r, out);
        for (int64_t c = 0; c < w->cols; c++) {
            out[c] = (uint8_t)(out[c] + 128);
        }
    }
}

/* shape [2, 1]: rows and columns, by which the other parts are checked. */
static nrd_error *read_shape(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor shape;
    int64_t dims[2];

    NRD_TRY(nrd_quant_take(q, stem, ".shape", w, &shape));
    if (shape.n_dims == 2 && shape.dims[1] == 1) {
        shape.n_dims = 1;
    }
    NRD_TRY(nrd_quant_shape(&shape, NRD_DTYPE_I64, 2, -1));
    memcpy(dims, shape.data, sizeof dims);
    w->rows = dims[0];
    w->cols = dims[1];
    if (w->rows < 1 || w->cols < 1 || w->rows > INT32_MAX || w->cols > INT32_MAX || w->cols % 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' says %lld x %lld, expected rows, and columns that are a multiple of 8", shape.name,
                          (long long)w->rows, (long long)w->cols);
    }
    return NULL;
}

nrd_error *nrd_quant_sparse_mask(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, ".compressed", w, &w->codes));
    NRD_TRY(read_shape(q, stem, w));
    NRD_TRY(nrd_quant_take(q, stem, ".bitmask", w, &w->more[MASK]));
    nrd_quant_try(q, stem, ".input_scale", w, &ignored);
    nrd_quant_try(q, stem, ".input_zero_point", w, &ignored);
    NRD_TRY(nrd_quant_shape(&w->more[MASK], NRD_DTYPE_U8, w->rows, w->cols / 8));
    w->is_sparse = true;
    w->bits = 8;
    if (w->codes.dtype == NRD_DTYPE_I8) {
        w->codes_of = codes_masked;
        w->zero_point = 128;
    } else {
        w->values_of = values_masked;
        w->is_fp8 = w->codes.dtype == NRD_DTYPE_F8_E4M3;
    }
    NRD_TRY(nrd_quant_shape(&w->codes, w->codes.dtype == NRD_DTYPE_I8 || w->is_fp8 ? w->codes.dtype : NRD_DTYPE_NONE, w->rows, w->cols / 2));
    if (!w->scales.data) { /* floats */
        if (w->codes.dtype == NRD_DTYPE_I8 || w->is_fp8) {
            return nrd_errorf(NRD_ERR_NOT_FOUND, "tensor '%s.weight_scale' is missing; '%s' needs it", stem, w->codes.name);
        }
        return nrd_quant_groups(w, -1);
    }
    return nrd_quant_spread(w, NRD_DTYPE_NONE, s);
}

/* ---- Marlin's order ---- */

enum { TILE = 1024, TILE_COLS = 16, TILE_ROWS = 64 }; /* 16 kept columns of 64 rows */

/* Where number i of a tile (16 rows' columns of 16, four times) lies in the file's. */
static void tile_places(int bits, uint16_t out[TILE])
{
    static const uint8_t of_4[] = {0, 2, 4, 6, 1, 3, 5, 7}, of_8[] = {0, 2, 1, 3};
    const uint8_t *turn = bits == 4 ? of_4 : of_8;
    const int n = bits == 4 ? 8 : 4;
    uint16_t perm[TILE];
    int at = 0;

    for (int i = 0; i < 32; i++) {
        const int col = i / 4, start = col / 2 * 256 + 8 * (col % 2);
        for (int j = 0; j < 4; j++) {
            for (int block = 0; block < 2; block++) {
                for (int k = 0; k < 4; k++) {
                    const int row = 2 * (i % 4 + (k / 2) * 4) + k % 2;
                    perm[at++] = (uint16_t)(16 * row + start + 4 * block + j);
                }
            }
        }
    }
    for (int p = 0; p < TILE; p++) {
        out[perm[p / n * n + turn[p % n]]] = (uint16_t)p;
    }
}

/* The four bits of meta that belong to columns 4 * quad … of a row: CUTLASS' reordered matrix of 16 bits [rows, in / 16], kept in pairs of
 * its columns. */
static unsigned meta_of(const nrd_quant_weight *w, int64_t row, int64_t quad)
{
    int64_t col = quad / 4;
    int64_t to = row / 64 * 64 + row % 2 * 2 + row % 8 / 4 + row % 4 / 2 * 32 + row % 64 / 8 * 4;
    uint16_t v;

    if (to % 2 == 0 && col % 2 == 1) {
        to++;
        col--;
    } else if (to % 2 == 1 && col % 2 == 0) {
        to--;
        col++;
    }
    memcpy(&v, (const char *)w->more[META].data + (col / 2 * w->rows * 2 + to * 2 + col % 2) * 2, 2);
    return v >> (quad % 4 * 4) & 15;
}

static void codes_marlin(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const int per_word = 32 / w->bits;
    uint16_t place[TILE];

    tile_places(w->bits, place);
    memset(out, 1 << (w->bits - 1), (size_t)(n * w->cols));
    for (int64_t r = row0; r < row0 + n; r++, out += w->cols) {
        for (int64_t k = 0; k < w->cols / 2; k++) { /* of the columns that are kept */
            const int64_t tile = r / TILE_ROWS, in_tile = r % TILE_ROWS / 16 * 256 + k % TILE_COLS * 16 + r % 16;
            const int64_t at = tile * TILE + place[in_tile];
            const uint32_t word = nrd_quant_word(w->codes.data, k / TILE_COLS * w->codes.dims[1] + at / per_word);
            const unsigned meta = meta_of(w, r, k / 2);
            out[k / 2 * 4 + (meta >> (k % 2 * 2) & 3)] = (uint8_t)(word >> (at % per_word * w->bits) & ((1u << w->bits) - 1));
        }
    }
}

/* Scales of several groups lie in eights whose halves come by turns. */
static int64_t marlin_scale(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t at = w->n_groups > 1 && w->group < w->cols / 2 ? row / 8 * 8 + row % 4 * 2 + row % 8 / 4 : row;
    return group * w->rows + at;
}

nrd_error *nrd_quant_marlin_24(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, ".weight_packed", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".scale_packed", w, &w->scales));
    NRD_TRY(nrd_quant_take(q, stem, ".meta", w, &w->more[META]));
    const int64_t words = w->codes.dims[1], twice = w->more[META].dims[1];
    if (w->codes.n_dims != 2 || w->more[META].n_dims != 2 || w->codes.dims[0] > INT32_MAX / 32 || twice > INT32_MAX || twice % (2 * TILE_ROWS) ||
        (words != twice && words != 2 * twice)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': %lld words a row, and %lld numbers of '%s', are not 4 or 8 bits of a multiple of %d rows",
                          w->codes.name, (long long)words, (long long)twice, w->more[META].name, (int)TILE_ROWS);
    }
    w->bits = words == twice ? 4 : 8;
    w->rows = twice / 2;
    w->cols = w->codes.dims[0] * 32;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->cols / 32, words));
    NRD_TRY(nrd_quant_shape(&w->more[META], NRD_DTYPE_I16, w->cols / 32, twice));
    if (w->scales.dims[0] < 1 || w->cols % w->scales.dims[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups, which do not divide %lld columns", w->scales.name,
                          (long long)w->scales.dims[0], (long long)w->cols);
    }
    NRD_TRY(nrd_quant_groups(w, w->cols / w->scales.dims[0]));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    w->codes_of = codes_marlin;
    w->scale_at = marlin_scale;
    w->zero_point = 1 << (w->bits - 1);
    return NULL;
}
