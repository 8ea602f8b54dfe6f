/* SPDX-License-Identifier: Apache-2.0
 * Operations of layers that remember a sequence in a state: short_conv, ssm, delta_rule, rg_lru, gated_norm. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* ---- checks ---- */

static nrd_error *check_batch(const char *op, const nrd_batch_view *b, nrd_dtype act)
{
    if (!b || b->n_tokens < 0 || b->n_seqs < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no batch", op);
    }
    if (b->n_tokens > 0 && (!b->positions || !b->q_start || !b->state_slot)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a batch without positions, q_start or state_slot", op);
    }
    if (b->tree_mask) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: token trees", op);
    }
    if (!nrd_is_float_dtype(act)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: activations of %s", op, nrd_dtype_name(act));
    }
    return NULL;
}

nrd_error *nrd_short_conv_check(const nrd_short_conv_args *a)
{
    NRD_TRY(check_batch("short_conv", a->batch, a->act_dtype));
    if (a->channels < 1 || a->kernel < 2 || a->kernel > NRD_SHORT_CONV_MAX || a->x_stride < a->channels) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "short_conv: %d channels, kernel %d, rows of %lld", a->channels, a->kernel,
                          (long long)a->x_stride);
    }
    if (a->act != NRD_ACT_NONE && a->act != NRD_ACT_SILU) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "short_conv: activation %d", (int)a->act);
    }
    if (a->batch->n_tokens > 0 && (!a->x || !a->weight || !a->state || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "short_conv: x, weight, state or out is missing");
    }
    return NULL;
}

nrd_error *nrd_ssm_check(const nrd_ssm_args *a)
{
    NRD_TRY(check_batch("ssm", a->batch, a->act_dtype));
    if (a->n_heads < 1 || a->head_dim < 1 || a->n_groups < 1 || a->n_heads % a->n_groups || a->n_state < 1 ||
        a->n_state > NRD_SSM_MAX_STATE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "ssm: %d heads of %d in %d groups, state %d", a->n_heads, a->head_dim,
                          a->n_groups, a->n_state);
    }
    if (a->x_stride < (int64_t)a->n_heads * a->head_dim || a->bc_stride < (int64_t)a->n_groups * a->n_state ||
        a->dt_stride < a->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "ssm: rows of %lld, %lld and %lld", (long long)a->x_stride,
                          (long long)a->bc_stride, (long long)a->dt_stride);
    }
    if (a->batch->n_tokens > 0 && (!a->x || !a->b || !a->c || !a->dt || !a->a || !a->d || !a->dt_bias || !a->state ||
                                   !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "ssm: an array is missing");
    }
    return NULL;
}

nrd_error *nrd_delta_rule_check(const nrd_delta_rule_args *a)
{
    NRD_TRY(check_batch("delta_rule", a->batch, a->act_dtype));
    if (a->n_heads < 1 || a->n_k_heads < 1 || a->n_heads % a->n_k_heads || a->k_dim < 1 || a->v_dim < 1 ||
        a->k_dim > NRD_DELTA_MAX_DIM || a->v_dim > NRD_DELTA_MAX_DIM) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "delta_rule: %d heads of %d, %d of keys of %d", a->n_heads, a->v_dim,
                          a->n_k_heads, a->k_dim);
    }
    const int64_t keys = (int64_t)a->n_k_heads * a->k_dim, values = (int64_t)a->n_heads * a->v_dim;
    if (a->qkv_stride < keys || a->qkv_stride < values || a->gate_stride < a->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "delta_rule: rows of %lld and %lld", (long long)a->qkv_stride,
                          (long long)a->gate_stride);
    }
    if (a->batch->n_tokens > 0 && (!a->q || !a->k || !a->v || !a->alpha || !a->beta || !a->a || !a->dt_bias ||
                                   !a->state || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "delta_rule: an array is missing");
    }
    return NULL;
}

