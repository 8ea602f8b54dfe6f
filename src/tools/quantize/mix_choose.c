/* SPDX-License-Identifier: Apache-2.0
 * Choosing the modules that get more bits. */
#include "tools/quantize/mix.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "base/progress.h"
#include "tools/quantize/gptq.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct part { /* the modules of a layer that one product has */
    int64_t n_weights;
    double error; /* of those, each counted by its size, if they are not wide */
    double power; /* of their results, behind a norm where one follows */
    double gain;  /* for a weight, of wide ones */
    nrd_qprobe probe;       /* the product's inputs, rounded */
    float *scales;          /* [cols] of them, owned; NULL: no input that can be rounded alone */
    double inputs, weights; /* of error, each counted by the size of modules */
    size_t at;
} part;

/* Of a weight in groups, with the group's scale and zero point; a row's scale is not counted. */
static double bits_of(const nrd_qgrid *g)
{
    return g->group > 0 ? g->bits + (16.0 + (g->symmetric ? 0 : g->bits)) / (double)g->group : g->bits;
}

/* What rounded inputs make the results of y be off by, as a share of a token's, the mean of the tokens that were kept. What columns
 * are off by is taken to be independent. squares[cols]: of the weights' columns. */
static double input_error(const nrd_qscheme *s, const nrd_qinput *in, const double *squares)
{
    double sum = 0;

    for (int64_t t = 0; t < in->n_rows; t++) {
        const float *x = in->rows + t * in->cols;
        double off = 0, all = 0;
        float most = 0;
        for (int64_t c = 0; c < in->cols; c++) {
            most = fmaxf(most, s->static_inputs ? in->max_abs[c] : fabsf(x[c]));
        }
        for (int64_t c = 0; c < in->cols && most > 0; c++) {
            const double by = (double)(nrd_qprobe_number(s->inputs, x[c], nrd_qprobe_step(s->inputs, most)) - x[c]);
            off += squares[c] * by * by;
            all += squares[c] * (double)x[c] * (double)x[c];
        }
        sum += all > 0 ? off / all : 0;
    }
    return in->n_rows > 0 ? sum / (double)in->n_rows : 0;
}

static nrd_error *add_input_error(nrd_qresult_module *y, const nrd_qscheme *s, const nrd_qinput *in)
{
    nrd_error *err = NULL;
    double *squares = NULL;
    float *row = NULL;

    NRD_NEW_GOTO(squares, y->rows.cols, err, done);
    NRD_NEW_GOTO(row, y->rows.cols, err, done);
    for (int64_t r = 0; r < y->rows.rows; r++) {
        nrd_qgrid_row(&y->grid, &y->rows, r, row);
        for (int64_t c = 0; c < y->rows.cols; c++) {
            squares[c] += (double)row[c] * (double)row[c];
        }
    }
    y->error += input_error(s, in, squares);
done:
    free(squares);
    free(row);
    return err;
}

/* Where a norm stands behind a block (Gemma), a token is added as large as the norm's weights are, squared and summed, whatever the block's
 * results are. *out 0: there is no such norm. */
static nrd_error *normed_power(const nrd_qmodules *q, int32_t layer, const char *block, double *out)
{
    nrd_error *err = NULL;
    char name[96];
    const nrd_src_tensor *src = NULL;
    double one = 0;
    float *weights = NULL;

    *out = 0;
    snprintf(name, sizeof name, "transformer.layers.%d.post_%s_layernorm.weight", layer, block);
    for (size_t i = 0; i < nrd_plan_n_tensors(q->plan) && !src; i++) {
        const nrd_plan_tensor *t = nrd_plan_at(q->plan, i);
        src = !strcmp(t->name, name) && t->n_parts == 1 ? t->parts[0].src : NULL;
        one = t->flags & NRD_RULE_ADD_ONE ? 1 : 0;
    }
    if (!src || src->packed || src->n_dims != 1) {
        return NULL;
    }
    NRD_NEW_GOTO(weights, src->dims[0], err, done);
    for (int64_t i = 0; nrd_dequantize_row(src->dtype, src->data, weights, src->dims[0]) && i < src->dims[0]; i++) {
        *out += ((double)weights[i] + one) * ((double)weights[i] + one);
    }
done:
    free(weights);
    return err;
}

