/* SPDX-License-Identifier: Apache-2.0
 * Rows of planned tensors out of their sources: read, transposed, converted or quantized, row by row. */
#include "model/plan_internal.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "model/families/family.h"
#include "model/finite.h"
#include "model/quant/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONVERT_CHUNK = 8192, /* elements through a float buffer at once: a multiple of every block */
    TURN_ROWS = 32,       /* rows that are gathered from columns together: one cache line of bf16 */
};

static int64_t src_cols(const nrd_src_tensor *s)
{
    return s->n_dims > 1 ? s->dims[1] : 1;
}

/* True when a part's rows lie one behind the other in the source, in [out, in] order. */
static bool is_contiguous(const nrd_plan_tensor *t, const nrd_plan_part *part)
{
    return !(t->flags & (NRD_RULE_TRANSPOSE | NRD_RULE_KERNEL_LAST)) && part->group_rows == 0 && part->col0 == 0 && t->cols == src_cols(part->src);
}

static const uint8_t *src_row(const nrd_src_tensor *s, int64_t row)
{
    size_t bytes = s->data_bytes / (size_t)(s->dims[0] > 0 ? s->dims[0] : 1);
    return (const uint8_t *)s->data + (size_t)row * bytes;
}

/* Where row `row` of a part lies in its source. */
static int64_t row_place(const nrd_plan_part *part, int64_t row)
{
    return part->group_rows ? part->group0 + row / part->group_rows * part->group_stride + row % part->group_rows
                            : row;
}

/* Rows of a part's source as read_source takes them, or more where others lie between them. A source that is turned is looked at
 * with its first row. */
static nrd_error *check_source(const nrd_plan_tensor *t, const nrd_plan_part *part, const nrd_src_tensor *s, int64_t row0, int64_t n)
{
    int64_t first = row0, end = row0 + n;

    if (t->flags & NRD_RULE_TRANSPOSE) {
        first = part->col0;
        end = row0 == part->row0 ? first + t->cols : first;
    } else if (t->flags & NRD_RULE_TURNED_HEADS) {
        first = row0 / part->group_rows * t->cols;
        end = ((row0 + n - 1) / part->group_rows + 1) * t->cols;
    } else if (part->group_rows > 0) {
        first = row_place(part, row0);
        end = row_place(part, row0 + n - 1) + 1;
    }
    const int64_t n_rows = s->n_dims > 0 ? s->dims[0] : 1;
    end = end < n_rows ? end : n_rows;
    return first < end ? nrd_src_tensor_check_finite(s, first, end - first) : NULL;
}

/* Of rows [first, first + n) of a part. INVALID_ARG: a number of the source is NaN or infinite. */
static nrd_error *check_part(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t first, int64_t n)
{
    if (part->times) {
        NRD_TRY(nrd_src_tensor_check_finite(part->times, 0, part->times->dims[0]));
    }
    while (part->stack && n > 0) { /* as read_stack */
        const int64_t at = first % part->stack_rows, k = n < part->stack_rows - at ? n : part->stack_rows - at;
        NRD_TRY(check_source(t, part, part->stack[first / part->stack_rows], part->row0 + at, k));
        first += k;
        n -= k;
    }
    return part->src && n > 0 ? check_source(t, part, part->src, part->row0 + first, n) : NULL;
}

nrd_error *nrd_plan_direct(const nrd_plan_tensor *t, const void **out)
{
    const nrd_plan_part *part = &t->parts[0];
    *out = NULL;
    if (t->n_parts != 1 || !part->src || part->stack || part->times || part->src->packed || part->src->dtype != t->dtype ||
        (t->flags & (NRD_RULE_ADD_ONE | NRD_RULE_NEGATIVE_EXP | NRD_RULE_UNIT_ROWS)) || !is_contiguous(t, part) || t->has_row_scales || t->n_factors > 0) {
        return NULL;
    }
    *out = src_row(part->src, part->row0);
    return check_part(t, part, 0, t->rows);
}

static size_t elements_bytes(nrd_dtype t, int64_t n)
{
    return (size_t)(n / nrd_dtype_block(t)) * nrd_dtype_block_bytes(t);
}

static nrd_error *to_floats(const nrd_plan_tensor *t, nrd_dtype from, const void *src, float *dst, int64_t n)
{
    return nrd_dequantize_row(from, src, dst, n)
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: type %s cannot be read", t->name, nrd_dtype_name(from));
}

