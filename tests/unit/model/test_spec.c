/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "model/lora.h"
#include "model/arch.h"
#include "model/spec.h"
#include "unit/formats/damage.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static nrd_error *from_hf(nrd_model_spec *s, const char *config, const char *generation)
{
    const nrd_json_limits limits = {.special = true}; /* as folders are read */
    nrd_json_doc *c = NULL, *g = NULL;
    const nrd_arch *arch;
    assert_null(nrd_json_parse(&c, config, strlen(config), &limits));
    if (generation) {
        assert_null(nrd_json_parse(&g, generation, strlen(generation), NULL));
    }
    nrd_error *err = nrd_arch_from_hf(s, &arch, nrd_json_root(c), g ? nrd_json_root(g) : NULL);
    nrd_json_doc_free(c);
    nrd_json_doc_free(g);
    return err;
}

static void read_ok(nrd_model_spec *s, const char *config)
{
    nrd_error *err = from_hf(s, config, NULL);
    if (err) {
        print_error("%s\n", nrd_error_message(err));
    }
    assert_null(err);
}

#define SIZES "\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":6,"                      \
              "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":128,"
#define NO_SHARED "\"num_kv_shared_layers\":0,"
#define LATENT                                                                                     \
    "\"kv_lora_rank\":16,\"qk_nope_head_dim\":12,\"qk_rope_head_dim\":8,\"v_head_dim\":10,"
#define EXPERTS_OF_8 "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24"

static void test_llama3_reads_rope_scaling_ids_and_ties(void **state)
{
    (void)state;
    nrd_model_spec s;
    assert_null(from_hf(&s, "{\"model_type\":\"llama\"," SIZES "\"torch_dtype\":\"bfloat16\","
                            "\"rope_theta\":500000.0,\"max_position_embeddings\":131072,"
                            "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                            "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                            "\"original_max_position_embeddings\":8192},"
                            "\"eos_token_id\":[5,6],\"bos_token_id\":4,\"rms_norm_eps\":1e-5}",
                        "{\"eos_token_id\":[6,7,9999]}"));
    assert_string_equal(s.architecture, "LlamaForCausalLM");
    assert_int_equal(s.dtype, NRD_DTYPE_BF16);
    assert_int_equal(s.head_dim, 16);
    assert_int_equal(s.rope.kind, NRD_ROPE_NEOX);
    assert_int_equal(s.rope.scaling, NRD_ROPE_SCALING_LLAMA3);
    assert_int_equal(s.rope.original_max_positions, 8192);
    assert_true(s.rope.base == 500000);
    assert_int_equal(s.eos_id, 5);
    assert_int_equal(s.n_stop_ids, 3); /* 5, 6, 7; 9999 is no token */
    assert_int_equal(s.bos_id, 4);
    assert_int_equal(s.pad_id, -1);
    assert_false(s.tied_embeddings);
    assert_true(s.gated_mlp && s.act == NRD_ACT_SILU && !s.qkv_bias);
}

static void test_gemma3_has_its_pattern_local_rope_and_scales(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
                "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
                "\"num_hidden_layers\":8,\"intermediate_size\":128,\"sliding_window\":1024,"
                "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}},"
                "\"torch_dtype\":\"float32\"}");
    assert_int_equal(s.n_heads, 8);
    assert_int_equal(s.n_kv_heads, 4);
    assert_int_equal(s.head_dim, 256);
    assert_int_equal(s.vocab, 262208);
    assert_true(s.post_norms && s.qk_norm && s.tied_embeddings);
    assert_int_equal(s.rope.scaling, NRD_ROPE_SCALING_LINEAR);
    assert_true(s.rope.base == 1e6 && s.rope_local.base == 1e4);
    assert_int_equal(s.rope_local.scaling, NRD_ROPE_SCALING_NONE);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(s.layer_is_sliding[i], i != 5);
    }
    assert_true(fabsf(s.embed_scale - 50.596443f) < 1e-5f);
    assert_true(s.attn_scale == 0.0625f);
    assert_true(s.attn_softcap == 0 && s.logits_softcap == 0);
}

static void test_embedding_scale_is_rounded_to_the_models_type(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"gemma2\",\"vocab_size\":320,\"hidden_size\":640,"
                "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"intermediate_size\":128,"
                "\"torch_dtype\":\"bfloat16\",\"sliding_window\":16}");
    assert_true(s.embed_scale == 25.25f);
    assert_true(s.attn_softcap == 50 && s.logits_softcap == 30);
    assert_true(s.layer_is_sliding[0] && !s.layer_is_sliding[1] && s.layer_is_sliding[2]);
}

static void test_qwen2_slides_only_when_asked_and_from_its_layer_on(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"qwen2\"," SIZES "\"sliding_window\":32,\"max_window_layers\":4}");
    assert_int_equal(s.sliding_window, 0);
    assert_true(s.qkv_bias && !s.dense_bias);
    read_ok(&s, "{\"model_type\":\"qwen2\"," SIZES "\"sliding_window\":32,\"max_window_layers\":4,"
                "\"use_sliding_window\":true}");
    assert_int_equal(s.sliding_window, 32);
    assert_true(!s.layer_is_sliding[3] && s.layer_is_sliding[4] && s.layer_is_sliding[5]);
}

static void test_layer_types_and_rope_parameters_of_newer_configs(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"gemma3_text\"," SIZES "\"sliding_window\":8,\"head_dim\":16,"
                "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\","
                "\"full_attention\",\"full_attention\",\"sliding_attention\"],"
                "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":4.0,"
                "\"rope_theta\":7e5},\"sliding_attention\":{\"rope_type\":\"default\","
                "\"rope_theta\":3e4}}}");
    assert_true(!s.layer_is_sliding[0] && s.layer_is_sliding[1] && s.layer_is_sliding[5]);
    assert_true(s.rope.base == 7e5 && s.rope.factor == 4);
    assert_true(s.rope_local.base == 3e4);
    assert_int_equal(s.rope_local.scaling, NRD_ROPE_SCALING_NONE);
}

static void test_layers_that_read_pictures_are_left_out_and_counted(void **state)
{
    (void)state;
    static const int32_t source[] = {1, 2, 4}, computed[] = {-1, 0, 1, -1, 2};
    nrd_model_spec s, again;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;

    read_ok(&s, "{\"model_type\":\"mllama\"," SIZES "\"tie_word_embeddings\":true,\"cross_attention_layers\":[5,0,3]}");
    assert_int_equal(s.n_layers, 3);
    assert_false(s.tied_embeddings);
    nrd_model_spec_to_json(&s, &text);
    assert_null(nrd_json_parse(&doc, text.data, text.len, NULL));
    assert_null(nrd_arch_from_checkpoint(&again, nrd_json_root(doc)));
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(nrd_spec_source_layer(&again, i), source[i]);
    }
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(nrd_spec_layer_of_source(&again, i), computed[i]);
    }
    assert_int_equal(nrd_spec_layer_of_source(&again, 5), 3); /* none */
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    assert_false(nrd_spec_reads_pictures(&s)); /* no layer is behind the last one of them */
    read_ok(&s, "{\"model_type\":\"mllama\"," SIZES "\"rms_norm_eps\":1e-5}"); /* the usual list begins with 3 */
    assert_int_equal(s.n_layers, 5);
    assert_int_equal(nrd_spec_source_layer(&s, 3), 4);
    assert_true(nrd_spec_reads_pictures(&s));
    s.tp_size = 2;
    assert_true(nrd_spec_reads_pictures(&s));
    s.pp_size = 2;
    assert_false(nrd_spec_reads_pictures(&s)); /* pipeline stages take text alone */
}

