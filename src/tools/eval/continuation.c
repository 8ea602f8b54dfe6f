/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/eval/continuation.h"

#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>

nrd_error *nrd_eval_last(const nrd_eval_model *m, const int32_t *ids, size_t n, size_t n_last, nrd_eval_continuation *out)
{
    nrd_error *err = NULL;
    float *log_probs = NULL, *best = NULL;
    int32_t *best_ids = NULL;

    *out = (nrd_eval_continuation){.n_tokens = (int32_t)n_last, .is_greedy = true};
    NRD_NEW_GOTO(log_probs, n_last, err, done);
    NRD_NEW_GOTO(best, n_last, err, done);
    NRD_NEW_GOTO(best_ids, n_last, err, done);
    NRD_TRY_GOTO(nrd_exec_score_last(m->exec, m->lora_id, ids, (int32_t)n, (int32_t)n_last, 1, log_probs, best_ids, best), err, done);
    for (size_t i = 0; i < n_last; i++) {
        out->log_prob += (double)log_probs[i];
        out->is_greedy = out->is_greedy && best_ids[i] == ids[n - n_last + i];
    }
done:
    free(log_probs);
    free(best);
    free(best_ids);
    return err;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

nrd_error *nrd_eval_continue(const nrd_eval_model *m, const char *context, size_t n_context, const char *text, size_t n_text,
                             nrd_eval_continuation *out)
{
    nrd_error *err = NULL;
    nrd_str whole = {0};
    nrd_ids all = {0}, before = {0};
    const int32_t bos = nrd_tokenizer_bos_id(m->tokenizer), eos = nrd_tokenizer_eos_id(m->tokenizer);

    nrd_str_append(&whole, context, n_context);
    nrd_str_append(&whole, text, n_text);
    NRD_TRY_GOTO(nrd_str_error(&whole), err, done);
    while (n_context > 0 && is_space(context[n_context - 1])) {
        n_context--;
    }
    NRD_TRY_GOTO(nrd_tokenizer_encode(m->tokenizer, whole.data, whole.len, NRD_ENCODE_ADD_SPECIAL, &all), err, done);
    NRD_TRY_GOTO(nrd_tokenizer_encode(m->tokenizer, context, n_context, NRD_ENCODE_ADD_SPECIAL, &before), err, done);
    if (before.n == 0) { /* a token has to stand before what is asked for */
        nrd_ids_push(&before, bos >= 0 ? bos : eos);
        nrd_ids_append(&before, all.ids, all.n);
        nrd_ids sum = before;
        before = all;
        all = sum;
        before.n = 1;
    }
    NRD_TRY_GOTO(nrd_ids_error(&all), err, done);
    const size_t n_last = all.n > before.n ? all.n - before.n : 0, most = (size_t)m->max_tokens;
    if (n_last == 0 || n_last >= most) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "a continuation of %zu tokens; from 1 to %zu can be scored", n_last, most - 1);
        goto done;
    }
    const size_t from = all.n > most ? all.n - most : 0;
    err = nrd_eval_last(m, all.ids + from, all.n - from, n_last, out);
done:
    nrd_ids_fini(&all);
    nrd_ids_fini(&before);
    nrd_str_fini(&whole);
    return err;
}
