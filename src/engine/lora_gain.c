/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/lora_gain.h"

#include "base/mem.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 16, MAX_NAME = 96, MAX_MATRICES = 3 };

/* The rows of a module in one rank's engine: those of its matrices one behind the other, from `first` on. */
typedef struct base_rows {
    const nrd_weight *w[MAX_MATRICES], *bias[MAX_MATRICES];
    const nrd_weight *order; /* of their columns (NRD_ORDER); NULL: as those of the module's input */
    const nrd_weight *scale; /* what those columns of the input are multiplied by (NRD_COLUMNS); NULL: nothing */
    int64_t first;
} base_rows;

static nrd_error *add_matrix(base_rows *b, int n, const nrd_engine *e, int32_t layer, const char *name)
{
    char full[MAX_NAME];

    snprintf(full, sizeof full, "transformer.layers.%d.%s.weight", layer, name);
    b->w[n] = nrd_engine_weight(e, full);
    if (!b->w[n]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "DoRA: the engine has no weight %s", full);
    }
    NRD_TRY(nrd_weight_check(b->w[n], full));
    snprintf(full, sizeof full, "transformer.layers.%d.%s.bias", layer, name);
    b->bias[n] = nrd_engine_weight(e, full);
    return b->bias[n] ? nrd_weight_check(b->bias[n], full) : NULL;
}

/* A vector of columns, where it is there. */
static nrd_error *find_vector(const nrd_engine *e, int32_t layer, const char *stem, const char *suffix, const nrd_weight **out)
{
    char full[MAX_NAME];

    snprintf(full, sizeof full, "transformer.layers.%d.%s%s", layer, stem, suffix);
    *out = nrd_engine_weight(e, full);
    return *out ? nrd_weight_check(*out, full) : NULL;
}

static nrd_error *add_input(base_rows *b, const nrd_engine *e, int32_t layer, const char *stem)
{
    NRD_TRY(find_vector(e, layer, stem, NRD_ORDER, &b->order));
    return find_vector(e, layer, stem, NRD_COLUMNS, &b->scale);
}

/* own: the engine's rank; layer: in its stage. */
static nrd_error *find_rows(base_rows *b, const nrd_engine *e, const nrd_model_spec *own, int32_t layer, int32_t position)
{
    static const char *const others[] = {[NRD_LORA_AT_DENSE] = "attention.dense", [NRD_LORA_AT_UP] = "mlp.fc",
                                         [NRD_LORA_AT_UP + 1] = "mlp.gate", [NRD_LORA_AT_DOWN] = "mlp.proj"};
    static const char *const inputs[] = {[NRD_LORA_AT_DENSE] = "attention.dense", [NRD_LORA_AT_UP] = "mlp.fc",
                                         [NRD_LORA_AT_UP + 1] = "mlp.fc", [NRD_LORA_AT_DOWN] = "mlp.proj"};
    static const char *const parts[] = {"attention.q", "attention.k", "attention.v"};
    const nrd_model_spec s = nrd_spec_of_layer(own, layer);
    const int64_t q = (int64_t)s.n_heads * s.head_dim, kv = (int64_t)s.n_kv_heads * s.head_dim;
    const int64_t first[] = {0, q, q + kv, 0};
    char full[MAX_NAME];

    *b = (base_rows){.first = 0};
    if (position >= NRD_LORA_AT_DENSE) {
        NRD_TRY(add_input(b, e, layer, inputs[position]));
        return add_matrix(b, 0, e, layer, others[position]);
    }
    const int part = position - NRD_LORA_AT_QKV;
    const bool are_keys = part == 2 && nrd_spec_values_are_keys(own, layer); /* they have no rows of their own */
    if (!nrd_spec_layer_has_cache(own, layer)) {
        return add_matrix(b, 0, e, layer, "attention.query");
    }
    NRD_TRY(add_input(b, e, layer, "attention.qkv"));
    snprintf(full, sizeof full, "transformer.layers.%d.attention.qkv.weight", layer);
    if (nrd_engine_weight(e, full)) {
        b->first = first[are_keys ? 1 : part];
        return add_matrix(b, 0, e, layer, "attention.qkv");
    }
    for (int i = 0; i < 3 && part == 3; i++) {
        NRD_TRY(add_matrix(b, i, e, layer, parts[i]));
    }
    return part == 3 ? NULL : add_matrix(b, 0, e, layer, parts[are_keys ? 1 : part]);
}

