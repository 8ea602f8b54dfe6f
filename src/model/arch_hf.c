/* SPDX-License-Identifier: Apache-2.0
 * Reads config.json of Hugging Face folders: the keys that families share, under all their names, then
 * what a family's own hook adds. What no runner can compute is refused here by its name. */
#include "model/arch.h"

#include "base/dtype.h"
#include "model/arch_rope.h"
#include "model/families/family.h"
#include "model/hf_names.h"
#include "model/spec_classifier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static nrd_error *hf_rope(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    /* transformers 5 puts base and scaling into rope_parameters, by kind of layer where they differ */
    const nrd_json *params = nrd_json_get(c, "rope_parameters");
    const nrd_json *full = nrd_json_get(params, "full_attention");
    const nrd_json *local = nrd_json_get(params, "sliding_attention");
    const nrd_json *global = full ? full : params ? params : nrd_json_get(c, "rope_scaling");
    double base = s->rope.base > 0 ? s->rope.base : 1e4; /* a hook knew its family's */
    double part = nrd_json_num(nrd_hf_get(c, "partial_rotary_factor|rotary_pct|rope_pct"),
                               nrd_json_get_num(global, "partial_rotary_factor", 1));

    if (s->rope.kind == NRD_ROPE_NONE) { /* else a hook knew it */
        s->rope.kind = a->traits & T_ROPE_INTERLEAVED ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
    }
    if (!(part > 0 && part <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "partial_rotary_factor must be above 0 and at most "
                          "1, got %g", part);
    }
    if (s->rope.rotary_dim == 0) { /* else a hook knew it */
        s->rope.rotary_dim = (int32_t)((double)s->head_dim * part);
    }
    s->rope.base = nrd_json_num(nrd_hf_get(global, "rope_theta"),
                                nrd_json_num(nrd_hf_get(c, "rope_theta|rotary_emb_base|global_rope_theta"), base));
    if (s->rope.base_scale > 0) { /* of a fixed alpha, which stands for the rule that `global` names */
        s->rope.base *= s->rope.base_scale;
    } else {
        NRD_TRY(nrd_arch_rope_scaling(global, c, s, &s->rope));
    }
    if (a->traits & T_LOCAL_ROPE) {
        s->rope_local.kind = s->rope.kind;
        if (s->rope_local.rotary_dim == 0) { /* else a hook knew it */
            s->rope_local.rotary_dim = s->rope.rotary_dim;
        }
        s->rope_local.base = nrd_json_num(nrd_hf_get(local, "rope_theta"),
                                          nrd_json_num(nrd_hf_get(c, "rope_local_base_freq|local_rope_theta"), 1e4));
        NRD_TRY(nrd_arch_rope_scaling(local, c, s, &s->rope_local));
    }
    return NULL;
}

/* EXAONE: a letter for each layer, over and over, L of those that slide; the last layer never does. */
static nrd_error *window_letters(nrd_model_spec *s, const char *letters)
{
    const size_t n = strlen(letters);

    if (n == 0 || strspn(letters, "LG") != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'sliding_window_pattern' must be letters L and G, or a number, got '%.40s'",
                          letters);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = letters[(size_t)i % n] == 'L' && i < s->n_layers - 1;
    }
    return NULL;
}

