/* SPDX-License-Identifier: Apache-2.0
 * Which products may have their input rounded to int8: those whose int8 weights are all of groups that say so. */
#include "base/file.h"
#include "base/mem.h"
#include "device/device.h"
#include "engine/run/weights.h"
#include "formats/safetensors.h"
#include "model/build.h"
#include "model/engine_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { HIDDEN = 64, VOCAB = 32 };

static void must(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

/* With int8 weights, a scale for each row; norms and embeddings are bfloat16. All are HIDDEN wide. */
static const struct {
    const char *name;
    int64_t rows;
    bool is_matrix, is_int8;
} tensors[] = {
    {"model.embed_tokens.weight", VOCAB, true, false},
    {"model.norm.weight", HIDDEN, false, false},
    {"lm_head.weight", VOCAB, true, false},
    {"model.layers.0.input_layernorm.weight", HIDDEN, false, false},
    {"model.layers.0.post_attention_layernorm.weight", HIDDEN, false, false},
    {"model.layers.0.self_attn.q_proj", HIDDEN, true, true},
    {"model.layers.0.self_attn.k_proj", HIDDEN, true, true},
    {"model.layers.0.self_attn.v_proj", HIDDEN, true, true},
    {"model.layers.0.self_attn.o_proj", HIDDEN, true, true},
    {"model.layers.0.mlp.gate_proj", HIDDEN, true, true},
    {"model.layers.0.mlp.up_proj", HIDDEN, true, true},
    {"model.layers.0.mlp.down_proj", HIDDEN, true, true},
};

static void for_all(nrd_safetensors_writer *w, bool data)
{
    static const uint16_t one[VOCAB > HIDDEN ? VOCAB * HIDDEN : HIDDEN * HIDDEN];
    char name[128];

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const int64_t dims[2] = {tensors[i].rows, tensors[i].is_matrix ? HIDDEN : 1}, column[2] = {tensors[i].rows, 1};
        const size_t n = (size_t)(dims[0] * dims[1]);
        snprintf(name, sizeof name, "%s%s", tensors[i].name, tensors[i].is_int8 ? ".weight" : "");
        if (data) {
            must(nrd_safetensors_writer_write(w, one, n * (tensors[i].is_int8 ? 1 : 2)));
        } else {
            must(nrd_safetensors_writer_add(w, name, tensors[i].is_int8 ? NRD_DTYPE_I8 : NRD_DTYPE_BF16, dims, tensors[i].is_matrix ? 2 : 1));
        }
        if (tensors[i].is_int8 && data) {
            must(nrd_safetensors_writer_write(w, one, (size_t)tensors[i].rows * 2));
        } else if (tensors[i].is_int8) {
            snprintf(name, sizeof name, "%s.weight_scale", tensors[i].name);
            must(nrd_safetensors_writer_add(w, name, NRD_DTYPE_BF16, column, 2));
        }
    }
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = nrd_path_join(dir, name);
    must(nrd_file_write(path, text, strlen(text)));
    free(path);
}

static void remove_folder(const char *path)
{
    char **names;
    size_t n;

    must(nrd_dir_list(&names, &n, path));
    for (size_t i = 0; i < n; i++) {
        char *at = nrd_path_join(path, names[i]);
        if (nrd_path_is_dir(at)) {
            remove_folder(at);
        } else {
            remove(at);
        }
        free(at);
    }
    nrd_names_free(names, n);
    rmdir(path);
}

/* What the products of a folder with these targets for weights of 16-bit inputs say: qkv, dense, up, down. */
static void products_of(const char *plain_targets, bool out[4])
{
    char dir[] = "/tmp/nereid-test-XXXXXX", config[2048];
    nrd_safetensors_writer *w = NULL;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    nrd_engine *e = NULL;
    nrd_device *cpu = NULL;
    nrd_stream *on = NULL;
    nrd_weights weights;

    assert_non_null(mkdtemp(dir));
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"vocab_size\":32,\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":4,\"intermediate_size\":64,\"torch_dtype\":\"bfloat16\",\"max_position_embeddings\":128,\"eos_token_id\":3,"
             "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{"
             "\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\"},"
             "\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"dynamic\":true}},"
             "\"group_1\":{\"targets\":%s,\"weights\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\"}}}}}", plain_targets);
    put(dir, "config.json", config);
    char *path = nrd_path_join(dir, "model.safetensors"), *built = nrd_path_join(dir, "out");
    must(nrd_safetensors_writer_open(&w, path));
    for_all(w, false);
    must(nrd_safetensors_writer_begin(w));
    for_all(w, true);
    must(nrd_safetensors_writer_commit(w));

    must(nrd_source_open(&src, dir));
    nrd_build_options b = {.device_name = ""};
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = b.limits.max_seq_len;
    must(nrd_build_folder(src, &b, built, &stats));
    must(nrd_engine_open(&e, built, 0, true));
    must(nrd_device_open(&cpu, "cpu", &(nrd_device_config){.n_threads = 1}));
    must(cpu->ops->stream_new(cpu, &on));
    must(nrd_weights_load(&weights, on, cpu, e, &(nrd_weights_config){.act_dtype = NRD_DTYPE_BF16, .kv_dtype = NRD_DTYPE_BF16}));
    const nrd_layer *y = &weights.layers[0];
    const nrd_product *const all[] = {&y->qkv, &y->dense, &y->up, &y->down};
    for (int i = 0; i < 4; i++) {
        assert_true(all[i]->n > 0 && all[i]->w[0]->dtype == NRD_DTYPE_I8);
        out[i] = all[i]->int8_x;
    }
    assert_false(weights.lm_head.int8_x);

    nrd_weights_unload(&weights);
    cpu->ops->stream_free(on);
    cpu->ops->close(cpu);
    nrd_engine_close(e);
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    remove_folder(dir);
    free(path);
    free(built);
}

static void check(const char *plain_targets, bool qkv, bool dense, bool up, bool down)
{
    bool got[4];
    products_of(plain_targets, got);
    assert_int_equal(got[0], qkv);
    assert_int_equal(got[1], dense);
    assert_int_equal(got[2], up);
    assert_int_equal(got[3], down);
}

static void test_a_product_is_for_the_inputs_of_its_group(void **state)
{
    (void)state;
    check("[\"re:.*down_proj\"]", true, true, true, false);
    check("[\"re:.*self_attn.*\"]", false, false, true, true);
}

static void test_one_part_with_other_inputs_makes_its_product_plain(void **state)
{
    (void)state;
    check("[\"model.layers.0.mlp.up_proj\", \"model.layers.0.self_attn.k_proj\"]", false, true, false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_product_is_for_the_inputs_of_its_group),
        cmocka_unit_test(test_one_part_with_other_inputs_makes_its_product_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