#define COGVLM(more, vision) "{\"architectures\":[\"CogVLMForCausalLM\"]," SIZES more "\"vision_config\":{" vision "}}"

static void test_embeddings_of_a_picture_take_weights_of_their_own(void **state)
{
    nrd_model_spec s, again;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;

    (void)state;
    read_ok(&s, COGVLM("", "\"image_size\":490,\"patch_size\":14"));
    assert_int_equal(s.picture_rows, 1227);
    assert_int_equal(s.rope.sections[0], s.head_dim / 2); /* a picture's places are told for each token */
    assert_true(s.rope.base > 9999 && s.rope.base < 10001);
    nrd_model_spec_to_json(&s, &text);
    assert_null(nrd_json_parse(&doc, text.data, text.len, NULL));
    assert_null(nrd_arch_from_checkpoint(&again, nrd_json_root(doc)));
    assert_int_equal(again.picture_rows, 1227);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    read_ok(&s, COGVLM("\"num_multi_query_heads\":1,", "\"image_size\":1344,\"patch_size\":14"));
    assert_int_equal(s.picture_rows, 2306);
    assert_int_equal(s.n_kv_heads, 1);
    assert_true(s.rope.base > 499999 && s.rope.base < 500001);
}

static void test_layers_of_gemma3n_say_whose_keys_they_read(void **state)
{
    (void)state;
    static const int32_t sources[] = {0, 1, 2, 1, 1, 2};
    nrd_model_spec s, again;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;

    read_ok(&s, "{\"model_type\":\"gemma3n\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":6,"
                "\"num_attention_heads\":4,\"intermediate_size\":[96,96,96,96,96,96],\"num_kv_shared_layers\":3,"
                "\"activation_sparsity_pattern\":[0.95,0.0,0.0,0.75,0,0],\"layer_types\":[\"sliding_attention\","
                "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]}}");
    nrd_model_spec_to_json(&s, &text);
    assert_null(nrd_json_parse(&doc, text.data, text.len, NULL));
    assert_null(nrd_arch_from_checkpoint(&again, nrd_json_root(doc)));
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(nrd_spec_kv_source(&again, i), sources[i]);
        assert_true(again.layer_cutoff[i] >= s.layer_cutoff[i] && again.layer_cutoff[i] <= s.layer_cutoff[i]);
    }
    assert_int_equal(nrd_spec_kv_layers(&again), 3);
    assert_int_equal(again.inter, 96);
    assert_float_equal(again.layer_cutoff[0], 1.6448536, 1e-6);
    assert_float_equal(again.layer_cutoff[3], 0.6744898, 1e-6);
    assert_true(again.v_norm && again.altup.n_states == 4 && again.altup.per_layer_vocab == 262144);
    again.tp_size = 2;
    nrd_error *err = nrd_model_spec_check(&again);
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), "tp_size 2: a model whose tokens have several states"));
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
}

typedef struct refusal {
    const char *config, *message; /* the message has this in it */
} refusal;

static void check_refused(const refusal *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nrd_model_spec s;
        nrd_error *err = from_hf(&s, rows[i].config, NULL);
        if (!err || !strstr(nrd_error_message(err), rows[i].message)) {
            print_error("row %zu: %s\n", i, err ? nrd_error_message(err) : "taken");
        }
        assert_true(is_error(err, rows[i].message));
    }
}

static void test_what_is_not_here_is_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"grok\"}", "nearest: grok-1, granite, glm"},
        {"{\"model_type\":\"deepseek_v32\",\"kv_lora_rank\":512,\"index_topk\":2048}",
         "what is not here: sparse attention"},
        {"{\"model_type\":\"blip-2\",\"vision_config\":{},\"qformer_config\":{},\"text_config\":{\"model_type\":\"bart\"}}",
         "vision tower, Q-Former before another model than OPT or T5"},
        {"{\"model_type\":\"vision-encoder-decoder\",\"decoder\":{\"model_type\":\"trocr\"," SIZES "\"dropout\":0}}", "decoder.model_type must be mbart, got 'trocr'"},
        {"{\"model_type\":\"mllama2\",\"text_config\":{\"cross_attention_layers\":[3]}}", "layers that read a picture's states"},
        {"{\"model_type\":\"kosmos_2_text_model\"," SIZES "\"pad_token_id\":2}", "'pad_token_id' must be at most 1"},
        {COGVLM("", "\"patch_size\":0"), "'image_size' is 490 and 'patch_size' 0, expected at least 1 patches on a side"},
        {COGVLM("\"num_multi_query_heads\":1,", "\"image_size\":14"), "'image_size' is 14 and 'patch_size' 14, expected at least 2 patches"},
        {"{\"model_type\":\"mllama\"," SIZES "\"cross_attention_layers\":[6]}", "has the layer 6, expected 0 to 5"},
        {"{\"model_type\":\"mllama\"," SIZES "\"cross_attention_layers\":[\"x\"]}", "has the layer -1, expected 0 to 5"},
        {"{\"model_type\":\"mllama\"," SIZES "\"cross_attention_layers\":[3,2]}", "has the layer 2 twice or beside another one"},
        {"{\"model_type\":\"phi_next\",\"img_processor\":{}}", "it needs what is not here: vision tower"},
        {"{\"model_type\":\"llava_llama\",\"vision_tower_cfg\":{\"hidden_size\":1152}}", "it needs what is not here: vision tower"}, /* VILA */
        {"{\"model_type\":\"gemma3n_x\",\"hidden_size_per_layer_input\":256,\"altup_num_inputs\":4,\"num_kv_shared_layers\":10}",
         "here: embeddings of each layer, several states of each token (AltUp), layers that share keys and values"},
        {"{\"model_type\":\"gemma4_x\",\"text_config\":{\"hidden_size_per_layer_input\":0,\"num_kv_shared_layers\":0,"
         "\"global_head_dim\":512}}", "what is not here: heads of different sizes"},
        {"{\"model_type\":\"whisper\"," SIZES "\"decoder_attention_heads\":5}", "must divide d_model (64)"},
        {"{\"model_type\":\"whisper\"," SIZES "\"max_target_positions\":0}", "max_position_embeddings must be"},
        {"{\"model_type\":\"llama_next\"}", "a row of the table may be all that is missing"},
        {"{\"model_type\":\"olmo2_x\"}", "nearest: olmo2, "},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

/* Each of them was read as if the key were not there. */
static void test_values_of_another_kind_are_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"llama\"," SIZES "\"rope_theta\":\"500000.0\"}", "'rope_theta' must be a number, got \"500000.0\""},
        {"{\"model_type\":\"llama\"," SIZES "\"rms_norm_eps\":[1e-6]}", "'rms_norm_eps' must be a number"},
        {"{\"model_type\":\"llama\"," SIZES "\"hidden_act\":0}", "'hidden_act' must be a string, got 0"},
        {"{\"model_type\":\"llama\"," SIZES "\"attention_bias\":\"true\"}", "'attention_bias' must be true or false, got \"true\""},
        {"{\"model_type\":\"llama\"," SIZES "\"tie_word_embeddings\":1}", "'tie_word_embeddings' must be true or false, got 1"},
        {"{\"model_type\":\"llama\"," SIZES "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"4\"}}", "'factor' must be a number"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{" SIZES "\"query_pre_attn_scalar\":true}}", "'query_pre_attn_scalar' must be a number, got true"},
        {"{\"model_type\":7,\"architectures\":[\"LlamaForCausalLM\"]," SIZES "\"use_cache\":true}", "'model_type' must be a string, got 7"},
        {"{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":1,\"n_heads\":\"4\"}",
         "'n_heads' must be a whole number of 32 bits, got \"4\""}, /* the name that the file has */
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);

    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"llama\"," SIZES "\"rope_theta\":null,\"attention_bias\":null,\"hidden_act\":null,\"rope_scaling\":null}");
}

