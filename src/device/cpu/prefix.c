/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/prefix.h"

#include "base/mem.h"

#include <stdlib.h>

nrd_error *nrd_cpu_prefix_reserve(nrd_cpu_prefix *p, int32_t n)
{
    nrd_error *err = NULL;

    if (n <= p->cap) {
        return NULL;
    }
    nrd_cpu_prefix_fini(p);
    NRD_NEW_GOTO(p->groups, (size_t)n, err, fail);
    NRD_NEW_GOTO(p->members, (size_t)n, err, fail);
    NRD_NEW_GOTO(p->group_of, (size_t)n, err, fail);
    p->cap = n;
    return NULL;

fail:
    nrd_cpu_prefix_fini(p);
    return err;
}

/* Equal entries at the start of two rows of the block table. */
static int32_t common(const nrd_batch_view *v, int32_t a, int32_t b, int32_t most)
{
    const int32_t *x = v->block_table + (int64_t)a * v->block_table_stride;
    const int32_t *y = v->block_table + (int64_t)b * v->block_table_stride;
    int32_t n = 0;

    while (n < most && x[n] == y[n] && x[n] >= 0) {
        n++;
    }
    return n;
}

nrd_error *nrd_cpu_prefix_fill(nrd_cpu_prefix *p, const nrd_batch_view *view, int32_t block_tokens, int32_t min_tokens)
{
    int32_t n = 0;

    NRD_TRY(nrd_cpu_prefix_reserve(p, view->n_seqs));
    p->view = *view;
    p->n_groups = 0;
    for (int32_t s = 0; s < view->n_seqs; s++) {
        p->group_of[s] = -1;
    }
    for (int32_t s = 0; s < view->n_seqs; s++) {
        nrd_cpu_group g = {n, 0, (view->ctx_len[s] - 1) / block_tokens};
        if (p->group_of[s] >= 0 || view->q_start[s + 1] - view->q_start[s] != 1 || g.n_blocks * block_tokens < min_tokens) {
            continue;
        }
        p->members[n++] = s;
        for (int32_t t = s + 1; t < view->n_seqs; t++) {
            if (p->group_of[t] >= 0 || view->q_start[t + 1] - view->q_start[t] != 1) {
                continue;
            }
            int32_t most = (view->ctx_len[t] - 1) / block_tokens;
            int32_t same = common(view, s, t, most < g.n_blocks ? most : g.n_blocks);
            if (same * block_tokens >= min_tokens) {
                g.n_blocks = same;
                p->members[n++] = t;
            }
        }
        g.n = n - g.first;
        if (g.n < 2) {
            n = g.first;
            continue;
        }
        for (int32_t i = g.first; i < n; i++) {
            p->group_of[p->members[i]] = p->n_groups;
        }
        p->groups[p->n_groups++] = g;
    }
    return NULL;
}

bool nrd_cpu_prefix_is_of(const nrd_cpu_prefix *p, const nrd_batch_view *view)
{
    const nrd_batch_view *o = &p->view;

    return o->n_seqs > 0 && o->n_seqs == view->n_seqs && o->n_tokens == view->n_tokens && o->q_start == view->q_start &&
           o->ctx_len == view->ctx_len && o->block_table == view->block_table &&
           o->block_table_stride == view->block_table_stride;
}

void nrd_cpu_prefix_fini(nrd_cpu_prefix *p)
{
    free(p->groups);
    free(p->members);
    free(p->group_of);
    *p = (nrd_cpu_prefix){0};
}