/* Which matrix has row i, and which row of it that is. */
static int matrix_of(const base_rows *b, int64_t *i)
{
    int n = 0;
    *i += b->first;
    while (n + 1 < MAX_MATRICES && b->w[n + 1] && *i >= b->w[n]->rows) {
        *i -= b->w[n++]->rows;
    }
    return n;
}

static nrd_error *check_rows(const base_rows *b, const nrd_lora_row *r)
{
    int64_t last = r->out - 1;
    const int n = matrix_of(b, &last);

    if ((b->order && b->order->rows * b->order->cols != r->in) || (b->scale && b->scale->rows * b->scale->cols != r->in) || last >= b->w[n]->rows || b->w[n]->cols < r->in || (b->bias[n] && b->bias[n]->rows * b->bias[n]->cols < b->w[n]->rows)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "DoRA: %s of layer %d: the engine's weight [%lld, %lld] is no matrix of %lld inputs",
                          nrd_lora_module_name(r->module), r->layer, (long long)b->w[n]->rows, (long long)b->w[n]->cols,
                          (long long)r->in);
    }
    return NULL;
}

/* w += factor * a */
static void add_scaled(float *w, const float *a, float factor, int64_t n)
{
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (int i = 0; i < LANES; i++) {
            w[k + i] += factor * a[k + i];
        }
    }
    for (; k < n; k++) {
        w[k] += factor * a[k];
    }
}

static double squares(const float *w, int64_t n)
{
    float lanes[LANES] = {0};
    double sum = 0;
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (int i = 0; i < LANES; i++) {
            lanes[i] += w[k + i] * w[k + i];
        }
    }
    for (int i = 0; i < LANES; i++) {
        sum += (double)lanes[i];
    }
    for (; k < n; k++) {
        sum += (double)w[k] * (double)w[k];
    }
    return sum;
}

/* Row `at` of a matrix with its columns as they are for the module's input. numbers: of the order, or NULL; scale: likewise. */
static void read_row(const nrd_weight *w, int64_t at, const float *numbers, const float *scale, int64_t n, float *scratch, float *out)
{
    float *row = numbers ? scratch : out;

    nrd_weight_row(w, at, row);
    for (int64_t k = 0; scale && k < n; k++) {
        row[k] *= scale[k];
    }
    if (!numbers) {
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        if (numbers[k] >= 0 && numbers[k] < (float)n) { /* who loads the weights checks that each column is there once */
            out[(int64_t)numbers[k]] = scratch[k];
        }
    }
}

/* One rank's part of a row of the adapter: squares of its rows of W + scale B A, added to those of the whole where the
 * inputs are divided, and its biases. whole: the adapter's row, whose data is scratch of [2, out] here. */
static nrd_error *add_part(const nrd_lora_row *whole, const nrd_lora_row *part, const nrd_model_spec *spec, int32_t rank,
                           const base_rows *base, double *sums, float *bias)
{
    const size_t elem = nrd_dtype_block_bytes(part->dtype), rank_of = (size_t)part->rank;
    const bool is_divided = part->in < whole->in;
    nrd_error *err = NULL;
    float *a = NULL, *row = NULL, *sorted = NULL, *order = NULL, *scale = NULL, b;

    NRD_NEW_GOTO(a, rank_of * (size_t)part->in, err, done);
    nrd_dequantize_row(part->dtype, part->a, a, (int64_t)rank_of * part->in);
    if (base->order) {
        NRD_NEW_GOTO(order, part->in, err, done);
        nrd_dequantize_row(base->order->dtype, base->order->data, order, part->in);
    }
    if (base->scale) {
        NRD_NEW_GOTO(scale, part->in, err, done);
        nrd_dequantize_row(base->scale->dtype, base->scale->data, scale, part->in);
    }
    for (int64_t i = 0; i < part->out; i++) {
        int64_t at = i;
        const int n = matrix_of(base, &at);
        const int64_t to = nrd_lora_whole_row(spec, rank, whole->module, whole->layer, i);
        if (!row) { /* all matrices of a product have as many columns */
            NRD_NEW_GOTO(row, (size_t)base->w[n]->cols, err, done);
            NRD_NEW_GOTO(sorted, (size_t)base->w[n]->cols, err, done);
        }
        read_row(base->w[n], at, order, scale, part->in, sorted, row);
        for (size_t r = 0; r < rank_of; r++) {
            nrd_dequantize_row(part->dtype, (const uint8_t *)part->b + (r * (size_t)part->out + (size_t)i) * elem, &b, 1);
            add_scaled(row, a + r * (size_t)part->in, part->scale * b, part->in);
        }
        sums[to] = (is_divided ? sums[to] : 0) + squares(row, part->in);
        if (base->bias[n]) {
            nrd_dequantize_row(base->bias[n]->dtype,
                               (const uint8_t *)base->bias[n]->data + (size_t)at * nrd_dtype_block_bytes(base->bias[n]->dtype), &bias[to], 1);
        }
    }
done:
    free(a);
    free(row);
    free(sorted);
    free(order);
    free(scale);
    return err;
}