static nrd_error *hf_sliding(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    uint32_t any = T_WINDOW_ALL | T_WINDOW_OPT_IN | T_WINDOW_ALTERNATES | T_WINDOW_PATTERN;
    const nrd_json *window = nrd_json_get(c, "sliding_window");
    const nrd_json *types = nrd_json_get(c, "layer_types");
    int32_t from = 0, pattern = 6;

    if (!(a->traits & any) || (window && nrd_json_is(window, NRD_JSON_NULL)) ||
        ((a->traits & T_WINDOW_OPT_IN) && !nrd_json_get_bool(c, "use_sliding_window", false))) {
        return NULL;
    }
    NRD_TRY(nrd_hf_int(c, "sliding_window", 4096, &s->sliding_window));
    const nrd_json *letters = nrd_hf_get(c, "sliding_window_pattern");
    letters = nrd_json_is(letters, NRD_JSON_STRING) ? letters : NULL;
    pattern = a->traits & T_WINDOW_4 ? 4 : 6;
    if (!letters) {
        NRD_TRY(nrd_hf_int(c, "sliding_window_pattern|_sliding_window_pattern", pattern, &pattern));
    }
    NRD_TRY(nrd_hf_int(c, "max_window_layers", 28, &from));
    if (pattern < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'sliding_window_pattern' must be above 0, got %d",
                          pattern);
    }
    if (s->encoder) { /* on each side */
        s->sliding_window = s->sliding_window / 2 + 1;
    }
    nrd_family_sliding(s, a, pattern);
    if (letters) {
        NRD_TRY(window_letters(s, nrd_json_str(letters, "")));
    }
    for (int32_t i = 0; (a->traits & T_WINDOW_OPT_IN) && i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i >= from;
    }
    if (nrd_json_is(types, NRD_JSON_ARRAY)) {
        NRD_TRY(nrd_hf_layer_types(s, types));
    }
    for (int32_t i = 0; (a->traits & T_NOPE_GLOBAL) && i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = !s->layer_is_sliding[i];
    }
    return NULL;
}

/* The width of the MLP. Some files have a list, a number for each layer. */
static nrd_error *hf_inter(const nrd_json *c, int64_t fallback, int32_t n_layers, int32_t *out)
{
    const char *keys = "intermediate_size|n_inner|ffn_dim|ffn_hidden_size|d_ff|decoder_ffn_dim";
    const nrd_json *v = nrd_hf_get(c, keys);

    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return nrd_hf_int(c, keys, fallback, out);
    }
    const int64_t first = nrd_json_int(nrd_json_at(v, 0), 0);
    for (size_t i = 0; i < nrd_json_len(v); i++) {
        if (nrd_json_int(nrd_json_at(v, i), 0) != first) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'intermediate_size' differs between layers (%lld in layer 0, %lld in layer %zu)",
                              (long long)first, (long long)nrd_json_int(nrd_json_at(v, i), 0), i);
        }
    }
    if (nrd_json_len(v) != (size_t)n_layers || first < 1 || first > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'intermediate_size' has %zu entries, the first %lld, expected a width for each of %d "
                          "layers", nrd_json_len(v), (long long)first, n_layers);
    }
    *out = (int32_t)first;
    return NULL;
}

/* What decoders behind a tower leave out: Llama 2 7B's, or those of OPT's configuration. */
typedef struct usual_sizes {
    int32_t n_layers, hidden, vocab, n_heads, inter;
} usual_sizes;

