/* SPDX-License-Identifier: Apache-2.0
 * Rows that requests bring along, in the device's memory: biases of tokens, prompt tables. */
#include "engine/run/operations.h"
#include "engine/run/steps.h"

nrd_error *nrd_runner_bias_new(nrd_runner *r, const nrd_token_bias *from, nrd_token_bias *out)
{
    size_t n = (size_t)from->n, bytes = n * sizeof *from->values;
    void *p = NULL;

    *out = (nrd_token_bias){0};
    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *from->values + (from->ids ? sizeof *from->ids : 0),
                          "token bias"));
    nrd_error *err = nrd_run_upload(r, p, from->values, bytes);
    if (!err && from->ids) {
        err = nrd_run_upload(r, (uint8_t *)p + bytes, from->ids, n * sizeof *from->ids);
    }
    if (err) {
        nrd_run_free(r, p);
        return err;
    }
    out->values = p;
    out->ids = from->ids ? (const int32_t *)(const void *)((const uint8_t *)p + bytes) : NULL;
    out->n = from->n;
    return NULL;
}

void nrd_runner_bias_free(nrd_runner *r, nrd_token_bias *bias)
{
    nrd_run_free(r, (void *)(uintptr_t)bias->values);
    *bias = (nrd_token_bias){0};
}

nrd_dtype nrd_runner_embedding_dtype(const nrd_runner *r)
{
    return r->act;
}

nrd_error *nrd_runner_table_new(nrd_runner *r, const void *rows, size_t bytes, const uint8_t **out)
{
    void *p = NULL;
    if (r->model->tp_size > 1 && !r->shared) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "prompt_embedding_table: an engine of tp_size %d takes none on this "
                                               "device; use the device \"cpu\", or an engine of tp_size 1",
                          r->model->tp_size);
    }
    NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, "prompt table"));
    nrd_error *err = nrd_run_upload(r, p, rows, bytes);
    if (err) {
        nrd_run_free(r, p);
        return err;
    }
    *out = p;
    return NULL;
}

void nrd_runner_table_free(nrd_runner *r, const uint8_t *table)
{
    nrd_run_free(r, (void *)(uintptr_t)table);
}

nrd_error *nrd_run_take_deep_rows(nrd_runner *r, int32_t n)
{
    if (!r->dev->ops->add_rows) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pictures that add to the states behind layers (DeepStack) are not supported on this "
                                               "device; use --device cpu");
    }
    if (n > r->spec->n_layers) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pictures add to the states behind the first %d layers, and the first pipeline stage "
                                               "has %d", n, r->spec->n_layers);
    }
    r->n_deep = n;
    for (int i = 0; i < r->n_buffers; i++) {
        r->batch[i].lim.row_bytes = (size_t)(1 + n) * (size_t)r->spec->hidden * r->act_bytes;
    }
    return NULL;
}
