/* SPDX-License-Identifier: Apache-2.0
 * Engines with random weights for tests, made in a temporary folder. */
#ifndef NRD_TEST_TINY_ENGINE_H
#define NRD_TEST_TINY_ENGINE_H

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
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

static inline void tiny_remove(tiny_engine *t)
{
    char **names = NULL;
    size_t n = 0;
    tiny_check(nrd_dir_list(&names, &n, t->dir));
    for (size_t i = 0; i < n; i++) {
        char *file = nrd_path_join(t->dir, names[i]);
        unlink(file);
        free(file);
    }
    nrd_names_free(names, n);
    rmdir(t->dir);
}

#endif
