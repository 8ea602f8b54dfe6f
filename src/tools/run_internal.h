/* SPDX-License-Identifier: Apache-2.0
 * tools/run_internal.h - what run_options.c reads and run.c does. */
#ifndef NRD_TOOLS_RUN_INTERNAL_H
#define NRD_TOOLS_RUN_INTERNAL_H

#include "base/str.h"
#include "nereid/executor.h"
#include "tools/model_path.h"
#include "tools/tools.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_RUN_UNSET = INT32_MIN };

/* Strings borrow from the command line. */
typedef struct nrd_run_options {
    const char *prompt, *prompt_file, *seed, *stop, *system, *chat_template;
    const char *generation_config, *image, *video, *source_lang, *target_lang;
    int32_t n, top_k, beam_width;                         /* NRD_RUN_UNSET: the model's */
    int32_t n_otherwise;                                  /* tokens, where the model has no say */
    double temperature, top_p, min_p, repetition_penalty, video_fps; /* NAN: the model's */
    bool chat, echo, ignore_eos, quiet, json;
    bool asks; /* as people ask: a chat where the model has a template */
    nrd_exec_options exec;
} nrd_run_options;

/* Reads the command line of `table`; chat: that of nereid chat. -1: go on with *path, else the exit status, and what is wrong
 * was printed. */
int nrd_run_read_options(nrd_run_options *o, const nrd_tool_table *table, int argc, char **argv, bool chat, const char **path);

/* What an answer was, when it is over. All borrowed. */
typedef struct nrd_run_result {
    const nrd_str *text, *reasoning; /* reasoning NULL: the model has no such part */
    const nrd_perf_metrics *perf;
    size_t n_prompt; /* tokens */
    int64_t n_new;   /* tokens */
    nrd_finish_reason finish;
    const uint64_t *seed; /* NULL: nothing was drawn */
} nrd_run_result;

/* One line to stderr: tokens, tokens a second, drafts that held, the seed. */
void nrd_run_print_rates(const nrd_run_result *r);
/* One line to stdout: an object with the same, the text and why it ended. */
void nrd_run_print_json(const nrd_run_result *r);

#endif
