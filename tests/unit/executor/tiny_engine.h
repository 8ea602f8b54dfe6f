/* SPDX-License-Identifier: Apache-2.0
 * Engines with random weights for tests, made in a temporary folder. */
#ifndef NRD_TEST_TINY_ENGINE_H
#define NRD_TEST_TINY_ENGINE_H

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/safetensors.h"
#include "model/build.h"
#include "model/engine_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TINY_VOCAB = 96, TINY_MAX_SEQ = 160 };

static const char tiny_llama[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96,"
    " \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"max_position_embeddings\": 160, \"initializer_range\": 0.6, \"torch_dtype\": \"float32\","
    " \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";

static int32_t tiny_prompt_rows; /* max_prompt_embedding_table_size of engines that are built next */
static uint64_t tiny_seed = 7;   /* of their weights */

typedef struct tiny_engine {
    char dir[64];
} tiny_engine;

static inline void tiny_check(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "tiny engine: %s\n", nrd_error_message(err));
        abort();
    }
}

static inline void tiny_build(tiny_engine *t, const char *config, int32_t block_tokens)
{
    char path[128];
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    nrd_build_options b = {.device_name = "", .n_threads = 1};

    snprintf(t->dir, sizeof t->dir, "/tmp/nereid-test-XXXXXX");
    if (!mkdtemp(t->dir)) {
        abort();
    }
    snprintf(path, sizeof path, "%s/model.json", t->dir);
    tiny_check(nrd_file_write(path, config, strlen(config)));
    tiny_check(nrd_source_open_dummy(&src, path, tiny_seed));
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_batch_size = 16;
    b.limits.max_beam_width = 4;
    b.limits.max_num_tokens = 256;
    b.limits.max_seq_len = TINY_MAX_SEQ;
    b.limits.max_input_len = TINY_MAX_SEQ;
    b.limits.tokens_per_block = block_tokens;
    b.limits.use_paged_context_fmha = true;
    b.limits.gather_context_logits = b.limits.gather_generation_logits = true;
    b.limits.max_draft_len = 8;
    b.limits.max_prompt_embedding_table_size = tiny_prompt_rows;
    tiny_check(nrd_build_folder(src, &b, t->dir, &stats));
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
}

/* Printable characters, of guides: id 0 is '!', and so on to '~'. */
static inline void tiny_write_tokenizer(const char *dir)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int c = '!'; c <= '~'; c++) {
        nrd_str_printf(&s, c == '"' || c == '\\' ? "%s\"\\%c\":%d" : "%s\"%c\":%d", c == '!' ? "" : ",", c, c - '!');
    }
    nrd_str_puts(&s, "}}}");
    char *path = nrd_path_join(dir, "tokenizer.json");
    tiny_check(nrd_file_write(path, s.data, s.len));
    free(path);
    nrd_str_fini(&s);
}

/* Two Medusa heads of random weights for tiny_llama, as medusa_lm_head.safetensors. */
static inline void tiny_write_medusa(const char *dir)
{
    enum { HEADS = 2, WIDTH = 64 };
    static float values[TINY_VOCAB * WIDTH];
    nrd_safetensors_writer *w = NULL;
    char *path = nrd_path_join(dir, "medusa_lm_head.safetensors"), name[32];
    tiny_check(nrd_safetensors_writer_open(&w, path));
    for (int pass = 0; pass < 2; pass++) {
        for (int h = 0; h < HEADS; h++) {
            static const char *const names[] = {"%d.0.linear.weight", "%d.0.linear.bias", "%d.1.weight"};
            for (int i = 0; i < 3; i++) {
                const int64_t dims[2] = {i == 2 ? TINY_VOCAB : WIDTH, WIDTH}, n = i == 1 ? WIDTH : dims[0] * WIDTH;
                snprintf(name, sizeof name, names[i], h);
                for (int64_t k = 0; k < n; k++) {
                    values[k] = (float)((k * 7919 + h * 31 + i * 17) % 1009) / 1009 - 0.5f;
                }
                tiny_check(pass ? nrd_safetensors_writer_write(w, values, (size_t)n * sizeof *values)
                                : nrd_safetensors_writer_add(w, name, NRD_DTYPE_F32, dims, i == 1 ? 1 : 2));
            }
        }
        tiny_check(pass ? NULL : nrd_safetensors_writer_begin(w));
    }
    tiny_check(nrd_safetensors_writer_commit(w));
    free(path);
}

/* A recurrent drafter of the engine's sizes, in its folder "redrafter". */
static inline void tiny_write_redrafter(const char *dir)
{
    enum { WIDTH = 64, EXIT = 48 };
    static const char config[] = "{\"hidden_size\": 64, \"vocab_size\": 96, \"exit_dim\": 48, \"num_draft_layers\": 1, \"rnn\": true}";
    static const struct {
        const char *name;
        int64_t dims[2];
    } rows[] = {{"input_proj.weight", {EXIT, 2 * WIDTH}}, {"input_proj.bias", {EXIT}},      {"rnn_u.weight", {WIDTH, WIDTH}},
                {"rnn_u.bias", {WIDTH}},                  {"rnn_w.weight", {WIDTH, WIDTH}}, {"lm_head.0.linear.weight", {EXIT, EXIT}},
                {"lm_head.0.linear.bias", {EXIT}},        {"lm_head.1.weight", {TINY_VOCAB, EXIT}}};
    static float values[TINY_VOCAB * 2 * WIDTH];
    nrd_safetensors_writer *w = NULL;
    char *folder = nrd_path_join(dir, "redrafter"), *path = nrd_path_join(folder, "model.safetensors"),
         *config_path = nrd_path_join(folder, "config.json");
    tiny_check(nrd_mkdirs(folder));
    tiny_check(nrd_file_write(config_path, config, sizeof config - 1));
    tiny_check(nrd_safetensors_writer_open(&w, path));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const int64_t n = rows[i].dims[0] * (rows[i].dims[1] ? rows[i].dims[1] : 1);
            for (int64_t k = 0; k < n; k++) {
                values[k] = (float)((k * 7919 + (int64_t)i * 31) % 1009) / 1009 - 0.5f;
            }
            tiny_check(pass ? nrd_safetensors_writer_write(w, values, (size_t)n * sizeof *values)
                            : nrd_safetensors_writer_add(w, rows[i].name, NRD_DTYPE_F32, rows[i].dims, rows[i].dims[1] ? 2 : 1));
        }
        tiny_check(pass ? NULL : nrd_safetensors_writer_begin(w));
    }
    tiny_check(nrd_safetensors_writer_commit(w));
    free(folder);
    free(path);
    free(config_path);
}

static inline void tiny_remove_files(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    tiny_check(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        char *file = nrd_path_join(dir, names[i]);
        if (nrd_path_is_dir(file)) {
            tiny_remove_files(file);
        } else {
            unlink(file);
        }
        free(file);
    }
    nrd_names_free(names, n);
    rmdir(dir);
}

static inline void tiny_remove(tiny_engine *t)
{
    tiny_remove_files(t->dir);
}

#endif
