/* SPDX-License-Identifier: Apache-2.0
 * engine/run/loader.h - weights of an engine, one at a time, into an nrd_weights.
 *
 * Purpose   By the names of the table of needs (model/needs.h), which says where a model has them: what is not there stays NULL. Presence
 *           and shapes were checked before (nrd_needs_check). Products are made of parts: their weights one below the other, and
 *           the type of input that suits all parts.
 * Owner     The thread that loads. The weights own what is loaded, and copies on the host.
 * Errors    Those of the device; INVALID_ARG with the weight's name.
 */
#ifndef NRD_ENGINE_RUN_LOADER_H
#define NRD_ENGINE_RUN_LOADER_H

#include "engine/run/weights.h"

typedef struct nrd_loaded {
    nrd_weight w;
    bool owned; /* by the device */
    void *host; /* dequantized copy, or NULL */
} nrd_loaded;

typedef struct nrd_loader {
    nrd_weights *ws;
    nrd_stream *stream;
    const nrd_engine *engine;
    const nrd_model_spec *spec;
    int32_t rank, n_layers, n_kv_layers;
    nrd_dtype kv_dtype;
    bool compute_f32;
    bool rounds_f32; /* weights of float32 get the type of activations */
} nrd_loader;

enum { NRD_LOADER_NAME = 128 /* bytes of a weight's full name */ };

/* layer: of this rank; 0 for what is no layer's. */
nrd_error *nrd_loader_get(nrd_loader *l, int32_t layer, const char *name, const nrd_weight **out);
/* The same in float32, whatever the engine has. */
nrd_error *nrd_loader_get_f32(nrd_loader *l, int32_t layer, const char *name, const nrd_weight **out);
/* By its full name, which the engine must have. */
nrd_error *nrd_loader_get_as(nrd_loader *l, const char *name, bool is_linear, const nrd_weight **out);
/* A vector by its full name, times a number. */
nrd_error *nrd_loader_get_times(nrd_loader *l, const char *name, float factor, const nrd_weight **out);
/* A float32 copy in host rows, with every scale applied. *out_host: owned, out->data. */
nrd_error *nrd_loader_dequantize(const nrd_weight *w, const char *name, void **out_host, nrd_weight *out);

/* One more part; bias NULL: products of this kind have none. */
nrd_error *nrd_loader_add_part(nrd_loader *l, nrd_product *p, int32_t layer, const char *weight, const char *bias);
/* Behind the last part. */
void nrd_loader_finish_product(nrd_loader *l, nrd_product *p);
/* A product of one part without bias. */
nrd_error *nrd_loader_product(nrd_loader *l, nrd_product *p, int32_t layer, const char *name);
/* A product of one part whose results are added up over the ranks: the first adds the bias, of experts the first of the ranks that have
 * them. */
nrd_error *nrd_loader_add_summed(nrd_loader *l, nrd_product *p, int32_t layer, const char *weight, const char *bias);
/* How a finished product's input is made, where the engine says so: an order, numbers, whether int8 weights want int8 (NRD_ORDER,
 * NRD_COLUMNS and NRD_INT8_INPUT behind `stem`, the product's name in a layer). */
nrd_error *nrd_loader_add_input(nrd_loader *l, nrd_product *p, int32_t layer, const char *stem);
/* One type of input for products that read the same: plain activations, where they want different ones. */
void nrd_loader_share_input(const nrd_loader *l, nrd_product *a, nrd_product *b);

/* weights_layer.c: all of a layer. Layers are loaded in their order. */
nrd_error *nrd_loader_layer(nrd_loader *l, int32_t i, nrd_layer *y);

#endif
