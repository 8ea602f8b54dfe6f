/* SPDX-License-Identifier: Apache-2.0
 * model_config.yaml of a Megatron GPT model, checked, as a config.json. Called by formats/nemo.c. */
#include "formats/nemo_internal.h"

#include "base/dtype.h"

#include <math.h>
#include <string.h>

/* Settings of other networks, which must be false, null, or not there. */
static const char *const refused[] = {
    "num_moe_experts", "use_emha", "headscale", "rotary_interleaved", "window_size", "qk_layernorm", "apply_embedding_scaling",
    "multi_latent_attention", "use_recurrence", "quantization",
};

static nrd_error *read_size(const nrd_json *c, const char *key, int64_t fallback, int64_t most, int64_t *out)
{
    const nrd_json *v = nrd_json_get(c, key);
    const bool is_there = v && !nrd_json_is(v, NRD_JSON_NULL);

    *out = is_there ? nrd_json_int(v, 0) : fallback;
    if (*out < 1 || *out > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is %s, expected a number from 1 to %lld", key,
                          is_there ? "another number or none" : "missing", (long long)most);
    }
    return NULL;
}

static nrd_error *read_real(const nrd_json *c, const char *key, double fallback, double most, double *out)
{
    const nrd_json *v = nrd_json_get(c, key);

    *out = v && !nrd_json_is(v, NRD_JSON_NULL) ? nrd_json_num(v, 0) : fallback;
    return *out > 0 && *out <= most ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is %g, expected above 0 and at most %g", key, *out, most);
}

static nrd_error *refuse_others(const nrd_json *c)
{
    const char *target = nrd_json_get_str(c, "target", "");

    if (*target && !strstr(target, "GPT")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'target' is '%.120s'; of .nemo archives Megatron's GPT models are read", target);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const nrd_json *v = nrd_json_get(c, refused[i]);
        const bool no = !v || nrd_json_is(v, NRD_JSON_NULL) || (nrd_json_is(v, NRD_JSON_BOOL) && !nrd_json_bool(v, false)) ||
                        (nrd_json_is_number(v) && fabs(nrd_json_num(v, 1)) <= 0) ||
                        (nrd_json_is(v, NRD_JSON_OBJECT) && !nrd_json_get_str(v, "algorithm", NULL));
        if (!no) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is not supported", refused[i]);
        }
    }
    const char *block = nrd_json_get_str(c, "transformer_block_type", "pre_ln");
    return strcmp(block, "pre_ln") ? nrd_errorf(NRD_ERR_UNSUPPORTED, "'transformer_block_type' is '%.40s', expected 'pre_ln'", block) : NULL;
}

/* With fused biases GELU is its tanh form, without it is exact. */
static nrd_error *read_activation(nrd_nemo_config *o, const nrd_json *c)
{
    static const struct {
        const char *name, *act;
        bool gated;
    } known[] = {
        {"gelu", "gelu", false},     {"squared-relu", "relu2", false},  {"relu", "relu", false},    {"geglu", "gelu", true},
        {"fast-geglu", "gelu", true}, {"swiglu", "silu", true},         {"fast-swiglu", "silu", true}, {"reglu", "relu", true},
        {"fast-reglu", "relu", true}, {"openai-gelu", "gelu_new", false}, {"silu", "silu", false},
    };
    const char *name = nrd_json_get_str(c, "activation", "gelu");
    const bool fused = o->bias && nrd_json_get_bool(c, "bias_activation_fusion", nrd_json_get_bool(c, "bias_gelu_fusion", true));

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!strcmp(known[i].name, name)) {
            o->act = known[i].act;
            o->gated = known[i].gated;
        }
    }
    if (!o->act) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'activation' is '%.40s'; known: gelu, geglu, relu, reglu, silu, squared-relu, swiglu, with "
                          "'fast-' before the gated ones", name);
    }
    if (!strcmp(o->act, "gelu") && (fused || nrd_json_get_bool(c, "openai_gelu", false))) {
        o->act = "gelu_new";
    }
    return NULL;
}

static nrd_error *read_norm(nrd_nemo_config *o, const nrd_json *c)
{
    const char *name = nrd_json_get_str(c, "normalization", "layernorm");

    o->plus_one = !strcmp(name, "layernorm1p") || nrd_json_get_bool(c, "layernorm_zero_centered_gamma", false);
    o->rms = !strcmp(name, "rmsnorm") || !strcmp(name, "RMSNorm");
    if (!o->plus_one && !o->rms && strcmp(name, "layernorm") != 0 && strcmp(name, "LayerNorm") != 0 &&
        strcmp(name, "low_precision_layernorm") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'normalization' is '%.40s'; known: layernorm, layernorm1p, rmsnorm", name);
    }
    return read_real(c, "layernorm_epsilon", 1e-5, 1, &o->eps);
}

