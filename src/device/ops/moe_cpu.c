/* SPDX-License-Identifier: Apache-2.0
 * moe_route and moe_sum on the CPU. Routing: 16 tokens a task, then one task sorts the pairs, which is a counting
 * sort: two passes over a few bytes for each pair. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ROUTE_TOKENS = 16, SUM_COLS = 2048 };

/* ---- route ---- */

static void route_token(const nrd_cpu_run *r, const nrd_moe_route_args *a, int64_t t)
{
    const nrd_moe_pairs *p = &a->pairs;
    const float *logits = a->logits + t * a->logits_stride;
    float *s = (float *)(void *)r->scratch, sum = 0;
    int32_t *chosen = p->expert + t * p->top_k, at;
    float *weight = p->weight + t * p->top_k;

    if (a->score == NRD_MOE_SPARSEMIXER) { /* of a few experts: not worth vectors */
        nrd_moe_sparsemixer(a, logits, s, chosen, weight);
        return;
    }
    if (a->score == NRD_MOE_SOFTMAX) {
        const float top = r->k->max_row(logits, p->n_experts, &at);
        const float total = (float)r->k->exp_row(logits, p->n_experts, top, 1.0f, s);
        r->k->scale_row(s, 1.0f / total, NULL, p->n_experts);
    } else {
        for (int32_t e = 0; e < p->n_experts; e++) {
            s[e] = 1.0f / (1.0f + expf(-logits[e]));
        }
    }
    nrd_moe_choose(a, s, s + p->n_experts, chosen);
    for (int32_t j = 0; j < p->top_k; j++) {
        weight[j] = s[chosen[j]];
        sum += weight[j];
    }
    for (int32_t j = 0; j < p->top_k; j++) {
        weight[j] = (a->normalize ? weight[j] / sum : weight[j]) * a->scale * (a->expert_scale ? a->expert_scale[chosen[j]] : 1);
    }
}

static void run_route(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_moe_route_args *a = &c->u.moe_route;

    if (phase == 0) {
        const int32_t end = (task + 1) * ROUTE_TOKENS;
        for (int32_t t = task * ROUTE_TOKENS; t < end && t < a->n_tokens; t++) {
            route_token(r, a, t);
        }
        return;
    }
    nrd_moe_sort(&a->pairs, a->n_tokens);
}

static const nrd_cpu_op op_route = {run_route};

nrd_error *nrd_moe_route_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_moe_route_args *a = &c->u.moe_route;

    (void)n_threads;
    c->op = &op_route;
    c->n_tasks[0] = (a->n_tokens + ROUTE_TOKENS - 1) / ROUTE_TOKENS;
    c->n_tasks[1] = a->n_tokens > 0;
    c->scratch_bytes = (size_t)(2 * a->pairs.n_experts + a->n_groups) * sizeof(float) + 64;
    return NULL;
}

/* ---- sum ---- */

/* i[0]: column tasks of a token, i[1]: tokens of a task. */
static void run_sum(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_moe_sum_args *a = &c->u.moe_sum;
    const nrd_moe_pairs *p = &a->pairs;
    const int64_t from = (int64_t)(task % c->i[0]) * SUM_COLS;
    const int64_t n = a->hidden - from < SUM_COLS ? a->hidden - from : SUM_COLS;
    const float one = 1;
    const int32_t first = p->first[0], end = p->first[p->n_experts];
    const int32_t t0 = task / c->i[0] * c->i[1], t1 = t0 + c->i[1] < a->n_tokens ? t0 + c->i[1] : a->n_tokens;

    (void)phase;
    for (int64_t t = t0; t < t1; t++) {
        const float *shared = a->shared ? (const float *)a->shared + t * a->hidden + from : NULL;
        float *out = (float *)a->out + t * a->hidden + from;
        if (!shared) {
            memset(out, 0, (size_t)n * sizeof *out);
        } else if (shared != out) {
            memcpy(out, shared, (size_t)n * sizeof *out);
        }
        if (a->shared_gate) {
            r->k->scale_row(out, 1.0f / (1.0f + expf(-a->shared_gate[t * a->gate_stride])), NULL, n);
        }
        for (int32_t j = 0; j < p->top_k; j++) {
            const int64_t pair = p->place[t * p->top_k + j];
            if (pair < first || pair >= end) {
                continue; /* another rank's */
            }
            r->k->lora_add(NRD_DTYPE_F32, (const float *)a->y + pair * a->hidden + from, n, 1,
                           p->weight ? &p->weight[t * p->top_k + j] : &one, 0, 1, n, out, 0);
        }
    }
}

static const nrd_cpu_op op_sum = {run_sum};

nrd_error *nrd_moe_sum_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_moe_sum_args *a = &c->u.moe_sum;

    if (a->act_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: moe_sum of %s", nrd_dtype_name(a->act_dtype));
    }
    c->op = &op_sum;
    c->i[0] = (a->hidden + SUM_COLS - 1) / SUM_COLS;
    c->i[1] = a->n_tokens / (n_threads * 4) + 1;
    c->n_tasks[0] = c->i[0] * ((a->n_tokens + c->i[1] - 1) / c->i[1]);
    return NULL;
}
