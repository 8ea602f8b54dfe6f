/* SPDX-License-Identifier: Apache-2.0
 * The description of a network: its JSON in config.json of checkpoints and
 * engines in both directions, and the frequencies of rotary positions. Used by the readers of
 * models, the builder and the runner. */
#include "model/spec.h"

#include "base/dtype.h"
#include "model/arch.h"
#include "model/spec_classifier.h"
#include "model/spec_projection.h"
#include "model/spec_altup.h"
#include "model/spec_latent.h"
#include "model/spec_moe.h"
#include "model/spec_recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const act_names[] = {
    [NRD_ACT_NONE] = "none",         [NRD_ACT_SILU] = "silu", [NRD_ACT_GELU_TANH] = "gelu_tanh",
    [NRD_ACT_GELU_ERF] = "gelu_erf", [NRD_ACT_RELU] = "relu", [NRD_ACT_RELU2] = "relu2",
    [NRD_ACT_CLAMPED_SWIGLU] = "clamped_swiglu", [NRD_ACT_XIELU] = "xielu", [NRD_ACT_QUICK_GELU] = "quick_gelu",
};
static const char *const rope_names[] = {
    [NRD_ROPE_NONE] = "none",
    [NRD_ROPE_NEOX] = "neox",
    [NRD_ROPE_INTERLEAVED] = "interleaved",
};
static const char *const scaling_names[] = {
    [NRD_ROPE_SCALING_NONE] = "none",     [NRD_ROPE_SCALING_LINEAR] = "linear",
    [NRD_ROPE_SCALING_LLAMA3] = "llama3", [NRD_ROPE_SCALING_YARN] = "yarn",
    [NRD_ROPE_SCALING_FACTORS] = "factors", [NRD_ROPE_SCALING_DYNAMIC] = "dynamic",
    [NRD_ROPE_SCALING_LONGROPE] = "longrope", [NRD_ROPE_SCALING_PROPORTIONAL] = "proportional",
};
static const char *const norm_names[] = {[NRD_NORM_RMS] = "rms", [NRD_NORM_LAYER] = "layer"};

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

const char *nrd_act_name(nrd_act_kind act)
{
    return (unsigned)act < (unsigned)COUNT(act_names) ? act_names[act] : "unknown";
}

/* Names as they stand in config.json files of Hugging Face and TensorRT-LLM, and our own. */
bool nrd_act_parse(const char *name, nrd_act_kind *out, bool *out_gated)
{
    static const struct {
        const char *name;
        nrd_act_kind act;
        bool gated;
    } table[] = {
        {"silu", NRD_ACT_SILU, false},
        {"swish", NRD_ACT_SILU, false},
        {"swiglu", NRD_ACT_SILU, true},
        {"gelu_new", NRD_ACT_GELU_TANH, false},
        {"gelu_tanh", NRD_ACT_GELU_TANH, false},
        {"gelu_fast", NRD_ACT_GELU_TANH, false},
        {"gelu_pytorch_tanh", NRD_ACT_GELU_TANH, false},
        {"gelu", NRD_ACT_GELU_ERF, false},
        {"gelu_erf", NRD_ACT_GELU_ERF, false},
        {"geglu", NRD_ACT_GELU_ERF, true},
        {"quick_gelu", NRD_ACT_QUICK_GELU, false},
        {"relu", NRD_ACT_RELU, false},
        {"relu2", NRD_ACT_RELU2, false},
        {"squared-relu", NRD_ACT_RELU2, false},
        {"xielu", NRD_ACT_XIELU, false},
    };
    for (int i = 0; i < COUNT(table); i++) {
        if (!strcmp(name, table[i].name)) {
            *out = table[i].act;
            *out_gated = table[i].gated;
            return true;
        }
    }
    return false;
}

void nrd_model_spec_init(nrd_model_spec *s)
{
    memset(s, 0, sizeof *s);
    s->logits_dtype = NRD_DTYPE_F32;
    s->norm_eps = 1e-5f;
    s->embed_scale = 1;
    s->logits_scale = 1;
    s->pre_norms = true;
    s->alibi_max = 8;
    s->moe.n_groups = s->moe.top_groups = 1;
    s->moe.scale = 1;
    s->moe.ep_size = 1;
    s->bos_id = s->eos_id = s->pad_id = s->start_id = s->first_id = -1;
    s->tp_size = s->pp_size = 1;
}

nrd_error *nrd_model_spec_ban(nrd_model_spec *s, int64_t id)
{
    if (id < 0 || id >= s->vocab || s->n_banned_ids == NRD_SPEC_MAX_BANNED_IDS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'bad_words_ids' must be at most %d tokens below vocab_size (%d), got token %lld",
                          (int)NRD_SPEC_MAX_BANNED_IDS, s->vocab, (long long)id);
    }
    s->banned_ids[s->n_banned_ids++] = (int32_t)id;
    return NULL;
}

void nrd_model_spec_add_stop_id(nrd_model_spec *s, int64_t id)
{
    if (id < 0 || id >= s->vocab || s->n_stop_ids >= NRD_SPEC_MAX_STOP_IDS) {
        return;
    }
    for (int i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id) {
            return;
        }
    }
    s->stop_ids[s->n_stop_ids++] = (int32_t)id;
}

/* ---- writing ---- */

static const char *const pooling_names[] = {"first", "mean", "last"};

static void put_key(nrd_str *o, int indent, const char *key)
{
    bool first = o->len && o->data[o->len - 1] == '{';
    nrd_str_printf(o, "%s\n%*s\"%s\": ", first ? "" : ",", indent, "", key);
}