static void test_wrong_recurrent_layers_are_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"granitehybrid2\",\"mamba_d_state\":8}", "it needs what is not here: recurrent layers"},
        {"{\"model_type\":\"recurrent_gemma\"," SIZES "\"hidden_activation\":\"gelu_pytorch_tanh\",\"block_types\":[\"x\"]}",
         "block_types[0]: 'x'"},
        {"{\"model_type\":\"recurrent_gemma\"," SIZES "\"hidden_activation\":\"gelu_pytorch_tanh\",\"block_types\":[]}", "'block_types' is empty"},
        {"{\"model_type\":\"recurrent_gemma\"," SIZES "\"hidden_activation\":\"gelu_pytorch_tanh\",\"lru_width\":63}", "'lru_width' (63)"},
        {"{\"model_type\":\"recurrent_gemma\"," SIZES "\"hidden_activation\":\"silu\"}", "gelu_pytorch_tanh"},
        {"{\"model_type\":\"lfm2\"," SIZES "\"layer_types\":[\"conv\"]}", "layer_types"},
        {"{\"model_type\":\"lfm2\"," SIZES "\"full_attn_idxs\":[9]}", "full_attn_idxs"},
        {"{\"model_type\":\"lfm2\"," SIZES "\"full_attn_idxs\":[0],\"conv_L_cache\":99}", "conv_L_cache must be"},
        {"{\"model_type\":\"lfm2\"," SIZES "\"full_attn_idxs\":[0],\"block_multiple_of\":0}", "block_multiple_of"},
        {"{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":0}", "mamba_n_heads"},
        {"{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_state\":300}", "mamba_d_state must be"},
        {"{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":4,\"mamba_n_groups\":3}", "n_groups (3)"},
        {"{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":4,\"time_step_limit\":[0.5,0.1]}", "dt_min"},
        {"{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":66}", "'mamba_d_ssm'"},
        {"{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"ssm_multipliers\":[1,1]}", "'ssm_multipliers'"},
        {"{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"mlp_multipliers\":[1,-1]}", "'mlp_multipliers'"},
        {"{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"key_multiplier\":0}", "key_multiplier"},
        {"{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"projectors_bias\":true}", "projectors_bias"},
        {"{\"model_type\":\"granitemoehybrid\"," SIZES "\"layer_types\":[\"mamba\",\"sliding_attention\"]}", "layer_types"},
        {"{\"model_type\":\"olmo_hybrid\"," SIZES "\"linear_num_key_heads\":0}", "'linear_num_key_heads' must be above 0"},
        {"{\"model_type\":\"olmo_hybrid\"," SIZES "\"layer_types\":[\"full_attention\"]}", "layer_types"},
        {"{\"model_type\":\"mamba2\"," SIZES "\"num_heads\":4,\"n_groups\":3}", "n_groups (3)"},
        {"{\"model_type\":\"mamba2\"," SIZES "\"hidden_act\":\"gelu\"}", "'hidden_act' is 'gelu'"},
        {"{\"model_type\":\"mamba\"," SIZES "\"expand\":0}", "'expand' must be above 0"},
        {"{\"model_type\":\"mamba\"," SIZES "\"time_step_rank\":0}", "time_step_rank"},
        {"{\"model_type\":\"falcon_mamba\"," SIZES "\"conv_kernel\":1}", "conv_kernel must be"},
        {"{\"model_type\":\"nemotron_h\"," SIZES "\"hybrid_override_pattern\":\"M-\"}", "names 2 layers"},
        {"{\"model_type\":\"nemotron_h\"," SIZES "\"hybrid_override_pattern\":\"M-*?-M\"}", "has '?' for layer 3"},
        {"{\"model_type\":\"nemotron_h\"," SIZES "\"layers_block_type\":[\"mamba\",\"mlp\",\"rwkv\",\"mlp\",\"mlp\",\"mlp\"]}",
         "layers_block_type[2]: 'rwkv'"},
        {"{\"model_type\":\"nemotron_h\"," SIZES "\"hybrid_override_pattern\":\"M-*E-M\",\"moe_latent_size\":64}", "moe_latent_size"},
        {"{\"model_type\":\"nemotron_h\"," SIZES "\"hybrid_override_pattern\":\"M-*E-M\",\"n_routed_experts\":8,"
         "\"num_experts_per_tok\":2}", "moe_shared_expert_intermediate_size"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_wrong_experts_are_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"mixtral\"," SIZES "\"num_experts_per_tok\":2}", "num_local_experts"},
        {"{\"model_type\":\"mixtral\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":9}", "num_experts_per_tok"},
        {"{\"model_type\":\"mixtral\"," SIZES "\"num_local_experts\":2000,\"num_experts_per_tok\":2}", "num_local_experts must"},
        {"{\"model_type\":\"qwen3_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"decoder_sparse_step\":0}",
         "decoder_sparse_step"},
        {"{\"model_type\":\"qwen3_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"mlp_only_layers\":[6]}",
         "mlp_only_layers"},
        {"{\"model_type\":\"qwen2_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2}",
         "shared_expert_intermediate_size"},
        {"{\"model_type\":\"olmoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"clip_qkv\":-6}", "clip_qkv"},
        {"{\"model_type\":\"glm4_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"n_group\":3}", "n_group"},
        {"{\"model_type\":\"phimoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":3}", "must be 2 in this family"},
        {"{\"model_type\":\"phimoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"router_jitter_noise\":2}",
         "router_jitter_noise"},
        {"{\"model_type\":\"phimoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"rope_scaling\":{\"type\":\"longrope\","
         "\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[1,1,1,1,1,1,1,1],\"short_mscale\":1.1,\"long_mscale\":1.2}}",
         "long_mscale"},
        {"{\"model_type\":\"glm4_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"routed_scaling_factor\":0}",
         "routed_scaling_factor"},
        {"{\"model_type\":\"gpt_oss\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":4,\"swiglu_limit\":6}", "swiglu_limit"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES EXPERTS_OF_8 "}", "kv_lora_rank"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"kv_lora_rank\":0}", "kv_lora_rank"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"qk_rope_head_dim\":7}", "rotary dimension must be even"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"v_head_dim\":4000}", "v_head_dim must be between 1 and 512"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"attention_bias\":true}", "attention_bias"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"moe_layer_freq\":2}", "moe_layer_freq"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"scoring_func\":\"softmax\"}", "scoring_func"},
        {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"topk_method\":\"greedy\"}", "topk_method"},
        {"{\"model_type\":\"deepseek_v2\"," SIZES LATENT EXPERTS_OF_8 ",\"topk_method\":\"noaux_tc\"}", "topk_method"},
        {"{\"model_type\":\"deepseek_v2\"," SIZES LATENT EXPERTS_OF_8 ",\"norm_topk_prob\":true}", "norm_topk_prob"},
        {"{\"model_type\":\"deepseek_v2\"," SIZES LATENT EXPERTS_OF_8 ",\"topk_method\":\"group_limited_greedy\"}", "n_group"},
        {"{\"model_type\":\"hunyuan_v1_moe\"," SIZES "\"num_experts\":8,\"moe_topk\":[2,2,3]}", "moe_topk"},
        {"{\"model_type\":\"ernie4_5_moe\"," SIZES "\"moe_num_experts\":8,\"moe_intermediate_size\":8,"
         "\"moe_layer_interval\":0}", "moe_layer_interval"},
        {"{\"model_type\":\"dots1\"," SIZES "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":8,"
         "\"max_window_layers\":2}", "max_window_layers"},
        {"{\"model_type\":\"minimax_m2\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":2,"
         "\"shared_intermediate_size\":8}", "shared_intermediate_size"},
        {"{\"model_type\":\"dbrx\"," SIZES "\"ffn_config\":{\"ffn_hidden_size\":8,\"moe_normalize_expert_weights\":2}}",
         "moe_normalize_expert_weights"},
        {"{\"model_type\":\"llama4_text\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":2}", "num_experts_per_tok"},
        {"{\"model_type\":\"llama4_text\"," SIZES "\"moe_layers\":[99]}", "moe_layers"},
        {"{\"model_type\":\"gpt2\"," SIZES "\"attention_head_type\":\"grouped\"}", "'attention_head_type' must be multihead or multiquery, got 'grouped'"},
        {"{\"model_type\":\"jamba\"," SIZES "\"mamba_expand\":0}", "'mamba_expand' must be between 1 and 64, got 0"},
        {"{\"model_type\":\"jamba\"," SIZES "\"attn_layer_offset\":8}", "'attn_layer_period' must be above 0 and 'attn_layer_offset' below it, got 8 and 8"},
        {"{\"model_type\":\"electra\"," SIZES "\"embedding_size\":65}", "embedding_size must be between 0 and 64, got 65"},
        {"{\"model_type\":\"new\"," SIZES "\"position_embedding_type\":\"absolute\"}", "position_embedding_type 'absolute'"},
        {"{\"model_type\":\"new\"," SIZES "\"rope_scaling\":{\"type\":\"ntk\",\"factor\":-1}}", "'factor' must be above 0, got -1"},
        {"{\"model_type\":\"bailing_moe\",\"architectures\":[\"BailingMoeForCausalLM\"]," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2}",
         "'score_function' must be sigmoid in this family, got 'softmax'"},
        {"{\"model_type\":\"sarvam_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"use_qkv_bias\":true}", "use_qkv_bias"},
        {"{\"model_type\":\"afmoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"global_attn_every_n_layers\":0}",
         "global_attn_every_n_layers"},
        {"{\"model_type\":\"afmoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"attention_bias\":true}", "attention_bias"},
        {"{\"model_type\":\"grok-1\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"residual_moe\":true}", "residual_moe"},
        {"{\"model_type\":\"grok-1\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"max_attn_value\":0}",
         "'max_attn_value' must be above 0, got 0"},
        {"{\"model_type\":\"arctic\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"parallel_attn_mlp_res\":true}",
         "'moe_layer_frequency' must be 1"},
        {"{\"model_type\":\"arctic\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"moe_layer_frequency\":1}",
         "and 'parallel_attn_mlp_res' true, as in the published models; got 1 and false"},
        {"{\"model_type\":\"hy_v3\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"num_shared_experts\":-1}", "num_shared_experts"},
        {"{\"model_type\":\"cohere2_moe\"," SIZES "\"expert_selection_fn\":\"tanh\"}", "'expert_selection_fn' must be"},
        {"{\"model_type\":\"cohere2_moe\"," SIZES "\"shared_expert_combination_strategy\":\"max\"}", "must be average or sum"},
        {"{\"model_type\":\"cohere2_moe\"," SIZES "\"sliding_window_pattern\":0}", "'sliding_window_pattern' must be above 0"},
        {"{\"model_type\":\"cohere2_moe\"," SIZES "\"prefix_dense_sliding_window_pattern\":-1}", "'prefix_dense_sliding_window_pattern'"},
        {"{\"model_type\":\"exaone_moe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"mlp_layer_types\":[\"dense\"]}",
         "mlp_layer_types"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_wrong_rotations_are_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"nanochat\"," SIZES "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}}", "a rope_type other than default"},
        {"{\"model_type\":\"llama\"," SIZES "\"rope_scaling\":{\"type\":\"su4\"}}", "rope type 'su4'"},
        {"{\"model_type\":\"qwen2_vl\"," SIZES "\"rope_scaling\":{\"type\":\"mrope\"}}", "rope type 'mrope'"},
        {"{\"model_type\":\"qwen2_vl\"," SIZES "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3]}}", "mrope_section"},
        {"{\"model_type\":\"qwen2_vl\"," SIZES "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3,4]}}",
         "[2, 3, 4], expected three numbers whose sum is 8"},
        {"{\"model_type\":\"qwen2_vl\"," SIZES "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[-1,5,4]}}", "mrope_section"},
        {"{\"model_type\":\"phi3\"," SIZES "\"rope_scaling\":{\"type\":\"longrope\"}}", "short_factor"},
        {"{\"model_type\":\"phi3\"," SIZES "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],"
         "\"long_factor\":[1,1,1,0,1,1,1,1]}}", "above 0"},
        {"{\"model_type\":\"smollm3\"," SIZES "\"no_rope_layers\":[1,0]}", "no_rope_layers"},
        {"{\"model_type\":\"gpt_neo\"," SIZES "\"attention_types\":[[[\"global\",\"local\"],2]]}", "'attention_types' names 4 layers, expected 6"},
        {"{\"model_type\":\"granite_swa\"," SIZES "\"layer_rope_theta\":[0,0]}", "'layer_rope_theta' has 2 entries, expected one for each of 6"},
        {"{\"model_type\":\"granite_swa\"," SIZES "\"layer_rope_theta\":[0,0,1e6,0,0,0]}", "layer_rope_theta[2] is 1e+06, expected 0 or rope_theta"},
        {"{\"model_type\":\"xglm\"," SIZES "\"pad_token_id\":3}", "'pad_token_id' must be at most 1"},
        {"{\"model_type\":\"xglm\"," SIZES "\"add_cross_attention\":true}", "'add_cross_attention'"},
        {"{\"model_type\":\"gpt_neo\"," SIZES "\"attention_types\":[[[\"random\"],6]]}", "'random' is neither global nor local"},
        {"{\"model_type\":\"hunyuan_v1_dense\"," SIZES "\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":-1}}", "alpha"},
        {"{\"model_type\":\"mistral\"," SIZES "\"rope_parameters\":{\"llama_4_scaling_beta\":-0.1}}",
         "llama_4_scaling_beta"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_layers_of_gemma4_say_how_wide_they_are(void **state)
{
    (void)state;
    nrd_model_spec s, again;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;
    float turns[256];

    read_ok(&s, "{\"model_type\":\"gemma4\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":12,"
                "\"num_attention_heads\":4,\"intermediate_size\":96,\"num_kv_shared_layers\":4,\"use_double_wide_mlp\":true,"
                "\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1,\"layer_types\":null}}");
    nrd_model_spec_to_json(&s, &text);
    assert_null(nrd_json_parse(&doc, text.data, text.len, NULL));
    assert_null(nrd_arch_from_checkpoint(&again, nrd_json_root(doc)));
    const nrd_model_spec sliding = nrd_spec_of_layer(&again, 4), full = nrd_spec_of_layer(&again, 5), last = nrd_spec_of_layer(&again, 11);
    assert_true(sliding.head_dim == 256 && sliding.n_kv_heads == 4 && sliding.inter == 96);
    assert_true(full.head_dim == 512 && full.n_kv_heads == 1 && full.inter == 96);
    assert_true(last.head_dim == 512 && last.inter == 192 && nrd_spec_kv_source(&again, 11) == 5 && nrd_spec_kv_source(&again, 8) == 7);
    assert_int_equal(nrd_spec_all_kv_numbers(&again), 7 * 2 * 4 * 256 + 2 * 512);
    assert_true(again.layer_scale && again.altup.per_layer == 256 && again.altup.n_states == 0 && again.sliding_window == 512);
    nrd_rope_inv_freq(&again.rope, NULL, turns); /* a quarter of the 256 pairs */
    assert_true(again.rope.rotary_dim == 512 && again.rope_local.rotary_dim == 256 && turns[63] > 0 && !(turns[64] > 0));
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
}

static void test_ranks_divide_layers_of_gemma4_by_their_own_widths(void **state)
{
    (void)state;
    nrd_model_spec s;

    read_ok(&s, "{\"model_type\":\"gemma4\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":12,"
                "\"num_attention_heads\":12,\"intermediate_size\":96,\"num_key_value_heads\":4,\"attention_k_eq_v\":true,"
                "\"num_global_key_value_heads\":3,\"hidden_size_per_layer_input\":null}}");
    const struct {
        int32_t tp_size;
        const char *message;
    } wrong[] = {{6, "divide or be a multiple of num_key_value_heads (4)"}, {2, "divide or be a multiple of num_global_key_value_heads (3)"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        s.tp_size = wrong[i].tp_size;
        nrd_error *err = nrd_model_spec_check(&s);
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), wrong[i].message));
        nrd_error_free(err);
    }
    s.tp_size = 12;
    s.pp_size = 2;
    assert_null(nrd_model_spec_check(&s));
    const nrd_model_spec own = nrd_spec_of_rank(&s, 23); /* layers 6 to 11, of which the last has no window */
    assert_true(own.n_layers == 6 && nrd_spec_head_dim(&own, 4) == 256 && nrd_spec_head_dim(&own, 5) == 512);
    assert_true(own.n_heads == 1 && nrd_spec_own_kv_heads(&own, 4) == 1 && nrd_spec_own_kv_heads(&own, 5) == 1);
}

