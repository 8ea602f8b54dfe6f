/* SPDX-License-Identifier: Apache-2.0
 * tools/tools.h - the verbs of `nereid` and what they share.
 *
 * Purpose   A verb is `int nrd_tool_<verb>(int argc, char **argv)` in its own file, argv[0] being the
 *           verb; it returns the exit status: 0 fine, 1 failed, 2 wrong usage.
 * Owner     The main thread.
 */
#ifndef NRD_TOOLS_TOOLS_H
#define NRD_TOOLS_TOOLS_H

#include "base/error.h"
#include "base/options.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int nrd_tool_convert(int argc, char **argv);
int nrd_tool_hf_lora_convert(int argc, char **argv);
int nrd_tool_hf_gpt_convert(int argc, char **argv);
int nrd_tool_quantize(int argc, char **argv);
int nrd_tool_build(int argc, char **argv);
/* nereid build below another verb: nothing is printed about what is wrong. Words of argv may be moved. */
nrd_error *nrd_tool_build_below(int argc, char **argv) NRD_MUST_USE;
int nrd_tool_build_multimodal_engine(int argc, char **argv);
/* The same under the name that the guides call: it says how long it took. */
int nrd_tool_trtllm_build(int argc, char **argv);
int nrd_tool_trtllm_serve(int argc, char **argv);
int nrd_tool_trtllm_bench(int argc, char **argv);
int nrd_tool_repo(int argc, char **argv);
int nrd_tool_deploy(int argc, char **argv);
int nrd_tool_repro(int argc, char **argv);
int nrd_tool_simulate(int argc, char **argv);
int nrd_tool_serve(int argc, char **argv);
int nrd_tool_batch(int argc, char **argv);
int nrd_tool_pull(int argc, char **argv);
int nrd_tool_list(int argc, char **argv);
int nrd_tool_show(int argc, char **argv);
int nrd_tool_rm(int argc, char **argv);
int nrd_tool_prune(int argc, char **argv);
int nrd_tool_ps(int argc, char **argv);
int nrd_tool_run(int argc, char **argv);
int nrd_tool_chat(int argc, char **argv);
int nrd_tool_top(int argc, char **argv);
int nrd_tool_bench(int argc, char **argv);
int nrd_tool_bench_serve(int argc, char **argv);
int nrd_tool_client(int argc, char **argv);
int nrd_tool_eval(int argc, char **argv);
int nrd_tool_inspect(int argc, char **argv);
int nrd_tool_tokenize(int argc, char **argv);
int nrd_tool_detokenize(int argc, char **argv);
int nrd_tool_fill_template(int argc, char **argv);
int nrd_tool_options(int argc, char **argv);
int nrd_tool_completion(int argc, char **argv);

/* ---- options ---- */

typedef struct nrd_tool_table {
    const char *verb;
    const char *usage; /* what --help prints above the options */
    const nrd_opt *rows;
    size_t n_rows, max_words; /* words that are no options */
} nrd_tool_table;

extern const nrd_tool_table nrd_batch_table, nrd_build_table, nrd_build_multimodal_engine_table, nrd_bench_table, nrd_bench_serve_table, nrd_chat_table,
    nrd_client_table,
    nrd_completion_table, nrd_convert_table, nrd_deploy_table, nrd_detokenize_table, nrd_eval_table,
    nrd_fill_template_table, nrd_hf_gpt_convert_table, nrd_hf_lora_convert_table, nrd_inspect_table,
    nrd_list_table, nrd_options_table, nrd_prune_table, nrd_ps_table, nrd_pull_table, nrd_quantize_table, nrd_rm_table, nrd_show_table,
    nrd_repo_table, nrd_repro_table, nrd_run_table, nrd_serve_table,
    nrd_simulate_table, nrd_tokenize_table,
    nrd_top_table;

#define NO_EFFECT(...) NRD_OPT_WITHOUT_EFFECT(__VA_ARGS__)
#define REFUSED(...) NRD_OPT_REFUSAL(__VA_ARGS__)
/* Of an option that takes no value: the word behind it may be another. */
#define NO_EFFECT_ALONE(name_, alias_, help_)                                                      \
    {.name = name_, .form = NRD_OPT_FLAG, .help = help_, .alias = alias_, .state = NRD_OPT_NO_EFFECT}
#define NRD_TOOL_TABLE(verb_, usage_, rows_, max_words_)                                           \
    {.verb = verb_, .usage = usage_, .rows = rows_, .n_rows = sizeof(rows_) / sizeof *(rows_),     \
     .max_words = max_words_}

/* Reads argv[1..] into `values`, a struct that holds the defaults. Words that are no options go to
 * `words` (table->max_words), their number to *out_n (may be NULL). Gives -1 to go on; else the exit
 * status: 0 after --help (printed to stdout), 2 after a wrong option (one line on stderr). */
int nrd_tool_parse(const nrd_tool_table *table, int argc, char **argv, void *values, const char **words,
                   size_t *out_n);
/* The same for a verb that runs below another: a wrong option is an error, INVALID_ARG, and --help is one too. */
nrd_error *nrd_tool_read(const nrd_tool_table *table, int argc, char **argv, void *values, const char **words) NRD_MUST_USE;

/* A word for --quantize, as type of linear weights: TensorRT-LLM's names (int8_wo, int4: q4_0, which
 * has a scale for each 32 columns) and type names. NULL, "auto", "none", "full_prec": NONE. */
nrd_error *nrd_tool_parse_quant(const char *word, nrd_dtype *out) NRD_MUST_USE;
/* The name of an element type, of --`option`. NULL, "auto", "native": NONE. INVALID_ARG with the names that people need. */
nrd_error *nrd_tool_parse_dtype(const char *option, const char *word, nrd_dtype *out) NRD_MUST_USE;
/* --embedding_sharding_dim. INVALID_ARG: neither 0 nor 1. */
nrd_error *nrd_tool_parse_sharding(int32_t dim, bool *out_by_columns) NRD_MUST_USE;
/* "12.3 MB" into `out`. */
const char *nrd_human_bytes(uint64_t n, char out[32]);
/* Asks before something is removed. *out_yes: go on. INVALID_ARG: nobody is at the terminal to answer. */
nrd_error *nrd_tool_confirm(bool *out_yes, const char *question) NRD_MUST_USE;
/* Prints "nereid VERB: message", frees the error, gives 1; gives 0 for NULL. */
int nrd_tool_finish(const char *verb, nrd_error *err);
/* What --json of the verbs that write a folder prints: an object on a line. */
void nrd_tool_print_made(const char *dir, const char *architecture, uint64_t n_weights, uint64_t bytes, double seconds);

#endif
