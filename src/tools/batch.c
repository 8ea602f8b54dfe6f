/* SPDX-License-Identifier: Apache-2.0
 * nereid batch FILE -o OUT --model PATH: the steps of `nereid serve`, then the server without a port, which works
 * through the file and ends. So a line is read and answered by the code that answers it on /v1. */
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid batch FILE.jsonl -o OUT.jsonl --model PATH [options]\n"
    "Works through a file of requests, one a line, as OpenAI's batches have them:\n"
    "  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": […]}}\n"
    "url: /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses. No port is opened. PATH is what\n"
    "nereid serve takes. Answers are lines of OUT.jsonl; lines that have one there are left out, so the same command\n"
    "goes on where it was interrupted.\n"
    "Exit status: 0 each line succeeded; 3 each has an answer, some are errors; 1 it could not run or was interrupted;\n"
    "2 wrong options.\n";

enum { MAX_PASSED = 64 };

typedef struct options {
    const char *output, *model;
    bool json;
    int32_t parallel;
    char *passed[MAX_PASSED]; /* owned; options of serve */
    int n_passed;
} options;

/* Takes word. */
static nrd_error *pass(options *o, char *word)
{
    if (o->n_passed == MAX_PASSED) {
        free(word);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "at most %d options", MAX_PASSED);
    }
    o->passed[o->n_passed++] = word;
    return NULL;
}

static nrd_error *on_passed(void *values, const char *name, const char *value)
{
    return pass(values, nrd_xasprintf("--%s=%s", name, value));
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define PASSED(name_, alias_, arg_, def_, help_)                                                   \
    {.name = name_, .form = NRD_OPT_CUSTOM, .parse = on_passed, .arg = arg_, .help = help_, .alias = alias_, .def = def_}
static const nrd_opt rows[] = {
    OPT(STR, "output", "-o --output_file", output, "FILE", NULL, "the answers, one a line"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object at the end: lines, how many failed, tokens, seconds"),
    OPT(STR, "model", "-m", model, "PATH", NULL, "the model that answers every line, whatever model the line names"),
    {.name = "parallel", .form = NRD_OPT_INT, .offset = offsetof(options, parallel), .min = 1, .max = 4096, .arg = "N",
     .help = "requests that are under way at a time", .def = "64"},
    PASSED("max_seq_len", "-c --ctx_size --max_model_len", "N", "what the model was made for", "tokens of prompt and answer"),
    PASSED("tp_size", "--tensor_parallel_size", "N", "1", "ranks that share each layer: so many processes"),
    PASSED("pp_size", "--pipeline_parallel_size", "N", "1", "pipeline stages: so many processes, times tp_size"),
    PASSED("moe_ep_size", "--ep_size", "N", "1", "of the tp_size ranks, how many share the list of experts"),
    PASSED("tokenizer_dir", NULL, "DIR", NULL, "the tokenizer, where PATH has none"),
    PASSED("lora", "--lora_modules", "NAME=FOLDER", NULL, "a LoRA adapter, which lines call NAME; may be repeated"),
    PASSED("speculative_config", NULL, "JSON", "off", "several tokens a step, the same ones (nereid help serve)"),
    PASSED("generation_config", NULL, "auto|none", "auto", "how lines sample that do not say: as the model says, or as OpenAI does"),
    PASSED("set", NULL, "NAME:VALUE[,…]", NULL, "values for the model repository (nereid help repo)"),
    PASSED("build", NULL, "OPTION[=VALUE]", NULL, "an option for nereid build; may be repeated"),
    PASSED("log_info", NULL, "true|false", "false", "what the server says while it loads"),
};
const nrd_tool_table nrd_batch_table = NRD_TOOL_TABLE("batch", usage, rows, 1);

static nrd_error *serve_file(options *o, const char *file, int *out_status)
{
    static const char *const closed[] = {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false",
                                         "--restart-on-failure=false"};
    char *argv[MAX_PASSED + 16] = {(char *)(uintptr_t) "serve", (char *)(uintptr_t)o->model, (char *)(uintptr_t) "--log-info=false"};
    int argc = 3; /* what is passed comes later, and wins */

    NRD_TRY(pass(o, nrd_xasprintf("--batch-file=%s", file)));
    NRD_TRY(pass(o, nrd_xasprintf("--batch-output=%s", o->output)));
    NRD_TRY(pass(o, nrd_xasprintf("--openai-batch-requests=%d", o->parallel)));
    if (o->json) {
        NRD_TRY(pass(o, nrd_xstrdup("--batch-json=true")));
    }
    for (int i = 0; i < o->n_passed; i++) {
        argv[argc++] = o->passed[i];
    }
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        argv[argc++] = (char *)(uintptr_t)closed[i];
    }
    *out_status = nrd_tool_serve(argc, argv);
    return NULL;
}

int nrd_tool_batch(int argc, char **argv)
{
    options o = {.parallel = 64};
    const char *file = NULL;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_batch_table, argc, argv, &o, &file, &n);

    if (status < 0 && (!file || !o.output || !o.model)) {
        fprintf(stderr, "nereid batch: %s is missing (see --help)\n", !file ? "FILE.jsonl" : !o.output ? "-o OUT.jsonl" : "--model PATH");
        status = 2;
    } else if (status < 0 && !nrd_path_exists(file)) { /* before a model is fetched or built */
        fprintf(stderr, "nereid batch: '%s' does not exist\n", file);
        status = 1;
    } else if (status < 0) {
        nrd_error *err = serve_file(&o, file, &status);
        status = err ? nrd_tool_finish("batch", err) : status;
    }
    for (int i = 0; i < o.n_passed; i++) {
        free(o.passed[i]);
    }
    return status;
}
