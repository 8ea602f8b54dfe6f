/* SPDX-License-Identifier: Apache-2.0
 * What an executor tells of its steps. */
#include "executor/internal.h"

int32_t nrd_exec_take_iter_stats(nrd_exec *x, nrd_iter_stats *out, int32_t max)
{
    int32_t n = 0;
    pthread_mutex_lock(&x->mu);
    for (; n < max && x->iter_n > 0; n++) {
        out[n] = x->iter_ring[x->iter_first];
        x->iter_first = (x->iter_first + 1) % x->iter_cap;
        x->iter_n--;
    }
    pthread_mutex_unlock(&x->mu);
    return n;
}

nrd_error *nrd_exec_profile(nrd_exec *x, nrd_profile_row *out, int32_t max, int32_t *out_n,
                            bool reset)
{
    nrd_profile_sums sums;
    int32_t n = 0;

    *out_n = 0;
    if (x->cfg.profile_every <= 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the engine was opened without profile_every");
    }
    nrd_runner_profile(x->runner, &sums, reset);
    for (int kind = 0; kind < 2; kind++) {
        for (int op = 0; op < NRD_PROFILE_N && n < max; op++) {
            const nrd_profile_sum *s = &sums.of[kind][op];
            if (s->calls == 0) {
                continue;
            }
            out[n++] = (nrd_profile_row){
                .size = sizeof *out,
                .operation = nrd_profile_name((nrd_profile_op)op),
                .has_prompts = kind == 1,
                .n_steps = op < NRD_PROFILE_UPLOAD ? s->calls : sums.steps_by_op[kind],
                .n_calls = s->calls,
                .seconds = s->seconds,
                .bytes = s->bytes,
                .flops = s->flops,
                .eight_bit = s->eight_bit,
            };
        }
    }
    *out_n = n;
    return NULL;
}

int32_t nrd_exec_spans(nrd_exec *x, nrd_exec_span *out, int32_t first, int32_t max)
{
    nrd_profile_span some[64];
    int32_t n = 0, got;

    while (n < max && (got = nrd_runner_spans(x->runner, some, first + n,
                                              max - n < 64 ? max - n : 64)) > 0) {
        for (int32_t i = 0; i < got; i++, n++) {
            out[n] = (nrd_exec_span){
                .size = sizeof *out,
                .operation = nrd_profile_name(some[i].op),
                .is_host = some[i].op == NRD_PROFILE_ENQUEUE,
                .is_part = some[i].op >= NRD_PROFILE_UPLOAD,
                .n_sequences = some[i].n_sequences,
                .n_tokens = some[i].n_tokens,
                .start_s = some[i].start,
                .seconds = some[i].seconds,
            };
        }
    }
    return n;
}