/* As transformers 5 writes them. */
static void test_heads_of_gemma4_may_be_listed_by_layer(void **state)
{
    (void)state;
    nrd_model_spec s;

    read_ok(&s, "{\"model_type\":\"gemma4_unified_text\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":6,"
                "\"num_attention_heads\":4,\"intermediate_size\":96,\"per_layer_config\":{\"5\":{\"head_dim\":128,"
                "\"num_key_value_heads\":2}}}");
    assert_true(s.full_head_dim == 128 && s.full_kv_heads == 2 && s.head_dim == 256 && s.n_kv_heads == 4);
    assert_true(s.altup.per_layer == 0 && s.sliding_window == 1024);
}

static void test_wrong_gemma4_is_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"gemma4\"," SIZES "\"enable_moe_block\":true}", "num_experts"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"attention_bias\":true}", "'attention_bias'"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"enable_moe_block\":true,\"num_experts\":4,\"top_k_experts\":5,"
         "\"moe_intermediate_size\":8}", "num_experts_per_tok must be between 1 and 4, got 5"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"use_bidirectional_attention\":\"all\"}", "'use_bidirectional_attention' = \"all\""},
        {"{\"model_type\":\"gemma4\"," SIZES "\"global_head_dim\":2000}", "global_head_dim must be between 1 and 1024, got 2000"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3}", "num_global_key_value_heads (3)"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"hidden_size_per_layer_input\":20000}", "hidden_size_per_layer_input must be between 1 and"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"num_kv_shared_layers\":6}", "num_kv_shared_layers must be between 0 and 5"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"per_layer_config\":{\"4\":{\"head_dim\":512}}}", "'per_layer_config' has 2 heads of 512 for "
         "layer 4, expected 2 of 256"},
        {"{\"model_type\":\"gemma4\"," SIZES "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
         "\"partial_rotary_factor\":0.25,\"factor\":2}}}", "rope type 'proportional'"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_wrong_gemma3n_is_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"altup_active_idx\":1}", "'altup_active_idx'"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"altup_correct_scale\":false}", "'altup_correct_scale'"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"altup_num_inputs\":2}", "altup_num_inputs must be between 4 and 4"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"laurel_rank\":0}", "laurel_rank must be"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"hidden_size_per_layer_input\":0}", "hidden_size_per_layer_input must be"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"vocab_size_per_layer_input\":-1}", "vocab_size_per_layer_input must be"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"activation_sparsity_pattern\":0.4}", "0, or above 0.5 and below 1, got 0.4"},
        {"{\"model_type\":\"gemma3n\"," SIZES NO_SHARED "\"activation_sparsity_pattern\":[0.9]}", "has 1 entries, expected one for each of 6"},
        {"{\"model_type\":\"gemma3n\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
         "\"intermediate_size\":[96,64]}", "'intermediate_size' differs between layers (96 in layer 0, 64 in layer 1)"},
        {"{\"model_type\":\"gemma3n\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
         "\"intermediate_size\":[96]}", "'intermediate_size' has 1 entries"},
        {"{\"model_type\":\"gemma3n\"," SIZES "\"num_kv_shared_layers\":6}", "num_kv_shared_layers must be between 0 and 5"},
        {"{\"model_type\":\"gemma3n\"," SIZES "\"num_kv_shared_layers\":2}", "layer 4 has no window, and no layer"},
        {"{\"model_type\":\"gemma3n\"," SIZES "\"attention_bias\":true,\"num_kv_shared_layers\":1}", "biases of attention"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_what_cannot_be_run_is_refused_by_name(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {"{\"model_type\":\"hyperclovax\"," SIZES "\"residual_multiplier\":0.5}", "'residual_multiplier' 0.5"},
        {"{\"model_type\":\"mellum\"," SIZES "\"layer_types\":[\"sliding_attention\"]}", "'layer_types'"},
        {"{\"model_type\":\"llama\"}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\"," SIZES "\"hidden_act\":\"mish\"}", "mish"},
        {"{\"model_type\":\"granite\"," SIZES "\"residual_multiplier\":0}", "residual_multiplier"},
        {"{\"model_type\":\"apertus\"," SIZES "\"hidden_act\":\"silu\"}", "hidden_act"},
        {"{\"model_type\":\"hunyuan_v1_dense\"," SIZES "\"use_cla\":true}", "use_cla"},
        {"{\"model_type\":\"llama4_text\"," SIZES "\"floor_scale\":0}", "queries are scaled"},
        {"{\"model_type\":\"chatglm\"," SIZES "\"position_encoding_2d\":true}", "position_encoding_2d"},
        {"{\"model_type\":\"chatglm\"," SIZES "\"rmsnorm\":false}", "rmsnorm"},
        {"{\"model_type\":\"cwm\"," SIZES "\"sliding_window\":8}", "layer_types"},
        {"{\"model_type\":\"exaone4\"," SIZES "\"sliding_window\":8,\"sliding_window_pattern\":\"LXG\"}", "letters L and G"},
        {"{\"model_type\":\"minicpm\"," SIZES "\"scale_depth\":0}", "scale_depth"},
        {"{\"model_type\":\"minicpm3\"," SIZES LATENT "\"dim_model_base\":0}", "dim_model_base"},
        {"{\"model_type\":\"minicpm3\"," SIZES LATENT "\"scale_emb\":-1}", "scale_emb"},
        {"{\"model_type\":\"modernbert\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":2,\"intermediate_size\":128}",
         "num_attention_heads"},
        {"{\"model_type\":\"mellum\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4}", "vocab_size"},
        {"{\"model_type\":\"opt\"," SIZES "\"_remove_final_layer_norm\":true}", "_remove_final_layer_norm"},
        {"{\"model_type\":\"codegen\",\"vocab_size\":320,\"n_embd\":66,\"n_layer\":2,\"n_head\":3}", "'n_embd' must be a multiple of 4"},
        {"{\"model_type\":\"mpt\"," SIZES "\"attn_config\":{\"clip_qkv\":-6}}", "clip_qkv"},
        {"{\"model_type\":\"bloom\"," SIZES "\"apply_residual_connection_post_layernorm\":true}",
         "apply_residual_connection_post_layernorm"},
        {"{\"model_type\":\"llama\"," SIZES "\"head_dim\":15}", "rotary"},
        {"{\"model_type\":\"llama\"," SIZES "\"vocab_size\":99999999999}", "vocab_size"},
        {"{\"model_type\":\"llama\"," SIZES "\"num_hidden_layers\":513}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\"," SIZES "\"num_attention_heads\":\"four\"}", "got \"four\""},
        {"{\"model_type\":\"llama\"," SIZES "\"num_key_value_heads\":3}", "num_key_value_heads"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":8,\"n_layer\":1,\"n_head\":2,"
         "\"scale_attn_by_inverse_layer_idx\":true}",
         "inverse_layer_idx"},
        {"{\"model_type\":\"qwen3\"," SIZES "\"use_sliding_window\":true,\"layer_types\":[\"x\"]}",
         "layer_types"},
    };
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void test_a_multiplier_of_the_residual_becomes_scale_and_epsilon(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"granite\"," SIZES "\"rms_norm_eps\":1e-5,\"embedding_multiplier\":12,"
                "\"residual_multiplier\":0.5,\"attention_multiplier\":0.25,\"logits_scaling\":8}");
    assert_true(s.embed_scale == 24 && s.attn_scale == 0.25f && s.logits_scale == 0.125f);
    assert_true(fabsf(s.norm_eps - 4e-5f) < 1e-10f);
}

