/* SPDX-License-Identifier: Apache-2.0 */
#include "core/question.h"

#include "core/cancel.h"
#include "core/claim.h"
#include "core/model_internal.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/types.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Counts the bytes while `at` is NULL, else puts them there. */
typedef struct writer {
    char *at;
    size_t n;
} writer;

static void put(writer *w, const void *data, size_t n)
{
    if (w->at && n) {
        memcpy(w->at + w->n, data, n);
    }
    w->n += n;
}

static void put_text(writer *w, const char *s)
{
    put(w, s, strlen(s) + 1);
}

static int input_by_name(const void *a, const void *b)
{
    return strcmp((*(const nrd_input *const *)a)->name, (*(const nrd_input *const *)b)->name);
}

static int param_by_name(const void *a, const void *b)
{
    return strcmp((*(const nrd_param *const *)a)->name, (*(const nrd_param *const *)b)->name);
}

static void put_param(writer *w, const nrd_param *p)
{
    const uint32_t type = (uint32_t)p->type;
    uint64_t n = 0;

    switch (p->type) {
    case TRITONSERVER_PARAMETER_STRING: n = strlen(p->str); break;
    case TRITONSERVER_PARAMETER_INT: n = sizeof p->i; break;
    case TRITONSERVER_PARAMETER_BOOL: n = sizeof p->b; break;
    case TRITONSERVER_PARAMETER_DOUBLE: n = sizeof p->d; break;
    case TRITONSERVER_PARAMETER_BYTES: n = p->n_bytes; break;
    }
    put_text(w, p->name);
    put(w, &type, sizeof type);
    put(w, &n, sizeof n);
    put(w, nrd_param_value(p), n);
}

static void put_input(writer *w, const nrd_input *in)
{
    put_text(w, in->name);
    put_text(w, nrd_datatype_name(in->dtype));
    put(w, &in->n_dims, sizeof in->n_dims);
    put(w, in->dims, in->n_dims * sizeof in->dims[0]);
    put(w, &in->byte_size, sizeof in->byte_size);
    for (uint32_t k = 0; k < in->n_segments; k++) {
        put(w, in->segments[k].base, in->segments[k].attr.byte_size);
    }
}

/* Their number first: clients choose how many there are. */
static void put_outputs(writer *w, const nrd_request *r)
{
    const nrd_config *cfg = r->model->config;
    uint32_t n = 0;

    for (size_t i = 0; i < cfg->n_output; i++) {
        n += nrd_request_wants(r, cfg->output[i]->name);
    }
    put(w, &n, sizeof n);
    for (size_t i = 0; n < cfg->n_output && i < cfg->n_output; i++) {
        if (nrd_request_wants(r, cfg->output[i]->name)) {
            put_text(w, cfg->output[i]->name);
        }
    }
}

static bool is_readable(const nrd_request *r)
{
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        for (uint32_t k = 0; k < r->inputs[i]->n_segments; k++) {
            if (r->inputs[i]->segments[k].attr.memory_type == TRITONSERVER_MEMORY_GPU) {
                return false;
            }
        }
    }
    return true;
}

static nrd_buf *new_claimed(const nrd_request *r, size_t n)
{
    nrd_claim claim = {0};

    if (n >= NRD_CLAIM_LEAST) {
        nrd_claim_enter(&claim, nrd_cancel_account(r->cancel));
        nrd_error *err = nrd_claim_take(&claim, n, "the response cache");
        if (err) { /* it is not kept */
            nrd_error_free(err);
            nrd_server_unclaim(&claim, NRD_CLAIM_ALL);
            return NULL;
        }
    }
    nrd_buf *b = nrd_buf_new(n);
    if (b) {
        b->claim = claim;
    } else {
        nrd_server_unclaim(&claim, NRD_CLAIM_ALL);
    }
    return b;
}

nrd_buf *nrd_question_new(const nrd_request *r, const void *head, size_t n_head)
{
    const nrd_input **inputs = calloc(r->n_inputs + 1u, sizeof *inputs);
    const nrd_param **params = calloc(r->params.n + 1u, sizeof *params);
    nrd_buf *b = NULL;
    writer w = {0};

    if (!inputs || !params || !is_readable(r)) {
        goto done;
    }
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        inputs[i] = r->inputs[i];
    }
    for (uint32_t i = 0; i < r->params.n; i++) {
        params[i] = &r->params.items[i];
    }
    qsort(inputs, r->n_inputs, sizeof *inputs, input_by_name);
    qsort(params, r->params.n, sizeof *params, param_by_name);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            b = new_claimed(r, w.n);
            if (!b) {
                goto done;
            }
            w = (writer){.at = b->data};
        }
        put(&w, head, n_head);
        put_text(&w, r->model->name);
        put(&w, &r->model->version, sizeof r->model->version);
        put(&w, &r->params.n, sizeof r->params.n);
        for (uint32_t i = 0; i < r->params.n; i++) {
            put_param(&w, params[i]);
        }
        put(&w, &r->n_inputs, sizeof r->n_inputs);
        for (uint32_t i = 0; i < r->n_inputs; i++) {
            put_input(&w, inputs[i]);
        }
        put_outputs(&w, r);
    }
done:
    free(inputs);
    free(params);
    return b;
}
