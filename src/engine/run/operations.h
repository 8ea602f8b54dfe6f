/* SPDX-License-Identifier: Apache-2.0
 * engine/run/operations.h - what blocks are made of: memory, products and activations, the residual and its norms.
 *
 * Owner     The engine loop thread.
 * Order     Operations of a step are enqueued in the order of the calls on the runner's one stream.
 */
#ifndef NRD_ENGINE_RUN_OPERATIONS_H
#define NRD_ENGINE_RUN_OPERATIONS_H

#include "engine/run/runner_internal.h"

/* ---- memory.c ---- */

/* Adds what to change where memory does not suffice. Takes `err`. */
nrd_error *nrd_run_advised(nrd_error *err, const char *pool) NRD_MUST_USE;
nrd_error *nrd_run_alloc(nrd_runner *r, void **out, size_t n, size_t elem,
                         const char *pool) NRD_MUST_USE;
void nrd_run_free(nrd_runner *r, void *p); /* NULL is fine */
/* Memory that collective operations use; it goes with the comm. */
nrd_error *nrd_run_alloc_common(nrd_runner *r, void **out, size_t n, size_t elem,
                                const char *pool) NRD_MUST_USE;
void nrd_run_free_common(nrd_runner *r, void *p); /* nothing where the comm has it */
void nrd_run_free_host(nrd_runner *r, void *p);
nrd_error *nrd_run_upload(nrd_runner *r, void *dst, const void *src,
                          size_t bytes) NRD_MUST_USE; /* waits */

/* ---- marks.c: these have no effect in steps that are not timed by operation ---- */

double nrd_run_bytes(double n, nrd_dtype t); /* of n elements */
/* The operation enqueued last moved so many bytes a row. */
nrd_error *nrd_run_mark(nrd_runner *r, nrd_profile_op op, double rows, double bytes_a_row,
                        double flops) NRD_MUST_USE;
/* y: type of the result; NONE where it is not stored. */
nrd_error *nrd_run_mark_product(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n,
                                nrd_dtype y) NRD_MUST_USE;
/* A product of `experts` weights, of which `pairs` of n tokens take some: counts those that chance would take. */
nrd_error *nrd_run_mark_experts(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n) NRD_MUST_USE;
nrd_error *nrd_run_mark_attention(nrd_runner *r, int32_t layer,
                                  const nrd_product *next) NRD_MUST_USE;

/* ---- product.c ---- */

/* Which type layers' products read: once the weights are there, and for the step that is enqueued next. */
void nrd_run_init_inputs_of_many(nrd_runner *r);
void nrd_run_choose_inputs(nrd_runner *r, int32_t n_rows);
nrd_error *nrd_run_init_made_input(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_made_input(nrd_runner *r);

nrd_linear_args nrd_run_product_args(const nrd_runner *r, const nrd_product *p, const void *x,
                                     int32_t n_tokens, void *y, nrd_dtype y_dtype, float softcap);
nrd_error *nrd_run_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                           void *y, nrd_dtype y_dtype, float softcap) NRD_MUST_USE;
/* The same to activations, whose scales may wait (NULL: must not) for who reads them. */
nrd_error *nrd_run_pending_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens, void *y,
                                   nrd_pending_scales *pending) NRD_MUST_USE;
/* y = the product of x, which is activations. */
nrd_error *nrd_run_plain_product(nrd_runner *r, int32_t n_tokens, const nrd_product *p, const void *x, void *y) NRD_MUST_USE;
/* x, rows as long as the product `next` reads, as it wants them where no norm stands between: itself, or converted into
 * `room`. */
nrd_error *nrd_run_plain_input(nrd_runner *r, int32_t n_tokens, const nrd_product *next, const void *x, void *room,
                               const void **out) NRD_MUST_USE;
/* act() of what a first product left, `inter` numbers or twice as many a row, as `down` wants them; row_scale: of F8. */
nrd_act_args nrd_run_act_args(const nrd_runner *r, int32_t n_rows, int32_t inter, const nrd_product *down, float *row_scale);
nrd_error *nrd_run_act(nrd_runner *r, const nrd_act_args *a, const nrd_product *down) NRD_MUST_USE;

