/* SPDX-License-Identifier: Apache-2.0
 * What guesses beside tiny_llama, of random weights: EAGLE heads in Hugging Face's form, and an MTP layer as an engine. */
#ifndef NRD_TEST_TINY_EAGLE_H
#define NRD_TEST_TINY_EAGLE_H

#include "model/arch.h"
#include "model/eagle_heads.h"
#include "tiny_engine.h"

enum { HIDDEN = 64, INTER = 96, DRAFT_VOCAB = 50, MAX_VALUES = 3 * HIDDEN * INTER };

static const char tiny_eagle_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96, \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"max_position_embeddings\": 160,"
    " \"torch_dtype\": \"float32\"";
static const char tiny_eagle3_config[] = ", \"draft_vocab_size\": 50, \"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [0, 1, 2]}";

typedef struct tiny_part {
    const char *name;
    int64_t rows, cols; /* cols 0: a vector */
} tiny_part;

static const tiny_part tiny_eagle1[] = {
    {"fc.weight", HIDDEN, 2 * HIDDEN}, {"fc.bias", HIDDEN, 0},
    {"layers.0.self_attn.q_proj.weight", 64, HIDDEN}, {"layers.0.self_attn.k_proj.weight", 32, HIDDEN},
    {"layers.0.self_attn.v_proj.weight", 32, HIDDEN}, {"layers.0.self_attn.o_proj.weight", HIDDEN, 64},
    {"layers.0.mlp.gate_proj.weight", INTER, HIDDEN}, {"layers.0.mlp.up_proj.weight", INTER, HIDDEN},
    {"layers.0.mlp.down_proj.weight", HIDDEN, INTER}, {"layers.0.post_attention_layernorm.weight", HIDDEN, 0}, {0}};
static const tiny_part tiny_eagle3[] = {
    {"fc.weight", HIDDEN, 3 * HIDDEN}, {"midlayer.hidden_norm.weight", HIDDEN, 0}, {"midlayer.input_layernorm.weight", HIDDEN, 0},
    {"midlayer.self_attn.q_proj.weight", 64, 2 * HIDDEN}, {"midlayer.self_attn.k_proj.weight", 32, 2 * HIDDEN},
    {"midlayer.self_attn.v_proj.weight", 32, 2 * HIDDEN}, {"midlayer.self_attn.o_proj.weight", HIDDEN, 64},
    {"midlayer.mlp.gate_proj.weight", INTER, HIDDEN}, {"midlayer.mlp.up_proj.weight", INTER, HIDDEN},
    {"midlayer.mlp.down_proj.weight", HIDDEN, INTER}, {"midlayer.post_attention_layernorm.weight", HIDDEN, 0},
    {"norm.weight", HIDDEN, 0}, {"lm_head.weight", DRAFT_VOCAB, HIDDEN}, {"d2t", DRAFT_VOCAB, 0}, {0}};

/* With more keys than those that all heads here have. */
static inline void tiny_put_eagle_config(const char *dir, const char *more)
{
    char *path = nrd_path_join(dir, "config.json");
    nrd_str text = {0};
    nrd_str_printf(&text, "%s%s}", tiny_eagle_config, more);
    tiny_check(nrd_file_write(path, text.data, text.len));
    nrd_str_fini(&text);
    free(path);
}

/* Writes heads; left_out: this tensor is missing; odd: this one has a row more; far: d2t's last token is behind the vocabulary. */
static inline void tiny_write_eagle(const char *dir, const tiny_part *parts, const char *left_out, const char *odd, bool far)
{
    static float values[MAX_VALUES];
    static int64_t behind[DRAFT_VOCAB + 1];
    nrd_safetensors_writer *w = NULL;
    char *path = nrd_path_join(dir, "model.safetensors");
    const bool is_3 = parts == tiny_eagle3;
    tiny_check(nrd_safetensors_writer_open(&w, path));
    for (int pass = 0; pass < 2; pass++) {
        uint32_t state = 11;
        for (const tiny_part *p = parts; p->name; p++) {
            const int64_t dims[2] = {p->rows + (odd && !strcmp(p->name, odd)), p->cols}, n = dims[0] * (p->cols ? p->cols : 1);
            const bool is_tokens = !strcmp(p->name, "d2t");
            for (int64_t i = 0; i < n && !is_tokens; i++) {
                state = state * 1664525u + 1013904223u;
                values[i] = ((float)(state >> 8) / (float)(1 << 24) - 0.5f) * (p->cols ? 0.4f : 1) + (p->cols ? 0 : 1);
            }
            for (int64_t i = 0; i < n && is_tokens; i++) {
                behind[i] = far && i + 1 == n ? 96 - i : i * 4 / 5;
            }
            if (left_out && !strcmp(p->name, left_out)) {
                continue;
            }
            tiny_check(!pass ? nrd_safetensors_writer_add(w, p->name, is_tokens ? NRD_DTYPE_I64 : NRD_DTYPE_F32, dims, p->cols ? 2 : 1)
                 : is_tokens ? nrd_safetensors_writer_write(w, behind, (size_t)n * sizeof *behind)
                             : nrd_safetensors_writer_write(w, values, (size_t)n * sizeof *values));
        }
        tiny_check(pass ? NULL : nrd_safetensors_writer_begin(w));
    }
    tiny_check(nrd_safetensors_writer_commit(w));
    free(path);
    tiny_put_eagle_config(dir, is_3 ? tiny_eagle3_config : "");
}

/* The layer that nrd_build_mtp makes where a model has one: in the engine's folder NRD_MTP_FOLDER. */
static inline void tiny_write_mtp(const char *dir, int32_t block_tokens)
{
    char *folder = nrd_path_join(dir, NRD_MTP_FOLDER), *path = nrd_path_join(folder, "model.json");
    nrd_source *model = NULL, *layer = NULL;
    nrd_build_stats stats = {0};
    nrd_build_options b = {.device_name = "", .n_threads = 1};
    nrd_str config = {0};

    char *model_path = nrd_path_join(dir, "model.json");
    tiny_check(nrd_source_open_dummy(&model, model_path, tiny_seed));
    const nrd_model_spec spec = nrd_arch_mtp_spec(nrd_source_spec(model));
    nrd_model_spec_to_json(&spec, &config);
    tiny_check(nrd_mkdirs(folder));
    tiny_check(nrd_file_write(path, config.data, config.len));
    tiny_check(nrd_source_open_dummy(&layer, path, tiny_seed + 1));
    nrd_build_limits_init(&b.limits, nrd_source_spec(layer));
    b.limits.max_num_tokens = 256;
    b.limits.max_seq_len = b.limits.max_input_len = TINY_MAX_SEQ;
    b.limits.tokens_per_block = block_tokens;
    tiny_check(nrd_build_folder(layer, &b, folder, &stats));
    nrd_str_fini(&stats.notes);
    nrd_str_fini(&config);
    nrd_source_close(layer);
    nrd_source_close(model);
    free(model_path);
    free(path);
    free(folder);
}

#endif
