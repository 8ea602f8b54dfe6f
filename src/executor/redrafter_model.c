/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/redrafter_model.h"

#include "base/mem.h"
#include "executor/internal.h"

struct nrd_redrafter_model {
    nrd_redrafter_heads *file; /* the device may read weights where they are mapped */
    nrd_redrafter_net *net;
    nrd_redrafter *redrafter;
};

nrd_error *nrd_exec_redrafter_read(nrd_exec *x, const char *engine_dir)
{
    nrd_exec_speculative *c = &x->speculative;
    nrd_error *err = NULL;

    if (c->method != NRD_EXEC_REDRAFTER) {
        return NULL;
    }
    NRD_NEW_GOTO(x->redrafter, 1, err, fail);
    NRD_TRY(nrd_exec_speculative_heads(c, nrd_redrafter_heads_open(&x->redrafter->file, c->model ? c->model : engine_dir, x->spec->hidden, x->spec->vocab)));
    const nrd_redrafter_sizes *s = nrd_redrafter_heads_sizes(x->redrafter->file);
    c->top_k = c->top_k > 0 ? c->top_k : s->n_beams;
    c->depth = c->depth > 0 ? c->depth : s->length;
    const int32_t most = c->top_k * c->depth;
    if (c->max_draft > most || c->top_k > x->spec->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: num_speculative_tokens is %d, a ReDrafter's search with redrafter_num_beams %d "
                          "and redrafter_draft_len_per_beam %d has at most %d, of a vocabulary of %d", c->max_draft, c->top_k, c->depth,
                          most, x->spec->vocab);
    }
    c->max_draft = c->max_draft > 0 ? c->max_draft : most;
fail:
    return err;
}

nrd_error *nrd_exec_redrafter_open(nrd_exec *x)
{
    const nrd_exec_speculative *c = &x->speculative;
    nrd_redrafter_model *m = x->redrafter;

    if (!m) {
        return NULL;
    }
    NRD_TRY(nrd_redrafter_net_new(&m->net, x->runner, m->file, nrd_exec_draft_outputs(x), c->top_k, c->quantize));
    nrd_exec_log(x, 2, "ReDrafter: %.0f MB of weights, %d beams of %d tokens, trees of up to %d", (double)nrd_redrafter_net_bytes(m->net) / 1e6,
                 c->top_k, c->depth, c->max_draft);
    return NULL;
}

nrd_error *nrd_exec_redrafter_start(nrd_exec *x)
{
    const nrd_exec_speculative *c = &x->speculative;
    nrd_redrafter_model *m = x->redrafter;

    if (!m) {
        return NULL;
    }
    const uint64_t weights = nrd_redrafter_net_bytes(m->net);
    x->info.weight_bytes += weights;
    return nrd_redrafter_new(&m->redrafter, m->net,
                             &(nrd_redrafter_config){.max_draft = c->max_draft,
                                                     .n_beams = c->top_k,
                                                     .length = c->depth,
                                                     .max_rows = nrd_exec_draft_outputs(x),
                                                     .max_entries = nrd_exec_max_entries(x),
                                                     .model_costs = nrd_sched_costs(x->sched),
                                                     .share = (float)((double)weights / (double)nrd_engine_weight_bytes(x->engine))});
}

nrd_error *nrd_exec_redrafter_proposer(const nrd_exec *x, nrd_proposer **out)
{
    return nrd_proposer_of_redrafter(out, x->redrafter->redrafter);
}

nrd_error *nrd_exec_redrafter_run(nrd_exec *x, const nrd_plan *p)
{
    return x->redrafter ? nrd_redrafter_run(x->redrafter->redrafter, p) : NULL;
}

void nrd_exec_redrafter_close(nrd_exec *x)
{
    nrd_redrafter_model *m = x->redrafter;
    if (m) {
        nrd_redrafter_free(m->redrafter);
        nrd_redrafter_net_free(m->net);
        nrd_redrafter_heads_close(m->file);
        free(m);
        x->redrafter = NULL;
    }
}