/* parts[NRD_PRODUCTS] of a layer: what its blocks add where norms stand behind them. */
static nrd_error *take_norms(part *parts, const nrd_qmodules *q, int32_t layer, const nrd_qinput *inputs)
{
    static const struct {
        nrd_exec_product end;
        const char *name;
    } blocks[] = {{NRD_PRODUCT_DENSE, "attention"}, {NRD_PRODUCT_DOWN, "feedforward"}};
    int64_t n_tokens = 0; /* each block sees all, experts and what is excluded tell none */

    for (int p = 0; p < NRD_PRODUCTS; p++) {
        n_tokens = inputs[p].n_tokens > n_tokens ? inputs[p].n_tokens : n_tokens;
    }
    for (int b = 0; b < 2; b++) {
        double one = 0;
        NRD_TRY(normed_power(q, layer, blocks[b].name, &one));
        if (one > 0 && n_tokens > 0) {
            parts[blocks[b].end].power = one * (double)n_tokens;
        }
    }
    return NULL;
}

/* The scales that were taken off inputs, by the largest number of each column before and behind. */
static nrd_error *take_scales(part *p, const float *before, const nrd_qinput *in, bool one_step)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(p->scales, in->cols, err, fail);
    for (int64_t c = 0; c < in->cols; c++) {
        p->scales[c] = in->max_abs[c] > 0 ? before[c] / in->max_abs[c] : 1;
        p->probe.most = one_step ? fmaxf(p->probe.most, in->max_abs[c]) : 0;
    }
    p->probe.scales = p->scales;
fail:
    return err;
}

/* What a product's rounded inputs cost the model says itself: the divergence of a few texts, with one product's inputs rounded at a time.
 * That knows what the blocks behind make of it. Weights follow as the estimate has them beside inputs. */
static nrd_error *probe(part *parts, size_t n, nrd_qcalibration *c)
{
    nrd_error *err = NULL;
    nrd_qmeasure m = {0};
    const nrd_qtexts few = nrd_qcalibration_few(c);
    nrd_progress *bar = nrd_progress_new_of("probing", n, "products");

    NRD_TRY_GOTO(nrd_qmeasure_init(&m, &few), err, done);
    NRD_TRY_GOTO(nrd_qcalibration_probe(c, NULL, &m), err, done);
    for (size_t i = 0; i < n; i++) {
        part *p = &parts[i];
        if (p->n_weights > 0) {
            m.divergence = 0;
            NRD_TRY_GOTO(nrd_qcalibration_probe(c, &p->probe, &m), err, done);
            const double all = p->inputs > 0 ? 1 + p->weights / p->inputs : 1;
            p->gain = m.divergence / (double)m.n * all / (double)p->n_weights;
        }
        nrd_progress_add(bar, 1);
    }
done:
    nrd_progress_done(bar);
    nrd_qmeasure_fini(&m);
    return err;
}

static bool can_probe(const part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (parts[i].n_weights > 0 && !parts[i].scales) {
            return false;
        }
    }
    return true;
}

/* How much of what weights to the nearest are off by goes away with the other format. */
static double weights_share(const nrd_qsettings *s)
{
    return s->gptq ? NRD_GPTQ_SHARE : 1;
}

/* What rounding to the nearest does to the modules of a layer. */
static nrd_error *measure_layer(part *parts, nrd_qmath *m, const nrd_qsettings *s, const nrd_qmodules *q,
                                nrd_qcalibration *c, int32_t layer, bool rounds_inputs)
{
    nrd_error *err = NULL;
    nrd_qresult r = {0};
    nrd_qinput *inputs = NULL;
    nrd_qcache *cache = NULL; /* its scales do not depend on the choice */
    nrd_qsettings nearest = *s;

    nearest.scheme.method = rounds_inputs && s->scheme.method == NRD_QMETHOD_SMOOTH ? NRD_QMETHOD_SMOOTH : NRD_QMETHOD_RTN;
    nearest.gptq = false;
    nearest.mix = NULL;
    float *before[NRD_PRODUCTS] = {0};
    NRD_TRY(nrd_qcalibration_layer(c, layer, &inputs, &cache));
    for (int p = 0; rounds_inputs && p < NRD_PRODUCTS; p++) {
        if (inputs[p].n_tokens > 0) {
            NRD_NEW_GOTO(before[p], inputs[p].cols, err, done);
            memcpy(before[p], inputs[p].max_abs, (size_t)inputs[p].cols * sizeof **before);
        }
    }
    NRD_TRY_GOTO(nrd_qlayer_quantize(&r, m, &nearest, q, q->layers[layer].first, q->layers[layer].n, &q->layers[layer], inputs, NULL), err, done);
    for (size_t i = 0; i < r.n; i++) {
        nrd_qresult_module *y = &r.modules[i];
        const int product = nrd_qmix_product_of(y->module);
        if (product >= 0) {
            const int64_t n = y->rows.rows * y->rows.cols;
            if (rounds_inputs && y->module->input < NRD_PRODUCTS) {
                const int input = q->layers[layer].reads_as[y->module->input];
                const double weights = y->error * weights_share(s);
                y->error = weights;
                NRD_TRY_GOTO(add_input_error(y, &s->scheme, &inputs[input]), err, done);
                parts[product].weights += (double)n * weights;
                parts[product].inputs += (double)n * (y->error - weights);
                if (!parts[product].scales && before[input]) {
                    parts[product].probe = (nrd_qprobe){.layer = layer, .product = (nrd_exec_product)input, .how = s->scheme.inputs};
                    NRD_TRY_GOTO(take_scales(&parts[product], before[input], &inputs[input], s->scheme.static_inputs), err, done);
                }
            }
            parts[product].n_weights += n;
            parts[product].error += (double)n * y->error;
            parts[product].power += y->power;
        }
    }
    err = take_norms(parts, q, layer, inputs);
done:
    for (int p = 0; p < NRD_PRODUCTS; p++) {
        free(before[p]);
    }
    nrd_qresult_fini(&r);
    return err;
}

