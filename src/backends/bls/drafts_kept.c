/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bls/drafts_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const nrd_bls_first_times[NRD_BLS_FIRST_TIMES] = {"arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns"};

void nrd_bls_drafts_free(bls_drafts *d)
{
    if (!d) {
        return;
    }
    if (d->response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(d->response), "response");
    }
    free(d->ids);
    free(d->log_probs);
    free(d);
}

bool nrd_bls_drafts_output(bls_drafts *d, const char *name, nrd_tb_tensor *out)
{
    static const int64_t one[] = {1, 1};
    const struct {
        const char *name;
        TRITONSERVER_DataType dtype;
        const void *data;
        bool has;
    } scalars[] = {
        {"total_draft_tokens", TRITONSERVER_TYPE_INT32, &d->n_proposed, d->has_counts},
        {"total_accepted_draft_tokens", TRITONSERVER_TYPE_INT32, &d->n_accepted, d->has_counts},
        {"acceptance_rate", TRITONSERVER_TYPE_FP32, &d->acceptance_rate, d->has_counts},
        {"cum_log_probs", TRITONSERVER_TYPE_FP32, &d->cum_log_prob, d->has_log_probs},
    };

    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        if (scalars[i].has && !strcmp(name, scalars[i].name)) {
            *out = (nrd_tb_tensor){name, scalars[i].dtype, one, 2, scalars[i].data, 4, 1};
            return true;
        }
    }
    for (size_t i = 0; i < NRD_BLS_FIRST_TIMES && d->has_times; i++) {
        if (!strcmp(name, nrd_bls_first_times[i])) {
            *out = (nrd_tb_tensor){name, TRITONSERVER_TYPE_INT64, one, 2, (const void *)&d->first_times[i],
                                   sizeof *d->first_times, 1};
            return true;
        }
    }
    if (d->has_log_probs && !strcmp(name, "output_log_probs")) {
        d->log_probs_shape[0] = d->log_probs_shape[1] = 1;
        d->log_probs_shape[2] = d->n_log_probs;
        *out = (nrd_tb_tensor){name, TRITONSERVER_TYPE_FP32, d->log_probs_shape, 3, (const void *)d->log_probs,
                               (size_t)d->n_log_probs * sizeof *d->log_probs, d->n_log_probs};
        return true;
    }
    return false;
}