nrd_error *nrd_rg_lru_check(const nrd_rg_lru_args *a)
{
    NRD_TRY(check_batch("rg_lru", a->batch, a->act_dtype));
    if (a->n_heads < 1 || a->head_dim < 1 || a->head_dim > NRD_RG_LRU_MAX_DIM ||
        a->gate_stride < (int64_t)a->n_heads * a->head_dim) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rg_lru: %d heads of %d, gates of %lld", a->n_heads, a->head_dim,
                          (long long)a->gate_stride);
    }
    if (a->batch->n_tokens > 0 && (!a->x || !a->gate || !a->in_weight || !a->in_bias || !a->decay_weight || !a->decay_bias ||
                                   !a->decay || !a->state || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rg_lru: an array is missing");
    }
    return NULL;
}

nrd_error *nrd_gated_norm_check(const nrd_gated_norm_args *a)
{
    if (a->n_tokens < 0 || a->width < 1 || a->n_groups < 1 || a->width % a->n_groups || a->gate_stride < a->width) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "gated_norm: %d tokens of %d in %d groups, gates of %lld", a->n_tokens,
                          a->width, a->n_groups, (long long)a->gate_stride);
    }
    if (!nrd_is_float_dtype(a->act_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "gated_norm: activations of %s", nrd_dtype_name(a->act_dtype));
    }
    if (a->n_tokens > 0 && (!a->x || !a->gate || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "gated_norm: an array is missing");
    }
    return NULL;
}

/* ---- references ---- */

/* A copy of the sequence's state of n numbers, which it begins with. */
static void begin(const nrd_batch_view *b, int32_t seq, const float *state, int64_t n, float *out)
{
    const int32_t slot = b->state_slot[seq];
    memset(out, 0, (size_t)n * sizeof *out);
    if (slot >= 0 && b->q_start[seq] < b->q_start[seq + 1] && b->positions[b->q_start[seq]] > 0) {
        memcpy(out, state + slot * n, (size_t)n * sizeof *out);
    }
}

static void keep(const nrd_batch_view *b, int32_t seq, float *state, int64_t n, const float *h)
{
    const int32_t slot = b->state_slot[seq];
    if (slot >= 0 && b->q_start[seq] < b->q_start[seq + 1]) {
        memcpy(state + slot * n, h, (size_t)n * sizeof *h);
    }
}

static float conv_input(const nrd_short_conv_args *a, int64_t t, int64_t c)
{
    const int64_t at = t * a->x_stride + c;
    const float x = nrd_load_f32(a->act_dtype, a->x, at);
    return a->in_gate ? x * nrd_load_f32(a->act_dtype, a->in_gate, at) : x;
}

void nrd_short_conv_ref(const nrd_short_conv_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int64_t n = a->channels, back = a->kernel - 1;
    float *h = nrd_xmalloc((size_t)(back * n) * sizeof *h);

    for (int32_t s = 0; s < b->n_seqs; s++) {
        begin(b, s, a->state, back * n, h);
        for (int64_t t = b->q_start[s]; t < b->q_start[s + 1]; t++) {
            for (int64_t c = 0; c < n; c++) {
                const float *w = a->weight + c * a->kernel;
                const float u = conv_input(a, t, c);
                double sum = (a->bias ? (double)a->bias[c] : 0) + (double)w[back] * (double)u;
                for (int64_t k = 0; k < back; k++) {
                    sum += (double)w[k] * (double)h[k * n + c];
                }
                sum = a->act == NRD_ACT_SILU ? silu(sum) : sum;
                if (a->out_gate) {
                    sum *= (double)nrd_load_f32(a->act_dtype, a->out_gate, t * a->x_stride + c);
                }
                nrd_store_f32(a->act_dtype, a->out, t * n + c, (float)sum);
                for (int64_t k = 0; k + 1 < back; k++) {
                    h[k * n + c] = h[(k + 1) * n + c];
                }
                h[(back - 1) * n + c] = u;
            }
        }
        keep(b, s, a->state, back * n, h);
    }
    free(h);
}

