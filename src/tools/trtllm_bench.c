/* SPDX-License-Identifier: Apache-2.0
 * trtllm-bench, TensorRT-LLM's program for measuring: its commands build, throughput and latency become lines of `nereid build` and
 * `nereid bench`. Here an option may stand before the command or behind it.
 *
 * Source: the reference of trtllm-bench, TensorRT-LLM 1.0. */
#include "tools/programs.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"
#include "hub/pull.h"
#include "tools/llm_api.h"
#include "tools/load/prompts.h"
#include "tools/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: trtllm-bench --model NAME [--model_path DIR] build --max_seq_len N [options]\n"
    "       trtllm-bench --model NAME [--model_path DIR] throughput --dataset FILE [--engine_dir DIR] [options]\n"
    "       trtllm-bench --model NAME [--model_path DIR] latency --dataset FILE [--engine_dir DIR] [options]\n\n"
    "NAME is a model of the hub or a path. build writes WORKSPACE/NAME/tp_1_pp_1; without --engine_dir the others build an\n"
    "engine for the cache. These are `nereid build` and `nereid bench`, which have more options.\n";

typedef struct {
    const char *model, *model_path, *workspace, *engine_dir, *dataset, *quantization, *report_json, *kv_fraction, *policy, *llm_api;
    int32_t tp, pp, ep, max_seq_len, max_batch_size, max_num_tokens, num_requests, warmup, concurrency, beam_width, eos_id;
    bool streaming, is_dummy;
} options;

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "model", "-m", model, "NAME", NULL, "a model of the hub, or a path"),
    OPT(STR, "model_path", NULL, model_path, "DIR", "--model", "where its files are"),
    OPT(STR, "workspace", "-w", workspace, "DIR", "/tmp", "build: where engines go"),
    OPT(INT, "tp_size", "-tp --tp", tp, "N", "1", "tensor-parallel ranks"),
    OPT(INT, "pp_size", "-pp --pp", pp, "N", "1", "pipeline stages"),
    OPT(INT, "ep", NULL, ep, "N", NULL, "of the tensor-parallel ranks, how many share the list of experts"),
    OPT(STR, "quantization", "-q", quantization, "TYPE", NULL, "build: FP8 (with an FP8 cache), W8A16 or W4A16"),
    OPT(INT, "max_seq_len", NULL, max_seq_len, "N", "the data set's longest", "build: prompt and output tokens"),
    OPT(INT, "max_batch_size", NULL, max_batch_size, "N", "2048; the engine's", "sequences in one step"),
    OPT(INT, "max_num_tokens", NULL, max_num_tokens, "N", "8192; the engine's", "tokens in one step"),
    OPT(BOOL, "no_weights_loading", NULL, is_dummy, "BOOL", "False", "build: random weights"),
    OPT(STR, "engine_dir", NULL, engine_dir, "DIR", NULL, "an engine"),
    OPT(STR, "dataset", NULL, dataset, "FILE", NULL, "prompts and output lengths, one a line"),
    OPT(INT, "num_requests", NULL, num_requests, "N", "0: the data set's", "requests"),
    OPT(INT, "warmup", NULL, warmup, "N", "2", "requests before measuring"),
    OPT(INT, "concurrency", NULL, concurrency, "N", "all", "requests at a time"),
    OPT(INT, "beam_width", NULL, beam_width, "N", "1", "1: beams are not measured"),
    OPT(INT, "eos_id", NULL, eos_id, "N", "-1", "-1: answers are as long as the data set says"),
    OPT(STR, "kv_cache_free_gpu_mem_fraction", NULL, kv_fraction, "X", "0.9", "share of free memory for the KV cache"),
    OPT(STR, "scheduler_policy", NULL, policy, "NAME", "guaranteed_no_evict", "or max_utilization"),
    OPT(FLAG, "streaming", NULL, streaming, NULL, NULL, "one response a token"),
    OPT(STR, "extra_llm_api_options", "--config", llm_api, "FILE", NULL, "throughput, latency: arguments of the LLM API in YAML, as trtllm-serve reads them; they win"),
    OPT(STR, "report_json", NULL, report_json, "FILE", NULL, "write the figures there too"),
    NO_EFFECT("backend", NULL, "there is one engine"),
    NO_EFFECT("log_level", NULL, "there is one"),
    NO_EFFECT("trust_remote_code", NULL, "no code of a model is run"),
    NO_EFFECT("target_input_len", "--target_output_len", "the data set says them"),
    NO_EFFECT("max_input_len", NULL, "the data set says it"),
    NO_EFFECT("cluster_size", NULL, "ranks are processes"),
    NO_EFFECT("iteration_log", "--output_json --request_json", "use nereid bench throughput --trace FILE or --plot FILE"),
    NO_EFFECT_ALONE("enable_chunked_context", NULL, "prompts always may come in parts"),
    REFUSED("modality", NULL, "use nereid bench serve, with pictures in the data set"),
    REFUSED("medusa_choices", NULL, "give them in the file of --extra_llm_api_options, as speculative_config"),
    REFUSED("sampler_options", NULL, "tokens are the most probable ones"),
    REFUSED("revision", NULL, "fetch it with nereid pull, and give its path"),
};
const nrd_tool_table nrd_trtllm_bench_table = NRD_TOOL_TABLE("trtllm-bench", usage, rows, 1);

