/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/layer_internal.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "tools/quantize/awq.h"
#include "tools/quantize/mix.h"
#include "tools/quantize/nearest.h"
#include "tools/quantize/refine.h"
#include "tools/quantize/smooth.h"

#include <math.h>
#include <stdlib.h>

static int read_as(const nrd_qwork *w, int input)
{
    return w->layer && input < NRD_PRODUCTS ? w->layer->reads_as[input] : input;
}

static const nrd_qinput *input_of(const nrd_qwork *w, int input)
{
    if (!w->inputs || input == NRD_QINPUT_NONE) {
        return NULL;
    }
    const nrd_qinput *in = &w->inputs[read_as(w, input)];
    return in->n_tokens > 0 ? in : NULL;
}

/* ---- scales ---- */

/* A norm keeps what its divided weights round to: s becomes what that divides by, and the products take the same. One that keeps its
 * weights less 1 would else be off by half a step of -1 where they are small. */
static nrd_error *fit_to_norm(nrd_qwork *w, const nrd_qmaker *maker, float *s)
{
    uint8_t kept[sizeof(float)];
    float *x = NULL;

    NRD_TRY(nrd_qwork_floats(w, maker->src, maker->turned, &x));
    for (int64_t r = 0; r < maker->n_rows; r++) {
        const float one = maker->add_one ? 1 : 0, is = one + x[maker->row0 + r];
        float to = is / s[r] - one;
        NRD_ASSERT(nrd_quantize_row(maker->src->dtype, &to, kept, 1) && nrd_dequantize_row(maker->src->dtype, kept, &to, 1),
                   "norms are of a float type");
        const float by = is / (one + to);
        s[r] = by > 0 && isfinite(by) ? by : s[r];
    }
    return NULL;
}

static nrd_error *choose_scales(nrd_qwork *w, const nrd_qgrid *g, const nrd_qproducts *p, const nrd_qinput *in, float *scales)
{
    double unused;
    const nrd_qsettings *t = w->settings;
    const nrd_qsmoothing how = {t->scheme.static_inputs, t->scheme.grid.row_group == NRD_QGRID_ALL, t->gptq};
    if (t->scheme.method != NRD_QMETHOD_SMOOTH) {
        return nrd_awq_scales(w->math, g, p, in, scales, &unused);
    }
    return t->alpha >= 0 ? nrd_smooth_scales(p, in, t->alpha, scales) : nrd_smooth_search(w->math, p, in, &how, scales, &unused);
}

/* The queries of a group share the values of one head, and what they are divided by. */
static nrd_error *share_heads(const nrd_model_spec *m, nrd_qproducts *p, int32_t **out)
{
    nrd_error *err = NULL;
    const int32_t d = m->head_dim, queries = m->n_heads / m->n_kv_heads;

    *out = NULL;
    if (queries == 1) {
        return NULL;
    }
    NRD_NEW_GOTO(*out, p->cols, err, fail);
    for (int32_t c = 0; c < p->cols; c++) {
        (*out)[c] = c / d / queries * d + c % d;
    }
    p->shared = *out;
    p->n_shared = (int64_t)m->n_kv_heads * d;
fail:
    return err;
}

typedef struct scaling {
    float *w;
    const float *by;
    int64_t cols;
} scaling;

static void scale_rows(void *user, int64_t from, int64_t to)
{
    const scaling *s = user;
    for (int64_t r = from; r < to; r++) {
        for (int64_t c = 0; c < s->cols; c++) {
            s->w[r * s->cols + c] *= s->by[c];
        }
    }
}

