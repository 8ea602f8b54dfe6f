/* SPDX-License-Identifier: Apache-2.0
 * nereid: one program, one verb for everything besides the server itself. */
#include "tools/tools.h"

#include "base/env.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "base/unfinished.h"
#include "nereid/crash.h"
#include "nereid/executor.h"
#include "nereid/ranks.h"
#include "tools/programs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* What the build has beside the engine, and which library it lacks; where the parts were chosen (make FEATURES=), none is lacking. */
#ifdef NRD_FEATURES_CHOSEN
#define LACKS(library) ""
#else
#define LACKS(library) "(" library ")"
#endif
#ifdef NRD_HAVE_PYTHON
#define PYTHON_FEATURE "python-backend"
#else
#define PYTHON_FEATURE "no-python-backend" LACKS("Python.h")
#endif
#ifdef NRD_HAVE_TLS
#define TLS_FEATURE "tls"
#else
#define TLS_FEATURE "no-tls" LACKS("libssl-dev")
#endif

#ifdef NRD_HAVE_REDIS
#define REDIS_FEATURE "redis"
#else
#define REDIS_FEATURE "no-redis" LACKS("libhiredis-dev")
#endif
#ifdef NRD_HAVE_HUB
#define HUB_FEATURE "hub"
#else
#define HUB_FEATURE "no-hub" LACKS("libcurl4-openssl-dev,libssl-dev")
#endif
#ifdef NRD_HAVE_SOUND
#define SOUND_FEATURE "sound"
#else
#define SOUND_FEATURE "no-sound" LACKS("libsndfile1-dev")
#endif
#ifdef NRD_HAVE_IMAGE
#define IMAGE_FEATURE "image"
#else
#define IMAGE_FEATURE "no-image" LACKS("libjpeg-dev,libpng-dev,libwebp-dev")
#endif
#ifdef NRD_HAVE_CLOUD
#define CLOUD_FEATURE "cloud"
#else
#define CLOUD_FEATURE "no-cloud" LACKS("libcurl4-openssl-dev,libexpat1-dev")
#endif

#ifdef NRD_HAVE_GRPC
#define GRPC_FEATURE "grpc"
#else
#define GRPC_FEATURE "no-grpc" LACKS("libgrpc-dev")
#endif

