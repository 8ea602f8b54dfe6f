/* nereid convert: a Hugging Face folder or a GGUF file becomes a checkpoint folder. */
#include "tools/tools.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/leftovers.h"
#include "base/str.h"
#include "model/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model_dir, *output_dir, *dtype, *precision, *quantize, *qformat;
    bool use_weight_only, quantize_lm_head;
    int32_t tp_size, pp_size;
} options;

static const char usage[] =
    "Usage: nereid convert --model_dir PATH --output_dir DIR [options]\n\n"
    "PATH is a Hugging Face folder (safetensors or pytorch_model.bin) or a GGUF file. DIR gets\n"
    "config.json and one rankN.safetensors for each rank (docs/checkpoint-format.md). Block formats\n"
    "of GGUF files are kept as they are.\n";

static nrd_error *convert(const options *o)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_plan_options plan = {.tp_size = o->tp_size, .pp_size = o->pp_size,
                             .quantize_lm_head = o->quantize_lm_head};
    nrd_build_stats stats = {0};
    uint64_t start = nrd_now_ns();
    char size[32];

    if (o->dtype && strcmp(o->dtype, "auto") && !nrd_dtype_parse(o->dtype, &plan.dtype)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--dtype: '%s' is no known element type", o->dtype);
    }
    const char *word = o->quantize ? o->quantize : o->qformat;
    if (!word && o->use_weight_only) {
        word = o->precision;
    }
    NRD_TRY(nrd_tool_parse_quant(word, &plan.quantize));
    NRD_TRY(nrd_source_open(&src, o->model_dir));
    nrd_leftovers_sweep(o->output_dir);
    NRD_TRY_GOTO(nrd_convert_folder(src, &plan, o->output_dir, &stats), err, done);
    printf("%s: %s, %d rank%s, %llu weights in the first, %s, %.2f s\n", o->output_dir,
           nrd_source_spec(src)->architecture, (o->tp_size ? o->tp_size : 1) *
           (o->pp_size ? o->pp_size : 1), o->tp_size > 1 || o->pp_size > 1 ? "s" : "",
           (unsigned long long)stats.n_weights, nrd_human_bytes(stats.weight_bytes, size),
           (double)(nrd_now_ns() - start) / 1e9);
    fputs(nrd_str_cstr(&stats.notes), stderr);
done:
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    return err;
}

