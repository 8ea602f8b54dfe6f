/* SPDX-License-Identifier: Apache-2.0
 * engine/run/extra_product.h - weights beside the engine's, on the runner's device.
 *
 * Purpose   Heads that guess (extra_heads.h, eagle_net.h) bring weights of their own, as rows in host memory. Each is loaded
 *           as the runner's are, in a type that the device multiplies with the runner's activations.
 * Owner     The engine loop thread, or who opens the executor; what is loaded borrows its source until unload, where the
 *           device maps it in place.
 * Errors    UNAVAILABLE: no memory. UNSUPPORTED: a type. Of multiply: the device is lost.
 */
#ifndef NRD_ENGINE_RUN_EXTRA_PRODUCT_H
#define NRD_ENGINE_RUN_EXTRA_PRODUCT_H

#include "engine/run/runner_internal.h"

typedef struct nrd_extra_weight { /* zero-initialised: none */
    nrd_weight w;
    bool owned;
    void *host;    /* a copy in another type, or NULL */
    float *scales; /* of a copy in 8 bits, or NULL */
    uint64_t bytes;
} nrd_extra_weight;

/* Up to three stacked matrices as one product. */
typedef struct nrd_extra_product { /* zero-initialised: none */
    nrd_extra_weight weight[NRD_LINEAR_MAX_PARTS], bias[NRD_LINEAR_MAX_PARTS];
    nrd_product product;
    nrd_dtype quantize; /* set before: I8 or F8_E4M3, a scale for each row, for matrices that come in other types; NONE: as they come */
} nrd_extra_product;

/* A vector, or a table of rows. what: whose weight it is, for errors. */
nrd_error *nrd_extra_weight_load(nrd_runner *r, const nrd_weight *from, const char *what, nrd_extra_weight *out) NRD_MUST_USE;
void nrd_extra_weight_unload(nrd_runner *r, nrd_extra_weight *w);

/* Adds a matrix, and its bias or NULL. */
nrd_error *nrd_extra_product_add(nrd_runner *r, const nrd_weight *weight, const nrd_weight *bias, const char *what,
                                 nrd_extra_product *p) NRD_MUST_USE;
void nrd_extra_product_unload(nrd_runner *r, nrd_extra_product *p);
uint64_t nrd_extra_product_bytes(const nrd_extra_product *p); /* of its weights */

/* Room for inputs of products in the types that they want. */
typedef struct nrd_extra_input {
    void *rows;       /* [max rows, the widest product's in_row_bytes] */
    float *row_scale; /* [max rows] */
} nrd_extra_input;

/* y [n, rows of p] = p of x [n, cols of p], whose type is that of the runner's activations. */
nrd_error *nrd_extra_multiply(nrd_runner *r, const nrd_product *p, const nrd_extra_input *in, const void *x, int32_t n, void *y,
                              nrd_dtype y_dtype, float softcap) NRD_MUST_USE;

/* Rows as a product reads them. */
typedef struct nrd_extra_rows {
    void *data;
    nrd_dtype dtype;
    float *scale; /* of each row; or NULL */
} nrd_extra_rows;

/* Where what comes before a product writes its input, so that nothing has to convert it: plain, of the activations' type, or the room of `in`. */
nrd_extra_rows nrd_extra_rows_for(const nrd_runner *r, const nrd_product *p, const nrd_extra_input *in, void *plain);
/* nrd_extra_multiply of such rows. */
nrd_error *nrd_extra_multiply_rows(nrd_runner *r, const nrd_product *p, const nrd_extra_rows *x, int32_t n, void *y, nrd_dtype y_dtype,
                                   float softcap) NRD_MUST_USE;

/* ---- what heads share besides ---- */

/* out [n, hidden] = the final norm of the states of packed tokens [n] of the last step, n at most max_entries. The numbers of the tokens
 * are read when the stream comes to them. */
nrd_error *nrd_extra_states(nrd_runner *r, const int32_t *tokens, int32_t n, void *out) NRD_MUST_USE;
/* What choosing the best token of each row asks for, n rows: on the device, which *out_mem owns, and on the host, which *out_host
 * owns. They stay set where an error comes. Waits. */
nrd_error *nrd_extra_sample_rows(nrd_runner *r, size_t n, const char *pool, nrd_sample_row **out_mem, nrd_sample_row **out_host) NRD_MUST_USE;
/* x += y; x += silu(y), where y is written. [n, cols] in the type of the runner's activations. */
nrd_error *nrd_extra_add(nrd_runner *r, void *x, const void *y, int32_t n, int32_t cols) NRD_MUST_USE;
nrd_error *nrd_extra_add_silu(nrd_runner *r, void *x, void *y, int32_t n, int32_t cols) NRD_MUST_USE;

#endif
