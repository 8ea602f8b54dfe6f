/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/linear.h - token by token: embeddings, norms, products with weights, adapters, activations.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_LINEAR_H
#define NEREID_DEVICE_LINEAR_H

#include "nereid/device/core.h"

/* x[n_tokens, hidden] = table[id] * scale (+ pos_table[pos]) (+ type_table[0]).
 * An id < 0 means "the token sampled last for slot -1-id", read from slot_tokens on the device, so
 * that a step can be enqueued before the host has seen the previous one's result. Ids from
 * table->rows upwards take rows of prompt_table (p-tuning), if given, which are scaled too; else id 0
 * is used. */
typedef struct nrd_embed_args {
    int32_t n_tokens, hidden;
    const int32_t *ids;         /* [n_tokens] */
    const int32_t *slot_tokens; /* [n_slots] or NULL */
    const nrd_weight *
        table; /* [vocab, hidden], or with NRD_FEATURE_EMBED_COLUMNS fewer columns: other ranks have the rest */
    /* n_ids > 0: other ranks have the rest of the table. It begins with id first_id of n_ids; ids of others give zeros, and the sum
     * over ranks is what one with the whole table makes: the one with first_id 0 adds prompt rows, positions and types. Likewise
     * of columns, also with n_ids: the table's begin with column first_col, and where that is not 0 ids from n_ids on are zeros. Only one of the two
     * divides a table. */
    int32_t first_id, n_ids, first_col;
    float scale;
    const nrd_weight *pos_table; /* [max_positions, hidden] or NULL */
    const int32_t *positions;    /* [n_tokens], needed with pos_table */
    const nrd_weight *type_table; /* [n_types, hidden] or NULL: a row is added too; only with NRD_FEATURE_ENCODER */
    const int32_t *types;        /* [n_tokens] which row; NULL: row 0. Others than there are: the last one */
    const void *const *prompt_table; /* [n_tokens] row pointers in act dtype or NULL entries; NULL */
    const int32_t *out_rows;     /* [n_tokens] which row of out each one is, all different; NULL: its own number */
    void *out;                   /* [n_tokens, hidden]; with out_rows so many rows as these name */
    nrd_dtype out_dtype;
} nrd_embed_args;

/* out[i] += the `hidden` numbers of rows[i] from number `skip` on, for tokens that have a row: what a picture adds to the
 * states behind a layer (Meng et al., DeepStack, 2024). */
typedef struct nrd_add_rows_args {
    int32_t n_tokens, hidden;
    const void *const *rows; /* [n_tokens] pointers to numbers of `dtype`, or NULL entries: nothing is added */
    int64_t skip;
    void *out;               /* [n_tokens, hidden] */
    nrd_dtype dtype;         /* an activation type */
} nrd_add_rows_args;

/* Sums of rows that lie side by side: out[s] = rows starts[s] .. starts[s + 1] - 1 of a list, in order, in double, so that pieces of
 * a span give the same numbers as the whole. x has its rows
 * first .. first + n_rows - 1. A span that begins before those is added to what out has of it; out of a span of which no row
 * is among them stays as it is. */
typedef struct nrd_sum_spans_args {
    const float *x;        /* [n_rows, hidden] */
    const int32_t *starts; /* [n_spans + 1], rising */
    int32_t n_spans, first, n_rows, hidden;
    double *out;           /* [n_spans, hidden] */
} nrd_sum_spans_args;

/* out[i] = x[i], but at least `low` and at most `high`: what is around products of Gemma 4's vision tower. out may be x. */
typedef struct nrd_clamp_args {
    int32_t n_tokens, width;
    const void *x;      /* [n_tokens, width] */
    void *out;          /* rows of `width` numbers, out_stride numbers from one to the next */
    int64_t out_stride;
    float low, high;    /* either may be infinite */
    nrd_dtype dtype;    /* an activation type */
} nrd_clamp_args;

typedef enum { NRD_NORM_RMS = 0, NRD_NORM_LAYER = 1 } nrd_norm_kind;

