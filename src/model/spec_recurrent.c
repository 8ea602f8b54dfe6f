/* SPDX-License-Identifier: Apache-2.0
 * Sizes and rules of layers that remember a sequence in a state: ranges, and reading and writing them as JSON. Called by
 * model/spec.c. */
#include "model/spec_recurrent.h"
#include "model/spec_range.h"

#include <math.h>
#include <string.h>

enum { MAX_INNER = 1 << 18, SNAPSHOTS_A_SEQUENCE = 4, SNAPSHOTS_PART = 16 };

static const char *const kind_names[] = {[NRD_RECURRENT_NONE] = "none", [NRD_RECURRENT_SHORT_CONV] = "short_conv",
                                         [NRD_RECURRENT_MAMBA2] = "mamba2", [NRD_RECURRENT_DELTA] = "delta_rule",
                                         [NRD_RECURRENT_MAMBA] = "mamba", [NRD_RECURRENT_RG_LRU] = "rg_lru"};
enum { N_KINDS = (int)(sizeof kind_names / sizeof kind_names[0]) };

/* ---- sizes ---- */

int64_t nrd_recurrent_inner(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    return r->kind == NRD_RECURRENT_SHORT_CONV ? s->hidden : (int64_t)r->n_heads * r->head_dim;
}

int64_t nrd_recurrent_channels(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    const bool only_x = r->kind == NRD_RECURRENT_SHORT_CONV || r->kind == NRD_RECURRENT_MAMBA || r->kind == NRD_RECURRENT_RG_LRU;
    return nrd_recurrent_inner(s) + (only_x ? 0 : 2 * (int64_t)r->n_groups * r->n_state);
}

int64_t nrd_recurrent_in(const nrd_model_spec *s)
{
    switch (s->recurrent.kind) {
    case NRD_RECURRENT_SHORT_CONV: /* both gates, x */
        return 3 * (int64_t)s->hidden;
    case NRD_RECURRENT_MAMBA2: /* gate, x, b, c, dt */
        return nrd_recurrent_inner(s) + nrd_recurrent_channels(s) + s->recurrent.n_heads;
    case NRD_RECURRENT_DELTA: /* q, k, v */
    case NRD_RECURRENT_RG_LRU: /* x */
        return nrd_recurrent_channels(s);
    case NRD_RECURRENT_MAMBA: /* x, gate */
        return 2 * nrd_recurrent_inner(s);
    case NRD_RECURRENT_NONE:
        break;
    }
    return 0;
}

int64_t nrd_recurrent_row(const nrd_model_spec *s)
{
    /* gate, beta and alpha are products of their own */
    const bool has_beta = s->recurrent.kind == NRD_RECURRENT_DELTA, apart = has_beta || s->recurrent.kind == NRD_RECURRENT_RG_LRU;
    return nrd_recurrent_in(s) + (apart ? nrd_recurrent_inner(s) : 0) + (has_beta ? 2 * (int64_t)s->recurrent.n_heads : 0);
}

int64_t nrd_recurrent_conv_state(const nrd_model_spec *s)
{
    return s->recurrent.kind == NRD_RECURRENT_NONE ? 0 : (s->recurrent.kernel - 1) * nrd_recurrent_channels(s);
}

int64_t nrd_recurrent_state(const nrd_model_spec *s)
{
    const bool conv_only = s->recurrent.kind == NRD_RECURRENT_NONE || s->recurrent.kind == NRD_RECURRENT_SHORT_CONV;
    return conv_only ? 0 : nrd_recurrent_inner(s) * s->recurrent.n_state;
}

uint64_t nrd_recurrent_bytes(const nrd_model_spec *s)
{
    const int64_t numbers = nrd_recurrent_conv_state(s) + nrd_recurrent_state(s);
    return (uint64_t)numbers * (uint64_t)nrd_spec_state_layers(s) * sizeof(float);
}

uint64_t nrd_recurrent_cache_bytes(const nrd_model_spec *s, int32_t max_batch_size, uint64_t mem_free_bytes)
{
    const uint64_t wanted = nrd_recurrent_bytes(s) * SNAPSHOTS_A_SEQUENCE * (uint64_t)max_batch_size;
    const uint64_t most = mem_free_bytes / SNAPSHOTS_PART;
    return wanted < most ? wanted : most;
}

/* ---- checks ---- */

