/* SPDX-License-Identifier: Apache-2.0
 * engine/run/weight_stream.h - weights that stay in host memory and come to the device layer by layer.
 *
 * Purpose   A model larger than the device's memory: some layers' matrices are kept in pinned host memory, and each step
 *           copies them into one of two places on the device, the next layer's while this one is computed. Vectors stay on
 *           the device.
 * Floor     A step takes at least the bytes of those layers over the rate of the bus.
 * Owner     The runner's thread. Borrows device and weights until freed; a weight's data points into one of the two
 *           places from finish on, so that recorded steps and all operations see the same addresses.
 * Errors    UNAVAILABLE: no memory, of the host or the device.
 * Source    "Weight streaming" of TensorRT 10 (gpu_weights_percent of its executor): the same share, the same use.
 */
#ifndef NRD_ENGINE_RUN_WEIGHT_STREAM_H
#define NRD_ENGINE_RUN_WEIGHT_STREAM_H

#include "base/error.h"
#include "nereid/device.h"

typedef struct nrd_weight_stream nrd_weight_stream;

/* Which layers must be streamed, so that `share` (0 to 1) of total_bytes is not on the device, the two places there counted
 * against it; all of them where that cannot be held. They are spread evenly, so that layers which are there give the bus time.
 * streamed[n_layers] is written. Returns how many. */
int32_t nrd_weight_stream_choose(const uint64_t *layer_bytes, int32_t n_layers, uint64_t total_bytes, double share, bool *streamed);

nrd_error *nrd_weight_stream_new(nrd_weight_stream **out, nrd_device *dev, int32_t n_layers) NRD_MUST_USE;
/* Moves weights of a layer, loaded on `on` one after the other and owned by the device, into host memory. Layers come in order. */
nrd_error *nrd_weight_stream_take(nrd_weight_stream *s, nrd_stream *on, int32_t layer, nrd_weight *const *weights, int32_t n) NRD_MUST_USE;
/* Behind the last take: makes the places; the weights can be used from here on. */
nrd_error *nrd_weight_stream_finish(nrd_weight_stream *s, nrd_stream *on) NRD_MUST_USE;
/* Takes the weights' data from them, and frees what it is. Nothing is under way. NULL is fine. */
void nrd_weight_stream_free(nrd_weight_stream *s);

/* A step on `on`: begin, and around each layer's operations enter and leave, of all layers in order. NULL: nothing is done. */
nrd_error *nrd_weight_stream_begin(nrd_weight_stream *s, nrd_stream *on) NRD_MUST_USE;
nrd_error *nrd_weight_stream_enter(nrd_weight_stream *s, nrd_stream *on, int32_t layer) NRD_MUST_USE;
nrd_error *nrd_weight_stream_leave(nrd_weight_stream *s, nrd_stream *on, int32_t layer) NRD_MUST_USE;

#endif
