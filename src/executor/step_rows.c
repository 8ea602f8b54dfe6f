/* SPDX-License-Identifier: Apache-2.0
 * What a step calls back with while it runs: rows of logits, sums of states, and inputs of products, for who asked for
 * them. */
#include "executor/internal.h"

#include "base/logits.h"
#include "engine/decode/decode.h"

#include <math.h>
#include <string.h>

void nrd_exec_on_context_rows(void *user, nrd_seq *q, int32_t first, int32_t n,
                                   const float *logits, int64_t stride)
{
    nrd_exec *x = user;
    nrd_exec_request_state *r = q->req.owner;
    size_t vocab = (size_t)x->spec->vocab;
    if (!nrd_exec_pause_device(x)) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * (size_t)stride;
        if (r->score || r->prompt_scores) {
            nrd_exec_scores_row(r->score ? r->score : r->prompt_scores, q, first + i, row, x->spec->vocab);
        }
        if (r->context_logits) {
            memcpy(r->context_logits + (size_t)(first + i) * vocab, row, vocab * sizeof *row);
        }
        if (r->no_speech_id >= 0) {
            r->no_speech_prob = (float)exp((double)row[r->no_speech_id] - nrd_log_sum_exp(row, x->spec->vocab));
        }
    }
    nrd_exec_enter_device(x);
}

void nrd_exec_on_input(void *user, int32_t layer, int32_t expert, int32_t position, int32_t n_tokens, int64_t cols,
                            const void *x, nrd_dtype dtype)
{
    const nrd_exec_config *c = &((const nrd_exec *)user)->cfg;
    const nrd_exec_product product = position == NRD_LORA_AT_QKV     ? NRD_PRODUCT_QKV
                                     : position == NRD_LORA_AT_DENSE ? NRD_PRODUCT_DENSE
                                     : position == NRD_LORA_AT_UP    ? NRD_PRODUCT_UP
                                                                     : NRD_PRODUCT_DOWN;
    c->on_product_input(c->on_product_input_user, layer, expert, product, n_tokens, (int32_t)cols, x, dtype);
}

void nrd_exec_on_cache(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values)
{
    const nrd_exec_config *c = &((const nrd_exec *)user)->cfg;
    c->on_cache(c->on_product_input_user, layer, n_tokens, stride, keys, values);
}

/* A sequence that was paused begins its prompt again, and its sums with it. */
void nrd_exec_on_state_sum(void *user, nrd_seq *q, int32_t first, int32_t n, const double *sum)
{
    const nrd_exec *x = user;
    nrd_exec_request_state *r = q->req.owner;
    const size_t hidden = (size_t)x->spec->hidden;
    if (!r->embedding) {
        return; /* it has answered */
    }
    if (r->pooling != NRD_POOLING_MEAN) { /* of one position */
        for (size_t k = 0; k < hidden; k++) {
            r->embedding[k] = (float)sum[k];
        }
        return;
    }
    if (first == 0) {
        memset(r->sums, 0, hidden * sizeof *r->sums);
    }
    for (size_t k = 0; k < hidden; k++) {
        r->sums[k] += sum[k];
    }
    for (size_t k = 0; k < hidden && first + n == r->n_prompt; k++) {
        r->embedding[k] = (float)(r->sums[k] / r->n_prompt);
    }
}

void nrd_exec_on_choice_row(void *user, nrd_seq *q, int32_t beam, int32_t n_generated,
                                 const float *logits)
{
    const nrd_exec *x = user;
    nrd_exec_request_state *r = q->req.owner;
    size_t vocab = (size_t)x->spec->vocab;
    nrd_exec_buffer *b = r->generation_logits ? &r->generation_logits[q->req.index] : NULL;
    const size_t row = (size_t)n_generated * (size_t)q->req.width + (size_t)beam;
    if (nrd_seq_is_done(q) || !b || r->lacks_logits) {
        return;
    }
    if (!nrd_exec_buffer_reserve(b, (row + 1) * vocab * sizeof *logits)) {
        r->lacks_logits = true; /* its answers say so */
        return;
    }
    memcpy((float *)b->data + row * vocab, logits, vocab * sizeof *logits);
}
