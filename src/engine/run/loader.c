/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/loader.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_loader_dequantize(const nrd_weight *w, const char *name, void **out_host,
                             nrd_weight *out)
{
    size_t n = 0, bytes = 0;

    NRD_TRY(nrd_weight_check(w, name));
    if (w->rows < 0 || w->cols <= 0 || !nrd_size_mul((size_t)w->rows, (size_t)w->cols, &n) ||
        !nrd_size_mul(n, sizeof(float), &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has bad sizes", name);
    }
    float *dst = nrd_aligned_zalloc(64, bytes ? bytes : 64);
    if (!dst) {
        return nrd_error_no_memory();
    }
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, dst + (size_t)r * (size_t)w->cols);
    }
    *out = *w;
    out->dtype = NRD_DTYPE_F32;
    out->layout = NRD_LAYOUT_ROWS;
    out->data = dst;
    out->scales = NULL;
    out->scale = 1;
    out->data_bytes = bytes;
    *out_host = dst;
    return NULL;
}

/* `w`, of float32, in the type of activations. *out_host: the caller frees. */
static nrd_error *round_to_act(const nrd_loader *l, const nrd_weight *w, const char *name, void **out_host, nrd_weight *out)
{
    const nrd_dtype act = l->ws->act_dtype;
    const size_t row_bytes = (size_t)w->cols * nrd_dtype_block_bytes(act);
    float *host = NULL;

    NRD_TRY(nrd_loader_dequantize(w, name, out_host, out));
    host = *out_host;
    for (int64_t r = 0; r < w->rows; r++) { /* in place: what is written lies before what is still to be read */
        nrd_quantize_row(act, host + r * w->cols, (char *)*out_host + (size_t)r * row_bytes, w->cols);
    }
    out->dtype = act;
    out->data_bytes = (uint64_t)w->rows * row_bytes;
    return NULL;
}

nrd_error *nrd_loader_get_as(nrd_loader *l, const char *name, bool is_linear, const nrd_weight **out)
{
    nrd_weights *ws = l->ws;
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    nrd_weight made;

    *out = NULL;
    if (!src) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "the engine has no weight %s", name);
    }
    NRD_ASSERT(ws->n_loaded < ws->cap_loaded, "the bound covers every layer's weights");
    nrd_loaded *slot = &ws->loaded[ws->n_loaded];
    *slot = (nrd_loaded){0};
    if (l->compute_f32 && src->dtype != NRD_DTYPE_F32) {
        NRD_TRY(nrd_loader_dequantize(src, name, &slot->host, &made));
        src = &made;
    } else if (is_linear && l->rounds_f32 && src->dtype == NRD_DTYPE_F32 && ws->act_dtype != NRD_DTYPE_F32) {
        NRD_TRY(round_to_act(l, src, name, &slot->host, &made));
        src = &made;
    }
    nrd_error *err = ws->dev->ops->weight_load(l->stream, src, is_linear, &slot->w, &slot->owned);
    if (err) {
        free(slot->host);
        return nrd_error_wrap(err, "weight %s", name);
    }
    ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

nrd_error *nrd_loader_get(nrd_loader *l, int32_t layer, const char *name, const nrd_weight **out)
{
    const nrd_need *need = nrd_need_of(name);
    char full[NRD_LOADER_NAME];

    NRD_ASSERT(need, "only weights of the table are asked for");
    *out = NULL;
    const int32_t first = nrd_spec_first_layer(l->spec, l->rank);
    if (!nrd_when_holds(l->spec, need->when) || !nrd_need_is_of(need, l->spec, l->rank) ||
        (need->is_layered && !nrd_need_is_in(need, l->spec, first + layer))) {
        return NULL;
    }
    if (need->is_layered) {
        snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", layer, name);
        name = full;
    }
    return nrd_loader_get_as(l, name, need->is_linear, out);
}

