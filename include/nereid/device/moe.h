/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/moe.h - a mixture of experts.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_MOE_H
#define NEREID_DEVICE_MOE_H

#include "nereid/device/linear.h"

/* ---- mixture of experts ----
 * Of many MLPs a layer runs a few for each token. moe_route chooses them and sorts the pairs (token, chosen expert) by
 * expert; moe_linear is a product whose matrix depends on the pair; act() takes pairs as it takes tokens; moe_sum
 * adds up what a token's experts gave. Which expert has how many pairs is known on the device only, so a recorded
 * step serves every routing. */

enum { NRD_MOE_MAX_EXPERTS = 1024, NRD_MOE_MAX_TOP_K = 32 };

typedef enum {
    NRD_MOE_SOFTMAX = 0,
    NRD_MOE_SIGMOID = 1,
    NRD_MOE_SPARSEMIXER = 2, /* needs nrd_moe_route_args.jitter */
} nrd_moe_score;

/* What moe_route writes and the others read. Device memory; n_pairs = n_tokens * top_k.
 * Where ranks divide the list of experts (GShard, Lepikhin et al., 2020), each gives moe_linear and moe_sum a window of what
 * moe_route wrote: first moved up to its first expert, n_experts its own. They leave out pairs of other experts, whose
 * rows of x and y may hold anything. */
typedef struct nrd_moe_pairs {
    int32_t n_experts, top_k;
    int32_t *expert; /* [n_tokens, top_k] chosen experts, best first */
    float *weight;   /* [n_tokens, top_k] what each is multiplied by */
    int32_t *first;  /* [n_experts + 1] the sorted pairs of expert e are first[e] to first[e + 1] - 1 */
    int32_t *token;  /* [n_pairs] of each sorted pair; ascending within an expert */
    int32_t *place;  /* [n_tokens, top_k] which sorted pair each is */
} nrd_moe_pairs;

/* Scores s = softmax or sigmoid of a token's logits; those chosen have the highest s + bias. With n_groups > 1
 * experts form as many groups of neighbours, and only the best top_groups of them may be chosen from; a group's
 * score is the sum of its two highest s + bias, or with group_max its highest. Weights are the chosen s, divided by their sum (normalize),
 * times scale and what expert_scale has for the expert. Ties: lowest id.
 * SPARSEMIXER (Liu et al., 2024) takes the highest logit x_1, then the highest of the others, and so on; the weight
 * of choice j is its share of a softmax over what is left and has (x_j - x) / max(|x|, x_j) <= 2 jitter. No bias, groups,
 * normalize or expert_scale there. */
typedef struct nrd_moe_route_args {
    int32_t n_tokens;
    const float *logits;   /* [n_tokens, logits_stride], the experts' first */
    int64_t logits_stride;
    nrd_moe_score score;
    const float *bias;     /* [n_experts] or NULL */
    int32_t n_groups, top_groups; /* 1, 1: no groups */
    bool group_max;
    bool normalize;
    float scale;
    const float *expert_scale; /* [n_experts] or NULL */
    float jitter;
    nrd_moe_pairs pairs;
} nrd_moe_route_args;

/* y[i] = concat over parts of W_p,e x (+ b_p,e) for each sorted pair i, e its expert. A pair's result does not depend on the
 * other pairs where `deterministic` asks for it. */
typedef struct nrd_moe_linear_args {
    int32_t n_tokens;
    nrd_moe_pairs pairs;      /* first and token are read */
    const void *x;            /* [n_tokens, cols] in x_dtype, or with x_sorted [n_pairs, cols] */
    bool x_sorted;
    nrd_dtype x_dtype;
    const float *x_row_scale; /* of each row of x for F8 with per-token scales, else NULL */
    int32_t n_parts;
    const nrd_weight *w[NRD_LINEAR_MAX_PARTS]; /* [n_experts * rows_p, cols], stacked */
    const nrd_weight *bias[NRD_LINEAR_MAX_PARTS]; /* vectors of n_experts * rows_p, or NULL */
    void *y;                  /* [n_pairs, sum of rows_p]; rows of pairs outside of the window stay as they are */
    nrd_dtype y_dtype;        /* act dtype */
    bool deterministic;
} nrd_moe_linear_args;

/* out[t] = sum over j with first[0] <= place[t, j] < first[n_experts] of weight[t, j] * y[place[t, j]], j ascending, + shared[t] * (shared_gate ? sigmoid of
 * shared_gate[t * gate_stride] : 1). */
typedef struct nrd_moe_sum_args {
    int32_t n_tokens, hidden;
    nrd_moe_pairs pairs;      /* first, weight and place are read; weight NULL, only with NRD_FEATURE_INPUT_SCALE: all are 1 */
    const void *y;            /* [n_pairs, hidden] act dtype */
    const void *shared;       /* [n_tokens, hidden] act dtype, or NULL; may be out */
    const float *shared_gate; /* logits, or NULL */
    int64_t gate_stride;
    void *out;                /* [n_tokens, hidden] act dtype */
    nrd_dtype act_dtype;
} nrd_moe_sum_args;

#endif