static void put_int(nrd_str *o, int indent, const char *key, int64_t v)
{
    put_key(o, indent, key);
    nrd_str_printf(o, "%lld", (long long)v);
}

static void put_bool(nrd_str *o, int indent, const char *key, bool v)
{
    put_key(o, indent, key);
    nrd_str_puts(o, v ? "true" : "false");
}

static void put_text(nrd_str *o, int indent, const char *key, const char *v)
{
    put_key(o, indent, key);
    nrd_json_put_cstr(o, v);
}

static void put_num(nrd_str *o, int indent, const char *key, double v)
{
    put_key(o, indent, key);
    nrd_json_put_double(o, v);
}

static void put_float(nrd_str *o, int indent, const char *key, float v)
{
    put_key(o, indent, key);
    nrd_json_put_float(o, v);
}

static void put_floats(nrd_str *o, int indent, const char *key, const float *v, int32_t n)
{
    put_key(o, indent, key);
    for (int32_t i = 0; i < n; i++) {
        nrd_str_puts(o, i ? ", " : "[");
        nrd_json_put_float(o, v[i]);
    }
    nrd_str_putc(o, ']');
}

/* One character a layer. */
static void put_layers(nrd_str *o, int indent, const char *key, const uint8_t *v, int32_t n)
{
    char text[NRD_SPEC_MAX_LAYERS + 1];
    for (int32_t i = 0; i < n; i++) {
        text[i] = v[i] ? '1' : '0';
    }
    text[n] = '\0';
    put_text(o, indent, key, text);
}

static void put_rope(nrd_str *o, int indent, const char *key, const nrd_rope_spec *r)
{
    put_key(o, indent, key);
    nrd_str_putc(o, '{');
    put_text(o, indent + 2, "kind", rope_names[r->kind]);
    if (r->kind != NRD_ROPE_NONE) {
        put_int(o, indent + 2, "rotary_dim", r->rotary_dim);
        put_num(o, indent + 2, "base", r->base);
        put_text(o, indent + 2, "scaling", scaling_names[r->scaling]);
    }
    if (nrd_rope_has_axes(r)) {
        put_key(o, indent + 2, "mrope_section");
        nrd_str_printf(o, "[%d, %d, %d]", r->sections[0], r->sections[1], r->sections[2]);
        put_bool(o, indent + 2, "mrope_interleaved", r->sections_by_turns);
    }
    if (r->scaling != NRD_ROPE_SCALING_NONE) {
        put_num(o, indent + 2, "factor", r->factor);
        put_num(o, indent + 2, "low_freq_factor", r->low_freq_factor);
        put_num(o, indent + 2, "high_freq_factor", r->high_freq_factor);
        put_num(o, indent + 2, "beta_fast", r->beta_fast);
        put_num(o, indent + 2, "beta_slow", r->beta_slow);
        put_num(o, indent + 2, "attention_factor", r->attention_factor);
        put_int(o, indent + 2, "original_max_positions", r->original_max_positions);
        put_bool(o, indent + 2, "keep_fractions", r->keep_fractions);
    }
    if (r->scaling == NRD_ROPE_SCALING_LONGROPE) {
        put_floats(o, indent + 2, "short_factors", r->short_factors, r->rotary_dim / 2);
        put_floats(o, indent + 2, "long_factors", r->long_factors, r->rotary_dim / 2);
    }
    nrd_str_printf(o, "\n%*s}", indent, "");
}

static void put_banned(nrd_str *o, const nrd_model_spec *s)
{
    if (s->n_banned_ids == 0) {
        return;
    }
    put_key(o, 4, "banned_ids");
    for (int32_t i = 0; i < s->n_banned_ids; i++) {
        nrd_str_printf(o, i ? ", %d" : "[%d", s->banned_ids[i]);
    }
    nrd_str_putc(o, ']');
}

static void put_norms(const nrd_model_spec *s, nrd_str *o)
{
    put_text(o, 4, "norm", norm_names[s->norm]);
    put_bool(o, 4, "norm_bias", s->norm_bias);
    put_bool(o, 4, "pre_norms", s->pre_norms);
    put_bool(o, 4, "post_norms", s->post_norms);
    if (s->norms_by_kind) {
        put_bool(o, 4, "norms_by_kind", true);
    }
    put_bool(o, 4, "parallel", s->parallel);
    put_bool(o, 4, "shared_norm", s->shared_norm);
    put_bool(o, 4, "embed_norm", s->embed_norm);
}

/* Encoders, and decoders of what they read. */
static void put_sides(const nrd_model_spec *s, nrd_str *o)
{
    if (s->encoder) {
        put_bool(o, 4, "encoder", true);
        put_bool(o, 4, "for_decoder", s->for_decoder);
        put_int(o, 4, "n_mels", s->n_mels);
    }
    if (s->cross_attention) {
        put_bool(o, 4, "cross_attention", true);
        put_int(o, 4, "start_id", s->start_id);
        put_int(o, 4, "first_id", s->first_id);
        put_banned(o, s);
    }
}

/* What a model says that does not go on with a text. */
static void put_outputs(const nrd_model_spec *s, nrd_str *o)
{
    put_text(o, 4, "pooling", pooling_names[s->pooling]);
    if (s->n_projections > 0) {
        put_key(o, 4, "projections");
        nrd_projection_spec_put(s, o);
    }
    if (s->classifier.n_labels > 0) {
        put_key(o, 4, "classifier");
        nrd_classifier_spec_put(&s->classifier, o);
    }
}