/* added: what blocks added before, squared. */
static void weigh_layer(part *parts, double *added)
{
    static const int ends[] = {NRD_PRODUCT_DENSE, NRD_PRODUCT_DOWN}; /* what a block adds */
    for (int b = 0; b < 2; b++) {
        const double power = parts[ends[b]].power;
        *added += power;
        for (int p = ends[b] - 1; p <= ends[b]; p++) {
            if (parts[p].n_weights > 0) {
                const double share = *added > 0 && power > 0 ? power / *added : 1;
                const double n = (double)parts[p].n_weights;
                parts[p].gain = parts[p].error / n * share / n;
            }
        }
    }
}

static int by_gain(const void *a, const void *b)
{
    const part *x = a, *y = b;
    return x->gain > y->gain ? -1 : x->gain < y->gain ? 1 : x->at < y->at ? -1 : x->at > y->at;
}

static nrd_error *spend(nrd_qmix *out, part *parts, size_t n, const nrd_qsettings *s, const nrd_qmodules *q, double bits)
{
    const double narrow = bits_of(&s->scheme.grid), wide = 2 * s->scheme.grid.bits; /* of weights, or of inputs */
    double all = 0, used = 0;

    if (bits < narrow) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--auto_quantize_bits %g: %s alone has %.3f bits a weight, with its scales; ask "
                          "for more", bits, s->scheme.name, narrow);
    }
    for (size_t i = 0; i < q->n; i++) {
        all += (double)q->modules[i].rows * (double)q->modules[i].cols;
    }
    used = all * narrow;
    qsort(parts, n, sizeof *parts, by_gain);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].n_weights == 0) {
            continue;
        }
        out->n++;
        const double extra = (double)parts[i].n_weights * (wide - narrow);
        if (used + extra <= bits * all) {
            used += extra;
            out->wide[parts[i].at] = true;
            out->n_wide++;
        }
    }
    out->bits = all > 0 ? used / all : 0;
    return NULL;
}

nrd_error *nrd_qmix_choose(nrd_qmix *out, nrd_qmath *m, const nrd_qsettings *s, const nrd_qmodules *q, nrd_qcalibration *c,
                           double bits)
{
    nrd_error *err = NULL;
    const size_t n = (size_t)q->n_layers * NRD_PRODUCTS;
    double added = 0;
    part *parts = NULL;
    nrd_progress *bar = NULL;

    const bool rounds_inputs = s->scheme.grid.bits == 8 && s->scheme.inputs != NRD_QROUND_NOT;
    *out = (nrd_qmix){.wide_bits = s->scheme.grid.bits == 4 || s->mixes_inputs ? 8 : 16};
    NRD_NEW_GOTO(out->wide, n, err, done);
    NRD_NEW_GOTO(parts, n, err, done);
    bar = nrd_progress_new_of("measuring", (uint64_t)q->n_layers, "layers");
    for (int32_t layer = 0; layer < q->n_layers; layer++) {
        part *here = parts + (size_t)layer * NRD_PRODUCTS;
        NRD_TRY_GOTO(measure_layer(here, m, s, q, c, layer, rounds_inputs), err, done);
        weigh_layer(here, &added);
        nrd_progress_add(bar, 1);
    }
    for (size_t i = 0; i < n; i++) {
        parts[i].at = i;
    }
    if (rounds_inputs && can_probe(parts, n)) {
        NRD_TRY_GOTO(probe(parts, n, c), err, done);
    }
    if (rounds_inputs) {
        nrd_qcalibration_forget(c); /* scales have divided its inputs */
    }
    err = spend(out, parts, n, s, q, bits);
done:
    if (bar) {
        nrd_progress_done(bar);
    }
    for (size_t i = 0; parts && i < n; i++) {
        free(parts[i].scales);
    }
    free(parts);
    if (err) {
        nrd_qmix_fini(out);
    }
    return err;
}