/* The whole joint between two sublayers, any part of which may be absent:
 *   d = delta_weight ? norm(delta, delta_weight) : delta      (post-norm of Gemma)
 *   residual = (residual + d) * sum_scale                      (written back in place)
 *   out = norm(residual[row_ids ? row_ids[i] : i], weight, bias)
 * With delta NULL the residual is only read, and sum_scale has no effect; with weight NULL nothing is written to out.
 * With to_residual out is written back as the residual, too (norms of the sum, as in BERT); weight and no row_ids
 * then, only with NRD_FEATURE_ENCODER.
 * With row_ids only those rows are normed (LM head), but every row gets its delta added. */
typedef struct nrd_norm_args {
    nrd_norm_kind kind;
    float eps;
    int32_t n_tokens, hidden;
    const void *delta;              /* [n_tokens, hidden] act dtype, or NULL */
    nrd_pending_scales pending;     /* of the delta, as linear() of the same device told; rows may be out_row_scale, unless there are row_ids */
    const nrd_weight *delta_weight; /* [hidden] or NULL */
    float sum_scale;                /* 0: 1 */
    void *residual;                 /* [n_tokens, hidden] act dtype */
    const nrd_weight *weight, *bias; /* [hidden] or NULL */
    const int32_t *row_ids;         /* [n_rows] or NULL */
    int32_t n_rows;                 /* with row_ids */
    bool to_residual;
    void *out;                      /* [n_tokens or n_rows, row of out_dtype] */
    nrd_dtype out_dtype;            /* act dtype, or what linear_input asked for */
    float *out_row_scale;           /* [rows] for F8 with per-token scales, else NULL */
    nrd_dtype act_dtype;
} nrd_norm_args;

static inline float nrd_norm_sum_scale(const nrd_norm_args *a)
{
    return a->sum_scale == 0 ? 1.0f : a->sum_scale;
}

/* y = concat over parts of (x W_p^T + b_p), softcapped if asked. Parts are stacked along the
 * output, each with a dtype of its own (GGUF mixes types inside q, k, v). */
enum { NRD_LINEAR_MAX_PARTS = 4 };
typedef struct nrd_linear_args {
    int32_t n_tokens;
    const void *x;            /* [n_tokens, cols] in x_dtype */
    nrd_dtype x_dtype;        /* ACT_Q8: float32 may come instead; of one part the CPU then multiplies each token's largest number apart */
    const float *x_row_scale; /* [n_tokens] for F8 with per-token scales, else NULL */
    int32_t n_parts;
    const nrd_weight *w[NRD_LINEAR_MAX_PARTS];    /* [rows_p, cols] */
    const nrd_weight *bias[NRD_LINEAR_MAX_PARTS]; /* [rows_p] or NULL */
    void *y;                  /* [n_tokens, sum rows] */
    nrd_dtype y_dtype;        /* act dtype; F32 for logits */
    float softcap;            /* > 0: y = softcap * tanh(y / softcap) */
    bool deterministic;       /* same result for a row in every batch composition */
    nrd_pending_scales *pending; /* NULL, or where the device may say that y still wants its scales; else it leaves it alone */
    bool int8_x;              /* W was made for x in int8: where a part is I8 a device may round x so, with a scale for each token */
} nrd_linear_args;

/* c[i][j] = alpha * sum over l of A[i][l] B[j][l], and what was there (add). A[i][l] is a[i * a_stride + l], or turned
 * a[l * a_stride + i]; B likewise. For whoever computes with matrices of their own (nereid quantize), not for models. */
typedef struct nrd_matmul_args {
    int64_t m, n, k;
    const void *a, *b;
    int64_t a_stride, b_stride; /* numbers from one row to the next */
    bool a_turned, b_turned;
    nrd_dtype dtype;            /* of a and b: F32, F16, BF16 */
    float *c;                   /* [m, n], rows c_stride numbers apart; not a nor b */
    int64_t c_stride;
    float alpha;
    bool add;
} nrd_matmul_args;

/* One low-rank pair of an adapter (Hu et al., LoRA, ICLR 2022): it adds scale * (x A^T) B^T to some rows
 * of a product. */
