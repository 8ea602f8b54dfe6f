/* SPDX-License-Identifier: Apache-2.0
 * Streamed layer number k lives in place k % 2. Its copy waits until layer k - 2 is computed, and layer k until its copy is
 * there: both by events between the step's stream and one that only copies. A step begins with the first two copies, which
 * wait for all steps before it, and ends when all copies are waited for; so it can be recorded as a whole. */
#include "engine/run/weight_stream.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES = 2, ALIGN = 256 /* as devices lay weights beside each other: products of neighbours run as one */ };
static const char host_pool[] = "streamed weights";

typedef struct streamed_weight {
    nrd_weight *w;
    size_t at; /* in its layer's bytes */
    int32_t number;
} streamed_weight;

typedef struct streamed_layer {
    void *host;
    size_t bytes;
} streamed_layer;

struct nrd_weight_stream {
    nrd_device *dev;
    nrd_stream *copies;
    nrd_event *begun, *there[PLACES], *computed[PLACES];
    void *place[PLACES];
    int32_t n;
    int32_t *number_of; /* of each layer; -1: it is not streamed */
    streamed_layer *layers; /* [n] */
    streamed_weight *weights;
    size_t n_weights;
};

static bool is_spread_to(int64_t i, int64_t n, int64_t n_layers)
{
    return (i + 1) * n / n_layers > i * n / n_layers;
}

int32_t nrd_weight_stream_choose(const uint64_t *layer_bytes, int32_t n_layers, uint64_t total_bytes, double share, bool *streamed)
{
    int32_t n = 0;
    double on_device = (double)total_bytes;

    memset(streamed, 0, (size_t)n_layers * sizeof *streamed);
    while (n < n_layers && on_device > (1 - share) * (double)total_bytes) {
        uint64_t largest = 0;
        n++;
        on_device = (double)total_bytes;
        for (int32_t i = 0; i < n_layers; i++) {
            streamed[i] = is_spread_to(i, n, n_layers);
            on_device -= streamed[i] ? (double)layer_bytes[i] : 0;
            largest = streamed[i] && layer_bytes[i] > largest ? layer_bytes[i] : largest;
        }
        on_device += (double)largest * (n < PLACES ? n : PLACES);
    }
    return n;
}

nrd_error *nrd_weight_stream_new(nrd_weight_stream **out, nrd_device *dev, int32_t n_layers)
{
    const nrd_device_ops *ops = dev->ops;
    nrd_weight_stream *s = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    s = calloc(1, sizeof *s);
    if (!s) {
        return nrd_error_no_memory();
    }
    s->dev = dev;
    NRD_NEW_GOTO(s->number_of, n_layers, err, fail);
    NRD_NEW_GOTO(s->layers, n_layers, err, fail);
    for (int32_t i = 0; i < n_layers; i++) {
        s->number_of[i] = -1;
    }
    NRD_TRY_GOTO(ops->stream_new(dev, &s->copies), err, fail);
    NRD_TRY_GOTO(ops->event_new(dev, &s->begun), err, fail);
    for (int k = 0; k < PLACES; k++) {
        NRD_TRY_GOTO(ops->event_new(dev, &s->there[k]), err, fail);
        NRD_TRY_GOTO(ops->event_new(dev, &s->computed[k]), err, fail);
    }
    *out = s;
    return NULL;

fail:
    nrd_weight_stream_free(s);
    return err;
}

