/* SPDX-License-Identifier: Apache-2.0
 * nereid convert: a Hugging Face folder or a GGUF file becomes a checkpoint folder. */
#include "tools/output_dir.h"
#include "tools/tools.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/leftovers.h"
#include "base/str.h"
#include "hub/pull.h"
#include "model/build.h"
#include "model/eagle_heads.h"
#include "model/medusa_heads.h"
#include "model/redrafter_heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model_dir, *output_dir, *dtype, *precision, *quantize, *qformat, *ckpt_type, *medusa_dir, *eagle_dir, *drafter_dir, *spec_mode, *mmproj;
    bool use_weight_only, quantize_lm_head, use_fp8, parallel_embedding;
    int32_t tp_size, pp_size, sharding_dim, moe_tp_size, moe_ep_size, n_heads, n_layers, n_beams, beam_len;
    bool json;
} options;

static const char usage[] =
    "Usage: nereid convert --model_dir PATH --output_dir DIR [options]\n\n"
    "PATH is a Hugging Face folder (safetensors or pytorch_model.bin) or a GGUF file. DIR gets\n"
    "config.json and one rankN.safetensors for each rank (docs/checkpoint-format.md). Block formats\n"
    "of GGUF files are kept as they are.\n";

/* One of the two follows from the other; 0: not given. */
static nrd_error *get_moe_ranks(const options *o, int32_t *out_ep)
{
    const int32_t tp = o->tp_size ? o->tp_size : 1, both = o->moe_tp_size > 0 ? tp / o->moe_tp_size : 1;
    const int32_t ep = o->moe_ep_size ? o->moe_ep_size : both;

    *out_ep = ep;
    if (o->moe_tp_size < 0 || ep < 1 || (o->moe_tp_size > 0 && (int64_t)o->moe_tp_size * ep != tp)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--moe_tp_size %d times --moe_ep_size %d must be --tp_size %d",
                          o->moe_tp_size ? o->moe_tp_size : 1, ep, tp);
    }
    return NULL;
}

/* Before anything is written. */
static nrd_error *check_spec_mode(const options *o)
{
    const char *mode = o->spec_mode ? o->spec_mode : "none";
    const bool is_medusa = !strcmp(mode, "medusa"), is_eagle = !strcmp(mode, "eagle");
    const bool is_redrafter = !strcmp(mode, "explicit_draft_tokens");
    if (!is_medusa && !is_eagle && !is_redrafter && strcmp(mode, "mtp") && strcmp(mode, "none") && strcmp(mode, "draft_tokens_external") && strcmp(mode, "lookahead_decoding")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--speculative_decoding_mode %s is not supported; known: none, "
                          "draft_tokens_external, lookahead_decoding, medusa, eagle, mtp, explicit_draft_tokens", mode);
    }
    if (is_redrafter && !o->drafter_dir) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode explicit_draft_tokens needs --drafter_model_dir, the folder of the "
                          "ReDrafter");
    }
    if (!o->drafter_dir && (o->n_beams != 0 || o->beam_len != 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--redrafter_num_beams and --redrafter_draft_len_per_beam need --drafter_model_dir");
    }
    if (o->n_beams < 0 || o->n_beams > NRD_REDRAFTER_MAX_BEAMS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--redrafter_num_beams is %d, expected 1 to %d", o->n_beams, NRD_REDRAFTER_MAX_BEAMS);
    }
    if (o->beam_len < 0 || o->beam_len > NRD_REDRAFTER_MAX_LEN) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--redrafter_draft_len_per_beam is %d, expected 1 to %d", o->beam_len, NRD_REDRAFTER_MAX_LEN);
    }
    if (is_eagle && !o->eagle_dir) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode eagle needs --eagle_model_dir, the folder of the heads");
    }
    if (is_medusa && !o->medusa_dir) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode medusa needs --medusa_model_dir, the folder of the "
                          "heads");
    }
    if (!o->medusa_dir && (o->n_heads > 0 || o->n_layers > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--num_medusa_heads and --num_medusa_layers need --medusa_model_dir");
    }
    return NULL;
}

