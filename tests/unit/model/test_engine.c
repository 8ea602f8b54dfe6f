/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "model/build.h"
#include "model/engine_file.h"
#include "model/needs.h"
#include "unit/formats/damage.h"

#include <math.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* A llama of two layers in a folder of its own: 4 heads of 16, 2 for k and v, MLP of 96. */
enum { HIDDEN = 64, KV = 32, INTER = 96, VOCAB = 50, LAYERS = 2 };

typedef struct {
    char dir[64];
    char *model, *out;
} folder;

static void must(nrd_error *err)
{
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        nrd_error_free(err);
        fail();
    }
}

static float value_of(const char *name, int64_t i)
{
    uint64_t h = nrd_hash_u64(nrd_hash_bytes(1, name, strlen(name)), (uint64_t)i);
    return nrd_bf16_to_f32(nrd_f32_to_bf16((float)(h % 2001) / 1000.0f - 1.0f));
}

static void remove_tree(const char *path)
{
    char **names;
    size_t n;
    if (nrd_path_is_dir(path)) {
        must(nrd_dir_list(&names, &n, path));
        for (size_t i = 0; i < n; i++) {
            char *p = nrd_path_join(path, names[i]);
            remove_tree(p);
            free(p);
        }
        nrd_names_free(names, n);
    }
    remove(path);
}

typedef struct {
    const char *name; /* of layer tensors, with %d */
    int64_t rows, cols; /* cols 0: a vector */
} shape;

static const shape shapes[] = {
    {"model.embed_tokens.weight", VOCAB, HIDDEN},
    {"model.norm.weight", HIDDEN, 0},
    {"lm_head.weight", VOCAB, HIDDEN},
    {"model.layers.%d.input_layernorm.weight", HIDDEN, 0},
    {"model.layers.%d.post_attention_layernorm.weight", HIDDEN, 0},
    {"model.layers.%d.self_attn.q_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.%d.self_attn.k_proj.weight", KV, HIDDEN},
    {"model.layers.%d.self_attn.v_proj.weight", KV, HIDDEN},
    {"model.layers.%d.self_attn.o_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.%d.mlp.gate_proj.weight", INTER, HIDDEN},
    {"model.layers.%d.mlp.up_proj.weight", INTER, HIDDEN},
    {"model.layers.%d.mlp.down_proj.weight", HIDDEN, INTER},
};
enum { N_SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

/* Calls `each` for all tensors of the model. */
static void for_all(nrd_safetensors_writer *w, bool data, const char *leave_out)
{
    char name[128];
    for (int i = 0; i < N_SHAPES; i++) {
        bool layered = strchr(shapes[i].name, '%') != NULL;
        for (int layer = 0; layer < (layered ? LAYERS : 1); layer++) {
            const char *at = strchr(shapes[i].name, '%');
            if (at) {
                snprintf(name, sizeof name, "%.*s%d%s", (int)(at - shapes[i].name), shapes[i].name,
                         layer, at + 2);
            } else {
                snprintf(name, sizeof name, "%s", shapes[i].name);
            }
            if (leave_out && !strcmp(name, leave_out)) {
                continue;
            }
            int64_t dims[2] = {shapes[i].rows, shapes[i].cols};
            int64_t n = dims[0] * (dims[1] ? dims[1] : 1);
            if (!data) {
                must(nrd_safetensors_writer_add(w, name, NRD_DTYPE_BF16, dims, dims[1] ? 2 : 1));
                continue;
            }
            for (int64_t k = 0; k < n; k++) {
                uint16_t v = nrd_f32_to_bf16(value_of(name, k));
                must(nrd_safetensors_writer_write(w, &v, 2));
            }
        }
    }
}

static void write_model(const char *dir, const char *leave_out)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"vocab_size\":50,\"hidden_size\":64,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"
        "\"torch_dtype\":\"bfloat16\",\"max_position_embeddings\":128,\"eos_token_id\":3}";
    nrd_safetensors_writer *w = NULL;
    must(nrd_mkdirs(dir));
    char *path = nrd_path_join(dir, "config.json");
    must(nrd_file_write(path, config, sizeof config - 1));
    free(path);
    path = nrd_path_join(dir, "model.safetensors");
    must(nrd_safetensors_writer_open(&w, path));
    for_all(w, false, leave_out);
    must(nrd_safetensors_writer_begin(w));
    for_all(w, true, leave_out);
    must(nrd_safetensors_writer_commit(w));
    free(path);
}

