/* SPDX-License-Identifier: Apache-2.0
 * Reads the metadata of GGUF files: keys that stand behind the family's name, alike in all families,
 * then what a family's own hook adds. */
#include "model/arch.h"
#include "model/families/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const nrd_gguf *g;
    const char *arch;
    bool takes_first; /* of an array: a hook reads the others */
    bool skips_zeros; /* of an array: layers without attention have 0 heads */
    char key[160];
} gguf_keys;

static const char *gguf_key(gguf_keys *k, const char *name)
{
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

static nrd_error *gguf_int(gguf_keys *k, const char *name, int64_t fallback, int32_t *out)
{
    const char *key = gguf_key(k, name);
    const nrd_gguf_value *v = nrd_gguf_find(k->g, key);
    double each;
    /* some writers give one value for each layer; equal ones mean the same as a single one */
    if (v && v->type == NRD_GGUF_ARRAY) {
        double first = 0;
        bool any = false;
        for (uint64_t i = 0; i < v->n; i++) {
            const bool is_number = nrd_gguf_arr_num(v, i, &each);
            if (is_number && k->skips_zeros && !(each < 0) && !(each > 0)) {
                continue;
            }
            first = any ? first : each;
            any = true;
            if (!is_number || ((each < first || each > first) && !k->takes_first)) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' differs between layers", key);
            }
            fallback = first > -1e9 && first < 1e9 ? (int64_t)first : INT64_MAX;
        }
    } else {
        fallback = nrd_gguf_int(k->g, key, fallback);
    }
    if (fallback < INT32_MIN || fallback > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, v ? "'%s' must be a whole number of 32 bits" :
                          "'%s' is missing", key);
    }
    *out = (int32_t)fallback;
    return NULL;
}

static double gguf_num(gguf_keys *k, const char *name, double fallback)
{
    return nrd_gguf_num(k->g, gguf_key(k, name), fallback);
}

static nrd_error *gguf_rope(nrd_model_spec *s, const nrd_arch *a, gguf_keys *k)
{
    nrd_rope_spec *r = &s->rope;
    nrd_gguf_span type = {"none", 4};

    r->kind = a->traits & (T_GGUF_INTERLEAVED | T_ROPE_INTERLEAVED) ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
    r->base = gguf_num(k, "rope.freq_base", 1e4);
    NRD_TRY(gguf_int(k, "rope.dimension_count", s->head_dim, &r->rotary_dim));
    nrd_gguf_str(k->g, gguf_key(k, "rope.scaling.type"), &type);
    r->factor = gguf_num(k, "rope.scaling.factor", gguf_num(k, "rope.scale_linear", 1));
    r->attention_factor = gguf_num(k, "rope.scaling.attn_factor", r->attention_factor);
    r->beta_fast = gguf_num(k, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = gguf_num(k, "rope.scaling.yarn_beta_slow", 1);
    NRD_TRY(gguf_int(k, "rope.scaling.original_context_length", s->max_positions,
                     &r->original_max_positions));
    if (nrd_gguf_find_tensor(k->g, "rope_freqs.weight")) {
        r->scaling = NRD_ROPE_SCALING_FACTORS;
    } else if (type.n == 6 && !memcmp(type.data, "linear", 6)) {
        r->scaling = NRD_ROPE_SCALING_LINEAR;
    } else if (type.n == 4 && !memcmp(type.data, "yarn", 4)) {
        r->scaling = NRD_ROPE_SCALING_YARN;
    } else if (type.n != 4 || memcmp(type.data, "none", 4)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rope.scaling.type '%.*s' is not supported; known: "
                          "none, linear, yarn", (int)(type.n < 40 ? type.n : 40), type.data);
    }
    if (a->traits & T_LOCAL_ROPE) { /* not in the files of most writers */
        s->rope_local.kind = r->kind;
        s->rope_local.rotary_dim = s->rope_local.rotary_dim > 0 ? s->rope_local.rotary_dim : r->rotary_dim; /* a hook knew it */
        s->rope_local.base = gguf_num(k, "rope.local_freq_base",
                                      gguf_num(k, "rope.freq_base_swa", 1e4));
    }
    return NULL;
}