/* A command line of another verb. */
typedef struct {
    char *v[NRD_SERVE_MAX_WORDS + 64];
    int n;
} line;

static void add(line *l, const char *name, const char *value)
{
    l->v[l->n++] = nrd_xstrdup(name);
    if (value) {
        l->v[l->n++] = nrd_xstrdup(value);
    }
    l->v[l->n] = NULL;
}

static void add_number(line *l, const char *name, int32_t n, int32_t left_out)
{
    char text[16];

    snprintf(text, sizeof text, "%d", (int)n);
    if (n != left_out) {
        add(l, name, text);
    }
}

/* Runs a verb, which may move its words, unless there is an error; frees the line. */
static int run(line *l, nrd_error *err, int (*verb)(int argc, char **argv))
{
    char *words[sizeof l->v / sizeof *l->v];

    memcpy(words, l->v, sizeof words);
    const int status = err ? nrd_tool_finish("trtllm-bench", err) : verb(l->n, words);
    for (int i = 0; i < l->n; i++) {
        free(l->v[i]);
    }
    return status;
}

/* ---- build ---- */

/* What stands for a type; false: none does. */
static bool add_quantization(line *l, const char *type)
{
    static const char *const types[][2] = {{"FP8", "fp8"}, {"W8A16", "int8"}, {"W4A16", "q4_0"}};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!strcmp(types[i][0], type)) {
            add(l, "--quantize", types[i][1]);
            if (i == 0) {
                add(l, "--kv_cache_dtype", "fp8");
                add(l, "--use_fp8_context_fmha", "enable");
            }
            return true;
        }
    }
    return false;
}

/* *out: the tokens of the data set's longest row, prompt and answer. */
static nrd_error *longest(const char *dataset, const char *model, int32_t *out)
{
    nrd_tokenizer *t = NULL;
    nrd_prompts p = {0};
    nrd_error *no_tokenizer = nrd_tokenizer_open(&t, model);
    const nrd_prompts_config c = {.tokenizer = t, .wants_ids = true, .out = {NRD_LENGTH_FIXED, 128, 0}};
    nrd_error *err = nrd_prompts_read(&p, dataset, &c);

    nrd_error_free(no_tokenizer); /* token ids need none */
    for (size_t i = 0; i < p.n && !err; i++) {
        const int32_t n = p.v[i].n_in + p.v[i].max_tokens;
        *out = n > *out ? n : *out;
    }
    nrd_prompts_fini(&p);
    nrd_tokenizer_close(t);
    return err;
}

static nrd_error *build_line(const options *o, const char *model, const char *engine, line *l)
{
    int32_t max_seq_len = o->max_seq_len;

    add(l, "build", NULL);
    if (o->is_dummy) {
        char *config = nrd_path_join(model, "config.json");
        add(l, "--load_format", "dummy");
        add(l, "--model_config", config);
        free(config);
    } else {
        add(l, "--checkpoint_dir", model);
    }
    if (o->quantization && !add_quantization(l, o->quantization)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--quantization %s needs texts to measure with: nereid quantize writes such a folder, which "
                          "--model_path then names", o->quantization);
    }
    if (o->dataset) {
        NRD_TRY(longest(o->dataset, model, &max_seq_len));
    }
    if (o->llm_api) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "build: --extra_llm_api_options belongs to throughput and latency");
    }
    if (max_seq_len <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "build: --max_seq_len N is missing, or --dataset FILE, whose longest row says it");
    }
    add(l, "--output_dir", engine);
    add_number(l, "--max_seq_len", max_seq_len, 0);
    add_number(l, "--max_batch_size", o->max_batch_size > 0 ? o->max_batch_size : 2048, 0);
    add_number(l, "--max_num_tokens", o->max_num_tokens > 0 ? o->max_num_tokens : 8192, 0);
    add_number(l, "--tp_size", o->tp, 1);
    add_number(l, "--pp_size", o->pp, 1);
    add_number(l, "--moe_ep_size", o->ep, 0);
    return NULL;
}