static void put_attention(const nrd_model_spec *s, nrd_str *o)
{
    put_bool(o, 4, "qk_norm_wide", s->qk_norm_wide);
    put_bool(o, 4, "qk_norm_apart", s->qk_norm_apart);
    put_bool(o, 4, "qk_norm_center", s->qk_norm_center);
    put_bool(o, 4, "qk_norm_bias", s->qk_norm_bias);
    put_bool(o, 4, "qk_norm_late", s->qk_norm_late);
    put_bool(o, 4, "qk_norm_turned", s->qk_norm_turned);
    put_float(o, 4, "clip_qkv", s->clip_qkv);
    put_float(o, 4, "q_scale_beta", s->q_scale_beta);
    put_int(o, 4, "q_scale_length", s->q_scale_length);
    put_int(o, 4, "q_scale_offset", s->q_scale_offset);
    put_bool(o, 4, "q_scale_nope", s->q_scale_nope);
    if (s->alibi) {
        put_float(o, 4, "alibi_max", s->alibi_max);
        put_bool(o, 4, "alibi_scaled", s->alibi_scaled);
    }
    put_bool(o, 4, "sink_logits", s->sink_logits);
    if (s->inner_norms) {
        put_bool(o, 4, "inner_norms", true);
    }
    if (s->attn_gate) {
        put_bool(o, 4, "attn_gate", true);
    }
}

static void put_products(const nrd_model_spec *s, nrd_str *o)
{
    put_text(o, 4, "act", nrd_act_name(s->act));
    put_bool(o, 4, "gated_mlp", s->gated_mlp);
    put_bool(o, 4, "qkv_bias", s->qkv_bias);
    put_bool(o, 4, "dense_bias", s->dense_bias);
    put_bool(o, 4, "mlp_bias", s->mlp_bias);
    put_bool(o, 4, "lm_head_bias", s->lm_head_bias);
}

/* Parts of layers that only some families have. */
static void put_blocks(const nrd_model_spec *s, nrd_str *o)
{
    if (s->has_experts) {
        put_key(o, 4, "moe");
        nrd_moe_spec_put(&s->moe, o);
        put_layers(o, 4, "layer_is_dense", s->layer_is_dense, s->n_layers);
    }
    if (nrd_spec_is_latent(s)) {
        put_key(o, 4, "latent");
        nrd_latent_spec_put(&s->latent, o);
    }
    if (nrd_spec_has_altup(s) || nrd_spec_has_layer_inputs(s)) {
        put_key(o, 4, "altup");
        nrd_altup_spec_put(s, o);
    }
    if (s->n_shared_kv > 0) {
        put_int(o, 4, "n_shared_kv", s->n_shared_kv);
    }
    if (s->v_norm) {
        put_bool(o, 4, "v_norm", true);
    }
    if (nrd_spec_is_mixed(s)) {
        put_int(o, 4, "full_head_dim", s->full_head_dim);
        put_int(o, 4, "full_kv_heads", s->full_kv_heads);
        put_int(o, 4, "shared_kv_inter", s->shared_kv_inter);
    }
    if (s->values_are_keys) {
        put_bool(o, 4, "values_are_keys", true);
    }
    if (s->layer_scale) {
        put_bool(o, 4, "layer_scale", true);
    }
    if (nrd_spec_is_recurrent(s)) {
        put_key(o, 4, "recurrent");
        nrd_recurrent_spec_put(&s->recurrent, o);
        put_layers(o, 4, "layer_is_recurrent", s->layer_is_recurrent, s->n_layers);
        put_layers(o, 4, "layer_has_no_mixer", s->layer_has_no_mixer, s->n_layers);
        put_layers(o, 4, "layer_has_no_mlp", s->layer_has_no_mlp, s->n_layers);
    }
}

/* Where tokens stand, and which layers see how much of them. */
static void put_places(const nrd_model_spec *s, nrd_str *o)
{
    if (s->picture_rows > 0) {
        put_int(o, 4, "picture_rows", s->picture_rows);
    }
    put_rope(o, 4, "rope", &s->rope);
    put_rope(o, 4, "rope_local", &s->rope_local);
    put_int(o, 4, "sliding_window", s->sliding_window);
    put_bool(o, 4, "window_chunks", s->window_chunks);
    put_layers(o, 4, "layer_is_sliding", s->layer_is_sliding, s->n_layers);
    put_layers(o, 4, "layer_has_no_rope", s->layer_has_no_rope, s->n_layers);
    if (nrd_spec_has_gaps(s)) {
        put_layers(o, 4, "layer_is_behind_gap", s->layer_is_behind_gap, s->n_layers);
        put_bool(o, 4, "reads_pictures", s->reads_pictures);
    }
}

static void put_ids(const nrd_model_spec *s, nrd_str *o)
{
    put_int(o, 4, "bos_id", s->bos_id);
    put_int(o, 4, "eos_id", s->eos_id);
    put_int(o, 4, "pad_id", s->pad_id);
    put_key(o, 4, "stop_ids");
    nrd_str_putc(o, '[');
    for (int32_t i = 0; i < s->n_stop_ids; i++) {
        nrd_str_printf(o, "%s%d", i ? ", " : "", s->stop_ids[i]);
    }
    nrd_str_putc(o, ']');
}

