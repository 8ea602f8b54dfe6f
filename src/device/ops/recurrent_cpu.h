/* SPDX-License-Identifier: Apache-2.0
 * Kernels of layers with a state: a convolution over 16 channels at a time, heads of a selective scan and of the delta
 * rule, gated norms; behind rows_cpu.h, whose words it uses. Bound: the state, which each token reads and
 * writes once or twice; a head's stays in the cache. */
#include "device/cpu/simd.h"
#include "device/ops/ops.h"

static float softplus_of(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The sequence's part of a state: in its slot, or in `room` where it has none. The caller clears it if it begins. */
static float *state_of(const nrd_batch_view *b, int32_t seq, float *state, int64_t slot_size, int64_t at, float *room,
                       bool *begins)
{
    const int32_t slot = b->state_slot[seq];
    *begins = slot < 0 || b->positions[b->q_start[seq]] == 0;
    return slot < 0 ? room : state + slot * slot_size + at;
}

/* Channels [from, from + n) of a sequence, n up to 16. room: (kernel - 1) * 16 floats. */
static void short_conv_part(const nrd_short_conv_args *a, int32_t seq, int32_t from, int32_t n, float *room)
{
    const int back = a->kernel - 1;
    const int64_t channels = a->channels;
    float turned[NRD_SHORT_CONV_MAX * 16] = {0};
    vf h[NRD_SHORT_CONV_MAX], w[NRD_SHORT_CONV_MAX];
    bool begins;
    float *state = state_of(a->batch, seq, a->state, back * channels, from, room, &begins);
    const int64_t step = state == room ? 16 : channels;

    for (int k = 0; k <= back; k++) {
        for (int32_t c = 0; c < n; c++) {
            turned[k * 16 + c] = a->weight[(int64_t)(from + c) * a->kernel + k];
        }
        w[k] = vf_load(turned + k * 16);
    }
    for (int k = 0; k < back; k++) {
        h[k] = begins ? vf_zero() : load_some(state + k * step, n);
    }
    const vf bias = a->bias ? load_some(a->bias + from, n) : vf_zero();
    const int32_t end = a->batch->q_start[seq + 1];
    for (int64_t t = a->batch->q_start[seq]; t < end; t++) {
        const int64_t at = t * a->x_stride + from;
        vf u = load_some((const float *)a->x + at, n);
        if (a->in_gate) {
            u = vf_mul(u, load_some((const float *)a->in_gate + at, n));
        }
        vf y = vf_fma(w[back], u, bias);
        for (int k = 0; k < back; k++) {
            y = vf_fma(w[k], h[k], y);
            h[k] = k + 1 < back ? h[k + 1] : u;
        }
        if (a->act == NRD_ACT_SILU) {
            y = act_vec(NRD_ACT_SILU, y);
        }
        if (a->out_gate) {
            y = vf_mul(y, load_some((const float *)a->out_gate + at, n));
        }
        store_some((float *)a->out + t * channels + from, y, n);
    }
    for (int k = 0; k < back; k++) {
        store_some(state + k * step, h[k], n);
    }
}

/* One number of a head's input: its row of the state goes on, and gives what comes out but for d * x. */
NRD_INLINE float ssm_row(float *h, const float *decay, float x, const float *b, const float *c, int32_t n)
{
    const vf xs = vf_set1(x);
    vf sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        vf s = vf_mul(load_some(h + i, n - i), load_some(decay + i, n - i));
        s = vf_fma(xs, load_some(b + i, n - i), s);
        store_some(h + i, s, n - i);
        sum = vf_fma(s, load_some(c + i, n - i), sum);
    }
    return vf_sum(sum);
}

/* One head of a sequence. room: head_dim * n_state floats. */
static void ssm_head(const nrd_ssm_args *a, int32_t seq, int32_t head, float *room)
{
    const nrd_batch_view *b = a->batch;
    const int32_t n = a->n_state, dim = a->head_dim;
    const int64_t one = (int64_t)dim * n, group = head / (a->n_heads / a->n_groups);
    float decay[NRD_SSM_MAX_STATE];
    bool begins;
    float *h = state_of(b, seq, a->state, one * a->n_heads, one * head, room, &begins);

    if (begins) {
        memset(h, 0, (size_t)one * sizeof *h);
    }
    for (int64_t t = b->q_start[seq]; t < b->q_start[seq + 1]; t++) {
        const float *x = (const float *)a->x + t * a->x_stride + (int64_t)head * dim;
        const int64_t bc = t * a->bc_stride + group * n;
        float *out = (float *)a->out + (t * a->n_heads + head) * dim;
        float step = softplus_of(((const float *)a->dt)[t * a->dt_stride + head] + a->dt_bias[head]);
        step = fminf(fmaxf(step, a->dt_min), a->dt_max);
        const float all = a->a_of_states ? 0 : expf(step * a->a[head]);
        for (int32_t i = 0; i < n; i += 16) {
            const vf d = a->a_of_states ? vf_exp(vf_mul(vf_set1(step), load_some(a->a + (int64_t)head * n + i, n - i)))
                                        : vf_set1(all);
            store_some(decay + i, d, n - i);
        }
        for (int32_t p = 0; p < dim; p++) {
            out[p] = a->d[head] * x[p] +
                     ssm_row(h + (int64_t)p * n, decay, step * x[p], (const float *)a->b + bc, (const float *)a->c + bc, n);
        }
    }
}

