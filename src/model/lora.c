/* SPDX-License-Identifier: Apache-2.0
 * Modules of adapters, and the making of an nrd_lora: every pair is checked against the model, then copied
 * in the form that operations read. Called by model/lora_files.c for folders, and by the executor for what
 * requests bring. */
#include "model/lora.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "base/siphash.h"
#include "model/arch.h"
#include "model/finite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct module_row {
    const char *name;
    bool exists; /* in some model that runs here */
    nrd_dim in, out;
    int32_t position;
} module_row;

static const module_row modules[NRD_LORA_MODULES] = {
    {"attn_qkv", true, NRD_DIM_HIDDEN, NRD_DIM_QKV, NRD_LORA_AT_QKV + 3},
    {"attn_q", true, NRD_DIM_HIDDEN, NRD_DIM_Q, NRD_LORA_AT_QKV},
    {"attn_k", true, NRD_DIM_HIDDEN, NRD_DIM_KV, NRD_LORA_AT_QKV + 1},
    {"attn_v", true, NRD_DIM_HIDDEN, NRD_DIM_KV, NRD_LORA_AT_QKV + 2},
    {"attn_dense", true, NRD_DIM_Q, NRD_DIM_HIDDEN, NRD_LORA_AT_DENSE},
    {"mlp_h_to_4h", true, NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_LORA_AT_UP},
    {"mlp_4h_to_h", true, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_LORA_AT_DOWN},
    {"mlp_gate", true, NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_LORA_AT_UP + 1},
    {.name = "cross_attn_qkv"},
    {.name = "cross_attn_q"},
    {.name = "cross_attn_k"},
    {.name = "cross_attn_v"},
    {.name = "cross_attn_dense"},
    {.name = "moe_h_to_4h"},
    {.name = "moe_4h_to_h"},
    {.name = "moe_gate"},
    {.name = "moe_router"},
    {.name = "mlp_router"},
    {.name = "mlp_gate_up"},
};

const char *nrd_lora_module_name(int32_t id)
{
    return id >= 0 && id < NRD_LORA_MODULES ? modules[id].name : NULL;
}

int32_t nrd_lora_module_id(const char *name)
{
    for (int32_t i = 0; i < NRD_LORA_MODULES; i++) {
        if (!strcmp(modules[i].name, name)) {
            return i;
        }
    }
    return -1;
}

int32_t nrd_lora_position(int32_t id)
{
    return modules[id].position;
}

/* Values that are the keys have no module, and layers that read the keys and values of others neither. */
static bool is_of_others(const nrd_model_spec *spec, int32_t layer, int32_t position)
{
    const bool of_kv = position > NRD_LORA_AT_QKV && position < NRD_LORA_AT_DENSE;
    return (of_kv && !nrd_spec_layer_has_cache(spec, layer)) ||
           (position > NRD_LORA_AT_QKV + 1 && position < NRD_LORA_AT_DENSE && nrd_spec_values_are_keys(spec, layer));
}

bool nrd_lora_module_dims(const nrd_model_spec *spec, int32_t layer, int32_t id, int64_t *out_in, int64_t *out_out)
{
    if (id < 0 || id >= NRD_LORA_MODULES || !modules[id].exists ||
        (!spec->gated_mlp && modules[id].position == NRD_LORA_AT_UP + 1) ||
        (spec->has_experts && modules[id].position >= NRD_LORA_AT_UP) || /* not of experts, so of no MLP */
        spec->recurrent.beside_attention || /* their inputs and results are multiplied, which adapters do not know of */
        nrd_spec_has_altup(spec) || /* its layers know of none */
        (nrd_spec_is_latent(spec) && modules[id].position <= NRD_LORA_AT_DENSE) ||
        (spec->n_shared_kv + spec->values_are_keys > 0 && is_of_others(spec, layer, modules[id].position))) {
        return false;
    }
    const nrd_model_spec own = nrd_spec_of_layer(spec, layer);
    *out_in = nrd_dim_of(&own, modules[id].in);
    *out_out = nrd_dim_of(&own, modules[id].out);
    return true;
}

