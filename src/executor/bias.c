/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/internal.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

nrd_error *nrd_exec_bias_check(const nrd_exec_request *in, int32_t vocab)
{
    if (in->n_bias == 0) {
        return NULL;
    }
    if (in->n_bias < 0 || in->n_bias > NRD_LIMIT_LOGIT_BIAS || !in->bias_ids || !in->bias_values) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "logit_bias has %d entries, at most %d are allowed",
                          in->n_bias, NRD_LIMIT_LOGIT_BIAS);
    }
    if (in->embedding_bias) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "logit_bias and embedding_bias are both given");
    }
    for (int32_t i = 0; i < in->n_bias; i++) {
        if (in->bias_ids[i] < 0 || in->bias_ids[i] >= vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "logit_bias has the token id %d, expected 0 to %d (the model's vocabulary)",
                              in->bias_ids[i], vocab - 1);
        }
    }
    return NULL;
}

static nrd_error *new_entries(nrd_exec_request_state *r, int32_t n)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(r->bias_values, n, err, fail);
    NRD_NEW_GOTO(r->bias_ids, n, err, fail);
fail:
    return err;
}

/* A vector over the vocabulary: kept whole only where it has more entries than a sparse one may. */
static nrd_error *copy_dense(nrd_exec_request_state *r, const float *bias, int32_t vocab)
{
    nrd_error *err = NULL;
    int32_t n = 0;

    for (int32_t i = 0; i < vocab; i++) {
        n += bias[i] != 0;
    }
    if (n > NRD_LIMIT_LOGIT_BIAS) {
        NRD_NEW_GOTO(r->bias_values, vocab, err, fail);
        memcpy(r->bias_values, bias, (size_t)vocab * sizeof *bias);
        r->n_bias = vocab;
        return NULL;
    }
    NRD_TRY(new_entries(r, n));
    for (int32_t i = 0; r->n_bias < n && i < vocab; i++) {
        if (bias[i] != 0) {
            r->bias_ids[r->n_bias] = i;
            r->bias_values[r->n_bias++] = bias[i];
        }
    }
fail:
    return err;
}

typedef struct entry {
    int32_t id, at;
} entry;

static int by_id(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : x->at < y->at ? -1 : 1;
}

static nrd_error *copy_sparse(nrd_exec_request_state *r, const int32_t *ids, const float *values, int32_t n)
{
    nrd_error *err = NULL;
    entry *order = NULL;

    NRD_NEW_GOTO(order, n, err, done);
    NRD_TRY_GOTO(new_entries(r, n), err, done);
    for (int32_t i = 0; i < n; i++) {
        order[i] = (entry){ids[i], i};
    }
    qsort(order, (size_t)n, sizeof *order, by_id);
    for (int32_t i = 0; i < n; i++) {
        if (i + 1 < n && order[i + 1].id == order[i].id) {
            continue; /* the last one holds */
        }
        r->bias_ids[r->n_bias] = order[i].id;
        r->bias_values[r->n_bias++] = values[order[i].at];
    }
done:
    free(order);
    return err;
}

nrd_error *nrd_exec_bias_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    if (in->n_bias > 0) {
        return copy_sparse(r, in->bias_ids, in->bias_values, in->n_bias);
    }
    return in->embedding_bias ? copy_dense(r, in->embedding_bias, r->exec->spec->vocab) : NULL;
}
