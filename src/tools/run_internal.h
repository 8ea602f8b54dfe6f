/* SPDX-License-Identifier: Apache-2.0
 * tools/run_internal.h - what run_options.c reads and run.c does. */
#ifndef NRD_TOOLS_RUN_INTERNAL_H
#define NRD_TOOLS_RUN_INTERNAL_H

#include "tools/model_path.h"
#include "tools/tools.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_RUN_UNSET = INT32_MIN };

/* Strings borrow from the command line. */
typedef struct nrd_run_options {
    const char *prompt, *prompt_file, *tokenizer_dir, *seed, *stop, *system, *chat_template;
    const char *generation_config, *image, *source_lang, *target_lang;
    int32_t n, top_k, beam_width;                         /* NRD_RUN_UNSET: the model's */
    int32_t n_otherwise;                                  /* tokens, where the model has no say */
    double temperature, top_p, min_p, repetition_penalty; /* NAN: the model's */
    bool chat, echo, ignore_eos, quiet;
    bool asks; /* as people ask: a chat where the model has a template */
    nrd_exec_options exec;
} nrd_run_options;

/* Reads the command line of `table`; chat: that of nereid chat. -1: go on with *path, else the exit status, and what is wrong
 * was printed. */
int nrd_run_read_options(nrd_run_options *o, const nrd_tool_table *table, int argc, char **argv, bool chat, const char **path);

#endif
