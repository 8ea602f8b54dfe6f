/* SPDX-License-Identifier: Apache-2.0
 * nereid build: a checkpoint, a model folder or a GGUF file becomes an engine folder. */
#include "tools/old_layout.h"
#include "tools/output_dir.h"
#include "tools/tools.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/model_path.h"
#include "hub/pull.h"
#include "model/build.h"
#include "model/engine_file.h"
#include "model/lora.h"
#include "model/eagle_heads.h"
#include "model/medusa_heads.h"
#include "model/redrafter_heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *checkpoint_dir, *mmproj, *model_config, *build_config, *output_dir, *load_format, *dtype, *quantize;
    const char *kv_cache_type, *kv_cache_dtype, *paged_kv_cache, *logits_dtype, *device;
    const char *gather_all, *input_timing_cache, *spec_mode, *remove_padding;
    const char *precision, *lora_plugin, *lora_modules, *lora_dir, *lora_source;
    int32_t max_lora_rank;
    bool old_layout, weight_only, fp8_kv, int8_kv, use_paged_fmha, fp8_context_fmha, custom_all_reduce, parallel_embedding, gather_context, gather_generation, quantize_lm_head, smooth_quant, dry_run;
    bool for_gpu;
    int32_t max_output_len, workers, seed, tp_size, pp_size, moe_ep_size, sharding_dim;
    int32_t max_encoder_input_len, max_input_len, max_seq_len, max_batch_size, max_num_tokens, max_beam_width;
    int32_t max_draft_len, max_prompt, tokens_per_block;
    bool json;
} options;

static const char usage[] =
    "Usage: nereid build --checkpoint_dir PATH --output_dir DIR [options]\n"
    "       nereid build --load_format dummy --model_config FILE --output_dir DIR [options]\n\n"
    "PATH is a checkpoint folder (nereid convert), a Hugging Face folder or a GGUF file.\n";

static bool off(const char *word)
{
    return word && (!strcasecmp(word, "disable") || !strcasecmp(word, "false"));
}

static void warn(const char *text)
{
    fprintf(stderr, "nereid build: %s\n", text);
}

static nrd_error *fill_lora(nrd_build_limits *l, const options *o, const nrd_model_spec *spec);

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
    if (spec->n_mels > 0 && l->max_seq_len > spec->max_positions && l->max_seq_len <= 2 * spec->max_positions) {
        l->max_seq_len = spec->max_positions; /* TensorRT-LLM counts frames, of which a place has two */
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
    l->tokens_per_block = o->tokens_per_block ? o->tokens_per_block
                          : o->for_gpu        ? 64
                                              : l->tokens_per_block;
    l->use_paged_context_fmha = o->use_paged_fmha;
    l->fp8_context_fmha = o->fp8_context_fmha;
    l->nccl_all_reduce = !o->custom_all_reduce;
    bool all = o->gather_all && !off(o->gather_all);
    l->gather_context_logits = o->gather_context || all;
    l->gather_generation_logits = o->gather_generation || all;
    const char *kv = o->fp8_kv ? "fp8" : o->int8_kv ? "int8" : o->kv_cache_dtype;
    NRD_TRY(nrd_tool_parse_dtype("kv_cache_dtype", kv, &l->kv_dtype));
    const bool no_cache = o->kv_cache_type && !strcasecmp(o->kv_cache_type, "disabled");
    if (no_cache && !spec->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--kv_cache_type disabled is not supported: a "
                          "decoder without a cache cannot generate");
    }
    if (!no_cache && ((o->kv_cache_type && strcasecmp(o->kv_cache_type, "paged")) || off(o->paged_kv_cache))) {
        warn("a continuous KV cache is kept in pages all the same; the results are equal");
        l->paged_kv_cache = true;
    }
    if (off(o->remove_padding)) {
        warn("--remove_input_padding disable has no effect: tokens are always packed");
    }
    return fill_lora(l, o, spec);
}

/* The next of the words in a list, separated by spaces or commas; *n: its length, 0: no more. */
static const char *next_word(const char *list, size_t *n)
{
    list += strspn(list, " ,");
    *n = strcspn(list, " ,");
    return list;
}

static nrd_error *fill_lora_modules(nrd_build_limits *l, const char *list, const nrd_model_spec *spec)
{
    size_t n = 0;
    for (const char *w = next_word(list, &n); n > 0; w = next_word(w + n, &n)) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), w);
        int32_t id = nrd_lora_module_id(name);
        if (id < 0 || !nrd_lora_has_module(spec, id)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--lora_target_modules: %s %s", id < 0 ? "there is no module"
                              : "this model has no module", name);
        }
        l->lora_modules |= 1u << id;
    }
    return NULL;
}