static nrd_error *check_heads(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    const int32_t most = r->kind == NRD_RECURRENT_DELTA ? NRD_DELTA_MAX_DIM : NRD_SSM_MAX_STATE;
    const int32_t widest = r->kind == NRD_RECURRENT_DELTA    ? NRD_DELTA_MAX_DIM
                           : r->kind == NRD_RECURRENT_RG_LRU ? NRD_RG_LRU_MAX_DIM
                                                             : MAX_INNER;

    NRD_TRY(nrd_spec_in_range("recurrent.n_heads", r->n_heads, 1, MAX_INNER));
    NRD_TRY(nrd_spec_in_range("recurrent.head_dim", r->head_dim, 1, widest));
    NRD_TRY(nrd_spec_in_range("recurrent.n_heads * head_dim", nrd_recurrent_inner(s), 1, MAX_INNER));
    NRD_TRY(nrd_spec_in_range("recurrent.n_groups", r->n_groups, 1, r->n_heads));
    NRD_TRY(nrd_spec_in_range("recurrent.n_state", r->n_state, 1, most));
    NRD_TRY(nrd_spec_in_range("recurrent.norm_groups", r->norm_groups, 1, r->n_heads));
    if (r->n_heads % r->n_groups || nrd_recurrent_inner(s) % r->norm_groups) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.n_heads (%d) must be a multiple of n_groups (%d), and n_heads * "
                          "head_dim of norm_groups (%d)", r->n_heads, r->n_groups, r->norm_groups);
    }
    if (!(r->norm_eps >= 0 && r->norm_eps < 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.norm_eps must be between 0 and 1, got %g", (double)r->norm_eps);
    }
    if (!(r->dt_min >= 0) || !(r->dt_max > r->dt_min)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.dt_min and dt_max must rise from 0, got %g and %g",
                          (double)r->dt_min, (double)r->dt_max);
    }
    return NULL;
}

/* Channels are heads of one number, and all have the same b and c. */
static nrd_error *check_mamba(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;

    if (r->head_dim != 1 || r->n_groups != 1 || r->norm_groups != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.head_dim, n_groups and norm_groups of mamba must be 1, got %d, %d and "
                          "%d", r->head_dim, r->n_groups, r->norm_groups);
    }
    return nrd_spec_in_range("recurrent.dt_rank (time_step_rank)", r->dt_rank, 1, MAX_INNER);
}

/* What only Mamba-2 has variants of. */
static nrd_error *check_mamba2(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;

    if ((r->no_norm || r->norm_first || r->beside_attention) && r->kind != NRD_RECURRENT_MAMBA2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.no_norm, norm_first and beside_attention go with mamba2, not with %s",
                          kind_names[r->kind]);
    }
    if (r->no_norm && r->norm_first) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "recurrent.norm_first goes with a norm, and no_norm says that there is none");
    }
    if (r->beside_attention && (nrd_spec_is_latent(s) || s->attn_gate || s->post_norms)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a state beside attention that is latent or gated, or with a norm behind both");
    }
    return NULL;
}

/* Layers of one sublayer, and all others: before an MLP something stands, or nothing. */
static nrd_error *check_sublayers(const nrd_model_spec *s)
{
    for (int32_t i = 0; i < s->n_layers; i++) {
        if (s->layer_has_no_mixer[i] && (s->layer_has_no_mlp[i] || s->layer_is_recurrent[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "layer %d has neither an MLP nor attention or a state, or both a state and "
                              "none", i);
        }
    }
    const bool apart = memchr(s->layer_has_no_mixer, 1, sizeof s->layer_has_no_mixer) ||
                       memchr(s->layer_has_no_mlp, 1, sizeof s->layer_has_no_mlp);
    if (apart && (s->encoder || s->cross_attention || s->parallel || s->post_norms || s->sum_norms || !s->pre_norms)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "layers of one sublayer in an encoder or beside one, with sublayers side by "
                          "side, or without a norm before each");
    }
    return NULL;
}

nrd_error *nrd_recurrent_spec_check(const nrd_model_spec *s)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    const bool any = memchr(s->layer_is_recurrent, 1, sizeof s->layer_is_recurrent) != NULL;

    NRD_TRY(check_sublayers(s));
    if (any != (r->kind != NRD_RECURRENT_NONE)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, any ? "layer_is_recurrent names layers without 'recurrent'"
                                                   : "'recurrent' is there, and no layer is");
    }
    if (!any) {
        return s->norms_by_kind ? nrd_errorf(NRD_ERR_INVALID_ARG, "norms_by_kind without layers that have a state") : NULL;
    }
    NRD_TRY(nrd_spec_in_range("recurrent.kernel", r->kernel, 2, NRD_SHORT_CONV_MAX));
    if (r->kind != NRD_RECURRENT_SHORT_CONV) {
        NRD_TRY(check_heads(s));
    }
    if (r->kind == NRD_RECURRENT_MAMBA) {
        NRD_TRY(check_mamba(s));
    }
    NRD_TRY(check_mamba2(s));
    if (s->tp_size > 1 || s->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d, pp_size %d: layers with a recurrent state run on one rank",
                          s->tp_size, s->pp_size);
    }
    if (s->norms_by_kind && (!s->post_norms || r->beside_attention || nrd_spec_has_altup(s))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norms_by_kind goes with pre_norms, post_norms and layers of one kind each");
    }
    if (s->encoder || s->parallel || !s->pre_norms) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "layers with a recurrent state in an encoder, beside an MLP, or without a norm "
                          "before them");
    }
    return NULL;
}

