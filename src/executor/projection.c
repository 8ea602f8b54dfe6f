/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/projection.h"

#include "base/mem.h"
#include "executor/dense.h"
#include "model/needs.h"

#include <stdlib.h>
#include <string.h>

struct nrd_projection {
    int32_t n, sizes[NRD_SPEC_MAX_PROJECTIONS + 1]; /* hidden, and what each gives */
    nrd_dense_act acts[NRD_SPEC_MAX_PROJECTIONS];
    float *weights[NRD_SPEC_MAX_PROJECTIONS], *biases[NRD_SPEC_MAX_PROJECTIONS]; /* biases: NULL where there are none */
    float *scratch[NRD_SPEC_MAX_PROJECTIONS];                                    /* what each gives */
};

nrd_error *nrd_projection_new(nrd_projection **out, const nrd_engine *e)
{
    static const char *const names[NRD_SPEC_MAX_PROJECTIONS][2] = {{NRD_PROJECTION "1.weight", NRD_PROJECTION "1.bias"},
                                                                   {NRD_PROJECTION "2.weight", NRD_PROJECTION "2.bias"}};
    const nrd_model_spec *m = nrd_engine_spec(e);
    nrd_error *err = NULL;
    nrd_projection *p = NULL;

    *out = NULL;
    if (m->n_projections == 0) {
        return NULL;
    }
    NRD_NEW_GOTO(p, 1, err, fail);
    p->n = m->n_projections;
    p->sizes[0] = m->hidden;
    for (int32_t i = 0; i < p->n; i++) {
        p->sizes[i + 1] = m->projections[i].size;
        p->acts[i] = nrd_dense_act_of(m->projections[i].act);
        NRD_NEW_GOTO(p->scratch[i], p->sizes[i + 1], err, fail);
        NRD_TRY_GOTO(nrd_dense_take(e, names[i][0], &p->weights[i]), err, fail);
        NRD_TRY_GOTO(nrd_dense_take(e, names[i][1], &p->biases[i]), err, fail);
    }
    *out = p;
    return NULL;

fail:
    nrd_projection_free(p);
    return err;
}

void nrd_projection_free(nrd_projection *p)
{
    for (int32_t i = 0; p && i < NRD_SPEC_MAX_PROJECTIONS; i++) {
        free(p->weights[i]);
        free(p->biases[i]);
        free(p->scratch[i]);
    }
    free(p);
}

int32_t nrd_projection_size(const nrd_projection *p)
{
    return p ? p->sizes[p->n] : 0;
}

void nrd_projection_run(nrd_projection *p, const float *state, float *out)
{
    const float *x = state;

    for (int32_t i = 0; i < p->n; i++) {
        nrd_dense_product(p->weights[i], p->biases[i], x, p->sizes[i + 1], p->sizes[i], p->acts[i], p->scratch[i]);
        x = p->scratch[i];
    }
    memcpy(out, x, (size_t)p->sizes[p->n] * sizeof *out);
}