/* Adapters must fit what the engine will take; where modules are not named, theirs are taken. */
static nrd_error *check_adapters(nrd_build_limits *l, const char *list, const nrd_model_spec *spec)
{
    const nrd_lora_limits lim = {.max_rank = l->max_lora_rank, .modules = l->lora_modules};
    uint32_t found = 0;
    size_t n = 0;
    for (const char *w = next_word(list, &n); n > 0; w = next_word(w + n, &n)) {
        nrd_lora *a = NULL;
        char *dir = nrd_xstrndup(w, n);
        nrd_error *err = nrd_error_wrap(nrd_lora_open(&a, spec, &lim, dir), "--lora_dir");
        for (int32_t i = 0; a && i < a->n_rows; i++) {
            found |= 1u << a->rows[i].module;
        }
        nrd_lora_free(a);
        free(dir);
        NRD_TRY(err);
    }
    l->lora_modules = l->lora_modules ? l->lora_modules : found;
    return NULL;
}

static nrd_error *fill_lora(nrd_build_limits *l, const options *o, const nrd_model_spec *spec)
{
    l->lora_plugin = o->lora_plugin && !off(o->lora_plugin);
    if (o->max_lora_rank < 0 || o->max_lora_rank > NRD_LORA_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--max_lora_rank %d, expected 1 to %d", o->max_lora_rank,
                          NRD_LORA_MAX_RANK);
    }
    if (o->lora_source && strcmp(o->lora_source, "hf") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--lora_ckpt_source: only hf is supported, got '%s'", o->lora_source);
    }
    l->max_lora_rank = o->max_lora_rank ? o->max_lora_rank : l->lora_plugin ? NRD_LORA_DEFAULT_RANK : 0;
    NRD_TRY(o->lora_modules ? fill_lora_modules(l, o->lora_modules, spec) : NULL);
    return o->lora_dir ? check_adapters(l, o->lora_dir, spec) : NULL;
}

/* Options with several words, as argparse takes them: "--name a b c" becomes "--name=a b c". The words that
 * are made are freed with `made`. */
static nrd_error *join_lists(int *argc, char **argv, nrd_arena *made)
{
    static const char *const names[] = {"--lora_target_modules", "--lora-target-modules", "--lora_dir", "--lora-dir"};
    int to = 1;
    for (int i = 1; i < *argc; i++) {
        size_t k = 0;
        while (k < sizeof names / sizeof names[0] && strcmp(argv[i], names[k]) != 0) {
            k++;
        }
        if (k == sizeof names / sizeof names[0]) {
            argv[to++] = argv[i];
            continue;
        }
        nrd_str all = {0};
        nrd_str_printf(&all, "%s=", argv[i]);
        for (bool first = true; i + 1 < *argc && argv[i + 1][0] != '-'; first = false) {
            nrd_str_printf(&all, "%s%s", first ? "" : " ", argv[++i]);
        }
        argv[to] = nrd_arena_strndup(made, nrd_str_cstr(&all), all.len);
        nrd_str_fini(&all);
        if (!argv[to++]) {
            return nrd_error_no_memory();
        }
    }
    argv[to] = NULL;
    *argc = to;
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

/* The first run on a GPU writes this file; with it a new engine's first run has measured already. Guides name a file
 * that the first build is to write. */
static nrd_error *copy_timing_cache(const char *from, const char *engine_dir)
{
    if (!nrd_path_exists(from)) {
        fprintf(stderr, "nereid build: --input_timing_cache: there is no '%s'; the engine's first run on a GPU measures\n", from);
        return NULL;
    }
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

static nrd_error *dry_run(const nrd_source *src, const nrd_build_options *b, bool json)
{
    nrd_plan *p = NULL;
    char size[32];
    NRD_TRY(nrd_build_plan(&p, src, b));
    if (json) {
        nrd_tool_print_made("", nrd_plan_spec(p)->architecture, nrd_plan_n_tensors(p), nrd_plan_total_bytes(p), 0);
    } else {
        printf("%s: %zu weights, %s; nothing written\n", nrd_plan_spec(p)->architecture,
               nrd_plan_n_tensors(p), nrd_human_bytes(nrd_plan_total_bytes(p), size));
    }
    nrd_plan_free(p);
    return NULL;
}

/* What an engine is built for, beside requests without drafts; none of them keeps it from those. */
static const char *const spec_modes[] = {"none", "draft_tokens_external", "lookahead_decoding", "medusa", "eagle", "mtp", "explicit_draft_tokens"};
enum { N_SPEC_MODES = sizeof spec_modes / sizeof spec_modes[0] };

static bool is_medusa(const options *o)
{
    return o->spec_mode && !strcmp(o->spec_mode, "medusa");
}

static bool is_eagle(const options *o)
{
    return o->spec_mode && !strcmp(o->spec_mode, "eagle");
}

static bool is_redrafter(const options *o)
{
    return o->spec_mode && !strcmp(o->spec_mode, "explicit_draft_tokens");
}

static nrd_error *check_spec_mode(const options *o)
{
    bool known = !o->spec_mode;
    for (int i = 0; i < N_SPEC_MODES && !known; i++) {
        known = !strcmp(o->spec_mode, spec_modes[i]);
    }
    if (!known) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--speculative_decoding_mode %s is not supported; known: none, "
                          "draft_tokens_external, lookahead_decoding, medusa, eagle, mtp, explicit_draft_tokens", o->spec_mode);
    }
    if (o->spec_mode && !strcmp(o->spec_mode, "draft_tokens_external") && o->max_draft_len < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode draft_tokens_external needs "
                          "--max_draft_len");
    }
    if (is_eagle(o) && (!o->checkpoint_dir || !nrd_eagle_heads_are_in(o->checkpoint_dir))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode eagle needs a checkpoint with EAGLE heads: "
                          "nereid convert --eagle_model_dir writes one");
    }
    if (is_medusa(o) && (!o->checkpoint_dir || !nrd_medusa_heads_are_in(o->checkpoint_dir))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode medusa needs a checkpoint with Medusa heads: "
                          "nereid convert --medusa_model_dir writes one");
    }
    if (is_redrafter(o) && (!o->checkpoint_dir || !nrd_redrafter_heads_are_in(o->checkpoint_dir))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative_decoding_mode explicit_draft_tokens needs a checkpoint with a ReDrafter: "
                          "nereid convert --drafter_model_dir writes one");
    }
    return NULL;
}

