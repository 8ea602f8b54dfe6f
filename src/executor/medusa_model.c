/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/medusa_model.h"

#include "base/mem.h"
#include "executor/internal.h"
#include "executor/tree_choices.h"

struct nrd_medusa_model {
    nrd_medusa_heads *file; /* the device may read weights where they are mapped */
    nrd_extra_heads *heads;
    nrd_medusa_choices choices;
    nrd_medusa *medusa;
};

static int32_t best_of(const nrd_medusa_choices *c)
{
    int32_t most = 0;
    for (int32_t i = 0; i < c->n; i++) {
        most = c->rank[i] > most ? c->rank[i] : most;
    }
    return most + 1;
}

nrd_error *nrd_exec_medusa_open(nrd_exec *x, const char *engine_dir)
{
    const nrd_exec_speculative *c = &x->speculative;
    nrd_error *err = NULL;
    nrd_medusa_model *m = NULL;

    if (c->method != NRD_EXEC_MEDUSA) {
        return NULL;
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    x->medusa = m;
    NRD_TRY(nrd_exec_speculative_heads(c, nrd_medusa_heads_open(&m->file, c->model ? c->model : engine_dir, x->spec->hidden, x->spec->vocab)));
    const int32_t n_heads = nrd_medusa_heads_n(m->file);
    if (c->choices) {
        NRD_TRY(nrd_exec_tree_choices(&m->choices, "medusa_choices", c->choices, n_heads));
    } else {
        nrd_medusa_choices_default(&m->choices, n_heads, c->max_draft);
    }
    NRD_TRY(nrd_extra_heads_new(&m->heads, x->runner, m->file, best_of(&m->choices), c->quantize));
    nrd_exec_log(x, 2, "%d Medusa heads: %.0f MB of weights, trees of up to %d tokens", n_heads,
                 (double)nrd_extra_heads_bytes(m->heads) / 1e6, m->choices.n);
fail:
    return err;
}

nrd_error *nrd_exec_medusa_start(nrd_exec *x)
{
    nrd_medusa_model *m = x->medusa;
    if (!m) {
        return NULL;
    }
    const uint64_t weights = nrd_extra_heads_bytes(m->heads);
    x->info.weight_bytes += weights;
    return nrd_medusa_new(&m->medusa, m->heads, &m->choices, nrd_exec_max_entries(x),
                          nrd_sched_costs(x->sched), (float)((double)weights / (double)nrd_engine_weight_bytes(x->engine)));
}

nrd_error *nrd_exec_medusa_proposer(const nrd_exec *x, nrd_proposer **out)
{
    return nrd_proposer_of_medusa(out, x->medusa->medusa);
}

nrd_error *nrd_exec_medusa_run(nrd_exec *x, const nrd_plan *p)
{
    return x->medusa ? nrd_medusa_run(x->medusa->medusa, p) : NULL;
}

void nrd_exec_medusa_close(nrd_exec *x)
{
    nrd_medusa_model *m = x->medusa;
    if (m) {
        nrd_medusa_free(m->medusa);
        nrd_extra_heads_free(m->heads);
        nrd_medusa_heads_close(m->file);
        free(m);
        x->medusa = NULL;
    }
}