static int setup(void **state)
{
    folder *f = nrd_xcalloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/nereid-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->model = nrd_path_join(f->dir, "model");
    f->out = nrd_path_join(f->dir, "out");
    write_model(f->model, NULL);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    folder *f = *state;
    remove_tree(f->dir);
    free(f->model);
    free(f->out);
    free(f);
    return 0;
}

static nrd_error *build_with(const folder *f, const char *from, nrd_plan_options plan)
{
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    NRD_TRY(nrd_source_open(&src, from));
    nrd_build_options b = {.plan = plan, .device_name = ""};
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = b.limits.max_seq_len;
    nrd_error *err = nrd_build_folder(src, &b, f->out, &stats);
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    return err;
}

static void build_model(const folder *f)
{
    must(build_with(f, f->model, (nrd_plan_options){0}));
}

static nrd_engine *open_engine(const folder *f, int32_t rank)
{
    nrd_engine *e = NULL;
    must(nrd_engine_open(&e, f->out, rank, true));
    return e;
}

static float bf16_at(const nrd_weight *w, int64_t row, int64_t col)
{
    return nrd_bf16_to_f32(((const uint16_t *)w->data)[row * w->cols + col]);
}

static void test_weights_of_a_built_engine_equal_the_source(void **state)
{
    const folder *f = *state;
    build_model(f);
    nrd_engine *e = open_engine(f, 0);
    const nrd_weight *qkv = nrd_engine_weight(e, "transformer.layers.1.attention.qkv.weight");
    assert_non_null(qkv);
    assert_int_equal(qkv->rows, HIDDEN + 2 * KV);
    assert_int_equal(qkv->cols, HIDDEN);
    assert_int_equal(qkv->dtype, NRD_DTYPE_BF16);
    assert_true(bf16_at(qkv, 3, 5) ==
                value_of("model.layers.1.self_attn.q_proj.weight", 3 * HIDDEN + 5));
    assert_true(bf16_at(qkv, HIDDEN + 2, 7) ==
                value_of("model.layers.1.self_attn.k_proj.weight", 2 * HIDDEN + 7));
    assert_true(bf16_at(qkv, HIDDEN + KV + 9, 63) ==
                value_of("model.layers.1.self_attn.v_proj.weight", 9 * HIDDEN + 63));
    const nrd_weight *norm = nrd_engine_weight(e, "transformer.ln_f.weight");
    assert_int_equal(norm->cols, 1);
    assert_true(bf16_at(norm, 10, 0) == value_of("model.norm.weight", 10));
    assert_null(nrd_engine_weight(e, "transformer.ln_f.bias"));
    assert_int_equal((uintptr_t)qkv->data % 64, 0);
    assert_int_equal(nrd_engine_spec(e)->eos_id, 3);
    assert_int_equal(nrd_engine_limits(e)->max_seq_len, 128);
    assert_int_equal(nrd_engine_n_weights(e), 3 + 7 * LAYERS);
    nrd_engine_close(e);
}