/* wrapped: the decoder is behind a tower. */
static nrd_error *hf_sizes(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c, bool wrapped)
{
    static const usual_sizes llama = {32, 4096, 32000, 32, 11008}, opt = {12, 768, 50272, 12, 3072}, pix2struct = {12, 768, 50244, 12, 2048};
    const usual_sizes *usual = !strcmp(a->model_type, "opt") ? &opt : !strncmp(a->model_type, "pix2struct", 10) ? &pix2struct : &llama;
    const bool g3 = (a->traits & T_GEMMA3_SIZES) != 0;
    const nrd_json *blocks = nrd_json_get(c, "layers_block_type"); /* a list may say it alone (Nemotron-H) */
    const int64_t n_layers = wrapped ? usual->n_layers : blocks ? (int64_t)nrd_json_len(blocks) : NRD_HF_REQUIRED;
    NRD_TRY(nrd_hf_int(c, "num_hidden_layers|n_layer|num_layers|n_layers|decoder_layers|layers", n_layers, &s->n_layers));
    if (s->n_layers < 1 || s->n_layers > NRD_SPEC_MAX_LAYERS) {
        return nrd_hf_name_fields(nrd_errorf(NRD_ERR_INVALID_ARG, "'num_hidden_layers' must be between 1 and %d, got %d",
                          (int)NRD_SPEC_MAX_LAYERS, s->n_layers), c);
    }
    NRD_TRY(nrd_hf_int(c, "hidden_size|n_embd|d_model|n_embed|dim|embed_dim", wrapped ? usual->hidden : NRD_HF_REQUIRED, &s->hidden));
    NRD_TRY(nrd_hf_int(c, "vocab_size|padded_vocab_size|tgt_vocab_size", g3 ? 262208 : wrapped ? usual->vocab : NRD_HF_REQUIRED, &s->vocab));
    if (a->traits & T_STATES_ONLY) {
        nrd_family_states_only(s);
        return NULL;
    }
    NRD_TRY(nrd_hf_int(c, "num_attention_heads|n_head|n_heads|num_heads|decoder_attention_heads|attention_heads",
                       g3 ? 8 : wrapped ? usual->n_heads : NRD_HF_REQUIRED, &s->n_heads));
    if (s->n_heads < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'num_attention_heads' must be above 0, got %d",
                          s->n_heads);
    }
    NRD_TRY(nrd_hf_int(c, "num_key_value_heads", s->n_heads, &s->n_kv_heads));
    NRD_TRY(nrd_hf_int(c, "head_dim|d_kv", s->hidden / s->n_heads, &s->head_dim));
    if (s->head_dim < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'head_dim' must be above 0, got %d", s->head_dim);
    }
    int64_t inter = a->traits & T_PLAIN_MLP ? 4 * (int64_t)s->hidden
                    : a->traits & T_EXPERTS && nrd_hf_get(c, "moe_intermediate_size")
                        ? nrd_json_get_int(c, "moe_intermediate_size", 0)
                    : nrd_json_get(c, "ffn_config") ? nrd_json_get_int(nrd_json_get(c, "ffn_config"), "ffn_hidden_size", 0)
                    : wrapped                       ? usual->inter
                                                    : NRD_HF_REQUIRED;
    NRD_TRY(hf_inter(c, inter, s->n_layers, &s->inter));
    return nrd_hf_int(c, "max_position_embeddings|n_positions|seq_length|max_seq_len|model_max_length", g3 ? 131072 : 2048,
                      &s->max_positions);
}

/* Idefics3 and SmolVLM have the head behind all of the model, and what the decoder's part says of a tie is not looked at. */
static bool outer_ties(const nrd_json *outer)
{
    const char *type = nrd_json_get_str(outer, "model_type", "");
    return !strcmp(type, "idefics3") || !strcmp(type, "smolvlm");
}

/* outer: config.json, of which `c` is the decoder's part, or all. */
static nrd_error *hf_details(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c, const nrd_json *outer)
{
    const char *act = nrd_json_str(
        nrd_hf_get(c, "hidden_activation|hidden_act|activation_function|activation"), NULL);
    bool gated;

    if (act && !nrd_act_parse(act, &s->act, &gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "activation '%s' is not supported", act);
    }
    s->norm_eps = (float)nrd_json_num(
        nrd_hf_get(c, "rms_norm_eps|layer_norm_epsilon|layer_norm_eps|norm_epsilon|norm_eps|layernorm_epsilon"),
        a->traits & T_LAYER_NORM ? 1e-5 : 1e-6);
    const bool tied = nrd_json_get_bool(outer, "tie_word_embeddings", (a->traits & T_TIED) != 0);
    s->tied_embeddings = outer_ties(outer) ? nrd_json_get_bool(outer, "tie_word_embeddings", false)
                                           : nrd_json_get_bool(c, "tie_word_embeddings", tied);
    if (nrd_json_get_bool(c, "attention_bias", false)) {
        s->qkv_bias = s->dense_bias = true;
    }
    s->mlp_bias = nrd_json_get_bool(c, "mlp_bias", s->mlp_bias);
    if (nrd_json_get_bool(c, "scale_attn_by_inverse_layer_idx", false) ||
        !nrd_json_get_bool(c, "scale_attn_weights", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "scale_attn_by_inverse_layer_idx = true and "
                          "scale_attn_weights = false are not supported");
    }
    return NULL;
}

/* Labels, where the folder's class has them. Decoders that were trained as classifiers have one product, which reads
 * the last token's state. */
static nrd_error *hf_classifier(nrd_model_spec *s, const nrd_json *config)
{
    const char *name = nrd_json_str(nrd_json_at(nrd_json_get(config, "architectures"), 0), "");

    if (!nrd_str_has_suffix(name, "ForSequenceClassification")) {
        return NULL;
    }
    s->classifier.pooling = s->encoder ? s->classifier.pooling : NRD_SPEC_POOL_LAST;
    return nrd_classifier_from_hf(&s->classifier, config);
}

