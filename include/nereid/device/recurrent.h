/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/recurrent.h - layers whose memory of a sequence has a fixed size.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_RECURRENT_H
#define NEREID_DEVICE_RECURRENT_H

#include "nereid/device/linear.h"

/* ---- layers that remember a sequence in a state of fixed size ----
 *
 * The new tokens of a sequence are taken in their order, beginning with the state in its slot, which is then that behind
 * the last one. A sequence whose first new token is at position 0 begins with zeros, whatever is in the slot. Sequences
 * of a step have different slots. No token trees. States are float32. All only with NRD_FEATURE_RECURRENT. */

/* A causal convolution along the tokens, each channel by itself: with u = x (* in_gate),
 *   out[t, c] = act(bias[c] + sum over k of weight[c, k] * u[t - kernel + 1 + k, c]) (* out_gate[t, c]). */
enum { NRD_SHORT_CONV_MAX = 16 };
typedef struct nrd_short_conv_args {
    const nrd_batch_view *batch;    /* host struct, copied */
    const void *x;                  /* [n_tokens, x_stride], the first `channels` of each row */
    const void *in_gate, *out_gate; /* rows as x's; or NULL */
    int64_t x_stride;
    int32_t channels, kernel;       /* kernel: 2 to NRD_SHORT_CONV_MAX */
    const float *weight;            /* [channels, kernel] */
    const float *bias;              /* [channels] or NULL */
    nrd_act_kind act;               /* NONE or SILU */
    float *state;                   /* [n_slots, kernel - 1, channels]: u of the last tokens, the newest last */
    void *out;                      /* [n_tokens, channels] */
    nrd_dtype act_dtype;
} nrd_short_conv_args;

/* The selective scan of Mamba and Mamba-2: with step = clamp(softplus(dt + dt_bias), dt_min, dt_max),
 *   h[p, n] = exp(step * a) * h[p, n] + step * x[p] * b[n],   out[p] = sum over n of c[n] * h[p, n] + d * x[p]
 * for each head; n_heads / n_groups heads share b and c. Mamba: a channel is a head of one number. */
enum { NRD_SSM_MAX_STATE = 256 };
typedef struct nrd_ssm_args {
    const nrd_batch_view *batch; /* host struct, copied */
    const void *x;               /* [n_tokens, x_stride], heads first in each row */
    const void *b, *c;           /* [n_tokens, bc_stride], groups first in each row */
    const void *dt;              /* [n_tokens, dt_stride], heads first in each row */
    int64_t x_stride, bc_stride, dt_stride;
    int32_t n_heads, head_dim, n_groups, n_state; /* n_state: up to NRD_SSM_MAX_STATE */
    const float *a;              /* [n_heads], or with a_of_states [n_heads, n_state]; negative */
    bool a_of_states;
    const float *d, *dt_bias;    /* [n_heads] */
    float dt_min, dt_max;
    bool deterministic;          /* token by token also in prompts: bits do not depend on where steps cut them */
    float *state;                /* [n_slots, n_heads, head_dim, n_state] */
    void *out;                   /* [n_tokens, n_heads * head_dim] */
    nrd_dtype act_dtype;
} nrd_ssm_args;

/* The gated delta rule: with q and k of length 1 (x / sqrt(sum of x^2 + 1e-6)), q also divided by sqrt(k_dim),
 *   S *= exp(a * softplus(alpha + dt_bias)),   S += k (v - k S)^T sigmoid(beta),   out = q S
 * (with twice: 2 sigmoid(beta), so that a state may change its sign: Grazzi et al., 2024)
 * for each value head; n_heads / n_k_heads value heads share q and k: neighbours, or with keys_by_turns heads i, i + n_k_heads,
 * i + 2 n_k_heads, … those of key head i. */
enum { NRD_DELTA_MAX_DIM = 256 };
typedef struct nrd_delta_rule_args {
    const nrd_batch_view *batch;  /* host struct, copied */
    const void *q, *k, *v;        /* [n_tokens, qkv_stride], heads first in each row */
    const void *alpha, *beta;     /* [n_tokens, gate_stride], value heads first in each row */
    int64_t qkv_stride, gate_stride;
    int32_t n_k_heads, n_heads, k_dim, v_dim; /* dims: up to NRD_DELTA_MAX_DIM */
    bool keys_by_turns, twice;
    bool deterministic;           /* as nrd_ssm_args's */
    const float *a, *dt_bias;     /* [n_heads] */
    float *state;                 /* [n_slots, n_heads, k_dim, v_dim] */
    void *out;                    /* [n_tokens, n_heads * v_dim] */
    nrd_dtype act_dtype;
} nrd_delta_rule_args;

static inline int32_t nrd_delta_key_head(const nrd_delta_rule_args *a, int32_t head)
{
    return a->keys_by_turns ? head % a->n_k_heads : head / (a->n_heads / a->n_k_heads);
}

/* The real-gated linear recurrent unit (De et al., Griffin, 2024). Heads are blocks of channels with matrices of their own:
 *   i = sigmoid(x W_in + b_in),   log a = -8 * sigmoid(x W_decay + b_decay) * softplus(decay),
 *   h = a * h + (sqrt(1 - a^2), or 1 at position 0) * i * x,   out = h * gelu(gate)   (its approximation by tanh). */
enum { NRD_RG_LRU_MAX_DIM = 1024 };
typedef struct nrd_rg_lru_args {
    const nrd_batch_view *batch;         /* host struct, copied */
    const void *x;                       /* [n_tokens, n_heads * head_dim] */
    const void *gate;                    /* [n_tokens, gate_stride], as many first in each row */
    int64_t gate_stride;
    int32_t n_heads, head_dim;           /* head_dim: up to NRD_RG_LRU_MAX_DIM */
    const float *in_weight, *decay_weight; /* [n_heads, head_dim, head_dim]: a row for each number of x */
    const float *in_bias, *decay_bias, *decay; /* [n_heads, head_dim] */
    float *state;                        /* [n_slots, n_heads, head_dim] */
    void *out;                           /* [n_tokens, n_heads * head_dim] */
    nrd_dtype act_dtype;
} nrd_rg_lru_args;

/* An RMS norm of each of n_groups parts of a row, with a gate: out = norm(x * silu(gate)) * weight with gate_first, else
 * norm(x) * weight * silu(gate). With weight NULL there is no norm: out = x * sigmoid(gate), or with gate_silu
 * x * silu(gate). out may be x. */
typedef struct nrd_gated_norm_args {
    int32_t n_tokens, width, n_groups;
    const void *x;        /* [n_tokens, width] */
    const void *gate;     /* [n_tokens, gate_stride], the first `width` of each row */
    int64_t gate_stride;
    const float *weight;  /* [width], or with shared_weight [width / n_groups] for every group */
    bool shared_weight, gate_first;
    bool gate_silu;       /* with weight NULL */
    float eps;
    void *out;            /* [n_tokens, width] */
    nrd_dtype act_dtype;
} nrd_gated_norm_args;

#endif
