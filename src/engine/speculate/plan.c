/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/plan.h"

#include "base/mem.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

nrd_error *nrd_draft_plan_init(nrd_draft_plan *d, int32_t max_sequences)
{
    nrd_error *err = NULL;
    *d = (nrd_draft_plan){0};
    NRD_NEW_GOTO(d->offers, max_sequences, err, fail);
fail:
    return err;
}

void nrd_draft_plan_fini(nrd_draft_plan *d)
{
    free(d->offers);
    d->offers = NULL;
}

/* Guesses behind the known tokens, of which this step computes the last n. */
static int32_t ask(nrd_seq *q, int32_t n, int32_t max, bool trees)
{
    nrd_proposer *from = q->spec.proposer;
    const int32_t left = q->req.max_total - q->dec.n_known - 1;

    max = left < max ? left : max;
    if (!from || (from->tree && !trees) || max <= 0 || q->sched.n_pending > 0 || q->sched.n_planned + n != q->dec.n_known ||
        !nrd_speculate_suits(q)) {
        return 0;
    }
    return from->propose(from, q, q->dec.tokens + q->dec.n_known, max);
}

/* A network catches up behind a prompt's own step, so that the first token does not wait for it. */
int32_t nrd_draft_behind_prompt(nrd_seq *q, int32_t n, int32_t max)
{
    return q->spec.proposer && !q->spec.proposer->passes ? ask(q, n, max, false) : 0;
}

/* A network computes what it has missed within a pass's room; who has missed more gets its draft in a later step. */
static int32_t catch_up(nrd_proposer *p, int32_t keep, int32_t *used)
{
    const int32_t room = p->pass_tokens - *used;
    p->catch_up = 0;
    if (!p->passes || keep == 0) {
        return keep;
    }
    if (p->lag + 1 <= room) {
        *used += p->lag + 1;
        return keep;
    }
    p->catch_up = room;
    *used += room;
    return 0;
}

bool nrd_draft_may_follow(const nrd_seq *q)
{
    return q->sched.n_jump == 1 || (q->sched.n_jump > 1 && q->sched.n_again > 0 && q->spec.proposer);
}

void nrd_draft_weigh(nrd_draft_plan *d, nrd_seq *first, int32_t n_tokens, int32_t max_rows, int32_t room,
                     bool trees)
{
    int32_t n = 0, used = 0;
    for (nrd_seq *q = first; q; q = q->sched.run_next) {
        n_tokens += q->sched.n_jump;
        if (nrd_draft_may_follow(q)) {
            const int32_t k = ask(q, q->sched.n_jump, max_rows, trees);
            const nrd_proposer *p = q->spec.proposer;
            d->offers[n++] = (nrd_draft_offer){.n = k,
                                               .rate = p->always ? 2 : p->rate,
                                               .passes = p->passes,
                                               .lag = p->lag,
                                               .likely = p->likely,
                                               .whole = p->whole,
                                               .n_passes = p->n_passes};
        }
    }
    room -= n_tokens;
    nrd_costs_choose(&d->costs, n_tokens, d->offers, n, room < max_rows ? room : max_rows);
    n = 0;
    for (nrd_seq *q = first; q; q = q->sched.run_next) {
        if (nrd_draft_may_follow(q)) {
            q->spec.n_draft = catch_up(q->spec.proposer, d->offers[n++].keep, &used);
        }
    }
}

void nrd_draft_take(nrd_seq *q, nrd_kv *kv, int32_t n_room, int32_t k)
{
    nrd_kv_table *t = &q->sched.tables[0];

    q->spec.n_draft = 0;
    if (k <= 0 || nrd_kv_n_missing(kv, t, q->dec.n_known + k) > n_room) {
        return;
    }
    const int32_t before = t->n_blocks;
    bool ok = nrd_kv_extend(kv, t, q->dec.n_known + k);
    NRD_ASSERT(ok, "availability was checked");
    q->sched.n_new_blocks += t->n_blocks - before;
    q->spec.n_draft = k;
}
