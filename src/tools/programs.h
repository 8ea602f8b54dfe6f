/* SPDX-License-Identifier: Apache-2.0
 * tools/programs.h - the tables of all programs in one order, for pages, manuals and completion. */
#ifndef NRD_TOOLS_PROGRAMS_H
#define NRD_TOOLS_PROGRAMS_H

#include "base/str.h"
#include "tools/tools.h"

typedef struct nrd_tool_verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const nrd_tool_table *options;
    const char *summary;
} nrd_tool_verb;

/* A program with commands of its own, which is no verb. */
extern const nrd_tool_table nrd_trtllm_bench_table;
#define NRD_TRTLLM_BENCH_COMMANDS "build throughput latency"

/* Said once by main(), before anything else of here; borrows for good. A verb's own file cannot name all of them: it is one. */
void nrd_tool_verbs_are(const nrd_tool_verb *verbs, size_t n);
/* The verbs, then tritonserver; false behind the last. */
bool nrd_tool_program_at(size_t i, nrd_tool_table *out, const char **out_summary);
bool nrd_tool_is_server(const nrd_tool_table *t);
/* As users write it: with hyphens. */
void nrd_tool_put_option(nrd_str *out, const nrd_opt *o);

#endif
