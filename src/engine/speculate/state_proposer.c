/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/state_proposer.h"

#include "base/mem.h"

static void hear_token(nrd_proposer *p, uint64_t step, int32_t token)
{
    nrd_state_proposer *s = (nrd_state_proposer *)(void *)p;
    s->step = step;
    s->token = token;
}

static void free_it(nrd_proposer *p)
{
    free(p);
}

void nrd_state_proposer_init(nrd_state_proposer *p, const float *likely, const nrd_step_costs *passes, int32_t n_passes)
{
    p->token = -1;
    p->base = (nrd_proposer){.hear_token = hear_token,
                             .free = free_it,
                             .threshold = -1,
                             .tree = &p->tree,
                             .likely = likely,
                             .passes = passes,
                             .n_passes = n_passes,
                             .pass_tokens = INT32_MAX};
}

bool nrd_state_proposer_has_state(const nrd_state_proposer *p, const nrd_seq *q, uint64_t last_step)
{
    return p->token >= 0 && p->step == last_step && nrd_seq_n_generated(q) > 0;
}

nrd_error *nrd_state_drafts_init(nrd_state_drafts *d, int32_t max_entries)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(d->tokens, max_entries, err, fail);
    NRD_NEW_GOTO(d->entries, max_entries, err, fail);
fail:
    return err;
}

void nrd_state_drafts_fini(nrd_state_drafts *d)
{
    free(d->tokens);
    free((void *)d->entries);
}

void nrd_state_drafts_collect(nrd_state_drafts *d, const nrd_plan *p, const nrd_step_costs *passes)
{
    d->last_step = p->step;
    d->n = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const nrd_proposer *of = e->n_draft > 0 ? nrd_proposer_of_entry(e, passes) : NULL;
        if (of) {
            d->entries[d->n] = e;
            d->tokens[d->n++] = ((const nrd_state_proposer *)(const void *)of)->token;
        }
    }
}