/* Two mappings of one file, one of them moved; with INT8 weights there are scales to move as well. */
static void test_moved_weights_are_those_of_the_file(void **state)
{
    const folder *f = *state;
    must(build_with(f, f->model, (nrd_plan_options){.quantize = NRD_DTYPE_I8}));
    nrd_engine *mapped = open_engine(f, 0), *moved = open_engine(f, 0);
    assert_false(nrd_engine_settle(moved, 1000)); /* no room for a copy */
    bool has = nrd_engine_settle(moved, UINT64_MAX), scaled = false;
    for (size_t i = 0; i < nrd_engine_n_weights(mapped); i++) {
        const char *name = NULL;
        const nrd_weight *w = nrd_engine_weight_at(mapped, i, &name);
        const nrd_weight *m = nrd_engine_weight(moved, name);
        assert_non_null(m);
        assert_ptr_not_equal(m->data, w->data);
        assert_int_equal((uintptr_t)m->data % 64, 0);
        assert_int_equal(m->data_bytes, w->data_bytes);
        assert_memory_equal(m->data, w->data, w->data_bytes);
        assert_int_equal(m->scales != NULL, w->scales != NULL);
        if (w->scales) {
            assert_memory_equal(m->scales, w->scales, (size_t)w->rows * sizeof(float));
            scaled = true;
        }
    }
    assert_true(scaled);
    nrd_engine_close(mapped);
    assert_false(has && nrd_engine_settle(moved, 1000));
    nrd_engine_close(moved);
}

/* Its end is gone: what a kernel reads there is zeros, and the process lives. In a process of its own: cmocka
 * puts a handler of SIGBUS into the place of the one that is tested. Gives the exit status. */
static int shorten_engine(const char *dir)
{
    char *path = nrd_path_join(dir, "rank0.engine");
    nrd_engine *e = NULL;
    unsigned sum = 0;
    nrd_error *err = nrd_engine_open(&e, dir, 0, false);
    if (err || nrd_engine_check(e) || truncate(path, 4096) != 0) {
        return 10;
    }
    for (size_t i = 0; i < nrd_engine_n_weights(e); i++) {
        const char *name = NULL;
        const nrd_weight *w = nrd_engine_weight_at(e, i, &name);
        for (size_t k = 0; k < w->data_bytes; k++) {
            sum += ((const volatile unsigned char *)w->data)[k];
        }
    }
    (void)sum;
    err = nrd_engine_check(e);
    bool told = err && nrd_error_get_code(err) == NRD_ERR_UNAVAILABLE && strstr(nrd_error_message(err), "made shorter");
    nrd_error_free(err);
    nrd_engine_close(e);
    free(path);
    return told ? 0 : 11;
}