static nrd_error *read_positions(nrd_nemo_config *o, const nrd_json *c)
{
    const char *name = nrd_json_get_str(c, "position_embedding_type", "learned_absolute");

    o->rotary = !strcmp(name, "rope");
    if (!o->rotary && strcmp(name, "learned_absolute") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'position_embedding_type' is '%.40s'; known: learned_absolute, rope", name);
    }
    NRD_TRY(read_real(c, "rotary_percentage", 1, 1, &o->rotary_part));
    NRD_TRY(read_real(c, "rotary_base", 1e4, 1e12, &o->rotary_base));
    return read_real(c, "seq_len_interpolation_factor", 1, 1e6, &o->interpolation);
}

nrd_error *nrd_nemo_read_config(nrd_nemo_config *o, const nrd_json *c)
{
    *o = (nrd_nemo_config){0};
    NRD_TRY(refuse_others(c));
    NRD_TRY(read_size(c, "num_layers", 0, 1 << 10, &o->layers));
    NRD_TRY(read_size(c, "hidden_size", 0, 1 << 16, &o->hidden));
    NRD_TRY(read_size(c, "num_attention_heads", 0, 1 << 10, &o->heads));
    NRD_TRY(read_size(c, "num_query_groups", o->heads, o->heads, &o->groups));
    NRD_TRY(read_size(c, "kv_channels", o->hidden / o->heads, 1 << 12, &o->head_dim));
    NRD_TRY(read_size(c, "ffn_hidden_size", 4 * o->hidden, 1 << 20, &o->inter));
    NRD_TRY(read_size(c, "encoder_seq_length", 2048, 1 << 24, &o->positions));
    NRD_TRY(read_size(c, "max_position_embeddings", o->positions, 1 << 24, &o->positions));
    o->bias = nrd_json_get_bool(c, "bias", true);
    o->qkv_bias = o->bias || nrd_json_get_bool(c, "add_qkv_bias", false) || nrd_json_get_bool(c, "qkv_bias", false);
    o->tied = nrd_json_get_bool(c, "share_embeddings_and_output_weights", true);
    NRD_TRY(read_activation(o, c));
    NRD_TRY(read_norm(o, c));
    return read_positions(o, c);
}

static void put_bool(nrd_str *out, const char *key, bool v)
{
    nrd_str_printf(out, ",\"%s\":%s", key, v ? "true" : "false");
}

static void put_real(nrd_str *out, const char *key, double v)
{
    nrd_str_printf(out, ",\"%s\":", key);
    nrd_json_put_double(out, v);
}

void nrd_nemo_put_config(const nrd_nemo_config *c, int64_t vocab, nrd_dtype dtype, nrd_str *out)
{
    nrd_str_printf(out, "{\"model_type\":\"nemo_gpt%s\",\"torch_dtype\":\"%s\",\"hidden_act\":\"%s\",\"vocab_size\":%lld,"
                   "\"num_hidden_layers\":%lld,\"hidden_size\":%lld,\"intermediate_size\":%lld,\"num_attention_heads\":%lld,"
                   "\"num_key_value_heads\":%lld,\"head_dim\":%lld,\"max_position_embeddings\":%lld",
                   c->plus_one ? "_1p" : "", nrd_dtype_name(dtype), c->act, (long long)vocab, (long long)c->layers, (long long)c->hidden,
                   (long long)c->inter, (long long)c->heads, (long long)c->groups, (long long)c->head_dim, (long long)c->positions);
    put_bool(out, "gated_mlp", c->gated);
    put_bool(out, "use_bias", c->bias);
    put_bool(out, "qkv_bias", c->qkv_bias);
    put_bool(out, "use_rms_norm", c->rms);
    put_bool(out, "use_rope", c->rotary);
    put_bool(out, "tie_word_embeddings", c->tied);
    put_real(out, "layer_norm_eps", c->eps);
    if (c->rotary) {
        put_real(out, "partial_rotary_factor", c->rotary_part);
        put_real(out, "rope_theta", c->rotary_base);
    }
    if (c->rotary && c->interpolation > 1) {
        nrd_str_puts(out, ",\"rope_scaling\":{\"rope_type\":\"linear\"");
        put_real(out, "factor", c->interpolation);
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, '}');
}