/* ---- gated.c ---- */

/* A product `up` of x and act() of what it gives in one; *done false: the device has that not for this shape, and nothing was done.
 * experts: what moe_linear() would get. */
nrd_error *nrd_run_gated_product(nrd_runner *r, const nrd_product *up, const nrd_act_args *act, const void *x, const nrd_product *down,
                                 bool *done) NRD_MUST_USE;
nrd_error *nrd_run_gated_experts(nrd_runner *r, const nrd_product *up, const nrd_moe_linear_args *experts, const nrd_act_args *act,
                                 const nrd_product *down, bool *done) NRD_MUST_USE;

/* ---- residual.c ---- */

/* Whether layers leave what they add in delta, for the next norm. False: the norm that adds up the ranks' parts may leave each
 * rank with its own rows of x only. */
bool nrd_run_leaves_delta(const nrd_runner *r);
/* Adds what the sublayer before left in delta (through its post norm) and norms for the next.
 * row_ids: NULL, or the n_rows rows that are wanted; then n_rows counts. */
nrd_error *nrd_run_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                        const nrd_weight *delta_weight, const nrd_weight *weight,
                        const nrd_weight *bias, const nrd_product *next, const int32_t *row_ids,
                        int32_t n_rows) NRD_MUST_USE;
/* The same of all rows, for layers that need not have a norm: *out is x as `next` reads it, behind the norm, or as it is
 * where weight is NULL. */
nrd_error *nrd_run_input(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_weight *delta_weight, const nrd_weight *weight,
                         const nrd_weight *bias, const nrd_product *next, const void **out) NRD_MUST_USE;
/* The norm of x, [n_rows, width] in activations, into `out`, as `next` reads it, or as activations (NULL). Without a bias. */
nrd_norm_args nrd_run_norm_args(const nrd_runner *r, nrd_norm_kind kind, float eps, int32_t n_rows, int32_t width, void *x,
                                const nrd_weight *weight, const nrd_product *next, void *out);
/* What is between attention or an activation and the product behind it: the norm of `from`, [n_tokens, width], as `next` reads
 * it. */
nrd_error *nrd_run_inner_norm(nrd_runner *r, int32_t n_tokens, int32_t width, const nrd_weight *weight, const nrd_weight *bias,
                              void *from, const nrd_product *next, void *to) NRD_MUST_USE;
/* delta = the product of x that an attention or an MLP ends with; of a picture's embeddings another (picture_weights.c). */
nrd_error *nrd_run_delta_product(nrd_runner *r, const nrd_batch *b, int32_t layer, const nrd_product *p, const nrd_product *of_picture,
                                 const void *x) NRD_MUST_USE;
/* Whether this network's layers are plain enough for its scales to wait for the norm. */
void nrd_run_init_pending(nrd_runner *r);
/* x += delta, through its post norm. */
nrd_error *nrd_run_add_delta(nrd_runner *r, int32_t n_tokens, const nrd_weight *delta_weight) NRD_MUST_USE;
/* The sum of the ranks' rows of x [n_tokens, hidden], in each of them. */
nrd_error *nrd_run_all_reduce(nrd_runner *r, void *x, int32_t n_tokens) NRD_MUST_USE;
/* Where ranks each have a part of the delta: all of it, unless the norm behind it sees to that. */
nrd_error *nrd_run_sum_delta(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* The last layer's delta into the residual, whole in every rank; where no delta is left behind, or another stage goes on. */
nrd_error *nrd_run_finish_delta(nrd_runner *r, int32_t n_tokens) NRD_MUST_USE;
/* The norm of the delta that a layer leaves. */
static inline const nrd_weight *nrd_run_last_norm(const nrd_layer *y)
{
    return y->input.gate.n > 0 ? y->input.norm : y->post_mlp_norm;
}

#endif
