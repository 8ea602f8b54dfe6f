/* SPDX-License-Identifier: Apache-2.0
 * Layers that remember a sequence in a state, instead of attention.
 *
 * The state of a sequence lies in the slot that the scheduler gives it for as long as it runs; so nothing is kept about
 * who has which. A sequence that starts, or starts again after a pause, begins at position 0, and operations begin with
 * zeros there whatever the slot's last owner left. A state cannot be taken back by a token: sequences have no beams, and before
 * a step with a draft a copy is made, from which the next one begins where not all of the draft holds. What was computed for one is used by another from a snapshot on: a copy of its state in a slot of its own,
 * made behind a step and copied into the other's slot before one, as the scheduler says (engine/state_cache.h). */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

#include "base/mem.h"
#include "model/spec_recurrent.h"

struct nrd_run_state_memory {
    float **conv_states, **states; /* [n_layers] of max_entries sequences and more (n_slots); NULL in layers without */
    nrd_kv_layer *layers;          /* [n_layers] the states of both kinds as blocks of one row, for copies */
    int32_t n_layers;
    void *conv_out, *scan_out; /* [max_tokens] rows of a layer */
    void *dt_bc, *time_steps;  /* of Mamba: what time steps are made of, b and c; the time steps */
};

/* A device may begin blocks at round addresses only; slots lie one behind the other. */
static bool can_copy(const nrd_runner *r)
{
    const int64_t numbers[] = {nrd_recurrent_conv_state(r->spec), nrd_recurrent_state(r->spec)};
    for (int i = 0; i < 2; i++) {
        if (numbers[i] > INT32_MAX || (numbers[i] > 0 && r->dev->ops->kv_block_bytes(r->dev, NRD_DTYPE_F32, 1, 0, (int32_t)numbers[i]) !=
                                                             (size_t)numbers[i] * sizeof(float))) {
            return false;
        }
    }
    return true;
}

int32_t nrd_runner_n_states(const nrd_runner *r)
{
    const uint64_t one = nrd_recurrent_bytes(r->spec);
    if (one == 0 || !can_copy(r)) {
        return 0;
    }
    const uint64_t n = r->cfg.state_cache_bytes / one;
    return n > NRD_MAX_KEPT_STATES ? NRD_MAX_KEPT_STATES : (int32_t)n;
}

/* Slots of sequences, then those of snapshots, then what states were before drafts. */
static int32_t n_slots(const nrd_runner *r)
{
    return r->cfg.max_entries + nrd_runner_n_states(r) + (r->cfg.max_draft_rows > 0 ? r->cfg.max_entries : 0);
}

static int32_t before_draft(const nrd_runner *r, int32_t slot)
{
    return r->cfg.max_entries + nrd_runner_n_states(r) + slot;
}

size_t nrd_runner_state_bytes(const nrd_runner *r)
{
    return (size_t)nrd_recurrent_bytes(r->spec) * (size_t)n_slots(r);
}

size_t nrd_runner_states_kept_bytes(const nrd_runner *r)
{
    return (size_t)nrd_recurrent_bytes(r->spec) * (size_t)nrd_runner_n_states(r);
}

static nrd_error *alloc_states(nrd_runner *r, float **out, int64_t numbers)
{
    void *p = NULL;
    if (numbers == 0) {
        return NULL;
    }
    NRD_TRY(nrd_run_alloc(r, &p, (size_t)numbers * (size_t)n_slots(r), sizeof(float), "recurrent states"));
    *out = p;
    return NULL;
}

/* A layer's states as blocks of one row, for copies. */
static nrd_kv_layer state_blocks(const nrd_runner *r, float *states, int64_t numbers)
{
    return (nrd_kv_layer){.base = states, .dtype = NRD_DTYPE_F32, .n_blocks = n_slots(r), .block_tokens = 1,
                          .head_dim = (int32_t)numbers};
}

static void list_states(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_run_state_memory *s = r->recurrent;
    for (int32_t i = 0; i < m->n_layers; i++) {
        if (s->conv_states[i]) {
            s->layers[s->n_layers++] = state_blocks(r, s->conv_states[i], nrd_recurrent_conv_state(m));
        }
        if (s->states[i]) {
            s->layers[s->n_layers++] = state_blocks(r, s->states[i], nrd_recurrent_state(m));
        }
    }
}