static nrd_error *scale_input(nrd_qwork *w, nrd_exec_product product)
{
    nrd_error *err = NULL;
    nrd_qproducts p = {0};
    const nrd_qgrid *grid = NULL; /* what reads one input has one (mix.h) */
    const nrd_qmaker *makers = w->layer->makers[product];
    nrd_qinput *in = &w->inputs[product];
    bool rounds = true;
    float *scales = NULL, *made = NULL;
    int32_t *shared = NULL;

    for (size_t i = 0; i < w->out->n && p.n < NRD_QPRODUCTS_MAX; i++) {
        const nrd_qresult_module *y = &w->out->modules[i];
        if (y->module->input < NRD_PRODUCTS && w->layer->reads_as[y->module->input] == (int)product) {
            grid = &y->grid;
            rounds = w->settings->scheme.method != NRD_QMETHOD_SMOOTH || !y->keeps_inputs;
            p.w[p.n] = y->w;
            p.rows[p.n++] = y->rows.rows;
            p.cols = y->rows.cols;
        }
    }
    if (p.n == 0 || !rounds || !makers[0].src || in->n_tokens == 0 || w->layer->reads_as[product] != (int)product ||
        p.n == NRD_QPRODUCTS_MAX) {
        return NULL;
    }
    if (product == NRD_PRODUCT_DENSE) {
        NRD_TRY_GOTO(share_heads(w->spec, &p, &shared), err, done);
    }
    if (makers[0].n_rows != (shared ? p.n_shared : p.cols)) {
        goto done; /* not what makes this input */
    }
    NRD_NEW_GOTO(scales, p.cols, err, done);
    NRD_NEW_GOTO(made, p.cols, err, done);
    NRD_TRY_GOTO(choose_scales(w, grid, &p, in, scales), err, done);
    for (int64_t c = 0; c < p.cols; c++) {
        made[shared ? shared[c] : c] = scales[c];
    }
    if (makers[0].is_vector) {
        NRD_TRY_GOTO(fit_to_norm(w, &makers[0], made), err, done);
        memcpy(scales, made, (size_t)p.cols * sizeof *scales); /* a norm's are not shared */
    }
    for (int i = 0; i < NRD_QMAKERS; i++) {
        NRD_TRY_GOTO(nrd_qwork_divide(w, &makers[i], made), err, done);
    }
    for (size_t i = 0; i < w->out->n; i++) {
        const nrd_qresult_module *y = &w->out->modules[i];
        if (y->module->input >= NRD_PRODUCTS || w->layer->reads_as[y->module->input] != (int)product) {
            continue;
        }
        scaling one = {w->out->modules[i].w, scales, p.cols};
        nrd_qmath_each(w->math, y->rows.rows, scale_rows, &one);
    }
    nrd_qinput_divide(in, w->math, scales);
    if (product == NRD_PRODUCT_DENSE && w->cache && w->cache->n_tokens > 0) {
        nrd_qcache_divide_values(w->cache, made);
    }
done:
    free(scales);
    free(made);
    free(shared);
    return err;
}

/* A product that is not quantized reads what its maker makes as well: then the maker stays as it is. */
static bool all_readers_are_here(const nrd_qwork *w, nrd_exec_product product)
{
    int n = 0;
    for (size_t i = 0; i < w->out->n; i++) {
        const int input = w->out->modules[i].module->input;
        n += input < NRD_PRODUCTS && w->layer->reads_as[input] == (int)product;
    }
    return n > 0 && n == w->layer->n_readers[product];
}

/* ---- rounding ---- */

static void round_rows(void *user, int64_t from, int64_t to)
{
    nrd_qresult_module *y = user;
    nrd_qrows_round(&y->grid, y->w + from * y->rows.cols, NULL, from, to - from, &y->rows);
}

static void round_blocks(void *user, int64_t from, int64_t to)
{
    nrd_qresult_module *y = user;
    nrd_qgrid_round_blocks(&y->grid, y->w, from, to, &y->rows);
}

static nrd_error *round_module(nrd_qwork *w, nrd_qresult_module *y, const nrd_qinput *in)
{
    const nrd_qmethod method = w->settings->scheme.method;

    if (in && (method == NRD_QMETHOD_GPTQ || method == NRD_QMETHOD_AWQ || w->settings->gptq)) {
        nrd_gptq *f = &w->factor;
        if (!f->factor.p) {
            NRD_TRY(nrd_gptq_init(f, w->math, in->gram, in->cols, w->settings->damping, w->settings->by_size));
        }
        NRD_TRY(nrd_gptq_round(f, w->math, &y->grid, y->w, y->rows.rows, &y->rows));
        return nrd_qrefine(w->math, &y->grid, y->w, in->gram, f->raise, &y->rows);
    }
    if (y->grid.row_group != 0) {
        nrd_qmath_each(w->math, nrd_qgrid_n_row_groups(&y->grid, &y->rows), round_blocks, y);
    } else {
        nrd_qmath_each(w->math, y->rows.rows, round_rows, y);
    }
    return NULL;
}