static int build(const options *o, const char *model)
{
    char *name = nrd_xasprintf("%s/tp_%d_pp_%d", o->model + strspn(o->model, "/"), (int)o->tp, (int)o->pp);
    char *engine = nrd_path_join(o->workspace, name);
    line l = {.n = 0};
    nrd_error *err = nrd_path_stays_inside(name) ? build_line(o, model, engine, &l)
                                                 : nrd_errorf(NRD_ERR_INVALID_ARG, "--model %s: a name is needed, for the engine's folder; "
                                                              "the path belongs to --model_path", o->model);
    const int status = run(&l, err, nrd_tool_build);

    if (status == 0) {
        printf("ENGINE SAVED: %s\n", engine);
    }
    free(engine);
    free(name);
    return status;
}

/* ---- throughput, latency ---- */

static nrd_error *check_run(const options *o, const char *command)
{
    const bool knows_policy = !o->policy || !strcmp(o->policy, "max_utilization") || !strcmp(o->policy, "guaranteed_no_evict");

    if (!o->dataset) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: --dataset FILE is missing; nereid bench %s makes prompts up", command, command);
    }
    if (o->beam_width != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--beam_width %d: beams are not measured", (int)o->beam_width);
    }
    if (o->eos_id != -1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--eos_id %d: answers are as long as the data set says", (int)o->eos_id);
    }
    return knows_policy ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "--scheduler_policy: expected guaranteed_no_evict or max_utilization, got '%s'",
                                            o->policy);
}

static nrd_error *read_llm_api(nrd_serve_words *out, char *text)
{
    return nrd_llm_api_read(out, &(nrd_llm_api_reader){.program = "trtllm-bench", .is_bench = true}, text);
}

static nrd_error *add_file(line *l, const char *path)
{
    nrd_serve_words words = {.n = 0};
    nrd_error *err = nrd_error_wrap(nrd_serve_read_file(&words, path, read_llm_api), "--extra_llm_api_options");

    for (int i = 0; i < words.n && !err; i++) {
        add(l, words.v[i], NULL);
    }
    nrd_serve_words_fini(&words);
    return err;
}

static int measure(const options *o, const char *command, const char *model)
{
    const bool is_throughput = !strcmp(command, "throughput");
    nrd_error *err = check_run(o, command);
    line l = {.n = 0};

    if (err) {
        return nrd_tool_finish("trtllm-bench", err);
    }
    add(&l, "bench", command);
    add(&l, o->engine_dir ? o->engine_dir : model, NULL);
    add(&l, "--dataset", o->dataset);
    if (o->engine_dir && model) {
        add(&l, "--tokenizer", model);
    }
    add_number(&l, "--num_requests", o->num_requests, 0);
    add_number(&l, "--warmup", o->warmup, -1);
    add_number(&l, "--max_batch_size", o->max_batch_size, 0);
    add_number(&l, "--max_num_tokens", o->max_num_tokens, 0);
    add(&l, "--kv_cache_free_mem_fraction", o->kv_fraction);
    if (is_throughput) {
        add_number(&l, "--concurrency", o->concurrency > 0 ? o->concurrency : INT32_MAX, 0);
    }
    if (!o->engine_dir) {
        add_number(&l, "--tp_size", o->tp, 1);
        add_number(&l, "--pp_size", o->pp, 1);
        add_number(&l, "--moe_ep_size", o->ep, 0);
    }
    if (o->policy && !strcmp(o->policy, "max_utilization")) {
        add(&l, "--max_utilization", NULL);
    }
    if (o->streaming) {
        add(&l, "--streaming", NULL);
    }
    if (o->report_json) {
        add(&l, "--json", o->report_json);
    }
    return run(&l, o->llm_api ? add_file(&l, o->llm_api) : NULL, nrd_tool_bench);
}

int nrd_tool_trtllm_bench(int argc, char **argv)
{
    options o = {.workspace = "/tmp", .kv_fraction = "0.9", .tp = 1, .pp = 1, .warmup = 2, .beam_width = 1, .eos_id = -1};
    const char *command = NULL;
    char *path = NULL;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_trtllm_bench_table, argc, argv, &o, &command, &n);

    if (status >= 0) {
        return status;
    }
    const bool is_build = n == 1 && !strcmp(command, "build");
    if (!o.model || n == 0 || (!is_build && strcmp(command, "throughput") != 0 && strcmp(command, "latency") != 0)) {
        fputs("trtllm-bench: expected --model NAME and build, throughput or latency (see --help)\n", stderr);
        return 2;
    }
    const char *model = o.model_path ? o.model_path : o.model;
    nrd_error *err = nrd_hub_resolve(model, &path);
    if (err && (is_build || !o.engine_dir)) { /* else only texts need it */
        return nrd_tool_finish("trtllm-bench", err);
    }
    nrd_error_free(err);
    status = is_build ? build(&o, path) : measure(&o, command, path);
    free(path);
    return status;
}