/* What is copied for an entry before its step (`load`) or behind it, from slot to slot. */
static bool copy_of(const nrd_runner *r, const nrd_plan_entry *e, bool load, int32_t *pair)
{
    const int32_t kept = load ? e->state_load : e->state_save, other = kept >= 0 ? r->cfg.max_entries + kept : before_draft(r, e->slot);
    const bool to_slot = load && (kept >= 0 || e->state_back);

    if (kept < 0 && !(load && (e->state_back || e->n_draft > 0))) {
        return false;
    }
    pair[0] = to_slot ? other : e->slot;
    pair[1] = to_slot ? e->slot : other;
    return true;
}

nrd_error *nrd_run_copy_states(nrd_runner *r, const nrd_plan *p, bool load)
{
    enum { COPIES_A_CALL = 64 };
    const nrd_run_state_memory *s = r->recurrent;
    int32_t pairs[COPIES_A_CALL][2];

    for (int32_t i = 0; s && i < p->n_entries;) {
        int32_t n = 0;
        for (; i < p->n_entries && n < COPIES_A_CALL; i++) {
            n += copy_of(r, &p->entries[i], load, pairs[n]);
        }
        nrd_copy_blocks_args a = {
            .n_layers = s->n_layers,
            .n_pairs = n,
            .src = s->layers,
            .dst = s->layers,
            .pairs = &pairs[0][0],
        };
        if (n > 0) {
            NRD_TRY(r->dev->ops->copy_blocks(r->stream, &a));
        }
    }
    return NULL;
}

nrd_error *nrd_run_init_recurrent(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const size_t t = (size_t)r->cfg.max_tokens;
    nrd_error *err = NULL;
    nrd_run_state_memory *s;

    if (m->attn_gate) {
        NRD_TRY(nrd_run_alloc(r, &r->attn_gates, t * (size_t)(m->n_heads * m->head_dim), r->act_bytes, "activations"));
    }
    if (m->attn_gate || m->inner_norms) {
        NRD_TRY(nrd_run_alloc(r, &r->attn_out, t * (size_t)(m->n_heads * m->head_dim), r->act_bytes, "activations"));
    }
    if (!nrd_spec_is_recurrent(m)) {
        return NULL;
    }
    if (r->cfg.max_draft_rows > 0 && !can_copy(r)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "drafts: states of %lld and %lld numbers cannot be copied on this device, and without a copy a "
                          "token that does not hold cannot be taken from them", (long long)nrd_recurrent_conv_state(m),
                          (long long)nrd_recurrent_state(m));
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    r->recurrent = s; /* what is allocated is freed with the runner */
    NRD_TRY(nrd_run_alloc(r, &s->conv_out, t * (size_t)nrd_recurrent_channels(m), r->act_bytes, "activations"));
    NRD_TRY(nrd_run_alloc(r, &s->scan_out, t * (size_t)nrd_recurrent_inner(m), r->act_bytes, "activations"));
    if (m->recurrent.kind == NRD_RECURRENT_MAMBA) {
        const size_t numbers = (size_t)m->recurrent.dt_rank + 6 * (size_t)m->recurrent.n_state; /* b and c, and with a norm or two */
        NRD_TRY(nrd_run_alloc(r, &s->dt_bc, t * numbers, r->act_bytes, "activations"));
        NRD_TRY(nrd_run_alloc(r, &s->time_steps, t * (size_t)nrd_recurrent_inner(m), r->act_bytes, "activations"));
    }
    NRD_NEW_GOTO(s->conv_states, m->n_layers, err, fail);
    NRD_NEW_GOTO(s->states, m->n_layers, err, fail);
    NRD_NEW_GOTO(s->layers, 2 * (size_t)m->n_layers, err, fail);
    for (int32_t i = 0; i < m->n_layers; i++) {
        if (m->layer_is_recurrent[i]) {
            NRD_TRY(alloc_states(r, &s->conv_states[i], nrd_recurrent_conv_state(m)));
            NRD_TRY(alloc_states(r, &s->states[i], nrd_recurrent_state(m)));
        }
    }
    list_states(r);
fail:
    return err;
}

void nrd_run_free_recurrent(nrd_runner *r)
{
    nrd_run_state_memory *s = r->recurrent;

    nrd_run_free(r, r->attn_gates);
    nrd_run_free(r, r->attn_out);
    if (!s) {
        return;
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        nrd_run_free(r, s->conv_states ? s->conv_states[i] : NULL);
        nrd_run_free(r, s->states ? s->states[i] : NULL);
    }
    free(s->conv_states);
    free(s->states);
    free(s->layers);
    nrd_run_free(r, s->conv_out);
    nrd_run_free(r, s->scan_out);
    nrd_run_free(r, s->dt_bc);
    nrd_run_free(r, s->time_steps);
    free(s);
}