typedef struct comparison {
    nrd_qresult_module *y;
    double *before, *after; /* [rows] sums of squares */
} comparison;

/* y->w becomes what the rounded weights are off by. */
static void compare_rows(void *user, int64_t from, int64_t to)
{
    const comparison *x = user;
    const nrd_qresult_module *y = x->y;
    const int64_t cols = y->rows.cols;

    for (int64_t r = from; r < to; r++) {
        float *w = y->w + r * cols;
        double before = 0, after = 0;
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = r * y->rows.n_groups + (y->grid.group > 0 ? c / y->grid.group : 0);
            const float is = w[c];
            w[c] -= nrd_qgrid_number(&y->grid, y->rows.codes[r * cols + c], y->rows.scales[at], y->rows.zeros[at]);
            before += (double)(is * is);
            after += (double)(w[c] * w[c]);
        }
        x->before[r] = before;
        x->after[r] = after;
    }
}

/* y->w is changed. */
static nrd_error *measure_error(nrd_qwork *w, nrd_qresult_module *y, const nrd_qinput *in)
{
    nrd_error *err = NULL;
    const int64_t cols = y->rows.cols, rows = y->rows.rows;
    double all = 0, off = 0;
    comparison x = {.y = y};
    nrd_qmatrix gram = {0};

    NRD_NEW_GOTO(x.before, rows, err, done);
    NRD_NEW_GOTO(x.after, rows, err, done);
    if (in) {
        NRD_TRY_GOTO(nrd_qmatrix_load(w->math, in->gram, cols, cols, &gram), err, done);
        NRD_TRY_GOTO(nrd_qmath_error(w->math, y->w, rows, &gram, &all), err, done);
    }
    nrd_qmath_each(w->math, rows, compare_rows, &x);
    if (in) {
        NRD_TRY_GOTO(nrd_qmath_error(w->math, y->w, rows, &gram, &off), err, done);
    }
    for (int64_t r = 0; r < rows && !in; r++) {
        all += x.before[r];
        off += x.after[r];
    }
    y->error = all > 0 ? off / all : 0;
    y->power = all;
done:
    nrd_qmatrix_unload(w->math, &gram);
    free(x.before);
    free(x.after);
    return err;
}

/* NVFP4: the largest number of all that read an input gets the largest scale, 448, and the largest code, 6. They share the
 * unit, since others multiply them as one. */
static void choose_units(nrd_qwork *w, int input)
{
    float most = 0;
    for (size_t i = 0; i < w->out->n; i++) {
        const nrd_qresult_module *y = &w->out->modules[i];
        for (int64_t k = 0; read_as(w, y->module->input) == input && k < y->rows.rows * y->rows.cols; k++) {
            most = fabsf(y->w[k]) > most ? fabsf(y->w[k]) : most;
        }
    }
    for (size_t i = 0; i < w->out->n; i++) {
        if (read_as(w, w->out->modules[i].module->input) == input) {
            w->out->modules[i].grid.scale_unit = most > 0 ? most / (448.0f * 6.0f) : 1;
        }
    }
}

static nrd_error *choose_input_scale(const nrd_qwork *w, nrd_qresult_module *y, const nrd_qinput *in)
{
    float most = 0;
    if (!w->settings->scheme.static_inputs || y->keeps_inputs) {
        return NULL;
    }
    if (!in) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no token of the calibration reaches this module, so that its input has no "
                          "scale; calibrate with more text, or leave --static_inputs out");
    }
    for (int64_t c = 0; c < in->cols; c++) {
        most = in->max_abs[c] > most ? in->max_abs[c] : most;
    }
    y->input_scale = (most > 0 ? most : 1) / (w->settings->scheme.inputs == NRD_QROUND_E4M3 ? 448.0f : 127.0f);
    return NULL;
}

