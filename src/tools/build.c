/* nereid build: a checkpoint, a model folder or a GGUF file becomes an engine folder. */
#include "tools/tools.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/str.h"
#include "device/device.h"
#include "model/build.h"
#include "model/engine_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *checkpoint_dir, *model_config, *build_config, *output_dir, *load_format, *dtype, *quantize;
    const char *kv_cache_type, *kv_cache_dtype, *paged_kv_cache, *logits_dtype, *device;
    const char *gather_all, *input_timing_cache, *spec_mode, *gpt_attention, *remove_padding;
    const char *precision;
    bool weight_only, fp8_kv, int8_kv, use_paged_fmha, gather_context, gather_generation, quantize_lm_head, dry_run;
    int32_t max_output_len, workers, seed, tp_size, pp_size;
    int32_t max_input_len, max_seq_len, max_batch_size, max_num_tokens, max_beam_width;
    int32_t opt_num_tokens, max_draft_len, max_prompt, tokens_per_block;
} options;

static const char usage[] =
    "Usage: nereid build --checkpoint_dir PATH --output_dir DIR [options]\n"
    "       nereid build --load_format dummy --model_config FILE --output_dir DIR [options]\n\n"
    "PATH is a checkpoint folder (nereid convert), a Hugging Face folder or a GGUF file.\n";

static nrd_error *parse_dtype(const char *option, const char *text, nrd_dtype *out)
{
    *out = NRD_DTYPE_NONE;
    if (!text || !strcmp(text, "auto")) {
        return NULL;
    }
    if (!nrd_dtype_parse(text, out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' is no known element type", option, text);
    }
    return NULL;
}

static bool off(const char *word)
{
    return word && (!strcasecmp(word, "disable") || !strcasecmp(word, "false"));
}

static void warn(const char *text)
{
    fprintf(stderr, "nereid build: %s\n", text);
}

static nrd_error *fill_limits(nrd_build_limits *l, const options *o, const nrd_model_spec *spec)
{
    nrd_build_limits_init(l, spec);
    l->max_batch_size = o->max_batch_size ? o->max_batch_size : l->max_batch_size;
    l->max_num_tokens = o->max_num_tokens ? o->max_num_tokens : l->max_num_tokens;
    l->max_beam_width = o->max_beam_width ? o->max_beam_width : l->max_beam_width;
    l->max_draft_len = o->max_draft_len;
    l->max_prompt_embedding_table_size = o->max_prompt;
    if (o->max_seq_len) {
        l->max_seq_len = o->max_seq_len;
    } else if (o->max_output_len) { /* the old pair: input and output apart */
        l->max_seq_len = (o->max_input_len ? o->max_input_len : l->max_input_len) +
                         o->max_output_len;
    }
    if (spec->learned_positions && l->max_seq_len > spec->max_positions) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_seq_len %d is above the %d positions that the "
                          "model has learned", l->max_seq_len, spec->max_positions);
    }
    /* without a wish a prompt may fill the whole sequence */
    l->max_input_len = o->max_input_len ? o->max_input_len : l->max_seq_len;
    if (l->max_input_len > l->max_seq_len) {
        fprintf(stderr, "nereid build: max_input_len %d is cut to max_seq_len %d\n",
                l->max_input_len, l->max_seq_len);
        l->max_input_len = l->max_seq_len;
    }
    /* a GPU's attention takes tiles of 64 tokens, fastest where a tile is one block */
    l->tokens_per_block = o->tokens_per_block             ? o->tokens_per_block
                          : !strcmp(o->device, "cuda") ? 64
                                                         : l->tokens_per_block;
    l->use_paged_context_fmha = o->use_paged_fmha;
    bool all = o->gather_all && !off(o->gather_all);
    l->gather_context_logits = o->gather_context || all;
    l->gather_generation_logits = o->gather_generation || all;
    const char *kv = o->fp8_kv ? "fp8" : o->int8_kv ? "int8" : o->kv_cache_dtype;
    NRD_TRY(parse_dtype("--kv_cache_dtype", kv, &l->kv_dtype));
    if (o->kv_cache_type && !strcasecmp(o->kv_cache_type, "disabled")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--kv_cache_type disabled is not supported: a "
                          "decoder without a cache cannot generate");
    }
    if ((o->kv_cache_type && strcasecmp(o->kv_cache_type, "paged")) || off(o->paged_kv_cache)) {
        warn("a continuous KV cache is kept in pages all the same; the results are equal");
        l->paged_kv_cache = true;
    }
    if (off(o->remove_padding)) {
        warn("--remove_input_padding disable has no effect: tokens are always packed");
    }
    return NULL;
}