static void test_an_engine_that_is_made_shorter_is_lost(void **state)
{
    const folder *f = *state;
    char *argv[] = {"test_engine", "shorten", f->out, NULL};
    pid_t pid = 0;
    int status = 0;

    must(build_with(f, f->model, (nrd_plan_options){0}));
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void convert_with(const char *from, const char *to, nrd_plan_options plan)
{
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    must(nrd_source_open(&src, from));
    must(nrd_convert_folder(src, &plan, to, &stats));
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
}

static float src_bf16_at(const nrd_src_tensor *t, int64_t row, int64_t col)
{
    return nrd_bf16_to_f32(((const uint16_t *)t->data)[row * t->dims[1] + col]);
}

static void test_ranks_together_hold_every_value(void **state)
{
    const folder *f = *state;
    nrd_source *s = NULL;
    convert_with(f->model, f->out, (nrd_plan_options){.tp_size = 2, .pp_size = 2});
    must(nrd_source_open(&s, f->out));
    /* rank 3: second half of the heads, second layer */
    const nrd_src_tensor *qkv = nrd_source_find(s, 3, "transformer.layers.0.attention.qkv.weight");
    assert_int_equal(qkv->dims[0], HIDDEN / 2 + KV);
    assert_true(src_bf16_at(qkv, 0, 1) ==
                value_of("model.layers.1.self_attn.q_proj.weight", (HIDDEN / 2) * HIDDEN + 1));
    assert_true(src_bf16_at(qkv, HIDDEN / 2, 0) ==
                value_of("model.layers.1.self_attn.k_proj.weight", (KV / 2) * HIDDEN));
    const nrd_src_tensor *proj = nrd_source_find(s, 3, "transformer.layers.0.mlp.proj.weight");
    assert_int_equal(proj->dims[1], INTER / 2);
    assert_true(src_bf16_at(proj, 2, 1) ==
                value_of("model.layers.1.mlp.down_proj.weight", 2 * INTER + INTER / 2 + 1));
    const nrd_src_tensor *head = nrd_source_find(s, 3, "lm_head.weight");
    assert_int_equal(head->dims[0], VOCAB / 2);
    assert_true(src_bf16_at(head, 0, 0) == value_of("lm_head.weight", VOCAB / 2 * HIDDEN));
    assert_null(nrd_source_find(s, 3, "transformer.vocab_embedding.weight"));
    assert_non_null(nrd_source_find(s, 0, "transformer.vocab_embedding.weight"));
    assert_null(nrd_source_find(s, 0, "lm_head.weight"));
    nrd_source_close(s);
}

static void test_a_checkpoint_in_between_changes_nothing(void **state)
{
    const folder *f = *state;
    static const nrd_dtype types[] = {NRD_DTYPE_NONE, NRD_DTYPE_I8, NRD_DTYPE_F8_E4M3,
                                      NRD_DTYPE_Q8_0, NRD_DTYPE_Q4_1, NRD_DTYPE_F16};
    char *ckpt = nrd_path_join(f->dir, "ckpt"), *file = nrd_path_join(f->out, "rank0.engine");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        nrd_plan_options plan = {.quantize = types[i]};
        nrd_map direct, through;
        must(build_with(f, f->model, plan));
        must(nrd_map_open(&direct, file));
        convert_with(f->model, ckpt, plan);
        must(build_with(f, ckpt, (nrd_plan_options){0}));
        must(nrd_map_open(&through, file));
        assert_int_equal(direct.size_bytes, through.size_bytes);
        assert_memory_equal(direct.data, through.data, direct.size_bytes);
        nrd_map_close(&direct);
        nrd_map_close(&through);
    }
    free(ckpt);
    free(file);
}

static void test_rows_with_scales_come_near_the_source(void **state)
{
    const folder *f = *state;
    for (int k = 0; k < 2; k++) {
        nrd_dtype type = k ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_I8;
        must(build_with(f, f->model, (nrd_plan_options){.quantize = type}));
        nrd_engine *e = open_engine(f, 0);
        const nrd_weight *w = nrd_engine_weight(e, "transformer.layers.0.mlp.fc.weight");
        assert_int_equal(w->dtype, type);
        assert_non_null(w->scales);
        for (int64_t i = 0; i < w->rows * w->cols; i++) {
            float scale = ((const float *)w->scales)[i / w->cols];
            float got = scale * (k ? nrd_f8e4m3_to_f32(((const uint8_t *)w->data)[i])
                                   : (float)((const int8_t *)w->data)[i]);
            float want = value_of("model.layers.0.mlp.gate_proj.weight", i);
            /* half a step of int8; 3 bits of mantissa: a sixteenth */
            assert_true(fabsf(got - want) <= (k ? fabsf(want) / 16 + scale : scale * 0.501f));
        }
        assert_int_equal(nrd_engine_weight(e, "lm_head.weight")->dtype, NRD_DTYPE_BF16);
        assert_string_equal(nrd_engine_spec(e)->quant_algo, k ? "FP8" : "W8A16");
        nrd_engine_close(e);
    }
}