static nrd_error *from_floats(const nrd_plan_tensor *t, const float *src, uint8_t *dst, int64_t n)
{
    if (t->dtype == NRD_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
        return NULL;
    }
    return nrd_quantize_row(t->dtype, src, dst, n)
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: type %s cannot be made", t->name, nrd_dtype_name(t->dtype));
}

/* n elements (a row, or several dense ones for types without row scales). */
static nrd_error *convert(const nrd_plan_tensor *t, nrd_dtype from, const uint8_t *src, uint8_t *dst,
                          int64_t n, float *buf, int64_t buf_n)
{
    bool one = (t->flags & NRD_RULE_ADD_ONE) != 0, negative_exp = (t->flags & NRD_RULE_NEGATIVE_EXP) != 0;
    if (from == t->dtype && !one && !negative_exp) {
        memcpy(dst, src, elements_bytes(from, n));
        return NULL;
    }
    if (t->dtype == NRD_DTYPE_Q2_K && nrd_ternary_row(from, src, dst, n)) { /* no vector is of this type */
        return NULL;
    }
    while (n > 0) {
        int64_t k = n < buf_n ? n : buf_n;
        if (from == NRD_DTYPE_F64) {
            for (int64_t i = 0; i < k; i++) {
                double v;
                memcpy(&v, src + 8 * i, 8);
                buf[i] = (float)v;
            }
        } else {
            NRD_TRY(to_floats(t, from, src, buf, k));
        }
        for (int64_t i = 0; one && i < k; i++) {
            buf[i] += 1.0f;
        }
        for (int64_t i = 0; negative_exp && i < k; i++) {
            buf[i] = -expf(buf[i]);
        }
        NRD_TRY(from_floats(t, buf, dst, k));
        src += elements_bytes(from, k);
        dst += elements_bytes(t->dtype, k);
        n -= k;
    }
    return NULL;
}

typedef struct {
    float *buf;     /* CONVERT_CHUNK, or a row where that is longer */
    int64_t buf_n;
    uint8_t *turned; /* TURN_ROWS rows in the source's type */
} scratch;

/* A whole row, for all types. */
static nrd_error *put_row(const nrd_plan_tensor *t, const float *row, uint8_t *dst, float *scale)
{
    if (t->has_row_scales) {
        *scale = nrd_quantize_row_scaled(t->dtype, row, dst, t->cols);
        return NULL;
    }
    return from_floats(t, row, dst, t->cols);
}

/* A row divided by its length. */
static void make_unit(float *row, int64_t n)
{
    double square = 0;

    for (int64_t i = 0; i < n; i++) {
        square += (double)row[i] * (double)row[i];
    }
    for (int64_t i = 0; i < n; i++) {
        row[i] = (float)((double)row[i] / fmax(sqrt(square), 1e-12));
    }
}

static nrd_error *emit_row(const nrd_plan_tensor *t, nrd_dtype from, const uint8_t *src, uint8_t *dst, float *scale, const scratch *sc)
{
    const bool is_unit = (t->flags & NRD_RULE_UNIT_ROWS) != 0;

    if (!is_unit && !t->has_row_scales) {
        return convert(t, from, src, dst, t->cols, sc->buf, sc->buf_n);
    }
    NRD_TRY(to_floats(t, from, src, sc->buf, t->cols));
    if (is_unit) {
        make_unit(sc->buf, t->cols);
    }
    return put_row(t, sc->buf, dst, scale);
}

static nrd_error *emit_multiplied(const nrd_plan_tensor *t, nrd_dtype from, const uint8_t *src, float factor, uint8_t *dst,
                                  float *scale, const scratch *sc)
{
    NRD_TRY(to_floats(t, from, src, sc->buf, t->cols));
    for (int64_t i = 0; i < t->cols; i++) {
        sc->buf[i] *= factor;
    }
    return put_row(t, sc->buf, dst, scale);
}

static float factor_of_row(const nrd_plan_tensor *t, int64_t row)
{
    for (int i = 0; i < t->n_factors; i++) {
        if (row < t->factor_rows[i]) {
            return t->factors[i];
        }
        row -= t->factor_rows[i];
    }
    return 1;
}