/* Settles the input type of a product whose parts are loaded. */
void nrd_loader_finish_product(nrd_loader *l, nrd_product *p)
{
    nrd_device *dev = l->ws->dev;
    p->cols = p->w[0]->cols;
    p->rows = 0;
    p->int8_x = !strcmp(l->spec->quant_algo, NRD_ALGO_W8A8);
    for (int32_t i = 0; i < p->n; i++) {
        p->rows += p->w[i]->rows / (p->w[i]->n_stacked > 1 ? p->w[i]->n_stacked : 1);
        size_t row_bytes = 0;
        bool scale = false;
        nrd_dtype in = dev->ops->linear_input(dev, p->w[i], l->ws->act_dtype, &row_bytes, &scale);
        if (i == 0) {
            p->in_dtype = in;
            p->in_row_bytes = row_bytes;
            p->in_row_scale = scale;
        } else if (in != p->in_dtype) {
            /* Parts that want different inputs: plain activations suit them all. */
            p->in_dtype = l->ws->act_dtype;
            p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
            p->in_row_scale = false;
        }
    }
    if (p->in_row_bytes > l->ws->max_in_row_bytes) {
        l->ws->max_in_row_bytes = p->in_row_bytes;
    }
}

/* The `cols` numbers of a vector of the engine beside a product's weights, *out NULL: there is none. The caller frees. full:
 * [NRD_LOADER_NAME], its name. */
static nrd_error *read_vector(nrd_loader *l, int32_t layer, const char *stem, const char *part, int64_t cols, char *full, float **out)
{
    nrd_error *err = NULL;

    *out = NULL;
    snprintf(full, NRD_LOADER_NAME, NRD_LAYER_PREFIX "%s%s", layer, stem, part);
    const nrd_weight *w = nrd_engine_weight(l->engine, full);
    if (!w) {
        return NULL;
    }
    NRD_TRY(nrd_weight_check(w, full));
    if (w->dtype != NRD_DTYPE_F32 || w->rows * w->cols != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has %lld numbers of type %s, expected %lld of float32", full,
                          (long long)(w->rows * w->cols), nrd_dtype_name(w->dtype), (long long)cols);
    }
    NRD_NEW_GOTO(*out, cols, err, done);
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, *out + r * w->cols);
    }
done:
    return err;
}

/* Numbers of columns, behind those of the orders before. */
static nrd_error *take_order(nrd_weights *ws, const float *numbers, const char *name, int64_t cols)
{
    nrd_error *err = NULL;
    uint8_t *seen = NULL;

    int32_t *grown = realloc(ws->orders, (ws->n_orders + (size_t)cols) * sizeof *grown);
    if (!grown) {
        return nrd_error_no_memory();
    }
    ws->orders = grown;
    NRD_NEW_GOTO(seen, cols, err, done);
    for (int64_t i = 0; i < cols; i++) {
        const float x = numbers[i];
        if (!(x >= 0 && x < (float)cols) || x > floorf(x) || seen[(int64_t)x]) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has %g at %lld, expected each column of %lld once", name, (double)x,
                             (long long)i, (long long)cols);
            goto done;
        }
        seen[(int64_t)x] = 1;
        ws->orders[ws->n_orders + (size_t)i] = (int32_t)x;
    }
    ws->n_orders += (size_t)cols;
done:
    free(seen);
    return err;
}

static nrd_error *take_scale(nrd_weights *ws, const float *numbers, const char *name, int64_t cols)
{
    float *grown = realloc(ws->scales, (ws->n_scales + (size_t)cols) * sizeof *grown);

    if (!grown) {
        return nrd_error_no_memory();
    }
    ws->scales = grown;
    for (int64_t i = 0; i < cols; i++) {
        if (!isfinite(numbers[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has %g at %lld, expected a finite number", name, (double)numbers[i],
                              (long long)i);
        }
    }
    memcpy(ws->scales + ws->n_scales, numbers, (size_t)cols * sizeof *numbers);
    ws->n_scales += (size_t)cols;
    return NULL;
}

nrd_error *nrd_loader_add_input(nrd_loader *l, nrd_product *p, int32_t layer, const char *stem)
{
    nrd_weights *ws = l->ws;
    nrd_error *err = NULL;
    float *numbers = NULL;
    char full[NRD_LOADER_NAME];

    if (p->n == 0) {
        return NULL;
    }
    NRD_TRY_GOTO(read_vector(l, layer, stem, NRD_INT8_INPUT, 1, full, &numbers), err, done);
    p->int8_x = p->int8_x || (numbers && numbers[0] != 0);
    free(numbers);
    NRD_TRY_GOTO(read_vector(l, layer, stem, NRD_ORDER, p->cols, full, &numbers), err, done);
    if (numbers && p->in_row_scale) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "weight %s beside a weight of type %s", full, nrd_dtype_name(p->w[0]->dtype));
        goto done;
    }
    if (numbers) {
        p->is_ordered = true;
        p->order_at = ws->n_orders;
        NRD_TRY_GOTO(take_order(ws, numbers, full, p->cols), err, done);
        free(numbers);
    }
    NRD_TRY_GOTO(read_vector(l, layer, stem, NRD_COLUMNS, p->cols, full, &numbers), err, done);
    if (numbers) {
        p->is_scaled = true;
        p->scale_at = ws->n_scales;
        NRD_TRY_GOTO(take_scale(ws, numbers, full, p->cols), err, done);
    }
    if (!nrd_product_makes_input(p)) {
        goto done;
    }
    p->made_dtype = p->in_dtype;
    p->made_row_scale = p->in_row_scale;
    ws->max_made_row_bytes = p->in_row_bytes > ws->max_made_row_bytes ? p->in_row_bytes : ws->max_made_row_bytes;
    p->in_dtype = ws->act_dtype;
    p->in_row_scale = false;
    p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(ws->act_dtype);
    ws->max_in_row_bytes = p->in_row_bytes > ws->max_in_row_bytes ? p->in_row_bytes : ws->max_in_row_bytes;
