/* SPDX-License-Identifier: Apache-2.0
 * What convert_checkpoint.py of TensorRT-LLM 0.9 to 1.0 quantizes by itself:
 *   W8A16, W4A16   weight I8 [in, out] or [in, out / 2], whose bytes are not in that order, and per_channel_scale [out]
 *   W8A16_GPTQ, W4A16_GPTQ  the same bytes as numbers of 16 bits, weights_scaling_factor and zero [groups, out]: (middle - zero point) * scale
 *   W8A8_SQ_..._PLUGIN  weight I8 [out, in], per_channel_scale one number, [out] or [1, out], smoother [1, in], by which the
 *                  input is divided. With static inputs (..._PER_TENSOR_PLUGIN) the scale is that of a product of int8 numbers
 *                  as int8 again: it is the weight's times the input's and act_scale's.
 *
 * EETQ's layers have the first of these, weight I8 [in, out], as that was in FasterTransformer: always TILES, and weight_scales F16 [out].
 *
 * Weights of W8A16 and W4A16 lie as a GPU's product reads them, by the GPU of the machine that converted (its
 * preprocess_weights_for_mixed_gemm), which config.json does not name. Let W be [out, in], the code of a number plus half
 * the range:
 *   TILES     before Hopper, and in old versions on Hopper, too: tiles of 64 columns, those of 2 rows (of 4 with 4 bits) in turn
 *   COLUMNS   newer versions on Hopper: row after row
 *             in both of them the columns of 16 (32) are permuted for the product's loads, and each 4 (8) for its conversion
 *   PLAIN     versions between these on Hopper, and Blackwell: row after row, as they are, without the half added
 * Which it is, is seen by what these weights are: the largest number of a row has the largest code, and most numbers
 * are small. An order that leaves a row without such a code is not theirs. GPTQ's groups have codes at an end of the range more
 * often than what another order takes for groups, and their means are near their zero points. Where several orders are left, the
 * folder is refused. */
#include "model/quant/quant.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 1, COLUMNS = 2, PLAIN = 4, TILE = 64, FEW_ROWS = 16, SAMPLE_BYTES = 1 << 20 };

static const char *advice(const nrd_quant_settings *s)
{
    return s->whole == nrd_quant_gptq_product  ? "Give the GPTQ folder itself"
           : s->whole == nrd_quant_weight_only ? "Convert without --use_weight_only, and give --quantize"
                                               : "Give the original model, and --quantize int8";
}

static const char *const order_names = "the order of GPUs before Hopper, of Hopper, or rows as they are";

/* Where the 64 columns of a tile lie. */
static void tile_of(int order, int bits, uint8_t at[TILE])
{
    const int group = 128 / bits, word = 32 / bits;
    for (int c = 0; c < TILE; c++) {
        const int in = c % group, pairs = group / 8 * 2; /* pairs of columns, one of each 8 of the group, follow each other */
        const int moved = in % 8 / 2 * pairs + in / 8 * 2 + in % 2;
        const int in_word = moved % word / 2 + (moved % 2 ? word / 2 : 0); /* even ones, then odd ones */
        at[c] = (uint8_t)(order == PLAIN ? c : c - in + moved - moved % word + in_word);
    }
}

static int order_of(const nrd_quant_weight *w)
{
    const unsigned left = *w->orders;
    return left & TILES ? TILES : left & COLUMNS ? COLUMNS : PLAIN;
}

/* One row of w->bits bits: out[cols], plus half the range. */
static void row_by(const nrd_quant_weight *w, int order, const uint8_t at[TILE], int64_t row, uint8_t *out)
{
    const uint8_t *data = w->codes.data;
    const int64_t turns = order == TILES ? 16 / w->bits : 1;
    const uint8_t flip = (uint8_t)(order == PLAIN ? 1 << (w->bits - 1) : 0);

    for (int64_t c = 0; c < w->cols; c++) {
        const int64_t tile = c - c % TILE;
        const int64_t i = row / turns * turns * w->cols + turns * tile + row % turns * TILE + at[c % TILE];
        out[c] = (uint8_t)((w->bits == 8 ? data[i] : data[i / 2] >> (i % 2 * 4) & 15) ^ flip);
    }
}

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const int order = order_of(w);
    uint8_t at[TILE];

    tile_of(order, w->bits, at);
    for (int64_t r = 0; r < n; r++) {
        row_by(w, order, at, row0 + r, out + r * w->cols);
    }
}

