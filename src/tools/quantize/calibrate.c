/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/calibrate.h"

#include "base/mem.h"
#include "base/progress.h"
#include "nereid/executor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct nrd_qcalibration {
    nrd_exec *exec;
    const nrd_qmodules *modules;
    const nrd_qtexts *texts;
    nrd_qmath *math;
    nrd_qinput *inputs;   /* [n_layers, n_inputs] */
    int64_t *cols;        /* [n_layers, n_inputs] of those that a module reads; else 0 */
    nrd_qcache *caches;   /* [n_layers], of all since the first pass; NULL: not kept */
    bool keeps_inputs, keeps_rows;
    int32_t first, end;   /* layers whose inputs are there, or are being collected */
    double room;          /* bytes of a pass's statistics */
    int32_t at_a_time;
    bool probes;          /* nothing is collected */
    const nrd_qprobe *probe;
    nrd_error *err;       /* of the engine's thread, looked at when it has answered */
};

static int64_t first_of(const nrd_qcalibration *c, int32_t layer)
{
    return (int64_t)layer * c->modules->n_inputs;
}

static void on_input(void *user, int32_t layer, int32_t expert, nrd_exec_product product, int32_t n_tokens, int32_t cols,
                     const void *x, nrd_dtype dtype)
{
    nrd_qcalibration *c = user;
    const int input = expert < 0 ? (int)product : nrd_qinput_of_expert(expert, product);
    if (c->probes) {
        const bool is_it = c->probe && !c->err && expert < 0 && layer == c->probe->layer && product == c->probe->product;
        c->err = is_it ? nrd_qprobe_round(c->probe, c->math, (void *)(uintptr_t)x /* the engine's own memory */, dtype, n_tokens, cols) : c->err;
        return;
    }
    if (c->err || layer < c->first || layer >= c->end || c->cols[first_of(c, layer) + input] != cols) {
        return;
    }
    nrd_qinput *in = &c->inputs[first_of(c, layer) + input];
    in->keeps_rows = c->keeps_rows && expert < 0;
    c->err = nrd_qinput_add(in, c->math, x, dtype, n_tokens, cols);
}

/* Each pass shows the same: what a layer's caller has changed is not looked at again. */
static void on_cache(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values)
{
    nrd_qcalibration *c = user;
    if (c->end > 0 && layer >= c->first && !c->probes) {
        nrd_qcache_add(&c->caches[layer], n_tokens, stride, keys, values);
    }
}

static void find_cols(nrd_qcalibration *c)
{
    for (size_t i = 0; i < c->modules->n; i++) {
        const nrd_qmodule *m = &c->modules->modules[i];
        if (m->layer >= 0 && m->input != NRD_QINPUT_NONE) {
            const int input = m->input < NRD_PRODUCTS ? c->modules->layers[m->layer].reads_as[m->input] : m->input;
            c->cols[first_of(c, m->layer) + input] = m->cols;
        }
    }
}

nrd_error *nrd_qcalibration_open(nrd_qcalibration **out, const char *engine, const nrd_qmodules *modules,
                                 const nrd_qtexts *texts, nrd_qmath *math, int what, const char *device,
                                 int32_t n_threads)
{
    nrd_error *err = NULL;
    nrd_qcalibration *c = NULL;
    nrd_exec_config config;

    *out = NULL;
    NRD_NEW_GOTO(c, 1, err, fail);
    c->modules = modules;
    c->texts = texts;
    c->math = math;
    c->room = NRD_QCALIBRATION_BYTES;
    c->at_a_time = 1;
    NRD_NEW_GOTO(c->inputs, first_of(c, modules->n_layers), err, fail);
    NRD_NEW_GOTO(c->cols, first_of(c, modules->n_layers), err, fail);
    c->keeps_inputs = (what & NRD_QCALIBRATE_INPUTS) != 0;
    c->keeps_rows = (what & NRD_QCALIBRATE_ROWS) != 0;
    if (c->keeps_inputs) {
        find_cols(c);
    }
    if (what & NRD_QCALIBRATE_CACHE) {
        NRD_NEW_GOTO(c->caches, modules->n_layers, err, fail);
        for (int32_t i = 0; i < modules->n_layers; i++) {
            NRD_TRY_GOTO(nrd_qcache_init(&c->caches[i], nrd_plan_spec(modules->plan), i), err, fail);
        }
    }
    nrd_exec_config_init(&config);
    config.device = device;
    config.n_threads = n_threads;
    config.enable_chunked_context = true;
    config.max_batch_size = 1;
    config.max_beam_width = 1;
    config.max_num_tokens = 512;
    config.max_seq_len = nrd_qtexts_longest(texts) + 1; /* a token follows */
    config.on_product_input = c->keeps_inputs ? on_input : NULL;
    config.on_cache = c->caches ? on_cache : NULL;
    config.on_product_input_user = c;
    NRD_TRY_GOTO(nrd_exec_open(&c->exec, engine, &config), err, fail);
    *out = c;
    return NULL;

fail:
    nrd_qcalibration_close(c);
    return err;
}

static void forget(nrd_qcalibration *c, int32_t end)
{
    for (; c->first < end; c->first++) {
        for (int p = 0; p < c->modules->n_inputs; p++) {
            nrd_qinput_fini(&c->inputs[first_of(c, c->first) + p], c->math);
        }
    }
}

void nrd_qcalibration_forget(nrd_qcalibration *c)
{
    forget(c, c->end);
    c->first = c->end = 0;
}