static const nrd_tool_verb verbs[] = {
    {"serve", nrd_tool_serve, &nrd_serve_table,
     "serve a model: converts, builds and writes a repository if needed"},
    {"batch", nrd_tool_batch, &nrd_batch_table, "work through a file of requests, as OpenAI's batches have them"},
    {"pull", nrd_tool_pull, &nrd_pull_table, "fetch a model by its name"},
    {"list", nrd_tool_list, &nrd_list_table, "the models of the cache"},
    {"show", nrd_tool_show, &nrd_show_table, "what a model of the cache is"},
    {"rm", nrd_tool_rm, &nrd_rm_table, "remove models from the cache"},
    {"prune", nrd_tool_prune, &nrd_prune_table, "remove what was not used for long"},
    {"ps", nrd_tool_ps, &nrd_ps_table, "the servers of this user, and their models"},
    {"run", nrd_tool_run, &nrd_run_table, "generate text at the terminal"},
    {"chat", nrd_tool_chat, &nrd_chat_table, "talk with a model at the terminal"},
    {"top", nrd_tool_top, &nrd_top_table, "what a server does, live in the terminal"},
    {"convert", nrd_tool_convert, &nrd_convert_table,
     "Hugging Face folder or GGUF -> checkpoint folder"},
    {"quantize", nrd_tool_quantize, &nrd_quantize_table,
     "Hugging Face folder -> the same with quantized weights, calibrated"},
    {"hf_lora_convert", nrd_tool_hf_lora_convert, &nrd_hf_lora_convert_table,
     "LoRA adapter of PEFT -> the arrays that requests carry"},
    {"hf_gpt_convert", nrd_tool_hf_gpt_convert, &nrd_hf_gpt_convert_table,
     "GPT-2 -> the .bin files of TensorRT-LLM v0.5 to v0.8"},
    {"build", nrd_tool_build, &nrd_build_table,
     "checkpoint, Hugging Face folder or GGUF -> engine folder"},
    {"build_multimodal_engine", nrd_tool_build_multimodal_engine, &nrd_build_multimodal_engine_table,
     "the vision tower of a Hugging Face folder -> a folder for multimodal_encoders"},
    {"repo", nrd_tool_repo, &nrd_repo_table, "engine + tokenizer -> five-model repository"},
    {"deploy", nrd_tool_deploy, &nrd_deploy_table,
     "models, precisions, batch sizes, lengths -> a repository for each combination"},
    {"inspect", nrd_tool_inspect, &nrd_inspect_table,
     "what is in a checkpoint, GGUF, engine, tokenizer or model repository"},
    {"tokenize", nrd_tool_tokenize, &nrd_tokenize_table, "text lines -> token ids"},
    {"detokenize", nrd_tool_detokenize, &nrd_detokenize_table, "token ids -> text lines"},
    {"eval", nrd_tool_eval, &nrd_eval_table, "perplexity, log probabilities"},
    {"bench", nrd_tool_bench, &nrd_bench_table, "throughput and latency of an engine"},
    {"bench_serve", nrd_tool_bench_serve, &nrd_bench_serve_table,
     "bench serve: a load on a server, and what its users feel"},
    {"simulate", nrd_tool_simulate, &nrd_simulate_table,
     "what a load would feel on engines that were measured, and how many it needs"},
    {"client", nrd_tool_client, &nrd_client_table, "ask a server: generate, chat, completions, infer"},
    {"fill_template", nrd_tool_fill_template, &nrd_fill_template_table,
     "replace ${NAME} in a config.pbtxt"},
    {"repro", nrd_tool_repro, &nrd_repro_table,
     "a scheduler's record, or that of a crash report, done again"},
    {"options", nrd_tool_options, &nrd_options_table,
     "every option of these programs, for people and programs"},
    {"completion", nrd_tool_completion, &nrd_completion_table, "completion for bash, zsh or fish"},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *f)
{
    fputs("Usage: nereid VERB [options]\n\n", f);
    for (int i = 0; i < N_VERBS; i++) {
        fprintf(f, "  %-15s %s\n", verbs[i].name, verbs[i].summary);
    }
    fputs("\n  nereid help VERB      options of a verb (also nereid VERB --help)\n"
          "  nereid version        version and what this build has (also --version); --json as an object\n",
          f);
}