/* Rows of a source that keeps [in, out]: row i of ours is its column i. */
static nrd_error *read_turned(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0,
                              int64_t n, uint8_t *dst, float *scales, const scratch *sc)
{
    const nrd_src_tensor *s = part->src;
    size_t each = nrd_dtype_block_bytes(s->dtype), row_bytes = elements_bytes(t->dtype, t->cols);
    for (int64_t r = 0; r < n; r += TURN_ROWS) {
        int64_t k = n - r < TURN_ROWS ? n - r : TURN_ROWS;
        for (int64_t c = 0; c < t->cols; c++) {
            const uint8_t *from = src_row(s, part->col0 + c);
            for (int64_t i = 0; i < k; i++) {
                memcpy(sc->turned + (size_t)(i * t->cols + c) * each, from + (size_t)row_place(part, row0 + r + i) * each, each);
            }
        }
        for (int64_t i = 0; i < k; i++) {
            NRD_TRY(emit_row(t, s->dtype, sc->turned + (size_t)(i * t->cols) * each,
                             dst + (size_t)(r + i) * row_bytes,
                             scales ? scales + r + i : NULL, sc));
        }
    }
    return NULL;
}

/* Rows that a reader of quantized folders makes: in the type that the plan wants, else as float32 that is converted. */
static nrd_error *read_packed(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0, int64_t n,
                              uint8_t *dst, float *scales, const scratch *sc)
{
    nrd_error *err = NULL;
    const nrd_src_tensor *s = part->src;
    bool same = s->dtype == t->dtype && (t->has_own_input || !nrd_quant_has_own_input(s->packed));
    nrd_dtype made = same ? s->dtype : NRD_DTYPE_F32;
    size_t made_bytes = elements_bytes(made, s->dims[1]), row_bytes = elements_bytes(t->dtype, t->cols);
    uint8_t *rows = NULL;

    NRD_NEW_GOTO(rows, made_bytes * TURN_ROWS, err, done);
    for (int64_t r = 0, k; r < n; r += k) {
        int64_t from = row_place(part, row0 + r);
        for (k = 1; k < TURN_ROWS && r + k < n && row_place(part, row0 + r + k) == from + k; k++) {
        }
        NRD_TRY_GOTO(nrd_quant_rows(s->packed, made, s->packed_row0 + from, k, rows, same && scales ? scales + r : NULL), err, done);
        for (int64_t i = 0; i < k; i++) {
            const uint8_t *row = rows + (size_t)i * made_bytes + elements_bytes(made, part->col0);
            if (same) {
                memcpy(dst + (size_t)(r + i) * row_bytes, row, row_bytes);
            } else {
                NRD_TRY_GOTO(emit_row(t, made, row, dst + (size_t)(r + i) * row_bytes, scales ? scales + r + i : NULL,
                                      sc), err, done);
            }
        }
    }
done:
    free(rows);
    return err;
}

/* Rows of heads' matrices that the source has the other way round: of each head t->cols rows of group_rows numbers. */
static nrd_error *read_turned_heads(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0, int64_t n, uint8_t *dst,
                                    const scratch *sc)
{
    const nrd_src_tensor *s = part->src;
    const int64_t each = part->group_rows, cols = t->cols;
    const size_t row_bytes = elements_bytes(t->dtype, cols);
    nrd_error *err = NULL;
    float *head = NULL;

    NRD_NEW_GOTO(head, (size_t)(each * cols + each), err, done);
    float *row = head + each * cols;
    for (int64_t r = 0, last = -1; r < n; r++) {
        const int64_t h = (row0 + r) / each, i = (row0 + r) % each;
        for (int64_t c = 0; h != last && c < cols; c++) {
            NRD_TRY_GOTO(s->packed ? nrd_quant_rows(s->packed, NRD_DTYPE_F32, s->packed_row0 + h * cols + c, 1, row, NULL)
                                   : to_floats(t, s->dtype, src_row(s, h * cols + c), row, each), err, done);
            for (int64_t k = 0; k < each; k++) {
                head[k * cols + c] = row[k];
            }
        }
        last = h;
        NRD_TRY_GOTO(emit_row(t, NRD_DTYPE_F32, (const uint8_t *)(head + i * cols), dst + (size_t)r * row_bytes, NULL, sc), err,
                     done);
    }
done:
    free(head);
    return err;
}

