/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_draft_* families: how many tokens were guessed, how many held, and what guessing took. */
#include "backends/tensorrtllm/metric_table.h"

typedef enum { FAM_DRAFTS, FAM_TOKENS, FAM_TIME, FAM_COUNT } family_id;

static const nrd_llm_metric_family families[FAM_COUNT] = {
    [FAM_DRAFTS] = {"nv_llm_drafts", "Drafts that steps of the engine verified", NULL, TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_TOKENS] = {"nv_llm_draft_tokens", "Tokens of drafts, and those that held", "draft_token_type",
                    TRITONSERVER_METRIC_KIND_COUNTER},
    [FAM_TIME] = {"nv_llm_draft_us", "Microseconds that a draft model took", NULL, TRITONSERVER_METRIC_KIND_COUNTER},
};

static const nrd_llm_metric_row rows[] = {
    {FAM_DRAFTS, NULL},
    {FAM_TOKENS, "proposed"},
    {FAM_TOKENS, "accepted"},
    {FAM_TIME, NULL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const nrd_llm_metric_table table = {families, rows, FAM_COUNT, N_ROWS};

TRITONSERVER_Error *nrd_llm_draft_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst)
{
    return nrd_llm_metric_set_new(out, &table, inst);
}

void nrd_llm_draft_metrics_step(nrd_llm_metric_set *m, const nrd_iter_stats *s)
{
    const double more[N_ROWS] = {
        s->n_drafts,
        s->n_draft_tokens,
        s->n_accepted_draft_tokens,
        (double)s->draft_ns / 1e3,
    };
    nrd_llm_metric_set_add(m, more);
}