/* -1: no such verb. "fill-template" is "fill_template". */
static int find_verb(const char *name)
{
    for (int i = 0; i < N_VERBS; i++) {
        if (nrd_opts_distance(name, strlen(name), verbs[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

static int unknown_verb(const char *name)
{
    int best = -1, limit = 3;
    for (int i = 0; i < N_VERBS; i++) {
        int d = nrd_opts_distance(name, strlen(name), verbs[i].name);
        if (d < limit && d < (int)strlen(name)) {
            limit = d;
            best = i;
        }
    }
    fprintf(stderr, "nereid: unknown verb '%s'", name);
    if (best >= 0) {
        fprintf(stderr, "; did you mean '%s'?\n", verbs[best].name);
    } else {
        fputs("\n\n", stderr);
        usage(stderr);
    }
    return 2;
}

static bool is(const char *word, const char *name)
{
    return !strcmp(word, name) || (!strncmp(word, "--", 2) && !strcmp(word + 2, name));
}

/* Of a rank: where its server reports. A folder that is gone does not keep it from working. */
static void report_crashes(int argc, char **argv)
{
    const nrd_crash_config c = {
        .dir = nrd_env(NRD_CRASH_DIR_VARIABLE, NULL), .keep = 8, .program = "nereid", .argc = argc, .argv = argv};
    if (c.dir) {
        nrd_error_free(nrd_crash_install(&c));
    }
}

/* Programs of other names that are a verb: links to this one. */
static int (*find_program(const char *argv0))(int argc, char **argv)
{
    const char *slash = argv0 ? strrchr(argv0, '/') : NULL, *name = slash ? slash + 1 : argv0;
    return !name                            ? NULL
           : !strcmp(name, "trtllm-build") ? nrd_tool_trtllm_build
           : !strcmp(name, "trtllm-serve") ? nrd_tool_trtllm_serve
           : !strcmp(name, "trtllm-bench") ? nrd_tool_trtllm_bench
                                           : NULL;
}

/* A full disk behind "> file" is an error too. */
static int end(const char *verb, int status)
{
    const bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && status == 0) {
        fprintf(stderr, "nereid %s: the output could not be written: %s\n", verb, strerror(errno));
    }
    return failed && status == 0 ? 1 : status;
}

static int version(bool json)
{
    static const char beside[] = PYTHON_FEATURE " " TLS_FEATURE " " REDIS_FEATURE " " CLOUD_FEATURE " " HUB_FEATURE " " SOUND_FEATURE " " IMAGE_FEATURE
                                 " " GRPC_FEATURE;
    char mpi[256];
    nrd_str out = {0};

    nrd_mpi_describe(mpi, sizeof mpi);
    if (!json) {
        printf("nereid %s\n%s %s\nranks over several hosts: %s\n", nrd_version(), nrd_features(), beside, mpi);
        return 0;
    }
    nrd_str_printf(&out, "%s %s", nrd_features(), beside);
    printf("{\"version\": \"%s\", \"features\": [", nrd_version());
    for (char *rest = out.data, *word, *before = NULL; (word = strtok_r(rest, " ", &before)) != NULL; rest = NULL) {
        printf("%s\"%s\"", rest ? "" : ", ", word);
    }
    nrd_str_clear(&out);
    nrd_json_put_cstr(&out, mpi);
    printf("], \"ranks_over_hosts\": %s}\n", nrd_str_cstr(&out));
    nrd_str_fini(&out);
    return 0;
}

int main(int argc, char **argv)
{
    nrd_str_end_on_no_memory(); /* a tool has nothing to go on with */
    nrd_log_enable(NRD_LOG_LEVEL_INFO, false); /* tools say themselves what they do; `serve` becomes tritonserver */
    static char help[] = "--help";
    nrd_tool_verbs_are(verbs, N_VERBS);
    int (*program)(int, char **) = find_program(argv[0]);
    if (program) {
        nrd_unfinished_remove_on_signals();
        return program(argc, argv);
    }
    int i = argc > 1 ? find_verb(argv[1]) : -1;

    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (i >= 0) {
        nrd_unfinished_remove_on_signals();
        return end(verbs[i].name, verbs[i].run(argc - 1, argv + 1));
    }
    long long rank;
    if (argc == 3 && !strcmp(argv[1], "worker") && nrd_parse_i64(argv[2], &rank) && rank > 0 && rank < INT_MAX) {
        report_crashes(argc, argv);
        return nrd_exec_worker_main((int32_t)rank); /* for the executor, not for people */
    }
    if (argc == 3 && !strcmp(argv[1], "mpi-world") && nrd_parse_i64(argv[2], &rank) && rank > 0 && rank < INT_MAX) {
        return nrd_mpi_world_main((int32_t)rank);
    }
    if (argc == 2 && !strcmp(argv[1], "mpi-meet")) {
        return nrd_mpi_meet_main();
    }
    if (argc == 3 && !strcmp(argv[1], "mpi-worker")) {
        report_crashes(argc, argv);
        return nrd_mpi_worker_main(argv[2]);
    }
    if (is(argv[1], "version")) {
        return end("version", version(argc > 2 && !strcmp(argv[2], "--json")));
    }
    if (!is(argv[1], "help") && strcmp(argv[1], "-h") != 0) {
        return unknown_verb(argv[1]);
    }
    if (argc == 2 || is(argv[2], "help") || !strcmp(argv[2], "-h")) {
        usage(stdout);
        return end("help", 0);
    }
    i = find_verb(argv[2]);
    char *more = argc > 3 ? argv[3] : NULL; /* as in `bench serve` */
    return i < 0 ? unknown_verb(argv[2]) : end("help", verbs[i].run(more ? 3 : 2, (char *[]){argv[2], more ? more : help, more ? help : NULL, NULL}));
}