/* Heads beside the checkpoint, as many as were asked for. */
static nrd_error *convert_heads(const options *o, const nrd_model_spec *spec)
{
    nrd_medusa_heads *m = NULL;
    nrd_error *err = NULL;

    if (!o->medusa_dir) {
        return NULL;
    }
    NRD_TRY(nrd_medusa_heads_open(&m, o->medusa_dir, spec->hidden, spec->vocab));
    if (o->n_heads > nrd_medusa_heads_n(m) || (o->n_layers > 0 && o->n_layers != nrd_medusa_heads_n_layers(m))) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--num_medusa_heads %d, --num_medusa_layers %d: '%s' has %d heads of %d layers",
                         o->n_heads, o->n_layers, o->medusa_dir, nrd_medusa_heads_n(m), nrd_medusa_heads_n_layers(m));
        goto done;
    }
    nrd_medusa_heads_keep(m, o->n_heads);
    NRD_TRY_GOTO(nrd_medusa_heads_write(m, o->output_dir), err, done);
    if (!o->json) {
        printf("%s: %d Medusa heads\n", o->output_dir, nrd_medusa_heads_n(m));
    }
done:
    nrd_medusa_heads_close(m);
    return err;
}

static nrd_error *copy_eagle(const options *o, const nrd_model_spec *spec)
{
    nrd_eagle_heads *e = NULL;

    if (!o->eagle_dir) {
        return NULL;
    }
    NRD_TRY(nrd_eagle_heads_open(&e, o->eagle_dir, spec, NRD_EAGLE_ANY));
    nrd_error *err = nrd_eagle_heads_copy(e, o->output_dir);
    if (!err && !o->json) {
        printf("%s/" NRD_EAGLE_FOLDER ": EAGLE-%s heads\n", o->output_dir, nrd_eagle_heads_is_3(e) ? "3" : "1");
    }
    nrd_eagle_heads_close(e);
    return err;
}

static nrd_error *convert_redrafter(const options *o, const nrd_model_spec *spec)
{
    nrd_redrafter_heads *h = NULL;

    if (!o->drafter_dir) {
        return NULL;
    }
    NRD_TRY(nrd_redrafter_heads_open(&h, o->drafter_dir, spec->hidden, spec->vocab));
    nrd_error *err = nrd_redrafter_heads_write(h, o->output_dir, o->n_beams, o->beam_len);
    if (!err && !o->json) {
        printf("%s/" NRD_REDRAFTER_FOLDER ": a ReDrafter of %d layers%s\n", o->output_dir, nrd_redrafter_heads_sizes(h)->n_layers,
               nrd_redrafter_heads_sizes(h)->rnn ? " and an RNN" : "");
    }
    nrd_redrafter_heads_close(h);
    return err;
}

static bool is_mtp(const options *o)
{
    return o->spec_mode && !strcmp(o->spec_mode, "mtp");
}

/* Before anything is written. */
static nrd_error *check_mtp(const options *o, const nrd_source *src)
{
    return is_mtp(o) && !nrd_source_mtp(src)
               ? nrd_errorf(NRD_ERR_NOT_FOUND, "--speculative_decoding_mode mtp: '%s' has no MTP layer that is known: tensors "
                            "model.layers.%d.eh_proj and others", nrd_source_path(src), nrd_source_spec(src)->n_layers)
               : NULL;
}