/* A device of another machine cannot be asked for its layouts: rows serve every device, which packs
 * them while it loads. */
static nrd_error *open_device(const options *o, nrd_build_options *b)
{
    nrd_device_config config = {.n_threads = o->workers};
    if (!strcmp(o->device, "rows")) {
        return NULL;
    }
    b->device_name = o->device;
    return nrd_error_wrap(nrd_device_open(&b->dev, o->device, &config),
                          "--device %s asks that device (for one of another machine: --device rows)", o->device);
}

/* The first run on a GPU writes this file; with it a new engine's first run has measured already. */
static nrd_error *copy_timing_cache(const char *from, const char *engine_dir)
{
    nrd_error *err = NULL;
    char *text = NULL, *to = nrd_path_join(engine_dir, NRD_TIMING_CACHE);
    size_t n = 0;
    NRD_TRY_GOTO(nrd_file_read(&text, &n, from, 16 << 20), err, done);
    err = nrd_file_write(to, text, n);
done:
    free(text);
    free(to);
    return err;
}

static nrd_error *dry_run(const nrd_source *src, const nrd_build_options *b)
{
    nrd_plan *p = NULL;
    char size[32];
    NRD_TRY(nrd_build_plan(&p, src, b));
    printf("%s: %zu weights, %s; nothing written\n", nrd_plan_spec(p)->architecture,
           nrd_plan_n_tensors(p), nrd_human_bytes(nrd_plan_total_bytes(p), size));
    nrd_plan_free(p);
    return NULL;
}