int nrd_tool_convert(int argc, char **argv)
{
    options o = {.output_dir = "tllm_checkpoint", .precision = "int8"};
    const char *positional[1] = {NULL};
    size_t n = 0;
    const nrd_opt opts[] = {
        {"--model_dir", "--in_file", NRD_OPT_STR, &o.model_dir, "PATH",
         "Hugging Face folder or GGUF file"},
        {"-i", NULL, NRD_OPT_STR, &o.model_dir, NULL, NULL},
        {"--output_dir", "--out_dir", NRD_OPT_STR, &o.output_dir, "DIR",
         "checkpoint folder to write (tllm_checkpoint)"},
        {"-o", NULL, NRD_OPT_STR, &o.output_dir, NULL, NULL},
        {"--tp_size", "--tensor_parallelism", NRD_OPT_INT, &o.tp_size, "N",
         "tensor-parallel ranks (1)"},
        {"-tp", NULL, NRD_OPT_INT, &o.tp_size, NULL, NULL},
        {"--pp_size", NULL, NRD_OPT_INT, &o.pp_size, "N", "pipeline stages (1)"},
        {"--dtype", "--storage_type", NRD_OPT_STR, &o.dtype, "TYPE",
         "of unquantized weights: auto, float32, float16, bfloat16"},
        {"-t", NULL, NRD_OPT_STR, &o.dtype, NULL, NULL},
        {"--use_weight_only", NULL, NRD_OPT_FLAG, &o.use_weight_only, NULL,
         "linear weights as integers, see --weight_only_precision"},
        {"--weight_only_precision", NULL, NRD_OPT_STR, &o.precision, "int8|int4",
         "int8: one scale a row; int4: q4_0, one scale for 32 columns"},
        {"--quantize", NULL, NRD_OPT_STR, &o.quantize, "TYPE",
         "linear weights: int8, fp8, q8_0, q4_0, q4_k, bfloat16, …"},
        {"--qformat", NULL, NRD_OPT_STR, &o.qformat, "NAME", "full_prec, fp8, int8_wo, int4_wo"},
        {"--quantize_lm_head", NULL, NRD_OPT_FLAG, &o.quantize_lm_head, NULL,
         "the LM head too (else q8_0 with a block type, or unchanged)"},
        {"--workers", NULL, NRD_OPT_IGNORED, NULL, NULL, "tensors are streamed by one thread"},
        {"--processes", "-p", NRD_OPT_IGNORED, NULL, NULL, "tensors are streamed by one thread"},
        {"--log_level", NULL, NRD_OPT_IGNORED, NULL, NULL, "one level of messages"},
        {"--gpt_variant", "--model", NRD_OPT_IGNORED, NULL, NULL, "config.json tells the family"},
        {"--load_model_on_cpu", NULL, NRD_OPT_IGNORED, NULL, NULL, "always"},
        {"--convert_model_on_cpu", NULL, NRD_OPT_IGNORED, NULL, NULL, "always"},
        {"--use_parallel_embedding", NULL, NRD_OPT_IGNORED, NULL, NULL,
         "every rank keeps the embedding"},
        {"--embedding_sharding_dim", NULL, NRD_OPT_IGNORED, NULL, NULL,
         "every rank keeps the embedding"},
        {"--use_embedding_sharing", NULL, NRD_OPT_IGNORED, NULL, NULL,
         "tied embeddings are stored once"},
        {"--calib_dataset", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--calib_size", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--dataset_cache_dir", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--calib_max_seq_length", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--calib_tp_size", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--calib_pp_size", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--batch_size", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--tokenizer_max_seq_length", NULL, NRD_OPT_IGNORED, NULL, NULL,
         "no scheme here needs samples"},
        {"--seed", NULL, NRD_OPT_IGNORED, NULL, NULL, "no scheme here needs samples"},
        {"--awq_block_size", NULL, NRD_OPT_IGNORED, NULL, NULL, "int4 has one scale for 32 columns"},
        {"--kv_cache_dtype", NULL, NRD_OPT_IGNORED, NULL, NULL,
         "the type of the cache is chosen at build: nereid build --kv_cache_dtype"},
        {"--device", NULL, NRD_OPT_IGNORED, NULL, NULL, NULL},
        {"--cp_size", NULL, NRD_OPT_REFUSED, NULL, NULL, "there is no context parallelism"},
        {"--num_medusa_heads", NULL, NRD_OPT_REFUSED, NULL, NULL, "no family with heads is known"},
        {"--num_medusa_layers", NULL, NRD_OPT_REFUSED, NULL, NULL, "no family with heads is known"},
        {"--medusa_model_dir", NULL, NRD_OPT_REFUSED, NULL, NULL, "no family with heads is known"},
        {"--autoq_format", NULL, NRD_OPT_REFUSED, NULL, NULL, "choose one type with --quantize"},
        {"--auto_quantize_bits", NULL, NRD_OPT_REFUSED, NULL, NULL, "choose a type with --quantize"},
        {"--moe_tp_size", NULL, NRD_OPT_REFUSED, NULL, NULL, "no family with experts is known"},
        {"--moe_ep_size", NULL, NRD_OPT_REFUSED, NULL, NULL, "no family with experts is known"},
        {"--nemo_ckpt_path", NULL, NRD_OPT_REFUSED, NULL, NULL, "export it to Hugging Face first"},
        {"--smoothquant", "-sq", NRD_OPT_REFUSED, NULL, NULL, "use --quantize int8 or fp8"},
        {"--per_channel", NULL, NRD_OPT_REFUSED, NULL, NULL, "belongs to SmoothQuant"},
        {"--per_token", NULL, NRD_OPT_REFUSED, NULL, NULL, "belongs to SmoothQuant"},
        {"--int8_kv_cache", "-kv", NRD_OPT_REFUSED, NULL, NULL,
         "the type of the cache is chosen at build: --kv_cache_dtype"},
    };
    int status = nrd_opts_parse(argc, argv, usage, opts, sizeof opts / sizeof opts[0], positional, 1,
                                &n);
    if (status >= 0) {
        return status;
    }
    if (!o.model_dir) {
        o.model_dir = positional[0];
    }
    if (!o.model_dir) {
        fprintf(stderr, "nereid convert: --model_dir is missing (see --help)\n");
        return 2;
    }
    return nrd_tool_finish("convert", convert(&o));
}