static void put_nereid(const nrd_model_spec *s, nrd_str *o)
{
    put_key(o, 2, "nereid");
    nrd_str_putc(o, '{');
    put_text(o, 4, "model_type", s->model_type);
    put_norms(s, o);
    put_sides(s, o);
    if (s->mtp) {
        put_bool(o, 4, "mtp", true);
    }
    if (s->rel_buckets > 0) {
        put_int(o, 4, "rel_buckets", s->rel_buckets);
        put_int(o, 4, "rel_distance", s->rel_distance);
    }
    put_outputs(s, o);
    put_bool(o, 4, "sum_norms", s->sum_norms);
    put_bool(o, 4, "no_first_norm", s->no_first_norm);
    if (s->embed_width > 0) {
        put_int(o, 4, "embed_width", s->embed_width);
    }
    put_int(o, 4, "n_token_types", s->n_token_types);
    put_attention(s, o);
    put_products(s, o);
    put_blocks(s, o);
    put_places(s, o);
    put_float(o, 4, "embed_scale", s->embed_scale);
    put_float(o, 4, "attn_scale", s->attn_scale);
    put_float(o, 4, "attn_softcap", s->attn_softcap);
    put_float(o, 4, "logits_softcap", s->logits_softcap);
    put_float(o, 4, "logits_scale", s->logits_scale);
    put_ids(s, o);
    nrd_str_puts(o, "\n  }");
}

void nrd_model_spec_to_json(const nrd_model_spec *s, nrd_str *o)
{
    const char *positions = s->learned_positions                        ? "learned_absolute"
                            : s->alibi                                  ? "alibi"
                            : s->rel_buckets > 0                        ? "relative"
                            : s->rope.kind == NRD_ROPE_INTERLEAVED ? "rope_gptj"
                                                                   : "rope_gpt_neox";
    nrd_str_putc(o, '{');
    put_text(o, 2, "architecture", s->architecture);
    put_text(o, 2, "dtype", nrd_dtype_name(s->dtype));
    put_text(o, 2, "logits_dtype", nrd_dtype_name(s->logits_dtype));
    put_int(o, 2, "vocab_size", s->vocab);
    put_int(o, 2, "max_position_embeddings", s->max_positions);
    put_int(o, 2, "hidden_size", s->hidden);
    put_int(o, 2, "num_hidden_layers", s->n_layers);
    put_int(o, 2, "num_attention_heads", s->n_heads);
    put_int(o, 2, "num_key_value_heads", s->n_kv_heads);
    put_int(o, 2, "head_size", s->head_dim);
    put_int(o, 2, "intermediate_size", s->inter);
    put_text(o, 2, "hidden_act", s->act == NRD_ACT_GELU_TANH ? "gelu_pytorch_tanh" :
                                 s->act == NRD_ACT_GELU_ERF  ? "gelu" : nrd_act_name(s->act));
    put_float(o, 2, "norm_epsilon", s->norm_eps);
    put_text(o, 2, "position_embedding_type", positions);
    if (s->rope.kind != NRD_ROPE_NONE) {
        put_num(o, 2, "rotary_base", s->rope.base);
    }
    put_bool(o, 2, "attn_bias", s->qkv_bias);
    put_bool(o, 2, "qk_layernorm", s->qk_norm);
    put_bool(o, 2, "share_embedding_table", s->tied_embeddings);
    put_bool(o, 2, "use_parallel_embedding", s->parallel_embedding);
    put_int(o, 2, "embedding_sharding_dim", s->embedding_by_columns);
    put_key(o, 2, "mapping");
    nrd_str_printf(o, "{\"world_size\": %d, \"tp_size\": %d, \"pp_size\": %d", s->tp_size * s->pp_size, s->tp_size,
                   s->pp_size);
    if (s->has_experts) {
        nrd_str_printf(o, ", \"moe_tp_size\": %d, \"moe_ep_size\": %d", nrd_spec_moe_tp(s), s->moe.ep_size);
    }
    nrd_str_putc(o, '}');
    put_key(o, 2, "quantization");
    nrd_str_puts(o, "{\"quant_algo\": ");
    if (s->quant_algo[0]) {
        nrd_json_put_cstr(o, s->quant_algo);
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_puts(o, ", \"kv_cache_quant_algo\": null}");
    put_nereid(s, o);
    nrd_str_puts(o, "\n}\n");
}

/* ---- reading ---- */

static nrd_error *get_i32(const nrd_json *o, const char *key, int32_t fallback, int32_t *out)
{
    const nrd_json *v = nrd_json_get(o, key);
    *out = fallback;
    if (!v || nrd_json_is(v, NRD_JSON_NULL)) {
        return NULL;
    }
    int64_t i = nrd_json_int(v, INT64_MIN);
    if (i < INT32_MIN || i > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be a whole number of 32 bits, got %s %g", key,
                          nrd_json_type_name(v), nrd_json_num(v, 0));
    }
    *out = (int32_t)i;
    return NULL;
}

static nrd_error *get_text(const nrd_json *o, const char *key, char *out, size_t size)
{
    const char *s = nrd_json_get_str(o, key, "");
    if (strlen(s) >= size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is longer than %zu bytes", key, size - 1);
    }
    snprintf(out, size, "%s", s);
    return NULL;
}

