/* SPDX-License-Identifier: Apache-2.0
 * Refuses a device that lacks a mode which the network asks for, before weights are loaded. Also the slopes of
 * position biases. */
#include "base/mem.h"
#include "engine/run/runner_internal.h"
#include "model/features.h"

#include <math.h>

nrd_error *nrd_run_check_features(const nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_feature_row *f;
    nrd_device_info info;

    for (int i = 0; (f = nrd_feature_at(i)) != NULL; i++) {
        if (f->asks(r->spec) && !(ops->has_feature && ops->has_feature(r->dev, f->feature))) {
            ops->get_info(r->dev, &info);
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s models need %s, which '%s' has not; use the device \"cpu\"",
                              r->spec->model_type, f->name, info.name);
        }
    }
    return NULL;
}

/* Of head i of n: a geometric series; where n is no power of two, the rest takes every other slope of the
 * series for twice as many (Press et al., 2022, and the code that its models were trained with). */
static double slope(int32_t i, int32_t n, double max)
{
    int32_t p = 1;
    while (2 * p <= n) {
        p *= 2;
    }
    return i < p ? exp2(-max * (i + 1) / p) : exp2(-max * (2 * (i - p) + 1) / (2.0 * p));
}

nrd_error *nrd_run_init_alibi(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const int32_t all = r->model->n_heads, first = r->cfg.rank.rank % m->tp_size * m->n_heads;
    nrd_error *err = NULL;
    float *host = NULL;
    void *p = NULL;

    if (!m->alibi) {
        return NULL;
    }
    NRD_NEW_GOTO(host, m->n_heads, err, done);
    for (int32_t i = 0; i < m->n_heads; i++) {
        host[i] = (float)slope(first + i, all, (double)m->alibi_max) * (m->alibi_scaled ? m->attn_scale : 1.0f);
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, (size_t)m->n_heads, sizeof *host, "rope"), err, done);
    r->alibi = p;
    err = nrd_run_upload(r, p, host, (size_t)m->n_heads * sizeof *host);
done:
    free(host);
    return err;
}
