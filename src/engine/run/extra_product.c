/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/extra_product.h"
#include "engine/run/operations.h"

#include "base/dtype.h"
#include "base/mem.h"

static bool is_bytes(nrd_dtype t)
{
    return t == NRD_DTYPE_I8 || t == NRD_DTYPE_F8_E4M3;
}

/* The type that a weight is needed in: another 16-bit type than the activations' is converted, since not every device
 * multiplies both; with float32 arithmetic all are. Bytes with scales stay so: they are read to be multiplied, and are half as many. */
static nrd_dtype wanted_dtype(const nrd_runner *r, const nrd_weight *w, bool is_linear, nrd_dtype quantize)
{
    if (r->cfg.compute_f32) {
        return NRD_DTYPE_F32;
    }
    if (is_linear && is_bytes(w->dtype)) {
        return r->shared && w->dtype == NRD_DTYPE_F8_E4M3 ? r->act : w->dtype; /* a CPU has no products of fp8 */
    }
    if (is_linear && quantize != NRD_DTYPE_NONE) {
        return quantize;
    }
    return r->shared || (r->act != NRD_DTYPE_F16 && r->act != NRD_DTYPE_BF16) ? w->dtype : r->act;
}

/* One row into its place in `data`. */
static void put_row(nrd_dtype to, const float *row, int64_t i, int64_t cols, void *data, float *scales)
{
    if (scales) {
        scales[i] = nrd_quantize_row_scaled(to, row, (uint8_t *)data + i * cols, cols);
        return;
    }
    for (int64_t k = 0; k < cols; k++) {
        if (to == NRD_DTYPE_F32) {
            ((float *)data)[i * cols + k] = row[k];
        } else {
            ((uint16_t *)data)[i * cols + k] = to == NRD_DTYPE_F16 ? nrd_f32_to_f16(row[k]) : nrd_f32_to_bf16(row[k]);
        }
    }
}

static nrd_error *converted(const nrd_weight *w, nrd_dtype to, nrd_extra_weight *out, nrd_weight *src)
{
    const bool scaled = is_bytes(to);
    size_t n = 0, bytes = 0;

    *src = *w;
    if (w->dtype == to) {
        return NULL;
    }
    if (!nrd_size_mul((size_t)w->rows, (size_t)w->cols, &n) || !nrd_size_mul(n, nrd_dtype_block_bytes(to), &bytes)) {
        return nrd_error_no_memory();
    }
    void *data = nrd_aligned_zalloc(64, bytes);
    float *row = malloc((size_t)w->cols * sizeof *row), *scales = scaled ? malloc((size_t)w->rows * sizeof *scales) : NULL;
    if (!data || !row || (scaled && !scales)) {
        free(data);
        free(row);
        free(scales);
        return nrd_error_no_memory();
    }
    for (int64_t i = 0; i < w->rows; i++) {
        nrd_weight_row(w, i, row);
        put_row(to, row, i, w->cols, data, scales);
    }
    free(row);
    out->host = data;
    out->scales = scales;
    src->dtype = to;
    src->layout = NRD_LAYOUT_ROWS;
    src->data = data;
    src->scales = scales;
    src->scale = 1;
    src->data_bytes = bytes;
    return NULL;
}

static nrd_error *load(nrd_runner *r, const nrd_weight *from, bool is_linear, nrd_dtype quantize, const char *what, nrd_extra_weight *out)
{
    nrd_weight src;
    if (quantize == NRD_DTYPE_F8_E4M3 && r->shared) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: a CPU has no products of fp8: use the quantization int8", what);
    }
    NRD_TRY(converted(from, wanted_dtype(r, from, is_linear, quantize), out, &src));
    if (!is_linear && src.rows == 1) { /* to a device a vector is a column, as an engine has it */
        src.rows = src.cols;
        src.cols = 1;
    }
    NRD_TRY(nrd_error_wrap(r->dev->ops->weight_load(r->stream, &src, is_linear, &out->w, &out->owned), "%s", what));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    if (out->owned) { /* the device has a copy of its own, but for scales that it may read where they are */
        free(out->host);
        out->host = NULL;
    }
    out->bytes = src.data_bytes;
    return NULL;
}

nrd_error *nrd_extra_weight_load(nrd_runner *r, const nrd_weight *from, const char *what, nrd_extra_weight *out)
{
    return load(r, from, false, NRD_DTYPE_NONE, what, out);
}

void nrd_extra_weight_unload(nrd_runner *r, nrd_extra_weight *w)
{
    if (w->owned) {
        r->dev->ops->weight_unload(r->dev, &w->w);
    }
    free(w->host);
    free(w->scales);
    *w = (nrd_extra_weight){0};
}