static void test_a_missing_or_misshapen_tensor_is_named(void **state)
{
    const folder *f = *state;
    write_model(f->model, "model.layers.1.mlp.up_proj.weight");
    assert_true(is_error(build_with(f, f->model, (nrd_plan_options){0}),
                         "'model.layers.1.mlp.up_proj.weight' is missing"));
    assert_false(nrd_path_exists(f->out)); /* nothing was begun */
    write_model(f->model, NULL);
    char *path = nrd_path_join(f->model, "config.json"), *text = NULL;
    must(nrd_file_read(&text, NULL, path, 4096));
    char *at = strstr(text, "\"intermediate_size\":96");
    memcpy(at, "\"intermediate_size\":64", 22);
    must(nrd_file_write(path, text, strlen(text)));
    assert_true(is_error(build_with(f, f->model, (nrd_plan_options){0}), "expected [64, 64]"));
    free(text);
    free(path);
}

/* A checkpoint that others wrote may say one thing and hold another. */
static void test_what_the_runner_would_miss_is_refused_before_anything_is_written(void **state)
{
    const folder *f = *state;
    char *ckpt = nrd_path_join(f->dir, "ckpt"), *path = nrd_path_join(ckpt, "config.json");
    char *text = NULL;
    size_t n = 0;
    convert_with(f->model, ckpt, (nrd_plan_options){0});
    must(nrd_file_read(&text, &n, path, 1 << 20));
    char *at = strstr(text, "\"qkv_bias\": false");
    assert_non_null(at);
    memcpy(at + strlen("\"qkv_bias\": "), " true", 5);
    must(nrd_file_write(path, text, n));
    assert_true(is_error(build_with(f, ckpt, (nrd_plan_options){0}),
                         "weight 'transformer.layers.0.attention.qkv.bias' is missing"));
    memcpy(at + strlen("\"qkv_bias\": "), "false", 5);
    at = strstr(text, "\"intermediate_size\": 96");
    assert_non_null(at);
    at[strlen("\"intermediate_size\": ")] = '8';
    must(nrd_file_write(path, text, n));
    assert_true(is_error(build_with(f, ckpt, (nrd_plan_options){0}), "expected [86, 64]"));
    assert_false(nrd_path_exists(f->out));
    free(text);
    free(path);
    free(ckpt);
}

static void expect_ranks(const folder *f, int32_t n)
{
    char name[32];
    for (int32_t i = 0; i < n; i++) {
        nrd_engine *e = NULL;
        must(nrd_engine_open(&e, f->out, i, true));
        assert_int_equal(nrd_engine_spec(e)->tp_size, n);
        nrd_engine_close(e);
    }
    snprintf(name, sizeof name, "rank%d.engine", n);
    char *path = nrd_path_join(f->out, name);
    assert_false(nrd_path_exists(path));
    free(path);
}

static void test_an_engine_has_a_file_for_each_rank(void **state)
{
    const folder *f = *state;
    char *ckpt = nrd_path_join(f->dir, "ckpt");
    convert_with(f->model, ckpt, (nrd_plan_options){.tp_size = 2});
    must(build_with(f, ckpt, (nrd_plan_options){0}));
    expect_ranks(f, 2);
    must(build_with(f, f->model, (nrd_plan_options){.tp_size = 2}));
    expect_ranks(f, 2);
    must(build_with(f, f->model, (nrd_plan_options){0})); /* in the same folder */
    expect_ranks(f, 1);
    free(ckpt);
}