nrd_error *nrd_weight_stream_take(nrd_weight_stream *s, nrd_stream *on, int32_t layer, nrd_weight *const *weights, int32_t n)
{
    const nrd_device_ops *ops = s->dev->ops;
    streamed_layer *y = &s->layers[s->n];
    const size_t first = s->n_weights;

    streamed_weight *grown = realloc(s->weights, (first + (size_t)n + 1) * sizeof *grown); /* n may be 0 */
    if (!grown) {
        return nrd_error_no_memory();
    }
    s->weights = grown;
    *y = (streamed_layer){0};
    for (int32_t i = 0; i < n; i++) {
        grown[first + (size_t)i] = (streamed_weight){.w = weights[i], .at = y->bytes, .number = s->n};
        y->bytes += ((size_t)weights[i]->data_bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    NRD_TRY(ops->alloc(s->dev, &y->host, NRD_MEM_HOST, y->bytes ? y->bytes : ALIGN, host_pool));
    s->number_of[layer] = s->n++; /* y->host is freed from here on */
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(ops->copy(on, (char *)y->host + grown[first + (size_t)i].at, weights[i]->data, (size_t)weights[i]->data_bytes));
    }
    NRD_TRY(ops->stream_sync(on));
    s->n_weights += (size_t)n;
    for (int32_t i = n - 1; i >= 0; i--) { /* the last one first: a device gives memory back like a stack */
        nrd_weight data = *weights[i];
        data.scales = NULL; /* they stay */
        ops->weight_unload(s->dev, &data);
        weights[i]->data = NULL;
    }
    return NULL;
}

static nrd_error *fetch(nrd_weight_stream *s, int32_t number)
{
    const streamed_layer *y = &s->layers[number];
    NRD_TRY(s->dev->ops->copy(s->copies, s->place[number % PLACES], y->host, y->bytes));
    return s->dev->ops->event_record(s->copies, s->there[number % PLACES]);
}

nrd_error *nrd_weight_stream_finish(nrd_weight_stream *s, nrd_stream *on)
{
    size_t largest = 0;

    for (int32_t k = 0; k < s->n; k++) {
        largest = s->layers[k].bytes > largest ? s->layers[k].bytes : largest;
    }
    for (int32_t k = 0; k < PLACES && k < s->n && largest > 0; k++) {
        NRD_TRY(s->dev->ops->alloc(s->dev, &s->place[k], NRD_MEM_DEVICE, largest, "weights"));
    }
    for (size_t i = 0; i < s->n_weights; i++) {
        const streamed_weight *x = &s->weights[i];
        x->w->data = (const char *)s->place[x->number % PLACES] + x->at;
    }
    NRD_TRY(nrd_weight_stream_begin(s, on)); /* kernels are tried on numbers, not on what was there before */
    return s->dev->ops->stream_sync(s->copies);
}

void nrd_weight_stream_free(nrd_weight_stream *s)
{
    if (!s) {
        return;
    }
    const nrd_device_ops *ops = s->dev->ops;
    if (s->copies) {
        nrd_error_free(ops->stream_sync(s->copies));
    }
    for (size_t i = 0; i < s->n_weights; i++) {
        s->weights[i].w->data = NULL;
    }
    for (int k = 0; k < PLACES; k++) {
        if (s->place[k]) {
            ops->free(s->dev, NRD_MEM_DEVICE, s->place[k]);
        }
        ops->event_free(s->there[k]);
        ops->event_free(s->computed[k]);
    }
    for (int32_t k = 0; k < s->n; k++) {
        ops->free(s->dev, NRD_MEM_HOST, s->layers[k].host);
    }
    ops->event_free(s->begun);
    if (s->copies) {
        ops->stream_free(s->copies);
    }
    free(s->number_of);
    free(s->layers);
    free(s->weights);
    free(s);
}

nrd_error *nrd_weight_stream_begin(nrd_weight_stream *s, nrd_stream *on)
{
    if (!s) {
        return NULL;
    }
    NRD_TRY(s->dev->ops->event_record(on, s->begun));
    NRD_TRY(s->dev->ops->stream_wait(s->copies, s->begun));
    for (int32_t k = 0; k < PLACES && k < s->n; k++) {
        NRD_TRY(fetch(s, k));
    }
    return NULL;
}

nrd_error *nrd_weight_stream_enter(nrd_weight_stream *s, nrd_stream *on, int32_t layer)
{
    return s && s->number_of[layer] >= 0 ? s->dev->ops->stream_wait(on, s->there[s->number_of[layer] % PLACES]) : NULL;
}

nrd_error *nrd_weight_stream_leave(nrd_weight_stream *s, nrd_stream *on, int32_t layer)
{
    const int32_t number = s ? s->number_of[layer] : -1;

    if (number < 0 || number + PLACES >= s->n) {
        return NULL;
    }
    NRD_TRY(s->dev->ops->event_record(on, s->computed[number % PLACES]));
    NRD_TRY(s->dev->ops->stream_wait(s->copies, s->computed[number % PLACES]));
    return fetch(s, number + PLACES);
}