/* An id, or a list of them: the first becomes eos, all become stop ids. */
static void hf_eos(nrd_model_spec *s, const nrd_json *v)
{
    if (nrd_json_is(v, NRD_JSON_ARRAY)) {
        for (size_t i = 0; i < nrd_json_len(v); i++) {
            nrd_model_spec_add_stop_id(s, nrd_json_int(nrd_json_at(v, i), -1));
        }
    } else {
        nrd_model_spec_add_stop_id(s, nrd_json_int(v, -1));
    }
}

/* A tower before a decoder that has a row of its own: the decoder's configuration says which. */
static bool is_wrapper(const nrd_json *config)
{
    static const char *const types[] = {"llava", "llava_next", "llava_onevision", "internvl", "idefics3", "smolvlm", "paligemma"};
    const char *type = nrd_json_get_str(config, "model_type", "");
    const char *decoder = nrd_json_get_str(nrd_json_get(config, "text_config"), "model_type", "");
    bool wraps = !strcmp(type, "blip-2") && (!strcmp(decoder, "opt") || !strcmp(decoder, "t5"));

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        wraps = wraps || !strcmp(type, types[i]);
    }
    return wraps && nrd_json_get(config, "vision_config");
}

static const nrd_arch *find_hf(const nrd_json *config)
{
    const nrd_json *text = nrd_json_get(config, "text_config");
    const bool wraps = is_wrapper(config);
    const char *outer = nrd_json_get_str(config, "model_type", "");
    const char *type = wraps ? nrd_json_get_str(text, "model_type", !strcmp(outer, "llava_onevision") || !strcmp(outer, "internvl") ? "qwen2" : !strcmp(outer, "paligemma") ? "gemma" : "llama") : nrd_json_get_str(config, "model_type", "");
    const char *name = nrd_json_str(nrd_json_at(nrd_json_get(wraps ? text : config, "architectures"), 0), "");
    const bool alone = nrd_str_has_suffix(name, "EncoderModel"); /* T5's encoder, whose model_type is the whole model's */
    const nrd_arch *a, *found = NULL;
    for (int i = 0; (a = nrd_arch_at(i)) != NULL; i++) {
        bool of_type = false, of_name = false;
        if (alone != (a->hf_architectures[0] && nrd_str_has_suffix(a->hf_architectures[0], "EncoderModel"))) {
            continue;
        }
        for (int k = 0; k < 4; k++) {
            const char *t = a->hf_model_types[k], *n = k < 3 ? a->hf_architectures[k] : NULL;
            of_type = of_type || (t && !strcmp(t, type));
            of_name = of_name || (n && !strcmp(n, name));
        }
        if (of_name && (of_type || !*type)) { /* jina-embeddings-v2 calls itself a BERT */
            return a;
        }
        found = found || !of_type ? found : a;
    }
    return found;
}

/* Tokens that a decoder behind an encoder never chooses. Families ban one token at a time. */
static nrd_error *hf_bad_words(nrd_model_spec *s, const nrd_json *config)
{
    const nrd_json *list = nrd_hf_get(config, "bad_words_ids");

    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *word = nrd_json_at(list, i);
        if (nrd_json_len(word) != 1) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'bad_words_ids' with words of more than a token are not supported");
        }
        NRD_TRY(nrd_model_spec_ban(s, nrd_json_int(nrd_json_at(word, 0), -1)));
    }
    return NULL;
}