static nrd_error *build(const options *o)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_build_options b = {.n_threads = o->workers, .device_name = ""};
    nrd_build_stats stats = {0};
    uint64_t start = nrd_now_ns();
    char size[32];
    const char *quant = o->quantize || !o->weight_only ? o->quantize : o->precision;
    bool dummy = !strcmp(o->load_format, "dummy");

    if (o->spec_mode && strcmp(o->spec_mode, "none")) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "--speculative_decoding_mode %s is not supported; only "
                         "none can be built", o->spec_mode);
        goto done;
    }
    if (dummy) {
        const char *config = o->model_config ? o->model_config : o->checkpoint_dir;
        NRD_TRY_GOTO(nrd_source_open_dummy(&src, config, (uint64_t)(uint32_t)o->seed), err, done);
    } else {
        NRD_TRY_GOTO(nrd_source_open(&src, o->checkpoint_dir), err, done);
    }
    NRD_TRY_GOTO(fill_limits(&b.limits, o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(parse_dtype("--dtype", o->dtype, &b.plan.dtype), err, done);
    NRD_TRY_GOTO(nrd_tool_parse_quant(quant, &b.plan.quantize), err, done);
    b.plan.quantize_lm_head = o->quantize_lm_head;
    b.plan.tp_size = o->tp_size;
    b.plan.pp_size = o->pp_size;
    b.extra_config = "    \"speculative_decoding_mode\": \"none\"";
    NRD_TRY_GOTO(open_device(o, &b), err, done);
    if (o->dry_run) {
        NRD_TRY_GOTO(dry_run(src, &b), err, done);
        goto done;
    }
    nrd_leftovers_sweep(o->output_dir);
    NRD_TRY_GOTO(nrd_build_folder(src, &b, o->output_dir, &stats), err, done);
    if (o->input_timing_cache) {
        NRD_TRY_GOTO(copy_timing_cache(o->input_timing_cache, o->output_dir), err, done);
    }
    printf("%s: %s, %llu weights, %s, %.2f s\n", o->output_dir, nrd_source_spec(src)->architecture,
           (unsigned long long)stats.n_weights, nrd_human_bytes(stats.weight_bytes, size),
           (double)(nrd_now_ns() - start) / 1e9);
    fputs(nrd_str_cstr(&stats.notes), stderr);
done:
    if (b.dev) {
        b.dev->ops->close(b.dev);
    }
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    return err;
}

/* Members of a build_config file (also of an engine's config.json) become the defaults. */
static nrd_error *read_build_config(options *o, const char *path)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    const struct {
        const char *name;
        int32_t *value;
    } rows[] = {
        {"max_batch_size", &o->max_batch_size}, {"max_input_len", &o->max_input_len},
        {"max_seq_len", &o->max_seq_len},       {"max_num_tokens", &o->max_num_tokens},
        {"max_beam_width", &o->max_beam_width}, {"max_draft_len", &o->max_draft_len},
        {"max_prompt_embedding_table_size", &o->max_prompt},
    };

    NRD_TRY(nrd_json_parse_file(&doc, path, NULL));
    const nrd_json *b = nrd_json_root(doc), *inner = nrd_json_get(b, "build_config");
    b = inner ? inner : b;
    if (!nrd_json_is(b, NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected an object, got %s", path,
                         nrd_json_type_name(b));
    }
    for (size_t i = 0; !err && i < sizeof rows / sizeof rows[0]; i++) {
        const nrd_json *v = nrd_json_get(b, rows[i].name);
        int64_t n = nrd_json_int(v, -1);
        if (!v || nrd_json_is(v, NRD_JSON_NULL)) {
            continue;
        }
        if (n < 0 || n > INT32_MAX) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s must be a whole number, got %s", path,
                             rows[i].name, nrd_json_type_name(v));
            break;
        }
        *rows[i].value = (int32_t)n;
    }
    const nrd_json *plugin = nrd_json_get(b, "plugin_config");
    o->gather_context = nrd_json_get_bool(b, "gather_context_logits", false);
    o->gather_generation = nrd_json_get_bool(b, "gather_generation_logits", false);
    o->use_paged_fmha = nrd_json_get_bool(plugin, "use_paged_context_fmha", o->use_paged_fmha);
    int64_t block = nrd_json_get_int(plugin, "tokens_per_block", 0);
    o->tokens_per_block = block > 0 && block <= INT32_MAX ? (int32_t)block : 0;
    nrd_json_doc_free(doc);
    return err;
}