/* Whether each of the first rows has a code near the end of the range, as rounding by its largest number leaves one. */
static bool fits(const nrd_quant_weight *w, int order, int64_t n_rows, uint8_t *row)
{
    const int middle = 1 << (w->bits - 1), near = w->bits == 8 ? 120 : 7;
    uint8_t at[TILE];

    tile_of(order, w->bits, at);
    for (int64_t r = 0; r < n_rows; r++) {
        int top = 0;
        row_by(w, order, at, r, row);
        for (int64_t c = 0; c < w->cols; c++) {
            const int code = abs(row[c] - middle);
            top = code > top ? code : top;
        }
        if (top < near && nrd_quant_scale(w, r, 0) > 0) {
            return false;
        }
    }
    return true;
}

/* What the size of the numbers says: with half the range added small ones are in the middle, else at the ends. */
static unsigned by_size(const nrd_quant_weight *w)
{
    const uint8_t *data = w->codes.data;
    const size_t n = w->codes.data_bytes < SAMPLE_BYTES ? w->codes.data_bytes : SAMPLE_BYTES;
    double mean = 0; /* of a code's distance from the middle, in halves of the range */

    for (size_t i = 0; i < n; i++) {
        mean += w->bits == 8 ? abs(data[i] - 128) / 128.0 : (abs((data[i] & 15) - 8) + abs((data[i] >> 4) - 8)) / 16.0;
    }
    mean /= (double)n;
    return mean < 0.45 ? TILES | COLUMNS : mean > 0.55 ? PLAIN : TILES | COLUMNS | PLAIN;
}

static bool is_one(unsigned left)
{
    return (left & (left - 1)) == 0;
}

/* What groups of columns look like in an order: how many there are, how many of them have no code near an end of the range, and how far
 * their mean is from their zero point, squared. */
typedef struct {
    int64_t n, bare;
    double off;
} group_look;

static group_look look_at_groups(const nrd_quant_weight *w, int order, int64_t n_rows, uint8_t *row)
{
    const int top = (1 << w->bits) - 1, edge = w->bits == 8 ? 7 : 1;
    group_look seen = {0};
    uint8_t at[TILE];

    tile_of(order, w->bits, at);
    for (int64_t r = 0; r < n_rows; r++) {
        row_by(w, order, at, r, row);
        for (int64_t g = 0; g < w->n_groups; g++) {
            const int64_t end = (g + 1) * w->group < w->cols ? (g + 1) * w->group : w->cols;
            bool bare = true;
            int64_t sum = 0;
            for (int64_t c = g * w->group; c < end; c++) {
                sum += row[c];
                bare = bare && row[c] > edge && row[c] < top - edge;
            }
            const double off = (double)sum / (double)(end - g * w->group) - nrd_quant_zero_at(w, r, g);
            seen.n++;
            seen.bare += bare;
            seen.off += off * off;
        }
    }
    return seen;
}

/* Groups that are none lack ends that are in another, and zero points that are another's are not in the middle of their codes. Of
 * normal numbers in symmetric groups of 128 two percent are bare in the other order and none in their own, of numbers with longer tails (Student's,
 * five degrees of freedom) nine; groups with zero points are 14 to 80 times as far off. */
static bool is_worse(const group_look *a, const group_look *b)
{
    return (a->bare >= 8 && a->bare > 4 * b->bare) || (a->n >= 64 && a->off > 2 * b->off);
}

/* Of these orders those that are not clearly worse than another one of them. PLAIN has other codes, which say nothing here. */
static unsigned by_groups(const nrd_quant_weight *w, unsigned can, int64_t n_rows, uint8_t *row)
{
    if ((can & (TILES | COLUMNS)) != (TILES | COLUMNS)) {
        return can;
    }
    const group_look tiles = look_at_groups(w, TILES, n_rows, row), columns = look_at_groups(w, COLUMNS, n_rows, row);
    can &= is_worse(&tiles, &columns) ? ~(unsigned)TILES : can;
    return is_worse(&columns, &tiles) ? can & ~(unsigned)COLUMNS : can;
}

/* Of these orders those in which each row has its largest code. */
static unsigned by_rows(const nrd_quant_weight *w, unsigned can, int64_t n_rows, uint8_t *row)
{
    for (unsigned order = TILES; order <= PLAIN; order *= 2) {
        can &= can & order && !fits(w, (int)order, n_rows, row) ? ~order : can;
    }
    return can;
}