void nrd_qcalibration_close(nrd_qcalibration *c)
{
    if (!c) {
        return;
    }
    nrd_exec_close(c->exec);
    if (c->inputs) {
        forget(c, c->end);
    }
    for (int32_t i = 0; c->caches && i < c->modules->n_layers; i++) {
        nrd_qcache_fini(&c->caches[i]);
    }
    free(c->caches);
    free(c->inputs);
    free(c->cols);
    nrd_error_free(c->err);
    free(c);
}

static double layer_bytes(const nrd_qcalibration *c, int32_t layer)
{
    const int64_t *cols = c->cols + first_of(c, layer);
    double sum = 0;
    for (int i = 0; i < c->modules->n_inputs; i++) {
        sum += nrd_qinput_bytes(c->math, cols[i], c->keeps_rows && i < NRD_PRODUCTS);
    }
    return sum;
}

/* One window through the network. Of its vectors the last one is asked for, which costs least. */
static nrd_error *read_window(nrd_exec *x, const int32_t *ids, int32_t n)
{
    nrd_exec_request r;
    nrd_exec_response *o = NULL;
    uint64_t id = 0;

    nrd_exec_request_init(&r);
    r.input_ids = ids;
    r.n_input_ids = n;
    r.pooling = NRD_POOLING_LAST;
    NRD_TRY(nrd_exec_enqueue(x, &r, &id));
    NRD_TRY(nrd_exec_await_id(x, id, &o, -1));
    nrd_error *err = o->error;
    o->error = NULL;
    nrd_exec_response_free(o);
    return err;
}

static nrd_error *run_pass(nrd_qcalibration *c)
{
    nrd_error *err = NULL;
    char label[40];
    const nrd_qtexts *t = c->texts;

    snprintf(label, sizeof label, "calibrating %d-%d", c->first, c->end - 1);
    nrd_progress *bar = nrd_progress_new_of(label, t->ids.n, "tokens");
    for (size_t i = 0; i < t->n && !err; i++) {
        const size_t n = t->starts[i + 1] - t->starts[i];
        err = read_window(c->exec, t->ids.ids + t->starts[i], (int32_t)n);
        if (!err && c->err) {
            err = c->err;
            c->err = NULL;
        }
        nrd_progress_add(bar, n);
    }
    nrd_progress_done(bar);
    return err;
}

enum { FEW = 1 }; /* SmolLM2, E4M3, 384 tokens: half of the products are within 0.65 and 0.97 of what a backward pass over others says */

int64_t nrd_qcalibration_widest(const nrd_qcalibration *c)
{
    int64_t most = 0;
    for (int64_t i = 0; i < first_of(c, c->modules->n_layers); i++) {
        most = c->cols[i] > most ? c->cols[i] : most;
    }
    return most;
}

double nrd_qcalibration_layer_bytes(const nrd_qcalibration *c)
{
    double most = 0;
    for (int32_t i = 0; i < c->modules->n_layers; i++) {
        most = fmax(most, layer_bytes(c, i));
    }
    return most;
}

void nrd_qcalibration_make_room(nrd_qcalibration *c, double bytes, int32_t at_a_time)
{
    c->at_a_time = at_a_time;
    c->room = bytes > NRD_QCALIBRATION_BYTES ? bytes : NRD_QCALIBRATION_BYTES;
}

void nrd_qcalibration_done(nrd_qcalibration *c, int32_t layer)
{
    for (int p = 0; p < c->modules->n_inputs; p++) {
        nrd_qinput_fini(&c->inputs[first_of(c, layer) + p], c->math);
    }
}

int32_t nrd_qcalibration_end(const nrd_qcalibration *c)
{
    return c->end;
}

nrd_qtexts nrd_qcalibration_few(const nrd_qcalibration *c)
{
    nrd_qtexts few = *c->texts;
    few.n = few.n < FEW ? few.n : FEW;
    few.ids.n = few.starts[few.n];
    return few;
}

nrd_error *nrd_qcalibration_probe(nrd_qcalibration *c, const nrd_qprobe *p, nrd_qmeasure *m)
{
    c->probes = true;
    c->probe = p;
    nrd_error *err = nrd_qmeasure_read(m, c->exec, 0, p != NULL, NULL);
    c->probes = false;
    if (!err) {
        err = c->err;
        c->err = NULL;
    }
    return err;
}

nrd_error *nrd_qcalibration_layer(nrd_qcalibration *c, int32_t layer, nrd_qinput **out, nrd_qcache **out_cache)
{
    if (layer < c->first || layer >= c->end) {
        double bytes = layer_bytes(c, layer);
        forget(c, c->end);
        c->first = layer;
        for (c->end = layer + 1; c->end < c->modules->n_layers; c->end++) {
            bytes += layer_bytes(c, c->end);
            if (bytes > c->room) {
                break;
            }
        }
        if (c->end < c->modules->n_layers && c->end - layer > c->at_a_time) {
            c->end -= (c->end - layer) % c->at_a_time;
        }
        NRD_TRY(run_pass(c));
    }
    for (int64_t i = first_of(c, layer); c->keeps_inputs && i < first_of(c, layer + 1); i++) {
        NRD_TRY(nrd_qinput_finish(&c->inputs[i], c->math));
    }
    *out = c->keeps_inputs ? &c->inputs[first_of(c, layer)] : NULL;
    *out_cache = c->caches ? &c->caches[layer] : NULL;
    return NULL;
}