done:
    free(numbers);
    return err;
}

nrd_error *nrd_loader_add_part(nrd_loader *l, nrd_product *p, int32_t layer, const char *weight,
                           const char *bias)
{
    NRD_TRY(nrd_loader_get(l, layer, weight, &p->w[p->n]));
    if (bias) {
        NRD_TRY(nrd_loader_get(l, layer, bias, &p->bias[p->n]));
    }
    p->n += p->w[p->n] != NULL;
    return NULL;
}

nrd_error *nrd_loader_add_summed(nrd_loader *l, nrd_product *p, int32_t layer, const char *weight, const char *bias)
{
    const int32_t tp_rank = l->rank % l->spec->tp_size;

    NRD_TRY(nrd_loader_add_part(l, p, layer, weight, bias));
    if (p->n > 0 && (nrd_need_of(weight)->is_stacked ? nrd_spec_moe_tp_rank(l->spec, l->rank) : tp_rank) != 0) {
        p->bias[0] = NULL;
    }
    nrd_loader_finish_product(l, p);
    return NULL;
}

nrd_error *nrd_loader_get_f32(nrd_loader *l, int32_t layer, const char *name, const nrd_weight **out)
{
    const bool before = l->compute_f32;
    l->compute_f32 = true;
    nrd_error *err = nrd_loader_get(l, layer, name, out);
    l->compute_f32 = before;
    return err;
}

void nrd_loader_share_input(const nrd_loader *l, nrd_product *a, nrd_product *b)
{
    if (b->n == 0 || a->in_dtype == b->in_dtype) {
        return;
    }
    nrd_product *const both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        both[i]->in_dtype = l->ws->act_dtype;
        both[i]->in_row_bytes = (size_t)a->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
        both[i]->in_row_scale = false;
    }
    l->ws->max_in_row_bytes = a->in_row_bytes > l->ws->max_in_row_bytes ? a->in_row_bytes : l->ws->max_in_row_bytes;
}

nrd_error *nrd_loader_get_times(nrd_loader *l, const char *name, float factor, const nrd_weight **out)
{
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    void *host = NULL;
    nrd_weight w;

    NRD_ASSERT(src, "it was checked that it is there");
    NRD_TRY(nrd_loader_dequantize(src, name, &host, &w));
    for (int64_t i = 0; i < w.rows * w.cols; i++) {
        ((float *)host)[i] *= factor;
    }
    nrd_loaded *slot = &l->ws->loaded[l->ws->n_loaded];
    *slot = (nrd_loaded){.host = host};
    NRD_TRY(l->ws->dev->ops->weight_load(l->stream, &w, false, &slot->w, &slot->owned));
    l->ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

nrd_error *nrd_loader_product(nrd_loader *l, nrd_product *p, int32_t layer, const char *name)
{
    NRD_TRY(nrd_loader_add_part(l, p, layer, name, NULL));
    nrd_loader_finish_product(l, p);
    return NULL;
}