bool nrd_lora_has_module(const nrd_model_spec *spec, int32_t id)
{
    int64_t in, out;
    for (int32_t i = 0; i < spec->n_layers; i++) {
        if (nrd_lora_module_dims(spec, i, id, &in, &out)) {
            return true;
        }
    }
    return false;
}

/* ---- checks ---- */

typedef struct maker {
    const nrd_model_spec *spec;
    int32_t max_rank;
    uint32_t allowed;
    uint8_t *seen; /* [n_layers, positions] */
} maker;

/* "row 3 (attn_q of layer 2)", or with the tensor's name. */
static void describe(char out[192], const nrd_lora_pair_in *p, int32_t i)
{
    const char *module = nrd_lora_module_name(p->module);
    if (p->name) {
        snprintf(out, 192, "%.150s", p->name);
    } else {
        snprintf(out, 192, "row %d (%s of layer %d)", i, module ? module : "no module", p->layer);
    }
}

static nrd_error *check_place(const maker *m, const nrd_lora_pair_in *p, const char *what)
{
    int64_t in, out;
    if (!nrd_lora_module_name(p->module)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module id %d is unknown, expected 0 to %d", what, p->module,
                          NRD_LORA_MODULES - 1);
    }
    if (!nrd_lora_has_module(m->spec, p->module)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: this model has no module %s (id %d)", what,
                          nrd_lora_module_name(p->module), p->module);
    }
    if (m->allowed && !(m->allowed >> p->module & 1u)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: module %s is none of the engine's lora_target_modules", what,
                          nrd_lora_module_name(p->module));
    }
    const int32_t layer = nrd_spec_layer_of_source(m->spec, p->layer);
    if (p->layer < 0 || layer >= m->spec->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: layer %d, but the model has layers 0 to %d", what, p->layer,
                          nrd_spec_source_layer(m->spec, m->spec->n_layers - 1));
    }
    if (layer < 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: layer %d of this model reads pictures, and is not computed", what, p->layer);
    }
    if (!nrd_lora_module_dims(m->spec, layer, p->module, &in, &out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: layer %d has no module %s of its own", what, p->layer,
                          nrd_lora_module_name(p->module));
    }
    if (p->rank < 1 || p->rank > m->max_rank) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: rank %d, expected 1 to %d (max_lora_rank)", what, p->rank,
                          m->max_rank);
    }
    if (p->in != in || p->out != out) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: made for a module of %lld inputs and %lld outputs, but %s of this "
                          "model has %lld and %lld: an adapter of another model", what, (long long)p->in,
                          (long long)p->out, nrd_lora_module_name(p->module), (long long)in, (long long)out);
    }
    return NULL;
}

static nrd_error *check_pair(maker *m, const nrd_lora_pair_in *p, int32_t i)
{
    char what[192];

    describe(what, p, i);
    NRD_TRY(check_place(m, p, what));
    if (p->dtype != NRD_DTYPE_F32 && p->dtype != NRD_DTYPE_F16 && p->dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: type %s, expected float32, float16 or bfloat16", what,
                          nrd_dtype_name(p->dtype));
    }
    if (!isfinite(p->scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: its scale is not finite", what);
    }
    if (p->gain && p->gain_dtype != NRD_DTYPE_F32 && p->gain_dtype != NRD_DTYPE_F16 && p->gain_dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: DoRA's magnitudes are of type %s, expected float32, float16 or bfloat16", what,
                          nrd_dtype_name(p->gain_dtype));
    }
    uint8_t *seen = &m->seen[nrd_spec_layer_of_source(m->spec, p->layer) * NRD_LORA_POSITIONS + nrd_lora_position(p->module)];
    if (*seen) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s of layer %d comes twice", what,
                          nrd_lora_module_name(p->module), p->layer);
    }
    *seen = 1;
    return NULL;
}

/* ---- copies ---- */

/* Where row i of a head's matrix lies in the engine: GGUF files keep the rows of q and k so that the pairs
 * of the rotary embedding are neighbours. */