static void test_missing_sizes_and_bases_are_those_of_the_family(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"num_hidden_layers\":34,\"intermediate_size\":10240,"
                "\"sliding_window\":1024}");
    assert_true(s.vocab == 262208 && s.n_heads == 8 && s.n_kv_heads == 4 && s.head_dim == 256 && s.max_positions == 131072);
    assert_true(s.rope.base == 1e6 && s.rope_local.base == 1e4);
    read_ok(&s, "{\"model_type\":\"modernbert\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":2,"
                "\"num_attention_heads\":4,\"intermediate_size\":128}");
    assert_true(s.max_positions == 8192 && s.rope.base == 160000 && s.rope_local.base == 1e4);
    read_ok(&s, "{\"model_type\":\"mellum\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24}");
    assert_true(s.max_positions == 131072 && s.rope.base == 5e5 && s.rope_local.base == 1e4);
}

static void test_minicpm3_has_scales_where_no_key_says_any(void **state)
{
    (void)state;
    nrd_model_spec s;
    /* six layers and a width of 64: 1.4 / sqrt(6) of what a layer computes, logits of a model 256 wide */
    read_ok(&s, "{\"model_type\":\"minicpm3\"," SIZES LATENT "\"rms_norm_eps\":1e-5}");
    assert_true(fabs(s.embed_scale * 1.4 / 12 - sqrt(6)) < 1e-5 && s.logits_scale == 4);
    assert_true(fabs(s.norm_eps * 1.4 * 1.4 / 6 - 1e-5) < 1e-9 && s.latent.norm_eps == 1e-6f);
    read_ok(&s, "{\"model_type\":\"minicpm3\"," SIZES LATENT "\"scale_depth\":null,\"dim_model_base\":null}");
    assert_true(s.embed_scale == 12 && s.logits_scale == 1);
}