static void test_an_engine_of_stages_has_what_each_needs(void **state)
{
    const folder *f = *state;
    char *ckpt = nrd_path_join(f->dir, "ckpt");
    convert_with(f->model, ckpt, (nrd_plan_options){.tp_size = 2, .pp_size = 2});
    const struct {
        const char *from;
        nrd_plan_options plan;
    } ways[] = {{f->model, {.tp_size = 2, .pp_size = 2}}, {ckpt, {0}}};
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        must(build_with(f, ways[way].from, ways[way].plan));
        for (int32_t i = 0; i < 4; i++) {
            nrd_engine *e = NULL;
            must(nrd_engine_open(&e, f->out, i, true));
            const nrd_model_spec *m = nrd_engine_spec(e);
            const bool first = i < 2;
            assert_int_equal(m->pp_size, 2);
            assert_int_equal(nrd_spec_is_first(m, i), first);
            assert_int_equal(nrd_spec_is_last(m, i), !first);
            assert_int_equal(nrd_spec_first_layer(m, i), first ? 0 : 1);
            assert_int_equal(nrd_spec_of_rank(m, i).n_layers, 1);
            assert_int_equal(nrd_engine_weight(e, "transformer.vocab_embedding.weight") != NULL, first);
            assert_int_equal(nrd_engine_weight(e, "lm_head.weight") != NULL, !first);
            assert_int_equal(nrd_engine_weight(e, "transformer.ln_f.weight") != NULL, !first);
            assert_non_null(nrd_engine_weight(e, "transformer.layers.0.attention.dense.weight"));
            assert_null(nrd_engine_weight(e, "transformer.layers.1.attention.dense.weight"));
            nrd_engine_close(e);
        }
    }
    char *rank3 = nrd_path_join(f->out, "rank3.engine");
    must(build_with(f, f->model, (nrd_plan_options){.pp_size = 2})); /* fewer ranks in the same folder */
    assert_false(nrd_path_exists(rank3));
    free(rank3);
    free(ckpt);
}

static void test_a_model_without_head_is_tied(void **state)
{
    const folder *f = *state;
    write_model(f->model, "lm_head.weight");
    build_model(f);
    nrd_engine *e = open_engine(f, 0);
    assert_true(nrd_engine_spec(e)->tied_embeddings);
    assert_null(nrd_engine_weight(e, "lm_head.weight"));
    nrd_engine_close(e);
}

static void test_random_weights_need_only_a_config(void **state)
{
    const folder *f = *state;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    must(nrd_source_open_dummy(&src, f->model, 7));
    nrd_build_options b = {.plan = {.quantize = NRD_DTYPE_Q8_0}, .device_name = ""};
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = b.limits.max_seq_len;
    must(nrd_build_folder(src, &b, f->out, &stats));
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    nrd_engine *e = open_engine(f, 0);
    const nrd_weight *w = nrd_engine_weight(e, "transformer.layers.0.attention.dense.weight");
    float row[HIDDEN], sum = 0;
    assert_int_equal(w->dtype, NRD_DTYPE_Q8_0);
    assert_true(nrd_dequantize_row(w->dtype, w->data, row, HIDDEN));
    for (int i = 0; i < HIDDEN; i++) {
        sum += row[i] * row[i];
    }
    float deviation = sqrtf(sum / HIDDEN);
    assert_true(deviation > 0.01f && deviation < 0.04f); /* 0.02 wanted, 64 samples */
    assert_true(bf16_at(nrd_engine_weight(e, "transformer.ln_f.weight"), 5, 0) == 1);
    nrd_engine_close(e);
}

static void test_random_weights_that_are_not_divided_are_the_same_in_all_ranks(void **state)
{
    const folder *f = *state;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    must(nrd_source_open_dummy(&src, f->model, 7));
    nrd_build_options b = {.plan = {.tp_size = 2}, .device_name = ""};
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = b.limits.max_seq_len;
    must(nrd_build_folder(src, &b, f->out, &stats));
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    nrd_engine *e[2] = {open_engine(f, 0), open_engine(f, 1)};
    static const char *const names[] = {"transformer.vocab_embedding.weight",
                                        "transformer.layers.0.attention.dense.weight"};
    for (int i = 0; i < 2; i++) {
        const nrd_weight *a = nrd_engine_weight(e[0], names[i]), *c = nrd_engine_weight(e[1], names[i]);
        assert_int_equal(a->data_bytes, c->data_bytes);
        assert_int_equal(memcmp(a->data, c->data, a->data_bytes) == 0, i == 0);
    }
    nrd_engine_close(e[0]);
    nrd_engine_close(e[1]);
}

/* ---- damaged files ---- */