static bool is_mtp(const options *o)
{
    return o->spec_mode && !strcmp(o->spec_mode, "mtp");
}

/* Before anything is built. */
static nrd_error *check_mtp(const options *o, const nrd_source *src)
{
    if (!is_mtp(o)) {
        return NULL;
    }
    if (o->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--speculative_decoding_mode mtp needs all layers on rank 0: --pp_size is %d; use --tp_size",
                          o->pp_size);
    }
    return nrd_source_mtp(src) ? NULL
                               : nrd_errorf(NRD_ERR_NOT_FOUND, "--speculative_decoding_mode mtp needs a model with an MTP layer, or a checkpoint "
                                            "that kept it: nereid convert --speculative_decoding_mode mtp writes one");
}

/* The heads beside the engine, where decoding_mode medusa looks for them. */
static nrd_error *copy_heads(const options *o, const nrd_model_spec *spec)
{
    nrd_medusa_heads *heads = NULL;
    if (!is_medusa(o)) {
        return NULL;
    }
    NRD_TRY(nrd_medusa_heads_open(&heads, o->checkpoint_dir, spec->hidden, spec->vocab));
    nrd_error *err = nrd_medusa_heads_write(heads, o->output_dir);
    nrd_medusa_heads_close(heads);
    return err;
}

static nrd_error *copy_redrafter(const options *o, const nrd_model_spec *spec)
{
    nrd_redrafter_heads *h = NULL;

    if (!is_redrafter(o)) {
        return NULL;
    }
    NRD_TRY(nrd_redrafter_heads_open(&h, o->checkpoint_dir, spec->hidden, spec->vocab));
    nrd_error *err = nrd_redrafter_heads_write(h, o->output_dir, 0, 0);
    nrd_redrafter_heads_close(h);
    return err;
}

static nrd_error *copy_eagle(const options *o, const nrd_model_spec *spec)
{
    nrd_eagle_heads *e = NULL;

    if (!is_eagle(o)) {
        return NULL;
    }
    char *from = nrd_path_join(o->checkpoint_dir, NRD_EAGLE_FOLDER);
    nrd_error *err = nrd_eagle_heads_open(&e, from, spec, NRD_EAGLE_ANY);
    free(from);
    NRD_TRY(err);
    err = nrd_eagle_heads_copy(e, o->output_dir);
    nrd_eagle_heads_close(e);
    return err;
}

