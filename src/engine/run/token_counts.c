/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/token_counts.h"

#include "base/mem.h"
#include "engine/decode/beam.h"
#include "engine/run/operations.h"

#include <string.h>

/* The tokens down to a node of the tree behind the known ones, where the last count is over that read those of another. */
static nrd_error *put_path(nrd_runner *r, const nrd_plan_entry *e, int32_t node)
{
    const nrd_token_counts *c = &r->counts;
    const nrd_seq *q = e->seq;
    int32_t *behind = (r->shared ? q->dec.tokens : c->ids_host) + q->dec.n_known;
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    nrd_tree_path(e->tree, node, behind);
    return r->shared ? NULL
                     : r->dev->ops->copy(r->stream, c->ids + q->dec.n_known, behind,
                                         (size_t)e->tree->depth[node] * sizeof *behind);
}

nrd_error *nrd_run_init_counts(nrd_runner *r, const nrd_plan_entry *e)
{
    nrd_token_counts *c = &r->counts;
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_seq *q = e->seq;
    const int32_t *tokens = q->dec.tokens;
    int32_t n = q->dec.n_known + e->n_draft;
    void *p = NULL;

    if (q->req.width > 1 && e->start >= q->req.n_prompt) {
        tokens = nrd_beams_tokens(q->dec.beams, e->beam, &n);
    }
    tokens += q->req.n_cross; /* an encoder's input was not said by the decoder */
    n -= q->req.n_cross;
    if (!c->rows) {
        NRD_TRY(nrd_run_alloc(r, &p, (size_t)nrd_run_max_rows(r) * (size_t)r->spec->vocab,
                              sizeof(uint16_t), "token counts"));
        c->rows = p;
    }
    if (!r->shared) {
        size_t bytes = (size_t)r->cfg.max_context * sizeof(int32_t) + 64;
        if (!c->ids) {
            NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, "token counts"));
            c->ids = p;
        }
        if (!c->ids_host) {
            NRD_TRY(ops->alloc(r->dev, &p, NRD_MEM_HOST, bytes, "token counts"));
            c->ids_host = p;
        }
        NRD_TRY(ops->stream_sync(r->stream)); /* the copy before may still be under way */
        memcpy(c->ids_host, tokens, (size_t)n * sizeof *tokens);
        NRD_TRY(ops->copy(r->stream, c->ids, c->ids_host, (size_t)n * sizeof *tokens));
        tokens = c->ids;
    }
    for (int32_t i = 0; i <= e->n_draft; i++) {
        const int32_t depth = e->tree && i > 0 ? e->tree->depth[i - 1] : i;
        if (e->tree && i > 0) {
            NRD_TRY(put_path(r, e, i - 1));
        }
        nrd_counts_args a = {
            .slot = i == 0 ? e->slot : r->cfg.max_entries + e->first_draft + i - 1,
            .vocab = r->spec->vocab,
            .n = n - e->n_draft + depth,
            .ids = tokens,
            .counts = c->rows,
        };
        NRD_TRY(ops->counts(r->stream, &a));
    }
    return NULL;
}

void nrd_run_free_counts(nrd_runner *r)
{
    nrd_run_free(r, r->counts.rows);
    nrd_run_free(r, r->counts.ids);
    nrd_run_free_host(r, r->counts.ids_host);
}