static nrd_error *gguf_sizes(nrd_model_spec *s, const nrd_arch *a, gguf_keys *k)
{
    const nrd_gguf_tensor *embed = nrd_gguf_find_tensor(k->g, "token_embd.weight");

    NRD_TRY(gguf_int(k, "block_count", NRD_HF_REQUIRED, &s->n_layers));
    if (s->n_layers < 1 || s->n_layers > NRD_SPEC_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be between 1 and %d, got %d",
                          gguf_key(k, "block_count"), (int)NRD_SPEC_MAX_LAYERS, s->n_layers);
    }
    NRD_TRY(gguf_int(k, "embedding_length", NRD_HF_REQUIRED, &s->hidden));
    if (a->traits & T_STATES_ONLY) {
        nrd_family_states_only(s);
        return gguf_int(k, "vocab_size", embed && embed->n_dims == 2 ? embed->dims[1] : NRD_HF_REQUIRED, &s->vocab);
    }
    NRD_TRY(gguf_int(k, "feed_forward_length", NRD_HF_REQUIRED, &s->inter));
    NRD_TRY(gguf_int(k, "attention.head_count", NRD_HF_REQUIRED, &s->n_heads));
    if (s->n_heads < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %d",
                          gguf_key(k, "attention.head_count"), s->n_heads);
    }
    NRD_TRY(gguf_int(k, "attention.head_count_kv", s->n_heads, &s->n_kv_heads));
    NRD_TRY(gguf_int(k, "attention.key_length", s->hidden / s->n_heads, &s->head_dim));
    if (s->head_dim < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %d",
                          gguf_key(k, "attention.key_length"), s->head_dim);
    }
    int32_t v_dim, rank;
    NRD_TRY(gguf_int(k, "attention.kv_lora_rank", 0, &rank)); /* a hook knows the sizes of heads */
    NRD_TRY(gguf_int(k, "attention.value_length", s->head_dim, &v_dim));
    if (v_dim != s->head_dim && rank == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "value heads of %d differ from key heads of %d",
                          v_dim, s->head_dim);
    }
    NRD_TRY(gguf_int(k, "context_length", 2048, &s->max_positions));
    /* the metadata key is often missing; the embedding always has it */
    return gguf_int(k, "vocab_size", embed && embed->n_dims == 2 ? embed->dims[1] : NRD_HF_REQUIRED,
                    &s->vocab);
}

static void gguf_details(nrd_model_spec *s, const nrd_arch *a, gguf_keys *k)
{
    const nrd_gguf *g = k->g;

    s->norm_eps = (float)gguf_num(k, a->traits & T_LAYER_NORM ? "attention.layer_norm_epsilon"
                                                              : "attention.layer_norm_rms_epsilon",
                                  1e-5);
    s->attn_scale = (float)gguf_num(k, "attention.scale", 0);
    if (!(s->attn_scale > 0)) {
        s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    }
    s->tied_embeddings = !nrd_gguf_find_tensor(g, "output.weight");
    s->qkv_bias = nrd_gguf_find_tensor(g, "blk.0.attn_q.bias") ||
                  nrd_gguf_find_tensor(g, "blk.0.attn_qkv.bias");
    s->dense_bias = nrd_gguf_find_tensor(g, "blk.0.attn_output.bias") != NULL;
    s->mlp_bias = nrd_gguf_find_tensor(g, "blk.0.ffn_down.bias") != NULL;
    s->lm_head_bias = nrd_gguf_find_tensor(g, "output.bias") != NULL;
    s->dtype = NRD_DTYPE_F32; /* block formats come with norms in float32 */
    const nrd_gguf_tensor *t = nrd_gguf_find_tensor(g, "blk.0.attn_output.weight");
    t = t ? t : nrd_gguf_find_tensor(g, "blk.0.ffn_down.weight"); /* the layer has no attention */
    t = t ? t : nrd_gguf_find_tensor(g, "blk.0.ssm_out.weight");
    t = t ? t : nrd_gguf_find_tensor(g, "enc.blk.0.attn_o.weight"); /* of two networks */
    if (t && (t->dtype == NRD_DTYPE_F16 || t->dtype == NRD_DTYPE_BF16)) {
        s->dtype = t->dtype;
    }
}

/* One of a row's names. */
static bool has_name(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = names; at && *at; at += strcspn(at, "|"), at += *at == '|') {
        if (strcspn(at, "|") == n && !memcmp(at, name, n)) {
            return true;
        }
    }
    return false;
}

