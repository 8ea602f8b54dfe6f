/* SPDX-License-Identifier: Apache-2.0
 * The nv_llm_draft_* families: how many tokens were guessed, how many held, and what guessing took. */
#include "backends/tensorrtllm/llm.h"

typedef enum { FAM_DRAFTS, FAM_TOKENS, FAM_TIME, FAM_COUNT } family_id;

static const struct {
    const char *name, *help;
} families[FAM_COUNT] = {
    [FAM_DRAFTS] = {"nv_llm_drafts", "Drafts that steps of the engine verified"},
    [FAM_TOKENS] = {"nv_llm_draft_tokens", "Tokens of drafts, and those that held"},
    [FAM_TIME] = {"nv_llm_draft_us", "Microseconds that a draft model took"},
};

static const struct {
    family_id family;
    const char *label, *value;
} rows[] = {
    {FAM_DRAFTS, NULL, NULL},
    {FAM_TOKENS, "draft_token_type", "proposed"},
    {FAM_TOKENS, "draft_token_type", "accepted"},
    {FAM_TIME, NULL, NULL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

struct nrd_llm_draft_metrics {
    TRITONSERVER_MetricFamily *families[FAM_COUNT];
    TRITONSERVER_Metric *rows[N_ROWS];
};

TRITONSERVER_Error *nrd_llm_draft_metrics_new(nrd_llm_draft_metrics **out, const nrd_llm_instance *inst)
{
    nrd_llm_draft_metrics *m = calloc(1, sizeof *m);
    TRITONSERVER_Error *err = m ? NULL : nrd_tb_error(nrd_error_no_memory());

    for (int f = 0; f < FAM_COUNT && !err; f++) {
        err = TRITONSERVER_MetricFamilyNew(&m->families[f], TRITONSERVER_METRIC_KIND_COUNTER, families[f].name,
                                           families[f].help);
    }
    for (int i = 0; i < N_ROWS && !err; i++) {
        err = nrd_llm_metric_new(&m->rows[i], m->families[rows[i].family], inst, rows[i].label, rows[i].value, NULL);
    }
    if (err) {
        nrd_llm_draft_metrics_free(m);
        m = NULL;
        if (TRITONSERVER_ErrorCode(err) == TRITONSERVER_ERROR_UNSUPPORTED) { /* --allow-metrics=false */
            TRITONSERVER_ErrorDelete(err);
            err = NULL;
        }
    }
    *out = m;
    return err;
}

void nrd_llm_draft_metrics_free(nrd_llm_draft_metrics *m)
{
    for (int i = 0; m && i < N_ROWS; i++) {
        if (m->rows[i]) {
            nrd_tb_log_error(TRITONSERVER_MetricDelete(m->rows[i]), "metric");
        }
    }
    for (int f = 0; m && f < FAM_COUNT; f++) {
        if (m->families[f]) {
            nrd_tb_log_error(TRITONSERVER_MetricFamilyDelete(m->families[f]), "metric");
        }
    }
    free(m);
}

void nrd_llm_draft_metrics_step(nrd_llm_draft_metrics *m, const nrd_iter_stats *s)
{
    const double more[N_ROWS] = {
        s->n_drafts,
        s->n_draft_tokens,
        s->n_accepted_draft_tokens,
        (double)s->draft_ns / 1e3,
    };
    for (int i = 0; m && i < N_ROWS; i++) {
        if (more[i] > 0) {
            nrd_tb_log_error(TRITONSERVER_MetricIncrement(m->rows[i], more[i]), "metric");
        }
    }
}