static nrd_error *build(const options *o)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_build_options b = {.n_threads = o->workers, .device_name = ""};
    nrd_build_stats stats = {0};
    uint64_t start = nrd_now_ns();
    char size[32], mode[96], *path = NULL;
    const char *quant = o->quantize || !o->weight_only ? o->quantize : o->precision;
    /* a configuration alone has no weights: as the published program, take random ones */
    bool dummy = !strcmp(o->load_format, "dummy") || !o->checkpoint_dir;

    NRD_TRY_GOTO(check_spec_mode(o), err, done);
    if (dummy) {
        const char *config = o->model_config ? o->model_config : o->checkpoint_dir;
        NRD_TRY_GOTO(nrd_output_check_source(o->model_config ? "model_config" : "checkpoint_dir", config, o->output_dir), err, done);
        NRD_TRY_GOTO(nrd_source_open_dummy(&src, config, (uint64_t)(uint32_t)o->seed), err, done);
    } else {
        NRD_TRY_GOTO(nrd_hub_resolve(o->checkpoint_dir, &path), err, done);
        NRD_TRY_GOTO(nrd_output_check_source("checkpoint_dir", path, o->output_dir), err, done);
        NRD_TRY_GOTO(nrd_source_open(&src, path), err, done);
    }
    if (o->smooth_quant && !dummy && !nrd_source_int8_inputs(src)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--use_smooth_quant: '%s' has no weights of SmoothQuant; nereid quantize --qformat int8_sq makes them, "
                         "and hf_gpt_convert.py --smoothquant", nrd_source_path(src));
        goto done;
    }
    NRD_TRY_GOTO(check_mtp(o, src), err, done);
    NRD_TRY_GOTO(fill_limits(&b.limits, o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(nrd_tool_parse_dtype("dtype", o->dtype, &b.plan.dtype), err, done);
    NRD_TRY_GOTO(nrd_tool_parse_quant(quant, &b.plan.quantize), err, done);
    b.plan.quantize_lm_head = o->quantize_lm_head;
    b.plan.keep_packed = strcmp(o->device, "cpu") != 0;
    b.max_encoder_input_len = o->max_encoder_input_len;
    b.plan.tp_size = o->tp_size;
    b.plan.pp_size = o->pp_size;
    b.plan.moe_ep_size = o->moe_ep_size;
    NRD_TRY_GOTO(nrd_tool_parse_sharding(o->sharding_dim, &b.plan.embedding_by_columns), err, done);
    b.plan.parallel_embedding = o->parallel_embedding;
    b.plan.mmproj = o->mmproj;
    snprintf(mode, sizeof mode, "    \"speculative_decoding_mode\": \"%s\"", o->spec_mode           ? o->spec_mode
                                                                             : o->max_draft_len > 0 ? "draft_tokens_external"
                                                                                                    : "none");
    b.extra_config = mode;
    NRD_TRY_GOTO(open_device(o, &b), err, done);
    if (o->dry_run) {
        NRD_TRY_GOTO(dry_run(src, &b, o->json), err, done);
        goto done;
    }
    NRD_TRY_GOTO(nrd_output_check("build", NRD_OUTPUT_ENGINE, nrd_source_spec(src)->architecture, o->output_dir), err, done);
    nrd_leftovers_sweep(o->output_dir);
    NRD_TRY_GOTO(nrd_build_folder(src, &b, o->output_dir, &stats), err, done);
    if (is_mtp(o)) {
        NRD_TRY_GOTO(nrd_build_mtp(src, &b, o->output_dir, &stats), err, done);
    }
    NRD_TRY_GOTO(copy_heads(o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(copy_eagle(o, nrd_source_spec(src)), err, done);
    NRD_TRY_GOTO(copy_redrafter(o, nrd_source_spec(src)), err, done);
    if (o->old_layout) {
        NRD_TRY_GOTO(nrd_old_layout(o->output_dir, b.limits.max_seq_len - b.limits.max_input_len), err, done);
    }
    if (o->input_timing_cache) {
        NRD_TRY_GOTO(copy_timing_cache(o->input_timing_cache, o->output_dir), err, done);
    }
    const double seconds = (double)(nrd_now_ns() - start) / 1e9;
    if (o->json) {
        nrd_tool_print_made(o->output_dir, nrd_source_spec(src)->architecture, stats.n_weights, stats.weight_bytes, seconds);
    } else {
        printf("%s: %s, %llu weights, %s, %.2f s\n", o->output_dir, nrd_source_spec(src)->architecture,
               (unsigned long long)stats.n_weights, nrd_human_bytes(stats.weight_bytes, size), seconds);
    }
    fputs(nrd_str_cstr(&stats.notes), stderr);
    if (stats.has_cache_scales && b.limits.kv_dtype == NRD_DTYPE_NONE) { /* the published program takes the checkpoint's type */
        fputs("nereid build: the checkpoint has scales of an 8-bit cache; --kv_cache_dtype int8 (on a GPU also fp8) takes it, half of 16 bits\n", stderr);
    }
done:
    free(path);
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
    const nrd_json *lora = nrd_json_get(b, "lora_config");
    int64_t rank = nrd_json_get_int(lora, "max_lora_rank", nrd_json_get_int(b, "max_lora_rank", 0));
    o->max_lora_rank = rank > 0 && rank <= NRD_LORA_MAX_RANK ? (int32_t)rank : 0;
    o->gather_context = nrd_json_get_bool(b, "gather_context_logits", false);
    o->gather_generation = nrd_json_get_bool(b, "gather_generation_logits", false);
    o->use_paged_fmha = nrd_json_get_bool(plugin, "use_paged_context_fmha", o->use_paged_fmha);
    o->fp8_context_fmha = nrd_json_get_bool(plugin, "use_fp8_context_fmha", o->fp8_context_fmha);
    o->custom_all_reduce = nrd_json_get_bool(plugin, "use_custom_all_reduce", o->custom_all_reduce);
    int64_t block = nrd_json_get_int(plugin, "tokens_per_block", 0);
    o->tokens_per_block = block > 0 && block <= INT32_MAX ? (int32_t)block : 0;
    nrd_json_doc_free(doc);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
/* At least one: 0 would mean that it was not given. */
#define LIMIT(name_, alias_, field, def_, help_)                                                                                        \
    {.name = name_, .form = NRD_OPT_INT, .offset = offsetof(options, field), .min = 1, .max = INT32_MAX, .arg = "N", .help = help_,      \
     .alias = alias_, .def = def_}
static const nrd_opt rows[] = {
    OPT(STR, "checkpoint_dir", "--model_dir", checkpoint_dir, "PATH", NULL,
        "checkpoint, model folder or GGUF file"),
    OPT(STR, "mmproj", NULL, mmproj, "FILE", "one beside PATH", "the vision tower of a GGUF model; none: text alone"),
    OPT(STR, "output_dir", "-o", output_dir, "DIR", "engine_outputs", "engine folder to write"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: the folder (\"\": nothing was written), its architecture, weights, bytes, seconds"),
    OPT(STR, "model_config", NULL, model_config, "FILE", NULL, "config.json for random weights"),
    OPT(STR, "load_format", NULL, load_format, "auto|dummy", NULL,
        "dummy: random weights for --model_config"),
    OPT(INT, "seed", "--random_seed", seed, "N", "0", "of random weights"),
    LIMIT("max_batch_size", NULL, max_batch_size, "256", "sequences in one step"),
    LIMIT("max_input_len", NULL, max_input_len, "max_seq_len", "prompt tokens"),
    OPT(INT, "max_encoder_input_len", NULL, max_encoder_input_len, "N", NULL,
        "of an encoder-decoder model: tokens that the encoder reads; default: what the model names"),
    LIMIT("max_seq_len", "--max_decoder_seq_len", max_seq_len, "what the model was made for",
        "prompt and output tokens"),
    OPT(INT, "max_output_len", "--max_new_tokens", max_output_len, "N", NULL,
        "old form: max_seq_len = max_input_len + this"),
    LIMIT("max_num_tokens", NULL, max_num_tokens, "8192", "packed tokens in one step"),
    LIMIT("max_beam_width", NULL, max_beam_width, "1", "beams"),
    OPT(INT, "max_draft_len", NULL, max_draft_len, "N", NULL, "draft tokens that a request may bring"),
    OPT(STR, "speculative_decoding_mode", NULL, spec_mode, "MODE", NULL, "none, draft_tokens_external with max_draft_len, lookahead_decoding, medusa, eagle, mtp, or explicit_draft_tokens (a ReDrafter)"),
    OPT(WORD, "lora_plugin", NULL, lora_plugin, "TYPE|disable", NULL,
        "memory for LoRA adapters is taken when the engine is opened; any engine takes adapters"),
    OPT(INT, "max_lora_rank", NULL, max_lora_rank, "N", "64", "the largest rank of an adapter"),
    OPT(STR, "lora_target_modules", NULL, lora_modules, "NAME …", "all",
        "what adapters may change: attn_q attn_k attn_v attn_qkv attn_dense mlp_h_to_4h mlp_4h_to_h mlp_gate"),
    OPT(STR, "lora_dir", NULL, lora_dir, "DIR …", NULL,
        "adapters that must fit; without lora_target_modules, their modules may come"),
    OPT(STR, "lora_ckpt_source", NULL, lora_source, "hf", NULL, "what wrote them; nemo is not read"),
    OPT(INT, "max_prompt_embedding_table_size", "--max_multimodal_len", max_prompt, "N", NULL,
        "rows that a request's prompt table may have (0)"),
    OPT(INT, "tokens_per_block", NULL, tokens_per_block, "N", "32; for cuda 64",
        "tokens in a block of the KV cache"),
    OPT(STR, "kv_cache_type", NULL, kv_cache_type, "TYPE", NULL,
        "paged; continuous means the same here; disabled: of an encoder"),
    OPT(WORD, "paged_kv_cache", NULL, paged_kv_cache, "enable", NULL,
        "old form of --kv_cache_type"),
    OPT(STR, "kv_cache_dtype", NULL, kv_cache_dtype, "TYPE", NULL,
        "of the KV cache (the device's choice); int8 needs scales in the checkpoint"),
    OPT(SWITCH, "use_paged_context_fmha", NULL, use_paged_fmha, "enable", "enable",
        "prompts may attend to cached blocks: prefix reuse, chunks"),
    OPT(SWITCH, "use_fp8_context_fmha", NULL, fp8_context_fmha, "enable|disable", "disable",
        "multiply prompts' attention in 8 bits where the KV cache is fp8 (Hopper GPUs; faster, less exact)"),
    OPT(SWITCH, "use_custom_all_reduce", NULL, custom_all_reduce, "enable|disable", "enable",
        "disable: sums over GPUs are NCCL's, also where the GPUs reach each other's memory"),
    OPT(FLAG, "gather_context_logits", NULL, gather_context, NULL, NULL,
        "logits of all prompt tokens can be asked for"),
    OPT(FLAG, "gather_generation_logits", NULL, gather_generation, NULL, NULL,
        "logits of generated tokens can be asked for"),
    OPT(WORD, "gather_all_token_logits", NULL, gather_all, "enable", NULL, "both of the above"),
    OPT(STR, "dtype", NULL, dtype, "TYPE", NULL,
        "of unquantized weights: auto, float32, float16, bfloat16"),
    OPT(STR, "quantize", NULL, quantize, "TYPE", NULL,
        "linear weights: int8, fp8, q8_0, q4_0, q4_1, q5_0, q4_k, q6_k, bfloat16, …"),
    OPT(FLAG, "quantize_lm_head", NULL, quantize_lm_head, NULL, "else q8_0 with a block type, or unchanged",
        "the LM head too"),
    OPT(INT, "tp_size", NULL, tp_size, "N", NULL, "tensor-parallel ranks (1, or those of the checkpoint)"),
    OPT(INT, "pp_size", NULL, pp_size, "N", NULL, "pipeline stages (1, or those of the checkpoint)"),
    OPT(INT, "moe_ep_size", "--ep_size", moe_ep_size, "N", NULL,
        "of the tp_size ranks, how many share the list of experts (1, or as in the checkpoint)"),
    OPT(INT, "workers", NULL, workers, "N", "one for each core", "threads that pack"),
    OPT(STR, "device", NULL, device, "NAME", "auto", "whose weight layouts to use: cpu, cuda, rows (for all); auto: rows where "
        "there is a GPU, else cpu"),
    OPT(STR, "input_timing_cache", "--timing_cache", input_timing_cache, "FILE", NULL,
        "kernel choices measured before"),
    OPT(WORD, "remove_input_padding", NULL, remove_padding, "enable", NULL,
        "tokens are always packed"),
    OPT(FLAG, "old_layout", NULL, old_layout, NULL, NULL,
        "files and config.json as builders up to v0.8 left them: gpt_float16_tp2_rank0.engine, builder_config"),
    OPT(FLAG, "dry_run", NULL, dry_run, NULL, NULL, "check everything, write nothing"),
    OPT(STR, "build_config", NULL, build_config, "FILE", NULL,
        "JSON with the same names; options on the command line win"),
    OPT(FLAG, "use_parallel_embedding", NULL, parallel_embedding, NULL, NULL,
        "each tensor-parallel rank has its share of the embedding's tokens, and where the LM head is the embedding one table for both"),
    OPT(INT, "embedding_sharding_dim", NULL, sharding_dim, "0|1", "0", "a divided embedding is divided by tokens (0) or by columns (1)"),
    NO_EFFECT("use_embedding_sharing", NULL, "where the LM head is the embedding, a divided one serves as both"),
    NO_EFFECT("log_level", NULL, "one level of messages"),
    NO_EFFECT("profiling_verbosity", NULL, NULL),
    NO_EFFECT("opt_num_tokens", NULL, NULL),
    NO_EFFECT("output_timing_cache", NULL, NULL),
    NO_EFFECT("weight_sparsity", NULL, NULL),
    NO_EFFECT("weight_streaming", NULL, "any engine can be streamed: gpu_weights_percent, where it is opened"),
    NO_EFFECT("fast_build", NULL, NULL),
    NO_EFFECT("enable_debug_output", NULL, NULL),
    NO_EFFECT("visualize_network", NULL, NULL),
    NO_EFFECT("monitor_memory", NULL, NULL),
    NO_EFFECT("logits_dtype", NULL, "logits are float32"),
    NO_EFFECT("gpt_attention_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("bert_attention_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("gemm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("layernorm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("lookup_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("identity_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("nccl_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("mamba_conv1d_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("fp8_rowwise_gemm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("gemm_allreduce_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("low_latency_gemm_swiglu_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("explicitly_disable_gemm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("dora_plugin", NULL, "any engine takes DoRA adapters"),
    NO_EFFECT("moe_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("context_fmha", NULL, "kernels are chosen by the device"),
    NO_EFFECT("context_fmha_fp32_acc", NULL, "kernels are chosen by the device"),
    NO_EFFECT("bert_context_fmha_fp32_acc", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_context_fmha_for_generation", NULL, "kernels are chosen by the device"),
    NO_EFFECT("attention_qk_half_accumulation", NULL, "sums are always kept in FP32"),
    NO_EFFECT("multi_block_mode", NULL, NULL),
    NO_EFFECT("enable_xqa", NULL, NULL),
    NO_EFFECT("reduce_fusion", NULL, NULL),
    NO_EFFECT("pp_reduce_scatter", NULL, NULL),
    NO_EFFECT("fuse_fp4_quant", NULL, NULL),
    NO_EFFECT("multiple_profiles", NULL, NULL),
    NO_EFFECT("paged_state", NULL, NULL),
    NO_EFFECT("streamingllm", NULL, NULL),
    NO_EFFECT("gpus_per_node", NULL, NULL),
    NO_EFFECT("cluster_key", NULL, NULL),
    NO_EFFECT("strongly_typed", NULL, NULL),
    NO_EFFECT("builder_opt", NULL, NULL),
    NO_EFFECT("parallel_build", NULL, NULL),
    NO_EFFECT("use_gpt_attention_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_gemm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_layernorm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_lookup_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("enable_context_fmha", NULL, "kernels are chosen by the device"),
    NO_EFFECT("enable_context_fmha_fp32_acc", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_inflight_batching", NULL, NULL),
    NO_EFFECT("world_size", NULL, "tp_size and pp_size of the checkpoint decide"),
    NO_EFFECT("gemm_swiglu_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("low_latency_gemm_plugin", NULL, "kernels are chosen by the device"),
    NO_EFFECT("use_fused_mlp", NULL, NULL),
    NO_EFFECT("user_buffer", NULL, NULL),
    NO_EFFECT("norm_quant_fusion", NULL, NULL),
    NO_EFFECT("dump_config", NULL, NULL),
    OPT(FLAG, "use_weight_only", NULL, weight_only, NULL, NULL,
        "old form of --quantize, see --weight_only_precision"),
    OPT(STR, "weight_only_precision", NULL, precision, "int8|int4", NULL,
        "int8: one scale a row; int4: q4_0"),
    OPT(FLAG, "fp8_kv_cache", NULL, fp8_kv, NULL, NULL, "old form of --kv_cache_dtype fp8"),
    OPT(FLAG, "int8_kv_cache", NULL, int8_kv, NULL, NULL, "old form of --kv_cache_dtype int8"),
    NO_EFFECT("vocab_size", NULL, "config.json tells"),
    NO_EFFECT("n_layer", NULL, "config.json tells"),
    NO_EFFECT("n_positions", NULL, "config.json tells"),
    NO_EFFECT("n_embd", NULL, "config.json tells"),
    NO_EFFECT("n_head", NULL, "config.json tells"),
    NO_EFFECT("hidden_act", NULL, "config.json tells"),
    NO_EFFECT("rotary_pct", NULL, "config.json tells"),
    NO_EFFECT("inter_size", NULL, "config.json tells"),
    NO_EFFECT("no_bias", NULL, "config.json tells"),
    NO_EFFECT("multi_query_mode", NULL, "config.json tells"),
    OPT(FLAG, "use_smooth_quant", NULL, smooth_quant, NULL, NULL, "the model must have weights of SmoothQuant, as nereid quantize --qformat int8_sq writes them"),
    NO_EFFECT("per_channel", NULL, "weights of SmoothQuant have the scales that they were made with"),
    NO_EFFECT("per_token", NULL, "weights of SmoothQuant were made for such scales or for others"),
    REFUSED("enable_fp8", NULL, "use --quantize fp8"),
    REFUSED("model_cls_file", NULL, "models are rows of a table, not Python classes"),
    REFUSED("model_cls_name", NULL, "models are rows of a table, not Python classes"),
    REFUSED("strip_plan", NULL, "an engine file always holds its weights"),
    REFUSED("auto_parallel", NULL, "an engine runs on one device"),
};
const nrd_tool_table nrd_build_table = NRD_TOOL_TABLE("build", usage, rows, 1);

/* It is read before the other options, which win over it. */
static const char *find_build_config(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t n = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const nrd_opt *row = nrd_opts_find(rows, sizeof rows / sizeof *rows, argv[i], n);
        if (row && !strcmp(row->name, "build_config")) {
            return equals ? equals + 1 : argv[i + 1];
        }
    }
    return NULL;
}

static nrd_error *read_defaults(options *o, int argc, char **argv)
{
    *o = (options){.output_dir = "engine_outputs", .load_format = "auto", .use_paged_fmha = true,
                   .custom_all_reduce = true,
                   .device = "auto", .precision = "int8"};
    const char *file = find_build_config(argc, argv);
    return file ? read_build_config(o, file) : NULL;
}

static nrd_error *build_asked(options *o, const char *word)
{
    const bool choose = !strcmp(o->device, "auto");

    o->checkpoint_dir = o->checkpoint_dir ? o->checkpoint_dir : word;
    o->device = choose ? nrd_build_layouts(o->device) : o->device;
    o->for_gpu = !strcmp(o->device, choose ? "rows" : "cuda");
    return build(o);
}

static int build_verb(int argc, char **argv)
{
    options o;
    const char *word = NULL;
    nrd_error *err = read_defaults(&o, argc, argv);
    if (err) {
        return nrd_tool_finish("build", err);
    }
    int status = nrd_tool_parse(&nrd_build_table, argc, argv, &o, &word, NULL);
    if (status >= 0) {
        return status;
    }
    if (!o.checkpoint_dir && !word && !o.model_config) {
        fprintf(stderr, "nereid build: --checkpoint_dir is missing (see --help)\n");
        return 2;
    }
    return nrd_tool_finish("build", build_asked(&o, word));
}

int nrd_tool_build(int argc, char **argv)
{
    nrd_arena made;
    nrd_arena_init(&made);
    nrd_error *err = join_lists(&argc, argv, &made);
    int status = err ? nrd_tool_finish("build", err) : build_verb(argc, argv);
    nrd_arena_fini(&made);
    return status;
}

nrd_error *nrd_tool_build_below(int argc, char **argv)
{
    nrd_arena made;
    options o;
    const char *word = NULL;
    nrd_arena_init(&made);
    nrd_error *err = join_lists(&argc, argv, &made);
    err = err ? err : read_defaults(&o, argc, argv);
    err = err ? err : nrd_tool_read(&nrd_build_table, argc, argv, &o, &word);
    err = err ? err : build_asked(&o, word);
    nrd_arena_fini(&made);
    return err;
}

int nrd_tool_trtllm_build(int argc, char **argv)
{
    bool help = false;
    for (int i = 1; i < argc; i++) { /* before the build joins lists in argv */
        help = help || !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    }
    const uint64_t start = nrd_now_ns();
    int status = nrd_tool_build(argc, argv);
    const time_t now = time(NULL);
    const int took = (int)((nrd_now_ns() - start) / 1000000000u);
    char stamp[40] = "";
    struct tm when;
    if (status == 0 && !help && localtime_r(&now, &when)) {
        strftime(stamp, sizeof stamp, "%m/%d/%Y-%H:%M:%S", &when);
        printf("[%s] [TRT-LLM] [I] Total time of building all engines: %02d:%02d:%02d\n", stamp, took / 3600,
               took / 60 % 60, took % 60);
    }
    return status;
}