typedef struct nrd_lora_pair {
    const void *a;    /* [rank, cols], 16-byte aligned */
    const void *b;    /* B transposed: [rank, rows of the part], 16-byte aligned */
    int32_t rank;     /* 0: the adapter leaves this part as it is; a and b are not read */
    int32_t dtype;    /* nrd_dtype of a and b: F32, F16 or BF16 */
    float scale;
    int32_t reserved; /* 0 */
    /* [2, rows of the part] or NULL: behind the pair each row of the part is multiplied by its first and its second is added
     * (DoRA, Liu et al., ICML 2024: the rows of W + scale B A get lengths of their own) */
    const float *gain;
} nrd_lora_pair;

/* y[t, row0_p + i] += the pair of token t's adapter for part p, for all parts and all adapters at once; then its gain.
 * Parts may overlap (a pair for all of q, k, v beside one for q): they follow one another. A token's result does not depend on
 * the other tokens. */
enum { NRD_LORA_MAX_PARTS = 4, NRD_LORA_MAX_RANK = 512 };
typedef struct nrd_lora_args {
    int32_t n_tokens;
    const int32_t *token_slot;  /* [n_tokens] which adapter; -1: none */
    bool single_tokens;         /* a hint: neighbours are tokens of different sequences */
    const nrd_lora_pair *pairs; /* part p of adapter s is pairs[s * slot_stride + p] */
    int64_t slot_stride;
    int32_t max_rank;           /* of all pairs that may be met, 1 to NRD_LORA_MAX_RANK */
    int32_t n_parts;
    struct {
        int32_t row0, n_rows;   /* columns of y */
    } part[NRD_LORA_MAX_PARTS];
    const void *x;              /* [n_tokens, cols] in x_dtype: the product's own input */
    nrd_dtype x_dtype;
    const float *x_row_scale;   /* [n_tokens] for F8 with per-token scales, else NULL */
    int64_t cols;
    void *y;                    /* [n_tokens, y_stride] */
    nrd_dtype y_dtype;          /* F32, F16, BF16 */
    int64_t y_stride;
    float *hidden;              /* [n_tokens, n_parts, max_rank]: the device's to write */
} nrd_lora_args;

typedef enum {
    NRD_ACT_NONE = 0,
    NRD_ACT_SILU = 1,
    NRD_ACT_GELU_TANH = 2,
    NRD_ACT_GELU_ERF = 3,
    NRD_ACT_RELU = 4,
    NRD_ACT_RELU2 = 5,
    /* Only gated (GPT-OSS): g sigmoid(alpha g) (u + 1), g = min(x[i], limit), u = x[inter + i] within limit of 0. */
    NRD_ACT_CLAMPED_SWIGLU = 6,
    /* Only not gated, with NRD_FEATURE_XIELU (Huang and Schlag, 2024; Apertus): x / 2 + p x^2 above 0, below
     * x / 2 + n (e^min(x, eps) - 1 - x). */
    NRD_ACT_XIELU = 7,
    NRD_ACT_QUICK_GELU = 8, /* x sigmoid(alpha x) (CLIP) */
} nrd_act_kind;
#define NRD_QUICK_GELU_ALPHA 1.702f
#define NRD_XIELU_EPS (-1e-6f)
#define NRD_SWIGLU_LIMIT 7.0f
#define NRD_SWIGLU_ALPHA 1.702f

/* gated: out[i] = act(x[i]) * x[inter + i]; else out[i] = act(x[i]). With in_scale, only with
 * NRD_FEATURE_INPUT_SCALE, row t of x is multiplied by in_scale[in_scale_id[t]] first.
 * Only with NRD_FEATURE_ALTUP, gated and without in_scale:
 *   up      the other factors are up[t * up_stride + i], and x is [n_tokens, inter];
 *   cutoff  > 0: x[i] becomes max(x[i] - c, 0) before the function, where c is the mean of the row's `inter` numbers plus
 *           `cutoff` times their standard deviation (Gemma 3n: of normally distributed numbers a fixed share stays).
 * Only of NRD_ACT_NONE without all of these:
 *   order    out[i] = x[order[i]]; not to F8_E4M3;
 *   columns  result i is multiplied by columns[i], before it is rounded to out_dtype. */
