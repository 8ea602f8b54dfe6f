/* SPDX-License-Identifier: Apache-2.0
 * device/ops/ops.h - what the files of one operation share.
 *
 * Purpose   For each operation of nereid/device.h: a check of its arguments, valid for every
 *           device, and a plain C reference that defines the result. Also the private layouts of
 *           the CPU device: ACT_Q8 rows, packed weights, blocks of the KV cache.
 * Owner     Stateless, any thread. References allocate scratch and may be slow: never in a step.
 * Errors    Checks: INVALID_ARG for a broken caller, UNSUPPORTED for what no code here knows.
 * Sources   See nereid/device.h.
 */
#ifndef NRD_DEVICE_OPS_OPS_H
#define NRD_DEVICE_OPS_OPS_H

#include "base/dtype.h"
#include "base/error.h"
#include "device/ops/layouts.h"
#include "nereid/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- elements ---- */

bool nrd_is_float_dtype(nrd_dtype t);                             /* F32, F16, BF16 */
float nrd_load_f32(nrd_dtype t, const void *base, int64_t i);     /* F32, F16, BF16 */
void nrd_store_f32(nrd_dtype t, void *base, int64_t i, float v);  /* F32, F16, BF16 */

/* ---- rows of activations ---- */

size_t nrd_row_bytes(nrd_dtype t, int64_t cols); /* also ACT_Q8; 0 if t cannot hold activations */
void nrd_act_q8_dequantize(const void *row, int64_t cols, float *x);
/* Row `i` of an activation tensor as floats, and back. F8 uses row_scale[i] (write: fills it). */
void nrd_load_row(nrd_dtype t, const void *base, int64_t i, int64_t cols, const float *row_scale,
                  float *dst);
void nrd_store_row(nrd_dtype t, void *base, int64_t i, int64_t cols, const float *src,
                   float *row_scale);

/* ---- weights ---- */

/* Rows [row, row + 16) of a ROWS weight into one tile. */
void nrd_tile16_pack(const nrd_weight *w, int64_t row, void *tile);
void nrd_tile16_unpack_row(nrd_dtype t, const void *tile, int64_t cols, int row, float *dst);
uint64_t nrd_weight_bytes(nrd_dtype t, uint32_t layout, int64_t rows, int64_t cols); /* 0: cannot */

float nrd_weight_at(const nrd_weight *w, int64_t i); /* element of a float vector */
static inline int64_t nrd_weight_n_stacked(const nrd_weight *w)
{
    return w->n_stacked > 1 ? w->n_stacked : 1;
}
/* One matrix of a stack; `w` itself where it is one. */
nrd_weight nrd_weight_of_stack(const nrd_weight *w, int64_t i);

/* ---- KV cache blocks of the CPU device ----
 * A block holds, per KV head, K in groups of 16 tokens, [group][head_dim][16], so that scores of 16
 * tokens come out of one vector, then V as [token][head_dim]. Tokens are padded to 16. */
enum { NRD_KV_GROUP = 16 };
static inline int64_t nrd_kv_groups(int32_t block_tokens)
{
    return (block_tokens + NRD_KV_GROUP - 1) / NRD_KV_GROUP;
}
static inline int64_t nrd_kv_head_elems(int32_t block_tokens, int32_t head_dim) /* K or V alone */
{
    return nrd_kv_groups(block_tokens) * NRD_KV_GROUP * head_dim;
}
static inline int64_t nrd_kv_k_index(const nrd_kv_layer *kv, int32_t head, int32_t token, int32_t d)
{
    int64_t per = nrd_kv_head_elems(kv->block_tokens, kv->head_dim);
    return (int64_t)head * 2 * per + ((int64_t)(token / NRD_KV_GROUP) * kv->head_dim + d) * NRD_KV_GROUP +
           token % NRD_KV_GROUP;
}
static inline int64_t nrd_kv_v_index(const nrd_kv_layer *kv, int32_t head, int32_t token, int32_t d)
{
    int64_t per = nrd_kv_head_elems(kv->block_tokens, kv->head_dim);
    return (int64_t)head * 2 * per + per + (int64_t)token * kv->head_dim + d;
}
/* n_kv_heads 0: latent rows, [token][head_dim]. 0: the type cannot be kept. */
size_t nrd_kv_block_bytes(nrd_dtype t, int32_t block_tokens, int32_t n_kv_heads, int32_t head_dim);
/* Of a head's keys, or values. */
static inline float nrd_kv_scale(const nrd_kv_layer *kv, int32_t head, bool of_values)
{
    const bool has_any = kv->scales && (kv->dtype == NRD_DTYPE_I8 || kv->dtype == NRD_DTYPE_F8_E4M3);
    return has_any ? kv->scales[(of_values ? kv->n_kv_heads : 0) + head] : 1.0f;
}
float nrd_kv_load(nrd_dtype t, const void *block, int64_t i, float scale);
void nrd_kv_store(nrd_dtype t, void *block, int64_t i, float scale, float v);