static void ssm_token(const nrd_ssm_args *a, int64_t t, int64_t head, float *h)
{
    const int64_t group = head / (a->n_heads / a->n_groups), n = a->n_state;
    const int64_t bc = t * a->bc_stride + group * n, x0 = t * a->x_stride + head * a->head_dim;
    const double dt = (double)nrd_load_f32(a->act_dtype, a->dt, t * a->dt_stride + head) + (double)a->dt_bias[head];
    const double step = fmin(fmax(softplus(dt), (double)a->dt_min), (double)a->dt_max);

    for (int64_t p = 0; p < a->head_dim; p++) {
        const double x = (double)nrd_load_f32(a->act_dtype, a->x, x0 + p);
        double sum = (double)a->d[head] * x;
        for (int64_t i = 0; i < n; i++) {
            const double rate = (double)(a->a_of_states ? a->a[head * n + i] : a->a[head]);
            const double v = exp(step * rate) * (double)h[p * n + i] +
                             step * x * (double)nrd_load_f32(a->act_dtype, a->b, bc + i);
            h[p * n + i] = (float)v;
            sum += v * (double)nrd_load_f32(a->act_dtype, a->c, bc + i);
        }
        nrd_store_f32(a->act_dtype, a->out, (t * a->n_heads + head) * a->head_dim + p, (float)sum);
    }
}

void nrd_ssm_ref(const nrd_ssm_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int64_t one = (int64_t)a->head_dim * a->n_state, n = one * a->n_heads;
    float *h = nrd_xmalloc((size_t)n * sizeof *h);

    for (int32_t s = 0; s < b->n_seqs; s++) {
        begin(b, s, a->state, n, h);
        for (int64_t t = b->q_start[s]; t < b->q_start[s + 1]; t++) {
            for (int64_t head = 0; head < a->n_heads; head++) {
                ssm_token(a, t, head, h + head * one);
            }
        }
        keep(b, s, a->state, n, h);
    }
    free(h);
}

/* out[n] = a vector of length 1, times scale. */
static void unit(nrd_dtype type, const void *x, int64_t at, int64_t n, double scale, double *out)
{
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++) {
        out[i] = (double)nrd_load_f32(type, x, at + i);
        sum += out[i] * out[i];
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] *= scale / sqrt(sum);
    }
}

static void delta_token(const nrd_delta_rule_args *a, int64_t t, int64_t head, float *h)
{
    const int64_t key_head = nrd_delta_key_head(a, (int32_t)head), nk = a->k_dim, nv = a->v_dim;
    const int64_t key = t * a->qkv_stride + key_head * nk, gate = t * a->gate_stride + head;
    const double alpha = (double)nrd_load_f32(a->act_dtype, a->alpha, gate) + (double)a->dt_bias[head];
    const double beta = (a->twice ? 2 : 1) / (1 + exp(-(double)nrd_load_f32(a->act_dtype, a->beta, gate)));
    const double decay = exp((double)a->a[head] * softplus(alpha));
    double q[NRD_DELTA_MAX_DIM], k[NRD_DELTA_MAX_DIM];

    unit(a->act_dtype, a->q, key, nk, 1 / sqrt((double)nk), q);
    unit(a->act_dtype, a->k, key, nk, 1, k);
    for (int64_t j = 0; j < nv; j++) {
        double known = 0, sum = 0;
        for (int64_t i = 0; i < nk; i++) {
            known += decay * (double)h[i * nv + j] * k[i];
        }
        const double v = (double)nrd_load_f32(a->act_dtype, a->v, t * a->qkv_stride + head * nv + j);
        for (int64_t i = 0; i < nk; i++) {
            const double s = decay * (double)h[i * nv + j] + k[i] * (v - known) * beta;
            h[i * nv + j] = (float)s;
            sum += s * q[i];
        }
        nrd_store_f32(a->act_dtype, a->out, (t * a->n_heads + head) * nv + j, (float)sum);
    }
}

void nrd_delta_rule_ref(const nrd_delta_rule_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int64_t one = (int64_t)a->k_dim * a->v_dim, n = one * a->n_heads;
    float *h = nrd_xmalloc((size_t)n * sizeof *h);

    for (int32_t s = 0; s < b->n_seqs; s++) {
        begin(b, s, a->state, n, h);
        for (int64_t t = b->q_start[s]; t < b->q_start[s + 1]; t++) {
            for (int64_t head = 0; head < a->n_heads; head++) {
                delta_token(a, t, head, h + head * one);
            }
        }
        keep(b, s, a->state, n, h);
    }
    free(h);
}