nrd_error *nrd_extra_product_add(nrd_runner *r, const nrd_weight *weight, const nrd_weight *bias, const char *what,
                                 nrd_extra_product *x)
{
    nrd_product *p = &x->product;
    const int32_t i = p->n;
    size_t row_bytes = 0;
    bool scale = false;

    NRD_ASSERT(i < NRD_LINEAR_MAX_PARTS, "products have few parts");
    NRD_TRY(load(r, weight, true, x->quantize, what, &x->weight[i]));
    p->w[i] = &x->weight[i].w;
    p->n++;
    p->cols = weight->cols;
    p->rows += weight->rows;
    const nrd_dtype in = r->dev->ops->linear_input(r->dev, p->w[i], r->act, &row_bytes, &scale);
    if (i == 0) {
        p->in_dtype = in;
        p->in_row_bytes = row_bytes;
        p->in_row_scale = scale;
    } else if (in != p->in_dtype && !r->shared) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: matrices that are multiplied as one have the types %s and %s; give all of them one type", what,
                          nrd_dtype_name(p->w[0]->dtype), nrd_dtype_name(p->w[i]->dtype));
    } else if (in != p->in_dtype) { /* plain activations suit all parts */
        p->in_dtype = r->act;
        p->in_row_bytes = (size_t)p->cols * r->act_bytes;
        p->in_row_scale = false;
    }
    if (bias) {
        NRD_TRY(nrd_extra_weight_load(r, bias, what, &x->bias[i]));
        p->bias[i] = &x->bias[i].w;
    }
    return NULL;
}

void nrd_extra_product_unload(nrd_runner *r, nrd_extra_product *p)
{
    for (int i = 0; i < NRD_LINEAR_MAX_PARTS; i++) {
        nrd_extra_weight_unload(r, &p->weight[i]);
        nrd_extra_weight_unload(r, &p->bias[i]);
    }
    p->product = (nrd_product){0};
}

uint64_t nrd_extra_product_bytes(const nrd_extra_product *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < NRD_LINEAR_MAX_PARTS; i++) {
        sum += p->weight[i].bytes + p->bias[i].bytes;
    }
    return sum;
}

nrd_extra_rows nrd_extra_rows_for(const nrd_runner *r, const nrd_product *p, const nrd_extra_input *in, void *plain)
{
    return (nrd_extra_rows){
        .data = p->in_dtype == r->act ? plain : in->rows,
        .dtype = p->in_dtype,
        .scale = p->in_row_scale ? in->row_scale : NULL,
    };
}

static nrd_error *multiply(nrd_runner *r, const nrd_product *p, const void *x, const float *scale, int32_t n, void *y, nrd_dtype y_dtype,
                           float softcap)
{
    nrd_linear_args l = nrd_run_product_args(r, p, x, n, y, y_dtype, softcap);
    l.x_row_scale = scale;
    return r->dev->ops->linear(r->stream, &l);
}

nrd_error *nrd_extra_multiply_rows(nrd_runner *r, const nrd_product *p, const nrd_extra_rows *x, int32_t n, void *y, nrd_dtype y_dtype,
                                   float softcap)
{
    return multiply(r, p, x->data, x->scale, n, y, y_dtype, softcap);
}

nrd_error *nrd_extra_multiply(nrd_runner *r, const nrd_product *p, const nrd_extra_input *in, const void *x, int32_t n, void *y,
                              nrd_dtype y_dtype, float softcap)
{
    const nrd_extra_rows rows = nrd_extra_rows_for(r, p, in, NULL);
    const nrd_act_args a = {
        .kind = NRD_ACT_NONE,
        .n_tokens = n,
        .inter = (int32_t)p->cols,
        .x = x,
        .act_dtype = r->act,
        .out = rows.data,
        .out_dtype = rows.dtype,
        .out_row_scale = rows.scale,
    };
    if (!rows.data) {
        return multiply(r, p, x, NULL, n, y, y_dtype, softcap);
    }
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    return nrd_extra_multiply_rows(r, p, &rows, n, y, y_dtype, softcap);
}

nrd_error *nrd_extra_states(nrd_runner *r, const int32_t *tokens, int32_t n, void *out)
{
    const nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = r->cfg.max_tokens,
        .hidden = r->spec->hidden,
        .residual = r->x,
        .weight = r->w.final_norm,
        .bias = r->w.final_norm_bias,
        .row_ids = r->row_ids,
        .n_rows = n,
        .out = out,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };
    memcpy(r->row_ids_host, tokens, (size_t)n * sizeof *tokens);
    if (!r->shared) {
        NRD_TRY(r->dev->ops->copy(r->stream, r->row_ids, r->row_ids_host, (size_t)n * sizeof *tokens));
    }
    return r->dev->ops->norm(r->stream, &a);
}

nrd_error *nrd_extra_sample_rows(nrd_runner *r, size_t n, const char *pool, nrd_sample_row **out_mem, nrd_sample_row **out_host)
{
    nrd_error *err = NULL;
    void *p = NULL;

    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof **out_mem, pool));
    *out_mem = p;
    NRD_NEW_GOTO(*out_host, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        (*out_host)[i] = (nrd_sample_row){.top_k = 1, .repetition_penalty = 1, .flags = NRD_SAMPLE_NO_UPDATE, .end_id = -1};
    }
    return nrd_run_upload(r, p, *out_host, n * sizeof **out_host);
fail:
    return err;
}

nrd_error *nrd_extra_add_silu(nrd_runner *r, void *x, void *y, int32_t n, int32_t cols)
{
    const nrd_act_args silu = {
        .kind = NRD_ACT_SILU,
        .n_tokens = n,
        .inter = cols,
        .x = y,
        .act_dtype = r->act,
        .out = y,
        .out_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->act(r->stream, &silu));
    return nrd_extra_add(r, x, y, n, cols);
}

nrd_error *nrd_extra_add(nrd_runner *r, void *x, const void *y, int32_t n, int32_t cols)
{
    const nrd_norm_args sum = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n,
        .hidden = cols,
        .delta = y,
        .residual = x,
        .act_dtype = r->act,
    };
    return r->dev->ops->norm(r->stream, &sum);
}