static int64_t engine_row(const nrd_model_spec *s, int32_t module_id, int64_t i)
{
    const char *name = modules[module_id].name;
    int64_t q = (int64_t)s->n_heads * s->head_dim, k = (int64_t)s->n_kv_heads * s->head_dim;
    bool turned = s->rope.kind == NRD_ROPE_INTERLEAVED &&
                  (!strcmp(name, "attn_q") || !strcmp(name, "attn_k") || (!strcmp(name, "attn_qkv") && i < q + k));
    if (!turned) {
        return i;
    }
    int64_t in_head = i % s->head_dim, half = s->rope.rotary_dim / 2;
    if (in_head >= 2 * half) {
        return i;
    }
    return i - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

/* spec: as of the pair's layer. */
static void turn_b(const nrd_model_spec *spec, const nrd_lora_pair_in *p, uint8_t *dst)
{
    size_t elem = nrd_dtype_block_bytes(p->dtype);
    const uint8_t *src = p->b;
    for (int64_t i = 0; i < p->out; i++) {
        int64_t to = engine_row(spec, p->module, i);
        for (int32_t r = 0; r < p->rank; r++) {
            memcpy(dst + ((size_t)r * (size_t)p->out + (size_t)to) * elem,
                   src + ((size_t)i * (size_t)p->rank + (size_t)r) * elem, elem);
        }
    }
}

/* spec: as of the pair's layer. */
static void copy_gain(const nrd_model_spec *spec, const nrd_lora_pair_in *p, float *dst)
{
    const size_t elem = nrd_dtype_block_bytes(p->gain_dtype);
    for (int64_t i = 0; i < p->out; i++) {
        nrd_dequantize_row(p->gain_dtype, (const uint8_t *)p->gain + (size_t)i * elem, dst + engine_row(spec, p->module, i), 1);
    }
}

/* Bytes of a pair in the adapter's data; within the model's sizes: no overflow. */
static size_t pair_bytes(const nrd_lora_pair_in *p)
{
    const size_t elem = nrd_dtype_block_bytes(p->dtype), rank = (size_t)p->rank;
    return nrd_lora_padded(rank * (size_t)p->in * elem) + nrd_lora_padded(rank * (size_t)p->out * elem) +
           (p->gain ? nrd_lora_gain_bytes(p->out) : 0);
}

static nrd_error *copy_pair(nrd_lora *l, const nrd_model_spec *spec, const nrd_lora_pair_in *p, int32_t i, size_t *at,
                            nrd_siphash *h)
{
    size_t elem = nrd_dtype_block_bytes(p->dtype), rank = (size_t)p->rank;
    size_t a_bytes = rank * (size_t)p->in * elem, b_bytes = rank * (size_t)p->out * elem;
    uint8_t *a = (uint8_t *)l->data + *at, *b = a + nrd_lora_padded(a_bytes);
    const nrd_model_spec own = nrd_spec_of_layer(spec, nrd_spec_layer_of_source(spec, p->layer));
    char what[192];

    const uint64_t n_a = rank * (uint64_t)p->in, n_b = rank * (uint64_t)p->out, n_gain = p->gain ? (uint64_t)p->out : 0;
    if (nrd_find_not_finite(p->dtype, p->a, n_a) < n_a || nrd_find_not_finite(p->dtype, p->b, n_b) < n_b ||
        nrd_find_not_finite(p->gain_dtype, p->gain, n_gain) < n_gain) {
        describe(what, p, i);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: holds NaN or infinity", what);
    }
    memcpy(a, p->a, a_bytes);
    turn_b(&own, p, b);
    *at += pair_bytes(p);
    const int32_t numbers[] = {p->module, p->layer, p->rank, (int32_t)p->dtype, p->gain ? 1 + p->is_magnitude : 0};
    nrd_siphash_add(h, numbers, sizeof numbers);
    nrd_siphash_add(h, &p->scale, sizeof p->scale);
    nrd_siphash_add(h, a, a_bytes);
    nrd_siphash_add(h, b, b_bytes);
    if (p->gain) {
        float *gain = (float *)(void *)(b + nrd_lora_padded(b_bytes));
        copy_gain(&own, p, gain);
        nrd_siphash_add(h, gain, (size_t)p->out * sizeof *gain);
    }
    l->max_rank = p->rank > l->max_rank ? p->rank : l->max_rank;
    l->rows[l->n_rows++] = (nrd_lora_row){
        .module = p->module,
        .layer = nrd_spec_layer_of_source(spec, p->layer),
        .rank = p->rank,
        .dtype = p->dtype,
        .scale = p->scale,
        .in = p->in,
        .out = p->out,
        .a = a,
        .b = b,
        .has_gain = p->gain != NULL,
        .is_magnitude = p->is_magnitude,
    };
    return NULL;
}

void nrd_lora_free(nrd_lora *l)
{
    if (l) {
        free(l->rows);
        free(l->data);
        free(l);
    }
}

nrd_error *nrd_lora_alloc(nrd_lora **out, int32_t n_rows, size_t bytes)
{
    nrd_error *err = NULL;
    nrd_lora *l = NULL;

    *out = NULL;
    NRD_NEW_GOTO(l, 1, err, fail);
    l->bytes = bytes;
    NRD_NEW_GOTO(l->rows, (size_t)n_rows, err, fail);
    l->data = nrd_aligned_zalloc(NRD_LORA_ALIGN, bytes > 0 ? bytes : 1);
    if (!l->data) {
        err = nrd_error_no_memory();
        goto fail;
    }
    *out = l;
    return NULL;

fail:
    nrd_lora_free(l);
    return err;
}

/* What an adapter changes in keys it changes in values that are the keys as well. *last: of the pairs that are to be made `n`
 * are there; room for twice as many. */
static void add_values(const nrd_model_spec *spec, nrd_lora_pair_in *pairs, int32_t n, int32_t *last)
{
    *last = n;
    for (int32_t i = 0; i < n; i++) {
        const int32_t layer = nrd_spec_layer_of_source(spec, pairs[i].layer);
        if (nrd_lora_position(pairs[i].module) == NRD_LORA_AT_QKV + 1 && nrd_spec_values_are_keys(spec, layer)) {
            pairs[*last] = pairs[i];
            pairs[(*last)++].module = nrd_lora_module_id("attn_v");
        }
    }
}

nrd_error *nrd_lora_make(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                         const nrd_lora_pair_in *given, int32_t n)
{
    nrd_error *err = NULL;
    nrd_lora *l = NULL;
    nrd_lora_pair_in *pairs = NULL;
    nrd_siphash h;
    size_t at = 0, bytes = 0;
    maker m = {.spec = spec,
               .max_rank = lim->max_rank > 0 ? lim->max_rank : NRD_LORA_DEFAULT_RANK,
               .allowed = lim->modules};

    *out = NULL;
    if (n < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "an adapter needs at least one row");
    }
    NRD_NEW_GOTO(m.seen, (size_t)spec->n_layers * NRD_LORA_POSITIONS, err, done);
    NRD_NEW_GOTO(pairs, 2 * (size_t)n, err, done);
    memcpy(pairs, given, (size_t)n * sizeof *pairs);
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(check_pair(&m, &pairs[i], i), err, done);
    }
    add_values(spec, pairs, n, &n);
    for (int32_t i = 0; i < n; i++) {
        bytes += pair_bytes(&pairs[i]);
    }
    NRD_TRY_GOTO(nrd_lora_alloc(&l, n, bytes), err, done);
    nrd_siphash_init(&h, nrd_siphash_process_key());
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(copy_pair(l, spec, &pairs[i], i, &at, &h), err, done);
    }
    nrd_siphash_end(&h, l->hash);
    *out = l;
    l = NULL;