/* All modules that read an input, with one factor. */
static nrd_error *round_readers(nrd_qwork *w, int input)
{
    if (w->settings->scheme.grid.scale_dtype == NRD_DTYPE_F8_E4M3) {
        choose_units(w, input);
    }
    for (size_t i = 0; i < w->out->n; i++) {
        nrd_qresult_module *y = &w->out->modules[i];
        if (read_as(w, y->module->input) != input) {
            continue;
        }
        const nrd_qinput *in = input_of(w, input);
        NRD_TRY(nrd_error_wrap(round_module(w, y, in), "%s", y->module->name));
        NRD_TRY(nrd_error_wrap(choose_input_scale(w, y, in), "%s", y->module->name));
        NRD_TRY(measure_error(w, y, in));
        free(y->w);
        y->w = NULL;
    }
    nrd_gptq_fini(&w->factor, w->math);
    return NULL;
}

static nrd_error *begin(nrd_qwork *w, const nrd_qmodules *q, size_t first, size_t n)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(w->out->modules, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        if (nrd_qmix_leaves(w->settings->mix, &q->modules[first + i])) {
            continue; /* as if it were excluded */
        }
        nrd_qresult_module *y = &w->out->modules[w->out->n++];
        y->module = &q->modules[first + i];
        const bool is_wide = nrd_qmix_is_wide(w->settings->mix, y->module);
        y->grid = is_wide ? w->settings->wide : w->settings->scheme.grid;
        y->keeps_inputs = is_wide && w->settings->scheme.inputs != NRD_QROUND_NOT && !y->grid.is_float;
        if (y->grid.scale_dtype == NRD_DTYPE_NONE) {
            y->grid.scale_dtype = y->module->src->dtype;
        }
        NRD_TRY(nrd_qrows_init(&y->rows, &y->grid, y->module->rows, y->module->cols));
        NRD_TRY(nrd_qwork_read(w->math, y->module->src, y->module->turned, &y->w));
    }
fail:
    return err;
}

nrd_error *nrd_qlayer_quantize(nrd_qresult *out, nrd_qmath *m, const nrd_qsettings *s, const nrd_qmodules *q, size_t first,
                               size_t n, const nrd_qlayer *layer, nrd_qinput *inputs, nrd_qcache *cache)
{
    nrd_error *err = NULL;
    const nrd_model_spec spec = nrd_spec_of_layer(nrd_plan_spec(q->plan), layer ? (int32_t)(layer - q->layers) : 0);
    nrd_qwork w = {.math = m, .settings = s, .spec = &spec, .layer = layer, .inputs = layer ? inputs : NULL,
              .cache = layer ? cache : NULL, .out = out};
    const bool scales = s->scheme.method == NRD_QMETHOD_AWQ || s->scheme.method == NRD_QMETHOD_SMOOTH;

    *out = (nrd_qresult){0};
    NRD_TRY_GOTO(begin(&w, q, first, n), err, done);
    NRD_TRY_GOTO(nrd_qwork_even_cache(&w, !scales), err, done);
    for (int p = 0; p < NRD_PRODUCTS && scales && w.inputs; p++) {
        if (all_readers_are_here(&w, (nrd_exec_product)p)) {
            NRD_TRY_GOTO(scale_input(&w, (nrd_exec_product)p), err, done);
        }
    }
    for (int input = 0; input < q->n_inputs; input++) {
        NRD_TRY_GOTO(round_readers(&w, input), err, done);
    }
    NRD_TRY_GOTO(nrd_qwork_scale_cache(&w), err, done);
done:
    nrd_gptq_fini(&w.factor, m);
    if (err) {
        nrd_qresult_fini(out);
    }
    return err;
}

void nrd_qresult_fini(nrd_qresult *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->modules[i].w);
        nrd_qrows_fini(&r->modules[i].rows);
    }
    for (size_t i = 0; i < r->n_tensors; i++) {
        free(r->tensors[i].data);
    }
    free(r->modules);
    free(r->tensors);
    free(r->cache_scales);
    *r = (nrd_qresult){0};
}