/* sigmoid(x W + b) of number j of a head. */
static double lru_gate(const nrd_rg_lru_args *a, int64_t t, int64_t head, int64_t j, const float *w, const float *bias)
{
    const int64_t n = a->head_dim, x0 = (t * a->n_heads + head) * n;
    double sum = (double)bias[head * n + j];
    for (int64_t i = 0; i < n; i++) {
        sum += (double)nrd_load_f32(a->act_dtype, a->x, x0 + i) * (double)w[(head * n + i) * n + j];
    }
    return 1 / (1 + exp(-sum));
}

static void lru_token(const nrd_rg_lru_args *a, int64_t t, int64_t head, float *h)
{
    const int64_t n = a->head_dim, x0 = (t * a->n_heads + head) * n;
    const bool first = a->batch->positions[t] == 0;

    for (int64_t j = 0; j < n; j++) {
        const double in = lru_gate(a, t, head, j, a->in_weight, a->in_bias);
        const double log_a = -8 * lru_gate(a, t, head, j, a->decay_weight, a->decay_bias) *
                             softplus((double)a->decay[head * n + j]);
        const double x = in * (double)nrd_load_f32(a->act_dtype, a->x, x0 + j);
        const double v = first ? x : exp(log_a) * (double)h[j] + sqrt(-expm1(2 * log_a)) * x;
        const double g = (double)nrd_load_f32(a->act_dtype, a->gate, t * a->gate_stride + head * n + j);
        h[j] = (float)v;
        nrd_store_f32(a->act_dtype, a->out, x0 + j,
                      (float)(v * 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))));
    }
}

void nrd_rg_lru_ref(const nrd_rg_lru_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int64_t n = (int64_t)a->n_heads * a->head_dim;
    float *h = nrd_xmalloc((size_t)n * sizeof *h);

    for (int32_t s = 0; s < b->n_seqs; s++) {
        begin(b, s, a->state, n, h);
        for (int64_t t = b->q_start[s]; t < b->q_start[s + 1]; t++) {
            for (int64_t head = 0; head < a->n_heads; head++) {
                lru_token(a, t, head, h + head * a->head_dim);
            }
        }
        keep(b, s, a->state, n, h);
    }
    free(h);
}

void nrd_gated_norm_ref(const nrd_gated_norm_args *a)
{
    const int64_t n = a->width / a->n_groups;
    double *u = nrd_xmalloc((size_t)n * sizeof *u);

    for (int64_t t = 0; t < a->n_tokens && !a->weight; t++) {
        for (int64_t i = 0; i < a->width; i++) {
            const double gate = (double)nrd_load_f32(a->act_dtype, a->gate, t * a->gate_stride + i);
            const double x = (double)nrd_load_f32(a->act_dtype, a->x, t * a->width + i);
            nrd_store_f32(a->act_dtype, a->out, t * a->width + i, (float)(a->gate_silu ? x * silu(gate) : x / (1 + exp(-gate))));
        }
    }

    for (int64_t t = 0; t < a->n_tokens && a->weight; t++) {
        for (int64_t from = 0; from < a->width; from += n) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) {
                u[i] = (double)nrd_load_f32(a->act_dtype, a->x, t * a->width + from + i);
                if (a->gate_first) {
                    u[i] *= silu((double)nrd_load_f32(a->act_dtype, a->gate, t * a->gate_stride + from + i));
                }
                sum += u[i] * u[i];
            }
            const double scale = 1 / sqrt(sum / (double)n + (double)a->eps);
            for (int64_t i = 0; i < n; i++) {
                double v = u[i] * scale * (double)a->weight[(a->shared_weight ? 0 : from) + i];
                if (!a->gate_first) {
                    v *= silu((double)nrd_load_f32(a->act_dtype, a->gate, t * a->gate_stride + from + i));
                }
                nrd_store_f32(a->act_dtype, a->out, t * a->width + from + i, (float)v);
            }
        }
    }
    free(u);
}
