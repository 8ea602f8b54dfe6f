/* SPDX-License-Identifier: Apache-2.0
 * Norms and products of a tower from its file, as its layers want them: heads with zeros up to a width that kernels know,
 * parts of stacked matrices, scales in the weights behind which they stand. */
#include "base/mem.h"
#include "engine/run/operations.h"
#include "engine/run/tower_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nrd_tower_row(const nrd_tower *t, const float *row, size_t n, uint8_t *to)
{
    if (t->r->act == NRD_DTYPE_F32) {
        memcpy(to, row, n * sizeof *row);
    } else {
        nrd_quantize_row(t->r->act, row, to, (int64_t)n);
    }
}

nrd_error *nrd_tower_upload_rows(nrd_tower *t, const nrd_weight *w, int32_t n, int32_t cols, void *to)
{
    const size_t row = (size_t)cols * t->r->act_bytes;
    nrd_error *err = NULL;
    uint8_t *host = NULL;
    float *one = NULL;

    NRD_NEW_GOTO(host, (size_t)n * row, err, done);
    NRD_NEW_GOTO(one, (size_t)cols, err, done);
    for (int32_t i = 0; i < n; i++) {
        nrd_weight_row(w, i, one);
        nrd_tower_row(t, one, (size_t)cols, host + (size_t)i * row);
    }
    err = nrd_run_upload(t->r, to, host, (size_t)n * row);
done:
    free(host);
    free(one);
    return err;
}

const nrd_weight *nrd_tower_find(const nrd_tower *t, const char *stem, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", stem, part);
    return nrd_vision_weight(t->from, name);
}

nrd_error *nrd_tower_load_norm(nrd_tower *t, const char *stem, nrd_extra_weight *weight, nrd_extra_weight *bias)
{
    NRD_TRY(nrd_extra_weight_load(t->r, nrd_tower_find(t, stem, "weight"), NRD_TOWER_POOL, weight));
    NRD_TRY(t->s.rms_norm ? NULL : nrd_extra_weight_load(t->r, nrd_tower_find(t, stem, "bias"), NRD_TOWER_POOL, bias));
    t->bytes += weight->bytes + bias->bytes;
    return NULL;
}

nrd_error *nrd_tower_load_product(nrd_tower *t, const char *stem, nrd_extra_product *p)
{
    const int32_t i = p->product.n;
    NRD_TRY(nrd_extra_product_add(t->r, nrd_tower_find(t, stem, "weight"), nrd_tower_find(t, stem, "bias"), NRD_TOWER_POOL, p));
    t->bytes += p->weight[i].bytes + p->bias[i].bytes;
    return NULL;
}

/* n_rows * n_heads pieces of `piece` numbers each, with zeros behind; *keep owns them. */
static nrd_error *pad(const nrd_tower *t, nrd_weight *w, int64_t n_rows, int64_t piece, int64_t wide, uint8_t **keep)
{
    const size_t bytes = w->data_bytes / (size_t)(w->rows * w->cols), n = (size_t)n_rows * (size_t)t->s.n_heads;
    const size_t from = (size_t)piece * bytes, to = (size_t)wide * bytes;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*keep, n * to, err, fail);
    for (size_t i = 0; i < n; i++) {
        memcpy(*keep + i * to, (const uint8_t *)w->data + i * from, from);
    }
    w->data = *keep;
    w->data_bytes = n * to;
fail:
    return err;
}

/* Weight and bias of q, k, v or of what is behind attention (3), with zeros where heads are made wider. */
nrd_error *nrd_tower_load_heads(nrd_tower *t, nrd_tower_layer *y, nrd_weight w, const nrd_weight *bias, int k, nrd_extra_product *p)
{
    nrd_weight b = bias ? *bias : (nrd_weight){0};
    const int64_t dim = t->s.hidden / t->s.n_heads, wide = t->head_dim, width = wide * t->s.n_heads;
    const int32_t i = p->product.n;

    if (wide == dim) {
        NRD_TRY(nrd_extra_product_add(t->r, &w, bias ? &b : NULL, NRD_TOWER_POOL, p));
        t->bytes += p->weight[i].bytes + p->bias[i].bytes;
        return NULL;
    }
    if (k < 3) { /* rows of q, k, v */
        NRD_TRY(pad(t, &w, 1, dim * w.cols, wide * w.cols, &y->padded[2 * k]));
        NRD_TRY(bias ? pad(t, &b, 1, dim, wide, &y->padded[2 * k + 1]) : NULL);
        w.rows = b.cols = width;
    } else {
        NRD_TRY(pad(t, &w, w.rows, dim, wide, &y->padded[2 * k]));
        w.cols = width;
    }
    NRD_TRY(nrd_extra_product_add(t->r, &w, bias ? &b : NULL, NRD_TOWER_POOL, p));
    t->bytes += p->weight[i].bytes + p->bias[i].bytes;
    return NULL;
}