/* ---- operations ---- */

nrd_error *nrd_embed_check(const nrd_embed_args *a) NRD_MUST_USE;
/* The row of the type table for token i. */
/* Where token i comes from: *prompt, or this row of the table where that is NULL; -1: zeros, another rank has it. */
/* Whether this rank adds what is not in the table. */
static inline bool nrd_embed_adds(const nrd_embed_args *a)
{
    return a->first_id == 0 && a->first_col == 0;
}
int64_t nrd_embed_source(const nrd_embed_args *a, int32_t i, const void **prompt);
int64_t nrd_embed_type(const nrd_embed_args *a, int32_t i);
void nrd_embed_ref(const nrd_embed_args *a);

nrd_error *nrd_add_rows_check(const nrd_add_rows_args *a) NRD_MUST_USE;
void nrd_add_rows_ref(const nrd_add_rows_args *a);

nrd_error *nrd_sum_spans_check(const nrd_sum_spans_args *a) NRD_MUST_USE;
void nrd_sum_spans_ref(const nrd_sum_spans_args *a);

nrd_error *nrd_clamp_check(const nrd_clamp_args *a) NRD_MUST_USE;
void nrd_clamp_ref(const nrd_clamp_args *a);

nrd_error *nrd_norm_check(const nrd_norm_args *a) NRD_MUST_USE;
void nrd_norm_ref(const nrd_norm_args *a);

nrd_error *nrd_linear_check(const nrd_linear_args *a) NRD_MUST_USE;
void nrd_linear_ref(const nrd_linear_args *a); /* uses x as it comes: no quantization of its own */

nrd_error *nrd_lora_check(const nrd_lora_args *a) NRD_MUST_USE;
void nrd_lora_ref(const nrd_lora_args *a); /* leaves a->hidden alone */

/* Where new token t lies in its sequence's cache: at its position; the branches of a tree, some of
 * which share a position, lie one behind the other after the tokens of earlier steps. */
static inline int32_t nrd_kv_slot(const nrd_batch_view *b, int32_t t)
{
    int32_t s = b->token_seq[t];
    return b->tree_mask ? b->ctx_len[s] - b->q_start[s + 1] + t : b->positions[t];
}
nrd_error *nrd_rope_kv_check(const nrd_rope_kv_args *a) NRD_MUST_USE;
float nrd_rope_kv_q_scale(const nrd_rope_kv_args *a, int32_t pos); /* what q is multiplied by */
void nrd_rope_kv_ref(const nrd_rope_kv_args *a);
nrd_error *nrd_head_squares_check(const nrd_head_squares_args *a) NRD_MUST_USE;
void nrd_head_squares_ref(const nrd_head_squares_args *a);

/* The bias of a key that lies `distance` behind the query's position (below 0: before it); args with rel_bias. */
static inline float nrd_attention_rel_bias(const nrd_attention_args *a, int32_t head, int32_t distance)
{
    const int32_t at = distance < -a->rel_back ? -a->rel_back : distance > a->rel_ahead ? a->rel_ahead : distance;
    return a->rel_bias[(int64_t)head * (a->rel_back + a->rel_ahead + 1) + a->rel_back + at];
}

nrd_error *nrd_attention_check(const nrd_attention_args *a) NRD_MUST_USE;
void nrd_attention_ref(const nrd_attention_args *a);
/* The same in memory of the caller's, aligned for doubles: so many bytes. */
void nrd_attention_ref_in(const nrd_attention_args *a, void *work);
size_t nrd_attention_ref_bytes(const nrd_attention_args *a);
/* May the new token `i` (packed index) of sequence `s` see the cached token `pos`? The one place that knows
 * window, sink and tree. */
bool nrd_attention_sees(const nrd_attention_args *a, int32_t s, int32_t i, int32_t pos);
/* The last position that is too far behind `pos`; with a window only. */
static inline int32_t nrd_attention_unseen(const nrd_attention_args *a, int32_t pos)
{
    return a->chunked ? pos - pos % a->window - 1 : pos - a->window;
}

nrd_error *nrd_latent_kv_check(const nrd_latent_kv_args *a) NRD_MUST_USE;
void nrd_latent_kv_ref(const nrd_latent_kv_args *a);
nrd_error *nrd_latent_attention_check(const nrd_latent_attention_args *a) NRD_MUST_USE;
void nrd_latent_attention_ref(const nrd_latent_attention_args *a);