static nrd_error *get_dtype(const nrd_json *o, const char *key, nrd_dtype fallback, nrd_dtype *out)
{
    const char *s = nrd_json_get_str(o, key, NULL);
    *out = fallback;
    if (s && !nrd_dtype_parse(s, out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' is no known element type", key, s);
    }
    return NULL;
}

static nrd_error *get_name(const nrd_json *o, const char *key, const char *const *names, int n,
                           int *out)
{
    const char *s = nrd_json_get_str(o, key, names[0]);
    for (int i = 0; i < n; i++) {
        if (!strcmp(s, names[i])) {
            *out = i;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' is not known; this build is older than the "
                      "file, or the file is damaged", key, s);
}

static void read_floats(const nrd_json *v, float *out, int32_t max)
{
    for (int32_t i = 0; i < max && nrd_json_is(v, NRD_JSON_ARRAY) && (size_t)i < nrd_json_len(v); i++) {
        out[i] = (float)nrd_json_num(nrd_json_at(v, (size_t)i), 0);
    }
}

static nrd_error *read_layers(const nrd_json *o, const char *key, uint8_t *out, int32_t n_layers)
{
    const char *text = nrd_json_get_str(o, key, "");
    size_t n = strlen(text);
    if (n && n != (size_t)n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has %zu characters, expected one for each of %d layers", key,
                          n, n_layers);
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = text[i] == '1';
    }
    return NULL;
}

nrd_error *nrd_rope_read_sections(nrd_rope_spec *r, const nrd_json *list)
{
    if (!list || nrd_json_is(list, NRD_JSON_NULL)) {
        return NULL;
    }
    bool ok = nrd_json_is(list, NRD_JSON_ARRAY) && nrd_json_len(list) == NRD_ROPE_AXES;
    for (size_t i = 0; ok && i < NRD_ROPE_AXES; i++) {
        const int64_t n = nrd_json_int(nrd_json_at(list, i), -1);
        ok = n >= 0 && n <= NRD_SPEC_MAX_ROTARY;
        r->sections[i] = ok ? (int32_t)n : 0;
    }
    return ok ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "'mrope_section' must be a list of %d numbers of pairs", (int)NRD_ROPE_AXES);
}

bool nrd_rope_has_axes(const nrd_rope_spec *r)
{
    return r->sections[0] > 0 || r->sections[1] > 0 || r->sections[2] > 0;
}

static nrd_error *read_rope(const nrd_json *o, nrd_rope_spec *r)
{
    int kind = 0, scaling = 0;
    NRD_TRY(get_name(o, "kind", rope_names, COUNT(rope_names), &kind));
    NRD_TRY(get_name(o, "scaling", scaling_names, COUNT(scaling_names), &scaling));
    r->kind = (nrd_rope_kind)kind;
    r->scaling = (nrd_rope_scaling)scaling;
    NRD_TRY(get_i32(o, "rotary_dim", 0, &r->rotary_dim));
    NRD_TRY(nrd_rope_read_sections(r, nrd_json_get(o, "mrope_section")));
    r->sections_by_turns = nrd_json_get_bool(o, "mrope_interleaved", false);
    NRD_TRY(get_i32(o, "original_max_positions", 0, &r->original_max_positions));
    r->base = nrd_json_get_num(o, "base", 0);
    r->factor = nrd_json_get_num(o, "factor", 0);
    r->low_freq_factor = nrd_json_get_num(o, "low_freq_factor", 0);
    r->high_freq_factor = nrd_json_get_num(o, "high_freq_factor", 0);
    r->beta_fast = nrd_json_get_num(o, "beta_fast", 0);
    r->beta_slow = nrd_json_get_num(o, "beta_slow", 0);
    r->attention_factor = nrd_json_get_num(o, "attention_factor", 0);
    r->keep_fractions = nrd_json_get_bool(o, "keep_fractions", false);
    read_floats(nrd_json_get(o, "short_factors"), r->short_factors, NRD_SPEC_MAX_ROTARY / 2);
    read_floats(nrd_json_get(o, "long_factors"), r->long_factors, NRD_SPEC_MAX_ROTARY / 2);
    return NULL;
}