/* Rows of a convolution, of which the source has the kernel's numbers of each channel together. */
static nrd_error *read_kernels(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0, int64_t n, uint8_t *dst,
                               const scratch *sc)
{
    const nrd_src_tensor *s = part->src;
    const size_t each = nrd_dtype_block_bytes(s->dtype), row_bytes = elements_bytes(t->dtype, t->cols);
    const int64_t channels = t->cols / NRD_PLAN_KERNEL;

    if (nrd_dtype_is_block(s->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: a convolution of type %s cannot be read", t->name, nrd_dtype_name(s->dtype));
    }
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *from = src_row(s, row0 + r);
        for (int64_t i = 0; i < t->cols; i++) {
            memcpy(sc->turned + (size_t)i * each, from + (size_t)(i % channels * NRD_PLAN_KERNEL + i / channels) * each, each);
        }
        NRD_TRY(emit_row(t, s->dtype, sc->turned, dst + (size_t)r * row_bytes, NULL, sc));
    }
    return NULL;
}

/* A matrix as float32, [width, cols]: as it lies, or turned. */
static nrd_error *whole_matrix(const nrd_plan_tensor *t, const nrd_src_tensor *s, bool turned, float *out, float *row)
{
    const int64_t n = s->dims[1];

    for (int64_t i = 0; i < s->dims[0]; i++) {
        NRD_TRY(to_floats(t, s->dtype, src_row(s, i), row, n));
        for (int64_t k = 0; k < n; k++) {
            out[turned ? k * s->dims[0] + i : i * n + k] = row[k];
        }
    }
    return NULL;
}

/* Rows times a matrix: a row's numbers times the matrix's rows, added up. */
static nrd_error *read_product(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0, int64_t n, uint8_t *dst,
                               float *scales, const scratch *sc)
{
    const nrd_src_tensor *s = part->src, *by = part->times;
    const int64_t width = s->dims[1], cols = t->cols, most = width > cols ? width : cols;
    const size_t row_bytes = elements_bytes(t->dtype, cols);
    nrd_error *err = NULL;
    float *matrix = NULL;

    NRD_NEW_GOTO(matrix, (size_t)(width * cols + most + cols), err, done);
    float *row = matrix + width * cols, *sum = row + most;
    NRD_TRY_GOTO(whole_matrix(t, by, by->dims[0] == cols, matrix, row), err, done);
    for (int64_t r = 0; r < n; r++) {
        NRD_TRY_GOTO(to_floats(t, s->dtype, src_row(s, row0 + r), row, width), err, done);
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t k = 0; k < width; k++) {
            for (int64_t c = 0; c < cols; c++) {
                sum[c] += row[k] * matrix[k * cols + c];
            }
        }
        NRD_TRY_GOTO(emit_row(t, NRD_DTYPE_F32, (const uint8_t *)sum, dst + (size_t)r * row_bytes, scales ? scales + r : NULL, sc), err,
                     done);
    }
done:
    free(matrix);
    return err;
}

static nrd_error *read_source(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0,
                              int64_t n, uint8_t *dst, float *scales, const scratch *sc)
{
    const nrd_src_tensor *s = part->src;
    size_t row_bytes = elements_bytes(t->dtype, t->cols);

    if (t->flags & NRD_RULE_TURNED_HEADS) {
        return read_turned_heads(t, part, row0, n, dst, sc);
    }
    if (part->times) {
        return read_product(t, part, row0, n, dst, scales, sc);
    }
    if (s->packed) {
        return read_packed(t, part, row0, n, dst, scales, sc);
    }
    if (t->flags & NRD_RULE_KERNEL_LAST) {
        return read_kernels(t, part, row0, n, dst, sc);
    }
    if (t->flags & NRD_RULE_TRANSPOSE) {
        return read_turned(t, part, row0, n, dst, scales, sc);
    }
    for (int64_t r = 0; t->n_factors > 0 && r < n; r++) {
        const uint8_t *from = src_row(s, row_place(part, row0 + r)) + elements_bytes(s->dtype, part->col0);
        NRD_TRY(emit_multiplied(t, s->dtype, from, factor_of_row(t, row0 + r), dst + (size_t)r * row_bytes,
                                   scales ? scales + r : NULL, sc));
    }
    if (t->n_factors > 0) {
        return NULL;
    }
    if (is_contiguous(t, part) && !t->has_row_scales && !(t->flags & NRD_RULE_UNIT_ROWS)) {
        return convert(t, s->dtype, src_row(s, row0), dst, n * t->cols, sc->buf, sc->buf_n);
    }
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *from = src_row(s, row_place(part, row0 + r)) + elements_bytes(s->dtype, part->col0);
        NRD_TRY(emit_row(t, s->dtype, from, dst + (size_t)r * row_bytes,
                         scales ? scales + r : NULL, sc));
    }
    return NULL;
}

