/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/rope.h"

#include "engine/run/operations.h"

nrd_error *nrd_run_init_rope(nrd_runner *r, const nrd_rope_spec *rope, nrd_rope_table *out)
{
    float host[NRD_SPEC_MAX_ROTARY / 2];
    void *p = NULL;

    *out = (nrd_rope_table){.scale = 1};
    if (rope->kind == NRD_ROPE_NONE) {
        return NULL;
    }
    if (rope->rotary_dim <= 0 || rope->rotary_dim > NRD_SPEC_MAX_ROTARY || rope->rotary_dim % 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rotary dimension %d is out of range",
                          rope->rotary_dim);
    }
    if (rope->scaling == NRD_ROPE_SCALING_FACTORS && !r->w.rope_factors) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the engine has no rope_factors");
    }
    nrd_rope_spec fixed = nrd_rope_for_length(rope, nrd_engine_limits(r->engine)->max_seq_len);
    out->scale = nrd_rope_inv_freq(&fixed, r->w.rope_factors, host);
    size_t bytes = (size_t)rope->rotary_dim / 2 * sizeof(float);
    NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, "rope"));
    out->inv_freq = p;
    return nrd_run_upload(r, p, host, bytes);
}

static nrd_error *init_pair_axis(nrd_runner *r)
{
    const nrd_rope_spec *rope = &r->spec->rope;
    uint8_t host[NRD_SPEC_MAX_ROTARY / 2] = {0};
    int32_t at = 0;
    void *p = NULL;

    if (!nrd_rope_has_axes(rope)) {
        return NULL;
    }
    for (int a = 0; a < NRD_ROPE_AXES && !rope->sections_by_turns; a++) {
        for (int32_t i = 0; i < rope->sections[a]; i++) {
            host[at++] = (uint8_t)a;
        }
    }
    for (int32_t i = 0; i < rope->rotary_dim / 2 && rope->sections_by_turns; i++) {
        const int a = i % NRD_ROPE_AXES;
        host[i] = i / NRD_ROPE_AXES < rope->sections[a] ? (uint8_t)a : 0;
    }
    NRD_TRY(nrd_run_alloc(r, &p, sizeof host, 1, "rope"));
    r->ropes.pair_axis = p;
    return nrd_run_upload(r, p, host, sizeof host);
}

nrd_error *nrd_run_init_ropes(nrd_runner *r)
{
    NRD_TRY(nrd_run_init_rope(r, &r->spec->rope, &r->ropes.all));
    NRD_TRY(nrd_run_init_rope(r, &r->spec->rope_local, &r->ropes.local));
    return init_pair_axis(r);
}

void nrd_run_free_ropes(nrd_runner *r)
{
    nrd_run_free(r, r->ropes.all.inv_freq);
    nrd_run_free(r, r->ropes.local.inv_freq);
    nrd_run_free(r, r->ropes.pair_axis);
}