/* Takes orders away that this weight cannot have. is_gptq: it was not rounded by its rows' largest numbers, but in groups. */
static nrd_error *look_at_order(nrd_quant *q, nrd_quant_weight *w, bool is_gptq)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const bool in_groups = w->cols % (128 / w->bits) == 0 && w->rows % 8 == 0;
    const unsigned possible = PLAIN | (in_groups ? COLUMNS : 0) | (in_groups && w->cols % TILE == 0 ? TILES : 0);
    const int64_t few = is_gptq ? 4 * FEW_ROWS : FEW_ROWS, most = is_gptq ? 32 * FEW_ROWS : w->rows;
    const int64_t limit = is_one(s->orders) ? few : most, n_rows = w->rows > limit ? limit : w->rows;
    unsigned can = possible & by_size(w);
    nrd_error *err = NULL;
    uint8_t *row = NULL;

    NRD_NEW_GOTO(row, w->cols, err, done);
    can = is_gptq ? by_groups(w, can, n_rows, row) & s->orders : by_rows(w, can & s->orders, n_rows, row);
    if (!can) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' is in no order that is known (%s), or in another one than those before it. %s",
                         w->codes.name, order_names, advice(s));
    } else if (w->cols > TILE || !(can & TILES)) { /* rows of one tile are the same in TILES and COLUMNS */
        s->orders = can;
    }
done:
    free(row);
    return err;
}

nrd_error *nrd_quant_check_order_of_product(nrd_quant *q)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);
    return is_one(s->orders) ? NULL
                             : nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization: in which order the weights' numbers are (%s) cannot be told "
                                          "from them. %s", order_names, advice(s));
}

/* With scales that were taken. */
static nrd_error *weight_in_order(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_src_tensor *t = &w->codes;

    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_shape(t, NRD_DTYPE_I8, t->dims[0], t->n_dims == 1 ? -1 : t->dims[1]));
    if (t->n_dims != 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has one dimension, expected [in, out]", t->name);
    }
    w->bits = s->bits;
    w->cols = t->dims[0];
    w->rows = t->dims[1] * (8 / w->bits);
    w->zero_point = 1 << (w->bits - 1);
    w->codes_of = codes_of;
    w->orders = &s->orders;
    NRD_TRY(nrd_quant_spread(w, NRD_DTYPE_NONE, s));
    return look_at_order(q, w, false);
}

nrd_error *nrd_quant_weight_only(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, ".per_channel_scale", w, &w->scales));
    return weight_in_order(q, stem, w);
}

static nrd_error *open_eetq(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *weights = nrd_json_get(config, "weights");

    s->bits = 8;
    s->orders = TILES;
    return strcmp(nrd_json_str(weights, "int8"), "int8") != 0 ? nrd_quant_refuse("weights", weights, "int8") : NULL;
}

static nrd_error *weight_eetq(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, ".weight_scales", w, &w->scales));
    return weight_in_order(q, stem, w);
}

const nrd_quant_reader nrd_quant_eetq = {"eetq", {".weight_scales"}, open_eetq, weight_eetq};

/* ---- GPTQ ---- */

static float half_at(const nrd_src_tensor *t, int64_t i)
{
    uint16_t half;
    memcpy(&half, (const char *)t->data + i * 2, 2);
    return t->dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(half) : nrd_bf16_to_f32(half);
}

/* `zero` is (middle - zero point) * scale. */
static float zero_in_steps(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const float scale = nrd_quant_scale(w, row, group);
    return (float)w->zero_point - (scale > 0 ? half_at(&w->zeros, group * w->rows + row) / scale : 0);
}

static int zero_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)lrintf(zero_in_steps(w, row, group));
}

static nrd_error *check_zeros(const nrd_quant_weight *w)
{
    for (int64_t g = 0; g < w->n_groups; g++) {
        for (int64_t r = 0; r < w->rows; r++) {
            const float zero = zero_in_steps(w, r, g);
            if (!(zero > -0.5f && zero < (float)(1 << w->bits) + 0.5f && fabsf(zero - rintf(zero)) < 0.25f)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' gives row %lld, group %lld the zero point %g, expected a whole number "
                                  "from 0 to %d", w->zeros.name, (long long)r, (long long)g, (double)zero, 1 << w->bits);
            }
        }
    }
    return NULL;
}