static void unit_row(const float *x, int32_t n, float scale, float *out)
{
    vf sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        const vf v = load_some(x + i, n - i);
        sum = vf_fma(v, v, sum);
    }
    const vf f = vf_set1(scale / sqrtf(vf_sum(sum) + 1e-6f));
    for (int32_t i = 0; i < n; i += 16) {
        store_some(out + i, vf_mul(load_some(x + i, n - i), f), n - i);
    }
}

/* One token of a head: the state [k_dim][v_dim] is walked twice, row by row. */
static void delta_step(const nrd_delta_rule_args *a, float *h, const float *q, const float *k, const float *v, float decay,
                       float beta, float *out)
{
    const int32_t nk = a->k_dim, nv = a->v_dim;
    float change[NRD_DELTA_MAX_DIM] = {0};

    for (int32_t i = 0; i < nk; i++) {
        const vf key = vf_set1(k[i] * decay);
        for (int32_t j = 0; j < nv; j += 16) {
            const vf sum = vf_fma(load_some(h + (int64_t)i * nv + j, nv - j), key, load_some(change + j, nv - j));
            store_some(change + j, sum, nv - j);
        }
    }
    for (int32_t j = 0; j < nv; j++) {
        change[j] = (v[j] - change[j]) * beta;
        out[j] = 0;
    }
    for (int32_t i = 0; i < nk; i++) {
        const vf key = vf_set1(k[i]), query = vf_set1(q[i]), keeps = vf_set1(decay);
        float *row = h + (int64_t)i * nv;
        for (int32_t j = 0; j < nv; j += 16) {
            const vf s = vf_fma(key, load_some(change + j, nv - j), vf_mul(keeps, load_some(row + j, nv - j)));
            store_some(row + j, s, nv - j);
            store_some(out + j, vf_fma(query, s, load_some(out + j, nv - j)), nv - j);
        }
    }
}

/* One head of a sequence. room: k_dim * v_dim floats. */
static void delta_head(const nrd_delta_rule_args *a, int32_t seq, int32_t head, float *room)
{
    const nrd_batch_view *b = a->batch;
    const int64_t one = (int64_t)a->k_dim * a->v_dim, key_head = nrd_delta_key_head(a, head);
    float q[NRD_DELTA_MAX_DIM], k[NRD_DELTA_MAX_DIM];
    bool begins;
    float *h = state_of(b, seq, a->state, one * a->n_heads, one * head, room, &begins);

    if (begins) {
        memset(h, 0, (size_t)one * sizeof *h);
    }
    for (int64_t t = b->q_start[seq]; t < b->q_start[seq + 1]; t++) {
        const int64_t key = t * a->qkv_stride + key_head * a->k_dim, gate = t * a->gate_stride + head;
        const float alpha = ((const float *)a->alpha)[gate] + a->dt_bias[head];
        const float beta = (a->twice ? 2.0f : 1.0f) / (1.0f + expf(-((const float *)a->beta)[gate]));
        unit_row((const float *)a->q + key, a->k_dim, 1.0f / sqrtf((float)a->k_dim), q);
        unit_row((const float *)a->k + key, a->k_dim, 1.0f, k);
        delta_step(a, h, q, k, (const float *)a->v + t * a->qkv_stride + (int64_t)head * a->v_dim,
                   expf(a->a[head] * softplus_of(alpha)), beta, (float *)a->out + (t * a->n_heads + head) * a->v_dim);
    }
}

/* x W + b of n tokens, up to four, with one matrix of a head; rows of out are head_dim numbers. */
static void lru_products(const nrd_rg_lru_args *a, const float *x, int32_t n, const float *w, const float *bias, float *out)
{
    const int32_t dim = a->head_dim;
    const int64_t stride = (int64_t)a->n_heads * dim;

    for (int32_t j = 0; j < dim; j += 16) {
        vf sum[4];
        for (int t = 0; t < 4; t++) {
            sum[t] = load_some(bias + j, dim - j);
        }
        for (int32_t i = 0; i < dim; i++) {
            const vf row = load_some(w + (int64_t)i * dim + j, dim - j);
            for (int t = 0; t < 4; t++) { /* beyond n the last token again: no branch in the inner loop */
                sum[t] = vf_fma(vf_set1(x[(t < n ? t : n - 1) * stride + i]), row, sum[t]);
            }
        }
        for (int t = 0; t < n; t++) {
            store_some(out + t * dim + j, sum[t], dim - j);
        }
    }
}

NRD_INLINE vf sigmoid_vec(vf x)
{
    return vf_div(vf_set1(1), vf_add(vf_set1(1), vf_exp(vf_sub(vf_zero(), x))));
}

