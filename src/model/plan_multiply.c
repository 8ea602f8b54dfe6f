/* SPDX-License-Identifier: Apache-2.0
 * The numbers that a layer's results are multiplied by, in Falcon-H1 and Command A+: which rows of which weight carry them. Called by plan.c;
 * plan_read.c multiplies. */
#include "model/needs.h"
#include "model/plan_internal.h"

#include <string.h>

static void multiply_all(nrd_plan_tensor *t, float factor)
{
    t->factors[0] = factor;
    t->factor_rows[0] = t->rows;
    t->n_factors = 1;
}

/* Rows of the first product of a state are those of gate, x, b, c and time steps. */
static void multiply_state_in(const nrd_model_spec *s, nrd_plan_tensor *t)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    const int64_t inner = (int64_t)r->n_heads * r->head_dim, keys = (int64_t)r->n_groups * r->n_state;
    const int64_t rows[NRD_PLAN_MAX_FACTORS] = {inner, inner, keys, keys, r->n_heads};

    t->n_factors = NRD_PLAN_MAX_FACTORS;
    memcpy(t->factor_rows, rows, sizeof rows);
    memcpy(t->factors, s->multipliers.state_in, sizeof t->factors);
}

nrd_error *nrd_plan_multiply(const nrd_model_spec *s, const char *weight, nrd_plan_tensor *t)
{
    const nrd_multipliers_spec *m = &s->multipliers;
    const struct {
        const char *weight;
        float factor;
    } whole[] = {{NRD_RECURRENT "out.weight", m->state_out}, {"attention.dense.weight", m->attn_out},
                 {"mlp.fc.weight", m->mlp_gate}, {"mlp.proj.weight", m->mlp_down}, {"mlp.shared.proj.weight", m->shared_down}};

    if (!m->any) {
        return NULL;
    }
    if (!strcmp(weight, NRD_RECURRENT "in.weight")) {
        multiply_state_in(s, t);
    }
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (!strcmp(weight, whole[i].weight) && (whole[i].factor < 1 || whole[i].factor > 1)) {
            multiply_all(t, whole[i].factor);
        }
    }
    if (t->n_factors > 0 && t->parts[0].src && t->parts[0].src->packed) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: quantized weights of a family whose results are multiplied by numbers of its "
                          "configuration", t->name);
    }
    return NULL;
}
