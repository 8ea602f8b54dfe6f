/* SPDX-License-Identifier: Apache-2.0
 * executor/dense.h - small products on the host, in float32: heads for labels, and what makes a vector of a state.
 *
 * Purpose   Weights of an engine as float32, one product, activations by name. Sums run in lanes of their own, which compilers
 *           turn into vectors; a product of 768 x 768 takes about 0.1 ms.
 * Owner     Pure functions, any thread; the caller frees what nrd_dense_take gives.
 * Errors    INVALID_ARG names the weight.
 */
#ifndef NRD_EXECUTOR_DENSE_H
#define NRD_EXECUTOR_DENSE_H

#include "model/engine.h"

typedef enum { NRD_DENSE_NONE, NRD_DENSE_TANH, NRD_DENSE_GELU, NRD_DENSE_GELU_TANH, NRD_DENSE_RELU, NRD_DENSE_SILU } nrd_dense_act;

nrd_dense_act nrd_dense_act_of(const char *name); /* NONE: "none", and what is no activation's name */

/* Copies a weight; *out stays where the engine has none, which nrd_needs_check has settled. */
nrd_error *nrd_dense_take(const nrd_engine *e, const char *name, float **out) NRD_MUST_USE;

/* y[rows] = act(w[rows, cols] x[cols] + bias[rows]); bias NULL: none. x and y apart. */
void nrd_dense_product(const float *w, const float *bias, const float *x, int32_t rows, int32_t cols, nrd_dense_act act, float *y);

#endif