static const void *at(const nrd_runner *r, const void *row, int64_t column)
{
    return (const uint8_t *)row + (size_t)column * r->act_bytes;
}

static const float *numbers(const nrd_weight *w)
{
    return w ? w->data : NULL;
}

/* What the convolution does of a layer's numbers: x at column `from` of the product's row. */
static nrd_short_conv_args conv_args(const nrd_runner *r, const nrd_batch_view *v, int32_t layer, int64_t from)
{
    const nrd_model_spec *m = r->spec;
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    return (nrd_short_conv_args){
        .batch = v,
        .x = at(r, r->qkv, from),
        .x_stride = nrd_recurrent_row(m),
        .channels = (int32_t)nrd_recurrent_channels(m),
        .kernel = m->recurrent.kernel,
        .weight = numbers(y->conv),
        .bias = numbers(y->conv_bias),
        .act = NRD_ACT_SILU,
        .state = r->recurrent->conv_states[layer],
        .out = r->recurrent->conv_out,
        .act_dtype = r->act,
    };
}

/* Rows are [gate, out gate, x]. */
static nrd_error *short_conv(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void **out)
{
    nrd_short_conv_args a = conv_args(r, v, layer, 2 * (int64_t)r->spec->hidden);
    a.in_gate = r->qkv;
    a.out_gate = at(r, r->qkv, r->spec->hidden);
    a.act = NRD_ACT_NONE;
    *out = r->recurrent->conv_out;
    return r->dev->ops->short_conv(r->stream, &a);
}

/* gate: the column of the product's row where it begins. */
static nrd_error *gated_norm(nrd_runner *r, int32_t n_tokens, const nrd_recurrent *y, int64_t gate, bool gate_first)
{
    const nrd_model_spec *m = r->spec;
    nrd_gated_norm_args a = {
        .n_tokens = n_tokens,
        .width = (int32_t)nrd_recurrent_inner(m),
        .n_groups = m->recurrent.norm_groups,
        .x = r->recurrent->scan_out,
        .gate = at(r, r->qkv, gate),
        .gate_stride = nrd_recurrent_row(m),
        .weight = numbers(y->norm),
        .shared_weight = m->recurrent.kind == NRD_RECURRENT_DELTA,
        .gate_first = gate_first,
        .gate_silu = m->recurrent.kind == NRD_RECURRENT_MAMBA || m->recurrent.no_norm,
        .eps = m->recurrent.norm_eps,
        .out = r->recurrent->scan_out,
        .act_dtype = r->act,
    };
    return r->dev->ops->gated_norm(r->stream, &a);
}

/* Rows are [gate, x, b, c, dt]; the convolution goes over x, b and c. */
static nrd_error *mamba2(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void **out)
{
    const nrd_model_spec *m = r->spec;
    const nrd_recurrent_spec *s = &m->recurrent;
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    const int64_t inner = nrd_recurrent_inner(m), channels = nrd_recurrent_channels(m);
    nrd_short_conv_args conv = conv_args(r, v, layer, inner);
    nrd_ssm_args a = {
        .batch = v,
        .x = r->recurrent->conv_out,
        .b = at(r, r->recurrent->conv_out, inner),
        .c = at(r, r->recurrent->conv_out, inner + (int64_t)s->n_groups * s->n_state),
        .dt = at(r, r->qkv, inner + channels),
        .x_stride = channels,
        .bc_stride = channels,
        .dt_stride = nrd_recurrent_row(m),
        .n_heads = s->n_heads,
        .head_dim = s->head_dim,
        .n_groups = s->n_groups,
        .n_state = s->n_state,
        .a = numbers(y->a),
        .d = numbers(y->d),
        .dt_bias = numbers(y->dt_bias),
        .dt_min = s->dt_min,
        .dt_max = s->dt_max,
        .deterministic = r->cfg.deterministic,
        .state = r->recurrent->states[layer],
        .out = r->recurrent->scan_out,
        .act_dtype = r->act,
    };
    *out = r->recurrent->scan_out;
    NRD_TRY(r->dev->ops->short_conv(r->stream, &conv));
    NRD_TRY(r->dev->ops->ssm(r->stream, &a));
    return gated_norm(r, v->n_tokens, y, 0, !s->norm_first);
}

