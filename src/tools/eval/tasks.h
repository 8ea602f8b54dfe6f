/* SPDX-License-Identifier: Apache-2.0
 * tools/eval/tasks.h - questions with several answers, from files of lm-evaluation-harness.
 *
 * Purpose   Reads what `lm_eval --log_samples` wrote (samples_TASK.jsonl: "arguments", "target", "resps") or lines of {"query",
 *           "choices", "gold"}, asks the model how likely each answer is, and says how often the right one is likeliest: alone
 *           (acc), and for each of its characters (acc_norm). Where the file has what another model said, both are held
 *           against each other.
 * Owner     One thread.
 * Errors    INVALID_ARG names the line and the member. UNSUPPORTED: samples of tasks that generate.
 * Sources   EleutherAI/lm-evaluation-harness 0.4 (the form of its files, its definitions of acc and acc_norm).
 */
#ifndef NRD_TOOLS_EVAL_TASKS_H
#define NRD_TOOLS_EVAL_TASKS_H

#include "base/json.h"
#include "tools/eval/continuation.h"

typedef struct nrd_eval_task {
    int64_t n;                 /* questions */
    int64_t right, right_norm; /* of one answer each: those whose tokens all are the likeliest */
    int64_t n_told;            /* questions with log likelihoods in the file */
    int64_t told_right, told_right_norm, same; /* of those: what the file's model chose; how often this one chose the same */
    int64_t n_answers;         /* that were compared */
    double off_sum, off_most;  /* of their log likelihoods, absolute */
} nrd_eval_task;

/* At most `limit` questions; 0: all. */
nrd_error *nrd_eval_task_run(const nrd_eval_model *m, const char *path, int64_t limit, nrd_eval_task *out) NRD_MUST_USE;

#endif