int nrd_tool_build(int argc, char **argv)
{
    options o = {.output_dir = "engine_outputs", .load_format = "auto", .use_paged_fmha = true,
                 .device = "cpu", .precision = "int8"};
    const char *positional[1] = {NULL};
    size_t n = 0;
    const nrd_opt opts[] = {
        {"--checkpoint_dir", "--model_dir", NRD_OPT_STR, &o.checkpoint_dir,
         "PATH", "checkpoint, model folder or GGUF file"},
        {"--output_dir", "-o", NRD_OPT_STR, &o.output_dir,
         "DIR", "engine folder to write (engine_outputs)"},
        {"--model_config", NULL, NRD_OPT_STR, &o.model_config,
         "FILE", "config.json for random weights"},
        {"--load_format", NULL, NRD_OPT_STR, &o.load_format,
         "auto|dummy", "dummy: random weights for --model_config"},
        {"--seed", "--random_seed", NRD_OPT_INT, &o.seed,
         "N", "of random weights (0)"},
        {"--max_batch_size", NULL, NRD_OPT_INT, &o.max_batch_size,
         "N", "sequences in one step (256)"},
        {"--max_input_len", NULL, NRD_OPT_INT, &o.max_input_len,
         "N", "prompt tokens (max_seq_len)"},
        {"--max_seq_len", "--max_decoder_seq_len", NRD_OPT_INT, &o.max_seq_len,
         "N", "prompt and output tokens (what the model was made for)"},
        {"--max_output_len", "--max_new_tokens", NRD_OPT_INT, &o.max_output_len,
         "N", "old form: max_seq_len = max_input_len + this"},
        {"--max_num_tokens", NULL, NRD_OPT_INT, &o.max_num_tokens,
         "N", "packed tokens in one step (8192)"},
        {"--max_beam_width", NULL, NRD_OPT_INT, &o.max_beam_width,
         "N", "beams (1)"},
        {"--max_draft_len", NULL, NRD_OPT_INT, &o.max_draft_len,
         "N", "draft tokens in one step: only 0"},
        {"--speculative_decoding_mode", NULL, NRD_OPT_STR, &o.spec_mode,
         "MODE", "only none"},
        {"--max_prompt_embedding_table_size", "--max_multimodal_len", NRD_OPT_INT, &o.max_prompt,
         "N", "rows of a prompt table: only 0"},
        {"--tokens_per_block", NULL, NRD_OPT_INT, &o.tokens_per_block,
         "N", "tokens in a block of the KV cache (32; for cuda 64)"},
        {"--kv_cache_type", NULL, NRD_OPT_STR, &o.kv_cache_type,
         "TYPE", "paged; continuous means the same here"},
        {"--paged_kv_cache", NULL, NRD_OPT_WORD, &o.paged_kv_cache,
         "enable", "old form of --kv_cache_type"},
        {"--kv_cache_dtype", NULL, NRD_OPT_STR, &o.kv_cache_dtype,
         "TYPE", "of the KV cache (the device's choice); int8 needs scales in the checkpoint"},
        {"--use_paged_context_fmha", NULL, NRD_OPT_SWITCH, &o.use_paged_fmha,
         "enable", "prompts may attend to cached blocks: prefix reuse, chunks (enable)"},
        {"--gather_context_logits", NULL, NRD_OPT_FLAG, &o.gather_context,
         NULL, "logits of all prompt tokens can be asked for"},
        {"--gather_generation_logits", NULL, NRD_OPT_FLAG, &o.gather_generation,
         NULL, "logits of generated tokens can be asked for"},
        {"--gather_all_token_logits", NULL, NRD_OPT_WORD, &o.gather_all,
         "enable", "both of the above"},
        {"--dtype", NULL, NRD_OPT_STR, &o.dtype,
         "TYPE", "of unquantized weights: auto, float32, float16, bfloat16"},
        {"--quantize", NULL, NRD_OPT_STR, &o.quantize,
         "TYPE", "linear weights: int8, fp8, q8_0, q4_0, q4_1, q5_0, q4_k, q6_k, bfloat16, …"},
        {"--quantize_lm_head", NULL, NRD_OPT_FLAG, &o.quantize_lm_head,
         NULL, "the LM head too (else q8_0 with a block type, or unchanged)"},
        {"--tp_size", NULL, NRD_OPT_INT, &o.tp_size,
         "N", "tensor-parallel ranks: only 1"},
        {"--pp_size", NULL, NRD_OPT_INT, &o.pp_size,
         "N", "pipeline stages: only 1"},
        {"--workers", NULL, NRD_OPT_INT, &o.workers,
         "N", "threads that pack (one for each core)"},
        {"--device", NULL, NRD_OPT_STR, &o.device,
         "NAME", "whose weight layouts to use: cpu, cuda, rows (cpu)"},
        {"--input_timing_cache", "--timing_cache", NRD_OPT_STR, &o.input_timing_cache,
         "FILE", "kernel choices measured before"},
        {"--remove_input_padding", NULL, NRD_OPT_WORD, &o.remove_padding,
         "enable", "tokens are always packed"},
        {"--dry_run", NULL, NRD_OPT_FLAG, &o.dry_run,
         NULL, "check everything, write nothing"},
        {"--build_config", NULL, NRD_OPT_STR, &o.build_config,
         "FILE", "JSON with the same names; options on the command line win"},
        {"--log_level", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "one level of messages"},
        {"--profiling_verbosity", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--opt_num_tokens", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--max_encoder_input_len", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--output_timing_cache", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--weight_sparsity", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--fast_build", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--enable_debug_output", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--visualize_network", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--monitor_memory", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--logits_dtype", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "logits are float32"},
        {"--gpt_attention_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--bert_attention_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--gemm_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--layernorm_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--lookup_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--identity_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--nccl_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--moe_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--context_fmha", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--context_fmha_fp32_acc", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_fp8_context_fmha", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_custom_all_reduce", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--multi_block_mode", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--enable_xqa", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--reduce_fusion", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--multiple_profiles", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--paged_state", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--streamingllm", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--gpus_per_node", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--cluster_key", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--strongly_typed", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--builder_opt", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--parallel_build", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--use_gpt_attention_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_gemm_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_layernorm_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_lookup_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--enable_context_fmha", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--enable_context_fmha_fp32_acc", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_inflight_batching", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--world_size", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "tp_size and pp_size of the checkpoint decide"},
        {"--gemm_swiglu_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--low_latency_gemm_plugin", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "kernels are chosen by the device"},
        {"--use_fused_mlp", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--user_buffer", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--norm_quant_fusion", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--dump_config", NULL, NRD_OPT_IGNORED, NULL,
         NULL, NULL},
        {"--use_weight_only", NULL, NRD_OPT_FLAG, &o.weight_only,
         NULL, "old form of --quantize, see --weight_only_precision"},
        {"--weight_only_precision", NULL, NRD_OPT_STR, &o.precision,
         "int8|int4", "int8: one scale a row; int4: q4_0"},
        {"--fp8_kv_cache", NULL, NRD_OPT_FLAG, &o.fp8_kv,
         NULL, "old form of --kv_cache_dtype fp8"},
        {"--int8_kv_cache", NULL, NRD_OPT_FLAG, &o.int8_kv,
         NULL, "old form of --kv_cache_dtype int8"},
        {"--vocab_size", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--n_layer", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--n_positions", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--n_embd", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--n_head", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--hidden_act", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--rotary_pct", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--inter_size", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--no_bias", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--multi_query_mode", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "config.json tells"},
        {"--use_parallel_embedding", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "every rank keeps the embedding"},
        {"--embedding_sharding_dim", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "every rank keeps the embedding"},
        {"--use_embedding_sharing", NULL, NRD_OPT_IGNORED, NULL,
         NULL, "every rank keeps the embedding"},
        {"--use_smooth_quant", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "use --quantize int8 or fp8"},
        {"--per_channel", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "belongs to SmoothQuant"},
        {"--per_token", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "belongs to SmoothQuant"},
        {"--enable_fp8", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "use --quantize fp8"},
        {"--model_cls_file", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "models are rows of a table, not Python classes"},
        {"--model_cls_name", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "models are rows of a table, not Python classes"},
        {"--strip_plan", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "an engine file always holds its weights"},
        {"--weight_streaming", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "weights stay in memory, or in mapped pages"},
        {"--auto_parallel", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "an engine runs on one device"},
        {"--lora_dir", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "merge the adapter into the model and build that"},
        {"--lora_plugin", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "merge the adapter into the model and build that"},
        {"--lora_ckpt_source", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "merge the adapter into the model and build that"},
        {"--lora_target_modules", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "merge the adapter into the model and build that"},
        {"--max_lora_rank", NULL, NRD_OPT_REFUSED, NULL,
         NULL, "merge the adapter into the model and build that"},
    };
    const char *file = NULL;
    for (int i = 1; i < argc; i++) {
        if (nrd_tool_option(argc, argv, &i, "--build_config", &file) && file) {
            nrd_error *err = read_build_config(&o, file);
            if (err) {
                return nrd_tool_finish("build", err);
            }
        }
    }
    int status = nrd_opts_parse(argc, argv, usage, opts, sizeof opts / sizeof opts[0], positional, 1,
                                &n);
    if (status >= 0) {
        return status;
    }
    if (!o.checkpoint_dir) {
        o.checkpoint_dir = positional[0];
    }
    if (!o.checkpoint_dir && !o.model_config) {
        fprintf(stderr, "nereid build: --checkpoint_dir is missing (see --help)\n");
        return 2;
    }
    return nrd_tool_finish("build", build(&o));
}