static nrd_error *finish_row(const nrd_lora_row *r, const double *sums, const float *bias)
{
    float *gain = (float *)(uintptr_t)nrd_lora_gain(r, r->b);

    for (int64_t i = 0; i < r->out; i++) {
        if (r->is_magnitude && !(sums[i] > 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "DoRA: %s of layer %d: row %lld of the base weights and the pair is all zeros, which no "
                              "length can be given", nrd_lora_module_name(r->module), r->layer, (long long)i);
        }
        gain[i] = r->is_magnitude ? (float)((double)gain[i] / sqrt(sums[i])) : gain[i];
        gain[r->out + i] = bias[i] * (1.0f - gain[i]);
    }
    return NULL;
}

/* Of one rank: all rows of the adapter that its stage has. */
static nrd_error *add_rank(const nrd_lora *l, const nrd_engine *e, const nrd_model_spec *spec, int32_t rank, double *const *sums,
                           float *const *bias)
{
    const nrd_model_spec own = nrd_spec_of_rank(spec, rank);
    const int32_t first = nrd_spec_first_layer(spec, rank);
    nrd_error *err = NULL;
    nrd_lora *part = NULL;
    base_rows base;
    int32_t k = 0;

    NRD_TRY(nrd_lora_cut(&part, l, spec, rank));
    for (int32_t i = 0; i < l->n_rows && !err; i++) {
        const nrd_lora_row *r = &l->rows[i];
        if (r->layer < first || r->layer >= first + own.n_layers) {
            continue;
        }
        const nrd_lora_row *p = &part->rows[k++];
        if (r->has_gain) {
            err = find_rows(&base, e, &own, p->layer, nrd_lora_position(r->module));
            err = err ? err : check_rows(&base, p);
            err = err ? err : add_part(r, p, spec, rank, &base, sums[i], bias[i]);
        }
    }
    nrd_lora_free(part);
    return err;
}

nrd_error *nrd_lora_gains(nrd_lora *l, const nrd_engine *engine, const nrd_model_spec *spec)
{
    const int32_t n_ranks = spec->tp_size * spec->pp_size;
    nrd_error *err = NULL;
    double **sums = NULL;
    float **bias = NULL;
    bool any = false;

    for (int32_t i = 0; i < l->n_rows; i++) {
        any = any || l->rows[i].has_gain;
    }
    if (!any) {
        return NULL;
    }
    NRD_NEW_GOTO(sums, (size_t)l->n_rows, err, done);
    NRD_NEW_GOTO(bias, (size_t)l->n_rows, err, done);
    for (int32_t i = 0; i < l->n_rows; i++) {
        NRD_NEW_GOTO(sums[i], (size_t)l->rows[i].out, err, done);
        NRD_NEW_GOTO(bias[i], (size_t)l->rows[i].out, err, done);
    }
    for (int32_t rank = 0; rank < n_ranks && !err; rank++) {
        nrd_engine *other = NULL;
        err = rank > 0 ? nrd_engine_open(&other, nrd_engine_dir(engine), rank, false) : NULL;
        err = err ? err : add_rank(l, rank > 0 ? other : engine, spec, rank, sums, bias);
        nrd_engine_close(other);
    }
    for (int32_t i = 0; i < l->n_rows && !err; i++) {
        err = l->rows[i].has_gain ? finish_row(&l->rows[i], sums[i], bias[i]) : NULL;
        l->rows[i].is_magnitude = false;
    }
done:
    for (int32_t i = 0; i < l->n_rows; i++) {
        free(sums ? sums[i] : NULL);
        free(bias ? bias[i] : NULL);
    }
    free(sums);
    free(bias);
    return err;
}