/* config.json as family `a` reads it. */
static nrd_error *read_hf(nrd_model_spec *s, const nrd_arch *a, const nrd_json *config, const nrd_json *generation)
{
    /* multimodal configurations keep the decoder under text_config */
    const char *type = nrd_json_get_str(config, "model_type", "");
    const bool in_parts = !strcmp(type, "pix2struct"), of_pages = !strcmp(type, "vision-encoder-decoder");
    const nrd_json *text = nrd_json_get(config, of_pages ? "decoder" : in_parts && (a->traits & T_ENCODER) ? "vision_config" : "text_config");
    const nrd_json *c = nrd_json_is(text, NRD_JSON_OBJECT) ? text : config;
    const char *dtype = nrd_json_str(nrd_hf_get(c, "dtype|torch_dtype"),
                                     nrd_json_str(nrd_hf_get(config, "dtype|torch_dtype"),
                                                  "float32"));
    nrd_arch_of_family(s, a);
    if (!nrd_dtype_parse(dtype, &s->dtype)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "dtype '%s' is no known element type", dtype);
    }
    NRD_TRY(hf_sizes(s, a, c, (is_wrapper(config) && strcmp(type, "paligemma")) || in_parts));
    NRD_TRY(in_parts ? nrd_hf_int(nrd_json_get(config, "text_config"), "vocab_size", s->vocab, &s->vocab) : NULL);
    NRD_TRY(hf_details(s, a, c, config));
    if (a->hf) {
        NRD_TRY(a->hf(s, c));
    }
    if (of_pages) {
        NRD_TRY(nrd_hf_int(config, "decoder_start_token_id", nrd_json_get_int(c, "bos_token_id", 0), &s->start_id));
    }
    if (s->cross_attention) {
        NRD_TRY(hf_bad_words(s, nrd_hf_get(generation, "bad_words_ids") ? generation : c));
        NRD_TRY(nrd_hf_int(generation, "decoder_start_token_id", s->start_id, &s->start_id));
        NRD_TRY(nrd_hf_int(nrd_hf_get(generation, "forced_bos_token_id") ? generation : c, "forced_bos_token_id", -1,
                           &s->first_id));
    }
    if (s->attn_scale == 0 && s->head_dim > 0) {
        s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    }
    if (!s->learned_positions && !s->alibi && s->rel_buckets == 0 && !(a->traits & T_STATES_ONLY)) {
        NRD_TRY(hf_rope(s, a, c));
    }
    NRD_TRY(hf_sliding(s, a, c));
    NRD_TRY(hf_classifier(s, config));
    const nrd_json *eos = nrd_hf_get(c, "eos_token_id");
    eos = eos ? eos : nrd_hf_get(config, "eos_token_id");
    hf_eos(s, eos);
    hf_eos(s, nrd_json_get(generation, "eos_token_id"));
    s->eos_id = s->n_stop_ids ? s->stop_ids[0] : -1;
    s->bos_id = nrd_family_token_id(s, nrd_json_get_int(c, "bos_token_id",
                                             nrd_json_get_int(config, "bos_token_id", -1)));
    s->pad_id = nrd_family_token_id(s, nrd_json_get_int(c, "pad_token_id",
                                             nrd_json_get_int(config, "pad_token_id", s->pad_id)));
    return nrd_hf_name_fields(nrd_model_spec_check(s), c);
}

const nrd_json *nrd_arch_decoder_config(const nrd_json *config)
{
    const nrd_json *own = nrd_json_get(config, "llm_cfg");
    return nrd_json_is(own, NRD_JSON_OBJECT) && !strcmp(nrd_json_get_str(config, "model_type", ""), "llava_llama") ? own : config;
}

nrd_error *nrd_arch_from_hf(nrd_model_spec *s, const nrd_arch **out_arch, const nrd_json *config,
                            const nrd_json *generation)
{
    nrd_model_spec_init(s);
    *out_arch = NULL;
    config = nrd_arch_decoder_config(config);
    const nrd_arch *a = find_hf(config);
    if (!a) {
        const char *type = nrd_json_get_str(config, "model_type", NULL);
        const char *name = nrd_json_str(nrd_json_at(nrd_json_get(config, "architectures"), 0), NULL);
        if (!type && !name) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "has neither 'model_type' nor 'architectures': no model's configuration");
        }
        return nrd_arch_unknown(type ? "model_type" : "architecture", type ? type : name, config);
    }
    NRD_TRY(nrd_arch_check_types(config));
    NRD_TRY(read_hf(s, a, config, generation));
    *out_arch = a;
    return NULL;
}

nrd_error *nrd_arch_encoder_from_hf(nrd_model_spec *s, const nrd_arch *decoder, const nrd_json *config)
{
    nrd_model_spec_init(s);
    return read_hf(s, nrd_arch_encoder_of(decoder), config, NULL);
}