static void test_families_read_what_only_they_have(void **state)
{
    (void)state;
    nrd_model_spec s;
    read_ok(&s, "{\"model_type\":\"dbrx\"," SIZES "\"attn_config\":{\"kv_n_heads\":2,\"clip_qkv\":8,\"rope_theta\":500000},"
                "\"ffn_config\":{\"ffn_hidden_size\":96,\"moe_num_experts\":16,\"moe_top_k\":4}}");
    assert_true(s.rope.base == 500000 && s.clip_qkv == 8 && s.moe.normalize);
    assert_int_equal(s.moe.inter, 128); /* intermediate_size is there, too */
    read_ok(&s, "{\"model_type\":\"llama4_text\"," SIZES "\"intermediate_size_mlp\":256,\"no_rope_layers\":[],"
                "\"moe_layers\":[1,3]}");
    assert_true(s.layer_has_no_rope[3] && !s.layer_has_no_rope[4] && s.layer_is_sliding[4] && !s.layer_is_sliding[3]);
    assert_true(s.window_chunks && s.sliding_window == 8192 && s.q_scale_length == 8192 && s.q_scale_offset == 1);
    assert_true(s.layer_is_dense[0] && !s.layer_is_dense[1] && s.inter == 256 && s.moe.inter == 128);
    read_ok(&s, "{\"model_type\":\"llama4_text\"," SIZES "\"attention_chunk_size\":null,\"attn_temperature_tuning\":false}");
    assert_true(!s.window_chunks && s.sliding_window == 0 && s.q_scale_beta == 0);
    read_ok(&s, "{\"model_type\":\"qwen\"," SIZES "\"seq_length\":2048,\"max_position_embeddings\":8192,\"use_logn_attn\":true}");
    assert_true(s.inter == 64 && s.max_positions == 2048); /* what changes with the length is not computed */
    read_ok(&s, "{\"model_type\":\"chatglm\"," SIZES "\"rope_ratio\":50,\"multi_query_attention\":true,"
                "\"multi_query_group_num\":2,\"kv_channels\":16}");
    assert_true(s.rope.base == 500000 && s.rope.rotary_dim == 8 && s.n_kv_heads == 2);
    read_ok(&s, "{\"model_type\":\"exaone4\"," SIZES "\"sliding_window\":8,\"sliding_window_pattern\":\"LLG\"}");
    assert_true(s.layer_is_sliding[0] && !s.layer_is_sliding[2] && s.layer_is_sliding[4] && !s.layer_is_sliding[5]);
    assert_true(s.layer_has_no_rope[2] && s.layer_has_no_rope[5] && !s.layer_has_no_rope[1]);
    read_ok(&s, "{\"model_type\":\"baichuan\"," SIZES "\"model_max_length\":4096}");
    assert_true(s.alibi && !s.unit_head && s.max_positions == 4096);
    read_ok(&s, "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"," SIZES "\"rope_parameters\":{"
                "\"rope_type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":16384,\"llama_4_scaling_beta\":0.1}}}");
    assert_true(s.q_scale_beta > 0 && s.q_scale_length == 16384 && s.q_scale_offset == 0 && !s.q_scale_nope);
    read_ok(&s, "{\"model_type\":\"new\"," SIZES "\"rope_theta\":20000,\"rope_scaling\":{\"type\":\"ntk\",\"factor\":8}}");
    assert_float_equal(s.rope.base, 160000, 1e-6);
    assert_int_equal(s.rope.scaling, NRD_ROPE_SCALING_LINEAR);
    assert_float_equal(s.rope.factor, pow(8, 2.0 / 16), 1e-9);
}

