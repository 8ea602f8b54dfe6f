/* SPDX-License-Identifier: Apache-2.0
 * What drafts take of the host in a step: guessing from the text (n-gram, up to 8 tokens), weighing over all sequences, and learning
 * from what held. Nothing is computed; half of what is drafted holds. Texts of few different tokens repeat all the time, those of
 * many never.
 *
 *   bench_drafts [SEQUENCES] [DIFFERENT_TOKENS]      32 and 16
 */
#include "base/hash.h"
#include "base/mem.h"
#include "engine/speculate/plan.h"
#include "engine/speculate/proposer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STEPS = 600, PROMPT = 512, DRAFT = 8, TOTAL = PROMPT + STEPS * (DRAFT + 1) + DRAFT + 1 };

static uint64_t dice = 1;

static int32_t roll(int32_t n)
{
    dice = nrd_hash_u64(dice, 0x51);
    return (int32_t)((dice >> 33) % (uint64_t)n);
}

static double thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static nrd_error *begin(nrd_seq *q, nrd_seq *next, int32_t n_different)
{
    nrd_error *err = NULL;
    *q = (nrd_seq){.req = {.n_prompt = PROMPT, .max_total = TOTAL, .width = 1}, .dec = {.n_known = PROMPT + 1}};
    NRD_NEW_GOTO(q->dec.tokens, TOTAL, err, fail);
    for (int32_t i = 0; i < q->dec.n_known; i++) {
        q->dec.tokens[i] = roll(n_different);
    }
    q->sched.run_next = next;
    q->sched.n_jump = 1;
    err = nrd_proposer_ngram(&q->spec.proposer, DRAFT, 1, DRAFT, TOTAL);
fail:
    return err;
}

/* One step; returns how many tokens were drafted. */
static int32_t step(nrd_draft_plan *d, nrd_seq *seqs, int32_t n, int32_t n_different, double *out_us)
{
    int32_t drafted = 0;
    for (int32_t i = 0; i < n; i++) {
        seqs[i].sched.n_planned = seqs[i].dec.n_known - 1;
    }
    *out_us = -thread_us();
    nrd_draft_weigh(d, seqs, 0, NRD_COST_TOKENS, NRD_COST_TOKENS, false);
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = seqs[i].spec.n_draft;
        if (k > 0) {
            seqs[i].spec.proposer->hear(seqs[i].spec.proposer, &(nrd_draft_outcome){.n_proposed = k, .n_accepted = k / 2});
        }
    }
    *out_us += thread_us();
    for (int32_t i = 0; i < n; i++) {
        drafted += seqs[i].spec.n_draft;
        seqs[i].dec.n_known += seqs[i].spec.n_draft / 2;
        seqs[i].dec.tokens[seqs[i].dec.n_known++] = roll(n_different);
    }
    return drafted;
}

static nrd_error *run(int32_t n, int32_t n_different)
{
    nrd_error *err = NULL;
    nrd_draft_plan d = {0};
    nrd_seq *seqs = NULL;
    double us[STEPS];
    int64_t drafted = 0;

    NRD_NEW_GOTO(seqs, n, err, fail);
    NRD_TRY_GOTO(nrd_draft_plan_init(&d, n), err, fail);
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(begin(&seqs[i], i + 1 < n ? &seqs[i + 1] : NULL, n_different), err, fail);
    }
    for (int32_t rows = n; rows <= NRD_COST_TOKENS; rows += 16) { /* a device that reads weights: more rows take little more */
        nrd_costs_hear(&d.costs, rows, 900000 + (uint64_t)rows * 100);
        nrd_costs_hear_drafted(&d.costs, rows, 900000 + (uint64_t)rows * 100);
    }
    for (int32_t i = 0; i < STEPS; i++) {
        drafted += step(&d, seqs, n, n_different, &us[i]);
    }
    qsort(us, STEPS, sizeof *us, by_size);
    printf("%d sequences, %.1f tokens drafted a step: %.1f us of processor time (median), 90 %% below %.1f us\n", n,
           (double)drafted / STEPS, us[STEPS / 2], us[STEPS * 9 / 10]);
fail:
    for (int32_t i = 0; seqs && i < n; i++) {
        nrd_proposer_free(seqs[i].spec.proposer);
        free(seqs[i].dec.tokens);
    }
    free(seqs);
    nrd_draft_plan_fini(&d);
    return err;
}

int main(int argc, char **argv)
{
    const int32_t n = argc > 1 ? atoi(argv[1]) : 32, n_different = argc > 2 ? atoi(argv[2]) : 16;
    nrd_error *err = n < 1 || n > NRD_COST_TOKENS || n_different < 1
                         ? nrd_errorf(NRD_ERR_INVALID_ARG, "usage: bench_drafts [SEQUENCES] [DIFFERENT_TOKENS], 1 to %d sequences", NRD_COST_TOKENS)
                         : run(n, n_different);
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        nrd_error_free(err);
        return 1;
    }
    return 0;
}