done:
    free(pairs);
    free(m.seen);
    nrd_lora_free(l);
    return err;
}

/* ---- rows of a request ---- */

/* What lies behind A and B of a row must be zero: an adapter of another model is not taken for one of this. */
static bool zeros(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i]) {
            return false;
        }
    }
    return true;
}

static nrd_error *fill_row(nrd_lora_pair_in *p, const nrd_model_spec *spec, int32_t max_rank, const uint8_t *row,
                           nrd_dtype dtype, int64_t width, const int32_t *config, int64_t config_width, int64_t i)
{
    size_t elem = nrd_dtype_block_bytes(dtype);
    int32_t c[4] = {0}; /* a file's numbers may lie at any address */
    memcpy(c, config, (size_t)(config_width < 4 ? config_width : 4) * sizeof *c);
    *p = (nrd_lora_pair_in){.module = c[0], .layer = c[1], .rank = c[2], .dtype = dtype, .scale = 1, .a = row};
    if (c[3] != 0 && c[3] != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_config: row %lld: the fourth number (is_dora) must be 0 or 1, got %d", (long long)i,
                          c[3]);
    }
    /* Modules, layers and ranks that cannot be are named by nrd_lora_make, which does not look at a row before. */
    const int32_t layer = p->layer < 0 ? -1 : nrd_spec_layer_of_source(spec, p->layer);
    if (p->rank < 1 || p->rank > max_rank || layer < 0 || layer >= spec->n_layers ||
        !nrd_lora_module_dims(spec, layer, p->module, &p->in, &p->out)) {
        return NULL;
    }
    const int64_t pair = p->rank * (p->in + p->out), need = pair + (c[3] ? p->out : 0);
    if (need > width) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_weights: row %lld holds %lld values, but rank %d of %s needs %lld "
                          "(rank * (%lld inputs + %lld outputs)%s): an adapter of another model", (long long)i,
                          (long long)width, p->rank, nrd_lora_module_name(p->module), (long long)need,
                          (long long)p->in, (long long)p->out, c[3] ? " + outputs of DoRA" : "");
    }
    if (!zeros(row + (size_t)need * elem, (size_t)(width - need) * elem)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_weights: row %lld has values behind the %lld that rank %d of %s "
                          "takes: an adapter of another model", (long long)i, (long long)need, p->rank,
                          nrd_lora_module_name(p->module));
    }
    p->b = row + (size_t)p->rank * (size_t)p->in * elem;
    p->gain = c[3] ? row + (size_t)pair * elem : NULL;
    p->gain_dtype = dtype;
    return NULL;
}