float nrd_act_value(nrd_act_kind kind, float x);
nrd_error *nrd_act_check(const nrd_act_args *a) NRD_MUST_USE;
void nrd_act_ref(const nrd_act_args *a);

nrd_error *nrd_sample_check(const nrd_sample_args *a) NRD_MUST_USE;
void nrd_sample_ref(const nrd_sample_args *a);
/* Would the reference choose `id` for a row if the sums of its probabilities were off by up to `slack`, as those
 * of a device are that adds in another order? Reads the counts as they are. */
bool nrd_sample_may(const nrd_sample_args *a, int32_t row, int32_t id, double slack);
/* Of both, and that the one's results are the other's logits. */
nrd_error *nrd_linear_sample_check(const nrd_linear_args *l, const nrd_rough_weight *rough, const nrd_sample_args *a) NRD_MUST_USE;

/* The device decides where pairs go: that is not checked. */
nrd_error *nrd_moe_route_check(const nrd_moe_route_args *a) NRD_MUST_USE;
void nrd_moe_route_ref(const nrd_moe_route_args *a);
nrd_error *nrd_moe_linear_check(const nrd_moe_linear_args *a) NRD_MUST_USE;
void nrd_moe_linear_ref(const nrd_moe_linear_args *a);
nrd_error *nrd_moe_sum_check(const nrd_moe_sum_args *a) NRD_MUST_USE;
void nrd_moe_sum_ref(const nrd_moe_sum_args *a);
/* The top_k experts of one token with the scores s, best first. `room`: n_experts + n_groups floats. */
void nrd_moe_choose(const nrd_moe_route_args *a, const float *s, float *room, int32_t *out_expert);
/* The same for NRD_MOE_SPARSEMIXER, from logits, with the weights. `room`: n_experts floats. */
void nrd_moe_sparsemixer(const nrd_moe_route_args *a, const float *logits, float *room, int32_t *out_expert,
                         float *out_weight);
/* first, token and place of pairs whose experts are chosen. */
void nrd_moe_sort(const nrd_moe_pairs *p, int32_t n_tokens);

nrd_error *nrd_short_conv_check(const nrd_short_conv_args *a) NRD_MUST_USE;
void nrd_short_conv_ref(const nrd_short_conv_args *a);
nrd_error *nrd_ssm_check(const nrd_ssm_args *a) NRD_MUST_USE;
void nrd_ssm_ref(const nrd_ssm_args *a);
nrd_error *nrd_delta_rule_check(const nrd_delta_rule_args *a) NRD_MUST_USE;
void nrd_delta_rule_ref(const nrd_delta_rule_args *a);
nrd_error *nrd_rg_lru_check(const nrd_rg_lru_args *a) NRD_MUST_USE;
void nrd_rg_lru_ref(const nrd_rg_lru_args *a);
nrd_error *nrd_gated_norm_check(const nrd_gated_norm_args *a) NRD_MUST_USE;
void nrd_gated_norm_ref(const nrd_gated_norm_args *a);

nrd_error *nrd_altup_predict_check(const nrd_altup_predict_args *a) NRD_MUST_USE;
void nrd_altup_predict_ref(const nrd_altup_predict_args *a);
nrd_error *nrd_altup_correct_check(const nrd_altup_correct_args *a) NRD_MUST_USE;
void nrd_altup_correct_ref(const nrd_altup_correct_args *a);
nrd_error *nrd_altup_match_check(const nrd_altup_match_args *a) NRD_MUST_USE;
void nrd_altup_match_ref(const nrd_altup_match_args *a);

nrd_error *nrd_counts_check(const nrd_counts_args *a) NRD_MUST_USE;
nrd_error *nrd_all_reduce_check(const nrd_all_reduce_args *a) NRD_MUST_USE;
nrd_error *nrd_gather_check(const nrd_gather_args *a) NRD_MUST_USE;
nrd_error *nrd_transfer_check(const nrd_transfer_args *a) NRD_MUST_USE;
void nrd_counts_ref(const nrd_counts_args *a);

nrd_error *nrd_move_tokens_check(const nrd_move_tokens_args *a) NRD_MUST_USE;
void nrd_move_tokens_ref(const nrd_move_tokens_args *a);
nrd_error *nrd_copy_blocks_check(const nrd_copy_blocks_args *a) NRD_MUST_USE;
void nrd_copy_blocks_ref(const nrd_copy_blocks_args *a);

#endif
