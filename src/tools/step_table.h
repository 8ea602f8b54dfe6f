/* SPDX-License-Identifier: Apache-2.0
 * tools/step_table.h - how long steps take: what `nereid bench steps` measures and `nereid simulate` reads.
 *
 * Purpose   Steps that only generate are measured over rows (sequences) and context; prompts over their tokens, and
 *           what a token of a prompt costs more for each token that lies before it. What lies between is interpolated
 *           linearly; what lies beyond follows the last two measurements.
 *           A step that does both: the products as for a prompt of all rows, and what attention adds for either
 *           (products read the weights once for all rows, attention works for each sequence by itself).
 * Owner     The caller; one thread.
 * Units     Milliseconds, tokens.
 * Errors    INVALID_ARG names the file, the member and what is wrong with it.
 * Limits    NRD_STEP_LEVELS levels of rows, of contexts and of prompts.
 */
#ifndef NRD_TOOLS_STEP_TABLE_H
#define NRD_TOOLS_STEP_TABLE_H

#include "base/error.h"
#include "base/str.h"
#include "engine/simulate.h"

enum { NRD_STEP_LEVELS = 32 };

typedef struct nrd_step_level {
    double rows;
    int32_t n;
    double context[NRD_STEP_LEVELS], ms[NRD_STEP_LEVELS]; /* [n] by context, which ascends */
} nrd_step_level;

typedef struct nrd_step_table {
    char device[96];
    int32_t tp_size, pp_size; /* of the engine that was measured */
    int32_t max_batch_size, max_num_tokens, max_seq_len, mixed_context_tokens, even_context_tokens, n_blocks, block_tokens;
    int32_t n_generation, n_prompts;
    nrd_step_level generation[NRD_STEP_LEVELS]; /* rows ascend */
    double prompt_tokens[NRD_STEP_LEVELS], prompt_ms[NRD_STEP_LEVELS]; /* prompts that begin in this step */
    double pair_us; /* a token of a prompt, for each token before the step */
} nrd_step_table;

/* One more measurement; those of a level come by context, levels by rows. False: there are too many. */
bool nrd_step_table_add(nrd_step_table *t, double rows, double context, double ms);

void nrd_step_table_put(const nrd_step_table *t, nrd_str *out); /* as a JSON object */
nrd_error *nrd_step_table_read(nrd_step_table *out, const char *path) NRD_MUST_USE; /* its member "steps" */
double nrd_step_table_ms(const nrd_step_table *t, const nrd_sim_step *step);

#endif