nrd_error *nrd_lora_from_rows(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                              const void *weights, nrd_dtype dtype, int64_t rows, int64_t width, const int32_t *config,
                              int64_t config_width)
{
    nrd_error *err = NULL;
    nrd_lora_pair_in *pairs = NULL;
    int64_t most = (int64_t)spec->n_layers * NRD_LORA_POSITIONS;
    int32_t max_rank = lim->max_rank > 0 ? lim->max_rank : NRD_LORA_DEFAULT_RANK;

    *out = NULL;
    if (rows < 1 || rows > most || width < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_weights: shape [%lld, %lld], expected 1 to %lld rows (modules times "
                          "layers)", (long long)rows, (long long)width, (long long)most);
    }
    if (config_width != 3 && config_width != 4) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_config: rows of %lld numbers, expected 3 (module, layer, rank)",
                          (long long)config_width);
    }
    if (dtype != NRD_DTYPE_F32 && dtype != NRD_DTYPE_F16 && dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora_weights: type %s, expected FP16, BF16 or FP32",
                          nrd_dtype_name(dtype));
    }
    NRD_NEW_GOTO(pairs, rows, err, done);
    size_t row_bytes = (size_t)width * nrd_dtype_block_bytes(dtype);
    for (int64_t i = 0; i < rows; i++) {
        NRD_TRY_GOTO(fill_row(&pairs[i], spec, max_rank, (const uint8_t *)weights + (size_t)i * row_bytes, dtype, width,
                              config + i * config_width, config_width, i),
                     err, done);
    }
    err = nrd_error_wrap(nrd_lora_make(out, spec, lim, pairs, (int32_t)rows), "lora_config");
done:
    free(pairs);
    return err;
}