/* A copy whose rows, or a bias's numbers, are multiplied by `by`; *keep owns it. */
static nrd_error *scale(nrd_weight *w, bool is_bias, const float *by, uint8_t **keep)
{
    const size_t row_bytes = w->data_bytes / (size_t)w->rows;
    nrd_error *err = NULL;
    float *row = NULL;

    NRD_NEW_GOTO(row, w->cols, err, done);
    NRD_NEW_GOTO(*keep, w->data_bytes, err, done);
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, row);
        for (int64_t c = 0; c < w->cols; c++) {
            row[c] *= by[is_bias ? c : r];
        }
        if (w->dtype == NRD_DTYPE_F32) {
            memcpy(*keep + (size_t)r * row_bytes, row, row_bytes);
        } else {
            nrd_quantize_row(w->dtype, row, *keep + (size_t)r * row_bytes, w->cols);
        }
    }
    w->data = *keep;
done:
    free(row);
    return err;
}

/* … and given to `to`: the product behind attention, or behind the MLP. */
nrd_error *nrd_tower_load_scaled(nrd_tower *t, nrd_tower_layer *y, const char *stem, const float *by, bool of_mlp, nrd_extra_product *to)
{
    const nrd_weight *bias = nrd_tower_find(t, stem, "bias");
    nrd_weight w = *nrd_tower_find(t, stem, "weight"), b = bias ? *bias : (nrd_weight){0};
    const int32_t i = to->product.n;

    NRD_TRY(scale(&w, false, by, &y->scaled[2 * of_mlp]));
    NRD_TRY(bias ? scale(&b, true, by, &y->scaled[2 * of_mlp + 1]) : NULL);
    if (!of_mlp) {
        return nrd_tower_load_heads(t, y, w, bias ? &b : NULL, 3, to);
    }
    NRD_TRY(nrd_extra_product_add(t->r, &w, bias ? &b : NULL, NRD_TOWER_POOL, to));
    t->bytes += to->weight[i].bytes + to->bias[i].bytes;
    return NULL;
}

nrd_weight nrd_tower_third(const nrd_weight *w, int64_t hidden, int i)
{
    const size_t bytes = w->data_bytes / 3;
    nrd_weight part = *w;
    if (i < 0) {
        return part;
    }
    part.rows = w->rows == 1 ? 1 : hidden;
    part.cols = w->rows == 1 ? hidden : w->cols;
    part.data = (const uint8_t *)w->data + (size_t)i * bytes;
    part.data_bytes = bytes;
    return part;
}

/* q, k or v (i: 0 to 2) of the stacked weight, or bias, whose rows are those of one head after the other; *keep owns it. */
static nrd_error *gather(const nrd_tower *t, const nrd_weight *w, int i, uint8_t **keep, nrd_weight *out)
{
    const size_t bytes = w->data_bytes / 3, piece = bytes / (size_t)t->s.n_heads;
    nrd_error *err = NULL;

    *out = nrd_tower_third(w, t->s.hidden, i);
    NRD_NEW_GOTO(*keep, bytes, err, fail);
    for (size_t h = 0; h < (size_t)t->s.n_heads; h++) {
        memcpy(*keep + h * piece, (const uint8_t *)w->data + (3 * h + (size_t)i) * piece, piece);
    }
    out->data = *keep;
fail:
    return err;
}

nrd_error *nrd_tower_load_third(nrd_tower *t, nrd_tower_layer *y, const char *stem, int k)
{
    const nrd_weight *weight = nrd_tower_find(t, stem, "weight"), *bias = nrd_tower_find(t, stem, "bias");
    nrd_weight w = nrd_tower_third(weight, t->s.hidden, k), b = nrd_tower_third(bias, t->s.hidden, k);

    if (t->s.resampled) {
        NRD_TRY(gather(t, weight, k, &y->gathered[2 * k], &w));
        NRD_TRY(gather(t, bias, k, &y->gathered[2 * k + 1], &b));
    }
    return nrd_tower_load_heads(t, y, w, &b, k, &y->qkv);
}

nrd_error *nrd_tower_load_squares(nrd_tower *t, const char *stem, int32_t side)
{
    const nrd_weight *from = nrd_tower_find(t, stem, "weight");
    const size_t n = (size_t)(side * side), hidden = (size_t)t->s.hidden, rows = (size_t)from->rows;
    const size_t bytes = from->data_bytes / (rows * n * hidden);
    const uint8_t *data = from->data;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->projection, from->data_bytes, err, fail);
    for (size_t i = 0; i < rows * n * hidden; i++) {
        const size_t row = i / (n * hidden), column = i % (n * hidden);
        memcpy(t->projection + (row * n * hidden + column % n * hidden + column / n) * bytes, data + i * bytes, bytes);
    }
    nrd_weight w = *from;
    w.data = t->projection;
    err = nrd_extra_product_add(t->r, &w, nrd_tower_find(t, stem, "bias"), NRD_TOWER_POOL, &t->merge);
    t->bytes += nrd_extra_product_bytes(&t->merge);
fail:
    return err;
}