/* The RMS norm of rows of `hidden` numbers. */
static nrd_error *plain_norm(nrd_runner *r, int32_t n_rows, int32_t hidden, void *x, const nrd_weight *weight,
                             const nrd_product *next, void *out)
{
    const nrd_norm_args a = nrd_run_norm_args(r, NRD_NORM_RMS, r->spec->recurrent.norm_eps, n_rows, hidden, x, weight, next, out);
    return r->dev->ops->norm(r->stream, &a);
}

static nrd_error *step_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens, void *y)
{
    NRD_TRY(nrd_run_product(r, p, x, n_tokens, y, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_RECURRENT, p, n_tokens, r->act);
}

/* time_steps, and b and c, of what the convolution gave: rows of two, of which b is the first and c the second. */
static nrd_error *time_steps(nrd_runner *r, int32_t n, const nrd_recurrent *y, const void **out_b, const void **out_c)
{
    const nrd_recurrent_spec *s = &r->spec->recurrent;
    void *bc = (uint8_t *)r->recurrent->dt_bc + (size_t)n * (size_t)s->dt_rank * r->act_bytes;
    void *normed = (uint8_t *)bc + (size_t)n * 2 * (size_t)s->n_state * r->act_bytes;
    const void *x = NULL, *dt = r->att;

    NRD_TRY(nrd_run_plain_input(r, n, &y->x_dt, r->recurrent->conv_out, r->att, &x));
    NRD_TRY(step_product(r, &y->x_dt, x, n, r->recurrent->dt_bc));
    NRD_TRY(step_product(r, &y->x_bc, x, n, bc));
    *out_b = *out_c = bc;
    if (s->dt_bc_norms) {
        NRD_TRY(plain_norm(r, n, s->dt_rank, r->recurrent->dt_bc, y->dt_norm, &y->dt, r->att));
        NRD_TRY(plain_norm(r, 2 * n, s->n_state, bc, y->bc_norm, NULL, normed)); /* b and c are a row each */
        *out_b = *out_c = normed;
        if (y->c_norm) { /* all rows once more, of which the second ones are used */
            void *again = (uint8_t *)normed + (size_t)n * 2 * (size_t)s->n_state * r->act_bytes;
            NRD_TRY(plain_norm(r, 2 * n, s->n_state, bc, y->c_norm, NULL, again));
            *out_c = again;
        }
    } else {
        NRD_TRY(nrd_run_plain_input(r, n, &y->dt, r->recurrent->dt_bc, r->att, &dt));
    }
    return step_product(r, &y->dt, dt, n, r->recurrent->time_steps);
}

/* Rows are [x, gate]; the convolution goes over x, and what it gives makes the time steps of the channels, b and c. */
static nrd_error *mamba(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void **out)
{
    const nrd_model_spec *m = r->spec;
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    const int32_t inner = (int32_t)nrd_recurrent_inner(m), n_state = m->recurrent.n_state;
    nrd_short_conv_args conv = conv_args(r, v, layer, 0);
    const void *b = NULL, *c = NULL;

    *out = r->recurrent->scan_out;
    NRD_TRY(r->dev->ops->short_conv(r->stream, &conv));
    NRD_TRY(time_steps(r, v->n_tokens, y, &b, &c));
    nrd_ssm_args a = {
        .batch = v,
        .x = r->recurrent->conv_out,
        .b = b,
        .c = at(r, c, n_state),
        .dt = r->recurrent->time_steps,
        .x_stride = inner,
        .bc_stride = 2 * (int64_t)n_state,
        .dt_stride = inner,
        .n_heads = inner,
        .head_dim = 1,
        .n_groups = 1,
        .n_state = n_state,
        .a = numbers(y->a),
        .a_of_states = true,
        .d = numbers(y->d),
        .dt_bias = numbers(y->dt_bias),
        .dt_min = m->recurrent.dt_min,
        .dt_max = m->recurrent.dt_max,
        .state = r->recurrent->states[layer],
        .out = r->recurrent->scan_out,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->ssm(r->stream, &a));
    return gated_norm(r, v->n_tokens, y, inner, false);
}

/* Rows are [q, k, v, gate, beta, alpha]; the convolution goes over q, k and v. */
static nrd_error *delta(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void **out)
{
    const nrd_model_spec *m = r->spec;
    const nrd_recurrent_spec *s = &m->recurrent;
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    const int64_t inner = nrd_recurrent_inner(m), channels = nrd_recurrent_channels(m);
    const int64_t keys = (int64_t)s->n_groups * s->n_state;
    nrd_short_conv_args conv = conv_args(r, v, layer, 0);
    nrd_delta_rule_args a = {
        .batch = v,
        .q = r->recurrent->conv_out,
        .k = at(r, r->recurrent->conv_out, keys),
        .v = at(r, r->recurrent->conv_out, 2 * keys),
        .beta = at(r, r->qkv, channels + inner),
        .alpha = at(r, r->qkv, channels + inner + s->n_heads),
        .qkv_stride = channels,
        .gate_stride = nrd_recurrent_row(m),
        .n_k_heads = s->n_groups,
        .n_heads = s->n_heads,
        .k_dim = s->n_state,
        .v_dim = s->head_dim,
        .keys_by_turns = s->keys_by_turns,
        .twice = s->beta_twice,
        .deterministic = r->cfg.deterministic,
        .a = numbers(y->a),
        .dt_bias = numbers(y->dt_bias),
        .state = r->recurrent->states[layer],
        .out = r->recurrent->scan_out,
        .act_dtype = r->act,
    };
    *out = r->recurrent->scan_out;
    NRD_TRY(r->dev->ops->short_conv(r->stream, &conv));
    NRD_TRY(r->dev->ops->delta_rule(r->stream, &a));
    return gated_norm(r, v->n_tokens, y, channels, false);
}

/* Rows are [x, gate]; the convolution goes over x and has no activation. */
static nrd_error *rg_lru(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void **out)
{
    const nrd_model_spec *m = r->spec;
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    nrd_short_conv_args conv = conv_args(r, v, layer, 0);
    const nrd_rg_lru_args a = {
        .batch = v,
        .x = r->recurrent->conv_out,
        .gate = at(r, r->qkv, nrd_recurrent_inner(m)),
        .gate_stride = nrd_recurrent_row(m),
        .n_heads = m->recurrent.n_heads,
        .head_dim = m->recurrent.head_dim,
        .in_weight = numbers(y->in_gate),
        .in_bias = numbers(y->in_gate_bias),
        .decay_weight = numbers(y->decay_gate),
        .decay_bias = numbers(y->decay_gate_bias),
        .decay = numbers(y->decay),
        .state = r->recurrent->states[layer],
        .out = r->recurrent->scan_out,
        .act_dtype = r->act,
    };
    conv.act = NRD_ACT_NONE;
    *out = r->recurrent->scan_out;
    NRD_TRY(r->dev->ops->short_conv(r->stream, &conv));
    return r->dev->ops->rg_lru(r->stream, &a);
}

/* A sequence's state is read and written once, whatever its number of tokens. */
static nrd_error *mark(nrd_runner *r, const nrd_batch_view *v)
{
    const nrd_model_spec *m = r->spec;
    const double states = 2.0 * (double)(nrd_recurrent_conv_state(m) + nrd_recurrent_state(m)) * sizeof(float) * v->n_seqs;
    const double rows = (double)(nrd_recurrent_row(m) + 2 * nrd_recurrent_channels(m) + 4 * nrd_recurrent_inner(m));
    return nrd_run_mark(r, NRD_PROFILE_RECURRENT, v->n_tokens, rows * (double)r->act_bytes + states / v->n_tokens,
                        5.0 * (double)nrd_recurrent_state(m));
}

nrd_error *nrd_run_recurrent(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *x)
{
    const nrd_recurrent *y = &r->w.layers[layer].recurrent;
    const int32_t n = v->n_tokens;
    const void *mixed = NULL;

    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_QKV, &y->in, x, n));
    NRD_TRY(nrd_run_product(r, &y->in, x, n, r->qkv, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->in, n, r->act));
    switch (r->spec->recurrent.kind) {
    case NRD_RECURRENT_SHORT_CONV:
        NRD_TRY(short_conv(r, v, layer, &mixed));
        break;
    case NRD_RECURRENT_MAMBA2:
        NRD_TRY(mamba2(r, v, layer, &mixed));
        break;
    case NRD_RECURRENT_DELTA:
        NRD_TRY(delta(r, v, layer, &mixed));
        break;
    case NRD_RECURRENT_MAMBA:
        NRD_TRY(mamba(r, v, layer, &mixed));
        break;
    case NRD_RECURRENT_RG_LRU:
        NRD_TRY(rg_lru(r, v, layer, &mixed));
        break;
    case NRD_RECURRENT_NONE:
        break;
    }
    NRD_TRY(mark(r, v));
    NRD_TRY(nrd_run_plain_input(r, n, &y->out, mixed, r->att, &mixed));
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_DENSE, &y->out, mixed, n));
    NRD_TRY(nrd_run_product(r, &y->out, mixed, n, r->delta, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->out, n, r->act);
}