static char *engine_file(const folder *f)
{
    return nrd_path_join(f->out, "rank0.engine");
}

static void write_engine(const folder *f, const void *data, size_t n)
{
    char *path = engine_file(f);
    must(nrd_file_write(path, data, n));
    free(path);
}

static char *read_engine(const folder *f, size_t *n)
{
    char *path = engine_file(f), *data = NULL;
    must(nrd_file_read(&data, n, path, 1 << 24));
    free(path);
    return data;
}

static nrd_error *try_open(const folder *f, bool verify)
{
    nrd_engine *e = NULL;
    nrd_error *err = nrd_engine_open(&e, f->out, 0, verify);
    assert_true((err == NULL) == (e != NULL));
    nrd_engine_close(e);
    return err;
}

static void test_damage_is_refused_with_the_reason_and_the_remedy(void **state)
{
    const folder *f = *state;
    size_t n;
    build_model(f);
    char *data = read_engine(f, &n);

    write_engine(f, data, n - 1);
    assert_true(is_error(try_open(f, false), "truncated"));
    write_engine(f, data, 100);
    assert_true(is_error(try_open(f, false), "truncated"));
    write_engine(f, "ptrt............", 16);
    assert_true(is_error(try_open(f, false), "truncated"));
    data[0] ^= 1;
    write_engine(f, data, n);
    assert_true(is_error(try_open(f, false), "no Nereid engine"));
    data[0] ^= 1;
    data[8] = 0; /* version */
    write_engine(f, data, n);
    assert_true(is_error(try_open(f, false), "format version 0, this build reads 1 to 2; rebuild it "
                                             "with: nereid build --checkpoint_dir"));
    data[8] = 1;
    data[40] ^= 4;
    write_engine(f, data, n);
    assert_true(is_error(try_open(f, false), "header's checksum"));
    data[40] ^= 4;
    data[128 + 5] ^= 1; /* in the table */
    write_engine(f, data, n);
    assert_true(is_error(try_open(f, false), "table's checksum"));
    data[128 + 5] ^= 1;
    data[n - 200] ^= 16; /* in the last weight: seen only by who asks */
    write_engine(f, data, n);
    must(try_open(f, false));
    assert_true(is_error(try_open(f, true), "checksum of weight 'lm_head.weight'"));
    data[n - 200] ^= 16;
    write_engine(f, data, n);
    must(try_open(f, true));
    free(data);
}

/* They would multiply columns that the weight does not have there. */
static void test_older_builds_refuse_what_they_would_pass_over(void **state)
{
    const folder *f = *state;
    const char *const names[] = {"w.weight", "w" NRD_ORDER, "w" NRD_COLUMNS, "w" NRD_INT8_INPUT};
    const float one = 1;
    const nrd_weight w = {.dtype = NRD_DTYPE_F32, .rows = 1, .cols = 1, .scale = 1, .data_bytes = sizeof one};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        nrd_engine_writer *writer = NULL;
        size_t n;
        must(nrd_mkdirs(f->out));
        must(nrd_engine_writer_open(&writer, f->out, 0, 1, "cpu"));
        must(nrd_engine_writer_add(writer, names[i], &w, 0));
        must(nrd_engine_writer_begin(writer));
        must(nrd_engine_writer_put(writer, 0, &one, NULL));
        must(nrd_engine_writer_commit(writer));
        char *data = read_engine(f, &n);
        assert_int_equal(data[8], i == 0 ? 1 : 2);
        free(data);
    }
}

