/* SPDX-License-Identifier: Apache-2.0
 * Snapshots of the states of layers: where one is taken, and which ones stay. */
#include "engine/scheduler_internal.h"

/* Whether sequences share what they compute. */
bool nrd_sched_shares(const nrd_sched *s)
{
    return s->lim.window == 0 && (!s->lim.recurrent || nrd_kv_states(s->kv));
}

/* A piece of a prompt [start, start + n), cut where its state is to be kept. */
int32_t nrd_sched_cut_at_stop(const nrd_seq *q, int32_t start, int32_t n)
{
    for (int i = 0; i < 2; i++) {
        const int32_t stop = q->sched.state_stops[i];
        n = stop > start && stop < start + n ? stop - start : n;
    }
    return n;
}

/* Where the state of a sequence that starts is to be kept; the match is what the cache has of it. */
void nrd_sched_set_stops(const nrd_sched *s, nrd_seq *q, const nrd_kv_match *m)
{
    const int32_t bt = nrd_kv_block_tokens(s->kv);
    const bool none = !nrd_kv_states(s->kv) || q->req.no_reuse || q->req.picture_rows > 0;
    q->sched.state_stops[0] = none ? 0 : (q->dec.n_known - 1) / bt * bt;
    q->sched.state_stops[1] = none ? 0 : m->n_matched * bt;
    q->sched.state_block = -1;
}

/* Has the state behind an entry kept, if it is worth that. */
void nrd_sched_take_state(const nrd_sched *s, nrd_plan_entry *e)
{
    const nrd_seq *q = e->seq;
    const int32_t end = e->start + e->n, *stops = q->sched.state_stops;
    nrd_states *states = nrd_kv_states(s->kv);

    if (!states || q->req.no_reuse || e->n_draft > 0 || end % nrd_kv_block_tokens(s->kv) != 0) {
        return;
    }
    if (!e->is_context || end == stops[0] || end == stops[1]) {
        e->state_save = nrd_states_take(states);
    }
}

/* The step of an entry is done. Of what is generated only the newest state is kept, unless one was of use. */
void nrd_sched_keep_state(nrd_sched *s, nrd_seq *q, const nrd_plan_entry *e, bool same_cache)
{
    nrd_states *states = nrd_kv_states(s->kv);
    const nrd_kv_table *t = &q->sched.tables[0];

    if (e->state_save < 0) {
        return;
    }
    const int32_t i = (e->start + e->n) / nrd_kv_block_tokens(s->kv) - 1;
    if (!same_cache || i >= t->n_published) {
        nrd_states_give_back(states, e->state_save);
        return;
    }
    if (nrd_states_keep(states, e->state_save, t->blocks[i]) && !e->is_context) {
        if (q->sched.state_block >= 0) {
            nrd_states_drop_unused(states, q->sched.state_block);
        }
        q->sched.state_block = t->blocks[i];
    }
}
