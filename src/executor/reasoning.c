/* SPDX-License-Identifier: Apache-2.0
 * The budget of a request's reasoning: its marks checked and copied. engine/decode/reasoning.c keeps to it. */
#include "executor/internal.h"

#include "base/mem.h"

#include <string.h>

static nrd_error *check_ids(const nrd_exec *x, const char *name, const nrd_exec_ids *ids, int32_t max)
{
    if (ids->n < 0 || ids->n > max || (ids->n > 0 && !ids->ids)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "reasoning: %s has %d ids, at most %d are allowed", name, ids->n, max);
    }
    for (int32_t i = 0; i < ids->n; i++) {
        if (ids->ids[i] < 0 || ids->ids[i] >= x->spec->vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "reasoning: %s holds the id %d, expected 0 to %d", name, ids->ids[i],
                              x->spec->vocab - 1);
        }
    }
    return NULL;
}

/* Whether the one stands somewhere in the other. */
static bool holds(const nrd_exec_ids *in, const nrd_exec_ids *what)
{
    for (int32_t i = 0; i + what->n <= in->n; i++) {
        if (memcmp(in->ids + i, what->ids, (size_t)what->n * sizeof *in->ids) == 0) {
            return true;
        }
    }
    return false;
}

nrd_error *nrd_exec_reasoning_check(const nrd_exec *x, const nrd_exec_request *in)
{
    if (in->reasoning_budget < -1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "reasoning: the budget is %d, expected at least 0, or -1: no limit",
                          in->reasoning_budget);
    }
    if (in->reasoning_budget == -1) {
        return NULL;
    }
    NRD_TRY(check_ids(x, "begin", &in->reasoning_begin, NRD_MAX_REASONING_MARK));
    NRD_TRY(check_ids(x, "end", &in->reasoning_end, NRD_MAX_REASONING_MARK));
    NRD_TRY(check_ids(x, "close", &in->reasoning_close, NRD_MAX_REASONING_CLOSE));
    if (in->reasoning_begin.n == 0 && !in->reasoning_open) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "reasoning: begin has no ids, and the prompt does not end in it");
    }
    if (in->reasoning_end.n == 0 || !holds(&in->reasoning_close, &in->reasoning_end)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "reasoning: end has no ids, or close does not hold them");
    }
    if (in->guide_type || in->pooling || in->sampling.beam_width > 1 || in->return_generation_logits) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "reasoning: there is no budget beside %s",
                          in->guide_type                   ? "a guide, which binds all of the text"
                          : in->pooling                    ? "a pooling"
                          : in->sampling.beam_width > 1    ? "beams"
                                                           : "return_generation_logits: forced tokens have none");
    }
    return NULL;
}

static int32_t copy_ids(int32_t *to, const nrd_exec_ids *from)
{
    for (int32_t i = 0; i < from->n; i++) {
        to[i] = from->ids[i];
    }
    return from->n;
}

nrd_error *nrd_exec_reasoning_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;
    nrd_reasoning *to = NULL;

    if (in->reasoning_budget < 0) {
        return NULL;
    }
    NRD_NEW_GOTO(to, 1, err, fail);
    to->budget = in->reasoning_budget;
    to->open = in->reasoning_open;
    to->n_begin = copy_ids(to->begin, &in->reasoning_begin);
    to->n_end = copy_ids(to->end, &in->reasoning_end);
    to->n_close = copy_ids(to->close, &in->reasoning_close);
    r->reasoning = to;
fail:
    return err;
}