static void test_every_family_is_found_under_its_names(void **state)
{
    (void)state;
    const nrd_arch *a;
    char config[1200];
    for (int i = 0; (a = nrd_arch_at(i)) != NULL; i++) {
        assert_ptr_equal(nrd_arch_by_model_type(a->model_type), a);
        assert_true(a->hf_rules && (a->gguf_rules || !a->gguf_arch) && a->hf_prefixes[0] && a->hf_model_types[0]);
        for (int k = 0; k < 3 && a->hf_model_types[k]; k++) {
            nrd_model_spec s;
            const bool is_alone = strstr(a->hf_architectures[0] ? a->hf_architectures[0] : "", "EncoderModel") != NULL; /* else it is the whole */
            snprintf(config, sizeof config, "{\"model_type\":\"%s\"," SIZES LATENT "%s\"rotary_dim\":16,\"hidden_dim\":8,\"num_experts\":4,"
                     "\"n_routed_experts\":4,\"embedding_size\":32,\"moe_intermediate_size\":24,\"hybrid_override_pattern\":\"M*-M*-\","
                     "\"moe_layer_frequency\":1,\"parallel_attn_mlp_res\":true,\"decoder\":{\"model_type\":\"mbart\"," SIZES "\"dropout\":0},"
                     "\"num_experts_per_tok\":%d,\"shared_expert_intermediate_size\":8}",
                     a->hf_model_types[k],
                     is_alone                                   ? "\"architectures\":[\"T5EncoderModel\"],"
                     : !strcmp(a->model_type, "jina_bert_v2") ? "\"architectures\":[\"JinaBertModel\"],\"position_embedding_type\":\"alibi\","
                                                                "\"feed_forward_type\":\"geglu\","
                                                              : "",
                     strncmp(a->hf_model_types[k], "llama4", 6) != 0 ? 2 : 1);
            nrd_error *err = from_hf(&s, config, NULL);
            if (err) {
                print_error("%s: %s\n", a->hf_model_types[k], nrd_error_message(err));
            }
            assert_null(err);
            assert_string_equal(s.model_type, a->model_type);
        }
    }
}

/* Adapters know nothing of the numbers that went into the weights. */
static void test_weights_that_were_multiplied_take_no_adapters(void **state)
{
    nrd_model_spec s;
    int64_t in, out;

    (void)state;
    read_ok(&s, "{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64}");
    for (int32_t id = 0; id < NRD_LORA_MODULES; id++) {
        assert_false(nrd_lora_module_dims(&s, 0, id, &in, &out));
    }
    read_ok(&s, "{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":4,\"attn_layer_indices\":[0]}");
    assert_true(nrd_lora_module_dims(&s, 0, 1, &in, &out));
}

static void round_trip(const char *config)
{
    nrd_model_spec a, b;
    nrd_json_doc *doc = NULL;
    nrd_str text = {0}, again = {0};
    read_ok(&a, config);
    nrd_model_spec_to_json(&a, &text);
    assert_null(nrd_json_parse(&doc, text.data, text.len, NULL));
    assert_null(nrd_arch_from_checkpoint(&b, nrd_json_root(doc)));
    nrd_model_spec_to_json(&b, &again);
    assert_string_equal(text.data, again.data);
    assert_memory_equal(a.layer_is_sliding, b.layer_is_sliding, sizeof a.layer_is_sliding);
    assert_memory_equal(a.layer_has_no_rope, b.layer_has_no_rope, sizeof a.layer_has_no_rope);
    assert_memory_equal(a.layer_is_dense, b.layer_is_dense, sizeof a.layer_is_dense);
    assert_memory_equal(&a.moe, &b.moe, sizeof a.moe);
    assert_true(a.recurrent.no_norm == b.recurrent.no_norm && a.recurrent.norm_first == b.recurrent.norm_first &&
                a.recurrent.beside_attention == b.recurrent.beside_attention);
    assert_memory_equal(&a.latent, &b.latent, sizeof a.latent);
    assert_memory_equal(a.rope.short_factors, b.rope.short_factors, sizeof a.rope.short_factors);
    assert_memory_equal(a.rope.long_factors, b.rope.long_factors, sizeof a.rope.long_factors);
    assert_true(a.rope.base >= b.rope.base && a.rope.base <= b.rope.base);
    assert_memory_equal(&a.attn_scale, &b.attn_scale, sizeof a.attn_scale);
    assert_memory_equal(&a.embed_scale, &b.embed_scale, sizeof a.embed_scale);
    assert_memory_equal(&a.norm_eps, &b.norm_eps, sizeof a.norm_eps);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    nrd_str_fini(&again);
}

static void test_a_spec_survives_config_json(void **state)
{
    (void)state;
    round_trip("{\"model_type\":\"gpt2\",\"vocab_size\":320,\"n_embd\":48,\"n_layer\":2,"
               "\"n_head\":3,\"n_positions\":64,\"eos_token_id\":7}");
    round_trip("{\"model_type\":\"gemma2\"," SIZES "\"head_dim\":24,\"query_pre_attn_scalar\":37,"
               "\"sliding_window\":16,\"torch_dtype\":\"bfloat16\"}");
    round_trip("{\"model_type\":\"llama\"," SIZES "\"rope_scaling\":{\"rope_type\":\"yarn\","
               "\"factor\":4.0,\"original_max_position_embeddings\":512}}");
    round_trip("{\"model_type\":\"qwen2_vl\"," SIZES "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3,3]}}");
    round_trip("{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":\"qwen3_vl_text\",\"head_dim\":16," SIZES
               "\"rope_scaling\":{\"rope_type\":\"default\",\"mrope_interleaved\":true,\"mrope_section\":[4,2,2]}}}");
    round_trip("{\"model_type\":\"bloom\"," SIZES "\"layer_norm_epsilon\":1e-6}");
    round_trip("{\"model_type\":\"bert\"," SIZES "\"type_vocab_size\":3}");
    round_trip("{\"model_type\":\"olmo2\"," SIZES "\"rms_norm_eps\":1e-6}");
    round_trip("{\"model_type\":\"cohere2\"," SIZES "\"sliding_window\":7}");
    round_trip("{\"model_type\":\"phi3\"," SIZES "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":"
               "[1,1,1,1,1,1.5,1,1],\"long_factor\":[1,1,1,3.25,1,1,1,1]}}");
    round_trip("{\"model_type\":\"glm4_moe\"," SIZES "\"num_experts\":9,\"num_experts_per_tok\":2,\"n_group\":3,\"topk_group\":2,"
               "\"moe_intermediate_size\":24,\"first_k_dense_replace\":2,\"routed_scaling_factor\":2.5}");
    round_trip("{\"model_type\":\"deepseek_v3\"," SIZES LATENT EXPERTS_OF_8 ",\"q_lora_rank\":24,\"n_group\":4,\"topk_group\":2,"
               "\"first_k_dense_replace\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40.0,\"mscale\":1.0,"
               "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":64}}");
    round_trip("{\"model_type\":\"deepseek_v2\"," SIZES LATENT EXPERTS_OF_8 ",\"topk_method\":\"group_limited_greedy\",\"n_group\":4,"
               "\"topk_group\":1}");
    round_trip("{\"model_type\":\"gpt_oss\"," SIZES "\"num_local_experts\":8,\"num_experts_per_tok\":4,\"sliding_window\":16,"
               "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"original_max_position_embeddings\":64,\"truncate\":false}}");
    round_trip("{\"model_type\":\"lfm2\"," SIZES "\"full_attn_idxs\":[1],\"conv_bias\":true}");
    round_trip("{\"model_type\":\"bamba\"," SIZES "\"mamba_n_heads\":4,\"attn_layer_indices\":[0],\"time_step_limit\":[0.25,8]}");
    round_trip("{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"key_multiplier\":0.5}");
    round_trip("{\"model_type\":\"falcon_h1\"," SIZES "\"mamba_n_heads\":4,\"mamba_d_ssm\":64,\"mamba_rms_norm\":true}");
    round_trip("{\"model_type\":\"mamba2\"," SIZES "\"num_heads\":4,\"head_dim\":32,\"n_groups\":2,\"time_step_limit\":[0,Infinity]}");
    round_trip("{\"model_type\":\"falcon_mamba\"," SIZES "\"mixer_rms_eps\":1e-3,\"time_step_rank\":5}");
    round_trip("{\"model_type\":\"jamba\"," SIZES "\"attn_layer_period\":2,\"attn_layer_offset\":1}");
    round_trip("{\"model_type\":\"nemotron_h\"," SIZES "\"hybrid_override_pattern\":\"M-*E-M\",\"mamba_num_heads\":4,"
               "\"mamba_head_dim\":16,\"n_groups\":2,\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
               "\"moe_shared_expert_intermediate_size\":48}");
    round_trip("{\"model_type\":\"qwen3\"," SIZES "\"head_dim\":32,\"rms_norm_eps\":1e-6}");
}