/* weight [in, out * bits / 16] of the bytes, as numbers of 16 bits; weights_scaling_factor and zero [groups, out]. */
nrd_error *nrd_quant_gptq_product(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_src_tensor *t = &w->codes;

    NRD_TRY(nrd_quant_take(q, stem, ".weights_scaling_factor", w, &w->scales));
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    if (t->n_dims != 2 || w->scales.n_dims != 2 || (t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensors '%s' and '%s' have type %s and %d and %d dimensions, expected bytes as float16 or "
                          "bfloat16, and two", t->name, w->scales.name, t->type_name, t->n_dims, w->scales.n_dims);
    }
    NRD_TRY(nrd_quant_shape(t, t->dtype, t->dims[0], t->dims[1]));
    w->bits = s->bits;
    w->cols = t->dims[0];
    w->rows = t->dims[1] * (16 / w->bits);
    w->zero_point = 1 << (w->bits - 1);
    w->codes_of = codes_of;
    w->orders = &s->orders;
    if (w->scales.dims[0] < 1 || w->cols % w->scales.dims[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups, which do not divide %lld columns", w->scales.name,
                          (long long)w->scales.dims[0], (long long)w->cols);
    }
    NRD_TRY(nrd_quant_groups(w, w->cols / w->scales.dims[0]));
    NRD_TRY(nrd_quant_shape(&w->scales, t->dtype, w->n_groups, w->rows));
    w->row_group = 1;
    w->scale_row = 1;
    w->scale_group = w->rows;
    NRD_TRY(nrd_quant_take(q, stem, ".zero", w, &w->zeros));
    NRD_TRY(nrd_quant_shape(&w->zeros, t->dtype, w->n_groups, w->rows));
    NRD_TRY(check_zeros(w));
    w->zero_of = zero_of;
    return look_at_order(q, w, true);
}

/* ---- SmoothQuant ---- */

/* Which number a module's input was multiplied by before it was rounded, in the place of the end of its name. */
static const struct {
    const char *module, *scale;
} inputs[] = {{".attention.qkv", ".input_layernorm.scale_to_int"},
              {".attention.dense", ".attention.quantization_scaling_factor"},
              {".mlp.fc", ".post_layernorm.scale_to_int"},
              {".mlp.gate", ".post_layernorm.scale_to_int"},
              {".mlp.proj", ".mlp.quantization_scaling_factor"}};
enum { N_INPUTS = (int)(sizeof inputs / sizeof inputs[0]) };

/* Static inputs: the scale of the weight alone. Others leave a 1 there, which is taken. */
static nrd_error *take_input(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const bool is_static = nrd_quant_settings_of(q)->static_inputs;
    char layer[512];
    nrd_src_tensor t;
    float act, input;
    int i = 0;

    while (i < N_INPUTS && !nrd_str_has_suffix(stem, inputs[i].module)) {
        i++;
    }
    if (i == N_INPUTS) {
        return !is_static ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s.per_channel_scale': the scale of this module's input is not known", stem);
    }
    snprintf(layer, sizeof layer, "%.*s", (int)(strlen(stem) - strlen(inputs[i].module)), stem);
    if (!is_static) {
        nrd_quant_try(q, layer, inputs[i].scale, w, &t);
        return NULL;
    }
    NRD_TRY(nrd_quant_take(q, layer, inputs[i].scale, w, &t));
    NRD_TRY(nrd_quant_number(&t, &input));
    NRD_TRY(nrd_quant_take(q, stem, ".act_scale", w, &t));
    NRD_TRY(nrd_quant_number(&t, &act));
    w->scale_factor = input * act;
    return NULL;
}

nrd_error *nrd_quant_smooth(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, ".per_channel_scale", w, &w->scales));
    nrd_quant_flatten(&w->scales);
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_int8(w, nrd_quant_settings_of(q)));
    NRD_TRY(nrd_quant_columns(q, stem, ".smoother", w));
    for (int64_t c = 0; w->columns && c < w->cols; c++) {
        if (!(w->columns[c] > 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s.smoother' has %g for column %lld, expected a number above 0", stem,
                              (double)w->columns[c], (long long)c);
        }
        w->columns[c] = 1 / w->columns[c];
    }
    return take_input(q, stem, w);
}