static nrd_error *convert(const options *o)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_plan_options plan = {.tp_size = o->tp_size, .pp_size = o->pp_size,
                             .quantize_lm_head = o->quantize_lm_head, .mmproj = o->mmproj};
    nrd_build_stats stats = {0};
    uint64_t start = nrd_now_ns();
    char size[32];

    NRD_TRY(nrd_tool_parse_dtype("dtype", o->dtype, &plan.dtype));
    if (o->ckpt_type && strcmp(o->ckpt_type, "hf") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--ckpt_type '%s' is not supported; export the model to Hugging "
                          "Face (hf) first", o->ckpt_type);
    }
    NRD_TRY(get_moe_ranks(o, &plan.moe_ep_size));
    NRD_TRY(nrd_tool_parse_sharding(o->sharding_dim, &plan.embedding_by_columns));
    plan.parallel_embedding = o->parallel_embedding;
    NRD_TRY(check_spec_mode(o));
    const char *word = o->quantize ? o->quantize : o->qformat;
    if (!word) {
        word = o->use_weight_only ? o->precision : o->use_fp8 ? "fp8" : NULL;
    }
    NRD_TRY(nrd_tool_parse_quant(word, &plan.quantize));
    char *path = NULL;
    NRD_TRY(nrd_hub_resolve(o->model_dir, &path));
    err = nrd_output_check_source("model_dir", path, o->output_dir);
    err = err ? err : nrd_source_open(&src, path);
    free(path);
    NRD_TRY(err);
    NRD_TRY_GOTO(nrd_output_check("convert", NRD_OUTPUT_CHECKPOINT, nrd_source_spec(src)->architecture, o->output_dir), err, done);
    NRD_TRY_GOTO(check_mtp(o, src), err, done);
    nrd_leftovers_sweep(o->output_dir);
    NRD_TRY_GOTO(nrd_convert_folder(src, &plan, o->output_dir, &stats), err, done);
    if (is_mtp(o)) {
        NRD_TRY_GOTO(nrd_convert_mtp(src, &plan, o->output_dir, &stats), err, done);
    }
    NRD_TRY_GOTO(convert_heads(o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(copy_eagle(o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(convert_redrafter(o, nrd_source_spec(src)), err, done);
    const double seconds = (double)(nrd_now_ns() - start) / 1e9;
    if (o->json) {
        nrd_tool_print_made(o->output_dir, nrd_source_spec(src)->architecture, stats.n_weights, stats.weight_bytes, seconds);
    } else {
        printf("%s: %s, %d rank%s, %llu weights in the first, %s, %.2f s\n", o->output_dir,
               nrd_source_spec(src)->architecture, (o->tp_size ? o->tp_size : 1) *
               (o->pp_size ? o->pp_size : 1), o->tp_size > 1 || o->pp_size > 1 ? "s" : "",
               (unsigned long long)stats.n_weights, nrd_human_bytes(stats.weight_bytes, size), seconds);
    }
    fputs(nrd_str_cstr(&stats.notes), stderr);
done:
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "model_dir", "--in_file -i", model_dir, "PATH", NULL,
        "Hugging Face folder or GGUF file"),
    OPT(STR, "output_dir", "--out_dir -o --output_model_dir --export_path", output_dir, "DIR", "tllm_checkpoint",
        "checkpoint folder to write"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: the folder, its architecture, weights, bytes, seconds"),
    OPT(INT, "tp_size", "--tensor_parallelism -tp --world_size", tp_size, "N", "1", "tensor-parallel ranks"),
    OPT(INT, "pp_size", NULL, pp_size, "N", "1", "pipeline stages"),
    OPT(INT, "moe_tp_size", NULL, moe_tp_size, "N", "tp_size / moe_ep_size", "ranks that divide an expert"),
    OPT(INT, "moe_ep_size", NULL, moe_ep_size, "N", "1",
        "of the tp_size ranks, how many share the list of experts"),
    OPT(STR, "dtype", "--storage_type -t", dtype, "TYPE", NULL,
        "of unquantized weights: auto, float32, float16, bfloat16"),
    OPT(FLAG, "use_weight_only", NULL, use_weight_only, NULL, NULL,
        "linear weights as integers, see --weight_only_precision"),
    OPT(STR, "weight_only_precision", NULL, precision, "int8|int4", NULL,
        "int8: one scale a row; int4: q4_0, one scale for 32 columns"),
    OPT(STR, "quantize", "--use_weight_only_with_precision", quantize, "TYPE", NULL,
        "linear weights: int8, fp8, q8_0, q4_0, q4_k, bfloat16, …"),
    OPT(FLAG, "use_fp8", "--enable_fp8 --use_fp8_rowwise", use_fp8, NULL, NULL,
        "the same as --quantize fp8, which has one scale a row"),
    OPT(STR, "ckpt_type", NULL, ckpt_type, "hf", NULL, "what wrote the model: only hf"),
    OPT(STR, "qformat", NULL, qformat, "NAME", NULL, "full_prec, fp8, int8_wo, int4_wo; others: nereid quantize"),
    OPT(FLAG, "quantize_lm_head", NULL, quantize_lm_head, NULL, "else q8_0 with a block type, or unchanged",
        "the LM head too"),
    OPT(STR, "mmproj", NULL, mmproj, "FILE", "one beside PATH", "the vision tower of a GGUF model; none: text alone"),
    OPT(STR, "speculative_decoding_mode", NULL, spec_mode, "MODE", NULL,
        "none, medusa with medusa_model_dir, eagle with eagle_model_dir, mtp (the model's own), explicit_draft_tokens with drafter_model_dir, "
        "lookahead_decoding, draft_tokens_external"),
    OPT(STR, "medusa_model_dir", NULL, medusa_dir, "DIR", NULL, "Medusa heads (medusa_lm_head.safetensors), written beside the checkpoint"),
    OPT(STR, "eagle_model_dir", NULL, eagle_dir, "DIR", NULL, "EAGLE or EAGLE-3 heads (config.json, weights), copied into the checkpoint"),
    OPT(STR, "drafter_model_dir", NULL, drafter_dir, "DIR", NULL, "a ReDrafter (config.json, weights), written beside the checkpoint"),
    OPT(INT, "redrafter_num_beams", NULL, n_beams, "N", "5", "beams of its search"),
    OPT(INT, "redrafter_draft_len_per_beam", NULL, beam_len, "N", "5", "tokens of each beam"),
    OPT(INT, "num_medusa_heads", NULL, n_heads, "N", "all", "the first so many heads"),
    OPT(INT, "num_medusa_layers", NULL, n_layers, "N", NULL, "layers that each head must have"),
    OPT(FLAG, "use_parallel_embedding", NULL, parallel_embedding, NULL, NULL,
        "each tensor-parallel rank has its share of the embedding's tokens; where the LM head is the embedding, one table for both"),
    OPT(INT, "embedding_sharding_dim", NULL, sharding_dim, "0|1", "0", "a divided embedding is divided by tokens (0) or by columns (1)"),
    NO_EFFECT("use_embedding_sharing", NULL, "where the LM head is the embedding, a divided one serves as both"),
    NO_EFFECT("storage_type", "-t", "weights are stored as --dtype says"),
    NO_EFFECT("dense_context_fmha", NULL, "attention windows are those of the model"),
    NO_EFFECT("redrafter_no_greedy_search", NULL, "answers are drawn as each request says"),
    NO_EFFECT("max_draft_len", NULL, "the choices of a model decide: medusa_choices"),
    NO_EFFECT("num_eagle_layers", NULL, "how deep drafts are is chosen when the engine runs"),
    NO_EFFECT("max_non_leaves_per_layer", NULL, "how wide trees are is chosen when the engine runs"),
    NO_EFFECT("medusa_hidden_act", NULL, "always silu"),
    NO_EFFECT("workers", NULL, "tensors are streamed by one thread"),
    NO_EFFECT("processes", "-p", "tensors are streamed by one thread"),
    NO_EFFECT("log_level", NULL, "one level of messages"),
    NO_EFFECT("gpt_variant", "--model", "config.json tells the family"),
    NO_EFFECT("model_type", "--model_name -m", "config.json tells the family"),
    NO_EFFECT("logits_dtype", NULL, "logits are float32"),
    NO_EFFECT("verbose", NULL, "one level of messages"),
    NO_EFFECT("load_model_on_cpu", NULL, "always"),
    NO_EFFECT("convert_model_on_cpu", NULL, "always"),
    NO_EFFECT("calib_dataset", NULL, "no scheme here needs samples"),
    NO_EFFECT("calib_size", NULL, "no scheme here needs samples"),
    NO_EFFECT("dataset_cache_dir", "--cache_dir", "no scheme here needs samples"),
    NO_EFFECT("device_map", NULL, "tensors are streamed by one thread"),
    NO_EFFECT("decoder_type", NULL, "config.json tells the family"),
    NO_EFFECT("quant_medusa_head", NULL, "heads keep their type"),
    NO_EFFECT("calib_max_seq_length", NULL, "no scheme here needs samples"),
    NO_EFFECT("calib_tp_size", NULL, "no scheme here needs samples"),
    NO_EFFECT("calib_pp_size", NULL, "no scheme here needs samples"),
    NO_EFFECT("batch_size", NULL, "no scheme here needs samples"),
    NO_EFFECT("tokenizer_max_seq_length", NULL, "no scheme here needs samples"),
    NO_EFFECT("seed", NULL, "no scheme here needs samples"),
    NO_EFFECT("awq_block_size", NULL, "int4 has one scale for 32 columns"),
    NO_EFFECT("kv_cache_dtype", "--fp8_kv_cache",
        "the type of the cache is chosen at build: nereid build --kv_cache_dtype"),
    NO_EFFECT("device", NULL, NULL),
    NO_EFFECT("tokenizer_dir", NULL, "a checkpoint has no tokenizer"),
    NO_EFFECT("load_by_shard", NULL, "always"),
    NO_EFFECT("disable_weight_only_quant_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_prompt_tuning", NULL, "every engine may have it: nereid build --max_prompt_embedding_table_size"),
    NO_EFFECT("vocab_size", NULL, "config.json tells"),
    NO_EFFECT("n_positions", NULL, "config.json tells"),
    NO_EFFECT("n_layer", NULL, "config.json tells"),
    NO_EFFECT("n_head", NULL, "config.json tells"),
    NO_EFFECT("n_kv_head", NULL, "config.json tells"),
    NO_EFFECT("n_embd", NULL, "config.json tells"),
    NO_EFFECT("inter_size", NULL, "config.json tells"),
    NO_EFFECT("rms_norm_eps", NULL, "config.json tells"),
    NO_EFFECT("hidden_act", NULL, "config.json tells"),
    NO_EFFECT("rotary_base", NULL, "config.json tells"),
    NO_EFFECT("rotary_dim", NULL, "config.json tells"),
    NO_EFFECT("moe_num_experts", NULL, "config.json tells"),
    NO_EFFECT("moe_top_k", NULL, "config.json tells"),
    NO_EFFECT("moe_renorm_mode", NULL, "config.json tells the family"),
    NO_EFFECT("model_version", "--chatglm_version --qwen_type", "config.json tells the family"),
    REFUSED("cp_size", NULL, "there is no context parallelism"),
    REFUSED("autoq_format", NULL, "choose one type with --quantize"),
    REFUSED("auto_quantize_bits", NULL, "choose a type with --quantize"),
    REFUSED("nemo_ckpt_path", NULL, "export it to Hugging Face first"),
    REFUSED("meta_ckpt_dir", NULL, "export it to Hugging Face first"),
    REFUSED("quant_ckpt_path", "--ammo_quant_ckpt_path --modelopt_quant_ckpt_path",
            "give the folder of quantized weights as --model_dir where its form is known"),
    REFUSED("per_group", NULL, "belongs to GPTQ and AWQ"),
    REFUSED("use_meta_fp8_rowwise_recipe", NULL, "all linear weights get one type"),
    REFUSED("use_int8_weight_only_embedding", NULL, "embeddings keep their type"),
    REFUSED("save_config_only", NULL, "see nereid build --dry_run"),
    REFUSED("hf_lora_dir", NULL, "adapters belong to the engine: nereid build --lora_dir"),
    REFUSED("smoothquant", "-sq --use_smooth_quant", "nereid quantize --qformat int8_sq does it"),
    REFUSED("per_channel", NULL, "belongs to SmoothQuant"),
    REFUSED("per_token", NULL, "belongs to SmoothQuant"),
    REFUSED("int8_kv_cache", "-kv --calibrate_kv_cache", "its scales need texts: nereid quantize --kv_cache_dtype int8, then nereid build --kv_cache_dtype int8"),
};
const nrd_tool_table nrd_convert_table = NRD_TOOL_TABLE("convert", usage, rows, 1);

int nrd_tool_convert(int argc, char **argv)
{
    options o = {.output_dir = "tllm_checkpoint", .precision = "int8"};
    const char *positional[1] = {NULL};
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_convert_table, argc, argv, &o, positional, &n);
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