/* Rows of experts, counted as they are stacked. */
static nrd_error *read_stack(const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row, int64_t n, uint8_t *dst,
                             float *scales, const scratch *sc)
{
    while (n > 0) {
        const int64_t at = row % part->stack_rows, k = n < part->stack_rows - at ? n : part->stack_rows - at;
        nrd_plan_part one = *part;
        one.src = part->stack[row / part->stack_rows];
        one.stack = NULL;
        NRD_TRY(read_source(t, &one, part->row0 + at, k, dst, scales, sc));
        dst += (size_t)k * elements_bytes(t->dtype, t->cols);
        scales = scales ? scales + k : NULL;
        row += k;
        n -= k;
    }
    return NULL;
}

/* Random weights of a large model are made by copying: the pool is converted once and rows begin at
 * random blocks of it. Converting each row anew took most of the time of a build. */
static nrd_error *read_random(const nrd_plan *p, const nrd_plan_tensor *t, int64_t row0, int64_t n,
                              uint8_t *dst, float *scales)
{
    nrd_error *err = NULL;
    uint8_t *pool = NULL;
    size_t row_bytes = elements_bytes(t->dtype, t->cols), pool_bytes;
    size_t block = nrd_dtype_block_bytes(t->dtype), n_blocks = NRD_PLAN_POOL / (size_t)nrd_dtype_block(t->dtype);
    uint64_t seed = nrd_hash_bytes(t->is_divided ? (uint64_t)p->rank : 0, t->name, strlen(t->name));
    float scale = 1;

    pool_bytes = n_blocks * block;
    NRD_NEW_GOTO(pool, pool_bytes, err, done);
    if (t->has_row_scales) {
        scale = nrd_quantize_row_scaled(t->dtype, p->pool, pool, NRD_PLAN_POOL);
    } else {
        NRD_TRY_GOTO(from_floats(t, p->pool, pool, NRD_PLAN_POOL), err, done);
    }
    for (int64_t r = 0; r < n; r++) {
        size_t at = (size_t)(nrd_hash_u64(seed, (uint64_t)(row0 + r)) % n_blocks) * block;
        uint8_t *out = dst + (size_t)r * row_bytes;
        for (size_t left = row_bytes; left > 0;) {
            size_t k = left < pool_bytes - at ? left : pool_bytes - at;
            memcpy(out, pool + at, k);
            out += k;
            left -= k;
            at = 0;
        }
        if (scales) {
            scales[r] = scale;
        }
    }
done:
    free(pool);
    return err;
}

/* Row `position` of NRD_RULE_SINUSOIDS. The reference computes it in double precision. */
static void sinusoids(int64_t position, float *row, int64_t n)
{
    const int64_t n_sines = n - n / 2;
    for (int64_t i = 0; i < n; i++) {
        const int64_t pair = i < n_sines ? i : i - n_sines;
        const double angle = (double)position / pow(10000, 2.0 * (double)pair / (double)n);
        row[i] = (float)(i < n_sines ? sin(angle) : cos(angle));
    }
}

/* Row `position` of NRD_RULE_FAIRSEQ_SINUSOIDS. The reference's angles are products in single precision. */
static void fairseq_sinusoids(int64_t position, float *row, int64_t n)
{
    const int64_t half = n / 2;
    const float step = (float)-(log(10000) / (double)(half - 1));
    for (int64_t i = 0; i < half; i++) {
        const float angle = (float)position * expf((float)i * step);
        row[i] = sinf(angle);
        row[half + i] = cosf(angle);
    }
    if (n % 2) {
        row[n - 1] = 0;
    }
}

/* Row `row` of a weight that no source has, as float32. */
static void constant_row(const nrd_plan *p, nrd_fill fill, int64_t row, float *out, int64_t n)
{
    if (fill == NRD_FILL_SINUSOIDS) {
        sinusoids(row, out, n);
    } else if (fill == NRD_FILL_FAIRSEQ_SINUSOIDS) {
        /* beside an encoder or in it positions begin behind the number of the padding, else (XGLM) always at 2 */
        const bool from_pad = p->spec.encoder || p->spec.cross_attention;
        fairseq_sinusoids(row + (from_pad ? p->spec.pad_id + 1 : 2), out, n);
    } else {
        for (int64_t i = 0; i < n; i++) {
            out[i] = fill == NRD_FILL_ONE ? 1.0f : 0.0f;
        }
    }
}