/* ---- JSON ---- */

void nrd_recurrent_spec_put(const nrd_recurrent_spec *r, nrd_str *o)
{
    nrd_str_printf(o,
                   "{\"kind\": \"%s\", \"kernel\": %d, \"conv_bias\": %s, \"proj_bias\": %s, \"n_heads\": %d, "
                   "\"head_dim\": %d, \"n_groups\": %d, \"n_state\": %d, \"norm_groups\": %d, \"dt_rank\": %d, \"dt_bc_norms\": %s",
                   kind_names[r->kind], r->kernel, r->conv_bias ? "true" : "false", r->proj_bias ? "true" : "false",
                   r->n_heads, r->head_dim, r->n_groups, r->n_state, r->norm_groups, r->dt_rank, r->dt_bc_norms ? "true" : "false");
    nrd_str_printf(o, ", \"no_norm\": %s, \"norm_first\": %s, \"beside_attention\": %s, \"dt_min\": ", r->no_norm ? "true" : "false",
                   r->norm_first ? "true" : "false", r->beside_attention ? "true" : "false");
    nrd_json_put_float(o, r->dt_min);
    nrd_str_puts(o, r->c_norm ? ", \"c_norm\": true" : "");
    nrd_str_puts(o, r->keys_by_turns ? ", \"keys_by_turns\": true" : "");
    nrd_str_puts(o, r->beta_twice ? ", \"beta_twice\": true" : "");
    nrd_str_puts(o, ", \"norm_eps\": ");
    nrd_json_put_float(o, r->norm_eps);
    if (isfinite(r->dt_max)) { /* JSON has no infinity: left out */
        nrd_str_puts(o, ", \"dt_max\": ");
        nrd_json_put_float(o, r->dt_max);
    }
    nrd_str_putc(o, '}');
}

nrd_error *nrd_recurrent_spec_read(const nrd_json *o, nrd_recurrent_spec *r)
{
    const char *kind = nrd_json_get_str(o, "kind", "none");
    const struct {
        const char *key;
        int32_t *out;
    } numbers[] = {{"kernel", &r->kernel},     {"n_heads", &r->n_heads}, {"head_dim", &r->head_dim},
                   {"n_groups", &r->n_groups}, {"n_state", &r->n_state}, {"norm_groups", &r->norm_groups},
                   {"dt_rank", &r->dt_rank}};

    *r = (nrd_recurrent_spec){.dt_max = INFINITY};
    int at = 0;
    while (at < N_KINDS && strcmp(kind, kind_names[at])) {
        at++;
    }
    if (at == N_KINDS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kind '%.40s' is not known; this build is older than the file, or the file "
                          "is damaged", kind);
    }
    r->kind = (nrd_recurrent_kind)at;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const int64_t v = nrd_json_get_int(o, numbers[i].key, 0);
        NRD_TRY(nrd_spec_in_range(numbers[i].key, v, 0, MAX_INNER));
        *numbers[i].out = (int32_t)v;
    }
    r->conv_bias = nrd_json_get_bool(o, "conv_bias", false);
    r->proj_bias = nrd_json_get_bool(o, "proj_bias", false);
    r->dt_bc_norms = nrd_json_get_bool(o, "dt_bc_norms", false);
    r->c_norm = nrd_json_get_bool(o, "c_norm", false);
    r->keys_by_turns = nrd_json_get_bool(o, "keys_by_turns", false);
    r->beta_twice = nrd_json_get_bool(o, "beta_twice", false);
    r->no_norm = nrd_json_get_bool(o, "no_norm", false);
    r->norm_first = nrd_json_get_bool(o, "norm_first", false);
    r->beside_attention = nrd_json_get_bool(o, "beside_attention", false);
    r->norm_eps = (float)nrd_json_get_num(o, "norm_eps", 0);
    r->dt_min = (float)nrd_json_get_num(o, "dt_min", 0);
    r->dt_max = (float)nrd_json_get_num(o, "dt_max", INFINITY);
    return NULL;
}