/* One token of a head behind its products. rate: -8 * softplus(decay). */
static void lru_step(const nrd_rg_lru_args *a, int64_t t, int32_t head, const float *in, const float *decay, const float *rate,
                     float *h)
{
    const int32_t dim = a->head_dim;
    const int64_t at = (t * a->n_heads + head) * dim;
    const bool first = a->batch->positions[t] == 0;
    const float *x = (const float *)a->x + at, *gate = (const float *)a->gate + t * a->gate_stride + (int64_t)head * dim;

    for (int32_t j = 0; j < dim; j += 16) {
        const int32_t n = dim - j;
        vf v = vf_mul(sigmoid_vec(load_some(in + j, n)), load_some(x + j, n));
        if (!first) {
            const vf keeps = vf_exp(vf_mul(sigmoid_vec(load_some(decay + j, n)), load_some(rate + j, n)));
            float most[16] = {0};
            store_some(most, vf_sub(vf_set1(1), vf_mul(keeps, keeps)), n);
            for (int k = 0; k < 16; k++) {
                most[k] = sqrtf(fmaxf(most[k], 0));
            }
            v = vf_fma(keeps, load_some(h + j, n), vf_mul(vf_load(most), v));
        }
        store_some(h + j, v, n);
        store_some((float *)a->out + at + j, vf_mul(v, act_vec(NRD_ACT_GELU_TANH, load_some(gate + j, n))), n);
    }
}

/* One head of a sequence. room: 10 * head_dim floats. */
static void rg_lru_head(const nrd_rg_lru_args *a, int32_t seq, int32_t head, float *room)
{
    const nrd_batch_view *b = a->batch;
    const int32_t dim = a->head_dim, end = b->q_start[seq + 1];
    const int64_t first = (int64_t)head * dim;
    float *in = room, *decay = in + 4 * dim, *rate = decay + 4 * dim;
    bool begins;
    float *h = state_of(b, seq, a->state, (int64_t)a->n_heads * dim, first, rate + dim, &begins);

    if (begins) {
        memset(h, 0, (size_t)dim * sizeof *h);
    }
    for (int32_t j = 0; j < dim; j++) {
        rate[j] = -8.0f * softplus_of(a->decay[first + j]);
    }
    for (int32_t t = b->q_start[seq]; t < end; t += 4) {
        const int32_t n = end - t < 4 ? end - t : 4;
        const float *x = (const float *)a->x + (int64_t)t * a->n_heads * dim + first;
        lru_products(a, x, n, a->in_weight + first * dim, a->in_bias + first, in);
        lru_products(a, x, n, a->decay_weight + first * dim, a->decay_bias + first, decay);
        for (int32_t k = 0; k < n; k++) {
            lru_step(a, t + k, head, in + k * dim, decay + k * dim, rate, h);
        }
    }
}

/* One token, which has no norm. */
static void gate_row(const nrd_gated_norm_args *a, int32_t token)
{
    const float *x = (const float *)a->x + (int64_t)token * a->width;
    const float *gates = (const float *)a->gate + (int64_t)token * a->gate_stride;
    float *out = (float *)a->out + (int64_t)token * a->width;

    for (int32_t i = 0; i < a->width; i += 16) {
        const int32_t n = a->width - i;
        const vf gate = load_some(gates + i, n), v = load_some(x + i, n);
        vf by = act_vec(NRD_ACT_SILU, gate);
        if (!a->gate_silu) {
            by = vf_div(vf_set1(1), vf_add(vf_set1(1), vf_exp(vf_sub(vf_zero(), gate))));
        }
        store_some(out + i, vf_mul(v, by), n);
    }
}

/* One token. */
static void gated_norm_row(const nrd_gated_norm_args *a, int32_t token)
{
    const int32_t n = a->width / a->n_groups;
    const float *gates = (const float *)a->gate + (int64_t)token * a->gate_stride;

    if (!a->weight) {
        gate_row(a, token);
        return;
    }
    for (int32_t from = 0; from < a->width; from += n) {
        const float *x = (const float *)a->x + (int64_t)token * a->width + from, *gate = gates + from;
        const float *w = a->weight + (a->shared_weight ? 0 : from);
        float *out = (float *)a->out + (int64_t)token * a->width + from;
        vf sum = vf_zero();
        for (int32_t i = 0; i < n; i += 16) {
            vf v = load_some(x + i, n - i);
            if (a->gate_first) {
                v = vf_mul(v, act_vec(NRD_ACT_SILU, load_some(gate + i, n - i)));
            }
            store_some(out + i, v, n - i);
            sum = vf_fma(v, v, sum);
        }
        const vf scale = vf_set1(1.0f / sqrtf(vf_sum(sum) / (float)n + a->eps));
        for (int32_t i = 0; i < n; i += 16) {
            vf v = vf_mul(vf_mul(load_some(out + i, n - i), scale), load_some(w + i, n - i));
            if (!a->gate_first) {
                v = vf_mul(v, act_vec(NRD_ACT_SILU, load_some(gate + i, n - i)));
            }
            store_some(out + i, v, n - i);
        }
    }
}