static nrd_error *read_constant(const nrd_plan *p, const nrd_plan_tensor *t, const nrd_plan_part *part, int64_t row0, int64_t n,
                                uint8_t *dst, float *scales, const scratch *sc)
{
    size_t row_bytes = elements_bytes(t->dtype, t->cols);
    for (int64_t r = 0; r < n; r++) {
        constant_row(p, part->fill, row0 + r, sc->buf, t->cols);
        NRD_TRY(emit_row(t, NRD_DTYPE_F32, (const uint8_t *)sc->buf, dst + (size_t)r * row_bytes,
                         scales ? scales + r : NULL, sc));
    }
    return NULL;
}

/* int8 and fp8 weights of a checkpoint come with the scales of their rows. */
static nrd_error *read_ready(const nrd_plan *p, const nrd_plan_tensor *t, int64_t row0, int64_t n,
                             void *dst, float *scales)
{
    char name[NRD_PLAN_MAX_NAME];
    size_t stem = strlen(t->name) - strlen(".weight");
    snprintf(name, sizeof name, "%.*s.per_channel_scale", (int)stem, t->name);
    const nrd_src_tensor *s = nrd_source_find(p->src, p->rank, name);
    if (!s || s->dtype != NRD_DTYPE_F32 || s->n_dims != 1 || s->dims[0] != t->rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' is %s and needs float32 scales '%s' of %lld "
                          "elements", nrd_source_path(p->src), t->name, nrd_dtype_name(t->dtype),
                          name, (long long)t->rows);
    }
    NRD_TRY(nrd_src_tensor_check_finite(t->parts[0].src, row0, n));
    NRD_TRY(nrd_src_tensor_check_finite(s, row0, n));
    memcpy(dst, src_row(t->parts[0].src, row0), (size_t)(n * t->cols));
    memcpy(scales, src_row(s, row0), (size_t)n * sizeof(float));
    return NULL;
}

nrd_error *nrd_plan_read(const nrd_plan *p, const nrd_plan_tensor *t, int64_t row0, int64_t n_rows,
                         void *dst, float *scales)
{
    nrd_error *err = NULL;
    scratch sc = {.buf_n = t->cols > CONVERT_CHUNK ? t->cols : CONVERT_CHUNK};
    uint8_t *out = dst;
    int64_t base = 0;

    NRD_ASSERT(row0 >= 0 && n_rows >= 0 && row0 <= t->rows && n_rows <= t->rows - row0,
               "callers ask for rows that exist");
    if (t->has_row_scales && t->parts[0].src && !t->parts[0].src->packed &&
        nrd_plan_has_row_scales(t->parts[0].src->dtype)) {
        return read_ready(p, t, row0, n_rows, dst, scales);
    }
    sc.buf_n -= sc.buf_n % 256; /* whole blocks; a row that is shorter than that fits anyway */
    sc.buf_n = sc.buf_n < t->cols ? sc.buf_n + 256 : sc.buf_n;
    NRD_NEW_GOTO(sc.buf, sc.buf_n, err, done);
    if (t->flags & (NRD_RULE_TRANSPOSE | NRD_RULE_KERNEL_LAST)) {
        NRD_NEW_GOTO(sc.turned, (size_t)t->cols * TURN_ROWS * 8, err, done);
    }
    for (int i = 0; i < t->n_parts && n_rows > 0; base += t->parts[i].n_rows, i++) {
        const nrd_plan_part *part = &t->parts[i];
        int64_t first = row0 - base; /* within this part */
        if (first >= part->n_rows) {
            continue;
        }
        int64_t n = part->n_rows - first < n_rows ? part->n_rows - first : n_rows;
        NRD_TRY_GOTO(check_part(t, part, first, n), err, done);
        if (part->stack) {
            err = read_stack(t, part, first, n, out, scales, &sc);
        } else if (part->src) {
            err = read_source(t, part, part->row0 + first, n, out, scales, &sc);
        } else if (part->fill == NRD_FILL_RANDOM) {
            err = read_random(p, t, row0, n, out, scales);
        } else {
            err = read_constant(p, t, part, first, n, out, scales, &sc);
        }
        if (err) {
            goto done;
        }
        out += (size_t)n * elements_bytes(t->dtype, t->cols);
        scales = scales ? scales + n : NULL;
        row0 += n;
        n_rows -= n;
    }

done:
    free(sc.buf);
    free(sc.turned);
    return err;
}