static nrd_error *read_pooling(const nrd_json *o, nrd_model_spec *s)
{
    const char *name = nrd_json_get_str(o, "pooling", pooling_names[s->encoder ? NRD_SPEC_POOL_FIRST : NRD_SPEC_POOL_LAST]);

    for (int i = NRD_SPEC_POOL_FIRST; i <= NRD_SPEC_POOL_LAST; i++) {
        if (!strcmp(name, pooling_names[i])) {
            s->pooling = (nrd_spec_pooling)i;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "pooling must be first, mean or last, got '%.40s'", name);
}

static nrd_error *read_banned(nrd_model_spec *s, const nrd_json *list)
{
    const size_t n = nrd_json_is(list, NRD_JSON_ARRAY) ? nrd_json_len(list) : 0;

    for (size_t i = 0; i < n; i++) {
        NRD_TRY(nrd_model_spec_ban(s, nrd_json_int(nrd_json_at(list, i), -1)));
    }
    return NULL;
}

static nrd_error *read_nereid(const nrd_json *o, nrd_model_spec *s)
{
    int norm = 0, act = 0;

    NRD_TRY(get_text(o, "model_type", s->model_type, sizeof s->model_type));
    NRD_TRY(get_name(o, "norm", norm_names, COUNT(norm_names), &norm));
    NRD_TRY(get_name(o, "act", act_names, COUNT(act_names), &act));
    s->norm = (nrd_norm_kind)norm;
    s->act = (nrd_act_kind)act;
    s->norm_bias = nrd_json_get_bool(o, "norm_bias", s->norm == NRD_NORM_LAYER);
    s->pre_norms = nrd_json_get_bool(o, "pre_norms", true);
    s->post_norms = nrd_json_get_bool(o, "post_norms", false);
    s->norms_by_kind = nrd_json_get_bool(o, "norms_by_kind", false);
    s->parallel = nrd_json_get_bool(o, "parallel", false);
    s->shared_norm = nrd_json_get_bool(o, "shared_norm", false);
    s->embed_norm = nrd_json_get_bool(o, "embed_norm", false);
    s->encoder = nrd_json_get_bool(o, "encoder", false);
    s->for_decoder = nrd_json_get_bool(o, "for_decoder", false);
    NRD_TRY(get_i32(o, "n_mels", 0, &s->n_mels));
    s->cross_attention = nrd_json_get_bool(o, "cross_attention", false);
    s->mtp = nrd_json_get_bool(o, "mtp", false);
    NRD_TRY(get_i32(o, "start_id", -1, &s->start_id));
    NRD_TRY(get_i32(o, "first_id", -1, &s->first_id));
    NRD_TRY(read_banned(s, nrd_json_get(o, "banned_ids")));
    NRD_TRY(get_i32(o, "rel_buckets", 0, &s->rel_buckets));
    NRD_TRY(get_i32(o, "rel_distance", 0, &s->rel_distance));
    s->sum_norms = nrd_json_get_bool(o, "sum_norms", false);
    s->no_first_norm = nrd_json_get_bool(o, "no_first_norm", false);
    NRD_TRY(get_i32(o, "embed_width", 0, &s->embed_width));
    NRD_TRY(get_i32(o, "n_token_types", 0, &s->n_token_types));
    NRD_TRY(read_pooling(o, s));
    NRD_TRY(nrd_error_wrap(nrd_projection_spec_read(nrd_json_get(o, "projections"), s), "projections"));
    NRD_TRY(nrd_error_wrap(nrd_classifier_spec_read(nrd_json_get(o, "classifier"), &s->classifier), "classifier"));
    s->qk_norm_wide = nrd_json_get_bool(o, "qk_norm_wide", false);
    s->qk_norm_apart = nrd_json_get_bool(o, "qk_norm_apart", false);
    s->qk_norm_center = nrd_json_get_bool(o, "qk_norm_center", false);
    s->qk_norm_bias = nrd_json_get_bool(o, "qk_norm_bias", false);
    s->qk_norm_late = nrd_json_get_bool(o, "qk_norm_late", false);
    s->qk_norm_turned = nrd_json_get_bool(o, "qk_norm_turned", false);
    s->clip_qkv = (float)nrd_json_get_num(o, "clip_qkv", 0);
    s->q_scale_beta = (float)nrd_json_get_num(o, "q_scale_beta", 0);
    NRD_TRY(get_i32(o, "q_scale_length", 0, &s->q_scale_length));
    NRD_TRY(get_i32(o, "q_scale_offset", 0, &s->q_scale_offset));
    s->q_scale_nope = nrd_json_get_bool(o, "q_scale_nope", false);
    s->alibi = nrd_json_get(o, "alibi_max") != NULL;
    s->alibi_max = (float)nrd_json_get_num(o, "alibi_max", 8);
    s->alibi_scaled = nrd_json_get_bool(o, "alibi_scaled", false);
    s->sink_logits = nrd_json_get_bool(o, "sink_logits", false);
    s->attn_gate = nrd_json_get_bool(o, "attn_gate", false);
    s->inner_norms = nrd_json_get_bool(o, "inner_norms", false);
    s->gated_mlp = nrd_json_get_bool(o, "gated_mlp", false);
    s->qkv_bias = nrd_json_get_bool(o, "qkv_bias", false);
    s->dense_bias = nrd_json_get_bool(o, "dense_bias", false);
    s->mlp_bias = nrd_json_get_bool(o, "mlp_bias", false);
    s->lm_head_bias = nrd_json_get_bool(o, "lm_head_bias", false);
    NRD_TRY(nrd_error_wrap(nrd_moe_spec_read(nrd_json_get(o, "moe"), s), "moe"));
    NRD_TRY(read_layers(o, "layer_is_dense", s->layer_is_dense, s->n_layers));
    NRD_TRY(nrd_error_wrap(nrd_latent_spec_read(nrd_json_get(o, "latent"), &s->latent), "latent"));
    NRD_TRY(nrd_error_wrap(nrd_altup_spec_read(nrd_json_get(o, "altup"), s), "altup"));
    NRD_TRY(get_i32(o, "n_shared_kv", 0, &s->n_shared_kv));
    s->v_norm = nrd_json_get_bool(o, "v_norm", false);
    NRD_TRY(get_i32(o, "full_head_dim", 0, &s->full_head_dim));
    NRD_TRY(get_i32(o, "full_kv_heads", 0, &s->full_kv_heads));
    NRD_TRY(get_i32(o, "shared_kv_inter", 0, &s->shared_kv_inter));
    s->values_are_keys = nrd_json_get_bool(o, "values_are_keys", false);
    s->layer_scale = nrd_json_get_bool(o, "layer_scale", false);
    NRD_TRY(nrd_error_wrap(nrd_recurrent_spec_read(nrd_json_get(o, "recurrent"), &s->recurrent), "recurrent"));
    NRD_TRY(read_layers(o, "layer_is_recurrent", s->layer_is_recurrent, s->n_layers));
    NRD_TRY(read_layers(o, "layer_has_no_mixer", s->layer_has_no_mixer, s->n_layers));
    NRD_TRY(read_layers(o, "layer_has_no_mlp", s->layer_has_no_mlp, s->n_layers));
    NRD_TRY(nrd_error_wrap(read_rope(nrd_json_get(o, "rope"), &s->rope), "rope"));
    NRD_TRY(nrd_error_wrap(read_rope(nrd_json_get(o, "rope_local"), &s->rope_local), "rope_local"));
    NRD_TRY(get_i32(o, "sliding_window", 0, &s->sliding_window));
    s->window_chunks = nrd_json_get_bool(o, "window_chunks", false);
    s->embed_scale = (float)nrd_json_get_num(o, "embed_scale", 1);
    s->attn_scale = (float)nrd_json_get_num(o, "attn_scale", 0);
    s->attn_softcap = (float)nrd_json_get_num(o, "attn_softcap", 0);
    s->logits_softcap = (float)nrd_json_get_num(o, "logits_softcap", 0);
    s->logits_scale = (float)nrd_json_get_num(o, "logits_scale", 1);
    NRD_TRY(get_i32(o, "bos_id", -1, &s->bos_id));
    NRD_TRY(get_i32(o, "eos_id", -1, &s->eos_id));
    NRD_TRY(get_i32(o, "pad_id", -1, &s->pad_id));
    NRD_TRY(get_i32(o, "picture_rows", 0, &s->picture_rows));
    const nrd_json *stops = nrd_json_get(o, "stop_ids");
    for (size_t i = 0; nrd_json_is(stops, NRD_JSON_ARRAY) && i < nrd_json_len(stops); i++) {
        nrd_model_spec_add_stop_id(s, nrd_json_int(nrd_json_at(stops, i), -1));
    }
    NRD_TRY(read_layers(o, "layer_is_sliding", s->layer_is_sliding, s->n_layers));
    NRD_TRY(read_layers(o, "layer_is_behind_gap", s->layer_is_behind_gap, s->n_layers));
    s->reads_pictures = nrd_json_get_bool(o, "reads_pictures", false);
    return read_layers(o, "layer_has_no_rope", s->layer_has_no_rope, s->n_layers);
}

nrd_error *nrd_spec_foreign_quantization(const char *algo)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization '%.64s' of a checkpoint made by another converter cannot be read; "
                      "convert the original model with 'nereid convert'", algo);
}