static void test_a_checkpoint_of_another_converter_is_read(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architecture\":\"LlamaForCausalLM\",\"dtype\":\"float16\",\"vocab_size\":320,"
        "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":128,\"hidden_act\":\"silu\","
        "\"norm_epsilon\":1e-06,\"position_embedding_type\":\"rope_gpt_neox\","
        "\"rotary_base\":10000.0,\"mapping\":{\"world_size\":2,\"tp_size\":2,\"pp_size\":1},"
        "\"quantization\":{\"quant_algo\":null}}";
    nrd_json_doc *doc = NULL;
    nrd_model_spec s;
    assert_null(nrd_json_parse(&doc, text, sizeof text - 1, NULL));
    assert_null(nrd_arch_from_checkpoint(&s, nrd_json_root(doc)));
    assert_int_equal(s.tp_size, 2);
    assert_int_equal(s.rope.kind, NRD_ROPE_NEOX);
    assert_int_equal(s.rope.rotary_dim, 16);
    assert_true(s.gated_mlp && s.norm == NRD_NORM_RMS && s.attn_scale == 0.25f);
    nrd_json_doc_free(doc);
}

/* ---- rotary frequencies ---- */

static void test_plain_and_linear_frequencies(void **state)
{
    (void)state;
    nrd_rope_spec r = {.kind = NRD_ROPE_NEOX, .rotary_dim = 8, .base = 10000};
    float f[4], g[4];
    assert_true(nrd_rope_inv_freq(&r, NULL, f) == 1);
    for (int i = 0; i < 4; i++) {
        assert_true(fabs((double)f[i] - pow(10.0, -i)) < 1e-7); /* 10000^(-2i/8) */
    }
    r.scaling = NRD_ROPE_SCALING_LINEAR;
    r.factor = 4;
    nrd_rope_inv_freq(&r, NULL, g);
    for (int i = 0; i < 4; i++) {
        assert_true(g[i] == f[i] / 4);
    }
    r.scaling = NRD_ROPE_SCALING_FACTORS;
    nrd_rope_inv_freq(&r, (const float[]){1, 2, 4, 8}, g);
    assert_true(g[0] == f[0] && g[1] == f[1] / 2 && fabsf(g[3] - f[3] / 8) < 1e-9f);
}

static void test_llama3_keeps_short_waves_and_stretches_long_ones(void **state)
{
    (void)state;
    nrd_rope_spec r = {.kind = NRD_ROPE_NEOX, .rotary_dim = 128, .base = 500000,
                       .scaling = NRD_ROPE_SCALING_LLAMA3, .factor = 8, .low_freq_factor = 1,
                       .high_freq_factor = 4, .original_max_positions = 8192};
    nrd_rope_spec plain = {.kind = NRD_ROPE_NEOX, .rotary_dim = 128, .base = 500000};
    float f[64], p[64];
    nrd_rope_inv_freq(&r, NULL, f);
    nrd_rope_inv_freq(&plain, NULL, p);
    int kept = 0, stretched = 0, between = 0;
    for (int i = 0; i < 64; i++) {
        double turns = 8192.0 * (double)p[i] / 6.283185307179586;
        double ratio = (double)f[i] / (double)p[i];
        if (turns > 4.001) {
            assert_true(fabs(ratio - 1) < 1e-6);
            kept++;
        } else if (turns < 0.999) {
            assert_true(fabs(ratio - 0.125) < 1e-6);
            stretched++;
        } else {
            assert_true(ratio > 0.125 && ratio < 1);
            between++;
        }
    }
    assert_true(kept > 0 && stretched > 0 && between > 0);
}

static void test_yarn_scales_cos_and_sin(void **state)
{
    (void)state;
    nrd_rope_spec r = {.kind = NRD_ROPE_NEOX, .rotary_dim = 64, .base = 10000,
                       .scaling = NRD_ROPE_SCALING_YARN, .factor = 4,
                       .original_max_positions = 2048};
    float f[32];
    float m = nrd_rope_inv_freq(&r, NULL, f);
    assert_true(fabs((double)m - (0.1 * log(4) + 1)) < 1e-6);
    assert_true(f[0] == 1); /* the fastest is kept, the slowest divided */
    assert_true(fabs((double)f[31] * 4 - pow(10000, -62.0 / 64)) < 1e-9);
    r.attention_factor = 0.5;
    assert_true(nrd_rope_inv_freq(&r, NULL, f) == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3_reads_rope_scaling_ids_and_ties),
        cmocka_unit_test(test_gemma3_has_its_pattern_local_rope_and_scales),
        cmocka_unit_test(test_embedding_scale_is_rounded_to_the_models_type),
        cmocka_unit_test(test_qwen2_slides_only_when_asked_and_from_its_layer_on),
        cmocka_unit_test(test_layer_types_and_rope_parameters_of_newer_configs),
        cmocka_unit_test(test_layers_that_read_pictures_are_left_out_and_counted),
        cmocka_unit_test(test_what_is_not_here_is_refused_by_name),
        cmocka_unit_test(test_values_of_another_kind_are_refused_by_name),
        cmocka_unit_test(test_wrong_recurrent_layers_are_refused_by_name),
        cmocka_unit_test(test_wrong_experts_are_refused_by_name),
        cmocka_unit_test(test_wrong_rotations_are_refused_by_name),
        cmocka_unit_test(test_embeddings_of_a_picture_take_weights_of_their_own),
        cmocka_unit_test(test_layers_of_gemma3n_say_whose_keys_they_read),
        cmocka_unit_test(test_wrong_gemma3n_is_refused_by_name),
        cmocka_unit_test(test_layers_of_gemma4_say_how_wide_they_are),
        cmocka_unit_test(test_ranks_divide_layers_of_gemma4_by_their_own_widths),
        cmocka_unit_test(test_heads_of_gemma4_may_be_listed_by_layer),
        cmocka_unit_test(test_wrong_gemma4_is_refused_by_name),
        cmocka_unit_test(test_what_cannot_be_run_is_refused_by_name),
        cmocka_unit_test(test_a_multiplier_of_the_residual_becomes_scale_and_epsilon),
        cmocka_unit_test(test_missing_sizes_and_bases_are_those_of_the_family),
        cmocka_unit_test(test_minicpm3_has_scales_where_no_key_says_any),
        cmocka_unit_test(test_families_read_what_only_they_have),
        cmocka_unit_test(test_every_family_is_found_under_its_names),
        cmocka_unit_test(test_a_spec_survives_config_json),
        cmocka_unit_test(test_a_checkpoint_of_another_converter_is_read),
        cmocka_unit_test(test_plain_and_linear_frequencies),
        cmocka_unit_test(test_llama3_keeps_short_waves_and_stretches_long_ones),
        cmocka_unit_test(test_weights_that_were_multiplied_take_no_adapters),
        cmocka_unit_test(test_yarn_scales_cos_and_sin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