/* The file as family `a` reads it; `arch`: general.architecture. */
static nrd_error *read_gguf(nrd_model_spec *s, const nrd_arch *a, const char *arch, const nrd_gguf *g)
{
    gguf_keys k = {.g = g, .arch = arch};

    k.skips_zeros = nrd_gguf_find(g, gguf_key(&k, "shortconv.l_cache")) || nrd_gguf_find(g, gguf_key(&k, "ssm.conv_kernel"));
    k.takes_first = (a->traits & T_WIDTHS_DIFFER) != 0;
    nrd_arch_of_family(s, a);
    NRD_TRY(gguf_sizes(s, a, &k));
    gguf_details(s, a, &k);
    if (a->gguf) {
        NRD_TRY(a->gguf(s, g));
    }
    if (!s->learned_positions && !s->alibi && s->rel_buckets == 0 && !(a->traits & T_STATES_ONLY)) {
        NRD_TRY(gguf_rope(s, a, &k));
    }
    NRD_TRY(gguf_int(&k, "attention.sliding_window", s->sliding_window, &s->sliding_window)); /* a hook knew its family's */
    if ((a->traits & T_WINDOW_ALTERNATES) && !s->sliding_window) {
        s->sliding_window = 4096; /* older files leave it out */
    }
    if (s->encoder) { /* on each side */
        s->sliding_window = s->sliding_window / 2 + (s->sliding_window > 0);
    }
    nrd_family_sliding(s, a, a->traits & T_WINDOW_4 ? 4 : 6);
    for (int32_t i = 0; (a->traits & T_NOPE_GLOBAL) && s->sliding_window > 0 && i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = !s->layer_is_sliding[i];
    }
    if (s->sliding_window && !memchr(s->layer_is_sliding, 1, sizeof s->layer_is_sliding)) {
        s->sliding_window = 0; /* the family has none, whatever the file says */
    }
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 3; i++) {
        nrd_model_spec_add_stop_id(s, nrd_gguf_int(g, stops[i], -1));
    }
    s->eos_id = nrd_family_token_id(s, nrd_gguf_int(g, stops[0], -1));
    s->bos_id = nrd_family_token_id(s, nrd_gguf_int(g, "tokenizer.ggml.bos_token_id", -1));
    s->pad_id = nrd_family_token_id(s, nrd_gguf_int(g, "tokenizer.ggml.padding_token_id", -1));
    return nrd_model_spec_check(s);
}

/* general.architecture, as far as it is not longer than any that is known. */
static void arch_of(const nrd_gguf *g, char out[64])
{
    nrd_gguf_span name = {"", 0};

    nrd_gguf_str(g, "general.architecture", &name);
    snprintf(out, 64, "%.*s", (int)(name.n < 63 ? name.n : 63), name.data);
}

nrd_error *nrd_arch_encoder_from_gguf(nrd_model_spec *s, const nrd_arch *decoder, const nrd_gguf *g)
{
    char text[64];

    nrd_model_spec_init(s);
    arch_of(g, text);
    return read_gguf(s, nrd_arch_encoder_of(decoder), text, g);
}

nrd_error *nrd_arch_from_gguf(nrd_model_spec *s, const nrd_arch **out_arch, const nrd_gguf *g)
{
    const nrd_arch *a = NULL;
    char text[64], count[80];

    nrd_model_spec_init(s);
    *out_arch = NULL;
    arch_of(g, text);
    const nrd_arch *each;
    snprintf(count, sizeof count, "%s.expert_count", text);
    const bool has_experts = nrd_gguf_int(g, count, 0) > 0; /* Mixtral calls itself Llama */
    for (int i = 0; !a && (each = nrd_arch_at(i)) != NULL; i++) {
        const bool fits = ((each->traits & T_EXPERTS) != 0) == has_experts || (each->traits & T_EXPERTS_OR_NOT);
        a = fits && has_name(each->gguf_arch, text) ? each : NULL;
    }
    if (!a && !strcmp(text, "clip")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this file (mmproj) is the vision tower of a model, not the model: give the model's file, and "
                          "this one with --mmproj");
    }
    if (!a) {
        return nrd_arch_unknown("general.architecture", text, NULL);
    }
    NRD_TRY(read_gguf(s, a, text, g));
    *out_arch = a;
    return NULL;
}