nrd_error *nrd_model_spec_read(nrd_model_spec *s, const nrd_json *config)
{
    nrd_model_spec_init(s);
    if (!nrd_json_is(config, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected an object, got %s",
                          nrd_json_type_name(config));
    }
    NRD_TRY(get_text(config, "architecture", s->architecture, sizeof s->architecture));
    if (!s->architecture[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'architecture' is missing");
    }
    NRD_TRY(get_dtype(config, "dtype", NRD_DTYPE_F16, &s->dtype));
    NRD_TRY(get_dtype(config, "logits_dtype", NRD_DTYPE_F32, &s->logits_dtype));
    NRD_TRY(get_i32(config, "num_hidden_layers", 0, &s->n_layers));
    if (s->n_layers < 0 || s->n_layers > NRD_SPEC_MAX_LAYERS) { /* lists of layers are read by it */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "num_hidden_layers must be between 0 and %d, got %d", (int)NRD_SPEC_MAX_LAYERS,
                          s->n_layers);
    }
    NRD_TRY(get_i32(config, "vocab_size", 0, &s->vocab));
    NRD_TRY(get_i32(config, "max_position_embeddings", 2048, &s->max_positions));
    NRD_TRY(get_i32(config, "hidden_size", 0, &s->hidden));
    NRD_TRY(get_i32(config, "num_attention_heads", 0, &s->n_heads));
    NRD_TRY(get_i32(config, "num_key_value_heads", s->n_heads, &s->n_kv_heads));
    NRD_TRY(get_i32(config, "head_size", s->n_heads > 0 ? s->hidden / s->n_heads : 0,
                    &s->head_dim));
    int64_t inter = (int64_t)s->hidden * 4; /* TensorRT-LLM's default */
    NRD_TRY(get_i32(config, "intermediate_size", inter > INT32_MAX ? 0 : (int32_t)inter,
                    &s->inter));
    s->norm_eps = (float)nrd_json_get_num(config, "norm_epsilon", 1e-5);
    s->qk_norm = nrd_json_get_bool(config, "qk_layernorm", false);
    s->tied_embeddings = nrd_json_get_bool(config, "share_embedding_table", false);
    s->learned_positions = !strcmp(nrd_json_get_str(config, "position_embedding_type", ""),
                                   "learned_absolute");
    const nrd_json *mapping = nrd_json_get(config, "mapping");
    NRD_TRY(get_i32(mapping, "tp_size", 1, &s->tp_size));
    NRD_TRY(get_i32(mapping, "pp_size", 1, &s->pp_size));
    NRD_TRY(get_i32(mapping, "moe_ep_size", 1, &s->moe.ep_size));
    s->parallel_embedding = nrd_json_get_bool(config, "use_parallel_embedding", false) && s->tp_size > 1;
    int32_t sharding_dim = 0;
    NRD_TRY(get_i32(config, "embedding_sharding_dim", 0, &sharding_dim));
    if (s->parallel_embedding &&
        (sharding_dim < 0 || sharding_dim > 1 || (sharding_dim == 1 && s->tied_embeddings))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "embedding_sharding_dim is %d; expected 0 (by tokens) or, unless "
                          "share_embedding_table is "
                          "set, 1 (by columns)",
                          sharding_dim);
    }
    s->embedding_by_columns = s->parallel_embedding && sharding_dim == 1;
    const nrd_json *quantization = nrd_json_get(config, "quantization");
    const char *algo = nrd_json_get_str(quantization, "quant_algo", "");
    if (strlen(algo) >= sizeof s->quant_algo) { /* none of ours is that long */
        return nrd_spec_foreign_quantization(algo);
    }
    NRD_TRY(get_text(quantization, "quant_algo", s->quant_algo, sizeof s->quant_algo));
    const nrd_json *ours = nrd_json_get(config, "nereid");
    return ours ? nrd_error_wrap(read_nereid(ours, s), "nereid") : NULL;
}