typedef struct nrd_act_args {
    nrd_act_kind kind;
    bool gated;
    int32_t n_tokens, inter;
    const void *x;        /* [n_tokens, gated ? 2*inter : inter] act dtype */
    nrd_dtype act_dtype;
    void *out;            /* [n_tokens, row of out_dtype] */
    nrd_dtype out_dtype;
    float *out_row_scale;
    const float *in_scale;      /* or NULL */
    const int32_t *in_scale_id; /* [n_tokens], with in_scale */
    float xielu_p, xielu_n;     /* with NRD_ACT_XIELU */
    const void *up;             /* act dtype, or NULL */
    int64_t up_stride;
    float cutoff;               /* 0: none */
    const int32_t *order;       /* [inter] on the device, each within [0, inter), or NULL */
    const float *columns;       /* [inter] on the device, or NULL */
} nrd_act_args;

/* A product of one token's row together with what stands in front of it and behind it, any part of which may be absent:
 *   with x_is_plain x is in act_dtype, and normed first as norm() does it, or, without norm_weight, rounded to linear.x_dtype as act()
 *   does it;
 *   y = act of the product and its bias; gated: act(part 0) * part 1, of parts of as many rows each. Nothing is rounded in between;
 *   with a residual y is rounded to act_dtype, and residual = (residual + y) * sum_scale takes the place of linear.y. */
typedef struct nrd_joined_args {
    nrd_linear_args linear; /* with x_is_plain x_row_scale is not read */
    nrd_dtype act_dtype;
    bool x_is_plain;
    nrd_norm_kind norm;
    float norm_eps;
    const nrd_weight *norm_weight, *norm_bias; /* [cols], or NULL */
    nrd_act_kind act;
    bool gated;
    void *residual;  /* [rows] of act_dtype, or NULL; none of what the product reads */
    float sum_scale; /* 0: 1 */
} nrd_joined_args;

/* ---- several states of a token (Baykal et al., Alternating Updates, 2023; Gemma 3n) ----
 * states [n_states, n_tokens, hidden]. Layers read and write the first; before a layer all are predicted, behind it all are
 * corrected by what the layer made of the first. How much goes from which to which is made of
 *   m(x)[k] = tanh(sum over i of router[k, i] * x[i] / rms(x) * norm[i] / hidden), k < n_states. */
enum { NRD_ALTUP_MAX_STATES = 8 };

typedef struct nrd_altup_router {
    const float *norm;   /* [hidden] */
    const float *router; /* [n_states, hidden] */
    float eps;           /* of the root mean square */
} nrd_altup_router;

/* states[q] += sum over p of (coefs[q * n_states + p] . m(states[0])) * states[p], of the states before; then active = states[0]. */
typedef struct nrd_altup_predict_args {
    int32_t n_tokens, hidden, n_states;
    void *states;
    nrd_altup_router router;
    const float *coefs; /* [n_states * n_states, n_states] */
    void *active;       /* [n_tokens, hidden] */
    nrd_dtype act_dtype;
} nrd_altup_predict_args;

/* a = x * x_scale + delta / rms(delta) * delta_weight; states[q] += (1 + coefs[q] . m(a)) * (a - states[0]), of the states
 * before; then out = states[0] * scale. */
typedef struct nrd_altup_correct_args {
    int32_t n_tokens, hidden, n_states;
    void *states;
    const void *x, *delta;     /* [n_tokens, hidden] */
    float x_scale;
    const float *delta_weight; /* [hidden] */
    nrd_altup_router router;   /* its eps is also that of the delta's norm */
    const float *coefs;        /* [n_states, n_states] */
    const float *scale;        /* [hidden] */
    void *out;                 /* [n_tokens, hidden]; may be x or delta */
    nrd_dtype act_dtype;
} nrd_altup_correct_args;

/* Rows of x get the root mean square of those of `like`: x[j, t] *= rms(like[t]) / max(rms(x[j, t]), sqrt(floor)). With `mean` it
 * gets the mean of like and of the n rows of each token. */
typedef struct nrd_altup_match_args {
    int32_t n_tokens, hidden, n;
    const void *like; /* [n_tokens, hidden] */
    void *x;          /* [n, n_tokens, hidden], in place */
    float floor;
    void *mean;       /* [n_tokens, hidden], or NULL; may be `like` */
    nrd_dtype act_dtype;
} nrd_altup_match_args;

#endif
