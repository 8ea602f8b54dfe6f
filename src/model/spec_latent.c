/* SPDX-License-Identifier: Apache-2.0
 * Sizes of latent attention: ranges, and reading and writing them as JSON. Called by model/spec.c. */
#include "model/spec_latent.h"

#include <math.h>

static nrd_error *in_range(const char *field, int32_t v, int32_t lo, int32_t hi)
{
    if (v < lo || v > hi) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be between %d and %d, got %d", field, lo, hi, v);
    }
    return NULL;
}

nrd_error *nrd_latent_spec_check(const nrd_model_spec *s)
{
    const nrd_latent_spec *l = &s->latent;

    if (l->kv_rank == 0 && l->q_rank == 0) {
        return NULL;
    }
    NRD_TRY(in_range("kv_lora_rank", l->kv_rank, 1, NRD_LATENT_MAX_RANK));
    NRD_TRY(in_range("q_lora_rank", l->q_rank, 0, 1 << 16));
    NRD_TRY(in_range("qk_nope_head_dim", l->nope_dim, 1, NRD_LATENT_MAX_HEAD_DIM));
    NRD_TRY(in_range("qk_rope_head_dim", l->rope_dim, 2, NRD_LATENT_MAX_ROPE_DIM));
    NRD_TRY(in_range("v_head_dim", l->v_dim, 1, NRD_LATENT_MAX_HEAD_DIM));
    if (s->head_dim != l->nope_dim + l->rope_dim || s->n_kv_heads != s->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent attention: heads of %d must be qk_nope_head_dim + qk_rope_head_dim "
                          "= %d wide, and as many for keys (%d) as for queries (%d)", s->head_dim,
                          l->nope_dim + l->rope_dim, s->n_kv_heads, s->n_heads);
    }
    if (s->rope.kind == NRD_ROPE_NONE || s->rope.rotary_dim != l->rope_dim) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent attention: rotary positions over %d, expected qk_rope_head_dim = %d",
                          s->rope.rotary_dim, l->rope_dim);
    }
    if (!(l->norm_eps >= 0 && l->norm_eps < 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent attention: norm_epsilon must be between 0 and 1, got %g",
                          (double)l->norm_eps);
    }
    if (s->qkv_bias || s->dense_bias || s->qk_norm || s->alibi || s->encoder || s->sink_logits || s->parallel ||
        s->learned_positions || s->sum_norms || s->attn_softcap > 0 || s->rope_local.kind != NRD_ROPE_NONE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "latent attention with biases (attention_bias), norms of heads, other "
                          "positions than rotary ones or another order of a layer's parts is not supported");
    }
    return NULL;
}

void nrd_latent_spec_put(const nrd_latent_spec *l, nrd_str *o)
{
    nrd_str_printf(o, "{\n      \"kv_rank\": %d,\n      \"q_rank\": %d,\n      \"nope_dim\": %d,\n", l->kv_rank, l->q_rank,
                   l->nope_dim);
    nrd_str_printf(o, "      \"rope_dim\": %d,\n      \"v_dim\": %d,\n      \"norm_eps\": ", l->rope_dim, l->v_dim);
    nrd_json_put_float(o, l->norm_eps);
    nrd_str_puts(o, "\n    }");
}

/* 32 bits, whatever the file says; the ranges are checked later. */
static int32_t size_of(const nrd_json *o, const char *key)
{
    int64_t v = nrd_json_get_int(o, key, 0);
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
}

nrd_error *nrd_latent_spec_read(const nrd_json *o, nrd_latent_spec *l)
{
    if (!o) {
        return NULL;
    }
    if (!nrd_json_is(o, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected an object, got %s", nrd_json_type_name(o));
    }
    l->kv_rank = size_of(o, "kv_rank");
    l->q_rank = size_of(o, "q_rank");
    l->nope_dim = size_of(o, "nope_dim");
    l->rope_dim = size_of(o, "rope_dim");
    l->v_dim = size_of(o, "v_dim");
    l->norm_eps = (float)nrd_json_get_num(o, "norm_eps", 1e-6);
    return l->kv_rank > 0 ? NULL : in_range("kv_rank", l->kv_rank, 1, NRD_LATENT_MAX_RANK);
}