/* ---- rotary embedding ---- */

/* Where a dimension turns `turns` times over the original context (Peng et al. 2023, YaRN,
 * section 3.2). */
static double yarn_dim(const nrd_rope_spec *r, double turns)
{
    const double two_pi = 6.283185307179586;
    return (double)r->rotary_dim * log((double)r->original_max_positions / (turns * two_pi)) /
           (2 * log(r->base));
}

static double yarn(const nrd_rope_spec *r, int i, double f)
{
    double fast = r->beta_fast > 0 ? r->beta_fast : 32, slow = r->beta_slow > 0 ? r->beta_slow : 1;
    double low = yarn_dim(r, fast), high = yarn_dim(r, slow);
    low = fmax(r->keep_fractions ? low : floor(low), 0);
    high = fmin(r->keep_fractions ? high : ceil(high), (double)r->rotary_dim - 1);
    double ramp = ((double)i - low) / (high == low ? 0.001 : high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / r->factor * ramp + f * (1 - ramp);
}

/* Long waves are stretched, short ones kept, those between blended (Llama 3.1's published rule). */
static double llama3(const nrd_rope_spec *r, double f)
{
    double turns = (double)r->original_max_positions * f / 6.283185307179586;
    if (turns > r->high_freq_factor) {
        return f;
    }
    if (turns < r->low_freq_factor) {
        return f / r->factor;
    }
    double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return f * (smooth + (1 - smooth) / r->factor);
}

nrd_model_spec nrd_spec_of_rank(const nrd_model_spec *spec, int32_t rank)
{
    nrd_model_spec s = *spec;
    s.n_layers /= s.pp_size;
    memmove(s.layer_is_sliding, s.layer_is_sliding + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_has_no_rope, s.layer_has_no_rope + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_is_behind_gap, s.layer_is_behind_gap + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_is_recurrent, s.layer_is_recurrent + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_has_no_mixer, s.layer_has_no_mixer + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_has_no_mlp, s.layer_has_no_mlp + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    memmove(s.layer_is_dense, s.layer_is_dense + nrd_spec_first_layer(spec, rank), (size_t)s.n_layers);
    if (s.has_experts) {
        s.moe.inter /= nrd_spec_moe_tp(&s);
        s.moe.shared_inter /= s.tp_size;
    }
    s.n_heads /= s.tp_size;
    s.n_kv_heads = s.n_kv_heads > s.tp_size ? s.n_kv_heads / s.tp_size : 1;
    s.inter /= s.tp_size;
    if (s.full_kv_heads > 0) {
        s.full_kv_heads = s.full_kv_heads > s.tp_size ? s.full_kv_heads / s.tp_size : 1;
    }
    s.shared_kv_inter /= s.tp_size;
    return s;
}

nrd_model_spec nrd_spec_of_layer(const nrd_model_spec *spec, int32_t layer)
{
    nrd_model_spec s = *spec;
    s.head_dim = nrd_spec_head_dim(spec, layer);
    s.n_kv_heads = nrd_spec_own_kv_heads(spec, layer);
    s.inter = nrd_spec_inter(spec, layer);
    s.full_head_dim = s.full_kv_heads = s.shared_kv_inter = 0;
    return s;
}

nrd_rope_spec nrd_rope_for_length(const nrd_rope_spec *rope, int32_t seq_len)
{
    nrd_rope_spec r = *rope;
    if (r.scaling == NRD_ROPE_SCALING_LONGROPE && seq_len <= r.original_max_positions) {
        memcpy(r.long_factors, r.short_factors, sizeof r.long_factors);
    }
    if (r.scaling != NRD_ROPE_SCALING_DYNAMIC) {
        return r;
    }
    double n = (double)seq_len / r.original_max_positions, d = r.rotary_dim;
    r.scaling = NRD_ROPE_SCALING_NONE;
    if (n > 1 && d > 2) {
        r.base *= pow(r.factor * n - (r.factor - 1), d / (d - 2));
    }
    return r;
}

float nrd_rope_inv_freq(const nrd_rope_spec *r, const float *factors, float *out)
{
    for (int i = 0; i < r->rotary_dim / 2; i++) {
        double f = pow(r->base, -2.0 * i / r->rotary_dim);
        switch (r->scaling) {
        case NRD_ROPE_SCALING_NONE:
        case NRD_ROPE_SCALING_DYNAMIC: /* nrd_rope_for_length */
            break;
        case NRD_ROPE_SCALING_LINEAR:
            f /= r->factor;
            break;
        case NRD_ROPE_SCALING_LLAMA3:
            f = llama3(r, f);
            break;
        case NRD_ROPE_SCALING_YARN:
            f = yarn(r, i, f);
            break;
        case NRD_ROPE_SCALING_LONGROPE: /* nrd_rope_for_length */
            f /= (double)r->long_factors[i];
            break;
        case NRD_ROPE_SCALING_PROPORTIONAL:
            f = i < (int)(r->factor * r->rotary_dim / 2) ? f : 0;
            break;
        case NRD_ROPE_SCALING_FACTORS:
            if (factors) {
                f /= (double)factors[i];
            }
            break;
        }
        out[i] = (float)f;
    }
    if (r->attention_factor > 0) {
        return (float)r->attention_factor;
    }
    if (r->scaling == NRD_ROPE_SCALING_YARN && r->factor > 1) {
        return (float)(0.1 * log(r->factor) + 1);
    }
    return 1;
}