static void test_every_flipped_bit_of_header_and_table_is_found(void **state)
{
    const folder *f = *state;
    size_t n, config_bytes;
    build_model(f);
    char *data = read_engine(f, &n), *config = NULL, *path = nrd_path_join(f->out, "config.json");
    must(nrd_file_read(&config, &config_bytes, path, 1 << 20));
    /* header, 17 entries of 80 bytes, and the names */
    size_t table = 128 + 17 * 80 + 17 * 20;
    uint8_t *copy = nrd_aligned_zalloc(64, n);
    memcpy(copy, data, n);
    for (size_t i = 0; i < table; i++) {
        for (int bit = 0; bit < 8; bit++) {
            nrd_engine *e = NULL;
            copy[i] ^= (uint8_t)(1 << bit);
            nrd_error *err = nrd_engine_open_memory(&e, config, config_bytes, copy, n, 0, false);
            copy[i] ^= (uint8_t)(1 << bit);
            assert_non_null(err);
            nrd_error_free(err);
        }
    }
    /* with the checksums made right again the checks behind them must hold the line */
    for (size_t i = 0; i < table; i++) {
        for (int bit = 0; bit < 8; bit++) {
            nrd_engine *e = NULL;
            memcpy(copy, data, 4096);
            copy[i] ^= (uint8_t)(1 << bit);
            nrd_engine_reseal(copy, n);
            nrd_error *err = nrd_engine_open_memory(&e, config, config_bytes, copy, n, 0, false);
            nrd_error_free(err);
            for (size_t k = 0; e && k < nrd_engine_n_weights(e); k++) {
                const nrd_weight *w = nrd_engine_weight_at(e, k, NULL);
                assert_true((const uint8_t *)w->data >= copy &&
                            (const uint8_t *)w->data + w->data_bytes <= copy + n);
            }
            nrd_engine_close(e);
        }
    }
    free(copy);
    free(data);
    free(config);
    free(path);
}

static void test_folders_of_another_kind_are_told_apart(void **state)
{
    const folder *f = *state;
    nrd_engine *e = NULL;
    nrd_source *s = NULL;
    assert_true(is_error(nrd_engine_open(&e, f->model, 0, false), "is this an engine folder?"));
    build_model(f);
    assert_true(is_error(nrd_engine_open(&e, f->out, 1, false), "rank1.engine"));
    assert_true(is_error(nrd_source_open(&s, f->out), "is an engine folder already"));
    assert_true(is_error(nrd_source_open(&s, "/nonexistent"), "does not exist"));
    assert_true(is_error(nrd_source_open(&s, f->dir), "no config.json"));
}

static void test_limits_out_of_range_are_refused(void **state)
{
    const folder *f = *state;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    nrd_build_options b = {.device_name = ""};
    must(nrd_source_open(&src, f->model));
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = b.limits.max_seq_len + 1;
    assert_true(is_error(nrd_build_folder(src, &b, f->out, &stats), "max_input_len"));
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.max_input_len = 10;
    b.limits.tokens_per_block = 48;
    assert_true(is_error(nrd_build_folder(src, &b, f->out, &stats), "power of two"));
    nrd_source_close(src);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "shorten")) {
        return shorten_engine(argv[2]);
    }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_weights_of_a_built_engine_equal_the_source),
        T(test_moved_weights_are_those_of_the_file),
        T(test_an_engine_that_is_made_shorter_is_lost),
        T(test_ranks_together_hold_every_value),
        T(test_a_checkpoint_in_between_changes_nothing),
        T(test_rows_with_scales_come_near_the_source),
        T(test_a_missing_or_misshapen_tensor_is_named),
        T(test_what_the_runner_would_miss_is_refused_before_anything_is_written),
        T(test_an_engine_has_a_file_for_each_rank),
        T(test_an_engine_of_stages_has_what_each_needs),
        T(test_a_model_without_head_is_tied),
        T(test_random_weights_need_only_a_config),
        T(test_random_weights_that_are_not_divided_are_the_same_in_all_ranks),
        T(test_damage_is_refused_with_the_reason_and_the_remedy),
        T(test_older_builds_refuse_what_they_would_pass_over),
        T(test_every_flipped_bit_of_header_and_table_is_found),
        T(test_folders_of_another_kind_are_told_apart),
        T(test_limits_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
